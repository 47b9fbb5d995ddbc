"""A sweep times few steps of every program, to say how long it will take."""

import pytest


@pytest.fixture(autouse=True)
def briefly_timed(monkeypatch):
    monkeypatch.setattr("depthmup_flax.trainer.engine.lanes.TIMED_CALLS", 1)
