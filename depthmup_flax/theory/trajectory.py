"""What a theory says of a network in training, its limit of infinite depth, and what is refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from depthmup_flax.errors import InputError
from depthmup_flax.theory.kernels import require_finite, require_number, require_whole

Loss = Callable[[jax.Array, jax.Array], jax.Array]

_HUGE = 1e6  # outputs this many times the targets have diverged, even if they are finite


def square_loss(outputs: jax.Array, targets: jax.Array) -> jax.Array:
    """``(f - y)^2 / 2`` of every example."""
    return (outputs - targets) ** 2 / 2


def slope_of(loss: Loss) -> Loss:
    """Derivative of an elementwise loss by the outputs."""
    return jax.grad(lambda outputs, targets: loss(outputs, targets).sum())


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Training:
    """T steps with B examples each, in a network of L layers; M = T B passes, ordered by step, then by example.

    Attributes:
      outputs: (T, B) f of each step's examples, before that step's update.
      losses: (T,) of each step's batch, before its update.
      features: (L + 1, M, M) Phi: ``<phi(h_i^l) phi(h_j^l)>`` between passes i and j, from the stem's output to the
        last layer's; of a linear network the square root of its diagonal is the root mean square of a layer's entries.
      gradients: (L + 1, M, M) G: ``<g_i^l g_j^l>`` with ``g = N gamma0 df/dh``.
    """

    outputs: jax.Array
    losses: jax.Array
    features: jax.Array
    gradients: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Estimate:
    """A `Training` and how far off each of its numbers may be.

    Attributes:
      mean: the estimate.
      error: of Monte Carlo: standard error of the mean; of an extrapolation: see `infinite_depth`.
    """

    mean: Training
    error: Training


def infinite_depth(compute: Callable[[int], Training | Estimate], depth: int = 32) -> Estimate:
    """The limit of infinite depth, by refinement of layer time (B24 App. E.3: the error of a depth L is as 1/L).

    Two depths give ``2 f(2L) - f(L)``, whose error is as L^-2 (Richardson). It is computed for L and for L / 2, from
    three depths; the error is their difference (about three times too large where the error is as L^-2) and that of
    Monte Carlo, in squares, as of depths with samples of their own.

    Args:
      compute: depth -> `linear_training` or `nonlinear_training` of that depth.
      depth: L, even; the depths computed are L / 2, L and 2 L.

    Returns:
      An `Estimate` at ``L / 2 + 1`` layer times.

    Raises:
      InputError: a depth that is not even, or below 2.
    """
    require_whole("depth", depth, 2)
    if depth % 2:
        raise InputError(f"depth is {depth}: use an even number.")
    coarse, middle, fine = (_at_every(_estimate(compute(n)), n // (depth // 2)) for n in (depth // 2, depth, 2 * depth))
    twice = lambda more, less: jax.tree.map(lambda b, a: 2 * b - a, more.mean, less.mean)
    better, worse = twice(fine, middle), twice(middle, coarse)

    def error_of(b: jax.Array, w: jax.Array, f: jax.Array, m: jax.Array, c: jax.Array) -> jax.Array:
        noise = 4 * f**2 + 9 * m**2 + c**2  # of b - w = 2 fine - 3 middle + coarse
        of_depth = jnp.maximum((b - w) ** 2 - noise, 0)
        return jnp.sqrt(of_depth + 4 * f**2 + m**2)

    error = jax.tree.map(error_of, better, worse, fine.error, middle.error, coarse.error)
    return Estimate(better, error)


def _estimate(found: Training | Estimate) -> Estimate:
    if not isinstance(found, (Training, Estimate)):
        raise InputError(
            f"compute gives a {type(found).__name__}: let it return what linear_training or nonlinear_training does; "
            "lazy_kernels has its own limit."
        )
    return found if isinstance(found, Estimate) else Estimate(found, jax.tree.map(jnp.zeros_like, found))


def _at_every(found: Estimate, stride: int) -> Estimate:
    def thin(training: Training) -> Training:
        return dataclasses.replace(
            training, features=training.features[::stride], gradients=training.gradients[::stride]
        )

    return Estimate(thin(found.mean), thin(found.error))


def require_training(
    depth: int, gamma0: float, learning_rate: float, branch_multiplier: float, targets: jax.Array, lazy: str
) -> None:
    """Checks what all theories of training take; ``lazy`` says what to call for the limit of gamma0 = 0."""
    require_whole("depth", depth)
    if isinstance(gamma0, (int, float)) and gamma0 <= 0:
        raise InputError(f"gamma0 is {gamma0}: use a positive number; the limit of 0 is {lazy}.")
    require_number("gamma0", gamma0, above=0.0)
    require_number("learning_rate", learning_rate, at_least=0.0)
    require_number("branch_multiplier", branch_multiplier)
    require_finite("targets", targets)


def require_elementwise(loss: Loss, targets: jax.Array) -> None:
    """InputError for a loss that is a mean or a sum over examples."""
    shape = jax.eval_shape(loss, targets, targets).shape
    if shape != targets.shape:
        raise InputError(f"loss gives shape {shape} for {targets.shape}: give one number for each example, no mean.")


def require_convergence(
    outputs_TxB: jax.Array, targets: jax.Array, learning_rate: float, stable_rate: Callable[[], float | None]
) -> None:
    """InputError if training left all bounds.

    ``stable_rate`` gives a rate that is stable before features move, if one is known; where the rate is below it, large
    targets have moved them too far.
    """
    if isinstance(outputs_TxB, jax.core.Tracer):
        return
    largest = float(np.abs(np.asarray(targets)).max())
    inside = np.abs(np.asarray(outputs_TxB)).max(1) < _HUGE * max(1.0, largest)  # not of NaN
    if inside.all():
        return
    stable = stable_rate()
    if stable is not None and stable < learning_rate:
        remedy = f"use less than {stable:.2g}, which is stable as long as features stand still"
    else:
        remedy = f"use a smaller one, or smaller targets (up to {largest:g} here) or gamma0, which move features less"
    raise InputError(
        f"learning_rate is {learning_rate}: training diverges, outputs leave all bounds at step "
        f"{int(np.argmin(inside))}; {remedy}."
    )
