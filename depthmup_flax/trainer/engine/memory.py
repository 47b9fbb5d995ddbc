"""Whether a network can fit: its parameters and optimizer state against the memory of a device."""

from __future__ import annotations

import os

import jax

from depthmup_flax.trainer.engine.experiment import Experiment
from depthmup_flax.util.errors import InputError

_GIB = 2**30
# More bytes than any device has. Compilers count in 64 bits, and end the process where these are too few.
LARGEST = 2**53


def require_memory(experiment: Experiment, parts: int = 1, available: int | None = None) -> None:
    """Raises `InputError` if the state of a run, split into ``parts``, is larger than a device's memory.

    ``available`` are its bytes, by default those of this process's device. Gradients, activations and data are not
    counted: what passes may still be too large, and what fails cannot run.
    """
    state = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(experiment.state_shapes().carry))
    needed, available = state / parts, _memory() if available is None else available
    if available is not None and needed > available:
        model = experiment.config.model
        raise InputError(
            f"model.width is {model.width} and model.depth is {model.depth}: {experiment.parameters:.3g} parameters "
            f"and their optimizer state take {needed / _GIB:.3g} GiB, and a device has {available / _GIB:.3g} GiB. Use "
            "a smaller network; depthmup train can also split one over devices, --config.mesh.fsdp=N."
        )


def _memory() -> int | None:
    """Bytes of a device, or of the host if that computes; ``None`` if not known."""
    device = jax.local_devices()[0]
    if device.platform != "cpu":
        return (device.memory_stats() or {}).get("bytes_limit")
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not on every system
        return None
