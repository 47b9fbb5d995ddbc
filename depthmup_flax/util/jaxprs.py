"""How equations of a jaxpr hold others, an interpreter for all who read jaxprs, a count of operations, a digest."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import math
import pickle
import re
import types
from collections.abc import Iterator, Sequence
from typing import Any, Generic, TypeVar

import jax
import numpy as np
from jax.extend import core

Value = TypeVar("Value")


def opened(jaxpr: Any) -> tuple[core.Jaxpr, Sequence[Any]]:
    """The jaxpr and the constants of an open or closed jaxpr."""
    return (jaxpr.jaxpr, jaxpr.consts) if hasattr(jaxpr, "jaxpr") else (jaxpr, ())


def called_jaxpr(eqn: core.JaxprEqn) -> Any | None:
    """The jaxpr of an equation that calls one with its own inputs (``jit``, ``checkpoint``, ``custom_vjp``)."""
    if eqn.primitive.name in ("reduce", "reduce_window"):  # whose jaxpr joins two entries
        return None
    for name in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        inner = eqn.params.get(name)
        if inner is not None and len(opened(inner)[0].invars) == len(eqn.invars):
            return inner
    return None


def repeated_jaxprs(eqn: core.JaxprEqn) -> Iterator[tuple[core.Jaxpr, int]]:
    """The jaxprs inside an equation, and how often each is computed; once if that is unknown (``while``)."""
    params, times = eqn.params, 1
    if eqn.primitive.name == "scan":
        times = params["length"]
    elif eqn.primitive.name == "shard_map":
        times = params["mesh"].size  # shapes inside are those of one device
    elif eqn.primitive.name == "pallas_call":
        times = math.prod(params["grid_mapping"].grid)  # those of one block
    for value in params.values():
        for inner in value if isinstance(value, tuple) else (value,):
            if isinstance(inner, core.Jaxpr | core.ClosedJaxpr):
                yield opened(inner)[0], times


def all_equations(jaxpr: Any) -> Iterator[core.JaxprEqn]:
    """Every equation of a jaxpr and of those that it calls."""
    for eqn in opened(jaxpr)[0].eqns:
        yield eqn
        for inner, _ in repeated_jaxprs(eqn):
            yield from all_equations(inner)


@dataclasses.dataclass(frozen=True)
class JaxprLoop:
    """A ``scan`` or ``while``: the jaxpr of one round, and how many of the equation's inputs are what."""

    body: Any
    consts: int  # that every round reads
    carry: int
    length: float  # rounds; NaN is unknown
    condition: Any = None  # of a ``while``
    condition_consts: int = 0  # that the condition alone reads

    def split(self, inputs: Sequence[Value]) -> tuple[list[Value], list[Value], list[Value], list[Value]]:
        """Inputs of the condition, constants, what is carried, and what is scanned over."""
        rest, parts = list(inputs), []
        for count in (self.condition_consts, self.consts, self.carry):
            parts.append(rest[:count])
            rest = rest[count:]
        return parts[0], parts[1], parts[2], rest


def loop_of(eqn: core.JaxprEqn) -> JaxprLoop | None:
    """The loop of a ``scan`` or ``while`` equation."""
    params = eqn.params
    if eqn.primitive.name == "scan":
        if "num_consts" in params:
            consts, carry = params["num_consts"], params["num_carry"]
        else:  # since JAX 0.11
            consts, carry = (len(part) for part in params["ft_in"].unpack()[:2])
        return JaxprLoop(params["jaxpr"], consts, carry, float(params["length"]))
    if eqn.primitive.name == "while":
        first, consts = params["cond_nconsts"], params["body_nconsts"]
        carry = len(eqn.invars) - first - consts
        return JaxprLoop(params["body_jaxpr"], consts, carry, math.nan, params["cond_jaxpr"], first)
    return None


