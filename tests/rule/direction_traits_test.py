"""What is known of optax directions, held against measured updates; and that building optimizers runs nothing."""

import functools
import subprocess
import sys

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest
from drawn import updated

import depthmup_flax as dm
from depthmup_flax.auditing.config_audit import audited_model
from depthmup_flax.rule.direction_traits import homogeneity, matrix_updates
from depthmup_flax.rule.directions import DIRECTIONS, direction, direction_eps

COMMON = {"adam", "lion", "momentum", "trust_ratio", "factored_rms"}
NAMES = sorted({name.removeprefix("scale_by_") for name in dir(optax) if name.startswith("scale_by_")} | {*DIRECTIONS})
ARGUMENTS = {"rprop": {"learning_rate": 0.1}}


def named(name):
    """The direction of this name; `None` for one that is refused."""
    try:
        return direction(name, **ARGUMENTS.get(name, {}))
    except dm.InputError:
        return None


def measured_degree(inner, steps=100):
    """Degree of the last update of a 128 x 128 matrix, whose statistics some optimizers factor.

    A normalization by a running average needs some steps.
    """
    gradient, params = np.random.default_rng(0).normal(size=(2, 128, 128)) + 0.5

    def last(scale):
        def step(state, _):
            update, state = inner.update(scale * gradient, state, params)
            return state, update[0, 0]

        return jax.lax.scan(step, inner.init(jnp.asarray(params, jnp.float32)), None, length=steps)[1][-1]

    once, twice = np.asarray(jax.jit(jax.vmap(last))(jnp.array([1.0, 2.0])))
    return np.log2(np.abs(twice / once))


@pytest.mark.parametrize(
    "name",
    [name if name in COMMON else pytest.param(name, marks=pytest.mark.slow) for name in NAMES if named(name)],
)
def test_degrees_of_named_directions_are_what_their_updates_show(name):
    inner = named(name)
    assert measured_degree(inner) == pytest.approx(homogeneity(inner), abs=0.1)


def hidden(inner):
    """The same transformation, of which nothing can be read but what it computes and its state."""
    return optax.GradientTransformationExtraArgs(
        lambda params: inner.init(params), lambda *args, **kwargs: inner.update(*args, **kwargs)
    )


def own():
    return optax.GradientTransformation(lambda params: (), lambda updates, state, params=None: (updates, state))


@pytest.mark.parametrize(
    ("inner", "degree"),
    [
        (optax.chain(optax.clip(1e20), optax.trace(0.9)), 1),
        (optax.chain(optax.trace(0.9), optax.scale_by_adam()), 0),
        (optax.chain(own(), optax.scale_by_adam()), 0),
        (own(), 1),
        (direction("rmsprop"), 0),
        (direction("momentum"), 1),
        (hidden(direction("momentum")), 1),
        (optax.masked(optax.scale_by_lion(), {"w": True}), 0),
        (optax.flatten(optax.scale_by_adam()), 0),
        (optax.inject_hyperparams(optax.scale_by_adam)(b1=0.8), 0),
        (optax.scale_by_param_block_rms(), 1),
        (optax.stateless(lambda updates, _: jax.tree.map(jnp.square, updates)), None),
    ],
)
def test_the_degree_of_any_direction_is_measured(inner, degree):
    assert homogeneity(inner) == degree


# What the rule covers, on parameters of every rank.
PARAMS = {"s": jnp.ones(()), "v": jnp.linspace(-1, 1, 12), "w": jnp.linspace(-2, 1, 240).reshape(20, 12)}
INFO = {
    "s": dm.ParamInfo(dm.Role.FIXED, ()),
    "v": dm.ParamInfo(dm.Role.VECTOR, (12,), 1.0, 2.0),
    "w": dm.ParamInfo(dm.Role.HIDDEN, (20, 12), 2.0, 2.0, in_axes=(0,), out_axes=(1,)),
}
ON_MATRICES = {"s": False, "v": False, "w": True}
RULE = dm.get_parametrization("depth_mup")


