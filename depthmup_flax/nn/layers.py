"""Annotated layers: Flax modules that declare every parameter once, with its axes. Build your own models with them.

Compute happens in ``dtype`` (``bfloat16`` for speed); parameters stay float32 in ``param_dtype``. The residual stream
keeps its own dtype, which our models leave at float32: at depth 1024 a branch adds about 2^-5 of the stream and its
update 2^-10, below bfloat16's resolution of 2^-8.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from depthmup_flax.errors import InputError, did_you_mean
from depthmup_flax.parallel.sharding import gathered, gathers, keeps_all_but_gathered, stream
from depthmup_flax.rule.annotations import AxisNames, annotated, require_in_branch, residual_scope
from depthmup_flax.rule.parametrization import PRESETS, Parametrization

Dtype = Any

NONLINEARITIES: dict[str, Callable[[jax.Array], jax.Array]] = {
    "relu": jax.nn.relu,
    "abs": jnp.abs,
    "linear": lambda x: x,
    "gelu": jax.nn.gelu,
    "tanh": jnp.tanh,
    "erf": jax.scipy.special.erf,
}


NORMS = ("none", "layer", "batch")


def nonlinearity(name: str) -> Callable[[jax.Array], jax.Array]:
    """An activation by name (see `NONLINEARITIES`)."""
    if name not in NONLINEARITIES:
        raise InputError(f"model.nonlinearity is {name!r}: {did_you_mean(name, NONLINEARITIES)}")
    return NONLINEARITIES[name]


def normal(std: float, axes: AxisNames, **kwargs: Any) -> Callable[..., Any]:
    """An annotated N(0, std^2) initializer (TP6 Definition 6.2 (a)); zeros for ``std=0``."""
    init = nn.initializers.normal(std) if std else nn.initializers.zeros_init()
    return annotated(init, axes, init_std=std, **kwargs)


# Logical axes of a branch's first and last weights, with features between them that may be split over devices.
INTO, OUT_OF = ("width_in", "inner_out"), ("inner_in", "width_out")


class Dense(nn.Module):
    """``x @ kernel (+ bias)``, kernel ``[in, out]`` with std ``sigma / sqrt(in)``; the last axis of ``x`` is ``in``.

    Attributes:
      features: size of the output.
      axes: logical axes of the kernel: ``("fixed_in", "width_out")`` is a stem, the default a hidden layer.
      sigma: standard deviation in units of ``1/sqrt(fan_in)``; 0 starts at zero.
      use_bias: adds a bias, which starts at zero.
      dtype: of the computation; ``None`` is the promotion of input and parameters.
    """

    features: int
    axes: AxisNames = ("width_in", "width_out")
    sigma: float = 1.0
    use_bias: bool = False
    dtype: Dtype | None = None
    param_dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """``[..., in] -> [..., features]``."""
        fan_in = x.shape[-1]
        kernel_init = normal(self.sigma / math.sqrt(fan_in), self.axes)
        kernel = self.param("kernel", kernel_init, (fan_in, self.features), self.param_dtype)
        bias = _bias(self, self.axes[-1])
        x, kernel, bias = nn.dtypes.promote_dtype(x, kernel, bias, dtype=self.dtype)
        y = dense_product(x, gathered(kernel, self.axes))
        return y if bias is None else y + bias


class Conv(nn.Module):
    """3x3 (by default) SAME convolution, kernel HWIO with std ``sigma / sqrt(H W I)``; ``x`` is NHWC.

    Only the channels grow with width, so the axes name the kernel's last two dimensions.
    """

    features: int
    window: tuple[int, int] = (3, 3)
    strides: tuple[int, int] = (1, 1)
    axes: tuple[str, str] = ("width_in", "width_out")
    sigma: float = 1.0
    use_bias: bool = False
    dtype: Dtype | None = None
    param_dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """``[B, H, W, C] -> [B, H / stride, W / stride, features]``, rounded up."""
        shape = (*self.window, x.shape[-1], self.features)
        axes = (None, None, *self.axes)
        kernel_init = normal(self.sigma / math.sqrt(math.prod(shape[:-1])), axes)
        kernel = self.param("kernel", kernel_init, shape, self.param_dtype)
        bias = _bias(self, self.axes[-1])
        x, kernel, bias = nn.dtypes.promote_dtype(x, kernel, bias, dtype=self.dtype)
        kernel = gathered(kernel, axes)
        # A strided convolution changes the shape, so it is never in a scan, where the canonical form matters.
        y = conv_same(x, kernel) if self.strides == (1, 1) else _conv(x, kernel, "SAME", self.strides)
        return y if bias is None else y + bias


class Readout(nn.Module):
    """The output layer: ``(x @ kernel / m + bias) / gamma0``, always in float32.

    The kernel starts at the *base* model's scale, std ``sigma / sqrt(fan_in / m)``, as in the mup package's MuReadout.

    Attributes:
      features: number of outputs.
      parametrization: gives ``1/m`` and ``gamma0`` (1 and 1 under ``sp``).
      width_ratio: ``m``, the input dimension over the base model's.
      sigma: standard deviation in units of ``1/sqrt(base fan_in)``; 0 starts at zero.
    """

    features: int
    parametrization: Parametrization = PRESETS["depth_mup"]
    width_ratio: float = 1.0
    sigma: float = 1.0
    use_bias: bool = False
    param_dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """``[..., in] -> [..., features]``, at least float32."""
        rule = self.parametrization
        if not isinstance(self.width_ratio, numbers.Real) or not 0 < self.width_ratio < math.inf:
            raise InputError(f"Readout.width_ratio is {self.width_ratio!r}: use width / base width, a number above 0.")
        std = self.sigma / math.sqrt(rule.readout_fan_in(x.shape[-1], self.width_ratio))
        axes = ("width_in", "fixed_out")
        kernel_init = normal(std, axes, width_ratio=self.width_ratio)
        kernel = self.param("kernel", kernel_init, (x.shape[-1], self.features), self.param_dtype)
        bias = _bias(self, "fixed_out")
        x, kernel, bias = nn.dtypes.promote_dtype(x, kernel, bias, dtype=jnp.promote_types(x.dtype, jnp.float32))
        y = (x @ gathered(kernel, axes)) * rule.readout_multiplier(self.width_ratio)
        return (y if bias is None else y + bias) / rule.output_divisor(self.width_ratio)


class ResidualBranch(nn.Module):
    """``shortcut(h) + a r^-alpha branch(h)``: the one residual connection (TP6 Def. 6.2 and 10.2; B24 Eq. 1, Table 1).

    Parameters that ``branch`` creates while it runs are recorded as inside a residual branch, whichever module owns
    them; a parameter that exists already (made in ``setup``, or by an earlier call) keeps what was recorded then, see
    `residual_scope`. A norm belongs inside ``branch``: the multiplier comes after it, or the norm would cancel it.

    Attributes:
      branch: a module or function ``h -> increment`` of the same shape.
      parametrization: gives the multiplier.
      depth_ratio: ``r``, the number of branches over the base model's.
      shortcut: where the branch changes the shape, the projection that takes ``h`` there; its parameters are outside
        the branch and its output is not scaled. ``None`` is the identity.
    """

    branch: Callable[[jax.Array], jax.Array]
    parametrization: Parametrization = PRESETS["depth_mup"]
    depth_ratio: float = 1.0
    shortcut: Callable[[jax.Array], jax.Array] | None = None

    @nn.compact
    def __call__(self, h: jax.Array) -> jax.Array:
        """``[...] -> [...]`` in the shortcut's dtype (``h``'s), which is not rounded to the branch's."""
        with residual_scope(self.depth_ratio):
            increment = self.branch(h)
        skip = h if self.shortcut is None else self.shortcut(h)
        if increment.shape != skip.shape:
            raise InputError(
                f"the residual branch maps shape {h.shape} to {increment.shape}, and the shortcut to {skip.shape}: "
                "they must agree; give ResidualBranch a shortcut that projects, or a branch that keeps the shape."
            )
        if self.is_initializing() and isinstance(self.branch, nn.Module):
            require_in_branch("/".join(self.branch.path), self.branch.variables.get("params", {}))
        multiplier = jnp.asarray(self.parametrization.residual_multiplier(self.depth_ratio), skip.dtype)
        return stream(skip + multiplier * increment.astype(skip.dtype))


