"""What a user may pass to `audit` and to other functions on models by mistake ends in one sentence with the remedy."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx

import depthmup_flax as dm
from depthmup_flax.util.errors import InputError

RULE = dm.get_parametrization("depth_mup")
X = jnp.ones((2, 5))


class Net(nn.Module):
    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        h = nn.Dense(self.width, name="stem")(x)
        for _ in range(self.depth):
            h = dm.ResidualBranch(nn.Dense(self.width), RULE, self.depth / 2)(h)
        return dm.Readout(3, RULE, self.width / 8)(h)


class NnxNet(nnx.Module):
    """An NNX class."""


MODEL, BASE = Net(16, 4), Net(8, 2)
PARAMS = {"w": jnp.ones((5, 16))}
audit = functools.partial(dm.audit, MODEL, BASE)


def params_of(model):
    return nn.unbox(jax.eval_shape(model.init, jax.random.key(0), X)["params"])


WRONG = {  # call -> parts of the sentence
    "a shape": (lambda: audit((2, 5)), "x is (2, 5)", "pass a batch"),
    "no batch": (lambda: audit(None), "x is None", "pass a batch"),
    "no example": (lambda: audit(X[:0]), "[0, 5]", "one example or more"),
    "a dictionary": (lambda: audit({"image": X}), "x = float32[2, 5]"),
    "two arguments": (lambda: audit((X, X)), "x = float32[2, 5], float32[2, 5]", "parts of a tuple are"),
    "the batch second": (lambda: dm.audit(MODEL, X, BASE), "x is a Net", "pass a batch"),
    "classes": (lambda: dm.audit(Net, Net, X), "model is the class Net", "an instance"),
    "an NNX class": (lambda: dm.audit(NnxNet, NnxNet, X), "model is the class NnxNet", "an instance"),
    "parameters": (lambda: dm.audit(PARAMS, PARAMS, X), "model is a dict", "a pair (function, parameters)"),
    "sizes as the base": (lambda: dm.audit(MODEL, (8, 2), X), "base is (8, 2)", "pass a Linen"),
    "base and model swapped": (
        lambda: dm.adamw(1e-3, dm.audit(BASE, MODEL, X).info, RULE),
        "not judged: sizes",
        "print(audit)",
    ),
    "a misspelt argument": (lambda: audit(X, depth_raito=2), "unexpected keyword argument 'depth_raito'"),
    "a result that is not there": (lambda: audit(X, output="logits"), "the model returns float32[2, 3]"),
    "names without Axes": (
        lambda: audit(X, overrides={"stem/kernel": ("fixed_in", "width_out")}),
        "overrides['stem/kernel'] is ('fixed_in', 'width_out')",
        "Axes(",
    ),
    "a list of overrides": (lambda: audit(X, overrides=["stem"]), "overrides is ['stem']", "dictionary"),
    "parameters for info": (lambda: dm.adamw(1e-3, PARAMS, RULE), "info is a dict:", "pass what dm.audit("),
    "rate and audit swapped": (lambda: dm.adamw(audit(X), 1e-3), "info is 0.001: pass what dm.audit("),
    "no rate": (lambda: dm.depthmup(optax.scale_by_lion(), audit(X)), "learning_rate is None", "learning_rate=1e-3"),
    "a finished optimizer": (
        lambda: dm.depthmup(optax.adamw(1e-3), audit(X), learning_rate=1e-3).init(params_of(MODEL)),
        "inner is a finished optimizer",
        "optax.scale_by_adam()",
    ),
    "parameters swapped": (
        lambda: dm.rescale_init(params_of(BASE), params_of(MODEL), audit(X)),
        "were model and base swapped?",
        "dm.rescale_init(params, base_params, audit)",
    ),
    "parameters of equal depth swapped": (
        lambda: dm.rescale_init(params_of(Net(8, 4)), params_of(MODEL), dm.audit(MODEL, Net(8, 4), X)),
        "were model and base swapped?",
    ),
    "another depth": (
        lambda: dm.adamw(1e-3, audit(X).info, RULE).init(params_of(Net(16, 2))),
        "structure of the parameters",
        "base",
    ),
    "another width": (
        lambda: dm.adamw(1e-3, audit(X).info, RULE).init(params_of(Net(8, 4))),
        "info was made for",
        "pass the parameters of the network",
    ),
    "a preset's name": (lambda: dm.rescale_init(PARAMS, PARAMS, {}, "mup"), "rule is 'mup'", "get_parametrization"),
    "a rule for a name": (lambda: dm.get_parametrization(RULE), "parametrization.preset is a Parametrization", "mup"),
    "a branch's class": (
        lambda: dm.ResidualBranch(nn.Dense, RULE, 2.0).init(jax.random.key(0), X),
        "branch is the class Dense",
        "an instance",
    ),
    "rule and branch swapped": (
        lambda: dm.ResidualBranch(RULE, nn.Dense(5), 2.0).init(jax.random.key(0), X),
        "rule is a Dense",
        "get_parametrization",
    ),
    "a negative threshold": (lambda: dm.clip_by_global_rms(-1), "threshold is -1", "above 0"),
    "a rate without its batch": (lambda: dm.rescaled_hyperparameters(1e-3), "tuned is 0.001", "dm.Hyperparameters("),
    "rates for exponents": (lambda: dm.powers_of_two(1e-4, 1e-1), "powers_of_two(0.0001, 0.1, 1)", "exponents"),
    "exponents downwards": (lambda: dm.powers_of_two(5, -5), "powers_of_two(5, -5, 1)", "the lowest"),
    "a number for a directory": (lambda: dm.load_run(3), "the work directory is 3", "path"),
    "a directory for several": (lambda: dm.make_report("runs", "out"), "directories is 'runs'", "['runs']"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_input_ends_in_one_sentence_that_names_it_and_the_remedy(wrong):
    call, *parts = WRONG[wrong]
    with pytest.raises(InputError) as error:
        call()
    assert all(part.lower() in str(error.value).lower() for part in parts), error.value
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("layer", [lambda: dm.Readout(3, RULE), lambda: dm.ResidualBranch(nn.Dense(5), RULE)])
def test_the_ratio_of_a_readout_and_of_a_branch_is_never_assumed(layer):
    with pytest.raises(TypeError, match=r"missing 1 required positional argument: '(width|depth)_ratio'"):
        layer()


@pytest.mark.parametrize(
    ("name", "meant"),
    [("adam", "adamw"), ("MuReadout", "Readout"), ("ResidualBlock", "ResidualBranch"), ("coordcheck", "coord_check")],
)
def test_a_name_that_is_not_there_is_answered_by_the_closest(name, meant):
    with pytest.raises(AttributeError) as error:
        getattr(dm, name)
    assert str(error.value).count(repr(meant)) == 1
    assert not hasattr(dm, "__no_such_hook__")
