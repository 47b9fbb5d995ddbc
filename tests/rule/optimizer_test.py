"""The optimizer side of the rule: one transformation for every optimizer, the order of its parts, equivalent forms."""

import dataclasses
import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from drawn import descend, updated
from flax import nnx

import depthmup_flax as dm
from depthmup_flax.auditing.config_audit import audited_model
from depthmup_flax.rule.directions import direction
from depthmup_flax.rule.optimizer import clip_by_global_rms, depthmup
from depthmup_flax.rule.parametrization import PRESETS, ParamInfo, Role

_IS_OLD = tuple(map(int, optax.__version__.split(".")[:3])) < (0, 2, 8)
NEEDS_MUON = pytest.mark.skipif(_IS_OLD, reason="Muon needs optax 0.2.8")

KEY = jax.random.key(0)
X = jax.random.normal(jax.random.key(1), (32, 24))
Y = jax.random.randint(jax.random.key(2), (32,), 0, 10)

# One leaf of every role, with m = 4 and r = 9 where they apply.
INFO = {
    "hidden": ParamInfo(Role.HIDDEN, (3,), 4.0, 4.0, True, 9.0, 4.0),
    "stem": ParamInfo(Role.INPUT, (3,), 1.0, 4.0, False, 1.0, 4.0),
    "readout": ParamInfo(Role.OUTPUT, (3,), 4.0, 1.0, False, 1.0, 4.0),
    "bias": ParamInfo(Role.VECTOR, (3,), 1.0, 4.0, True, 9.0, 4.0, decay=False),
}
PARAMS = {name: jnp.array([1.0, -2.0, 0.5]) for name in INFO}
LAYERS = {f"Dense_{i}": {"kernel": INFO["hidden"]} for i in range(3)}
GRADS = [jax.tree.map(lambda p, s=s: s * p + 0.3, PARAMS) for s in (0.1, -0.05, 0.2)]
RULE = PRESETS["depth_mup"].replace(gamma0=2.0)


def layers(depth):
    """Parameters like those of ``LAYERS``, which has depth 3."""
    return {f"Dense_{i}": {"kernel": PARAMS["hidden"]} for i in range(depth)}


def test_completep_is_adamw_with_the_groups_of_its_paper():
    """arXiv:2505.01618 Table 1 and Eq. 40, in the words of its authors' PyTorch code (nanoGPT-mup)."""
    m, r, rate, eps, decay = 8.0, 16.0, 0.01, 0.3, 0.1
    wide, branch = {"width_out": m, "model_width": m}, {"in_branch": True, "depth_ratio": r}
    groups = {  # the parameter; its learning rate, decay and epsilon over the base model's
        "embedding": (ParamInfo(Role.INPUT, (3,), **wide), 1, 1, 1 / m),
        "hidden": (ParamInfo(Role.HIDDEN, (3,), width_in=m, **wide, **branch), 1 / m, m, 1 / (m * r)),
        "norm": (ParamInfo(Role.VECTOR, (3,), decay=False, **wide, **branch), 1, 0, 1 / (m * r)),
        "final_norm": (ParamInfo(Role.VECTOR, (3,), decay=False, **wide), 1, 0, 1 / m),
        "unembedding": (ParamInfo(Role.OUTPUT, (3,), width_in=m, model_width=m), 1, 1, 1 / m),
    }
    params = {name: jnp.array([1.0, -2.0, 0.5]) for name in groups}
    grads = [jax.tree.map(lambda p, s=s: s * p + 0.03, params) for s in (0.1, -0.05, 0.2)]
    info = {name: leaf for name, (leaf, *_) in groups.items()}
    theirs = {
        name: run(optax.adamw(rate * lr, eps=eps * e, weight_decay=decay * d), params[name], [g[name] for g in grads])
        for name, (_, lr, d, e) in groups.items()
    }
    of = lambda preset: run(dm.adamw(rate, info, PRESETS[preset], eps=eps, weight_decay=decay), params, grads)
    same = jax.tree.map(lambda a, b: np.allclose(a, b, rtol=1e-5), of("completep"), theirs)
    assert all(same.values()), same
    other = jax.tree.map(lambda a, b: np.allclose(a, b, rtol=1e-5), of("depth_mup"), theirs)
    assert not other["hidden"]
    assert not other["norm"]


