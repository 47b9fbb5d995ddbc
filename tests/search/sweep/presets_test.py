"""Presets are lanes of one program: each trains what it trains alone, from its own initial values."""

import jax
import numpy as np
import pytest
from small_runs import programs_of

from depthmup_flax import InputError, sweep_config
from depthmup_flax.auditing import config_audit
from depthmup_flax.config import default_config
from depthmup_flax.data import load
from depthmup_flax.rule.parametrization import PRESETS
from depthmup_flax.search.sweep.grid import expand, structural_groups
from depthmup_flax.search.sweep.groups import plan
from depthmup_flax.search.sweep.runner import sweep
from depthmup_flax.trainer.engine.from_config import build
from depthmup_flax.trainer.loop import train_and_evaluate

PRESET, RATE = "parametrization.preset", "optimizer.learning_rate"


def wide_base(model="res_mlp", optimizer="adam", learning_rate=4e-3, **fields):
    """A network of twice the base's width and depth, so that every exponent counts."""
    config = default_config(model)
    config.model.update(width=16, base_width=8, depth=4, base_depth=2, **fields)
    config.data.update(name="synthetic", train_examples=128, test_examples=40)
    config.optimizer.update(name=optimizer, learning_rate=learning_rate)
    config.train.update(batch_size=16, steps=6, average_steps=3, log_every=3, checkpoint=False)
    return config


def sweep_over(base, presets):
    grids = {"presets": {PRESET: tuple(presets), RATE: (base.optimizer.learning_rate,)}}
    return sweep_config(base, grids, figure="test", title="A test", scale="smoke")


def assert_is_what_each_trains_alone(base, presets, tmp_path, rtol):
    config = sweep_over(base, presets)
    runs = expand(config)
    assert len(structural_groups(runs)) == 1
    records = {record.run: record for record in sweep(config, tmp_path / "sweep", lanes=0)}
    for run in runs:
        alone = train_and_evaluate(run.config, tmp_path / run.hash)
        for name in ("train_loss", "train_loss_avg", "test_loss"):
            found = getattr(records[run.hash], name)
            np.testing.assert_allclose(found, alone[name], rtol=rtol, err_msg=f"{name} {run.point}")
    assert len({record.train_loss for record in records.values()}) == len(runs)


MODELS = {"res_mlp": {"use_bias": True, "norm": "layer"}, "simple_resnet": {"base_depth": 3}}
RATES = {"sgd": 0.05, "muon": 0.01}
# Muon, beside which Adam trains what is no hidden matrix, and a network with convolutions.
CASES = [("res_mlp", "muon"), ("simple_resnet", "sgd")]


@pytest.mark.slow
@pytest.mark.parametrize(("model", "optimizer"), CASES)
def test_every_preset_in_a_lane_is_that_of_train_py(model, optimizer, tmp_path):
    base = wide_base(model, optimizer, RATES[optimizer])
    base.model.update(MODELS[model])
    refused = {"block_only"} if optimizer == "sgd" else set()
    presets = [name for name in PRESETS if name not in {"completep", *refused}]  # "completep" has the numbers of "ode"
    assert_is_what_each_trains_alone(base, presets, tmp_path, 1e-4)


def test_a_lane_begins_with_the_initial_values_of_its_preset():
    config = sweep_over(wide_base(), ("depth_mup", "sp"))
    programs = programs_of(config)
    program, group = programs.get(2, one_seed=True), programs.group
    lanes = program.place(group.runs)
    params = program.init(lanes).carry.params
    alone = {run.hash: build(run.config).init({}).carry.params for run in group.runs}
    for run, lane in lanes.lane_of.items():
        jax.tree.map(lambda x, y, lane=lane: np.testing.assert_allclose(x[lane], y, rtol=1e-6), params, alone[run])
    # muP's readout starts at the base model's scale: 2^1/2 times as large here.
    of = {run.point[PRESET]: params["readout"]["kernel"][lanes.lane_of[run.hash]] for run in group.runs}
    np.testing.assert_allclose(of["depth_mup"], 2**0.5 * of["sp"], rtol=1e-6)


