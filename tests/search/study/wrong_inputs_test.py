"""What a user of `Study` may get wrong ends in one sentence that names it, before anything is trained."""

import functools

import flax.linen as nn
import numpy as np
import optax
import pytest

import depthmup_flax as dm
from depthmup_flax.networks.calls import UserCodeError
from depthmup_flax.util.errors import InputError

X, Y = np.zeros((20, 5), np.float32), np.arange(20) % 3
SPLITS = ((X[:15], Y[:15]), (X[15:], Y[15:]))


class Net(nn.Module):
    width: int
    depth: int
    rule: dm.Parametrization
    eps: float = 1e-6

    @nn.compact
    def __call__(self, x):
        h = nn.Dense(self.width)(x)
        for _ in range(self.depth):
            h = h + self.rule.residual_multiplier(self.depth / 2) * nn.Dense(self.width)(nn.relu(h))
        return nn.Dense(3)(h * self.rule.readout_multiplier(self.width / 8))


class Plain(Net):
    """Without multipliers."""

    rule: dm.Parametrization = dm.get_parametrization("sp")

    @nn.compact
    def __call__(self, x):
        h = nn.Dense(self.width)(x)
        for _ in range(self.depth):
            h = h + nn.Dense(self.width)(nn.relu(h))
        return nn.Dense(3)(h)


def study(build=Net, data=SPLITS, **arguments):
    return dm.Study(build, data, **{"base": (8, 2), "steps": 5, "batch_size": 5, **arguments})


@functools.cache
def shared():
    """One whose network is traced once for all searches that are refused."""
    return study()


def task(width, depth):
    return dm.Task(lambda key, hyper: 0.0, lambda state, batch, hyper: (state, {"loss": hyper["rate"] * 1.0}))


GRID = {"learning_rate": (0.1, 0.2)}
VECTORS = ((X[:15], X[:15, :3]), (X[15:], X[15:, :3]))


def output(function):
    """A network whose result is ``function`` of the logits."""

    class Changed(Net):
        @nn.compact
        def __call__(self, x):
            return function(Net(self.width, self.depth, self.rule)(x))

    return Changed


