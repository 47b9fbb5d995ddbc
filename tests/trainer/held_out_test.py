"""With `data.validation_fraction`, training evaluates held-out training examples and never the test set."""

import json

import numpy as np
import pytest

from depthmup_flax import data
from depthmup_flax.config import default_config
from depthmup_flax.search.sweep.grid import sweep_config
from depthmup_flax.search.sweep.runner import sweep
from depthmup_flax.trainer.loop import train_and_evaluate
from depthmup_flax.trainer.runs.trained import load_run


@pytest.mark.slow
def test_a_run_is_evaluated_on_the_examples_that_it_holds_out_as_in_a_sweep(tmp_path):
    config = default_config()
    config.model.update(width=8, depth=2)
    config.data.update(train_examples=200, validation_fraction=0.25)
    config.train.update(batch_size=50, steps=12, eval_every=6, log_every=6, writers=("jsonl",))
    result = train_and_evaluate(config, tmp_path / "run")
    run, held_out = load_run(tmp_path / "run"), data.load(config.data).test.arrays()
    predicted = run.predict(held_out["image"]).argmax(-1)
    assert result["validation_accuracy"] == pytest.approx(np.mean(predicted == held_out["label"]))
    assert (result["test_loss"], result["test_accuracy"], result["test_metrics"]) == (None, None, {})
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "validation_loss" in row] == [6, 12]
    assert not any(name.startswith("test_") for row in rows for name in row)
    grid = {"one": {"optimizer.learning_rate": (config.optimizer.learning_rate,)}}
    (record,) = sweep(sweep_config(config, grid, figure="f", title="t", scale="smoke"), tmp_path / "sweep", lanes=1)
    assert record.validation_loss == pytest.approx(result["validation_loss"], rel=1e-5)
    assert record.test_loss is None
