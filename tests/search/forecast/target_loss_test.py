"""From a config, or a Study, to a forecast: its ladder is trained once; a trained target is compared with it."""

import dataclasses
import json

import numpy as np
import pytest
from planted_sweeps import record_with
from processes import run_lines

import depthmup_flax as dm
from depthmup_flax.config.fields import default_config, to_json
from depthmup_flax.search.forecast.forecasting import FILE, TargetForecast, config_json, read, with_losses
from depthmup_flax.search.forecast.law import Rung, forecast_loss
from depthmup_flax.storage.sweep_records import read_sweep
from depthmup_flax.util.errors import InputError

SMALL = ("--config=digits", "--config.model.base_width=8", "--config.model.base_depth=2", "--config.train.steps=12")
LADDER = (*SMALL, "--target.width=64", "--target.depth=2", "--widths=8,12,16,32", "--seeds=2", "--lanes=all")


@pytest.mark.slow
def test_a_forecast_is_resumed_and_its_target_is_trained_and_checked(tmp_path):
    target = ("--config=f/target.py", "--workdir=f/target", "--config.seed=5", "--config.train.checkpoint=False")
    first, again, more_seeds, trained, checked = run_lines(
        [
            ["forecast", *LADDER, "--workdir=f", "--json"],
            ["forecast", *LADDER, "--workdir=f"],
            ["forecast", *LADDER, "--workdir=f", "--seeds=3"],
            ["train", *target],
            ["forecast", "--check=f/target", "--workdir=f", "--json"],
        ],
        cwd=tmp_path,
    )
    written = json.loads((tmp_path / "f/forecast.json").read_text())
    assert [answer.code for answer in (first, again, more_seeds, trained, checked)] == [0] * 5
    records = read_sweep([tmp_path / "f"]).records
    assert sorted((record.width, record.seed) for record in records) == [
        (w, s) for w in (8, 12, 16, 32) for s in (0, 1, 2)
    ]
    assert [rung["losses"][:2] for rung in written["rungs"]] == [
        rung["losses"] for rung in json.loads(first.out)["rungs"]
    ]
    losses = {width: [r.test_loss for r in records if r.width == width] for width in (8, 12, 16, 32)}
    assert {rung["width"]: rung["losses"] for rung in written["rungs"]} == losses
    result = json.loads((tmp_path / "f/target/result.json").read_text())
    assert json.loads(checked.out)["loss"] == result["test_loss"]


def config_of(**fields):
    config = default_config("res_mlp")
    config.model.update(width=64, depth=8, base_width=32, base_depth=4)
    config.data.name = "digits"
    config.train.steps = 100
    config.update_from_flattened_dict(fields)
    return config


RUNGS = tuple(Rung(2**k, 4, 100, 4**k, (1 + 2.0**-k, 1.01 + 2.0**-k)) for k in range(3, 7))
LARGE = Rung(256, 4, 100, 4**8)
DATA = {"train_checksum": "12", "train_examples": 100}
GIVEN = TargetForecast(
    **vars(forecast_loss(RUNGS, LARGE)),
    objective="test",
    batch_size=64,
    target=LARGE,
    rungs=RUNGS,
    config=config_json(config_of()),
    data=DATA,
)


def trained(directory, loss, config=None, status="completed", data=DATA):
    """A directory as a training run leaves it."""
    directory.mkdir()
    (directory / "workdir.json").write_text('{"kind": "run"}')
    (directory / "data.json").write_text(json.dumps(data))
    (directory / "config.json").write_text(to_json(config or config_of(seed=7)))
    (directory / "result.json").write_text(json.dumps({"status": status, "test_loss": loss}))
    return directory


def test_a_file_is_read_as_it_was_written(tmp_path):
    (tmp_path / FILE).write_text(json.dumps(dataclasses.asdict(GIVEN)))
    assert read(tmp_path) == GIVEN
    with pytest.raises(InputError, match="holds no forecast"):
        read(tmp_path / "nothing")


DAMAGED = {
    "rungs that are numbers": {"rungs": [1, 2]},
    "a target without sizes": {"target": {"losses": []}},
}
TEXTS = {"nothing": "", "a list": "[]", "deep": "[" * 10**5, "no text": "\udcff"}


@pytest.mark.parametrize("damage", [*DAMAGED, *TEXTS])
def test_whatever_is_wrong_with_the_file_is_one_sentence_that_names_it(damage, tmp_path):
    text = TEXTS.get(damage, json.dumps(dataclasses.asdict(GIVEN) | DAMAGED.get(damage, {})))
    (tmp_path / FILE).write_text(text, errors="surrogateescape")
    with pytest.raises(InputError, match=rf"{FILE} .*: restore it"):
        read(tmp_path)


def test_fields_of_a_later_version_are_ignored_with_a_word(tmp_path, logged):
    later = {**dataclasses.asdict(GIVEN), "target": {**dataclasses.asdict(LARGE), "heads": 2}, "laws": 3}
    (tmp_path / FILE).write_text(json.dumps(later))
    assert read(tmp_path) == GIVEN
    assert "heads" in logged.text
    assert "laws" in logged.text


