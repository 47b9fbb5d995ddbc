"""Muon under the rule: orthogonal updates of hidden matrices, Adam for all other parameters, one learning rate.

Muon (Jordan 2024; ``optax.contrib.muon``) replaces the momentum of a matrix by the nearest matrix whose singular values
are all one, by a few Newton-Schulz steps. `WIDTH_RULES` has the power of the width that such an update needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from depthmup_flax.rule.direction_traits import described
from depthmup_flax.rule.info_trees import flatten_info, info_of, is_info, map_info
from depthmup_flax.rule.optimizer import ScalarOrSchedule, depthmup, require_ranges
from depthmup_flax.rule.parametrization import PRESETS, Geometry, Parametrization, ParamInfo, Role
from depthmup_flax.util.errors import InputError, did_you_mean, require_number
from depthmup_flax.util.types import ArrayTree, Dtype, InfoTree, Scalar

_PRECONDITIONINGS = ("frobenius", "spectral", "aol", "schatten")  # of optax
_LEAST_OPTAX = (0, 2, 8)  # the first with these; the package's other optimizers need less
Place = Callable[[Callable[[jax.Array], jax.Array], jax.Array], jax.Array]


def muon(
    learning_rate: ScalarOrSchedule,
    info: InfoTree,
    rule: Parametrization = PRESETS["depth_mup"],
    *,
    beta: Scalar = 0.95,
    nesterov: bool = True,
    ns_steps: int = 5,
    preconditioning: str = "frobenius",
    consistent_rms: Scalar | None = 0.2,
    b1: Scalar = 0.9,
    b2: Scalar = 0.999,
    eps: Scalar = 1e-8,
    mu_dtype: Dtype | None = None,
    place: Place | None = None,
    weight_decay: Scalar = 0.0,
    decay_width_exponent: float = 0.0,
    clip_rms: Scalar | None = None,
) -> optax.GradientTransformationExtraArgs:
    """Muon on hidden matrices, Adam on embeddings, readouts, norms and biases.

    At the base model it is ``optax.contrib.muon`` with the same arguments. Elsewhere an orthogonal update keeps its
    singular values, times ``(m_out / m_in)^1/2``; optax's own factors would follow the larger shapes.

    Args:
      learning_rate, info, rule: as in `depthmup_flax.depthmup`, and so are ``weight_decay``,
        ``decay_width_exponent`` and ``clip_rms``.
      beta, nesterov, ns_steps, preconditioning, eps, mu_dtype: as in ``optax.contrib.muon``.
      b1, b2: Adam's, ``adam_b1`` and ``adam_b2`` there.
      consistent_rms: root mean square of the entries of a full-rank update at the base model; 0.2 is about Adam's, so
        that one learning rate suits both (arXiv:2502.16982). ``None``: ``max(1, fan_out / fan_in)^1/2`` times
        singular values of one, as Jordan has it.
      place: ``(function, x) -> function(x)`` with whole matrices of the stack ``x [B, in, out]`` on each device:
        `depthmup_flax.devices.sharding.on_whole_matrices`. By default the compiler decides.

    Raises:
      InputError: a hidden parameter whose input and output dimensions are unknown.
    """
    info = info_of(info)
    require_ranges({"b1": b1, "b2": b2, "eps": eps})
    orthogonal = orthogonal_direction(
        info, rule, beta, nesterov, ns_steps, preconditioning, consistent_rms, eps, mu_dtype, place
    )
    adam = optax.scale_by_adam(b1, b2, eps, mu_dtype=mu_dtype, nesterov=nesterov)
    return depthmup(
        described(by_role(info, orthogonal, adam), 0),
        info,
        rule,
        learning_rate,
        weight_decay=weight_decay,
        decay_width_exponent=decay_width_exponent,
        clip_rms=clip_rms,
        geometry=muon_geometry(info),
    )


def orthogonal_direction(
    info: InfoTree,
    rule: Parametrization,
    beta: Scalar,
    nesterov: bool,
    ns_steps: int,
    preconditioning: str,
    consistent_rms: Scalar | None,
    eps: Scalar,
    mu_dtype: Dtype | None,
    place: Place | None,
) -> optax.GradientTransformation:
    """The direction of hidden matrices, with the arguments of `muon`."""
    if preconditioning not in _PRECONDITIONINGS:
        raise InputError(f"preconditioning is {preconditioning!r}: {did_you_mean(preconditioning, _PRECONDITIONINGS)}")
    require_number("beta", beta, least=0, below=1)
    if isinstance(ns_steps, jax.Array):
        raise InputError(
            "ns_steps is an array, as optax.inject_hyperparams makes it: it is a number of passes of a loop. Name it, "
            'static_args=("info", "rule", "ns_steps").'
        )
    require_number("ns_steps", ns_steps, least=1, whole=True)
    if consistent_rms is not None:
        require_number("consistent_rms", consistent_rms, above=0)
    require_matrices(info)
    momentum = _momentum(beta, nesterov, mu_dtype)
    # Without momentum, so without a state in other shapes than the parameters', which are sharded like them.
    newton_schulz = _newton_schulz(ns_steps, eps, preconditioning)
    return optax.chain(momentum, _on_matrices(newton_schulz, info, rule, consistent_rms, place))


def _newton_schulz(steps: int, eps: Scalar, preconditioning: str) -> optax.GradientTransformation:
    """Of optax, on stacks of matrices, without momentum."""
    if tuple(map(int, optax.__version__.split(".")[:3])) < _LEAST_OPTAX:
        raise InputError(f"Muon needs optax 0.2.8 or newer, and this is {optax.__version__}: pip install -U optax.")
    from optax.contrib import MuonDimensionNumbers, scale_by_muon  # late: older versions lack the first

    return scale_by_muon(
        ns_steps=steps,
        beta=0.0,
        eps=eps,
        nesterov=False,
        preconditioning=preconditioning,
        weight_dimension_numbers=MuonDimensionNumbers(1, 2),
    )


def muon_geometry(info: InfoTree) -> ArrayTree:
    """``orthogonal`` for the matrices that `muon` orthogonalizes, ``sign`` for Adam's parameters."""
    return geometry_by_role(info_of(info), Geometry.ORTHOGONAL)


