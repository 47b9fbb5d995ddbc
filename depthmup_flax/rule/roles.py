"""Which parameter has which role and ratios: annotations, `param_info`, and the printed table.

A parameter is declared once, with its logical axes::

    kernel = self.param("kernel", annotated(nn.initializers.lecun_normal(), ("width_in", "width_out")), shape)

The axes say which dimensions grow (hence the `Role`), and are the logical names a sharding rule can use. Whether a
parameter is inside a residual branch is noted while the branch runs (`residual_scope`). The two together give a pytree
of `ParamInfo` with the structure of the parameters and no arrays in it, which travels beside them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import math
import numbers
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
from flax import struct

from depthmup_flax.errors import InputError, did_you_mean
from depthmup_flax.rule.parametrization import ParamInfo, Role

AxisNames = tuple[str | None, ...]

# Logical axis name -> (direction, grows with the model). ``None`` is an axis without a direction, such as a
# convolution's window; ``layers`` is the leading axis of a scanned stack, and is not a width.
AXES: Mapping[str | None, tuple[str | None, bool]] = {
    "fixed_in": ("in", False),  # pixels, vocabulary, positions
    "width_in": ("in", True),
    "width_out": ("out", True),
    # Of a width, too, but of features inside a branch: attention heads, a feed-forward's hidden layer.
    "inner_in": ("in", True),
    "inner_out": ("out", True),
    "fixed_out": ("out", False),  # classes
    "layers": (None, False),
    None: (None, False),
}
_AXIS_NAMES = ", ".join(map(repr, AXES))


@struct.dataclass
class AnnotatedParam(nn.LogicallyPartitioned):
    """A parameter in its annotation, as ``model.init`` returns it; ``flax.linen.unbox`` takes it out.

    ``names`` are the logical axes (see `AXES`); the other fields become those of `ParamInfo`.
    """

    in_branch: bool = struct.field(default=False, pytree_node=False)
    depth_ratio: float = struct.field(default=1.0, pytree_node=False)
    init_std: float | None = struct.field(default=None, pytree_node=False)
    decay: bool | None = struct.field(default=None, pytree_node=False)
    width_ratio: float | None = struct.field(default=None, pytree_node=False)  # what a Readout divides by

    def to_nnx_metadata(self) -> dict[str, Any]:
        """For ``nnx.bridge.ToNNX``: every field as it is. NNX would place an array that names its axes on a mesh."""
        return dict(vars(self))

    @classmethod
    def from_nnx_metadata(cls, metadata: dict[str, Any]) -> AnnotatedParam:
        """The inverse, for the way back into Linen."""
        return cls(**{field.name: metadata[field.name] for field in dataclasses.fields(cls)})


# The depth ratio of the residual branch that is running. A JAX context rather than a Python one: it is part of the key
# under which JAX and Flax reuse traces, so that equal modules in and outside branches do not share one.
_branch_depth_ratio = jax.make_user_context(None)


@contextlib.contextmanager
def residual_scope(depth_ratio: float) -> Iterator[None]:
    """Parameters initialized inside are recorded as inside a residual branch of a network with this depth ratio.

    `ResidualBranch` enters it. Use it yourself around ``self.param`` in ``setup``, which runs before the branch.
    """
    if not isinstance(depth_ratio, numbers.Real) or not 0 < depth_ratio < math.inf:
        raise InputError(f"depth_ratio is {depth_ratio!r}: use depth / base_depth, a number above 0.")
    with _branch_depth_ratio(float(depth_ratio)):
        yield


def require_in_branch(module: str, params: Any) -> None:
    """Raises `InputError` if a parameter of a branch's ``module`` was recorded as outside any branch.

    That happens to a module that was called outside first.
    """
    for path, leaf in jax.tree_util.tree_flatten_with_path(params, is_leaf=_is_box)[0]:
        if isinstance(leaf, AnnotatedParam) and not leaf.in_branch:
            raise InputError(
                f"parameter '{module}/{path_name(path)}' is used in a residual branch but was made outside: do not "
                "share it, or call the branch first."
            )


def annotated(
    init: Callable[..., jax.Array],
    axes: AxisNames,
    *,
    init_std: float | None = None,
    decay: bool | None = None,
    width_ratio: float | None = None,
) -> Callable[..., AnnotatedParam]:
    """Wraps any Flax initializer so that the parameter carries its logical axes; use it in your own modules too.

    Args:
      init: ``(key, shape, dtype) -> array``.
      axes: one name of `AXES` per dimension of the parameter, in the order of its shape.
      init_std: standard deviation of ``init``, for the printed table; ``None`` prints as "?".
      decay: whether weight decay applies; ``None``: to matrices (roles input, hidden, output), not to vectors.
      width_ratio: the ``m`` that the forward pass divides by, if it does; `param_info` holds it against the shapes.

    Raises:
      InputError: an unknown axis name. `param_info` checks that there is one name per dimension.
    """
    _require_axis_names(axes)

    def init_annotated(key: jax.Array, shape: tuple[int, ...], *args: Any, **kwargs: Any) -> AnnotatedParam:
        # The shape here may be a flattened one (flax.linen.DenseGeneral), so the axes are held against it later.
        ratio = _branch_depth_ratio.value
        return AnnotatedParam(
            init(key, shape, *args, **kwargs),
            names=axes,
            in_branch=ratio is not None,
            depth_ratio=1.0 if ratio is None else float(ratio),
            init_std=init_std,
            decay=decay,
            width_ratio=width_ratio,
        )

    return init_annotated


@dataclasses.dataclass(frozen=True)
class Axes:
    """What to write for a parameter that carries no annotation, or to correct one.

    Attributes:
      names: one of `AXES` per dimension.
      in_branch: inside a residual branch or not; ``None`` keeps what the annotation recorded, and is an error for a
        parameter without one.
      depth_ratio: of the branch, for ``in_branch=True``; ``None`` keeps what was recorded.
      decay, width_ratio: as in `annotated`; ``None`` keeps what was recorded.
    """

    names: AxisNames
    in_branch: bool | None = None
    depth_ratio: float | None = None
    decay: bool | None = None
    width_ratio: float | None = None

    def __post_init__(self) -> None:
        _require_axis_names(self.names)

    def annotate(self, path: str, leaf: Any) -> AnnotatedParam:
        """``leaf`` (an annotated parameter, or anything with a shape) with this annotation."""
        recorded = isinstance(leaf, AnnotatedParam)
        in_branch = leaf.in_branch if recorded and self.in_branch is None else self.in_branch
        depth_ratio = leaf.depth_ratio if recorded and self.depth_ratio is None else self.depth_ratio
        if in_branch is None or (in_branch and depth_ratio is None):
            raise InputError(
                f"the override of parameter {path!r} does not say where it is: write Axes(names, in_branch=False), or "
                "in_branch=True with depth_ratio=depth / base_depth."
            )
        return AnnotatedParam(
            nn.unbox(leaf),
            names=self.names,
            in_branch=in_branch,
            depth_ratio=depth_ratio if in_branch and depth_ratio is not None else 1.0,
            init_std=leaf.init_std if recorded else None,
            decay=leaf.decay if recorded and self.decay is None else self.decay,
            width_ratio=leaf.width_ratio if recorded and self.width_ratio is None else self.width_ratio,
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
      *inputs: what the models are called with, arrays or ``jax.ShapeDtypeStruct``.
      **kwargs: static arguments of the call, such as ``train=False``.
      overrides: glob of a parameter's path (``"encoder/*/kernel"``) to its `Axes`, for parameters without an
        annotation or to correct one.

    Raises:
      InputError: a parameter has no role (names it and says what to write), an override matches nothing, or the two
        models have different trees.
    """
    shapes, base_shapes = (init_shapes(m, *inputs, **kwargs) for m in (model, base_model))
    return info_from_annotations(shapes, base_shapes, overrides)


