"""A sweep trains what train.py trains, loses and repeats nothing, and says what is wrong with its grid."""

import dataclasses
import functools
import gc
import json
import math
import shutil
import signal
import threading
import time
import types

import jax
import numpy as np
import optax
import processes
import pytest
from processes import ROOT, run_command

from depthmup_flax import at_scale, powers_of_two, sweep_config
from depthmup_flax.config.fields import default_config, validate
from depthmup_flax.data import LoadOnce
from depthmup_flax.search.sweep import groups, runner
from depthmup_flax.search.sweep.dry_run import describe
from depthmup_flax.search.sweep.grid import curves, expand, shard_of, structural_groups
from depthmup_flax.search.sweep.groups import Chosen, GroupPrograms, plan
from depthmup_flax.search.sweep.runner import sweep
from depthmup_flax.storage.records.table import Record, read_record_file, read_sweep
from depthmup_flax.storage.workdir.seal import unsealed
from depthmup_flax.trainer.engine.device_batches import CallLength, put_train_data
from depthmup_flax.trainer.engine.lanes import Cohort, cohorts, lane_mesh, lay_out, one_seed_fits, train
from depthmup_flax.trainer.engine.network import row_major_gradients
from depthmup_flax.trainer.engine.workload import Periods
from depthmup_flax.trainer.loop import train_and_evaluate
from depthmup_flax.util.errors import InputError, Preempted

RATE = "optimizer.learning_rate"


@pytest.fixture(autouse=True)
def briefly_timed(monkeypatch):
    """A sweep times a few steps of every program, to say how long it will take."""
    monkeypatch.setattr("depthmup_flax.trainer.engine.lanes.TIMED_CALLS", 1)


def small_base(model="res_mlp", **model_fields):
    config = default_config(model)
    config.model.update(**{"width": 8, "depth": 2, "base_width": 8, "base_depth": 2, **model_fields})
    config.data.update(name="synthetic", train_examples=128, test_examples=40)
    config.optimizer.learning_rate = 2e-3
    config.train.update(batch_size=16, steps=8, average_steps=4, log_every=3, checkpoint=False)
    return config


