"""The rule on a model that is not annotated: Linen, NNX, or any pytree of parameters.

`infer_info` compares the parameters of two widths, finds which dimensions grow, and hands the axes it found to the
same code that reads annotations. Two shapes do not always tell what a parameter is; where they do not, it is an error
that says what to write, never a guess. `rescale_init` gives the weights the rule's standard deviations, whatever
initializers the model has.

What remains for the model's author are the multipliers of the forward pass: ``rule.residual_multiplier(r)`` at the end
of every branch, ``rule.readout_multiplier(m)`` on the readout's product, and ``rule.attention_scale(d, d_base)`` if the
head dimension grows.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from depthmup_flax.errors import InputError
from depthmup_flax.infer.branch_checks import require_branches
from depthmup_flax.infer.initial_scale import rescale_init
from depthmup_flax.infer.trees import (
    Globs,
    abstract,
    examples,
    flatten,
    globs,
    matching,
    require_same_paths,
    shape_of,
)
from depthmup_flax.rule.annotations import AnnotatedParam, Axes, AxisNames
from depthmup_flax.rule.info_trees import is_nnx, matches
from depthmup_flax.rule.parametrization import ParamInfo, Role
from depthmup_flax.rule.roles import info_from_annotations

__all__ = ["infer_info", "rescale_init"]

# Names of biases and scales in Flax and elsewhere. However many dimensions such a parameter has (an attention bias has
# heads and their size, a scanned one a layer axis), it is added or multiplied entrywise: a vector.
VECTOR_NAMES = frozenset({"bias", "scale", "beta", "gamma", "b", "g"})

# Tables of positions and learned tokens: like an embedding for the width, but by custom not decayed.
_POSITION = re.compile(r"(^|_)pos(?![a-z])|pos_?emb|position|^wpe$")
_TOKEN = re.compile(r"^cls|class_token|^register|(^|_)tokens?$")
_TABLE = re.compile(r"emb|pos|token")
_EMBEDDING = re.compile(r"emb|tok|vocab|^wte$")
_ENTRYWISE = re.compile(r"bias|scale|gain|temperature")


def infer_info(
    params: Any,
    base_params: Any,
    *,
    in_branch: Globs | Callable[[str], bool] = (),
    depth_ratio: float | None = None,
    readout: Globs | None = None,
    stacked: Globs = (),
    overrides: Mapping[str, Axes] | None = None,
    delta_params: Any = None,
) -> Any:
    """The `ParamInfo` of every parameter of a model without annotations, from its shapes and its base model's.

    A dimension grows if it differs between the two. With none a parameter is fixed; with one it is a vector (rank 1,
    or a name of `VECTOR_NAMES`), an input weight (the last dimension grows) or an output weight (a later one does
    not); with two it is a hidden weight, first in, then out, as in Flax. Matrices are decayed, even those in which
    nothing grows (a token-mixing kernel); biases and norms are not, nor are tables of positions, class tokens and the
    like, by name. Parameters that are annotated keep their annotation.

    Globs are over paths as `param_table` prints them, and also match everything below: ``"head"`` is ``head/kernel``
    and ``head/bias``.

    Args:
      params: of the model to train: arrays or ``jax.ShapeDtypeStruct`` in any pytree, an ``nnx.State`` or a module.
      base_params: of the tuned model's width **at the same depth**.
      in_branch: which parameters are inside residual branches: globs, or ``path -> bool``. What takes the stem or the
        readout in, or only some of the blocks, is refused; names that Flax numbers (``Dense_*``) often do.
      depth_ratio: number of branches over the tuned model's; needed with ``in_branch``. 1.0 alone: no branches.
      readout: the output weights whose product is multiplied by ``rule.readout_multiplier(m)``. An embedding that is
        used as readout too (tied) is named here. ``()``: the model has none.
      stacked: parameters whose leading dimension counts layers, as ``nn.scan`` makes them.
      overrides: glob to `Axes`, for what the shapes do not tell; wins over inference and annotations. ``in_branch``
        may be left out of these `Axes`; if not, it is believed.
      delta_params: of any other width, when ``params`` are the base model's own; shows which dimensions grow. Or
        ``params`` again, when these are narrower than the base model's on purpose.

    Returns:
      `ParamInfo` in the containers of ``params``; for an ``nnx.State``, what ``nnx.Optimizer`` needs. Every leaf's
      ``init_std`` is ``None`` unless annotated.

    Raises:
      InputError: a role cannot be told, a glob matches nothing or too much, the trees differ, or nothing grows.
    """
    leaves, structure = flatten(params, "params")
    base, _ = flatten(base_params, "base_params")
    witness = leaves if delta_params is None else flatten(delta_params, "delta_params")[0]
    require_same_paths(leaves, base, "the model", "the base model")
    require_same_paths(witness, base, "delta_params", "the base model")
    if delta_params is None:
        _require_growth(leaves, base)
    elif not _changes(witness, base):
        raise InputError("nothing grows: delta_params have the base model's shapes; build them with any other width.")
    paths = list(leaves)
    inside = _branch_paths(in_branch, paths)
    ratio = _depth_ratio(depth_ratio, inside)
    stacks = matching("stacked", stacked, paths)
    named = matching("readout", () if readout is None else readout, paths)
    changes = dict(overrides or {})
    matching("overrides", changes, paths)

    boxes, said = {}, set()
    for path, leaf in leaves.items():
        shapes = _Shapes(path, shape_of(leaf), shape_of(witness[path]), shape_of(base[path]), path in stacks)
        box = _located(path, leaf, shapes, path in inside, ratio)
        axes = [axes for pattern, axes in changes.items() if matches(path, pattern)]
        if box.names or (axes and axes[-1].in_branch is not None):
            said.add(path)
        if axes:
            box = axes[-1].annotate(path, box)
        elif not box.names:
            box = box.replace(names=_infer_axes(shapes, box.in_branch), decay=_decay(shapes))
        boxes[path] = _with_readout_ratio(box, shapes, path in named)
    if depth_ratio is None and not any(box.in_branch for box in boxes.values()):
        raise InputError(
            "nothing says which parameters are inside residual branches: pass in_branch='Block_*' (a glob of their "
            f"paths, which are like {examples(paths)}) and depth_ratio=depth / base_depth, or depth_ratio=1.0 for a "
            "model that has none."
        )
    found = info_from_annotations(boxes, {path: abstract(leaf) for path, leaf in base.items()})
    tied = _require_readouts(found, readout, changes)
    require_branches(found, said, tied)
    found = _with_tied_width(found, tied)
    return jax.tree_util.tree_unflatten(structure, [found[path] for path in paths])


# -- arguments --------------------------------------------------------------------------------------------------


def _changes(one: Mapping[str, Any], base: Mapping[str, Any]) -> list[tuple[str, int, int]]:
    """(path, size, base size) of every dimension that differs."""
    pairs = ((path, zip(shape_of(one[path]), shape_of(base[path]), strict=True)) for path in one)
    return [(path, size, other) for path, sizes in pairs for size, other in sizes if size != other]


def _require_growth(leaves: Mapping[str, Any], base: Mapping[str, Any]) -> None:
    changes = _changes(leaves, base)
    if not changes:
        raise InputError(
            "nothing grows: params and base_params have the same shapes; build base_params with the tuned width or, to "
            "train the base model itself, pass delta_params=, the parameters of the model at any other width."
        )
    if all(size < other for _, size, other in changes):
        path = changes[0][0]
        raise InputError(
            f"params are narrower than base_params, such as {path!r} of shape {shape_of(leaves[path])} and "
            f"{shape_of(base[path])}: pass the model's first and the base model's second or, if the model is meant to "
            "be narrower than the tuned one, delta_params=params too."
        )


def _branch_paths(in_branch: Globs | Callable[[str], bool], paths: Sequence[str]) -> set[str]:
    if callable(in_branch):
        inside = {path for path in paths if in_branch(path)}
        if not inside:
            raise InputError(f"in_branch is false for every path, such as {examples(paths)}: it must pick some.")
    else:
        inside = matching("in_branch", in_branch, paths)
    if inside == set(paths):
        raise InputError(
            f"in_branch = {in_branch!r} matches every parameter, stem and readout too: pick the residual branches "
            "alone."
        )
    return inside


def _depth_ratio(depth_ratio: Any, inside: set[str]) -> float:
    if depth_ratio is None:
        if inside:
            raise InputError("in_branch is given but depth_ratio is not: pass depth_ratio=depth / base_depth.")
        return 1.0
    ratio = _as_float(depth_ratio)
    if ratio is None or not 0 < ratio < math.inf:
        raise InputError(f"depth_ratio is {depth_ratio!r}: use depth / base_depth, a number above 0.")
    if ratio != 1 and not inside:
        raise InputError(
            f"depth_ratio is {ratio:g} but in_branch is missing: pass in_branch=, a glob of the paths of "
            "the residual branches' parameters."
        )
    return ratio


def _as_float(value: Any) -> float | None:
    """A number, or an array of one that has a value; ``None`` for anything else."""
    is_array = isinstance(value, (np.ndarray, jax.Array)) and not isinstance(value, jax.core.Tracer) and value.ndim == 0
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return float(value) if is_array or is_number else None


# -- one parameter ----------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Shapes:
    """A parameter's path, and its shape in the model, in the one that shows what grows, and in the base model."""

    path: str
    shape: tuple[int, ...]
    witness: tuple[int, ...]
    base: tuple[int, ...]
    stacked: bool

    @property
    def name(self) -> str:
        return self.path.rsplit("/", 1)[-1]

    @property
    def growing(self) -> list[int]:
        return [i for i, (size, base) in enumerate(zip(self.witness, self.base, strict=True)) if size != base]

    def ratio(self, i: int) -> float:
        return self.witness[i] / self.base[i]

    def override(self, *names: str | None) -> str:
        return f"overrides={{{self.path!r}: Axes({names!r})}}"

    def __str__(self) -> str:
        return f"parameter {self.path!r} of shape {self.witness}, {self.base} in the base model,"