def net_info():
    model, _, info = net()
    return info, model.rule


def run(optimizer, params=PARAMS, grads=GRADS):
    return updated(optimizer, params, grads)


@functools.cache
def net(*, width=16, depth=4, preset="depth_mup", **fields):
    rule = dm.get_parametrization(preset)
    model = dm.ResMLP(10, width=width, depth=depth, base_width=16, base_depth=4, rule=rule, **fields)
    params = nn.unbox(jax.jit(model.init)(KEY, X))["params"]
    return model, params, audited_model(model, X).info


def loss_fn(model):
    return lambda p: optax.softmax_cross_entropy_with_integer_labels(model.apply({"params": p}, X), Y).mean()


def losses(model, params, optimizer, steps):
    return jax.jit(lambda params: descend(loss_fn(model), optimizer, params, steps))(params)


@pytest.mark.parametrize("name", ["sgd", "momentum", "adam", "lion", "rmsprop", "adabelief"])
def test_the_rule_is_the_definition_around_any_entrywise_optimizer(name):
    """TP6 Definition 6.1, leaf by leaf: n^-c r^-gamma Q(n^d r^delta g), the optimizer alone on one scaled leaf."""
    eta = 0.01
    after = run(depthmup(direction(name), INFO, RULE, eta))
    for leaf, (gradient_scale, update_scale) in {
        # gamma0 = 2 in every factor; m = 4; sqrt(r) = 3 inside the branch
        "hidden": (2 * 4 * 3, 2 / 4 / 3),
        "stem": (2 * 4, 2),
        "readout": (2 * 4, 2),
        "bias": (2 * 4 * 3, 2 / 3),
    }.items():
        inner = direction(name)
        p, state = PARAMS[leaf], inner.init(PARAMS[leaf])
        for g in GRADS:
            q, state = inner.update(gradient_scale * g[leaf], state, p)
            p = p - eta * update_scale * q
        np.testing.assert_allclose(after[leaf], p, rtol=1e-6)


def test_order_is_scale_clip_direction_scale_decay_rate():
    """A contract, shown with parts that do not commute."""
    eta, decay, clip = 0.1, 0.5, 1.0
    after = run(depthmup(optax.scale_by_sign(), INFO, RULE, eta, weight_decay=decay, clip_rms=clip), grads=GRADS[:1])
    for leaf, info in INFO.items():
        update = RULE.update_scale(info) * jnp.sign(GRADS[0][leaf])
        expected = PARAMS[leaf] - eta * (update + (decay * PARAMS[leaf] if info.decay else 0.0))
        np.testing.assert_allclose(after[leaf], expected, rtol=1e-6)
    # Clipping sees scaled gradients and comes before the direction: with SGD the update is the clipped gradient.
    after = run(depthmup(optax.identity(), INFO, RULE, eta, clip_rms=clip), grads=GRADS[:1])
    scaled = {k: RULE.gradient_scale(INFO[k]) * GRADS[0][k] for k in INFO}
    rms = math.sqrt(np.mean(np.square(np.concatenate(list(scaled.values())))))
    assert rms > clip
    for leaf, info in INFO.items():
        expected = PARAMS[leaf] - eta * RULE.update_scale(info) * scaled[leaf] * clip / rms
        np.testing.assert_allclose(after[leaf], expected, rtol=1e-6)


def test_helpers_are_the_general_transformation():
    pairs = [
        (dm.sgd(0.1, INFO, RULE, momentum=0.9, weight_decay=0.1),
         dm.depthmup(optax.trace(0.9), INFO, RULE, 0.1, weight_decay=0.1)),
        (dm.adamw(0.1, INFO, RULE, b2=0.95, weight_decay=0.1, clip_rms=0.5),
         dm.depthmup(optax.scale_by_adam(b2=0.95), INFO, RULE, 0.1, weight_decay=0.1, clip_rms=0.5)),
        (optax.chain(dm.scale_by_depthmup(optax.scale_by_lion(), INFO, RULE), optax.scale(-0.1)),
         dm.depthmup(optax.scale_by_lion(), INFO, RULE, 0.1)),
    ]  # fmt: skip
    for helper, general in pairs:
        jax.tree.map(np.testing.assert_array_equal, run(helper), run(general))


