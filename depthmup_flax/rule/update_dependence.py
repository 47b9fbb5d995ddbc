"""What an optimizer's update of an entry depends on, read from its jaxpr: traced with shapes, nothing is computed.

The rule is for updates that are computed entry by entry from the gradients (TP6 Definition 6.1). A norm, a mean or a
matrix product mixes entries; weight decay and trust ratios read the parameters.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import optax
from jax.extend import core

from depthmup_flax.rule.info_trees import path_name
from depthmup_flax.util.errors import InputError
from depthmup_flax.util.jaxprs import Interpreter, JaxprLoop
from depthmup_flax.util.primitives import KEEPS_ORDER, OF_ONE_ENTRY
from depthmup_flax.util.types import ArrayTree


class _Gradients(enum.IntEnum):
    """Instead of the index of a leaf: which gradients a value depends on."""

    NONE = -1
    MANY = -2  # of several leaves, or of several entries of one


class _Source(NamedTuple):
    """What a value depends on. A leaf's index: entry by entry, in the leaf's order."""

    gradient: int = _Gradients.NONE
    parameters: bool = False


def require_function_of_own_gradients(inner: optax.GradientTransformation, params: ArrayTree) -> None:
    """Raises `InputError` if an entry's update depends on anything but its own gradients; ``params`` may be shapes."""
    found, structure = jax.tree_util.tree_flatten_with_path(params)
    paths, leaves = [path for path, _ in found], [leaf for _, leaf in found]
    shapes = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves]
    update = optax.with_extra_args_support(inner).update

    def second_update(leaves: list[jax.Array], *gradients: list[jax.Array]) -> ArrayTree:
        params = jax.tree.unflatten(structure, leaves)
        state = inner.init(params)
        for gradient in gradients:
            updates, state = update(jax.tree.unflatten(structure, gradient), state, params)
        return updates

    try:
        closed = jax.make_jaxpr(second_update)(shapes, shapes, shapes)
        if [v.shape for v in closed.out_avals] != [s.shape for s in shapes]:
            raise ValueError("the updates do not have the parameters' shapes")
    except Exception as error:  # of another library
        raise InputError("inner cannot be traced: put what needs more than gradients around the optimizer.") from error
    of_gradients = [_Source(index) for index in range(len(leaves))]
    sources = _Reader().run(closed, [_Source(parameters=True)] * len(leaves) + 2 * of_gradients)
    for index, (path, source) in enumerate(zip(paths, sources, strict=True)):
        if source.gradient not in (index, _Gradients.NONE):
            raise InputError(
                f"inner updates an entry of {path_name(path)!r} by the gradients of other entries (a norm, a mean, a "
                "matrix product), but the rule is for entrywise directions. Clip with clip_rms; put what looks at all "
                "gradients around the finished optimizer; pass depthmup_flax.entrywise(inner) if it does not matter, "
                "geometry='two_sided' if updates have singular values of order one (Shampoo), or geometry='rotated' "
                "for SOAP."
            )
        if source.parameters:
            raise InputError(
                f"inner updates {path_name(path)!r} by the values of the parameters (weight decay, a trust ratio), but "
                "the rule is for functions of the gradients alone. Decay with weight_decay; pass a direction without "
                "the rest; for updates with the weights' norm pass geometry='norm_matched'."
            )


class _Reader(Interpreter[_Source]):
    """Reads what the results of a jaxpr depend on."""

    def constant(self, array: Any) -> _Source:
        """Depends on nothing."""
        return _Source()

    def join(self, one: _Source, other: _Source) -> _Source:
        """What either depends on."""
        return _join(one, other)

    def equation(self, eqn: core.JaxprEqn, inputs: Sequence[_Source]) -> Sequence[_Source]:
        """As of any equation; devices may order what they share in another way."""
        return (self.operation if eqn.primitive.name == "shard_map" else super().equation)(eqn, inputs)

    def operation(self, eqn: core.JaxprEqn, inputs: Sequence[_Source]) -> Sequence[_Source]:
        """Entry by entry, where the operation keeps their order."""
        name, source = eqn.primitive.name, _join(*inputs)
        if name == "mul" and any(isinstance(v, core.Literal) and v.val == 0 for v in eqn.invars):
            return [_Source()]  # a decay of 0
        if source.gradient == _Gradients.NONE:
            return [source] * len(eqn.outvars)
        size = _size(eqn.outvars[0])
        aligned = all(_size(v) == size for v, s in zip(eqn.invars, inputs, strict=True) if s.gradient >= 0)
        if aligned and name in OF_ONE_ENTRY | KEEPS_ORDER:
            return [source]
        return [_mixed(source)] * len(eqn.outvars)

    def cond(self, eqn: core.JaxprEqn, index: _Source, operands: Sequence[_Source]) -> Sequence[_Source]:
        """All entries take the same branch."""
        return [_where(index, value) for value in super().cond(eqn, index, operands)]

    def loop(self, eqn: core.JaxprEqn, loop: JaxprLoop, inputs: Sequence[_Source]) -> Sequence[_Source]:
        """All entries take the same number of rounds; slices of a stack do not have the order of a leaf."""
        condition, consts, carry, xs = loop.split(inputs)
        results = super().loop(eqn, loop, [*condition, *consts, *carry, *map(_mixed, xs)])
        if loop.condition is None:
            return results
        (goes_on,) = self.run(loop.condition, [*condition, *results])
        return [_where(goes_on, value) for value in results]


def _size(atom: core.Var | core.Literal) -> int:
    return math.prod(getattr(atom.aval, "shape", ()))


def _join(*sources: _Source) -> _Source:
    gradients = {s.gradient for s in sources} - {_Gradients.NONE}
    gradient = gradients.pop() if len(gradients) == 1 else _Gradients.MANY if gradients else _Gradients.NONE
    return _Source(gradient, any(s.parameters for s in sources))


def _mixed(source: _Source) -> _Source:
    """Several entries of what ``source`` depends on."""
    return source if source.gradient == _Gradients.NONE else source._replace(gradient=_Gradients.MANY)


def _where(condition: _Source, value: _Source) -> _Source:
    """``value`` if one condition for all entries holds."""
    gradient = value.gradient if condition.gradient == _Gradients.NONE else _Gradients.MANY
    return _Source(gradient, condition.parameters or value.parameters)
