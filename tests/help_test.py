"""``--help`` of every command: exit 0, a screen, and nothing but what the command is for."""

import re
import subprocess
import sys

import pytest
from processes import ROOT, run_command

from depthmup_flax.commands import parser
from depthmup_flax.commands.app import COMMANDS

WITH_CONFIG = ("train", "sweep", "tune", "check", "plan", "limits", "config")


def help_of(*words):
    done = run_command(*words)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command_fits_a_screen_and_has_all_its_parts(name):
    text = help_of("-m", "depthmup_flax", name, "--help")
    lines = text.splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 100
    assert re.fullmatch(r"[A-Z].*\.", lines[0]) or lines[0].endswith("...")
    assert lines[2].startswith(f"    depthmup {name}")
    examples = text.split("Examples:\n")[1].split("\n\n")[0].splitlines()
    assert len(examples) == 3
    assert f"depthmup {name}" in examples[0]
    assert "--helpfull" not in text  # absl's own flags and words
    flags = text.split("Flags, with their defaults:\n")[1].split("\n\n")[0].splitlines()
    assert all(re.match(r"  --[\w.]+\S*.*  \S", line) for line in flags)
    assert (name in WITH_CONFIG) == flags[0].startswith("  --config=")
    assert name not in WITH_CONFIG or re.search("depthmup config (NAME|[a-z/]+)", text)


@pytest.mark.parametrize(
    "words",
    [
        ("-m", "depthmup_flax", "sweep", "-h"),
        ("-m", "depthmup_flax", "help", "sweep"),
        ("-m", "depthmup_flax", "sweep", "--config=nothing", "--nothing", "--help"),
    ],
)
def test_all_ways_to_ask_for_help_give_the_same(words):
    assert help_of(*words) == help_of("-m", "depthmup_flax", "sweep", "--help")


def test_train_py_has_the_help_of_depthmup_train():
    assert help_of("train.py", "--help") == help_of("-m", "depthmup_flax", "train", "--help")


def test_depthmup_alone_lists_every_command():
    text = help_of("-m", "depthmup_flax")
    assert set(re.findall(r"^  (\w+) +\S", text, re.MULTILINE)) >= set(COMMANDS)
    assert max(map(len, text.splitlines())) <= 100


def test_a_wrong_flag_points_to_help():
    done = run_command("-m", "depthmup_flax", "sweep", "--nothing_like_it")
    assert done.returncode == 2
    assert done.stderr == "error: unknown flag --nothing_like_it: --help lists the flags.\n"


def test_help_after_two_dashes_is_a_word():
    assert parser.is_help_asked_for(["a", "--help"])
    assert not parser.is_help_asked_for(["--", "--help"])
    assert not parser.is_help_asked_for(["--prompt=--help"])


@pytest.mark.parametrize("name", COMMANDS)
def test_help_imports_no_jax(name):
    code = f"""
import sys
from depthmup_flax.commands.app import main
try:
    main([{name!r}, "--help"])
finally:
    assert not {{"jax", "flax", "tensorflow"}} & sys.modules.keys()
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
