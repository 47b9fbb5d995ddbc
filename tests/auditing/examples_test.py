"""The examples run as they are written."""

import importlib.util
import math
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[2]


def load(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        pytest.param("linen_resnet", {"width": 8, "stages": (1, 1)}, marks=pytest.mark.slow),  # the base itself
        pytest.param("linen_resnet", {"stages": (1, 2)}, marks=pytest.mark.slow),
        pytest.param("linen_scan_vit", {"depth": 2}, marks=pytest.mark.slow),
        pytest.param("nnx_transformer", {"depth": 1}, marks=pytest.mark.slow),
        pytest.param("nnx_with_our_modules", {"depth": 4}, marks=pytest.mark.slow),
        ("plain_linen", {"depth": 2}),
    ],
)
def test_examples_run_and_learn(name, sizes, capsys):
    losses = load(name).main(steps=20, **sizes)
    assert all(map(math.isfinite, losses))
    assert losses[-1] < 0.9 * losses[0]
    assert "+branch" in capsys.readouterr().out
