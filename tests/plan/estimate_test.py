"""From a compiled step to its figures: memory by kind, seconds by the figures of a chip, what would make it fit."""

import dataclasses

import jax
import pytest
from ml_collections import ConfigDict
from small_runs import a_sweep

from depthmup_flax.config import default_config
from depthmup_flax.data.sources.blank import PlannedData, Sizes
from depthmup_flax.devices.parallel import sharding
from depthmup_flax.plan import programs
from depthmup_flax.plan.estimate import Memory, make_plan, memory_of, seconds_of
from depthmup_flax.plan.hlo import Collective, Cost, HloCosts, Kernels, parse
from depthmup_flax.plan.programs import OutOfMemory, compile_run, compile_sweep, out_of_memory, unless_out_of_memory
from depthmup_flax.plan.remedies import remedies, sweep_remedies
from depthmup_flax.plan.summary import as_json, duration, memory_line, text
from depthmup_flax.plan.topologies import CHIPS
from depthmup_flax.trainer.engine.device_batches import put_train_data
from depthmup_flax.trainer.engine.from_config import build
from depthmup_flax.trainer.engine.program import ShardedProgram
from depthmup_flax.util.errors import InputError

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
    return compile_run(config, jax.devices()[:1], PlannedData(Sizes()))


def test_the_planned_program_is_the_one_that_training_compiles(config, step):
    experiment, mesh = build(config), sharding.make_mesh(config.mesh)
    program = ShardedProgram(experiment.workload, mesh, put_train_data(experiment.dataset, mesh))
    trained = parse(program.traced().lower().compile().as_text())
    operations = lambda program: [(one.opcode, one.shape, times) for one, _, times in program.executed()]
    assert operations(trained) == operations(parse(step.compiled.as_text()))


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


def test_a_plan_counts_products_steps_and_examples(step):
    plan = make_plan(step)
    weights = {"stem": 3 * 8 * 8 * 16, "blocks": 2 * 16 * 16, "readout": 16 * 10}
    assert plan.gflops == 8 * (4 * weights["stem"] + 6 * (weights["blocks"] + weights["readout"])) / 1e9
    assert (plan.steps, plan.units_per_step, plan.unit) == (40, 8, "images")
    assert plan.seconds is None
    assert "No time is estimated" in text(plan)
    assert as_json(plan)["memory"]["total"] == plan.memory.total


COSTS = HloCosts(
    cycles=3_000_000,
    bytes=819_000_000,
    collectives={"all-reduce": Collective(4, 90_000_000), "all-reduce between slices": Collective(1, 3_125_000)},
    places=(Cost("blocks/mlp", 2_000_000, 5, 12), Cost("stem", 1_000_000, 5, 1)),
)


def test_seconds_on_a_tpu_are_the_compilers_cycles_and_links_at_their_peak():
    seconds = seconds_of(COSTS, 197e9, CHIPS["v5e"], 4)
    assert seconds.by_compiler
    assert seconds.computation == pytest.approx(2e-3)  # at 1.5 GHz
    assert seconds.communication == pytest.approx(2e-3 + 1e-3)  # a sum passes twice at 90 GB/s; 3.125 GB/s of network
    assert (seconds.products, seconds.memory) == (pytest.approx(1e-3), pytest.approx(1e-3))
    assert seconds.step == seconds.computation + seconds.communication


def test_seconds_on_a_gpu_are_a_bound_by_products_or_memory():
    without = dataclasses.replace(COSTS, cycles=0, collectives={})
    bound = seconds_of(without, 989e9, CHIPS["h100"], 8)
    assert not bound.by_compiler
    assert bound.step == bound.products == pytest.approx(1e-3)
    assert seconds_of(without, 1.0, CHIPS["h100"], 8).step == pytest.approx(819e6 / 3352e9)


def test_kernels_without_an_estimate_are_added_at_peak(step):
    kernels = Kernels(times=3, flops=197_000_000_000, bytes=8)
    seconds = seconds_of(dataclasses.replace(COSTS, kernels=kernels), 197e9, CHIPS["v5e"], 4)
    assert seconds.computation == pytest.approx(2e-3 + 1e-3)
    plan = dataclasses.replace(make_plan(step), seconds=seconds, longest=COSTS.places, kernels=kernels)
    assert "kernels   3 times, of which the compiler estimates no time; 1 ms at peak" in text(plan)
    assert "1.33 ms  (67%)  blocks/mlp" in text(plan)


def test_gpus_of_several_hosts_communicate_over_the_network():
    one, two = (seconds_of(COSTS, 1.0, CHIPS["h100"], devices).communication for devices in (8, 16))
    assert two - one == pytest.approx(180e6 * (1 / 50e9 - 1 / 450e9))


def test_a_plan_with_times_says_what_takes_longest_and_that_nothing_was_calibrated(step):
    seconds = seconds_of(COSTS, 197e9, CHIPS["v5e"], 4)
    plan = dataclasses.replace(make_plan(step), seconds=seconds, longest=COSTS.places, collectives=COSTS.collectives)
    shown = text(plan)
    assert "5 ms, 1,600 images/s; 40 steps for the run: 0.2 s" in shown
    assert "1.33 ms  (67%)  blocks/mlp, 12 times" in shown
    assert "all-reduce 4 times, 85.8 MiB" in shown
    assert "never calibrated against a chip" in shown
    bound = text(dataclasses.replace(plan, seconds=dataclasses.replace(seconds, by_compiler=False)))
    assert "at least 5 ms" in bound


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
    assert refusal == out_of_memory(message) == REFUSALS[message]
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


