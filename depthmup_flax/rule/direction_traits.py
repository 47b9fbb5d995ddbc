"""Which directions the rule covers, and what they fix about the size of their updates.

A *direction* is an optax transformation without learning rate or decay: ``optax.scale_by_adam()``,
``optax.trace(0.9)``. Nobody's code is looked into. What is known of a direction is

* what it carries: `Direction`, made by `described`, has its degree and geometry as data, as all of this package do;
* the tree of its state, whose named tuples say which of optax's transformations it is made of, however they are
  composed: those of `direction_states` are not covered by the rule;
* its updates, traced with the parameters' shapes (`update_dependence`) when the optimizer is built, and measured on
  small arrays (`direction_probe`) by the optimizer's ``init``.

What none of them tells is asked for: ``geometry=``, or `entrywise`.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from depthmup_flax.rule.direction_probe import NotJudged, Probe
from depthmup_flax.rule.direction_states import (
    ENTRYWISE_GEOMETRIES,
    NotEntrywise,
    ScaledUpdates,
    VouchedState,
    is_mark,
    is_vouched_for,
    named_tuples,
    orthogonalized,
    require_covered,
    state_of,
)
from depthmup_flax.rule.info_trees import (
    flatten_info,
    has_no_value,
    is_info,
    map_info,
    named_geometries,
    path_name,
    template,
)
from depthmup_flax.rule.parametrization import Geometry, Parametrization, ParamInfo, Role
from depthmup_flax.rule.update_dependence import Dependence, Entries, read_dependence
from depthmup_flax.util.errors import InputError, shown
from depthmup_flax.util.types import ArrayTree, InfoTree

log = logging.getLogger(__name__)

# --- what directions carry


class Direction(optax.GradientTransformationExtraArgs):
    """An optax transformation and, as data, what the rule has to know of it. Composed by optax, it loses them."""

    degree: int | None  # the power with which updates follow gradients: 1 for SGD, 0 for Adam (epsilon aside)
    geometry: Geometry | None  # of its updates; None: of each parameter another, which is given with it


def described(inner: optax.GradientTransformation, degree: int | None, geometry: Geometry | None = None) -> Direction:
    """``inner`` with its degree and geometry, which `depthmup` then takes without reading it."""
    direction = Direction(inner.init, optax.with_extra_args_support(inner).update)
    direction.degree = degree
    direction.geometry = geometry
    return direction


def entrywise(inner: optax.GradientTransformation) -> optax.GradientTransformationExtraArgs:
    """``inner``, which `depthmup` then takes for an entrywise direction without reading it, also as a part of others.

    For one whose mixing of entries does not matter, such as the rounding of an 8-bit state by blocks, or whose kernels
    cannot be read. `depthmup_flax.coord_check` measures whether it follows the rule.
    """
    inner_update = optax.with_extra_args_support(inner).update

    def init(params: ArrayTree) -> VouchedState:
        return VouchedState(inner.init(params))

    def update(updates: ArrayTree, state: VouchedState, params: ArrayTree = None, **extra_args: Any) -> Any:
        updates, inner_state = inner_update(updates, state.inner, params, **extra_args)
        return updates, VouchedState(inner_state)

    return described(optax.GradientTransformationExtraArgs(init, update), None, Geometry.SIGN)


# --- what a direction is

# Parameters that stand for a network's, where it is not known.
_SAMPLE = {"w": jax.ShapeDtypeStruct((16, 16), jnp.float32)}


def homogeneity(inner: optax.GradientTransformation) -> int | None:
    """The power with which a direction's updates follow its gradients: 1 for SGD, 0 for Adam, Lion, RMSprop.

    As it is `described`; of other directions measured. ``None`` if it is neither.
    """
    if isinstance(inner, Direction):
        return inner.degree
    return Probe(inner, _SAMPLE, ["w"]).degree()


def geometry_of(inner: optax.GradientTransformation) -> Geometry | None:
    """The geometry of a direction's updates of matrices: as it is `described`, or as their dependence tells.

    Entrywise ones of which only that is known count as `Geometry.SIGN`, whose factors are those of `Geometry.LINEAR`.

    Raises:
      InputError: the updates mix entries, or follow the parameters, in a way that the rule does not cover.
    """
    if isinstance(inner, Direction):
        return inner.geometry
    return _read_geometries(inner, _SAMPLE).geometries["w"]


def require_direction(inner: optax.GradientTransformation, rule: Parametrization) -> None:
    """Raises `InputError` unless ``rule`` allows ``inner``, as far as it is `described`, or its state tells."""
    _require_allowed(inner, rule)
    if not isinstance(inner, Direction):
        require_covered(state_of(inner, _SAMPLE))


def _require_allowed(inner: optax.GradientTransformation, rule: Parametrization) -> None:
    if not isinstance(rule, Parametrization):
        raise InputError(f"rule is {rule!r}: use depthmup_flax.get_parametrization(name).")
    if not hasattr(inner, "update"):
        raise InputError(f"inner is {inner!r}: use an optax transformation, such as optax.scale_by_adam().")
    if isinstance(inner, Direction):
        _require_degree(inner.degree, rule)


def _require_degree(degree: int | None, rule: Parametrization) -> None:
    if rule.normalized_updates_only and degree == 1:
        alpha, gamma = rule.alpha, rule.gamma
        raise InputError(
            f"the parametrization with alpha={alpha:g}, gamma={gamma:g} (preset 'block_only') is for Adam-like "
            f"optimizers: SGD's learning rate would grow as r^{alpha - gamma:g} with the depth ratio r. Use "
            "parametrization.preset='depth_mup', which scales only the block with SGD, or an Adam-like optimizer."
        )


def check_direction(
    inner: optax.GradientTransformation, info: InfoTree, rule: Parametrization, geometry: str | ArrayTree | None
) -> tuple[optax.GradientTransformation, Mapping[str, Geometry]]:
    """``inner``, and path -> geometry of its updates: as described, as given, or as their dependence tells.

    The ``init`` of the result measures on small arrays what a trace does not tell. With a ``geometry`` that is whether
    updates step downhill; what else they depend on is the user's word.

    Raises:
      InputError: the rule does not cover ``inner``, or the geometry does not fit ``inner`` or a parameter.
    """
    _require_allowed(inner, rule)
    shapes = _shapes(info)
    if isinstance(inner, Direction):
        dependence: Mapping[str, Dependence] = {}
        kinds: Mapping[str, Geometry] = named_geometries(info, inner.geometry if geometry is None else geometry)
        if geometry is not None and inner.geometry not in (None, *kinds.values()):
            raise InputError(f"geometry is {shown(geometry)}, but inner is '{inner.geometry}': leave geometry out.")
    else:
        require_covered(state_of(inner, shapes))
        if geometry is not None:
            dependence, kinds = {}, named_geometries(info, geometry)
            _require_mixing(inner, shapes, kinds)
        else:
            dependence, kinds = _read_geometries(inner, shapes)
    for path, leaf in flatten_info(info).items():
        _require_fit(path, leaf, kinds[path])

    def init(params: ArrayTree) -> ArrayTree:
        require_norms(info, params, kinds)
        if not isinstance(inner, Direction):
            probe = Probe(inner, *_one_of_equal_layers(info, params, dependence, kinds))
            with contextlib.suppress(NotJudged):
                _require_measured(probe, rule, dependence, kinds, is_given=geometry is not None)
        return inner.init(params)

    return optax.GradientTransformationExtraArgs(init, optax.with_extra_args_support(inner).update), kinds


def _shapes(info: InfoTree) -> ArrayTree:
    """The parameters' shapes."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.float32), info, is_leaf=is_info)