class Interpreter(Generic[Value]):
    """Evaluates jaxprs on values of any kind: on arrays, or on what is known of arrays.

    A subclass says what a constant is worth and what an operation makes of its inputs. Calls are entered. The results
    of branches, and of the rounds of a loop until nothing changes, are joined; all methods may be overridden.
    """

    def constant(self, array: Any) -> Value:
        """The value of a literal or constant."""
        raise NotImplementedError

    def operation(self, eqn: core.JaxprEqn, inputs: Sequence[Value]) -> Sequence[Value]:
        """The results of an equation that holds no other jaxpr, or an unknown one."""
        raise NotImplementedError

    def join(self, one: Value, other: Value) -> Value:
        """A value that covers both."""
        raise NotImplementedError

    def run(self, jaxpr: Any, inputs: Sequence[Value]) -> list[Value]:
        """The results of an open or closed jaxpr, given the value of each input."""
        inner, consts = opened(jaxpr)
        known = dict(zip([*inner.constvars, *inner.invars], [*map(self.constant, consts), *inputs], strict=True))
        value = lambda x: self.constant(x.val) if isinstance(x, core.Literal) else known[x]
        for eqn in inner.eqns:
            known.update(zip(eqn.outvars, self.equation(eqn, [value(x) for x in eqn.invars]), strict=True))
        return [value(x) for x in inner.outvars]

    def equation(self, eqn: core.JaxprEqn, inputs: Sequence[Value]) -> Sequence[Value]:
        """The results of any equation."""
        if (loop := loop_of(eqn)) is not None:
            return self.loop(eqn, loop, inputs)
        if eqn.primitive.name == "cond":
            return self.cond(eqn, inputs[0], inputs[1:])
        if (inner := called_jaxpr(eqn)) is not None:
            return self.run(inner, inputs)
        return self.operation(eqn, inputs)

    def cond(self, eqn: core.JaxprEqn, index: Value, operands: Sequence[Value]) -> Sequence[Value]:
        """The results of one of several branches; ``index`` says which."""
        del index
        first, *others = (self.run(branch, operands) for branch in eqn.params["branches"])
        for results in others:
            first = [self.join(a, b) for a, b in zip(first, results, strict=True)]
        return first

    def loop(self, eqn: core.JaxprEqn, loop: JaxprLoop, inputs: Sequence[Value]) -> Sequence[Value]:
        """The results of a loop: of rounds that start from all that may be carried."""
        del eqn
        _, consts, carry, xs = loop.split(inputs)
        while True:
            results = self.run(loop.body, [*consts, *carry, *xs])
            joined = [self.join(a, b) for a, b in zip(carry, results, strict=False)]
            if joined == carry:
                return [*carry, *results[len(carry) :]]
            carry = joined


def count_flops(jaxpr: Any) -> int:
    """Floating-point operations of the matrix products and convolutions, on all devices together.

    A multiplication and an addition count as two. The body of a scan counts once per iteration, unlike in XLA's
    ``cost_analysis``; that of a loop of unknown length counts once.
    """
    return sum(map(_flops_of, opened(jaxpr)[0].eqns))


def _flops_of(equation: Any) -> int:
    params = equation.params
    if equation.primitive.name == "dot_general":
        (contracted, _), _ = params["dimension_numbers"]
        left = equation.invars[0].aval.shape
        return 2 * equation.outvars[0].aval.size * math.prod(left[i] for i in contracted)
    if equation.primitive.name == "conv_general_dilated":
        kernel = equation.invars[1].aval.shape
        output_features = kernel[params["dimension_numbers"].rhs_spec[0]]
        # Zeros between the entries, in the gradient of a convolution with strides, need no operations.
        products = equation.outvars[0].aval.size * math.prod(kernel) // math.prod(params["lhs_dilation"])
        return 2 * products // output_features
    if equation.primitive.name == "cond":  # one branch runs
        branches = params["branches"]
        if params.get("branches_platforms"):  # the last is the default
            branches = branches[-1:]
        return max(count_flops(branch) for branch in branches)
    return sum(times * count_flops(inner) for inner, times in repeated_jaxprs(equation))


