"""A Linen U-Net that removes noise, with the factors in its code and data prepared inside the step.

python examples/linen_unet.py [--workdir=DIR]
"""

import argparse

import jax
import numpy as np
from flax import linen as nn
from sklearn.datasets import load_digits

import depthmup_flax as dm

BASE_WIDTH, BASE_DEPTH = 8, 2  # of the small network, which is tuned


class UNet(nn.Module):
    """Residual blocks at 8x8, 4x4 and again 8x8 pixels, ``depth`` of them at each, and a connection across."""

    width: int
    depth: int
    rule: dm.Parametrization

    def blocks(self, h, name):
        """``depth`` residual blocks ``[batch, H, W, C] -> [batch, H, W, C]``."""
        for i in range(self.depth):
            y = nn.relu(nn.LayerNorm(name=f"{name}_{i}_norm")(h))
            y = nn.Conv(h.shape[-1], (3, 3), name=f"{name}_{i}")(y)
            h = h + self.rule.residual_multiplier(self.depth / BASE_DEPTH) * y
        return h

    @nn.compact
    def __call__(self, x):
        """``[batch, 8, 8, 1] -> [batch, 8, 8, 1]``."""
        h = across = self.blocks(nn.Conv(self.width, (3, 3), name="stem")(x), "down")
        h = self.blocks(nn.Conv(2 * self.width, (2, 2), strides=2, name="halve")(h), "middle")
        h = nn.ConvTranspose(self.width, (2, 2), strides=(2, 2), name="double")(h)
        h = nn.Conv(self.width, (1, 1), name="join")(jax.numpy.concatenate([h, across], axis=-1))
        h = nn.LayerNorm(name="norm")(self.blocks(h, "up"))
        h = h * self.rule.readout_multiplier(self.width / BASE_WIDTH)
        return nn.Conv(1, (3, 3), name="head")(h)


def data():
    """scikit-learn's digits ``[n, 8, 8, 1]`` in -1 to 1, and what makes a batch of them: (train, test, prepare)."""
    images = (load_digits().images[..., None] / 8 - 1).astype(np.float32)

    def prepare(key, batch):
        """Noisy and clean images; a test without a key has the same noise each time."""
        noise = jax.random.normal(jax.random.key(0) if key is None else key, batch["image"].shape)
        return batch["image"] + 0.5 * noise, batch["image"]

    return {"image": images[:-297]}, {"image": images[-297:]}, prepare


def main(workdir=None, steps: int = 80, width: int = 16, depth: int = 6, seeds: int = 3) -> dict:
    """Tunes the small network, trains the large one; returns its result."""
    study = dm.Study(UNet, data, base=(BASE_WIDTH, BASE_DEPTH), loss="squared_error", steps=steps, workdir=workdir)
    print(study.audit(width, depth))
    best = study.tune(learning_rate=dm.powers_of_two(-8, -5), seeds=seeds)
    print(best)
    result = study.train(width, depth, **best)
    print(f"width {width}, depth {depth}: squared error {result['test_loss']:.4f} of test images, whose noise has 0.25")
    return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workdir", help="keeps records and runs, and resumes; default: a temporary directory")
    main(parser.parse_args().workdir)