def small_sweep(base=None, grids=None, **kwargs):
    grids = grids or {"rates": {RATE: (1e-3, 4e-3, 1.6e-2), "seed": (0, 1)}}
    return sweep_config(base or small_base(), grids, figure="test", title="A test", scale="smoke", **kwargs)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The work directory of `small_sweep`, whose six runs were trained at a time; to be copied before it is changed."""
    jax.config.update("jax_disable_most_optimizations", True)  # as in the tests, which compare with them
    directory = tmp_path_factory.mktemp("trained") / "sweep"
    sweep(small_sweep(), directory, lanes=0)
    return directory


@pytest.fixture
def copied(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "copied")


@pytest.fixture
def vectorized(trained):
    """The records of `trained`."""
    return read_record_file(trained / "records.jsonl")[0]


def by_run(records):
    return {record.run: record for record in records}


def assert_same(found: dict[str, Record], expected: dict[str, Record], rtol=2e-5):
    assert found.keys() == expected.keys()
    for run, record in found.items():
        other = expected[run]
        assert (record.status, record.point, record.diverged_at_step) == (
            other.status,
            other.point,
            other.diverged_at_step,
        )
        for name in ("train_loss", "train_loss_avg", "train_loss_slices", "test_loss", "test_accuracy"):
            np.testing.assert_allclose(
                np.array(getattr(record, name), float), np.array(getattr(other, name), float), rtol=rtol, err_msg=name
            )


def trained_by_train_py(config, tmp_path):
    """The results of the first and the last run, which differ in every axis."""
    runs = expand(config)
    return [(run, train_and_evaluate(run.config, tmp_path / run.hash)) for run in (runs[0], runs[-1])]


def assert_same_results(records, results, rtol=2e-5):
    records = {tuple(record.point.items()): record for record in records}
    for run, result in results:
        record = records[tuple(run.point.items())]
        for name in ("status", "seed", "parameters", "diverged_at_step"):
            assert getattr(record, name) == result[name], (name, run.point)
        for name in ("train_loss", "train_loss_avg", "test_loss", "test_accuracy"):
            if result["status"] == "completed":
                np.testing.assert_allclose(
                    getattr(record, name), result[name], rtol=rtol, err_msg=f"{name} {run.point}"
                )


def assert_is_what_train_py_trains(config, records, tmp_path, rtol=2e-5):
    results = trained_by_train_py(config, tmp_path)
    assert {result["config_hash"] for _, result in results} <= by_run(records).keys()
    assert_same_results(records, results, rtol)


@pytest.mark.gpu
def test_vectorized_runs_are_runs_one_after_another_are_runs_of_train_py(vectorized, tmp_path):
    config = small_sweep()
    alone = sweep(config, tmp_path / "one", lanes=1)
    assert {record.lanes for record in vectorized} == {6}
    assert {record.lanes for record in alone} == {1}
    assert_same(by_run(vectorized), by_run(alone))
    assert_is_what_train_py_trains(config, vectorized, tmp_path)
    # Slices of 3 steps, the last one shorter; their weighted mean is the mean over all steps.
    assert [len(record.train_loss_slices) for record in vectorized] == [3] * 6


def test_every_continuous_field_is_that_of_train_py_without_a_recompilation(tmp_path):
    base = small_base()
    base.optimizer.kwargs.update(b1=0.9, b2=0.999, eps=1e-8)
    base.parametrization.update(
        gamma0=1.0,
        branch_multiplier=1.0,
        input_lr_factor=1.0,
        hidden_lr_factor=1.0,
        output_lr_factor=1.0,
        vector_lr_factor=1.0,
        fixed_lr_factor=1.0,
    )
    base.model.use_bias = True
    changed = {
        RATE: 1e-2,
        "optimizer.weight_decay": 3.0,
        "optimizer.clip_rms": 1e-3,
        "optimizer.warmup_steps": 5,
        "optimizer.kwargs.b1": 0.5,
        "optimizer.kwargs.b2": 0.9,
        "optimizer.kwargs.eps": 1e-2,
        "parametrization.gamma0": 0.5,
        "parametrization.branch_multiplier": 2.0,
        **{f"parametrization.{role}_lr_factor": 8.0 for role in ("input", "hidden", "output", "vector", "fixed")},
    }
    one_by_one = {str(i): {path: (value,)} for i, (path, value) in enumerate(changed.items())}
    together = {path: (value,) for path, value in changed.items()}
    config = small_sweep(base, {"base": {"seed": (0,)}, **one_by_one, "together": together})
    runs = expand(config)
    assert len(structural_groups(runs)) == 1
    records = sweep(config, tmp_path / "sweep", lanes=0)
    losses = [record.train_loss for record in records]
    assert len(set(losses)) == len(losses) == 2 + len(changed), "a field that changes nothing"
    assert_is_what_train_py_trains(config, records, tmp_path, rtol=1e-4)


@pytest.mark.slow
def test_a_sweep_that_compiles_ahead_has_the_records_of_one_that_does_not(tmp_path, monkeypatch):
    grids = {"rates": {RATE: (1e-3, 4e-3), "model.depth": (2, 3, 4)}}
    expected = by_run(sweep(small_sweep(grids=grids), tmp_path / "plain", lanes=0))
    threads, make = [], runner.first_program
    monkeypatch.setattr(runner, "_pays_ahead", lambda mesh: True)
    monkeypatch.setattr(
        runner, "first_program", lambda *args: (threads.append(threading.current_thread()), make(*args))[1]
    )
    assert_same(by_run(sweep(small_sweep(grids=grids), tmp_path / "ahead", lanes=0)), expected)
    assert len(threads) == 2
    assert threading.main_thread() not in threads


def test_a_failure_of_a_compilation_ahead_ends_the_sweep_after_the_runs_that_train(tmp_path, monkeypatch):
    def fail(*args):
        raise jax.errors.JaxRuntimeError("INTERNAL: no such instruction")

    monkeypatch.setattr(runner, "_pays_ahead", lambda mesh: True)
    monkeypatch.setattr(runner, "first_program", fail)
    config = small_sweep(grids={"rates": {RATE: (1e-3, 4e-3), "model.depth": (2, 3)}})
    with pytest.raises(jax.errors.JaxRuntimeError, match="no such instruction"):
        sweep(config, tmp_path, lanes=0)
    assert {record.depth for record in read_record_file(tmp_path / "records.jsonl")[0]} == {2}


def test_a_preemption_saves_the_runs_before_a_compilation_ahead_has_ended(tmp_path, monkeypatch):
    ended = threading.Event()
    monkeypatch.setattr(runner, "_pays_ahead", lambda mesh: True)
    monkeypatch.setattr(runner, "first_program", lambda *args: ended.wait(60))
    monkeypatch.setattr(runner.Preemption, "reached", lambda self, step: True)
    config = small_sweep(grids={"rates": {RATE: (1e-3, 4e-3), "model.depth": (2, 3)}})
    with pytest.raises(Preempted):
        sweep(config, tmp_path, lanes=0)
    assert not ended.is_set()
    assert any((tmp_path / "unfinished").iterdir())
    ended.set()


def test_a_batch_of_a_search_that_is_done_leaves_the_saved_runs_of_a_later_one(copied, monkeypatch):
    later = small_sweep(grids={"rates": {RATE: (2e-3, 8e-3, 3.2e-2), "seed": (0, 1)}})
    with monkeypatch.context() as patch:
        patch.setattr(runner.Preemption, "reached", lambda self, step: True)
        with pytest.raises(Preempted):
            sweep(later, copied, lanes=0)
    sweep(small_sweep(), copied, lanes=0)
    assert any((copied / "unfinished").glob("*/*"))
    sweep(later, copied, lanes=0)
    assert not any((copied / "unfinished").glob("*/*"))


@pytest.mark.slow
def test_momentum_and_cosine_lanes_are_those_of_train_py(tmp_path):
    base = small_base()
    base.optimizer.update(name="momentum", learning_rate=0.02, schedule="cosine", warmup_steps=2)
    config = small_sweep(base, {"m": {"optimizer.kwargs.momentum": (0.0, 0.5, 0.9)}}, x="optimizer.kwargs.momentum")
    assert_is_what_train_py_trains(config, sweep(config, tmp_path / "sweep", lanes=0), tmp_path)


@pytest.mark.gpu
@pytest.mark.slow
def test_augmented_batch_norm_lanes_of_several_seeds_are_those_of_train_py(tmp_path):
    """Two lanes have one seed, and share its images; four have two seeds."""
    base = small_base("simple_resnet", width=8, depth=3, base_depth=3, norm="batch")
    base.data.augment = "cifar"
    base.optimizer.update(name="sgd", learning_rate=0.02)
    base.train.update(steps=3, average_steps=2)
    results = None
    for placement, lanes in (("device", 0), ("device", 2), ("stream", 2)):
        base.data.placement = placement
        config = small_sweep(base, {"rates": {RATE: (0.01, 0.02), "seed": (0, 3)}})
        results = results or trained_by_train_py(config, tmp_path)
        records = sweep(config, tmp_path / f"{placement}-{lanes}", lanes=lanes)
        assert {record.lanes for record in records} == {lanes or 4}
        assert_same_results(records, results, rtol=1e-4)


def test_every_run_has_a_lane_and_neighbors_of_one_seed_a_device_where_seeds_fill_devices():
    runs = expand(small_sweep(grids={"rates": {RATE: powers_of_two(-10, -3), "seed": (0, 1, 2)}}))
    (group,) = structural_groups(runs)
    for per_device, devices, one_seed in [(1, 2, True), (4, 2, True), (8, 1, True), (3, 2, False), (24, 1, False)]:
        parts = cohorts(group, per_device, devices)
        assert sorted(run.hash for part in parts for run in part) == sorted(run.hash for run in group)
        assert all(one_seed_fits(part, per_device, devices) for part in parts) == one_seed
        for part in parts:
            lanes, lane_of = lay_out(part, per_device, devices, one_seed)
            assert len(lanes) == per_device * devices
            assert sorted(lane_of) == sorted(run.hash for run in part)
            assert all(lanes[lane].hash == run for run, lane in lane_of.items())
            if one_seed:
                for i in range(0, len(lanes), per_device):
                    assert len({run.config.seed for run in lanes[i : i + per_device]}) == 1
    # High learning rates diverge together, so they stay together.
    rates = [run.point[RATE] for part in cohorts(group, 4, 1) for run in part]
    assert min(rates[:12]) > max(rates[12:])


def test_runs_that_are_left_of_several_seeds_are_laid_out_as_they_may():
    runs = expand(small_sweep(grids={"rates": {RATE: (1e-3, 2e-3, 4e-3), "seed": (0, 1)}}))
    three, one, _, _ = [run for run in runs if run.config.seed == 0], *[run for run in runs if run.config.seed == 1]
    assert not one_seed_fits([*three, one], 4, 1)
    assert one_seed_fits([*three, one], 3, 2)
    lanes, lane_of = lay_out([one, *three], 3, 2, one_seed=True)
    assert [run.config.seed for run in lanes] == [1, 1, 1, 0, 0, 0]
    assert list(lane_of.values()) == [0, 3, 4, 5]  # the others repeat one
    lanes, lane_of = lay_out([one, *three], 4, 1, one_seed=False)
    assert lanes == [one, *three]
    assert list(lane_of.values()) == [0, 1, 2, 3]


def programs_of(config):
    """Compiles programs for the only group of ``config``."""
    (group,), mesh = plan(config, expand(config), LoadOnce()), lane_mesh()
    return GroupPrograms(group, mesh, put_train_data(group.experiment.dataset, mesh))


def outcomes_of(program, runs, shrink=lambda alive: None):
    """Hash of a run -> its outcome and mean losses of time slices."""
    cohort = Cohort.of(program, runs)
    outcomes = train(cohort, shrink, lambda cohort: None)
    return {run.hash: (out, cohort.slices[run.hash]) for run, out in zip(runs, outcomes, strict=True)}


@pytest.mark.parametrize(("steps", "counts"), [(1, [1, 1, 1]), (3, [3, 1, 3]), (16, [4, 4, 3])])
def test_a_call_ends_at_the_end_of_a_slice_and_of_the_run(steps, counts):
    length, step, found = CallLength(16, Periods(11, 4)), 0, []
    length.steps = steps
    while len(found) < 3:
        found.append(length.at(step))
        step += found[-1]
    assert found == counts


@pytest.mark.gpu
def test_the_number_of_steps_in_a_call_changes_no_number(monkeypatch):
    base = small_base()
    base.data.augment = "cifar"
    base.train.update(steps=11, log_every=4)
    programs = programs_of(small_sweep(base))
    program, part = programs.get(3, one_seed=True), cohorts(programs.group.runs, 3, 1)[0]
    found = []
    for steps in (1, 3, 16):  # beyond the end of a slice, and of the run
        monkeypatch.setattr(CallLength, "adapt", lambda *args: None)
        program.call_length.steps = steps
        found.append(outcomes_of(program, part))
    assert found[0] == found[1] == found[2]


def test_a_single_lane_computes_no_moment_twice():
    """Its axis of lanes once made XLA:CPU compute Adam's moments to read them, and again to keep them."""
    base = small_base(width=64, depth=4)
    base.data.image_size = 8
    programs = programs_of(small_sweep(base))
    operations = lambda lanes: programs.get(lanes, one_seed=True).compiled.cost_analysis()["flops"] / lanes
    assert operations(1) < 1.01 * operations(3)


