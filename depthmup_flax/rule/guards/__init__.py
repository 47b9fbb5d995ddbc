"""What is known of directions: the rule refuses those it does not cover, and reads the geometry of optax's own."""

from __future__ import annotations

from collections.abc import Mapping

import optax

from depthmup_flax.rule.guards.geometry import geometries
from depthmup_flax.rule.guards.traits import checked_at_init, require_direction
from depthmup_flax.rule.parametrization import Geometry, Parametrization
from depthmup_flax.util.types import ArrayTree, InfoTree


def check_direction(
    inner: optax.GradientTransformation,
    info: InfoTree,
    parametrization: Parametrization,
    geometry: str | ArrayTree | None,
) -> tuple[optax.GradientTransformation, Mapping[str, Geometry]]:
    """``inner``, whose ``init`` reads updates that `TRAITS` does not list, and path -> geometry of its updates.

    Raises:
      InputError: the rule does not cover ``inner``, or the geometry does not fit ``inner`` or a parameter.
    """
    require_direction(inner, parametrization)
    kinds = geometries(inner, info, geometry)
    return (checked_at_init(inner) if geometry is None else inner), kinds