@pytest.mark.parametrize(("factor", "inside"), [(1.0, True), (2.0, False), (0.5, False), (None, False)])
def test_a_target_with_another_seed_is_inside_or_outside_and_a_diverged_one_outside(tmp_path, factor, inside):
    loss, status = (None, "diverged") if factor is None else (factor * GIVEN.loss, "completed")
    checked = GIVEN.check(trained(tmp_path / "run", loss, status=status))
    assert checked.inside == inside
    assert checked.error == (None if factor is None else pytest.approx(factor - 1))
    assert repr(checked).startswith("inside" if inside else "outside")


@pytest.mark.parametrize(("high", "tells"), [(0.99, True), (1.01, False)])
def test_a_forecast_whose_interval_reaches_the_best_rungs_loss_cannot_tell_a_run_without_gain(high, tells, tmp_path):
    best = min(np.mean(rung.losses) for rung in RUNGS)
    forecast = dataclasses.replace(GIVEN, interval=(0.9 * best, high * best), most=0.98 * best)
    assert forecast.tells == tells
    assert ("cannot tell" in repr(forecast)) != tells
    good, idle = (forecast.check(trained(tmp_path / name, x * best)) for name, x in (("good", 0.95), ("idle", 1.0)))
    assert (good.passes, idle.passes) == (True, False)
    assert ("cannot tell" in repr(good)) != tells


def test_another_run_is_no_target(tmp_path):
    for name, field, value in (("data", "data.name", "synthetic"), ("rate", "optimizer.learning_rate", 0.5)):
        with pytest.raises(InputError, match=field):
            GIVEN.check(trained(tmp_path / name, 1.0, config_of(**{field: value})))
    with pytest.raises(InputError, match="the data: number of training examples 100 then, 90 now"):
        GIVEN.check(trained(tmp_path / "examples", 1.0, data={**DATA, "train_examples": 90}))
    unfinished = trained(tmp_path / "unfinished", 1.0)
    (unfinished / "result.json").unlink()
    with pytest.raises(InputError, match="has not ended"):
        GIVEN.check(unfinished)


def test_a_target_beyond_what_was_checked_warns():
    assert "Warning" not in repr(GIVEN)
    far = dataclasses.replace(GIVEN, target=dataclasses.replace(LARGE, parameters=4**12))
    assert "Warning: forecasts were checked" in repr(far)
    long = dataclasses.replace(GIVEN, target=dataclasses.replace(LARGE, steps=200, parameters=4**7))
    assert "Warning: what only long runs learn" in repr(long)


def test_rungs_with_the_loss_of_chance_or_a_higher_one_are_counted_in_a_warning():
    for chance, count in ((None, 0), (2.0, 0), (1.1, 1), (0.5, 4)):
        given = dataclasses.replace(GIVEN, chance=chance)
        assert (f"{count} of 4 rungs have not begun to learn" in repr(given)) == (count > 0)


@pytest.mark.slow
def test_a_study_forecasts_the_loss_of_what_it_trains(tmp_path):
    random = np.random.default_rng(0)
    x = random.normal(size=(80, 64)).astype(np.float32).reshape(80, 8, 8, 1)
    data = (x[:60], np.arange(60) % 3), (x[60:], np.arange(20) % 3)
    study = dm.Study("res_mlp", data, base=(8, 2), steps=8, batch_size=20, workdir=tmp_path, quiet=True)
    plan = dm.LadderPlan(widths=(8, 12, 16, 32), seeds=2)
    ask = lambda: study.forecast(width=64, plan=plan, objective="train", learning_rate=0.01, lanes=0)
    found = ask()
    assert found == ask()
    result = study.train(width=64, learning_rate=0.01)
    checked = found.check(result["workdir"])
    assert checked.loss == result["train_loss_avg"]
    other = study.train(width=64, learning_rate=0.02)
    with pytest.raises(InputError, match="is no run of this target"):
        found.check(other["workdir"])


def record(width, seed, **fields):
    point = {"model.width": width, "train.steps": 100, "seed": seed}
    own = {"point": point, "width": width, "depth": 4, "steps": 100, "test_loss": 1.0 + seed}
    return record_with(**{**own, **fields})


def test_a_rung_has_the_losses_of_its_own_runs_and_a_diverged_or_a_negative_one_is_refused():
    rung, other = Rung(8, 4, 100, 64), record(16, 0)
    assert with_losses(rung, [record(8, 0), other, record(8, 1)], "test").losses == (1.0, 2.0)
    diverged = record(8, 1, status="diverged", steps=7, test_loss=None)  # it took fewer steps
    with pytest.raises(InputError, match=r"^runs of a rung \(width 8, depth 4, 100 steps\) diverged: "):
        with_losses(rung, [record(8, 0), other, diverged], "test")
    with pytest.raises(InputError, match="is -1: power laws need losses above 0"):
        with_losses(rung, [record(8, 0, test_loss=-1.0)], "test")


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
