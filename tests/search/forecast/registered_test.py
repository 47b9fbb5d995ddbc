"""A registered forecast keeps its date and hash, is never overwritten, and is compared with its own target only."""

import argparse
import dataclasses
import hashlib
import json

import pytest

from depthmup_flax.commands import report as command
from depthmup_flax.config.fields import default_config, to_json
from depthmup_flax.report.yardstick import TOLERANCE
from depthmup_flax.search.forecast.law import Rung, forecast_loss
from depthmup_flax.search.forecast.registered import FILE, Registered, config_json, read, register
from depthmup_flax.util.errors import InputError


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
GIVEN = Registered(
    "2026-01-02T03:04:05+00:00",
    "test",
    64,
    LARGE,
    RUNGS,
    forecast_loss(RUNGS, LARGE),
    config_json(config_of()),
    DATA,
)


def trained(directory, loss, config=None, status="completed", data=DATA):
    """A directory as a training run leaves it."""
    directory.mkdir()
    (directory / "workdir.json").write_text('{"kind": "run"}')
    (directory / "data.json").write_text(json.dumps(data))
    (directory / "config.json").write_text(to_json(config or config_of(seed=7)))
    (directory / "result.json").write_text(json.dumps({"status": status, "test_loss": loss}))
    return directory


def test_the_file_has_a_hash_that_anybody_can_compute_and_is_read_as_it_was_written(tmp_path):
    stored = register(GIVEN, tmp_path)
    assert dataclasses.replace(stored, sha256="", path=GIVEN.path) == GIVEN
    content = json.loads((tmp_path / FILE).read_text())
    content.pop("crc32")
    content["sha256"] = ""
    text = json.dumps(content, indent=2, sort_keys=True) + "\n"
    assert stored.sha256 == hashlib.sha256(text.encode()).hexdigest()
    assert stored.sha256 in repr(stored)
    assert stored.date in repr(stored)


def test_the_report_of_a_directory_with_a_forecast_is_the_forecast(tmp_path, capsys):
    stored = register(GIVEN, tmp_path)
    (tmp_path / "workdir.json").write_text('{"kind": "forecast"}')
    flags = {"out": None, "open": False, "watch": False, "tolerance": TOLERANCE, "loss": None}
    assert command.main(argparse.Namespace(words=[str(tmp_path)], **flags)) == 0
    assert capsys.readouterr().out.strip() == str(stored)
    for given in ({"out": "page"}, {"open": True}, {"loss": "test"}):
        with pytest.raises(InputError, match=f"--{next(iter(given))} is for sweeps"):
            command.main(argparse.Namespace(words=[str(tmp_path)], **flags | given))


def test_a_second_forecast_does_not_overwrite_the_first(tmp_path):
    first = register(GIVEN, tmp_path)
    later = dataclasses.replace(GIVEN, date="2027-01-02T03:04:05+00:00")
    assert register(later, tmp_path) == first


def test_a_changed_number_is_noticed(tmp_path):
    register(GIVEN, tmp_path)
    content = json.loads((tmp_path / FILE).read_text())
    del content["crc32"]
    content["forecast"]["loss"] += 0.1
    (tmp_path / FILE).write_text(json.dumps(content))
    with pytest.raises(InputError, match="not what was registered"):
        read(tmp_path)
    with pytest.raises(InputError, match="holds no forecast"):
        read(tmp_path / "nothing")


@pytest.mark.parametrize(("factor", "inside"), [(1.0, True), (2.0, False), (0.5, False)])
def test_a_target_with_another_seed_is_inside_or_outside(tmp_path, factor, inside):
    checked = GIVEN.check(trained(tmp_path / "run", factor * GIVEN.loss))
    assert checked.inside == inside
    assert checked.as_json()["error"] == pytest.approx(factor - 1)
    assert repr(checked).startswith("inside" if inside else "outside")
    assert "older" not in repr(checked)


def test_a_run_that_began_before_the_forecast_is_called_older(tmp_path):
    late = dataclasses.replace(GIVEN, date="2099-01-01T00:00:00+00:00")
    assert "older than the forecast" in repr(late.check(trained(tmp_path / "run", 1.0)))


def test_a_diverged_target_is_outside(tmp_path):
    checked = GIVEN.check(trained(tmp_path / "run", None, status="diverged"))
    assert not checked.inside
    assert "diverged" in repr(checked)


def test_another_run_is_no_target(tmp_path):
    for name, field, value in (("data", "data.name", "synthetic"), ("rate", "optimizer.learning_rate", 0.5)):
        other = trained(tmp_path / name, 1.0, config_of(**{field: value}))
        with pytest.raises(InputError, match=rf"is not the target of this forecast \({field}: "):
            GIVEN.check(other)
    other = trained(tmp_path / "examples", 1.0, data={**DATA, "train_examples": 90})
    with pytest.raises(InputError, match=r"\(the data: number of training examples 100 then, 90 now\)"):
        GIVEN.check(other)
    unfinished = trained(tmp_path / "unfinished", 1.0)
    (unfinished / "result.json").unlink()
    with pytest.raises(InputError, match="has not ended"):
        GIVEN.check(unfinished)


def test_a_target_beyond_what_was_checked_warns():
    assert "Warning" not in repr(GIVEN)
    far = dataclasses.replace(GIVEN, target=dataclasses.replace(LARGE, parameters=4**12))
    assert "Warning: forecasts were checked" in repr(far)
    for factor in (1, 2):
        long = dataclasses.replace(
            GIVEN, target=dataclasses.replace(LARGE, steps=factor * LARGE.steps, parameters=4**7)
        )
        assert ("Use longer rungs" in repr(long)) == (factor > 4)


def test_rungs_that_follow_no_law_warn():
    surprised = dataclasses.replace(GIVEN.forecast, inflation=2.4)
    assert "Warning: the rungs do not follow one law" in repr(dataclasses.replace(GIVEN, forecast=surprised))


def test_rungs_with_the_loss_of_chance_or_a_higher_one_are_counted_in_a_warning():
    losses = [rung.losses for rung in RUNGS]
    assert losses[0] > losses[1] > losses[2]
    for chance, count in ((None, 0), (2.0, 0), (1.1, 1), (0.5, 4)):
        registered = dataclasses.replace(GIVEN, chance=chance)
        assert len(registered.unlearned) == count
        assert (f"{count} of 4 rungs have not begun to learn" in repr(registered)) == (count > 0)
