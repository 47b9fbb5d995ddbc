"""An NNX transformer, unchanged, on a text file: tune it small, report, train it large.

python examples/nnx_text.py [TEXT_FILE] [--workdir=DIR]  # without a file: the source of Python's argparse
"""

import argparse
import pathlib

import jax.numpy as jnp
import numpy as np
from flax import nnx

import depthmup_flax as dm

BASE_WIDTH, BASE_DEPTH = 32, 2  # of the small network, which is tuned
HEAD_SIZE, LENGTH = 16, 32  # the number of heads grows, their size does not


class Block(nnx.Module):
    """Causal attention and feed-forward, two residual branches."""

    def __init__(self, width: int, rngs: nnx.Rngs):
        self.norm_1, self.norm_2 = nnx.LayerNorm(width, rngs=rngs), nnx.LayerNorm(width, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(width // HEAD_SIZE, width, decode=False, rngs=rngs)
        self.up, self.down = nnx.Linear(width, 4 * width, rngs=rngs), nnx.Linear(4 * width, width, rngs=rngs)

    def __call__(self, h, mask):
        """``[batch, length, width] -> [batch, length, width]``."""
        h = h + self.attention(self.norm_1(h), mask=mask)
        return h + self.down(nnx.gelu(self.up(self.norm_2(h))))


class Transformer(nnx.Module):
    """Characters to the logits of the next."""

    def __init__(self, width: int, depth: int, num_classes: int, *, rngs: nnx.Rngs):
        self.embed = nnx.Embed(num_classes, width, rngs=rngs)
        self.position = nnx.Embed(LENGTH, width, rngs=rngs)
        self.blocks = nnx.List([Block(width, rngs) for _ in range(depth)])  # Flax refuses a plain list of modules
        self.norm = nnx.LayerNorm(width, rngs=rngs)
        self.head = nnx.Linear(width, num_classes, use_bias=False, rngs=rngs)

    def __call__(self, tokens):
        """``[batch, length] -> [batch, length, num_classes]``."""
        h = self.embed(tokens) + self.position(jnp.arange(LENGTH))
        mask = nnx.make_causal_mask(tokens)
        for block in self.blocks:
            h = block(h, mask)
        return self.head(self.norm(h))


def data(file: pathlib.Path):
    """The characters of a file: (train, test), each windows ``[n, LENGTH]`` and the same moved by one."""
    _, characters = np.unique(list(file.read_text(encoding="utf-8")), return_inverse=True)
    windows = np.lib.stride_tricks.sliding_window_view(characters.astype(np.int32), LENGTH + 1)
    train, test = windows[: -len(windows) // 10 - LENGTH : 4], windows[-len(windows) // 10 :: LENGTH]
    return (train[:, :-1], train[:, 1:]), (test[:, :-1], test[:, 1:])


def main(text=argparse.__file__, workdir=None, steps=100, width=64, depth=6, seeds=3) -> dict:
    """Tunes the small network, reports on its depth, trains the large one; returns its result."""
    settings = {"steps": steps, "batch_size": 32, "workdir": workdir}
    study = dm.Study(Transformer, data(pathlib.Path(text)), base=(BASE_WIDTH, BASE_DEPTH), **settings)
    print(study.audit(width, depth))
    rates = dm.powers_of_two(-9, -5)
    best = study.tune(learning_rate=rates, seeds=seeds)
    print(best)
    print(study.sweep(depths=(depth,), learning_rate=rates, seeds=seeds).report())
    result = study.train(width, depth, **best)
    print(f"width {width}, depth {depth}: cross-entropy {result['test_loss']:.3f} per character of the test text")
    return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", nargs="?", default=argparse.__file__, help="a text file")
    parser.add_argument("--workdir", help="keeps records and runs, and resumes; default: a temporary directory")
    args = parser.parse_args()
    main(args.text, args.workdir)
