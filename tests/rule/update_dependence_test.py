"""What other people's optimizers depend on, read from their jaxprs."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest

import depthmup_flax as dm
from depthmup_flax.rule.parametrization import PRESETS, ParamInfo, Role
from depthmup_flax.rule.update_dependence import Entries, read_dependence

RULE = PRESETS["depth_mup"]
PARAMS = {
    "bias": jnp.ones(140),
    "kernel": jnp.ones((130, 140)),
    "scale": jnp.ones(()),
}
INFO = {
    "bias": ParamInfo(Role.VECTOR, (140,), 1.0, 2.0),
    "kernel": ParamInfo(Role.HIDDEN, (130, 140), 2.0, 2.0),
    "scale": ParamInfo(Role.FIXED, ()),
}


def of_gradients(function):
    """An optimizer without state whose update is ``function(gradient)`` for each parameter."""
    return optax.GradientTransformation(lambda params: (), lambda g, s, p=None: (jax.tree.map(function, g), s))


def with_params(function):
    return optax.GradientTransformation(lambda params: (), lambda g, s, p: (jax.tree.map(function, g, p), s))


def adam_of_somebody_else():
    """With what such code has: a step count, jit, a branch on the step, reshapes and a state in another dtype."""

    def init(params):
        zeros = jax.tree.map(lambda p: jnp.zeros_like(p, jnp.bfloat16), params)
        return {"step": jnp.zeros((), jnp.int32), "m": zeros, "v": zeros}

    @jax.jit
    def leaf(step, g, m, v):
        flat = g.reshape(-1)
        m, v = 0.9 * m + 0.1 * flat.reshape(g.shape), 0.99 * v + 0.01 * g[None][0] ** 2
        rate = jnp.where(step < 10, step / 10, 1.0) / (1 - 0.9**step)
        u = jax.lax.cond(step % 2 == 0, lambda m: rate * m / (jnp.sqrt(v) + 1e-8), lambda m: jnp.sign(m), m)
        return jnp.where(jnp.isnan(u), 0.0, jnp.clip(u, -1, 1)), m.astype(jnp.bfloat16), v.astype(jnp.bfloat16)

    def update(updates, state, params=None):
        step = state["step"] + 1
        out = jax.tree.map(functools.partial(leaf, step), updates, state["m"], state["v"])
        pick = lambda i: jax.tree.map(lambda o: o[i], out, is_leaf=lambda o: type(o) is tuple)
        return pick(0), {"step": step, "m": pick(1), "v": pick(2)}

    return optax.GradientTransformation(init, update)


def with_reference_point():
    """Updates relative to the initial parameters, which it keeps."""
    init = lambda params: jax.tree.map(jnp.copy, params)
    return optax.GradientTransformation(init, lambda g, s, p=None: (jax.tree.map(jnp.add, g, s), s))


def finite_only(updates, state, params=None):
    finite = jnp.all(jnp.array([jnp.all(jnp.isfinite(g)) for g in jax.tree.leaves(updates)]))
    return jax.lax.cond(finite, lambda g: g, lambda g: jax.tree.map(jnp.zeros_like, g), updates), state


ENTRYWISE = {
    "adam of somebody else": adam_of_somebody_else(),
    "decay of 0": with_params(lambda g, p: g + 0.0 * p),
    "a random number": of_gradients(lambda g: g * jax.random.normal(jax.random.key(0), g.shape)),
    "inside a mask": optax.masked(adam_of_somebody_else(), {"bias": False, "kernel": True, "scale": True}),
    "a loop of each entry": of_gradients(lambda g: jax.lax.fori_loop(0, 3, lambda _, h: h - (h**3 - g) / 3, g)),
    "a loop until a count": of_gradients(
        lambda g: jax.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, 2 * c[1]), (0, g))[1]
    ),
    "a mean over rows": of_gradients(lambda g: g - g.mean(0, keepdims=True) if g.ndim else g),
    "a clipping by the root mean square": of_gradients(lambda g: g / jnp.maximum(1.0, jnp.sqrt(jnp.mean(g**2)))),
    "there and back": of_gradients(lambda g: (g[::-1] * 2.0)[::-1] if g.ndim else g),
    "without parameters": optax.GradientTransformation(lambda params: (), lambda g, s, params=None: (g, s)),
}
OTHER_ENTRIES = {
    "norm": of_gradients(lambda g: g / jnp.linalg.norm(g)),
    "sum over rows": of_gradients(lambda g: g - g.sum(0, keepdims=True) if g.ndim else g),
    "product": of_gradients(lambda g: (g @ g.T) @ g if g.ndim == 2 else g),
    "order of entries": of_gradients(lambda g: g[::-1] if g.ndim else g),
    "loop": of_gradients(lambda g: jax.lax.fori_loop(0, 3, lambda _, h: h * jnp.sum(h), g)),
    "a loop that carries a norm": of_gradients(
        lambda g: jax.lax.fori_loop(0, 3, lambda _, c: (c[0] * c[1], jnp.sum(c[0])), (g, jnp.ones(())))[0]
    ),
    "a loop until all are small": of_gradients(
        lambda g: jax.lax.while_loop(lambda h: jnp.any(h > 1), lambda h: 0.999 * h, g)
    ),
    "sums over later rows": of_gradients(
        lambda g: jax.lax.scan(lambda s, x: (s + x, s + x), 0 * g[0], g, reverse=True)[1] if g.ndim else g
    ),
    "norm over all parameters": optax.stateless(lambda g, p: jax.tree.map(lambda u: u / optax.tree.norm(g), g)),
    "another parameter": optax.stateless(lambda g, p: g | {"bias": g["kernel"][0]}),
    "a test of all entries": optax.GradientTransformation(lambda params: (), finite_only),
    "norm in a chain": optax.chain(optax.trace(0.9), of_gradients(lambda g: g / jnp.linalg.norm(g))),
    "norm under jit": optax.GradientTransformation(
        lambda params: optax.EmptyState(),
        jax.jit(lambda g, s, p=None: (jax.tree.map(lambda u: u / jnp.linalg.norm(u), g), s)),
    ),
}
PARAMETERS = {
    "decay": with_params(lambda g, p: g + 0.1 * p),
    "relative step": with_params(lambda g, p: g * jnp.linalg.norm(p)),
    "cautious": with_params(lambda g, p: jnp.where(g * p > 0, g, 0)),
    "reference point": with_reference_point(),
}


@pytest.mark.parametrize("name", ENTRYWISE)
def test_entrywise_optimizers_of_other_people_are_taken(name):
    optimizer = dm.depthmup(ENTRYWISE[name], INFO, RULE, 0.1)
    jax.eval_shape(lambda p: optimizer.update(p, optimizer.init(p), p), PARAMS)


@pytest.mark.parametrize("name", OTHER_ENTRIES)
def test_an_update_that_depends_on_other_entries_is_refused(name):
    for wrap in (dm.scale_by_depthmup, functools.partial(dm.depthmup, learning_rate=0.1)):
        with pytest.raises(dm.InputError, match="inner"):
            wrap(OTHER_ENTRIES[name], INFO, RULE).init(PARAMS)


@pytest.mark.parametrize("name", PARAMETERS)
def test_an_update_that_depends_on_the_parameters_is_refused(name):
    optimizer = dm.depthmup(PARAMETERS[name], INFO, RULE, 0.1)
    with pytest.raises(dm.InputError, match="of the parameters"):
        optimizer.init(PARAMS)


@pytest.mark.parametrize("name", ["norm", "norm in a chain"])
def test_what_a_user_vouches_for_is_taken_as_it_is(name):
    inner = OTHER_ENTRIES[name]
    vouched = dm.depthmup(optax.chain(optax.clip(9.0), dm.entrywise(inner)), {"w": INFO["scale"]}, RULE, 1.0)
    params = {"w": jnp.array(3.0)}
    updates, _ = vouched.update(params, vouched.init(params), params)
    np.testing.assert_array_equal(updates["w"], -inner.update(params, inner.init(params), params)[0]["w"])


def test_an_update_that_needs_the_loss_is_refused():
    needs_the_loss = optax.GradientTransformationExtraArgs(
        lambda params: (), lambda g, s, p=None, *, value, **_: (jax.tree.map(lambda u: u * value, g), s)
    )
    with pytest.raises(dm.InputError, match="cannot be traced"):
        dm.depthmup(needs_the_loss, INFO, RULE, 0.1).init(PARAMS)


def test_reading_computes_nothing_and_takes_shapes_and_traced_values():
    shapes = jax.tree.map(lambda p: jax.ShapeDtypeStruct(p.shape, p.dtype), PARAMS)
    with jax.transfer_guard("disallow"):
        read_dependence(of_gradients(jnp.sign), shapes)

    def state(factor):  # an optimizer with a mapped hyperparameter, initialized in a mapped function
        return dm.depthmup(of_gradients(lambda g: g * factor), INFO, RULE, factor).init(PARAMS)

    jax.eval_shape(jax.vmap(state), jnp.ones(3))


def test_an_nnx_model_is_read_as_well():
    from flax import nnx

    model = nnx.Linear(8, 8, rngs=nnx.Rngs(0))
    params = nnx.state(model, nnx.Param)
    info = jax.tree.map(lambda p: ParamInfo(Role.INPUT, p.shape), params)
    nnx.Optimizer(model, dm.depthmup(of_gradients(jnp.sign), info, RULE, 0.1), wrt=nnx.Param)
    with pytest.raises(dm.InputError, match="inner"):
        nnx.Optimizer(
            model,
            dm.depthmup(of_gradients(lambda g: g / jnp.sum(g)), info, RULE, 0.1),
            wrt=nnx.Param,
        )


OWN, SUMMED, MOVED, MIXED = Entries.OWN, Entries.SUMMED, Entries.MOVED, Entries.MIXED


@pytest.mark.parametrize(
    ("inner", "entries", "on_parameters"),
    [
        (optax.scale_by_adam(nesterov=True), OWN, False),
        (optax.contrib.scale_by_ademamix(), OWN, False),
        (optax.flatten(optax.scale_by_adam()), MOVED, False),
        (optax.scale_by_factored_rms(), SUMMED, False),
        (optax.scale_by_novograd(), SUMMED, False),
        (optax.clip_by_global_norm(1.0), SUMMED, False),
        (optax.contrib.muon(0.1), MIXED, False),
        (optax.scale_by_trust_ratio(), SUMMED, True),
        (optax.add_decayed_weights(0.1), OWN, True),
        (optax.scale_by_param_block_rms(), OWN, True),
    ],
)
def test_what_is_read_of_optax_is_what_is_known_of_it(inner, entries, on_parameters):
    shapes = jax.tree.map(lambda p: jax.ShapeDtypeStruct(p.shape, p.dtype), PARAMS)
    dependence = read_dependence(inner, shapes)["kernel"]
    assert dependence[:2] == (entries, on_parameters)


def test_norms_of_parameters_are_told_from_a_decay():
    def reads_norms(inner):
        return read_dependence(inner, PARAMS)["kernel"].on_their_norms

    assert reads_norms(optax.scale_by_trust_ratio())
    assert reads_norms(optax.chain(optax.add_decayed_weights(0.1), optax.scale_by_param_block_rms()))
    assert not reads_norms(optax.chain(optax.clip_by_global_norm(1.0), optax.add_decayed_weights(0.1)))


@pytest.mark.slow
def test_the_reading_is_that_of_the_numbers():
    """Whether one entry's update changes when the other entries' gradients do."""
    rng = np.random.default_rng(0)
    first = jnp.asarray(rng.normal(size=(130, 140)), jnp.float32)
    others = jnp.asarray(rng.normal(size=(130, 140)), jnp.float32).at[0, 0].set(first[0, 0])
    averages = ("a mean over rows", "a clipping by the root mean square")  # which are taken
    for name, inner in {**ENTRYWISE, **OTHER_ENTRIES}.items():
        update = lambda g, inner=inner: inner.update(PARAMS | {"kernel": g}, inner.init(PARAMS), PARAMS)[0]
        one, two = update(first), update(others)
        same = bool(one["kernel"][0, 0] == two["kernel"][0, 0]) and bool(jnp.all(one["bias"] == two["bias"]))
        always_finite = name == "a test of all entries"
        assert same == (always_finite or (name in ENTRYWISE and name not in averages)), name
