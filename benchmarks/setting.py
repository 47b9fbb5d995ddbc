"""How figures are measured: networks, batch sizes, device and environment."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from typing import Any

from benchmarks.contest import Contender

Model = Mapping[str, Any]

# `with_base` adds the proxy's sizes, so that no multiplier is 1.
NETWORKS: dict[str, dict[str, Any]] = {
    "ResMLP 256x8": {"name": "res_mlp", "width": 256, "depth": 8},
    "ResMLP 256x64": {"name": "res_mlp", "width": 256, "depth": 64},
    "SimpleResNet 128x6": {"name": "simple_resnet", "width": 128, "depth": 6},
    "SimpleResNet 128x12": {"name": "simple_resnet", "width": 128, "depth": 12},
    "ResNet-18": {"name": "resnet", "width": 64, "depth": 8},
    "ResNet-18, width 16": {"name": "resnet", "width": 16, "depth": 8},
    "ViT 128x6": {"name": "vit", "width": 128, "depth": 6, "patch_size": 4},
}
# Large enough to keep a GPU busy.
GPU_NETWORKS: dict[str, dict[str, Any]] = {
    "ResMLP 1024x64": {"name": "res_mlp", "width": 1024, "depth": 64},
    "SimpleResNet 512x12": {"name": "simple_resnet", "width": 512, "depth": 12},
    "ResNet-18": {"name": "resnet", "width": 64, "depth": 8},
    "ViT 512x12": {"name": "vit", "width": 512, "depth": 12, "patch_size": 4},
}
BATCH = {"cpu": 64, "gpu": 256}
CPU_BATCH = {"ResNet-18": 16}  # a step of 64 takes seconds

TINY: dict[str, dict[str, Any]] = {
    name: {**fields, "width": 16, "depth": min(4, fields["depth"])} for name, fields in NETWORKS.items()
}


@dataclasses.dataclass(frozen=True)
class Setting:
    """How to measure.

    Attributes:
      device: ``cpu`` or ``gpu``.
      rounds: rounds of each comparison.
      python: interpreter with PyTorch, mup and TensorFlow.
      quick: tiny sizes, which only show that everything runs.
      images: folder of images for the streaming figure; empty: generated images.
    """

    device: str = "cpu"
    rounds: int = 7
    python: str = sys.executable
    quick: bool = False
    images: str = ""

    def networks(self, *names: str) -> dict[str, dict[str, Any]]:
        """The named networks with base sizes; on a GPU, all of `GPU_NETWORKS`."""
        known = TINY if self.quick else NETWORKS if self.device == "cpu" else GPU_NETWORKS
        chosen = known if self.device == "gpu" and not self.quick else {name: known[name] for name in names}
        return {name: with_base(fields) for name, fields in chosen.items()}

    def batch(self, name: str) -> int:
        """Batch size of a network."""
        return 8 if self.quick else CPU_BATCH.get(name, BATCH["cpu"]) if self.device == "cpu" else BATCH["gpu"]

    @property
    def env(self) -> dict[str, str]:
        """Environment of JAX: one device of the requested kind, without preallocated memory."""
        if self.device == "cpu":
            return {"JAX_PLATFORMS": "cpu"}
        return {"JAX_PLATFORMS": "cuda", "CUDA_VISIBLE_DEVICES": "0", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}

    @property
    def seconds(self) -> float:
        """Duration of one measurement of a step."""
        return 0.01 if self.quick else 0.4

    def jax(self, name: str, function: str, process: str = "ours", **args: Any) -> Contender:
        """A contender in JAX; by default all share one process."""
        return Contender(name, f"benchmarks.ours:{function}", args, process, env=self.env)

    def torch(self, name: str, function: str, **args: Any) -> Contender:
        """A contender in PyTorch, in its own process."""
        on = {"device": "cpu", "precision": "highest"}
        if self.device == "gpu":
            on = {"device": "cuda", "precision": "high"}  # TF32, as is JAX's default
        return Contender(name, f"benchmarks.theirs:{function}", {**on, **args}, "", self.python, optional=True)


def with_base(fields: Model) -> dict[str, Any]:
    """``fields`` with the proxy's sizes: a quarter of the width, at least 8, and half of the depth, at least 4."""
    return {**fields, "base_width": max(8, fields["width"] // 4), "base_depth": max(4, fields["depth"] // 2)}
