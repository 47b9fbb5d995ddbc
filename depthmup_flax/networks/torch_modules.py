"""PyTorch modules as pure functions of their parameters, read by JAX through torchax. The one file that imports it."""

from __future__ import annotations

import contextlib
import functools
import inspect
import types
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from depthmup_flax.networks.adapters import Adapter, Call, abstract, arguments_of
from depthmup_flax.util.errors import InputError
from depthmup_flax.util.imports import require
from depthmup_flax.util.types import ArrayTree

_DEVICE = "privateuseone"  # that torch keeps for other packages


@functools.cache
def _environment() -> Any:
    """torchax's, which runs torch's operators by JAX; importing it leaves torch as it was.

    Without this, torchax 0.0.13 breaks what a script does afterwards: it names torch's free device ``jax``, which then
    goes before CUDA as the process's accelerator, so that ``torch.compile`` fails; and it switches off torch's fast
    attention. It also lists overloads with named dimensions, which torch 2.13 has no more and nothing calls.
    """
    import torch
    from torch._ops import OpOverloadPacket

    found = OpOverloadPacket.__getattr__

    def named(self: Any, overload: str) -> Any:
        try:
            return found(self, overload)
        except AttributeError:
            if overload.startswith("_"):
                raise
            return (str(self), overload)

    has_fast_attention = torch.backends.mha.get_fastpath_enabled()
    with contextlib.ExitStack() as restored:
        restored.callback(torch.backends.mha.set_fastpath_enabled, has_fast_attention)
        for owner, name, value in (
            (OpOverloadPacket, "__getattr__", named),
            (torch.utils, "rename_privateuse1_backend", _ignored),
            (torch, "_register_device_module", _ignored),
        ):
            restored.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, value)
        torchax = require("torchax", "the audit of a torch module")
        for kind in (torchax.tensor.Tensor, torchax.view.View):
            kind.device = property(_device_of)
        environment = torchax.default_env()
    if not hasattr(torch, _DEVICE):
        torch._register_device_module(_DEVICE, _unavailable(torchax.device_module))  # under torch's name for it
    return environment


def _unavailable(module: Any) -> Any:
    """A copy of a device's module that says that no module can be moved there, which `DataParallel` would do."""
    copy = types.ModuleType(module.__name__)
    vars(copy).update(vars(module))
    copy.is_available = lambda: False  # type: ignore[attr-defined]
    return copy


def _ignored(*args: Any) -> None:
    """In place of what changes torch."""


def _device_of(tensor: Any) -> Any:
    import torch

    return torch.device(_DEVICE, 0)


@contextlib.contextmanager
def _as_in_training(module: Any) -> Iterator[None]:
    """Batch norms take the batch's statistics, as in training; nothing is random, and modes return in the end."""
    import torch

    modes = {part: part.training for part in module.modules()}
    has_fast_attention = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # one operation, which torchax does not know
    module.eval()
    for part in modes:
        if isinstance(part, torch.nn.modules.batchnorm._BatchNorm):
            part.training = True
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(has_fast_attention)
        for part, mode in modes.items():
            part.training = mode


# In messages about operators that torchax does not have.
_NOT_THERE = ("torchax", "XLATensor", "has no lowering", f"{_DEVICE} device")