def test_without_cudnn_the_remedy_is_its_installation_or_another_attention(config, monkeypatch):
    def refused(self):
        raise RuntimeError("cuDNN not found: its version is unknown")

    monkeypatch.setattr(ShardedProgram, "traced", refused)
    with pytest.raises(InputError, match=r"jax\[cuda12\].*model\.attention=xla"):
        compile_run(config, jax.devices()[:1], PlannedData(Sizes()))


def advice(dataset, memory, mesh=-1, **model):
    train = {"batch_size": 64, "accumulate": 1}
    config = ConfigDict(
        {"model": {"name": "res_mlp", "remat": "none", **model}, "train": train, "mesh": {"data": mesh}}
    )
    return " ".join(remedies(config, dataset, {"data": 4, "fsdp": 2, "tensor": 1}, memory))


def test_remedies_are_the_smallest_numbers_that_fit(step):
    dataset = step.experiment.dataset
    large_activations = Memory(1 * GIB, 2 * GIB, 0, 30 * GIB, 16 * GIB)
    assert "train.accumulate=4 (about 13.2 GiB" in advice(dataset, large_activations)  # 3 + 3 + 29 / 2 is too much
    assert "model.remat=dots, or full" in advice(dataset, large_activations)
    assert "model.remat=full" in advice(dataset, large_activations, remat="dots")
    assert "mesh.fsdp" not in advice(dataset, large_activations)
    large_state = Memory(8 * GIB, 16 * GIB, 0, 3 * GIB, 16 * GIB)
    assert "mesh.fsdp=4 (about 13.5 GiB)" in advice(dataset, large_state, remat="full")
    assert "accumulate" not in advice(dataset, large_state)
    assert "remat=dots" not in advice(dataset, large_state, remat="full")
    gradients = Memory(4 * GIB, 8 * GIB, 0, 5 * GIB, 16 * GIB)  # of parameters this large
    assert advice(dataset, gradients) == "--config.mesh.fsdp=4 (about 9.0 GiB)"
    assert advice(dataset, gradients, mesh=4) == "--config.mesh.data=-1 --config.mesh.fsdp=4 (about 9.0 GiB)"
    assert "data.placement=stream" in advice(dataset, Memory(0, 0, 20 * GIB, 0, 16 * GIB))
    assert "more devices" in advice(dataset, Memory(900 * GIB, 900 * GIB, 0, 0, 16 * GIB), remat="full")
    assert advice(dataset, Memory(0, 0, 0, 0, 16 * GIB)) == advice(dataset, Memory(0, 0, 0, 9 * GIB, None)) == ""


def test_fewer_lanes_are_advised_by_the_memory_of_one():
    memory = Memory(2 * GIB, 4 * GIB, 2 * GIB, 26 * GIB, 16 * GIB)
    assert sweep_remedies(8, memory)[0].startswith("--lanes=2 ")  # of 80 % of 16 GiB; 2 GiB of data, 4 GiB for each
    assert not any("lanes" in line for line in sweep_remedies(1, memory))
    assert sweep_remedies(8, dataclasses.replace(memory, limit=40 * GIB)) == []


def test_the_largest_group_of_a_sweep_is_planned_with_the_lanes_that_fit():
    load = PlannedData(Sizes())
    plan = make_plan(compile_sweep(a_sweep(rates=2), jax.devices()[:1], load, None, None))
    assert (plan.lanes.runs, plan.lanes.per_device, plan.lanes.label) == (4, 4, "depth 3")
    assert (plan.units_per_step, plan.steps) == (4 * 8, 6)
    assert "4 run(s) at a time on each, of 4 with depth 3" in text(plan)
    assert 3 * plan.memory.parameters >= plan.memory.optimizer > 4 * 2 * 4 * plan.parameters * 0.99
    fewer = make_plan(compile_sweep(a_sweep(rates=2), jax.devices()[:1], load, 1, None))
    assert (fewer.lanes.per_device, fewer.steps) == (1, 4 * 6)


def test_a_sweep_that_is_refused_has_a_plan(monkeypatch):
    monkeypatch.setattr(programs, "unless_out_of_memory", lambda _: OutOfMemory(GIB, used=2 * GIB))
    plan = make_plan(compile_sweep(a_sweep(rates=2), jax.devices()[:1], PlannedData(Sizes()), 2, GIB))
    assert plan.memory.fits is False
    assert plan.memory.parameters == 2 * 4 * plan.parameters
    assert "TOO BIG   2.00 of 1.00 GiB" in text(plan)
    assert "products" not in text(plan)


def test_lanes_are_fewer_where_memory_is_short():
    step = compile_sweep(a_sweep(rates=2), jax.devices()[:1], PlannedData(Sizes()), None, 1.0)
    assert step.lanes.per_device == 1


def test_small_programs_are_shown_in_mib():
    assert memory_line(Memory(2**20, 2**21, 0, 2**19, 2**34)) == (
        "3.50 MiB of 16.0 GiB a device: parameters 1.00, optimizer 2.00, data 0.00, temporaries 0.50 MiB"
    )


@pytest.mark.parametrize(
    ("seconds", "says"),
    [(0.25, "0.25 s"), (59.9, "60 s"), (65, "1 min 5 s"), (5340, "1 h 29 min"), (90000, "1 d 1 h"), (172800, "2 d")],
)
def test_durations_have_two_units_at_most(seconds, says):
    assert duration(seconds) == says
