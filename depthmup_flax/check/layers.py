"""One name for the same layer of networks of different depths, and what is known of each layer."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from collections.abc import Callable, Collection, Mapping, Sequence

from depthmup_flax.check.networks import Traced
from depthmup_flax.check.records import OUTPUT, Size
from depthmup_flax.rule.direction_traits import matrix_updates
from depthmup_flax.rule.info_trees import flatten_info
from depthmup_flax.rule.parametrization import ParamInfo, Role

Collapse = Callable[[str], str]  # path -> path with layer indices as `*`
_Place = tuple[str, str, str]  # (collapsed parent, name with digits as `*`, kind of module)

_QUERIES_AND_KEYS = frozenset({"query", "key", "q", "k", "q_proj", "k_proj"})  # names of modules


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

    def paths_of(self, names: Collection[str]) -> frozenset[str]:
        """The paths of parameters with these collapsed names."""
        return frozenset(path for path in self.info if self.collapse(path) in names)


def named_alike(networks: Sequence[SizedNetwork]) -> list[SizedNetwork]:
    """The networks with names that their layers share; see `collapsers`."""
    collapses = collapsers([[*one.info, *one.traced.shapes] for one in networks], [one.info for one in networks])
    return [dataclasses.replace(one, collapse=own) for one, own in zip(networks, collapses, strict=True)]


@dataclasses.dataclass(frozen=True)
class Layers:
    """The layers of all networks of a check, by collapsed name."""

    weights: Mapping[str, ParamInfo]
    vectors: Mapping[str, ParamInfo]  # and fixed parameters
    readout_activations: frozenset[str]  # products of readouts, before a multiplier that follows them
    # Weights with updates that are not entrywise: the exponent of their entries depends on the gradients' rank.
    matrix_updates: frozenset[str]

    @property
    def leaves(self) -> dict[str, ParamInfo]:
        """Weights and vectors."""
        return {**self.weights, **self.vectors}

    @property
    def on_stream(self) -> frozenset[str]:
        """Vectors outside branches that every layer has, as norms after the sum do."""
        return frozenset(path for path, leaf in self.vectors.items() if not leaf.in_branch and "*" in path)

    @property
    def to_few_features(self) -> frozenset[str]:
        """Weights that map the width to a few features."""
        return frozenset(path for path, leaf in self.weights.items() if leaf.to_few_features)

    def is_gate(self, path: str) -> bool:
        """Whether a weight makes queries or keys, by its name, or gates or a bottleneck.

        Over width its gradient falls as n^-1/2 in right networks: it is a product of two independent vectors of length
        n, a query and a key, or the slope of the loss and the input of a gate or of an adapter of fixed rank.
        """
        leaf = self.weights[path]
        names_of_modules = path.split("/")[-2:]
        gates = leaf.in_branch and (leaf.role is Role.OUTPUT or not _QUERIES_AND_KEYS.isdisjoint(names_of_modules))
        return gates or leaf.to_few_features


def collect_layers(networks: Sequence[SizedNetwork]) -> Layers:
    """The layers of networks."""
    weights: dict[str, ParamInfo] = {}
    vectors: dict[str, ParamInfo] = {}
    inside, readouts = set[str](), set[str]()
    for one in networks:
        weights |= {one.collapse(path): leaf for path, leaf in one.info.items() if not _is_vector(leaf)}
        vectors |= {one.collapse(path): leaf for path, leaf in one.info.items() if _is_vector(leaf)}
        kinds = _kinds(one.info)
        for name in one.traced.shapes:
            module = name  # the innermost one with parameters
            while module and module not in kinds:
                module = module.rpartition("/")[0]
            if kinds.get(module) == "branch":
                inside.add(one.collapse(name))
            elif kinds.get(module) == Role.OUTPUT.value:
                readouts.add(one.collapse(name))
    if len({one.size.width for one in networks}) > 1:  # what has the outputs' shape at all widths, as of a tied table
        readouts |= set.intersection(*map(_of_outputs, networks)) - inside
    # What does not grow shows in a wide network: one of the base model's width has roles by place.
    widest = max(networks, key=lambda one: (one.size.axis == "width", one.size.size))
    in_widest = {widest.collapse(path): _is_vector(leaf) for path, leaf in widest.info.items()}
    weights = {path: leaf for path, leaf in weights.items() if not in_widest.get(path, False)}
    vectors = {path: leaf for path, leaf in vectors.items() if in_widest.get(path, True)}
    first = networks[0].traced.network
    updates = map(networks[0].collapse, matrix_updates(first.optimizer, first.info))
    return Layers(weights, vectors, frozenset(readouts), frozenset(updates))


def _of_outputs(network: SizedNetwork) -> set[str]:
    """The activations with the shape of the outputs."""
    shapes = network.traced.shapes
    same = (name for name, x in shapes.items() if name != OUTPUT and x.shape == shapes[OUTPUT].shape)
    return {network.collapse(name) for name in same}


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
