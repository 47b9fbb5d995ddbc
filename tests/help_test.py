"""``--help`` of every command: exit 0, a screen, and nothing but what the command is for."""

import json
import re
import subprocess
import sys

import pytest
from processes import ROOT

from depthmup_flax import command_help
from depthmup_flax.__main__ import COMMANDS

WITH_CONFIG = ("train", "sweep", "tune", "check", "plan", "limits", "config")
WAYS = (  # to ask for the help of the sweep
    ("-m", "depthmup_flax.sweep", "--help"),
    ("-m", "depthmup_flax", "sweep", "-h"),
    ("-m", "depthmup_flax", "help", "sweep"),
    ("-m", "depthmup_flax", "sweep", "--config=nothing", "--nothing", "--help"),
)
LINES = [("-m", "depthmup_flax", name, "--help") for name in COMMANDS]
WRONG = ("-m", "depthmup_flax", "sweep", "--nothing_like_it")
LINES += [*WAYS, WRONG, ("train.py", "--help"), ("-m", "depthmup_flax")]

# Runs each command line in a fork of its own: an interpreter starts once.
PROGRAM = """
import json, os, runpy, sys

def run(words):
    sys.argv = words if words[0] == "train.py" else words[1:]
    if words[0] == "train.py":
        runpy.run_path("train.py", run_name="__main__")
    else:
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)

directory = sys.argv[1]
for number, words in enumerate(json.loads(sys.argv[2])):
    if os.fork():
        code = os.waitstatus_to_exitcode(os.wait()[1])
        with open(f"{directory}/{number}", "a") as file:
            print("exit code", code, file=file)
        continue
    os.dup2(os.open(f"{directory}/{number}", os.O_WRONLY | os.O_CREAT | os.O_APPEND), 1)
    os.dup2(1, 2)
    code = 0
    try:
        run(words)
    except SystemExit as end:
        code = end.code or 0
    print("heavy:", *{"jax", "flax", "tensorflow"} & sys.modules.keys())
    sys.stdout.flush()
    os._exit(code)
"""


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """What each command line of `LINES` prints, and at the end heavy packages that it imports, and its exit code."""
    directory = tmp_path_factory.mktemp("help")
    command = [sys.executable, "-c", PROGRAM, str(directory), json.dumps(LINES)]
    subprocess.run(command, cwd=ROOT, check=True)

    return {words: (directory / str(number)).read_text() for number, words in enumerate(LINES)}


@pytest.fixture
def help_of(printed):
    """The help that a command line of `LINES` prints."""

    def text(*words):
        text, _, end = printed[words].rpartition("heavy:")
        assert end == "\nexit code 0\n", printed[words]
        return text

    return text


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command_fits_a_screen_has_all_its_parts_and_imports_no_jax(name, help_of):
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


@pytest.mark.parametrize("words", WAYS)
def test_all_ways_to_ask_for_help_give_the_same(words, help_of):
    assert help_of(*words) == help_of("-m", "depthmup_flax", "sweep", "--help")


def test_train_py_has_the_help_of_depthmup_train(help_of):
    assert help_of("train.py", "--help") == help_of("-m", "depthmup_flax", "train", "--help")


def test_depthmup_alone_lists_every_command(help_of):
    text = help_of("-m", "depthmup_flax")
    assert set(re.findall(r"^  (\w+) +\S", text, re.MULTILINE)) >= set(COMMANDS)
    assert max(map(len, text.splitlines())) <= 100


def test_a_wrong_flag_points_to_help(printed):
    sentence = "error: unknown flag --nothing_like_it: --help lists the flags.\nexit code 2"
    assert printed[WRONG] == f"{sentence}\n"


def test_help_behind_two_dashes_is_a_word():
    assert command_help.is_asked_for(["a", "--help"])
    assert not command_help.is_asked_for(["--", "--help"])
    assert not command_help.is_asked_for(["--prompt=--help"])
