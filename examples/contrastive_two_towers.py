"""Two towers that match halves of images, with a training step of their own: tune them small, train them large."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from sklearn.datasets import load_digits

import depthmup_flax as dm

BASE = 32, 3  # width and depth of the small towers, which are tuned


class Towers(nn.Module):
    """Residual MLPs for upper and lower halves. No readout: their outputs grow, and cosines need no factor."""

    width: int
    depth: int
    rule: dm.Parametrization

    @nn.compact
    def __call__(self, images):
        """``[batch, 64] -> [batch, batch]``: the cosine of each upper and each lower half."""
        upper, lower = jnp.split(images, 2, axis=1)
        return self.embed(upper, "upper") @ self.embed(lower, "lower").T

    def embed(self, x, tower):
        """``[batch, 32] -> [batch, width]``, vectors of length 1."""
        h = nn.Dense(self.width, name=f"{tower}_stem")(x)
        for i in range(self.depth):
            y = nn.Dense(self.width, name=f"{tower}_block_{i}")(nn.relu(nn.LayerNorm(name=f"{tower}_norm_{i}")(h)))
            h = h + self.rule.residual_multiplier(self.depth / BASE[1]) * y
        h = nn.Dense(self.width, name=f"{tower}_head")(nn.LayerNorm(name=f"{tower}_norm")(h))
        return h / jnp.linalg.norm(h, axis=-1, keepdims=True)


def build(width: int, depth: int, rule: dm.Parametrization) -> dm.Task:
    """The training of two towers: pure functions, with the hyperparameters that are tuned."""
    towers, images = Towers(width, depth, rule), jnp.zeros((2, 64))
    info = dm.audit(towers, Towers(*BASE, rule), images).info
    optimizer = lambda hyper: dm.adamw(hyper["learning_rate"], info, rule)

    def loss_of(params, batch, hyper):
        logits = towers.apply({"params": params}, batch["image"]) / hyper["temperature"]
        labels = jnp.arange(len(logits))
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
    study = dm.Study(build, data, base=BASE, steps=steps, batch_size=100, hyper={"temperature": 0.1}, workdir=workdir)
    best = study.tune(learning_rate=dm.powers_of_two(-11, -6), temperature=(0.01, 0.03, 0.1), seeds=seeds)
    print(best)
    result = study.train(width, depth, **best)
    print(f"width {width}, depth {depth}: matched {result['test_metrics']['test_matched']:.0%} of 297 test images")
    return result


if __name__ == "__main__":
    main()
