"""Layers as plain Flax modules, with the factors of the rule where the papers have them.

Parameters are in Flax's boxes with logical axes, by which `depthmup_flax.devices.sharding` splits them over devices.

Layers compute in ``dtype``: float32 with full precision (`depthmup_flax.util.precision`), or ``bfloat16`` for speed.
Parameters stay in ``param_dtype``, float32. The residual stream keeps its own dtype, by default float32 in our models:
at depth 1024 a branch adds about 2^-5 of the stream and its update 2^-10, below bfloat16's resolution of 2^-8.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable
from typing import Any, Self, TypeAlias

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct

from depthmup_flax.devices.sharding import AxisNames, gathered, gathers, stream, target_platform
from depthmup_flax.nn.cpu_convolution import conv_same, convolve
from depthmup_flax.rule.parametrization import Parametrization, require_parametrization
from depthmup_flax.util.errors import InputError, shown
from depthmup_flax.util.precision import IN_BFLOAT16, Precision, product_precision, readout_precision
from depthmup_flax.util.types import Dtype, Scalar

_Pair: TypeAlias = tuple[jax.Array, jax.Array]

NONLINEARITIES: dict[str, Callable[[jax.Array], jax.Array]] = {
    "relu": jax.nn.relu,
    "abs": jnp.abs,
    "linear": lambda x: x,
    "gelu": jax.nn.gelu,
    "tanh": jnp.tanh,
    "erf": jax.scipy.special.erf,
}
NORMS = ("none", "layer", "batch")  # of residual networks of convolutions

# Logical axes of kernels: a stem, a hidden layer, and the first and last layer of a branch.
STEM, HIDDEN = ("fixed_in", "width_out"), ("width_in", "width_out")
INTO, OUT_OF = ("width_in", "inner_out"), ("inner_in", "width_out")

WINDOW, STRIDE = 3, 2  # of `max_pool`


def mean_subtraction(x: jax.Array) -> jax.Array:
    """``MS(x) = x - mean over the last axis`` (TP6 6.3)."""
    return x - jnp.mean(x, axis=-1, keepdims=True)


@struct.dataclass
class _Box(nn.LogicallyPartitioned):
    """Logical axes as Flax's own box has them, whose array ``nnx.bridge.ToNNX`` would place on a mesh."""

    def to_nnx_metadata(self) -> dict[str, Any]:
        """The fields as they are."""
        return dict(vars(self))

    @classmethod
    def from_nnx_metadata(cls, metadata: dict[str, Any]) -> Self:
        """The inverse."""
        return cls(**{field.name: metadata[field.name] for field in dataclasses.fields(cls)})


def _with_axes(init: nn.initializers.Initializer, axes: AxisNames) -> Callable[..., Any]:
    """An initializer whose arrays are in a box with logical axes."""

    def boxed(*args: Any, **kwargs: Any) -> Any:
        return _Box(init(*args, **kwargs), axes)

    return boxed


def normal(std: Scalar, axes: AxisNames) -> Callable[..., Any]:
    """N(0, std^2) with logical axes (TP6 Definition 6.2 (a)); zeros for ``std=0``, which may be traced."""
    is_zero = isinstance(std, (int, float)) and std == 0
    init = nn.initializers.zeros_init() if is_zero else nn.initializers.normal(std)
    return _with_axes(init, axes)