def test_a_program_has_as_arguments_only_what_its_runs_differ_in():
    def names(presets):
        programs = programs_of(sweep_over(wide_base(), presets))
        return {name.rpartition(".")[2] for name in programs.get(1, one_seed=True)._names}

    assert names(("depth_mup",)) == {"seed"}
    assert names(("depth_mup", "mup")) == {"seed", "alpha", "gamma"}


def test_the_step_of_a_single_run_has_no_exponents_to_compute():
    """Its factors are numbers of the host, as before presets were lanes."""
    for preset in PRESETS:
        config = wide_base()
        config.parametrization.preset = preset
        experiment = build(config)
        arguments = experiment.step_shapes()
        # Adam's bias correction alone has powers.
        powers = str(jax.make_jaxpr(experiment.step({}))(*arguments)).count(" pow ")
        assert powers == 2, preset


ALPHA = "parametrization.alpha"


@pytest.fixture
def audits(monkeypatch):
    """What the audits of this test were given."""
    given, audit = [], config_audit.audit

    def counted(*args, **kwargs):
        given.append(args)
        return audit(*args, **kwargs)

    monkeypatch.setattr(config_audit, "audit", counted)
    return given


@pytest.mark.parametrize("name", ["PlainNet", "RuleNet"])  # whose parameters carry the factors; with a rule in its code
def test_presets_and_exponents_of_a_users_network_are_lanes_of_one_program_after_one_audit(
    name, audits, tmp_path, caplog
):
    base = default_config(f"user_networks:{name}")
    base.model.update(width=32, base_width=16, depth=8, base_depth=2)
    base.data.name, base.loss = "python:users_code:load_classes", "cross_entropy"
    base.optimizer.learning_rate = 0.01
    base.train.update(steps=6, average_steps=3, log_every=3, batch_size=16, checkpoint=False)
    grids = {
        "presets": {PRESET: ("sp", "mup", "depth_mup", "completep"), RATE: (0.01,)},
        "between": {PRESET: ("depth_mup",), ALPHA: (0.75,), RATE: (0.01,)},
    }
    config = sweep_config(base, grids, figure="test", title="A test", scale="smoke")
    with jax.log_compiles(), caplog.at_level("WARNING"):
        records = {record.run: record for record in sweep(config, tmp_path / "sweep", lanes=0)}
    programs = [text for text in caplog.messages if text.startswith("Compiling") and "_take_steps" in text]
    assert len(programs) == 1
    assert len(audits) == 1
    runs = expand(config)
    assert len(runs) == 5
    for run in runs:
        alone = train_and_evaluate(run.config, tmp_path / run.hash)
        for loss in ("train_loss", "train_loss_avg", "test_loss"):
            found = getattr(records[run.hash], loss)
            np.testing.assert_allclose(found, alone[loss], rtol=1e-5, err_msg=f"{loss} {run.point}")
    assert len({record.train_loss for record in records.values()}) == len(runs)


def test_presets_of_a_module_that_keeps_numbers_of_the_rule_are_groups():
    base = default_config("user_networks:NnxRuleNet")
    base.data.name = "python:users_code:load"
    base.optimizer.learning_rate = 0.01
    assert len(structural_groups(expand(sweep_over(base, ("depth_mup", "mup"))))) == 2


def test_the_exponent_that_stands_in_the_code_refuses_the_runs_of_a_sweep_with_another():
    base = default_config("user_networks:pair_net")  # its branches have r^-1/2
    base.model.update(width=32, base_width=16, depth=8, base_depth=2)
    base.data.name, base.loss = "python:users_code:load_classes", "cross_entropy"
    base.train.batch_size = 16
    config = sweep_over(base, ("depth_mup", "completep"))
    with pytest.raises(InputError, match=r"parametrization\.alpha is 1"):
        plan(config, expand(config), load)
