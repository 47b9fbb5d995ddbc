"""The role and the ratios of every parameter, from how the forward pass uses it."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence

import jax

from depthmup_flax.auditing import parameter_trees as trees
from depthmup_flax.auditing.expert_axes import expert_axes
from depthmup_flax.auditing.given_model import Model
from depthmup_flax.auditing.parameter_trees import Leaf, abstract
from depthmup_flax.auditing.relative_factors import DepthRatios
from depthmup_flax.rule.annotations import AnnotatedParam, Axes
from depthmup_flax.rule.info_trees import is_nnx, matches
from depthmup_flax.rule.parametrization import ParamInfo, Role
from depthmup_flax.rule.roles import info_from_annotations, model_width
from depthmup_flax.trace.facts import Traced
from depthmup_flax.trace.uses import ENTRYWISE, LOOKUP, Use

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


@dataclasses.dataclass(frozen=True)
class Reading:
    """What a trace says about one parameter; no role where it does not say."""

    role: Role | None
    width_in: float = 1.0
    width_out: float = 1.0
    why_not: str = ""


def layer_axes(uses: Mapping[str, Sequence[Use]]) -> dict[str, frozenset[int]]:
    """Path -> the axes that count layers: in each use, one entry along them is taken."""
    return {path: frozenset().union(*(use.layers for use in several)) for path, several in uses.items()}


def read_role(shapes: ParamShapes, uses: Sequence[Use], layers: frozenset[int], is_readout: bool) -> Reading:
    """The role of one parameter whose axes ``shapes.growing`` grow."""
    grows = {k: shapes.shape[k] / shapes.base[k] for k in shapes.growing if k not in layers}
    ratio = lambda axes: math.prod(grows[k] for k in axes)
    if not grows:
        return Reading(Role.FIXED)
    if all(use.kind == ENTRYWISE for use in uses):
        # A table of one vector per position is an input by convention; both have the same factors.
        return Reading(Role.INPUT if shapes.is_table else Role.VECTOR, width_out=ratio(grows))
    contracting = [use for use in uses if use.kind != ENTRYWISE]
    union = lambda sides: frozenset().union(*sides) & grows.keys()
    into, out = union(use.into for use in contracting), union(use.out for use in contracting)
    batch = union(use.batch for use in contracting)
    if any(use.into & use.out & grows.keys() for use in contracting) or grows.keys() - into - out - batch:
        return Reading(None, why_not="the trace does not tell its input axes from its output axes")
    looked_up = [use for use in contracting if use.kind == LOOKUP] or [use for use in contracting if use.first]
    if looked_up and (looked_up[0].kind == LOOKUP or into & out):  # an embedding, which may be the readout too
        out = union(use.out for use in looked_up)
        return Reading(Role.INPUT if out else Role.FIXED, width_out=ratio(out))
    if into & out:  # used in both directions, as in a tied autoencoder
        low, high = min(grows.values()), max(grows.values())
        if len(grows) < 2 or not math.isclose(low, high):
            return Reading(None, why_not="it is used in two directions")
        return Reading(Role.HIDDEN, high, high)
    if into and is_readout and not out:
        return Reading(Role.OUTPUT, ratio(into))
    role = Role.HIDDEN if into else Role.INPUT if out | batch else Role.FIXED
    # The gates of experts sum to 1, so the gradient of each falls with their number, as with the fan-out.
    return Reading(role, ratio(into), ratio(out | batch))


def read_role_by_place(shapes: ParamShapes, uses: Sequence[Use], is_readout: bool, after_readout: bool) -> Reading:
    """The role, by place, in a model as wide as the base model, where no axis grows."""
    if all(use.kind == ENTRYWISE for use in uses):
        sides = [n for n in shapes.shape[1 if shapes.stacked else 0 :] if n > 1]
        is_vector = len(sides) < 2 or shapes.name in VECTOR_NAMES
        return Reading(Role.FIXED if after_readout or not sides else Role.VECTOR if is_vector else Role.INPUT)
    if any(use.kind == LOOKUP for use in uses) or all(use.first for use in uses):
        return Reading(Role.INPUT)
    return Reading(Role.OUTPUT if is_readout else Role.HIDDEN)


def traced_infos(
    model: Model,
    traced: Traced,
    base: Mapping[str, tuple[int, ...]],
    depth_ratios: DepthRatios,
    overrides: Mapping[str, Axes],
    *,
    same_width: bool,
) -> tuple[dict[str, ParamInfo], dict[str, str]]:
    """Path -> `ParamInfo`; and path -> reason of parameters that were not read.

    ``base`` are the base model's shapes at the model's depth.
    """
    experts = expert_axes(traced.graph, traced.kinds)
    infos, unread, layers = dict[str, ParamInfo](), dict[str, str](), layer_axes(traced.uses)
    readout_parents = {path.rpartition("/")[0] for path in traced.readouts if "/" in path}
    for path, leaf in model.leaves.items():
        shape, uses = trees.shape_of(leaf), traced.uses.get(path, ())
        shapes = ParamShapes(path, shape, base[path], 0 in layers.get(path, frozenset()))
        inside = traced.inside.get(path, False)
        ratio, decay = depth_ratios.of_path(path, traced), infer_decay(shapes)
        unnamed = AnnotatedParam(trees.abstract(leaf), names=None, in_branch=inside, depth_ratio=ratio, decay=decay)  # type: ignore[arg-type]
        box = own_annotation(leaf) or unnamed
        for pattern, axes in overrides.items():  # later ones win
            box = axes.annotate(path, box) if matches(path, pattern) else box
        if box.names is not None:
            box = with_readout_ratio(box, shapes) if path in traced.readouts else box
            base_leaf = jax.ShapeDtypeStruct(base[path], trees.abstract(leaf).dtype)
            infos[path] = info_from_annotations({path: box}, {path: base_leaf})[path]
            continue
        if not uses:
            reading = Reading(None, why_not="the output does not depend on it")
        elif same_width:
            after = path.rpartition("/")[0] in readout_parents
            reading = read_role_by_place(shapes, uses, path in traced.readouts, after)
        else:
            reading = read_role(shapes, uses, layers.get(path, frozenset()), path in traced.readouts)
        if reading.role is None:
            unread[path] = reading.why_not
            continue
        role, (into, out) = reading.role, matrix_axes(reading.role, uses, experts.get(path, frozenset()))
        decayed = role not in (Role.VECTOR, Role.FIXED) if box.decay is None else box.decay
        widths = reading.width_in, reading.width_out
        leaf_info = ParamInfo(role, shape, *widths, box.in_branch, box.depth_ratio, decay=decayed)
        infos[path] = dataclasses.replace(leaf_info, in_axes=into, out_axes=out)
    for path in sorted(unread.keys() - traced.uses.keys()):  # the end of a second stream may have no effect
        series, shape = trees.series(path), traced.shapes[path]
        twin = next((q for q, leaf in infos.items() if trees.series(q) == series and leaf.shape == shape), None)
        if twin is not None:
            infos[path] = infos[twin]
            del unread[path]
    width = model_width(infos.values(), [infos[path] for path in traced.readouts if path in infos])
    for path, leaf_info in infos.items():
        used, summed = depth_ratios.of_path(path, traced, "uses"), depth_ratios.repeated.get(path, 1.0)
        infos[path] = dataclasses.replace(
            leaf_info, model_width=width, uses=used, summed=summed, base_shape=tuple(base[path])
        )
    return infos, unread


def matrix_axes(role: Role, uses: Sequence[Use], experts: frozenset[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The dimensions of a hidden matrix that every use contracts, and those that it keeps; none if uses differ.

    ``experts`` are those that count matrices.
    """
    sides = set[tuple[tuple[int, ...], tuple[int, ...]]]()
    for use in uses:
        if use.kind != ENTRYWISE:
            sides.add((tuple(sorted(use.into - experts)), tuple(sorted(use.out - experts))))
    if role is not Role.HIDDEN or len(sides) != 1:
        return (), ()
    into, out = sides.pop()
    return (into, out) if into and out else ((), ())


def same_role(a: ParamInfo, b: ParamInfo) -> bool:
    """Whether the rule treats both alike, widths aside."""
    return a.role == b.role or {a.role, b.role} <= {Role.INPUT, Role.VECTOR}
