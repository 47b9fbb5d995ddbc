"""What an optimizer's update of an entry depends on, read from its jaxpr: traced with shapes, nothing is computed.

The rule is for updates that are computed entry by entry from the gradients (TP6 Definition 6.1). A norm, a mean or a
matrix product mixes entries; weight decay and trust ratios read the parameters. `direction_probe` measures which sums
over entries keep their size as networks grow.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import optax
from jax.extend import core

from depthmup_flax.rule.info_trees import path_name
from depthmup_flax.util.errors import InputError
from depthmup_flax.util.jaxprs import Interpreter, JaxprLoop
from depthmup_flax.util.primitives import KEEPS_ORDER, MOVES, OF_ONE_ENTRY, SUMMED
from depthmup_flax.util.types import ArrayTree


class Entries(enum.Enum):
    """Of which entries' gradients an update of one entry is a function."""

    OWN = "own"  # or of none
    MOVED = "moved"  # entries in other places, as of parameters that are put into one vector and taken apart again
    SUMMED = "summed"  # its own, and sums or means over many, of one parameter or of several
    MIXED = "mixed"  # others, in any other way: a matrix product, a largest value, another order


class Dependence(NamedTuple):
    """What the updates of one parameter depend on."""

    entries: Entries
    on_parameters: bool  # on the values of parameters
    on_their_norms: bool = False  # on sums over them, as a trust ratio does and a decay does not


class _Gradients(enum.IntEnum):
    """Instead of the index of a leaf: which gradients a value depends on."""

    NONE = -1
    MOVED = -2
    SUMMED = -3
    MIXED = -4


_ENTRIES = {_Gradients.NONE: Entries.OWN, _Gradients.MOVED: Entries.MOVED, _Gradients.SUMMED: Entries.SUMMED}


class _Source(NamedTuple):
    """What a value depends on. A leaf's index: entry by entry, in the leaf's order."""

    gradient: int = _Gradients.NONE
    parameters: bool = False
    summed_parameters: bool = False


def read_dependence(inner: optax.GradientTransformation, params: ArrayTree) -> Mapping[str, Dependence]:
    """Path of a parameter -> what the second update of ``inner`` depends on.

    Args:
      inner: any transformation that needs no more than gradients and parameters.
      params: parameters, or their shapes.

    Raises:
      InputError: ``inner`` cannot be traced with these parameters.
    """
    leaves_with_paths, structure = jax.tree_util.tree_flatten_with_path(params)
    shapes = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for _, leaf in leaves_with_paths]
    update = optax.with_extra_args_support(inner).update

    def second_update(leaves: list[jax.Array], *gradients: list[jax.Array]) -> ArrayTree:
        params = jax.tree.unflatten(structure, leaves)
        state = inner.init(params)
        for gradient in gradients:
            updates, state = update(jax.tree.unflatten(structure, gradient), state, params)
        return updates

    try:
        closed = jax.make_jaxpr(second_update)(shapes, shapes, shapes)
    except Exception as error:  # of another library
        raise InputError(
            f"inner cannot be traced with the parameters alone ({type(error).__name__}: {first_line(error)}): put "
            "what needs more than gradients around the optimizer."
        ) from error
    if [aval.shape for aval in closed.out_avals] != [shape.shape for shape in shapes]:
        raise InputError("inner cannot be traced: its updates do not have the parameters' shapes.")
    parameters = [_Source(parameters=True)] * len(shapes)
    gradients = [_Source(index) for index in range(len(shapes))]
    sources = _Reader().run(closed, [*parameters, *gradients, *gradients])
    return {
        path_name(path): _dependence(index, source)
        for index, ((path, _), source) in enumerate(zip(leaves_with_paths, sources, strict=True))
    }


def first_line(error: Exception) -> str:
    """Of what an exception says, for a sentence."""
    lines = str(error).splitlines()
    return lines[0] if lines else "no message"


def _dependence(leaf: int, source: _Source) -> Dependence:
    """What the updates of the leaf of this index depend on."""
    if source.gradient == leaf:
        entries = Entries.OWN
    elif source.gradient >= 0:  # another leaf's
        entries = Entries.MOVED
    else:
        entries = _ENTRIES.get(_Gradients(source.gradient), Entries.MIXED)
    return Dependence(entries, source.parameters, source.summed_parameters)


