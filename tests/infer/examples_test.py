"""The examples run as they are written."""

import importlib.util
import math
import pathlib

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
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
        ("linen_resnet", {"width": 8, "stages": (1, 1)}),  # the base itself
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


def test_the_vit_example_passes_masks_through_its_attention():
    attention = load("linen_scan_vit").attention_fn(32)
    module = nn.MultiHeadDotProductAttention(4, attention_fn=attention)
    x = jax.random.normal(jax.random.key(0), (1, 5, 32))
    mask = nn.make_causal_mask(jnp.ones((1, 5)))
    run = jax.jit(lambda mask: module.init_with_output(jax.random.key(1), x, mask=mask)[0])
    masked, free = run(mask), run(jnp.ones_like(mask))
    assert not np.allclose(masked[:, 0], free[:, 0])
    assert np.allclose(masked[:, -1], free[:, -1], atol=1e-5)
