"""Two towers that match halves of images, with a training step of their own: tune them small, train them large.

    python examples/contrastive_two_towers.py [--workdir=DIR]

A `dm.Task` is pure functions: its losses and optimizers are its own matter. Its hyperparameters, here the learning rate
and the temperature of the loss, are inputs of one compiled program, which trains many runs side by side.
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
    """A residual MLP to vectors of length 1."""

    width: int
    depth: int
    rule: dm.Parametrization

    @nn.compact
    def __call__(self, x):
        """``[batch, 32] -> [batch, width]``."""
        h = nn.Dense(self.width, name="stem")(x)
        for i in range(self.depth):
            y = nn.Dense(self.width, name=f"block_{i}")(nn.relu(nn.LayerNorm(name=f"block_{i}_norm")(h)))
            # The audit with carry=False, before the factor was here: "missing_branch_multiplier: the branches that end
            # in upper/block_*/kernel, lower/block_*/kernel are multiplied by 1; the rule wants 0.7071".
            h = h + self.rule.residual_multiplier(self.depth / BASE_DEPTH) * y
        # No readout: the vectors grow with the width, and their cosines need no factor.
        h = nn.Dense(self.width, name="head")(nn.LayerNorm(name="norm")(h))
        return h / jnp.linalg.norm(h, axis=-1, keepdims=True)


def build(width: int, depth: int, rule: dm.Parametrization) -> dm.Task:
    """The training step of two towers."""
    tower = Tower(width, depth, rule)

    def new_params(key, tower=tower):
        keys = dict(zip(("upper", "lower"), jax.random.split(key), strict=True))
        return {name: tower.init(key, jnp.zeros((1, 32)))["params"] for name, key in keys.items()}

    def cosines(params, images, tower=tower):
        upper, lower = jnp.split(images, 2, axis=1)
        return tower.apply({"params": params["upper"]}, upper) @ tower.apply({"params": params["lower"]}, lower).T

    def info_nce(params, images, hyper):
        logits, labels = cosines(params, images) / hyper["temperature"], jnp.arange(len(images))
        loss = sum(optax.softmax_cross_entropy_with_integer_labels(x, labels).mean() for x in (logits, logits.T)) / 2
        return loss, {"loss": loss, "matched": (logits.argmax(1) == labels).mean()}

    def auditable(tower):
        shapes = jax.eval_shape(lambda key: new_params(key, tower), jax.random.key(0))
        return lambda params, images: cosines(params, images, tower), shapes

    base = Tower(BASE_WIDTH, BASE_DEPTH, rule)
    info = dm.audit(auditable(tower), auditable(base), jnp.zeros((2, 64)), rule=rule).info

    def optimizer(hyper):
        return dm.depthmup(optax.scale_by_adam(), info, rule, hyper["learning_rate"])

    def init(key, hyper):
        params = new_params(key)
        return {"params": params, "optimizer": optimizer(hyper).init(params)}

    def step(state, batch, hyper):
        grads, metrics = jax.grad(info_nce, has_aux=True)(state["params"], batch["image"], hyper)
        updates, new = optimizer(hyper).update(grads, state["optimizer"], state["params"])
        return {"params": optax.apply_updates(state["params"], updates), "optimizer": new}, metrics

    def evaluate(state, batch, hyper):
        return info_nce(state["params"], batch["image"], hyper)[1]

    return dm.Task(init, step, evaluate)


def data():
    """scikit-learn's digits: (train, test), each a dict of images ``[n, 64]``."""
    images = (load_digits().data / 16).astype(np.float32)
    return {"image": images[:-297]}, {"image": images[-297:]}


def main(workdir=None, steps: int = 400, width: int = 128, depth: int = 12, seeds: int = 3) -> dict:
    """Tunes the small towers, trains the large ones; returns their result."""
    study = dm.Study(
        build,
        data,
        base=(BASE_WIDTH, BASE_DEPTH),
        hyper={"temperature": 0.1},
        steps=steps,
        batch_size=100,
        workdir=workdir,
    )
    best = study.tune(learning_rate=dm.powers_of_two(-11, -6), temperature=(0.01, 0.03, 0.1), seeds=seeds)
    print(best)
    result = study.train(width, depth, **best)
    matched = result["test_metrics"]["test_matched"]
    print(f"width {width}, depth {depth}: {100 * matched:.0f} % of 297 test images find their other half")
    return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workdir", help="keeps records and runs, and resumes; default: a temporary directory")
    main(parser.parse_args().workdir)
