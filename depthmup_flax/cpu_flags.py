"""Flags of XLA's CPU compiler that the commands set, each only where it was measured to help; the library sets none."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Mapping, MutableMapping
from typing import NamedTuple


class MeasuredFlag(NamedTuple):
    """A flag for one version of jaxlib: an unknown flag ends the process, and other versions have other compilers.

    Attributes:
      measured: processor -> network -> time of a training step with the flag, relative to without: medians of
        interleaved rounds; lanes, as sweeps train them, on one core.
    """

    flag: str
    jaxlib: str
    machines: tuple[str, ...]
    measured: Mapping[str, Mapping[str, float]]


FLAGS = (
    MeasuredFlag(
        "--xla_cpu_experimental_ynn_fusion_type=dot",  # products by YNNPACK, fused with what surrounds them
        jaxlib="0.10.2",
        machines=("x86_64", "AMD64"),
        measured={
            "AMD EPYC": {
                **{"SimpleResNet 128x12": 0.82, "ViT 128x6": 0.92, "ResNet-18": 0.96},
                **{"ResMLP 128x16, 8 lanes": 0.99, "ResMLP 32x16, 8x8 pixels, 8 lanes": 0.90},
                **{"SimpleResNet 32x6, 1 lane": 1.03, "ViT 64x4, 2 lanes": 0.93},
            },
            "Intel Xeon, AVX-512": {"SimpleResNet 128x12": 0.74, "ViT 128x6": 0.85, "ResNet-18": 1.0},
        },
    ),
)


def flags_for(jaxlib: str, machine: str) -> list[str]:
    """The flags that help on a version of jaxlib and a kind of machine, as `platform.machine` names it."""
    return [one.flag for one in FLAGS if one.jaxlib == jaxlib and machine in one.machines]


def choose_cpu_flags(environment: MutableMapping[str, str] = os.environ) -> list[str]:
    """Sets ``XLA_FLAGS`` for the CPU at hand and returns the flags; none if the user has set any.

    Call before JAX starts. Other devices ignore them.
    """
    if environment.get("XLA_FLAGS"):
        return []
    flags = flags_for(importlib.metadata.version("jaxlib"), platform.machine())
    if flags:
        environment["XLA_FLAGS"] = " ".join(flags)
    return flags
