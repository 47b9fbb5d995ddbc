"""The coordinate check of Linen and NNX networks and of configs: what it records, and what passes."""

import dataclasses
import math
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
import pytest
from chains import BASE_DEPTH, BASE_WIDTH, DEPTHS, RULE, WIDTHS, Chain, X, Y, causes
from flax import nnx

import depthmup_flax as dm
from depthmup_flax.check import Network, checked_network, coord_check
from depthmup_flax.config import default_config
from depthmup_flax.search.coordinate_check import check_config


class Block(nn.Module):
    """Pre-norm, one layer in the branch."""

    width: int
    multiplier: float

    @nn.compact
    def __call__(self, h, _):
        y = nn.LayerNorm(name="norm")(h)
        return h + self.multiplier * nn.Dense(self.width, name="dense")(nn.relu(y)), None


class Net(nn.Module):
    """A foreign residual network under nn.scan."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        h = nn.Dense(self.width, name="stem")(x)
        axes = {"params": 0, "intermediates": 0}
        blocks = nn.scan(Block, variable_axes=axes, split_rngs={"params": True}, length=self.depth)
        h, _ = blocks(self.width, RULE.residual_multiplier(self.depth / BASE_DEPTH), name="blocks")(h, None)
        h = h * RULE.readout_multiplier(self.width / BASE_WIDTH)
        return nn.Dense(10, kernel_init=nn.initializers.normal(BASE_WIDTH**-0.5), name="head")(h)


def build_linen(width, depth):
    info = dm.audit(Net(width, depth), Net(BASE_WIDTH, BASE_DEPTH), X).info
    return checked_network(Net(width, depth), X, info=info, optimizer=dm.adamw(3e-3, info, RULE))


def test_a_right_linen_network_passes():
    report = coord_check(build_linen, Y, rule=RULE, width=64, depth=4, depths=DEPTHS)
    assert report.ok, str(report)
    assert not report.causes
    assert ": PASS, " in str(report)


@pytest.mark.slow
def test_a_network_on_both_axes_is_measured_once():
    said = []
    sizes = {"width": 16, "widths": (16, 32), "depth": 5, "depths": (5, 6)}
    records = coord_check(build_linen, Y, rule=RULE, steps=1, seeds=2, say=said.append, **sizes).records
    assert any(line.startswith("3 networks") for line in said)
    assert [re.split(r":| \(", line)[0] for line in said if line.startswith("network ")] == [
        "network 1 of 3, width 16, depth 5",
        "network 2 of 3, width 32, depth 5",
        "network 3 of 3, width 16, depth 6",
    ]
    over_width, over_depth, wider = (
        {(r.seed, r.step, r.quantity, r.name): r.value for r in records if (r.axis, r.size) == (axis, size)}
        for axis, size in (("width", 16), ("depth", 5), ("width", 32))
    )
    assert over_width.keys() == wider.keys()
    assert over_width == over_depth


def test_measured_sizes_are_those_of_a_step_by_hand():
    """At twice the base's depth, where gradients and updates of branches have r^-1/2; activations are measured, too."""
    unread = lambda width, depth: dataclasses.replace(build_linen(width, depth), source=None)
    sizes, depth = (BASE_WIDTH, 2 * BASE_WIDTH), 2 * BASE_DEPTH
    report = coord_check(unread, Y, rule=RULE, width=BASE_WIDTH, depth=depth, widths=sizes, steps=1, seeds=2)
    model, optimizer = Net(BASE_WIDTH, depth), build_linen(BASE_WIDTH, depth).optimizer
    loss = lambda p: optax.softmax_cross_entropy_with_integer_labels(model.apply({"params": p}, X), Y).mean()

    @jax.jit
    def step(key):
        params = model.init(key, X)["params"]
        kernel = params["head"]["kernel"]
        kernel = kernel * BASE_WIDTH**-0.5 / jnp.sqrt(jnp.mean(kernel**2))
        params = {**params, "head": {**params["head"], "kernel": kernel}}
        grads = jax.grad(loss)(params)
        updates, _ = optimizer.update(grads, optimizer.init(params), params)
        after = optax.apply_updates(params, updates)
        moved = model.apply({"params": after}, X) - model.apply({"params": params}, X)
        dense = lambda tree: tree["blocks"]["dense"]["kernel"]
        return {"update": dense(updates), "gradient": dense(grads), "start": dense(params), "change": moved}

    records = {(r.quantity, r.name): r.value for r in report.records if (r.size, r.seed) == (BASE_WIDTH, 1)}
    for quantity, values in step(jax.random.key(1)).items():
        name = "output" if quantity == "change" else "blocks/dense/kernel"
        power = 2**-0.5 if quantity in ("gradient", "update") else 1.0
        expected = float(jnp.sqrt(jnp.mean(values**2))) / power
        assert records[quantity, name] == pytest.approx(expected, rel=1e-3), quantity