def geometry_by_role(info: InfoTree, of_matrices: Geometry) -> ArrayTree:
    """``of_matrices`` for hidden matrices, ``sign`` for Adam's parameters."""
    return jax.tree.map(lambda leaf: of_matrices if leaf.role is Role.HIDDEN else Geometry.SIGN, info, is_leaf=is_info)


def by_role(
    info: InfoTree, of_matrices: optax.GradientTransformation, of_others: optax.GradientTransformation
) -> optax.GradientTransformation:
    """One direction for hidden matrices, and one for other parameters."""

    def label(_: str, leaf: ParamInfo, array: Any) -> Any:
        return array if isinstance(array, optax.MaskedNode) else "matrices" if leaf.role is Role.HIDDEN else "others"

    parts = {"matrices": of_matrices, "others": of_others}
    return optax.partition(parts, lambda params: map_info(label, info, params))


class _Momentum(NamedTuple):
    steps: jax.Array  # int32, updates so far
    mu: ArrayTree


def _momentum(beta: Scalar, nesterov: bool, mu_dtype: Dtype | None) -> optax.GradientTransformation:
    """The averages of gradients that ``optax.contrib.scale_by_muon`` orthogonalizes."""

    def init(params: ArrayTree) -> _Momentum:
        return _Momentum(jnp.zeros((), jnp.int32), optax.tree.zeros_like(params, dtype=mu_dtype))

    def update(updates: ArrayTree, state: _Momentum, params: ArrayTree = None) -> tuple[ArrayTree, _Momentum]:
        del params
        count, mu = state.steps + 1, optax.tree.update_moment(updates, state.mu, beta, 1)
        average = optax.tree.bias_correction(mu, beta, count + 1 if nesterov else count)
        if nesterov:
            newest = optax.tree.bias_correction(updates, beta, count)
            average = jax.tree.map(lambda m, g: beta * m + (1 - beta) * g, average, newest)
        return average, _Momentum(count, optax.tree.cast(mu, mu_dtype))

    return optax.GradientTransformation(init, update)


def _on_matrices(
    newton_schulz: optax.GradientTransformation,
    info: InfoTree,
    rule: Parametrization,
    consistent_rms: Scalar | None,
    place: Place | None,
) -> optax.GradientTransformation:
    """``newton_schulz`` on stacks ``[B, in, out]`` of matrices, times optax's factor of the *base* model's shapes."""

    def orthogonalized(x: jax.Array) -> jax.Array:
        return newton_schulz.update(x, newton_schulz.init(x))[0]

    def orthogonal(path: str, leaf: ParamInfo, array: Any) -> Any:
        if isinstance(array, optax.MaskedNode):
            return array
        fan_in, fan_out = leaf.fan_in, leaf.fan_out
        of_matrix = leaf.in_axes + leaf.out_axes
        stacked = [axis for axis in range(array.ndim) if axis not in of_matrix]
        order = (*stacked, *of_matrix)
        moved = array.transpose(order)
        x = moved.reshape(-1, fan_in, fan_out)
        x = orthogonalized(x) if place is None else place(orthogonalized, x)
        ratio_in, ratio_out = _ratios(leaf)
        into, out = fan_in / ratio_in, fan_out / ratio_out
        if consistent_rms is None:
            x = x * math.sqrt(max(1.0, out / into))
        else:
            x = x * (consistent_rms * math.sqrt(max(into, out)))
        # The rule counts experts to the width of their outputs, of which one matrix has its own alone.
        counted = (ratio_out / leaf.width_out) * (leaf.width_in / ratio_in)
        if not math.isclose(counted, 1.0):
            x = x * counted ** (0.5 * rule.width_power)
        return x.reshape(moved.shape).transpose([order.index(axis) for axis in range(array.ndim)])

    return optax.stateless(lambda updates, params: map_info(orthogonal, info, updates))


def _ratios(leaf: ParamInfo) -> tuple[float, float]:
    """Inputs and outputs of one matrix over the base model's; those of the rule if its shape is unknown."""
    if not leaf.base_shape:
        return leaf.width_in, leaf.width_out
    base_in = math.prod(leaf.base_shape[axis] for axis in leaf.in_axes)
    base_out = math.prod(leaf.base_shape[axis] for axis in leaf.out_axes)
    return leaf.fan_in / base_in, leaf.fan_out / base_out


def require_matrices(info: InfoTree) -> None:
    """Raises `InputError` for a hidden parameter whose matrix is unknown."""
    for path, leaf in flatten_info(info).items():
        if leaf.role is Role.HIDDEN and not leaf.is_matrix:
            raise InputError(
                f"parameter {path!r} of shape {leaf.shape} is hidden, but its input and output dimensions are unknown: "
                f"use dm.audit(model, base, x).info, or name all dimensions with overrides={{{path!r}: Axes(...)}}, "
                "'fixed_out' for a fixed number of heads."
            )
