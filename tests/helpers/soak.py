"""Trains for hours on a bad machine, and prints whether anything was lost and whether memory is flat.

    python tests/helpers/soak.py --hours 2 --json soak.json

Runs of one process, runs of two, and sweeps take turns. Each is killed at random moments, or its disk is full for a
while, and started again until it completes; its files are then compared with undisturbed ones. Beside them trains a run
that nobody disturbs, with one process for the first half of the time and with two for the second. Its memory, threads
and open files are sampled, and those of an undisturbed sweep. Full disks need the right to mount a tmpfs.

A sweep has 500 runs; with less than an hour 100. The undisturbed runs come first, and are not part of the hours.
"""

import argparse
import contextlib
import dataclasses
import itertools
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

import absl.logging
import kills
import numpy as np
import scipy.stats
from joined import free_port

from depthmup_flax.util import errors

SAMPLED_EVERY_S = 1.0
BLOCKS = 30  # neighboring samples are not independent: slopes are those of their block means
GRACE_S = 15.0  # for the other process, after one has ended; a launcher ends it, too
HANGS_AFTER_S = 120.0


@dataclasses.dataclass(frozen=True)
class Work:
    """A command for one process or two."""

    command: kills.Command
    processes: int = 1

    def start(self, workdir, log):
        """Starts the processes."""
        if self.processes == 1:
            return [kills.start(self.command, workdir, log.with_suffix(".0"))]
        cluster = (f"--coordinator=127.0.0.1:{free_port()}", f"--num_processes={self.processes}")
        started = []
        for i in range(self.processes):
            words = (*self.command.words, *cluster, f"--process_id={i}")
            command = dataclasses.replace(self.command, words=words)
            started.append(kills.start(command, workdir, log.with_suffix(f".{i}")))
        return started


def wait(started):
    """The exit codes, once all have ended. What ends one process ends the others, if need be by SIGKILL."""
    deadline = time.monotonic() + HANGS_AFTER_S
    while all(process.running() for process in started) and time.monotonic() < deadline:
        started[0].join(0.05)
    hangs = all(process.running() for process in started)
    deadline = time.monotonic() + GRACE_S
    while any(process.running() for process in started) and time.monotonic() < deadline and not hangs:
        time.sleep(0.05)
    for process in started:
        process.send(signal.SIGKILL)
    return ["hangs" if hangs else process.wait() for process in started]


class Disk:
    """A file system of 64 MB; without the right to mount one, a directory that is never full."""

    def __init__(self, directory):
        self.directory, self._filler = directory, directory / "filler"
        directory.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(directory)]
        self.can_be_full = subprocess.run(mount, capture_output=True, check=False).returncode == 0

    def fill(self):
        with contextlib.suppress(OSError), self._filler.open("ab", buffering=0) as file:
            for size in (2**20, 2**10, 1):
                with contextlib.suppress(OSError):
                    while file.write(bytes(size)) == size:
                        pass

    def free(self):
        self._filler.unlink(missing_ok=True)

    def unmount(self):
        if self.can_be_full:
            subprocess.run(["umount", "-l", str(self.directory)], check=True)


class Sampler:
    """Samples memory, threads and open files of processes, in a thread."""

    def __init__(self):
        self.samples = []
        self._watched = {}
        self._ended = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def watch(self, label, process, records=None):
        """``records``: a file whose lines are counted."""
        self._watched[label] = process.pid, records, time.monotonic()

    def end(self, label):
        self._watched.pop(label)

    def _run(self):
        while not self._ended.wait(SAMPLED_EVERY_S):
            for label, (pid, records, started) in list(self._watched.items()):
                with contextlib.suppress(OSError):
                    status = pathlib.Path(f"/proc/{pid}/status").read_text()
                    fields = dict(line.split(":", 1) for line in status.splitlines())
                    sample = {"process": label, "hours": (time.monotonic() - started) / 3600}
                    sample |= {"rss_mb": int(fields["VmRSS"].split()[0]) / 1024, "threads": int(fields["Threads"])}
                    sample["files"] = len(os.listdir(f"/proc/{pid}/fd"))
                    if records is not None and records.exists():
                        sample["runs"] = len(records.read_text().splitlines())
                    self.samples.append(sample)


