"""Provenance of a result: package versions, settings of JAX and the commit of the source."""

import importlib.metadata
import os
import pathlib
import platform
import re
import subprocess
from collections.abc import Mapping
from typing import Any

import jax

PACKAGES = ("depthmup-flax", "jax", "flax", "optax", "orbax-checkpoint", "numpy", "pillow")


# Settings of JAX that change what a run computes, and how they are when nobody sets them: those of JAX's own list of
# what enters its cache of traced programs, without those that only check or report, and the kind of random keys.
# tests/storage/settings_test.py compares the list with that of the installed JAX.
_OFF = (
    "jax_enable_x64 jax_high_dynamic_range_gumbel jax_softmax_custom_jvp jax_scan3 jax_remat3 jax_custom_vjp3 "
    "jax_threefry_gpu_kernel_lowering jax_ragged_dot_use_gpu_pallas_triton_lowering jax_use_emit_pipeline_primitive "
    "eager_constant_folding"
)
_ON = "jax_threefry_partitionable jax_allow_f16_reductions jax_use_direct_linearize jax_pallas_use_mosaic_gpu"
_SETTINGS: Mapping[str, Any] = {
    "jax_default_prng_impl": "threefry2x32",
    "jax_random_seed_offset": 0,
    "jax_explicit_x64_dtypes": 1,
    "jax_default_matmul_precision": None,
    "jax_numpy_dtype_promotion": "standard",
    **dict.fromkeys(_OFF.split(), False),
    **dict.fromkeys(_ON.split(), True),
}


_XLA_FLAGS = "XLA_FLAGS"  # of which those that are named here change results, others the speed
_CHANGES_RESULTS = re.compile(r"--\w*(?:fast_m|precision|tf32)\w*(?:=\S+)?")


def settings() -> dict[str, Any]:
    """The settings of JAX and XLA that change what a run computes; those that this JAX lacks have their usual value."""
    flags = sorted(set(_CHANGES_RESULTS.findall(os.environ.get(_XLA_FLAGS, ""))))
    return {name: getattr(jax.config, name, usual) for name, usual in _SETTINGS.items()} | {_XLA_FLAGS: " ".join(flags)}


def unusual_settings() -> dict[str, Any]:
    """Those of `settings` that somebody has set to another value than JAX does."""
    usual = {**_SETTINGS, _XLA_FLAGS: ""}
    return {name: value for name, value in settings().items() if value != usual[name]}


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that affect numerical results."""
    result = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            result[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:  # a checkout that is not installed
            result[package] = "not installed"
    return result


def commit() -> str | None:
    """The commit of the checkout that holds this package, with ``-dirty`` if tracked files differ from it.

    ``None`` outside a git checkout, and for a package installed inside another repository.
    """
    root = str(pathlib.Path(__file__).parents[1])

    def git(*arguments: str) -> str:
        return subprocess.run(["git", "-C", root, *arguments], capture_output=True, text=True, check=True).stdout

    try:
        git("ls-files", "--error-unmatch", "storage/provenance.py")  # fails unless the repository tracks this file
        changed = git("status", "--porcelain", "--untracked-files=no", "--", root).strip()
        return git("rev-parse", "--short=12", "HEAD").strip() + ("-dirty" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None
