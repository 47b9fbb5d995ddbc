"""Roles from shapes that are written down."""

import jax
import jax.numpy as jnp

from depthmup_flax import infer_info


def shapes(leaves: dict) -> dict:
    return {path: jax.ShapeDtypeStruct(shape, jnp.float32) for path, shape in leaves.items()}


def infer(leaves: dict, **kwargs) -> dict:
    """From ``path -> (shape, base shape)``, with a readout added."""
    both = {"head/kernel": ((16, 10), (8, 10)), **leaves}
    kwargs = {"depth_ratio": 1.0, "readout": "head", **kwargs}
    return infer_info(*(shapes({path: pair[i] for path, pair in both.items()}) for i in (0, 1)), **kwargs)