def test_at_the_base_model_it_is_plain_optax():
    base = {k: ParamInfo(v.role, v.shape, in_branch=v.in_branch) for k, v in INFO.items()}
    rule = PRESETS["depth_mup"]
    for ours, theirs in [
        (dm.adamw(0.1, base, rule, weight_decay=0.01), optax.adamw(0.1, weight_decay=0.01)),
        (dm.sgd(0.1, base, rule, momentum=0.9), optax.sgd(0.1, momentum=0.9)),
    ]:
        # optax.adamw decays everything, ours only where info.decay
        for leaf in ("hidden", "stem", "readout"):
            np.testing.assert_allclose(run(ours)[leaf], run(theirs)[leaf], rtol=1e-6)


def test_weight_decay_is_the_same_at_every_width_and_depth():
    """B24 App. L: a step removes eta * lambda of a weight. With no gradient, nothing else happens."""
    eta, decay = 0.1, 0.2
    no_grads = [jax.tree.map(jnp.zeros_like, PARAMS)] * 3
    for m, r in [(1.0, 1.0), (16.0, 1.0), (1.0, 64.0), (16.0, 64.0)]:
        info = {
            "hidden": ParamInfo(Role.HIDDEN, (3,), m, m, True, r, m),
            "stem": ParamInfo(Role.INPUT, (3,), 1.0, m, False, 1.0, m),
            "readout": ParamInfo(Role.OUTPUT, (3,), m, 1.0, False, 1.0, m),
            "bias": ParamInfo(Role.VECTOR, (3,), 1.0, m, True, r, m, decay=False),
        }
        after = run(dm.adamw(eta, info, RULE, weight_decay=decay), grads=no_grads)
        for leaf in ("hidden", "stem", "readout"):
            np.testing.assert_allclose(after[leaf], PARAMS[leaf] * (1 - eta * decay) ** 3, rtol=1e-6)
        np.testing.assert_array_equal(after["bias"], PARAMS["bias"])


@pytest.mark.parametrize(("exponent", "factor"), [(-1.0, 1 / 4), (-0.5, 1 / 2), (0.5, 2.0)])
def test_decay_of_a_hidden_matrix_follows_its_own_width_ratio_to_the_exponent(exponent, factor):
    info = INFO | {"as wide as the base": ParamInfo(Role.HIDDEN, (3,), 1.0, 1.0, True, 9.0, 4.0)}
    params = dict.fromkeys(info, PARAMS["stem"])
    no_grads = [jax.tree.map(jnp.zeros_like, params)]
    eta, decay = 0.1, 0.2
    optimizer = dm.adamw(eta, info, RULE, weight_decay=decay, decay_width_exponent=exponent)
    kept = {name: float(value[0]) for name, value in run(optimizer, params, no_grads).items()}
    others = dict.fromkeys(("stem", "readout", "as wide as the base"), 1 - eta * decay)
    assert kept == pytest.approx({"hidden": 1 - eta * decay * factor, "bias": 1.0, **others})


def test_schedules_multiply_eta_alone_and_decay_follows_them():
    schedule = optax.warmup_cosine_decay_schedule(0.0, 1.0, 2, 6)
    expected = [0.0, 0.5, 1.0] + [0.5 * (1 + math.cos(math.pi * k / 4)) for k in (1, 2, 3)]
    eta, decay = 0.1, 0.2
    no_grads = [jax.tree.map(jnp.zeros_like, PARAMS)] * 6
    after = run(dm.sgd(lambda t: eta * schedule(t), INFO, RULE, weight_decay=decay), grads=no_grads)
    factor = math.prod(1 - eta * f * decay for f in expected)
    np.testing.assert_allclose(after["hidden"], PARAMS["hidden"] * factor, rtol=1e-6)


