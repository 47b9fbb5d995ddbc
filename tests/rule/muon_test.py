import dataclasses
import inspect

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest

import depthmup_flax as dm
from depthmup_flax.auditing.config_audit import audited_model
from depthmup_flax.rule.direction_traits import geometry_of
from depthmup_flax.rule.info_trees import flatten_info
from depthmup_flax.rule.muon import muon_geometry
from depthmup_flax.rule.parametrization import Geometry, ParamInfo, Role

RULE = dm.get_parametrization("depth_mup")
TOKENS = jnp.zeros((2, 8), jnp.int32)
KEY = jax.random.key(0)


def hidden(shape, m_in=1.0, m_out=1.0, **fields):
    inner = len(shape) - 2
    axes = {"in_axes": (inner,), "out_axes": (inner + 1,)}
    return ParamInfo(Role.HIDDEN, shape, m_in, m_out, **{**axes, **fields})


def noise(shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def step(optimizer, params, grads):
    return jax.jit(lambda params, grads: optimizer.update(grads, optimizer.init(params), params)[0])(params, grads)


def orthogonal(matrix):
    """What optax makes of a matrix."""
    whole = optax.contrib.scale_by_muon(weight_dimension_numbers=optax.contrib.MuonDimensionNumbers(0, 1))
    return step(whole, matrix, matrix)


def gpt(width=32, **fields):
    model = dm.GPT(50, width=width, depth=2, base_width=32, base_depth=2, **fields)
    return model, audited_model(model, TOKENS).info


@pytest.mark.parametrize("consistent_rms", [0.2, None])
def test_at_the_base_model_it_is_the_muon_of_optax(consistent_rms):
    info = {
        "stack": hidden((2, 4, 8)),
        "embedding": ParamInfo(Role.INPUT, (5, 4)),
        "bias": ParamInfo(Role.VECTOR, (4,)),
    }
    matrix = {"stack": optax.contrib.MuonDimensionNumbers(1, 2), "embedding": None, "bias": None}
    ours = dm.muon(1e-2, info, RULE, consistent_rms=consistent_rms, beta=0.9, b2=0.99)
    factor = {} if consistent_rms is None else {"consistent_rms": consistent_rms}
    if factor.keys() - inspect.signature(optax.contrib.muon).parameters.keys():
        pytest.skip("this optax has no consistent_rms")
    theirs = optax.contrib.muon(1e-2, muon_weight_dimension_numbers=matrix, beta=0.9, adam_b2=0.99, **factor)
    params = {name: noise(leaf.shape) for name, leaf in info.items()}
    state, other = ours.init(params), theirs.init(params)
    our_update, their_update = jax.jit(ours.update), jax.jit(theirs.update)
    for seed in range(3):
        grads = jax.tree.map(lambda p, seed=seed: noise(p.shape, seed), params)
        updates, state = our_update(grads, state, params)
        expected, other = their_update(grads, other, params)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-7), updates, expected)


def test_layers_of_a_stack_are_orthogonalized_one_by_one_and_explicit_heads_belong_to_the_output():
    """A projection [n, heads, head] is one matrix [n, heads head]."""
    grads = noise((3, 8, 4, 4))
    stack = dataclasses.replace(hidden((3, 8, 16)), shape=(3, 8, 4, 4), in_axes=(1,), out_axes=(2, 3))
    whole = step(dm.muon(1.0, {"w": stack}, RULE), {"w": grads}, {"w": grads})["w"]
    for i, layer in enumerate(grads.reshape(3, 8, 16)):
        alone = step(dm.muon(1.0, {"w": hidden((8, 16))}, RULE), {"w": layer}, {"w": layer})["w"]
        np.testing.assert_allclose(whole[i].reshape(8, 16), alone, rtol=1e-4, atol=1e-5)


