"""``--help`` of every command, and ``depthmup`` alone."""

import re
import subprocess
import sys

import pytest
from processes import ROOT, run_command

from depthmup_flax.commands import app


@pytest.mark.parametrize("name", app.COMMANDS)
def test_help_of_a_command_has_its_form_examples_and_flags(name):
    text = app.module_and_parser(name)[1].format_help()
    assert f"    depthmup {name}" in text
    assert f"depthmup {name}" in text.split("Examples:\n")[1]
    assert "--quiet" in text


def test_ways_to_ask_for_help_give_the_same():
    text = app.module_and_parser("train")[1].format_help()
    for words in (("-m", "depthmup_flax", "train", "-h"), ("train.py", "--config=nothing", "--help")):
        done = run_command(*words)
        assert (done.returncode, done.stderr, done.stdout) == (0, "", text)


def test_depthmup_alone_lists_every_command():
    text = app.usage()
    assert run_command("-m", "depthmup_flax").stdout == text + "\n"
    assert set(re.findall(r"^  ([\w-]+)  +\S", text, re.MULTILINE)) == set(app.COMMANDS)


def test_the_help_of_all_commands_imports_no_jax():
    code = """
import sys
from depthmup_flax.commands.app import COMMANDS, module_and_parser, usage
assert usage() and "numpy" not in sys.modules  # half a second that a list does not need
for name in COMMANDS:
    assert module_and_parser(name)[1].format_help()
heavy = {"jax", "flax", "tensorflow", "matplotlib"} & sys.modules.keys()
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