def digest(jaxpr: core.ClosedJaxpr) -> str:
    """16 digits of a SHA-256 of what is computed: operations, parameters, constants, shapes; no names and addresses."""
    return hashlib.sha256("\n".join(_lines(jaxpr)).encode()).hexdigest()[:16]


_NAMES = {"name", "debug_info"}  # parameters of equations that only people read


def _lines(jaxpr: Any) -> Iterator[str]:
    inner, consts = opened(jaxpr)
    numbers: dict[Any, int] = {}
    new = lambda variables: " ".join(f"{numbers.setdefault(x, len(numbers))}:{x.aval}" for x in variables)
    read = lambda x: "".join(_content(x.val)) if isinstance(x, core.Literal) else str(numbers[x])
    yield new([*inner.constvars, *inner.invars])
    for const in consts:
        yield from _content(const)
    for eqn in inner.eqns:
        yield f"{eqn.primitive.name} {' '.join(map(read, eqn.invars))}"
        for name in sorted(eqn.params.keys() - _NAMES):
            yield name
            yield from _content(eqn.params[name])
        yield new(eqn.outvars)
    yield " ".join(map(read, inner.outvars))


def _content(value: Any) -> Iterator[str]:
    """A constant or a parameter of an equation as text that is the same in every process."""
    if isinstance(value, core.Jaxpr | core.ClosedJaxpr):
        yield from _lines(value)
    elif isinstance(value, tuple | list):
        yield f"{len(value)}"
        for part in value:
            yield from _content(part)
    elif isinstance(value, jax.Array | np.ndarray | np.generic):
        is_key = jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key)
        array = np.asarray(jax.random.key_data(jax.numpy.asarray(value)) if is_key else value)
        yield f"{value.dtype}{array.shape} {hashlib.sha256(array.tobytes()).hexdigest()}"
    elif hasattr(value, "callback_func"):
        yield _host_code(value.callback_func)
    elif callable(value):  # of a rule for derivatives, which are equations where they are used
        yield type(value).__name__
    else:
        yield _ADDRESS.sub("", repr(value))


def _host_code(function: Any) -> str:
    """A callback on the host, which no trace shows, by its content, or as an object that is no other."""
    content = io.BytesIO()
    try:
        _Parts(content).dump(function)
    except Exception:  # of whatever cannot be pickled
        return repr(function)
    return hashlib.sha256(content.getvalue()).hexdigest()


class _Parts(pickle.Pickler):
    """Pickles functions that no module holds by their content, and no such classes."""

    def reducer_override(self, obj: Any) -> Any:
        is_loose = getattr(obj, "__module__", "") == "__main__" or "<" in getattr(obj, "__qualname__", "")
        if isinstance(obj, types.ModuleType):
            return object, (), obj.__name__
        if isinstance(obj, types.CodeType):
            return object, (), (obj.co_code, obj.co_names, obj.co_consts)
        if isinstance(obj, types.FunctionType) and is_loose:
            read = {name: obj.__globals__.get(name) for name in _names(obj.__code__)}
            closed_over = [cell.cell_contents for cell in obj.__closure__ or ()]
            return object, (), (obj.__code__, obj.__defaults__, obj.__kwdefaults__, closed_over, read)
        if isinstance(obj, type) and is_loose:
            raise pickle.PicklingError("a later class of this name may be another")
        return NotImplemented


def _names(code: types.CodeType) -> list[str]:
    """The global names in a function's code and in the functions inside."""
    inner = (name for part in code.co_consts if isinstance(part, types.CodeType) for name in _names(part))
    return sorted({*code.co_names, *inner})


_ADDRESS = re.compile(r" at 0x[0-9a-f]+|(?<==)0x[0-9a-f]+")