def built(inner, rule=RULE):
    """An optimizer and its state: what is refused is refused here."""
    optimizer = dm.depthmup(inner, INFO, rule, 0.1)
    return optimizer, optimizer.init(PARAMS)


def even(step):
    return step % 2 == 0


TAKEN = {
    "clip": optax.chain(optax.clip(0.1), optax.scale_by_adam()),
    "averages over entries": optax.chain(
        optax.centralize(), optax.clip_by_block_rms(0.1), optax.scale_by_factored_rms(min_dim_size_to_factor=2)
    ),
    "clip_by_global_rms": optax.chain(dm.clip_by_global_rms(1e-3), optax.trace(0.9)),
    "named_chain": optax.named_chain(("clip", optax.clip(0.1)), ("adam", optax.scale_by_adam())),
    "masked": optax.masked(optax.scale_by_adam(), ON_MATRICES),
    "partition": optax.partition({True: optax.scale_by_adam(), False: optax.trace(0.9)}, ON_MATRICES),
    "inject_hyperparams": optax.inject_hyperparams(optax.scale_by_adam)(b1=0.8),
    "flatten": optax.flatten(optax.scale_by_adam()),
    "conditionally_mask": optax.conditionally_mask(optax.scale_by_adam(), even),
    "split_real_and_imaginary": optax.contrib.split_real_and_imaginary(optax.scale_by_adam()),
    "schedule from 0": optax.chain(optax.scale_by_schedule(lambda step: step / 10), optax.scale_by_sign()),
    "set_to_zero": optax.set_to_zero(),
    "LAMB": optax.chain(optax.scale_by_adam(), optax.scale_by_trust_ratio()),
    "LAMB with a large epsilon": optax.chain(optax.scale_by_adam(eps=1e-2), optax.scale_by_trust_ratio()),
    "LARS": optax.chain(optax.scale_by_trust_ratio(), optax.trace(0.9)),
    "Adafactor": optax.chain(optax.scale_by_factored_rms(), optax.scale_by_param_block_rms()),
    "trust ratio of matrices": optax.masked(optax.scale_by_trust_ratio(), ON_MATRICES),
}


@pytest.mark.parametrize("name", TAKEN)
def test_what_the_rule_covers_is_taken_however_it_is_composed(name):
    built(TAKEN[name])
    built(hidden(TAKEN[name]))


def test_only_the_parameters_whose_updates_follow_their_norm_have_that_geometry():
    optimizer, _ = built(TAKEN["trust ratio of matrices"])
    assert matrix_updates(optimizer, INFO) == {"w"}


def test_geometries_are_found_wherever_the_optimizer_stands():
    """In the state, which wrappers keep; a wrapper without closures that could be read shows it."""
    muon = dm.muon(0.1, INFO, RULE)
    injected = optax.inject_hyperparams(dm.muon, static_args=("info", "rule", "ns_steps"))(0.1, INFO, RULE)
    frozen = dm.freeze(muon, INFO, ("v",))
    wrapped = [muon, hidden(muon), optax.chain(muon, optax.ema(0.9)), optax.MultiSteps(muon, 2), frozen, injected]
    for optimizer in wrapped:
        assert matrix_updates(optimizer, INFO) == {"w"}
    assert matrix_updates(dm.freeze(muon, INFO, ("w",)), INFO) == set()
    assert matrix_updates(hidden(dm.adamw(0.1, INFO, RULE, clip_rms=1.0)), INFO) == set()
    assert matrix_updates(hidden(optax.contrib.muon(0.1)), INFO) == {"w"}
    behind = optax.chain(dm.scale_by_depthmup(direction("adam"), INFO, RULE), optax.scale_by_trust_ratio())
    assert matrix_updates(behind, INFO) == INFO.keys()
    assert matrix_updates(dm.adamw(0.1, INFO, RULE, clip_rms=1.0, weight_decay=0.1), INFO) == set()


