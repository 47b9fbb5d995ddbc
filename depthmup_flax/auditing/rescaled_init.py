"""Initial values with the rule's standard deviations, for models with any initializers."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from depthmup_flax.auditing.counterparts import nearest
from depthmup_flax.auditing.parameter_trees import Leaf, flatten, shape_of, value_of
from depthmup_flax.rule.factor import factor_text
from depthmup_flax.rule.info_trees import audit_of, flatten_info, info_of, is_info
from depthmup_flax.rule.parametrization import (
    PRESETS,
    Parametrization,
    ParamInfo,
    Role,
    require_parametrization,
)
from depthmup_flax.util.errors import InputError
from depthmup_flax.util.types import ArrayTree, InfoTree


@dataclasses.dataclass(frozen=True)
class Start:
    """How an initial value changes: ``factor * c * x + offset * (c - 1)``, where it carries c."""

    factor: Any  # of the rule's standard deviation: a float, or traced
    carried: Any = 1.0  # c: a float, or an array that broadcasts; may be traced
    offset: float = 0.0  # of a norm that multiplies by 1 + scale and carries a factor

    @property
    def changes(self) -> bool:
        """Whether it changes anything."""
        if not isinstance(self.carried, (int, float)) or not isinstance(self.factor, float):
            return True
        return self.carried != 1 or not math.isclose(self.factor, 1.0)

    def __call__(self, x: ArrayTree) -> ArrayTree:
        """An array keeps its type; ``x`` may be a box or an ``nnx.Variable`` around one."""

        if not self.changes:
            return x
        shift = self.offset * (self.carried - 1)

        def of(array: jax.Array) -> jax.Array:
            factor = jnp.asarray(self.factor * self.carried, array.dtype)
            return array * factor + jnp.asarray(shift, array.dtype)

        return jax.tree.map(of, x)

    def __str__(self) -> str:
        shift = f" plus {factor_text(self.offset * (self.carried - 1))}" if self.offset else ""
        return f"times {factor_text(self.factor * self.carried)}{shift}"


def rescale_init(
    params: ArrayTree,
    base_params: ArrayTree,
    info: InfoTree,
    rule: Parametrization = PRESETS["depth_mup"],
) -> ArrayTree:
    """``params`` with the rule's standard deviation of every weight, given the base model's.

    Hidden weights get ``std_base / sqrt(m_in)``, input and output weights ``std_base``
    (`Parametrization.init_ratio`). So readouts and ``nn.Embed`` start ``m^1/2`` times larger than
    Flax's defaults; `Readout` needs no correction. Vectors get ``std_base``, too, if theirs
    differs by a power of the width, as that of biases from 1/sqrt(fan_in) does. Fixed parameters and
    constants (zeros, ones) keep their values; under ``standard``, all do. In the end each is
    multiplied by the factor that it carries (`ParamInfo`).

    Both standard deviations are measured, so they have a sampling error. Common initializers scale
    with powers of the fan-in or fan-out: if the closest ``m_in^a m_out^b`` with a, b in {-1/2, 0,
    1/2} is within four standard errors of the measured correction, it is used instead. That is
    exactly 1 for a hidden ``lecun_normal``. If none is, weights of branches may differ by ``r^1/2``
    or ``r`` besides, as from initializers that divide by these.

    Under ``jit`` and ``vmap``, the program measures the factors of each call. To measure once, for
    all seeds, call `init_factors` outside and apply `multiplied`.

    Args:
      params: fresh parameters of the model to train; arrays in any pytree, an ``nnx.State`` or a
        module.
      base_params: fresh parameters of the base model, from the same initializers: of the base
        width, and of the base depth, as in `audit`, or of the depth of ``params``.
      info: the audit, or its ``info``.
      rule: the parametrization, that of the optimizer.

    Returns:
      Parameters in the containers of ``params``; the ``nnx.State`` of a module, for
        ``nnx.update(model, state)``.

    Raises:
      InputError: ``info`` was made for other parameters or another base model, a parameter has no
        counterpart in the base model, or is constant in one model alone; traced, such a parameter
        becomes NaN.
    """
    return multiplied(params, init_factors(params, base_params, info, rule))


def init_factors(
    params: ArrayTree,
    base_params: ArrayTree,
    info: InfoTree,
    rule: Parametrization = PRESETS["depth_mup"],
) -> dict[str, Start]:
    """Path -> what `rescale_init`, which has the same arguments, does to the parameter."""
    require_parametrization(rule)
    leaves, _ = flatten(params, "params")
    base, _ = flatten(base_params, "base_params")
    infos = flatten_info(info)
    require_order(leaves, base, infos)
    _require_same_parameters(leaves, infos)
    _require_base(base, info)
    pairs = _counterparts(leaves, base, infos)
    result: dict[str, Start] = {}
    for path, start in carried_factors(info, rule).items():
        factor = _factor(path, leaves[path], base[pairs[path]], infos[path], rule)
        result[path] = dataclasses.replace(start, factor=factor)
    return result


def require_order(params: Mapping[str, Leaf], base_params: Mapping[str, Leaf], infos: Mapping[str, ParamInfo]) -> None:
    """Raises `InputError` if ``infos`` were made for ``base_params``, and ``params`` are others."""
    shapes, base_shapes, wanted = (
        {path: shape_of(leaf) for path, leaf in leaves.items()} for leaves in (params, base_params, infos)
    )
    if base_shapes == wanted != shapes:
        raise InputError(
            "info was made for the second of the two models: were model and base swapped? Pass the model first, then "
            "its base, as in dm.rescale_init(params, base_params, audit)."
        )


def _require_same_parameters(leaves: Mapping[str, Leaf], infos: Mapping[str, ParamInfo]) -> None:
    """Raises `InputError` unless the parameters are those that ``infos`` were made for."""
    for path in sorted(leaves.keys() ^ infos.keys()):
        there, not_there = ("info", "the model")
        if path in leaves:
            there, not_there = not_there, there
        text = f"is in {there} but not in {not_there}: give both the same depth."
        raise InputError(f"parameter {path!r} {text}")
    for path, leaf in leaves.items():
        if shape_of(leaf) != infos[path].shape:
            shapes = f"has shape {shape_of(leaf)}, but info was made for {infos[path].shape}"
            remedy = "pass (params, base_params), in this order, of the network that info was made "
            remedy += "for and its base"
            raise InputError(f"parameter {path!r} {shapes}: {remedy}.")


def _require_base(base: Mapping[str, Leaf], info: InfoTree) -> None:
    """Raises `InputError` unless these are the base model's, at its depth or the model's."""
    record = audit_of(info)
    if record is None or not record.base:
        return
    shapes = {path: shape_of(leaf) for path, leaf in base.items()}
    at_depth = {path: leaf.base_shape for path, leaf in flatten_info(info).items()}
    if shapes in (record.base, at_depth):
        return
    wanted = record.base
    if shapes.keys() == at_depth.keys() != record.base.keys():
        wanted = at_depth
    for path in sorted(shapes.keys() | wanted.keys()):
        if shapes.get(path) != wanted.get(path):
            raise InputError(
                f"parameter {path!r} of the base has shape {shapes.get(path)}, but {wanted.get(path)} in the base "
                "model of the audit: pass that one, after the model."
            )


def carried_factors(info: InfoTree, rule: Parametrization) -> dict[str, Start]:
    """`init_factors` for initial values that have the rule's deviations: carried factors alone."""
    infos = flatten_info(info)
    return {path: Start(1.0, leaf.factor(rule), leaf.offset) for path, leaf in infos.items()}


