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
    noise: bool = False
    sown: bool = False
    boxed: bool = False
    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(self, x):
        init = nn.initializers.lecun_normal()
        init = nn.with_partitioning(init, (None, "model")) if self.boxed else init
        h = nn.Dense(8, name="stem", kernel_init=init, dtype=self.dtype)(x)
        h = nn.relu(nn.BatchNorm(use_running_average=False, dtype=self.dtype, name="norm")(h))
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


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"result": "tuple"}, "returns tuple.*output="),
        ({"result": "dictionary"}, r"returns dict with the keys \['features', 'logits'\]"),
        ({"result": "dictionary", "output": "y"}, "output is 'y'"),
        ({"result": "tuple", "output": 2}, "output is 2"),
        ({"dtype": jnp.bfloat16}, "bfloat16.*float32"),
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


class NnxNet(nnx.Module):
    """With batch normalization and dropout, and two results."""

    def __init__(self, rngs):
        self.stem = nnx.Linear(6, 8, rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.head = nnx.Linear(8, 3, rngs=rngs)

    def __call__(self, x):
        h = self.dropout(nnx.relu(self.norm(self.stem(x))))
        return self.head(h), h


@pytest.mark.slow
def test_an_nnx_module_with_averages_and_dropout_computes_the_same_twice():
    params = nnx.state(nnx.eval_shape(lambda: NnxNet(nnx.Rngs(0))), nnx.Param)
    info = jax.tree.map(lambda leaf: dm.ParamInfo(dm.Role.FIXED, leaf.shape), params)
    found = traced(checked_network(NnxNet, X, info=info, optimizer=optax.sgd(0.1), output=0))
    assert found.shapes[OUTPUT].shape == (4, 3)
    state = found.network.init(jax.random.key(3))
    first, second = (found.network.apply(state)[0] for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert float(jnp.abs(first).max()) > 0
