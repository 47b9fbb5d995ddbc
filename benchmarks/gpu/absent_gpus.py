"""NVIDIA GPUs that XLA's CUDA compiler compiles for and that need not be here."""

from __future__ import annotations

import os

import jax
from jax.experimental import topologies

# NVIDIA's data sheets of the SXM modules: JAX's name, and the bytes that programs may use: three quarters, by default.
NAMES = {"h100": "NVIDIA H100 80GB HBM3", "h200": "NVIDIA H200"}
MEMORY = {"h100": 0.75 * 84.9e9, "h200": 0.75 * 150.1e9}
# The description of an absent GPU (GpuDeviceInfoProto): NVIDIA's architecture white papers.
_FACTS = """
    core_count: 132 fpus_per_core: 128 clock_rate_ghz: 1.98 shared_memory_per_core: 233472
    shared_memory_per_block_optin: 232448 l2_cache_size: 52428800 cuda_compute_capability { major: 9 }
    threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048 shared_memory_per_block: 49152
    block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
    registers_per_core_limit: 65536 registers_per_block_limit: 65536"""
_MEMORY_FACTS = {
    "h100": "device_memory_size: 84942979072 memory_bandwidth: 3352320000000",
    "h200": "device_memory_size: 150100000000 memory_bandwidth: 4800000000000",
}


def prepare() -> None:
    """Sets XLA's flags; call it before the first compilation."""
    # Without a GPU the compiler cannot choose tiles for its own kernels, so products go to cuBLAS.
    os.environ["XLA_FLAGS"] = f"--xla_gpu_enable_triton_gemm=false {os.environ.get('XLA_FLAGS', '')}".strip()


def device(kind: str) -> jax.Device:
    """One GPU, ``h100`` or ``h200``; needs jax-cuda12-pjrt and jax-cuda12-plugin in the version of jax."""
    config = (
        f"gpu_device_info {{{_FACTS} {_MEMORY_FACTS[kind]}\n}}\n"
        'platform_name: "CUDA"\ndnn_version_info { major: 9 minor: 8 patch: 0 }\n'
        f'device_description_str: "{NAMES[kind]}"\n'
    )
    options = {"topology": "1x1x1", "target_config": config}
    return topologies.get_topology_desc(platform="cuda", topology_name=kind, **options).devices[0]