def baked(
    params: ArrayTree,
    info: InfoTree,
    rule: Parametrization = PRESETS["depth_mup"],
) -> ArrayTree:
    """The parameters of a model with its factors in the code, as those of the plain model.

    ``info`` is the plain model's audit, or its ``info``. Its parameters carry the factors. Both
    compute the same outputs, up to rounding.
    """
    return multiplied(params, carried_factors(info, rule))


def rescaled_before(info: InfoTree) -> InfoTree:
    """The info of an audit for parameters that an earlier run trained from `rescale_init`.

    Optimizers do not compare their values with initial ones.
    """

    def trusted(leaf: ParamInfo) -> ParamInfo:
        if leaf.audited is None:
            return leaf
        record = dataclasses.replace(leaf.audited, base_sizes=None)
        return dataclasses.replace(leaf, audited=record)

    return jax.tree.map(trusted, info_of(info), is_leaf=is_info)


def _counterparts(
    leaves: Mapping[str, Leaf], base: Mapping[str, Leaf], infos: Mapping[str, ParamInfo]
) -> dict[str, str]:
    """Path -> path in the base model; at another depth, of the nearest layer of its size."""
    if leaves.keys() == base.keys():
        return {path: path for path in leaves}
    shapes = {path: shape_of(leaf) for path, leaf in base.items()}

    def misfit(path: str, shape: tuple[int, ...]) -> tuple[bool, int] | None:
        return _misfit(infos[path], shape)

    pairs = nearest(leaves, shapes, misfit)
    for path in leaves:
        if path in pairs:
            continue
        raise InputError(
            f"no parameter of the base model corresponds to {path!r} of shape "
            f"{infos[path].shape}: pass a base model with the base width and the depth of this one."
        )
    return pairs