def test_the_layout_of_gradients_on_a_tpu_changes_no_number():
    params_V = {"kernel": jax.random.normal(jax.random.key(0), (3, 5, 4)), "bias": np.ones((3, 4), np.float32)}
    x = jax.random.normal(jax.random.key(1), (7, 5))

    def updates(optimizer, params):
        grads = jax.grad(lambda params: ((x @ params["kernel"] + params["bias"]) ** 2).sum())(params)
        return optimizer.update(grads, optimizer.init(params), params)

    expected, found = (
        jax.jit(jax.vmap(functools.partial(updates, optimizer)))(params_V)
        for optimizer in (optax.adam(0.1), row_major_gradients(optax.adam(0.1)))
    )
    jax.tree.map(np.testing.assert_array_equal, found, expected)


@pytest.mark.parametrize(
    ("rates", "seeds", "lanes"),
    [
        pytest.param((1e8, 1e7, 1e6, 0.01, 0.02), (5,), (5, 2), id="one-seed", marks=pytest.mark.slow),
        pytest.param((1e8, 1e7, 0.01, 0.02), (0, 5), (8, 4), id="several-seeds"),
    ],
)
def test_runs_that_are_left_keep_their_networks_in_a_smaller_program(rates, seeds, lanes):
    base = small_base()
    base.optimizer.name = "sgd"
    base.train.update(steps=12, log_every=2)
    programs = programs_of(small_sweep(base, {"rates": {RATE: rates, "seed": seeds}}))
    runs = cohorts(programs.group.runs, lanes[0], 1)[0]
    large, small = (programs.get(n, one_seed=len(seeds) == 1) for n in lanes)
    left = []

    def shrink(alive):
        left.append(len(alive))
        return small

    plain, shrunk = outcomes_of(large, runs), outcomes_of(large, runs, shrink)
    assert left[0] == lanes[1]
    assert sum(outcome.status == "completed" for outcome, _ in plain.values()) == lanes[1]
    for run, (expected, slices) in plain.items():
        found, found_slices = shrunk[run]
        assert (found.status, found.steps, found.diverged_at_step) == (
            expected.status, expected.steps, expected.diverged_at_step
        )  # fmt: skip
        if expected.status == "completed":
            np.testing.assert_allclose(found_slices, slices, rtol=1e-5)
            np.testing.assert_allclose(found.test_loss, expected.test_loss, rtol=1e-5)


