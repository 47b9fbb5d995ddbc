"""Eight tasks, four without attention and four with it; their proxies, targets and ways to get a rate."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from depthmup_flax.config.fields import default_config, set_size
from depthmup_flax.search.sweep.grid import powers_of_two
from reproduction.rules.version2.tasks import Task as Steps

DEPTH, DEEPER = 4, 8  # of the proxies; `completep` advises 8
WAYS = ("depth_mup", "completep", "sp", "gpt2")
SEARCHES: Mapping[str, tuple[tuple[int, ...], ...]] = {"depth_mup": ((0, 1), (2, 3)), "completep": ((0,), (1,))}
SEEDS = (10, 11, 12, 13)  # at the targets
OWN_RATES = 7  # of sp and gpt2 at the target
_ADAM, _OTHER = powers_of_two(-11, -3), powers_of_two(-10, -2)
_DATA = "python:reproduction.rules.by_class.data:"
_SMALL = {"num_heads": 4, "mlp_ratio": 2}
_LLAMA = {"norm": "rms", "positions": "rotary", "mlp": "swiglu", "qk_norm": True, "num_heads": 4, "mlp_features": 48}


@dataclasses.dataclass(frozen=True)
class Task(Steps):
    """A proxy of 400 steps, its target's size, and whether its branches have attention."""

    target: tuple[int, int] = (64, 16)
    attention: bool = False

    def at(self, way: str, width: int, depth: int) -> ConfigDict:
        """The config of a way at a size."""
        config = self.config()
        if way == "gpt2":
            own = default_config("reproduction.rules.by_class.gpt2_start:network")
            own.update({part: config[part].to_dict() for part in ("data", "optimizer", "train")})
            own.model.update(task=_name(self), audit=False, rescale_init=False)
            config = own
        config.parametrization.preset = "sp" if way == "gpt2" else way
        base_depth = DEEPER if way == "completep" else self.depth
        config.model.update(base_width=self.width, base_depth=base_depth)
        set_size(config, width, depth)
        config.train.same_code = True  # the table may change; the data's checksum is in the records
        return config

    def proxy(self, way: str) -> ConfigDict:
        """The config of the proxy of a way: of equal cost for all."""
        return self.at(way, self.width, DEEPER if way == "completep" else self.depth)


def _name(task: Task) -> str:
    return next(name for name, known in TASKS.items() if known == task)


def _mlp(data: str, optimizer: str, of_optimizer: Mapping[str, Any] | None = None, **fields: Any) -> Task:
    momentum = 0.9 if optimizer == "momentum" else None
    rates = _OTHER if optimizer in ("momentum", "muon") else _ADAM
    return Task(
        "res_mlp", 32, DEPTH, _DATA + data, optimizer, rates, 64, 400, fields, of_optimizer or {}, momentum, (128, 16)
    )


def _transformer(model: str, data: str, optimizer: str, batch: int, fields: Mapping[str, Any]) -> Task:
    rates = _OTHER if optimizer == "muon" else _ADAM
    decay = {"weight_decay": 0.1} if optimizer == "adamw" else {}
    return Task(
        model, 32, DEPTH, _DATA + data, optimizer, rates, batch, 400, fields, decay, None, (64, 16), attention=True
    )


TASKS: Mapping[str, Task] = {
    "mixture_mlp_adam": _mlp("mixture", "adam"),
    "mixture_mlp_sgd": _mlp("mixture", "momentum"),
    "products_mlp2_adamw": _mlp("products", "adamw", {"weight_decay": 0.1}, block_depth=2, norm="layer"),
    "shapes_resnet_adam": Task(
        "simple_resnet", 32, DEPTH, f"{_DATA}clear_shapes", "adam", _ADAM, 64, 400, {"norm": "layer"}, target=(64, 16)
    ),
    "shapes_vit_adam": _transformer("vit", "shapes", "adam", 32, {**_SMALL, "patch_size": 2}),
    "periods_gpt_adam": _transformer("gpt", "periods", "adam", 16, _SMALL),
    "words_llama_adamw": _transformer("gpt", "mixtures_of_words", "adamw", 8, _LLAMA),
    "words_gpt_muon": _transformer("gpt", "mixtures_of_words", "muon", 8, _SMALL),
}