def test_block_only_at_eta_is_depth_mup_at_eta_sqrt_r_with_frozen_stem_and_readout():
    eta, r = 2e-3, 4
    curves = []
    for preset, rate in (("block_only", eta), ("depth_mup", eta * math.sqrt(r))):
        model, params, info = net(depth=4 * r, preset=preset)
        # block_only and depth_mup scale gradients alike, so only the update's factor differs
        curves.append(losses(model, params, dm.freeze(dm.adamw(rate, info, model.rule), info, ("stem", "readout")), 20))
    assert curves[0][-1] < 0.9 * curves[0][0]
    np.testing.assert_allclose(curves[0], curves[1], rtol=2e-5)


def mean_field_losses(weights, x, y, depth, gamma0, update, steps):
    """B24 Eq. 1 with Table 1's third column, written out: N(0, 1) weights, no module and no optimizer of this package.

    Args:
      weights: ``stem [D, N]``, ``blocks [L, N, N]``, ``readout [N, K]``, all N(0, 1).
      update: ``(weights, grads, state, step) -> (weights, state)``.
    """
    d, n = weights["stem"].shape

    def loss(w):
        h = x @ w["stem"] / math.sqrt(d)
        for i in range(depth):
            h = h + jax.nn.relu(h) @ w["blocks"][i] / math.sqrt(n * depth)
        f = jax.nn.relu(h) @ w["readout"] / (gamma0 * n)
        return optax.softmax_cross_entropy_with_integer_labels(f, y).mean()

    curve, state = [], None
    step = jax.jit(jax.value_and_grad(loss))
    for t in range(steps):
        value, grads = step(weights)
        curve.append(float(value))
        weights, state = update(weights, grads, state, t)
    return np.array(curve)


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_mean_field_form_of_b24_has_the_same_losses_to_1e_12(float64, optimizer):
    n, n_base, depth, base_depth, d, gamma0, steps = 48, 16, 6, 2, 24, 0.7, 60
    x, y = np.asarray(X, np.float64), np.asarray(Y)
    rng = np.random.default_rng(0)
    shapes = {"stem": (d, n), "blocks": (depth, n, n), "readout": (n, 10)}
    weights = {k: jnp.asarray(rng.normal(size=s)) for k, s in shapes.items()}

    # The conversions between the two forms.
    ours_gamma0 = gamma0 * math.sqrt(n_base)
    rule = dm.get_parametrization(gamma0=ours_gamma0, branch_multiplier=base_depth**-0.5)
    model = dm.ResMLP(
        10, width=n, depth=depth, base_width=n_base, base_depth=base_depth, rule=rule, pre_nonlin=True,
        mean_subtraction=False, param_dtype=jnp.float64,
    )  # fmt: skip
    params = {
        "stem": {"kernel": weights["stem"] / math.sqrt(d)},
        "blocks": {"branch": {"dense_0": {"kernel": weights["blocks"] / math.sqrt(n)}}},
        "readout": {"kernel": weights["readout"] / math.sqrt(n_base)},
    }
    if optimizer == "adam":
        eta, eps = 3e-3, 1e-3  # an epsilon that matters
        # Per weight: what the table gives, in units of a N(0, 1) weight.
        m, root_r = n / n_base, math.sqrt(depth / base_depth)
        unit = {"stem": math.sqrt(d), "blocks": math.sqrt(n), "readout": math.sqrt(n_base)}
        rate = {"stem": eta, "blocks": eta / m / root_r, "readout": eta}
        gradient = {"stem": m, "blocks": m * root_r, "readout": m}
        rates = {k: ours_gamma0 * rate[k] * unit[k] for k in unit}
        epsilons = {k: eps / (ours_gamma0 * gradient[k] * unit[k]) for k in unit}

        def update(w, g, state, t):
            mu, nu = state or ({k: 0.0 for k in w}, {k: 0.0 for k in w})
            mu = {k: 0.9 * mu[k] + 0.1 * g[k] for k in w}
            nu = {k: 0.999 * nu[k] + 0.001 * g[k] ** 2 for k in w}
            hat = lambda v, b: v / (1 - b ** (t + 1))
            new = {k: w[k] - rates[k] * hat(mu[k], 0.9) / (jnp.sqrt(hat(nu[k], 0.999)) + epsilons[k]) for k in w}
            return new, (mu, nu)

        ours = lambda info, rule: dm.adamw(eta, info, rule, eps=eps)
    else:
        # With momentum the same rate moves ten times as far; a loss near 0 would have fewer digits to compare.
        beta, eta0 = (0.9, 0.04) if optimizer == "momentum" else (0.0, 0.4)
        rule = rule.replace(input_lr_factor=n_base / d)  # B24's forward 1/sqrt(D)
        model = model.clone(rule=rule)
        eta = eta0 * gamma0**2 / ours_gamma0**2

        def update(w, g, state, t):
            v = {k: g[k] + (beta * state[k] if state else 0.0) for k in w}
            return {k: w[k] - eta0 * gamma0**2 * n * v[k] for k in w}, v  # B24 Eq. 2, 3

        ours = lambda info, rule: dm.sgd(eta, info, rule, momentum=beta or None)
    expected = mean_field_losses(weights, x, y, depth, gamma0, update, steps)

    info = audited_model(model, x).info
    loss = lambda p: optax.softmax_cross_entropy_with_integer_labels(model.apply({"params": p}, x), y).mean()
    curve = jax.jit(lambda params: descend(loss, ours(info, rule), params, steps))(params)
    assert expected[-1] < 0.8 * expected[0]
    np.testing.assert_allclose(curve, expected, rtol=1e-12)


