"""What commands do before training: devices, processes, the default work directory."""

from __future__ import annotations

import argparse
import os

from depthmup_flax.config import shipped
from depthmup_flax.devices.host import cpu_cores


def one_device_per_core() -> None:
    """Gives JAX one CPU device per core, unless ``XLA_FLAGS`` sets their number; call before JAX starts."""
    if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
        import jax

        jax.config.update("jax_num_cpu_devices", cpu_cores())


def start_processes(args: argparse.Namespace) -> None:
    """Joins other processes, by the flags of `Parser.define_processes`."""
    from depthmup_flax.devices import distributed

    distributed.start(args.coordinator, args.num_processes, args.process_id)


def workdir(args: argparse.Namespace, parent: str) -> str:
    """``--workdir``, by default ``parent`` and the name of the config, which is then printed."""
    if args.workdir:
        return args.workdir
    default = f"{parent}/{shipped.run_name(args.config.path())}"
    print(f"--workdir={default}", flush=True)
    return default
