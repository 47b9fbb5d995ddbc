"""Residual networks of infinite width trained by Adam, or any optimizer that acts on entries of gradients.

The network and its law are those of `reproduction.theory.nonlinear`, except for what training adds to weights.
With the gradients' scale n L^delta (Yang et al., arXiv:2310.02244, Def. 6.2), entries of a block's scaled gradient and
of its update are functions of the two neurons that they connect,

    G_s,ij = a sum_p chi_sp y^l_sp,i x^l_sp,j,    W_t - W_0 = -eta gamma0 / (n sqrt(L)) sum_(s<t) Q_s(G_0, ..., G_s)

so that the product with W_t - W_0 is an average over the law of j, at every i: the nonlinear outer product of Tensor
Programs IVb (arXiv:2308.01814). Samples of the law make it a matrix of samples by samples, which any optax direction
updates as it would update weights. Of the initial weights only the law remains, as for SGD.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from depthmup_flax.util.precision import products_in
from depthmup_flax.util.types import Scalar
from reproduction.theory import argument_checks
from reproduction.theory.branch_form import form, pulled
from reproduction.theory.gaussian_averages import get_activation
from reproduction.theory.input_kernel import checked_kernel, gram
from reproduction.theory.trajectory import Estimate, Loss, Training, over_populations, slope_of, square_loss
from reproduction.theory.wide_weights import (
    checked_samples,
    correlated,
    initial_product,
    layer_kernels,
    unseen,
    white_noise,
)

_LEAST_SAMPLES = 1024


@products_in("float32")
def entrywise_training(
    inputs: jax.Array,
    targets: jax.Array,
    direction: optax.GradientTransformation,
    *,
    activation: str,
    steps: int,
    depth: int,
    pre_nonlin: bool = False,
    learning_rate: float = 0.1,
    gamma0: float = 1.0,
    branch_multiplier: float = 1.0,
    trained: Sequence[str] = ("blocks",),
    loss: Loss = square_loss,
    samples: int | None = None,
    populations: int = 8,
    key: jax.Array | None = None,
) -> Estimate:
    """Training of a residual network of infinite width and depth L by an entrywise optimizer (this module's docstring).

    The limit of `depthmup_flax.rule.optimizer.depthmup` with this direction, on a `depthmup_flax.models.ResMLP` of
    ``base_width=1`` and ``base_depth=1``. Takes O(L S^2) memory times that of the direction. The error is the standard
    error over populations; its bias is of order 1/S.

    Args:
      inputs: (P, D) all examples; a step's loss is their mean.
      targets: (P,) second argument of ``loss``.
      direction: entrywise, without learning rate or decay, such as ``optax.scale_by_adam()``; ``optax.identity()`` is
        SGD.
      activation, steps, depth, gamma0, branch_multiplier, loss: as of `nonlinear_training`.
      pre_nonlin: as of `depthmup_flax.models.ResMLP`.
      learning_rate: eta.
      trained: some of stem, blocks and readout. As in the model, the stem starts at scale 1/sqrt(D), and its updates
        are multiplied by the inputs themselves.
      samples: S, even; default the smallest power of two that is at least 1024 and three times the number of Gaussian
        variables.
      populations, key: as of `nonlinear_training`.

    Raises:
      InputError: bad shapes or numbers, an unknown name, too few samples, or training that diverges.
    """
    inputs, targets = jnp.asarray(inputs), jnp.asarray(targets)
    get_activation(activation)
    argument_checks.require_layers(trained)
    argument_checks.require_training(depth, gamma0, learning_rate, branch_multiplier, targets, "lazy_kernels")
    argument_checks.require_populations(steps, populations)
    start = checked_kernel(gram(inputs))
    P = len(start)
    targets, flat_PxD = targets.astype(start.dtype), inputs.reshape(P, -1).astype(start.dtype)
    argument_checks.require_targets(loss, targets, P)
    samples = checked_samples(samples, 2 * depth * steps * P + P + 1, _LEAST_SAMPLES)
    plan = _Plan(direction, activation, pre_nonlin, depth, steps, samples, tuple(trained), loss)
    rates = (learning_rate, gamma0, branch_multiplier)
    estimate = over_populations(_population, plan, populations, key, flat_PxD, start, targets, rates)
    argument_checks.require_convergence(estimate.mean.outputs, targets, learning_rate)
    return estimate


class _Plan(NamedTuple):
    direction: optax.GradientTransformation
    activation: str
    pre_nonlin: bool
    depth: int
    steps: int
    samples: int
    trained: tuple[str, ...]
    loss: Loss


def _population(
    plan: _Plan,
    x_PxD: jax.Array,
    start_PxP: jax.Array,
    targets_P: jax.Array,
    rates: tuple[Scalar, Scalar, Scalar],
    key: jax.Array,
) -> Training:
    S, L, (P, D), M = plan.samples, plan.depth, x_PxD.shape, plan.steps * len(x_PxD)
    (before, after), (rate, gamma0, a), dtype = form(plan.activation, plan.pre_nonlin), rates, start_PxP.dtype
    noise, size, slope = white_noise(key, S, 2 * L * M + P + 1, dtype), L**-0.5, slope_of(plan.loss)
    noises = noise[:, P + 1 :].reshape(S, 2, L, M).transpose(1, 2, 0, 3)  # forward and backward, (L, S, M) each
    start_SxP, readout_S = correlated(noise[:, :P], start_PxP), noise[:, P]

    def step(carry: Any, t: jax.Array) -> tuple[Any, tuple[jax.Array, jax.Array]]:
        moved, state, xs, ys, top_x_SxM, bottom_g_SxM = carry
        put = lambda all_SxM, now_SxP: jax.lax.dynamic_update_slice(all_SxM, now_SxP, (0, t * P))

        def up(h_SxP: jax.Array, layer: Any) -> tuple[jax.Array, Any]:
            moved_SxS, *rest = layer
            x_SxP = before(h_SxP)
            random_SxP, seen_x = initial_product(t * P, x_SxP, *rest)
            z_SxP = random_SxP + size * moved_SxS @ x_SxP / S
            return h_SxP + a * size * after(z_SxP), ((h_SxP, z_SxP), x_SxP, seen_x)

        def down(g_SxP: jax.Array, layer: Any) -> tuple[jax.Array, Any]:
            moved_SxS, (h_SxP, z_SxP), *rest = layer
            y_SxP = pulled(after, z_SxP, g_SxP)
            random_SxP, seen_y = initial_product(t * P, y_SxP, *rest)
            r_SxP = random_SxP + size * moved_SxS.T @ y_SxP / S
            return g_SxP + a * size * pulled(before, h_SxP, r_SxP), (y_SxP, seen_y)

        h_SxP = start_SxP + moved["stem"] @ x_PxD.T
        h_SxP, (inside, x_LxSxP, xs) = jax.lax.scan(up, h_SxP, (moved["blocks"], (xs, ys), tuple(noises)))
        top_SxP = before(h_SxP)
        top_x_SxM = put(top_x_SxM, top_SxP)
        # f starts at 0; the samples' estimate of it would be noise, enlarged by 1 / gamma0.
        outputs_P = (readout_S @ (top_SxP - top_x_SxM[:, :P]) + moved["readout"] @ top_SxP) / (S * gamma0)
        weights_SxP = jnp.broadcast_to((readout_S + moved["readout"])[:, None], (S, P))
        layers = (moved["blocks"], inside, (ys, xs), tuple(noises[::-1]))
        g_SxP, (y_LxSxP, ys) = jax.lax.scan(down, pulled(before, h_SxP, weights_SxP), layers, reverse=True)
        chi_P = slope(outputs_P, targets_P) / P
        gradients = {
            "stem": g_SxP * chi_P @ x_PxD,
            "blocks": a * (y_LxSxP * chi_P) @ x_LxSxP.mT,
            "readout": top_SxP @ chi_P,
        }
        gradients = {name: gradient * (name in plan.trained) for name, gradient in gradients.items()}
        updates, state = plan.direction.update(gradients, state)
        moved = jax.tree.map(lambda m, u: m - rate * gamma0 * u, moved, updates)
        after_step = (moved, state, xs, ys, top_x_SxM, put(bottom_g_SxM, g_SxP))
        return after_step, (outputs_P, plan.loss(outputs_P, targets_P).mean())

    shapes = {"stem": (S, D), "blocks": (L, S, S), "readout": (S,)}
    moved = {name: jnp.zeros(shape, dtype) for name, shape in shapes.items()}
    nothing, none = unseen((L, S, M), dtype), jnp.zeros((S, M), dtype)
    start = (moved, plan.direction.init(moved), nothing, nothing, none, none)
    (_, _, xs, ys, top_x, bottom_g), (outputs, losses) = jax.lax.scan(step, start, jnp.arange(plan.steps))
    return Training(outputs, losses, *layer_kernels(xs, top_x, bottom_g, ys))
