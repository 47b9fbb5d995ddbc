"""What the rule keeps equal at all sizes: root mean squares by role, without their powers of width and depth."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from depthmup_flax.rule.factor import Factor, broadcastable
from depthmup_flax.rule.info_trees import info_of, is_info, map_info, named_geometries, path_name, template
from depthmup_flax.rule.parametrization import Geometry, Parametrization, ParamInfo, Role
from depthmup_flax.util.types import ArrayTree, InfoTree

UPDATE, GRADIENT, PARAMETER, COUNT, RULE = "update", "gradient", "parameter", "count", "rule"
RELATIVE, _MOMENTUM = "update_per_direction", "momentum"  # of directions that are linear in the gradient
LARGEST, SMALLEST = "largest", "smallest"  # of the tensors of a role: one that is wrong is lost in their mean
Parts = list[tuple[str, jax.Array]]  # place in a layer and mean squares [layers] of each parameter
# Biases and norm scales are few numbers: their gradients differ by factors of ten between seeds.
MEASURED = (Role.INPUT, Role.HIDDEN, Role.OUTPUT)
SAMPLE = 2**12
_SPECTRAL = (Geometry.ORTHOGONAL, Geometry.TWO_SIDED)
_RATIOS = ("width_in", "width_out", "depth_ratio", "model_width", "uses", "summed")


def measures(
    info: InfoTree,
    rule: Parametrization,
    grads: ArrayTree,
    updates: ArrayTree,
    params: ArrayTree,
    momentum: ArrayTree | None = None,
    *,
    degree: float | None = 0,
    geometry: str | ArrayTree | None = None,
) -> dict[str, jax.Array]:
    """``update/ROLE``, ``gradient/ROLE`` and ``parameter/ROLE`` of one step, about equal at all sizes; ``count/ROLE``.

    `depthmup_flax.record_course` calls it in a loop of your own. A role is that of `param_table`, of weights:
    ``input``, ``hidden+branch``, ``output``. Each value is the root of the mean over a role's parameters of their mean
    square, over the factor that width and depth have in it: TP6 Definition 6.1 for gradients and updates, Table 2 for
    initial values. Of tensors in several layers ``KIND/ROLE/largest`` and ``/smallest`` are the root mean squares of
    single ones over that of all at the same place in other layers. ``count``: of numbers; ``rule/ROLE``: the factor of
    updates.

    Args:
      info, rule: as for the optimizer.
      grads, updates, params: of the step, before the updates are applied. Updates count as far as they change the
        parameters: not where a parameter of low precision stays as it is. Of matrices that Muon updates, the singular
        values are measured.
      momentum: the state of ``optax.trace`` after the step, of which the updates of degree 1 are a multiple.
      degree: of the optimizer's direction: 0 of Adam and the like; 1 of SGD and momentum, of which there is
        ``update_per_direction/ROLE`` instead, by momentum or gradients; ``None``, unknown: updates are left out.
      geometry: as in `depthmup_flax.scale_by_depthmup`; for `depthmup_flax.muon` its ``muon_geometry``.
    """
    info = info_of(info)
    kinds = named_geometries(info, Geometry.SIGN if geometry is None else geometry)
    squares: dict[str, Parts] = {}

    def add(kind: str, path: str, leaf: ParamInfo, square: jax.Array) -> None:
        if leaf.role in MEASURED:
            squares.setdefault(f"{kind}/{leaf.role_name}", []).append((template(path), square))

    def gradient(path: str, leaf: ParamInfo, x: jax.Array) -> None:
        add(GRADIENT, path, leaf, mean_squares(leaf, x, gradient_size(rule, leaf)))

    def parameter(path: str, leaf: ParamInfo, x: jax.Array) -> None:
        square = mean_squares(leaf, leaf.uncarried(x, rule), parameter_size(rule, leaf))
        add(PARAMETER, path, leaf, square)
        add(COUNT, path, leaf, jnp.full(square.shape, square.size / x.size, jnp.float32))
        add(RULE, path, leaf, jnp.square(jnp.float32(update_size(rule, leaf, kinds[path]))).mean()[None])

    def update(path: str, leaf: ParamInfo, x: jax.Array) -> None:
        kind, size = kinds[path], mean_squares
        if kind in _SPECTRAL and leaf.is_matrix:
            size = _square_singular_values
        add(UPDATE, path, leaf, size(leaf, x, update_size(rule, leaf, kind)))

    def momentum_of(path: str, leaf: ParamInfo, x: jax.Array) -> None:
        add(_MOMENTUM, path, leaf, mean_squares(leaf, x, 1.0))

    map_info(gradient, info, grads)
    if degree == 1 and momentum is not None:  # which is of scaled gradients
        map_info(momentum_of, info, momentum)
    map_info(parameter, info, params)
    if degree is not None:
        map_info(update, info, jax.tree.map(moved, params, updates))
    found: dict[str, jax.Array] = {}
    for role in [name.partition("/")[2] for name in squares if name.startswith(f"{COUNT}/")]:
        shares = [share for _, share in squares.pop(f"{COUNT}/{role}")]  # 1 / numbers of a layer
        found[f"{COUNT}/{role}"] = len(shares) / jnp.stack([share[0] / share.size for share in shares]).mean()
        for one in (LARGEST, SMALLEST):
            found[f"{COUNT}/{role}/{one}"] = 1 / jnp.concatenate(shares).max()
        found[f"{RULE}/{role}"] = _root(squares.pop(f"{RULE}/{role}"))
        if degree == 1:
            own = squares.pop(f"{UPDATE}/{role}")
            direction = squares.pop(f"{_MOMENTUM}/{role}", squares[f"{GRADIENT}/{role}"])
            found[f"{RELATIVE}/{role}"] = _root(own) / jnp.maximum(_root(direction), 1e-30)
            pairs = zip(own, direction, strict=True)
            found |= _extremes(f"{RELATIVE}/{role}", [(name, a / jnp.maximum(b, 1e-30)) for (name, a), (_, b) in pairs])
    for name, parts in squares.items():
        found |= {name: _root(parts), **_extremes(name, parts)}
    return dict(sorted(found.items()))


def _root(parts: Parts) -> jax.Array:
    """Of the mean over parameters of their mean squares."""
    return jnp.sqrt(jnp.stack([part.mean() for _, part in parts]).mean())


def _extremes(name: str, parts: Parts) -> dict[str, jax.Array]:
    """The largest and the smallest tensor, each over the mean of those at its place in other layers."""
    places: dict[str, list[jax.Array]] = {}
    for place, part in parts:
        places.setdefault(place, []).append(part)
    layers = [values for some in places.values() if (values := jnp.concatenate(some)).size > 1]
    if not layers:
        return {}
    over_mean = [values / jnp.maximum(values.mean(), 1e-30) for values in layers]
    ratios = jnp.sqrt(jnp.concatenate([jnp.where(x.mean() > 0, x, 1.0) for x in over_mean]))
    return {f"{name}/{LARGEST}": ratios.max(), f"{name}/{SMALLEST}": ratios.min()}


def parameter_size(rule: Parametrization, leaf: ParamInfo) -> Any:
    """The power of width in initial values without a carried factor (TP6 Table 2)."""
    return leaf.width_in ** (-0.5 * rule.width_power) if leaf.role is Role.HIDDEN else 1.0


def gradient_size(rule: Parametrization, leaf: ParamInfo) -> Any:
    """The powers of width and depth in a gradient (TP6 Definition 6.1)."""
    return rule.gradient_scale(_at_base(leaf)) / rule.gradient_scale(leaf)


def update_size(rule: Parametrization, leaf: ParamInfo, geometry: Geometry = Geometry.SIGN) -> Any:
    """The powers of width and depth in an update (TP6 Definition 6.1)."""
    size = rule.update_scale(leaf, geometry) / rule.update_scale(_at_base(leaf), geometry)
    if geometry is Geometry.NORM_MATCHED and leaf.role is Role.HIDDEN:
        return size / leaf.width_in**0.5
    return size


def moved(x: jax.Array, update: jax.Array) -> jax.Array:
    """An update as far as it changes ``x``: not where a number of low precision stays as it is."""
    change = jnp.abs((x + update).astype(x.dtype) - x)
    return jnp.sign(update) * jnp.minimum(change, jnp.abs(update))


def sampled(info: InfoTree, tree: ArrayTree, geometry: str | ArrayTree | None) -> tuple[InfoTree, ArrayTree]:
    """Infos and about `SAMPLE` numbers of each array, of which `measures` gives nearly the same; Muon's stay whole."""
    kinds = named_geometries(info, Geometry.SIGN if geometry is None else geometry)

    def part(path: str, leaf: ParamInfo, x: Any) -> Any:
        stride = 1 if kinds[path] in _SPECTRAL else math.prod(leaf.shape) // SAMPLE
        within = [axis % len(leaf.shape) for axis in (*leaf.in_axes, *leaf.out_axes)] or range(len(leaf.shape))
        axis = max(within, key=lambda axis: leaf.shape[axis], default=0)  # every layer of a stack stays
        if stride <= 1 or np.ndim(x) <= axis:
            return x
        return jax.lax.slice_in_dim(x, 0, x.shape[axis], min(stride, leaf.shape[axis]), axis)

    def carried(path: Any, leaf: ParamInfo) -> ParamInfo:
        ratios = {name: broadcastable(value, leaf.shape) for name, value in vars(leaf.carried).items()}
        return dataclasses.replace(
            leaf, carried=Factor(**{name: part(path_name(path), leaf, value) for name, value in ratios.items()})
        )

    return jax.tree_util.tree_map_with_path(carried, info, is_leaf=is_info), map_info(part, info, tree)