@pytest.mark.gpu
@pytest.mark.slow
def test_dropout_and_text_lanes_are_those_of_train_py(tmp_path, monkeypatch):
    monkeypatch.setattr("depthmup_flax.trainer.loop.sample_text", lambda *args: "")  # takes long to compile
    text = tmp_path / "text.txt"
    text.write_text("to be or not to be, that is the question. " * 60)
    base = small_base("gpt", num_heads=2, dropout=0.1)
    base.data = default_config("gpt").data
    base.data.update(name=f"text:{text}", context=8, augment="shift")
    config = small_sweep(base, {"rates": {RATE: (1e-3, 4e-3), "seed": (0, 1)}})
    assert_is_what_train_py_trains(config, sweep(config, tmp_path / "sweep", lanes=0), tmp_path, rtol=1e-4)


@pytest.mark.slow
def test_lanes_with_muon_are_those_of_train_py(tmp_path):
    base = small_base()
    base.optimizer.name = "muon"
    config = small_sweep(base, {"rates": {RATE: (1e-3, 4e-3), "seed": (0, 1)}})
    assert_is_what_train_py_trains(config, sweep(config, tmp_path / "sweep", lanes=0), tmp_path, rtol=1e-4)


@pytest.mark.slow
def test_diverged_runs_are_records_and_do_not_touch_their_neighbors(tmp_path):
    base = small_base()
    base.optimizer.name = "sgd"
    config = small_sweep(base, {"rates": {RATE: (0.01, 1e6)}})
    records = {record.point[RATE]: record for record in sweep(config, tmp_path / "sweep", lanes=0)}
    assert_is_what_train_py_trains(config, records.values(), tmp_path)
    assert records[1e6].status == "diverged"
    assert records[1e6].train_loss is None
    assert records[1e6].test_loss is None
    # It ended at the first look at the numbers, not at the end of the run.
    assert records[1e6].steps < records[0.01].steps == 8


