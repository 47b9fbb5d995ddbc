"""The coordinate check passes right networks, and names what is wrong with wrong ones."""

import dataclasses
import functools
import json
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from processes import run_command

import depthmup_flax as dm
from depthmup_flax.coord_check import Network, coord_check, linen_network, nnx_network
from depthmup_flax.coord_check.from_config import check_config
from depthmup_flax.coord_check.layer_names import collapsers
from depthmup_flax.coord_check.verdict import verdict_of
from depthmup_flax.power_fits import fit_power
from depthmup_flax.rule.info_trees import flatten_info, is_info
from depthmup_flax.training.config import default_config

pytestmark = pytest.mark.usefixtures("compiled_in_haste")

RULE = dm.get_parametrization(branch_multiplier=0.5)
BASE_WIDTH, BASE_DEPTH = 8, 4
X = jax.random.normal(jax.random.key(0), (4, 12))
SEQUENCES = jax.random.normal(jax.random.key(0), (4, 3, 12))
Y = jnp.arange(4)
WIDTHS, DEPTHS = (64, 128, 256), (16, 32, 64)


class Block(nn.Module):
    """Pre-norm, one layer in the branch."""

    width: int
    multiplier: float
    std: float
    relu_last: bool

    @nn.compact
    def __call__(self, h, _):
        dense = nn.Dense(self.width, kernel_init=nn.initializers.normal(self.std), name="dense")
        y = nn.LayerNorm(name="norm")(h)
        y = nn.relu(dense(y)) if self.relu_last else dense(nn.relu(y))
        return h + self.multiplier * y, None


class Net(nn.Module):
    """A foreign residual network under nn.scan, and ways to get it wrong."""

    width: int
    depth: int
    branch_multiplier: bool = True
    readout_multiplier: bool = True
    depth_init: bool = False  # 1/sqrt(2 L), as in GPT-2
    fixed_std: bool = False
    relu_last: bool = False

    @nn.compact
    def __call__(self, x):
        r, m = self.depth / BASE_DEPTH, self.width / BASE_WIDTH
        multiplier = RULE.residual_multiplier(r) if self.branch_multiplier else RULE.branch_multiplier
        std = BASE_WIDTH**-0.5 if self.fixed_std else self.width**-0.5
        std = std / math.sqrt(2 * self.depth) if self.depth_init else std
        h = nn.Dense(self.width, name="stem")(x)
        scan = nn.scan(
            Block, variable_axes={"params": 0, "intermediates": 0}, split_rngs={"params": True}, length=self.depth
        )
        h, _ = scan(self.width, multiplier, std, self.relu_last, name="blocks")(h, None)
        h = h * (RULE.readout_multiplier(m) if self.readout_multiplier else 1.0)
        return nn.Dense(10, kernel_init=nn.initializers.normal(BASE_WIDTH**-0.5), name="head")(h)


class AttentionNet(nn.Module):
    """One attention layer whose heads grow in size."""

    width: int
    usual_scale: bool = False

    @nn.compact
    def __call__(self, x):
        d, base_d = self.width // 2, BASE_WIDTH // 2
        factor = 1.0 if self.usual_scale else RULE.attention_scale(d, base_d) * math.sqrt(d)

        # wraps: Flax passes arguments by what it finds in the signature.
        @functools.wraps(nn.dot_product_attention)
        def attention(query, *args, **kwargs):
            return nn.dot_product_attention(query * factor, *args, **kwargs)

        h = nn.Dense(self.width, name="stem")(x)
        h = h + 0.5 * nn.MultiHeadDotProductAttention(2, attention_fn=attention, name="attention")(h, h)
        h = h.mean(1) * RULE.readout_multiplier(self.width / BASE_WIDTH)
        return nn.Dense(10, kernel_init=nn.initializers.normal(BASE_WIDTH**-0.5), name="head")(h)


def infer(model, base, depth_ratio, **kwargs):
    shapes = [jax.eval_shape(m.init, jax.random.key(0), kwargs.get("x", X))["params"] for m in (model, base)]
    kwargs.pop("x", None)
    return dm.infer_info(*shapes, depth_ratio=depth_ratio, readout="head", **kwargs)


