"""Where a residual branch has its nonlinearity, for theories on samples of neurons."""

from __future__ import annotations

from typing import NamedTuple

import jax

from reproduction.theory.gaussian_averages import Elementwise, get_activation


class Form(NamedTuple):
    """``h + a / sqrt(L) after(W before(h))`` and a readout of ``before(h)``, on (S, ...) samples of neurons."""

    before: Elementwise
    after: Elementwise


def form(activation: str, pre_nonlin: bool) -> Form:
    """The two forms of `depthmup_flax.models.ResMLP`.

    ``pre_nonlin``: ``W phi(h)`` and a readout of ``phi(h)`` (Bordelon et al., arXiv:2309.16620, Eq. 1). Otherwise the
    model's default, ``MS(phi(W h))`` and a linear readout (Yang et al., arXiv:2310.02244, sections 6.3 and 10.2), where
    MS subtracts the mean over neurons.
    """
    phi = get_activation(activation).function
    if pre_nonlin:
        return Form(phi, lambda z: z)
    return Form(lambda h: h, lambda z: phi(z) - phi(z).mean(0))


def pulled(function: Elementwise, at: jax.Array, gradient: jax.Array) -> jax.Array:
    """The gradient by the input of ``function``, given that by its output."""
    return jax.vjp(function, at)[1](gradient)[0]
