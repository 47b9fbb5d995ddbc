"""Programs whose length is free of depth, scanned convolutions, which need optimized programs, and a depth of 1024."""

import functools
import time

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from drawn import descend

import depthmup_flax as dm
from depthmup_flax.auditing.config_audit import audited_model

pytestmark = pytest.mark.usefixtures("optimized")

VECTORS = jax.random.normal(jax.random.key(1), (4, 20))
# Of what users compile, and not of what conftest.py has the tests compile.
OPTIMIZED = {"xla_backend_optimization_level": 3}
# Times are processor time, which load on the machine changes least.


def test_initial_values_and_gradients_of_depth_1024_are_programs_as_long_as_those_of_depth_8():
    def lengths(depth):
        model = dm.ResMLP(10, width=32, depth=depth)
        variables = jax.eval_shape(model.init, jax.random.key(0), VECTORS)
        grad = jax.grad(lambda v: model.apply(nn.unbox(v), VECTORS).mean())
        programs = jax.jit(model.init).lower(jax.random.key(0), VECTORS), jax.jit(grad).lower(variables)
        return [len(program.as_text().splitlines()) for program in programs]

    assert lengths(1024) == lengths(8)


@pytest.mark.slow
def test_scanned_convolutions_train_as_fast_as_unrolled_ones():
    """XLA:CPU would run gradients of scanned convolutions 10-20 times slower if they were left to it."""
    x = jax.random.normal(jax.random.key(0), (16, 16, 16, 3))
    steps = []
    for scan in (True, False):
        model = dm.SimpleResNet(10, width=128, depth=5, scan=scan)
        variables = nn.unbox(jax.jit(model.init)(jax.random.key(0), x))
        step = jax.jit(jax.grad(lambda v, model=model: model.apply(v, x).mean()), compiler_options=OPTIMIZED)
        jax.block_until_ready(step(variables))
        steps.append((step, variables))

    def seconds(step, variables):
        start = time.process_time()
        jax.block_until_ready(step(variables))
        return time.process_time() - start

    ratios = [seconds(*steps[0]) / seconds(*steps[1]) for _ in range(5)]
    assert np.median(ratios) < 1.5, ratios


@pytest.mark.slow
def test_depth_1024_still_learns_in_bfloat16():
    """Branch updates of 2^-10 of the stream would be lost if the stream were rounded to 8 bits."""
    x, y = VECTORS, jnp.arange(4)
    finals = []
    for dtype in (None, "bfloat16"):
        model = dm.ResMLP(10, width=16, depth=1024, base_depth=8, dtype=dtype)
        params = nn.unbox(jax.jit(model.init)(jax.random.key(0), x))["params"]
        info = audited_model(model, x).info
        optimizer = dm.adamw(3e-3, info, model.rule)
        loss = lambda p, model=model: optax.softmax_cross_entropy_with_integer_labels(
            model.apply({"params": p}, x), y
        ).mean()
        finals.append(jax.jit(functools.partial(descend, loss, optimizer, steps=10))(params))
    assert finals[0][-1] < 0.5 * finals[0][0]
    np.testing.assert_allclose(finals[1], finals[0], rtol=0.1, atol=0.05)