def _located(path: str, leaf: Any, shapes: _Shapes, inside: bool, depth_ratio: float) -> AnnotatedParam:
    """The parameter in its own annotation, or one without axes (``names=()``), with the branch it is in."""
    box: Any = None
    if isinstance(leaf, AnnotatedParam):
        box = leaf.replace(value=abstract(leaf))
    elif is_nnx(leaf, "Variable") and leaf.get_metadata().get("linen_meta_type") is AnnotatedParam:
        box = AnnotatedParam.from_nnx_metadata({**leaf.get_metadata(), "value": abstract(leaf)})
    recorded = box is not None and box.in_branch
    if recorded and inside and not math.isclose(box.depth_ratio, depth_ratio):
        raise InputError(
            f"parameter {path!r} is in a ResidualBranch with depth_ratio {box.depth_ratio:g}, but depth_ratio here is "
            f"{depth_ratio:g}: use one number, or leave {path!r} out of in_branch."
        )
    if box is None:
        box = AnnotatedParam(abstract(leaf), names=())
    if recorded or not inside:
        return box
    return box.replace(in_branch=True, depth_ratio=depth_ratio)


def _infer_axes(shapes: _Shapes, in_branch: bool) -> AxisNames:
    """The logical axes of a parameter, from which of its dimensions grow."""
    rank, growing = len(shapes.shape), shapes.growing
    if shapes.stacked and (rank == 0 or 0 in growing or shapes.shape[0] != shapes.base[0]):
        raise InputError(
            f"{shapes} is named by stacked, so its first dimension counts layers: give the base model the same depth."
        )
    for i in range(rank):
        if i not in growing and shapes.shape[i] != shapes.base[i]:
            raise InputError(
                f"parameter {shapes.path!r} has size {shapes.shape[i]} along dimension {i} and {shapes.base[i]} in the "
                f"base model, as in delta_params: let delta_params differ from the base wherever the model does."
            )
    axes: list[str | None] = [None] * rank
    if shapes.stacked:
        axes[0] = "layers"
    if len(growing) > 2:
        more = ["width_out"] * (len(growing) - 2)
        raise InputError(
            f"{shapes} has {len(growing)} growing dimensions: give the base model the same depth if one counts layers, "
            "let heads or their size grow but not both, or name the axes, "
            f"{shapes.override(*_named(shapes, 'width_in', *more, 'width_out'))} if the first is the input."
        )
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


