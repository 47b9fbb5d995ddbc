"""Devices to compile for, present or absent: TPUs (``v5e:2x2``) by libtpu, GPUs (``h100:8``) by the CUDA plugin."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping

import jax
from jax.experimental import topologies

from depthmup_flax.util.errors import InputError, did_you_mean

HERE = "here"
_GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Chip:
    """One device of JAX: its name there, the bytes that programs may use, and a topology of such chips."""

    device_kind: str
    platform: str
    memory: float
    example: str


GPUS_IN_HOST = 8

# TPU: the limit in the error of libtpu 0.0.42 for a program that is too large. GPU: NVIDIA's data sheets of the SXM
# modules, of which JAX uses three quarters by default.
CHIPS: Mapping[str, Chip] = {
    "v4": Chip("TPU v4", "tpu", 30.75 * _GIB, "v4:2x2x2"),
    "v5e": Chip("TPU v5 lite", "tpu", 15.75 * _GIB, "v5e:4x4"),
    "v5p": Chip("TPU v5", "tpu", 95.74 * _GIB, "v5p:2x2x2"),
    "v6e": Chip("TPU v6 lite", "tpu", 31.25 * _GIB, "v6e:4x4"),
    "h100": Chip("NVIDIA H100 80GB HBM3", "cuda", 0.75 * 84.9e9, "h100:8"),
    "h200": Chip("NVIDIA H200", "cuda", 0.75 * 150.1e9, "h200:8"),
    "a100": Chip("NVIDIA A100-SXM4-80GB", "cuda", 0.75 * 85.1e9, "a100:8"),
}

# The description of an absent GPU for XLA's CUDA compiler (GpuDeviceInfoProto): NVIDIA's architecture white papers.
_HOPPER = """
    core_count: 132 fpus_per_core: 128 clock_rate_ghz: 1.98 shared_memory_per_core: 233472
    shared_memory_per_block_optin: 232448 l2_cache_size: 52428800 cuda_compute_capability { major: 9 }"""
_GPU_FACTS: Mapping[str, str] = {
    "h100": f"{_HOPPER} device_memory_size: 84942979072 memory_bandwidth: 3352320000000",
    "h200": f"{_HOPPER} device_memory_size: 150100000000 memory_bandwidth: 4800000000000",
    "a100": """
    core_count: 108 fpus_per_core: 64 clock_rate_ghz: 1.41 shared_memory_per_core: 167936
    shared_memory_per_block_optin: 166912 l2_cache_size: 41943040 device_memory_size: 85100068864
    memory_bandwidth: 2039040000000 cuda_compute_capability { major: 8 }""",
}
_FACTS_OF_ALL_GPUS = """
    threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048 shared_memory_per_block: 49152
    block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
    registers_per_core_limit: 65536 registers_per_block_limit: 65536"""


def environment_for(topology: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that the compiler of a topology needs and ``environment`` does not set.

    Libtpu reads them when it is loaded, XLA at the first compilation.
    """
    kind = topology.partition(":")[0]
    if kind not in CHIPS:
        return {}
    if CHIPS[kind].platform == "cuda":
        # Without a GPU the compiler cannot choose tiles for its own kernels, so products go to cuBLAS.
        return {"XLA_FLAGS": f"--xla_gpu_enable_triton_gemm=false {environment.get('XLA_FLAGS', '')}".strip()}
    defaults = {
        "TPU_SKIP_MDS_QUERY": "1",  # outside of Google Cloud, asking the metadata server takes minutes
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # no device is opened, so several processes may run
        "TPU_ACCELERATOR_TYPE": "v5litepod-4",
        "TPU_WORKER_HOSTNAMES": "localhost",
    }
    # On import, jax may write into some of them that it found no TPU.
    unset = lambda name: environment.get(name, "WARNING").startswith("WARNING")
    return {name: value for name, value in defaults.items() if unset(name)}


