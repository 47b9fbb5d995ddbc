"""A network of the user's own: it trains in lanes as alone, starts with the rule's initial values, and is checked."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from depthmup_flax.config import default_config
from depthmup_flax.devices.sharding import make_mesh
from depthmup_flax.networks.user_code import UserCodeError
from depthmup_flax.rule.parametrization import PRESETS
from depthmup_flax.search.sweep.grid import sweep_config
from depthmup_flax.search.sweep.runner import sweep
from depthmup_flax.trainer.engine.device_batches import host_test_batches
from depthmup_flax.trainer.engine.from_config import build, count_parameters
from depthmup_flax.trainer.engine.losses import named_loss
from depthmup_flax.trainer.engine.network import ConfigNetwork
from depthmup_flax.trainer.engine.task import Means
from depthmup_flax.trainer.loop import train_and_evaluate
from depthmup_flax.util.errors import InputError


def config(model, loss="users_code:loss", data="load", **fields):
    run = default_config(f"user_networks:{model}")
    run.data.name, run.loss = f"python:users_code:{data}", loss
    run.model.update(width=32, depth=4, base_width=16, base_depth=2)
    run.model.update(fields)
    run.optimizer.learning_rate = 0.01
    run.train.update(steps=6, batch_size=16, log_every=2, eval_every=6, average_steps=2)
    return run


@pytest.mark.slow  # a Study of a Linen network does so against loops of optax
def test_a_network_of_another_library_trains_in_lanes_as_alone(tmp_path):
    run = config("NnxNet", loss="cross_entropy", data="load_classes")
    grid = {"optimizer.learning_rate": (0.01, 0.02), "seed": (0, 1)}
    swept = sweep_config(run, {"all": grid}, figure="own", title="Own.", scale="smoke")
    records = sweep(swept, tmp_path / "sweep", lanes=0)
    assert {record.audit for record in records} == {""}
    run.seed, run.optimizer.learning_rate = 1, 0.02
    alone = train_and_evaluate(run, tmp_path / "run")
    (same,) = (record for record in records if record.run == alone["config_hash"])
    for name in ("train_loss", "train_loss_avg", "test_loss", "test_accuracy"):
        assert getattr(same, name) == pytest.approx(alone[name], rel=1e-4)


def test_a_network_is_traced_once_and_anew_after_an_edit_of_what_it_calls(monkeypatch):
    monkeypatch.setattr("user_networks.layers", 2, raising=False)

    def net(width, depth, rngs):
        import user_networks

        return nnx.Sequential(*(nnx.Linear(8, 8, rngs=rngs) for _ in range(user_networks.layers)))

    monkeypatch.setattr("user_networks.net", net, raising=False)
    inputs, count = jax.ShapeDtypeStruct((2, 8), "float32"), lambda shapes: len(jax.tree.leaves(shapes[0]))
    of = lambda network: network.functions(PRESETS["depth_mup"])
    first = ConfigNetwork(config("net").model, 3)
    assert of(first) is of(first)
    assert count(of(first).shapes(inputs)) == 4
    monkeypatch.setattr("user_networks.layers", 3)
    assert count(of(ConfigNetwork(config("net").model, 3)).shapes(inputs)) == 6


@pytest.mark.slow
def test_a_network_too_large_for_this_machine_is_counted_by_its_shapes():
    run = config("EqxNet", loss="cross_entropy", data="load_classes")
    assert count_parameters(run) == build(run).parameters
    counts = []
    for width in (10**5, 2 * 10**5):  # 40 and 160 GB of hidden weights
        run.model.update(width=width)
        counts.append(count_parameters(run))
    assert counts[1] / counts[0] == pytest.approx(4, rel=0.01)


@pytest.mark.slow
def test_the_readout_starts_with_the_standard_deviation_of_the_base():
    def head(**fields):
        experiment = build(config("EqxNet", loss="cross_entropy", data="load_classes", **fields))
        params = jax.jit(lambda: experiment.init({}))().carry.params
        (values,) = (x for x in jax.tree.leaves(params["head"]) if x.ndim == 2)
        return float(jnp.std(values))

    assert head() / head(rescale_init=False) == pytest.approx(2**0.5, rel=1e-5)


@pytest.mark.slow
def test_a_network_without_a_multiplier_that_none_carries_is_refused_or_trains_with_a_note_in_its_result(tmp_path):
    run = config("LinenNet", loss="cross_entropy", data="load_classes", edit="bent")
    with pytest.raises(InputError, match=r"rule\.residual_multiplier"):
        build(run)
    run.model.audit = False
    result = train_and_evaluate(run, tmp_path)
    assert result["status"] == "completed"
    assert "residual_multiplier" in result["audit"]


def test_a_network_that_is_not_judged_trains_and_says_what_was_not_read():
    experiment = build(config("pair_net", data="load_thirds", edit="rounded"))
    assert "rounding to float8_e4m3fn" in experiment.audit()
    assert "not judged" in experiment.description(make_mesh())
    assert "not judged" not in build(config("pair_net", data="load_thirds")).description(make_mesh())


def test_a_loss_of_the_batch_is_averaged_over_examples_whatever_the_batch_size(tmp_path):
    run = config("pair_net", data="load_thirds")
    losses = []
    for size in (23, 7):
        run.train.eval_batch_size = size
        experiment = build(run)
        state = jax.jit(lambda experiment=experiment: experiment.init({}))()
        batches = host_test_batches(experiment.dataset, size, slice(None), masked=False)
        parts = [experiment.evaluate({})(state, batch) for batch in batches]
        losses.append(functools.reduce(Means.merge, parts).means()["loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


WRONG = {
    "users_code:with_auxiliary": UserCodeError,
    "users_code:noisy_loss": InputError,
    "users_code:failing_loss": UserCodeError,
    "users_code:no_such_loss": InputError,
    "squared_eror": InputError,
}


@pytest.mark.parametrize("loss", WRONG)
def test_a_wrong_loss_is_refused_before_anything_trains(loss):
    with pytest.raises(WRONG[loss]):
        build(config("pair_net", loss=loss, data="load_thirds"))


def test_labels_that_are_no_classes_of_the_outputs_are_refused():
    with pytest.raises(InputError, match=r"\[3\] has -1"):
        build(config("pair_net", loss="cross_entropy", data="load_with_unknown_label"))


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"parametrization.branch_multiplier": 2.0, "model.edit": "bent"}, "does not take the rule"),
        ({"parametrization.gamma0": 2.0}, "does not take the rule"),
        ({"hyper.temperature": 0.1}, "hyper.temperature"),
        ({"mesh.fsdp": 2}, "mesh.fsdp"),
        ({"model.name": "user_networks:LinenNett"}, "LinenNet"),
        ({"model.name": "user_networks:VECTORS"}, "class or a function"),
        ({"model.name": "user_networks:branch_factor"}, "'width'"),
    ],
)
def test_a_wrong_config_of_a_users_network_is_one_sentence(changes, part):
    run = config("pair_net", loss="cross_entropy", data="load_classes")
    for path, value in changes.items():
        section, _, name = path.rpartition(".")
        run[section][name] = value
    with pytest.raises(InputError) as raised:
        build(run)
    assert part in str(raised.value)


@pytest.mark.parametrize("name", ["squared_error", "users_code:vector_loss"])
def test_squared_error_and_a_loss_of_each_example_are_means_over_examples_and_outputs(name):
    outputs, targets = np.arange(6.0).reshape(2, 3), np.ones((2, 3))
    assert float(named_loss(name).in_training(outputs, targets)["loss"]) == pytest.approx(((outputs - 1) ** 2).mean())


def test_a_search_over_multipliers_makes_a_network_that_takes_the_rule_with_traced_numbers():
    experiment = build(config("RuleNet", loss="cross_entropy", data="load_classes"))
    rule = experiment.rule
    assert experiment.network.functions(rule) is not experiment.network.functions(
        rule.replace(branch_multiplier=jnp.float32(2))
    )


@pytest.mark.slow  # compiles three programs
def test_a_search_over_multipliers_trains_a_module_that_keeps_the_rules_numbers_as_alone(tmp_path):
    run, path = config("NnxRuleNet", loss="cross_entropy", data="load_classes"), "parametrization.branch_multiplier"
    swept = sweep_config(run, {"all": {path: (0.5, 2.0)}}, figure="own", title="Own.", scale="smoke", x=path)
    records = sweep(swept, tmp_path / "sweep")
    run.parametrization.branch_multiplier = 2.0
    alone = train_and_evaluate(run, tmp_path / "run")
    (same,) = (record for record in records if record.run == alone["config_hash"])
    assert same.train_loss == pytest.approx(alone["train_loss"], rel=1e-4)


def test_a_part_of_the_rules_factor_in_the_code_is_refused_as_no_parameter_carries_the_rest(monkeypatch):
    def half(width, depth, rule):
        def init(key, x):
            draw = lambda *shape: jax.random.normal(key, shape) / shape[0] ** 0.5
            return {"stem": draw(x[0].size, width), "block": draw(depth, width, width), "head": draw(width, 3)}

        def apply(params, x):
            h = x.reshape(len(x), -1) @ params["stem"]
            for block in params["block"]:
                h = h + rule.residual_multiplier(depth / 2) ** 0.5 * (jax.nn.relu(h) @ block)
            return h @ params["head"] * rule.readout_multiplier(width / 8)

        return init, apply

    monkeypatch.setattr("user_networks.half", half, raising=False)
    run = config("half", loss="cross_entropy", data="load_classes")
    run.model.update(width=16, base_width=8, depth=8, base_depth=2)
    with pytest.raises(InputError, match="a part of the rule's"):
        build(run)


@pytest.mark.parametrize("optimizer", ["adamh", "muonh"])
def test_queries_that_start_at_zero_are_refused_where_updates_keep_a_norm(optimizer, tmp_path):
    (tmp_path / "text.txt").write_text("abcdefghij" * 200)
    run = default_config("gpt")
    run.model.update(width=16, depth=2, num_heads=2)
    run.data.update(name=f"text:{tmp_path / 'text.txt'}", context=8)
    run.train.update(steps=3, batch_size=4)
    run.optimizer.name = optimizer
    with pytest.raises(InputError, match=r"query.*starts at zero"):
        build(run)
    run.model.qk_norm = True
    build(run)