def _one_of_equal_layers(
    info: InfoTree, params: ArrayTree, dependence: Mapping[str, Dependence], kinds: Mapping[str, Geometry]
) -> tuple[ArrayTree, list[str]]:
    """The parameters with all but the first of equal layers masked, if they are updated alike; and the others' paths.

    Measuring all of them would take a second for every thirty arrays.
    """
    seen = set[tuple[Any, ...]]()
    paths: list[str] = []

    def kept(path: str, leaf: ParamInfo, array: Any) -> Any:
        kind = template(path), leaf.shape, leaf.role_name, array.dtype, dependence.get(path), kinds[path]
        if kind in seen:
            return optax.MaskedNode()
        seen.add(kind)
        paths.append(path)
        return array

    return map_info(kept, info, params), paths


# --- of a finished optimizer


def matrix_updates(optimizer: optax.GradientTransformation, info: InfoTree) -> set[str]:
    """Paths of the parameters whose updates by a finished optimizer are not entrywise, as far as can be told.

    Its state tells of optimizers of this package and of optax's Muon, however they are wrapped, and its updates whether
    they follow the norms of parameters. Other people's matrix products, unless they go through `depthmup`, count as
    entrywise, and so do the updates of what needs more than gradients.
    """
    state = jax.eval_shape(optimizer.init, _shapes(info))
    paths = orthogonalized(state)
    for part in named_tuples(state):
        if isinstance(part, ScaledUpdates):
            marked = jax.tree_util.tree_flatten_with_path(part.not_entrywise, is_leaf=is_mark)[0]
            paths |= {path_name(path) for path, mark in marked if isinstance(mark, NotEntrywise)}
    try:
        dependence = read_dependence(optimizer, _shapes(info))
    except InputError as error:
        log.info("the state alone tells which updates are entrywise: %s", error)
        return paths
    return paths | {path for path, one in dependence.items() if one.on_their_norms}


