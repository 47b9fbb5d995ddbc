"""Rows of metrics have the learning rate of their step, and products the precision that a config asks for."""

import json
import re

import jax
import pytest
from small_runs import config

from depthmup_flax.trainer.engine.from_config import build
from depthmup_flax.trainer.loop import train_and_evaluate
from depthmup_flax.trainer.run_log import read_metrics
from depthmup_flax.util.errors import InputError


def test_every_row_has_the_learning_rate_of_its_step(tmp_path):
    run = config()
    run.optimizer.update(learning_rate=0.1, schedule="cosine", warmup_steps=2)
    run.train.update(steps=5, log_every=2, eval_every=5)
    train_and_evaluate(run, tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    rates = {row["step"]: row["learning_rate"] for row in rows if "train_loss" in row}
    # Steps taken before: of the two of the warm-up one; of the three of the cosine one, two.
    assert rates == pytest.approx({2: 0.05, 4: 0.075, 5: 0.025}, rel=1e-6)


@pytest.mark.parametrize(("field", "written"), [("", "HIGHEST"), ("tensorfloat32", "HIGH"), ("bfloat16", "DEFAULT")])
def test_products_of_our_networks_are_exact_unless_a_precision_is_asked_for(field, written):
    run = config(matmul_precision=field)
    experiment = build(run)
    arguments = experiment.step_shapes()
    jaxpr = str(jax.make_jaxpr(experiment.step({}))(*arguments))
    assert set(re.findall(r"precision=(.*)", jaxpr)) == {f"(Precision.{written}, Precision.{written})"}


@pytest.mark.parametrize(
    "row", ["{}", '{"step": "3"}', '{"step": 3, "train_loss": "x"}', '{"step": 3, "train_loss": [1]}', '{"step": null}']
)
def test_a_row_that_no_run_has_written_is_refused_with_its_line(row, tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "train_loss": 2.0}\n' + row + '\n{"step": 4, "tr')
    with pytest.raises(InputError, match="line 2"):
        read_metrics(path)
    path.write_text('{"step": 1, "train_loss": 2.0}\n{"step": 4, "tr')  # cut off by a crash
    assert read_metrics(path)["step"].tolist() == [1]
