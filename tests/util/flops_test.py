"""Counts of operations, against closed formulas."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from depthmup_flax.models import ViT
from depthmup_flax.util.jaxprs import count_flops


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