def _named(shapes: _Shapes, *growing: str, last: str | None = None) -> list[str | None]:
    """Axes for an error message: names for the growing dimensions, and for the last one if it does not grow."""
    names: list[str | None] = [None] * len(shapes.shape)
    names[-1] = last
    for i, name in zip(shapes.growing, growing, strict=True):
        names[i] = name
    return names


def _require_hidden(shapes: _Shapes) -> None:
    """Two growing dimensions are a hidden weight's, unless its name says otherwise or its layout is unknown."""
    first, second = shapes.growing
    if shapes.name in VECTOR_NAMES:
        raise InputError(
            f"{shapes} is a vector by its name but grows in 2 dimensions: if one counts layers, give the base model "
            "the same depth; if both are widths, such as heads and their size, name its axes, "
            f"{shapes.override(*_named(shapes, 'width_out', 'width_out'))}."
        )
    if shapes.name == "kernel":
        return
    as_weight = shapes.override(*_named(shapes, "width_in", "width_out"))
    if _TABLE.search(shapes.name.lower()):
        raise InputError(
            f"{shapes} looks like a table by its name but grows in 2 dimensions: give the base model the same "
            f"vocabulary, sequence length and depth, or name its axes, {as_weight}."
        )
    if not math.isclose(shapes.ratio(first), shapes.ratio(second)):
        raise InputError(
            f"{shapes} grows {shapes.ratio(first):g} and {shapes.ratio(second):g} times, and only of a 'kernel' is it "
            f"known which is the input: name its axes, {as_weight} or the other way round."
        )