def check(axis, *, make_optimizer=None, rule=RULE, seeds=3, **wrong):
    """The report on `Net` over one axis."""
    make_optimizer = make_optimizer or (lambda info: dm.adamw(3e-3, info, RULE))

    def build(width, depth):
        model = Net(width, depth, **wrong)
        info = infer(model, Net(BASE_WIDTH, depth), depth / BASE_DEPTH, in_branch="blocks", stacked="blocks")
        return linen_network(model, X, info=info, optimizer=make_optimizer(info))

    sizes = {"widths": WIDTHS} if axis == "width" else {"depths": DEPTHS}
    return coord_check(build, Y, rule=rule, width=64, depth=4, steps=3, seeds=seeds, **sizes)


def causes(report):
    return {cause.name: cause.layers for cause in report.causes}


@pytest.mark.parametrize("axis", ["width", "depth"])
@pytest.mark.parametrize("name", ["adam", "sgd"])
def test_a_right_foreign_network_passes(axis, name):
    optimizers = {"adam": None, "sgd": lambda info: dm.sgd(0.05, info, RULE)}
    report = check(axis, make_optimizer=optimizers[name])
    assert report.ok, str(report)
    assert not report.causes
    assert ": PASS, " in str(report)


def test_a_missing_branch_multiplier_is_named():
    report = check("depth", branch_multiplier=False)
    assert not report.ok
    found = causes(report)
    assert next(iter(found)) == "missing_branch_multiplier"
    assert any(layer.startswith("blocks") for layer in found["missing_branch_multiplier"])
    assert "rule.residual_multiplier(r)" in str(report)


def test_branches_that_end_in_a_relu_add_up_their_mean_with_depth():
    """Why TP6 6.3 subtracts it: the mean of L nonnegative increments of L^-1/2 is L^1/2."""
    report = check("depth", relu_last=True)
    assert list(causes(report)) == ["branch_outputs_have_a_mean"]
    assert causes(report)["branch_outputs_have_a_mean"] == ("blocks",)


def test_a_readout_that_is_not_scaled_is_named():
    report = check("width", readout_multiplier=False)
    assert causes(report)["readout_not_scaled"] == ("head",)
    alone = [q for q in report.failures if q.group == "head" and q.name == "output"]
    assert alone[0].fit.slope == pytest.approx(1.0, abs=0.2)  # Adam; the features it reads are flat


def test_a_missing_depth_factor_of_the_update_is_named():
    """The network is right, the optimizer lacks r^-gamma: block_only (TP6 Fig. 10)."""
    report = check("depth", make_optimizer=lambda info: dm.adamw(3e-3, info, RULE.replace(gamma=0.0)))
    assert list(causes(report)) == ["missing_depth_update_factor"]
    assert causes(report)["missing_depth_update_factor"] == ("blocks/dense/kernel",)
    alone = [q for q in report.failures if q.group == "branches" and q.name == "features"]
    assert alone[0].fit.slope == pytest.approx(0.5, abs=0.2)


def test_a_plain_optimizer_lacks_the_width_factor_of_the_update():
    report = check("width", make_optimizer=lambda info: optax.adam(3e-3))
    assert "blocks/dense/kernel" in causes(report)["missing_width_update_factor"]
    assert "depthmup(direction, info, rule" in str(report)


def test_initial_values_that_count_depth_twice_are_named():
    report = check("depth", depth_init=True)
    assert causes(report)["double_counted_init"] == ("blocks/dense/kernel",)
    assert any(q.kind == "activation" and q.verdict == "vanishes" for q in report.failures)


def test_initial_values_of_one_standard_deviation_at_every_width_are_named():
    report = check("width", fixed_std=True)
    assert causes(report)["fixed_std_init"] == ("blocks/dense/kernel",)
    assert "rescale_init" in str(report)


@pytest.mark.parametrize("usual_scale", [False, True])
def test_attention_scaled_by_the_square_root_of_the_head_dimension_is_named(usual_scale):
    def build(width, depth):
        model = AttentionNet(width, usual_scale)
        info = infer(model, AttentionNet(BASE_WIDTH, usual_scale), 1.0, in_branch="attention", x=SEQUENCES)
        return linen_network(model, SEQUENCES, info=info, optimizer=dm.adamw(3e-3, info, RULE))

    report = coord_check(build, Y, rule=RULE, width=32, depth=1, widths=WIDTHS, steps=2, seeds=3)
    (scale,) = [q for q in report.quantities if q.kind == "attention scale"]
    assert scale.fit.slope == pytest.approx(0.5 if usual_scale else 0.0, abs=0.1)
    if usual_scale:
        assert causes(report)["attention_scale"] == ("attention",)
    else:
        assert report.ok, str(report)


