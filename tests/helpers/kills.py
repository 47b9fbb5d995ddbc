"""Kills a command at random moments, starts it again until it completes, and compares its files with undisturbed ones.

    python tests/helpers/kills.py train sweep tune --moments 50
    python tests/helpers/kills.py train sweep tune --moments 50 --emulator
    python tests/helpers/kills.py train --moments 50 --workdir gs://bucket/kills

Half of the moments are random times. The others are random writes: just before a file below the work directory is
created, renamed or deleted, or up to 5 ms after; with --emulator, which starts a bucket on this machine, at a request
that writes an object, which half of the time then fails. (In another bucket all moments are times.) Most signals are
SIGKILL, some SIGTERM, SIGINT and SIGHUP. Prints a row per command, and exits with 1 if anything differs.
"""

import argparse
import dataclasses
import http
import itertools
import json
import logging
import os
import pathlib
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import absl.logging
import jax
import numpy as np
import processes
from etils import epath
from small_runs import json_without, last_state, outcomes

from depthmup_flax.util import errors

SIGNALS = {signal.SIGKILL: 7, signal.SIGTERM: 1, signal.SIGINT: 1, signal.SIGHUP: 1}  # with weights
# Exit codes of a process that a signal ends: before its handler is installed, or after the state is saved.
CODES = {number: {-number, 128 + number, errors.PREEMPTED} for number in SIGNALS} | {signal.SIGKILL: {-signal.SIGKILL}}
RESUMES = ("resuming after step", "resume after step", "already recorded", "holds this run already")
SYNTHETIC = {"name": "synthetic", "train_examples": 64, "test_examples": 16}


def parameters(workdir):
    """The arrays of the last checkpoint, bit for bit."""
    leaves = jax.tree_util.tree_leaves_with_path(last_state(workdir))
    return {jax.tree_util.keystr(path): (str(x.dtype), np.shape(x), np.asarray(x).tobytes()) for path, x in leaves}


def records(workdir):
    """The records of a sweep, without times and without the commit, which may change in hours."""
    return {run: record | {"commit": None} for run, record in outcomes(workdir).items()}


# Each start makes an event file, and in a bucket a lock and parts of the records with names of their own; a killed
# writer leaves a temporary file, which a start deletes after an hour.
STARTS_MAKE = ("events.out", "compiled", ".lock", ".tmp-", "records")


def files(workdir):
    """The names of the files, but for `STARTS_MAKE`, and of checkpoints that were not completed."""
    names = {path.name for path in workdir.iterdir() if not path.name.startswith(STARTS_MAKE)}
    checkpoints = workdir / "checkpoints"
    left_over = [path.name for path in checkpoints.iterdir() if "tmp" in path.name] if checkpoints.exists() else []
    return sorted([*names, *left_over])


def rows(name, time_field):
    """Reads a JSON file without its times."""
    return lambda workdir: json_without(workdir / name, time_field)


@dataclasses.dataclass(frozen=True)
class Command:
    """A command line, and what must not depend on how often it was killed."""

    words: tuple[str, ...]
    parts: dict[str, Callable[[Any], Any]]  # name -> reads it from a work directory
    keep_every_s: float | None = None  # saves the runs of a sweep after every call


def flags(prefix, fields):
    """``{"a": 1}`` -> ``--prefix.a=1``."""
    return [f"--{prefix}.{name}={value}" for name, value in fields.items()]


