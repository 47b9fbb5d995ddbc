"""The traces of a model and of its base model, with the parameters that correspond."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Mapping

from depthmup_flax.auditing.counterparts import Layers, Shapes, base_sizes, matched
from depthmup_flax.auditing.given_model import Model
from depthmup_flax.trace.facts import Traced
from depthmup_flax.trace.kinds import ACTIVATION
from depthmup_flax.trace.pairs import traced_pair
from depthmup_flax.trace.uses import ENTRYWISE, LOOKUP, PRODUCT, Use
from depthmup_flax.util.errors import InputError


@dataclasses.dataclass(frozen=True, eq=False)
class MatchedModels:
    """A model and its base model, what the traces tell of each, and which parameters correspond."""

    model: Model
    base: Model
    facts: Traced
    base_facts: Traced
    pairs: Mapping[str, str]  # path -> that in the base model
    layers: Layers  # path -> the axes that count layers
    base_shapes: Shapes  # the base model's by the paths of the model, at the model's depth

    @functools.cached_property
    def growing(self) -> dict[str, list[int]]:
        """Path -> the axes that differ from the base model's."""
        result = {}
        for path in self.pairs:
            sizes = zip(self.model.shapes[path], self.base_shapes[path], strict=True)
            result[path] = [axis for axis, (size, base) in enumerate(sizes) if size != base]
        return result

    def ratio(self, path: str, axis: int) -> float:
        """The ratio of one size of a parameter to the base model's."""
        return round(self.model.shapes[path][axis] / self.base_shapes[path][axis], 6)

    @property
    def has_one_width(self) -> bool:
        """Whether the model is as wide as the base model."""
        return not any(self.growing.values())

    def without(self, kinds: Collection[frozenset[str]]) -> MatchedModels:
        """The same with the branches of some kinds taken for parts of the stream."""
        if not kinds:
            return self
        return dataclasses.replace(
            self,
            facts=_without(self.facts, kinds),
            base_facts=_without(self.base_facts, kinds),
        )


def _without(facts: Traced, kinds: Collection[frozenset[str]]) -> Traced:
    return facts.without([branch for branch in facts.branches if branch.kind in kinds])


def matched_models(model: Model, base: Model) -> MatchedModels:
    """Reads both graphs and pairs the parameters.

    A learned token may look like a weight until it is known what grows, so graphs with such tokens
    are read twice.

    Raises:
      InputError: parameters do not correspond, or more than width and depth differs.
    """
    facts, base_facts, again = traced_pair(model.graph, base.graph)
    layers = layer_axes(facts.uses)
    pairs = matched(model.shapes, base.shapes, layers, facts.places(), base_facts.places())
    base_shapes = base_sizes(model.shapes, base.shapes, pairs, layers)
    match = MatchedModels(model, base, facts, base_facts, pairs, layers, base_shapes)
    if facts.has_tokens or base_facts.has_tokens:
        base_growing = {base_path: match.growing[path] for path, base_path in pairs.items()}
        read, read_base = again
        facts, base_facts = read(match.growing), read_base(base_growing)
        match = dataclasses.replace(match, facts=facts, base_facts=base_facts)
    _require_same_task(match)
    return match


def _require_same_task(match: MatchedModels) -> None:
    """Raises `InputError` for another vocabulary or another number of classes than the base's.

    The outputs of the last products may be features of the network, which grow as its widths do.
    """
    widths = _width_ratios(match)
    for path, uses in match.facts.uses.items():
        for use in uses:
            axes: Collection[int] = ()
            if use.kind == LOOKUP and _reads_batch(match.facts, use):
                axes = use.into
            elif use.kind == PRODUCT and path in match.facts.readouts:
                axes = [axis for axis in use.out if _is_other_output(match, path, axis, widths)]
            for axis in match.growing[path]:
                if axis in axes:
                    raise InputError(_another_task(match, path, axis, widths))


def _is_other_output(
    match: MatchedModels,
    path: str,
    axis: int,
    widths: Collection[float],
) -> bool:
    """Whether a size is that of the output, and grows as no width does, where widths are known."""
    sizes = (match.model.shapes[path][axis], match.base_shapes[path][axis])
    graphs = (match.model.graph, match.base.graph)
    for size, graph in zip(sizes, graphs, strict=True):
        if graph.nodes[graph.output].shape[-1:] != (size,):
            return False
    return bool(widths) and match.ratio(path, axis) not in widths


def _reads_batch(facts: Traced, use: Use) -> bool:
    """Whether the numbers of the rows that a look-up takes are given with the batch."""
    indices = facts.graph.nodes[use.node].inputs[1:]
    return use.first and any(facts.kinds[j] == ACTIVATION for j in indices)


def _width_ratios(match: MatchedModels) -> set[float]:
    """The ratios of all sizes that products contract, or make inside of the network."""
    facts = match.facts
    result: set[float] = set()
    for path, uses in facts.uses.items():
        for use in uses:
            axes: set[int] = set()
            if use.kind == PRODUCT and not use.first:
                axes |= use.into
            if use.kind != ENTRYWISE and path not in facts.readouts:
                axes |= use.out
            result.update(match.ratio(path, axis) for axis in axes)
    return result


def _another_task(match: MatchedModels, path: str, axis: int, widths: Collection[float]) -> str:
    size = match.model.shapes[path][axis]
    base_size = match.base_shapes[path][axis]
    ratios = " or ".join(f"{ratio:g}" for ratio in sorted(widths) if ratio != 1)
    not_by = f", not by m = {ratios}" if ratios else ""
    return (
        f"parameter {path!r} changes {base_size} -> {size} from the base model{not_by}: it counts "
        "classes or a vocabulary. Build both from the same code; only width and depth may differ."
    )


def layer_axes(uses: Mapping[str, Collection[Use]]) -> dict[str, frozenset[int]]:
    """Path -> the axes that count layers: in each use, one entry along them is taken."""
    result: dict[str, frozenset[int]] = {}
    for path, several in uses.items():
        result[path] = frozenset().union(*(use.layers for use in several))
    return result