@pytest.mark.parametrize(
    ("preset", "axis", "ok", "cause"),
    [
        ("mup", "depth", False, "rule_not_stable_in_depth"),
        ("block_only", "depth", False, "rule_not_stable_in_depth"),
        ("ode", "depth", True, None),
        ("ntk", "width", False, "lazy_rule"),
        ("sp", "width", False, "rule_without_width"),
    ],
)
def test_presets_pass_and_fail_as_theory_says(preset, axis, ok, cause):
    """TP6 Claims 7.1 and 7.2 over depth, Table 2 over width; B24 C.1 for ntk."""
    config = small_config(preset)
    sizes = {"widths": [64, 128, 256], "depths": []} if axis == "width" else {"widths": [], "depths": [16, 32, 64]}
    report = check_config(config, **sizes, width=64, seeds=3, steps=2, batch_size=4)
    assert report.ok == ok, str(report)
    assert cause in ([None] if ok else causes(report))
    if preset in ("block_only", "ntk"):  # theory's number
        name = ("branches", "features")
        (moved,) = [q for q in report.quantities if (q.group, q.name) == name]
        assert moved.fit.slope == pytest.approx(moved.theory, abs=0.2)
        assert moved.theory == (0.5 if preset == "block_only" else -0.5)


def small_config(preset="depth_mup"):
    config = default_config("res_mlp")
    config.model.update(width=16, depth=4, base_width=16, base_depth=4, pre_nonlin=True)
    config.parametrization.update(preset=preset, branch_multiplier=0.5)
    config.optimizer.learning_rate = 3e-3
    return config


def test_a_check_needs_no_more_examples_or_steps_than_its_own():
    config = small_config()
    config.data.update(name="synthetic", train_examples=4, image_size=2)
    config.optimizer.warmup_steps = 1000
    config.train.update(batch_size=64, steps=10)
    report = check_config(config, widths=[8, 16, 32], depths=[], seeds=2, steps=1, batch_size=4)
    assert {r.size for r in report.records} == {8, 16, 32}


class NnxNet(nnx.Module):
    def __init__(self, width, depth, rngs):
        self.m, self.r = width / BASE_WIDTH, depth / BASE_DEPTH
        self.stem = nnx.Linear(12, width, rngs=rngs)
        self.blocks = nnx.List([nnx.Linear(width, width, rngs=rngs) for _ in range(depth)])
        self.head = nnx.Linear(width, 10, rngs=rngs)

    def __call__(self, x):
        h = self.stem(x)
        for block in self.blocks:
            h = h + RULE.residual_multiplier(self.r) * block(nnx.relu(h))
        return self.head(h * RULE.readout_multiplier(self.m))


def test_an_nnx_network_is_checked_with_its_layers_under_one_name():
    def build(width, depth):
        shapes = [nnx.state(nnx.eval_shape(lambda w=w: NnxNet(w, depth, nnx.Rngs(0))), nnx.Param) for w in (width, 8)]
        info = dm.infer_info(*shapes, in_branch="blocks", depth_ratio=depth / BASE_DEPTH, readout="head")
        optimizer = dm.adamw(3e-3, info, RULE)
        return nnx_network(lambda rngs: NnxNet(width, depth, rngs), X, info=info, optimizer=optimizer)

    report = coord_check(build, Y, rule=RULE, width=64, depth=4, depths=(4, 8, 16), steps=2, seeds=3)
    names = {q.name for q in report.quantities if q.group == "everything"}
    assert names >= {"blocks/*", "stem", "output"}
    assert {q.group for q in report.quantities} >= {"blocks/*", "branches", "head", "stem"}
    assert not [q for q in report.quantities if q.verdict in ("grows", "explodes")], str(report)


def test_a_network_that_does_not_train_fails():
    report = check("width", make_optimizer=lambda info: dm.adamw(0.0, info, RULE))
    assert list(causes(report)) == ["nothing_trains"]


def test_updates_that_shrink_twice_with_depth_are_named():
    report = check("depth", make_optimizer=lambda info: dm.adamw(3e-3, info, RULE.replace(gamma=1.0)))
    assert causes(report)["updates_too_small_in_depth"] == ("blocks/dense/kernel",)


