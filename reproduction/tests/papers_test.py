"""reproduction/papers: the registered stages grow one sweep, and its decisions are as registered."""

import dataclasses
import itertools

import numpy as np
import pytest
from planted_sweeps import sweep_of

from depthmup_flax.report.optimum import Estimate
from depthmup_flax.report.transfer import analyze
from depthmup_flax.search.sweep.grid import expand
from depthmup_flax.storage.sweep_records import LEARNING_RATE, read_sweep
from reproduction.papers import decisions, runs
from reproduction.papers.stages import FIFTY, STAGES, TEN, Stage


@pytest.mark.parametrize("figure", [TEN, FIFTY])
def test_stages_of_a_figure_have_one_base_and_end_with_five_seeds_of_every_curve(figure):
    stages = [stage for stage in STAGES if stage.figure == figure]
    assert len({str(stage.config().base) for stage in stages}) == 1
    points = {run.hash: run.point for stage in stages for run in expand(stage.config())}.values()
    curves = {}
    for point in points:
        key = point["parametrization.preset"], point["model.depth"], point[LEARNING_RATE]
        curves.setdefault(key, set()).add(point["seed"])
    assert all(seeds == set(range(5)) for seeds in curves.values())
    assert {(preset, depth) for preset, depth, _ in curves} == {
        *itertools.product(("depth_mup", "sp"), (8, 32)),
        ("depth_mup", 64),
    }


def test_a_stage_has_the_papers_epochs_images_and_width():
    base = next(stage for stage in STAGES if stage.figure == FIFTY).config().base
    assert (base.train.steps, base.train.batch_size) == (39_050, 64)
    assert (base.model.width, base.model.base_depth, base.data.train_examples) == (256, 8, 0)


@pytest.fixture
def two_stages(monkeypatch, tmp_path):
    """A small sweep in two stages, the second with another preset, whose records go to a temporary directory."""
    real = Stage.config

    def small(stage):
        config = real(stage)
        config.base.model.update(width=8, base_width=8)
        config.base.data.update(name="synthetic", train_examples=64, test_examples=16)
        config.base.train.update(steps=4, average_steps=2, log_every=2, batch_size=16)
        return config

    monkeypatch.setattr(Stage, "config", small)
    monkeypatch.setattr(runs, "RECORDS", tmp_path / "records")
    stages = [
        dataclasses.replace(
            STAGES[0],
            grids={
                preset: {
                    "parametrization.preset": (preset,),
                    "model.depth": (2,),
                    LEARNING_RATE: (2.0**-8,),
                    "seed": (0,),
                }
                for preset in presets
            },
        )
        for presets in (("depth_mup",), ("depth_mup", "sp"))
    ]
    monkeypatch.setattr(runs, "STAGES", stages)
    return tmp_path


def test_a_later_stage_adds_to_the_records_of_the_earlier_one(two_stages):
    runs.train([TEN], two_stages / "work", hours=1.0)
    found = read_sweep([two_stages / "records" / TEN]).records
    assert [record.point["parametrization.preset"] for record in found] == ["depth_mup", "sp"]


def test_committed_records_are_trained_no_second_time(two_stages):
    runs.train([TEN], two_stages / "work", hours=1.0)
    before = (two_stages / "records" / TEN / "records.jsonl.gz").read_bytes()
    runs.train([TEN], two_stages / "elsewhere", hours=1.0)
    assert (two_stages / "elsewhere" / TEN / "records.jsonl").read_text() == ""
    assert (two_stages / "records" / TEN / "records.jsonl.gz").read_bytes() == before


def planted(shift):
    """Depth-muP whose best rate moves by ``shift`` octaves from depth 8 to 32, five seeds."""
    moves = {8: 0.0, 32: shift}

    def loss(point):
        distance = np.log2(point[LEARNING_RATE]) + 10 - moves[point["model.depth"]]
        return 0.4 + 0.1 * distance**2 + 0.001 * point["seed"]

    axes = {"model.depth": (8, 32), LEARNING_RATE: [2.0**k for k in range(-13, -6)], "seed": tuple(range(5))}
    model = {"width": 256, "depth": 8, "base_width": 256, "base_depth": 8}
    sweep = sweep_of(loss, axes, model=model, x=LEARNING_RATE)
    (variant,) = analyze(dataclasses.replace(sweep.info, chance=2.3), sweep.records).variants
    return variant.rows[-1]


@pytest.mark.parametrize(
    ("shift", "said"), [(0.2, decisions.TRANSFERS), (0.8, decisions.DOES_NOT), (-2.0, decisions.DOES_NOT)]
)
def test_a_rate_transfers_if_its_shift_is_within_half_an_octave_and_its_regret_small(shift, said):
    row = planted(shift)
    assert decisions.transfer(row.shift, row.regret, tolerance=0.038) == said


def test_a_small_shift_with_a_large_regret_does_not_transfer():
    row = planted(0.4)
    assert decisions.transfer(row.shift, row.regret, tolerance=0.001) == decisions.DOES_NOT


def test_nothing_is_decided_with_fewer_than_three_seeds():
    two = Estimate(0.0, np.zeros(10), seeds=2)
    assert decisions.transfer(two, two, tolerance=0.038) == decisions.OPEN
