"""How figures are measured on a CPU: networks, batch sizes and environment."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from benchmarks.contest import ROOT, Contender

Model = Mapping[str, Any]

_KINDS: dict[str, Model] = {
    "ResMLP": {"name": "res_mlp"},
    "SimpleResNet": {"name": "simple_resnet"},
    "ViT": {"name": "vit", "patch_size": 4},
}


def _fields(title: str) -> dict[str, Any]:
    """Fields of ``config.model`` that a title such as ``ViT 64x4`` names."""
    kind, _, size = title.partition(" ")
    width, depth = size.split("x")
    return {**_KINDS[kind], "width": int(width), "depth": int(depth)}


_SIZES = {"ResMLP": ("256x8", "256x64"), "ViT": ("128x6",), "SimpleResNet": ("32x6", "128x6", "128x12")}
# `with_base` adds the proxy's sizes, so that no multiplier is 1.
NETWORKS: dict[str, dict[str, Any]] = {
    **{title: _fields(title) for title in (f"{kind} {size}" for kind, sizes in _SIZES.items() for size in sizes)},
    "ResNet-18": {"name": "resnet", "width": 64, "depth": 8},
    "ResNet-18, width 16": {"name": "resnet", "width": 16, "depth": 8},
}
BATCH = 64
SMALLER_BATCH = {"ResNet-18": 16}  # a step of 64 takes seconds

TINY: dict[str, dict[str, Any]] = {
    name: {**fields, "width": 16, "depth": min(4, fields["depth"])} for name, fields in NETWORKS.items()
}


# What a stack consists of; fails if it cannot import this package.
_DESCRIBE = """
import importlib.metadata, json, os, platform
import depthmup_flax
versions = {name: importlib.metadata.version(name) for name in ("jax", "jaxlib", "flax", "optax")}
print(json.dumps({"python": platform.python_version(), **versions, "XLA_FLAGS": os.environ.get("XLA_FLAGS", "")}))
"""


@dataclasses.dataclass(frozen=True)
class Stack:
    """An interpreter with this package and a version of JAX."""

    python: str = sys.executable

    @functools.cached_property
    def facts(self) -> dict[str, str]:
        """Versions of Python and libraries, and the user's ``XLA_FLAGS``."""
        command = [self.python, "-c", _DESCRIBE]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": "."})
        if done.returncode:
            raise SystemExit(f"{self.python} cannot import this package: {done.stderr.strip().splitlines()[-1]}")
        facts: dict[str, str] = json.loads(done.stdout)
        return facts

    @property
    def name(self) -> str:
        """Title of the stack's column in the tables."""
        return f"Python {'.'.join(self.facts['python'].split('.')[:2])}, jax {self.facts['jax']}"


@dataclasses.dataclass(frozen=True)
class Setting:
    """How to measure.

    Attributes:
      rounds: rounds of each comparison.
      stacks: interpreters with this package. Most figures are measured on each in turn; those against PyTorch
        interleave them, so that all meet the same PyTorch.
      python: interpreter with PyTorch, mup and TensorFlow.
      quick: tiny sizes, to test that everything runs.
      images: folder of images for the streaming figure; empty: generated images.
    """

    rounds: int = 7
    stacks: tuple[Stack, ...] = (Stack(),)
    python: str = sys.executable
    quick: bool = False
    images: str = ""

    def networks(self, *names: str) -> dict[str, dict[str, Any]]:
        """The named networks with base sizes."""
        known = TINY if self.quick else NETWORKS
        return {name: with_base(known[name]) for name in names}

    def batch(self, name: str) -> int:
        """Batch size of a network."""
        return 8 if self.quick else SMALLER_BATCH.get(name, BATCH)

    @property
    def seconds(self) -> float:
        """Duration of one measurement of a step."""
        return 0.01 if self.quick else 0.4

    def jax(
        self, name: str, function: str, process: str = "ours", stack: Stack | None = None, **args: Any
    ) -> Contender:
        """A contender in JAX, on the first stack if none is given; by default all share one process."""
        return self.ours(name, f"benchmarks.ours:{function}", process, stack, **args)

    def ours(self, name: str, make: str, process: str = "ours", stack: Stack | None = None, **args: Any) -> Contender:
        """A contender that runs in a stack's interpreter and environment."""
        stack = stack or self.stacks[0]
        return Contender(name, make, args, process, stack.python, {"JAX_PLATFORMS": "cpu"})

    def torch(self, name: str, function: str, **args: Any) -> Contender:
        """A contender in PyTorch, in its own process."""
        return Contender(name, f"benchmarks.theirs:{function}", args, "", self.python, optional=True)


def with_base(fields: Model) -> dict[str, Any]:
    """``fields`` with the proxy's sizes: a quarter of the width, at least 8, and half of the depth, at least 4."""
    return {**fields, "base_width": max(8, fields["width"] // 4), "base_depth": max(4, fields["depth"] // 2)}


def sized(title: str) -> dict[str, Any]:
    """``config.model`` of a title such as ``ViT 64x4``, with base sizes."""
    return with_base(_fields(title))
