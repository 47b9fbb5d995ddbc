"""Layers of networks of different depths under one name, and which of them are inside residual branches."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from depthmup_flax.coord_check.recorded_sizes import BRANCH_VECTORS, BRANCHES, OTHER_VECTORS
from depthmup_flax.rule.parametrization import ParamInfo, Role

Collapse = Callable[[str], str]  # path -> path with layer indices as ``*``
_Place = tuple[str, str, str]  # (collapsed parent, name with digits as ``*``, kind of module)

_WEIGHT_NAMES = ("kernel", "embedding", "weight", "w")


@dataclasses.dataclass(frozen=True)
class Layers:
    """The layers of all networks of a check, by collapsed name."""

    weights: Mapping[str, ParamInfo]  # without vectors and fixed parameters
    group_of_weight: Mapping[str, str]  # the group in which the weight trains alone
    branch_groups: frozenset[str]
    branch_activations: frozenset[str]


def collect_layers(
    infos: Sequence[Mapping[str, ParamInfo]], activations: Sequence[Iterable[str]], collapses: Sequence[Collapse]
) -> Layers:
    """`Layers` from the parameters, the names of the activations and the `collapsers` of each network."""
    weights: dict[str, ParamInfo] = {}
    branch_activations: set[str] = set()
    for info, names, collapse in zip(infos, activations, collapses, strict=True):
        weights |= {collapse(path): leaf for path, leaf in info.items() if not _is_vector(leaf)}
        kinds = _kinds(info)
        for name in names:
            module = name  # innermost, with parameters
            while module and module not in kinds:
                module = module.rpartition("/")[0]
            if kinds.get(module) == "branch":
                branch_activations.add(collapse(name))
    groups = {path: _group_of(path) for path in weights}
    inside = {groups[path] for path, leaf in weights.items() if leaf.in_branch} | {BRANCHES, BRANCH_VECTORS}
    return Layers(weights, groups, frozenset(inside), frozenset(branch_activations))


def groups_of_parameter(path: str, leaf: ParamInfo, collapse: Collapse) -> list[str]:
    """The groups other than `EVERYTHING` in which a parameter trains."""
    own = _group_of(collapse(path))
    if _is_vector(leaf):
        own = BRANCH_VECTORS if leaf.in_branch else OTHER_VECTORS
    return [own, BRANCHES] if leaf.in_branch else [own]


def collapsers(names_of_networks: Sequence[Sequence[str]], infos: Sequence[Mapping[str, ParamInfo]]) -> list[Collapse]:
    """For each network, a function of a path that replaces indices that count layers by ``*``.

    An index counts layers if its values differ between the networks: ``block_7`` of a deep network becomes
    ``block_*``, while ``Dense_0`` and ``Dense_1`` of every block stay apart. Different kinds of modules are not
    counted together: ``Dense_0`` (a stem), ``Dense_1`` to ``Dense_8`` (blocks) and ``Dense_9`` (the readout) become
    ``Dense_0``, ``Dense_*`` and ``Dense_* (output)``.

    Args:
      names_of_networks: paths of parameters and activations of each network.
      infos: path -> `ParamInfo` of each network.
    """
    kinds = [_kinds(info) for info in infos]
    counting: set[_Place] = set()

    def collapsed(i: int, name: str, seen: dict[_Place, list[set[str]]] | None = None) -> str:
        """``name`` with the indices in ``counting`` as ``*``; adds its parts, as they are, to ``seen``."""
        done, path = "", ""
        for part in name.split("/"):
            path = f"{path}/{part}"
            place = (done, re.sub(r"\d+", "*", part), kinds[i].get(path[1:], ""))
            if seen is not None:
                seen.setdefault(place, [set() for _ in kinds])[i].add(part)
            label = f" ({place[2]})" if place[2] and "branch" not in place[2] else ""
            done = f"{done}/{place[1] + label if place in counting else part}"
        return done[1:]

    while True:  # a level is decided once those above it are
        seen: dict[_Place, list[set[str]]] = {}
        for i, names in enumerate(names_of_networks):
            for name in names:
                collapsed(i, name, seen)
        # A place that some networks lack, such as a fourth stage, counts nothing.
        differing = {place for place, sets in seen.items() if len({frozenset(s) for s in sets if s}) > 1}
        if differing <= counting:
            return [functools.partial(collapsed, i) for i in range(len(kinds))]
        counting |= differing


def _is_vector(leaf: ParamInfo) -> bool:
    return leaf.role in (Role.VECTOR, Role.FIXED)


def _group_of(path: str) -> str:
    """The group of a weight of this collapsed path: its module."""
    parent, _, last = path.rpartition("/")
    return parent if parent and last in _WEIGHT_NAMES else path


def _kinds(info: Mapping[str, ParamInfo]) -> dict[str, str]:
    """Path of a module or parameter -> ``branch``, or the roles of its weights."""
    leaves_below: dict[str, set[ParamInfo]] = {}
    for path, leaf in info.items():
        for module in itertools.accumulate(path.split("/"), "{}/{}".format):
            leaves_below.setdefault(module, set()).add(leaf)
    kinds = {}
    for path, leaves in leaves_below.items():
        weights = [leaf for leaf in leaves if not _is_vector(leaf)]
        roles = ", ".join(sorted({leaf.role.value for leaf in weights or leaves}))
        kinds[path] = "branch" if any(leaf.in_branch for leaf in leaves) else roles
    return kinds
