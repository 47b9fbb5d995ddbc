"""Shards of a sweep that open one directory at the same time: python tests/helpers/simultaneous_starts.py [STARTS]

Counts those that fail. Only the opening runs, on a local disk made as slow as a file server.
"""

from __future__ import annotations

import collections
import multiprocessing
import pathlib
import random
import sys
import tempfile
import time

import file_server

SHARDS = 8
INFO = {"figure": "f", "title": "t", "scale": "cpu", "x": "optimizer.learning_rate", "axes": {"seed": [0]}, "base": {}}


def open_shard(directory: pathlib.Path, shard: int) -> None:
    """What `depthmup_flax.search.sweep.runner.sweep` does before it trains, and a record."""
    from depthmup_flax.search.sweep.runner import _require_same_sweep
    from depthmup_flax.storage.records.table import SweepInfo
    from depthmup_flax.storage.workdir import directory as workdirs
    from depthmup_flax.storage.workdir.files import open_lines

    name = f"records.{shard}-of-{SHARDS}"
    with workdirs.claimed(directory, workdirs.SWEEP, lock=f".lock-{name}") as claim:
        _require_same_sweep(claim.directory, SweepInfo(**INFO), workdirs.SWEEP)
        lines = open_lines(claim.directory / f"{name}.jsonl")
        lines.write([shard])
        lines.close()


def _worker(shard, root, rounds, jitter_s, delay_s, hidden_s, barrier, failures, opening):
    opening(pathlib.Path(root) / f"warm{shard}", shard)  # imports
    rng = random.Random(shard)
    file_server.FileServer(delay_s, hidden_s, rng).mount()
    for number in range(rounds):
        barrier.wait()
        time.sleep(rng.uniform(0, jitter_s))
        try:
            opening(pathlib.Path(root) / "deep" / f"sweep{number}", shard)
        except BaseException as error:
            failures.put(f"{type(error).__name__}: {error}".replace(f"sweep{number}", "sweep"))


def run(starts: int, jitter_s=0.05, delay_s=0.003, hidden_s=0.05, opening=open_shard) -> collections.Counter[str]:
    """The failures of ``starts`` simultaneous starts, in rounds of `SHARDS`, by their message."""
    context = multiprocessing.get_context("forkserver")
    barrier, failures, rounds = context.Barrier(SHARDS), context.Queue(), starts // SHARDS
    with tempfile.TemporaryDirectory() as root:
        same = (root, rounds, jitter_s, delay_s, hidden_s, barrier, failures, opening)
        workers = [context.Process(target=_worker, args=(shard, *same)) for shard in range(SHARDS)]
        for worker in workers:
            worker.start()
        counts: collections.Counter[str] = collections.Counter()
        while any(worker.is_alive() for worker in workers) or not failures.empty():
            while not failures.empty():
                counts[failures.get()] += 1
            time.sleep(0.1)
        counts.update(f"a worker ended with {w.exitcode}" for w in workers if w.exitcode)
        written = list(pathlib.Path(root).glob("deep/*/records.*.jsonl"))
        if len(written) + counts.total() != rounds * SHARDS:
            counts["records files that are absent"] += rounds * SHARDS - len(written) - counts.total()
    return counts


if __name__ == "__main__":
    starts = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    found = run(starts)
    print(f"{found.total()} of {starts} starts failed")
    for text, count in found.most_common():
        print(f"  {count:>5}  {text}")
