"""Registered forecasts are what was registered."""

import json
import subprocess

import pytest
from processes import ROOT

from reproduction.forecasts import register

FORECASTS = sorted((ROOT / "reproduction" / "forecasts").glob("*.json"))


@pytest.mark.parametrize("path", FORECASTS, ids=lambda path: path.stem)
def test_a_registered_forecast_has_its_hash(path):
    content = json.loads(path.read_text())
    assert register.sha256(content) == content["sha256"]


def git(*command):
    """What a command prints in this clone; skips without a whole history."""
    run = subprocess.run(["git", "-C", str(ROOT), *command], capture_output=True, text=True, check=False)
    if run.returncode or (ROOT / ".git" / "shallow").exists():
        pytest.skip("no clone with a whole history")
    return run.stdout


def test_forecasts_that_rest_on_the_committers_time_were_committed_as_they_are_before_their_targets_started():
    checks = map(json.loads, (ROOT / "reproduction" / "forecasts" / "checked.jsonl").read_text().splitlines())
    for check in (check for check in checks if "started" in check):
        path = f"reproduction/forecasts/{check['name']}.json"
        added, commit = git("log", "--diff-filter=A", "--format=%ct %H", "--", path).split()
        assert int(added) <= check["started"], path  # in whole seconds: run.sh commits, then starts
        assert git("show", f"{commit}:{path}") == (ROOT / path).read_text(), path


def test_a_forecast_is_registered_once(tmp_path, monkeypatch):
    monkeypatch.setattr(register, "HERE", tmp_path)
    register.main(str(FORECASTS[0]), "mine")
    content = json.loads((tmp_path / "mine.json").read_text())
    assert register.sha256(content) == content["sha256"]
    assert content["forecast"] == json.loads(FORECASTS[0].read_text())["forecast"]
    with pytest.raises(FileExistsError):
        register.main(str(FORECASTS[0]), "mine")
