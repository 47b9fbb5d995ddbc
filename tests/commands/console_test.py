"""What a command line shows, and a user of the library does not hear."""

import ast
import logging
import os
import pty
import sys

import processes
import pytest
from processes import ROOT, run_command

from depthmup_flax.commands import console
from depthmup_flax.util import messages

SMALL = ("--config.model.width=8", "--config.model.depth=2", "--config.train.batch_size=16", "--config.train.steps=20")


def logs_lines():
    log = logging.getLogger("depthmup_flax.some.module")
    log.info("progress")
    log.info("the end", extra=messages.RESULT)
    log.warning("look %d", 1)
    log.error("no")


def shown_lines(quiet):
    console.show().quiet = quiet
    logs_lines()
    messages.next_step("depthmup report runs")
    return 0


@pytest.mark.parametrize("quiet", [False, True])
def test_messages_are_plain_lines_and_quiet_leaves_results_and_warnings(quiet, tmp_path):
    process = processes.Process(tmp_path / "log", shown_lines, quiet)
    assert process.wait() == 0
    kept = ["the end", "warning: look 1", "error: no"]
    assert process.text().splitlines() == (kept if quiet else ["progress", *kept, "next: depthmup report runs"])


def test_a_user_of_the_library_hears_of_warnings_alone(capfd):
    logs_lines()
    assert "progress" not in "".join(capfd.readouterr())


def both_streams():
    """Writes to a terminal that is standard output and error; the exit code says whether lines are whole."""
    master, slave = pty.openpty()
    sys.stdout = sys.stderr = os.fdopen(slave, "w")
    console.show()
    assert messages.rewrites_lines()
    console.show().quiet = True
    assert not messages.rewrites_lines()
    logs_lines()
    expected, text = b"the end\r\nwarning: look 1\r\nerror: no\r\n", b""
    while len(text) < len(expected):
        text += os.read(master, 100)
    return 0 if text == expected else 1


def test_only_a_terminal_has_a_line_that_is_rewritten_and_not_with_quiet(tmp_path):
    assert not messages.rewrites_lines()
    assert processes.Process(tmp_path / "log", both_streams).wait() == 0


def test_a_run_says_first_where_it_is_and_last_what_is_next_and_a_quiet_one_its_result_alone(tmp_path):
    command = (ROOT / "train.py", "--config=digits", *SMALL)
    done = run_command(*command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    first, *_, last = done.stdout.splitlines()
    assert (first, last) == ("--workdir=runs/digits", "next: in Python, dm.load_run('runs/digits')")
    assert (tmp_path / "runs/digits/result.json").is_file()
    quiet = run_command(*command, "--workdir=runs/digits", "--quiet", cwd=tmp_path)
    assert (quiet.returncode, quiet.stderr) == (0, "")
    (line,) = quiet.stdout.splitlines()
    assert "completed: 20 steps" in line


def calls_print(source):
    calls = [node.func for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return any(isinstance(function, ast.Name) and function.id == "print" for function in calls)


def test_the_library_prints_nothing_but_in_commands():
    """Progress goes to loggers: `print` is for the commands, and for processes that end at once."""
    allowed = {"devices/distributed.py"}
    package = ROOT / "depthmup_flax"
    printing = {str(path.relative_to(package)) for path in package.rglob("*.py") if calls_print(path.read_text())}
    assert {path for path in printing if not path.startswith("commands/")} - allowed == set()
