"""Say what a run or sweep needs on devices that may be absent: memory, time.

    depthmup plan --config=NAME [--config.FIELD=VALUE ...] [FLAG ...]

Examples:
    depthmup plan --config=digits
    depthmup plan --config=imagenet_vit --topology=v5e:4x4 --config.mesh.fsdp=4
    depthmup plan --config=sweeps/vit:paper --topology=v5e:2x2

Compiles the program that train or sweep will run. --topology=here is for this
machine's devices. Others need pip install "depthmup-flax[plan]" (TPU) or
jax-cuda12-pjrt and jax-cuda12-plugin (GPU), but no device and no data.
depthmup config digits explains the fields of the config.
Exit codes: 0 it fits, or the limit is not known, 1 it does not fit, 2 bad input.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from absl import flags
from ml_collections import ConfigDict

from depthmup_flax import cli
from depthmup_flax.errors import BAD_INPUT, InputError

if TYPE_CHECKING:
    import jax

    from depthmup_flax.data.sources.blank import PlannedData

_CONFIG = cli.define_config("A shipped config, of a run or a sweep, or a Python file.")
_TOPOLOGY = flags.DEFINE_string("topology", "here", "v5e:4x4, v6e:4x4, v5p:2x2x2, v4:2x2x2, h100:8, a100:8.")
_SLICES = flags.DEFINE_integer("slices", 1, "TPU slices of that topology.")
_MESHES = flags.DEFINE_bool("meshes", False, "Compile several meshes and model.remat; rank them.")
_JSON = flags.DEFINE_bool("json", False, "Print one JSON object.")
_LANES = flags.DEFINE_string("lanes", "auto", "Sweeps: runs on a device: auto (most that fit), all, N.")
_CLASSES = flags.DEFINE_integer("classes", None, "Classes of an image set that is absent and not known.")
_EXAMPLES = flags.DEFINE_integer("examples", None, "Training examples of such a set.")
_VOCABULARY = flags.DEFINE_integer("vocabulary", None, "Vocabulary of a text that is absent and not known.")


def main(argv: list[str]) -> int:
    """Prints the plan; returns an exit code."""
    cli.require_no_arguments(argv)
    for flag in (_CLASSES, _EXAMPLES, _VOCABULARY):
        if flag.value is not None and flag.value < 1:
            raise InputError(f"--{flag.name} is {flag.value}: use a whole number of at least 1.")
    _prepare(_TOPOLOGY.value)
    # Imported here, so that --help and a wrong flag answer at once.
    from depthmup_flax.data.sources.blank import PlannedData, Sizes
    from depthmup_flax.plan.programs import is_sweep
    from depthmup_flax.plan.topologies import topology_devices

    config = cli.resolved(_CONFIG)
    if is_sweep(config):
        cli.one_device_per_core()
    devices = topology_devices(_TOPOLOGY.value, _SLICES.value)
    load = PlannedData(Sizes(_CLASSES.value, _EXAMPLES.value, _VOCABULARY.value))
    if _MESHES.value:
        return _rank_meshes(config, devices, load)
    return _plan_one(config, devices, load)


def _prepare(topology: str) -> None:
    """Settings of this process for a compiler without devices; before JAX starts."""
    from depthmup_flax.plan.topologies import HERE, environment_for

    os.environ.update(environment_for(topology, os.environ))
    import jax

    if topology != HERE and not jax.config.jax_platforms:  # type: ignore[attr-defined]
        jax.config.update("jax_platforms", "cpu")  # leaves the devices of this machine to others


def _plan_one(config: ConfigDict, devices: Sequence[jax.Device], load: PlannedData) -> int:
    from depthmup_flax.plan.estimate import make_plan
    from depthmup_flax.plan.programs import compile_run, compile_sweep, is_sweep
    from depthmup_flax.plan.remedies import remedies, sweep_remedies
    from depthmup_flax.plan.summary import as_json, text
    from depthmup_flax.plan.topologies import chip_of
    from depthmup_flax.sweep.lane_count import parse_lanes

    if is_sweep(config):
        chip = chip_of(devices[0])
        step = compile_sweep(config, devices, load, parse_lanes(_LANES.value), chip.memory if chip else None)
    else:
        if _LANES.value != "auto":
            raise InputError(f"--lanes is {_LANES.value}, but --config is a run's: leave it out.")
        step = compile_run(config, devices, load)
    plan = make_plan(step)
    if step.lanes:
        tips = sweep_remedies(step.lanes.per_device, plan.memory)
    else:
        tips = remedies(config, step.experiment.dataset, dict(step.mesh.shape), plan.memory)
    print(json.dumps({**as_json(plan), "remedies": tips}) if _JSON.value else text(plan, tips))
    return 1 if plan.memory.fits is False else 0


def _rank_meshes(config: ConfigDict, devices: Sequence[jax.Device], load: PlannedData) -> int:
    from depthmup_flax.plan import mesh_search
    from depthmup_flax.plan.estimate import Plan, make_plan
    from depthmup_flax.plan.programs import compile_run, is_sweep
    from depthmup_flax.plan.summary import as_json

    if is_sweep(config):
        raise InputError("--meshes is for a run: the devices of a sweep do not communicate.")

    import jax

    def make(config: ConfigDict) -> Plan:
        plan = make_plan(compile_run(config, devices, load))
        jax.clear_caches()
        return plan

    total, started = mesh_search.compilations(config, len(devices)), time.perf_counter()
    each = "on two cores each takes 10 to 90 s, or minutes with convolutions"
    print(f"compiling {total} programs, one after another; {each}", file=sys.stderr)
    found = []
    for candidate in mesh_search.search(config, len(devices), make):
        found.append(candidate)
        if left := mesh_search.progress(len(found), total, time.perf_counter() - started):
            print(left, file=sys.stderr, flush=True)
    found.sort(key=lambda one: one.rank)
    if _JSON.value:
        rows = [{**one.setting, "plan": one.plan and as_json(one.plan), "refusal": one.refusal} for one in found]
        print(json.dumps({"candidates": rows}))
    else:
        print(f"{mesh_search.table(found)}\n{mesh_search.CAVEAT}")
    if found[0].plan is None:
        return BAD_INPUT
    return 1 if found[0].plan.memory.fits is False else 0


if __name__ == "__main__":
    cli.run(main)
