"""Estimate the memory and time of a run or sweep on devices that may be absent.

    depthmup plan --config=NAME [--config.FIELD=VALUE ...] [FLAG ...]

Examples:
    depthmup plan --config=digits
    depthmup plan --config=imagenet_vit --topology=v5e:4x4 --config.mesh.fsdp=4
    depthmup plan --config=sweeps/vit:paper --topology=h100:1

Compiles the program that train or sweep will run. --topology=here means this
machine's devices. Others need pip install "depthmup-flax[plan]" (TPU) or
jax-cuda12-pjrt and jax-cuda12-plugin (GPU), but no device and no data.
depthmup config digits explains the fields of the config.
Exit codes: 0 it fits or the limit is unknown, 1 it does not fit, 2 bad input.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ml_collections import ConfigDict

from depthmup_flax.commands import start
from depthmup_flax.commands.parser import Parser
from depthmup_flax.util.errors import BAD_INPUT, InputError

if TYPE_CHECKING:
    import jax

    from depthmup_flax.data.sources.blank import PlannedData


def define(parser: Parser) -> None:
    """Adds the flags."""
    parser.define_config("A shipped config, of a run or a sweep, or a Python file.")
    parser.flag("--topology", default="here", help="v5e:4x4, v6e:4x4, v5p:2x2x2, v4:2x2x2, h100:8, h200:8, a100:8.")
    parser.flag("--slices", type=int, default=1, help="Number of TPU slices of that topology.")
    parser.flag("--meshes", action="store_true", help="Compile several meshes and model.remat; rank them.")
    parser.flag("--json", action="store_true", help="Print one JSON object.")
    parser.flag("--lanes", default="auto", help="Sweeps: runs on a device: auto (most that fit), all, N.")
    parser.flag("--classes", type=int, help="Classes of an absent, unknown image set.")
    parser.flag("--examples", type=int, help="Training examples of an absent, unknown set.")
    parser.flag("--vocabulary", type=int, help="Vocabulary of an absent, unknown text.")


def main(args: argparse.Namespace) -> int:
    """Prints the plan; returns an exit code."""
    for flag in ("classes", "examples", "vocabulary"):
        if (value := getattr(args, flag)) is not None and value < 1:
            raise InputError(f"--{flag} is {value}: use a whole number of at least 1.")
    _prepare(args.topology)
    # Late imports: --help and a wrong flag answer at once.
    from depthmup_flax.data.sources.blank import PlannedData, Sizes
    from depthmup_flax.plan.programs import is_sweep
    from depthmup_flax.plan.topologies import topology_devices

    config = args.config.resolved()
    if is_sweep(config):
        start.one_device_per_core()
    devices = topology_devices(args.topology, args.slices)
    load = PlannedData(Sizes(args.classes, args.examples, args.vocabulary))
    if args.meshes:
        return _rank_meshes(config, devices, load, as_json=args.json)
    return _plan_one(args, config, devices, load)


def _prepare(topology: str) -> None:
    """Settings for a compiler without devices; call before JAX starts."""
    from depthmup_flax.plan.topologies import HERE, environment_for

    os.environ.update(environment_for(topology, os.environ))
    import jax

    if topology != HERE and not jax.config.jax_platforms:  # type: ignore[attr-defined]
        jax.config.update("jax_platforms", "cpu")  # keeps this machine's devices free


def _plan_one(args: argparse.Namespace, config: ConfigDict, devices: Sequence[jax.Device], load: PlannedData) -> int:
    from depthmup_flax.plan.estimate import make_plan
    from depthmup_flax.plan.programs import compile_run, compile_sweep, is_sweep
    from depthmup_flax.plan.remedies import remedies, sweep_remedies
    from depthmup_flax.plan.summary import as_json, text
    from depthmup_flax.plan.topologies import chip_of
    from depthmup_flax.search.sweep.groups import parse_lanes

    if is_sweep(config):
        chip = chip_of(devices[0])
        step = compile_sweep(config, devices, load, parse_lanes(args.lanes), chip.memory if chip else None)
    else:
        if args.lanes != "auto":
            raise InputError(f"--lanes is {args.lanes}, but --config is a run's: remove it.")
        step = compile_run(config, devices, load)
    plan = make_plan(step)
    if step.lanes:
        tips = sweep_remedies(step.lanes.per_device, plan.memory, remat="remat" in config.base.model)
    else:
        tips = remedies(config, step.experiment.dataset, dict(step.mesh.shape), plan.memory)
    print(json.dumps({**as_json(plan), "remedies": tips}) if args.json else text(plan, tips))
    return 1 if plan.memory.fits is False else 0


def _rank_meshes(config: ConfigDict, devices: Sequence[jax.Device], load: PlannedData, *, as_json: bool) -> int:
    from depthmup_flax.networks.named import is_import_path
    from depthmup_flax.plan import mesh_search, summary
    from depthmup_flax.plan.estimate import Plan, make_plan
    from depthmup_flax.plan.programs import compile_run, is_sweep

    if is_sweep(config):
        raise InputError("--meshes is for a run: the devices of a sweep do not communicate.")
    if is_import_path(config.model.name):
        raise InputError(
            f"--meshes is set: the parameters of {config.model.name} are not split over devices. Remove it."
        )

    import jax

    def make(config: ConfigDict) -> Plan:
        plan = make_plan(compile_run(config, devices, load))
        jax.clear_caches()
        return plan

    total, started = mesh_search.compilations(len(devices)), time.perf_counter()
    each = "on two cores each takes 10 to 90 s, or minutes with convolutions"
    print(f"compiling {total} programs, one after another; {each}", file=sys.stderr)
    found = []
    for candidate in mesh_search.search(config, len(devices), make):
        found.append(candidate)
        if left := mesh_search.progress(len(found), total, time.perf_counter() - started):
            print(left, file=sys.stderr, flush=True)
    found.sort(key=lambda one: one.rank)
    if as_json:
        rows = [
            {**one.setting, "plan": one.plan and summary.as_json(one.plan), "refusal": one.refusal} for one in found
        ]
        print(json.dumps({"candidates": rows}))
    else:
        print(f"{mesh_search.table(found)}\n{mesh_search.CAVEAT}")
    if found[0].plan is None:
        return BAD_INPUT
    return 1 if found[0].plan.memory.fits is False else 0
