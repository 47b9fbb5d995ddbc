"""The figures of a plan, from a compiled step: memory by kind, time, communication, the longest operations."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from depthmup_flax.data.sources.blank import description
from depthmup_flax.plan.hlo import Collective, Cost, HloCosts, Kernels, hlo_costs, parse
from depthmup_flax.plan.programs import LanesOfGroup, OutOfMemory, PlannedStep
from depthmup_flax.plan.roofline import KernelKind, kernel_kinds
from depthmup_flax.plan.topologies import Chip, chip_of
from depthmup_flax.trainer.engine.network import NetworkState
from depthmup_flax.util.types import ArrayTree


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes on each device.

    Attributes:
      parameters: with BatchNorm's averages.
      optimizer: the optimizer's state.
      data: the batch, the training set if it is on the devices, and the padding of all arguments.
      temporaries: activations, gradients and other intermediate results.
      limit: of a program; ``None`` if it is not known.
    """

    parameters: int
    optimizer: int
    data: int
    temporaries: int
    limit: int | None

    @property
    def total(self) -> int:
        """Bytes of everything."""
        return self.parameters + self.optimizer + self.data + self.temporaries

    @property
    def fits(self) -> bool | None:
        """Whether `total` is within the limit; ``None`` if the limit is not known."""
        return None if self.limit is None else self.total <= self.limit


@dataclasses.dataclass(frozen=True)
class Seconds:
    """Estimates for one step.

    Attributes:
      step: ``computation`` plus ``communication``, without overlap.
      computation: the TPU compiler's cycles plus ``kernels``; for a GPU a lower bound, see
        `depthmup_flax.plan.roofline`.
      communication: bytes received from other devices, at the peak of the links.
      products: matrix products alone, at the peak of the matrix units.
      memory: bytes that operations read and write, at the peak of the memory.
      kernels: Pallas kernels, which the compiler does not estimate, at the peak of the matrix units or of the memory.
      by_compiler: whether the compiler estimated ``computation``.
    """

    step: float
    computation: float
    communication: float
    products: float
    memory: float
    kernels: float
    by_compiler: bool


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a run or a sweep needs, as the compiler reports it."""

    model: str
    parameters: int
    data: str
    device_kind: str
    devices: int
    mesh: Mapping[str, int]
    batch_size: int
    unit: str  # images or tokens
    units_per_step: int
    steps: int
    lanes: LanesOfGroup | None
    memory: Memory
    seconds: Seconds | None  # None if the chip is not known, or if the program does not fit
    gflops: float  # matrix products of a step, on each device
    collectives: Mapping[str, Collective]
    longest: tuple[Cost, ...]
    kernels: Kernels
    kinds: tuple[KernelKind, ...]  # of a GPU's kernels; the longest first
    compile_s: float


def make_plan(step: PlannedStep) -> Plan:
    """The figures of a compiled step."""
    experiment, config, device = step.experiment, step.experiment.config, step.mesh.devices.flat[0]
    chip, model = chip_of(device), config.model
    costs = HloCosts(0, 0, {}, ())
    kinds: tuple[KernelKind, ...] = ()
    if isinstance(step.compiled, jax.stages.Compiled):
        program = parse(step.compiled.as_text() or "")
        costs = hlo_costs(program)
        kinds = kernel_kinds(program, chip) if chip and chip.platform == "cuda" else ()
    runs = step.lanes.per_device * step.mesh.size if step.lanes else 1
    flops = max(step.flops / step.mesh.size, sum(kind.flops for kind in kinds))  # a jaxpr does not show cuDNN's
    return Plan(
        model=(
            f"{model.name}, width {model.width} (base {model.base_width or model.width}), depth {model.depth} "
            f"(base {model.base_depth or model.depth})"
        ),
        parameters=experiment.parameters,
        data=description(experiment.dataset),
        device_kind=device.device_kind,
        devices=step.mesh.size,
        mesh=dict(step.mesh.shape),
        batch_size=config.train.batch_size,
        unit=experiment.dataset.unit,
        units_per_step=runs * config.train.batch_size * experiment.dataset.units_per_example,
        steps=experiment.total_steps * math.ceil(step.lanes.runs / runs) if step.lanes else experiment.total_steps,
        lanes=step.lanes,
        memory=memory_of(step, None if chip is None else int(chip.memory)),
        seconds=seconds_of(costs, flops, chip, step.mesh.size, kinds) if chip and costs.places else None,
        gflops=flops / 1e9,
        collectives=costs.collectives,
        longest=costs.places,
        kernels=costs.kernels,
        kinds=kinds,
        compile_s=step.compile_s,
    )


def memory_of(step: PlannedStep, limit: int | None) -> Memory:
    """The memory of a compiled step, or of one that the compiler refused."""
    parameters, optimizer, data = map(_bytes_on_device, (*_parts(step.state.carry), step.data))
    if isinstance(step.compiled, OutOfMemory):
        refusal = step.compiled
        used = refusal.used if refusal.used is not None else (refusal.without_data or 0) + data
        temporaries = max(0, used - parameters - optimizer - data)
        return Memory(parameters, optimizer, data, temporaries, refusal.available)
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


def seconds_of(costs: HloCosts, flops: float, chip: Chip, devices: int, kinds: Sequence[KernelKind] = ()) -> Seconds:
    """Estimates for a step that takes ``flops`` on each of the ``devices``; ``kinds`` are a GPU's kernels."""
    products, memory = flops / chip.flops, costs.bytes / chip.memory_bandwidth
    communication = costs.link_bytes / chip.bandwidth_among(devices) + costs.network_bytes / chip.network_bandwidth
    by_compiler = chip.clock is not None and costs.cycles > 0
    kernels = max(costs.kernels.flops / chip.flops, costs.kernels.bytes / chip.memory_bandwidth)
    roofline = max(products, memory, sum(kind.seconds for kind in kinds))
    computation = costs.cycles / chip.clock + kernels if chip.clock and by_compiler else roofline
    return Seconds(computation + communication, computation, communication, products, memory, kernels, by_compiler)
