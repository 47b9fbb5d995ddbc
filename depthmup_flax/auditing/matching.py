"""The traces of a model and of its base model, with the parameters that correspond."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Mapping

from depthmup_flax.auditing.counterparts import Layers, Shapes, base_sizes, matched
from depthmup_flax.auditing.given_model import Model
from depthmup_flax.trace.facts import Traced
from depthmup_flax.trace.pairs import traced_pair
from depthmup_flax.trace.uses import Use


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
    """
    facts, base_facts, again = traced_pair(model.graph, base.graph)
    layers = layer_axes(facts.uses)
    pairs = matched(model.shapes, base.shapes, layers, facts.places(), base_facts.places())
    base_shapes = base_sizes(model.shapes, base.shapes, pairs, layers)
    match = MatchedModels(model, base, facts, base_facts, pairs, layers, base_shapes)
    if not (facts.has_tokens or base_facts.has_tokens):
        return match
    base_growing = {base_path: match.growing[path] for path, base_path in pairs.items()}
    read, read_base = again
    return dataclasses.replace(match, facts=read(match.growing), base_facts=read_base(base_growing))


def layer_axes(uses: Mapping[str, Collection[Use]]) -> dict[str, frozenset[int]]:
    """Path -> the axes that count layers: in each use, one entry along them is taken."""
    result: dict[str, frozenset[int]] = {}
    for path, several in uses.items():
        result[path] = frozenset().union(*(use.layers for use in several))
    return result
