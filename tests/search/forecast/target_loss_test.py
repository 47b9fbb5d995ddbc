"""From a config, or a Study, to a registered forecast: trained once, resumed, refused for another target."""

import dataclasses
import json
import pathlib

import numpy as np
import pytest
from processes import run_lines

import depthmup_flax as dm
from depthmup_flax.config.fields import default_config
from depthmup_flax.search.forecast import ladder_time
from depthmup_flax.search.forecast.law import Rung, forecast_loss
from depthmup_flax.search.forecast.target_loss import with_losses
from depthmup_flax.storage.records.table import Record, read_sweep
from depthmup_flax.util.errors import InputError

SMALL = ("--config=digits", "--config.model.base_width=8", "--config.model.base_depth=2", "--config.train.steps=12")
LADDER = (*SMALL, "--target.width=64", "--target.depth=2", "--widths=8,16,32", "--seeds=2", "--lanes=all")


@pytest.mark.slow
def test_a_forecast_is_registered_once_and_its_target_is_trained_and_checked(tmp_path):
    target = (
        "train",
        "--config=f/target.py",
        "--workdir=f/target",
        "--config.seed=5",
        "--config.train.checkpoint=False",
    )
    check = ("forecast", "--check=f/target", "--workdir=f", "--json")
    first, again, other, more_seeds, trained, checked = run_lines(
        [
            ["forecast", *LADDER, "--workdir=f", "--json"],
            ["forecast", *LADDER, "--workdir=f"],
            ["forecast", *LADDER, "--workdir=f", "--target.width=128"],
            ["forecast", *LADDER, "--workdir=f", "--seeds=3"],
            list(target),
            list(check),
        ],
        cwd=tmp_path,
    )
    registered = json.loads((tmp_path / "f/forecast.json").read_text())
    assert json.loads(first.out)["sha256"] == registered["sha256"]  # one object, also while runs are trained
    assert registered["sha256"] in again.out
    assert other.refuses
    assert "never overwritten" in other.error
    assert "never overwritten" in more_seeds.error
    assert not other.changed
    assert not more_seeds.changed
    records = read_sweep([tmp_path / "f"]).records
    assert sorted((record.width, record.seed) for record in records) == [(w, s) for w in (8, 16, 32) for s in (0, 1)]
    losses = {width: tuple(r.test_loss for r in records if r.width == width) for width in (8, 16, 32)}
    assert {rung["width"]: tuple(rung["losses"]) for rung in registered["rungs"]} == losses
    assert (trained.code, checked.code) == (0, 0)
    result = json.loads((tmp_path / "f/target/result.json").read_text())
    assert json.loads(checked.out)["loss"] == result["test_loss"]
    rows = (tmp_path / "f/target/metrics.jsonl").read_text()
    assert rows.count("forecast_low") == len(registered["course"]["ends"]) == 12


@pytest.mark.slow
def test_a_ladder_that_fits_a_time_is_planned_once_and_resumed(tmp_path, monkeypatch):
    config = default_config("res_mlp")
    config.data.name = "digits"
    config.model.update(width=64, depth=2, base_width=8, base_depth=2)
    config.train.update(steps=12, epochs=0.0)
    ask = lambda budget: dm.forecast(config, tmp_path, dm.LadderPlan(budget, seeds=2), lanes=0)[0]
    with pytest.raises(InputError, match=r"^--budget is 1s: the smallest ladder, with --seeds=2, needs .* s\."):
        ask("1s")
    registered = ask("5min")
    assert [rung.width for rung in registered.rungs] == [8, 16, 32]
    monkeypatch.setattr(ladder_time, "measure", lambda *args: pytest.fail("another estimate"))
    assert ask("5min") == registered
    with pytest.raises(InputError, match="holds the ladder of another budget"):
        ask("6min")


