"""Networks of every library give what direct use of the library gives."""

import equinox as eqx
import flax.linen as nn
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from depthmup_flax.networks.adapters import modes
from depthmup_flax.networks.model_functions import model_functions
from depthmup_flax.util.errors import InputError, UserCodeError

X = np.random.default_rng(0).normal(size=(8, 5)).astype(np.float32)
KEY, DROP = jax.random.key(3), jax.random.key(4)


class LinenNet(nn.Module):
    width: int = 6

    @nn.compact
    def __call__(self, x, train):
        h = nn.BatchNorm(use_running_average=not train)(nn.Dense(self.width)(x))
        self.sow("losses", "size", jnp.sum(h**2))
        return nn.Dense(2)(nn.Dropout(0.5, deterministic=not train)(h))


class NnxNet(nnx.Module):
    def __init__(self, width=6, *, rngs):
        self.layers = nnx.List([nnx.Linear(5, width, rngs=rngs), nnx.Linear(width, 2, rngs=rngs)])
        self.norm, self.drop = nnx.BatchNorm(width, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        return self.layers[1](self.drop(self.norm(self.layers[0](x))))


class EqxNet(eqx.Module):
    layers: list
    drop: eqx.nn.Dropout
    order: jax.Array
    act: object

    def __init__(self, width=6, *, key):
        keys = jax.random.split(key)
        self.layers = [eqx.nn.Linear(5, width, key=keys[0]), eqx.nn.Linear(width, 2, key=keys[1])]
        self.drop, self.order, self.act = eqx.nn.Dropout(0.5), jnp.arange(5)[::-1], jax.nn.gelu

    def __call__(self, x, key=None):
        return self.layers[1](self.drop(self.act(self.layers[0](x + self.order)), key=key))


def haiku_net(x, is_training):
    h = hk.BatchNorm(True, True, 0.9)(hk.Linear(6)(x), is_training)
    h = hk.dropout(hk.next_rng_key(), 0.5, h) if is_training else h
    return hk.nets.MLP([4, 2])(h)


def pair_init(key):
    return [jax.random.normal(key, (5, 2)), jnp.zeros(2)]


def pair_apply(params, x, *, train=False, key=None):
    return x @ params[0] + params[1] + (jax.random.normal(key, (2,)) if train else 0)


def loss_of(outputs):
    return jnp.sum(jnp.sin(outputs))


def linen_direct(train):
    model = LinenNet()
    variables = model.init(KEY, X, train=False)

    def loss(params):
        given = {"params": params, "batch_stats": variables["batch_stats"]}
        outputs, new = model.apply(given, X, train=train, rngs={"dropout": DROP}, mutable=["batch_stats"])
        return loss_of(outputs), (outputs, new["batch_stats"]["BatchNorm_0"]["mean"])

    return jax.grad(loss, has_aux=True)(variables["params"])


def nnx_direct(train):
    module = NnxNet(rngs=nnx.Rngs(KEY))
    module.train() if train else module.eval()
    # The state of random streams is (count, key): its second leaf.
    module.drop.rngs.key.set_value(jax.random.fold_in(DROP, 1))
    module.drop.rngs.count.set_value(jnp.uint32(0))

    def loss(module):
        outputs = module(X)
        return loss_of(outputs), outputs

    gradient, outputs = nnx.grad(loss, has_aux=True)(module)
    return nnx.to_pure_dict(gradient), (outputs, module.norm.mean.get_value())


def eqx_direct(train):
    module = eqx.nn.inference_mode(EqxNet(key=KEY), not train)

    def loss(module):
        outputs = jax.vmap(lambda x, key: module(x, key=key))(X, jax.random.split(DROP, 8))
        return loss_of(outputs), outputs

    gradient, outputs = eqx.filter_grad(loss, has_aux=True)(module)
    return [[layer.weight, layer.bias] for layer in gradient.layers], (outputs, module.order)


def haiku_direct(train):
    net = hk.transform_with_state(haiku_net)
    params, state = net.init(KEY, X, True)

    def loss(params):
        outputs, new = net.apply(params, state, DROP, X, train)
        return loss_of(outputs), (outputs, new["batch_norm/~/mean_ema"]["average"])

    return jax.grad(loss, has_aux=True)(params)


def pair_direct(train):
    loss = lambda params: loss_of(pair_apply(params, X, train=train, key=DROP))
    params = pair_init(KEY)
    return jax.grad(loss)(params), (pair_apply(params, X, train=train, key=DROP), jnp.zeros(()))


# make, direct use, and the running average among the state
KINDS = {
    "linen": (LinenNet, linen_direct, lambda s: s["batch_stats"]["BatchNorm_0"]["mean"]),
    "nnx": (NnxNet, nnx_direct, lambda s: s["norm"]["mean"]),
    "equinox": (EqxNet, eqx_direct, lambda s: s["order"]),
    "haiku": (
        lambda: hk.transform_with_state(haiku_net),
        haiku_direct,
        lambda s: s["batch_norm/~/mean_ema"]["average"],
    ),
    "pair": (lambda: (pair_init, pair_apply), pair_direct, lambda s: jnp.zeros(())),
}


def sorted_sums(tree):
    """What two trees with equal leaves have in common, whatever their containers."""
    return sorted((leaf.shape, float(jnp.sum(leaf)), float(jnp.sum(leaf**2))) for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_outputs_gradients_and_state_are_those_of_direct_use(kind, train):
    make, direct, average = KINDS[kind]
    functions = model_functions(make)
    params, state = jax.jit(functions.init)(KEY, X)

    def loss(params):
        outputs, new = functions.apply(params, state, X, train=train, key=DROP)
        return loss_of(outputs), (outputs, new)

    gradient, (outputs, new) = jax.jit(jax.grad(loss, has_aux=True))(params)
    wanted_gradient, (wanted, wanted_average) = jax.jit(direct, static_argnums=0)(train)
    np.testing.assert_allclose(outputs, wanted, rtol=1e-5, atol=1e-6)
    for mine, theirs in zip(sorted_sums(gradient), sorted_sums(wanted_gradient), strict=True):
        assert mine[0] == theirs[0]
        np.testing.assert_allclose(mine[1:], theirs[1:], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(average(new), wanted_average, rtol=1e-5)
    assert jax.tree.map(jnp.shape, new) == jax.tree.map(jnp.shape, state)


@pytest.mark.parametrize("kind", KINDS)
def test_several_networks_at_once_are_the_single_ones(kind):
    functions = model_functions(KINDS[kind][0])
    keys = jax.random.split(KEY, 2)
    run = jax.jit(lambda key: functions.apply(*functions.init(key, X), X, train=True, key=DROP))
    together, single = jax.jit(jax.vmap(run))(keys), [run(key) for key in keys]
    one_by_one = jax.tree.map(lambda *x: np.stack(x), *single)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), together, one_by_one)
    assert not np.allclose(*(outputs for outputs, _ in single))


@pytest.mark.parametrize("kind", KINDS)
def test_parameters_are_plain_containers_of_arrays(kind):
    functions, inputs = model_functions(KINDS[kind][0]), jax.ShapeDtypeStruct(X.shape, X.dtype)
    params, state = functions.shapes(inputs)
    assert (params, state) == jax.eval_shape(functions.init, KEY, inputs)
    assert "losses" not in state
    inner = lambda x: () if isinstance(x, jax.ShapeDtypeStruct) else x.values() if isinstance(x, dict) else x
    trees = [params, state]
    while trees:
        tree = trees.pop()
        assert type(tree) in (dict, list, jax.ShapeDtypeStruct)
        trees += inner(tree)


def test_a_tuple_of_inputs_is_several_arguments():
    class Two(nn.Module):
        @nn.compact
        def __call__(self, a, b):
            return nn.Dense(2)(a) * b

    functions = model_functions(Two)
    params, state = functions.init(KEY, (X, 0.0))
    outputs, _ = functions.apply(params, state, (X, 0.0), train=False, key=None)
    assert not outputs.any()


@pytest.mark.parametrize("make", [lambda: NnxNet(rngs=nnx.Rngs(0)), lambda: EqxNet(key=KEY)], ids=["nnx", "equinox"])
def test_a_network_with_the_same_values_for_all_seeds_is_refused(make):
    with pytest.raises(InputError, match=r"(rngs|key).*seeds"):
        model_functions(make)


@pytest.mark.parametrize("wrong", [lambda: 3, lambda: None, lambda: (3, 4), lambda: jnp.ones(3), 7])
def test_what_is_no_network_is_refused_with_what_it_may_be(wrong):
    with pytest.raises(InputError, match=r"Linen.*NNX.*Equinox.*Haiku.*init, apply"):
        model_functions(wrong, "my_package.net:Net")


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_in_the_call_names_it_with_shapes(kind):
    functions = model_functions(KINDS[kind][0], "my_package.net:Net")
    params, state = functions.init(KEY, X)
    with pytest.raises(UserCodeError, match=r"my_package\.net:Net.*float32\[8, 4\].*failed"):
        functions.apply(params, state, X[:, :4], train=False, key=None)


def test_an_error_while_it_is_made_names_it():
    def broken(key):
        raise KeyError("depth")

    with pytest.raises(UserCodeError, match=r"broken.*KeyError"):
        model_functions(broken)


def test_modes_are_those_that_a_module_holds_and_a_dropped_rate_in_any_of_equal_layers():
    assert modes(EqxNet(key=KEY)) == {"drop/inference": False}
    assert modes(eqx.nn.inference_mode(EqxNet(key=KEY))) == {"drop/inference": True}
    layers = nnx.List([nnx.Dropout(rate) for rate in (0.0, 0.2, 0.1)])
    assert modes(nnx.Sequential(*layers)) == {"layers/*/deterministic": False, "layers/*/rate": 0.2}
    assert not modes(LinenNet())
