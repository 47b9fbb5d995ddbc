"""Two towers that match halves of images, with a training step of their own: tune them small, train them large.

    python examples/contrastive_two_towers.py [--workdir=DIR]

A `dm.Task` is pure functions. Its hyperparameters are inputs of one compiled program, which trains many runs at a time.
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from sklearn.datasets import load_digits

import depthmup_flax as dm

BASE_WIDTH, BASE_DEPTH = 32, 3  # of the small towers, which are tuned


class Tower(nn.Module):
    """A residual MLP to vectors of length 1. No readout: they grow with the width, and cosines need no factor."""

    width: int
    depth: int
    rule: dm.Parametrization

    @nn.compact
    def __call__(self, x):
        """``[batch, 32] -> [batch, width]``."""
        h = nn.Dense(self.width, name="stem")(x)
        for i in range(self.depth):
            y = nn.Dense(self.width, name=f"block_{i}")(nn.relu(nn.LayerNorm(name=f"block_{i}_norm")(h)))
            h = h + self.rule.residual_multiplier(self.depth / BASE_DEPTH) * y
        h = nn.Dense(self.width, name="head")(nn.LayerNorm(name="norm")(h))
        return h / jnp.linalg.norm(h, axis=-1, keepdims=True)


class Towers(nn.Module):
    """A tower for the upper halves and one for the lower."""

    width: int
    depth: int
    rule: dm.Parametrization

    @nn.compact
    def __call__(self, images):
        """``[batch, 64] -> [batch, batch]``: the cosine of each upper and each lower half."""
        sizes, (upper, lower) = (self.width, self.depth, self.rule), jnp.split(images, 2, axis=1)
        return Tower(*sizes, name="upper")(upper) @ Tower(*sizes, name="lower")(lower).T


def build(width: int, depth: int, rule: dm.Parametrization) -> dm.Task:
    """The training step of two towers."""
    towers, images = Towers(width, depth, rule), jnp.zeros((2, 64))
    info = dm.audit(towers, Towers(BASE_WIDTH, BASE_DEPTH, rule), images, rule=rule).info

    def optimizer(hyper):
        return dm.depthmup(optax.scale_by_adam(), info, rule, hyper["learning_rate"])

    def loss_of(params, batch, hyper):
        cosines = towers.apply({"params": params}, batch["image"])
        logits, labels = cosines / hyper["temperature"], jnp.arange(len(cosines))
        loss = sum(optax.softmax_cross_entropy_with_integer_labels(x, labels).mean() for x in (logits, logits.T)) / 2
        return loss, {"loss": loss, "matched": (logits.argmax(1) == labels).mean()}

    def init(key, hyper):
        params = towers.init(key, images)["params"]
        return {"params": params, "optimizer": optimizer(hyper).init(params)}

    def step(state, batch, hyper):
        grads, metrics = jax.grad(loss_of, has_aux=True)(state["params"], batch, hyper)
        updates, new = optimizer(hyper).update(grads, state["optimizer"], state["params"])
        return {"params": optax.apply_updates(state["params"], updates), "optimizer": new}, metrics

    return dm.Task(init, step, lambda state, batch, hyper: loss_of(state["params"], batch, hyper)[1])


def data():
    """scikit-learn's digits: (train, test), each a dict of images ``[n, 64]``."""
    images = (load_digits().data / 16).astype(np.float32)
    return {"image": images[:-297]}, {"image": images[-297:]}


def main(workdir=None, steps: int = 400, width: int = 128, depth: int = 12, seeds: int = 3) -> dict:
    """Tunes the small towers, trains the large ones; returns their result."""
    settings = {"hyper": {"temperature": 0.1}, "steps": steps, "batch_size": 100, "workdir": workdir}
    study = dm.Study(build, data, base=(BASE_WIDTH, BASE_DEPTH), **settings)
    best = study.tune(learning_rate=dm.powers_of_two(-11, -6), temperature=(0.01, 0.03, 0.1), seeds=seeds)
    print(best)
    result = study.train(width, depth, **best)
    matched = 100 * result["test_metrics"]["test_matched"]
    print(f"width {width}, depth {depth}: {matched:.0f} % of 297 test images find their other half")
    return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workdir", help="keeps records and runs, and resumes; default: a temporary directory")
    main(parser.parse_args().workdir)
