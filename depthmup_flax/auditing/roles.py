"""The role and the ratios of every parameter, from how the forward pass uses it."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeAlias

from depthmup_flax.auditing.counterparts import contradictions
from depthmup_flax.auditing.depth_ratios import DepthRatios
from depthmup_flax.auditing.matching import MatchedModels, layer_axes
from depthmup_flax.auditing.overrides import Axes, decays, info_of_axes, overridden
from depthmup_flax.rule.info_trees import parts_of
from depthmup_flax.rule.parametrization import ParamInfo, Role
from depthmup_flax.trace.expert_axes import expert_axes
from depthmup_flax.trace.facts import Traced
from depthmup_flax.trace.uses import ENTRYWISE, LOOKUP, PRODUCT, Use
from depthmup_flax.util.errors import InputError
from depthmup_flax.util.groups import series

# Names of biases and scales. They act entrywise, so they are vectors of any rank: an attention bias
# has heads and their size, a scanned bias has a layer axis.
VECTOR_NAMES = frozenset({"bias", "scale", "offset", "beta", "gamma", "b", "g"})

# Tables of positions and learned tokens are input weights that by custom are not decayed.
_POSITION = re.compile(r"(^|_)pos(?![a-z])|pos_?emb|position|^wpe$")
_TOKEN = re.compile(r"^cls|class_token|^register|(^|_)tokens?$")
_NO_MATRIX = re.compile(r"bias|scale|gain|temperature|emb|pos|token")


MatrixAxes: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]  # of inputs and of outputs


@dataclasses.dataclass(frozen=True)
class ParamShapes:
    """The shapes of one parameter."""

    path: str
    shape: tuple[int, ...]  # in the model
    base: tuple[int, ...]  # in the base model
    layers: frozenset[int] = frozenset()  # axes that count layers

    @property
    def name(self) -> str:
        """Last part of the path."""
        return parts_of(self.path)[-1]

    @property
    def is_stacked(self) -> bool:
        """Whether the leading axis counts layers."""
        return 0 in self.layers

    @property
    def growing(self) -> list[int]:
        """The axes that grow."""
        sizes = zip(self.shape, self.base, strict=True)
        return [axis for axis, (size, base_size) in enumerate(sizes) if size != base_size]

    @property
    def ratios(self) -> dict[int, float]:
        """Axis that grows, and counts no layers -> its width ratio."""
        growing = [axis for axis in self.growing if axis not in self.layers]
        return {axis: self.shape[axis] / self.base[axis] for axis in growing}

    @property
    def is_table(self) -> bool:
        """Whether it is one vector for each of a fixed number of places, if it acts entrywise."""
        is_vector = len(self.shape) - self.is_stacked <= 1 or self.name in VECTOR_NAMES
        return not is_vector and self.growing == [len(self.shape) - 1]

    @property
    def sides(self) -> list[int]:
        """The sizes of one layer's axes, without those of size 1."""
        return [size for size in self.shape[self.is_stacked :] if size > 1]


_NO_SUCH_WIDTH = "the base model has no layer of its width"
_NAME_THE_DEPTH = "give the base model this depth, and pass depth_ratio="


@dataclasses.dataclass(frozen=True)
class ParameterRoles:
    """Path -> what the rule needs to know; and path -> why a role was not read."""

    infos: Mapping[str, ParamInfo]
    unread: Mapping[str, str]


def parameter_roles(
    match: MatchedModels,
    ratios: DepthRatios,
    overrides: Mapping[str, Axes],
) -> ParameterRoles:
    """The roles of all parameters, and what infos of one model have in common."""
    infos, unread = _roles_by_use(match, ratios, overrides)
    _copy_twins(infos, unread, match.facts)
    infos = _with_common_fields(infos, match, ratios)
    shapes = (match.model.shapes, match.base.shapes)
    for path in contradictions(*shapes, match.pairs, match.layers, match.base_shapes):
        if path in infos:
            del infos[path]
            unread[path] = f"{_NO_SUCH_WIDTH}: {_NAME_THE_DEPTH}"
    return ParameterRoles(infos, unread)


