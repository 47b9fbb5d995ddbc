"""``--help`` of every command: exit 0, a screen, and nothing but what the command is for."""

import re
import subprocess
import sys

import pytest
from processes import ROOT, run_command

from depthmup_flax.commands import app, parser, table

WITH_CONFIG = ("train", "sweep", "tune", "forecast", "check", "plan", "config")


def help_of(name):
    return table.module_and_parser(name)[1].format_help()


@pytest.mark.parametrize("name", table.COMMANDS)
def test_help_of_a_command_fits_a_screen_and_has_all_its_parts(name):
    text = help_of(name)
    lines = text.splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 100
    assert re.fullmatch(r"[A-Z].*\.", lines[0]) or lines[0].endswith("...")
    assert lines[2].startswith(f"    depthmup {name}")
    examples = text.split("Examples:\n")[1].split("\n\n")[0].splitlines()
    assert len(examples) in (3, 4)
    assert f"depthmup {name}" in examples[0]
    flags = text.split("Flags, with their defaults:\n")[1].split("\n\n")[0].splitlines()
    assert all(re.match(r"  --[\w.]+\S*.*  \S", line) for line in flags)
    assert (name in WITH_CONFIG) == flags[0].startswith("  --config=")
    assert name not in WITH_CONFIG or re.search("depthmup config (NAME|[a-z/]+)", text)


@pytest.mark.parametrize(
    "words",
    [
        ("-m", "depthmup_flax", "train", "-h"),
        ("-m", "depthmup_flax", "help", "train"),
        ("-m", "depthmup_flax", "train", "--config=nothing", "--nothing", "--help"),
        ("train.py", "--help"),
    ],
)
def test_all_ways_to_ask_for_help_give_the_same(words):
    done = run_command(*words)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", help_of("train") + "\n")


def test_depthmup_alone_lists_every_command():
    text = app.usage()
    assert run_command("-m", "depthmup_flax").stdout == text + "\n"
    groups = [set(re.findall(r"^  ([\w-]+) +\S", paragraph, re.MULTILINE)) for paragraph in text.split("\n\n")]
    assert groups[1] == {"train", "tune", "forecast", "sweep", "report", "predict"}  # of every day
    assert {name for group in groups[1:-2] for name in group} == set(table.COMMANDS)
    assert max(map(len, text.splitlines())) <= 100


def test_help_after_two_dashes_is_a_word():
    assert parser.is_help_asked_for(["a", "--help"])
    assert parser.is_help_asked_for(["--help=1"])
    assert not parser.is_help_asked_for(["--", "--help"])
    assert not parser.is_help_asked_for(["--prompt=--help"])


def test_all_commands_are_imported_in_one_process_and_their_help_imports_no_jax():
    code = """
import sys
from depthmup_flax.commands.table import COMMANDS, module_and_parser
for name in COMMANDS:
    assert module_and_parser(name)[1].format_help()
heavy = {"jax", "flax", "tensorflow", "matplotlib"} & sys.modules.keys()
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
