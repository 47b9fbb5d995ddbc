"""Registered forecasts are what was registered."""

import json

import pytest
from processes import ROOT

from reproduction.forecasts import register

FORECASTS = sorted((ROOT / "reproduction" / "forecasts").glob("*.json"))


@pytest.mark.parametrize("path", FORECASTS, ids=lambda path: path.stem)
def test_a_registered_forecast_has_its_hash(path):
    content = json.loads(path.read_text())
    assert register.sha256(content) == content["sha256"]


def test_a_forecast_is_registered_once(tmp_path, monkeypatch):
    monkeypatch.setattr(register, "HERE", tmp_path)
    register.main(str(FORECASTS[0]), "mine")
    content = json.loads((tmp_path / "mine.json").read_text())
    assert register.sha256(content) == content["sha256"]
    assert content["forecast"] == json.loads(FORECASTS[0].read_text())["forecast"]
    with pytest.raises(FileExistsError):
        register.main(str(FORECASTS[0]), "mine")
