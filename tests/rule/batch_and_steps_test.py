"""Runs with rescaled hyperparameters follow the tuned run at equal numbers of examples; bad input has one sentence."""

import math
import warnings

import numpy as np
import pytest

import depthmup_flax as dm
from depthmup_flax.rule.batch_and_steps import concerns, rescaling_table
from depthmup_flax.util.errors import InputError


def trajectory(values: dm.Hyperparameters, optimizer: str, replicas: int = 4000) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation over replicas of ``w`` at ten times, trained on ``w^2 / 2`` with noisy gradients."""
    random = np.random.default_rng(0)
    w, m, v = np.ones(replicas), np.zeros(replicas), np.zeros(replicas)
    points = []
    for step in range(1, values.steps + 1):
        g = w + 10 / math.sqrt(values.batch_size) * random.standard_normal(replicas)
        if optimizer == "adam":
            m, v = values.b1 * m + (1 - values.b1) * g, values.b2 * v + (1 - values.b2) * g**2
            update = m / (1 - values.b1**step) / (np.sqrt(v / (1 - values.b2**step)) + values.eps)
        else:
            update = m = values.momentum * m + g
        w = w - values.learning_rate * (update + values.weight_decay * w)
        if step % (values.steps // 10) == 0:
            points.append((w.mean(), w.std()))
    means, deviations = np.transpose(points)
    return means, deviations


def largest_difference(tuned, other, optimizer):
    return max(
        np.abs(a - b).max() for a, b in zip(trajectory(tuned, optimizer), trajectory(other, optimizer), strict=True)
    )


@pytest.mark.parametrize(
    ("optimizer", "tuned"),
    [
        ("adam", dm.Hyperparameters(0.01, 4, 800, b1=0.95, b2=0.99, eps=1.0, weight_decay=0.2)),
        ("sgd", dm.Hyperparameters(0.002, 4, 800, weight_decay=0.5)),
        ("sgd", dm.Hyperparameters(0.0002, 4, 800, momentum=0.95, weight_decay=5.0)),
    ],
)
def test_a_simulated_run_of_four_times_the_batch_size_follows_the_tuned_one_and_only_when_rescaled(optimizer, tuned):
    target = dm.rescaled_hyperparameters(tuned, batch_size=16, optimizer=optimizer)
    kept = dm.Hyperparameters(**{**vars(tuned), "batch_size": 16, "steps": 200})
    assert target.steps == 200
    assert largest_difference(tuned, target, optimizer) < 0.05
    assert largest_difference(tuned, kept, optimizer) > 0.15


@pytest.mark.filterwarnings("ignore::UserWarning")  # a kept rate is uncertain
def test_every_field_follows_its_factor():
    tuned = dm.Hyperparameters(1e-3, 64, 1000, warmup_steps=100, weight_decay=0.1, b1=0.9, b2=0.99, eps=1e-8)
    target = dm.rescaled_hyperparameters(tuned, batch_size=256, steps=500)  # k = 4, d = 2
    assert target.learning_rate == pytest.approx(1e-3 * 2)
    assert (1 - target.b1, 1 - target.b2, target.eps) == pytest.approx((0.4, 0.04, 5e-9))
    assert target.learning_rate * target.weight_decay == pytest.approx(4 * 1e-4)
    assert target.warmup_steps == 50
    assert dm.rescaled_hyperparameters(tuned, batch_size=256).steps == 250  # the same number of examples
    assert dm.rescaled_hyperparameters(tuned) == tuned


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_the_rate_falls_over_the_number_of_examples_without_weight_decay_and_stays_with_it(optimizer):
    rate = lambda decay, steps: (
        dm.rescaled_hyperparameters(
            dm.Hyperparameters(1e-3, 64, 1000, weight_decay=decay), steps=steps, optimizer=optimizer
        ).learning_rate
    )
    assert rate(0.0, 4000) == pytest.approx(1e-3 * 4**-0.25)
    assert rate(0.1, 4000) == rate(0.1, 250) == pytest.approx(1e-3)


@pytest.mark.parametrize(("decay", "steps", "warns"), [(0.1, 2000, True), (0.1, 1500, False), (0.0, 2000, False)])
def test_a_kept_rate_of_a_longer_run_warns_that_it_is_uncertain(decay, steps, warns):
    tuned = dm.Hyperparameters(1e-3, 64, 1000, weight_decay=decay)
    target = dm.Hyperparameters(1e-3, 64, steps, weight_decay=decay)
    assert bool(concerns(tuned, target)) is warns


@pytest.mark.filterwarnings("ignore::UserWarning")  # a kept rate is uncertain
@pytest.mark.parametrize("optimizer", ["adam", "momentum"])
def test_two_changes_after_one_another_are_one_change(optimizer):
    tuned = dm.Hyperparameters(1e-3, 64, 1000, weight_decay=0.1, momentum=0.95, b1=0.95)
    between = dm.rescaled_hyperparameters(tuned, batch_size=128, steps=2000, optimizer=optimizer)
    at_once = dm.rescaled_hyperparameters(tuned, batch_size=32, steps=3000, optimizer=optimizer)
    after = dm.rescaled_hyperparameters(between, batch_size=32, steps=3000, optimizer=optimizer)
    assert vars(after) == pytest.approx(vars(at_once))
    back = dm.rescaled_hyperparameters(between, batch_size=64, steps=1000, optimizer=optimizer)
    assert vars(back) == pytest.approx(vars(tuned))


@pytest.mark.filterwarnings("ignore::UserWarning")  # others than the expected one
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"batch_size": 64 * 32}, "the batch size is 32 times larger, but the rule was measured up to 8"),
        ({"steps": 16000}, "the number of examples is 16 times larger"),
        ({"batch_size": 256, "steps": 70}, "leaves 70 steps, but the rule held down to 150 in our measurements"),
        ({"batch_size": 1024}, r"b1 would be -0\.6 and is set to 0"),
    ],
)
def test_what_was_not_measured_or_cannot_be_followed_warns(change, sentence):
    with pytest.warns(UserWarning, match=sentence):
        target = dm.rescaled_hyperparameters(dm.Hyperparameters(1e-3, 64, 1000), **change)
    assert target.b1 >= 0


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_decay_that_would_remove_more_than_a_weight_warns():
    with pytest.warns(UserWarning, match=r"a step would remove 1\.6 of each weight"):
        dm.rescaled_hyperparameters(
            dm.Hyperparameters(1.0, 64, 1000, weight_decay=0.1), batch_size=1024, optimizer="sgd"
        )


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda t: dm.rescaled_hyperparameters(t, batch_size=0), "batch_size is 0"),
        (lambda t: dm.Hyperparameters(0.0, 1, 10), "learning_rate is 0.0"),
        (lambda t: dm.Hyperparameters(1e-3, 1, 10, warmup_steps=10), "warmup_steps is 10"),
        (lambda t: dm.rescaled_hyperparameters(t, steps=20, optimizer="lion"), "use one of sgd, momentum, adam"),
    ],
)
def test_bad_input_is_one_sentence(call, sentence):
    with pytest.raises(InputError) as error:
        call(dm.Hyperparameters(1e-3, 64, 10))
    assert sentence in str(error.value)


def test_the_mean_of_a_sign_follows_the_square_root_of_the_batch_size_while_noise_dominates():
    random = np.random.default_rng(1)
    mean = lambda batch: np.sign(0.02 + random.standard_normal(1_000_000) / math.sqrt(batch)).mean()
    assert mean(64) / mean(16) == pytest.approx(2.0, abs=0.1)
    assert mean(64 * 2500) / mean(16 * 2500) == pytest.approx(1.0, abs=0.01)  # no noise is left


def test_the_table_has_every_change_and_its_reason():
    tuned = dm.Hyperparameters(1e-3, 64, 1024, weight_decay=0.1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        target = dm.rescaled_hyperparameters(tuned, batch_size=1024)
    without = dm.Hyperparameters(1e-3, 64, 1024)
    assert "times k^0.5 d^-0.25" in rescaling_table(without, without)
    lines = rescaling_table(tuned, target).splitlines()
    assert [line.split()[0] for line in lines if not line.startswith(("Warning", " "))] == [
        "batch_size", "steps", "learning_rate", "weight_decay", "b1", "b2", "eps"
    ]  # fmt: skip
    assert any(line.split()[1:5] == ["0.001", "0.004", "times", "k^0.5;"] for line in lines)
    assert [line.removeprefix("Warning: ") for line in lines if line.startswith("Warning")] == [
        str(warning.message) for warning in caught
    ]