def _misfit(info: ParamInfo, base: tuple[int, ...]) -> tuple[bool, int] | None:
    """How unlike a layer at the base width a shape is; ``None`` if it cannot be one."""
    if len(info.shape) != len(base):
        return None
    ratios = [size / base_size for size, base_size in zip(info.shape, base, strict=True)]
    is_whole = _is_width(ratios, info)
    if not is_whole and not _is_width(ratios[1:], info):  # a leading axis may count layers
        return None
    expected = (1.0, info.width_in, info.width_out)
    unlike = 0
    for ratio in ratios:
        unlike += not any(math.isclose(ratio, m) for m in expected)
    return not is_whole, unlike


def _is_width(ratios: Sequence[float], info: ParamInfo) -> bool:
    """Whether a parameter's sides grow together as its width ratios do."""
    return math.isclose(math.prod(ratios), info.width_in * info.width_out)


def multiplied(params: ArrayTree, factors: Mapping[str, Start]) -> ArrayTree:
    """``params`` as `init_factors` says; works under ``jit``."""
    leaves, structure = flatten(params, "params")
    started = [factors[path](leaf) for path, leaf in leaves.items()]
    return jax.tree_util.tree_unflatten(structure, started)


def _factor(path: str, leaf: Leaf, base_leaf: Leaf, info: ParamInfo, rule: Parametrization) -> Any:
    """What multiplies the initial value of a parameter: a float or, of a traced one, an array."""
    ratio = rule.init_ratio(info)
    if ratio is None or info.role is Role.FIXED:
        return 1.0
    values = _Values.of(value_of(leaf))
    base = _Values.of(value_of(base_leaf))
    # The relative standard error of a normal sample's standard deviation is 1 / sqrt(2 n).
    tolerance = 4 * math.sqrt(0.5 / values.size + 0.5 / base.size)
    measured = ratio * base.std / values.std
    if info.role is Role.VECTOR:
        factor = jnp.where(values.is_centered & base.is_centered, _of_vector(measured, info, tolerance), 1.0)
    else:
        factor = _of_weight(measured, info, tolerance)
    factor = jnp.where(values.is_constant & base.is_constant, 1.0, factor)
    factor = jnp.where(values.is_constant != base.is_constant, math.nan, factor)
    if isinstance(factor, jax.core.Tracer):
        return factor
    if values.is_constant != base.is_constant:
        where = "the model" if values.is_constant else "the base model"
        right = "use the same initializers in both models."
        raise InputError(f"parameter {path!r} is constant in {where} alone: {right}")
    return float(factor)


@dataclasses.dataclass(frozen=True)
class _Values:
    """What is measured of initial values; arrays if they are traced."""

    std: Any
    is_constant: Any
    is_centered: Any  # around zero, as far as so many values tell; scales are not, whose deviation is noise
    size: int

    @classmethod
    def of(cls, array: Any) -> _Values:
        """From an array."""
        numpy = jnp if isinstance(array, jax.core.Tracer) else np  # which compiles nothing
        array = numpy.asarray(array)
        wide = array.astype(jnp.promote_types(array.dtype, jnp.float32))
        std, mean = numpy.std(wide), numpy.mean(wide)
        is_centered = numpy.abs(mean) <= 4 * std / math.sqrt(array.size)
        return cls(jnp.asarray(std), numpy.max(array) == numpy.min(array), is_centered, array.size)


def _of_vector(measured: jax.Array, info: ParamInfo, tolerance: float) -> jax.Array:
    """The nearest power of the width, or 1: vectors are short, or have a meaning."""
    return _nearest(measured, _powers_of_width(info), tolerance, 1.0)


def _of_weight(measured: jax.Array, info: ParamInfo, tolerance: float) -> jax.Array:
    """The nearest power of the width; else that times one of the depth; else what is measured.

    Initializers that know the depth divide by its square root, as GPT-2's, or by it.
    """
    of_width = _powers_of_width(info)
    of_depth = jnp.asarray([info.depth_ratio**0.5, info.depth_ratio])
    of_both = jnp.outer(of_depth, of_width).ravel()
    otherwise = _nearest(measured, of_both, tolerance, measured)
    return _nearest(measured, of_width, tolerance, otherwise)


def _powers_of_width(info: ParamInfo) -> jax.Array:
    halves = (0.0, -0.5, 0.5)
    exponents = itertools.product(halves, halves)
    return jnp.asarray([info.width_in**a * info.width_out**b for a, b in exponents])


def _nearest(
    measured: jax.Array,
    powers: jax.Array,
    tolerance: float,
    otherwise: jax.Array | float,
) -> jax.Array:
    """The closest of the powers, if its logarithm is within ``tolerance``."""
    distances = jnp.abs(jnp.log(measured / powers))
    closest = jnp.argmin(distances)
    return jnp.where(distances[closest] <= tolerance, powers[closest], otherwise)
