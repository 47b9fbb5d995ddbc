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
from depthmup_flax.rule.direction_traits import TRAITS, homogeneity
from depthmup_flax.rule.directions import DIRECTIONS, direction, direction_eps

# Arguments of transformations that have required ones.
ARGUMENTS = {
    "trace": (0.9,),
    "ema": (0.9,),
    "scale": (0.5,),
    "scale_by_schedule": (lambda step: 0.5,),
    "clip": (100.0,),
    "apply_every": (1,),
    "scale_by_rprop": (0.1,),
    "monitor": ({},),
    "snapshot": ("norm", optax.tree.norm),
}
# Clipping follows the gradient below its threshold and depends on other entries above it.
THRESHOLDS = dict.fromkeys(("clip_by_global_norm", "clip_by_block_rms", "adaptive_grad_clip"), (1e6, 1e-3))
COMMON = {"trace", "scale_by_adam", "scale_by_lion", "scale_by_trust_ratio", "scale_by_factored_rms"}
# Those that need the loss, follow the parameters, are random, private to optax, or of particular shapes.
NOT_MEASURED = {
    "scale_by_polyak", "scale_by_lbfgs", "momo", "momo_adam", "dadapt_adamw", "prodigy", "scale_by_cocob",
    "scale_by_madgrad", "add_noise", "differentially_private_aggregate", "scale_by_dog", "scale_by_dowg",
    "scale_by_shape", "scale_by_galore", "scale_by_muon", "MultiSteps", "clip_by_global_rms",
}  # fmt: skip
HERE = set(dir(optax)) | set(dir(optax.contrib))  # an older optax lacks some
MEASURED = {name for name, traits in TRAITS.items() if traits.degree is not None and name in HERE} - NOT_MEASURED


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
    [name if name in COMMON else pytest.param(name, marks=pytest.mark.slow) for name in sorted(MEASURED)],
)
def test_traits_of_optax_transformations_are_what_their_updates_show(name):
    steps = 100 if TRAITS[name].degree == 0 else 5  # a normalization by a running average needs some steps
    degree, entrywise = measured(transformation(name, *THRESHOLDS.get(name, ())[:1]), steps)
    if name in THRESHOLDS:
        _, entrywise = measured(transformation(name, *THRESHOLDS[name][1:]), steps)
    assert degree == pytest.approx(TRAITS[name].degree, abs=0.1)
    assert entrywise == TRAITS[name].entrywise


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
        (direction("rmsprop"), 0),
        (direction("momentum"), 1),
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
        optax.masked(optax.adam(0.1), {"w": True}),
        optax.partition({"a": optax.adam(0.1), "b": optax.scale_by_adam()}, {"w": "a"}),
        optax.inject_hyperparams(optax.adam)(learning_rate=0.1),
        optax.chain(optax.clip(1.0), optax.apply_if_finite(optax.lion(0.1), 3)),
        optax.inject_hyperparams(functools.partial(optax.adam, b1=0.8))(learning_rate=0.1),
        optax.GradientTransformation(optax.adam(0.1).init, jax.jit(optax.adam(0.1).update)),
    ],
)
def test_a_finished_optimizer_is_refused_however_it_is_wrapped(inner):
    _, _, info, rule, _ = small_model()
    with pytest.raises(dm.InputError, match="inner is a finished optimizer"):
        dm.depthmup(inner, info, rule, 0.1)


REFUSED = {
    "clip_by_global_norm": optax.chain(optax.clip_by_global_norm(1.0), optax.scale_by_adam()),
    "adaptive_grad_clip": optax.chain(optax.adaptive_grad_clip(0.1), optax.trace(0.9)),
    "scale_by_novograd": optax.masked(optax.scale_by_novograd(), {"w": True}),
    "normalize_by_update_norm": optax.named_chain(("normalize", optax.normalize_by_update_norm())),
    "add_decayed_weights": optax.partition(
        {"a": optax.chain(optax.scale_by_adam(), optax.add_decayed_weights(0.1)), "b": optax.identity()}, {"w": "a"}
    ),
    "scale_by_sm3": optax.inject_hyperparams(optax.scale_by_sm3)(b1=0.9),
    "prodigy": optax.contrib.prodigy(),
    "scale_by_polyak": optax.scale_by_polyak(),
    "MultiSteps": optax.MultiSteps(optax.scale_by_adam(), 2).gradient_transformation(),
    "apply_every": optax.chain(optax.apply_every(2), optax.scale_by_adam()),
    "apply_if_finite": optax.apply_if_finite(optax.scale_by_adam(), 3),
    "schedule_free": optax.contrib.schedule_free(optax.sgd(0.1), 0.1),
    "keep_params_nonnegative": optax.chain(optax.trace(0.9), optax.keep_params_nonnegative()),
    "scale_by_zoom_linesearch": optax.chain(optax.identity(), optax.scale_by_zoom_linesearch(3)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_rule_does_not_cover_is_refused_wherever_it_stands(name):
    _, _, info, rule, _ = small_model()
    for wrap in (dm.scale_by_depthmup, functools.partial(dm.depthmup, learning_rate=0.1)):
        with pytest.raises(dm.InputError, match=rf"inner has optax\.(contrib\.)?{name}: .*\. [A-Z].*\."):
            wrap(REFUSED[name], info, rule)


def test_the_rule_is_not_applied_twice():
    _, _, info, rule, _ = small_model()
    with pytest.raises(dm.InputError, match="follows the rule already"):
        dm.depthmup(dm.scale_by_depthmup(optax.scale_by_adam(), info, rule), info, rule, 0.1)
    with pytest.raises(dm.InputError, match="is a finished optimizer"):
        dm.depthmup(dm.adamw(0.1, info, rule), info, rule, 0.1)


def test_the_command_line_and_the_library_refuse_the_same_directions():
    _, _, info, rule, _ = small_model()
    names = {name.removeprefix("scale_by_") for name in dir(optax) if name.startswith("scale_by_")} | DIRECTIONS.keys()
    for name in names - {"learning_rate", "schedule", "backtracking_linesearch", "zoom_linesearch"}:
        factory = DIRECTIONS.get(name) or getattr(optax, f"scale_by_{name}")
        by_name = by_library = True
        arguments = {"learning_rate": 0.1} if name == "rprop" else {}
        try:
            direction(name, **arguments)
        except dm.InputError:
            by_name = False
        try:
            dm.depthmup(factory(**arguments), info, rule, 0.1)
        except dm.InputError:
            by_library = False
        assert by_name == by_library, name


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


def test_a_direction_that_is_not_listed_is_read_when_the_parameters_are_known(monkeypatch):
    monkeypatch.delitem(TRAITS, "scale_by_novograd")
    params = {"w": jnp.ones((256, 256))}
    info, rule = {"w": dm.ParamInfo(dm.Role.HIDDEN, (256, 256))}, dm.get_parametrization()
    with pytest.raises(dm.InputError, match="inner updates an entry of 'w' by the gradients of other entries"):
        dm.depthmup(direction("novograd"), info, rule, 0.1).init(params)
    monkeypatch.delitem(TRAITS, "scale_by_yogi")
    ours, theirs = dm.depthmup(direction("yogi"), info, rule, 1.0), optax.scale_by_yogi()
    updates, _ = ours.update(params, ours.init(params), params)
    expected, _ = theirs.update(params, theirs.init(params), params)
    np.testing.assert_array_equal(updates["w"], -expected["w"])


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
