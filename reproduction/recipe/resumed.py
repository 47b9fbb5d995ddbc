"""1,000 steps of the GPT recipe on files of tokens, killed on the way: the same numbers as without the kill?

    python -m reproduction.recipe.resumed DIR

Two works on eight devices of the host: one run that is sharded over them (data 2, fsdp 4), and a sweep of 16 runs, two
lanes on each. Each runs undisturbed, and again with a SIGKILL once a checkpoint of step 300 or later is there. The
recipe's network is reduced to 16 x 2 (width x depth), its examples to 8 of 32 tokens.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess
import sys
import time
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from depthmup_flax import read_records, sweep_config
from depthmup_flax.commands import console
from depthmup_flax.config import from_file
from depthmup_flax.search.sweep.runner import sweep
from depthmup_flax.trainer.loop import train_and_evaluate
from depthmup_flax.trainer.runs.checkpoint import read_checkpoint, saved_steps

STEPS, KILL_FROM, VOCABULARY = 1000, 300, 64
TIMES = ("wall_time_s", "commit", "_per_s")


def config(tokens: pathlib.Path) -> ConfigDict:
    """The reduced recipe."""
    found = from_file("recipes/gpt")
    found.model.update(width=16, depth=2, base_width=8, base_depth=1, num_heads=2)
    found.data.update(name=f"tokens:{tokens}", context=32)
    found.train.update(steps=STEPS, batch_size=8, eval_every=250, log_every=50, checkpoint_every=50)
    return found


def work(kind: str, tokens: pathlib.Path, workdir: pathlib.Path) -> None:
    """Trains, or resumes."""
    console.show()
    run = config(tokens)
    if kind == "sharded":
        run.mesh.update(data=2, fsdp=4)
        train_and_evaluate(run, workdir)
    else:
        grid = {"optimizer.learning_rate": (0.01, 0.02, 0.04, 0.08), "seed": (0, 1, 2, 3)}
        runs = sweep_config(run, {"rates": grid}, figure="resumed", title="Resumed.", scale="cpu")
        sweep(runs, workdir, lanes=2, keep_every_s=1.0)


def saved_step(workdir: pathlib.Path) -> int:
    """Of the latest whole checkpoint; 0 if there is none."""
    places = ("checkpoints", "unfinished/records")
    return max((step for place in places for step in saved_steps(workdir / place)), default=0)


def write_tokens(directory: pathlib.Path) -> None:
    """A random walk."""
    directory.mkdir(parents=True, exist_ok=True)
    for seed, (name, count) in enumerate({"train": 200_000, "val": 5_000}.items()):
        walk = np.random.default_rng(seed).integers(-1, 3, count).cumsum() % VOCABULARY
        walk.astype(np.uint16).tofile(directory / f"{name}.bin")
    (directory / "meta.json").write_text(json.dumps({"vocab_size": VOCABULARY}))


def started(kind: str, tokens: pathlib.Path, workdir: pathlib.Path) -> subprocess.Popen[bytes]:
    """``work`` in a process with eight devices."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
    command = [sys.executable, "-m", "reproduction.recipe.resumed", kind, str(tokens), str(workdir)]
    environment = {**os.environ, "XLA_FLAGS": flags}
    with open(f"{workdir}.log", "a") as log:
        return subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)


def numbers(kind: str, workdir: pathlib.Path) -> Any:
    """All that the work has written but times: the last state and the rows of metrics, or the records."""
    if kind == "lanes":
        records = read_records(workdir)
        return {name: list(records[name]) for name in sorted(records) if not name.endswith(TIMES)}
    rows = [json.loads(row) for row in (workdir / "metrics.jsonl").read_text().splitlines()]
    rows += [json.loads((workdir / "result.json").read_text())]
    state, _ = read_checkpoint(workdir / "checkpoints" / str(STEPS))
    return state, [{name: row[name] for name in row if not name.endswith(TIMES)} for row in rows]


def main(directory: pathlib.Path) -> None:
    """Prints how many numbers are equal; exits with 1 unless all are."""
    tokens, different = directory / "tokens", 0
    assert not directory.exists(), f"{directory} is there: delete it"
    write_tokens(tokens)
    for kind in ("sharded", "lanes"):
        whole, parts = (directory / f"{kind}_{name}" for name in ("whole", "killed"))
        assert started(kind, tokens, whole).wait() == 0
        process = started(kind, tokens, parts)
        while process.poll() is None and saved_step(parts) < KILL_FROM:
            time.sleep(0.02)
        process.kill()
        code, step = process.wait(), saved_step(parts)
        assert started(kind, tokens, parts).wait() == 0
        (resumed,) = re.findall(r".*resum\w+ after step.*", pathlib.Path(f"{parts}.log").read_text())
        print(resumed)
        pairs = [jax.tree.leaves(numbers(kind, workdir)) for workdir in (whole, parts)]
        assert len(pairs[0]) == len(pairs[1])
        unlike = sum(np.asarray(a).tobytes() != np.asarray(b).tobytes() for a, b in zip(*pairs, strict=True))
        count = sum(np.size(leaf) for leaf in pairs[0])
        print(f"{kind}: exit code {code} with step {step} of {STEPS} saved; of {len(pairs[0])} arrays and numbers")
        print(f"  ({count:,} in all), {unlike} differ from those of the undisturbed work", flush=True)
        different += unlike + (not KILL_FROM <= step < STEPS)
    sys.exit(different > 0)


if __name__ == "__main__":
    if len(sys.argv) == 2:
        main(pathlib.Path(sys.argv[1]).absolute())
    else:
        work(sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]))
