"""A run with a forecast: rows with the expected loss, one warning, also over a resumption, and who is refused."""

import dataclasses
import json

import numpy as np
import pytest
from interruption import interrupted_before

from depthmup_flax.config.fields import config_hash, default_config
from depthmup_flax.data import stored_dataset
from depthmup_flax.report import run_curves
from depthmup_flax.report.run_curves import read_runs
from depthmup_flax.search.forecast.course import Course
from depthmup_flax.search.forecast.law import Forecast, Rung
from depthmup_flax.search.forecast.registered import Registered, config_json, register
from depthmup_flax.trainer.engine.from_config import build
from depthmup_flax.trainer.loop import train_and_evaluate
from depthmup_flax.trainer.on_course import require_course
from depthmup_flax.util.errors import InputError

FORECAST = Forecast(1.0, (0.9, 1.1), "sum", {"sum": 1.0}, "1", 0.0, 1.0, 0.0)
# The loss of a guess is log 10 = 2.3: the second block lies below the band.
COURSE = Course(4, (4, 12, 20), (2.5, 12.0, 12.0), (0.1, 11.0, 11.0), (50.0, 13.0, 13.0))


def config(**fields):
    run = default_config()
    run.model.update(width=8, depth=2, base_width=8, base_depth=2)
    run.train.update(batch_size=8, steps=20, eval_every=20, log_every=2, checkpoint_every=14, writers=("jsonl",))
    run.data.update(name="synthetic", train_examples=64, test_examples=16)
    run.update_from_flattened_dict(fields)
    return run


@pytest.fixture
def forecast(tmp_path):
    """The directory of a forecast of `config`."""
    target, ladder = Rung(8, 2, 20, 100), (Rung(4, 2, 20, 30, (2.0,)), Rung(4, 1, 20, 30, (2.0,)))
    whole = Registered(
        "2026-01-02T03:04:05+00:00", "train", 8, target, ladder, FORECAST, config_json(config()), course=COURSE
    )
    without = dataclasses.replace(whole, course=None)
    squared = dataclasses.replace(whole, config=whole.config | {"loss": "squared_error"})
    for name, registered in {"f": whole, "without": without, "squared": squared}.items():
        (tmp_path / name).mkdir()
        register(registered, tmp_path / name)
    return tmp_path / "f"


def warnings(logged):
    return [record.getMessage() for record in logged.records if "off course" in record.getMessage()]


def test_a_run_that_leaves_the_band_says_so_once_in_its_log_its_rows_its_result_and_its_report(
    forecast, tmp_path, logged
):
    run = config(forecast=str(forecast))
    assert config_hash(run) == config_hash(config())  # it does not change what is trained
    with interrupted_before(16):
        train_and_evaluate(run, tmp_path / "run")
    assert len(warnings(logged)) == 1
    assert "step 12" in warnings(logged)[0]
    result = train_and_evaluate(run, tmp_path / "run")
    assert len(warnings(logged)) == 1
    assert "differs from the target" not in logged.text
    assert result["off_course_since"] == 12
    (found,) = read_runs([tmp_path / "run"])
    assert found.metrics["step"].tolist() == list(range(2, 21, 2))
    expected = np.repeat(COURSE.expected, (2, 4, 4))
    assert found.metrics["forecast_loss"].tolist() == expected.tolist()
    assert found.metrics["off_course_since"][5:].tolist() == [12.0] * 5
    assert np.isnan(found.metrics["off_course_since"][:5]).all()
    assert "off course since step 12" in str(found)
    (band,) = run_curves.draw([found]).axes[0].collections
    assert band.get_paths()[0].get_extents().ymax == 50.0


def test_other_differences_are_named_and_nothing_is_refused(forecast, logged):
    experiment = build(config(forecast=str(forecast), **{"optimizer.learning_rate": 0.5, "seed": 3}))
    require_course(experiment, stored_dataset.to_json(experiment.dataset))
    (line,) = (text for record in logged.records if "differs from the target" in (text := record.getMessage()))
    assert "optimizer.learning_rate: 0.001 there, 0.5 here" in line
    assert "seed" not in line


@pytest.mark.parametrize(
    ("fields", "start"),
    [
        ({"train.steps": 30}, "forecast is "),
        ({"train.batch_size": 16}, "forecast is "),
        ({"model.depth": 4}, "forecast is "),
        ({"forecast": "squared"}, "forecast is "),
        ({"train.log_every": 3}, "train.log_every is 3: "),
        ({"forecast": "without"}, "forecast is "),
        ({"forecast": "nothing"}, ".*nothing' holds no forecast: "),
    ],
)
def test_a_run_that_cannot_be_compared_is_refused_before_anything_is_written(forecast, tmp_path, fields, start):
    place = tmp_path / fields.get("forecast", "f")
    with pytest.raises(InputError, match=f"^{start}"):
        train_and_evaluate(config(**{**fields, "forecast": str(place)}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_resumed_run_without_its_rows_or_with_rarer_ones_is_watched_from_its_checkpoint_on(
    forecast, tmp_path, logged
):
    for name, lost in (("lost", True), ("rare", False)):
        before = config() if lost else config(**{"train.log_every": 7})
        with interrupted_before(16):
            train_and_evaluate(before, tmp_path / name)
        if lost:
            (tmp_path / name / "metrics.jsonl").unlink()
        result = train_and_evaluate(config(forecast=str(forecast)), tmp_path / name)
        assert json.loads((tmp_path / name / "result.json").read_text())["off_course_since"] is None
        assert result["steps"] == 20
    assert not warnings(logged)


@pytest.mark.slow
@pytest.mark.parametrize("rows", ["kept", "lost before the checkpoint"])
def test_a_run_resumed_between_two_rows_remembers_that_it_left(forecast, tmp_path, logged, rows):
    run = config(forecast=str(forecast), **{"train.checkpoint_every": 15})
    with interrupted_before(16):
        train_and_evaluate(run, tmp_path / "run")
    if rows != "kept":
        path = tmp_path / "run/metrics.jsonl"
        path.write_text("".join(line for line in path.open() if json.loads(line)["step"] == 12))
    assert train_and_evaluate(run, tmp_path / "run")["off_course_since"] == 12
    assert len(warnings(logged)) == 1