def info_from_annotations(params: Any, base_params: Any, overrides: Mapping[str, Axes] | None = None) -> Any:
    """`param_info` from two trees of annotated parameters (arrays or shapes), the model's and the base model's."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(params, is_leaf=_is_box)
    base_leaves = dict(jax.tree_util.tree_flatten_with_path(base_params, is_leaf=_is_box)[0])
    unused = set(overrides or {})
    extra = base_leaves.keys() - {path for path, _ in leaves}
    if extra:
        raise InputError(
            f"parameter {path_name(min(extra, key=path_name))!r} is in the base model but not in the model."
        )
    labeled = []
    for path, leaf in leaves:
        name = path_name(path)
        for pattern, axes in (overrides or {}).items():
            if fnmatch.fnmatchcase(name, pattern):
                leaf = axes.annotate(name, leaf)
                unused.discard(pattern)
        if path not in base_leaves:
            raise InputError(f"parameter {name!r} is in the model but not in the base model: give both the same depth.")
        if not isinstance(leaf, AnnotatedParam):
            raise InputError(
                f"parameter {name!r} of shape {tuple(nn.unbox(leaf).shape)} has no role: build it with a layer of "
                f"depthmup_flax.nn.layers, wrap its initializer as depthmup_flax.annotated(init, axes), or pass "
                f"overrides={{{name!r}: Axes(names, in_branch=...)}} with one of {_AXIS_NAMES} per dimension."
            )
        labeled.append(_info_of_leaf(name, leaf, nn.unbox(base_leaves[path]).shape))
    if unused:
        raise InputError(f"override {sorted(unused)[0]!r} matches no parameter: write a glob of one of the paths.")
    return jax.tree_util.tree_unflatten(structure, _with_model_width(labeled))


def param_axes(model: nn.Module, *inputs: Any, **kwargs: Any) -> dict[str, AxisNames]:
    """Path of every annotated parameter -> its logical axes, from which `depthmup_flax.parallel.sharding`
    takes its place.

    Arguments as in `param_info`.
    """
    return axes_from_annotations(init_shapes(model, *inputs, **kwargs))


def axes_from_annotations(params: Any) -> dict[str, AxisNames]:
    """`param_axes` from a tree of annotated parameters (arrays or shapes)."""
    leaves = jax.tree_util.tree_flatten_with_path(params, is_leaf=_is_box)[0]
    return {path_name(path): leaf.names for path, leaf in leaves if isinstance(leaf, AnnotatedParam)}


def is_info(x: Any) -> bool:
    """``is_leaf`` for maps over a tree of `ParamInfo`."""
    return isinstance(x, ParamInfo)


def path_name(path: Any) -> str:
    """``blocks/Dense_0/kernel`` for a key path of ``jax.tree_util``."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def is_nnx(x: Any, *names: str) -> bool:
    """Whether ``x`` is an instance of ``flax.nnx.<name>``. Nothing is where nobody has imported NNX, which is slow."""
    nnx = sys.modules.get("flax.nnx")
    return nnx is not None and isinstance(x, tuple(getattr(nnx, name) for name in names))