def test_a_check_compiles_one_program_for_each_network_and_few_others():
    compiled = []
    listen = lambda event, duration, **_: compiled.append(event)
    jax.clear_caches()
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        coord_check(build_linen, Y, rule=RULE, width=16, depth=8, widths=(16, 32), steps=1, seeds=2)
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert 2 <= compiled.count("/jax/core/compile/backend_compile_duration") <= 6


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


@pytest.mark.slow
def test_an_nnx_network_is_checked_with_its_layers_under_one_name():
    def build(width, depth):
        model, base = (nnx.eval_shape(lambda n=n: NnxNet(*n, nnx.Rngs(0))) for n in ((width, depth), (BASE_WIDTH, 1)))
        found = dm.audit(model, base, X, depth_ratio=depth / BASE_DEPTH, carry=False)
        info = found.accept(*(finding.name for finding in found.findings)).info
        optimizer = dm.adamw(3e-3, info, RULE)
        return checked_network(lambda rngs: NnxNet(width, depth, rngs), X, info=info, optimizer=optimizer)

    unread = lambda width, depth: dataclasses.replace(build(width, depth), source=None)
    report = coord_check(unread, Y, rule=RULE, width=64, depth=2, depths=(2, 8))
    assert {q.name for q in report.quantities if q.kind == "activation"} == {"blocks/*", "stem", "output"}
    assert {q.name for q in report.quantities if q.kind == "gradient"} >= {"blocks/*/kernel", "stem/kernel"}
    assert not [q for q in report.quantities if q.verdict in ("grows", "explodes")], str(report)


def small_config(preset="depth_mup"):
    config = default_config("res_mlp")
    config.model.update(width=16, depth=4, base_width=16, base_depth=4, pre_nonlin=True)
    config.parametrization.update(preset=preset, branch_multiplier=0.5)
    config.optimizer.learning_rate = 3e-3
    return config


@pytest.mark.parametrize(
    ("preset", "axis", "ok", "cause"),
    [
        ("mup", "depth", False, "rule_not_stable_in_depth"),
        ("block_only", "depth", False, "rule_not_stable_in_depth"),
        ("ode", "depth", True, None),
        ("ntk", "width", False, "lazy_rule"),
        # command_test has sp.
    ],
)
def test_presets_pass_and_fail_as_theory_says(preset, axis, ok, cause):
    """TP6 Claims 7.1 and 7.2 over depth, Table 2 over width; B24 C.1 for ntk."""
    sizes = {"widths": WIDTHS, "depths": []} if axis == "width" else {"widths": [], "depths": DEPTHS}
    report = check_config(small_config(preset), **sizes, width=64, seeds=4, steps=2, batch_size=4)
    assert report.ok == ok, str(report)
    assert cause in ([None] if ok else causes(report))
    if preset == "ntk":  # features stop moving, as theory says
        (moved,) = [q for q in report.quantities if (q.kind, q.name) == ("change", "blocks")]
        assert moved.fit.slope == pytest.approx(-0.5, abs=0.15)


