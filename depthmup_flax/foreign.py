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
import itertools
import math
import numbers
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from depthmup_flax.errors import InputError
from depthmup_flax.parametrization import Parametrization, ParamInfo, Role
from depthmup_flax.params import (
    AnnotatedParam,
    Axes,
    AxisNames,
    flatten_info,
    info_from_annotations,
    matches,
    path_name,
)

# A glob, or several, over paths such as "blocks/0/attn/query/kernel"; it also matches everything below.
Globs: TypeAlias = str | Collection[str]

# Names of biases and scales in Flax and elsewhere. However many dimensions such a parameter has (an attention bias has
# heads and their size, a scanned one a layer axis), it is added or multiplied entrywise: a vector.
VECTOR_NAMES = frozenset({"bias", "scale", "beta", "gamma", "b", "g"})

# Tables of positions and learned tokens: like an embedding for the width, but by custom not decayed.
_POSITION = re.compile(r"(^|_)pos(?![a-z])|pos_?emb|position|^wpe$")
_TOKEN = re.compile(r"^cls|class_token|^register|(^|_)tokens?$")
_TABLE = re.compile(r"emb|pos|token")


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
    not); with two it is a hidden weight, first in, then out, as in Flax. Biases and norms are not decayed, nor are
    tables of positions, class tokens and the like, by name. Parameters that are annotated keep their annotation.

    Globs are over paths as `param_table` prints them, and also match everything below: ``"head"`` is ``head/kernel``
    and ``head/bias``.

    Args:
      params: of the model to train: arrays or ``jax.ShapeDtypeStruct`` in any pytree, an ``nnx.State`` or a module.
      base_params: of the tuned model's width **at the same depth**.
      in_branch: which parameters are inside residual branches: globs, or ``path -> bool``.
      depth_ratio: number of branches over the tuned model's; needed with ``in_branch``. 1.0 alone: no branches.
      readout: the output weights whose product is multiplied by ``rule.readout_multiplier(m)``. An embedding that is
        used as readout too (tied) is named here. ``()``: the model has none.
      stacked: parameters whose leading dimension counts layers, as ``nn.scan`` makes them.
      overrides: glob to `Axes`, for what the shapes do not tell; wins over inference and annotations. ``in_branch``
        may be left out of these `Axes`.
      delta_params: of any other width, when ``params`` are the base model's own; shows which dimensions grow.

    Returns:
      `ParamInfo` in the containers of ``params``; for an ``nnx.State``, what ``nnx.Optimizer`` needs. Every leaf's
      ``init_std`` is ``None`` unless annotated.

    Raises:
      InputError: a role cannot be told, a glob matches nothing, the trees differ, or nothing grows.
    """
    leaves, structure = _flatten(params, "params")
    base, _ = _flatten(base_params, "base_params")
    witness = leaves if delta_params is None else _flatten(delta_params, "delta_params")[0]
    _require_same_paths(leaves, base, "the model", "the base model")
    _require_same_paths(witness, base, "delta_params", "the base model")
    _require_growth(witness, base, delta_params is not None)
    paths = list(leaves)
    inside = _branch_paths(in_branch, paths)
    ratio = _depth_ratio(depth_ratio, inside)
    stacks = _matching("stacked", stacked, paths)
    named = _matching("readout", () if readout is None else readout, paths)
    changes = dict(overrides or {})
    _matching("overrides", changes, paths)

    boxes = {}
    for path, leaf in leaves.items():
        shapes = _Shapes(path, _shape(leaf), _shape(witness[path]), _shape(base[path]), path in stacks)
        box = _located(path, leaf, shapes, path in inside, ratio)
        axes = [axes for pattern, axes in changes.items() if matches(path, pattern)]
        if axes:
            box = axes[-1].annotate(path, box)
        elif not box.names:
            box = box.replace(names=_infer_axes(shapes, box.in_branch), decay=_decay(shapes))
        boxes[path] = _with_readout_ratio(box, shapes, path in named)
    if depth_ratio is None and not any(box.in_branch for box in boxes.values()):
        raise InputError(
            "nothing says which parameters are inside residual branches: pass in_branch='Block_*' (a glob of their "
            f"paths, which are like {_examples(paths)}) and depth_ratio=depth / base_depth, or depth_ratio=1.0 for a "
            "model that has none."
        )
    found = info_from_annotations(boxes, {path: _abstract(leaf) for path, leaf in base.items()})
    tied = _require_readouts(found, boxes, readout, paths)
    found = _with_tied_width(found, tied)
    return jax.tree_util.tree_unflatten(structure, [found[path] for path in paths])


def rescale_init(params: Any, base_params: Any, info: Any, parametrization: Parametrization) -> Any:
    """``params`` with every weight's standard deviation as the rule wants it, given the base model's.

    Hidden weights get ``std_base / sqrt(m_in)``, input and output weights ``std_base``; the output's 1/m is in the
    forward pass. So a model may start from ``lecun_normal``, whose hidden weights are right already, or from a fixed
    0.02. Vectors, fixed parameters and constants (zeros, ones) stay as they are, and ``standard`` changes nothing.

    Both standard deviations are measured, hence known up to a sampling error. Initializers that exist scale with powers
    of the fan-in or fan-out, so the correction is set to the closest ``m_in^a m_out^b`` with a, b in {-1/2, 0, 1/2} if
    that is within four standard errors: exactly 1 for a hidden ``lecun_normal`` and ``m^-1/2`` for a fixed 0.02.
    Otherwise it is the measured one.

    Not for use under ``jit``: it looks at values.

    Args:
      params: fresh parameters of the model to train; arrays in any pytree, an ``nnx.State`` or a module.
      base_params: fresh parameters of the base model, from the same initializers.
      info: from `infer_info`.
      parametrization: the rule.

    Returns:
      Parameters in the containers of ``params``; the ``nnx.State`` of a module, for ``nnx.update(model, state)``.

    Raises:
      InputError: something other than arrays, or not what ``info`` was made for.
    """
    leaves, structure = _flatten(params, "params")
    base, _ = _flatten(base_params, "base_params")
    known = flatten_info(info)
    _require_same_paths(leaves, base, "the model", "the base model")
    _require_same_paths(leaves, known, "the model", "info")
    new = []
    for path, leaf in leaves.items():
        if _shape(leaf) != known[path].shape:
            raise InputError(
                f"parameter {path!r} has shape {_shape(leaf)}, but info was made for {known[path].shape}: call "
                "infer_info with these parameters."
            )
        factor = _init_factor(path, _array(path, leaf), _array(path, base[path]), known[path], parametrization)
        # An array is a leaf, a box or an nnx.Variable a node with one; the type of the array stays.
        new.append(leaf if factor == 1.0 else jax.tree.map(lambda x, f=factor: x * jnp.asarray(f, x.dtype), leaf))
    return jax.tree_util.tree_unflatten(structure, new)


# -- trees ------------------------------------------------------------------------------------------------------


def _is_node_of_one(x: Any) -> bool:
    return isinstance(x, (nn.meta.AxisMetadata, nnx.Variable))


def _flatten(tree: Any, argument: str) -> tuple[dict[str, Any], Any]:
    """Path -> leaf (an array, a Linen box or an nnx.Variable), and the structure around them."""
    if isinstance(tree, nnx.Module):
        tree = nnx.state(tree, nnx.Param)
    elif isinstance(tree, Mapping) and not isinstance(tree, nnx.State) and "params" in tree:
        raise InputError(f"{argument} has an entry 'params': pass variables['params'], not all variables.")
    flat, structure = jax.tree_util.tree_flatten_with_path(tree, is_leaf=_is_node_of_one)
    leaves = {path_name(path): leaf for path, leaf in flat}
    if not leaves:
        raise InputError(f"{argument} has no parameters: pass the tree that the optimizer will train.")
    for path, leaf in leaves.items():
        if isinstance(leaf, (nnx.RngState, nnx.BatchStat)):
            raise InputError(f"{path!r} of {argument} is no parameter: pass nnx.state(model, nnx.Param).")
    return leaves, structure


def _value(leaf: Any) -> Any:
    return jax.tree.leaves(leaf)[0]


def _shape(leaf: Any) -> tuple[int, ...]:
    value = leaf if isinstance(leaf, ParamInfo) else _value(leaf)
    return tuple(value.shape) if hasattr(value, "shape") else np.shape(value)


def _abstract(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(_shape(leaf), getattr(_value(leaf), "dtype", jnp.float32))


def _array(path: str, leaf: Any) -> jax.Array:
    value = _value(leaf)
    if isinstance(value, (jax.ShapeDtypeStruct, jax.core.Tracer)):
        raise InputError(
            f"parameter {path!r} is {type(value).__name__}, which has no values: call rescale_init outside jit, with "
            "the initialized parameters of both models."
        )
    return jnp.asarray(value)


def _require_same_paths(one: Mapping[str, Any], other: Mapping[str, Any], one_name: str, other_name: str) -> None:
    for here, there, here_name, there_name in ((one, other, one_name, other_name), (other, one, other_name, one_name)):
        for path in here:
            if path not in there:
                raise InputError(
                    f"parameter {path!r} is in {here_name} but not in {there_name}: build both alike and at the same "
                    "depth, with another width only."
                )
    for path in one:
        if len(_shape(one[path])) != len(_shape(other[path])):
            raise InputError(
                f"parameter {path!r} has shape {_shape(one[path])} in {one_name} and {_shape(other[path])} in "
                f"{other_name}: build both alike, with another width only."
            )


def _require_growth(witness: Mapping[str, Any], base: Mapping[str, Any], is_delta: bool) -> None:
    if any(_shape(witness[path]) != _shape(base[path]) for path in witness):
        return
    if is_delta:
        raise InputError("nothing grows: delta_params have the base model's shapes; build them with any other width.")
    raise InputError(
        "nothing grows: params and base_params have the same shapes; build base_params with the tuned width or, to "
        "train the base model itself, pass delta_params=, the parameters of the model at any other width."
    )


# -- arguments --------------------------------------------------------------------------------------------------


def _examples(paths: Sequence[str]) -> str:
    """A few paths, one from each part of the model."""
    first = {path.split("/")[0]: path for path in reversed(paths)}
    return ", ".join(repr(path) for path in list(reversed(first.values()))[:4])


def _globs(argument: str, patterns: Any, paths: Sequence[str]) -> list[str]:
    """One glob or several as a list."""
    if isinstance(patterns, str):
        return [patterns]
    if not isinstance(patterns, Collection) or not all(isinstance(pattern, str) for pattern in patterns):
        raise InputError(f"{argument} is {patterns!r}: write globs of paths such as {_examples(paths)}.")
    return list(patterns)


def _matching(argument: str, patterns: Any, paths: Sequence[str]) -> set[str]:
    """The paths that match; every pattern must match one."""
    found = set()
    for pattern in _globs(argument, patterns, paths):
        matched = {path for path in paths if matches(path, pattern)}
        if not matched:
            raise InputError(
                f"{argument} has {pattern!r}, which matches no parameter: write a glob of paths such as "
                f"{_examples(paths)}."
            )
        found |= matched
    return found


def _branch_paths(in_branch: Globs | Callable[[str], bool], paths: Sequence[str]) -> set[str]:
    if callable(in_branch):
        inside = {path for path in paths if in_branch(path)}
        if not inside:
            raise InputError(f"in_branch is false for every path, such as {_examples(paths)}: it must pick some.")
    else:
        inside = _matching("in_branch", in_branch, paths)
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
    if not isinstance(depth_ratio, numbers.Real) or not 0 < float(depth_ratio) < math.inf:
        raise InputError(f"depth_ratio is {depth_ratio!r}: use depth / base_depth, a number above 0.")
    if depth_ratio != 1 and not inside:
        raise InputError(
            f"depth_ratio is {depth_ratio:g} but in_branch is missing: pass in_branch=, a glob of the paths of "
            "the residual branches' parameters."
        )
    return float(depth_ratio)


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
        box = leaf.replace(value=_abstract(leaf))
    elif isinstance(leaf, nnx.Variable) and leaf.get_metadata().get("linen_meta_type") is AnnotatedParam:
        box = AnnotatedParam.from_nnx_metadata({**leaf.get_metadata(), "value": _abstract(leaf)})
    recorded = box is not None and box.in_branch
    if recorded and inside and not math.isclose(box.depth_ratio, depth_ratio):
        raise InputError(
            f"parameter {path!r} is in a ResidualBranch with depth_ratio {box.depth_ratio:g}, but depth_ratio here is "
            f"{depth_ratio:g}: use one number, or leave {path!r} out of in_branch."
        )
    if box is None:
        box = AnnotatedParam(_abstract(leaf), names=())
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
        f"{shapes} may be a vector of every layer of a stack, or a weight whose input does not grow: if the first, "
        f"pass stacked={shapes.path!r}; if the second, {shapes.override(*names[:-1], 'fixed_in', 'width_out')}."
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
    """``False``: not decayed whatever its role, which decides otherwise (``None``)."""
    return False if shapes.name in VECTOR_NAMES or _no_decay_table(shapes) else None


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
    found: Mapping[str, ParamInfo], boxes: Mapping[str, AnnotatedParam], readout: Globs | None, paths: Sequence[str]
) -> list[str]:
    """Checks that what ``readout`` names are readouts, and that there is one; returns the tied embeddings."""
    tied = []
    for pattern in _globs("readout", () if readout is None else readout, paths):
        named = [path for path in paths if matches(path, pattern)]
        weights = [path for path in named if found[path].role is Role.OUTPUT or _is_table(found[path])]
        hidden = [path for path in named if found[path].role is Role.HIDDEN]
        if hidden or not weights:
            path = (hidden or named)[0]
            raise InputError(
                f"readout has {pattern!r}, but {path!r} of shape {found[path].shape} is a {found[path].role} "
                "parameter: name the output weight alone (its input grows, its output does not), or a tied "
                "embedding (vocabulary x width)."
            )
        tied += [path for path in weights if _is_table(found[path])]
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


# -- initialization ---------------------------------------------------------------------------------------------


def _init_factor(path: str, array: jax.Array, base: jax.Array, info: ParamInfo, rule: Parametrization) -> float:
    """What a weight is multiplied by at initialization."""
    if rule.width == "standard" or info.role in (Role.VECTOR, Role.FIXED):
        return 1.0
    constant, base_constant = (float(jnp.max(x)) == float(jnp.min(x)) for x in (array, base))
    if constant and base_constant:
        return 1.0
    if constant or base_constant:
        raise InputError(
            f"parameter {path!r} is constant in {'the model' if constant else 'the base model'} alone: initialize both "
            "models with the same initializers."
        )
    wanted = info.width_in**-0.5 if info.role is Role.HIDDEN else 1.0
    measured = wanted * _std(base) / _std(array)
    # The relative standard error of a normal sample's standard deviation is 1 / sqrt(2 n).
    tolerance = 4 * math.sqrt(0.5 / array.size + 0.5 / base.size)
    halves = (0.0, -0.5, 0.5)
    powers = [info.width_in**a * info.width_out**b for a, b in itertools.product(halves, halves)]
    closest = min(powers, key=lambda power: abs(math.log(measured / power)))
    return closest if abs(math.log(measured / closest)) <= tolerance else measured


def _std(array: jax.Array) -> float:
    return float(jnp.std(array.astype(jnp.float32)))
