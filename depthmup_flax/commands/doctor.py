"""Say what is installed here and what is missing: versions, devices, data, extras.

    depthmup doctor

Examples:
    depthmup doctor
    JAX_PLATFORMS=cpu depthmup doctor
    TFDS_DATA_DIR=/data/tfds depthmup doctor

Exit codes: 0 all that depthmup train --config=digits needs is here, 2 a package is
missing or of an unsupported version; ! marks it.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

from depthmup_flax.commands.parser import Parser
from depthmup_flax.devices.host import cache_directory, cpu_cores
from depthmup_flax.util.errors import BAD_INPUT, InputError
from depthmup_flax.util.extras import require
from depthmup_flax.util.types import Json

if TYPE_CHECKING:
    from packaging.requirements import Requirement

_PACKAGE = "depthmup-flax"
_EXTRAS = {  # of this package, for its users
    "train": "every command: train, sweep, check, tune, ...",
    "report": "figures: report, check --workdir",
    "tfds": "read prepared TFDS sets, such as CIFAR-10",
    "tfds-prepare": "download and prepare a TFDS set, once",
    "buckets": "work directories in gs:// and s3://",
    "safetensors": "trained networks as safetensors files",
    "wandb": "Weights & Biases, one of train.writers",
    "plan": "the TPU compiler for depthmup plan; needs no TPU",
    "tpu": "Cloud TPUs",
    "cuda": "NVIDIA GPUs, CUDA 13",
    "cuda12": "NVIDIA GPUs, CUDA 12",
}
_TIMEOUT_S = 60.0
_PROBE = "from depthmup_flax.commands.doctor import probe; probe()"


def define(parser: Parser) -> None:
    """Adds no flags."""


def main(args: argparse.Namespace) -> int:
    """Prints the findings; returns the exit code."""
    started = subprocess.Popen(
        [sys.executable, "-c", _PROBE], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    problems: list[str] = []
    _section("Versions", _versions(), problems)
    _section("Machine", _machine())
    _section("Data", _data())
    _section("Extras", _extras())
    found = _answers(started)
    _section("Devices", _devices(found), problems)
    if "digits" not in found:
        problems.append(f"the digits data set cannot be read: {found['digits error']}")
    if problems:
        print("\nMissing for depthmup train --config=digits:\n" + "\n".join(f"! {problem}" for problem in problems))
        return BAD_INPUT
    print("\nAll that depthmup train --config=digits needs is here.")
    return 0


def _section(title: str, lines: Iterator[str], problems: list[str] | None = None) -> None:
    """Prints the lines; those that start with ``! `` go to ``problems``. An error ends this section only."""
    print(title)
    try:
        for line in lines:
            if problems is not None and line.startswith("! "):
                problems.append(line.removeprefix("! "))
            else:
                print(f"  {line}", flush=True)
    except Exception as error:
        print(f"  cannot be determined: {_in_words(error)}", flush=True)
        if problems is not None:
            problems.append(_in_words(error))


def missing(requirement: Requirement) -> str:
    """What is wrong with an installed package, in a few words; empty if it is as required, with its extras."""
    try:
        distribution = importlib.metadata.distribution(requirement.name)
    except importlib.metadata.PackageNotFoundError:
        return f"{requirement.name} is not installed"
    if not requirement.specifier.contains(distribution.version, prereleases=True):
        return f"{requirement.name} is {distribution.version}, but {requirement.specifier} is needed"
    inner = (missing(one) for extra in requirement.extras for one in _requirements(distribution, extra))
    return next(filter(None, inner), "")


def _requirements(distribution: importlib.metadata.Distribution, extra: str = "") -> list[Requirement]:
    """What a package requires: for an extra, or without any."""
    require("packaging", "depthmup doctor")
    from packaging.requirements import Requirement

    every = [Requirement(text) for text in distribution.requires or ()]
    applies = lambda one, extra: one.marker is None or one.marker.evaluate({"extra": extra})
    return [one for one in every if applies(one, extra) and not (extra and applies(one, ""))]


def _this_package() -> importlib.metadata.Distribution:
    try:
        return importlib.metadata.distribution(_PACKAGE)
    except importlib.metadata.PackageNotFoundError as error:
        raise InputError(f"{_PACKAGE} is not installed, it runs from a directory") from error


def _versions() -> Iterator[str]:
    try:
        distribution = _this_package()
    except InputError as error:
        yield f"python {platform.python_version()}; {error}"
        return
    requirements = [*_requirements(distribution), *_requirements(distribution, "train")]
    wrong = list(filter(None, map(missing, requirements)))
    yield from (f"! {text}" for text in wrong)
    if wrong:
        yield f'! remedy: pip install --upgrade "{_PACKAGE}[train]"'
    names = sorted({one.name for one in requirements if "not installed" not in missing(one)}, key=str.lower)
    versions = (f"{name} {importlib.metadata.version(name)}" for name in (_PACKAGE, *names, "jaxlib"))
    text = ", ".join([f"python {platform.python_version()}", *versions])
    yield from textwrap.wrap(text, 76, break_on_hyphens=False)


def _machine() -> Iterator[str]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    yield f"{platform.system()} {platform.machine()}, {cpu_cores()} CPU cores, {memory / 1e9:.1f} GB of memory"
    yield f"{shutil.disk_usage('.').free / 1e9:.1f} GB free on the disk of the working directory"
    cache = pathlib.Path(os.environ.get("JAX_COMPILATION_CACHE_DIR") or cache_directory())
    size = sum(file.stat().st_size for file in cache.rglob("*") if file.is_file())
    yield f"{size / 1e6:.1f} MB of compiled programs in {_from_home(cache)}"


def _data() -> Iterator[str]:
    yield "digits and synthetic: part of the package"
    place = os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
    if "://" in place:
        yield f"TFDS sets in {place}, which is not listed"
        return
    directory, prepared = pathlib.Path(place).expanduser(), []
    for info in sorted((*directory.glob("*/*/dataset_info.json"), *directory.glob("*/*/*/dataset_info.json"))):
        readable = '"array_record"' in info.read_text(encoding="utf-8", errors="replace")
        name = info.parent.relative_to(directory).as_posix()
        prepared.append(name if readable else f"{name} (not as array_record: prepare it again)")
    yield f"TFDS sets in {_from_home(directory)}: {', '.join(prepared) or 'none'}"
    if not prepared:
        yield "  depthmup train --config=cifar10_resnet says how to prepare one"
        yield "  TFDS_DATA_DIR names another directory"


def _extras() -> Iterator[str]:
    distribution = _this_package()
    for extra, use in _EXTRAS.items():
        absent = any(map(missing, _requirements(distribution, extra)))
        yield f"{'-' if absent else '+'} {extra:13} {use}"
        if absent:
            yield f'  {"":13} pip install "{_PACKAGE}[{extra}]"'


def probe() -> None:
    """Prints, as lines of JSON, what takes JAX to find; for a process of its own, because a device may hang."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # leave the memory of a GPU to others
    for name, answer in (("devices", _local_devices), ("digits", _digits)):
        try:
            print(json.dumps({name: answer()}), flush=True)
        except Exception as error:
            print(json.dumps({f"{name} error": _in_words(error)}), flush=True)