def test_inner_layers_at_the_full_rate_are_unstable_in_depth():
    """TP6 section 9.3: L branches of r^-1/2, each moved by its first matrix by O(1), in one direction."""
    rule = dm.get_parametrization("depth_mup", inner_gamma=0.0, branch_multiplier=0.5)

    def moved(depth, layer):
        """The change of the outputs by the first step of one layer of every block."""
        sizes = {"width": 64, "depth": depth, "base_width": 16, "base_depth": 4, "block_depth": 2}
        model = dm.ResMLP(10, **sizes, pre_nonlin=True, rule=rule)
        info = dm.audit(model, model.base(), X, in_code=(rule,)).info
        optimizer = dm.adamw(3e-3, info, rule)

        @jax.jit
        def change(key):
            params = nn.unbox(model.init(key, X)["params"])
            params["readout"]["kernel"] = jax.random.normal(key, (64, 10)) / 4
            apply = lambda params: model.apply({"params": params}, X)
            loss = lambda params: optax.softmax_cross_entropy_with_integer_labels(apply(params), Y).mean()
            updates, _ = optimizer.update(jax.grad(loss)(params), optimizer.init(params), params)
            kernel = lambda tree: tree["blocks"]["branch"][layer]
            alone = jax.tree.map(jnp.zeros_like, updates)
            alone["blocks"]["branch"][layer] = kernel(updates)
            return jnp.sqrt(jnp.mean((apply(optax.apply_updates(params, alone)) - apply(params)) ** 2))

        return sum(float(change(jax.random.key(seed))) for seed in range(3))

    grows, flat = (math.log(moved(64, layer) / moved(16, layer), 4) for layer in ("dense_0", "dense_1"))
    assert grows == pytest.approx(0.5, abs=0.15)
    assert flat == pytest.approx(0.0, abs=0.15)
    config = small_config()
    config.model.block_depth = 2
    config.parametrization.inner_gamma = 0.0
    report = check_config(config, widths=[], depths=[16, 64], width=64, seeds=2, steps=1, batch_size=4)
    assert "rule_not_stable_in_depth" in causes(report), str(report)
    assert not report.ok


@pytest.mark.slow
def test_a_frozen_readout_does_not_hide_the_network():
    """TP6 10.2 freezes stem and readout; a frozen readout at zero would give no gradient to anything.

    The check needs no more examples or steps than its own.
    """
    config = small_config()
    config.data.update(name="synthetic", train_examples=4, image_size=2)
    config.optimizer.update(warmup_steps=1000, frozen=("stem", "readout"))
    config.train.update(batch_size=64, steps=10)
    report = check_config(config, widths=[64, 256], depths=[], seeds=3, steps=2, batch_size=4)
    assert {r.size for r in report.records} == {64, 256}
    moved = {q.name for q in report.quantities if q.kind == "update"}
    assert moved == {"blocks/branch/dense_0/kernel"}, moved
    assert report.ok, str(report)


def build_chain(width, depth):
    return Chain(width, depth).network()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": jnp.array([0, 1, 2, 10])}, "labels"),
        ({"labels": jnp.arange(5)}, "labels"),
        ({"labels": None}, "labels and loss"),
        ({"loss": jnp.mean}, "labels and loss"),
        ({"labels": None, "loss": lambda y: y.mean(-1)}, "loss"),
        ({"rule": "depth_mup"}, "rule"),
        ({"widths": 64}, "widths"),
        ({"widths": ("64", "128", "256")}, "widths"),
        ({"widths": (8,)}, "widths"),
        ({"depths": (8, 8, 8)}, "depths"),
        ({"seeds": 1}, "seeds"),
        ({"seeds": 2.0}, "seeds"),
        ({"steps": 0}, "steps"),
        ({"depth": -3}, "depth"),
        ({"tolerance": -1.0}, "tolerance"),
        ({"tolerance": math.nan}, "tolerance"),
        ({"build": lambda w, d: dataclasses.replace(build_chain(w, d), info=3)}, "info"),
        ({"build": lambda w, d: dataclasses.replace(build_chain(w, d), info=Chain(w + 1, d).info())}, "info"),
        ({"build": lambda w, d: build_chain(16, d)}, "argument width"),
        ({"build": lambda w, d: build_chain(w, 4), "depths": (4, 8, 16)}, "argument depth"),
        ({"build": lambda w, d: Network(lambda k: {"w": jnp.ones(3)}, lambda p: p["w"], {}, optax.sgd(1.0))}, "apply"),
    ],
)
def test_bad_input_is_refused_before_anything_trains(changes, message):
    plan = {"build": build_chain, "labels": Y, "rule": RULE, "width": 16, "depth": 4, "widths": WIDTHS}
    with pytest.raises(dm.InputError) as error:
        coord_check(**{**plan, **changes})
    assert message in str(error.value)