def mean_square(x: jax.Array, scale: Any) -> jax.Array:
    """Of ``x / scale``, in float32."""
    return jnp.square(x.astype(jnp.float32) / scale).mean()


def mean_squares(leaf: ParamInfo, x: jax.Array, scale: Any) -> jax.Array:
    """[layers] of ``x / scale``, in float32: those of a stack, else one."""
    squares = jnp.square(x.astype(jnp.float32) / scale)
    if not leaf.is_matrix:
        return squares.mean()[None]
    return squares.mean(tuple(axis % x.ndim for axis in (*leaf.in_axes, *leaf.out_axes))).reshape(-1)


def _square_singular_values(leaf: ParamInfo, x: jax.Array, scale: Any) -> jax.Array:
    """[layers] of the mean square of singular values, over those that are not 0, whose number is that of examples.

    By ``|U' y|^2 / |y|^2`` with ``y = U x`` for a random vector x: exact where they are equal.
    """
    into, out = ([axis % x.ndim for axis in axes] for axes in (leaf.in_axes, leaf.out_axes))
    others = [axis for axis in range(x.ndim) if axis not in (*into, *out)]
    matrices = (x.astype(jnp.float32) / scale).transpose(*others, *out, *into).reshape(-1, leaf.fan_out, leaf.fan_in)
    y = matrices @ jax.random.normal(jax.random.key(0), (leaf.fan_in,))
    z = jnp.einsum("koi,ko->ki", matrices, y)
    return jnp.square(z).sum(-1) / jnp.maximum(jnp.square(y).sum(-1), 1e-30)


def _at_base(leaf: ParamInfo) -> ParamInfo:
    """The same parameter in the base model, where all powers of width and depth are 1."""
    ratios: Any = dict.fromkeys(_RATIOS, 1.0)
    return dataclasses.replace(leaf, carried=Factor(), **ratios)
