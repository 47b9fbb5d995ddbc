"""What a user of `Study` may get wrong ends in one sentence that names it, before anything is trained."""

import functools

import flax.linen as nn
import numpy as np
import optax
import pytest
import user_networks as networks

import depthmup_flax as dm
from depthmup_flax.networks.user_code import UserCodeError
from depthmup_flax.util.errors import InputError

X, Y = np.zeros((20, 5), np.float32), np.arange(20) % 3
SPLITS = ((X[:15], Y[:15]), (X[15:], Y[15:]))


class Net(networks.RuleNet):
    eps: float = 1e-6


class Plain(Net):
    """Without multipliers, which no parameter of its branches can carry."""

    rule: dm.Parametrization = dm.get_parametrization("sp")

    @nn.compact
    def __call__(self, x):
        h = nn.Dense(self.width)(x)
        for _ in range(self.depth):
            h = h + nn.tanh(nn.Dense(self.width)(h))
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


WRONG = {  # call -> what the sentence names
    "a network in place of its class": (lambda: study(Net(8, 2, dm.PRESETS["sp"])), "build is Net"),
    "no depth": (lambda: study(lambda width: Net(width, 2, dm.PRESETS["sp"])), "'depth'"),
    "one split": (lambda: study(data=X), "data is"),
    "inputs and targets": (lambda: study(data=(X, Y)), "data is"),
    "a rule that is not there": (lambda: study(rule="depth-mup"), "did you mean 'depth_mup'"),
    "a rule of another kind": (lambda: study(rule=0.5), "rule is 0.5"),
    "a ladder to nowhere": (lambda: shared().tune(**GRID, ladder=0.1), "target is None"),
    "a target without a depth": (lambda: shared().tune(**GRID, target=256), "target is 256"),
    "a target below the base": (lambda: shared().tune(**GRID, target=(4, 2)), "target's width is 4"),
    "a ladder that costs nothing": (lambda: shared().tune(**GRID, target=(16, 2), ladder=0), "ladder is 0"),
    "an objective that is not there": (lambda: study(objective="val").tune(**GRID), "objective is 'val'"),
    "half a step": (lambda: study(steps=1.5), "train.steps is 1.5"),
    "a large batch": (lambda: study(batch_size=100).tune(**GRID), "batch_size is 100"),
    "hyper of a network": (lambda: study(hyper={"a": 1}).tune(**GRID), "hyper.a is 1"),
    "hyper that is not given": (lambda: study(task).tune(rate=(0.1, 0.2)), "hyper={'rate'"),
    "a name that is nearly right": (lambda: shared().tune(learnin_rate=(0.1, 0.2)), "did you mean 'learning_rate'?"),
    "a name of two fields": (lambda: shared().tune(eps=(0.1, 0.2)), "optimizer.kwargs.eps"),
    "a size in tune": (lambda: shared().tune(width=(8, 16)), "width is (8, 16)"),
    "the seed as an axis": (lambda: shared().tune(seed=(0, 1)), "seed is (0, 1)"),
    "a text for a number": (lambda: study().config(learning_rate="fast"), "optimizer.learning_rate is 'fast'"),
    "a text for a width": (lambda: study().sweep(widths=("a",)), "widths is 'a'"),
    "the best as a width": (lambda: study().train({"learning_rate": 0.1}), "model.width is"),
    "multipliers that are missing": (lambda: study(Plain).train(32, 4), "model.audit=False"),
    "the audit of a task": (lambda: study(task, hyper={"rate": 1}).audit(8, 2), "dm.Task"),
    "records that are not there": (lambda: dm.read_records("/nowhere"), "'/nowhere'"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_input_ends_in_one_sentence_that_names_it(wrong):
    call, named = WRONG[wrong]
    with pytest.raises(InputError) as error:
        call()
    assert named in str(error.value)


def test_epochs_replace_the_default_number_of_steps():
    train = dm.Study(Net, SPLITS, base=(8, 2), batch_size=5, settings={"epochs": 3}).config().train
    assert (train.steps, train.epochs) == (0, 3)
    assert dm.Study(Net, SPLITS, base=(8, 2)).config().train.steps > 0


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
