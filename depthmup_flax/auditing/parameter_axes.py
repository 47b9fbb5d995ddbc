"""The logical axes of one parameter without an annotation, from its shapes at two widths."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping

from depthmup_flax.auditing.parameter_trees import Leaf, abstract
from depthmup_flax.rule.annotations import AnnotatedParam, Axes, AxisNames
from depthmup_flax.rule.info_trees import is_nnx, matches
from depthmup_flax.util.errors import InputError

# Names of biases and scales. They act entrywise, so they are vectors of any rank: an attention bias has heads and their
# size, a scanned bias has a layer axis.
VECTOR_NAMES = frozenset({"bias", "scale", "offset", "beta", "gamma", "b", "g"})

# Tables of positions and learned tokens are input weights that by custom are not decayed.
_POSITION = re.compile(r"(^|_)pos(?![a-z])|pos_?emb|position|^wpe$")
_TOKEN = re.compile(r"^cls|class_token|^register|(^|_)tokens?$")
_TABLE = re.compile(r"emb|pos|token")
_ENTRYWISE = re.compile(r"bias|scale|gain|temperature")


@dataclasses.dataclass(frozen=True)
class ParamShapes:
    """The shapes of one parameter."""

    path: str
    shape: tuple[int, ...]  # in the model
    witness: tuple[int, ...]  # in the model that shows which dimensions grow; usually the model itself
    base: tuple[int, ...]  # in the base model
    stacked: bool  # whether the leading dimension counts layers

    @property
    def name(self) -> str:
        """Last part of the path."""
        return self.path.rsplit("/", 1)[-1]

    @property
    def growing(self) -> list[int]:
        """The dimensions that grow."""
        return [i for i, (size, base) in enumerate(zip(self.witness, self.base, strict=True)) if size != base]

    def override(self, *names: str | None) -> str:
        """The override with these axes, for errors."""
        return f"overrides={{{self.path!r}: Axes({names!r})}}"

    def override_growing(self, *names: str) -> str:
        """The override with these axes of the growing dimensions."""
        name_of = dict(zip(self.growing, names, strict=True))
        return self.override(*(name_of.get(i) for i in range(len(self.shape))))

    def __str__(self) -> str:
        return f"parameter {self.path!r} of shape {self.witness}, {self.base} in the base model,"


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


def infer_axes(shapes: ParamShapes, in_branch: bool) -> AxisNames:
    """The axes of a parameter; raises `InputError` where the shapes are ambiguous."""
    _require_consistent(shapes)
    rank, growing = len(shapes.shape), shapes.growing
    axes: list[str | None] = ["layers" if shapes.stacked and i == 0 else None for i in range(rank)]
    if len(growing) == 2:
        _require_hidden(shapes)
        axes[growing[0]], axes[growing[1]] = "width_in", "width_out"
    elif growing and (rank - shapes.stacked == 1 or shapes.name in VECTOR_NAMES):
        axes[growing[0]] = "width_out"
    elif growing and growing[0] == rank - 1:
        _require_input(shapes, in_branch)
        axes[-2:] = ["fixed_in", "width_out"]
    elif growing:
        axes[growing[0]], axes[-1] = "width_in", "fixed_out"
    return tuple(axes)


def infer_decay(shapes: ParamShapes) -> bool | None:
    """Whether to decay a parameter; ``None`` where its role decides. Matrices in which nothing grows are decayed."""
    if shapes.name in VECTOR_NAMES or _is_undecayed_table(shapes):
        return False
    name, sides = shapes.name.lower(), [n for n in shapes.shape[shapes.stacked :] if n > 1]
    entrywise = _ENTRYWISE.search(name) or _TABLE.search(name)
    is_matrix = shapes.name == "kernel" or (len(sides) >= 2 and not entrywise)
    return True if not shapes.growing and is_matrix else None


def with_readout_ratio(box: AnnotatedParam, shapes: ParamShapes, is_readout: bool) -> AnnotatedParam:
    """``box`` with the width ratio of its shapes if it is a readout; refuses output weights that are not."""
    names = box.names
    is_output = "width_in" in names and "width_out" not in names and not {"fixed_out", "vocab_out"}.isdisjoint(names)
    if not is_output or box.width_ratio is not None or len(names) != len(shapes.shape):
        return box
    sizes = zip(shapes.shape, shapes.base, names, strict=True)
    ratio = math.prod(size / base for size, base, name in sizes if name == "width_in")
    if is_readout:
        return box.replace(width_ratio=ratio)
    if box.in_branch:
        hidden = ["width_out" if n and n.endswith("_out") else n for n in names]
        raise InputError(
            f"{shapes} is in a branch and only its input grows (a router, a low-rank factor, keys of a fixed number of "
            "heads): it is hidden, and its product is not multiplied. Use dm.audit(model, base, x).info, or name its "
            f"axes, {shapes.override(*hidden)}."
        )
    inputs = {"width_in": "width_out", "fixed_out": "fixed_in", "vocab_out": "vocab_in"}
    turned = [inputs.get(n or "", n) for n in names]
    depth = ", or give the base model the same depth if it counts layers" if shapes.growing[:1] == [0] else ""
    raise InputError(
        f"{shapes} is an output weight (its input grows, its output does not): multiply its product by "
        f"rule.readout_multiplier({ratio:g}) and name it, readout={shapes.path!r}; if that growing dimension is its "
        f"output, name its axes, {shapes.override(*turned)}{depth}."
    )


def _require_consistent(shapes: ParamShapes) -> None:
    """Requires equal sizes where nothing grows, equal numbers of stacked layers, and at most two growing dimensions."""
    growing = shapes.growing
    if shapes.stacked and (not shapes.shape or 0 in growing or shapes.shape[0] != shapes.base[0]):
        raise InputError(
            f"{shapes} is named by stacked, so its first dimension counts layers: give the base model the same depth."
        )
    for i, (size, base) in enumerate(zip(shapes.shape, shapes.base, strict=True)):
        if i not in growing and size != base:
            raise InputError(
                f"parameter {shapes.path!r} has size {size} along dimension {i}, and {base} in the base model and in "
                "delta_params: let delta_params differ from the base wherever the model does."
            )
    if len(growing) > 2:
        axes = shapes.override_growing("width_in", *["width_out"] * (len(growing) - 1))
        raise InputError(
            f"{shapes} has {len(growing)} growing dimensions: give the base model the same depth if one counts layers, "
            f"let heads or their size grow but not both, or name the axes, {axes} if the first is the input."
        )


def _require_hidden(shapes: ParamShapes) -> None:
    """Refuses names and shapes of two growing dimensions that may not be those of a hidden weight."""
    if shapes.name in VECTOR_NAMES:
        as_vector = shapes.override_growing("width_out", "width_out")
        raise InputError(
            f"{shapes} is a vector by its name but grows in 2 dimensions: if one counts layers, give the base model "
            f"the same depth; if both are widths, such as heads and their size, name its axes, {as_vector}."
        )
    if shapes.name == "kernel":
        return
    as_weight = shapes.override_growing("width_in", "width_out")
    if _TABLE.search(shapes.name.lower()):
        raise InputError(
            f"{shapes} looks like a table by its name but grows in 2 dimensions: give the base model the same "
            f"vocabulary, sequence length and depth, or name its axes, {as_weight}."
        )
    first, second = (shapes.witness[i] / shapes.base[i] for i in shapes.growing)
    if not math.isclose(first, second):
        raise InputError(
            f"{shapes} grows {first:g} and {second:g} times, and its layout is unknown because its name is not "
            f"'kernel': name its axes, {as_weight} or the other way round."
        )


def _require_input(shapes: ParamShapes, in_branch: bool) -> None:
    """Refuses what may be a stack of vectors: in a branch, with a last dimension that grows alone."""
    if shapes.name == "kernel" or not in_branch or shapes.stacked or _is_undecayed_table(shapes):
        return
    names = [None] * (len(shapes.shape) - 1)
    raise InputError(
        f"{shapes} may be one vector per layer of a stack, a vector with more dimensions (heads and their size), or a "
        f"weight whose input does not grow: for a stack, pass stacked={shapes.path!r}; for heads, "
        f"{shapes.override(*names, 'width_out')}; for a weight, "
        f"{shapes.override(*names[:-1], 'fixed_in', 'width_out')}."
    )


def _is_undecayed_table(shapes: ParamShapes) -> bool:
    """Whether it is a table of positions or a class token: by name, or as one vector with more dimensions."""
    *parents, name = shapes.path.lower().split("/")
    if name == "kernel":
        return False
    if name == "embedding" and parents:  # the module's name says what it embeds
        return bool(_POSITION.search(parents[-1]))
    one_vector = [shapes.shape[i] for i in shapes.growing] == [math.prod(shapes.shape[shapes.stacked :])]
    return one_vector or bool(_POSITION.search(name) or _TOKEN.search(name))
