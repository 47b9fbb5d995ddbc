"""A sweep trains what train.py trains, loses and repeats nothing, and says what is wrong with its grid."""

import dataclasses
import functools
import gc
import json
import math
import shutil
import threading

import jax
import numpy as np
import processes
import pytest
from processes import ROOT, run_lines
from small_runs import RATE, programs_of, small_base, small_sweep

from depthmup_flax.config.fields import default_config
from depthmup_flax.search.sweep import lane_choice, runner
from depthmup_flax.search.sweep.grid import expand, structural_groups
from depthmup_flax.search.sweep.runner import sweep
from depthmup_flax.storage.sweep_records import Record, read_record_file, read_sweep
from depthmup_flax.trainer.engine.lanes import LaneProgram
from depthmup_flax.trainer.loop import train_and_evaluate
from depthmup_flax.util.errors import InputError, Preempted


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


@pytest.mark.slow
@pytest.mark.gpu
def test_vectorized_runs_are_runs_one_after_another_are_runs_of_train_py(vectorized, tmp_path):
    config = small_sweep()
    alone = sweep(config, tmp_path / "one", lanes=1)
    assert {record.lanes for record in vectorized} == {6}
    assert {record.lanes for record in alone} == {1}
    assert_same(by_run(vectorized), by_run(alone))
    assert_is_what_train_py_trains(config, vectorized, tmp_path)
    assert read_sweep([tmp_path / "one"]).info.chance == pytest.approx(math.log(10), abs=0.05)
    # Slices of 3 steps, the last one shorter; their weighted mean is the mean over all steps.
    assert [len(record.train_loss_slices) for record in vectorized] == [3] * 6


@pytest.mark.slow
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
    threads, make = [], runner.choose_program
    monkeypatch.setattr(runner, "_pays_ahead", lambda mesh: True)
    monkeypatch.setattr(
        runner, "choose_program", lambda *args: (threads.append(threading.current_thread()), make(*args))[1]
    )
    assert_same(by_run(sweep(small_sweep(grids=grids), tmp_path / "ahead", lanes=0)), expected)
    assert [thread is threading.main_thread() for thread in threads].count(False) == 2


def test_a_preemption_saves_the_runs_before_a_compilation_ahead_has_ended(tmp_path, monkeypatch):
    ended, choose = threading.Event(), runner.choose_program
    here = lambda: threading.current_thread() is threading.main_thread()
    monkeypatch.setattr(runner, "_pays_ahead", lambda mesh: True)
    monkeypatch.setattr(runner, "choose_program", lambda *args: choose(*args) if here() else ended.wait(60))
    monkeypatch.setattr(runner.Preemption, "reached", lambda self: True)
    config = small_sweep(grids={"rates": {RATE: (1e-3, 4e-3), "model.depth": (2, 3)}})
    with pytest.raises(Preempted):
        sweep(config, tmp_path, lanes=0)
    assert not ended.is_set()
    assert any((tmp_path / "unfinished").iterdir())
    ended.set()


def test_a_batch_of_a_search_that_is_done_leaves_the_saved_runs_of_a_later_one(copied, monkeypatch):
    later = small_sweep(grids={"rates": {RATE: (2e-3, 8e-3, 3.2e-2), "seed": (0, 1)}})
    with monkeypatch.context() as patch:
        patch.setattr(runner.Preemption, "reached", lambda self: True)
        with pytest.raises(Preempted):
            sweep(later, copied, lanes=0)
    sweep(small_sweep(), copied, lanes=0)
    assert any((copied / "unfinished").glob("*/*"))
    sweep(later, copied, lanes=0)
    assert not any((copied / "unfinished").glob("*/*"))


@pytest.mark.slow
def test_a_saved_cohort_that_a_kill_left_half_deleted_is_trained_again(copied, tmp_path, monkeypatch):
    later = small_sweep(grids={"rates": {RATE: (2e-3, 8e-3), "seed": (0, 1)}})
    with monkeypatch.context() as patch:
        patch.setattr(runner.Preemption, "reached", lambda self: True)
        with pytest.raises(Preempted):
            sweep(later, copied, lanes=0)
    for description in [*(copied / "unfinished").rglob("meta"), *(copied / "unfinished").rglob("_CHECKPOINT_METADATA")]:
        shutil.rmtree(description) if description.is_dir() else description.unlink()
    found, expected = sweep(later, copied, lanes=0), sweep(later, tmp_path / "whole", lanes=0)
    assert {r.run: r.train_loss for r in found} == {r.run: r.train_loss for r in expected}
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


