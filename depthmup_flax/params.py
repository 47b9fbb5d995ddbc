"""Which parameter has which role and ratios: annotations, `param_info`, and the printed table.

A parameter is declared once, with its logical axes::

    kernel = self.param("kernel", annotated(nn.initializers.lecun_normal(), ("width_in", "width_out")), shape)

The axes say which dimensions grow (hence the `Role`), and are the logical names a sharding rule can use. Whether a
parameter is inside a residual branch is noted while the branch runs (`residual_scope`). The two together give a pytree
of `ParamInfo` with the structure of the parameters and no arrays in it, which travels beside them.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import fnmatch
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
from flax import struct

from depthmup_flax.errors import InputError, did_you_mean
from depthmup_flax.parametrization import Parametrization, ParamInfo, Role

AxisNames = tuple[str | None, ...]

# Logical axis name -> (direction, grows with the model). ``None`` is an axis without a direction, such as a
# convolution's window; ``layers`` is the leading axis of a scanned stack, and is not a width.
AXES: Mapping[str | None, tuple[str | None, bool]] = {
    "fixed_in": ("in", False),  # pixels, vocabulary, positions
    "width_in": ("in", True),
    "width_out": ("out", True),
    "fixed_out": ("out", False),  # classes
    "layers": (None, False),
    None: (None, False),
}


@struct.dataclass
class AnnotatedParam(nn.LogicallyPartitioned):
    """A parameter in its annotation, as ``model.init`` returns it; ``flax.linen.unbox`` takes it out.

    ``names`` are the logical axes (see `AXES`); the other fields become those of `ParamInfo`.
    """

    in_branch: bool = struct.field(default=False, pytree_node=False)
    depth_ratio: float = struct.field(default=1.0, pytree_node=False)
    init_std: float | None = struct.field(default=None, pytree_node=False)
    decay: bool | None = struct.field(default=None, pytree_node=False)

    def to_nnx_metadata(self) -> dict[str, Any]:
        """For ``nnx.bridge.ToNNX``: every field as it is. NNX would place an array that names its axes on a mesh."""
        return dict(vars(self))

    @classmethod
    def from_nnx_metadata(cls, metadata: dict[str, Any]) -> AnnotatedParam:
        """The inverse, for the way back into Linen."""
        return cls(**{field.name: metadata[field.name] for field in dataclasses.fields(cls)})


_branch_depth_ratio: contextvars.ContextVar[float | None] = contextvars.ContextVar("branch_depth_ratio", default=None)


@contextlib.contextmanager
def residual_scope(depth_ratio: float) -> Iterator[None]:
    """Parameters initialised inside are recorded as inside a residual branch of a network with this depth ratio."""
    token = _branch_depth_ratio.set(depth_ratio)
    try:
        yield
    finally:
        _branch_depth_ratio.reset(token)


def require_in_branch(module: str, params: Any) -> None:
    """Raises `InputError` if a parameter of a branch's ``module`` was recorded as outside any branch.

    That happens to a module that was first called outside, and under ``flax.linen.jit``, which reuses the trace of an
    equal module wherever that one was.
    """
    for path, leaf in jax.tree_util.tree_flatten_with_path(params, is_leaf=_is_box)[0]:
        if isinstance(leaf, AnnotatedParam) and not leaf.in_branch:
            raise InputError(
                f"parameter '{module}/{path_name(path)}' is used in a residual branch but was made outside: do not "
                "share it, take flax.linen.jit off the branch, or call the branch first."
            )


def annotated(
    init: Callable[..., jax.Array],
    axes: AxisNames,
    *,
    init_std: float | None = None,
    decay: bool | None = None,
) -> Callable[..., AnnotatedParam]:
    """Wraps any Flax initializer so that the parameter carries its logical axes; use it in your own modules too.

    Args:
      init: ``(key, shape, dtype) -> array``.
      axes: one name of `AXES` per dimension of the parameter, in the order of its shape.
      init_std: standard deviation of ``init``, for the printed table; ``None`` prints as "?".
      decay: whether weight decay applies; ``None``: to matrices (roles input, hidden, output), not to vectors.

    Raises:
      InputError: an unknown axis name, or as many names as the parameter does not have dimensions.
    """
    for name in axes:
        if name not in AXES:
            raise InputError(f"axis name {name!r} is unknown: use one of {', '.join(map(repr, AXES))}.")

    def init_annotated(key: jax.Array, shape: tuple[int, ...], *args: Any, **kwargs: Any) -> AnnotatedParam:
        if len(axes) != len(shape):
            raise InputError(f"axes {axes} name {len(axes)} dimensions, but the parameter has shape {tuple(shape)}.")
        ratio = _branch_depth_ratio.get()
        return AnnotatedParam(
            init(key, shape, *args, **kwargs),
            names=axes,
            in_branch=ratio is not None,
            depth_ratio=1.0 if ratio is None else float(ratio),
            init_std=init_std,
            decay=decay,
        )

    return init_annotated


@dataclasses.dataclass(frozen=True)
class Axes:
    """What to write for a parameter that carries no annotation: its logical axes, and where it is."""

    names: AxisNames
    in_branch: bool = False
    depth_ratio: float = 1.0
    decay: bool | None = None

    def annotate(self, leaf: Any) -> AnnotatedParam:
        """``leaf`` (anything with a shape) in the annotation."""
        if len(self.names) != len(leaf.shape):
            raise InputError(f"axes {self.names} name {len(self.names)} dimensions, but the shape is {leaf.shape}.")
        return AnnotatedParam(
            leaf, names=self.names, in_branch=self.in_branch, depth_ratio=self.depth_ratio, decay=self.decay
        )


def param_info(
    model: nn.Module,
    base_model: nn.Module,
    *inputs: Any,
    overrides: Mapping[str, Axes] | None = None,
    **kwargs: Any,
) -> Any:
    """The `ParamInfo` of every parameter of ``model``: a pytree with the structure of its ``"params"`` collection.

    Shapes come from ``jax.eval_shape``: nothing is computed or allocated, at any size.

    Args:
      model: the model that will be trained.
      base_model: the same model **at the same depth** with the tuned proxy's width (``model.base()`` for ours);
        its shapes give the width ratios. Depth ratios come from the residual branches themselves.
      *inputs, **kwargs: what the models are called with, arrays or ``jax.ShapeDtypeStruct``.
      overrides: glob of a parameter's path (``"encoder/*/kernel"``) to its `Axes`, for parameters without an
        annotation or to correct one.

    Raises:
      InputError: a parameter has no role (names it and says what to write), an override matches nothing, or the two
        models have different trees.
    """
    shapes, base_shapes = (_init_shapes(m, *inputs, **kwargs) for m in (model, base_model))
    return info_from_annotations(shapes, base_shapes, overrides)


def info_from_annotations(params: Any, base_params: Any, overrides: Mapping[str, Axes] | None = None) -> Any:
    """`param_info` from two trees of annotated parameters (arrays or shapes), the model's and the base model's."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(params, is_leaf=_is_box)
    base_leaves = dict(jax.tree_util.tree_flatten_with_path(base_params, is_leaf=_is_box)[0])
    unused = set(overrides or {})
    labelled = []
    for path, leaf in leaves:
        name = path_name(path)
        for pattern, axes in (overrides or {}).items():
            if fnmatch.fnmatchcase(name, pattern):
                leaf = axes.annotate(nn.unbox(leaf))
                unused.discard(pattern)
        if path not in base_leaves:
            raise InputError(f"parameter {name!r} is in the model but not in the base model: give both the same depth.")
        if not isinstance(leaf, AnnotatedParam):
            raise InputError(
                f"parameter {name!r} of shape {tuple(leaf.shape)} has no role: build it with a layer of "
                f"depthmup_flax.layers, wrap its initializer as depthmup_flax.annotated(init, axes), or pass "
                f"overrides={{{name!r}: Axes(names)}} with one of {', '.join(map(repr, AXES))} per dimension."
            )
        labelled.append(_info_of_leaf(name, leaf, nn.unbox(base_leaves[path]).shape))
    if unused:
        raise InputError(f"override {sorted(unused)[0]!r} matches no parameter: write a glob of one of the paths.")
    return jax.tree_util.tree_unflatten(structure, _with_model_width(labelled))


