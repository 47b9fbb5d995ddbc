"""Roles of the parameters of a model without annotations, from their shapes at two widths.

Ambiguous shapes raise an error that says what to write. The author of the model adds the multipliers of the forward
pass: ``rule.residual_multiplier(r)`` at the end of every branch, ``rule.readout_multiplier(m)`` on the readout's
product, and ``rule.attention_scale(d, d_base)`` if heads grow.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from depthmup_flax.auditing import parameter_trees as trees
from depthmup_flax.auditing.branch_checks import require_branches
from depthmup_flax.auditing.parameter_axes import (
    ParamShapes,
    infer_axes,
    infer_decay,
    overridden,
    own_annotation,
    with_readout_ratio,
)
from depthmup_flax.auditing.parameter_trees import Globs, Leaf, shape_of
from depthmup_flax.rule.annotations import AnnotatedParam, Axes, require_axes
from depthmup_flax.rule.info_trees import matches
from depthmup_flax.rule.parametrization import ParamInfo, Role
from depthmup_flax.rule.roles import info_from_annotations, model_width
from depthmup_flax.util.errors import InputError
from depthmup_flax.util.types import ArrayTree, InfoTree

_EMBEDDING = re.compile(r"emb|tok|vocab|^wte$")


def infer_info(
    params: ArrayTree,
    base_params: ArrayTree,
    *,
    in_branch: Globs | Callable[[str], bool] = (),
    depth_ratio: float | None = None,
    readout: Globs | None = None,
    stacked: Globs = (),
    overrides: Mapping[str, Axes] | None = None,
    delta_params: ArrayTree | None = None,
) -> InfoTree:
    """The `ParamInfo` of every parameter of a model without annotations, from its shapes and the base model's.

    A dimension grows if it differs between the two models. If none grows, the parameter is fixed. If one grows, it is a
    vector (rank 1, or a name of `VECTOR_NAMES`), an input weight (the last dimension grows) or an output weight (an
    earlier one does). If two grow, it is a hidden weight: input first, then output, as in Flax. Matrices are decayed;
    biases, norms and, by name, tables of positions and class tokens are not. Annotations win.

    Globs match paths as `param_table` prints them, and everything below: ``"head"`` matches ``head/kernel``.

    Args:
      params: of the model to train: arrays or ``jax.ShapeDtypeStruct`` in any pytree, an ``nnx.State`` or a module.
      base_params: of a model with the tuned width **at the same depth** as ``params``.
      in_branch: parameters inside residual branches: globs, or ``path -> bool``. Globs that match the stem, the readout
        or only some blocks are refused; globs of names that Flax numbers (``Dense_*``) often do.
      depth_ratio: number of branches divided by the tuned model's; required with ``in_branch``. 1.0 without
        ``in_branch``: the model has no branches.
      readout: output weights whose product is multiplied by ``rule.readout_multiplier(m)``, and embeddings that are
        readouts too (tied). ``()``: the model has none.
      stacked: parameters whose leading dimension counts layers, as under ``nn.scan``.
      overrides: glob -> `Axes`, for what the shapes do not tell; wins over inference, annotations and ``in_branch``,
        and is not checked.
      delta_params: parameters of any other width, if ``params`` are the base model's own; they show which dimensions
        grow. Or ``params`` again, if the model is narrower than the base model on purpose.

    Returns:
      `ParamInfo` in the containers of ``params``; ``init_std`` is ``None`` unless annotated.

    Raises:
      InputError: a role is ambiguous, a glob matches nothing or too much, the trees differ, or nothing grows.
    """
    require_axes("overrides", overrides or {})
    leaves, structure = trees.flatten(params, "params")
    base, _ = trees.flatten(base_params, "base_params")
    witness = leaves if delta_params is None else trees.flatten(delta_params, "delta_params")[0]
    trees.require_same_paths(leaves, base, "the model", "the base model")
    trees.require_same_paths(witness, base, "delta_params", "the base model")
    _require_growth(leaves, witness, base)
    paths, overrides = list(leaves), dict(overrides or {})
    inside = _branch_paths(in_branch, paths)
    ratio = _depth_ratio(depth_ratio, inside)
    stacks = trees.matching("stacked", stacked, paths)
    readouts = trees.matching("readout", () if readout is None else readout, paths)
    trees.matching("overrides", overrides, paths)

    boxes, explicit = {}, set()
    for path, leaf in leaves.items():
        shapes = ParamShapes(path, shape_of(leaf), shape_of(witness[path]), shape_of(base[path]), path in stacks)
        own = _located(path, leaf, path in inside, ratio)
        if own.names or any(matches(path, glob) and a.in_branch is not None for glob, a in overrides.items()):
            explicit.add(path)
        box = overridden(path, own, overrides)
        if box is own and not box.names:
            box = box.replace(names=infer_axes(shapes, box.in_branch), decay=infer_decay(shapes))
        boxes[path] = with_readout_ratio(box, shapes, path in readouts)
    if depth_ratio is None and not any(box.in_branch for box in boxes.values()):
        raise InputError(
            "nothing says which parameters are inside residual branches: pass in_branch='Block_*' (a glob of their "
            f"paths, which are like {trees.examples(paths)}) and depth_ratio=depth / base_depth, or depth_ratio=1.0 "
            "for a model that has none."
        )
    infos = info_from_annotations(boxes, {path: trees.abstract(leaf) for path, leaf in base.items()})
    tied = _tied_embeddings(infos, readout, overrides)
    require_branches(infos, explicit, tied)
    width = model_width(infos.values(), [infos[path] for path in tied])
    return jax.tree_util.tree_unflatten(
        structure, [dataclasses.replace(infos[path], model_width=width) for path in paths]
    )


def _require_growth(leaves: Mapping[str, Leaf], witness: Mapping[str, Leaf], base: Mapping[str, Leaf]) -> None:
    """Raises `InputError` unless the witness differs from the base model, and the model is not narrower."""
    pairs = {path: list(zip(shape_of(leaf), shape_of(base[path]), strict=True)) for path, leaf in witness.items()}
    changes = [(path, size, other) for path, sizes in pairs.items() for size, other in sizes if size != other]
    if not changes and witness is not leaves:
        raise InputError("nothing grows: delta_params have the base model's shapes; build them at any other width.")
    if not changes:
        raise InputError(
            "nothing grows: params and base_params have the same shapes. Build base_params at the base model's width "
            "or, to train the base model itself, pass delta_params=<parameters of the model at any other width>."
        )
    if witness is leaves and all(size < other for _, size, other in changes):
        path = changes[0][0]
        raise InputError(
            f"params are narrower than base_params, such as {path!r} of shape {shape_of(leaves[path])} and "
            f"{shape_of(base[path])}: pass the model's first and the base model's second or, if the model is meant to "
            "be narrower than the tuned one, delta_params=params too."
        )


def _branch_paths(in_branch: Globs | Callable[[str], bool], paths: Sequence[str]) -> set[str]:
    is_inside = in_branch if callable(in_branch) else trees.matching("in_branch", in_branch, paths).__contains__
    inside = {path for path in paths if is_inside(path)}
    if callable(in_branch) and not inside:
        some = trees.examples(paths)
        raise InputError(f"in_branch is false for every path, such as {some}: it must be true inside branches.")
    if inside == set(paths):
        raise InputError(f"in_branch = {in_branch!r} matches every parameter: match the residual branches alone.")
    return inside


def _depth_ratio(depth_ratio: Any, inside: set[str]) -> float:
    """``depth_ratio`` as a float; 1 for ``None``."""
    if depth_ratio is None and inside:
        raise InputError("in_branch is given but depth_ratio is not: pass depth_ratio=depth / base_depth.")
    ratio = 1.0 if depth_ratio is None else trees.depth_ratio_number(depth_ratio)
    if ratio != 1 and not inside:
        raise InputError(
            f"depth_ratio is {ratio:g} but in_branch is missing: pass in_branch=, globs of the branches' parameters."
        )
    return ratio


def _located(path: str, leaf: Leaf, inside: bool, depth_ratio: float) -> AnnotatedParam:
    """The parameter with its own annotation, or without axes (``names=()``), and with the branch it is in."""
    box = own_annotation(leaf) or AnnotatedParam(trees.abstract(leaf), names=())
    if box.in_branch and inside and not math.isclose(box.depth_ratio, depth_ratio):
        raise InputError(
            f"parameter {path!r} is in a ResidualBranch with depth_ratio {box.depth_ratio:g}, but depth_ratio here is "
            f"{depth_ratio:g}: use one number, or leave {path!r} out of in_branch."
        )
    return box.replace(in_branch=True, depth_ratio=depth_ratio) if inside and not box.in_branch else box


def _tied_embeddings(infos: Mapping[str, ParamInfo], readout: Globs | None, overrides: Mapping[str, Axes]) -> list[str]:
    """The embeddings that ``readout`` names; raises `InputError` if it names anything else, or there is no readout."""
    paths, tied, outputs = list(infos), [], []
    for pattern in trees.globs("readout", () if readout is None else readout, paths):
        named = [path for path in paths if matches(path, pattern)]
        hidden = [path for path in named if infos[path].role is Role.HIDDEN]
        named_outputs = [path for path in named if infos[path].role is Role.OUTPUT]
        tables = [path for path in named if _is_table(infos[path])]
        if hidden or not (tables or named_outputs):
            path = (hidden or named)[0]
            raise InputError(
                f"readout has {pattern!r}, but {path!r} of shape {infos[path].shape} is a {infos[path].role} "
                "parameter: name the output weight alone (its input grows, its output does not), or a tied "
                "embedding (vocabulary x width)."
            )
        outputs += named_outputs
        tied += tables
    for path in tied:
        if outputs and not _EMBEDDING.search(path.lower()) and not any(matches(path, glob) for glob in overrides):
            raise InputError(
                f"readout names {path!r} of shape {infos[path].shape}, an input weight, in addition to {outputs[0]!r}: "
                f"name the output weight alone or, if the first is an embedding tied to the output, pass "
                f"overrides={{{path!r}: Axes(('fixed_in', 'width_out'))}}."
            )
    if readout is None and not any(leaf.role is Role.OUTPUT for leaf in infos.values()):
        tables = [path for path in paths if _is_table(infos[path])]
        likely = [path for path in tables if "embed" in path.lower()] or tables or paths[:1]
        raise InputError(
            "the model has no readout: if an embedding is the readout too (tied), multiply its logits by "
            f"rule.readout_multiplier(m) and name it, such as readout={likely[0]!r}; if it has none, pass readout=()."
        )
    return tied


def _is_table(info: ParamInfo) -> bool:
    """Vocabulary x width; the width grows."""
    return info.role is Role.INPUT and len(info.shape) == 2 and not info.in_branch