def _roles_by_use(
    match: MatchedModels, ratios: DepthRatios, overrides: Mapping[str, Axes]
) -> tuple[dict[str, ParamInfo], dict[str, str]]:
    """Path -> role and ratios, and path -> why they were not read."""
    facts = match.facts
    layers = layer_axes(facts.uses)
    experts = expert_axes(facts.graph, facts.kinds)
    infos: dict[str, ParamInfo] = {}
    unread: dict[str, str] = {}
    for path, shape in match.model.shapes.items():
        of_path = layers.get(path, frozenset())
        shapes = ParamShapes(path, shape, match.base_shapes[path], of_path)
        traced = Axes(
            in_branch=facts.inside.get(path, False),
            depth_ratio=ratios.of_path(path, facts),
            decay=infer_decay(shapes),
        )
        axes = overridden(path, traced, overrides)
        if axes.names is not None:
            is_readout = path in facts.readouts
            infos[path] = info_of_axes(path, axes, shape, shapes.base, is_readout=is_readout)
            continue
        reading = _read(shapes, facts, by_place=match.has_one_width)
        if reading.role is None:
            unread[path] = reading.why_not
        else:
            uses = facts.uses.get(path, ())
            of_experts = experts.get(path, frozenset())
            matrix = matrix_axes(reading.role, uses, of_experts)
            infos[path] = _info(reading.role, reading, shapes, axes, matrix)
    return infos, unread


def _info(
    role: Role,
    reading: Reading,
    shapes: ParamShapes,
    axes: Axes,
    matrix: MatrixAxes,
) -> ParamInfo:
    """The info of a parameter whose role was read; ``matrix`` are its dimensions, as a matrix."""
    in_axes, out_axes = matrix
    return ParamInfo(
        role,
        shapes.shape,
        reading.width_in,
        reading.width_out,
        in_branch=bool(axes.in_branch),
        depth_ratio=1.0 if axes.depth_ratio is None else axes.depth_ratio,
        decay=decays(role, axes.decay),
        in_axes=in_axes,
        out_axes=out_axes,
    )


def _copy_twins(infos: dict[str, ParamInfo], unread: dict[str, str], facts: Traced) -> None:
    """Gives parameters without effect, as at the end of a second stream, an equal layer's info."""
    for path in sorted(unread.keys() - facts.uses.keys()):
        for twin, info in infos.items():
            if series(twin) == series(path) and info.shape == facts.shapes[path]:
                infos[path] = info
                del unread[path]
                break


def _with_common_fields(
    infos: Mapping[str, ParamInfo], match: MatchedModels, ratios: DepthRatios
) -> dict[str, ParamInfo]:
    """The infos with what the whole model tells."""
    facts = match.facts
    at_end = [infos[path] for path in facts.readouts if path in infos]
    width = model_width(infos.values(), at_end)
    result: dict[str, ParamInfo] = {}
    for path, info in infos.items():
        result[path] = dataclasses.replace(
            info,
            model_width=width,
            uses=ratios.uses_of_path(path, facts),
            summed=ratios.repeated.get(path, 1.0),
            base_shape=tuple(match.base_shapes[path]),
        )
    return result


def model_width(infos: Collection[ParamInfo], at_end: Iterable[ParamInfo]) -> float:
    """The ratio m of the width that the readout reads; ``at_end`` are tied tables, too.

    Raises:
      InputError: readouts read widths that grow differently.
    """
    widths = {info.width_in for info in infos if info.role is Role.OUTPUT and not info.in_branch}
    widths |= {info.width_out for info in at_end if info.role is Role.INPUT}
    if len(widths) > 1:
        ratios = sorted(widths)
        text = f"readouts have different width ratios {ratios}: they must grow together."
        raise InputError(text)
    if widths:
        return widths.pop()
    return max((info.width_out for info in infos), default=1.0)


