"""Residual networks of infinite width in training, with features that move: dynamical mean field theory by Monte Carlo.

The network is that of `reproduction.theory.lazy` (Bordelon et al., arXiv:2309.16620, Eq. 1 with a branch
multiplier a), trained by SGD with momentum and weight decay at the rate eta_0 gamma0^2 N. At infinite width the neurons
of a layer are independent draws from one process, whose law depends on averages over itself (App. D.3, Eq. 38; in
discrete time K.4):

    h^(l+1)_t = h^l_t + a / sqrt(L) c_t (u^l_t + sum_s A^l_ts g^(l+1)_s)
                      - eta_0 gamma0 a^2 / L  sum_(s<t) k_ts chi_s Phi^l_ts g^(l+1)_s
    g^l_t     = g^(l+1)_t + phi'(h^l_t) [a / sqrt(L) c_t (r^l_t + sum_s B^l_ts phi(h^l_s))
                      - eta_0 gamma0 a^2 / L  sum_(s<t) k_ts chi_s G^(l+1)_ts phi(h^l_s)]

    Phi^l_ts = <phi(h^l_t) phi(h^l_s)>,  u^l Gaussian with covariance Phi^l,  A^l_ts = <d phi(h^l_t) / d r^l_s>
    G^l_ts   = <g^l_t g^l_s>,            r^l Gaussian with covariance G^(l+1), B^l_ts = <d g^(l+1)_t / d u^l_s>

where t and s run over passes (a step and an example), chi is the slope of the loss times the example's share in it, and
``c_t = (1 - eta_0 lambda)^t`` and ``k_ts = sum_(s<=t'<t) (1 - eta_0 lambda)^(t-1-t') mu^(t'-s)`` come from decay and
momentum (App. K.5 and L). Simulations decided where this differs from the print:

* Eq. 131 writes the output as the learned part plus the response A^L scaled by sqrt(L); the response of the last layer
  to the readout has no such factor: ``f_t = <w_t phi(h^(L+1)_t)> / gamma0``.
* Eq. 137 sums momentum over s < t'; it must be s <= t', as in Eq. 136, or the first step does not move.
* Eq. 51 (second line) and 67 (last) print C_h for C_g, and Eq. 69 (second line) integrates to tau; it must be from tau
  to 1.

**Nonlinearity last** (``pre_nonlin=False``), the form of Yang et al. (arXiv:2310.02244, section 6.3): weights read
``x = h`` instead of ``phi(h)``, and the nonlinearity acts on their product,

    h^(l+1)_t = h^l_t + a / sqrt(L) MS(phi(z^l_t)),  y^l_t = phi'(z^l_t) MS(g^(l+1)_t),  f_t = <w_t h^(L+1)_t> / gamma0
    z^l_t     = c_t (u^l_t + sum_s A^l_ts y^l_s) - eta_0 gamma0 a / sqrt(L) sum_(s<t) k_ts chi_s <h^l_t h^l_s> y^l_s
    g^l_t     = g^(l+1)_t + a / sqrt(L) [c_t (r^l_t + sum_s B^l_ts h^l_s)
                          - eta_0 gamma0 a / sqrt(L) sum_(s<t) k_ts chi_s <y^l_t y^l_s> h^l_s]

with ``MS(v) = v - <v>``, which is its own adjoint, u^l of covariance <h h>, r^l of covariance <y y>, and responses
``A^l_ts = <d h^l_t / d r^l_s>`` and ``B^l_ts = <d y^l_t / d u^l_s>``. In both forms a step changes ``z`` by order
L^-1/2, so that its change of a layer is of order 1/L, as the stream's.

**Other branches.** ``alpha`` multiplies branches by ``a L^-alpha`` and the rate of their weights by L^(2 alpha - 1)
(App. M). With ``block_depth`` K the nonlinearity and weights of their own are repeated inside the branch (App. K.2): a
step changes the outputs of all these weights by order L^(alpha - 1). Eq. 125 to 127 treat the inner weights as static,
which misses their part of the change of h: it is of order 1/L in each layer, aligned with g, and has K - 1 of the
tangent kernel's K terms. With ``zero_init_branch`` the last of them start at zero. With ``kernel_size`` all of them are
convolutions over positions, padded with zeros (Eq. 118, one weight matrix from N(0, 1/N) for each shift); the stem acts
on each position alone, and the readout has weights for each of A positions, ``f = sum_a w_a phi(h_a) / (sqrt(A) N
gamma0)``.

**Solution.** In discrete time every average above needs only earlier steps, and in this step the layers below (forward)
or above (backward). One sweep through the steps, up and down the layers, with S samples of the process for its law,
solves the equations without iteration or damping; `wide_weights` has u, r and the responses, without derivatives.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from depthmup_flax.util.errors import InputError
from depthmup_flax.util.precision import products_in
from depthmup_flax.util.types import Dtype, Scalar
from reproduction.theory import argument_checks
from reproduction.theory.gaussian_averages import get_activation
from reproduction.theory.input_kernel import checked_kernel, gram
from reproduction.theory.lazy import lazy_kernels
from reproduction.theory.neuron_process import Numbers, Plan, population
from reproduction.theory.trajectory import Estimate, Loss, over_populations, square_loss
from reproduction.theory.wide_weights import checked_samples

_LEAST_SAMPLES = 4096


@products_in("float32")
def nonlinear_training(
    inputs: jax.Array,
    targets: jax.Array,
    *,
    activation: str,
    steps: int,
    depth: int,
    pre_nonlin: bool = True,
    learning_rate: float = 1.0,
    gamma0: float = 1.0,
    branch_multiplier: float = 1.0,
    alpha: float = 0.5,
    block_depth: int = 1,
    zero_init_branch: bool = False,
    kernel_size: int = 0,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    shares: jax.Array | None = None,
    trained: Sequence[str] = ("blocks",),
    loss: Loss = square_loss,
    samples: int | None = None,
    populations: int = 8,
    key: jax.Array | None = None,
) -> Estimate:
    """SGD on a residual network of infinite width and depth L: the mean field theory of this module.

    Takes O(L M^2 S) time and six arrays of L M S numbers for M = T P passes and S samples, one population at a time. S
    must be several times L M, so memory grows as the square of L M: 2.5 GB in single precision at L M = 3200. The limit
    of infinite depth is ``infinite_depth(lambda depth: nonlinear_training(..., depth=depth))``.

    The error is the standard error over independent populations. The white noises of a population are exactly
    orthogonal, so a linear network has no error. A population of S samples also has a bias of order 1/S, far below the
    error unless populations are many and small. InputError for bad shapes or numbers, an example of norm zero, an
    unknown name, too few samples, or training that diverges.

    Args:
      inputs: (P, D) all examples, including those that are only predicted; ``(P, *space, D)`` with a ``kernel_size``.
      targets: (P,) second argument of ``loss``.
      activation: relu, abs, erf, linear, gelu or tanh.
      pre_nonlin: as of `depthmup_flax.models.ResMLP`, whose default form is False: see "Nonlinearity last".
      steps, depth, learning_rate, branch_multiplier: T, L, eta_0 and a.
      gamma0: divisor of the output.
      alpha, block_depth, zero_init_branch, kernel_size: see "Other branches"; a kernel size of 0 is no convolution.
      momentum: mu of ``v <- mu v + gradient``, as in optax; App. K.5 averages, which is our eta_0 times (1 - mu).
      weight_decay: lambda; a step removes ``eta_0 lambda`` of every trained weight.
      shares: (P,) or (T, P) weights of examples in the loss, or in each step's loss; 0 for one that is only predicted.
        Default 1/P; they need not sum to 1.
      trained: some of stem, blocks and readout.
      loss: (f, y) -> loss of an example, elementwise.
      samples: S, even; default the smallest power of two that is at least 4096 and three times the number of Gaussian
        variables.
      populations: number of independent repetitions, at least 2.
      key: random key of the samples; default ``jax.random.key(0)``.

    Returns:
      `Estimate` of a `Training` with B = P: ``outputs`` (T, P), and passes in the order of steps; with a
      ``kernel_size`` one pass for each position, the last index.
    """
    inputs, targets = jnp.asarray(inputs), jnp.asarray(targets)
    get_activation(activation)
    argument_checks.require_branch(alpha, block_depth, zero_init_branch, pre_nonlin)
    argument_checks.require_layers(trained)
    argument_checks.require_training(depth, gamma0, learning_rate, branch_multiplier, targets, "lazy_kernels")
    argument_checks.require_number("momentum", momentum)
    argument_checks.require_number("weight_decay", weight_decay)
    argument_checks.require_populations(steps, populations)
    shifts = _shifts(inputs.shape[1:-1], kernel_size)
    positions = len(shifts[0])
    start = checked_kernel(gram(inputs.reshape(-1, inputs.shape[-1]) if kernel_size else inputs))
    examples = len(start) // positions
    argument_checks.require_targets(loss, targets, examples)
    parts = np.full(examples, 1 / examples) if shares is None else jnp.asarray(shares)
    if parts.shape not in ((examples,), (steps, examples)):
        raise InputError(f"shares has shape {parts.shape}: give ({examples},) or ({steps}, {examples}).")
    argument_checks.require_finite("shares", parts)
    targets = targets.astype(start.dtype)
    plan = Plan(
        activation, pre_nonlin, float(alpha), block_depth, zero_init_branch, depth, steps, examples, positions,
        len(shifts), samples or 0, loss,
    )  # fmt: skip
    plan = plan._replace(samples=checked_samples(samples, plan.variables, _LEAST_SAMPLES))
    shares_TxP = jnp.broadcast_to(parts, (steps, examples)).astype(start.dtype)
    memory = _memory(steps, trained, 1 - learning_rate * weight_decay, momentum, start.dtype)
    rates = (learning_rate * gamma0, gamma0, branch_multiplier, jnp.asarray(shifts, start.dtype))
    numbers = Numbers(start, targets, shares_TxP, *rates, *memory)
    estimate = over_populations(population, plan, populations, key, numbers)

    def stable_rate() -> float:
        """2 / (largest eigenvalue) of the tangent kernel before training, for plain SGD on the square loss."""
        if loss is not square_loss or momentum or weight_decay or kernel_size or bool((np.asarray(parts) < 0).any()):
            return math.inf
        lazy = lazy_kernels(
            start, activation, depth=depth, pre_nonlin=pre_nonlin, branch_multiplier=branch_multiplier, alpha=alpha,
            block_depth=block_depth, zero_init_branch=zero_init_branch,
        )  # fmt: skip
        kernel = lazy.tangent(trained)
        root = np.sqrt(np.atleast_2d(np.asarray(parts)).max(0))
        return 2 / float(np.linalg.eigvalsh(root[:, None] * np.asarray(kernel) * root).max())

    argument_checks.require_convergence(estimate.mean.outputs, targets, learning_rate, stable_rate)
    return estimate


def _shifts(space: tuple[int, ...], kernel_size: int) -> np.ndarray:
    """(B, A, A): for each shift of a convolution, 1 from position a + shift to position a; (1, 1, 1) without one."""
    argument_checks.require_whole("kernel_size", kernel_size, 0)
    if not kernel_size:
        return np.ones((1, 1, 1))
    if kernel_size % 2 == 0 or not space:
        raise InputError(
            f"kernel_size is {kernel_size} for {len(space)} axes of positions: use an odd number and inputs of shape "
            "(examples, *positions, size), or 0."
        )
    at = np.stack(np.meshgrid(*map(np.arange, space), indexing="ij"), -1).reshape(-1, len(space))
    offsets = np.stack(np.meshgrid(*[np.arange(kernel_size) - kernel_size // 2] * len(space), indexing="ij"), -1)
    moved = at[None, None] + offsets.reshape(-1, 1, 1, len(space))  # (B, 1, A, space)
    return (at[None, :, None] == moved).all(-1).astype(float)


def _memory(
    steps: int, trained: Sequence[str], shrink: Scalar, momentum: Scalar, dtype: Dtype
) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
    """``c_t`` (T,) and ``k_ts`` (T, T) of each group of layers."""
    shrink = jnp.asarray(shrink, dtype)
    remaining = shrink ** jnp.arange(steps)
    # W_(t+1) = shrink W_t - v_t, where v_t holds the gradient of step s with weight mu^(t - s).
    gap = jnp.arange(steps)[:, None] - jnp.arange(steps)
    velocity_TxT = jnp.where(gap >= 0, jnp.asarray(momentum, dtype) ** jnp.maximum(gap, 0), 0)
    _, learned = jax.lax.scan(lambda row, v: (shrink * row + v, row), jnp.zeros(steps, dtype), velocity_TxT)
    of_layers = lambda kept, frozen: {name: kept if name in trained else frozen for name in argument_checks.LAYERS}
    return of_layers(remaining, jnp.ones_like(remaining)), of_layers(learned, jnp.zeros_like(learned))