def _require_input(shapes: _Shapes, in_branch: bool) -> None:
    """Inside a branch, a lone last growing dimension may be a stack's vector; a kernel's or a table's is clear."""
    if shapes.name == "kernel" or not in_branch or shapes.stacked or _no_decay_table(shapes):
        return
    names = [None] * (len(shapes.shape) - 1)
    raise InputError(
        f"{shapes} may be a vector of every layer of a stack, a vector with more dimensions (heads and their size), or "
        f"a weight whose input does not grow: if the first, pass stacked={shapes.path!r}; if the second, "
        f"{shapes.override(*names, 'width_out')}; if the third, "
        f"{shapes.override(*names[:-1], 'fixed_in', 'width_out')}."
    )


def _no_decay_table(shapes: _Shapes) -> bool:
    """Whether it is a table of positions, a class token or the like: by name, or a lone vector in more dimensions."""
    *parents, name = shapes.path.lower().split("/")
    if name == "kernel":
        return False
    if name == "embedding" and parents:  # of a module; its name says what is embedded
        return bool(_POSITION.search(parents[-1]))
    lone = len(shapes.growing) == 1 and math.prod(shapes.shape[shapes.stacked :]) == shapes.shape[shapes.growing[0]]
    return lone or bool(_POSITION.search(name) or _TOKEN.search(name))


def _decay(shapes: _Shapes) -> bool | None:
    """Whether to decay it, where its role does not say (``None``): not what is a table or vector by its name or shape,
    but matrices in which nothing grows.
    """
    if shapes.name in VECTOR_NAMES or _no_decay_table(shapes):
        return False
    name, sides = shapes.name.lower(), [n for n in shapes.shape[shapes.stacked :] if n > 1]
    entrywise = _ENTRYWISE.search(name) or _TABLE.search(name)
    is_matrix = shapes.name == "kernel" or (len(sides) >= 2 and not entrywise)
    return True if not shapes.growing and is_matrix else None