def command(kind, rates=7, depths=(2, 3), *, remote=False):
    """The smallest run, sweep or search that writes everything; less often if ``remote``, as a write takes a second."""
    keep_every_s = 1.0 if remote else 0.0
    size, batches = {"width": 8, "depth": 2, "base_width": 8, "base_depth": 2}, {"batch_size": 8, "log_every": 2}
    if kind == "train":
        train = {"batch_size": 16, "steps": 240, "log_every": 1}
        train |= {"eval_every": 60, "checkpoint_every": 30} if remote else {"eval_every": 20, "checkpoint_every": 3}
        words = ["train.py", "--config=configs/digits.py"]
        words += flags("config.model", size | {"depth": 4}) + flags("config.train", train)
        parts = {
            "metrics.jsonl": rows("metrics.jsonl", "images_per_s"),
            "result.json": rows("result.json", "wall_time_s"),
        }
        return Command(tuple(words), {"parameters": parameters, "files": files} | parts)
    if kind == "sweep":
        words = ["-m", "depthmup_flax", "sweep", "--config=configs/sweeps/digits.py", "--lanes=2"]
        words += flags("config.base.model", size) + flags("config.base.data", SYNTHETIC)
        words += flags("config.base.train", batches | {"steps": 12, "average_steps": 4})
        grid = {
            "parametrization.preset": ("depth_mup",),
            "model.depth": tuple(depths),
            "optimizer.learning_rate": [2.0**-k for k in range(4, 4 + rates)],
            "seed": (0, 1),
        }
        words += flags("config.grids.depths", grid)
        return Command(tuple(words), {"records": records, "files": files}, keep_every_s)
    words = ["-m", "depthmup_flax", "tune", "--config=configs/digits.py", "--lanes=2", "--octaves=2", "--seeds=2"]
    words += ["--tune=learning_rate"]
    words += flags("config.model", size | {"width": 16, "depth": 4}) + flags("config.data", SYNTHETIC)
    words += [*flags("config.train", batches), "--config.optimizer.learning_rate=0.008", "--proxy.steps=12"]
    tuned = lambda workdir: (workdir / "tuned.py").read_text()
    return Command(tuple(words), {"records": records, "tuned.py": tuned, "files": files}, keep_every_s)


def start(command, workdir, log, **killed):
    """Starts the command in a process of its own."""
    words = (*command.words, f"--workdir={workdir}")
    return processes.Process(log, processes.command, *words, keep_every_s=command.keep_every_s, **killed)


def differing(parts, workdir, expected):
    """The names of the parts that differ between two work directories."""
    return [name for name, read in parts.items() if read(epath.Path(workdir)) != read(epath.Path(expected))]


@dataclasses.dataclass
class Trial:
    """What happened to a command."""

    kind: str
    at_times: int = 0
    at_writes: int = 0
    starts: int = 0
    resumed: int = 0  # starts that found something to resume
    runs: int = 0  # completed
    identical: int = 0
    failures: list[str] = dataclasses.field(default_factory=list)
    minutes: float = 0.0

    def row(self):
        counts = f"{self.at_times + self.at_writes:7} {self.at_writes:9} {self.starts:6} {self.resumed:7} {self.runs:4}"
        return f"{self.kind:7} {counts} {self.identical:9} {len(self.failures):8} {self.minutes:7.1f}"


HEADER = "command kills of writes starts resumed runs identical failures minutes"


def killed_at_an_upload(server, process, number, delay_s=0.0, signal_number=signal.SIGKILL):
    """`processes.killed_at_a_write` for a bucket: with a delay, the object is written nevertheless."""
    count = itertools.count()

    def on_write(name):
        if next(count) != number:
            return None
        process.send(signal_number)
        return None if delay_s else http.HTTPStatus.SERVICE_UNAVAILABLE

    server.on_write = on_write
    return count


