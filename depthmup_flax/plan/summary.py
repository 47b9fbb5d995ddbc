"""What a compiled step needs, as its compiler tells: memory by kind and operations."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from depthmup_flax.plan.compiled_step import LanesOfGroup, PlannedStep
from depthmup_flax.plan.topologies import device_memory
from depthmup_flax.search.sweep.lane_choice import OutOfMemory
from depthmup_flax.trainer.engine.network_task import NetworkState
from depthmup_flax.util.types import ArrayTree, Json

_GIB, _MIB = 2**30, 2**20
# What takes less memory, the cheapest first -> whether a run has it already or cannot.
_OF_RUN: Mapping[str, Callable[[PlannedStep], bool]] = {
    "--config.data.placement=stream reads batches from files": lambda step: (
        step.experiment.dataset.placement == "stream"
    ),
    "--config.model.remat=full computes activations again in the backward pass": lambda step: (
        step.experiment.config.model.get("remat", "full") == "full"
    ),
    "--config.train.accumulate=4 has a quarter of the activations": lambda step: (
        step.experiment.config.train.accumulate > 1
    ),
    "--config.mesh.fsdp=-1 --config.mesh.data=1 splits parameters and optimizer state over the devices": lambda step: (
        step.mesh.size == 1 or step.experiment.config.mesh.fsdp != 1
    ),
}
_OF_SWEEP = ("fewer --lanes", "--config.base.model.remat=full", "a smaller --config.base.train.batch_size")


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes on each device."""

    parameters: int  # with BatchNorm's averages
    optimizer: int  # the optimizer's state
    data: int  # the batch, the training set if it is on the devices, and the padding of all arguments
    temporaries: int  # activations, gradients and other intermediate results
    limit: int | None  # of a program; ``None`` if it is not known

    @property
    def total(self) -> int:
        """Bytes of everything."""
        return self.parameters + self.optimizer + self.data + self.temporaries

    @property
    def fits(self) -> bool | None:
        """Whether `total` is within the limit; ``None`` if the limit is not known."""
        return None if self.limit is None else self.total <= self.limit

    def __str__(self) -> str:
        """``5.10 of 15.75 GiB a device: parameters 0.10, ...``."""
        scale, unit = (_GIB, "GiB") if max(self.total, self.limit or 0) >= _GIB / 4 else (_MIB, "MiB")
        show = lambda size: f"{size / scale:,.2f}"
        limit = "" if self.limit is None else f" of {show(self.limit)}"
        kinds = ("parameters", "optimizer", "data", "temporaries")
        parts = ", ".join(f"{kind} {show(getattr(self, kind))}" for kind in kinds)
        excess = f"; {show(self.total - (self.limit or 0))} too much" if self.fits is False else ""
        return f"{show(self.total)}{limit} {unit} a device: {parts}{excess}"


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a run or a sweep needs; print shows it."""

    model: str
    parameters: int
    data: str
    device_kind: str
    devices: int
    mesh: Mapping[str, int]
    batch_size: int
    steps: int  # of the run, or of all runs of the group, one program after another
    lanes: LanesOfGroup | None
    memory: Memory
    gflops: float  # of the matrix products of a step, on each device; 0 if the program does not fit
    # The compiler's own counts for a step, in which the body of a loop counts once: ``flops`` and ``bytes accessed``;
    # empty if it gives none
    by_compiler: Mapping[str, float]
    compile_s: float
    remedies: tuple[str, ...]  # settings to try if the program does not fit

    def as_json(self) -> Json:
        """A plan in bytes and seconds."""
        tree = dataclasses.asdict(self)
        tree["memory"] |= {"total": self.memory.total, "fits": self.memory.fits}
        return tree

    def __str__(self) -> str:
        axes = ", ".join(f"{axis} {size}" for axis, size in self.mesh.items() if size > 1) or "one device"
        lanes = ""
        if self.lanes:
            lanes = f"; {self.lanes.per_device} run(s) at a time on each, of {self.lanes.runs} with {self.lanes.label}"
        rows = [
            ("model", f"{self.model}, {self.parameters:,} parameters"),
            ("data", self.data),
            ("devices", f"{self.devices} {self.device_kind}; mesh {axes}; batch {self.batch_size}{lanes}"),
            ({True: "fits", False: "TOO BIG", None: "memory"}[self.memory.fits], str(self.memory)),
            *[("to fit" * (i == 0), remedy) for i, remedy in enumerate(self.remedies)],
        ]
        if self.gflops:
            total = f"{1e9 * self.gflops * self.steps:.3g} FLOP in {self.steps:,} steps"
            rows.append(("products", f"{_short(self.gflops)} GFLOP a step, {total}, on each device"))
        if self.by_compiler:
            counts = " GFLOP, ".join(_short(self.by_compiler[name] / 1e9) for name in ("flops", "bytes accessed"))
            rows.append(("compiler", f"{counts} GB read and written, with the body of each loop once"))
        rows.append(("compiled", f"in {self.compile_s:.0f} s"))
        return "\n".join(f"{name:<9} {line}" for name, line in rows)


def make_plan(step: PlannedStep) -> Plan:
    """The figures of a compiled step."""
    experiment, config, device = step.experiment, step.experiment.config, step.mesh.devices.flat[0]
    model, data, memory = config.model, experiment.dataset, memory_of(step, device_memory(device))
    costs = {} if isinstance(step.compiled, OutOfMemory) else step.compiled.cost_analysis() or {}
    counted = ("flops", "bytes accessed")
    where = "streamed" if data.placement == "stream" else "on every device"
    runs = step.lanes.per_device * step.mesh.size if step.lanes else 1
    remedies = _OF_SWEEP if step.lanes else tuple(remedy for remedy, taken in _OF_RUN.items() if not taken(step))
    return Plan(
        model=(
            f"{model.name}, width {model.width} (base {model.base_width or model.width}), depth {model.depth} "
            f"(base {model.base_depth or model.depth})"
        ),
        parameters=experiment.parameters,
        data=f"{data.name}, {data.train_size} {data.describe()}, {where}",
        device_kind=device.device_kind,
        devices=step.mesh.size,
        mesh=dict(step.mesh.shape),
        batch_size=config.train.batch_size,
        steps=experiment.total_steps * math.ceil(step.lanes.runs / runs) if step.lanes else experiment.total_steps,
        lanes=step.lanes,
        memory=memory,
        gflops=step.flops / step.mesh.size / 1e9,
        by_compiler={name: float(costs[name]) for name in counted} if all(name in costs for name in counted) else {},
        compile_s=step.compile_s,
        remedies=remedies if memory.fits is False else (),
    )


def _short(amount: float) -> str:
    return f"{amount:,.0f}" if amount >= 100 else f"{amount:.3g}"


def memory_of(step: PlannedStep, limit: int | None) -> Memory:
    """The memory of a compiled step, or of one that the compiler refused."""
    parameters, optimizer, data = map(_bytes_on_device, (*_parts(step.state.carry), step.data))
    if isinstance(step.compiled, OutOfMemory):
        refusal = step.compiled
        used = refusal.used if refusal.used is not None else (refusal.without_data or 0) + data
        temporaries = max(0, used - parameters - optimizer - data)
        return Memory(parameters, optimizer, data, temporaries, refusal.available or limit)
    sizes: Any = step.compiled.memory_analysis()
    arguments = int(sizes.argument_size_in_bytes)
    written = max(0, int(sizes.output_size_in_bytes - sizes.alias_size_in_bytes))  # results that reuse no argument
    temporaries = int(sizes.temp_size_in_bytes) + written
    return Memory(parameters, optimizer, max(data, arguments - parameters - optimizer), temporaries, limit)


def _parts(carry: Any) -> tuple[ArrayTree, ArrayTree]:
    """Parameters, and what the optimizer keeps; of a user's training step "params" of its state, and the rest."""
    if isinstance(carry, NetworkState):
        return (carry.params, carry.collections), carry.opt_state
    return carry.get("params", carry), {name: x for name, x in carry.items() if "params" in carry and name != "params"}


def _bytes_on_device(tree: ArrayTree) -> int:
    """Bytes on one device of a tree of arrays, or of shapes with shardings."""

    def size(x: jax.ShapeDtypeStruct) -> int:
        shape = x.shape if x.sharding is None else x.sharding.shard_shape(x.shape)
        return math.prod(shape) * np.dtype(x.dtype).itemsize

    return sum(map(size, jax.tree.leaves(tree)))