class Norm(nn.Module):
    """LayerNorm over channels or BatchNorm over batch and space, with annotated scale and bias; ``none`` is identity.

    BatchNorm keeps running averages in the ``batch_stats`` collection. Under ``jit`` over a sharded batch its means are
    over the whole batch, on however many devices.
    """

    kind: str = "none"
    dtype: Dtype | None = None
    param_dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool = False) -> jax.Array:
        """``[..., C] -> [..., C]``; ``train`` selects BatchNorm's batch statistics."""
        if self.kind == "none":
            return x
        scale_init = annotated(nn.initializers.ones_init(), ("width_out",), init_std=0.0)
        bias_init = annotated(nn.initializers.zeros_init(), ("width_out",), init_std=0.0)
        kwargs: dict[str, Any] = {
            "dtype": self.dtype,
            "param_dtype": self.param_dtype,
            "scale_init": scale_init,
            "bias_init": bias_init,
        }
        if self.kind == "layer":
            return nn.LayerNorm(**kwargs, name="layer")(x)
        if self.kind == "batch":
            norm = nn.BatchNorm(
                use_running_average=not train,
                momentum=0.9,  # of the running averages; PyTorch's 0.1
                **kwargs,
                name="batch",
            )
            return norm(x)
        raise InputError(f"model.norm is {self.kind!r}: use 'none', 'layer' or 'batch'.")