def test_a_convolution_is_a_matrix_from_windows_to_channels():
    model = dm.SimpleResNet(10, width=32, depth=3)
    leaves = flatten_info(audited_model(model, jnp.zeros((1, 8, 8, 3))).info)
    info = {"k": leaves["widen_1/conv/kernel"]}  # 3 x 3 x 4 x 8
    grads = noise(info["k"].shape)
    update = step(dm.muon(1.0, info, RULE), {"k": grads}, {"k": grads})["k"]
    expected = -0.2 * 6 * orthogonal(grads.reshape(36, 8))
    np.testing.assert_allclose(update.reshape(36, 8), expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(("m_in", "m_out", "factor"), [(4, 4, 1), (4, 1, 0.5), (1, 4, 2)])
def test_singular_values_follow_the_spectral_condition(m_in, m_out, factor):
    """(m_out / m_in)^1/2 times the base model's, whatever the shape (arXiv:2310.17813)."""
    base, wide = {"w": hidden((8, 8))}, {"w": hidden((8 * m_in, 8 * m_out), m_in, m_out)}
    largest = []
    for info in (base, wide):
        grads = noise(info["w"].shape)
        update = step(dm.muon(1.0, info, RULE, ns_steps=12), {"w": grads}, {"w": grads})["w"]
        largest.append(np.linalg.norm(update, 2))
    assert largest[1] / largest[0] == pytest.approx(factor, rel=0.25)  # Newton-Schulz stops near 1


def test_frozen_parameters_have_no_update_and_no_state():
    model, info = gpt()
    params = jax.tree.map(lambda leaf: noise(leaf.shape), nn.unbox(jax.eval_shape(model.init, KEY, TOKENS))["params"])
    optimizer = dm.freeze(dm.muon(0.1, info, RULE), info, ("stem", "transformer/blocks/mlp"))
    updates = step(optimizer, params, params)
    blocks = updates["transformer"]["blocks"]
    assert not jnp.any(blocks["mlp"]["up"]["kernel"])
    assert jnp.any(blocks["attention"]["key"]["kernel"])
    count = lambda tree: sum(leaf.size for leaf in jax.tree.leaves(tree))
    frozen = count(params["stem"]) + count(params["transformer"]["blocks"]["mlp"])
    # Muon keeps one moment of hidden matrices, Adam two of the rest.
    adams = sum(leaf.size for leaf in jax.tree.leaves(params)) - frozen - 2 * 4 * 32 * 32
    assert count(optimizer.init(params)) == pytest.approx(2 * adams + 2 * 4 * 32 * 32, abs=20)


def test_a_gradient_of_zero_moves_nothing():
    """As that of keys, while queries are zero."""
    info = {"key": hidden((8, 8))}
    updates = step(dm.muon(1.0, info, RULE), {"key": noise((8, 8))}, {"key": jnp.zeros((8, 8))})
    assert not jnp.any(updates["key"])


def test_rates_and_momenta_may_be_mapped():
    info = {"w": hidden((8, 8))}
    grads = {"w": noise((8, 8))}
    one = lambda rate, beta: step(dm.muon(rate, info, RULE, beta=beta), grads, grads)["w"]
    rates, betas = jnp.array([0.1, 0.3]), jnp.array([0.9, 0.95])
    mapped = jax.vmap(one)(rates, betas)
    for lane in range(2):
        np.testing.assert_allclose(mapped[lane], one(float(rates[lane]), float(betas[lane])), rtol=1e-4, atol=1e-6)


def test_the_table_shows_each_parameters_own_factor():
    _, info = gpt(width=128)
    rows = dm.param_table(info, RULE, geometry=muon_geometry(info), eps=1e-8).splitlines()
    of = lambda name: next(row.split() for row in rows if row.startswith(name))
    assert of("transformer/blocks/mlp/up/kernel")[-3:-1] == ["1", "-"]  # no 1/m, no epsilon
    assert of("readout/kernel")[-3:-1] == ["1", "2.5e-09"]


def test_the_geometry_of_optax_directions_is_known():
    of = lambda *parts: geometry_of(optax.chain(*parts))
    muon = optax.contrib.scale_by_muon(weight_dimension_numbers={"w": optax.contrib.MuonDimensionNumbers(0, 1)})
    assert of(optax.trace(0.9)) in (Geometry.LINEAR, Geometry.SIGN)  # with the same factors
    assert of(optax.scale_by_adam(), optax.clip_by_block_rms(1.0)) is Geometry.SIGN
    assert of(optax.trace(0.9), muon) is Geometry.ORTHOGONAL
    assert of(optax.scale_by_adam(), optax.scale_by_trust_ratio()) is Geometry.NORM_MATCHED
    assert of(optax.scale_by_trust_ratio(), optax.trace(0.9)) is Geometry.NORM_MATCHED
    assert of(optax.masked(muon, {"w": True})) is Geometry.ORTHOGONAL


def test_a_normalization_of_entries_behind_muon_needs_a_geometry():
    muon = optax.contrib.scale_by_muon(weight_dimension_numbers={"w": optax.contrib.MuonDimensionNumbers(0, 1)})
    info, params = {"w": hidden((8, 8))}, {"w": noise((8, 8))}
    dm.depthmup(muon, info, RULE, 0.1).init(params)
    with pytest.raises(dm.InputError, match="pass geometry="):
        dm.depthmup(optax.chain(muon, optax.scale_by_sign()), info, RULE, 0.1).init(params)
    dm.depthmup(optax.chain(muon, optax.scale_by_sign()), info, RULE, 0.1, geometry="sign").init(params)


def test_optax_muon_for_some_parameters_needs_no_geometry():
    """Its state says which; at the base model its updates are the direction's."""
    info = {"w": hidden((8, 8)), "v": ParamInfo(Role.HIDDEN, (8, 8))}
    numbers = {"w": optax.contrib.MuonDimensionNumbers(0, 1), "v": optax.MaskedNode()}
    parts = {"a": optax.contrib.scale_by_muon(weight_dimension_numbers=numbers), "b": optax.scale_by_adam()}
    inner = optax.partition(parts, {"w": "a", "v": "b"})
    wide = jax.tree.map(lambda leaf: dataclasses.replace(leaf, width_in=4.0, width_out=4.0), info)
    grads = {"w": noise((8, 8)), "v": noise((8, 8), 1)}
    at_base, elsewhere = (step(dm.depthmup(inner, one, RULE, 1.0), grads, grads) for one in (info, wide))
    np.testing.assert_allclose(elsewhere["w"], at_base["w"], rtol=1e-3)  # (m_out / m_in)^1/2
    np.testing.assert_allclose(elsewhere["v"], at_base["v"] / 4, rtol=1e-3)  # 1 / m_in


VECTOR = ParamInfo(Role.VECTOR, (8,), 1.0, 1.0)
UNKNOWN = ParamInfo(Role.HIDDEN, (8, 2, 4), 2.0, 2.0)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: dm.depthmup(optax.contrib.scale_by_muon(), {"b": VECTOR}, RULE, 0.1), "parameter 'b' of shape (8,)"),
        (lambda: dm.muon(0.1, {"q": UNKNOWN}, RULE), "parameter 'q' of shape"),
        (lambda: dm.muon(0.1, {}, RULE, ns_steps=0), "ns_steps is 0"),
        (lambda: dm.muon(0.1, {}, RULE, preconditioning="shatten"), "is 'shatten': did you mean 'schatten'?"),
        (
            lambda: dm.depthmup(optax.scale_by_adam(), {"w": hidden((8, 8))}, RULE, 0.1, geometry="orthogonal"),
            "geometry of 'w' is 'orthogonal'",
        ),
        (
            lambda: dm.depthmup(optax.scale_by_adam(), {"w": VECTOR}, RULE, 0.1, geometry={"v": "sign"}),
            "geometry is {'v': 'sign'}",
        ),
    ],
)  # fmt: skip
def test_bad_geometries_are_named(call, sentence):
    with pytest.raises(dm.InputError) as error:
        call()
    assert sentence in str(error.value)


def test_muon_says_which_optax_it_needs(monkeypatch):
    _, info = gpt()
    monkeypatch.setattr(optax, "__version__", "0.2.6")
    with pytest.raises(dm.InputError, match=r"optax 0\.2\.8"):
        dm.muon(1e-3, info, RULE)
    dm.adamw(1e-3, info, RULE)