@pytest.mark.slow
def test_a_study_forecasts_the_loss_of_what_it_trains(tmp_path):
    random = np.random.default_rng(0)
    x = random.normal(size=(80, 64)).astype(np.float32).reshape(80, 8, 8, 1)
    data = (x[:60], np.arange(60) % 3), (x[60:], np.arange(20) % 3)
    study = dm.Study("res_mlp", data, base=(8, 2), steps=8, batch_size=20, workdir=tmp_path, quiet=True)
    ask = lambda: study.forecast(width=64, widths=(8, 16, 32), seeds=2, objective="train", learning_rate=0.01, lanes=0)
    registered = ask()
    assert registered == ask()
    result = study.train(width=64, learning_rate=0.01)
    checked = registered.check(result["workdir"])
    assert checked.loss == result["train_loss_avg"]
    assert registered.watch().course == registered.course
    assert "forecast_low" in (pathlib.Path(result["workdir"]) / "metrics.jsonl").read_text()
    other = study.train(width=64, learning_rate=0.02)
    with pytest.raises(InputError, match="is not the target of this forecast"):
        registered.check(other["workdir"])
    with pytest.raises(InputError, match=r"^budget is 0: "):
        study.forecast(width=64, budget=0)
    with pytest.raises(InputError, match="rate_of_learning is not a hyperparameter"):
        study.forecast(width=64, rate_of_learning=1)


def record(width, seed, **fields):
    empty = dict.fromkeys(field.name for field in dataclasses.fields(Record))
    point = {"model.width": width, "train.steps": 100, "seed": seed}
    own = {"status": "completed", "point": point, "width": width, "depth": 4, "steps": 100, "test_loss": 1.0 + seed}
    return Record(**{**empty, **own, **fields})


def test_a_rung_has_the_losses_of_its_own_runs_and_a_diverged_or_a_negative_one_is_refused():
    rung, other = Rung(8, 4, 100, 64), record(16, 0)
    assert with_losses(rung, [record(8, 0), other, record(8, 1)], "test").losses == (1.0, 2.0)
    diverged = record(8, 1, status="diverged", steps=7, test_loss=None)  # it took fewer steps
    with pytest.raises(InputError, match=r"^1 of 2 runs of a rung \(width 8, depth 4, 100 steps\) diverged: "):
        with_losses(rung, [record(8, 0), other, diverged], "test")
    with pytest.raises(InputError, match="is -1: power laws need losses above 0"):
        with_losses(rung, [record(8, 0, test_loss=-1.0)], "test")


def test_a_loss_near_zero_is_forecast_as_a_positive_one():
    """Networks that memorize their examples: the irreducible part is nearly nothing."""
    rungs = [Rung(2**k, 4, 100, 4**k, (4.0**-k, 4.1**-k)) for k in range(3, 8)]
    low, high = forecast_loss(rungs, Rung(512, 4, 100, 4**9)).interval
    assert 0 < low < 4.0**-9 < high < 4.0**-6


def test_losses_of_unstable_runs_have_a_wide_interval_of_positive_numbers():
    random = np.random.default_rng(0)
    rungs = [Rung(2**k, 4, 100, 4**k, tuple(1e22 * np.exp(3 * random.standard_normal(3)))) for k in range(3, 8)]
    found = forecast_loss(rungs, Rung(512, 4, 100, 4**9))
    assert 0 < found.interval[0] < found.loss < found.interval[1]
    assert not found.law.startswith("-")  # the irreducible loss


@pytest.mark.parametrize(
    ("section", "field", "value"), [("parametrization", "preset", "sp"), ("model", "base_width", 0)]
)
def test_settings_that_do_not_transfer_are_refused(tmp_path, section, field, value):
    config = default_config("res_mlp")
    config.model.update(base_width=8, base_depth=2)
    config[section][field] = value
    with pytest.raises(InputError, match=rf"^{section}.{field} is "):
        dm.forecast(config, tmp_path / "f", width=64)
    assert not (tmp_path / "f").exists()
