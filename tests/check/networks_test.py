"""What users hand over: several results, random streams, mapped axes, boxed parameters, low precision."""

import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import depthmup_flax as dm
from depthmup_flax.check import checked_network
from depthmup_flax.check.networks import traced
from depthmup_flax.check.records import OUTPUT

X = jax.random.normal(jax.random.key(0), (4, 6))


class Net(nn.Module):
    """A batch-normalized network of many options."""

    result: str = "one"
    axis_name: str | None = None
    noise: bool = False
    sown: bool = False
    boxed: bool = False
    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(self, x):
        init = nn.initializers.lecun_normal()
        init = nn.with_partitioning(init, (None, "model")) if self.boxed else init
        h = nn.Dense(8, name="stem", kernel_init=init, dtype=self.dtype)(x)
        h = nn.relu(nn.BatchNorm(use_running_average=False, axis_name=self.axis_name, dtype=self.dtype, name="norm")(h))
        h = nn.Dropout(0.5, deterministic=False)(h)
        if self.noise:
            h = h + jax.random.normal(self.make_rng("noise"), h.shape)
        if self.sown:
            self.sow("losses", "size", jnp.mean(h**2))
        y = nn.Dense(3, name="head", dtype=self.dtype)(h)
        return {"one": y, "tuple": (y, h), "dictionary": {"logits": y, "features": h}}[self.result]


def network(output=None, **fields):
    params = nn.unbox(jax.eval_shape(Net().init, jax.random.key(0), X)["params"])
    info = jax.tree.map(lambda leaf: dm.ParamInfo(dm.Role.FIXED, leaf.shape), params)
    return checked_network(Net(**fields), X, info=info, optimizer=optax.sgd(0.1), output=output)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"result": "tuple", "output": 0},
        {"result": "dictionary", "output": "logits"},
        {"result": "dictionary", "output": lambda result: result["logits"]},
        {"noise": True},
        {"sown": True},
        {"boxed": True},
    ],
    ids=lambda value: re.sub(r" at 0x\w+", "", str(value)),
)
def test_linen_modules_of_many_kinds_have_one_output_and_named_activations(fields):
    found = traced(network(**fields))
    assert found.shapes[OUTPUT].shape == (4, 3)
    assert {"stem", "norm", "head"} <= set(found.shapes)
    assert found.precision is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"result": "tuple"}, "the network returns tuple: it must return one array of outputs. Select it with output="),
        ({"result": "dictionary"}, r"returns dict with the keys \['features', 'logits'\]"),
        (
            {"result": "dictionary", "output": "y"},
            r"output is 'y', but the model returns the keys \['features', 'logits'\]",
        ),
        ({"result": "tuple", "output": 2}, "output is 2, but the model returns a tuple of 2: name one of its results"),
        ({"axis_name": "batch"}, "the model uses the mapped axis 'batch', .*: build it with axis_name=None"),
    ],
    ids=lambda value: re.sub(r" at 0x\w+", "", str(value)),
)
def test_what_cannot_be_measured_is_one_sentence(fields, message):
    with pytest.raises(dm.InputError, match=message):
        traced(network(**fields))


@pytest.mark.slow
def test_a_tuple_is_several_arguments_for_linen_and_nnx():
    class Sum(nn.Module):
        @nn.compact
        def __call__(self, x, y):
            return nn.Dense(3, name="head")(x + y)

    class NnxSum(nnx.Module):
        def __init__(self, rngs):
            self.head = nnx.Linear(6, 3, rngs=rngs)

        def __call__(self, x, y):
            return self.head(x + y)

    info = {name: dm.ParamInfo(dm.Role.FIXED, shape) for name, shape in (("bias", (3,)), ("kernel", (6, 3)))}
    arguments = {"info": {"head": info}, "optimizer": optax.sgd(0.1)}
    for one in (checked_network(Sum(), (X, X), **arguments), checked_network(NnxSum, (X, X), **arguments)):
        params = one.init(jax.random.key(0))
        head = jax.tree.leaves(params)
        expected = 2 * X @ next(leaf for leaf in head if leaf.ndim == 2)
        np.testing.assert_allclose(one.apply(params)[0], expected, rtol=1e-5)


@pytest.mark.slow
def test_a_forward_pass_in_bfloat16_is_computed_in_float32():
    low, full = (traced(network(dtype=dtype)) for dtype in (jnp.bfloat16, jnp.float32))
    assert (low.precision, full.precision) == ("bfloat16", None)
    assert {x.dtype for x in low.shapes.values()} == {jnp.dtype("float32")}
    params = full.network.init(jax.random.key(1))
    step = 1e-4  # below the rounding of bfloat16
    moved = jax.tree.map(lambda w: w * (1 + step), params)
    change = lambda net: np.asarray(net.apply(moved)[0] - net.apply(params)[0], np.float32)
    expected, computed, rounded = change(full.network), change(low.network), change(network(dtype=jnp.bfloat16))
    assert np.abs(computed - expected).max() < 0.1 * np.abs(expected).max()
    assert np.abs(rounded - expected).max() > np.abs(expected).max()
    gradients = [
        jax.grad(lambda p, net=net: jnp.sum(net.apply(p)[0] ** 2))(params) for net in (full.network, low.network)
    ]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0.1, atol=0.1), *gradients)


def test_products_of_a_network_in_bfloat16_have_full_precision_too():
    model = dm.GPT(5, width=8, depth=1, num_heads=2, dtype="bfloat16")
    tokens = jnp.zeros((2, 8), int)
    params = jax.eval_shape(lambda: nn.unbox(model.init(jax.random.key(0), tokens)))
    jaxpr = jax.make_jaxpr(model.apply)(params, tokens)
    assert "BF16_BF16_F32" in str(jaxpr)
    computed = jax.make_jaxpr(in_float32(jaxpr))(*jax.tree.leaves(jax.tree.map(widened, (params, tokens))))
    assert set(re.findall(r"precision=(.*)", str(computed))) == {"(Precision.HIGHEST, Precision.HIGHEST)"}


class NnxNet(nnx.Module):
    """With batch normalization and dropout, and two results."""

    def __init__(self, rngs, dtype=jnp.float32):
        self.stem = nnx.Linear(6, 8, rngs=rngs, dtype=dtype)
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.head = nnx.Linear(8, 3, rngs=rngs)

    def __call__(self, x):
        h = self.dropout(nnx.relu(self.norm(self.stem(x))))
        return self.head(h), h


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_an_nnx_module_with_averages_and_dropout_computes_the_same_twice(dtype):
    make = lambda rngs: NnxNet(rngs, dtype)
    params = nnx.state(nnx.eval_shape(lambda: make(nnx.Rngs(0))), nnx.Param)
    info = jax.tree.map(lambda leaf: dm.ParamInfo(dm.Role.FIXED, leaf.shape), params)
    found = traced(checked_network(make, X, info=info, optimizer=optax.sgd(0.1), output=0))
    assert found.shapes[OUTPUT].shape == (4, 3)
    assert found.precision == (None if dtype is jnp.float32 else "bfloat16")
    state = found.network.init(jax.random.key(3))
    first, second = (found.network.apply(state)[0] for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert float(jnp.abs(first).max()) > 0