# --- by its updates


class _Reading(NamedTuple):
    dependence: Mapping[str, Dependence]  # of the parameters whose updates are to be measured
    geometries: Mapping[str, Geometry]


def _read_geometries(inner: optax.GradientTransformation, shapes: ArrayTree) -> _Reading:
    """Path -> geometry of updates, from what they depend on; `direction_probe` measures whether it is right.

    Raises:
      InputError: entries are mixed in a way that has no geometry of its own.
    """
    state = state_of(inner, shapes)
    leaves = {path_name(path): leaf for path, leaf in jax.tree_util.tree_flatten_with_path(shapes)[0]}
    if is_vouched_for(state):
        return _Reading({}, dict.fromkeys(leaves, Geometry.SIGN))
    matrices = orthogonalized(state)
    for path in matrices & leaves.keys():
        _require_matrix(path, leaves[path].shape)
    dependence = dict(read_dependence(inner, shapes))
    geometries: dict[str, Geometry] = {}
    for path, (entries, on_parameters, _) in list(dependence.items()):
        if path in matrices and entries is Entries.MIXED and not on_parameters:
            geometries[path] = Geometry.ORTHOGONAL
            del dependence[path]
        elif entries is Entries.MIXED:
            raise InputError(_of_other_entries(path))
        else:
            geometries[path] = Geometry.NORM_MATCHED if on_parameters else Geometry.SIGN
    return _Reading(dependence, geometries)


def _require_mixing(inner: optax.GradientTransformation, shapes: ArrayTree, kinds: Mapping[str, Geometry]) -> None:
    """Raises `InputError` where updates that are entry by entry are given another geometry."""
    try:
        dependence = read_dependence(inner, shapes)
    except InputError as error:
        log.warning("geometry is taken as given: %s", error)
        return
    for path, kind in kinds.items():
        if kind not in ENTRYWISE_GEOMETRIES and dependence.get(path) == Dependence(Entries.OWN, on_parameters=False):
            raise InputError(
                f"geometry of {path!r} is '{kind}', but inner updates each entry by its own gradients, which is "
                "'sign': leave geometry out."
            )


