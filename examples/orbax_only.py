"""Reads the trained network of `depthmup train --config=digits` without this package, and predicts with NumPy.

depthmup train --config=digits && python examples/orbax_only.py runs/digits
"""

import json
import pathlib
import sys

import jax
import numpy as np
import orbax.checkpoint as ocp
from sklearn.datasets import load_digits


def latest_params(directory):
    """The parameters of the latest checkpoint as NumPy arrays, whatever devices wrote it.

    ``{"stem": {"kernel": [64, 128]}, "blocks": ..., "readout": ...}``. To place them on a mesh, use
    ``ocp.ArrayRestoreArgs(sharding=...)``.
    """
    steps = [path for path in pathlib.Path(directory, "checkpoints").absolute().iterdir() if path.name.isdigit()]
    state = max(steps, key=lambda path: int(path.name)) / "state"
    with ocp.PyTreeCheckpointer() as reader:
        stored = reader.metadata(state).item_metadata
        wanted = {"carry": {"params": stored["carry"]["params"]}}  # BatchNorm has "collections", too
        to_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), wanted)
        args = ocp.args.PyTreeRestore(wanted, restore_args=to_numpy, partial_restore=True)
        return reader.restore(state, args=args)["carry"]["params"]


def logits(directory, images):
    """The residual MLP's: uint8 ``[B, 8, 8, 1] -> [B, 10]``. The forward pass multiplies branches and readout."""
    params = latest_params(directory)
    data, config = (json.loads(pathlib.Path(directory, name).read_text()) for name in ("data.json", "config.json"))
    model = config["model"]
    depth_ratio, width_ratio = model["depth"] / model["base_depth"], model["width"] / model["base_width"]
    x = (images / 255 - data["mean"]) / data["std"]
    h = x.reshape(len(x), -1) @ params["stem"]["kernel"]
    for kernel in params["blocks"]["branch"]["dense_0"]["kernel"]:
        z = np.maximum(h @ kernel, 0)
        h = h + depth_ratio**-0.5 * (z - z.mean(-1, keepdims=True))
    return h @ params["readout"]["kernel"] / width_ratio


if __name__ == "__main__":
    digits = load_digits()
    predicted = logits(sys.argv[1], np.round(digits.images * 255 / 16)[..., None])
    np.save(pathlib.Path(sys.argv[1], "logits.npy"), predicted)
    print(f"{100 * (predicted.argmax(1) == digits.target).mean():.1f} % of all digits")
