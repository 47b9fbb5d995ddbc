"""One name for the same layer of networks of different depths, and what is known of each layer."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

from depthmup_flax.check.networks import Traced
from depthmup_flax.check.records import BRANCH_VECTORS, BRANCHES, OTHER_VECTORS, OUTPUT, Size
from depthmup_flax.rule.direction_traits import matrix_updates
from depthmup_flax.rule.info_trees import flatten_info
from depthmup_flax.rule.parametrization import ParamInfo, Role

Collapse = Callable[[str], str]  # path -> path with layer indices as `*`
_Place = tuple[str, str, str]  # (collapsed parent, name with digits as `*`, kind of module)

_QUERIES_AND_KEYS = ("query", "key", "q", "k", "q_proj", "k_proj")  # names of modules
_WEIGHT_NAMES = ("kernel", "embedding", "weight", "w")


@dataclasses.dataclass(frozen=True)
class SizedNetwork:
    """One network of a check."""

    size: Size
    traced: Traced
    collapse: Collapse = str  # path -> the name that it shares with the same layer of the other networks

    @functools.cached_property
    def info(self) -> Mapping[str, ParamInfo]:
        """Path -> `ParamInfo`."""
        return flatten_info(self.traced.network.info)


def named_alike(networks: Sequence[SizedNetwork]) -> list[SizedNetwork]:
    """The networks with names that their layers share; see `collapsers`."""
    collapses = collapsers([[*one.info, *one.traced.shapes] for one in networks], [one.info for one in networks])
    return [dataclasses.replace(one, collapse=own) for one, own in zip(networks, collapses, strict=True)]


@dataclasses.dataclass(frozen=True)
class Layers:
    """The layers of all networks of a check, by collapsed name."""

    weights: Mapping[str, ParamInfo]
    vectors: Mapping[str, ParamInfo]  # and fixed parameters
    group_of_weight: Mapping[str, str]  # the group in which the weight trains alone
    branch_groups: frozenset[str]
    branch_activations: frozenset[str]
    readout_activations: frozenset[str]  # products of readouts, before a multiplier that follows them
    score_groups: frozenset[str]  # queries and keys, by their names: the outputs see only their products
    once_groups: frozenset[str]  # as many weights in a deep network as in a shallow one
    # Weights with updates that are not entrywise: the exponent of their entries depends on the gradients' rank.
    matrix_updates: frozenset[str]

    @property
    def on_stream(self) -> list[str]:
        """Vectors outside branches that every layer has, as norms after the sum do."""
        return [path for path, leaf in self.vectors.items() if not leaf.in_branch and "*" in path]

    def leaf(self, path: str) -> ParamInfo:
        """A weight or a vector."""
        return self.vectors.get(path) or self.weights[path]

    def group(self, path: str) -> str:
        """The group in which a weight trains alone, or a vector with other vectors."""
        return _group_of_vector(self.vectors[path]) if path in self.vectors else self.group_of_weight[path]

    def weights_of(self, group: str) -> dict[str, ParamInfo]:
        """The weights that train in a group of their own."""
        return {path: leaf for path, leaf in self.weights.items() if self.group_of_weight[path] == group}


def collect_layers(networks: Sequence[SizedNetwork]) -> Layers:
    """The layers of networks."""
    weights: dict[str, ParamInfo] = {}
    vectors: dict[str, ParamInfo] = {}
    branch_activations, readout_activations = set[str](), set[str]()
    for one in networks:
        weights |= {one.collapse(path): leaf for path, leaf in one.info.items() if not _is_vector(leaf)}
        vectors |= {one.collapse(path): leaf for path, leaf in one.info.items() if _is_vector(leaf)}
        kinds = _kinds(one.info)
        for name in one.traced.shapes:
            module = name  # the innermost one with parameters
            while module and module not in kinds:
                module = module.rpartition("/")[0]
            if kinds.get(module) == "branch":
                branch_activations.add(one.collapse(name))
            elif kinds.get(module) == Role.OUTPUT.value:
                readout_activations.add(one.collapse(name))
    if len({one.size.width for one in networks}) > 1:  # what has the outputs' shape at all widths, as of a tied table
        readout_activations |= set.intersection(*map(_of_outputs, networks)) - branch_activations
    # What does not grow shows in a wide network: one of the base model's width has roles by place.
    widest = max(networks, key=lambda one: (one.size.axis == "width", one.size.size))
    in_widest = {widest.collapse(path): _is_vector(leaf) for path, leaf in widest.info.items()}
    weights = {path: leaf for path, leaf in weights.items() if not in_widest.get(path, False)}
    vectors = {path: leaf for path, leaf in vectors.items() if in_widest.get(path, True)}
    groups = {path: _group_of(path) for path in weights}
    inside = {groups[path] for path, leaf in weights.items() if leaf.in_branch} | {BRANCHES, BRANCH_VECTORS}
    # Over depth: the numbers in a weight's arrays.
    entries: dict[str, dict[int, int]] = {path: {} for path in weights}
    for one in networks:
        size = Counter[str]()
        for path, leaf in one.info.items():
            size[one.collapse(path)] += math.prod(leaf.shape)
        for path in weights if one.size.axis == "depth" else ():
            entries[path][one.size.size] = size[path]
    grows = lambda numbers: max(numbers.values(), default=0) > min(numbers.values(), default=0)
    # Groups of every layer.
    repeated = {groups[p] for p in weights if grows(entries[p])} or inside  # or shared by all layers
    first = networks[0].traced.network
    return Layers(
        weights,
        vectors,
        groups,
        branch_groups=frozenset(inside),
        branch_activations=frozenset(branch_activations),
        readout_activations=frozenset(readout_activations),
        score_groups=frozenset(group for group in inside if group.rpartition("/")[2] in _QUERIES_AND_KEYS),
        once_groups=frozenset(inside - repeated - {BRANCHES, BRANCH_VECTORS}),
        matrix_updates=frozenset(map(networks[0].collapse, matrix_updates(first.optimizer, first.info))),
    )


def _of_outputs(network: SizedNetwork) -> set[str]:
    """The activations with the shape of the outputs."""
    shapes = network.traced.shapes
    same = (name for name, x in shapes.items() if name != OUTPUT and x.shape == shapes[OUTPUT].shape)
    return {network.collapse(name) for name in same}


def groups_of_parameter(path: str, leaf: ParamInfo, collapse: Collapse) -> list[str]:
    """The groups other than `EVERYTHING` in which a parameter trains."""
    own = _group_of_vector(leaf) if _is_vector(leaf) else _group_of(collapse(path))
    return [own, BRANCHES] if leaf.in_branch else [own]


def collapsers(names_of_networks: Sequence[Sequence[str]], infos: Sequence[Mapping[str, ParamInfo]]) -> list[Collapse]:
    """For each network, a function of a path that replaces indices that count layers by ``*``.

    An index counts layers if its values differ between the networks: ``block_7`` of a deep network becomes
    ``block_*``, while ``Dense_0`` and ``Dense_1`` of every block stay apart. It also counts layers if at least three
    modules, with at least two weights each, have equal parameters. Different kinds of modules are counted separately:
    ``Dense_0`` (a stem), ``Dense_1`` to ``Dense_8`` (blocks) and ``Dense_9`` (the readout) become ``Dense_0``,
    ``Dense_*`` and ``Dense_* (output)``.

    Args:
      names_of_networks: paths of parameters and activations of each network.
      infos: path -> `ParamInfo` of each network.
    """
    kinds = [_kinds(info) for info in infos]
    counting: set[_Place] = set()

    def collapsed(i: int, name: str, seen: dict[_Place, list[dict[str, str]]] | None = None) -> str:
        """``name`` with the indices in ``counting`` as ``*``; adds its original parts to ``seen``."""
        done, path = "", ""
        for part in name.split("/"):
            path = f"{path}/{part}"
            place = (done, re.sub(r"\d+", "*", part), kinds[i].get(path[1:], ""))
            if seen is not None:
                seen.setdefault(place, [{} for _ in kinds])[i].setdefault(part, path[1:])
            label = f" ({place[2]})" if place[2] and "branch" not in place[2] else ""
            done = f"{done}/{place[1] + label if place in counting else part}"
        return done[1:]

    while True:  # a level is decided after those above it
        seen: dict[_Place, list[dict[str, str]]] = {}  # for every network: part -> its first path
        for i, names in enumerate(names_of_networks):
            for name in names:
                collapsed(i, name, seen)
        # A place that some networks lack, such as a fourth stage, counts nothing.
        differing = {place for place, parts in seen.items() if len({frozenset(p) for p in parts if p}) > 1}
        differing |= {
            place
            for place, parts in seen.items()
            if all(_equal_layers(info, p.values()) for info, p in zip(infos, parts, strict=True) if p)
        }
        if differing <= counting:
            return [functools.partial(collapsed, i) for i in range(len(kinds))]
        counting |= differing


def _equal_layers(info: Mapping[str, ParamInfo], paths: Collection[str]) -> bool:
    """Whether these are at least three modules of equal parameters in branches, with at least two weights each."""
    parameters = [
        {path[len(module) :]: leaf for path, leaf in info.items() if path.startswith(f"{module}/")} for module in paths
    ]
    weights = [leaf for leaf in parameters[0].values() if not _is_vector(leaf)] if parameters else []
    equal = all(found == parameters[0] for found in parameters)
    return len(parameters) >= 3 and equal and len(weights) >= 2 and all(leaf.in_branch for leaf in weights)


def _is_vector(leaf: ParamInfo) -> bool:
    return leaf.role in (Role.VECTOR, Role.FIXED)


def _group_of_vector(leaf: ParamInfo) -> str:
    return BRANCH_VECTORS if leaf.in_branch else OTHER_VECTORS


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
