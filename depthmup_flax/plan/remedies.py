"""Settings that would make a program fit: arithmetic on its memory, without compiling anything."""

from __future__ import annotations

import math

from ml_collections import ConfigDict

from depthmup_flax.data import Dataset
from depthmup_flax.devices.parallel.sharding import BATCH_AXES
from depthmup_flax.networks.named import is_import_path
from depthmup_flax.plan.estimate import Memory
from depthmup_flax.search.sweep.groups import MEMORY_SHARE

_GIB = 2**30


def remedies(config: ConfigDict, dataset: Dataset, mesh: dict[str, int], memory: Memory) -> list[str]:
    """Settings to try for a run, the cheapest first; empty if the program fits. ``mesh``: devices along each axis."""
    if memory.fits is not False:
        return []
    limit = memory.limit or 0
    found = []
    if dataset.placement == "device" and memory.total - memory.data <= limit:
        found.append("--config.data.placement=stream (reads batches from files)")
    # Gradients have the size of the parameters; accumulation holds two more copies of them.
    gradients = min(memory.temporaries, memory.parameters * (3 if config.train.accumulate > 1 else 1))
    activations, rest = memory.temporaries - gradients, memory.total - memory.temporaries
    fewer = {"none": "dots, or full", "auto": "full", "dots": "full"}.get(config.model.get("remat", ""))
    if fewer and rest + gradients < limit:
        found.append(f"--config.model.remat={fewer} (the backward pass computes activations again)")
    shards = math.prod(mesh.get(axis, 1) for axis in BATCH_AXES)
    for parts in _divisors(config.train.batch_size // shards)[1:]:
        if (after := rest + 3 * memory.parameters + activations // parts) <= limit:
            accumulate = config.train.accumulate * parts
            found.append(f"--config.train.accumulate={accumulate} ({_about(after)}, if activations follow the batch)")
            break
    state = memory.parameters + memory.optimizer + gradients
    all_data = "" if config.mesh.data == -1 else "--config.mesh.data=-1 "
    replicas = mesh.get("data", 1) * mesh.get("fsdp", 1)
    for fsdp in [] if is_import_path(config.model.name) else _divisors(replicas):  # a user's parameters are not split
        after = memory.total - state + state * mesh.get("fsdp", 1) // fsdp
        if fsdp > mesh.get("fsdp", 1) and after <= limit:
            found.append(f"{all_data}--config.mesh.fsdp={fsdp} ({_about(after)})")
            break
    if not found and is_import_path(config.model.name):
        found.append("a smaller --config.train.batch_size, or a smaller network")
    elif not found:
        found.append("more devices, with a larger --config.mesh.fsdp or --config.mesh.tensor")
    return found


def sweep_remedies(lanes: int, memory: Memory, *, remat: bool = True) -> list[str]:
    """`remedies` for the largest networks of a sweep, of which ``lanes`` train on each device; ``remat``: a field."""
    if memory.fits is not False:
        return []
    each, limit = (memory.total - memory.data) / lanes, memory.limit or 0
    # A sweep leaves some memory free, unless it trains one run at a time.
    fitting = int((MEMORY_SHARE * limit - memory.data) / each) or int((limit - memory.data) / each > 1)
    if 0 < fitting < lanes:
        return [f"--lanes={fitting} (if memory follows their number)"]
    smaller = "a smaller --config.base.train.batch_size"
    return ["--config.base.model.remat=full", smaller] if remat else [smaller]


def _about(size: int) -> str:
    return f"about {size / _GIB:.1f} GiB"


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]
