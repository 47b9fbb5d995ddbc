"""An Equinox network, unchanged, with a loss of its own: tune it small, report, train it large.

    python examples/equinox_regression.py [--workdir=DIR]

The network predicts a mean and a standard deviation; the loss is the negative log-likelihood of a normal distribution.
"""

import argparse

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import depthmup_flax as dm

BASE_WIDTH, BASE_DEPTH = 32, 4  # of the small network, which is tuned


class Net(eqx.Module):
    """A residual MLP for one example."""

    stem: eqx.nn.Linear
    norms: list[eqx.nn.LayerNorm]
    blocks: list[eqx.nn.Linear]
    head: eqx.nn.Linear

    def __init__(self, width: int, depth: int, *, key: jax.Array):
        stem, head, *keys = jax.random.split(key, depth + 2)
        self.stem = eqx.nn.Linear(8, width, key=stem)
        self.norms = [eqx.nn.LayerNorm(width) for _ in keys]
        self.blocks = [eqx.nn.Linear(width, width, key=key) for key in keys]
        self.head = eqx.nn.Linear(width, 2, key=head)

    def __call__(self, x):
        """``[8] -> [2]``: the mean, and the logarithm of the standard deviation."""
        h = self.stem(x)
        for norm, block in zip(self.norms, self.blocks, strict=True):
            h = h + block(jax.nn.relu(norm(h)))
        return self.head(h)


def negative_log_likelihood(outputs, targets):
    """Mean of ``-log p(targets)``; ``outputs [B, 2], targets [B]``."""
    return -jax.scipy.stats.norm.logpdf(targets, outputs[:, 0], jnp.exp(outputs[:, 1])).mean()


def data(examples: int = 5000):
    """A sine whose noise depends on the input: (train, test), each inputs ``[n, 8]`` and targets ``[n]``."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(examples, 8)).astype(np.float32)
    noise = np.exp(0.5 * x[:, 1] - 1.5) * rng.normal(size=examples)
    y = (np.sin(2 * x[:, 0]) * x[:, 2] + noise).astype(np.float32)
    return (x[:-1000], y[:-1000]), (x[-1000:], y[-1000:])


def main(workdir=None, steps: int = 500, width: int = 128, depth: int = 12, seeds: int = 3) -> dict:
    """Tunes the small network, reports on its depth, trains the large one; returns its result."""
    study = dm.Study(
        Net, data, base=(BASE_WIDTH, BASE_DEPTH), loss=negative_log_likelihood, steps=steps, workdir=workdir
    )
    print(study.audit(width, depth))
    rates = dm.powers_of_two(-10, -5)
    best = study.tune(learning_rate=rates, weight_decay=(0, 0.1, 1), seeds=seeds)
    print(best)
    print(study.sweep(depths=(depth,), learning_rate=rates, seeds=seeds).report())
    result = study.train(width, depth, **best)
    print(f"width {width}, depth {depth}: test loss {result['test_loss']:.4f}; see {result['workdir']}")
    return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workdir", help="keeps records and runs, and resumes; default: a temporary directory")
    main(parser.parse_args().workdir)