def flatten_info(info: Any) -> dict[str, ParamInfo]:
    """Path -> `ParamInfo`, in the order of the tree."""
    return {path_name(path): leaf for path, leaf in jax.tree_util.tree_flatten_with_path(info, is_leaf=is_info)[0]}


def matches(path: str, pattern: str) -> bool:
    """Whether a glob matches a path or its beginning: ``"stem"`` matches ``stem/kernel``."""
    return fnmatch.fnmatchcase(path, pattern) or fnmatch.fnmatchcase(path, f"{pattern}/*")


def frozen_paths(info: Any, patterns: Sequence[str]) -> set[str]:
    """Paths that match a glob of ``patterns``, or whose beginning does: ``"stem"`` is everything below it.

    Raises:
      InputError: a pattern matches no parameter, or together they match all.
    """
    if isinstance(patterns, str):
        raise InputError(f"optimizer.frozen is the string {patterns!r}: use a tuple of patterns, ({patterns!r},).")
    paths, frozen = list(flatten_info(info)), set()
    for pattern in patterns:
        matched = {path for path in paths if matches(path, pattern)}
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


def param_count(info: Any) -> int:
    """Numbers in the arrays that a tree of `ParamInfo` describes."""
    return sum(math.prod(leaf.shape) for leaf in flatten_info(info).values())


def init_shapes(model: nn.Module, *inputs: Any, **kwargs: Any) -> Any:
    """The annotated shapes of a model's parameters; arguments as in `param_info`."""
    # A constant key: eval_shape draws nothing, and the key's own creation is traced, so no device is touched.
    return jax.eval_shape(lambda *xs: model.init(jax.random.key(0), *xs, **kwargs), *inputs)["params"]


