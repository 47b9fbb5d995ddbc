"""``depthmup completion``: what the TAB key offers."""

import shutil
import subprocess

import pytest
from processes import run_command

from depthmup_flax import shipped_configs
from depthmup_flax.__main__ import COMMANDS
from depthmup_flax.training.config import default_config, field_paths

# Words as bash's readline splits a line: = and : are words of their own.
TRY = r"""
source "$1"
COMP_LINE="$2" COMP_POINT=${#2}
read -ra COMP_WORDS <<< "$(sed 's/[=:]/ & /g' <<< "$2")"
[[ $2 == *' ' ]] && COMP_WORDS+=("")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_depthmup
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
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()

    return complete


def test_bash_completes_commands(completed):
    assert completed("depthmup ") == [*COMMANDS, "--help", "--version"]
    assert completed("depthmup sw") == ["sweep"]


def test_bash_completes_flags_of_the_command_alone(completed):
    assert completed("depthmup sweep --dry") == ["--dry_run"]
    assert completed("depthmup train --dry") == []
    assert completed("depthmup predict runs/digits --temp") == ["--temperature="]
    assert completed("depthmup train --config") == ["--config=", "--config."]


def test_bash_completes_names_of_configs_behind_the_equals_sign(completed):
    assert completed("depthmup train --config=dig") == ["digits"]
    assert completed("depthmup sweep --overwrite --config=sweeps/vi") == ["sweeps/vit"]
    assert set(completed("depthmup limits --config=")) == {
        n for n in shipped_configs.names() if n.startswith("limits/")
    }
    assert completed("depthmup config tiny_im") == ["tiny_imagenet_vit"]


def test_bash_completes_every_field(completed):
    assert completed("depthmup train --config.optimizer.lea") == ["--config.optimizer.learning_rate="]
    assert completed("depthmup sweep --config.base.train.batch") == ["--config.base.train.batch_size="]
    offered = set(completed("depthmup train --config."))
    assert offered >= {
        f"--config.{path}=" for model in ("res_mlp", "gpt") for path in field_paths(default_config(model))
    }


def test_bash_leaves_other_words_to_file_names(completed):
    assert completed("depthmup train --workdir=ru") == []
    assert completed("depthmup report ru") == []


def test_the_scripts_start_no_python(scripts):
    for shell in ("bash", "zsh", "fish"):
        text = (scripts / shell).read_text()
        assert "python" not in text
        assert "$(depthmup" not in text


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_is_valid_in_its_shell(shell, scripts):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not here")
    done = subprocess.run([shell, "-n", scripts / shell], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("words", [[], ["bash", "zsh"], ["bsh"]])
def test_a_wrong_shell_is_one_sentence(words):
    done = run_command("-m", "depthmup_flax", "completion", *words)
    assert done.returncode == 2
    assert done.stderr.startswith(("error: name one shell: depthmup completion bash", "error: no completion for 'bsh'"))
