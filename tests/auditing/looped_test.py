"""L layers that are used N times each: powers of N and L that audited networks follow, with no factor in their code."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import depthmup_flax as dm
from depthmup_flax.rule.factor import Factor

WIDTH, BATCH, STEPS, SEEDS = 32, 8, 3, 6
# (layers, uses of each); the first is the base model.
SIZES = {"uses": [(1, 8), (1, 128)], "uses of four": [(4, 4), (4, 64)], "layers": [(8, 2), (64, 2)]}
RULES = {name: dm.get_parametrization(name) for name in ("depth_mup", "ode")}
OPTIMIZERS = {"adam": (dm.adamw, 0.01), "sgd": (dm.sgd, 2e-4)}
X, Y = (jax.random.normal(jax.random.key(k), (BATCH, 8)) for k in (1, 2))


def looped(base, layers, uses, key, matrices=1):
    """Function and parameters: h + relu(h) v, or h + relu(h u) v; initial values are those of the base's best scale."""

    def apply(p, x):
        layer = lambda h, w: (h + jax.nn.relu(h if matrices == 1 else h @ w["u"]) @ w["v"], None)
        once = lambda h, _: (jax.lax.scan(layer, h, p["layers"])[0], None)
        return jax.lax.scan(once, x @ p["stem"], None, length=uses)[0] @ p["head"]

    draw = lambda k, *shape: jax.random.normal(jax.random.fold_in(key, k), shape) / math.sqrt(shape[-2])
    weights = {"v": draw(0, layers, WIDTH, WIDTH) / (base[1] * base[0] ** 0.5)}
    if matrices == 2:
        weights["u"] = draw(1, layers, WIDTH, WIDTH)
    return apply, {"layers": weights, "stem": draw(2, 8, WIDTH), "head": draw(3, WIDTH, 8)}


def exponents(over, optimizer, rule, *, matrices=1, recount=lambda leaf: leaf):
    """Of the branches' sum at the start, and of the output's change in training; ``recount`` edits infos."""
    sizes, found, (make, rate) = SIZES[over], [], OPTIMIZERS[optimizer]
    of = lambda size, key: looped(sizes[0], *size, key, matrices)
    for size in sizes:
        audit = dm.audit(of(size, jax.random.key(0)), of(sizes[0], jax.random.key(0)), X)
        assert not audit.findings, str(audit)
        info = jax.tree.map(recount, audit.info, is_leaf=lambda x: isinstance(x, dm.ParamInfo))
        transform = make(rate, info, RULES[rule])

        def trained(key, size=size, info=info, transform=transform):
            apply, given = of(size, key)
            params = dm.rescale_init(given, of(sizes[0], key)[1], info, RULES[rule])
            first, without = (
                apply(params, X),
                apply({**params, "layers": jax.tree.map(jnp.zeros_like, given["layers"])}, X),
            )

            def step(carry, _):
                params, state = carry
                grads = jax.grad(lambda p: jnp.mean((apply(p, X) - Y) ** 2))(params)
                blocks = {**jax.tree.map(jnp.zeros_like, grads), "layers": grads["layers"]}  # the rest does not train
                updates, state = transform.update(blocks, state, params)
                return (jax.tree.map(jnp.add, params, updates), state), None

            (params, _), _ = jax.lax.scan(step, (params, transform.init(params)), None, length=STEPS)
            return jnp.stack([jnp.sqrt(jnp.mean(a**2)) for a in (first - without, apply(params, X) - first)])

        found.append(np.log2(jax.jit(jax.vmap(trained))(jax.random.split(jax.random.key(3), SEEDS))).mean(0))
    return np.polyfit([math.log2(layers * uses) for layers, uses in sizes], np.array(found), 1)[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("over", "optimizer", "matrices"),
    [
        ("uses", "adam", 1),
        ("uses", "sgd", 1),
        ("uses of four", "adam", 2),
        ("uses of four", "sgd", 1),
        ("layers", "adam", 1),
        ("layers", "sgd", 1),
    ],
)
def test_neither_the_branches_nor_the_changes_depend_on_uses_or_layers(over, optimizer, matrices):
    assert exponents(over, optimizer, "depth_mup", matrices=matrices) == pytest.approx([0, 0], abs=0.1)


def _as_layers(leaf, alpha):
    """The rule for as many layers with weights of their own."""
    r = leaf.depth_ratio * leaf.uses
    carried = Factor(constant=r**-alpha if leaf.in_branch else 1.0)
    return dataclasses.replace(leaf, depth_ratio=r, uses=1.0, summed=1.0, carried=carried)


# Another count -> the exponent that it gives, of the branches (0) or of the changes (1).
WRONG = {
    "layers at alpha = 1": ("layers", "adam", "ode", lambda leaf: leaf, 0, -0.5),
    "uses as layers": ("uses of four", "adam", "depth_mup", lambda leaf: _as_layers(leaf, 0.5), 0, 0.5),
    "uses as layers at alpha = 1, SGD": ("uses", "sgd", "ode", lambda leaf: _as_layers(leaf, 1.0), 1, 1.0),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", WRONG)
def test_another_count_freezes_the_branches_or_makes_them_grow(case):
    over, optimizer, rule, recount, which, expected = WRONG[case]
    found = exponents(over, optimizer, rule, recount=recount)[which]
    assert found * np.sign(expected) > 0.35, found