def test_a_frozen_readout_does_not_hide_the_network():
    """TP6 10.2 freezes stem and readout; a frozen readout at zero would give no gradient to anything."""
    config = small_config()
    config.optimizer.frozen = ("stem", "readout")
    report = check_config(config, widths=[64, 128, 256], depths=[], seeds=3, steps=2, batch_size=4)
    moved = {q.name for q in report.quantities if q.kind == "change" and q.group == "everything"}
    assert {"blocks", "output"} <= moved
    assert report.ok, str(report)


def test_measured_changes_are_those_of_a_step_by_hand():
    def build(width, depth):
        model = Net(width, depth)
        info = infer(model, Net(BASE_WIDTH, 4), 1.0, in_branch="blocks", stacked="blocks")
        return linen_network(model, X, info=info, optimizer=dm.adamw(3e-3, info, RULE))

    report = coord_check(build, Y, rule=RULE, width=16, depth=4, widths=(16, 17, 18), steps=1, seeds=2)
    model, optimizer = Net(16, 4), build(16, 4).optimizer
    params = model.init(jax.random.key(1), X)["params"]
    params = {**params, "head": {**params["head"], "kernel": 0 * params["head"]["kernel"]}}
    loss = lambda p: optax.softmax_cross_entropy_with_integer_labels(model.apply({"params": p}, X), Y).mean()
    updates, _ = optimizer.update(jax.grad(loss)(params), optimizer.init(params), params)
    moved = model.apply({"params": optax.apply_updates(params, updates)}, X) - model.apply({"params": params}, X)
    (record,) = [
        r
        for r in report.records
        if (r.size, r.seed, r.group, r.quantity, r.name, r.step) == (16, 1, "everything", "change", "output", 1)
    ]
    assert record.value == pytest.approx(float(jnp.sqrt(jnp.mean(moved**2))), rel=1e-4)
    update = [r for r in report.records if (r.size, r.seed, r.quantity, r.name) == (16, 1, "update", "head/kernel")]
    expected = float(jnp.sqrt(jnp.mean(updates["head"]["kernel"] ** 2)))
    assert [r.value for r in update if r.group == "everything"] == pytest.approx([expected], rel=1e-4)
    assert "update_norm" not in {r.quantity for r in report.records}  # only on request


@pytest.mark.parametrize("readout_init", [nn.initializers.zeros, nn.initializers.lecun_normal()])
def test_a_readout_that_starts_at_zero_or_shrinks_with_width_is_no_failure(readout_init):
    class Plain(nn.Module):
        width: int

        @nn.compact
        def __call__(self, x):
            h = nn.Dense(self.width, name="stem")(x)
            h = nn.Dense(self.width, name="hidden")(nn.relu(h)) * RULE.readout_multiplier(self.width / BASE_WIDTH)
            return nn.Dense(10, kernel_init=readout_init, name="head")(h)

    def build(width, depth):
        info = infer(Plain(width), Plain(BASE_WIDTH), 1.0)
        return linen_network(Plain(width), X, info=info, optimizer=dm.adamw(3e-3, info, RULE))

    report = coord_check(build, Y, rule=RULE, width=64, depth=1, widths=(128, 256, 512), steps=2, seeds=4)
    assert report.ok, str(report)
    moved = {q.group for q in report.quantities if q.kind == "change" and q.name == "output"}
    assert moved >= {"everything", "stem", "hidden", "head"}  # none is hidden behind the zeros


def test_spectral_norms_of_updates_are_recorded_on_request():
    def build(width, depth):
        model = Net(width, depth)
        info = infer(model, Net(BASE_WIDTH, depth), 1.0, in_branch="blocks", stacked="blocks")
        return linen_network(model, X, info=info, optimizer=dm.adamw(3e-3, info, RULE))

    sizes = {"width": 16, "depth": 4, "widths": (16, 32, 64)}
    report = coord_check(build, Y, rule=RULE, spectral=True, steps=1, seeds=2, **sizes)
    norms = [r for r in report.records if r.quantity == "update_norm" and r.group == "blocks/dense"]
    assert {r.name for r in norms} == {"blocks/dense/kernel"}
    # An update of rank one and size 1/m keeps its norm: of order one at every width (TP6 Def. 6.1).
    fit = fit_power({size: [r.value for r in norms if r.size == size] for size in (16, 32, 64)})
    assert abs(fit.slope) < 0.25


