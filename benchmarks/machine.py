"""The processor, the GPU and the versions that a measurement used."""

from __future__ import annotations

import functools
import json
import pathlib
import platform
import subprocess
from collections.abc import Sequence

# Versions of the installed ones of the packages in the arguments.
_VERSIONS = """
import importlib.metadata, json, sys
def version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
print(json.dumps({name: version(name) for name in sys.argv[1:] if version(name)}))
"""


def processor() -> str:
    """Name, family and model of the processor: virtual machines give one name to several generations."""
    pairs = [line.partition(":") for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines()]
    of_last = {name.strip(): value.strip() for name, _, value in pairs}
    name = of_last.get("model name", platform.processor())
    if "cpu family" not in of_last:
        return name
    return f"{name} (family {of_last['cpu family']}, model {of_last['model']})"


@functools.cache
def gpu() -> str:
    """Name of the first NVIDIA GPU; empty if there is none."""
    names = _output(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"])
    return names.splitlines()[0].strip() if names else ""


def versions(python: str, packages: Sequence[str]) -> dict[str, str]:
    """Those of ``packages`` that an interpreter has, with their versions."""
    found: dict[str, str] = json.loads(_output([python, "-c", _VERSIONS, *packages]) or "{}")
    return found


def _output(command: Sequence[str]) -> str:
    """What a command prints; empty if it fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
