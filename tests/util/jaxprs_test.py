"""The interpreter of jaxprs, on sets of the inputs that a value may depend on; counts of operations; primitives."""

import itertools

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest

from depthmup_flax.models import ViT
from depthmup_flax.util import primitives
from depthmup_flax.util.flops import count_flops
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
    "LOOKUPS", "UNDERSTOOD", "OF_ONE_ENTRY", "KEEPS_ORDER", "PARTS",
)  # fmt: skip


def test_every_primitive_is_in_one_row():
    rows = {name: set(row) for name, row in vars(primitives).items() if name.isupper() and name not in READERS}
    assert {
        (one, other): both for one, other in itertools.combinations(rows, 2) if (both := rows[one] & rows[other])
    } == {}
    assert primitives.is_understood("dot_general")
    assert not primitives.is_understood("pallas_call")


def test_flops_are_two_per_multiplication_of_products_and_convolutions():
    x, w = jnp.ones((5, 7)), jnp.ones((7, 3))
    assert count_flops(jax.make_jaxpr(jnp.matmul)(x, w)) == 2 * 5 * 7 * 3
    image, kernel = jnp.ones((2, 8, 8, 4)), jnp.ones((3, 3, 4, 6))
    conv = lambda x, k: jax.lax.conv_general_dilated(x, k, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    assert count_flops(jax.make_jaxpr(conv)(image, kernel)) == 2 * (2 * 4 * 4 * 6) * (3 * 3 * 4)


def test_flops_of_a_scanned_network_are_those_of_the_unrolled_one():
    def flops(scan):
        model = ViT(num_classes=10, width=16, depth=5, patch_size=4, scan=scan, remat="none")
        x = jnp.ones((2, 8, 8, 3))
        variables = jax.eval_shape(lambda: nn.unbox(model.init(jax.random.key(0), x)))
        return count_flops(jax.make_jaxpr(jax.grad(lambda v: model.apply(v, x).sum()))(variables))

    assert flops(True) == flops(False) > 0


def test_both_gradients_of_a_strided_convolution_have_its_flops():
    image, kernel = jnp.ones((2, 8, 8, 4)), jnp.ones((2, 2, 4, 6))
    conv = lambda x, k: jax.lax.conv_general_dilated(x, k, (2, 2), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    forward = count_flops(jax.make_jaxpr(conv)(image, kernel))
    all_three = count_flops(jax.make_jaxpr(jax.grad(lambda x, k: conv(x, k).sum(), (0, 1)))(image, kernel))
    assert forward == 2 * (2 * 4 * 4 * 6) * (2 * 2 * 4)
    assert all_three == 3 * forward


def test_a_loop_of_unknown_length_counts_once_and_a_scan_inside_it_by_its_length():
    def steps(count, w):
        step = lambda _, w: jax.lax.scan(lambda w, _: (w @ w, None), w, length=3)[0]
        return jax.lax.fori_loop(0, count, step, w)

    traced = jax.jit(steps).trace(jnp.int32(7), jnp.ones((5, 5)))
    assert count_flops(traced.jaxpr) == 3 * 2 * 5**3
