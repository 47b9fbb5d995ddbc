"""What the name, the shape and the annotation of one parameter say about it."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping

from depthmup_flax.auditing.parameter_trees import Leaf, abstract
from depthmup_flax.rule.annotations import AnnotatedParam, Axes
from depthmup_flax.rule.info_trees import is_nnx, matches

# Names of biases and scales. They act entrywise, so they are vectors of any rank: an attention bias has heads and their
# size, a scanned bias has a layer axis.
VECTOR_NAMES = frozenset({"bias", "scale", "offset", "beta", "gamma", "b", "g"})

# Tables of positions and learned tokens are input weights that by custom are not decayed.
_POSITION = re.compile(r"(^|_)pos(?![a-z])|pos_?emb|position|^wpe$")
_TOKEN = re.compile(r"^cls|class_token|^register|(^|_)tokens?$")
_NO_MATRIX = re.compile(r"bias|scale|gain|temperature|emb|pos|token")


@dataclasses.dataclass(frozen=True)
class ParamShapes:
    """The shapes of one parameter."""

    path: str
    shape: tuple[int, ...]  # in the model
    base: tuple[int, ...]  # in the base model
    stacked: bool  # whether the leading dimension counts layers

    @property
    def name(self) -> str:
        """Last part of the path."""
        return self.path.rsplit("/", 1)[-1]

    @property
    def growing(self) -> list[int]:
        """The dimensions that grow."""
        return [i for i, (size, base) in enumerate(zip(self.shape, self.base, strict=True)) if size != base]

    @property
    def is_table(self) -> bool:
        """Whether it is one vector for each of a fixed number of places, if it acts entrywise."""
        is_vector = len(self.shape) - self.stacked <= 1 or self.name in VECTOR_NAMES
        return not is_vector and self.growing == [len(self.shape) - 1]


def own_annotation(leaf: Leaf) -> AnnotatedParam | None:
    """The annotation that a model gives a parameter, around its shape."""
    value = abstract(leaf)
    if is_nnx(leaf, "Variable") and leaf.get_metadata().get("linen_meta_type") is AnnotatedParam:
        return AnnotatedParam.from_nnx_metadata({**leaf.get_metadata(), "value": value})
    return leaf.replace(value=value) if isinstance(leaf, AnnotatedParam) else None


def overridden(path: str, box: AnnotatedParam, overrides: Mapping[str, Axes]) -> AnnotatedParam:
    """``box`` with the overrides whose globs match its path; later ones win."""
    for pattern, axes in overrides.items():
        if matches(path, pattern):
            box = axes.annotate(path, box)
    return box


def with_readout_ratio(box: AnnotatedParam, shapes: ParamShapes) -> AnnotatedParam:
    """``box`` of a readout with the width ratio of its shapes, unless it has one."""
    if box.width_ratio is not None or len(box.names) != len(shapes.shape):
        return box
    sizes = zip(shapes.shape, shapes.base, box.names, strict=True)
    return box.replace(width_ratio=math.prod(size / base for size, base, name in sizes if name == "width_in"))


def infer_decay(shapes: ParamShapes) -> bool | None:
    """Whether to decay a parameter; ``None`` where its role decides. Matrices in which nothing grows are decayed."""
    if shapes.name in VECTOR_NAMES or _is_undecayed_table(shapes):
        return False
    name, sides = shapes.name.lower(), [n for n in shapes.shape[shapes.stacked :] if n > 1]
    is_matrix = shapes.name == "kernel" or (len(sides) >= 2 and not _NO_MATRIX.search(name))
    return True if not shapes.growing and is_matrix else None


def _is_undecayed_table(shapes: ParamShapes) -> bool:
    """Whether it is a table of positions or a class token: by name, or as one vector with more dimensions."""
    *parents, name = shapes.path.lower().split("/")
    if name == "kernel":
        return False
    if name == "embedding" and parents:  # the module's name says what it embeds
        return bool(_POSITION.search(parents[-1]))
    one_vector = [shapes.shape[i] for i in shapes.growing] == [math.prod(shapes.shape[shapes.stacked :])]
    return one_vector or bool(_POSITION.search(name) or _TOKEN.search(name))