_CONCATENATES = frozenset({"concatenate"})


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
        if eqn.primitive.name == "shard_map":
            return self.operation(eqn, inputs)
        return super().equation(eqn, inputs)

    def operation(self, eqn: core.JaxprEqn, inputs: Sequence[_Source]) -> Sequence[_Source]:
        """Entry by entry, where the operation keeps their order; moved, summed; all others mix them."""
        name = eqn.primitive.name
        source = _join(*inputs)
        if name == "mul" and any(_is_zero(v) for v in eqn.invars):  # a decay of 0
            return [_Source()]
        if name in SUMMED and source.parameters:
            source = source._replace(summed_parameters=True)
        if source.gradient == _Gradients.NONE:
            return [source] * len(eqn.outvars)
        if name in OF_ONE_ENTRY | KEEPS_ORDER and self._keeps_size(eqn, inputs):
            return [source]
        is_spread_sum = name == "broadcast_in_dim" and source.gradient == _Gradients.SUMMED
        if name in SUMMED or is_spread_sum:
            kind = _Gradients.SUMMED
        elif name in MOVES | _CONCATENATES:
            kind = _Gradients.MOVED
        else:
            kind = _Gradients.MIXED
        return [_at_least(kind, source)] * len(eqn.outvars)

    @staticmethod
    def _keeps_size(eqn: core.JaxprEqn, inputs: Sequence[_Source]) -> bool:
        """Whether the result has as many entries as each operand that has a leaf's, in their order."""
        size = _size(eqn.outvars[0])
        return all(_size(v) == size for v, source in zip(eqn.invars, inputs, strict=True) if source.gradient >= 0)

    def cond(self, eqn: core.JaxprEqn, index: _Source, operands: Sequence[_Source]) -> Sequence[_Source]:
        """All entries take the same branch."""
        return [_where(index, value) for value in super().cond(eqn, index, operands)]

    def loop(self, eqn: core.JaxprEqn, loop: JaxprLoop, inputs: Sequence[_Source]) -> Sequence[_Source]:
        """All entries take the same number of rounds; slices of a stack do not have the order of a leaf."""
        condition, consts, carry, slices = loop.split(inputs)
        mixed = [
            source if source.gradient == _Gradients.NONE else _at_least(_Gradients.MIXED, source) for source in slices
        ]
        results = super().loop(eqn, loop, [*condition, *consts, *carry, *mixed])
        if loop.condition is None:
            return results
        (goes_on,) = self.run(loop.condition, [*condition, *results])
        return [_where(goes_on, value) for value in results]


def _is_zero(atom: core.Var | core.Literal) -> bool:
    return isinstance(atom, core.Literal) and atom.val == 0


def _size(atom: core.Var | core.Literal) -> int:
    return math.prod(getattr(atom.aval, "shape", ()))


def _join(*sources: _Source) -> _Source:
    """What any of them depends on."""
    gradients = {source.gradient for source in sources} - {_Gradients.NONE}
    kinds = {min(gradient, 0) for gradient in gradients}
    if not gradients:
        gradient: int = _Gradients.NONE
    elif kinds == {0}:
        gradient = gradients.pop() if len(gradients) == 1 else _Gradients.MOVED  # entry by entry, of two leaves
    elif kinds <= {0, _Gradients.MOVED}:
        gradient = _Gradients.MOVED
    elif kinds <= {0, _Gradients.SUMMED}:
        gradient = _Gradients.SUMMED if len(gradients) <= 2 else _Gradients.MIXED
    else:
        gradient = _Gradients.MIXED
    return _with_parameters(gradient, *sources)


def _at_least(kind: _Gradients, source: _Source) -> _Source:
    """What an operation of this kind makes of ``source``."""
    if source.gradient >= 0 or source.gradient == kind:
        return source._replace(gradient=kind)
    return source._replace(gradient=_Gradients.MIXED)


def _where(condition: _Source, value: _Source) -> _Source:
    """``value`` if one condition for all entries holds."""
    gradient = value.gradient if condition.gradient == _Gradients.NONE else _Gradients.MIXED
    return _with_parameters(gradient, condition, value)


def _with_parameters(gradient: int, *sources: _Source) -> _Source:
    """This dependence on gradients, and that of any of the sources on parameters."""
    on_parameters = any(source.parameters for source in sources)
    return _Source(gradient, on_parameters, any(source.summed_parameters for source in sources))