def trial(kind, moments, root, logs, seed=0, server=None):
    """Kills the command ``moments`` times, over as many runs as that takes; ``server`` has the bucket of ``root``."""
    command_ = command(kind, remote=str(root).startswith(("gs://", "s3://")))
    rng, done, started = random.Random(f"{kind} {seed}"), Trial(kind), time.monotonic()
    numbers = itertools.count()

    uploads = itertools.count()

    def attempt(workdir, *at_write):
        """``at_write``: arguments of `killed_at_an_upload`."""
        nonlocal uploads
        log = logs / f"{kind}-{next(numbers)}.log"
        if server is None:
            return start(command_, workdir, log, killed=(str(workdir), *at_write) if at_write else None)
        process = start(command_, workdir, log)
        uploads = killed_at_an_upload(server, process, *(at_write or (-1,)))
        return process

    whole = f"{root}/{kind}-whole"
    process = attempt(whole, -1)
    assert process.wait(600) == 0, process.text()
    duration = time.monotonic() - started
    writes = next(uploads) if server is not None else int(process.text().rpartition("writes: ")[2])

    def kill(workdir):
        """One attempt, with a signal at a random moment; whether the run has completed."""
        (number,) = rng.choices(list(SIGNALS), SIGNALS.values())
        at_write = writes > 0 and rng.random() < 0.5
        if at_write:
            delay_s = rng.choice((0.0, rng.uniform(0.0, 0.005)))
            process = attempt(workdir, rng.randrange(max(1, writes // 3)), delay_s, number)
        else:
            process = attempt(workdir)
            process.join(rng.uniform(0.0, 0.5 * duration))
            process.send(number)
        code = process.wait(600)
        done.starts += 1
        done.resumed += any(text in process.text() for text in RESUMES)
        if code == 0:  # it ended before the moment came
            return True
        done.at_writes += at_write
        done.at_times += not at_write
        if code not in CODES[number]:
            done.failures.append(f"{process.log}: signal {number}, exit code {code}")
        return False

    while done.at_times + done.at_writes < moments:
        workdir = f"{root}/{kind}-{done.runs}"
        completed = False
        while not completed and done.at_times + done.at_writes < moments:
            completed = kill(workdir)
        if not completed:
            process = attempt(workdir)
            done.starts += 1
            if process.wait(600) != 0:
                done.failures.append(f"{process.log}: undisturbed, exit code {process.wait(600)}")
                break
            done.resumed += any(text in process.text() for text in RESUMES)
        done.runs += 1
        different = differing(command_.parts, workdir, whole)
        done.identical += not different
        done.failures += [f"{workdir}: {part} differs from {whole}" for part in different]
        if "files" in different:
            names = [set(files(epath.Path(path))) for path in (workdir, whole)]
            done.failures.append(f"{workdir}: only one of them has {sorted(names[0] ^ names[1])}")
    done.minutes = (time.monotonic() - started) / 60
    return done


def fast_compilation():
    """For processes that are started from now on: programs are not optimized, and no cache of the caller is used."""
    os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
    os.environ.pop("JAX_COMPILATION_CACHE_DIR", None)
    os.environ["PYTHONWARNINGS"] = "ignore:resource_tracker"  # killed processes leave tqdm's semaphores
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it in the background


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="+", choices=("train", "sweep", "tune"))
    parser.add_argument("--moments", type=int, default=50, help="kills of each command")
    parser.add_argument("--workdir", help="parent of the work directories; default: a temporary directory")
    parser.add_argument("--emulator", action="store_true", help="work directories in a bucket on this machine")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=pathlib.Path, help="also write the counts to this file")
    arguments = parser.parse_args()
    fast_compilation()
    absl.logging.set_verbosity(absl.logging.ERROR)
    scratch = pathlib.Path(tempfile.mkdtemp(prefix="depthmup-kills-"))
    os.environ["XDG_CACHE_HOME"] = str(scratch / "cache")
    print(f"logs in {scratch}\n{HEADER}", flush=True)
    root, server = arguments.workdir or scratch / "runs", None
    if arguments.emulator:
        from bucket_emulator import BucketServer

        logging.getLogger("gcp_storage_emulator").setLevel(logging.CRITICAL)
        root, server = "gs://bucket", BucketServer()
        os.environ.update(server.environment)
    trials = []
    for kind in arguments.kinds:
        trials.append(trial(kind, arguments.moments, root, scratch, arguments.seed, server))
        print(trials[-1].row(), *trials[-1].failures, sep="\n  ", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps([dataclasses.asdict(trial) for trial in trials], indent=1) + "\n")
    sys.exit(any(trial.failures for trial in trials))


if __name__ == "__main__":
    main()
