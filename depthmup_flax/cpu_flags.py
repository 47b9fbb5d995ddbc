"""Flags of XLA's CPU compiler that the commands set where they help on average, by `FLAGS`; the library sets none.

The library's own programs have options (`drawing_options`), which no other program sees.
"""

from __future__ import annotations

import importlib.metadata
import os
import pathlib
import platform
from collections.abc import Mapping, MutableMapping, Sequence
from typing import NamedTuple


class Processor(NamedTuple):
    """As Linux names it, such as ``AuthenticAMD``, family ``25``, model ``17``; empty: unknown, or any."""

    vendor: str = ""
    family: str = ""
    model: str = ""

    def is_among(self, some: Sequence[Processor]) -> bool:
        """Whether one of ``some`` has the same fields, or empty ones."""
        return any(all(theirs in ("", mine) for mine, theirs in zip(self, one, strict=True)) for one in some)


class MeasuredFlag(NamedTuple):
    """A flag for one version of jaxlib: an unknown flag ends the process, and other versions have other compilers.

    Attributes:
      faster_on: processors that get it: those where it was measured, and others of which nothing is known.
      except_on: of these, processors where it was measured to cost more than it gains, or another to gain more.
      measured: processor -> network -> time of a training step with the flag, relative to without: medians of
        interleaved rounds; lanes, as sweeps train them, on one core.
    """

    flag: str
    jaxlib: str
    machines: tuple[str, ...]
    faster_on: tuple[Processor, ...]
    except_on: tuple[Processor, ...]
    measured: Mapping[str, Mapping[str, float]]


_X86 = ("x86_64", "AMD64")
_ANY, _AMD = Processor(), Processor("AuthenticAMD")
_EPYC_25_1, _EPYC_25_17 = Processor("AuthenticAMD", "25", "1"), Processor("AuthenticAMD", "25", "17")
# Times of a ViT are of a loop over its layers, but with the flags that the EPYC of family 25, model 1, gets: of layers
# compiled one by one, today's default.
FLAGS = (
    MeasuredFlag(
        "--xla_cpu_experimental_ynn_fusion_type=dot",  # products by YNNPACK, fused with what surrounds them
        jaxlib="0.10.2",
        machines=_X86,
        faster_on=(_ANY,),
        except_on=(_EPYC_25_1, _EPYC_25_17),
        measured={
            "AMD EPYC (family not recorded)": {
                **{"SimpleResNet 128x12": 0.82, "ViT 128x6": 0.92, "ResNet-18": 0.96},
                **{"ResMLP 128x16, 8 lanes": 0.99, "ResMLP 32x16, 8x8 pixels, 8 lanes": 0.90},
                **{"SimpleResNet 32x6, 1 lane": 1.03, "ViT 64x4, 2 lanes": 0.93},
            },
            "Intel Xeon, AVX-512": {"SimpleResNet 128x12": 0.74, "ViT 128x6": 0.85, "ResNet-18": 1.0},
            "AMD EPYC, family 25, model 17": {"SimpleResNet 128x12": 1.08, "ViT 128x6": 0.99, "ResNet-18": 1.13},
            "AMD EPYC, family 25, model 1": {
                **{"SimpleResNet 128x12": 0.85, "ViT 128x6": 1.09, "ResNet-18": 0.83, "ResMLP 256x64": 0.99},
                **{"ResMLP 128x16, 8 lanes": 1.00, "ResMLP 32x16, 8x8 pixels, 8 lanes": 0.90},
                **{"SimpleResNet 32x6, 1 lane": 1.17, "ViT 64x4, 1 lane": 0.88, "ViT 64x4, 4 lanes": 1.09},
            },
        },
    ),
    MeasuredFlag(
        "--xla_cpu_experimental_ynn_fusion_type=dot,reduce",  # its default without convolutions: Eigen is faster
        jaxlib="0.10.2",
        machines=_X86,
        faster_on=(_EPYC_25_1,),  # which has no AVX-512: YNNPACK takes twice as long as Eigen for kernels' gradients
        except_on=(),
        measured={
            "AMD EPYC, family 25, model 1": {
                **{"SimpleResNet 128x12": 0.88, "ViT 128x6": 1.02, "ResNet-18": 0.71, "ResMLP 256x64": 0.98},
                **{"ResMLP 128x16, 8 lanes": 1.01, "ResMLP 32x16, 8x8 pixels, 8 lanes": 0.99},
                **{"SimpleResNet 32x6, 1 lane": 1.24, "ViT 64x4, 1 lane": 0.92, "ViT 64x4, 4 lanes": 1.00},
            },
        },
    ),
    MeasuredFlag(
        "--xla_cpu_experimental_ynn_fusion_type=dot,reduce",  # its default without convolutions: Eigen is faster
        jaxlib="0.12.0.1",
        machines=_X86,
        faster_on=(_AMD,),  # on other processors, convolutions were not compared
        except_on=(_EPYC_25_17,),
        measured={
            "AMD EPYC (family not recorded)": {
                **{"SimpleResNet 128x12": 0.93, "ViT 128x6": 1.00, "ResNet-18": 0.84, "ResMLP 256x64": 0.97},
                **{"ResMLP 128x16, 8 lanes": 0.99, "ResMLP 32x16, 8x8 pixels, 8 lanes": 0.97},
                **{"SimpleResNet 32x6, 1 lane": 0.98, "ViT 64x4, 2 lanes": 1.00},
            },
            "AMD EPYC, family 25, model 17": {
                **{"SimpleResNet 128x12": 1.03, "ViT 128x6": 1.06, "ResNet-18": 0.93, "ResMLP 256x64": 1.03},
            },
            "AMD EPYC, family 25, model 1": {
                **{"SimpleResNet 128x12": 0.80, "ViT 128x6": 0.96, "ResNet-18": 0.55, "ResMLP 256x64": 1.00},
                **{"SimpleResNet 32x6, 1 lane": 0.81, "ViT 64x4, 1 lane": 1.04},
            },
        },
    ),
)


def flags_for(jaxlib: str, machine: str, processor: Processor) -> list[str]:
    """The flags that help on a version of jaxlib and a machine, which `platform.machine` names."""
    return [
        one.flag
        for one in FLAGS
        if one.jaxlib == jaxlib
        and machine in one.machines
        and processor.is_among(one.faster_on)
        and not processor.is_among(one.except_on)
    ]


def this_processor() -> Processor:
    """The processor of this machine."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return Processor()
    first = lambda name: next(
        (line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() == name), ""
    )
    return Processor(first("vendor_id"), first("cpu family"), first("model"))


def choose_cpu_flags(environment: MutableMapping[str, str] = os.environ) -> list[str]:
    """Sets ``XLA_FLAGS`` for the CPU at hand and returns the flags; none if the user has set any.

    Call before JAX starts. Other devices ignore them.
    """
    if environment.get("XLA_FLAGS"):
        return []
    flags = flags_for(importlib.metadata.version("jaxlib"), platform.machine(), this_processor())
    if flags:
        environment["XLA_FLAGS"] = " ".join(flags)
    return flags


def drawing_options(platform: str) -> dict[str, str] | None:
    """``compiler_options`` of `jax.jit` for a program that draws parameters, on a platform such as ``cpu``.

    At its default level of optimization XLA:CPU compiles random numbers for seconds: 5.4 s instead of 1.0 s for those
    of SimpleResNet 32x6 on jax 0.10.2, and 4.8 instead of 0.8 on 0.12.0.1. The numbers are equal, and drawing 60
    million of them takes less than 0.1 s more.
    """
    return {"xla_backend_optimization_level": "2"} if platform == "cpu" else None
