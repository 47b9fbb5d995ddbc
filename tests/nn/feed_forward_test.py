"""Feed-forward branches and experts, token by token."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import depthmup_flax as dm
from depthmup_flax.nn import transformer as feed_forward
from depthmup_flax.nn.blocks import TransformerConfig
from depthmup_flax.nn.transformer import BALANCE_RATE, FeedForward, MixtureOfExperts, largest

X = jax.random.normal(jax.random.key(1), (2, 5, 8))


def silu(z):
    return z / (1 + np.exp(-z))


def swiglu(x, p):
    return (silu(x @ p["gate"]["kernel"]) * (x @ p["up"]["kernel"])) @ p["down"]["kernel"]


def variables_of(module):
    """Initial variables, with a router that is not zero."""
    variables = nn.unbox(jax.jit(module.init)(jax.random.key(0), X))
    if "router" in variables["params"]:
        assert not variables["params"]["router"]["kernel"].any()
        variables["params"]["router"]["kernel"] = jax.random.normal(jax.random.key(2), (8, 4))
    return variables


def of_module(module):
    variables = variables_of(module)
    return jax.jit(module.apply)(variables, X), jax.tree.map(np.asarray, variables["params"])


@pytest.mark.parametrize(("fields", "hidden"), [({"mlp_ratio": 3}, 24), ({"mlp_features": 20}, 20)])
def test_swiglu_is_shazeers_with_the_hidden_features_that_were_asked_for(fields, hidden):
    y, p = of_module(FeedForward(TransformerConfig(mlp="swiglu", **fields)))
    assert p["gate"]["kernel"].shape == p["up"]["kernel"].shape == (8, hidden)
    np.testing.assert_allclose(y, swiglu(np.asarray(X), p), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mlp", ["gelu", "swiglu"])
def test_a_program_for_a_gpu_saves_the_arguments_of_an_activation_alone(mlp, monkeypatch):
    module = FeedForward(TransformerConfig(mlp=mlp, mlp_features=11))
    variables = variables_of(module)

    def saved():
        """Arrays of hidden features that the backward pass reads, and the gradient."""
        _, pull = jax.vjp(lambda variables: jnp.sin(module.apply(variables, X)), variables)
        shapes = [x.shape for x in jax.tree.leaves(pull)]
        return shapes.count((2, 5, 11)), pull(jnp.ones_like(X))

    (all_parts, expected), _ = saved(), monkeypatch.setattr(feed_forward, "target_platform", lambda: "gpu")
    arguments, found = saved()
    assert arguments == {"gelu": 2, "swiglu": 3}[mlp] < all_parts  # and the result, a factor of the next layer
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-7), found, expected)


@pytest.mark.parametrize("chosen", [1, 3])
def test_a_mixture_is_the_weighted_sum_of_the_likeliest_experts_of_each_token(chosen):
    config = TransformerConfig(mlp="swiglu", mlp_features=6, experts=4, experts_per_token=chosen)
    y, p = of_module(MixtureOfExperts(config))
    experts = [jax.tree.map(lambda kernel, i=i: kernel[i], p["experts"]) for i in range(4)]
    assert not np.allclose(experts[0]["up"]["kernel"], experts[1]["up"]["kernel"])
    for token, output in zip(np.asarray(X).reshape(-1, 8), np.asarray(y).reshape(-1, 8), strict=True):
        logits = token @ p["router"]["kernel"]
        best = sorted(range(4), key=lambda e, logits=logits: -logits[e])[:chosen]
        weights = np.exp(logits[best]) / np.exp(logits[best]).sum()
        expected = sum(weight * swiglu(token, experts[e]) for weight, e in zip(weights, best, strict=True))
        np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-6)


def test_equal_logits_choose_as_many_experts_as_others():
    np.testing.assert_array_equal(largest(jnp.array([[0.0, 0.0, 0.0], [1.0, 3.0, 2.0]]), 2), [[1, 1, 0], [0, 1, 1]])


def test_a_training_step_moves_biases_toward_equal_loads_and_biases_choose_but_do_not_weigh():
    config = TransformerConfig(mlp_features=6, experts=4, experts_per_token=1, train=True)
    variables = variables_of(MixtureOfExperts(config))
    assert not variables["batch_stats"]["bias"].any()
    apply = jax.jit(lambda v: MixtureOfExperts(config).apply(v, X, mutable=["batch_stats"]))
    y, changed = apply(variables)
    loads = np.bincount(np.argmax(X @ variables["params"]["router"]["kernel"], -1).ravel(), minlength=4)
    assert len(set(loads)) > 1
    np.testing.assert_allclose(changed["batch_stats"]["bias"], BALANCE_RATE * np.sign(loads.mean() - loads), rtol=1e-6)
    everywhere_third = variables | {"batch_stats": {"bias": jnp.array([0.0, 0.0, 100.0, 0.0])}}
    y, changed = apply(everywhere_third)
    third = jax.tree.map(lambda kernel: kernel[2], variables["params"]["experts"])
    one = jax.jit(FeedForward(config).apply)({"params": third}, X)
    np.testing.assert_allclose(y, one, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(
        changed["batch_stats"]["bias"] - everywhere_third["batch_stats"]["bias"],
        BALANCE_RATE * np.array([1, 1, -1, 1]),
        rtol=1e-2,
    )


def test_evaluation_leaves_the_biases():
    module = MixtureOfExperts(TransformerConfig(mlp_features=6, experts=4))
    variables = variables_of(module)
    _, changed = jax.jit(lambda v: module.apply(v, X, mutable=["batch_stats"]))(variables)
    np.testing.assert_array_equal(changed["batch_stats"]["bias"], variables["batch_stats"]["bias"])


def test_experts_are_hidden_matrices_of_their_own_behind_a_router_that_starts_at_zero():
    model = dm.GPT(5, width=64, base_width=16, depth=2, base_depth=1, experts=8, mlp="swiglu", use_bias=True)
    leaves = dm.param_info(model, model.base(), jnp.zeros((1, 4), jnp.int32))["transformer"]["blocks"]["mlp"]
    router, expert, bias = (
        leaves["router"]["kernel"],
        leaves["experts"]["up"]["kernel"],
        leaves["experts"]["up"]["bias"],
    )
    assert (expert.shape, expert.role, expert.width_in, expert.width_out) == ((2, 8, 64, 256), dm.Role.HIDDEN, 4, 4)
    assert (bias.shape, bias.role, bias.width_out) == ((2, 8, 256), dm.Role.VECTOR, 4)
    assert router.to_few_features
    assert router.init_std == 0
    rule = dm.get_parametrization("depth_mup")
    assert rule.update_scale(router) == rule.update_scale(expert) == pytest.approx(2**-0.5 / 4)


def test_a_model_with_experts_says_that_it_has_a_second_collection():
    model = dm.GPT(10, width=8, depth=1, num_heads=2, experts=2)
    tokens = jnp.zeros((1, 4), jnp.int32)
    variables = jax.eval_shape(model.init, jax.random.key(0), tokens)
    with pytest.raises(dm.InputError, match="the collection 'batch_stats' is missing"):
        jax.eval_shape(model.apply, {"params": variables["params"]}, tokens)


B, T, STEPS, SEEDS = 8, 8, 2, 6


def moved_by_routers(preset, width, depth):
    """``[seeds, 2]``: the outputs' change, along the gradient and in all, after two steps that train routers alone."""
    rule = dm.get_parametrization(preset)
    fixed = {"base_width": 32, "base_depth": 4, "experts": 4}
    model = dm.GPT(64, width=width, depth=depth, rule=rule, **fixed)
    rng = np.random.default_rng(0)
    x, labels = jnp.asarray(rng.integers(0, 64, (2, B, T)))
    info = dm.param_info(model, model.base(), x)
    trained = jax.tree_util.tree_map_with_path(lambda path, _: "router" in jax.tree_util.keystr(path), info)
    directions = {True: optax.scale_by_adam(), False: optax.set_to_zero()}
    optimizer = dm.depthmup(optax.partition(directions, trained), info, rule, 2e-3)
    loss = lambda logits: optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    def run(key):
        variables = nn.unbox(model.init(key, x))
        params = variables["params"]
        outputs = lambda params: model.apply({**variables, "params": params}, x)
        start, state = outputs(params), optimizer.init(params)
        along = -jax.grad(loss)(start)
        for _ in range(STEPS):
            updates, state = optimizer.update(jax.grad(lambda p: loss(outputs(p)))(params), state, params)
            params = optax.apply_updates(params, updates)
        moved = outputs(params) - start
        return jnp.stack([jnp.mean(moved * along) / jnp.sqrt(jnp.mean(along**2)), jnp.sqrt(jnp.mean(moved**2))])

    return np.asarray(jax.jit(jax.vmap(run))(jax.random.split(jax.random.key(1), SEEDS)))


@pytest.mark.slow
def test_routers_move_outputs_alike_at_every_depth_and_along_the_gradient_as_the_root_of_depth_over_width():
    base = moved_by_routers("depth_mup", 32, 8)
    deep, wide = moved_by_routers("depth_mup", 32, 32), moved_by_routers("depth_mup", 128, 8)
    power = lambda sizes: np.log(sizes / base).mean(0) / np.log(4)
    along, everything = power(deep)
    assert 0.2 < along < 0.6
    assert abs(everything) < 0.1
    assert -0.7 < power(wide)[0] < -0.3


@pytest.mark.slow
def test_with_alpha_1_what_routers_move_along_the_gradient_does_not_grow_with_depth():
    shallow, deep = (moved_by_routers("completep", 32, depth)[:, 0] for depth in (8, 32))
    assert abs(np.log(deep / shallow).mean() / np.log(4)) < 0.15
