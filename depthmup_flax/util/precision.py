"""The precision of matrix products and convolutions.

By default a TPU rounds the factors of a float32 product to bfloat16 (8 bits), and a GPU may round them to TF32 (11
bits). Sums are in float32.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TypeAlias

import jax
import jax.numpy as jnp

from depthmup_flax.util.types import Dtype

Precision: TypeAlias = "jax.lax.Precision | jax.lax.DotAlgorithmPreset | None"
IN_BFLOAT16 = jax.lax.DotAlgorithmPreset.BF16_BF16_F32  # factors of bfloat16, sums of float32


def product_precision(dtype: Dtype) -> jax.lax.Precision | None:
    """The argument ``precision`` in a computation of ``dtype``: ``HIGHEST`` from 32 bits on, else the device's default.

    Also ``None`` if ``jax.default_matmul_precision`` is set, which applies to products without the argument.
    """
    wide = jnp.dtype(dtype).itemsize >= 4
    return jax.lax.Precision.HIGHEST if wide and jax.default_matmul_precision.value is None else None


def readout_precision(dtype: Dtype) -> Precision:
    """As `product_precision`, for float32 arrays in a model that computes in ``dtype``: `IN_BFLOAT16` for bfloat16.

    GPUs would otherwise round the factors to TF32, at half the speed.
    """
    if jnp.dtype(dtype) == jnp.bfloat16 and jax.default_matmul_precision.value is None:
        return IN_BFLOAT16
    return product_precision(dtype)


@contextlib.contextmanager
def products_in(dtype: Dtype) -> Iterator[None]:
    """A context or decorator that gives `product_precision` of ``dtype`` to products that name no precision."""
    precision = product_precision(dtype)
    with contextlib.nullcontext() if precision is None else jax.default_matmul_precision(precision.name.lower()):
        yield