@pytest.mark.parametrize("slope", [-0.5, 0.0, 0.37, 2.0])
def test_a_power_is_found_inside_its_interval(slope):
    rng = np.random.default_rng(0)
    inside = 0
    for _ in range(200):
        fit = fit_power({size: list(3 * size**slope * np.exp(0.1 * rng.normal(size=4))) for size in (32, 64, 128)})
        inside += abs(fit.slope - slope) < fit.interval
    assert 180 <= inside <= 198  # 95 % of 200, give or take 2.5 standard deviations


def test_zero_overflow_and_noise_have_their_own_verdicts():
    sizes = (1, 2, 4)
    verdict = lambda values: verdict_of(fit_power(dict(zip(sizes, values, strict=True))), 0.2)
    assert verdict([[0.0, 0.0]] * 3) == "zero"
    assert verdict([[1.0, 1.0], [2.0, 2.0], [0.0, 0.0]]) == "below precision"
    assert verdict([[1.0, 1.0], [2.0, 2.0], [math.inf, 8.0]]) == "explodes"
    assert verdict([[1.0, 1.0], [1e9, 1e9], [1e18, 1e18]]) == "explodes"
    assert verdict([[1.0, 9.0], [9.0, 1.0], [1.0, 9.0]]) == "unclear"
    assert verdict([[1.0, 1.01], [1.0, 1.02], [1.01, 1.0]]) == "flat"
    assert verdict([[1.0, 1.01], [1.41, 1.42], [2.0, 2.01]]) == "grows"
    assert verdict([[2.0, 2.01], [1.41, 1.42], [1.0, 1.01]]) == "vanishes"


def test_only_indices_that_count_layers_become_a_star():
    names = [
        [f"Block_{i}/Dense_{j}" for i in range(depth) for j in range(2)] + ["head", f"block_{depth - 1}_norm", "in_1"]
        for depth in (2, 4, 8)
    ]
    collapse = collapsers(names, [{}, {}, {}])[2]
    assert collapse("Block_7/Dense_1") == "Block_*/Dense_1"
    assert collapse("block_3_norm") == "block_*_norm"
    assert collapse("in_1") == "in_1"
    # Nothing is counted at one depth.
    assert collapsers([names[0]] * 3, [{}, {}, {}])[0]("Block_1/Dense_1") == "Block_1/Dense_1"


def test_stem_blocks_and_readout_that_share_a_name_stay_apart():
    leaf = lambda role, in_branch=False: dm.ParamInfo(dm.Role(role), (1,), in_branch=in_branch)
    infos = [
        {"Dense_0/kernel": leaf("input")}
        | {f"Dense_{i}/kernel": leaf("hidden", True) for i in range(1, depth + 1)}
        | {f"Dense_{depth + 1}/kernel": leaf("output")}
        for depth in (4, 8, 16)
    ]
    four, eight, _ = collapsers([list(info) for info in infos], infos)
    assert [four(f"Dense_{i}") for i in (0, 1, 4, 5)] == ["Dense_0", "Dense_*", "Dense_*", "Dense_* (output)"]
    assert eight("Dense_5/kernel") == "Dense_*/kernel"


def replaced(network, **fields):
    """Other fields in the info of what is in branches."""
    change = lambda leaf: dataclasses.replace(leaf, **fields) if leaf.in_branch else leaf
    return dataclasses.replace(network, info=jax.tree.map(change, network.info, is_leaf=is_info))


def chain_with(width, depth, inside):
    """A right network of which info knows only some layers, ``inside(i)``, as branches."""

    def init(key):
        keys = jax.random.split(key, depth + 2)
        layer = lambda k: {"w": jax.random.normal(k, (width, width)) * width**-0.5, "b": jnp.zeros(width)}
        stem = jax.random.normal(keys[-1], (12, width)) * 12**-0.5
        return {"head": jnp.zeros((width, 10)), "layers": [layer(k) for k in keys[:depth]], "stem": stem}

    def apply(params):
        h = X @ params["stem"]
        for layer in params["layers"]:
            h = h + RULE.residual_multiplier(depth / BASE_DEPTH) * (jnp.tanh(h) @ layer["w"] + layer["b"])
        return h @ params["head"] * RULE.readout_multiplier(width / BASE_WIDTH), {"stream": h}

    m, r = width / BASE_WIDTH, depth / BASE_DEPTH
    leaf = lambda role, *shape, **fields: dm.ParamInfo(dm.Role(role), shape, model_width=m, width_out=m, **fields)
    branch = lambda i: {"in_branch": True, "depth_ratio": r} if inside(i) else {}
    layers = [
        {"w": leaf("hidden", width, width, width_in=m, **branch(i)), "b": leaf("vector", width, **branch(i))}
        for i in range(depth)
    ]
    head = dm.ParamInfo(dm.Role.OUTPUT, (width, 10), width_in=m, model_width=m)
    info = {"head": head, "layers": layers, "stem": leaf("input", 12, width)}
    return Network(init, apply, info, dm.adamw(1e-3, info, RULE))