def _require_measured(
    probe: Probe,
    rule: Parametrization,
    dependence: Mapping[str, Dependence],
    kinds: Mapping[str, Geometry],
    *,
    is_given: bool,
) -> None:
    """Raises `InputError` if updates on small arrays are not those that the rule is for."""
    try:
        path = probe.downhill()
    except InputError as error:
        if not is_given:
            raise
        log.warning("whether inner is a finished optimizer is not judged: %s", error)
        return
    if path is not None:
        raise InputError(
            f"inner is a finished optimizer: its updates of {path!r} point downhill, as those with a learning rate of "
            "their own. Pass the direction alone, such as optax.scale_by_adam() for optax.adam(...), optax.identity() "
            "for optax.sgd(...), or depthmup_flax.muon for Muon; give weight_decay to depthmup."
        )
    if rule.normalized_updates_only:
        _require_degree(probe.degree(), rule)
    if is_given:
        return
    orthogonal = {path for path, kind in kinds.items() if kind is Geometry.ORTHOGONAL}
    if (path := probe.not_orthogonal(orthogonal)) is not None:
        raise InputError(
            f"inner has a MuonState, but its updates of {path!r} are not orthogonal: pass geometry= for what they fix, "
            "such as 'sign' for a normalization of entries behind Muon."
        )
    if not dependence:
        return
    if (path := probe.of_other_entries(dependence)) is not None:
        raise InputError(_of_other_entries(path))
    if (path := probe.by_their_shape(dependence)) is not None:
        raise InputError(
            f"inner multiplies updates of {path!r} by a function of their shape, where the rule has factors of its "
            "own. Use depthmup_flax.muon for Muon, or a direction without them."
        )
    if (found := probe.not_of_the_parameters_norm(dependence)) is not None:
        path, degree = found
        raise InputError(_of_parameters(path, degree))


def _of_other_entries(path: str) -> str:
    return (
        f"inner updates an entry of {path!r} by the gradients of other entries (a norm, a largest value, a matrix "
        "product), which grows with the network, but the rule is for entrywise directions. Clip with clip_rms; put "
        "what looks at all gradients around the finished optimizer; pass depthmup_flax.entrywise(inner) if it does not "
        "matter, geometry='two_sided' if updates have singular values of order one (Shampoo), or geometry='rotated' "
        "for SOAP."
    )


def _of_parameters(path: str, degree: int) -> str:
    if degree == 1:
        return (
            f"inner multiplies updates of {path!r} by the size of the parameters, and they follow the gradients' size, "
            "too: normalize before, as with optax.scale_by_factored_rms()."
        )
    return (
        f"inner updates {path!r} by the values of the parameters (weight decay, a clipping by their norm), but the "
        "rule is for functions of the gradients alone. Decay with weight_decay, clip with clip_rms; for updates with "
        "the weights' norm pass geometry='norm_matched'."
    )


# --- whether it fits the parameters


def _require_fit(path: str, leaf: ParamInfo, geometry: Geometry) -> None:
    if geometry is Geometry.ORTHOGONAL:
        is_vector = leaf.role is Role.VECTOR
        _require_matrix(path, leaf.shape[-1:] if is_vector else leaf.shape)


def _require_matrix(path: str, shape: tuple[int, ...]) -> None:
    if len(shape) < 2:
        raise InputError(f"parameter {path!r} of shape {shape} is no matrix: use dm.muon.")


def require_norms(info: InfoTree, params: ArrayTree, kinds: Mapping[str, Geometry]) -> None:
    """Raises `InputError` for a hidden matrix, or one of a stack, that starts at zero where updates follow its norm.

    ``params`` are without the factors that they carry. Values that are being traced are not judged.
    """

    def require(path: str, leaf: ParamInfo, array: Any) -> None:
        if kinds[path] is not Geometry.NORM_MATCHED or leaf.role is not Role.HIDDEN:
            return
        if has_no_value(array) or not hasattr(array, "dtype"):
            return
        if not jnp.all(norms(leaf, array)):
            raise InputError(
                f"parameter {path!r} starts at zero, so that updates have no norm to follow: start it at random "
                "(qk_norm=True in our GPT and ViT), or give it another optimizer by optax.partition."
            )

    map_info(require, info, params)


def norms(leaf: ParamInfo, array: jax.Array) -> jax.Array:
    """The Frobenius norm of each matrix of a stack, float32, with axes of length 1; of all if no matrix is known."""
    axes = leaf.in_axes + leaf.out_axes if leaf.is_matrix else None
    return jnp.sqrt(jnp.square(jnp.abs(array).astype(jnp.float32)).sum(axes, keepdims=True))
