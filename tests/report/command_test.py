"""The command ``depthmup report``: what it prints, finds and opens."""

import json
import os
import shlex
import sys

import processes
from planted_sweeps import RATES, X, parabola, sweep_of, write
from processes import run_command, run_lines

from depthmup_flax.commands.report import work_below

SWEEP = sweep_of(parabola, {X: RATES[4:6]})  # one size: its reports have one figure


def test_the_command_prints_tables_and_paths_and_refuses_a_directory_without_a_sweep(tmp_path):
    (tmp_path / "runs" / "digits").mkdir(parents=True)
    sweep = write(tmp_path / "sweep", SWEEP)
    lines = ["report", sweep, f"--out={tmp_path / 'out'}"], ["report", str(tmp_path)], ["report"]
    done, no_sweep, nothing = run_lines([[str(word) for word in line] for line in lines], cwd=tmp_path)
    assert done.code == 0, done.error
    assert "best learning rate" in done.out
    assert str(tmp_path / "out" / "report.html") in done.out
    assert no_sweep.refuses
    assert f"name one of those below it, {sweep}." in no_sweep.error
    assert nothing.refuses
    assert "there is no sweep and no run below ./runs: name the --workdir of a sweep" in nothing.error


def test_without_a_directory_the_report_is_of_the_sweep_that_was_written_to_last(tmp_path):
    for k, name in enumerate(("new", "newest", "old")):
        path = tmp_path / "runs" / name
        path.parent.mkdir(exist_ok=True)
        write(path, SWEEP)
        for file in ("sweep.json", "records.jsonl"):
            os.utime(path / file, (k, k))
    os.utime(tmp_path / "runs" / "newest" / "records.jsonl", (9, 9))
    done = run_command("-m", "depthmup_flax", "report", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "the newest sweep: runs/newest"
    assert (tmp_path / "runs" / "newest" / "report" / "report.html").exists()


def opened(directory, environment):
    """What the command with ``--open`` prints with these variables."""
    nowhere = dict.fromkeys(("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"), "")
    sweep = write(directory / "sweep", SWEEP)
    words = ("-m", "depthmup_flax", "report", str(sweep), "--open")
    process = processes.Process(
        directory / "log", processes.with_environment, nowhere | environment, processes.command, *words
    )
    assert process.wait() == 0, process.text()
    return process.text()


def test_open_says_the_path_of_the_page_where_there_is_no_display(tmp_path):
    text = opened(tmp_path, {})
    assert f"cannot open a browser: open {tmp_path}/sweep/report/report.html yourself" in text


def test_open_gives_the_address_of_the_page_to_the_browser(tmp_path):
    program = "import pathlib, sys; pathlib.Path(sys.argv[1]).write_text(sys.argv[2])"
    browser = shlex.join([sys.executable, "-c", program, str(tmp_path / "address")])
    text = opened(tmp_path, {"BROWSER": f"{browser} %s"})
    assert "no browser" not in text
    assert (tmp_path / "address").read_text() == (tmp_path / "sweep/report/report.html").as_uri()


def test_work_below_a_directory_has_the_targets_run_of_a_search_and_not_its_comparison(tmp_path):
    search = write(tmp_path / "search", SWEEP)
    write(search / "compare", SWEEP)
    (search / "target").mkdir()
    (search / "target" / "metrics.jsonl").touch()
    for path, kind in ((search, "tune"), (search / "target", "run")):
        (path / "workdir.json").write_text(json.dumps({"kind": kind}))
    assert set(work_below(tmp_path)) == {search, search / "target"}
