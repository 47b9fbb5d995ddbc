"""The interpreter of jaxprs, on sets of the inputs that a value may depend on; the table of primitives."""

import itertools

import jax
import jax.numpy as jnp
import pytest

from depthmup_flax.util import primitives
from depthmup_flax.util.jaxprs import Interpreter, all_equations


class Inputs(Interpreter[frozenset]):
    def constant(self, array):
        return frozenset()

    def join(self, one, other):
        return one | other

    def operation(self, eqn, inputs):
        return [frozenset().union(*inputs)] * len(eqn.outvars)


@jax.custom_vjp
def with_own_gradient(a, b):
    return a * 2, b


with_own_gradient.defvjp(lambda a, b: ((a * 2, b), None), lambda _, g: g)


def rotated(carry, x):
    return (*carry[1:], carry[0]), carry[0] + x


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda a, b, c, d: (jnp.sin(a) + 1, b * c), ["a", "bc"]),
        (jax.jit(lambda a, b, c, d: (jax.checkpoint(jnp.sin)(a), b)), ["a", "b"]),
        (lambda a, b, c, d: with_own_gradient(a, b), ["a", "b"]),
        (lambda a, b, c, d: jax.lax.cond(True, lambda x, y, z: (x, z), lambda x, y, z: (y, z), a, b, c), ["ab", "c"]),
        # What is carried takes several rounds to arrive; what is scanned over does not enter it.
        (lambda a, b, c, d: jax.lax.scan(rotated, (a, b, c), d[None])[1], ["abcd"]),
        (lambda a, b, c, d: jax.lax.scan(rotated, (a, b, c), d[None])[0], ["abc"] * 3),
        (
            lambda a, b, c, d: jax.lax.while_loop(
                lambda carry: jnp.any(carry[0] < d), lambda carry: (carry[0] + c, carry[1]), (a, b)
            ),
            ["ac", "b"],
        ),
    ],
)
def test_values_pass_through_calls_branches_and_loops(function, expected):
    closed = jax.make_jaxpr(function)(*jnp.ones((4, 3)))
    results = Inputs().run(closed, [frozenset(name) for name in "abcd"])
    assert results == [frozenset(names) for names in expected]


def test_equations_inside_others_are_found():
    closed = jax.make_jaxpr(lambda a: jax.lax.scan(lambda h, _: (jax.jit(jnp.sin)(h), None), a, None, length=2)[0])(1.0)
    assert "sin" in [eqn.primitive.name for eqn in all_equations(closed)]


READERS = (
    "SAME_PLACE", "RAISED", "NONLINEAR", "PARALLEL", "KEEPS_NUMBER", "ENTRYWISE", "LINEAR", "KEEPS_STREAM", "CARRIES",
    "LOOKUPS", "UNDERSTOOD", "OF_ONE_ENTRY", "KEEPS_ORDER",
)  # fmt: skip


def test_every_primitive_is_in_one_row():
    rows = {name: set(row) for name, row in vars(primitives).items() if name.isupper() and name not in READERS}
    assert {
        (one, other): both for one, other in itertools.combinations(rows, 2) if (both := rows[one] & rows[other])
    } == {}
    assert primitives.is_understood("dot_general")
    assert not primitives.is_understood("pallas_call")
