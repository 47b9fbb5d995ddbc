"""What is known of optax directions, held against measured updates; and that building optimizers runs nothing."""

import subprocess
import sys
import time

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest

import depthmup_flax as dm
from depthmup_flax.rule.directions import DIRECTIONS, TRAITS, direction, direction_eps, homogeneity

# Arguments of transformations that have required ones.
ARGUMENTS = {
    "trace": (0.9,),
    "ema": (0.9,),
    "scale": (0.5,),
    "scale_by_schedule": (lambda step: 0.5,),
    "clip": (100.0,),
    "apply_every": (1,),
    "scale_by_rprop": (0.1,),
}
# Clipping follows the gradient below its threshold and depends on other entries above it.
THRESHOLDS = {"clip_by_global_norm": (1e6, 1e-3), "clip_by_block_rms": (1e6, 1e-3)}
COMMON = {"trace", "scale_by_adam", "scale_by_lion", "scale_by_trust_ratio", "scale_by_factored_rms"}
# They need the loss.
NOT_MEASURED = {"scale_by_polyak", "scale_by_lbfgs"}


def transformation(name, *arguments):
    make = getattr(optax, name, None) or getattr(optax.contrib, name)
    return make(*(arguments or ARGUMENTS.get(name, ())))


def measured(inner, steps):
    """Degree of the first entry's last update, and whether it is the same if all other entries are others.

    The matrix is 128 x 128: from that size some optimizers factor their statistics.
    """
    noise = jnp.asarray(np.random.default_rng(0).normal(size=(2, 128, 128)) + 0.5, jnp.float32)

    def last(scale, others):
        params = (others * noise[0]).at[0, 0].set(1.0)
        gradient = scale * (others**2 * noise[1]).at[0, 0].set(0.7)

        def step(state, _):
            update, state = inner.update(gradient, state, params)
            return state, update[0, 0]

        return jax.lax.scan(step, inner.init(params), None, length=steps)[1][-1]

    lanes = jax.jit(jax.vmap(last))(jnp.array([1.0, 2.0, 1.0]), jnp.array([1.0, 1.0, 3.0]))
    once, twice, other = np.asarray(lanes)
    return np.log2(np.abs(twice / once)), np.allclose(once, other, rtol=1e-5, atol=0)


@pytest.mark.parametrize(
    "name",
    [
        name if name in COMMON else pytest.param(name, marks=pytest.mark.slow)
        for name in sorted(TRAITS.keys() - NOT_MEASURED)
    ],
)
def test_traits_of_optax_transformations_are_what_their_updates_show(name):
    steps = 100 if TRAITS[name].degree == 0 else 5  # a normalization by a running average needs some steps
    degree, entrywise = measured(transformation(name, *THRESHOLDS.get(name, ())[:1]), steps)
    if name in THRESHOLDS:
        _, entrywise = measured(transformation(name, *THRESHOLDS[name][1:]), steps)
    assert degree == pytest.approx(TRAITS[name].degree, abs=0.1)
    assert entrywise == TRAITS[name].entrywise


@pytest.mark.parametrize("name", DIRECTIONS)
def test_named_directions_are_entrywise(name):
    assert measured(direction(name), 3)[1]


@pytest.mark.parametrize(
    ("name", "degree"),
    [("sgd", 1), ("momentum", 1), ("adam", 0), ("lion", 0), ("rmsprop", 0), ("radam", 0), ("adagrad", 0)],
)
def test_homogeneity_tells_sgd_from_adam(name, degree):
    assert homogeneity(direction(name)) == degree


def own():
    return optax.GradientTransformation(lambda params: (), lambda updates, state, params=None: (updates, state))