def is_info(x: Any) -> bool:
    """``is_leaf`` for maps over a tree of `ParamInfo`."""
    return isinstance(x, ParamInfo)


def path_name(path: Any) -> str:
    """``blocks/Dense_0/kernel`` for a key path of ``jax.tree_util``."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def flatten_info(info: Any) -> dict[str, ParamInfo]:
    """Path -> `ParamInfo`, in the order of the tree."""
    return {path_name(path): leaf for path, leaf in jax.tree_util.tree_flatten_with_path(info, is_leaf=is_info)[0]}


def frozen_paths(info: Any, patterns: Sequence[str]) -> set[str]:
    """Paths that match a glob of ``patterns``, or whose beginning does: ``"stem"`` is everything below it.

    Raises:
      InputError: a pattern matches no parameter, or together they match all.
    """
    if isinstance(patterns, str):
        raise InputError(f"optimizer.frozen is the string {patterns!r}: use a tuple of patterns, ({patterns!r},).")
    paths, frozen = list(flatten_info(info)), set()
    for pattern in patterns:
        matched = {
            path for path in paths if fnmatch.fnmatchcase(path, pattern) or fnmatch.fnmatchcase(path, f"{pattern}/*")
        }
        if not matched:
            hint = did_you_mean(pattern, {path.split("/")[0] for path in paths})
            raise InputError(f"optimizer.frozen has {pattern!r}, which matches no parameter: {hint}")
        frozen |= matched
    if paths and frozen == set(paths):
        raise InputError(f"optimizer.frozen = {tuple(patterns)} freezes every parameter: leave something to train.")
    return frozen


def info_to_json(info: Any) -> dict[str, dict[str, Any]]:
    """Path -> fields, for a checkpoint's metadata. `info_from_json` is the inverse for nested dictionaries."""
    return {name: dataclasses.asdict(leaf) for name, leaf in flatten_info(info).items()}