@functools.cache
def small_model():
    rule = dm.get_parametrization("depth_mup")
    model = dm.ResMLP(3, width=32, depth=4, base_width=16, base_depth=2, rule=rule, use_bias=True)
    x = jax.random.normal(jax.random.key(1), (16, 8))
    info = audited_model(model, x).info
    params = nn.unbox(jax.jit(model.init)(jax.random.key(0), x))["params"]
    return model, params, info, rule, x


@functools.cache
def small_gradients():
    model, params, _, _, x = small_model()
    return jax.jit(jax.grad(lambda p: model.apply({"params": p}, x).std()))(params)


def matrices(params):
    return jax.tree.map(lambda p: p.ndim > 1, params)


def labels(params):
    return jax.tree_util.tree_map_with_path(lambda path, _: "a" if "kernel" in str(path) else "b", params)


OPTIMIZERS = {
    "masked direction": lambda params, info, rule: dm.depthmup(
        optax.masked(optax.scale_by_adam(), matrices(params)), info, rule, 1e-2
    ),
    "masked optimizer": lambda params, info, rule: optax.chain(  # optax passes what is masked out as it is
        optax.masked(dm.adamw(1e-2, info, rule), matrices(params)),
        optax.masked(optax.set_to_zero(), jax.tree.map(lambda matrix: not matrix, matrices(params))),
    ),
    "partitioned optimizers": lambda params, info, rule: optax.partition(
        {"a": dm.adamw(1e-2, info, rule), "b": dm.sgd(1e-2, info, rule)}, labels(params)
    ),
    "injected direction": lambda params, info, rule: dm.depthmup(
        optax.inject_hyperparams(optax.scale_by_adam)(b1=0.8), info, rule, 1e-2
    ),
    "accumulated": lambda params, info, rule: optax.MultiSteps(dm.adamw(1e-2, info, rule), 2),
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
        value, grads = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    state, losses = optimizer.init(params), []
    for _ in range(11):
        params, state, value = step(params, state)
        losses.append(value)
    assert losses[-1] < 0.95 * losses[0]


def test_an_injected_optimizer_is_the_plain_one():
    _, params, info, rule, _ = small_model()
    plain = dm.adamw(1e-2, info, rule, weight_decay=0.1, eps=1e-6)
    injected = optax.inject_hyperparams(dm.adamw)(1e-2, info, rule, weight_decay=0.1, eps=1e-6)
    expected, updates = (
        jax.jit(lambda grads, params, o=o: o.update(grads, o.init(params), params)[0])(small_gradients(), params)
        for o in (plain, injected)
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), updates, expected)


@pytest.mark.parametrize(
    "inner",
    [
        optax.adam(0.1),
        optax.sgd(lambda step: 0.1),
        optax.sgd(0.1, momentum=0.9),
        optax.adam(optax.linear_schedule(0.0, 0.1, 10)),
        optax.lamb(0.1),
        optax.contrib.muon(0.1),
        optax.masked(optax.adam(0.1), ON_MATRICES),
        optax.partition({True: optax.adam(0.1), False: optax.scale_by_adam()}, ON_MATRICES),
        optax.inject_hyperparams(optax.adam)(learning_rate=0.1),
        hidden(optax.chain(optax.clip(1.0), optax.lion(0.1))),
        optax.inject_hyperparams(functools.partial(optax.adam, b1=0.8))(learning_rate=0.1),
        optax.GradientTransformation(optax.adam(0.1).init, jax.jit(optax.adam(0.1).update)),
    ],
)
def test_a_finished_optimizer_is_refused_however_it_is_wrapped(inner):
    with pytest.raises(dm.InputError, match="inner is a finished optimizer"):
        built(inner)


def test_a_finished_optimizer_is_refused_with_a_geometry_and_under_jit_as_well():
    optimizer = dm.depthmup(optax.contrib.muon(0.1), INFO, RULE, 0.1, geometry=dm.muon_geometry(INFO))
    with pytest.raises(dm.InputError, match="inner is a finished optimizer"):
        optimizer.init(PARAMS)
    with pytest.raises(dm.InputError, match="inner is a finished optimizer"):
        jax.jit(dm.depthmup(optax.adam(0.1), INFO, RULE, 0.1).init)(PARAMS)