def test_hyperparameters_can_be_mapped_over_and_give_the_numbers_of_single_runs():
    model, params, info = net(depth=8, use_bias=True)

    def curve(h):
        rule = model.rule.replace(
            gamma0=h["gamma0"], branch_multiplier=h["a"], input_lr_factor=h["stem"], vector_lr_factor=h["bias"]
        )
        optimizer = dm.adamw(
            h["eta"], info, rule, b1=h["b1"], b2=h["b2"], eps=h["eps"], weight_decay=h["decay"], clip_rms=h["clip"]
        )
        return losses(model.clone(rule=rule), params, optimizer, 10)

    grid = {
        "eta": [1e-2, 3e-3], "gamma0": [2.0, 0.5], "a": [0.7, 0.5], "stem": [0.3, 0.1], "bias": [0.0, 2.0],
        "b1": [0.0, 0.8], "b2": [0.95, 0.99], "eps": [1e-6, 1e-3], "decay": [0.0, 0.1], "clip": [10.0, 0.1],
    }  # fmt: skip
    together = jax.vmap(curve)({k: jnp.array(v) for k, v in grid.items()})
    alone = curve({k: v[1] for k, v in grid.items()})
    np.testing.assert_allclose(together[1], alone, rtol=2e-4)
    assert np.ptp(np.asarray(together)[:, -1]) > 0.05  # the lanes do differ


def test_clip_rms_is_optax_global_norm_at_the_base_model():
    grads = jax.tree.map(lambda g: 10 * g, GRADS[0])
    count = sum(g.size for g in jax.tree.leaves(grads))
    theirs = optax.clip_by_global_norm(0.7 * math.sqrt(count))
    ours = clip_by_global_rms(0.7)
    for g in (grads, jax.tree.map(lambda g: 1e-3 * g, grads)):
        expected, _ = theirs.update(g, theirs.init(g))
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), ours.update(g, ours.init(g))[0], expected
        )
    narrow = jnp.full(8, 6e4, jnp.float16)  # whose squares overflow
    np.testing.assert_allclose(clip_by_global_rms(1.0).update(narrow, optax.EmptyState())[0], np.ones(8), rtol=2e-3)


@pytest.mark.slow
def test_scaled_gradient_rms_is_flat_in_width_and_depth_so_that_clipping_transfers():
    def rms(width, depth):
        model, params, info = net(width=width, depth=depth, nonlinearity="abs")
        grads = jax.jit(jax.grad(loss_fn(model)))(params)
        scaled = jax.tree.map(
            lambda leaf, g: g * model.rule.gradient_scale(leaf),
            info,
            grads,
            is_leaf=lambda x: isinstance(x, ParamInfo),
        )
        return float(optax.tree.norm(scaled) / math.sqrt(sum(g.size for g in jax.tree.leaves(grads))))

    sizes = np.array([32, 64, 128, 256])
    for values in ([rms(n, 8) for n in sizes], [rms(32, depth) for depth in sizes]):
        slope = np.polyfit(np.log(sizes), np.log(values), 1)[0]
        assert abs(slope) < 0.15, slope


