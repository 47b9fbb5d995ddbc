"""The same search by plain optax loops, one run after another, and by `dm.Study.tune`, which trains them together.

    python -m benchmarks.own_loops [--rounds=3]

Each contender runs in a process of its own, in turn, without compiled programs from before. Seconds are those of the
search with compilation, without imports. The step of the loops is compiled once, gathers its batch inside, and donates
its state: the learning rate is its argument.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

from benchmarks.contest import ROOT

RATES, SEEDS, STEPS, BATCH, AVERAGED = tuple(2.0**k for k in range(-12, -5)), 3, 500, 64, 50
WIDTH, DEPTH = 32, 4


def _network():
    """A residual MLP as a user writes it."""
    from flax import linen as nn

    import depthmup_flax as dm

    class Net(nn.Module):
        width: int
        depth: int
        rule: dm.Parametrization = dm.get_parametrization("depth_mup")

        @nn.compact
        def __call__(self, x):
            h = nn.Dense(self.width, name="stem")(x)
            for i in range(self.depth):
                y = nn.Dense(self.width, name=f"block_{i}")(nn.relu(nn.LayerNorm(name=f"norm_{i}")(h)))
                h = h + self.rule.residual_multiplier(self.depth / DEPTH) * y
            return nn.Dense(10, name="head")(h * self.rule.readout_multiplier(self.width / WIDTH))

    return Net


def _digits():
    from sklearn.datasets import load_digits

    digits = load_digits()
    x, y = digits.data.astype("float32") / 16, digits.target.astype("int32")
    return (x[:-297], y[:-297]), (x[-297:], y[-297:])


def loops():
    """(learning rate, seed, mean loss of the last steps) of every run; a jitted step, called in a Python loop."""
    import jax
    import jax.numpy as jnp
    import optax

    from depthmup_flax.data import batch_indices

    model, ((x, y), _) = _network()(WIDTH, DEPTH), _digits()
    x, y, direction, init = jnp.asarray(x), jnp.asarray(y), optax.scale_by_adam(), jax.jit(model.init)

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(params, state, rate, rows):
        def loss_of(params):
            logits = model.apply({"params": params}, x[rows])
            return optax.softmax_cross_entropy_with_integer_labels(logits, y[rows]).mean()

        loss, grads = jax.value_and_grad(loss_of)(params)
        updates, state = direction.update(grads, state, params)
        return optax.apply_updates(params, jax.tree.map(lambda u: -rate * u, updates)), state, loss

    def train(rate, seed):
        params, losses = init(jax.random.key(seed), x[:1])["params"], []
        state = direction.init(params)
        for number in range(STEPS):
            rows = batch_indices(seed, number, len(y), BATCH)  # the batches of a Study, so that losses can be compared
            params, state, loss = step(params, state, rate, rows)
            losses.append(loss)
        return float(jnp.stack(losses[-AVERAGED:]).mean())

    return [(rate, seed, train(rate, seed)) for rate in RATES for seed in range(SEEDS)]


def study():
    """The same runs by a `dm.Study`."""
    import depthmup_flax as dm

    settings: dict[str, Any] = {"train.average_steps": AVERAGED}
    sizes: dict[str, Any] = {"base": (WIDTH, DEPTH), "steps": STEPS, "batch_size": BATCH}
    # All examples, as the loops.
    search = dm.Study(_network(), _digits(), **sizes, objective="train", settings=settings)
    best = search.tune(learning_rate=RATES, seeds=SEEDS)
    return [(run["learning_rate"], run["seed"], run["train_loss_avg"]) for run in best.records]


CONTENDERS = {"loops": loops, "study": study}


def _timed(name):
    """Seconds and runs of a contender, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.own_loops", name],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env=os.environ | {"JAX_ENABLE_COMPILATION_CACHE": "false"},
    )
    result = json.loads(done.stdout.splitlines()[-1])
    return result["seconds"], {(rate, seed): loss for rate, seed, loss in result["runs"]}


def main():
    """Prints the seconds of each round, the ratio, and by how much losses differ: at high rates rounding grows."""
    parser = argparse.ArgumentParser()
    parser.add_argument("contender", nargs="?", choices=CONTENDERS)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    if args.contender:
        import jax
        import optax  # noqa: F401 - imports are not timed

        import depthmup_flax as dm

        _ = jax.devices(), dm.audit
        started = time.perf_counter()
        runs = CONTENDERS[args.contender]()
        print(json.dumps({"seconds": time.perf_counter() - started, "runs": runs}))
        return
    from benchmarks.machine import processor

    ratios = []
    for _ in range(args.rounds):
        (slow, one), (fast, other) = _timed("loops"), _timed("study")
        difference = statistics.median(abs(other[run] - loss) / abs(loss) for run, loss in one.items())
        ratios.append(slow / fast)
        print(f"{len(one)} runs: loops {slow:.1f} s, study {fast:.1f} s; losses differ by {difference:.1e} (median)")
    spread = f"{min(ratios):.2f}-{max(ratios):.2f}, {args.rounds}"
    print(f"loops / study: {statistics.median(ratios):.2f} ({spread}); {processor()}")


if __name__ == "__main__":
    main()
