"""Fixtures of the tests of training."""

import pytest
from small_runs import config

from depthmup_flax.training.loop import train_and_evaluate


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory):
    """The work directory of a run that nothing happens to."""
    workdir = tmp_path_factory.mktemp("undisturbed")
    train_and_evaluate(config(), workdir)
    return workdir