@pytest.mark.parametrize(
    "mask",
    [
        {"hidden": True, "stem": False, "readout": False, "bias": True},
        lambda params: {name: name in ("hidden", "bias") and x.shape == (3,) for name, x in params.items()},
    ],
)
def test_a_mask_says_which_parameters_decay_as_in_optax(mask):
    under = dm.get_parametrization("sp")
    ours, theirs = (adamw(mask) for adamw in (
        lambda mask: dm.adamw(0.1, INFO, under, weight_decay=0.2, mask=mask),
        lambda mask: optax.adamw(0.1, weight_decay=0.2, mask=mask),
    ))  # fmt: skip
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6), run(ours), run(theirs))
    rows = str(dm.param_table(INFO, under, weight_decay=0.2, mask=mask)).splitlines()
    decays = {row.split()[0]: row.split()[-1] for row in rows if row.split() and row.split()[0] in INFO}
    assert decays == {"hidden": "0.2", "stem": "0", "readout": "0", "bias": "0.2"}


@pytest.mark.parametrize(
    ("mask", "named"),
    [
        ({"hidden": True}, "bias"),
        ({"other": True}, "bias"),
        (lambda shapes: {"hidden": True, "stem": True, "readout": True}, "bias"),
        (dict.fromkeys([*INFO, "other"], True), "no parameter"),
        (["hidden"], "hidden"),
        (dict.fromkeys(INFO, "yes"), "dict"),
    ],
)
def test_a_mask_that_does_not_fit_names_what_is_wrong(mask, named):
    with pytest.raises(dm.InputError, match=f"mask.*{named}") as error:
        dm.adamw(0.1, INFO, RULE, mask=mask)
    assert len(str(error.value)) < 300


def test_a_module_that_can_be_called_is_frozen_and_its_hyperparameters_are_injected():
    @jax.tree_util.register_dataclass
    @dataclasses.dataclass
    class Layer:  # like a module of Equinox
        a: jax.Array
        b: jax.Array

        def __call__(self, x):
            return self.a * x + self.b

    info, params = Layer(INFO["hidden"], INFO["stem"]), Layer(PARAMS["hidden"], PARAMS["stem"])
    grads = [Layer(g["hidden"], g["stem"]) for g in GRADS]
    found = run(dm.freeze(dm.adamw(0.1, info, RULE), info, ("b",)), params, grads)
    np.testing.assert_array_equal(found.b, params.b)
    plain = run(dm.adamw(0.1, info, RULE), params, grads)
    np.testing.assert_array_equal(found.a, plain.a)
    injected = optax.inject_hyperparams(dm.adamw, static_args=("info", "rule"))(0.1, info, RULE)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4), run(injected, params, grads), plain)