def _with_readout_ratio(box: AnnotatedParam, shapes: _Shapes, named: bool) -> AnnotatedParam:
    """An output weight that ``readout`` names is multiplied by 1/m with the m of the shapes; others are refused."""
    names = box.names
    is_output = "width_in" in names and "width_out" not in names and "fixed_out" in names
    if not is_output or box.width_ratio is not None or len(names) != len(shapes.shape):
        return box
    measured = math.prod(
        n / b for n, b, name in zip(shapes.shape, shapes.base, names, strict=True) if name == "width_in"
    )
    if named:
        return box.replace(width_ratio=measured)
    turned = ["width_out" if n == "width_in" else "fixed_in" if n == "fixed_out" else n for n in names]
    depth = ", or give the base model the same depth if it counts layers" if shapes.growing[:1] == [0] else ""
    raise InputError(
        f"{shapes} is an output weight, as its input grows and its output does not: multiply its product by "
        f"rule.readout_multiplier({measured:g}) and name it, readout={shapes.path!r}; if that growing dimension is its "
        f"output, name its axes, {shapes.override(*turned)}{depth}."
    )


# -- readouts ---------------------------------------------------------------------------------------------------


def _require_readouts(
    found: Mapping[str, ParamInfo], readout: Globs | None, overrides: Mapping[str, Axes]
) -> list[str]:
    """Checks that what ``readout`` names are readouts, and that there is one; returns the tied embeddings."""
    paths, tied, outputs = list(found), [], []
    for pattern in globs("readout", () if readout is None else readout, paths):
        named = [path for path in paths if matches(path, pattern)]
        outputs += [path for path in named if found[path].role is Role.OUTPUT]
        tables = [path for path in named if _is_table(found[path])]
        hidden = [path for path in named if found[path].role is Role.HIDDEN]
        if hidden or not (tables or set(outputs) & set(named)):
            path = (hidden or named)[0]
            raise InputError(
                f"readout has {pattern!r}, but {path!r} of shape {found[path].shape} is a {found[path].role} "
                "parameter: name the output weight alone (its input grows, its output does not), or a tied "
                "embedding (vocabulary x width)."
            )
        tied += tables
    for path in tied:
        if outputs and not _EMBEDDING.search(path.lower()) and not any(matches(path, glob) for glob in overrides):
            raise InputError(
                f"readout names {path!r} of shape {found[path].shape}, an input weight, besides {outputs[0]!r}: name "
                f"the output weight alone or, if the first is an embedding that is a readout too (tied), say "
                f"overrides={{{path!r}: Axes(('fixed_in', 'width_out'))}}."
            )
    if readout is None and not any(leaf.role is Role.OUTPUT for leaf in found.values()):
        tables = [path for path in paths if _is_table(found[path])]
        likely = [path for path in tables if "embed" in path.lower()] or tables or paths[:1]
        raise InputError(
            "the model has no readout: if an embedding is the readout too (tied), multiply its logits by "
            f"rule.readout_multiplier(m) and name it, such as readout={likely[0]!r}; if it has none, pass readout=()."
        )
    return tied


def _is_table(info: ParamInfo) -> bool:
    """Vocabulary x width, one of which grows."""
    return info.role is Role.INPUT and len(info.shape) == 2 and not info.in_branch


def _with_tied_width(found: Mapping[str, ParamInfo], tied: Sequence[str]) -> dict[str, ParamInfo]:
    """The readout's ratio is the model's width ratio; a tied embedding is one by being named."""
    outputs = {leaf.width_in for leaf in found.values() if leaf.role is Role.OUTPUT and not leaf.in_branch}
    ratios = outputs | {found[path].width_out for path in tied}
    if len(ratios) > 1:
        raise InputError(f"readouts have different width ratios {sorted(ratios)}: they must grow together.")
    if not tied:
        return dict(found)
    (model_width,) = ratios
    return {path: dataclasses.replace(leaf, model_width=model_width) for path, leaf in found.items()}
