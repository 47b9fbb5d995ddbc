"""Whole training steps on one GPU: this package, PyTorch and plain Flax in turn, each in a process of its own."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import time
from collections.abc import Mapping, Sequence

from benchmarks.contest import Contender, Measurements, measure, seconds_of, spread
from benchmarks.gpu.cases import CASES, TINY, Case
from benchmarks.gpu.page import SIDES, line
from benchmarks.machine import gpu, processor, versions
from depthmup_flax.storage.files import write_atomically
from depthmup_flax.util.types import Json

OURS, TORCH, FLAX = SIDES
PACKAGES = ("jax", "jaxlib", "jax-cuda12-plugin", "jax-cuda13-plugin", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13", "flax")
THEIR_PACKAGES = ("torch", "triton")


@dataclasses.dataclass(frozen=True)
class Setting:
    """How to measure.

    Attributes:
      rounds: of each comparison.
      python, torch_python: interpreters with this package, and with PyTorch.
      quick: tiny sizes, on a CPU where there is no GPU.
    """

    rounds: int
    python: str
    torch_python: str
    quick: bool = False

    @property
    def cases(self) -> Mapping[str, Case]:
        """Title -> case."""
        return TINY if self.quick else CASES

    @property
    def seconds(self) -> float:
        """Duration of one measurement of a step."""
        return 0.01 if self.quick else 0.4

    def contender(self, name: str, make: str, **args: object) -> Contender:
        """A contender of the table; what it lacks is a dash there."""
        python = self.torch_python if name == TORCH else self.python
        # Without preallocation frameworks can share the memory; without the platform's name JAX would fall back on the
        # CPU. On a CPU a core each: threads that wait for one another are slow beside other programs.
        env = {
            "JAX_PLATFORMS": "cuda" if gpu() else "cpu",
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
            "CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0"),
        }
        args = {"seconds": self.seconds, **args}
        return Contender(name, make, args, python=python, env=env, cores=0 if gpu() else 1, optional=True)


def run(setting: Setting, out: pathlib.Path, titles: Sequence[str]) -> Json:
    """Measures the setting's cases with these titles and writes the results to ``out`` after each; returns them."""
    started = time.perf_counter()
    result: Json = {
        "device": "gpu",
        "hardware": gpu() or f"no GPU: {processor()}",
        "quick": setting.quick,
        "day": time.strftime("%Y-%m-%d"),
        "rounds": setting.rounds,
        "versions": versions(setting.python, PACKAGES) | versions(setting.torch_python, THEIR_PACKAGES),
        "peak": peaks(setting),
        "rows": [],
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    for title in titles:
        case = setting.cases[title]
        measured = measure(contenders(setting, case), setting.rounds)
        result["rows"].append({"title": title, "case": dataclasses.asdict(case), **facts(measured)})
        result["took_s"] = round(time.perf_counter() - started)
        write_atomically(out, json.dumps(result, indent=1, allow_nan=False) + "\n")
        print(line(result["rows"][-1], result["peak"]), flush=True)
    return result


def peaks(setting: Setting) -> dict[str, dict[str, float]]:
    """Dtype -> `spread` of the FLOP/s of a large product; nothing where it cannot be measured."""
    size = 64 if setting.quick else 8192
    make = "benchmarks.ours:matrix_product"
    products = {"bfloat16": "default", "float32": "highest"}
    all_contenders = [
        setting.contender(dtype, make, size=size, dtype=dtype, precision=precision)
        for dtype, precision in products.items()
    ]
    measured = measure(all_contenders, setting.rounds)
    return {dtype: spread([one["flops"] / one["seconds"] for one in all_]) for dtype, all_ in measured.items()}


def contenders(setting: Setting, case: Case) -> list[Contender]:
    """The sides of a row."""
    fields = dataclasses.asdict(case)
    device = "cuda" if gpu() else "cpu"
    sides = [
        setting.contender(OURS, "benchmarks.gpu.ours:step", **fields),
        setting.contender(TORCH, "benchmarks.gpu.plain_torch:step", device=device, **fields),
    ]
    if case.heads:
        sides.append(setting.contender(FLAX, "benchmarks.gpu.plain_flax:step", **fields))
    return sides


def facts(measured: Measurements) -> Json:
    """What a row of the results holds: times, memory, sizes; why a side is absent."""
    sides = {}
    for name, seconds in seconds_of(measured).items():
        others = measured[name][-1].items()
        sides[name] = {"seconds": seconds, **{fact: value for fact, value in others if fact != "seconds"}}
    return {"sides": sides, "absent": measured.absent}
