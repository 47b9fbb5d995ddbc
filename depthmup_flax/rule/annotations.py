"""The axes of a parameter by name, for what a trace does not tell: they say which dimensions grow, hence its `Role`."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

import flax.linen as nn
from flax import struct

from depthmup_flax.util.errors import InputError, shown
from depthmup_flax.util.types import ArrayTree

AxisNames = tuple[str | None, ...]

# Logical axis name -> (direction, grows with the model).
AXES: Mapping[str | None, tuple[str | None, bool]] = {
    "fixed_in": ("in", False),  # pixels, positions
    "vocab_in": ("in", False),  # tokens of a vocabulary, which may be split over devices
    "width_in": ("in", True),
    "width_out": ("out", True),
    "inner_in": ("in", True),  # a width inside a branch: attention heads, a feed-forward's hidden layer
    "inner_out": ("out", True),
    "fixed_out": ("out", False),  # classes
    "vocab_out": ("out", False),
    "layers": (None, False),  # the leading axis of a scanned stack
    "experts": (None, False),  # of networks side by side, among which a router chooses
    None: (None, False),  # such as a convolution's window
}
AXIS_NAMES = ", ".join(map(repr, AXES))


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
        """Every field as it is, for ``nnx.bridge.ToNNX``, which would place an array that names its axes on a mesh."""
        return dict(vars(self))

    @classmethod
    def from_nnx_metadata(cls, metadata: dict[str, Any]) -> Self:
        """The inverse."""
        return cls(**{field.name: metadata[field.name] for field in dataclasses.fields(cls)})


@dataclasses.dataclass(frozen=True)
class Axes:
    """The annotation of a parameter that carries none, or a correction of one: ``None`` keeps what was recorded."""

    names: AxisNames | None = None  # one of `AXES` per dimension
    in_branch: bool | None = None  # inside a residual branch or not
    depth_ratio: float | None = None  # of the branch
    decay: bool | None = None  # as in `annotated`, like width_ratio
    width_ratio: float | None = None

    def __post_init__(self) -> None:
        if self.names is not None:
            require_axis_names(self.names)

    def annotate(self, path: str, leaf: ArrayTree) -> AnnotatedParam:
        """``leaf`` (an annotated parameter, or anything with a shape) with this annotation."""
        fields = dataclasses.asdict(self)
        if isinstance(leaf, AnnotatedParam):
            recorded = {name: getattr(leaf, name) for name, value in fields.items() if value is None}
            fields |= recorded | {"init_std": leaf.init_std}
        in_branch, depth_ratio = fields["in_branch"], fields["depth_ratio"]
        has_names = self.names is not None or isinstance(leaf, AnnotatedParam)
        if not has_names or in_branch is None or (in_branch and depth_ratio is None):
            raise InputError(
                f"the override of parameter {path!r} does not say what its axes are and where it is: write "
                "Axes(names, in_branch=False) or Axes(names, in_branch=True, depth_ratio=depth / base_depth)."
            )
        return AnnotatedParam(nn.unbox(leaf), **{**fields, "depth_ratio": depth_ratio if in_branch else 1.0})


def require_axes(argument: str, given: Mapping[str, Axes]) -> None:
    """Raises `InputError` unless ``given`` maps globs to `Axes`."""
    if not isinstance(given, Mapping):
        raise InputError(
            f"{argument} is {shown(given)}: use a dictionary, glob of paths -> Axes(names, in_branch=...)."
        )
    for pattern, axes in given.items():
        if not isinstance(axes, Axes):
            raise InputError(f"{argument}[{pattern!r}] is {shown(axes)}: use Axes(names, in_branch=...).")


def require_axis_names(axes: AxisNames) -> None:
    """Raises `InputError` unless every name is one of `AXES`."""
    if isinstance(axes, str) or not isinstance(axes, (tuple, list)):
        raise InputError(f"axes is {axes!r}: use a tuple with one of {AXIS_NAMES} per dimension.")
    for i, name in enumerate(axes):
        if name not in AXES:
            raise InputError(
                f"axis name {name!r} is unknown: use one of {AXIS_NAMES} (a scanned stack's is 'layers', by "
                "metadata_params={flax.linen.PARTITION_NAME: 'layers'})."
            )
        if name == "layers" and i > 0:
            raise InputError(f"axes {tuple(axes)} have 'layers' at {i}: a stack's axis comes first.")


def is_annotated(x: object) -> bool:
    """``is_leaf`` for maps over a tree of annotated parameters."""
    return isinstance(x, nn.meta.AxisMetadata)
