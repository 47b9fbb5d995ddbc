"""The exponential average of the parameters is evaluated beside them, saved with them, and the same in lanes."""

import jax
import numpy as np
import optax
import pytest
from small_runs import small_base, small_sweep

import depthmup_flax as dm
from depthmup_flax.search.sweep.runner import sweep
from depthmup_flax.trainer import run_log
from depthmup_flax.trainer.engine.from_config import build
from depthmup_flax.trainer.loop import train_and_evaluate

DECAY, STEPS = 0.8, 4


def averaging():
    base = small_base()
    base.train.update(steps=STEPS, average_steps=1, ema_decay=DECAY)
    return base


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    config, directory, lines = averaging(), tmp_path_factory.mktemp("ema"), []
    config.train.update(checkpoint=True, eval_every=1, keep_checkpoints=STEPS + 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_log.log, "info", lambda line, *values: lines.append(line % values))
        return directory, train_and_evaluate(config, directory), lines


@pytest.mark.slow
def test_the_average_is_the_weighted_mean_of_the_parameters_after_all_steps(run):
    directory, result, lines = run
    params = [dm.load_run(directory, step).params for step in range(1, STEPS + 1)]
    weights = np.array([DECAY ** (STEPS - step) for step in range(1, STEPS + 1)])
    expected = jax.tree.map(lambda *x: np.einsum("i,i...->...", weights / weights.sum(), np.stack(x)), *params)
    averaged = dm.load_run(directory, ema=True)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), averaged.params, expected)
    test = build(averaging()).dataset.test.fields
    losses = optax.softmax_cross_entropy_with_integer_labels(averaged.predict(test["image"]), np.asarray(test["label"]))
    assert result["test_metrics"]["test_ema_loss"] == pytest.approx(float(losses.mean()), rel=1e-5)
    assert any(f"{losses.mean():.4f}" in line for line in lines)


@pytest.mark.slow
def test_lanes_evaluate_the_average_of_single_runs(tmp_path):
    grid = {"rates": {"optimizer.learning_rate": (1e-3, 4e-3)}}
    together, alone = (sweep(small_sweep(averaging(), grid), tmp_path / str(n), lanes=n) for n in (2, 1))
    for a, b in zip(together, alone, strict=True):
        assert a.test_metrics["test_ema_loss"] == pytest.approx(b.test_metrics["test_ema_loss"], rel=1e-5)
        assert a.test_metrics["test_ema_loss"] != a.test_loss


def test_a_run_without_an_average_has_none_to_load(tmp_path):
    config = small_base()
    config.train.update(steps=1, checkpoint=True)
    train_and_evaluate(config, tmp_path)
    with pytest.raises(dm.InputError, match="ema_decay was 0"):
        dm.load_run(tmp_path, ema=True)
