"""The ten tasks: models, data, optimizers, and the sizes to which a rule must transfer.

All run without downloads. A run has the same steps and examples at every size, so that its cost is proportional to the
number of parameters: in the blocks 4, 16 and 64 times the proxy's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from depthmup_flax.config.fields import default_config
from depthmup_flax.search.sweep.grid import powers_of_two

PROXY = (1, 1)  # ratios of width and depth
# Nominal cost over the proxy's -> those ratios.
TARGETS: Mapping[int, tuple[int, int]] = {4: (1, 4), 16: (4, 1), 64: (4, 4)}
TUNING_SEEDS, TARGET_SEEDS = (0, 1, 2, 3), (10, 11, 12)
AROUND = (0.25, 0.5, 1.0, 2.0, 4.0)  # times the transferred learning rate, at the targets
# Values of a second tuned hyperparameter, times the rule's.
FACTORS = (0.25, 1.0, 4.0, 16.0)
_ADAM, _SGD, _MUON = powers_of_two(-11, -3), powers_of_two(-10, -2), powers_of_two(-10, -2)
_DATA = "python:reproduction.rules.synthetic:"
_SMALL = {"num_heads": 2, "mlp_ratio": 2}
_LLAMA = {"norm": "rms", "positions": "rotary", "mlp": "swiglu", "qk_norm": True, "num_heads": 2}


@dataclasses.dataclass(frozen=True)
class Task:
    """A proxy, whose learning rate is tuned on ``rates``; its targets are those of `TARGETS`."""

    model: str
    width: int
    depth: int
    data: str
    optimizer: str
    rates: tuple[float, ...]
    batch_size: int = 64
    steps: int = 100
    fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # of the model
    of_optimizer: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    momentum: float | None = None

    def config(self) -> ConfigDict:
        """The proxy's."""
        config = default_config(self.model)
        config.model.update(width=self.width, depth=self.depth, base_width=self.width, base_depth=self.depth)
        config.model.update(self.fields)
        config.data.name = self.data
        config.optimizer.update(name=self.optimizer, learning_rate=self.rates[0], **self.of_optimizer)
        config.optimizer.kwargs.momentum = self.momentum
        config.train.update(
            steps=self.steps, batch_size=self.batch_size, average_steps=self.steps // 5, log_every=self.steps
        )
        return config


_COSINE = {"schedule": "cosine", "warmup_steps": 10}
TASKS: Mapping[str, Task] = {
    "digits_mlp_adam": Task("res_mlp", 32, 4, "digits", "adam", _ADAM, steps=40),
    "digits_mlp_sgd": Task("res_mlp", 32, 4, "digits", "momentum", _SGD, steps=40, momentum=0.9),
    "digits_mlp_muon": Task("res_mlp", 32, 4, "digits", "muon", _MUON, steps=40),
    "teacher_mlp2_adam": Task(
        "res_mlp", 32, 3, f"{_DATA}teacher", "adam", _ADAM, fields={"block_depth": 2, "norm": "layer"}
    ),
    "teacher_mlp_sgd": Task("res_mlp", 32, 4, f"{_DATA}teacher", "momentum", _SGD, momentum=0.9),
    "digits_resnet_adam": Task("simple_resnet", 32, 3, "digits", "adam", _ADAM, 32, 40, {"norm": "layer"}),
    "gratings_vit_adamw": Task(
        "vit", 16, 2, f"{_DATA}gratings", "adamw", _ADAM, 32,
        fields={**_SMALL, "patch_size": 4},
        of_optimizer={"weight_decay": 0.1, **_COSINE},
    ),
    "pairs_gpt_adam": Task("gpt", 16, 2, f"{_DATA}pairs", "adam", _ADAM, 8, fields=_SMALL),
    "chains_llama_adamw": Task(
        "gpt", 16, 2, f"{_DATA}chains", "adamw", _ADAM, 8, 60,
        fields={**_LLAMA, "mlp_features": 24},
        of_optimizer={"weight_decay": 0.1, **_COSINE},
    ),
    "chains_gpt_muon": Task("gpt", 16, 2, f"{_DATA}chains", "muon", _MUON, 8, 60, _SMALL),
}  # fmt: skip
