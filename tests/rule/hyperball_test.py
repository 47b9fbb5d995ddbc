"""AdamH and MuonH: the paper's update at the base, in NumPy; elsewhere the share of the norm follows the rule."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from drawn import updated

import depthmup_flax as dm
from depthmup_flax.rule.directions import direction
from depthmup_flax.rule.factor import Factor
from depthmup_flax.rule.parametrization import ParamInfo, Role

RULE = dm.get_parametrization("depth_mup")
ETA = 0.05


def matrix(shape=(3, 6, 8), m_in=1.0, m_out=1.0, **fields):
    return ParamInfo(Role.HIDDEN, shape, m_in, m_out, in_axes=(len(shape) - 2,), out_axes=(len(shape) - 1,), **fields)


def noise(shape, seed):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def orthogonal(gradients):
    """Muon's direction of each matrix of a stack, by optax."""
    numbers = optax.contrib.MuonDimensionNumbers(1, 2)
    muon = optax.contrib.scale_by_muon(beta=0.95, weight_dimension_numbers={"w": numbers})
    state = muon.init({"w": gradients[0]})
    for g in gradients:
        updates, state = muon.update({"w": g}, state)
    return updates["w"]


def adam(gradients):
    direction = optax.scale_by_adam()
    state = direction.init(gradients[0])
    for g in gradients:
        updates, state = direction.update(g, state)
    return updates