REMAT: dict[str, Callable[..., Any] | None] = {
    "none": None,  # keeps what the backward pass needs
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,  # keeps products with weights, computes the rest
    "full": jax.checkpoint_policies.nothing_saveable,  # keeps the stream between blocks
}


def stacked(block: type[nn.Module], length: int, *, scan: bool, remat: str = "none") -> Callable[..., nn.Module]:
    """``length`` copies of ``block`` after one another, their parameters stacked along a leading ``layers`` axis.

    ``block`` maps ``(carry, None) -> (carry, None)``. ``scan`` compiles the block once, in a time that does not depend
    on ``length``; otherwise it is compiled ``length`` times, which XLA may optimize further. Both have the same
    parameters, initial values, functions and gradients, so a checkpoint of one is a checkpoint of the other.

    ``remat`` (see `REMAT`) says what of a block the forward pass keeps for the backward pass; what is not kept is
    computed again. It changes memory and time, and no value.
    """
    policy = REMAT[remat]
    if policy is None and gathers():
        policy = keeps_all_but_gathered
    if policy is not None:
        # A loop's body needs no barrier against the compiler undoing it.
        block = nn.remat(block, policy=policy, prevent_cse=not scan)
    return nn.scan(
        block,
        variable_axes={"params": 0, "batch_stats": 0, "intermediates": 0},
        split_rngs={"params": True, "dropout": True},
        length=length,
        unroll=1 if scan else length,
        metadata_params={nn.PARTITION_NAME: "layers"},
    )


def mean_subtraction(x: jax.Array) -> jax.Array:
    """``MS(x) = x - mean over the last axis`` (TP6 6.3)."""
    return x - jnp.mean(x, axis=-1, keepdims=True)


def conv_same(x_BxHxWxC: jax.Array, kernel_HWIO: jax.Array) -> jax.Array:
    """Stride-1 SAME convolution, NHWC x HWIO -> NHWC.

    On CPU the gradient of an odd window is written as two ordinary convolutions (`_conv_canonical`): XLA:CPU leaves the
    convolutions that JAX derives unoptimized inside ``lax.scan``, 10-20 times slower. Values are the same. The
    price, on CPU alone: ``jax.jvp`` does not go through it (``jax.grad``, ``vjp`` and ``vmap`` do).
    """
    if jax.default_backend() == "cpu" and all(k % 2 for k in kernel_HWIO.shape[:2]):
        return _conv_canonical(x_BxHxWxC, kernel_HWIO)
    return _conv(x_BxHxWxC, kernel_HWIO, "SAME")


def _conv(x: jax.Array, kernel: jax.Array, padding: Any, strides: tuple[int, int] = (1, 1)) -> jax.Array:
    return jax.lax.conv_general_dilated(x, kernel, strides, padding, dimension_numbers=("NHWC", "HWIO", "NHWC"))


@jax.custom_vjp
def _conv_canonical(x: jax.Array, kernel: jax.Array) -> jax.Array:
    return _conv(x, kernel, "SAME")


