"""Devices to compile for: those of this machine, or TPUs that need not be here, such as ``v5e:2x2``, by libtpu."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import NamedTuple

import jax
from jax.experimental import topologies

from depthmup_flax.util.errors import InputError
from depthmup_flax.util.imports import installs

HERE = "here"
_GIB = 2**30


class Chip(NamedTuple):
    """A generation of TPUs."""

    device_kind: str  # JAX's name of a device
    memory: int  # bytes that programs may use: the limit in the error of libtpu 0.0.42 for a program that is too large
    example: str  # a topology


CHIPS: Mapping[str, Chip] = {
    "v4": Chip("TPU v4", int(30.75 * _GIB), "v4:2x2x2"),
    "v5e": Chip("TPU v5 lite", int(15.75 * _GIB), "v5e:4x4"),
    "v5p": Chip("TPU v5", int(95.74 * _GIB), "v5p:2x2x2"),
    "v6e": Chip("TPU v6 lite", int(31.25 * _GIB), "v6e:4x4"),
}


def with_shape(name: str) -> str:
    """The topology ``v5e:4x8`` of a slice that is rented as ``v5litepod-32`` or ``v5e-32``; another name as it is."""
    rented = re.fullmatch(r"(v5litepod|v5e|v6e)-([1-9]\d*)", name)
    if rented is None or int(rented[2]).bit_count() != 1:
        return name
    doublings = int(rented[2]).bit_length() - 1  # a slice is a square, or twice as long as wide
    rows = 2 ** (doublings // 2)
    return f"{rented[1].replace('litepod', 'e')}:{rows}x{int(rented[2]) // rows}"


def environment_for(topology: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that libtpu reads when it is loaded for a topology, and that ``environment`` does not set."""
    if topology.partition(":")[0] not in CHIPS:
        return {}
    defaults = {
        "TPU_SKIP_MDS_QUERY": "1",  # outside of Google Cloud, asking the metadata server takes minutes
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # no device is opened, so several processes may run
        "TPU_ACCELERATOR_TYPE": "v5litepod-4",
        "TPU_WORKER_HOSTNAMES": "localhost",
    }
    # On import, jax may write into some of them that it found no TPU.
    unset = lambda name: environment.get(name, "WARNING").startswith("WARNING")
    return {name: value for name, value in defaults.items() if unset(name)}


def device_memory(device: jax.Device) -> int | None:
    """The bytes that programs may use on a device, present or absent; ``None`` if not known, as of a CPU."""
    for chip in CHIPS.values():
        if chip.device_kind == device.device_kind:
            return chip.memory
    stats = device.memory_stats() if device in jax.local_devices() else None
    return (stats or {}).get("bytes_limit")


def topology_devices(name: str, slices: int = 1) -> list[jax.Device]:
    """The devices of a topology.

    Args:
      name: generation and shape of a TPU slice, such as ``v5e:4x4``, or `HERE`: the devices of this machine.
      slices: number of TPU slices of that shape, connected by the data-center network.
    """
    kind, _, shape = name.partition(":")
    if slices < 1 or (slices > 1 and name == HERE):
        raise InputError(f"--slices is {slices}: use a number of slices of an absent TPU, at least 1.")
    if name == HERE:
        return jax.devices()
    if kind not in CHIPS:
        known = ", ".join(chip.example for chip in CHIPS.values())
        raise InputError(
            f"--topology is {name!r}: write a TPU slice as {known}, or v5e-16. For GPUs use {HERE} on a machine that "
            "has them."
        )
    example = CHIPS[kind].example
    if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", shape):
        raise InputError(f"--topology is {name!r}: write a slice as {example}.")
    options: dict[str, object] = {"num_slices": slices} if slices > 1 else {}
    if math.prod(map(int, shape.split("x"))) == 1:
        options["chips_per_host_bounds"] = (1, 1, 1)  # the default is four chips on a host
    if kind in ("v4", "v5p"):
        options["chip_config_name"] = "megacore"  # one device for the two cores of a chip
    try:
        return list(topologies.get_topology_desc(platform="tpu", topology_name=name, **options).devices)
    except jax.errors.JaxRuntimeError as error:
        reason = str(error).splitlines()[0].removeprefix("INVALID_ARGUMENT: ")
        raise InputError(f"--topology is {name!r}: libtpu refuses it ({reason}). For example: {example}.") from error
    except (RuntimeError, ImportError) as error:
        raise InputError(f"--topology={name} needs libtpu: {installs('plan')}.") from error