def test_branches_that_info_does_not_know_are_named():
    build = lambda width, depth: chain_with(width, depth, lambda i: i % 2 == 0)
    report = coord_check(build, Y, rule=RULE, width=64, depth=4, depths=(4, 8, 16), steps=2, seeds=3)
    assert causes(report) == {"in_branch_incomplete": ("layers/* (hidden)", "vectors outside")}, str(report)


class EmbedNet(nn.Module):
    """Flax's embeddings start smaller, the wider they are."""

    width: int

    @nn.compact
    def __call__(self, x):
        h = nn.Embed(12, self.width, name="tokens")(x)
        h = h + RULE.branch_multiplier * nn.Dense(self.width, name="block")(nn.relu(nn.LayerNorm(name="norm")(h)))
        return nn.Dense(12, name="head")(h * RULE.readout_multiplier(self.width / BASE_WIDTH))


@pytest.mark.parametrize("rescaled", [False, True])
def test_an_embedding_that_starts_smaller_with_width_is_named_and_rescaling_repairs_it(rescaled):
    x = jnp.arange(12).reshape(2, 6)

    def build(width, depth):
        model, base = EmbedNet(width), EmbedNet(BASE_WIDTH)
        info = infer(model, base, 1.0, in_branch=("block", "norm"), x=x)
        network = linen_network(model, x, info=info, optimizer=dm.adamw(1e-3, info, RULE))
        return network.rescaled(lambda key: base.init(key, x)["params"], RULE) if rescaled else network

    report = coord_check(build, x, rule=RULE, width=64, depth=1, widths=WIDTHS, steps=2, seeds=3)
    if rescaled:
        assert report.ok, str(report)
    else:
        assert causes(report) == {"input_init_falls_with_width": ("tokens/embedding",)}, str(report)


def test_a_rescaled_network_starts_from_what_rescale_init_gives():
    model, base = EmbedNet(16), EmbedNet(BASE_WIDTH)
    x = jnp.arange(12).reshape(2, 6)
    info = infer(model, base, 1.0, in_branch=("block", "norm"), x=x)
    network = linen_network(model, x, info=info, optimizer=dm.adamw(1e-3, info, RULE))
    params, base_params = (m.init(jax.random.key(0), x)["params"] for m in (model, base))
    expected = dm.rescale_init(params, base_params, info, RULE)
    got = jax.jit(network.rescaled(lambda key: base.init(key, x)["params"], RULE).init)(jax.random.key(0))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), got, expected)
    assert not np.allclose(got["tokens"]["embedding"], params["tokens"]["embedding"])


def test_changes_below_float_precision_are_called_that():
    report = check("width", make_optimizer=lambda info: size_dependent(info, lambda m: 1.0 if m < 10 else 1e-9))
    assert "below precision" in str(report)
    assert "nan" not in str(report)
    assert list(causes(report)) == ["below_precision"]


def size_dependent(info, factor):
    (m,) = {leaf.model_width for leaf in flatten_info(info).values()}
    return dm.adamw(3e-3 * factor(m), info, RULE)


