"""From a compiled step to its figures: memory by kind, operations, what would make it fit."""

import dataclasses
import re

import jax
import pytest
from small_runs import a_sweep

from depthmup_flax.config import default_config
from depthmup_flax.data import LoadOnce
from depthmup_flax.devices import sharding
from depthmup_flax.plan import compiled_step
from depthmup_flax.plan.compiled_step import compile_run, compile_sweep
from depthmup_flax.plan.summary import make_plan, memory_of
from depthmup_flax.search.sweep.lane_choice import OutOfMemory, unless_out_of_memory
from depthmup_flax.trainer.engine.device_batches import put_train_data
from depthmup_flax.trainer.engine.from_config import build
from depthmup_flax.trainer.engine.program import ShardedProgram

GIB = 2**30


@pytest.fixture(scope="module")
def config():
    run = default_config()
    run.model.update(width=16, depth=2)
    run.data.update(name="synthetic", train_examples=64, test_examples=16)
    run.train.update(batch_size=8, steps=40)
    return run


@pytest.fixture(scope="module")
def step(config):
    return compile_run(config, jax.devices()[:1], LoadOnce())


def test_the_planned_program_is_the_one_that_training_compiles(config, step):
    experiment, mesh = build(config), sharding.make_mesh(config.mesh)
    program = ShardedProgram(experiment, mesh, put_train_data(experiment.dataset, mesh))
    instructions = lambda compiled: re.findall(r"^ +(?:ROOT )?%.*? = .*?\(", compiled.as_text(), re.MULTILINE)
    assert instructions(program.traced().lower().compile()) == instructions(step.compiled) != []


def test_memory_is_the_compilers_and_its_kinds_are_those_of_the_state(step):
    memory, parameters = make_plan(step).memory, 4 * step.experiment.parameters
    sizes = step.compiled.memory_analysis()
    assert memory.parameters == parameters
    assert memory.optimizer == pytest.approx(2 * parameters, abs=8)  # Adam's moments, and its count
    assert memory.data >= 64 * 8 * 8 * 3 + 64 * 4
    whole = (
        sizes.argument_size_in_bytes + sizes.temp_size_in_bytes + sizes.output_size_in_bytes - sizes.alias_size_in_bytes
    )
    assert memory.total == whole
    assert memory.fits is None  # of a CPU no limit is known


def test_a_plan_counts_products_and_steps(step):
    plan = make_plan(step)
    weights = {"stem": 3 * 8 * 8 * 16, "blocks": 2 * 16 * 16, "readout": 16 * 10}
    assert plan.gflops == 8 * (4 * weights["stem"] + 6 * (weights["blocks"] + weights["readout"])) / 1e9
    assert plan.steps == 40
    assert plan.by_compiler["flops"] > 0
    assert f"{1e9 * plan.gflops * 40:.3g} FLOP in 40 steps" in str(plan)
    assert plan.as_json()["memory"]["total"] == plan.memory.total


REFUSALS = {
    "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries (74.31G) exceeds "
    "available HBM (15.75G).": OutOfMemory(int(15.75 * GIB), without_data=int(74.31 * GIB)),
    "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 17.20G of 15.75G hbm. Exceeded hbm capacity by "
    "1.45G.": OutOfMemory(int(15.75 * GIB), used=int(17.2 * GIB)),
}  # fmt: skip


@pytest.mark.parametrize("message", REFUSALS)
def test_a_compiler_that_refuses_for_memory_gives_its_numbers(message, step):
    def refused():
        raise jax.errors.JaxRuntimeError(message)

    refusal = unless_out_of_memory(refused)
    assert refusal == REFUSALS[message]
    memory = memory_of(dataclasses.replace(step, compiled=refusal), None)
    needed = 17.2 if refusal.used else 74.31
    assert memory.fits is False
    assert memory.total / GIB == pytest.approx(needed, abs=0.01)
    assert memory.limit == int(15.75 * GIB)


def test_a_refusal_that_counts_the_new_state_among_temporaries_counts_it_once(step):
    state = 3 * 4 * step.experiment.parameters + 8
    refused = dataclasses.replace(step, compiled=OutOfMemory(GIB, without_data=2 * GIB))
    memory = memory_of(refused, None)
    assert memory.temporaries == pytest.approx(2 * GIB - state, abs=8)
    assert memory.total == 2 * GIB + memory.data


def test_other_errors_of_a_compiler_are_not_hidden():
    def broken():
        raise jax.errors.JaxRuntimeError("INTERNAL: a bug")

    with pytest.raises(jax.errors.JaxRuntimeError, match="a bug"):
        unless_out_of_memory(broken)


def test_the_largest_group_of_a_sweep_is_planned_with_the_lanes_that_fit():
    load = LoadOnce()
    plan = make_plan(compile_sweep(a_sweep(rates=2), jax.devices()[:1], load, None, None))
    assert (plan.lanes.runs, plan.lanes.per_device, plan.lanes.label) == (4, 4, "depth 3")
    assert plan.steps == 6
    assert "4 run(s) at a time on each, of 4 with depth 3" in str(plan)
    assert 3 * plan.memory.parameters >= plan.memory.optimizer > 4 * 2 * 4 * plan.parameters * 0.99
    fewer = make_plan(compile_sweep(a_sweep(rates=2), jax.devices()[:1], load, 1, None))
    assert (fewer.lanes.per_device, fewer.steps) == (1, 4 * 6)


def test_a_sweep_that_is_refused_has_a_plan(monkeypatch):
    monkeypatch.setattr(compiled_step, "unless_out_of_memory", lambda _: OutOfMemory(GIB, used=2 * GIB))
    plan = make_plan(compile_sweep(a_sweep(rates=2), jax.devices()[:1], LoadOnce(), 2, GIB))
    assert plan.memory.fits is False
    assert plan.memory.parameters == 2 * 4 * plan.parameters
    assert "TOO BIG   2.00 of 1.00 GiB" in str(plan)
    assert "products" not in str(plan)


@pytest.mark.parametrize(
    ("changed", "left"),
    [
        ({}, ["data.placement=stream", "remat=full", "accumulate=4"]),  # one device has nothing to split over
        ({"data.placement": "stream"}, ["remat=full", "accumulate=4"]),
        ({"data.placement": "stream", "model.remat": "full"}, ["accumulate=4"]),
        ({"data.placement": "stream", "model.remat": "full", "train.accumulate": 2}, []),
    ],
)
def test_a_program_that_does_not_fit_is_advised_what_it_has_not(config, monkeypatch, changed, left):
    monkeypatch.setattr(compiled_step, "unless_out_of_memory", lambda _: OutOfMemory(GIB, used=2 * GIB))
    run = config.copy_and_resolve_references()
    run.update_from_flattened_dict(changed)
    remedies = make_plan(compile_run(run, jax.devices()[:1], LoadOnce())).remedies
    assert len(remedies) == len(left)
    assert all(word in remedy for word, remedy in zip(left, remedies, strict=True))


def test_lanes_are_fewer_where_memory_is_short():
    step = compile_sweep(a_sweep(rates=2), jax.devices()[:1], LoadOnce(), None, 1.0)
    assert step.lanes.per_device == 1
