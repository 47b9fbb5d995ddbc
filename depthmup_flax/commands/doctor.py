"""Say what is installed here and what is missing: versions, devices, extras.

    depthmup doctor

Examples:
    depthmup doctor
    JAX_PLATFORMS=cpu depthmup doctor

Exit codes: 0 all that depthmup train --config=digits needs is here, 2 a package is
missing or of an unsupported version, or JAX finds no device; ! marks it.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import platform
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

from depthmup_flax.commands.parser import Parser
from depthmup_flax.util.errors import BAD_INPUT
from depthmup_flax.util.imports import require

if TYPE_CHECKING:
    from packaging.requirements import Requirement

_PACKAGE = "depthmup-flax"
_TIMEOUT_S = 60.0
_PROBE = "import jax; print(*(f'{device.device_kind}, {device.platform}' for device in jax.local_devices()), sep='\\n')"


def define(parser: Parser) -> None:
    """Adds no flags."""


def main(args: argparse.Namespace) -> int:
    """Prints the findings; returns the exit code."""
    require("packaging", "depthmup doctor")
    distribution = importlib.metadata.distribution(_PACKAGE)
    wrong = missing(distribution, "") + missing(distribution, "train")
    needed = {one.name for extra in ("", "train") for one in _requirements(distribution, extra)}
    found = {one.metadata["Name"].lower(): one.version for one in importlib.metadata.distributions()}
    versions = [f"{name} {found[name.lower()]}" for name in (*sorted(needed), "jaxlib") if name.lower() in found]
    text = ", ".join([f"python {platform.python_version()}", f"{_PACKAGE} {distribution.version}", *versions])
    print("Versions\n" + textwrap.indent(textwrap.fill(text, 76, break_on_hyphens=False), "  "))
    print("Extras")
    for extra in sorted(distribution.metadata.get_all("Provides-Extra") or ()):
        absent = missing(distribution, extra)
        print(f'  - {extra:13} pip install "{_PACKAGE}[{extra}]"' if absent else f"  + {extra}")
    print("Devices", flush=True)
    devices, problem = _devices()
    for kind in dict.fromkeys(devices):
        print(f"  {devices.count(kind)} x {kind}")
    wrong += [f"JAX finds no device: {problem}"] if problem else []
    if wrong:
        print("\nMissing for depthmup train --config=digits:", *(f"! {one}" for one in wrong), sep="\n")
        return BAD_INPUT
    print("\nAll that depthmup train --config=digits needs is here.")
    return 0


def missing(distribution: importlib.metadata.Distribution, extra: str) -> list[str]:
    """What is wrong with the packages that a distribution requires for an extra, or for "" without any."""
    problems = []
    for one in _requirements(distribution, extra):
        try:
            inner = importlib.metadata.distribution(one.name)
        except importlib.metadata.PackageNotFoundError:
            problems.append(f"{one.name} is not installed")
            continue
        if not one.specifier.contains(inner.version, prereleases=True):
            problems.append(f"{one.name} is {inner.version}, but {one.specifier} is needed")
        problems += [problem for name in one.extras for problem in missing(inner, name)]
    return problems


def _requirements(distribution: importlib.metadata.Distribution, extra: str) -> list[Requirement]:
    from packaging.requirements import Requirement

    every = map(Requirement, distribution.requires or ())
    return [one for one in every if one.marker is None or one.marker.evaluate({"extra": extra})]


def _devices() -> tuple[list[str], str]:
    """The devices that JAX finds, and what went wrong; in a process of its own, because a device may hang."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROBE], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return [], f"no answer in {_TIMEOUT_S:.0f} s"
    last = done.stderr.strip().rpartition("\n")[2]
    return done.stdout.splitlines(), "" if done.returncode == 0 else last or f"exit code {done.returncode}"