def test_less_memory_means_fewer_lanes_and_the_same_numbers(vectorized, tmp_path, monkeypatch):
    config = small_sweep()
    programs = programs_of(config)
    six, three = (programs.for_runs(programs.group.runs, n) for n in (6, 3))
    assert three.bytes_per_device < six.bytes_per_device
    monkeypatch.setattr(groups, "memory_limit", lambda: six.bytes_per_device - 1)
    found = sweep(config, tmp_path / "less", lanes=0)
    assert {record.lanes for record in found} == {3}
    assert_same(by_run(found), by_run(vectorized))


@pytest.mark.parametrize("lanes", [0, None])
def test_lanes_that_a_tpu_refuses_to_compile_do_not_fit(lanes):
    def for_runs(runs, n):
        if n > most:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Ran out of memory on HBM.")
        measured = lambda runs: 1.0 / n
        return types.SimpleNamespace(
            per_device=n, compile_s=0.0, bytes_per_device=0, workload=task, seconds_per_run_step=measured
        )

    task = workload_of(steps=1000)
    programs, runs = types.SimpleNamespace(mesh=lane_mesh(), for_runs=for_runs, workload=task), expand(small_sweep())
    most = 3
    assert groups.choose_program(programs, runs, lanes, Chosen())[0].per_device in (2, 3)
    most = 0
    with pytest.raises(InputError, match=r"^train.batch_size is 16: a single run does not fit .*model.remat.$"):
        groups.choose_program(programs, runs, lanes, Chosen())


def workload_of(steps, convolves=False, shapes=()):
    return types.SimpleNamespace(periods=Periods(steps, 1), convolves=convolves, shapes=shapes, batch_size=1)


@dataclasses.dataclass
class FakeProgram:
    per_device: int
    workload: object
    per_lane: object
    compile_s: float = 0.0
    bytes_per_device: int = 0

    def seconds_per_run_step(self, runs):
        return self.per_lane(self.per_device)


def test_measuring_takes_more_lanes_only_where_they_are_faster():
    def chosen(per_lane, last=1, compile_s=0.0, convolves=False):
        task = workload_of(1000, convolves)
        for_runs = lambda runs, n: FakeProgram(n, task, per_lane, compile_s)
        programs = types.SimpleNamespace(mesh=lane_mesh(), for_runs=for_runs, workload=task)
        return groups.choose_program(programs, list(range(64)), None, Chosen(last))[0].per_device

    assert groups.candidates(64, 1) == [1, 4, 16, 64]
    assert chosen(lambda n: 1.0 / n) == 64
    assert chosen(lambda n: float(n)) == 1
    assert chosen(lambda n: abs(math.log2(n / 16)) + 1) == 16
    # From where a similar group was best, down as well as up.
    assert chosen(lambda n: float(n), last=64) == 1
    # Compiling more would take longer than the runs.
    assert chosen(lambda n: 1.0 / n, compile_s=1e9) == 1
    # 64 runs of 1000 steps: 16 times the compilation is worth a trial, but not of convolutions on a CPU.
    assert (
        chosen(lambda n: 1.0 / n, compile_s=4000.0) > chosen(lambda n: 1.0 / n, compile_s=4000.0, convolves=True) == 1
    )
    assert chosen(lambda n: 1.0 / n, compile_s=400.0, convolves=True) > 1


@pytest.mark.parametrize(("platform", "expected"), [("cpu", [1, 4, 16]), ("gpu", [64, 16, 4])])
def test_a_group_of_the_shape_of_another_begins_with_its_lanes_and_tries_no_others(monkeypatch, platform, expected):
    monkeypatch.setattr(groups.sharding, "platform", lambda mesh: platform)
    best, compiled = 4 if platform == "cpu" else 16, []

    def tried(task, chosen):
        def for_runs(runs, n):
            compiled.append(n)
            return FakeProgram(n, task, lambda n: abs(math.log2(n / best)) + 1)

        compiled.clear()
        programs = types.SimpleNamespace(mesh=lane_mesh(), for_runs=for_runs, workload=task)
        groups.choose_program(programs, list(range(64)), None, chosen)
        return list(compiled)

    first, chosen = workload_of(1000), Chosen()
    assert tried(first, chosen) == expected
    assert tried(workload_of(1000), chosen) == [best]
    assert len(tried(workload_of(1000, shapes=(np.zeros(3),)), chosen)) > 1


@pytest.mark.slow
def test_devices_share_the_lanes_and_give_the_numbers_of_one(vectorized, tmp_path):
    lanes = {tmp_path / f"four{number}": number for number in (0, 1)}
    process = processes.Process(tmp_path / "log", processes.on_devices, 4, processes.sweeps, small_sweep(), lanes)
    assert process.wait() == 0, process.text()
    for lanes in (0, 1):
        four = read_record_file(tmp_path / f"four{lanes}" / "records.jsonl")[0]
        assert {record.lanes for record in four} == {2 if lanes == 0 else 1}
        assert four[0].device.startswith("4 x")
        assert_same(by_run(four), by_run(vectorized))


