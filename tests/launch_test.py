"""The scripts of launch/, run with stand-ins for the programs of the cluster that print how they are called."""

import os
import pathlib
import shutil
import signal
import subprocess
import time

import pytest

LAUNCH = pathlib.Path(__file__).parents[1] / "launch"
SCRIPTS = sorted([*LAUNCH.glob("*.sh"), *LAUNCH.glob("*.sbatch")])
JOINED = "$JAX_COORDINATOR_ADDRESS $JAX_NUM_PROCESSES $JAX_PROCESS_ID"
FLAGS = ("--config=c.py", "--config.name=a b")
PORT = '[ "$1" = -c ] && echo 4711 && exit\n'  # what local.sh asks Python for


def stand_in(directory, name, body='printf "%s" "$(basename "$0")"; printf " [%s]" "$@"; echo\n'):
    """A program that prints its arguments, one in each pair of brackets."""
    path = directory / name
    path.write_text(f"#!/usr/bin/env bash\n{body}")
    path.chmod(0o755)


def run(script, *args, path, **env):
    """What a script prints, in order, and its exit code."""
    env = {**os.environ, "PATH": f"{path}:{os.environ['PATH']}", "LAUNCH_PYTHON": f"{path}/python", **env}
    done = subprocess.run(["bash", LAUNCH / script, *args], env=env, text=True, capture_output=True, cwd=LAUNCH.parent)
    return done.stdout.splitlines(), done.returncode


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shellcheck_finds_nothing():
    done = subprocess.run(["shellcheck", *SCRIPTS], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(("sweep", "last"), [((), "127.0.0.1:4711 2 {}"), (("sweep",), "--shard={}/2")])
def test_local_starts_each_process_with_its_number_and_its_gpus(tmp_path, sweep, last):
    stand_in(tmp_path, "python", PORT + f'echo "$(printf "[%s] " "$@" "$CUDA_VISIBLE_DEVICES" "{JOINED}")"\n')
    lines, code = run("local.sh", "2", *sweep, *FLAGS, path=tmp_path, GPUS="2")
    assert code == 0
    for number, line in enumerate(sorted(lines)):
        assert "[--config=c.py] [--config.name=a b]" in line
        assert f"[{last.format(number)}]" in line
        assert f"[{2 * number},{2 * number + 1}]" in line
        assert ("train.py]" in line) == (not sweep)


def test_local_ends_with_the_code_of_the_process_that_failed_first_and_ends_the_others(tmp_path):
    stand_in(tmp_path, "python", PORT + '[ "$JAX_PROCESS_ID" = 1 ] && exit 3\nexec sleep 60\n')
    start = time.monotonic()
    _, code = run("local.sh", "3", *FLAGS, path=tmp_path)
    assert code == 3
    assert time.monotonic() - start < 30


@pytest.mark.parametrize("to", ["the script", "its process group"])
def test_local_forwards_sigterm_and_waits_for_the_checkpoints(tmp_path, to):
    stand_in(
        tmp_path, "python", PORT + 'trap "sleep 0.2; exit 75" TERM; touch "$0.$$"; while true; do sleep 0.1; done\n'
    )
    env = {**os.environ, "LAUNCH_PYTHON": f"{tmp_path}/python"}
    launched = subprocess.Popen(["bash", LAUNCH / "local.sh", "2", *FLAGS], env=env, start_new_session=True)
    while len(list(tmp_path.iterdir())) < 3:
        time.sleep(0.05)
    send = os.kill if to == "the script" else os.killpg
    send(launched.pid, signal.SIGTERM)
    assert launched.wait(30) == 75


@pytest.mark.parametrize(("code", "requeued"), [(0, False), (2, False), (75, True)])
@pytest.mark.parametrize(("script", "job"), [("slurm.sbatch", "7"), ("slurm_array.sbatch", "7_3")])
def test_slurm_requeues_a_preempted_job_alone(tmp_path, script, job, code, requeued):
    stand_in(tmp_path, "srun", f'printf "srun"; printf " [%s]" "$@"; echo\nexit {code}\n')
    stand_in(tmp_path, "scontrol")
    array = {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3", "SLURM_ARRAY_TASK_MAX": "7"}
    (started, *rest), ended = run(script, *FLAGS, path=tmp_path, SLURM_JOB_ID="7", **array)
    assert "[--config=c.py] [--config.name=a b]" in started
    assert script == "slurm.sbatch" or started.endswith("[--shard=3/8]")
    assert rest == ([f"scontrol [requeue] [{job}]"] if requeued else [])
    assert ended == (0 if requeued else code)


def test_tpu_pod_copies_installs_starts_on_all_workers_and_follows_the_first(tmp_path):
    stand_in(tmp_path, "gcloud", 'printf "[%s] " "$@" | tr "\\n" " "; echo\n')
    lines, code = run("tpu_pod.sh", "vit", "--zone=z", "--", *FLAGS, path=tmp_path)
    assert code == 0
    assert [" [scp] " in line for line in lines] == [True, False, False, False]
    assert ["[--worker=all]" in line for line in lines] == [True, True, True, False]
    assert all("[--zone=z]" in line for line in lines)
    assert "train.py --config=c.py --config.name=a\\ b" in lines[2]
    assert "run.log" in lines[3]