def product(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """``x @ kernel``, in full precision for float32."""
    return jnp.matmul(x, kernel, precision=product_precision(x.dtype))


class Dense(nn.Module):
    """``x @ kernel (+ bias)``, kernel ``[in, out]`` with std ``sigma / sqrt(in)``; the last axis of ``x`` is ``in``."""

    features: int
    # Logical axes of the kernel: ``("fixed_in", "width_out")`` for a stem; the default is a hidden layer
    axes: AxisNames = HIDDEN
    sigma: float = 1.0  # 0 starts at zero
    use_bias: bool = False  # add a bias, which starts at zero
    dtype: Dtype | None = None  # of the computation; ``None`` promotes the dtypes of input and parameters
    param_dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """``[..., in] -> [..., features]``."""
        return _affine(self, product, x, (x.shape[-1], self.features), self.axes)


class Conv(nn.Module):
    """SAME convolution of NHWC inputs, 3x3 by default; kernel HWIO with std ``sigma / sqrt(H W I)``.

    ``axes`` are the logical axes of the input and output channels. The other fields are those of `Dense`.
    """

    features: int
    window: tuple[int, int] = (3, 3)
    strides: tuple[int, int] = (1, 1)
    axes: tuple[str, str] = HIDDEN
    sigma: float = 1.0
    use_bias: bool = False
    dtype: Dtype | None = None
    param_dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """``[B, H, W, C] -> [B, H / stride, W / stride, features]``, rounded up."""
        # A strided convolution changes the shape, so it is never in a scan, where the form of the gradient matters.
        convolution = conv_same if self.strides == (1, 1) else functools.partial(convolve, strides=self.strides)
        shape = (*self.window, x.shape[-1], self.features)
        return _affine(self, convolution, x, shape, (None, None, *self.axes))


def readout_product(x: jax.Array, kernel: jax.Array, precision: Precision) -> jax.Array:
    """``[..., n] @ [n, V]``."""
    if precision is IN_BFLOAT16:
        return _product_in_bfloat16(x, kernel)
    return jnp.matmul(x, kernel, precision=precision)


@jax.custom_jvp
def _product_in_bfloat16(x: jax.Array, kernel: jax.Array) -> jax.Array:
    # On several devices XLA drops an algorithm from this product (jax 0.10.2), though not from those of the gradients.
    rounded = x.astype(jnp.bfloat16), kernel.astype(jnp.bfloat16)
    return jnp.matmul(*rounded, preferred_element_type=x.dtype)


@_product_in_bfloat16.defjvp
def _product_in_bfloat16_jvp(primals: _Pair, tangents: _Pair) -> tuple[jax.Array, jax.Array]:
    (x, kernel), (dx, dkernel) = primals, tangents
    in_bfloat16 = functools.partial(jnp.matmul, precision=IN_BFLOAT16)
    return _product_in_bfloat16(x, kernel), in_bfloat16(dx, kernel) + in_bfloat16(x, dkernel)


class Readout(nn.Module):
    """The output layer: ``(x @ kernel / m + bias) / gamma0``, summed and returned in float32.

    The kernel starts at the *base* model's scale, std ``sigma / sqrt(fan_in / m)``, as in the mup package's MuReadout.
    """

    features: int
    rule: Parametrization  # gives ``1/m`` and ``gamma0`` (both 1 under ``sp``)
    width_ratio: float  # ``m``, the input dimension over the base model's; 1 in a network that never grows wider
    sigma: float = 1.0  # 0 starts at zero
    use_bias: bool = False
    param_dtype: Dtype = jnp.float32
    # Logical axis of the features: ``fixed_out`` for classes, ``vocab_out`` for a vocabulary
    out_axis: str = "fixed_out"
    # Of the model's computation; ``None`` is that of the input. With bfloat16 the factors of the product, and of its
    # gradients, are rounded to it: full precision would take six times as long on a TPU, TF32 twice on a GPU.
    dtype: Dtype | None = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """``[..., in] -> [..., features]``, at least float32."""
        rule = self.rule
        require_parametrization(rule)
        std = self.sigma and self.sigma / rule.readout_fan_in(x.shape[-1], self.width_ratio) ** 0.5
        axes = ("width_in", self.out_axis)
        kernel = self.param("kernel", normal(std, axes), (x.shape[-1], self.features), self.param_dtype)
        bias = _bias(self, self.out_axis)
        precision = readout_precision(x.dtype if self.dtype is None else self.dtype)
        x, kernel, bias = nn.dtypes.promote_dtype(x, kernel, bias, dtype=jnp.promote_types(x.dtype, jnp.float32))
        kernel = gathered(kernel, axes)
        multiplier, divisor = rule.readout_multiplier(self.width_ratio), rule.output_divisor(self.width_ratio)
        y = readout_product(x, kernel, precision) * multiplier
        return (y if bias is None else y + bias) / divisor


class ResidualBranch(nn.Module):
    """``shortcut(h) + a r^-alpha branch(h)``: the only residual connection (TP6 Def. 6.2, 10.2; B24 Eq. 1, Table 1).

    A norm belongs inside ``branch``: after the multiplier, it would cancel it.
    """

    branch: Callable[[jax.Array], jax.Array]  # a module or function ``h -> increment`` of the same shape
    rule: Parametrization
    depth_ratio: float  # ``r``, the number of branches over the base model's; 1 in a network that never grows deeper
    # Projects ``h`` if the branch changes the shape; outside the branch, without multiplier. ``None`` is the identity.
    shortcut: Callable[[jax.Array], jax.Array] | None = None

    @nn.compact
    def __call__(self, h: jax.Array) -> jax.Array:
        """``[...] -> [...]`` in the dtype of ``h`` or of its shortcut, whatever the branch's dtype."""
        require_parametrization(self.rule)
        if isinstance(self.branch, type) or not callable(self.branch):
            raise InputError(
                f"branch is {shown(self.branch)}: use an instance of a module, or a function h -> increment."
            )
        increment = self.branch(h)
        skip = h if self.shortcut is None else self.shortcut(h)
        if increment.shape != skip.shape:
            raise InputError(
                f"the residual branch maps shape {h.shape} to {increment.shape}, and the shortcut to {skip.shape}: "
                "they must agree. Give ResidualBranch a projection as shortcut, or a branch that keeps the shape."
            )
        wide = jnp.promote_types(skip.dtype, jnp.float32)  # in bfloat16 the multiplier itself would be 0.4 % off
        multiplier = jnp.asarray(self.rule.residual_multiplier(self.depth_ratio), wide)
        h = (skip.astype(wide) + multiplier * increment.astype(wide)).astype(skip.dtype)
        # Otherwise XLA may keep the sum before rounding, in twice the bytes.
        return stream(h if h.dtype == wide else jax.lax.optimization_barrier(h))


class Norm(nn.Module):
    """LayerNorm or RMSNorm (no mean, no bias) over channels, BatchNorm over batch and space, or ``none``.

    BatchNorm keeps running averages in the ``batch_stats`` collection. Under ``jit`` over a sharded batch it averages
    over the whole batch, on all devices.
    """

    kind: str = "none"
    dtype: Dtype | None = None
    param_dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool = False) -> jax.Array:
        """``[..., C] -> [..., C]``; ``train`` selects BatchNorm's batch statistics."""
        if self.kind == "none":
            return x
        init = nn.initializers
        scale: dict[str, Any] = {
            "dtype": self.dtype,
            "param_dtype": self.param_dtype,
            "scale_init": _with_axes(init.ones_init(), ("width_out",)),
        }
        if self.kind == "rms":
            return nn.RMSNorm(**scale, name="rms")(x)
        affine = scale | {"bias_init": _with_axes(init.zeros_init(), ("width_out",))}
        if self.kind == "layer":
            return nn.LayerNorm(**affine, name="layer")(x)
        if self.kind == "batch":  # the momentum is of the running averages; PyTorch writes 0.1
            return nn.BatchNorm(use_running_average=not train, momentum=0.9, **affine, name="batch")(x)
        raise InputError(f"model.norm is {self.kind!r}: use 'none', 'layer', 'rms' or 'batch'.")