def build_right(width, depth):
    model = Net(width, depth)
    info = infer(model, Net(BASE_WIDTH, depth), depth / BASE_DEPTH, in_branch="blocks", stacked="blocks")
    return linen_network(model, X, info=info, optimizer=dm.adamw(1e-3, info, RULE))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": jnp.array([0, 1, 2, 10])}, "labels run from 0 to 10, but the network has 10 outputs"),
        ({"labels": jnp.arange(5)}, "labels have shape (5,) and type int32, but the outputs have shape (4, 10)"),
        ({"labels": None}, "labels and loss are both missing"),
        ({"loss": jnp.mean}, "labels and loss are both given"),
        (
            {"build": lambda w, d: dataclasses.replace(build_right(w, d), info=build_right(w + 1, d).info)},
            "make it from the same model, of the same width and depth",
        ),
        ({"widths": (8, 16)}, "widths is (8, 16): an exponent needs at least three different positive sizes"),
        ({"depths": (8, 8, 8)}, "depths is (8, 8, 8)"),
        ({"widths": ()}, "widths and depths are both empty"),
        ({"seeds": 1}, "seeds is 1: an interval needs at least 2"),
        ({"steps": 0}, "steps is 0"),
        ({"depth": -3}, "depth is -3: use a positive number"),
        (
            {"tolerance": -1.0},
            "tolerance is -1.0: use a number above 0 and below 0.5, since mistakes have exponents of",
        ),
        ({"tolerance": math.nan}, "tolerance is nan"),
        (
            {"build": lambda w, d: build_right(16, d)},
            "build makes a network of 1594 parameters at width 64 and of 1594 at width 128: let the model have the wid",
        ),
        (
            {"build": lambda w, d: build_right(w, 4), "depths": (4, 8, 16)},
            "of 1594 parameters at depth 4 and of 1594 at depth 8: let the model have the depth that build is called",
        ),
        (
            {"build": lambda w, d: replaced(build_right(w, d), depth_ratio=BASE_DEPTH / d), "depths": (8, 16, 32)},
            "depth_ratio falls from 0.5 at depth 8 to 0.25 at depth 16: it is depth / base_depth, not the inverse",
        ),
        (
            {"build": lambda w, d: chain_with(w, d, lambda i: i == 0), "depths": (4, 8, 16)},
            "parameters inside residual branches at depth 4 and 272 at depth 8, though the network grows: let",
        ),
        (
            {"build": lambda w, d: Network(lambda k: {"w": jnp.ones(3)}, lambda p: p["w"], {}, optax.sgd(1.0))},
            "Network.apply must return (outputs, dictionary of activations)",
        ),
    ],
)
def test_bad_input_is_refused_before_anything_trains(changes, message):
    plan = {"build": build_right, "labels": Y, "rule": RULE, "width": 16, "depth": 4, "widths": WIDTHS}
    with pytest.raises(dm.InputError) as error:
        coord_check(**{**plan, **changes})
    assert message in str(error.value)


def command(*arguments):
    return run_command("-m", "depthmup_flax.coord_check", *arguments)


@pytest.mark.parametrize(("preset", "code"), [("depth_mup", 0), ("sp", 1)])
def test_the_command_exits_with_the_verdict_and_writes_records_report_and_figure(preset, code, tmp_path):
    done = command(
        "--config=configs/digits.py",
        "--config.model.base_width=16",
        f"--config.parametrization.preset={preset}",
        f"--workdir={tmp_path}",
        "--widths=128,256,512",
        "--depths=",
        "--steps=2",
        "--seeds=3",
        "--batch_size=4",
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert f"width 128, 256, 512: {'PASS' if code == 0 else 'FAIL'}" in done.stdout
    assert (tmp_path / "report.txt").read_text().strip() in done.stdout
    records = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    assert {r["quantity"] for r in records} == {"weight", "activation", "mean", "change", "update"}
    assert {r["seed"] for r in records} == {0, 1, 2}
    assert (tmp_path / "coord_check.png").read_bytes()[1:4] == b"PNG"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "--config is not set"),
        (("--config=configs/digits.py", "--widths=64,wide"), "--widths=64,wide: write whole numbers with commas"),
        (("--config=configs/digits.py", "--config.model.dpth=3"), "config has no field"),
        (("--config=configs/digits.py", "--batch_size=0"), "batch_size is 0: use between 1 and the 1500"),
        (
            ("--config=configs/digits.py", "--config.model.depth=24"),
            "--config.model.depth=24 is not used by the check: choose the sizes with --depths=A,B,C and --depth=N",
        ),
        (("--config=configs/digits.py", "--config.model.base_depth=-1"), "model.base_depth is -1: use a positive"),
        (("--config=configs/digits.py", "--depth=-3", "--widths="), "depth is -3: use a positive number"),
    ],
)
def test_a_wrong_command_is_one_sentence_and_exit_code_2(arguments, message):
    done = command(*arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert "Traceback" not in done.stderr
