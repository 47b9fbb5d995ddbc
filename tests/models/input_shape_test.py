"""Inputs of a wrong shape are named."""

import jax
import jax.numpy as jnp
import pytest

from depthmup_flax import InputError, ViT


def test_an_image_without_a_batch_dimension_is_named():
    with pytest.raises(InputError, match=r"input of shape \(32, 32, 3\): use \[B, H, W, C\]"):
        ViT(10, width=16, patch_size=4).init(jax.random.key(0), jnp.ones((32, 32, 3)))
