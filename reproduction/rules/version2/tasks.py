"""The fourteen tasks: models, data, optimizers, and the sizes to which a rule must transfer."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from depthmup_flax.search.sweep.grid import powers_of_two
from reproduction.rules import tasks as version1

PROXY = version1.PROXY
# Name -> ratios of width and depth, in the order in which they are run.
TARGETS: Mapping[str, tuple[int, int]] = {"depth x4": (1, 4), "both x4": (4, 4), "depth x16": (1, 16)}
SEARCHES = ((0, 1), (2, 3), (4, 5))  # seeds of the three searches at the proxy
SEEDS = (10, 11, 12, 13, 14, 15)  # at the targets
_ADAM, _OTHER = powers_of_two(-11, -3), powers_of_two(-10, -2)
_DATA = "python:reproduction.rules.version2.data:"
_TWO = {"block_depth": 2}
_SMALL = {"num_heads": 2, "mlp_ratio": 2}
_VIT = {**_SMALL, "patch_size": 4}
_LLAMA = {"norm": "rms", "positions": "rotary", "mlp": "swiglu", "qk_norm": True, "num_heads": 2, "mlp_features": 24}
_DECAY = {"weight_decay": 0.1}


@dataclasses.dataclass(frozen=True)
class Task(version1.Task):
    """A task of 400 steps: 40 of warm-up, then a cosine to zero. Its loss is the mean of the last fifth."""

    steps: int = 400

    def config(self) -> ConfigDict:
        """The proxy's."""
        config = super().config()
        config.optimizer.update(schedule="cosine", warmup_steps=self.steps // 10)
        return config


def _mlp(data: str, optimizer: str, **fields: Any) -> Task:
    rates = _ADAM if optimizer == "adam" else _OTHER
    momentum = 0.9 if optimizer == "momentum" else None
    return Task("res_mlp", 32, 4, _DATA + data, optimizer, rates, fields=fields, momentum=momentum)


TASKS: Mapping[str, Task] = {
    "digits_mlp_adam": _mlp("digits", "adam"),
    "digits_mlp_sgd": _mlp("digits", "momentum"),
    "digits_mlp_muon": _mlp("digits", "muon"),
    "teacher_mlp_sgd": _mlp("teacher", "momentum"),
    "teacher_mlp2_adam": _mlp("teacher", "adam", **_TWO, norm="layer"),
    "teacher_mlp2_plain_adam": _mlp("teacher", "adam", **_TWO),
    "digits_mlp2_adam": _mlp("digits", "adam", **_TWO, norm="layer"),
    "digits_resnet_adam": Task("simple_resnet", 16, 3, f"{_DATA}clear", "adam", _ADAM, 32, 400, {"norm": "layer"}),
    "gratings_vit_adamw": Task("vit", 16, 2, f"{_DATA}gratings", "adamw", _ADAM, 32, 400, _VIT, _DECAY),
    "gratings_vit32_adam": Task("vit", 32, 2, f"{_DATA}gratings", "adam", _ADAM, 32, 400, _VIT),
    "pairs_gpt_adam": Task("gpt", 16, 2, f"{_DATA}pairs", "adam", _ADAM, 16, 400, _SMALL),
    "pairs_gpt64_adam": Task("gpt", 64, 2, f"{_DATA}pairs", "adam", _ADAM, 16, 400, _SMALL),
    "chains_llama_adamw": Task("gpt", 16, 2, f"{_DATA}chains", "adamw", _ADAM, 8, 400, _LLAMA, _DECAY),
    "chains_gpt_muon": Task("gpt", 16, 2, f"{_DATA}chains", "muon", _OTHER, 8, 400, _SMALL),
}  # fmt: skip
