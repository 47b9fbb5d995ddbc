"""Recorded sizes against those of training."""

import pytest
import recorded_checks


@pytest.fixture(params=["recorded", pytest.param("trained", marks=pytest.mark.slow)])
def also_trained(request, monkeypatch):
    """The test runs on its `recorded` sizes and, among the slow tests, on those that training gives."""
    monkeypatch.setattr(recorded_checks, "TRAIN", request.param == "trained")
