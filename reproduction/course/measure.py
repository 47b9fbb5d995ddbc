"""Trains healthy and wrong runs of small networks and keeps what they record of their first third.

    python -m reproduction.course.measure OUT TEXT [NETWORK OPTIMIZER]

TEXT: a file of text for the GPT, such as Tiny Shakespeare. Rerunning resumes. `reproduction.pages.course_table` reads
OUT.
"""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

import depthmup_flax as dm
from depthmup_flax.config import default_config
from depthmup_flax.config.fields import get_field, set_field

STEPS = 24
# Name of an optimizer with its schedule -> fields of ``config.optimizer``.
OPTIMIZERS: Mapping[str, dict[str, Any]] = {
    "adam, constant": {"name": "adam"},
    "adam, warm-up, cosine": {"name": "adam", "warmup_steps": 8, "schedule": "cosine"},
    "momentum, warm-up, linear": {"name": "momentum", "warmup_steps": 8, "schedule": "linear"},
    "muon, warm-up, wsd": {"name": "muon", "warmup_steps": 8, "schedule": "wsd"},
}
# Network -> fields, sizes with the base first, rates of adam, momentum and muon.
NETWORKS: Mapping[str, tuple[dict[str, Any], list[tuple[int, int]], tuple[float, float, float]]] = {
    "MLP": (
        {"model.name": "reproduction.course.networks:MLP", "data.name": "python:reproduction.course.networks:digits"},
        [(16, 4), (32, 8), (64, 16), (128, 32)],
        (4e-3, 0.1, 2e-2),
    ),
    "GPT": (
        {"model.name": "gpt", "model.num_heads": 4, "data.context": 32, "data.augment": "shift"},
        [(16, 2), (48, 8)],
        (8e-3, 0.2, 2e-2),
    ),
    "conv": ({"model.name": "simple_resnet", "data.name": "digits"}, [(32, 3), (64, 12)], (4e-3, 0.1, 2e-2)),
    "NNX transformer": (
        {
            "model.name": "examples.nnx_transformer:Transformer",
            "data.name": "python:reproduction.course.networks:counting",
        },
        [(16, 2), (32, 8)],
        (3e-3, 0.1, 2e-2),
    ),
    "transformer": (
        {
            "model.name": "reproduction.course.networks:Transformer",
            "data.name": "python:reproduction.course.networks:counting",
        },
        [(16, 2), (32, 8)],
        (3e-3, 0.1, 2e-2),
    ),
    "U-Net": (
        {
            "model.name": "examples.linen_unet:UNet",
            "data.name": "python:examples.linen_unet:data",
            "loss": "squared_error",
        },
        [(8, 2), (24, 6)],
        (1e-2, 0.1, 2e-2),
    ),
}


OWN = ("MLP", "transformer")  # whose code can be wrong in one place
WHOLE = "adam, warm-up, cosine"  # with which all faults are tried, those of the MLP with others, too
FROZEN = {"GPT": ("transformer/*",), "conv": ("segment_*",), "U-Net": ("down_*", "middle_*", "up_*")}
NOISY = {"MLP": "noisy_digits", "NNX transformer": "noisy_counting"}


def config_of(network: str, optimizer: str, text: str) -> ConfigDict:
    """The config of a network's base."""
    fields, ((width, depth), *_), rates = NETWORKS[network]
    config = default_config(fields["model.name"])
    kinds = ("adam", "momentum", "muon")
    rate = rates[kinds.index(OPTIMIZERS[optimizer]["name"])]
    config.optimizer.update(learning_rate=rate, **OPTIMIZERS[optimizer])
    config.model.update(width=width, depth=depth, base_width=width, base_depth=depth)
    config.train.update(
        steps=STEPS, batch_size=32, average_steps=8, log_every=STEPS, eval_every=STEPS, record_course=True
    )
    for path, value in {"data.name": f"text:{text}", **fields}.items():
        set_field(config, path, value)
    return config


def faults(network: str, optimizer: str, config: ConfigDict, width: int, depth: int) -> dict[str, dict[str, Any]]:
    """Name of a fault -> fields that differ."""
    rate, own = config.optimizer.learning_rate, network in OWN
    found: dict[str, dict[str, Any]] = {
        name: {"optimizer.learning_rate": rate * factor}
        for name, factor in {"rate / 2": 0.5, "rate x 5/4": 1.25, "rate x 2": 2}.items()
    }
    if config.optimizer.warmup_steps:
        found["warm-up twice as long"] = {"optimizer.warmup_steps": 2 * config.optimizer.warmup_steps}
    r = depth / config.model.base_depth
    if network in (*OWN, "GPT", "conv", "U-Net"):  # a r^-1/2 with a = r^1/2
        found["multiplier forgotten"] = {"parametrization.branch_multiplier": r**0.5}
    if optimizer != WHOLE and not own:
        return found
    found["hidden weights frozen"] = {"optimizer.frozen": FROZEN.get(network, ("block*",))}
    found["batch of 16, not 32"] = {"train.batch_size": 16}
    if network in (*OWN, "NNX transformer", "U-Net"):
        found["initial values not rescaled"] = {"model.rescale_init": False}
    if network in NOISY:
        found["20 % of labels wrong"] = {"data.name": f"python:reproduction.course.networks:{NOISY[network]}"}
    if own:
        a = "parametrization.branch_multiplier"
        found["multiplier forgotten, a third"] = {"model.a_of": "third", a: r**0.5}
        found["readout without 1/m"] = {"model.a_of": "output", a: width / config.model.base_width}
        found["bf16 parameters"] = {"model.dtype": "bfloat16"}
    return found


def main(out: str, text: str, *of: str) -> None:
    """Trains all runs, or those ``of`` a network or an optimizer."""
    for network, (_, sizes, _) in NETWORKS.items():
        for optimizer in OPTIMIZERS:
            if of and not {network, optimizer} <= set(of):
                continue
            config = config_of(network, optimizer, text)
            size = lambda at, network=network: {
                "model.width": (at[0],),
                "model.depth": (at[1],),
                "seed": range(4 if network == "MLP" else 8),
            }
            grids = {f"healthy {i}": size(at) for i, at in enumerate(sizes)}
            wrong = {"healthy": {}, **faults(network, optimizer, config, *sizes[-1])}
            paths = dict.fromkeys(path for fields in wrong.values() for path in fields)

            for name, fields in wrong.items():
                if name != "healthy":
                    grids[name] = (
                        size(sizes[-1])
                        | {path: (fields.get(path, get_field(config, path)),) for path in paths}
                        | {"seed": range(2)}
                    )
            whole = {
                name: {**{path: (get_field(config, path),) for path in ("optimizer.learning_rate", *paths)}, **grid}
                for name, grid in grids.items()
            }
            directory = pathlib.Path(out) / f"{network}, {optimizer}".replace(" ", "_").replace(",", "")
            dm.sweep(
                dm.sweep_config(config, whole, figure="course", title=f"{network}, {optimizer}", scale="course"),
                directory,
                lanes=8,
            )


if __name__ == "__main__":
    main(*sys.argv[1:])