normalized = optax.scale_by_factored_rms
REFUSED = {
    "clip_by_global_norm": optax.chain(optax.clip_by_global_norm(1.0), optax.scale_by_adam()),
    "clip_by_global_norm of a large threshold": optax.clip_by_global_norm(1e6),
    "adaptive_grad_clip": optax.chain(optax.adaptive_grad_clip(0.1), optax.trace(0.9)),
    "scale_by_novograd": optax.masked(optax.scale_by_novograd(), ON_MATRICES),
    "normalize_by_update_norm": optax.named_chain(("normalize", optax.normalize_by_update_norm())),
    "add_decayed_weights": optax.partition(
        {True: optax.chain(optax.scale_by_adam(), optax.add_decayed_weights(0.1)), False: optax.identity()}, ON_MATRICES
    ),
    "a small decay before a trust ratio": optax.chain(
        optax.scale_by_adam(), optax.add_decayed_weights(1e-4), optax.scale_by_trust_ratio()
    ),
    "scale_by_sm3": optax.inject_hyperparams(optax.scale_by_sm3)(b1=0.9),
    "scale_by_param_block_rms": optax.chain(optax.trace(0.9), optax.scale_by_param_block_rms()),
    "scale_by_param_block_norm": optax.chain(normalized(), optax.scale_by_param_block_norm()),
    "factors that follow the shape": optax.stateless(
        lambda updates, _: jax.tree.map(lambda u: u * max(u.shape, default=1), updates)
    ),
    "prodigy": optax.contrib.prodigy(),
    "dowg": optax.contrib.dowg(),
    "mechanic": optax.contrib.mechanize(optax.sgd(1.0)),
    "momo": optax.contrib.momo(),
    "cocob": optax.contrib.cocob(),
    "scale_by_polyak": optax.scale_by_polyak(),
    "add_noise": optax.add_noise(1.0, 0.5, key=0),
    "scale_by_madgrad": optax.contrib.scale_by_madgrad(1e-3),
    "galore": optax.contrib.scale_by_galore(4),
    "MultiSteps": optax.MultiSteps(optax.scale_by_adam(), 2).gradient_transformation(),
    "apply_every": optax.chain(optax.apply_every(2), optax.scale_by_adam()),
    "apply_if_finite": optax.apply_if_finite(optax.scale_by_adam(), 3),
    "schedule_free": optax.contrib.schedule_free(optax.sgd(0.1), 0.1),
    "keep_params_nonnegative": optax.chain(optax.trace(0.9), optax.keep_params_nonnegative()),
    "scale_by_zoom_linesearch": optax.chain(optax.identity(), optax.scale_by_zoom_linesearch(3)),
    "the rule twice": optax.masked(dm.scale_by_depthmup(direction("adam"), INFO, RULE), ON_MATRICES),
    "the rule twice, finished": dm.adamw(0.1, INFO, RULE),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_rule_does_not_cover_is_refused_wherever_it_stands(name):
    with pytest.raises(dm.InputError):
        built(REFUSED[name])
    with pytest.raises(dm.InputError):
        dm.scale_by_depthmup(hidden(REFUSED[name]), INFO, RULE).init(PARAMS)


@pytest.mark.parametrize("inner", [optax.identity(), optax.trace(0.9), hidden(optax.sgd(-0.1))])
def test_a_rule_for_normalized_updates_refuses_those_that_follow_the_gradient(inner):
    rule = dm.get_parametrization("block_only")
    built(optax.chain(inner, optax.scale_by_sign()), rule)
    with pytest.raises(dm.InputError, match="Adam-like"):
        built(inner, rule)


def test_numbers_that_are_traced_are_not_judged():
    def state(factor):
        inner = optax.chain(optax.clip_by_block_rms(factor), optax.scale(factor))
        return dm.depthmup(inner, INFO, RULE, factor).init(PARAMS)

    jax.eval_shape(jax.vmap(state), jnp.ones(3))


def test_the_command_line_and_the_library_refuse_the_same_directions():
    for name in set(NAMES) - {"learning_rate", "schedule", "backtracking_linesearch", "zoom_linesearch"}:
        factory = DIRECTIONS.get(name) or getattr(optax, f"scale_by_{name}")
        by_library = True
        try:
            built(hidden(factory(**ARGUMENTS.get(name, {}))))
        except dm.InputError:
            by_library = False
        assert (named(name) is not None) == by_library, name


def test_wrappers_outside_decay_as_often_as_they_update():
    """As they say that they would not inside."""
    info, rule, params = {"w": dm.ParamInfo(dm.Role.HIDDEN, (1,))}, dm.get_parametrization(), {"w": jnp.ones(1)}
    decaying = dm.sgd(0.1, info, rule, weight_decay=1.0)

    def after(optimizer, gradients):
        return float(updated(optimizer, params, [{"w": jnp.array([g])} for g in gradients])["w"][0])

    assert after(optax.MultiSteps(decaying, 2), [0.0] * 4) == pytest.approx(0.9**2)
    assert after(optax.apply_if_finite(decaying, 9), [0.0, jnp.nan, 0.0]) == pytest.approx(0.9**2)


def test_clipping_by_this_package_may_stand_in_a_direction():
    _, params, info, rule, _ = small_model()
    grads = small_gradients()
    parts = optax.chain(dm.clip_by_global_rms(1e-3), optax.trace(0.9))
    inside = dm.depthmup(parts, info, rule, 0.1)
    outside = dm.sgd(0.1, info, rule, momentum=0.9, clip_rms=1e-3)
    one, two = (o.update(grads, o.init(params), params)[0] for o in (inside, outside))
    jax.tree.map(np.testing.assert_array_equal, one, two)


def test_building_optimizers_compiles_and_allocates_nothing():
    """In a process of its own: no backend is started by any constructor, nor a heavy library imported with the data."""
    program = """
import sys, depthmup_flax as dm, depthmup_flax.data, optax, jax._src.xla_bridge as bridge
from depthmup_flax.auditing.config_audit import audited_model
assert not sys.modules.keys() & {"tensorflow", "tensorflow_datasets", "grain", "sklearn", "PIL"}
rule = dm.get_parametrization("depth_mup")
info = {"w": dm.ParamInfo(dm.Role.HIDDEN, (8, 8), 2.0, 2.0, True, 4.0)}
dm.adamw(1e-3, info, rule, weight_decay=0.1, clip_rms=1.0)
dm.sgd(1e-3, info, rule, momentum=0.9)
dm.depthmup(optax.masked(optax.scale_by_adam(), {"w": True}), info, rule, optax.cosine_decay_schedule(1.0, 10))
dm.scale_by_depthmup(optax.scale_by_lion(), info, rule)
optax.inject_hyperparams(dm.adamw)(learning_rate=1e-3, info=info, rule=rule)
for name in ("adam", "rmsprop", "novograd", "sm3"):
    try:
        dm.depthmup(__import__("depthmup_flax.rule.directions").rule.directions.direction(name), info, rule, 1.0)
    except dm.InputError:
        pass
assert not bridge._backends, bridge._backends
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_epsilon_is_told_in_units_of_the_gradient():
    assert direction_eps("adam") == 1e-8
    assert direction_eps("adam", eps=1e-3) == 1e-3
    assert direction_eps("rmsprop", eps=1e-6) == pytest.approx(1e-3)  # sqrt(nu + eps)
    assert direction_eps("sgd") is None


def test_injected_passes_of_muon_are_refused_with_the_name_to_write():
    with pytest.raises(dm.InputError, match='"ns_steps"'):
        optax.inject_hyperparams(dm.muon, static_args=("info", "rule"))(0.1, INFO, RULE).init(PARAMS)
