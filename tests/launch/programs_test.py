"""What launch scripts, benchmarks and scripts of the docs start exists."""

import re

import pytest
from processes import ROOT

from depthmup_flax.commands.table import COMMANDS

STARTED = r"-m[\"', ]+(depthmup_flax\S*?)[\"', )]+([\w$]*)"
FILES = [path for folder in ("launch", "benchmarks", "docs") for path in sorted((ROOT / folder).rglob("*"))]
STARTING = [
    path for path in FILES if path.suffix in (".sh", ".sbatch", ".py", ".yaml") and re.search(STARTED, path.read_text())
]


@pytest.mark.parametrize("path", STARTING, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_script_starts_a_command_of_the_package(path):
    for program, command in re.findall(STARTED, path.read_text()):
        assert (program, command in COMMANDS) == ("depthmup_flax", True), (program, command)


def test_the_scripts_that_start_a_command_are_found():
    assert {"slurm_array.sbatch", "local.sh", "tpu_pod.sh", "run.sh", "starts.py", "reproduction.sh"} <= {
        path.name for path in STARTING
    }