def _require_axis_names(axes: Any) -> None:
    if isinstance(axes, str) or not isinstance(axes, (tuple, list)):
        raise InputError(f"axes is {axes!r}: use a tuple with one of {_AXIS_NAMES} per dimension.")
    for i, name in enumerate(axes):
        if name not in AXES:
            raise InputError(
                f"axis name {name!r} is unknown: use one of {_AXIS_NAMES} (a scanned stack's is 'layers', by "
                "metadata_params={flax.linen.PARTITION_NAME: 'layers'})."
            )
        if name == "layers" and i > 0:
            raise InputError(f"axes {tuple(axes)} have 'layers' at {i}: a stack's axis comes first.")


def _is_box(x: Any) -> bool:
    return isinstance(x, nn.meta.AxisMetadata)


def _info_of_leaf(name: str, box: AnnotatedParam, base_shape: tuple[int, ...]) -> ParamInfo:
    """Role and ratios of one annotated leaf, from its axes and the base model's shape."""
    shape = tuple(box.value.shape)
    _require_axis_names(box.names)
    if len(box.names) != len(shape):
        raise InputError(
            f"parameter {name!r} has shape {shape}, but its axes {box.names} name {len(box.names)} dimensions: give "
            f"one of {_AXIS_NAMES} per dimension."
        )
    if len(base_shape) != len(shape):
        raise InputError(
            f"parameter {name!r} has shape {shape}, and {base_shape} in the base model: use the same model."
        )
    ratio, grows = {"in": 1.0, "out": 1.0}, {"in": False, "out": False}
    has_input, has_output = ({AXES[axis][0] for axis in box.names} >= {direction} for direction in ("in", "out"))
    for axis, size, base_size in zip(box.names, shape, base_shape, strict=True):
        direction, growing = AXES[axis]
        if growing and direction is not None:
            grows[direction] = True
            ratio[direction] *= size / base_size
        elif size != base_size:
            raise InputError(
                f"parameter {name!r} has size {size} along {axis!r} and {base_size} in the base model, but that axis "
                "does not grow: name it 'width_in' or 'width_out', or give the base model the same depth and data."
            )
    role = _ROLE_OF_GROWTH[grows["in"], grows["out"]]
    if role in (Role.INPUT, Role.OUTPUT) and not (has_input and has_output):  # a lone direction is a vector
        role, ratio = Role.VECTOR, {"in": 1.0, "out": ratio["in"] * ratio["out"]}
    if role is Role.OUTPUT:
        _require_readout(name, box.width_ratio, ratio["in"])
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


def _require_readout(name: str, declared: float | None, measured: float) -> None:
    """An output matrix must be multiplied by 1/m in the forward pass, by the m that the shapes say."""
    if declared is None:
        raise InputError(
            f"parameter {name!r} is a readout (its input grows, its output does not), but nothing says that its "
            "product is multiplied by 1/m: use depthmup_flax.Readout, or do that and annotate it with width_ratio=m."
        )
    if not math.isclose(declared, measured):
        raise InputError(
            f"parameter {name!r} is of a readout with width_ratio {declared:g}, but it is {measured:g} times as wide "
            "as in the base model: give the readout width_ratio = width / base width, with the same base."
        )


# (the input dimension grows, the output dimension grows) -> role
_ROLE_OF_GROWTH = {
    (True, True): Role.HIDDEN,
    (False, True): Role.INPUT,
    (True, False): Role.OUTPUT,
    (False, False): Role.FIXED,
}


def _with_model_width(labeled: list[ParamInfo]) -> list[ParamInfo]:
    """The readout's input ratio is the whole model's width ratio m, which every leaf carries."""
    ratios = {leaf.width_in for leaf in labeled if leaf.role is Role.OUTPUT and not leaf.in_branch}
    if len(ratios) > 1:
        raise InputError(f"readouts have different width ratios {sorted(ratios)}: they must grow together.")
    model_width = ratios.pop() if ratios else max((leaf.width_out for leaf in labeled), default=1.0)
    return [dataclasses.replace(leaf, model_width=model_width) for leaf in labeled]