def _local_devices() -> list[str]:
    import jax

    limits = [(device.memory_stats() or {}).get("bytes_limit") for device in jax.local_devices()]
    memory = [f", {limit / 1e9:.1f} GB of memory for JAX" if limit else "" for limit in limits]
    return [device.device_kind + text for device, text in zip(jax.local_devices(), memory, strict=True)]


def _digits() -> int:
    from depthmup_flax.data import DataConfig, load

    return len(load(DataConfig()).train)


def _answers(started: subprocess.Popen[str]) -> Json:
    """What `probe` has found; an error for each question that it did not answer."""
    try:
        out, errors = started.communicate(timeout=_TIMEOUT_S)
        silent = errors.strip().rpartition("\n")[2] or f"the process ended with code {started.returncode}"
    except subprocess.TimeoutExpired:
        started.kill()
        out, silent = started.communicate()[0], f"no answer in {_TIMEOUT_S:.0f} s"
    found: Json = {"devices error": silent, "digits error": silent}
    for line in out.splitlines():
        if line.startswith("{"):
            found |= json.loads(line)
    return found


def _devices(found: Json) -> Iterator[str]:
    for kind in dict.fromkeys(found.get("devices", ())):
        yield f"{found['devices'].count(kind)} x {kind}"
    if "devices" not in found:
        platforms = os.environ.get("JAX_PLATFORMS")
        chosen = f", with JAX_PLATFORMS={platforms}" if platforms else ""
        yield f"! JAX finds no device{chosen}: {found['devices error']}"


def _in_words(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, InputError) else f"{type(error).__name__}: {text}".removesuffix(": ")


def _from_home(path: pathlib.Path) -> str:
    home = pathlib.Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)
