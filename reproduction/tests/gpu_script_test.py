"""reproduction/gpu.sh: an hour of a GPU in calls that end in time and continue."""

import os
import re
import subprocess
import sys

import pytest
from processes import ROOT

AGAIN = 75


def call(*arguments, out="", **environment):
    """The exit code and the output of a call at tiny sizes."""
    given = {**os.environ, "TINY": "1", "OUT": str(out), "PYTHON": sys.executable, **environment}
    command = [ROOT / "reproduction" / "gpu.sh", *arguments]
    done = subprocess.run(command, env=given, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def planned():
    """(figure, config, scale, minutes) of each line of the plan."""
    _, plan = call("--plan")
    return [line.split() for line in plan.splitlines()[1:]]


def test_the_plan_has_the_figures_of_both_papers_and_takes_about_an_hour():
    figures = {re.sub("[ab]$", "", name) for name, *_ in planned()}
    assert figures == {f"tp6-fig{n}" for n in range(10, 14)} | {f"b24-fig{n}" for n in range(2, 7)}
    assert 45 <= sum(int(minutes) for *_, minutes in planned()) <= 70


def test_every_config_of_the_plan_exists():
    places = [ROOT / "configs/sweeps", ROOT / "reproduction/configs/sweeps", ROOT / "reproduction/configs/limits"]
    assert [name for _, name, *_ in planned() if not any((place / f"{name}.py").exists() for place in places)] == []


@pytest.mark.parametrize("argument", ["--seconds=soon", "tp6-fig99", "--unknown"])
def test_an_unknown_argument_is_refused(argument, tmp_path):
    assert call(argument, out=tmp_path)[0] == 2


def test_without_time_it_asks_for_another_call(tmp_path):
    code, said = call("--seconds=1", out=tmp_path)
    assert code == AGAIN
    assert "again" in said


@pytest.mark.slow
def test_a_call_that_runs_out_of_time_is_continued_by_the_next(tmp_path):
    figures = "tp6-fig13", "b24-fig6"
    assert call("--seconds=31", *figures, out=tmp_path)[0] == AGAIN
    assert not list(tmp_path.glob("*/done"))
    code, said = call("--seconds=900", *figures, out=tmp_path)
    assert code == 0, said
    assert sorted(path.parent.name for path in tmp_path.glob("*/report.txt")) == sorted(figures)
    assert "again" not in call("--seconds=31", *figures, out=tmp_path)[1]


@pytest.mark.slow
def test_a_figure_that_fails_does_not_stop_the_next(tmp_path):
    (tmp_path / "tp6-fig13").mkdir()
    (tmp_path / "tp6-fig13" / "sweep.json").write_text("{}")
    (tmp_path / "tp6-fig13" / "records.jsonl").write_text("{}\n")
    code, said = call("--seconds=900", "tp6-fig13", "b24-fig6", out=tmp_path)
    assert code == 1
    assert "tp6-fig13 failed" in said
    assert (tmp_path / "b24-fig6" / "done").exists()
