"""Which `Geometry` the updates of a direction have, and whether it fits the parameters."""

from __future__ import annotations

from collections.abc import Mapping

import optax

from depthmup_flax.rule.guards.traits import TRAITS, Traits, parts_of, written
from depthmup_flax.rule.info_trees import flatten_info, named_geometries
from depthmup_flax.rule.parametrization import Geometry, ParamInfo, Role
from depthmup_flax.util.errors import InputError
from depthmup_flax.util.types import ArrayTree, InfoTree

# They apply what they wrap to some parameters only.
_ALTERNATIVES = ("partition", "masked", "conditionally_mask")


def geometry_of(inner: optax.GradientTransformation) -> Geometry | None:
    """The geometry of a direction's updates, by `TRAITS`; ``None`` if it differs between parameters.

    Parts that are not listed count as entrywise (`depthmup_flax.rule.guards.traits.checked_at_init` reads them).
    """
    geometry, parts = Geometry.LINEAR, list(parts_of(inner.update))
    for part in parts:
        traits = TRAITS.get(part.name, Traits())
        if traits.geometry is not None and traits.degree and geometry is Geometry.LINEAR:
            raise InputError(
                f"inner has {written(part.name)} without a normalization before it, which the rule does not cover: put "
                "it after optax.scale_by_factored_rms()."
            )
        if traits.geometry is not None and any(other.name in _ALTERNATIVES for other in parts):
            return None
        if traits.geometry is not None or traits.degree == 0:
            geometry = traits.geometry or Geometry.SIGN
    return geometry


def geometries(
    inner: optax.GradientTransformation, info: InfoTree, geometry: str | ArrayTree | None = None
) -> Mapping[str, Geometry]:
    """Path -> geometry of the updates of ``inner``: as `TRAITS` say or, of other people's, as ``geometry`` says.

    ``geometry``: one for all parameters, or a tree with the structure of ``info``. `InputError` if there is no such
    geometry, or it does not fit ``inner`` or a parameter.
    """
    known = geometry_of(inner)
    if geometry is None and known is None:
        raise InputError(
            "inner treats parameters differently, some with updates that are not entrywise: pass geometry=, a tree of "
            "one of 'linear', 'sign', 'orthogonal', 'two_sided', 'rotated' and 'norm_matched' for each parameter. For "
            "Muon, use depthmup_flax.muon."
        )
    named = named_geometries(info, geometry if geometry is not None else known)
    foreign = any(part.name not in TRAITS for part in parts_of(inner.update))
    for path, leaf in flatten_info(info).items():
        name = named[path]
        if known is not None and not foreign and known is not name:
            what = f"but the updates of inner are {str(known)!r}"
            raise InputError(f"geometry is {str(name)!r}, {what}: leave geometry out.")
        _require_fit(path, leaf, name)
    return named


def matrix_updates(optimizer: optax.GradientTransformation, info: InfoTree) -> set[str]:
    """Paths of the parameters whose updates by a finished optimizer are not entrywise, as far as its parts tell."""
    parts = list(parts_of(optimizer.update))
    for part in parts:
        if isinstance(kinds := part.closure.get("geometries"), dict):  # of depthmup
            return {path for path, kind in kinds.items() if kind not in (Geometry.LINEAR, Geometry.SIGN)}
    known = any(TRAITS[part.name].geometry is not None for part in parts if part.name in TRAITS)
    return set(flatten_info(info)) if known else set()


def _require_fit(path: str, leaf: ParamInfo, geometry: Geometry) -> None:
    if geometry is Geometry.ORTHOGONAL and (leaf.role is Role.VECTOR or len(leaf.shape) < 2):
        raise InputError(
            f"parameter {path!r} of shape {leaf.shape} is not a matrix, so its update cannot be orthogonal: use "
            "depthmup_flax.muon, which leaves it to Adam, or a tree of geometries."
        )
    if geometry is Geometry.NORM_MATCHED and leaf.role is Role.HIDDEN and leaf.init_std == 0:
        raise InputError(
            f"parameter {path!r} starts at zero, which has no norm to match: start it at random (qk_norm=True in our "
            "GPT and ViT), or use optax.masked(optax.scale_by_trust_ratio(), mask) with 'sign' for it in a tree of "
            "geometries."
        )
