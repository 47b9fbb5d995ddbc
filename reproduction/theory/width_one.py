"""The linear residual network of width 1 at infinite depth: log-normal at the start, and exact in training.

    x^0 = U xi,    x^l = (1 + L^-1/2 W^l) x^(l-1),    f = V x^L,    W^l from N(0, 1)

Yang et al. (arXiv:2310.02244, TP6), section 3: the example that explains Depth-muP's exponents. Unlike at infinite
width, the limit is random: it depends on the initial weights through ``Z = L^-1/2 sum_l W^l``, which is N(0, 1).
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from numpy.typing import ArrayLike

from depthmup_flax.util.errors import InputError
from depthmup_flax.util.types import Scalar
from reproduction.theory.argument_checks import require_finite, require_number
from reproduction.theory.trajectory import Loss, slope_of, square_loss

# What a step adds to log f per unit of the rate, from f times the loss's slope.
_UPDATES: dict[str, Callable[[jax.Array], jax.Array]] = {
    "sgd": lambda gradient: -gradient,
    "sign": lambda g: -jnp.sign(g),
}


def width_one_training(
    noise: ArrayLike,
    targets: ArrayLike,
    *,
    start: Scalar = 1.0,
    learning_rate: Scalar = 1.0,
    optimizer: str = "sgd",
    loss: Loss = square_loss,
) -> jax.Array:
    """Outputs of networks of width 1 and infinite depth, before and after every step on one example.

        f_0 = V U xi exp(Z - 1/2)
        f_(t+1) = f_t exp(-eta f_t l'(f_t))          sgd: W^l moves by -eta dl/dW^l
        f_(t+1) = f_t exp(-eta sign(f_t l'(f_t)))    sign: W^l moves by -eta L^-1/2 sign(dl/dW^l)

    TP6's rates (3.1): a step of order ``L^-1/2`` in each ``W^l`` adds 1/L in each block, in the same
    direction, and so order 1 to log f. Follows from ``d f / d W^l = L^-1/2 f / (1 + L^-1/2 W^l)`` and
    ``log(1 + w) = w - w^2 / 2``. TP6's expansion (3.2) has ``+ sum_l W^2 / L`` for ``- sum_l W^2 / 2L``, and ``x_0^0``
    for ``x_0^L / x_0^0``, the factor of ``M_(L,l)``. Networks of depth L differ from the limit by order L^-1/2.

    Args:
      noise: Z of each network, of any shape; N(0, 1) numbers for samples of the limit.
      targets: (T,) second argument of ``loss`` at each step.
      start: ``V U xi``, the output without branches.
      learning_rate: eta.
      optimizer: ``sgd``, or ``sign`` for the sign of the gradient, as TP6 has Adam.
      loss: (f, y) -> loss, elementwise.

    Returns:
      (T + 1, ...) outputs. InputError for another optimizer, targets of another shape, or numbers that are not finite.
    """
    noise, targets = (x.astype(jnp.result_type(float, x)) for x in map(jnp.asarray, (noise, targets)))
    if optimizer not in _UPDATES:
        raise InputError(f"optimizer is {optimizer!r}: use one of {', '.join(_UPDATES)}.")
    if targets.ndim != 1:
        raise InputError(f"targets has shape {targets.shape}: give one number for each step.")
    for name, values in (("noise", noise), ("targets", targets)):
        require_finite(name, values)
    for name, value in (("start", start), ("learning_rate", learning_rate)):
        require_number(name, value)
    return _train(noise, targets, start, learning_rate, optimizer, loss)


@functools.partial(jax.jit, static_argnums=(4, 5))
def _train(
    noise: jax.Array, targets_T: jax.Array, start: Scalar, rate: Scalar, optimizer: str, loss: Loss
) -> jax.Array:
    slope, update = slope_of(loss), _UPDATES[optimizer]

    def step(f: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        after = f * jnp.exp(rate * update(f * slope(f, jnp.broadcast_to(y, f.shape))))
        return after, after

    first = start * jnp.exp(noise - 0.5)
    return jnp.concatenate([first[None], jax.lax.scan(step, first, targets_T)[1]])