WRONG = {  # call -> words of the sentence
    "a network in place of its class": (lambda: study(Net(8, 2, dm.PRESETS["sp"])), "build is Net", "lambda width"),
    "no depth": (lambda: study(lambda width: Net(width, 2, dm.PRESETS["sp"])), "'depth'", "build(width, depth"),
    "a width that is ignored": (
        lambda: study(lambda width, depth, rule: Net(8, depth, rule)).train(width=16, depth=4),
        "width is 16",
        "parameters of width 8, depth 4",
    ),
    "a depth that is ignored": (
        lambda: study(lambda width, depth, rule: Net(width, 2, rule)).train(width=16, depth=4),
        "depth is 4",
        "parameters of width 16, depth 2",
    ),
    "sizes that are ignored": (
        lambda: study(lambda width, depth, rule: Net(8, 2, rule)).tune(**GRID),
        "depth is 2",
        "parameters of width 16, depth 4",
    ),
    "one split": (lambda: study(data=X), "data is ndarray", "(train, test)"),
    "four arrays": (lambda: study(data=(X, Y, X, Y)), "data has 4 arrays", "(train, test)"),
    "a data set that is not there": (lambda: study(data="digitz"), "data is 'digitz'", "digits"),
    "a base of one number": (lambda: study(base=64), "base is 64", "(64, 4)"),
    "a base of no width": (lambda: study(base=(0, 4)), "the width in base is 0", "at least 1"),
    "a base without depth": (lambda: study(base=(8, None)), "the depth in base is None", "at least 1"),
    "a rule that is not there": (lambda: study(rule="depthmup"), "'depthmup'", "depth_mup"),
    "a rule of another kind": (lambda: study(rule=0.5), "rule is 0.5", "preset"),
    "a loss that is no function": (lambda: study(loss=3), "loss is 3", "cross_entropy"),
    "a loss that is not there": (lambda: study(loss="huber"), "loss is 'huber'", "import path", "the function"),
    "an optimizer that is not there": (lambda: study(optimizer="addam"), "addam", "adam"),
    "a loss of another library": (lambda: study(loss="mse"), "loss is 'mse': did you mean 'squared_error'?"),
    "another optimizer for a run": (lambda: study().config(optimizer="Adam"), "optimizer is 'Adam'", "'adam'"),
    "an objective that is not there": (lambda: study(objective="val"), "objective is 'val'", "validation"),
    "no steps": (lambda: study(steps=1.5), "steps is 1.5", "whole number"),
    "a large batch": (lambda: study(batch_size=100).tune(**GRID), "batch_size is 100", "15"),
    "a setting that is not there": (lambda: study(**{"train.eval_evry": 3}), "train.eval_evry", "train.eval_every"),
    "sizes as settings": (lambda: study(width=32), "width is 32", "base="),
    "a name of config in hyper": (lambda: study(hyper={"b1": 0.9}), "hyper has 'b1'", "b1=VALUE"),
    "text in hyper": (lambda: study(hyper={"a": "x"}), "hyper['a'] is 'x'", "number"),
    "hyper of a network": (lambda: study(hyper={"a": 1}).tune(**GRID), "hyper.a is 1", "dm.Task"),
    "hyper that is not given": (lambda: study(task).tune(rate=(0.1, 0.2)), "rate is not", "hyper={'rate'"),
    "hyper that is not read": (lambda: study(task, hyper={"rate": 1, "b": 2}).tune(rate=(1.0, 2.0)), "hyper.b", "rate"),
    "a name that is nearly right": (
        lambda: shared().tune(learnin_rate=(0.1, 0.2)),
        "learnin_rate is",
        "learning_rate",
    ),
    "a name of two fields": (lambda: shared().tune(eps=(0.1, 0.2)), "model.eps", "optimizer.kwargs.eps"),
    "a size in tune": (lambda: shared().tune(width=(8, 16)), "width is (8, 16)", "widths="),
    "the seed as an axis": (lambda: shared().tune(seed=(0, 1)), "seed is (0, 1)", "seeds="),
    "a field twice": (lambda: shared().tune(**GRID, **{"optimizer.learning_rate": 1}), "twice", "out"),
    "no values": (lambda: shared().tune(learning_rate=()), "learning_rate is empty", "at least one"),
    "a negative rate": (lambda: shared().tune(learning_rate=(-1, 1)), "-1", "positive"),
    "no seeds": (lambda: shared().tune(**GRID, seeds=0), "seeds is 0", "at least 1"),
    "a text for a number": (lambda: study().config(learning_rate="fast"), "learning_rate is 'fast'", "a number"),
    "half a layer": (lambda: study().config(8, 2.5), "depth is 2.5", "whole number"),
    "a constant in tune twice": (lambda: study().tune(tune=["gamma0", "gamma0"]), "tune has", "twice"),
    "a number in the names to tune": (lambda: study().tune(tune=3), "3 is not a hyperparameter", "'learning_rate'"),
    "a size in the names to tune": (lambda: study().tune(tune=["width"]), "'model.width'", "branch_multiplier"),
    "a range that falls": (lambda: study().tune(tune="gamma0", gamma0=(2, 1)), "gamma0 is 2:1", "(0.25, 4)"),
    "a sampler of what tune names": (lambda: study().tune(tune="gamma0", sampler=3), "sampler", "leave one out"),
    "a search that shrinks its grid": (lambda: study().tune(tune="gamma0", extend=-1), "extend is -1", "at least 0"),
    "a sampler with a grid": (
        lambda: shared().tune(learning_rate=(0.1, 0.2, 0.4), trials=4),
        "(0.1, 0.2, 0.4)",
        "range",
    ),
    "a sampler without a range": (lambda: shared().tune(learning_rate=0.1, trials=4), "sampler", "(1e-4, 1e-1)"),
    "no trials": (lambda: shared().tune(learning_rate=(0.1, 0.2), trials=0), "trials is 0", "at least 1"),
    "multipliers that are missing": (lambda: study(Plain).optimizer(32, 4), "does not follow the rule", "audit=False"),
    "the optimizer of a task": (lambda: study(task, hyper={"rate": 1}).optimizer(8, 2), "dm.Task", "use that one"),
    "the audit of a task": (lambda: study(task, hyper={"rate": 1}).audit(8, 2), "dm.Task", "Audit"),
    # Arguments as they were typed, not the fields and flags of the commands.
    "the class of rules": (lambda: study(rule=dm.Parametrization), "rule is the class Parametrization", "preset"),
    "a preset with a hyphen": (lambda: study(rule="depth-mup"), "rule is 'depth-mup': did you mean 'depth_mup'"),
    "an optimizer's class": (lambda: study(optimizer="Adam"), "optimizer is 'Adam'", "'adam'"),
    "a model's name": (lambda: study("resmlp"), "build is 'resmlp'", "'res_mlp'"),
    "a text for a size": (lambda: study(steps="100"), "steps is '100': use a whole number"),
    "a text for the batch": (lambda: study(batch_size="5"), "batch_size is '5'", "whole number"),
    "a text for a rate": (lambda: shared().tune(learning_rate="1e-3"), "learning_rate has '1e-3'", "positive"),
    "a rate twice": (lambda: shared().tune(learning_rate=(0.1, 0.1)), "learning_rate has 0.1 twice"),
    "a negative extension": (lambda: shared().tune(**GRID, extend=-1), "extend is -1", "at least 0"),
    "a split of lists": (lambda: study(data=(X.tolist(), Y.tolist())).tune(**GRID), "data: train[0] is a list", "pair"),
    "texts as labels": (
        lambda: study(data=((X[:15], Y[:15].astype(str)), (X[15:], Y[15:].astype(str)))).tune(**GRID),
        "data: train[1] is an array of",
        "numbers",
    ),
    "a loss of each example": (
        lambda: study(loss=optax.softmax_cross_entropy_with_integer_labels).train(),
        "loss is softmax_cross_entropy_with_integer_labels: it returns float32[5]",
        "mean over the batch",
    ),
    "a field of the network": (lambda: study(lambda width, depth, heads: None), "heads=VALUE"),
    # The first hours.
    "inputs and targets": (lambda: study(data=(X, Y)), "data has 2 arrays", "(x_train, y_train)"),
    "a list for hyper": (lambda: study(hyper=["a"]), "hyper is ['a']", "dictionary"),
    "epochs and steps": (lambda: study(epochs=3), "steps is 5 and epochs is 3", "leave one out"),
    "a number as directory": (lambda: study(workdir=3), "the work directory is 3", "path"),
    "lr": (lambda: shared().tune(lr=(0.1, 0.2)), "lr is not", "did you mean 'learning_rate'?"),
    "a text for seeds": (lambda: shared().tune(**GRID, seeds="3"), "seeds is '3'", "whole number"),
    "half a seed": (lambda: shared().tune(**GRID, seeds=1.5), "seeds is 1.5", "(0, 1, 2)"),
    "a shard beyond the last": (
        lambda: shared().sweep(depths=(4,), **GRID, shard=(2, 2)),
        "shard is (2, 2)",
        "(0, 4)",
    ),
    "a sampler's name": (lambda: shared().tune(**GRID, sampler="tpe"), "sampler is 'tpe'", "optuna.samplers"),
    "a text for trials": (lambda: shared().tune(**GRID, trials="4"), "trials is '4'", "whole number"),
    "widths as text": (lambda: shared().sweep(widths="8,16", **GRID), "widths is '8,16'", "whole number"),
    "rungs as text": (lambda: shared().forecast(64, widths="8,16"), "widths is '8,16'", "whole number"),
    "half a rung": (lambda: shared().forecast(64, rung_steps=(1.5, 2, 4)), "rung_steps is 1.5", "whole number"),
    "one rung": (lambda: shared().forecast(64, widths=8), "one size", "widths=16,32,64"),
    "a budget as text": (lambda: shared().forecast(64, budget="5 days"), "budget is '5 days'", "5%"),
    "a budget of named rungs": (lambda: shared().forecast(64, budget=0.1, widths=(8, 16, 32)), "budget", "use one"),
    "an axis that is none": (lambda: shared().forecast(64, axes="hight"), "axes has 'hight'", "width"),
    "the best as a width": (lambda: study().train({"learning_rate": 0.1}), "width is a dict", "**best"),
    "all variables": (lambda: study().rescale_init({"params": {}}, 16, 4), "params has an entry 'params'"),
    "another network's values": (
        lambda: study().rescale_init({"a": X}, 16, 4),
        "no such parameter at 'Dense_0/bias'",
        "this width",
    ),
    "logits in a dictionary": (
        lambda: study(output(lambda z: {"logits": z})).train(),
        "the outputs are",
        "integers",
    ),
    "a sum of logits": (lambda: study(output(lambda z: z.sum())).train(), "the outputs are float32[]", "integers"),
    "vectors for labels": (lambda: study(data=VECTORS).train(), "the targets float32[5, 3]", "integers"),
    "records that are not there": (lambda: dm.read_records("/nowhere"), "'/nowhere'", "workdir"),
    "all runs diverge": (
        lambda: study(loss=lambda z, y: z.sum() * np.inf).tune(**GRID, seeds=1, extend=0),
        "diverged",
        "lower",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_input_ends_in_one_sentence_that_names_it_and_the_remedy(wrong):
    call, *words = WRONG[wrong]
    with pytest.raises(InputError) as error:
        call()
    assert all(word in str(error.value) for word in words), error.value


def test_epochs_replace_the_default_number_of_steps():
    train = dm.Study(Net, SPLITS, base=(8, 2), epochs=3, batch_size=5).config().train
    assert (train.steps, train.epochs) == (0, 3)
    assert dm.Study(Net, SPLITS, base=(8, 2)).config().train.steps > 0


def test_names_of_fields_that_several_sections_have_stay_whole():
    with pytest.raises(InputError, match=r"^optimizer\.kwargs\.eps is -1"):
        shared().tune(**GRID, **{"optimizer.kwargs.eps": (-1.0,)})


def test_an_error_in_their_loss_says_which_function_failed_with_which_shapes():
    def contrastive(outputs, targets):
        return optax.squared_error(outputs, targets.missing)

    with pytest.raises(UserCodeError, match=r"contrastive\(float32\[5, 3\], int\d+\[5\]\) failed: AttributeError"):
        study(loss=contrastive).tune(**GRID)


def test_any_rule_that_a_config_can_name_is_that_rule():
    for rule in (dm.PRESETS["ntk"], dm.PRESETS["block_only"], dm.get_parametrization("completep", gamma0=2.0)):
        section = study(rule=rule).config().parametrization.to_dict()
        fields = {name: value for name, value in section.items() if value is not None}
        assert dm.get_parametrization(**fields) == rule
