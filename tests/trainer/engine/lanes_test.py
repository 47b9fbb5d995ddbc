"""Lanes: which run gets which, and that neither they nor several steps in a call change numbers."""

import pytest
from small_runs import RATE, programs_of, small_base, small_sweep

from depthmup_flax import powers_of_two
from depthmup_flax.search.sweep.grid import expand, structural_groups
from depthmup_flax.trainer.engine.device_batches import CallLength
from depthmup_flax.trainer.engine.lanes import Cohort, cohorts, lay_out, one_seed_fits, train
from depthmup_flax.trainer.engine.task import Periods


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


def outcomes_of(program, runs):
    """Hash of a run -> its outcome and mean losses of time slices."""
    cohort = Cohort.of(program, runs)
    outcomes = train(cohort, lambda cohort: None)
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
