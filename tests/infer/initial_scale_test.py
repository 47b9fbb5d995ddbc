"""Initial values as the rule wants them, from any initializers."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from depthmup_flax import InputError, get_parametrization, infer_info, rescale_init

RULE = get_parametrization("depth_mup")
NORMAL = nn.initializers.normal(0.02)


@functools.partial(jax.jit, static_argnums=(0, 1))
def weights(init, n, rng):
    keys = jax.random.split(jax.random.key(rng), 4)
    sizes = {"stem": (50, n), "w": (n, n), "head": (n, 60)}
    arrays = {path: init(key, shape) for key, (path, shape) in zip(keys, sizes.items(), strict=False)}
    return {**arrays, "bias": jax.random.normal(keys[3], (n,)), "zero": jnp.zeros((n, n))}


@pytest.mark.parametrize(
    ("init", "factors"),
    [
        (nn.initializers.lecun_normal(), {"head": 4**0.5}),
        (nn.initializers.kaiming_uniform(), {"head": 4**0.5}),
        (NORMAL, {"w": 4**-0.5}),
        (nn.initializers.variance_scaling(1.0, "fan_out", "normal"), {"stem": 4**0.5}),
    ],
)
def test_initial_deviations_are_corrected_by_exact_powers_of_the_ratio(init, factors):
    for seed in range(5):
        params, base = weights(init, 128, seed), weights(init, 32, seed + 100)
        info = infer_info(params, base, depth_ratio=1.0, readout="head")
        new = rescale_init(params, base, info, RULE)
        for path, leaf in params.items():
            np.testing.assert_array_equal(new[path], leaf * np.float32(factors.get(path, 1.0)), err_msg=path)


def test_a_correction_that_is_no_power_is_the_measured_one():
    init = nn.initializers.xavier_normal()
    params, base = weights(init, 128, 0), weights(init, 32, 1)
    info = infer_info(params, base, depth_ratio=1.0, readout="head")
    new = rescale_init(params, base, info, RULE)
    assert float(new["head"].std()) == pytest.approx(float(base["head"].std()), rel=1e-5)
    np.testing.assert_array_equal(new["w"], params["w"])


def test_the_standard_parametrization_changes_no_initial_value():
    params, base = weights(NORMAL, 128, 0), weights(NORMAL, 32, 1)
    info = infer_info(params, base, depth_ratio=1.0, readout="head")
    new = rescale_init(params, base, info, get_parametrization("sp"))
    assert all(new[path] is params[path] for path in params)


def test_initial_values_of_an_nnx_model_can_be_corrected():
    def model(n):
        init = nnx.initializers.normal(0.02)
        return nnx.Sequential(
            nnx.Linear(3, n, rngs=nnx.Rngs(0)), nnx.Linear(n, n, kernel_init=init, rngs=nnx.Rngs(1)),
            nnx.Linear(n, 2, kernel_init=nnx.initializers.zeros, rngs=nnx.Rngs(2)),
        )  # fmt: skip

    wide, base = model(64), model(16)
    before = wide.layers[1].kernel[...]
    info = infer_info(wide, base, depth_ratio=1.0, readout="layers/2")
    nnx.update(wide, rescale_init(wide, base, info, RULE))
    np.testing.assert_allclose(wide.layers[1].kernel[...], before / 2, rtol=1e-6)


def test_what_cannot_be_rescaled_is_named():
    params, base = weights(NORMAL, 128, 0), weights(NORMAL, 32, 1)
    info = infer_info(params, base, depth_ratio=1.0, readout="head")
    abstract = jax.eval_shape(lambda: params)
    with pytest.raises(InputError, match="is ShapeDtypeStruct, which has no values: call rescale_init outside jit"):
        rescale_init(abstract, base, info, RULE)
    with pytest.raises(InputError, match="which has no values: call rescale_init outside jit"):
        jax.jit(lambda p: rescale_init(p, base, info, RULE))(params)
    with pytest.raises(InputError, match=r"'bias' has shape \(32,\), but info was made for \(128,\)"):
        rescale_init(base, base, info, RULE)
    with pytest.raises(InputError, match="'w' is constant in the model alone"):
        rescale_init({**params, "w": jnp.zeros((128, 128))}, base, info, RULE)
    with pytest.raises(InputError, match="'zero' is in the model but not in info"):
        rescale_init(params, base, {path: leaf for path, leaf in info.items() if path != "zero"}, RULE)
