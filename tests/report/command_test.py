"""The command ``depthmup report``: what it prints and finds."""

import os

from planted_sweeps import RATES, X, parabola, sweep_of, write
from processes import run_lines

SWEEP = sweep_of(parabola, {X: RATES[4:6]})  # one size: its reports have one figure


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
