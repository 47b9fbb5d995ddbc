"""``depthmup completion``: what the TAB key offers."""

import os
import shutil
import subprocess

import pytest
from processes import ROOT, run_command

from depthmup_flax.commands.table import COMMANDS
from depthmup_flax.config.fields import default_config, field_paths
from depthmup_flax.models import MODELS

# Words as bash's readline splits a line: = and : are words of their own.
TRY = r"""
depthmup() { python -m depthmup_flax "$@"; }
source "$1"
COMP_LINE="$2" COMP_POINT=${#2} COMP_TYPE=9
read -ra COMP_WORDS <<< "$(sed 's/[=:]/ & /g' <<< "$2")"
[[ $2 == *' ' ]] && COMP_WORDS+=("")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
compopt() { :; }
_python_argcomplete depthmup "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
printf '%s\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory):
    directory = tmp_path_factory.mktemp("completion")
    for shell in ("bash", "zsh", "fish"):
        done = run_command("-m", "depthmup_flax", "completion", shell)
        assert (done.returncode, done.stderr) == (0, "")
        (directory / shell).write_text(done.stdout)
    return directory


@pytest.fixture(scope="module")
def completed(scripts):
    if shutil.which("bash") is None:
        pytest.skip("bash is not here")

    def complete(line):
        command = ["bash", "-c", TRY, "try", scripts / "bash", line]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, env=dict(os.environ))
        return [word.strip() for word in done.stdout.split()]

    return complete


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("depthmup sw", {"sweep"}),
        ("depthmup sweep --dry", {"--dry_run"}),
        ("depthmup train --dry", set()),
        ("depthmup train --config", {"--config", "--config."}),
        ("depthmup train --config=dig", {"digits", "digits_deep"}),
        ("depthmup sweep --overwrite --config=sweeps/vi", {"sweeps/vit"}),
        ("depthmup config tiny_im", {"tiny_imagenet_vit"}),
        ("depthmup sweep --config.base.train.batch", {"--config.base.train.batch_size"}),
    ],
)
def test_bash_completes_commands_flags_configs_and_fields(line, offered, completed):
    assert set(completed(line)) == offered


def test_bash_completes_every_command_and_every_field(completed):
    assert set(completed("depthmup ")) >= {*COMMANDS, "--help", "--version"}
    assert set(completed("depthmup train --config.")) >= {
        f"--config.{path}" for model in MODELS for path in field_paths(default_config(model))
    }


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_is_valid_in_its_shell(shell, scripts):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not here")
    done = subprocess.run([shell, "-n", scripts / shell], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("words", [[], ["bash", "zsh"], ["bsh"]])
def test_a_wrong_shell_is_an_error(words):
    assert run_command("-m", "depthmup_flax", "completion", *words).returncode == 2