@contextlib.contextmanager
def _as_torchax_says() -> Iterator[None]:
    """`InputError` for an operator that torchax does not run, such as a kernel of the user's."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Explicitly requested dtype")  # torch's integers have 64 bits
            yield
    except Exception as error:
        lines = str(error).splitlines() or [""]
        if not any(words in lines[0] for words in _NOT_THERE):
            raise
        raise InputError(
            f"the forward pass has an operator or a tensor that torchax does not take ({type(error).__name__}: "
            f"{lines[0]}). In the audit, let the module use torch's own operators in place of kernels, such as "
            "scaled_dot_product_attention, and keep tensors as buffers."
        ) from error


def torch_module(module: Any) -> Adapter:
    """A torch module: ``named_parameters()`` are the parameters, by their names; buffers are constants.

    Dropout is off. A dictionary with the names of arguments is passed by name, as in ``module(**batch)``. Parameters
    on the meta device are shapes. Tied weights are one parameter, with the first name.
    """
    env = _environment()
    params = parameters_by_name(module)
    buffers = dict(module.named_buffers())

    def init(key: jax.Array, inputs: ArrayTree, call: Call | None = None) -> tuple[Any, Any]:
        return {name: values_of(parameter) for name, parameter in params.items()}, {}

    def apply(arrays: Any, state: Any, inputs: ArrayTree, call: Call) -> tuple[Any, Any]:
        import torch

        args, named = _arguments(module, inputs)
        constants = {name: _constant(buffer, state.get(name)) for name, buffer in buffers.items()}
        kwargs = {**named, **{name: _converted(value) for name, value in call.kwargs.items()}}
        given = env.j2t_iso(({**constants, **arrays}, args, kwargs))
        on_jax = torch.device(_DEVICE)  # also what the code makes without naming a device
        try:
            with _as_in_training(module), _as_torchax_says(), env, on_jax, torch.no_grad():
                outputs = torch.func.functional_call(module, *given)
        except InputError:
            raise
        except Exception as error:
            raise (_error_of_torch(module, args, kwargs) or error) from error
        return _arrays(env, outputs), state

    shapes = {name: abstract(parameter) for name, parameter in params.items()}
    unknown = {name: abstract(buffer) for name, buffer in buffers.items() if buffer.is_meta}
    return Adapter("torch", module, init, apply, held=(shapes, unknown))


def _error_of_torch(module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Exception | None:
    """What torch itself raises in a call that torchax could not make, if it raises; of shapes alone."""
    import torch

    def on_meta(x: Any) -> Any:
        dtype = getattr(torch, str(getattr(x, "dtype", None)), None)
        return torch.empty(x.shape, dtype=dtype, device="meta") if dtype else x

    held = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    weights = {name: tensor.detach().to("meta") for name, tensor in held.items()}
    try:
        with _as_in_training(module), torch.device("meta"), torch.no_grad():
            torch.func.functional_call(module, weights, *jax.tree.map(on_meta, (args, kwargs)))
    except Exception as error:
        return None if "meta" in str(error).lower() else error  # that of an operator without shapes
    return None


def parameters_by_name(module: Any) -> dict[str, Any]:
    """``named_parameters()``; `InputError` for a tensor that has no shape yet, as those of ``LazyLinear``."""
    import torch

    params = dict(module.named_parameters())
    for name, tensor in {**params, **dict(module.named_buffers())}.items():
        if torch.nn.parameter.is_lazy(tensor):
            raise InputError(f"{name!r} has no shape yet: call the module on a batch first, as module(x).")
    return params


def values_of(tensor: Any) -> Any:
    """A tensor as an array; its shape, on the meta device."""
    if tensor.is_meta:
        return abstract(tensor)
    near = tensor.detach().cpu()
    if tensor.is_floating_point():
        return near.float().numpy()  # NumPy has no bfloat16
    return near.numpy()


def _constant(buffer: Any, unknown: Any) -> Any:
    """A buffer's values, or the traced ones of a buffer without values."""
    if unknown is not None:
        return unknown
    return jnp.asarray(values_of(buffer), abstract(buffer).dtype)


def _converted(value: Any) -> Any:
    """A keyword argument; a tensor as an array."""
    return jnp.asarray(np.asarray(value)) if hasattr(value, "is_meta") else value


def _arguments(module: Any, inputs: ArrayTree) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments of a call on a batch."""
    if isinstance(inputs, Mapping) and inputs.keys() <= inspect.signature(module.forward).parameters.keys():
        return (), dict(inputs)
    return arguments_of(inputs), {}


def _arrays(env: Any, outputs: Any) -> Any:
    """Outputs in containers that JAX knows; others, such as caches of keys, are left out."""
    import torch

    if isinstance(outputs, torch.Tensor):
        return env.t2j_iso(outputs)
    if isinstance(outputs, Mapping):
        return {name: _arrays(env, value) for name, value in outputs.items() if _is_container(value)}
    if isinstance(outputs, (tuple, list)):
        return tuple(_arrays(env, value) for value in outputs if _is_container(value))
    return outputs


def _is_container(value: Any) -> bool:
    import torch

    return isinstance(value, (torch.Tensor, Mapping, tuple, list))