@pytest.mark.parametrize(
    ("inner", "degree"),
    [
        (optax.chain(optax.clip(1.0), optax.trace(0.9)), 1),
        (optax.chain(optax.trace(0.9), optax.scale_by_adam()), 0),
        (optax.chain(own(), optax.scale_by_adam()), 0),
        (optax.chain(own(), optax.trace(0.9)), None),
        (own(), None),
        (optax.masked(optax.scale_by_lion(), {"w": True}), 0),
        (optax.partition({"a": optax.scale_by_adam(), "b": optax.scale_by_rms()}, {"w": "a"}), 0),
        (optax.partition({"a": optax.scale_by_adam(), "b": optax.trace(0.9)}, {"w": "a"}), None),
        (optax.flatten(optax.scale_by_adam()), 0),
        (optax.apply_if_finite(optax.trace(0.9), 3), 1),
        (optax.with_extra_args_support(optax.scale_by_sign()), 0),
        (optax.named_chain(("first", optax.ema(0.9)), ("second", optax.scale(0.1))), 1),
    ],
)
def test_the_structure_of_a_composed_direction_is_read(inner, degree):
    assert homogeneity(inner) == degree


def small_model():
    rule = dm.get_parametrization("depth_mup")
    model = dm.ResMLP(3, width=32, depth=4, base_width=16, base_depth=2, parametrization=rule, use_bias=True)
    x = jax.random.normal(jax.random.key(1), (16, 8))
    info = dm.param_info(model, model.base(), x)
    params = nn.unbox(model.init(jax.random.key(0), x))["params"]
    return model, params, info, rule, x


def matrices(params):
    return jax.tree.map(lambda p: p.ndim > 1, params)


def labels(params):
    return jax.tree_util.tree_map_with_path(lambda path, _: "a" if "kernel" in str(path) else "b", params)


OPTIMIZERS = {
    "masked direction": lambda params, info, rule: dm.depthmup(
        optax.masked(optax.scale_by_adam(), matrices(params)), info, rule, 1e-2
    ),
    "partitioned directions": lambda params, info, rule: dm.depthmup(
        optax.partition({"a": optax.scale_by_adam(), "b": optax.scale_by_lion()}, labels(params)), info, rule, 1e-2
    ),
    "masked optimizer": lambda params, info, rule: optax.chain(  # optax passes what is masked out as it is
        optax.masked(dm.adamw(1e-2, info, rule), matrices(params)),
        optax.masked(optax.set_to_zero(), jax.tree.map(lambda matrix: not matrix, matrices(params))),
    ),
    "partitioned optimizers": lambda params, info, rule: optax.partition(
        {"a": dm.adamw(1e-2, info, rule), "b": dm.sgd(1e-2, info, rule)}, labels(params)
    ),
    "injected adamw": lambda params, info, rule: optax.inject_hyperparams(dm.adamw)(
        learning_rate=1e-2, info=info, parametrization=rule, weight_decay=0.1
    ),
    "injected schedule": lambda params, info, rule: optax.inject_hyperparams(dm.adamw)(
        learning_rate=optax.linear_schedule(1e-2, 1e-3, 10), info=info, parametrization=rule
    ),
    "injected sgd": lambda params, info, rule: optax.inject_hyperparams(dm.sgd)(
        learning_rate=1e-2, info=info, parametrization=rule, momentum=0.9
    ),
    "injected direction": lambda params, info, rule: dm.depthmup(
        optax.inject_hyperparams(optax.scale_by_adam)(b1=0.8), info, rule, 1e-2
    ),
    "own direction": lambda params, info, rule: dm.depthmup(own(), info, rule, 1e-2),
    "accumulated": lambda params, info, rule: optax.MultiSteps(dm.adamw(1e-2, info, rule), 2),
    "finite only": lambda params, info, rule: optax.apply_if_finite(dm.adamw(1e-2, info, rule), 2),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_compositions_with_optax_train_a_model(name):
    model, params, info, rule, x = small_model()
    optimizer = OPTIMIZERS[name](params, info, rule)
    y = jnp.arange(len(x)) % 3

    def loss(params):
        return optax.softmax_cross_entropy_with_integer_labels(model.apply({"params": params}, x), y).mean()

    @jax.jit
    def step(params, state):
        updates, state = optimizer.update(jax.grad(loss)(params), state, params)
        return optax.apply_updates(params, updates), state

    before, state = loss(params), optimizer.init(params)
    for _ in range(10):
        params, state = step(params, state)
    assert loss(params) < 0.95 * before


def test_an_injected_optimizer_is_the_plain_one():
    model, params, info, rule, x = small_model()
    grads = jax.grad(lambda p: model.apply({"params": p}, x).std())(params)
    plain = dm.adamw(1e-2, info, rule, weight_decay=0.1, eps=1e-6)
    injected = optax.inject_hyperparams(dm.adamw)(1e-2, info, rule, weight_decay=0.1, eps=1e-6)
    expected = plain.update(grads, plain.init(params), params)[0]
    updates = injected.update(grads, injected.init(params), params)[0]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), updates, expected)


