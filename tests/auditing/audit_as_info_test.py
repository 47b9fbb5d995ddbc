"""An audit may be passed wherever its info is asked for."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import depthmup_flax as dm
from depthmup_flax.rule.info_trees import flatten_info

WIDTH, DEPTH = 16, 4
RULE = dm.get_parametrization("completep")
OPTIMIZERS = {
    "depthmup": lambda info: dm.depthmup(optax.scale_by_adam(), info, RULE, 1e-2, mask=lambda params: True),
    "scale_by_depthmup": lambda info: dm.scale_by_depthmup(optax.scale_by_adam(), info, RULE),
    "adamw": lambda info: dm.adamw(1e-2, info, RULE, weight_decay=0.1),
    "sgd": lambda info: dm.sgd(1e-2, info, dm.get_parametrization("mup"), momentum=0.9),
    "muon": lambda info: dm.muon(1e-2, info, RULE, weight_decay=0.1),
    "adamh": lambda info: dm.adamh(1e-2, info, RULE),
    "muonh": lambda info: dm.muonh(1e-2, info, RULE),
    "freeze": lambda info: dm.freeze(dm.adamw(1e-2, info, RULE), info, ["stem"]),
}
FUNCTIONS = {
    "rescale_init": lambda info: dm.rescale_init(PARAMS, BASE_PARAMS, info, RULE),
    "baked": lambda info: dm.baked(PARAMS, info, RULE),
    "rescaled_before": lambda info: {
        path: (leaf, leaf.audited.base_sizes) for path, leaf in flatten_info(dm.rescaled_before(info)).items()
    },
    "param_table": lambda info: dm.param_table(info, RULE, weight_decay=0.1, frozen=["stem"], mask=lambda params: True),
    "measures": lambda info: dm.measures(info, RULE, PARAMS, PARAMS, PARAMS, geometry=dm.muon_geometry(info)),
    "muon_geometry": dm.muon_geometry,
}


def network(params, x):
    """A residual network without factors, which its parameters carry."""
    h = x @ params["stem"]
    for name in sorted(params):
        if name.startswith("block"):
            h = h + jnp.tanh(h) @ params[name]
    return h @ params["head"]


def drawn(width, depth):
    shapes = {"stem": (5, width), "head": (width, 3)} | {f"block_{i}": (width, width) for i in range(depth)}
    random = np.random.default_rng(0)
    return {path: random.normal(0, shape[0] ** -0.5, shape).astype("float32") for path, shape in shapes.items()}


PARAMS, BASE_PARAMS = drawn(2 * WIDTH, 2 * DEPTH), drawn(WIDTH, DEPTH)
X = jax.ShapeDtypeStruct((2, 5), jnp.float32)


@pytest.fixture(scope="module")
def audit():
    return dm.audit((network, PARAMS), (network, BASE_PARAMS), X)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_takes_an_audit_for_its_info(audit, name):
    params = dm.rescale_init(PARAMS, BASE_PARAMS, audit, RULE)

    def step(info):
        optimizer = OPTIMIZERS[name](info)
        updates, _ = optimizer.update(PARAMS, optimizer.init(params), params)
        return updates

    jax.tree.map(np.testing.assert_array_equal, step(audit), step(audit.info))
    assert any(np.any(update) for update in jax.tree.leaves(step(audit)))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_takes_an_audit_for_its_info(audit, name):
    result, expected = FUNCTIONS[name](audit), FUNCTIONS[name](audit.info)
    assert jax.tree.structure(result) == jax.tree.structure(expected)
    assert all(np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (result, expected)), strict=True))


WITHOUT_A_RULE = {
    "depthmup": lambda *args: dm.depthmup(optax.scale_by_adam(), *args, learning_rate=1e-2),
    "scale_by_depthmup": lambda *args: dm.scale_by_depthmup(optax.scale_by_adam(), *args),
    "adamw": lambda *args: dm.adamw(1e-2, *args),
    "sgd": lambda *args: dm.sgd(1e-2, *args),
    "muon": lambda *args: dm.muon(1e-2, *args),
    "adamh": lambda *args: dm.adamh(1e-2, *args),
    "muonh": lambda *args: dm.muonh(1e-2, *args),
}


@pytest.mark.parametrize("name", WITHOUT_A_RULE)
def test_the_rule_of_every_optimizer_is_depth_mup_by_default(audit, name):
    params = dm.rescale_init(PARAMS, BASE_PARAMS, audit)

    def step(*args):
        optimizer = WITHOUT_A_RULE[name](audit, *args)
        return optimizer.update(PARAMS, optimizer.init(params), params)[0]

    jax.tree.map(np.testing.assert_array_equal, step(), step(dm.get_parametrization("depth_mup")))
    assert str(dm.param_table(audit)) == str(dm.param_table(audit, dm.get_parametrization("depth_mup")))
