"""The command ``depthmup report``: what it prints and finds."""

import os

import pytest
from planted_sweeps import RATES, X, data_of, parabola, sweep_of, write
from processes import run_lines

from depthmup_flax.commands.report import transferred_rate

SWEEP = sweep_of(parabola, {X: RATES[4:6]})  # one size: its reports have one figure


@pytest.mark.parametrize(
    ("drift", "rate"), [({"mup": 2.0}, 2.0**-8), ({"mup": 0.0}, None), ({"mup": 2.0, "depth_mup": 2.0}, None)]
)
def test_the_rate_of_the_only_variant_that_transfers_goes_to_the_large_run(drift, rate):
    """``drift``: octaves by which the best rate moves from depth 4 to 16, by preset."""

    def loss(point):
        moved = drift.get(point["parametrization.preset"], 0.0) * (point["model.depth"] > 4)
        return parabola(point, best=-8.0 - moved, noise=0.01)

    axes = {"parametrization.preset": ("depth_mup", "mup"), "model.depth": (4, 16), X: RATES, "seed": (0, 1, 2)}
    data = data_of(sweep_of(loss, axes))
    assert transferred_rate(data) == rate
    assert transferred_rate(data | {"x": "optimizer.kwargs.b1"}) is None


def test_the_command_prints_tables_and_paths_and_takes_the_sweep_that_was_written_to_last(tmp_path):
    for k, name in enumerate(("new", "newest", "old")):
        path = tmp_path / "runs" / name
        path.parent.mkdir(exist_ok=True)
        write(path, SWEEP)
        for file in ("sweep.json", "records.jsonl"):
            os.utime(path / file, (k, k))
    os.utime(tmp_path / "runs" / "newest" / "records.jsonl", (9, 9))
    write(tmp_path / "runs" / "newest" / "compare", SWEEP)  # a part of the search's report
    newest, done, no_sweep = run_lines(
        [["report"], ["report", "runs/old", f"--out={tmp_path / 'out'}"], ["report", str(tmp_path)]], cwd=tmp_path
    )
    assert newest.code == 0, newest.error
    assert newest.out.splitlines()[0] == "the newest sweep: runs/newest"
    assert (tmp_path / "runs" / "newest" / "report" / "report.html").exists()
    assert done.code == 0, done.error
    assert "best learning rate" in done.out
    assert str(tmp_path / "out" / "report.html") in done.out
    assert no_sweep.refuses
    assert "holds no sweep" in no_sweep.error