def _affine(
    layer: Dense | Conv,
    product: Callable[[jax.Array, jax.Array], jax.Array],
    x: jax.Array,
    shape: tuple[int, ...],
    axes: AxisNames,
) -> jax.Array:
    """``product(x, kernel) + bias`` with parameters of ``layer``; ``shape`` and ``axes`` are the kernel's."""
    kernel_init = normal(layer.sigma / math.sqrt(math.prod(shape[:-1])), axes)
    kernel = layer.param("kernel", kernel_init, shape, layer.param_dtype)
    bias = _bias(layer, axes[-1])
    x, kernel, bias = nn.dtypes.promote_dtype(x, kernel, bias, dtype=layer.dtype)
    apply = lambda x, kernel: product(x, gathered(kernel, axes))
    if gathers():  # the backward pass gathers again, instead of keeping whole parameters
        apply = jax.checkpoint(apply)
    y = apply(x, kernel)
    return y if bias is None else y + bias


def _bias(layer: Dense | Conv | Readout, axis: str | None) -> jax.Array | None:
    if not layer.use_bias:
        return None
    return layer.param("bias", normal(0.0, (axis,)), (layer.features,), layer.param_dtype)


def max_pool(x_BxHxWxC: jax.Array, dtype: Dtype) -> jax.Array:
    """``[B, H, W, C] -> [B, H / 2, W / 2, C]``, rounded up: maxima of 3x3 windows, SAME; ``dtype`` has all values.

    XLA:GPU computes the gradient of a window's maximum as a scatter of float32. Here it is a sum of nine shifted
    arrays, which joins the kernel before: 9.1 instead of 10.4 ms for the step of ResNet-18 at batch 256, by the
    roofline of the compiled program. TPUs have an instruction for windows, and CPUs take as long either way.
    """
    if target_platform() == "gpu":
        return _max_of_shifts(x_BxHxWxC.astype(dtype)).astype(x_BxHxWxC.dtype)
    return nn.max_pool(x_BxHxWxC, (WINDOW, WINDOW), strides=(STRIDE, STRIDE), padding="SAME")


@jax.custom_jvp
def _max_of_shifts(x: jax.Array) -> jax.Array:
    return _largest(x)[0]


@_max_of_shifts.defjvp
def _max_of_shifts_jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    largest, place = _largest(*primals)
    zero = jnp.zeros((), largest.dtype)
    return largest, sum((jnp.where(place == i, x, zero) for i, x in enumerate(_shifts(*tangents, 0.0))), zero)


def _largest(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The largest entry of each window, and its place in it: the first of equal ones, as in XLA's gradient."""
    largest, *others = _shifts(x, -jnp.inf)
    place = jnp.zeros(largest.shape, jnp.int8)
    for i, other in enumerate(others, start=1):
        is_larger = other > largest
        largest, place = jnp.where(is_larger, other, largest), jnp.where(is_larger, jnp.int8(i), place)
    return largest, place


def _shifts(x: jax.Array, fill: float) -> list[jax.Array]:
    """An array ``[B, H / 2, W / 2, C]`` for each place in a window."""
    sizes = [-(-size // STRIDE) for size in x.shape[1:3]]
    totals = [max(STRIDE * (size - 1) + WINDOW - whole, 0) for size, whole in zip(sizes, x.shape[1:3], strict=True)]
    padded = jnp.pad(x, ((0, 0), *((n // 2, n - n // 2) for n in totals), (0, 0)), constant_values=fill)
    starts = range(WINDOW)
    rows, columns = ([slice(i, i + STRIDE * (size - 1) + 1, STRIDE) for i in starts] for size in sizes)
    return [padded[:, row, column] for row, column in itertools.product(rows, columns)]