@pytest.mark.slow
def test_a_sweep_killed_with_signal_9_resumes_without_repeating_or_losing_a_run(tmp_path):
    grids = {"rates": {RATE: powers_of_two(-10, -8), "model.depth": (2, 3), "seed": (0, 1)}}
    config = small_sweep(grids=grids)
    expected = by_run(sweep(config, tmp_path / "whole", lanes=2))
    process = processes.Process(tmp_path / "log", processes.sweep, config, tmp_path / "killed", lanes=2)
    path = tmp_path / "killed" / "records.jsonl"
    deadline = time.time() + 120
    while time.time() < deadline and not (path.exists() and path.read_text().count("\n") >= 2):
        time.sleep(0.005)
    process.send(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, process.text()
    with path.open("a") as file:  # as if the kill had come in the middle of a line
        file.write('{"run": "0123')
    before = read_record_file(path)[0]
    assert 2 <= len(before) < len(expected)
    assert "torn" in read_sweep([tmp_path / "killed"]).notes[0]
    sweep(config, tmp_path / "killed", lanes=2)
    after, notes = read_record_file(path)
    assert not notes
    assert [record.run for record in after[: len(before)]] == [record.run for record in before]
    assert len(after) == len(expected)  # no run twice
    assert_same(by_run(after), expected)


def test_shards_are_disjoint_and_merge_to_the_whole_and_overwriting_one_keeps_the_others(tmp_path):
    config = small_sweep(grids={"rates": {RATE: (1e-3, 4e-3), "optimizer.weight_decay": (0.0, 0.1)}})
    parts = [tmp_path / f"part{i}" for i in range(2)]
    first, second = (by_run(sweep(config, part, shard=(i, 2), lanes=0)) for i, part in enumerate(parts))
    assert not first.keys() & second.keys()
    assert first
    assert second
    whole = by_run(sweep(config, tmp_path / "whole", lanes=2))
    merged = read_sweep(parts)
    assert_same(by_run(merged.records), whole)
    assert merged.info == read_sweep([tmp_path / "whole"]).info
    # Both in one directory.
    shutil.copy(parts[0] / "records.0-of-2.jsonl", parts[1])
    assert by_run(sweep(config, parts[1], shard=(0, 2), lanes=0)).keys() == first.keys()
    before = (parts[1] / "records.0-of-2.jsonl").read_text()
    sweep(config, parts[1], shard=(1, 2), lanes=0, overwrite=True)
    assert (parts[1] / "records.0-of-2.jsonl").read_text() == before
    assert by_run(read_sweep([parts[1]]).records).keys() == whole.keys()


def test_a_last_line_that_lacks_its_end_is_a_record_and_stays(copied):
    path = copied / "records.jsonl"
    whole = path.read_text()
    path.write_text(whole[:-1])
    assert len(sweep(small_sweep(), copied, lanes=0)) == 6
    assert path.read_text() == whole


def test_shards_split_the_cost_evenly_and_no_curve():
    grids = {"rates": {RATE: (1e-3, 4e-3), "model.depth": (2, 4, 8, 16), "model.width": (8, 16), "seed": (0, 1)}}
    runs = expand(small_sweep(grids=grids))
    cost = {run.hash: float(run.config.model.depth) for run in runs}
    shards = [shard_of(runs, RATE, (i, 3), cost) for i in range(3)]
    assert sorted(run.hash for shard in shards for run in shard) == sorted(run.hash for run in runs)
    total = sum(cost.values())
    assert max(sum(cost[run.hash] for run in shard) for shard in shards) < 0.6 * total
    owners = [{i for i, shard in enumerate(shards) if run in shard} for curve in curves(runs, RATE) for run in curve]
    assert all(len(owner) == 1 for owner in owners)


def test_a_curve_whose_minimum_is_at_the_end_of_the_grid_is_extended_and_said(tmp_path, logged):
    config = small_sweep(grids={"rates": {RATE: (1e-6, 2e-6), "seed": (0, 1)}}, extend=2)
    records = sweep(config, tmp_path / "sweep", lanes=2)
    assert sorted({record.point[RATE] for record in records}) == pytest.approx([1e-6, 2e-6, 4e-6, 8e-6])
    assert len(records) == 8
    assert "the best optimizer.learning_rate is at the edge of the grid; trying 4e-06 too" in logged.text
    assert read_sweep([tmp_path / "sweep"]).info.axes[RATE] == pytest.approx([1e-6, 2e-6, 4e-6, 8e-6])
    logged.clear()
    again = sweep(config, tmp_path / "sweep", lanes=0)
    printed = logged.text
    assert "trying" not in printed
    assert "8 runs, 0 diverged" in printed
    assert by_run(again).keys() == by_run(records).keys()  # resuming extends nothing twice
    assert len(read_record_file(tmp_path / "sweep" / "records.jsonl")[0]) == 8


def test_more_values_on_an_axis_continue_a_sweep_and_another_base_does_not(copied, vectorized):
    records = sweep(small_sweep(grids={"rates": {RATE: (1e-3, 4e-3, 1.6e-2, 2e-3), "seed": (0, 1)}}), copied, lanes=6)
    assert len(records) == 8
    assert read_record_file(copied / "records.jsonl")[0][:6] == vectorized
    assert len(read_record_file(copied / "records.jsonl")[0]) == 8
    other = small_base()
    other.train.steps = 9
    with pytest.raises(InputError, match=r"holds another sweep \(base.train.steps: 8 there, 9 here\)"):
        sweep(small_sweep(other), copied)
    assert len(read_record_file(copied / "records.jsonl")[0]) == 8
    (copied / "unfinished" / "records.0-of-2").mkdir(parents=True)  # runs in training
    assert len(sweep(small_sweep(other, {"rates": {RATE: (1e-3,)}}), copied, lanes=0, overwrite=True)) == 1
    assert not (copied / "unfinished").exists()


@pytest.mark.parametrize(
    ("grids", "kwargs", "message"),
    [
        ({"g": {"optimizer.lr": (1.0,)}}, {}, "config.grids.g.optimizer.lr is not a field of the base config"),
        ({"g": {"model.patch_size": (4,)}}, {}, "config.grids.g.model.patch_size is not a field of the base config"),
        ({"g": {RATE: ()}}, {}, "optimizer.learning_rate is empty"),
        ({"g": {RATE: (1e-3, 2e-3, 1e-3)}}, {}, "optimizer.learning_rate has 0.001 twice"),
        ({"g": {RATE: (1e-3, 0.0)}}, {}, "optimizer.learning_rate has 0.0"),
        ({"g": {RATE: (1e-3, -1.0)}}, {}, "optimizer.learning_rate has -1.0"),
        ({"g": {"seed": (0,)}}, {}, "config.x is 'optimizer.learning_rate', which is not an axis"),
        ({"g": {RATE: (1e-3,), "model.depth": (2, "x")}}, {}, "model.depth is 'x'"),
        ({"g": {RATE: (1e-3,), "model.depth": (2, 0)}}, {}, "in the runs with depth 0: model.depth is 0"),
        ({"g": {RATE: (1e-3,), "optimizer.warmup_steps": (0, 8)}}, {}, "optimizer.warmup_steps is 8"),
        ({"g": {RATE: (1e-3,), "parametrization.preset": ("mup", "nup")}}, {}, "parametrization.preset is 'nup'"),
        (
            {"g": {RATE: (1e-3,), "optimizer.name": ("sgd",), "parametrization.preset": ("depth_mup", "block_only")}},
            {},
            "(preset 'block_only') is for Adam-like optimizers",
        ),
        ({"g": {RATE: (1e-3,), "optimizer.kwargs.b1": (0.9, 1.5)}}, {}, "b1 is 1.5: use a number of at least 0"),
        ({"g": {}}, {}, "config.grids.g is empty"),
        ({}, {"extend": -1}, "config.extend is -1"),
        ({"g": {RATE: (1e-3,), "seed": (2**31,)}}, {}, "seed is 2147483648"),
        ({"g": {RATE: (1e-3,), "model.depth": (2, 4)}}, {"x": "model.depth"}, "config.x is 'model.depth'"),
        (
            {"g": {"optimizer.warmup_steps": (1, 2)}},
            {"x": "optimizer.warmup_steps", "extend": 1},
            "config.extend is 1, but optimizer.warmup_steps takes whole numbers",
        ),
        (
            {"g": {"optimizer.kwargs.b2": (0.9, 0.99)}},
            {"x": "optimizer.kwargs.b2", "extend": 1},
            "config.extend is 1, but optimizer.kwargs.b2 stays below 1",
        ),
    ],
)
def test_a_bad_grid_is_one_sentence_before_anything_trains(tmp_path, grids, kwargs, message):
    grids = grids or {"g": {RATE: (1e-3,)}}
    with pytest.raises(InputError) as error:
        sweep(small_sweep(grids=grids, **kwargs), tmp_path / "sweep")
    assert message in str(error.value)
    assert not (tmp_path / "sweep").exists()


def test_a_single_value_is_an_axis_of_one_and_numbers_of_numpy_are_numbers():
    grids = {"g": {RATE: np.float32([0.25, 0.5]), "seed": np.arange(2), "model.depth": 2, "model.nonlinearity": "relu"}}
    runs = expand(small_sweep(grids=grids))
    assert len(runs) == 4
    assert runs[0].point == {RATE: 0.25, "seed": 0, "model.depth": 2, "model.nonlinearity": "relu"}


def test_configs_of_runs_and_of_sweeps_are_told_apart():
    with pytest.raises(InputError, match="run it with depthmup train"):
        expand(small_base())
    with pytest.raises(InputError, match="this config is a sweep's: run it with"):
        validate(small_sweep())


def test_a_scale_that_there_is_not_names_those_there_are():
    with pytest.raises(InputError, match=r"config\.scale is 'huge': use one of smoke, cpu, long, gpu10, gpu, paper"):
        at_scale("huge", smoke=1, other=2)
    assert at_scale("gpu", smoke=1, other=2) == 2


GRID = {RATE: (1e-3, 2e-3), "model.depth": (2, 4), "seed": (0, 1)}


def test_a_dry_run_counts_runs_parameters_and_steps_and_compiles_nothing(monkeypatch):
    monkeypatch.setattr(jax.stages.Lowered, "compile", lambda *args, **kwargs: pytest.fail("compiles"))
    text = describe(small_sweep(grids={"rates": GRID}))
    assert "8 runs in 2 compiled groups" in text
    # 8x8 synthetic color images: 192 inputs, 10 classes.
    parameters = 192 * 8 + 2 * 64 + 80
    assert f"{parameters:,} parameters" in text
    assert ": depth 2" in text
    assert "0.001, 0.002" in text
    base = small_sweep().base.train
    assert f"{8 * base.steps:,} steps, {8 * base.steps * base.batch_size:,} images in all" in text
    half = describe(small_sweep(grids={"rates": {path: GRID[path] for path in (RATE, "model.depth")}}), shard=(0, 2))
    assert "in 1 compiled groups in shard 0/2" in half


def test_a_dry_run_measures_time_and_memory_if_asked():
    text = describe(small_sweep(grids={"rates": GRID}), lanes=0, measure=True)
    assert text.count("ms per run and step") == 2
    assert "about 00:0" in text.splitlines()[-1]


def test_a_dry_run_needs_no_data_of_a_published_set_and_says_that_they_are_absent(tmp_path):
    config = small_sweep(grids={"rates": GRID})
    config.base.data.update(name="tfds:cifar10", data_dir=str(tmp_path), train_examples=0, test_examples=0)
    assert "The data are not here: prepare tfds:cifar10 before the sweep." in describe(config)
    config.base.data.name = "tfds:no_such_set"
    with pytest.raises(InputError, match="no_such_set"):
        describe(config)


def test_the_commands_sweep_and_report(tmp_path):
    config = f"--config={ROOT / 'configs/sweeps/digits.py'}"
    only = "--config.grids.depths."
    grid = ["--config.scale=smoke", f"{only}model.depth=(4,)", f"{only}parametrization.preset=('depth_mup',)"]
    done = run_command("-m", "depthmup_flax", "sweep", config, *grid, "--workdir=s", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "3 runs in 1 compiled group" in done.stdout
    assert "ETA" in done.stdout
    reported = run_command("-m", "depthmup_flax", "report", "s", cwd=tmp_path)
    assert reported.returncode == 0, reported.stderr
    assert (tmp_path / "s" / "report" / "report.html").exists()


def test_runs_that_an_interrupted_sweep_has_left_train_in_the_program_of_the_others(copied):
    records = copied / "records.jsonl"
    whole = records.read_text().splitlines(keepends=True)
    records.write_text("".join(whole[:-1]))
    sweep(small_sweep(), copied, lanes=6)
    first, again = (Record(**unsealed(line)) for line in (whole[-1], records.read_text().splitlines()[-1]))
    assert dataclasses.replace(again, wall_time_s=first.wall_time_s) == first  # the number of lanes, too


def test_a_record_whose_name_is_not_its_points_is_trained_again_and_said(copied, logged):
    path = copied / "records.jsonl"
    lines = path.read_text().splitlines()
    moved = unsealed(lines[0])
    moved["point"]["seed"] = 7  # also a run that no grid has
    path.write_text("\n".join([json.dumps(moved), *lines[1:]]) + "\n")
    records = sweep(small_sweep(), copied, lanes=6)
    assert "1 of 6 records left out" in logged.text
    assert sorted(record.point["seed"] for record in records) == [0, 0, 0, 1, 1, 1]
    again = read_sweep([copied])
    assert len(again.records) == 6
    assert again.notes[0].startswith("1 of 7 records left out")


def test_files_of_a_later_version_are_read_with_a_warning_and_a_later_schema_is_refused(copied):
    path, info = copied / "records.jsonl", copied / "sweep.json"
    assert unsealed(info.read_text())["chance"] == pytest.approx(math.log(10), abs=0.05)
    lines = [{**unsealed(line), "joules": 3.5, "host": "a"} for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    info.write_text(json.dumps({**unsealed(info.read_text()), "owner": "b"}))
    before = path.read_bytes()
    read = read_sweep([copied])
    assert len(read.records) == 6
    assert [note.rpartition(": ")[2] for note in read.notes] == ['"owner".', '"host", "joules".']
    assert len(sweep(small_sweep(), copied)) == 6
    assert path.read_bytes() == before
    info.write_text(json.dumps({**unsealed(info.read_text()), "schema": 2}))
    with pytest.raises(InputError, match="later version"):
        read_sweep([copied])


@pytest.mark.slow
def test_memory_does_not_grow_with_the_groups_of_a_sweep(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "_FORGET_EVERY", 1)
    traces = []
    train_group = runner._Runner._train_group

    def counting(self, group, following):
        train_group(self, group, following)
        gc.collect()
        traces.append(sum(type(x).__name__ == "ClosedJaxpr" for x in gc.get_objects()))

    monkeypatch.setattr(runner._Runner, "_train_group", counting)
    widths = {"model.width": (8, 9, 10, 11), RATE: (1e-3, 4e-3)}
    sweep(small_sweep(grids={"widths": widths}), tmp_path, lanes=0)
    assert traces[-1] <= 1.1 * traces[0]