@pytest.mark.parametrize(
    "inner",
    [
        optax.adam(0.1),
        optax.sgd(lambda step: 0.1),
        optax.chain(optax.clip(1.0), optax.adamw(0.1)),
        optax.masked(optax.adam(0.1), {"w": True}),
        optax.partition({"a": optax.adam(0.1), "b": optax.scale_by_adam()}, {"w": "a"}),
        optax.inject_hyperparams(optax.adam)(learning_rate=0.1),
        optax.apply_if_finite(optax.lion(0.1), 3),
        optax.adam(jnp.array(0.1)),
    ],
)
def test_a_finished_optimizer_is_refused_however_it_is_wrapped(inner):
    _, _, info, rule, _ = small_model()
    with pytest.raises(dm.InputError, match="inner is a finished optimizer"):
        dm.depthmup(inner, info, rule, 0.1)


def test_muon_is_refused_with_a_sentence():
    _, _, info, rule, _ = small_model()
    with pytest.raises(dm.InputError, match="inner is scale_by_muon"):
        dm.depthmup(optax.contrib.scale_by_muon(), info, rule, 0.1)


def test_a_direction_of_unknown_name_is_checked_by_the_shapes_of_its_state(monkeypatch):
    monkeypatch.delitem(TRAITS, "scale_by_factored_rms")
    params = {"w": jnp.ones((256, 256))}
    inner = direction("factored_rms")
    with pytest.raises(dm.InputError, match="'factored_rms': its update of an entry depends on other entries"):
        inner.init(params)
    monkeypatch.delitem(TRAITS, "scale_by_yogi")
    inner = direction("yogi")
    updates, _ = inner.update(params, inner.init(params), params)
    expected, _ = optax.scale_by_yogi().update(params, optax.scale_by_yogi().init(params), params)
    np.testing.assert_array_equal(updates["w"], expected["w"])


def test_building_optimizers_compiles_and_allocates_nothing():
    """In a new process: no backend is started by any constructor."""
    program = """
import depthmup_flax as dm, optax, jax._src.xla_bridge as bridge
rule = dm.get_parametrization("depth_mup")
info = {"w": dm.ParamInfo(dm.Role.HIDDEN, (8, 8), 2.0, 2.0, True, 4.0)}
dm.adamw(1e-3, info, rule, weight_decay=0.1, clip_rms=1.0)
dm.sgd(1e-3, info, rule, momentum=0.9)
dm.depthmup(optax.masked(optax.scale_by_adam(), {"w": True}), info, rule, optax.cosine_decay_schedule(1.0, 10))
dm.scale_by_depthmup(optax.scale_by_lion(), info, rule)
optax.inject_hyperparams(dm.adamw)(learning_rate=1e-3, info=info, parametrization=rule)
for name in ("adam", "rmsprop", "novograd", "sm3"):
    try:
        dm.depthmup(__import__("depthmup_flax.rule.directions").rule.directions.direction(name), info, rule, 1.0)
    except dm.InputError:
        pass
assert not bridge._backends, bridge._backends
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_adamw_is_built_in_less_than_2_ms():
    _, _, info, rule, _ = small_model()
    dm.adamw(1e-3, info, rule, weight_decay=0.1)
    times = []
    for _ in range(20):
        started = time.perf_counter()
        dm.adamw(1e-3, info, rule, weight_decay=0.1)
        times.append(time.perf_counter() - started)
    assert np.median(times) < 2e-3


def test_epsilon_is_told_in_units_of_the_gradient():
    assert direction_eps("adam") == 1e-8
    assert direction_eps("adam", eps=1e-3) == 1e-3
    assert direction_eps("rmsprop", eps=1e-6) == pytest.approx(1e-3)  # sqrt(nu + eps)
    assert direction_eps("sgd") is None
