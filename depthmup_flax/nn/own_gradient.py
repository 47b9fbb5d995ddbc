"""Gradients in the dtype of the parameters, for products that compute in fewer bits."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeAlias

import jax
from jax.custom_derivatives import SymbolicZero

_Product: TypeAlias = Callable[[jax.Array, jax.Array], jax.Array]
_Primals: TypeAlias = tuple[jax.Array, jax.Array, jax.Array]
_Tangents: TypeAlias = tuple[jax.Array | SymbolicZero, ...]


def with_gradient_of(param: jax.Array | None, product: _Product, x: jax.Array, kernel: jax.Array) -> jax.Array:
    """``product(x, kernel)``, linear in both; the gradient with respect to ``kernel`` goes to ``param`` instead.

    ``kernel`` is ``param`` in the dtype of ``x``. The gradient is a product of the same rounded factors in the dtype of
    ``param``, so neither the sum nor its parts on several devices are rounded. With ``None`` it goes to ``kernel``.
    """
    return product(x, kernel) if param is None else _with_gradient_of(product, x, kernel, param)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _with_gradient_of(product: _Product, x: jax.Array, kernel: jax.Array, _: jax.Array) -> jax.Array:
    return product(x, kernel)


def _jvp(product: _Product, primals: _Primals, tangents: _Tangents) -> tuple[jax.Array, jax.Array]:
    (x, kernel, param), (x_tangent, _, param_tangent) = primals, tangents
    y, terms = product(x, kernel), []
    if not isinstance(x_tangent, SymbolicZero):
        terms.append(jax.jvp(lambda x: product(x, kernel), (x,), (x_tangent,))[1])
    if not isinstance(param_tangent, SymbolicZero):
        wide = lambda param: product(x.astype(param.dtype), param)
        with jax.default_matmul_precision("default"):  # the factors are already rounded, so one pass is exact
            terms.append(jax.jvp(wide, (param,), (param_tangent,))[1].astype(y.dtype))
    return y, sum(terms[1:], terms[0])


_with_gradient_of.defjvp(_jvp, symbolic_zeros=True)