@pytest.mark.parametrize(("optimizer", "direction"), [(dm.adamh, adam), (dm.muonh, orthogonal)])
def test_at_the_base_it_is_the_update_of_the_paper(optimizer, direction):
    info = {"w": matrix(), "bias": ParamInfo(Role.VECTOR, (8,), decay=False)}
    w, bias = np.asarray(noise((3, 6, 8), 0)), np.asarray(noise((8,), 9))
    params = {"w": jnp.asarray(w), "bias": jnp.asarray(bias)}
    ours, gradients = optimizer(ETA, info, RULE, adam_ratio=0.3), [noise((3, 6, 8), seed) for seed in range(1, 4)]
    state, norm = ours.init(params), lambda x: np.linalg.norm(x, axis=(1, 2), keepdims=True)
    own = norm if optimizer is dm.adamh else lambda u: 6**0.5  # that of an orthogonal matrix of full rank
    radius, biases = norm(w), [noise((8,), seed) for seed in range(11, 14)]
    for step in range(3):
        updates, state = jax.jit(ours.update)({"w": gradients[step], "bias": biases[step]}, state, params)
        params = optax.apply_updates(params, updates)
        u = np.asarray(direction(gradients[: step + 1]))
        w = w - ETA * radius * u / own(u)
        w = radius * w / norm(w)
        bias = bias - 0.3 * ETA * np.asarray(adam(biases[: step + 1]))
    np.testing.assert_allclose(params["w"], w, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(params["bias"], bias, rtol=1e-5)


@pytest.mark.parametrize(
    ("optimizer", "m_in", "m_out", "share"),
    [
        (dm.adamh, 4, 4, 4**-0.5),
        (dm.adamh, 1, 4, 1),
        (dm.muonh, 4, 4, 1),
        (dm.muonh, 1, 4, 1),
        (dm.muonh, 4, 1, 4**-0.5),
    ],
)
def test_the_share_of_the_norm_follows_the_geometry_of_the_update_and_the_depth(optimizer, m_in, m_out, share):
    r, w, g = 9.0, noise((8 * m_in, 8 * m_out), 0), noise((8 * m_in, 8 * m_out), 1)
    info = {"w": matrix(w.shape, m_in, m_out, in_branch=True, depth_ratio=r)}
    ours = optimizer(1e-3, info, RULE)
    updates, _ = ours.update({"w": g}, ours.init({"w": w}), {"w": w})
    expected = 1e-3 * share * r**-RULE.gamma
    assert float(jnp.linalg.norm(updates["w"]) / jnp.linalg.norm(w)) == pytest.approx(
        expected, rel=0.15
    )  # singular values of Newton-Schulz are 0.7 to 1.2


@pytest.mark.parametrize(("optimizer", "carried"), [(dm.adamh, ((1.0, 0.25),)), (dm.muonh, 0.5)])
def test_parameters_that_carry_factors_move_as_those_of_the_network_with_the_factors_in_its_code(optimizer, carried):
    plain, carrying = {"w": matrix((6, 8))}, {"w": matrix((6, 8), carried=Factor(constant=carried))}
    w, c = noise((6, 8), 0), carrying["w"].factor(RULE)
    gradients = [noise((6, 8), seed) for seed in (1, 2, 3)]

    def trained(info, w, gradients):
        return updated(optimizer(ETA, info, RULE), {"w": w}, [{"w": g} for g in gradients])["w"]

    found = trained(carrying, c * w, gradients)
    np.testing.assert_allclose(found, c * trained(plain, w, [c * g for g in gradients]), rtol=1e-4, atol=1e-6)


def test_a_norm_stays_for_thousands_of_steps():
    w = noise((16, 16), 0)
    ours = dm.adamh(0.02, {"w": matrix(w.shape)}, RULE)

    def step(carry, key):
        params, state = carry
        updates, state = ours.update({"w": jax.random.normal(key, w.shape)}, state, params)
        return (optax.apply_updates(params, updates), state), None

    (params, _), _ = jax.lax.scan(step, ({"w": w}, ours.init({"w": w})), jax.random.split(jax.random.key(0), 5000))
    assert float(jnp.linalg.norm(params["w"])) == pytest.approx(float(jnp.linalg.norm(w)), rel=1e-4)
    assert float(jnp.vdot(params["w"], w)) < 0.5 * float(jnp.vdot(w, w))


NORM_FOLLOWING = {
    "AdamH": dm.adamh,
    "MuonH": dm.muonh,
    "LAMB by name": lambda *args: dm.depthmup(direction("lamb"), args[1], args[2], args[0]),
    "LAMB": lambda *args: dm.depthmup(
        optax.chain(optax.scale_by_adam(), optax.scale_by_trust_ratio()), args[1], args[2], args[0]
    ),
}


@pytest.mark.parametrize("name", NORM_FOLLOWING)
@pytest.mark.parametrize("carried", [Factor(), Factor(constant=0.5)])
def test_a_matrix_that_starts_at_zero_has_no_norm_and_is_refused(name, carried):
    """As one of a stack, too. A bias may start at zero."""
    info = {"w": matrix((3, 4, 4), carried=carried), "bias": ParamInfo(Role.VECTOR, (4,), decay=False)}
    optimizer = NORM_FOLLOWING[name](0.1, info, RULE)
    random = noise((3, 4, 4), 0)
    optimizer.init({"w": random, "bias": jnp.zeros(4)})
    with pytest.raises(dm.InputError, match="'w' starts at zero"):
        optimizer.init({"w": jnp.zeros((3, 4, 4)), "bias": jnp.zeros(4)})
    with pytest.raises(dm.InputError, match="'w' starts at zero"):
        optimizer.init({"w": random.at[1].set(0), "bias": jnp.zeros(4)})


def test_another_optimizer_may_train_a_matrix_that_starts_at_zero():
    info = {"w": matrix((4, 4)), "query": matrix((4, 4))}
    labels = {"w": "norm", "query": "adam"}
    params = {"w": noise((4, 4), 0), "query": jnp.zeros((4, 4))}
    optimizer = optax.partition({"norm": dm.muonh(0.1, info, RULE), "adam": dm.adamw(0.1, info, RULE)}, labels)
    trained = updated(optimizer, params, [{"w": noise((4, 4), 1), "query": noise((4, 4), 2)}])
    assert np.all(np.isfinite(trained["query"]))
    assert np.any(trained["query"])