def inner_layers(infos: Mapping[str, ParamInfo], facts: Traced) -> dict[str, ParamInfo]:
    """Matrices whose products later matrices of their branch read, and their biases, as inner."""
    ends: set[str] = set()
    for branch in facts.branches:
        ends.update(branch.factors, branch.normalized)  # what a norm at the branch's end reads
    inner: set[str] = set()
    for path, info in infos.items():
        is_hidden = info.in_branch and info.role is Role.HIDDEN and path not in ends
        if is_hidden and any(use.kind == PRODUCT for use in facts.uses.get(path, ())):
            inner.add(path)
            biases = facts.biases.get(path, ())
            inner.update(bias.path for bias in biases if bias.path not in ends)
    return {path: dataclasses.replace(infos[path], inner=True) for path in inner & infos.keys()}


# --- roles


@dataclasses.dataclass(frozen=True)
class Reading:
    """What a trace says about one parameter; no role where it does not say."""

    role: Role | None
    width_in: float = 1.0
    width_out: float = 1.0
    why_not: str = ""


def _read(shapes: ParamShapes, facts: Traced, *, by_place: bool) -> Reading:
    uses = facts.uses.get(shapes.path, ())
    if not uses:
        return Reading(None, why_not="the output does not depend on it")
    is_readout = shapes.path in facts.readouts
    if not by_place:
        return read_role(shapes, uses, is_readout)
    module = parts_of(shapes.path)[:-1]
    is_in_readout = bool(module) and any(parts_of(path)[:-1] == module for path in facts.readouts)
    return read_role_by_place(shapes, uses, is_readout, is_in_readout)


@dataclasses.dataclass(frozen=True)
class _Contraction:
    """Which of the axes that grow are contracted with activations, go out, or are theirs, too."""

    ratios: Mapping[int, float]
    into: frozenset[int]
    out: frozenset[int]
    batch: frozenset[int]  # such as experts

    @property
    def ratio_in(self) -> float:
        """The width ratio of what is contracted."""
        return self.ratio_of(self.into)

    def ratio_of(self, axes: Iterable[int]) -> float:
        """The product of width ratios."""
        return math.prod(self.ratios[axis] for axis in axes)


def read_role(shapes: ParamShapes, uses: Sequence[Use], is_readout: bool) -> Reading:
    """The role of one parameter whose axes ``shapes.ratios`` grow."""
    ratios = shapes.ratios
    if not ratios:
        return Reading(Role.FIXED)
    contracting = [use for use in uses if use.kind != ENTRYWISE]
    if not contracting:
        # A table of one vector per position is an input by convention; both have the same factors.
        role = Role.INPUT if shapes.is_table else Role.VECTOR
        return Reading(role, width_out=math.prod(ratios.values()))
    axes = _contraction(ratios, contracting)
    if axes is None:
        return Reading(None, why_not="the trace does not tell its input axes from its output axes")
    embedding = _read_embedding(axes, contracting)
    if embedding is not None:
        return embedding
    if axes.into & axes.out:
        return _read_two_directions(ratios)
    return _read_matrix(axes, is_readout)


def _contraction(ratios: Mapping[int, float], uses: Sequence[Use]) -> _Contraction | None:
    """The axes of all uses; ``None`` if one contracts what it keeps, or an axis is in none."""
    growing = ratios.keys()
    if any(use.into & use.out & growing for use in uses):
        return None
    none: frozenset[int] = frozenset()
    into = none.union(*(use.into for use in uses)) & growing
    out = none.union(*(use.out for use in uses)) & growing
    batch = none.union(*(use.batch for use in uses)) & growing
    if growing - into - out - batch:
        return None
    return _Contraction(ratios, into, out, batch)


