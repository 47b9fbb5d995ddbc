"""The memory and operations of a run or sweep, on this machine or on TPUs that are absent.

    depthmup plan --config=NAME [--config.FIELD=VALUE ...] [FLAG ...]

Examples:
    depthmup plan --config=digits
    depthmup plan --config=imagenet_vit --topology=v5e:4x4 --config.mesh.fsdp=4
    depthmup plan --config=sweeps/vit:paper

Compiles the program that train or sweep will run. --topology=here means this
machine's devices. TPUs that are absent need pip install ".[plan]" in a clone.
No plan needs the data, if they are a published set.
depthmup config digits explains the fields of the config.
Exit codes: 0 it fits or the limit is unknown, 1 it does not fit, 2 bad input.
"""

from __future__ import annotations

import argparse
import json
import os

from depthmup_flax.commands.parser import Parser, lanes, one_device_per_core
from depthmup_flax.util.errors import InputError


def define(parser: Parser) -> None:
    """Adds the flags."""
    parser.define_config("A shipped config, of a run or a sweep, or a Python file.")
    parser.flag("--topology", default="here", help="v5e-16 or v5e:4x4, v6e:4x4, v5p:2x2x2, v4:2x2x2.")
    parser.flag("--slices", type=int, default=1, help="Number of TPU slices of that topology.")
    parser.flag("--json", action="store_true", help="Print one JSON object.")
    parser.flag("--lanes", type=lanes, help="Sweeps: runs on a device: auto (the default: most that fit), all, N.")


def main(args: argparse.Namespace) -> int:
    """Prints the plan; returns an exit code."""
    # Late imports: --help and a wrong flag answer at once.
    from depthmup_flax.plan.topologies import HERE, device_memory, environment_for, topology_devices, with_shape

    topology = with_shape(args.topology)
    os.environ.update(environment_for(topology, os.environ))  # before JAX starts
    import jax

    if topology != HERE and not jax.config.jax_platforms:  # type: ignore[attr-defined]
        jax.config.update("jax_platforms", "cpu")  # keeps this machine's devices free
    from depthmup_flax.data.blank import PlannedData
    from depthmup_flax.plan.compiled_step import compile_run, compile_sweep
    from depthmup_flax.plan.summary import make_plan

    config, load = args.config.resolved(), PlannedData()
    if "grids" in config:
        one_device_per_core()
        devices = topology_devices(topology, args.slices)
        step = compile_sweep(config, devices, load, args.lanes, device_memory(devices[0]))
    elif args.lanes is not None:
        raise InputError(f"--lanes is {args.lanes}, but --config is a run's: remove it.")
    else:
        step = compile_run(config, topology_devices(topology, args.slices), load)
    plan = make_plan(step)
    print(json.dumps(plan.as_json()) if args.json else plan)
    return 1 if plan.memory.fits is False else 0
