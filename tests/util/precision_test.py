"""Products of float32 are in full on every device, and products of bfloat16 in the device's own precision."""

import functools
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import depthmup_flax as dm
from depthmup_flax.check import coord_check
from depthmup_flax.nn.layers import readout_product
from depthmup_flax.util.precision import product_precision, readout_precision

IMAGES, TOKENS = jnp.zeros((2, 8, 8, 3)), jnp.zeros((2, 8), int)
MODELS = {
    "ResMLP": (dm.ResMLP(3, width=8, depth=2), IMAGES),
    "ResNet": (dm.ResNet(3, width=4, depth=2, stage_sizes=(1, 1)), IMAGES),
    "ViT": (dm.ViT(3, width=8, depth=1, num_heads=2, patch_size=4), IMAGES),
    "GPT, tied": (dm.GPT(5, width=8, depth=1, num_heads=2, tied=True), TOKENS),
}


def precisions(function, *args, platforms=("tpu",)):
    """The precision of every product and convolution of a program for devices that are absent."""
    traced = jax.jit(function).trace(*args)
    text = "".join(traced.lower(lowering_platforms=(platform,)).as_text() for platform in platforms)
    lines = [line for line in text.splitlines() if re.search(r"stablehlo\.(dot_general|convolution)", line)]
    return {match[1] if (match := re.search(r"(HIGHEST|HIGH)\b", line)) else "DEFAULT" for line in lines}


@functools.cache
def variables_of(name):
    model, inputs = MODELS[name]
    return jax.eval_shape(lambda x: nn.unbox(model.init(jax.random.key(0), x)), inputs)


def gradient(name, dtype="float32"):
    """The gradient of a loss, and shapes of parameters."""
    model, inputs, rest = MODELS[name][0].clone(dtype=dtype), MODELS[name][1], dict(variables_of(name))
    params = rest.pop("params")

    def loss(params, rest):
        logits, _ = model.apply({"params": params, **rest}, inputs, train=True, mutable=list(rest))
        return optax.softmax_cross_entropy_with_integer_labels(logits, jnp.zeros(logits.shape[:-1], int)).mean()

    return jax.grad(loss), params, rest


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("dtype", "precision"), [("float32", "HIGHEST"), ("bfloat16", "DEFAULT")])
def test_every_product_of_a_training_step_has_the_precision_of_the_models_dtype(name, dtype, precision):
    assert precisions(*gradient(name, dtype)) == {precision}


@pytest.mark.parametrize(("setting", "precision"), [("default", "DEFAULT"), ("high", "HIGH")])
def test_a_setting_of_the_user_holds(setting, precision):
    with jax.default_matmul_precision(setting):
        assert precisions(*gradient("ViT"), platforms=("tpu", "cuda")) == {precision}


@pytest.mark.parametrize(
    ("dtype", "named"),
    [("float32", {"(Precision.HIGHEST, Precision.HIGHEST)"}), ("bfloat16", {"BF16_BF16_F32"}), ("float16", set())],
)
def test_a_readouts_factors_and_those_of_its_gradients_have_the_precision_of_the_models_dtype(dtype, named):
    x = jnp.ones((2, 8))
    logits = lambda x: dm.Readout(5, dm.PRESETS["mup"], 1.0, dtype=dtype).init_with_output(jax.random.key(0), x)[0]
    products = re.findall(r"precision=(.*)", str(jax.make_jaxpr(jax.grad(lambda x: jnp.sin(logits(x)).sum()))(x)))
    assert set(products) == named
    for stream in (x, x.astype(dtype)):
        assert jax.eval_shape(logits, stream).dtype == jnp.float32
    with jax.default_matmul_precision("high"):
        assert readout_precision(dtype) is None


def test_a_readout_of_a_bfloat16_model_is_the_exact_product_of_rounded_factors():
    rounded = lambda x: np.asarray(jnp.asarray(x, jnp.bfloat16), np.float64)
    x, kernel = (jax.random.normal(jax.random.key(i), shape) for i, shape in enumerate([(3, 64), (64, 5)]))
    y = jax.jit(functools.partial(readout_product, precision=readout_precision("bfloat16")))(x, kernel)
    assert y.dtype == jnp.float32
    np.testing.assert_allclose(y, rounded(x) @ rounded(kernel), rtol=1e-5, atol=1e-5)


def test_the_coordinate_check_runs_networks_of_any_library_in_full():
    seen = []

    def build(width, depth):
        seen.append(precisions(jnp.dot, jnp.ones((2, 2)), jnp.ones((2, 2))))
        raise KeyError

    with pytest.raises(KeyError):
        coord_check(build, rule=dm.get_parametrization("depth_mup"), width=8, depth=2, widths=(8, 16, 32))
    assert seen == [{"HIGHEST"}]


@pytest.mark.parametrize("itemsize_dtype", ["bfloat16", jnp.float16])
def test_precision_goes_by_bits(itemsize_dtype):
    assert product_precision(itemsize_dtype) is None
    assert product_precision("float32") == product_precision(jnp.float64) == jax.lax.Precision.HIGHEST
