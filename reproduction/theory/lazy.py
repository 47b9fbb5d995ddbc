"""The lazy limit: a wide residual network whose features do not move is a kernel machine; an ODE gives its kernel.

The network is that of Bordelon et al. (arXiv:2309.16620), Eq. 1, with a branch multiplier a:

    h^1     = W^0 x / sqrt(D)
    h^(l+1) = h^l + a / sqrt(L N) W^l phi(h^l),    l = 1..L
    f       = w . phi(h^(L+1)) / (gamma0 N)

with all weights from N(0, 1); the width N goes to infinity, then gamma0 to 0. `depthmup_flax.models.ResMLP` is this
network with ``pre_nonlin=True``, ``mean_subtraction=False``, ``base_depth=1`` and ``branch_multiplier=a``.

Kernels between inputs x and x' over layer time tau = l / L in [0, 1] (Prop. 2 and App. G.1):

    H   = <h h'>,                      dH/dtau =  a^2 Phi,               H(0) = x . x' / D
    Phi = <phi(h) phi(h')>,            (h, h') Gaussian with covariance H
    G   = <g g'>, g = N gamma0 df/dh,  dG/dtau = -a^2 G <phi'(h) phi'(h')>,   G(1) = <phi'(h) phi'(h')> at tau = 1

Prop. 2 and Eq. 84 do not print the end value of G; this one is Eq. 130's, for a readout of phi(h).

With ``pre_nonlin=False`` it is that model's default, ``h^(l+1) = h^l + a / sqrt(L) MS(phi(W^l h^l / sqrt(N)))`` and
``f = w . h^(L+1) / (gamma0 N)`` (Yang et al., arXiv:2310.02244, section 6.3; MS subtracts the mean over neurons), with

    dH/dtau =  a^2 (<phi(h) phi(h')> - <phi(h)><phi(h')>),    Phi = H
    dG/dtau = -a^2 G <phi'(h) phi'(h')>,                      G(1) = 1,    K = a^2 int G <phi'(h) phi'(h')> H dtau

**Other branches.** With ``block_depth`` K weights in a branch (App. K.2) Phi and ``<phi' phi'>`` are iterated inside
it, and all of its weights have a part of K. With another ``alpha`` a branch is multiplied by ``a L^-alpha`` and its
weights train at L^(2 alpha - 1) times the rate (App. M): above 1/2, H and G do not depend on tau at infinite depth,
while K has the same factor a^2. With ``zero_init_branch``, H and G do not depend on tau either, and K has the part of
the last weights alone.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from depthmup_flax.util.errors import InputError
from depthmup_flax.util.precision import products_in
from reproduction.theory.argument_checks import require_branch, require_layers, require_number, require_whole
from reproduction.theory.gaussian_averages import get_activation
from reproduction.theory.input_kernel import checked_kernel


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LazyKernels:
    """Kernels over layer time, for P inputs.

    ``error`` is that of integration over layer time, without that of the averages of gelu and tanh: the largest
    difference of ``H``, ``G`` and ``blocks`` to those with half as many steps. An upper estimate, about 15 times too
    high for smooth activations; 0 at finite depth.
    """

    layer_time: jax.Array  # (T,) from 0 to 1
    H: jax.Array  # (T, P, P) covariance of preactivations
    Phi: jax.Array  # (T, P, P) covariance of features, which weights and the readout read
    G: jax.Array  # (T, P, P) covariance of gradients by the residual stream
    blocks: jax.Array  # (P, P) the blocks' part of the tangent kernel, ``a^2 int G Phi dtau`` of B24's form
    error: jax.Array  # ()

    def tangent(self, trained: Sequence[str] = ("blocks",)) -> jax.Array:
        """(P, P): the tangent kernel K of ``f`` when these layers train at the rate eta_0 gamma0^2 N.

        ``blocks`` alone is K of Eq. 87. The stem adds ``G(0) H(0)`` (Eq. 128, where K^x is H(0)). The readout adds
        ``Phi(1)``; Eq. 128 counts it as one of L layers, but a simulation shows that it has no factor 1/L.
        """
        require_layers(trained)
        return _tangent(self, tuple(trained))


@functools.partial(jax.jit, static_argnums=1)
def _tangent(kernels: LazyKernels, trained: tuple[str, ...]) -> jax.Array:
    parts = {"stem": kernels.G[0] * kernels.H[0], "blocks": kernels.blocks, "readout": kernels.Phi[-1]}
    return sum((parts[name] for name in trained), jnp.zeros_like(kernels.blocks))


@products_in("float32")
def lazy_kernels(
    start: jax.Array,
    activation: str,
    *,
    depth: int | None = None,
    pre_nonlin: bool = True,
    branch_multiplier: float = 1.0,
    alpha: float = 0.5,
    block_depth: int = 1,
    zero_init_branch: bool = False,
    steps: int = 64,
) -> LazyKernels:
    """Kernels of the lazy limit, at infinite depth or at depth L.

    Differentiable, works under ``jit`` and ``vmap``, and computes in the dtype of ``start``. Layer times are
    ``steps + 1`` or ``L + 1``. InputError for a kernel that no inputs have, an unknown activation or an invalid number.

    Args:
      start: (P, P) H at layer time 0, from `gram`.
      activation: relu, abs, erf, linear, gelu or tanh.
      depth: L; ``None`` is infinity, by fourth-order Runge-Kutta steps.
      pre_nonlin: False is the form with the nonlinearity last.
      branch_multiplier: a.
      alpha, block_depth, zero_init_branch: see "Other branches".
      steps: number of steps of layer time at infinite depth; a multiple of 4.
    """
    get_activation(activation)
    start = checked_kernel(start)
    require_number("branch_multiplier", branch_multiplier)
    require_branch(alpha, block_depth, zero_init_branch, pre_nonlin)
    form = LazyForm(activation, pre_nonlin, float(alpha), block_depth, zero_init_branch)
    if depth is not None:
        require_whole("depth", depth, also=", or None for the limit")
        return _recursion(start, branch_multiplier, form, depth)
    require_whole("steps", steps)
    if steps % 4:
        raise InputError(f"steps is {steps}: use a multiple of 4.")
    return _integrated(start, branch_multiplier, form, steps)


@products_in("float32")
def predict(
    kernel: jax.Array, targets: jax.Array, times: jax.Array, *, cross: jax.Array | None = None
) -> tuple[jax.Array, jax.Array | None]:
    """Outputs under gradient flow on the mean of ``(y - f)^2 / 2`` over P examples, from ``f = 0`` (Eq. 87).

    ``f(t) = (1 - exp(-t K / P)) y`` on the training examples and ``K' K^-1 f(t)`` elsewhere; directions in which the
    kernel vanishes do not move. InputError for shapes that do not match, or a kernel that is not symmetric.

    Args:
      kernel: (P, P) tangent kernel of the training examples.
      targets: (P, C) or (P,) labels y of these.
      times: (T,) training time: learning rate eta_0 times steps.
      cross: (Q, P) tangent kernel of other inputs with the training examples.

    Returns:
      ``(T, P, C)`` and, given ``cross``, ``(T, Q, C)``; without the last axis if ``targets`` has none.
    """
    kernel, targets, times = checked_kernel(kernel), jnp.asarray(targets), jnp.asarray(times)
    cross = None if cross is None else jnp.asarray(cross)
    examples = kernel.shape[0]
    if targets.shape[:1] != (examples,) or targets.ndim > 2:
        raise InputError(f"targets has shape {targets.shape}: give ({examples},) or ({examples}, outputs).")
    if times.ndim != 1:
        raise InputError(f"times has shape {times.shape}: give a list of times.")
    if cross is not None and cross.shape[1:] != (examples,):
        raise InputError(f"cross has shape {cross.shape}: give {examples} columns, one for each training example.")
    return _predictions(kernel, targets, times, cross)


@jax.jit
def _predictions(
    kernel: jax.Array, targets: jax.Array, times: jax.Array, cross: jax.Array | None
) -> tuple[jax.Array, jax.Array | None]:
    examples = len(kernel)
    values, vectors = jnp.linalg.eigh(kernel)
    rate = jnp.maximum(values, 0.0) / examples
    along = vectors.T @ targets.reshape(examples, -1)
    moved_TxP = -jnp.expm1(-times[:, None] * rate)
    train = jnp.einsum("ip,tp,pc->tic", vectors, moved_TxP, along).reshape(len(times), *targets.shape)
    if cross is None:
        return train, None
    # (1 - e^(-t rate)) / rate, whose limit at rate 0 is t.
    small = rate * examples < jnp.finfo(kernel.dtype).eps * examples * rate.max()
    weight_TxP = jnp.where(small, times[:, None], moved_TxP / jnp.where(small, 1.0, rate)) / examples
    test = jnp.einsum("qi,ip,tp,pc->tqc", cross, vectors, weight_TxP, along)
    return train, test.reshape(len(times), cross.shape[0], *targets.shape[1:])


def averages(activation: str, H: jax.Array) -> tuple[jax.Array, jax.Array]:
    """``<phi phi>`` and ``<phi' phi'>`` for covariances (..., P, P)."""
    phi, (p, q) = get_activation(activation), _variances(H)
    # Sums over points of u, and of v given u, are symmetric only up to their error.
    symmetric = lambda average: (average + average.mT) / 2
    return symmetric(phi.values(p, q, H)), symmetric(phi.slopes(p, q, H))


def _means(activation: str, H: jax.Array) -> jax.Array:
    """``<phi><phi>``, the average over independent variables."""
    return get_activation(activation).values(*_variances(H), jnp.zeros_like(H))


def _variances(H: jax.Array) -> tuple[jax.Array, jax.Array]:
    variance = jnp.diagonal(H, axis1=-2, axis2=-1)
    p, q = jnp.broadcast_arrays(variance[..., :, None], variance[..., None, :])
    return p, q


class LazyForm(NamedTuple):
    """What a network is, beside its depth: see `lazy_kernels`."""

    activation: str
    pre_nonlin: bool = True
    alpha: float = 0.5
    block_depth: int = 1
    zero_init_branch: bool = False

    def branch(self, H: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Of branches on a stream of covariance (..., P, P) H.

        Returns the covariance of what they add, their weights' part of the tangent kernel, and the factor of the
        gradients that they send down, both beside G.
        """
        added, down, seen = H, jnp.ones_like(H), jnp.zeros_like(H)
        for _ in range(self.block_depth):
            read, (added, slopes) = added, averages(self.activation, added)
            seen = seen * slopes + added if self.pre_nonlin else (seen + read) * slopes
            down = down * slopes
        if not self.pre_nonlin:
            added -= _means(self.activation, read)
        if self.zero_init_branch:  # the last weights alone have a gradient, and nothing passes through them
            return jnp.zeros_like(H), added, jnp.zeros_like(H)
        return added, seen, down

    def ends(self, H: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        """Of all layers: Phi, the last two of `branch`, and G(1)."""
        _, seen, down = self.branch(H)
        if not self.pre_nonlin:
            return H, seen, down, jnp.ones_like(H[-1])
        Phi, slopes = averages(self.activation, H)
        return Phi, seen, down, slopes[-1]


def _states(
    step: Callable[[jax.Array, Any], jax.Array],
    start: jax.Array,
    given: Any = None,
    *,
    reverse: bool = False,
    **kwargs: Any,
) -> jax.Array:
    """The states of a scan by layer, its start and end included."""
    end, others = jax.lax.scan(lambda x, known: (step(x, known), x), start, given, reverse=reverse, **kwargs)
    return jnp.concatenate([end[None], others] if reverse else [others, end[None]])


@functools.partial(jax.jit, static_argnums=(2, 3))
def _recursion(start: jax.Array, multiplier: float, form: LazyForm, depth: int) -> LazyKernels:
    """Depth L: dtau = 1 / L, H forward and G backward, layer by layer (App. D at gamma0 = 0)."""
    share, learned = multiplier**2 * depth ** (-2 * form.alpha), multiplier**2 / depth
    H = _states(lambda H, _: H + share * form.branch(H)[0], start, length=depth)
    Phi, seen, slopes, end = form.ends(H)
    G = _states(lambda G, slope: G * (1.0 + share * slope), end, slopes[:-1], reverse=True)
    # The weights of layer l see Phi^l and the gradient by the branch's output, G^(l+1).
    blocks = learned * jnp.einsum("lij,lij->ij", G[1:], seen[:-1])
    return LazyKernels(jnp.linspace(0.0, 1.0, depth + 1), H, Phi, G, blocks, jnp.zeros(()))


@functools.partial(jax.jit, static_argnums=(2, 3))
def _integrated(start: jax.Array, multiplier: float, form: LazyForm, steps: int) -> LazyKernels:
    fine, coarse = (_runge_kutta(start, multiplier, form, n) for n in (steps, steps // 2))
    differences = (fine.H[::2] - coarse.H, fine.G[::2] - coarse.G, fine.blocks - coarse.blocks)
    error = functools.reduce(jnp.maximum, [jnp.abs(d).max() for d in differences])
    return dataclasses.replace(fine, error=error)


def _runge_kutta(start: jax.Array, multiplier: float, form: LazyForm, steps: int) -> LazyKernels:
    """H takes steps of half the length, so that the backward steps of G have H in their middle."""
    # Above 1/2, what branches add before training vanishes.
    scale, length = multiplier**2 * (form.alpha == 0.5), 1.0 / steps
    rise = lambda H, _: scale * form.branch(H)[0]
    H = _states(lambda H, _: _runge_kutta_step(rise, H, (None,) * 3, length / 2), start, length=2 * steps)
    Phi, seen, slopes, end = form.ends(H)
    backward = lambda G, known: _runge_kutta_step(lambda G, slope: scale * slope * G, G, known, length)
    G = _states(backward, end, (slopes[2::2], slopes[1::2], slopes[:-1:2]), reverse=True)
    H, Phi, seen = H[::2], Phi[::2], seen[::2]
    # Simpson's rule.
    weights = jnp.ones(steps + 1, start.dtype).at[1:-1:2].set(4.0).at[2:-1:2].set(2.0) * length / 3
    blocks = multiplier**2 * jnp.einsum("t,tij,tij->ij", weights, G, seen)
    return LazyKernels(jnp.linspace(0.0, 1.0, steps + 1), H, Phi, G, blocks, jnp.zeros(()))


def _runge_kutta_step(
    slope: Callable[[jax.Array, Any], jax.Array], y: jax.Array, known: Sequence[Any], step: float
) -> jax.Array:
    """One classical Runge-Kutta step; ``known`` holds ``slope``'s second argument at its start, middle and end."""
    k1 = slope(y, known[0])
    k2 = slope(y + step / 2 * k1, known[1])
    k3 = slope(y + step / 2 * k2, known[1])
    k4 = slope(y + step * k3, known[2])
    return y + step / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
