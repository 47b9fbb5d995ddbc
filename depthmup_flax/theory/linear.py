"""Deep linear residual networks of infinite width, in training: features move and stay Gaussian, so kernels suffice.

The network (Yang et al., arXiv:2310.02244, section 4; Bordelon et al., arXiv:2309.16620, App. G.2):

    x^0 = U xi / sqrt(D),    x^l = x^(l-1) + a / sqrt(L) W^l x^(l-1),    f = V . x^L / gamma0

with ``U`` and ``n V`` from N(0, 1) and frozen, ``W`` from N(0, 1/n) and trained by SGD, width n to infinity.
`depthmup_flax.models.ResMLP` is this network with ``nonlinearity="linear"``, ``mean_subtraction=False``,
``base_depth=1``, ``base_width=1`` and the layers ``stem`` and ``readout`` frozen.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from depthmup_flax.errors import InputError
from depthmup_flax.theory.kernels import checked_kernel, gram
from depthmup_flax.theory.trajectory import (
    Loss,
    Training,
    require_convergence,
    require_elementwise,
    require_training,
    slope_of,
    square_loss,
)


def linear_training(
    inputs: jax.Array,
    targets: jax.Array,
    *,
    depth: int,
    learning_rate: float = 1.0,
    gamma0: float = 1.0,
    branch_multiplier: float = 1.0,
    loss: Loss = square_loss,
) -> Training:
    """SGD on a deep linear network of infinite width, exactly (TP6 Program 1, Definition 4.1 and Lemma 4.3).

    Every vector of the program is a linear combination of independent Gaussian ones, ``W_0^m x_i^(m-1)`` and
    ``W_0^mT dx_i^m`` (Gamma in the paper, times sqrt(L)), whose covariances are those of features and gradients (C in
    the paper). Both grow by one layer at a time. Several examples in a step are an index more, with the mean of their
    losses. Takes O(M^2 L^2) memory and O(M^3 L^2) time for M = T B passes, in one compiled program. Prop. 4.4's limit
    of infinite depth is ``infinite_depth(lambda depth: linear_training(..., depth=depth))``.

    Args:
      inputs: (T, B, D) examples of each step.
      targets: (T, B) what ``loss`` compares outputs with.
      depth: L.
      learning_rate: eta_0: the blocks' weights move by ``-eta_0 gamma0^2`` times the gradient of the mean loss.
      gamma0: the output's divisor.
      branch_multiplier: a.
      loss: (f, y) -> an example's loss, elementwise.

    Raises:
      InputError: shapes that do not fit, an example of norm zero, a depth below 1, or a learning rate with which
        training diverges.
    """
    inputs, targets = jnp.asarray(inputs), jnp.asarray(targets)
    if inputs.ndim != 3:
        raise InputError(f"inputs has shape {inputs.shape}: give (steps, examples, size).")
    if targets.shape != inputs.shape[:2]:
        raise InputError(f"targets has shape {targets.shape}: give {inputs.shape[:2]}, one for each example.")
    require_training(depth, gamma0, learning_rate, branch_multiplier, targets, "lazy_kernels(..., 'linear')")
    targets = targets.astype(jnp.result_type(float, targets))
    require_elementwise(loss, targets)
    start = checked_kernel(gram(inputs.reshape(-1, inputs.shape[-1])))
    found = _train(start, targets, learning_rate * gamma0, gamma0, branch_multiplier, depth, loss)
    require_convergence(found.outputs, targets, learning_rate, lambda: None)
    return found


def one_step_kernel(layer_time: jax.Array, scale: jax.Array | float, start: float = 1.0) -> jax.Array:
    """``H_1(tau)`` at infinite depth after one step on one example from f = 0 (B24 App. G.2.2, corrected).

        H_1 = e^tau H(0) + 2 scale^2 H(0)^2 e^(1 + tau) (tau^3 / 3 + tau^2 / 2)

    Eq. 92 solves ``dG/dtau = -G, G(1) = 1`` as ``e^-tau + 1 - e^-1``; the solution is ``e^(1 - tau)``, and Eq. 7 and 99
    inherit the slip. At tau = 1 and scale 1 this is 15.03, the printed formula 20.0, a network of width 1500 and depth
    64 15.04. H(0), which the paper sets to 1, enters the update quadratically: each of A and H_0 carries one.

    Args:
      layer_time: tau, any shape.
      scale: ``eta_0 gamma0 y``.
      start: H(0), ``|x|^2 / D``.
    """
    tau = jnp.asarray(layer_time)
    moved = 2 * scale**2 * start**2 * jnp.exp(1 + tau) * (tau**3 / 3 + tau**2 / 2)
    return jnp.exp(tau) * start + moved


Coefficients = dict[str, jax.Array]


@functools.partial(jax.jit, static_argnums=(5, 6))
def _train(
    start_MxM: jax.Array, targets_TxB: jax.Array, rate: float, gamma0: float, a: float, depth: int, loss: Loss
) -> Training:
    steps, batch = targets_TxB.shape
    passes, dtype = steps * batch, start_MxM.dtype
    a = a * depth**-0.5
    # Coefficients of every pass: of the forward and backward Gaussians of every layer and pass, of the passes' inputs
    # U xi, and of n V. The Gaussians at index l belong to the paper's layer l + 1; their covariances are features[l]
    # and gradients[l + 1].
    shapes = {
        "forward": (passes, depth, passes),
        "backward": (passes, depth, passes),
        "input": (passes, passes),
        "output": (passes,),
    }
    x = {name: jnp.zeros((depth + 1, *shape), dtype) for name, shape in shapes.items()}
    kernels = jnp.zeros((2, depth + 1, passes, passes), dtype)
    slope = slope_of(loss)

    def products(left: Coefficients, right: Coefficients, kernels: jax.Array) -> jax.Array:
        """(B, M): inner products of some passes with all, at one layer."""
        features, gradients = kernels[0, :-1], kernels[1, 1:]
        forward = jnp.einsum("blm,lmn->bln", left["forward"], features).reshape(batch, -1)
        backward = jnp.einsum("blm,lmn->bln", left["backward"], gradients).reshape(batch, -1)
        return (
            forward @ right["forward"].reshape(passes, -1).T
            + backward @ right["backward"].reshape(passes, -1).T
            + left["input"] @ start_MxM @ right["input"].T
            + left["output"][:, None] * right["output"]
        )

    def layer_by_layer(start: Coefficients, mine: str, t: jax.Array, x: Coefficients, dx: Coefficients, kernels, chi):
        """Carries one step's x up, or its g down, from ``start``; returns it at every layer, and the kernels.

        ``x`` is of the kind that is carried, ``dx`` of the other; ``chi`` are the slopes of earlier passes' losses.
        """
        row, up = t * batch, mine == "forward"
        which, other = (0, "backward") if up else (1, "forward")
        earlier = (jnp.arange(passes) < row).astype(dtype)

        def with_product(layer: jax.Array, now: Coefficients, all_of_layer: Coefficients, kernels: jax.Array):
            here = jax.tree.map(lambda c, v: jax.lax.dynamic_update_slice_in_dim(c, v, row, 0), all_of_layer, now)
            values = products(now, here, kernels)
            kernels = jax.lax.dynamic_update_slice(kernels, values[None, None], (which, layer, row, 0))
            return values, jax.lax.dynamic_update_slice(kernels, values.T[None, None], (which, layer, 0, row))

        def one_layer(carry, at):
            (now, kernels), (layer, all_x, all_dx) = carry, at
            values, kernels = with_product(layer, now, all_x, kernels)
            gaussian = layer if up else layer - 1
            # d x^(l-1) / d(W^T g_j), and what the updates of earlier steps add.
            seen = jax.lax.dynamic_index_in_dim(now[other], gaussian, 1, keepdims=False)
            weight = (seen - a * rate / batch * values * chi) * earlier
            added = jax.tree.map(lambda c: jnp.tensordot(weight, c, 1), all_dx)
            added[mine] = added[mine].at[jnp.arange(batch), gaussian, row + jnp.arange(batch)].add(1.0)
            return (jax.tree.map(lambda c, d: c + a * d, now, added), kernels), now

        last = depth if up else 0
        from_layers, to_layers = (slice(0, -1), slice(1, None)) if up else (slice(1, None), slice(0, -1))
        scanned = (
            jnp.arange(depth + 1)[from_layers],
            jax.tree.map(lambda c: c[from_layers], x),
            jax.tree.map(lambda c: c[to_layers], dx),
        )
        (end, kernels), before = jax.lax.scan(one_layer, (start, kernels), scanned, reverse=not up)
        _, kernels = with_product(jnp.array(last), end, jax.tree.map(lambda c: c[last], x), kernels)
        order = (lambda b, e: (b, e[None])) if up else (lambda b, e: (e[None], b))
        new = jax.tree.map(lambda b, e: jnp.concatenate(order(b, e)), before, end)
        return jax.tree.map(lambda c, v: jax.lax.dynamic_update_slice_in_dim(c, v, row, 1), x, new), end, kernels

    nothing = {name: jnp.zeros((batch, *shape[1:]), dtype) for name, shape in shapes.items()}

    def step(carry, t: jax.Array):
        x, g, kernels, chi = carry
        own = jax.lax.dynamic_slice_in_dim(jnp.eye(passes, dtype=dtype), t * batch, batch)
        x, end, kernels = layer_by_layer({**nothing, "input": own}, "forward", t, x, g, kernels, chi)
        outputs = end["output"] / gamma0
        ones = {**nothing, "output": jnp.ones(batch, dtype)}
        g, _, kernels = layer_by_layer(ones, "backward", t, g, x, kernels, chi)
        chi = jax.lax.dynamic_update_slice_in_dim(chi, slope(outputs, targets_TxB[t]), t * batch, 0)
        return (x, g, kernels, chi), (outputs, loss(outputs, targets_TxB[t]).mean())

    start = (x, x, kernels, jnp.zeros(passes, dtype))
    (_, _, kernels, _), (outputs, losses) = jax.lax.scan(step, start, jnp.arange(steps))
    return Training(outputs, losses, *kernels)
