"""The attention kernel compiles for TPUs that are not here."""

import jax
import jax.numpy as jnp
import pytest
import tpu_compiler  # noqa: F401  (skips where there is none)
from jax.sharding import SingleDeviceSharding

from depthmup_flax.nn.fused_attention import Form, fused_attention, fuses
from depthmup_flax.plan.topologies import topology_devices


@pytest.mark.parametrize(
    ("lanes", "tokens", "features", "head_dim", "causal"),
    [
        (1, 33, 128, 64, False),
        pytest.param(1, 197, 384, 64, False, marks=pytest.mark.slow),  # ViT-S
        pytest.param(3, 197, 384, 64, False, marks=pytest.mark.slow),  # in a sweep
        pytest.param(1, 1024, 768, 64, True, marks=pytest.mark.slow),  # GPT-2
        (1, 1025, 128, 64, False),  # a class token, which is the one row left over
        # The largest blocks.
        pytest.param(1, 682, 384, 96, True, marks=pytest.mark.slow),
        pytest.param(1, 1024, 256, 256, False, marks=pytest.mark.slow),
        pytest.param(1, 512, 128, 16, False, marks=pytest.mark.slow),  # the most heads that overlap
        pytest.param(1, 256, 128, 16, False, marks=pytest.mark.slow),  # in examples that overlap
    ],
)
def test_the_kernels_compile_within_the_16_mib_of_a_v4(lanes, tokens, features, head_dim, causal):
    assert fuses(tokens, features, head_dim, jnp.dtype("bfloat16"))
    device = topology_devices("v4:2x2x1")[0]
    shape = (lanes, 4, tokens, features)
    x = jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=SingleDeviceSharding(device))

    def gradients(q, k, v, g):
        attend = lambda q, k, v: fused_attention(q, k, v, Form(head_dim, 0.125, causal))
        value, pull = jax.vjp(jax.vmap(attend) if lanes > 1 else attend, *(x if lanes > 1 else x[0] for x in (q, k, v)))
        return value, pull(g if lanes > 1 else g[0])

    text = jax.jit(gradients).trace(x, x, x, x).lower(lowering_platforms=("tpu",)).compile().as_text()
    assert text.count("tpu_custom_call") >= 2
