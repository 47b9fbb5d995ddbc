"""Compiles a run on several meshes and with each setting of ``model.remat``, and ranks them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from depthmup_flax.config.fields import set_field
from depthmup_flax.nn.blocks import REMAT
from depthmup_flax.plan.estimate import Plan
from depthmup_flax.plan.summary import duration, memory_line
from depthmup_flax.util.errors import InputError

# A pod has dozens of meshes, and each takes a minute to compile: these differ in what they communicate.
_FSDP = (1, 8)  # and all devices
_TENSOR = (1, 2)

CAVEAT = "Times are estimates, never calibrated against a device; communication is counted without overlap."

Setting = Mapping[str, Any]  # dotted field -> value


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A setting and its plan, or the reason why it cannot run."""

    setting: Setting
    plan: Plan | None
    refusal: str = ""

    @property
    def rank(self) -> tuple[bool, bool, float]:
        """The sort key: programs that fit first, by time or, if that is not known, by memory."""
        if self.plan is None:
            return True, True, 0.0
        seconds = self.plan.seconds.step if self.plan.seconds else float(self.plan.memory.total)
        return False, self.plan.memory.fits is False, seconds


def meshes(devices: int) -> list[dict[str, int]]:
    """Meshes to try."""
    fsdp = sorted({size for size in (*_FSDP, devices) if devices % size == 0})
    shapes = [(devices // (f * t), f, t) for t in _TENSOR for f in fsdp if devices % (f * t) == 0]
    return [dict(zip(("mesh.data", "mesh.fsdp", "mesh.tensor"), shape, strict=True)) for shape in shapes]


def search(config: ConfigDict, devices: int, make: Callable[[ConfigDict], Plan]) -> Iterator[Candidate]:
    """Every mesh with the config's ``model.remat``, then the best mesh with the other values of ``model.remat``.

    Yields each candidate as soon as ``make`` has compiled it.
    """
    tried = []
    for mesh in meshes(devices):
        tried.append(_candidate(config, {**mesh, "model.remat": config.model.remat}, make))
        yield tried[-1]
    best = min(tried, key=lambda one: one.rank)
    if best.plan is not None:
        for remat in REMAT:
            if remat != config.model.remat:
                yield _candidate(config, {**best.setting, "model.remat": remat}, make)


def compilations(devices: int) -> int:
    """The largest number of candidates that `search` compiles."""
    return len(meshes(devices)) + len(REMAT) - 1


def table(candidates: Sequence[Candidate]) -> str:
    """The candidates, the best first, and the flags of the best one."""
    ranked = sorted(candidates, key=lambda one: one.rank)
    lines = [_line(one) for one in ranked]
    if ranked[0].plan is not None and ranked[0].plan.memory.fits is not False:
        lines.append("best: " + " ".join(f"--config.{field}={value}" for field, value in ranked[0].setting.items()))
    return "\n".join(lines)


def progress(done: int, total: int, seconds: float) -> str:
    """The estimated time left after ``done`` compilations that took ``seconds``; empty after the last."""
    return f"{done} of {total} compiled; about {duration(seconds / done * (total - done))} left" if done < total else ""


def _candidate(config: ConfigDict, setting: Setting, make: Callable[[ConfigDict], Plan]) -> Candidate:
    changed = config.copy_and_resolve_references()
    for field, value in setting.items():
        set_field(changed, field, value)
    try:
        return Candidate(setting, make(changed))
    except InputError as error:
        return Candidate(setting, None, str(error))


def _line(candidate: Candidate) -> str:
    setting = candidate.setting
    sizes = " x ".join(str(setting[f"mesh.{axis}"]) for axis in ("data", "fsdp", "tensor"))
    name = f"data x fsdp x tensor {sizes:<12} remat {setting['model.remat']:<5}"
    if candidate.plan is None:
        return f"{name} cannot run: {candidate.refusal}"
    plan = candidate.plan
    time = f"{1e3 * plan.seconds.step:9.3g} ms" if plan.seconds else " " * 12
    return f"{name} {time}  {memory_line(plan.memory)}"
