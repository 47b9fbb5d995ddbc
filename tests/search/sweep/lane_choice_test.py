"""How many lanes a program has: as many as fit into memory, by the work of a step, and never by a clock."""

import types

import jax
import pytest

from depthmup_flax.search.sweep import lane_choice
from depthmup_flax.trainer.engine.lanes import lane_mesh
from depthmup_flax.util.errors import InputError


def programs_for(runs, flops=1, convolves=False, most=10**6):
    """Programs of a group of that many runs, of which ``most`` at a time can be compiled."""

    def for_runs(runs, n):
        if n > most:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Ran out of memory on HBM.")
        return types.SimpleNamespace(per_device=n, bytes_per_device=0)

    config = types.SimpleNamespace(train=types.SimpleNamespace(batch_size=16))
    group = types.SimpleNamespace(
        runs=[types.SimpleNamespace(config=config)] * runs,
        experiment=types.SimpleNamespace(convolves=convolves),
        step_flops=flops,
    )
    return types.SimpleNamespace(mesh=lane_mesh(jax.devices()[:1]), group=group, for_runs=for_runs)


@pytest.mark.parametrize("lanes", [0, None])
def test_lanes_that_a_tpu_refuses_to_compile_do_not_fit(lanes):
    chosen = lambda most: (
        lane_choice.choose_program(programs := programs_for(6, most=most), programs.group.runs, lanes).per_device
    )
    assert chosen(3) in (2, 3)
    with pytest.raises(InputError, match=r"^train.batch_size is 16: a single run does not fit .*model.remat.$"):
        chosen(0)


@pytest.mark.parametrize(
    ("platform", "runs", "fields", "expected"),
    [
        ("cpu", 64, {"flops": 0}, 64),
        ("cpu", 64, {"flops": 1e5}, 64),
        ("cpu", 64, {"flops": 2.2e6}, 4),
        ("cpu", 6, {"flops": 2.2e6}, 3),  # two cohorts without an empty lane
        ("cpu", 64, {"flops": 5e7}, 1),
        ("cpu", 64, {"convolves": True}, 1),
        ("gpu", 64, {"flops": 5e12, "convolves": True}, 64),
    ],
)
@pytest.mark.parametrize("left", [1.0, 0.3])
def test_lanes_depend_on_the_work_of_a_step_and_not_on_the_runs_that_are_left(
    platform, runs, fields, expected, left, monkeypatch
):
    monkeypatch.setattr(lane_choice.sharding, "platform", lambda mesh: platform)
    programs = programs_for(runs, **fields)
    found = lane_choice.choose_program(programs, programs.group.runs[: int(runs * left) or 1], None)
    assert found.per_device == expected


def group_of(points, flops=1e5, steps=500):
    """A group whose runs have these learning rates, momenta and seeds; the sweep's axes are rates and seeds."""
    names = ("rate", "momentum", "seed")
    runs = []
    for point in points:
        values = dict(zip(names, point, strict=True))
        runs.append(types.SimpleNamespace(hyperparameters=values, seed=values["seed"]))
    experiment = types.SimpleNamespace(convolves=False, total_steps=steps)
    return types.SimpleNamespace(runs=runs, experiment=experiment, step_flops=flops, free=("rate", "seed"))


GRID = [(rate, 0.9, seed) for rate in (1, 2, 4, 8) for seed in (0, 1)]


@pytest.mark.parametrize(
    ("points", "fields", "expected"),
    [
        ([(16, 0.9, 0)], {}, True),
        ([(16, 0.9, 0), (16, 0.9, 5)], {}, True),
        ([(16, 0.9, 0), (16, 0.9, 5), (16, 0.9, 6)], {}, False),  # three seeds
        ([(16, 0.5, 0)], {}, False),  # the momentum is a constant of the programs
        ([(16, 0.9, 0)], {"steps": 10**6}, False),  # empty lanes would compute longer than a compilation takes
        ([(16, 0.9, 0)], {"steps": 10**6, "flops": 1e8}, True),  # one lane, which is never empty
    ],
)
def test_a_group_trains_in_the_programs_of_an_earlier_one_if_they_have_its_values_and_room(points, fields, expected):
    mesh = lane_mesh(jax.devices()[:1])
    assert lane_choice.serves(group_of(GRID, **fields), group_of(points, **fields), mesh, None) is expected