def test_frozen_parameters_do_not_move_and_the_rest_does():
    model, params, info = net(use_bias=True)
    optimizer = dm.freeze(dm.adamw(1e-2, info, model.rule, weight_decay=0.1), info, ("stem", "readout/kernel"))
    state = optimizer.init(params)
    updates, _ = optimizer.update(jax.jit(jax.grad(loss_fn(model)))(params), state, params)
    moved = jax.tree.map(lambda u: bool(np.any(u != 0)), jax.device_get(updates))
    assert moved["stem"] == {"kernel": False, "bias": False}
    assert moved["readout"] == {"kernel": False, "bias": True}
    assert moved["blocks"]["branch"]["dense_0"] == {"kernel": True, "bias": True}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: direction("adm"), "optimizer.name is 'adm': did you mean 'adam'?"),
        (lambda: direction("adam", momentum=0.9), "it takes b1, b2, eps"),
        (lambda: direction("novograd"), "optimizer.name is 'novograd'"),
        (lambda: direction("sgd", nesterov=True), "nesterov is set but momentum is not"),
        (lambda: dm.adamw(0.1, INFO, RULE, b1=2.0), "b1 is 2.0"),
        (lambda: direction("rmsprop", decay=math.nan), "optimizer.kwargs.decay is nan"),
        (lambda: dm.sgd(-0.1, INFO, RULE), "learning_rate is -0.1"),
        (lambda: dm.adamw(0.1, INFO, RULE, weight_decay="0.1"), "weight_decay is '0.1'"),
        (lambda: dm.adamw(0.1, RULE, INFO), "info is a Parametrization"),
        (lambda: dm.sgd(0.1, LAYERS, RULE).init(layers(2)), "info has 'Dense_2/kernel'"),
        (lambda: dm.sgd(0.1, LAYERS, RULE).init(layers(4)), "'Dense_3/kernel' is not in info"),
        (lambda: dm.param_table(PARAMS, RULE), "info is a dict"),
        (lambda: dm.sgd(0.1, INFO, RULE, clip_rms=0), "clip_rms is 0"),
        (lambda: dm.adamw(0.1, INFO, RULE, decay_width_exponent=math.nan), "decay_width_exponent is nan"),
        (lambda: dm.depthmup(optax.adam(0.1), INFO, RULE, 0.1).init(PARAMS), "inner is a finished optimizer"),
        (lambda: dm.depthmup(optax.scale_by_adam(), INFO, 0.1, RULE), "rule is 0.1: use depthmup_flax.get_"),
        (
            lambda: dm.sgd(0.1, INFO, RULE).init(jax.tree.map(lambda p: p[:2], PARAMS)),
            "shape (2,), but info was made for (3,)",
        ),
        (
            lambda: dm.sgd(0.1, *net_info()).init(
                jax.eval_shape(dm.ResMLP(10, width=16, depth=4).init, KEY, X)["params"]
            ),
            "pass flax.linen.unbox",
        ),
        (lambda: dm.sgd(0.1, INFO, PRESETS["block_only"]), "Adam-like"),
        (lambda: dm.sgd(0.1, INFO, PRESETS["depth_mup"].replace(inner_gamma=0)), "no branch has an inner layer"),
        (lambda: dm.freeze(optax.sgd(0.1), INFO, ("stm",)), "'stm', which matches no parameter: did you mean 'stem'?"),
        (lambda: dm.freeze(optax.sgd(0.1), INFO, "stem"), "use a tuple of patterns"),
        (lambda: dm.freeze(optax.sgd(0.1), INFO, ("*",)), "freezes every parameter"),
    ],
)
def test_bad_optimizer_settings_are_named(call, message):
    with pytest.raises(dm.InputError) as error:
        call()
    assert message in str(error.value)


MATRIX = ParamInfo(Role.HIDDEN, (3, 3), 4.0, 4.0, True, 9.0, 4.0, in_axes=(0,), out_axes=(1,))
TREE_INFO = {"stem": {"kernel": INFO["stem"]}, "blocks": {"kernel": MATRIX, "bias": INFO["bias"]}}
TREE_PARAMS = {"stem": {"kernel": PARAMS["stem"]}, "blocks": {"kernel": jnp.eye(3) + 0.1, "bias": PARAMS["bias"]}}
TREE_GRADS = [jax.tree.map(lambda p, s=s: s * p + 0.3, TREE_PARAMS) for s in (0.1, -0.05, 0.2)]


@pytest.mark.parametrize(("name", "decay"), [("adamw", 0.1), pytest.param("muon", 0.0, marks=NEEDS_MUON)])
def test_prefixes_of_the_tree_label_and_mask_as_whole_trees_do(name, decay):
    ours = functools.partial(getattr(dm, name), 0.1, TREE_INFO, RULE, weight_decay=decay)
    whole = jax.tree_util.tree_map_with_path(lambda path, _: path[0].key, TREE_PARAMS)
    prefix = {"stem": "stem", "blocks": "blocks"}
    parts = lambda labels: optax.partition({"stem": dm.sgd(0.1, TREE_INFO, RULE), "blocks": ours()}, labels)
    masks = lambda tree: optax.masked(ours(), jax.tree.map(lambda label: label == "blocks", tree))
    for make in (parts, masks):
        jax.tree.map(
            np.testing.assert_array_equal,
            run(make(prefix), TREE_PARAMS, TREE_GRADS),
            run(make(whole), TREE_PARAMS, TREE_GRADS),
        )


