"""How much deeper a model is than its base model: by counting the branches of each stream."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from depthmup_flax.auditing.relative_factors import all_close, close
from depthmup_flax.trace.branches import Branch
from depthmup_flax.trace.facts import Traced
from depthmup_flax.trace.uses import PRODUCT
from depthmup_flax.util.errors import InputError
from depthmup_flax.util.groups import grouped

Kind: TypeAlias = frozenset[str]  # of branches, see `Branch.kind`


@dataclasses.dataclass(frozen=True)
class DepthRatios:
    """The ratios of a model's depth to its base model's."""

    together: float  # of all streams
    of_branch: Mapping[int, float]  # node of the sum of each branch that counts -> of its stream
    # Node of a sum -> how often the weights of its branch are used, over the base model's.
    uses: Mapping[int, float] = dataclasses.field(default_factory=dict)
    # Path of a parameter in branches -> how often it is used itself, over the base model's.
    repeated: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def of_path(self, path: str, facts: Traced) -> float:
        """The depth ratio of the branches that a parameter is inside; 1 outside."""
        return _largest(self.of_branch, _branches_around(path, facts))

    def uses_of_path(self, path: str, facts: Traced) -> float:
        """``uses`` of the branches that a parameter is inside; 1 outside."""
        return _largest(self.uses, _branches_around(path, facts))


def _branches_around(path: str, facts: Traced) -> frozenset[int]:
    if not facts.inside.get(path):
        return frozenset()
    return facts.branches_of.get(path, frozenset())


def _largest(ratios: Mapping[int, float], nodes: frozenset[int]) -> float:
    return max((ratios[node] for node in nodes if node in ratios), default=1.0)


def depth_ratios(facts: Traced, base: Traced, depth_ratio: float | None) -> DepthRatios:
    """The depth ratios of two models, by their branches or as the user gives it, without ``uses``.

    Streams that grow differently, such as those of an encoder and a decoder, have ratios of their
    own. Branches whose number is fixed count if they stand between others: a block that halves the
    resolution does, an attention pooling head does not.

    Raises:
      InputError: ``depth_ratio`` is no number above 0, or one model alone has branches.
    """
    streams = _counted_streams(facts, base)
    every = [branch for stream in streams for branch in stream]
    if depth_ratio is not None:
        if not 0 < depth_ratio < math.inf:
            text = "use depth / base_depth, a number above 0."
            raise InputError(f"depth_ratio is {depth_ratio!r}: {text}")
        ratio = float(depth_ratio)
        return DepthRatios(ratio, dict.fromkeys((branch.node for branch in every), ratio))
    together = _ratio(every, base.branches)
    if not 0 < together < math.inf:
        raise InputError(
            f"the trace finds {facts.depth:g} residual sums in the model and {base.depth:g} in "
            "the base model: pass depth_ratio=depth / base_depth."
        )
    ratios: dict[int, float] = {}
    for stream in streams:
        ratio = _ratio(stream, base.branches)
        if not 0 < ratio < math.inf:
            ratio = together
        for branch in stream:
            ratios[branch.node] = ratio
    return DepthRatios(together, ratios)


def of_layers(
    ratios: DepthRatios,
    facts: Traced,
    base: Traced,
    pairs: Mapping[str, str],
) -> DepthRatios:
    """The depth ratios of layers, apart from how often each layer is used."""
    if is_absolute(ratios, facts, base):
        return ratios
    repeated = inside_branches(repetitions(ratios, facts, base, pairs), facts)
    uses = uses_of_branches(repeated, facts)
    layers: dict[int, float] = {}
    for node, ratio in ratios.of_branch.items():
        layers[node] = ratio / uses.get(node, 1.0)
    return DepthRatios(ratios.together, layers, uses, repeated)


def inside_branches(ratios: Mapping[str, float], facts: Traced) -> dict[str, float]:
    """Those of the parameters in branches."""
    return {path: ratio for path, ratio in ratios.items() if facts.inside.get(path)}


def uses_of_branches(repeated: Mapping[str, float], facts: Traced) -> dict[int, float]:
    """Node of a sum -> how often its branch is used, over the base model's, where that is not once.

    A branch is used as often as the weights that multiply its products, if these agree. What a
    layer's own weights multiply, such as positions, does not add up. ``repeated`` are the
    `repetitions` of parameters in branches.
    """
    uses: dict[int, float] = {}
    for branch in facts.branches:
        weights = in_products(branch.factors, facts) or branch.factors
        numbers = [repeated.get(path, 1.0) for path in weights]
        if numbers and numbers[0] != 1 and all_close(numbers):
            uses[branch.node] = numbers[0]
    return uses


def is_absolute(ratios: DepthRatios, facts: Traced, base: Traced) -> bool:
    """Whether factors of the model itself are compared, not relative to the base model.

    Models with equally many branches have the same multipliers, whatever depth ratio the user
    gives.
    """
    return facts.depth == base.depth and ratios.together != 1


def repetitions(
    ratios: DepthRatios,
    facts: Traced,
    base: Traced,
    pairs: Mapping[str, str],
) -> dict[str, float]:
    """Path of a parameter that is used more or less often than in the base model -> the ratio."""
    absolute = is_absolute(ratios, facts, base)
    result: dict[str, float] = {}
    for path, times in facts.times.items():
        base_times = base.times.get(pairs[path]) or math.nan
        if absolute and facts.inside.get(path, False):
            base_times = 1.0
        ratio = times / base_times
        if not math.isnan(ratio) and not close(ratio, 1):
            result[path] = ratio
    return result


def in_products(paths: Iterable[str], facts: Traced) -> list[str]:
    """Those of the parameters that are used in products."""
    return [path for path in paths if is_in_product(path, facts)]


def is_in_product(path: str, facts: Traced) -> bool:
    """Whether a parameter multiplies as a matrix."""
    return any(use.kind == PRODUCT for use in facts.uses.get(path, ()))


def _counted_streams(facts: Traced, base: Traced) -> list[list[Branch]]:
    """The branches of each stream that count for the depth; all, of equally deep models."""
    number = _number_of_kinds(facts.branches)
    base_number = _number_of_kinds(base.branches)
    streams = _streams(facts.branches)
    counted = [_counted(stream, number, base_number) for stream in streams]
    return counted if any(counted) else streams


def _number_of_kinds(branches: Sequence[Branch]) -> dict[Kind, float]:
    alike = grouped(branches, lambda branch: branch.kind)
    return {kind: _number(several) for kind, several in alike.items()}


def _number(branches: Sequence[Branch]) -> float:
    """How many branches the forward pass runs through."""
    return sum(branch.times for branch in branches)


def _counted(
    stream: Sequence[Branch],
    number: Mapping[Kind, float],
    base_number: Mapping[Kind, float],
) -> list[Branch]:
    """The branches of a stream that count for its depth; none if their numbers are fixed."""
    growing = []
    for k, branch in enumerate(stream):
        if number[branch.kind] != base_number.get(branch.kind):
            growing.append(k)
    if not growing:
        return []
    kinds = {branch.kind for branch in stream[growing[0] : growing[-1] + 1]}
    return [branch for branch in stream if branch.kind in kinds]


def _streams(branches: Sequence[Branch]) -> list[list[Branch]]:
    """The branches of each stream.

    Streams with branches of one kind, or whose layers take turns, are one.
    """
    groups: list[list[Branch]] = []
    for stream in grouped(branches, lambda branch: branch.stream).values():
        joined = list(stream)
        apart = []
        for group in groups:
            if _are_one(group, stream):
                joined += group
            else:
                apart.append(group)
        groups = [*apart, sorted(joined, key=lambda branch: branch.node)]
    return groups


def _are_one(stream: Sequence[Branch], later: Sequence[Branch]) -> bool:
    """Whether a stream has branches after the first of a later one, or of its kinds."""
    kinds = {branch.kind for branch in stream}
    later_kinds = {branch.kind for branch in later}
    return later[0].node < stream[-1].node or not kinds.isdisjoint(later_kinds)


def _ratio(branches: Sequence[Branch], base: Sequence[Branch]) -> float:
    """The number of layers over the base model's.

    If the numbers of branches differ in more than one layer, it is the ratio of these: the first
    or the last layer may lack a branch, such as the update of edges that no later layer reads.
    """
    kinds = {branch.kind for branch in branches}
    layers = _layers(branches)
    base_layers = _layers([branch for branch in base if branch.kind in kinds])
    more = {number - base_layers.get(key, 0) for key, number in layers.items()}
    grows_alike = len(more) == 1 and more != {0} and layers.keys() == base_layers.keys()
    if grows_alike and max(layers.values()) - min(layers.values()) <= 1:
        return max(layers.values()) / max(base_layers.values())
    number = sum(layers.values())
    base_number = sum(base_layers.values())
    if base_number:
        return number / base_number
    return math.inf if number else 1.0


def _layers(branches: Sequence[Branch]) -> dict[tuple[Kind, int], float]:
    """The number of branches by kind, apart for each of the streams that have it."""
    result: dict[tuple[Kind, int], float] = {}
    for kind, alike in grouped(branches, lambda branch: branch.kind).items():
        streams = grouped(alike, lambda branch: branch.stream)
        for n, stream in enumerate(streams.values()):
            result[kind, n] = _number(stream)
    return result