def slope(samples, x, y):
    """Theil-Sen slope of ``y`` over ``x`` with its 95 % interval, without the first third, in which programs compile.

    ``None`` for less than 2.4 minutes, and for fewer than 300 runs of a sweep.
    """
    points = np.array([(sample[x], sample[y]) for sample in samples if x in sample])
    if np.ptp(points[:, 0]) < {"hours": 0.04, "runs": 300}[x]:
        return None
    points = points[len(points) // 3 :]
    means = np.array([block.mean(0) for block in np.array_split(points, min(BLOCKS, len(points)))])
    fit = scipy.stats.theilslopes(means[:, 1], means[:, 0])
    return float(fit.slope), float(fit.low_slope), float(fit.high_slope)


def slopes(samples):
    """A row for each long-lived process."""
    rows = []
    for label in dict.fromkeys(sample["process"] for sample in samples):
        own = [sample for sample in samples if sample["process"] == label]
        x, unit, scale = ("runs", "100 runs", 100.0) if "runs" in own[-1] else ("hours", "hour", 1.0)
        row = f"{label:24} {own[-1]['hours']:5.2f} h  {len(own):5} samples"
        for y, name in (("rss_mb", "MB"), ("files", "open files"), ("threads", "threads")):
            found = slope(own, x, y)
            text = "too short" if found is None else "{:+.2f} [{:+.2f}, {:+.2f}]".format(*(scale * v for v in found))
            row += f"  {text} {name} per {unit}"
        rows.append(row)
    return rows


@dataclasses.dataclass
class Counts:
    """What happened."""

    hours: float = 0.0
    kills: int = 0
    full_disks: int = 0
    starts: int = 0
    survivors: dict[str, int] = dataclasses.field(default_factory=dict)  # exit code of the other of two -> times
    runs: dict[str, int] = dataclasses.field(default_factory=dict)  # kind -> completed
    sweep_runs: int = 0
    different: list[str] = dataclasses.field(default_factory=list)
    failures: list[str] = dataclasses.field(default_factory=list)  # exit codes that nothing explains


class Soak:
    """References, and runs that are disturbed and compared with them."""

    def __init__(self, scratch, sweep_rates, groups, seed):
        train, sweep = kills.command("train"), kills.command("sweep", sweep_rates, range(2, 2 + groups))
        self.work = {"train": Work(train), "train, 2 processes": Work(train, 2), "sweep": Work(sweep)}
        self.sweep_size = 2 * sweep_rates * groups
        self.scratch, self.counts, self.sampler = scratch, Counts(), Sampler()
        self.disk, self.rng, self._numbers = Disk(scratch / "disk"), random.Random(seed), itertools.count()
        self.seconds = {}

    def references(self):
        """Undisturbed runs."""
        for kind, work in self.work.items():
            workdir, started = self.scratch / "whole" / kind, time.monotonic()
            running = work.start(workdir, self._log(kind))
            if kind == "sweep":
                self.sampler.watch(f"sweep of {self.sweep_size} runs", running[0], workdir / "records.jsonl")
            codes = [process.wait(1800) for process in running]
            assert not any(codes), running[0].text()
            self.seconds[kind] = time.monotonic() - started
        self.sampler.end(f"sweep of {self.sweep_size} runs")

    def run(self, kind, until):
        """Disturbs one run until it completes, or until ``until``, and compares it."""
        workdir = self.disk.directory / str(next(self._numbers))
        while not self._disturbed(kind, workdir) and time.monotonic() < until:
            pass
        codes = self._attempt(kind, workdir, lambda running: None)
        if any(codes):
            self.counts.failures.append(f"{kind}, undisturbed: exit codes {codes}")
            return
        self.counts.runs[kind] = self.counts.runs.get(kind, 0) + 1
        self.counts.sweep_runs += self.sweep_size * (kind == "sweep")
        different = kills.differing(self.work[kind].command.parts, workdir, self.scratch / "whole" / kind)
        self.counts.different += [f"{kind}, {workdir}: {part}" for part in different]
        if different:
            shutil.copytree(workdir, self.scratch / "different" / workdir.name)
        shutil.rmtree(workdir)

    def _disturbed(self, kind, workdir):
        """One attempt, with a kill or a full disk; whether the run has completed."""
        fills = self.disk.can_be_full and self.rng.random() < 0.2
        (number,) = self.rng.choices(list(kills.SIGNALS), kills.SIGNALS.values())
        after_s = self.rng.uniform(0.0, 0.5 * self.seconds[kind])

        def disturb(running):
            running[0].join(after_s)
            if fills:
                self.disk.fill()
                return
            victims = self.rng.sample(running, self.rng.randint(1, len(running)))
            for process in victims:
                process.send(number)

        codes = self._attempt(kind, workdir, disturb)
        self.disk.free()
        if not any(codes):
            return True
        self.counts.full_disks += fills
        self.counts.kills += not fills
        expected = {errors.STOPPED} if fills else kills.CODES[number]
        # With two processes, the other one fails, too, in its own way.
        for code in codes:
            if len(codes) > 1 and code not in expected:
                self.counts.survivors[str(code)] = self.counts.survivors.get(str(code), 0) + 1
        if not expected & set(codes):
            what = "full disk" if fills else f"signal {number}"
            self.counts.failures.append(f"{kind}, {what}: exit codes {codes}, {self._last_log}")
        return False

    def _attempt(self, kind, workdir, disturb):
        self.counts.starts += 1
        running = self.work[kind].start(workdir, self._log(kind))
        disturb(running)
        return wait(running)

    def _log(self, kind):
        self._last_log = self.scratch / f"{kind}-{next(self._numbers)}.log"
        return self._last_log


def train_beside(soak, ended, hours):
    """Trains without an end, with one process and then with two, and samples them."""
    train = soak.work["train"].command
    endless = {"steps": 10**9, "log_every": 100, "eval_every": 20_000, "checkpoint_every": 20_000}
    words = [word for word in train.words if not word.startswith("--config.train.")]
    command = dataclasses.replace(train, words=(*words, *kills.flags("config.train", {"batch_size": 16} | endless)))
    for count in (1, 2):
        label = "train" + ", 2 processes" * (count > 1)
        running = Work(command, count).start(soak.scratch / "beside" / label, soak.scratch / f"beside-{count}.log")
        for i, process in enumerate(running):
            soak.sampler.watch(f"{label}, process {i}", process)
        stop = time.monotonic() + hours * 1800
        while time.monotonic() < stop and not ended.is_set() and all(process.running() for process in running):
            time.sleep(0.2)
        for i in range(count):
            soak.sampler.end(f"{label}, process {i}")
        running[0].send(signal.SIGTERM)
        codes = [process.wait() for process in running]
        if set(codes) != {errors.PREEMPTED}:
            soak.counts.failures.append(f"the undisturbed run, {label}: exit codes {codes}")


def table(counts, samples, can_be_full):
    """The numbers, as text."""
    full = str(counts.full_disks) if can_be_full else "none, as no file system can be mounted"
    runs = ", ".join(f"{number} x {kind}" for kind, number in counts.runs.items())
    lines = [
        f"hours             {counts.hours:.2f}",
        f"starts            {counts.starts}",
        f"kills             {counts.kills}",
        f"full disks        {full}",
        f"completed         {runs}; {counts.sweep_runs} runs of sweeps",
        f"survivors ended   {', '.join(f'{n} x {code}' for code, n in counts.survivors.items()) or '-'}",
        f"different         {len(counts.different)}",
        f"unexpected ends   {len(counts.failures)}",
        *(f"  {text}" for text in (*counts.different, *counts.failures)),
        *slopes(samples),
    ]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=pathlib.Path, help="also write counts and samples to this file")
    arguments = parser.parse_args()
    kills.fast_compilation()
    absl.logging.set_verbosity(absl.logging.ERROR)
    scratch = pathlib.Path(tempfile.mkdtemp(prefix="depthmup-soak-"))
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(scratch / "compiled")
    print(f"logs in {scratch}", flush=True)
    long = arguments.hours >= 1
    soak = Soak(scratch, sweep_rates=10, groups=25 if long else 5, seed=arguments.seed)
    soak.references()
    started, ended = time.monotonic(), threading.Event()
    until = started + arguments.hours * 3600
    beside = threading.Thread(target=train_beside, args=(soak, ended, arguments.hours))
    beside.start()
    try:
        for kind in itertools.cycle(soak.work):
            if time.monotonic() > until:
                break
            soak.run(kind, until)
    finally:
        ended.set()
        beside.join()
        soak.disk.unmount()
    soak.counts.hours = (time.monotonic() - started) / 3600
    print(table(soak.counts, soak.sampler.samples, soak.disk.can_be_full), flush=True)
    if arguments.json:
        content = {**dataclasses.asdict(soak.counts), "samples": soak.sampler.samples}
        arguments.json.write_text(json.dumps(content, indent=1) + "\n")
    sys.exit(bool(soak.counts.different or soak.counts.failures))


if __name__ == "__main__":
    main()