@pytest.mark.gpu
@pytest.mark.slow
def test_dropout_and_text_lanes_are_those_of_train_py(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("to be or not to be, that is the question. " * 60)
    base = small_base("gpt", num_heads=2, dropout=0.1)
    base.data = default_config("gpt").data
    base.data.update(name=f"text:{text}", context=8, augment="shift")
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
    assert programs.group.step_flops > 0
    monkeypatch.setattr(lane_choice, "memory_limit", lambda: six.bytes_per_device - 1)
    found = sweep(config, tmp_path / "less", lanes=0)
    assert {record.lanes for record in found} == {3}
    assert_same(by_run(found), by_run(vectorized))


@pytest.mark.slow
def test_devices_share_the_lanes_and_give_the_numbers_of_one(vectorized, tmp_path):
    for lanes in (0, 1):
        run = functools.partial(processes.sweep, small_sweep(), tmp_path / f"four{lanes}", lanes=lanes)
        process = processes.Process(tmp_path / "log", processes.on_devices, 4, run)
        assert process.wait() == 0, process.text()
        four = read_record_file(tmp_path / f"four{lanes}" / "records.jsonl")[0]
        assert {record.lanes for record in four} == {2 if lanes == 0 else 1}
        assert four[0].device.startswith("4 x")
        assert_same(by_run(four), by_run(vectorized))


@pytest.mark.slow
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


def test_runs_that_are_added_train_in_the_program_of_the_first_ones_also_after_an_interruption(tmp_path, monkeypatch):
    made, init = [], LaneProgram.__init__
    monkeypatch.setattr(
        LaneProgram, "__init__", lambda self, *args, **kw: (made.append(self), init(self, *args, **kw))[1]
    )
    config = small_sweep(grids={"rates": {RATE: (1e-6, 2e-6), "seed": (0, 1)}}, extend=2)
    whole = sweep(config, tmp_path / "whole", lanes=0)
    assert len(whole) == 8
    assert len(made) == 1
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    records = tmp_path / "cut" / "records.jsonl"
    records.write_text("".join(records.read_text().splitlines(keepends=True)[:6]))
    assert_same(by_run(sweep(config, tmp_path / "cut", lanes=0)), by_run(whole))
    assert len(made) == 2
    assert made[0].per_device == made[1].per_device


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


def test_the_commands_sweep_and_report(tmp_path):
    config = f"--config={ROOT / 'configs/sweeps/digits.py'}"
    only = "--config.grids.depths."
    grid = ["--config.scale=smoke", f"{only}model.depth=(4,)", f"{only}parametrization.preset=('depth_mup',)"]
    done, reported = run_lines([["sweep", config, *grid, "--workdir=s"], ["report", "s"]], cwd=tmp_path)
    assert (done.code, reported.code) == (0, 0), done.error + reported.error
    assert "3 runs in 1 compiled group" in done.out
    assert "3 runs, 0 diverged" in done.out
    assert (tmp_path / "s" / "report" / "report.html").exists()


def test_runs_that_an_interrupted_sweep_has_left_train_in_the_program_of_the_others(copied):
    records = copied / "records.jsonl"
    whole = records.read_text().splitlines(keepends=True)
    records.write_text("".join(whole[:-1]))
    sweep(small_sweep(), copied, lanes=6)
    first, again = (Record(**json.loads(line)) for line in (whole[-1], records.read_text().splitlines()[-1]))
    assert dataclasses.replace(again, wall_time_s=first.wall_time_s) == first  # the number of lanes, too


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
    widths = {"model.width": (8, 9, 10), RATE: (1e-3, 4e-3)}
    sweep(small_sweep(grids={"widths": widths}), tmp_path, lanes=0)
    assert traces[-1] <= 1.1 * traces[0]
