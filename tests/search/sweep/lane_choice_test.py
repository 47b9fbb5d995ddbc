"""How many lanes a program has: as many as fit into memory, and more only where they are faster."""

import dataclasses
import math
import types

import jax
import numpy as np
import pytest
from small_runs import small_sweep

from depthmup_flax.search.sweep import lane_choice
from depthmup_flax.search.sweep.grid import expand
from depthmup_flax.search.sweep.lane_choice import Chosen
from depthmup_flax.trainer.engine.lanes import lane_mesh
from depthmup_flax.util.errors import InputError


@pytest.mark.parametrize("lanes", [0, None])
def test_lanes_that_a_tpu_refuses_to_compile_do_not_fit(lanes):
    def for_runs(runs, n):
        if n > most:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Ran out of memory on HBM.")
        measured = lambda runs: 1.0 / n
        return types.SimpleNamespace(
            per_device=n, compile_s=0.0, bytes_per_device=0, experiment=task, seconds_per_run_step=measured
        )

    task = experiment_of(steps=1000)
    programs, runs = types.SimpleNamespace(mesh=lane_mesh(), for_runs=for_runs, experiment=task), expand(small_sweep())
    most = 3
    assert lane_choice.choose_program(programs, runs, lanes, Chosen())[0].per_device in (2, 3)
    most = 0
    with pytest.raises(InputError, match=r"^train.batch_size is 16: a single run does not fit .*model.remat.$"):
        lane_choice.choose_program(programs, runs, lanes, Chosen())


def experiment_of(steps, convolves=False, shapes=()):
    config = types.SimpleNamespace(train=types.SimpleNamespace(batch_size=1))
    return types.SimpleNamespace(config=config, total_steps=steps, convolves=convolves, state_shapes=lambda: shapes)


@dataclasses.dataclass
class FakeProgram:
    per_device: int
    experiment: object
    per_lane: object
    compile_s: float = 0.0
    bytes_per_device: int = 0

    def seconds_per_run_step(self, runs):
        return self.per_lane(self.per_device)


def test_measuring_takes_more_lanes_only_where_they_are_faster():
    def chosen(per_lane, last=1, compile_s=0.0, convolves=False):
        task = experiment_of(1000, convolves)
        for_runs = lambda runs, n: FakeProgram(n, task, per_lane, compile_s)
        programs = types.SimpleNamespace(mesh=lane_mesh(), for_runs=for_runs, experiment=task)
        return lane_choice.choose_program(programs, list(range(64)), None, Chosen(last))[0].per_device

    assert lane_choice.candidates(64, 1) == [1, 4, 16, 64]
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
    monkeypatch.setattr(lane_choice.sharding, "platform", lambda mesh: platform)
    best, compiled = 4 if platform == "cpu" else 16, []

    def tried(task, chosen):
        def for_runs(runs, n):
            compiled.append(n)
            return FakeProgram(n, task, lambda n: abs(math.log2(n / best)) + 1)

        compiled.clear()
        programs = types.SimpleNamespace(mesh=lane_mesh(), for_runs=for_runs, experiment=task)
        lane_choice.choose_program(programs, list(range(64)), None, chosen)
        return list(compiled)

    first, chosen = experiment_of(1000), Chosen()
    assert tried(first, chosen) == expected
    assert tried(experiment_of(1000), chosen) == [best]
    assert len(tried(experiment_of(1000, shapes=(np.zeros(3),)), chosen)) > 1