def _read_embedding(axes: _Contraction, uses: Sequence[Use]) -> Reading | None:
    """The role of a table, or of a stem that is a readout, too; ``None`` of others."""
    lookups = [use for use in uses if use.kind == LOOKUP]
    if not lookups and axes.into & axes.out:
        lookups = [use for use in uses if use.first]
    if not lookups:
        return None
    out = frozenset().union(*(use.out for use in lookups)) & axes.ratios.keys()
    return Reading(Role.INPUT if out else Role.FIXED, width_out=axes.ratio_of(out))


def _read_two_directions(ratios: Mapping[int, float]) -> Reading:
    """The role of a matrix that is used in both directions, as in a tied autoencoder."""
    low = min(ratios.values())
    high = max(ratios.values())
    if len(ratios) < 2 or not math.isclose(low, high):
        return Reading(None, why_not="it is used in two directions")
    return Reading(Role.HIDDEN, high, high)


def _read_matrix(axes: _Contraction, is_readout: bool) -> Reading:
    """The role of a matrix by what grows."""
    if axes.into and is_readout and not axes.out:
        return Reading(Role.OUTPUT, axes.ratio_in)
    out = axes.out | axes.batch
    role = Role.FIXED
    if axes.into:
        role = Role.HIDDEN
    elif out:
        role = Role.INPUT
    # The gates of experts sum to 1, so the gradient of each falls with their number, as with the
    # fan-out.
    return Reading(role, axes.ratio_in, axes.ratio_of(out))


def read_role_by_place(
    shapes: ParamShapes,
    uses: Sequence[Use],
    is_readout: bool,
    after_readout: bool,
) -> Reading:
    """The role, by place, in a model as wide as the base model, where no axis grows."""
    if all(use.kind == ENTRYWISE for use in uses):
        if after_readout or not shapes.sides:
            return Reading(Role.FIXED)
        is_vector = len(shapes.sides) < 2 or shapes.name in VECTOR_NAMES
        return Reading(Role.VECTOR if is_vector else Role.INPUT)
    if any(use.kind == LOOKUP for use in uses) or all(use.first for use in uses):
        return Reading(Role.INPUT)
    return Reading(Role.OUTPUT if is_readout else Role.HIDDEN)


def matrix_axes(role: Role, uses: Sequence[Use], experts: frozenset[int]) -> MatrixAxes:
    """What every use of a hidden matrix contracts, and what it keeps; none if uses differ.

    ``experts`` are axes that count matrices.
    """
    if role is not Role.HIDDEN:
        return (), ()
    sides: set[MatrixAxes] = set()
    for use in uses:
        if use.kind != ENTRYWISE:
            into = tuple(sorted(use.into - experts))
            sides.add((into, tuple(sorted(use.out - experts))))
    if len(sides) != 1:
        return (), ()
    into, out = sides.pop()
    return (into, out) if into and out else ((), ())


def same_role(a: ParamInfo, b: ParamInfo) -> bool:
    """Whether the rule treats both alike, widths aside."""
    return a.role == b.role or {a.role, b.role} <= {Role.INPUT, Role.VECTOR}


# --- decay


def infer_decay(shapes: ParamShapes) -> bool | None:
    """Whether to decay a parameter; ``None`` where its role decides.

    Matrices in which nothing grows are decayed.
    """
    if shapes.name in VECTOR_NAMES or _is_undecayed_table(shapes):
        return False
    has_matrix_name = not _NO_MATRIX.search(shapes.name.lower())
    is_matrix = shapes.name == "kernel" or (len(shapes.sides) >= 2 and has_matrix_name)
    return True if is_matrix and not shapes.growing else None


def _is_undecayed_table(shapes: ParamShapes) -> bool:
    """Whether it is a table of positions or a class token, by name or as one vector."""
    *modules, name = parts_of(shapes.path.lower())
    if name == "kernel":
        return False
    if name == "embedding" and modules:  # the module's name says what it embeds
        return bool(_POSITION.search(modules[-1]))
    growing = [shapes.shape[axis] for axis in shapes.growing]
    is_one_vector = growing == [math.prod(shapes.shape[shapes.is_stacked :])]
    return is_one_vector or bool(_POSITION.search(name) or _TOKEN.search(name))