def _conv_canonical_bwd(residuals: tuple[jax.Array, jax.Array], g: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, kernel = residuals
    pads = [(k // 2, k // 2) for k in kernel.shape[:2]]
    x_grad = _conv(g, jnp.flip(kernel, (0, 1)).swapaxes(2, 3), pads)
    # Channels take the place of the batch: the kernel's gradient is the correlation of x with g.
    kernel_grad = _conv(x.transpose(3, 1, 2, 0), g.transpose(1, 2, 0, 3), pads).transpose(1, 2, 0, 3)
    return x_grad, kernel_grad


_conv_canonical.defvjp(lambda x, kernel: (_conv(x, kernel, "SAME"), (x, kernel)), _conv_canonical_bwd)


def dense_product(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """``x @ kernel``: ``[..., in]`` and ``[in, out] -> [..., out]``.

    On CPU the kernel's gradient, a sum over the rows of ``x``, is written so that the narrower of its two operands is
    the one that XLA:CPU copies in transposed order. JAX's own transpose always has it copy the gradient of ``y``, wide
    in the first layer of a feed-forward, and compute what made that in the same slow order. Values are the same, and so
    are all transformations. Arrays whose types say how they are split (in ``shard_map`` with ``check_vma``, on meshes
    with explicit axes) take JAX's own.
    """
    if jax.default_backend() != "cpu" or _typed_as_split(x) or _typed_as_split(kernel):
        return x @ kernel
    return _cpu_product(x, kernel)


def _typed_as_split(x: jax.Array) -> bool:
    kind: Any = jax.typeof(x)
    return bool(kind.manual_axis_type.varying) or any(axis is not None for axis in kind.sharding.spec)


@jax.custom_jvp
def _cpu_product(x: jax.Array, kernel: jax.Array) -> jax.Array:
    return x @ kernel


def _cpu_product_jvp(primals: tuple[Any, Any], tangents: tuple[Any, Any]) -> tuple[jax.Array, jax.Array]:
    x, kernel = primals
    terms = zip(tangents, (lambda t: t @ kernel, lambda t: _kernel_product.bind(x, t)), strict=True)
    # Inputs that are data have no derivative; a product with zeros would be computed.
    first, *others = (term(t) for t, term in terms if not isinstance(t, SymbolicZero))
    return x @ kernel, sum(others, first)


_cpu_product.defjvp(_cpu_product_jvp, symbolic_zeros=True)


def _gradient_in_order(g: jax.Array, x: jax.Array) -> jax.Array:
    g = jax.lax.optimization_barrier(g)  # computed once, and in its own order
    return _sum_over_rows(x, g) if x.shape[-1] <= g.shape[-1] else _sum_over_rows(g, x).T


def _sum_over_rows(a: jax.Array, b: jax.Array) -> jax.Array:
    rows = tuple(range(a.ndim - 1))
    return jax.lax.dot_general(a, b, ((rows, rows), ((), ())))


def _gradients_in_order(operands: tuple[Any, Any], axes: tuple[Any, Any]) -> tuple[jax.Array, int]:
    if axes[1] is not None:
        return jax.vmap(_gradient_in_order, axes)(*operands), 0
    # One x for all kernels: one product, whose result has the kernels' order.
    g, x = operands
    return jax.vmap(_sum_over_rows, (None, axes[0]))(x, jax.lax.optimization_barrier(g)), 0


def _bilinear(name: str, function: Any, transpose_a: Any, transpose_b: Any) -> Primitive:
    """A product with rules of its own, which only a primitive can have that is mapped and differentiated further."""
    primitive = Primitive(name)
    primitive.def_impl(function)
    primitive.def_abstract_eval(lambda a, b: a.update(shape=jax.eval_shape(function, a, b).shape))
    mlir.register_lowering(primitive, mlir.lower_fun(function, multiple_results=False))
    ad.defbilinear(primitive, transpose_a, transpose_b)
    batching.primitive_batchers[primitive] = lambda operands, axes: (jax.vmap(function, axes)(*operands), 0)
    return primitive


_kernel_gradient = _bilinear("kernel_gradient", _gradient_in_order, lambda ct, g, x: x @ ct, lambda ct, g, x: g @ ct.T)
batching.primitive_batchers[_kernel_gradient] = _gradients_in_order
_kernel_product = _bilinear(
    "kernel_product", jnp.matmul, lambda g, x, kernel: g @ kernel.T, lambda g, x, kernel: _kernel_gradient.bind(g, x)
)


def _bias(layer: Dense | Conv | Readout, axis: str | None) -> Any:
    if not layer.use_bias:
        return None
    bias_init = annotated(nn.initializers.zeros_init(), (axis,), init_std=0.0)
    return layer.param("bias", bias_init, (layer.features,), layer.param_dtype)