def chip_of(device: jax.Device) -> Chip | None:
    """What is known of a device; ``None`` if it is not in `CHIPS`, as a CPU."""
    return next((chip for chip in CHIPS.values() if chip.device_kind == device.device_kind), None)


def topology_devices(name: str, slices: int = 1) -> list[jax.Device]:
    """The devices of a topology, such as ``v5e:4x4``, ``h100:8`` or ``here``.

    Args:
      name: generation and shape of a TPU slice, kind and number of GPUs, or `HERE`: the devices of this machine.
      slices: number of TPU slices of that shape, connected by the data-center network.

    Raises:
      InputError: the topology does not exist, or its compiler is not installed.
    """
    kind, _, shape = name.partition(":")
    if slices < 1:
        raise InputError(f"--slices is {slices}: use a number of TPU slices, at least 1.")
    if name != HERE and kind not in CHIPS:
        known = ", ".join(chip.example for chip in CHIPS.values())
        raise InputError(f"--topology is {name!r}: {did_you_mean(kind, CHIPS)} For example: {known}, or {HERE}.")
    if slices > 1 and (name == HERE or CHIPS[kind].platform == "cuda"):
        raise InputError(f"--slices is {slices}, but --topology={name} has no slices: remove --slices.")
    if name == HERE:
        return jax.devices()
    return _gpus(name, kind, shape) if CHIPS[kind].platform == "cuda" else _tpus(name, kind, shape, slices)


def _tpus(name: str, kind: str, shape: str, slices: int) -> list[jax.Device]:
    example = CHIPS[kind].example
    if not re.fullmatch(r"\d+(x\d+)*", shape) or "0" in shape.split("x"):
        raise InputError(f"--topology is {name!r}: write a slice as {example}.")
    dimensions = [int(size) for size in shape.split("x")]
    options: dict[str, object] = {"num_slices": slices} if slices > 1 else {}
    if math.prod(dimensions) == 1:
        options["chips_per_host_bounds"] = (1, 1, 1)  # the default is four chips on a host
    if kind in ("v4", "v5p"):
        options["chip_config_name"] = "megacore"  # one device for the two cores of a chip
    try:
        return list(topologies.get_topology_desc(platform="tpu", topology_name=name, **options).devices)
    except jax.errors.JaxRuntimeError as error:
        reason = str(error).splitlines()[0].removeprefix("INVALID_ARGUMENT: ")
        raise InputError(f"--topology is {name!r}: libtpu refuses it ({reason}). For example: {example}.") from error
    except (RuntimeError, ImportError) as error:
        raise InputError(f'--topology={name} needs libtpu: pip install "depthmup-flax[plan]".') from error


def _gpus(name: str, kind: str, shape: str) -> list[jax.Device]:
    count = int(shape) if shape.isdigit() else 0
    if count < 1 or (count > GPUS_IN_HOST and count % GPUS_IN_HOST):
        raise InputError(f"--topology is {name!r}: write {kind}:N with N from 1 to 8, or a multiple of 8.")
    hosts = math.ceil(count / GPUS_IN_HOST)
    config = (
        f"gpu_device_info {{{_FACTS_OF_ALL_GPUS}{_GPU_FACTS[kind]}\n}}\n"
        'platform_name: "CUDA"\ndnn_version_info { major: 9 minor: 8 patch: 0 }\n'
        f'device_description_str: "{CHIPS[kind].device_kind}"\n'
    )
    options = {"topology": f"1x{hosts}x{count // hosts}", "target_config": config}
    try:
        return list(topologies.get_topology_desc(platform="cuda", topology_name=kind, **options).devices)
    except (RuntimeError, ImportError) as error:
        raise InputError(
            f"--topology={name} needs the CUDA compiler, but no GPU or driver: pip install jax-cuda12-pjrt "
            f"jax-cuda12-plugin, in the version of jax ({jax.__version__})."
        ) from error
