"""The examples that train in the steps of other packages, where these are installed."""

import ast
import importlib.util
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"
PACKAGES = {
    "levanter_llama": "levanter",
    "maxtext_train": "maxtext",
    "tunix_qwen3": "tunix",
    "easydel_llama": "easydel",
}


@pytest.mark.parametrize("name", PACKAGES)
def test_an_example_of_another_package_is_short(name):
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) < 80


@pytest.mark.slow
@pytest.mark.parametrize("name", PACKAGES)
def test_the_model_of_another_package_is_ok_and_trains_in_its_own_steps(name):
    if importlib.util.find_spec(PACKAGES[name]) is None:
        pytest.skip(f"could not import {PACKAGES[name]!r}")
    environment = os.environ | {"DECOUPLE_GCLOUD": "TRUE", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py"], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.strip().splitlines()
    assert any(line.startswith("ok:") for line in lines)
    losses = ast.literal_eval(lines[-1])
    assert len(losses) == 2
    assert np.isfinite(losses).all()
    assert losses[1] != losses[0]