@pytest.mark.parametrize(
    ("params", "named"),
    [
        ({"params": TREE_PARAMS}, "variables['params']"),
        ({**TREE_PARAMS, "head": TREE_PARAMS["stem"]}, "'head/kernel'"),
        ({**TREE_PARAMS, "stem": PARAMS["stem"]}, "'stem'"),
    ],
)
def test_a_tree_of_another_structure_is_named_by_its_path(params, named):
    with pytest.raises(dm.InputError) as error:
        dm.adamw(0.1, TREE_INFO, RULE).init(params)
    assert named in str(error.value)


@pytest.mark.parametrize("name", ["adamw", pytest.param("muonh", marks=NEEDS_MUON)])
def test_a_part_of_the_parameters_in_other_containers_is_updated_as_in_the_whole(name):
    ours = getattr(dm, name)(0.1, TREE_INFO, RULE)
    part = lambda tree: {"blocks": nnx.State({key: nnx.Param(value) for key, value in tree["blocks"].items()})}
    whole = run(ours, TREE_PARAMS, TREE_GRADS)["blocks"]
    found = run(ours, part(TREE_PARAMS), [part(grads) for grads in TREE_GRADS])["blocks"]
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6), nnx.to_pure_dict(found), whole)


def test_an_optimizer_of_complex_weights_may_be_given_them_in_two_parts():
    info = {"w": dataclasses.replace(MATRIX, shape=(3, 3)), "bias": INFO["bias"]}
    params = {"w": jnp.eye(3) + 1j * jnp.ones((3, 3)), "bias": PARAMS["bias"]}
    grads = [jax.tree.map(lambda p, s=s: s * p + 0.3, params) for s in (0.1, -0.05)]
    ours = dm.adamw(0.1, info, RULE)
    found = run(optax.contrib.split_real_and_imaginary(ours), params, grads)
    for part in (jnp.real, jnp.imag):
        alone = run(ours, jax.tree.map(part, params), [jax.tree.map(part, g) for g in grads])
        np.testing.assert_allclose(part(found["w"]), alone["w"], rtol=1e-6)


def test_parameters_of_16_bits_whose_steps_shrink_are_warned_of_once(logged):
    optimizer = dm.adamw(0.1, TREE_INFO, RULE)
    optimizer.init(TREE_PARAMS)
    dm.adamw(0.1, TREE_INFO, PRESETS["sp"]).init(jax.tree.map(jnp.bfloat16, TREE_PARAMS))
    assert not logged.messages
    optimizer.init(jax.tree.map(jnp.bfloat16, TREE_PARAMS))
    assert len(logged.messages) == 1
    assert "bfloat16" in logged.text
    assert "float32" in logged.text


@pytest.mark.parametrize("preset", ["sp", "depth_mup"])
def test_parameters_in_float16_whose_losses_would_be_nan_are_refused_by_name(preset):
    params = jax.tree.map(jnp.float16, TREE_PARAMS)
    with pytest.raises(dm.InputError, match=r"parameter '.*' is float16"):
        dm.adamw(0.1, TREE_INFO, PRESETS[preset]).init(params)


def test_bfloat16_parameters_stop_moving_as_networks_grow_and_float32_parameters_do_not():
    """What the warning says: 50 steps of one gradient, with weights and a rate as in practice."""
    weights = 0.02 * jax.random.normal(KEY, (4096,))

    def moved(m, r, dtype):
        info = {"w": ParamInfo(Role.HIDDEN, (4096,), m, m, True, r, m)}
        params = {"w": (weights / m**0.5).astype(dtype)}
        after = run(dm.adamw(1e-3, info, PRESETS["depth_mup"]), params, [{"w": jnp.ones(4096, dtype)}] * 50)
        return float((after["w"] != params["w"]).mean())

    assert moved(1.0, 1.0, jnp.bfloat16) == 1
    assert moved(64.0, 64.0, jnp.bfloat16) < 0.5
    assert moved(64.0, 64.0, jnp.float32) == 1
