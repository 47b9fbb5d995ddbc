"""What the state of a transformation tells: the named tuples of optax and of this package, wherever they stand.

Optax's wrappers keep the states of what they wrap, so the tree of a state, which ``init`` returns, has the parts of
``chain``, ``partition``, ``MultiSteps`` and all others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import optax

from depthmup_flax.rule.info_trees import map_info, path_name
from depthmup_flax.rule.parametrization import Geometry, ParamInfo
from depthmup_flax.rule.update_dependence import first_line
from depthmup_flax.util.errors import InputError
from depthmup_flax.util.types import ArrayTree, InfoTree

# --- what the rule does not cover, by the named tuple that optax keeps as a transformation's state

_FINISHED_STEPS = (
    "it works with steps as they are added to the parameters. Put it around the finished optimizer, or after it: "
    "optax.MultiSteps(depthmup(...), 4), optax.chain(depthmup(...), optax.contrib.reduce_on_plateau())."
)
_LEARNS_ITS_RATE = (
    "it chooses one learning rate from norms over all parameters, which grow with the network. Use "
    "optax.scale_by_adam() and tune learning_rate."
)
_INITIAL_VALUES = (
    "it compares parameters with their initial values, which the rule scales differently from updates. Use "
    "optax.scale_by_adam(), or optax.scale_by_rss() for AdaGrad."
)
_CURVATURE = "second derivatives grow with the network by other powers than gradients. Use optax.scale_by_adam()."
_NOISE = "its noise averages out as the network grows, so its strength does not transfer. Leave it out."
_GROWING = (
    "it divides by norms or largest values of a gradient, which grow with the parameter. Use optax.scale_by_adam() or "
    "optax.scale_by_factored_rms(), whose statistics are averages."
)
_FEW_DIRECTIONS = (
    "its updates have a rank that does not grow with the network, so no power of the width is right. Use "
    "depthmup_flax.muon or an entrywise direction, such as optax.scale_by_adam()."
)
_FOLLOWS_THE_RULE = "it follows the rule already. Pass the direction alone, such as optax.scale_by_adam()."

REFUSED_STATES: Mapping[str, str] = {
    **dict.fromkeys(("MultiStepsState", "ApplyEvery", "ApplyIfFiniteState", "LookaheadState"), _FINISHED_STEPS),
    **dict.fromkeys(("ScheduleFreeState", "SAMState", "ReduceLROnPlateauState"), _FINISHED_STEPS),
    **dict.fromkeys(("ScaleByBacktrackingLinesearchState", "ScaleByZoomLinesearchState"), _FINISHED_STEPS),
    **dict.fromkeys(("ScaleByDistanceOverGradientsState", "DoGState", "DoWGState"), _LEARNS_ITS_RATE),
    **dict.fromkeys(("ProdigyState", "DAdaptAdamWState", "MechanicState", "ScaleByLBFGSState"), _LEARNS_ITS_RATE),
    **dict.fromkeys(("MomoState", "MomoAdamState"), _LEARNS_ITS_RATE),
    **dict.fromkeys(("COCOBState", "MadgradState"), _INITIAL_VALUES),
    **dict.fromkeys(("SophiaState", "HutchinsonState"), _CURVATURE),
    **dict.fromkeys(("AddNoiseState", "DifferentiallyPrivateAggregateState"), _NOISE),
    **dict.fromkeys(("ScaleByNovogradState", "ScaleBySM3State"), _GROWING),
    "GaLoreState": _FEW_DIRECTIONS,
    "ScaledUpdates": _FOLLOWS_THE_RULE,
}
_ORTHOGONALIZING = ("MuonState",)
ENTRYWISE_GEOMETRIES = (Geometry.LINEAR, Geometry.SIGN)


class ScaledUpdates(NamedTuple):
    """The state of this package's update scale: which updates are not entrywise.

    Optax's wrappers keep the states of what they wrap, so that it can be read from that of any finished optimizer.
    """

    not_entrywise: ArrayTree  # `NotEntrywise` in place of those parameters, and optax's `MaskedNode` of others


class NotEntrywise(NamedTuple):
    """In place of a parameter whose updates are not entrywise. It holds no array."""


class VouchedState(NamedTuple):
    """The state of what a user has declared `entrywise`."""

    inner: ArrayTree


def state_of(inner: optax.GradientTransformation, shapes: ArrayTree) -> ArrayTree:
    """The state for parameters of these shapes, without its numbers.

    Raises:
      InputError: ``inner`` is for parameters of another structure, such as a mask of other names.
    """
    try:
        return jax.eval_shape(inner.init, shapes)
    except Exception as error:  # of another library
        raise InputError(
            f"inner has no state for parameters with the structure and shapes of info ({type(error).__name__}: "
            f"{first_line(error)}): masks and labels must have the structure of the parameters."
        ) from error


def named_tuples(state: ArrayTree) -> Iterator[Any]:
    """The named tuples of a state, those that hold others first."""
    if isinstance(state, Mapping):
        children = list(state.values())
    elif isinstance(state, (tuple, list)):
        children = list(state)
    else:
        return
    if hasattr(state, "_fields"):
        yield state
    for child in children:
        yield from named_tuples(child)


def require_covered(state: ArrayTree) -> None:
    """Raises `InputError` for a state of a transformation that the rule does not cover."""
    for part in named_tuples(state):
        name = type(part).__name__
        if name in REFUSED_STATES:
            raise InputError(f"inner has a {name}: {REFUSED_STATES[name]}")


def is_vouched_for(state: ArrayTree) -> bool:
    """Whether a part is declared entrywise by the user."""
    return any(isinstance(part, VouchedState) for part in named_tuples(state))


def orthogonalized(state: ArrayTree) -> set[str]:
    """Paths of the parameters whose momentum optax's Muon keeps."""
    paths = set[str]()
    for part in named_tuples(state):
        if type(part).__name__ in _ORTHOGONALIZING:
            paths |= {path_name(path) for path, _ in jax.tree_util.tree_flatten_with_path(part.mu)[0]}
    return paths


def is_mark(node: Any) -> bool:
    """Whether a node stands for a parameter in `ScaledUpdates`."""
    return isinstance(node, (NotEntrywise, optax.MaskedNode))


def scaled_updates(kinds: Mapping[str, Geometry], info: InfoTree, params: ArrayTree) -> ScaledUpdates:
    """The state that tells `matrix_updates` the geometry of updates."""
    if all(kind in ENTRYWISE_GEOMETRIES for kind in kinds.values()):
        return ScaledUpdates(())

    def mark(path: str, _: ParamInfo, array: Any) -> Any:
        return optax.MaskedNode() if kinds[path] in ENTRYWISE_GEOMETRIES else NotEntrywise()

    return ScaledUpdates(map_info(mark, info, params))