def info_from_json(data: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """A nested dictionary of `ParamInfo` from what `info_to_json` wrote."""
    tree: dict[str, Any] = {}
    for name, fields in data.items():
        *parents, last = name.split("/")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = ParamInfo(**{**fields, "role": Role(fields["role"]), "shape": tuple(fields["shape"])})
    return tree


def param_table(
    info: Any,
    parametrization: Parametrization,
    *,
    degree: float = 0.0,
    eps: float | None = None,
    weight_decay: float = 0.0,
    frozen: Sequence[str] = (),
) -> str:
    """One line per parameter: what it is and every factor the rule gives it, with totals.

    Columns: path, shape, role (``+branch`` inside a residual branch), standard deviation at initialization, forward
    multiplier, effective learning-rate multiplier, epsilon relative to the raw gradient, decay rate.

    Args:
      info: from `param_info`.
      parametrization: the rule.
      degree: homogeneity of the optimizer's update in the gradient: 1 for SGD and momentum, 0 for Adam-like.
      eps: the optimizer's epsilon, or ``None`` if it has none.
      weight_decay: lambda; decayed leaves lose ``learning_rate * lambda`` of themselves a step.
      frozen: as in `depthmup_flax.freeze`; these show "frozen" for a rate.
    """
    rows = [("parameter", "shape", "role", "init std", "forward", "lr mult", "eps", "decay")]
    leaves = flatten_info(info)
    still = frozen_paths(info, frozen)
    for name, leaf in leaves.items():
        rate = "frozen" if name in still else f"{float(parametrization.lr_multiplier(leaf, degree)):.4g}"
        rows.append(
            (
                name,
                "x".join(map(str, leaf.shape)) or "scalar",
                leaf.role + ("+branch" if leaf.in_branch else ""),
                "?" if leaf.init_std is None else f"{leaf.init_std:.4g}",
                f"{float(parametrization.forward_multiplier(leaf)):.4g}",
                rate,
                "-" if eps is None else f"{eps / float(parametrization.gradient_scale(leaf)):.3g}",
                f"{weight_decay:g}" if leaf.decay and name not in still else "0",
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    left = 3  # names are left-aligned, numbers right-aligned
    lines = [
        "  ".join(
            cell.ljust(w) if i < left else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    rule = "-" * len(lines[0])
    count = sum(math.prod(leaf.shape) for leaf in leaves.values())
    in_branch = sum(math.prod(leaf.shape) for leaf in leaves.values() if leaf.in_branch)
    total = f"{len(leaves)} arrays, {count:,} parameters, {in_branch:,} of them inside residual branches"
    return "\n".join(line.rstrip() for line in [lines[0], rule, *lines[1:], rule, total])


def _init_shapes(model: nn.Module, *inputs: Any, **kwargs: Any) -> Any:
    # A constant key: eval_shape draws nothing, and the key's own creation is traced, so no device is touched.
    return jax.eval_shape(lambda *xs: model.init(jax.random.key(0), *xs, **kwargs), *inputs)["params"]


def _is_box(x: Any) -> bool:
    return isinstance(x, nn.meta.AxisMetadata)


def _info_of_leaf(name: str, box: AnnotatedParam, base_shape: tuple[int, ...]) -> ParamInfo:
    """Role and ratios of one annotated leaf, from its axes and the base model's shape."""
    shape = tuple(box.value.shape)
    if len(box.names) != len(shape) or len(base_shape) != len(shape):
        raise InputError(f"parameter {name!r} has shape {shape}, axes {box.names} and base shape {base_shape}.")
    ratio, grows, has_input = {"in": 1.0, "out": 1.0}, {"in": False, "out": False}, False
    for axis, size, base_size in zip(box.names, shape, base_shape, strict=True):
        direction, growing = AXES[axis]
        has_input |= direction == "in"
        if growing and direction is not None:
            grows[direction] = True
            ratio[direction] *= size / base_size
        elif size != base_size:
            raise InputError(
                f"parameter {name!r} has size {size} along {axis!r} and {base_size} in the base model, but that axis "
                "does not grow: name it 'width_in' or 'width_out', or give the base model the same depth and data."
            )
    role = _ROLE_OF_GROWTH[grows["in"], grows["out"]]
    if role is Role.INPUT and not has_input:
        role = Role.VECTOR
    return ParamInfo(
        role=role,
        shape=shape,
        width_in=ratio["in"],
        width_out=ratio["out"],
        in_branch=box.in_branch,
        depth_ratio=box.depth_ratio,
        init_std=box.init_std,
        decay=role not in (Role.VECTOR, Role.FIXED) if box.decay is None else box.decay,
    )


# (the input dimension grows, the output dimension grows) -> role; a lone growing dimension is a vector.
_ROLE_OF_GROWTH = {
    (True, True): Role.HIDDEN,
    (False, True): Role.INPUT,
    (True, False): Role.OUTPUT,
    (False, False): Role.FIXED,
}


def _with_model_width(labelled: list[ParamInfo]) -> list[ParamInfo]:
    """The readout's input ratio is the whole model's width ratio m, which every leaf carries."""
    ratios = {leaf.width_in for leaf in labelled if leaf.role is Role.OUTPUT}
    if len(ratios) > 1:
        raise InputError(f"readouts have different width ratios {sorted(ratios)}: they must grow together.")
    model_width = ratios.pop() if ratios else max((leaf.width_out for leaf in labelled), default=1.0)
    return [dataclasses.replace(leaf, model_width=model_width) for leaf in labelled]
