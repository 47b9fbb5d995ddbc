"""Deep linear residual networks of infinite width in training: features move and stay Gaussian, so kernels suffice.

The network (Yang et al., arXiv:2310.02244, section 4; Bordelon et al., arXiv:2309.16620, App. G.2):

    x^0 = U xi / sqrt(D),    x^l = x^(l-1) + a / sqrt(L) W^l x^(l-1),    f = V . x^L / gamma0

where ``U`` and ``n V`` from N(0, 1) are frozen, ``W`` from N(0, 1/n) is trained by SGD, and the width n is infinite.
`depthmup_flax.models.ResMLP` is this network with ``nonlinearity="linear"``, ``mean_subtraction=False``,
``base_depth=1``, ``base_width=1`` and the layers ``stem`` and ``readout`` frozen.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from depthmup_flax.util.errors import InputError
from depthmup_flax.util.precision import products_in
from depthmup_flax.util.types import Scalar
from reproduction.theory.argument_checks import (
    require_convergence,
    require_elementwise,
    require_number,
    require_training,
)
from reproduction.theory.input_kernel import checked_kernel, gram
from reproduction.theory.trajectory import Loss, Training, slope_of, square_loss


@products_in("float32")
def linear_training(
    inputs: jax.Array,
    targets: jax.Array,
    *,
    depth: int,
    learning_rate: float = 1.0,
    gamma0: float = 1.0,
    branch_multiplier: float = 1.0,
    alpha: float = 0.5,
    loss: Loss = square_loss,
) -> Training:
    """SGD on a deep linear network of infinite width, exactly (TP6 Program 1, Definition 4.1 and Lemma 4.3).

    Every vector of the program is a linear combination of independent Gaussian ones, ``W_0^m x_i^(m-1)`` and
    ``W_0^mT dx_i^m`` (Gamma in the paper, times sqrt(L)), whose covariances are those of features and gradients (C in
    the paper). Both are computed layer by layer. Several examples in a step add an index; its loss is their mean.
    Takes O(M^2 L^2) memory and O(M^3 L^2) time for M = T B passes, in one compiled program. Prop. 4.4's limit
    of infinite depth is ``infinite_depth(lambda depth: linear_training(..., depth=depth))``. InputError for shapes that
    do not match, an example of norm zero, an invalid number, or training that diverges.

    Args:
      inputs: (T, B, D) examples of each step.
      targets: (T, B) second argument of ``loss``.
      depth: L.
      learning_rate: eta_0; a step adds ``-eta_0 gamma0^2`` times the gradient of the mean loss to the blocks' weights.
      gamma0: divisor of the output.
      branch_multiplier: a.
      alpha: branches are multiplied by ``a L^-alpha`` and train at L^(2 alpha - 1) times the rate (B24 App. M).
      loss: (f, y) -> loss of an example, elementwise.
    """
    inputs, targets = jnp.asarray(inputs), jnp.asarray(targets)
    if inputs.ndim != 3:
        raise InputError(f"inputs has shape {inputs.shape}: give (steps, examples, size).")
    if targets.shape != inputs.shape[:2]:
        raise InputError(f"targets has shape {targets.shape}: give {inputs.shape[:2]}, one for each example.")
    require_number("alpha", alpha, 0.5)
    require_training(depth, gamma0, learning_rate, branch_multiplier, targets, "lazy_kernels(..., 'linear')")
    targets = targets.astype(jnp.result_type(float, targets))
    require_elementwise(loss, targets)
    start = checked_kernel(gram(inputs.reshape(-1, inputs.shape[-1])))
    rate, multiplier = learning_rate * gamma0 * depth ** (2 * alpha - 1), branch_multiplier * depth ** (0.5 - alpha)
    training = _train(start, targets, rate, gamma0, multiplier, depth, loss)
    require_convergence(training.outputs, targets, learning_rate)
    return training


@jax.jit
def one_step_kernel(layer_time: jax.Array, scale: jax.Array | float, start: float = 1.0) -> jax.Array:
    """``H_1(tau)`` at infinite depth after one step on one example from f = 0 (B24 App. G.2.2, corrected).

        H_1 = e^tau H(0) + 2 scale^2 H(0)^2 e^(1 + tau) (tau^3 / 3 + tau^2 / 2)

    B24 is Bordelon et al. (arXiv:2309.16620). Eq. 92 solves ``dG/dtau = -G, G(1) = 1`` as ``e^-tau + 1 - e^-1``; the
    solution is ``e^(1 - tau)``, and Eq. 7 and 99 inherit the slip. At tau = 1 and scale 1 this formula gives 15.03, the
    printed one 20.0, and a network of width 1500 and depth 64 15.04. H(0), which the paper sets to 1, enters the update
    quadratically: A and H_0 carry one factor each.

    ``layer_time`` is tau, of any shape, ``scale`` is ``eta_0 gamma0 y`` and ``start`` H(0), ``|x|^2 / D``.
    """
    tau = jnp.asarray(layer_time)
    moved = 2 * scale**2 * start**2 * jnp.exp(1 + tau) * (tau**3 / 3 + tau**2 / 2)
    return jnp.exp(tau) * start + moved


Coefficients = dict[str, jax.Array]  # of vectors, over the independent Gaussians; see `_train`


@functools.partial(jax.jit, static_argnums=(5, 6))
def _train(
    start_MxM: jax.Array, targets_TxB: jax.Array, rate: Scalar, gamma0: Scalar, a: Scalar, depth: int, loss: Loss
) -> Training:
    steps, batch = targets_TxB.shape
    passes, dtype = steps * batch, start_MxM.dtype
    network = _Network(start_MxM, rate, a * depth**-0.5, batch, depth)
    # Of the Gaussians of every layer and pass, of the inputs U xi, and of n V. The Gaussians at index l belong to the
    # paper's layer l + 1; their covariances are features[l] and gradients[l + 1].
    shapes = {"forward": (depth, passes), "backward": (depth, passes), "input": (passes,), "output": ()}
    slope = slope_of(loss)
    none = {name: jnp.zeros((batch, *shape), dtype) for name, shape in shapes.items()}

    def step(carry: tuple[Any, ...], t: jax.Array) -> tuple[tuple[Any, ...], tuple[jax.Array, jax.Array]]:
        x, g, kernels, chi = carry
        own = jax.lax.dynamic_slice_in_dim(jnp.eye(passes, dtype=dtype), t * batch, batch)
        x, end, kernels = network.sweep("forward", {**none, "input": own}, t, x, g, kernels, chi)
        outputs = end["output"] / gamma0
        ones = {**none, "output": jnp.ones(batch, dtype)}
        g, _, kernels = network.sweep("backward", ones, t, g, x, kernels, chi)
        chi = jax.lax.dynamic_update_slice_in_dim(chi, slope(outputs, targets_TxB[t]), t * batch, 0)
        return (x, g, kernels, chi), (outputs, loss(outputs, targets_TxB[t]).mean())

    unseen = {name: jnp.zeros((depth + 1, passes, *shape), dtype) for name, shape in shapes.items()}
    kernels = jnp.zeros((2, depth + 1, passes, passes), dtype)
    start = (unseen, unseen, kernels, jnp.zeros(passes, dtype))
    (_, _, kernels, _), (outputs, losses) = jax.lax.scan(step, start, jnp.arange(steps))
    return Training(outputs, losses, *kernels)


class _Network(NamedTuple):
    """One step's pass through the layers: x up, or g down, and the kernels of these with all passes so far."""

    start_MxM: jax.Array
    rate: Scalar  # eta_0 gamma0
    a: Scalar  # branch multiplier, with 1 / sqrt(L)
    batch: int
    depth: int

    def sweep(
        self,
        mine: str,
        start: Coefficients,
        t: jax.Array,
        x: Coefficients,
        dx: Coefficients,
        kernels: jax.Array,
        chi: jax.Array,
    ) -> tuple[Coefficients, Coefficients, jax.Array]:
        """Carries a step's (B, ...) vectors from ``start``; returns all of their kind, those at the end, and kernels.

        ``x`` and ``dx`` (L + 1, M, ...) are earlier vectors of the kind ``mine`` (forward or backward) and the other,
        ``kernels`` (2, L + 1, M, M) of features and gradients, ``chi`` (M,) slopes of earlier passes' losses.
        """
        up, passes, row = mine == "forward", len(self.start_MxM), t * self.batch
        other, own = "backward" if up else "forward", jnp.arange(self.batch)
        earlier = (jnp.arange(passes) < row).astype(self.start_MxM.dtype)

        def one_layer(carry: tuple[Coefficients, jax.Array], at: Any) -> tuple[tuple[Coefficients, jax.Array], Any]:
            (now, kernels), (layer, all_x, all_dx) = carry, at
            values, kernels = self._with_products(up, layer, row, now, all_x, kernels)
            gaussian = layer if up else layer - 1
            # d x^(l-1) / d(W^T g_j), and what the updates of earlier steps add.
            response = jax.lax.dynamic_index_in_dim(now[other], gaussian, 1, keepdims=False)
            weight = (response - self.a * self.rate / self.batch * values * chi) * earlier
            added = jax.tree.map(lambda c: jnp.tensordot(weight, c, 1), all_dx)
            added[mine] = added[mine].at[own, gaussian, row + own].add(1.0)
            return (jax.tree.map(lambda c, d: c + self.a * d, now, added), kernels), now

        lower, upper, last = slice(0, -1), slice(1, None), self.depth if up else 0
        origin, target = (lower, upper) if up else (upper, lower)
        at = lambda layers, all_layers: jax.tree.map(lambda c: c[layers], all_layers)
        scanned = (jnp.arange(self.depth + 1)[origin], at(origin, x), at(target, dx))
        (end, kernels), before = jax.lax.scan(one_layer, (start, kernels), scanned, reverse=not up)
        _, kernels = self._with_products(up, jnp.array(last), row, end, at(last, x), kernels)
        order = (lambda b, e: (b, e[None])) if up else (lambda b, e: (e[None], b))
        new = jax.tree.map(lambda b, e: jnp.concatenate(order(b, e)), before, end)
        return jax.tree.map(lambda c, v: jax.lax.dynamic_update_slice_in_dim(c, v, row, 1), x, new), end, kernels

    def _with_products(
        self, up: bool, layer: jax.Array, row: jax.Array, now: Coefficients, all_x: Coefficients, kernels: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """(B, M): inner products of some passes with all, at one layer; and the kernels with these."""
        every = jax.tree.map(lambda c, v: jax.lax.dynamic_update_slice_in_dim(c, v, row, 0), all_x, now)
        flat = lambda c: c.reshape(len(c), -1)
        forward = flat(jnp.einsum("blm,lmn->bln", now["forward"], kernels[0, :-1])) @ flat(every["forward"]).T
        backward = flat(jnp.einsum("blm,lmn->bln", now["backward"], kernels[1, 1:])) @ flat(every["backward"]).T
        inputs = now["input"] @ self.start_MxM @ every["input"].T
        values = forward + backward + inputs + now["output"][:, None] * every["output"]
        kernels = jax.lax.dynamic_update_slice(kernels, values[None, None], (int(not up), layer, row, 0))
        return values, jax.lax.dynamic_update_slice(kernels, values.T[None, None], (int(not up), layer, 0, row))
