"""What the rule keeps equal at all sizes: root mean squares by role, without their powers of width and depth."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from depthmup_flax.rule.factor import Factor, broadcastable
from depthmup_flax.rule.info_trees import info_of, is_info, map_info, named_geometries, path_name
from depthmup_flax.rule.parametrization import Geometry, Parametrization, ParamInfo, Role
from depthmup_flax.util.types import ArrayTree, InfoTree

UPDATE, GRADIENT, PARAMETER, COUNT = "update", "gradient", "parameter", "count"
RELATIVE, _MOMENTUM = "update_per_direction", "momentum"  # of directions that are linear in the gradient
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

    For a loop of your own: return them from the compiled step at a few steps, and pass the numbers to
    `depthmup_flax.compare_runs`. A role is that of `param_table`, of weights: ``input``, ``hidden+branch``, ``output``.
    Each value is the root of the mean over a role's parameters of their mean square, over the factor that width and
    depth have in it: TP6 Definition 6.1 for gradients and updates, Table 2 for initial values. ``count``: of numbers.

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
    squares: dict[str, list[jax.Array]] = {}

    def add(kind: str, leaf: ParamInfo, square: jax.Array) -> None:
        if leaf.role in MEASURED:
            squares.setdefault(f"{kind}/{leaf.role_name}", []).append(square)

    def gradient(path: str, leaf: ParamInfo, x: jax.Array) -> None:
        add(GRADIENT, leaf, mean_square(x, gradient_size(rule, leaf)))

    def parameter(path: str, leaf: ParamInfo, x: jax.Array) -> None:
        add(PARAMETER, leaf, mean_square(leaf.uncarried(x, rule), parameter_size(rule, leaf)))
        add(COUNT, leaf, jnp.float32(1 / x.size))

    def update(path: str, leaf: ParamInfo, x: jax.Array) -> None:
        kind, size = kinds[path], mean_square
        if kind in _SPECTRAL and leaf.is_matrix:
            size = functools.partial(_square_singular_value, leaf)
        add(UPDATE, leaf, size(x, update_size(rule, leaf, kind)))

    map_info(gradient, info, grads)
    if degree == 1 and momentum is not None:  # which is of scaled gradients
        map_info(lambda path, leaf, x: add(_MOMENTUM, leaf, mean_square(x, 1.0)), info, momentum)
    map_info(parameter, info, params)
    if degree is not None:
        map_info(update, info, jax.tree.map(moved, params, updates))
    means = {name: jnp.sqrt(jnp.stack(parts).mean()) for name, parts in squares.items()}
    means |= {name: len(squares[name]) / means[name] ** 2 for name in means if name.startswith(COUNT)}
    if degree == 1:
        for name in [name for name in means if name.startswith(UPDATE)]:
            role = name.partition("/")[2]
            size = means.pop(f"{_MOMENTUM}/{role}", means[f"{GRADIENT}/{role}"])
            means[f"{RELATIVE}/{role}"] = means.pop(name) / jnp.maximum(size, 1e-30)
    return dict(sorted(means.items()))


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
        axis = int(np.argmax(leaf.shape)) if leaf.shape else 0
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


def _square_singular_value(leaf: ParamInfo, x: jax.Array, scale: Any) -> jax.Array:
    """The mean square of the singular values of matrices, over those that are not 0, whose number is that of examples.

    By ``|U' y|^2 / |y|^2`` with ``y = U x`` for a random vector x: exact where they are equal.
    """
    into, out = ([axis % x.ndim for axis in axes] for axes in (leaf.in_axes, leaf.out_axes))
    others = [axis for axis in range(x.ndim) if axis not in (*into, *out)]
    matrices = (x.astype(jnp.float32) / scale).transpose(*others, *out, *into).reshape(-1, leaf.fan_out, leaf.fan_in)
    y = matrices @ jax.random.normal(jax.random.key(0), (leaf.fan_in,))
    z = jnp.einsum("koi,ko->ki", matrices, y)
    return (jnp.square(z).sum(-1) / jnp.maximum(jnp.square(y).sum(-1), 1e-30)).mean()


def _at_base(leaf: ParamInfo) -> ParamInfo:
    """The same parameter in the base model, where all powers of width and depth are 1."""
    ratios: Any = dict.fromkeys(_RATIOS, 1.0)
    return dataclasses.replace(leaf, carried=Factor(), **ratios)
