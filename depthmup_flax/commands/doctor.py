"""Say what is installed here and what is missing: versions, devices, data, extras.

    depthmup doctor

Examples:
    depthmup doctor
    JAX_PLATFORMS=cpu depthmup doctor
    TFDS_DATA_DIR=/data/tfds depthmup doctor

Exit codes: 0 all that depthmup train --config=digits needs is here, 2 something is
missing, or a version is outside the supported ones; ! marks it.
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

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from depthmup_flax.commands.parser import Parser
from depthmup_flax.process.compilation_cache import cache_directory
from depthmup_flax.process.cores import cpu_cores
from depthmup_flax.util.errors import BAD_INPUT
from depthmup_flax.util.types import Json

_PACKAGE = "depthmup-flax"
_EXTRAS = {  # of this package, for its users
    "report": "figures: report, limits, check --workdir",
    "tfds": "read prepared TFDS sets, such as CIFAR-10",
    "tfds-prepare": "download and prepare a TFDS set, once",
    "buckets": "work directories in gs:// and s3://",
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
    _section("Versions", _versions(problems))
    _section("Machine", _machine())
    _section("Data", _data())
    _section("Extras", _extras())
    found = _answers(started)
    _section("Devices", _devices(found, problems))
    if "digits" not in found:
        problems.append(f"the digits data set cannot be read: {found['digits error']}")
    if problems:
        print("\nMissing for depthmup train --config=digits:\n" + "\n".join(f"! {problem}" for problem in problems))
        return BAD_INPUT
    print("\nAll that depthmup train --config=digits needs is here.")
    return 0


def _section(title: str, lines: Iterator[str]) -> None:
    print(title)
    try:
        for line in lines:
            print(f"  {line}", flush=True)
    except Exception as error:  # the other sections are still useful
        print(f"  cannot be determined: {_in_words(error)}", flush=True)


def missing(requirement: Requirement) -> str:
    """What is wrong with an installed package, in a few words; empty if it is as required, with its extras."""
    try:
        distribution = importlib.metadata.distribution(requirement.name)
    except importlib.metadata.PackageNotFoundError:
        return f"{requirement.name} is not installed"
    if not requirement.specifier.contains(distribution.version, prereleases=True):
        return f"{requirement.name} is {distribution.version}, but {requirement.specifier} is needed"
    for extra in requirement.extras:
        for inner in _requirements(distribution, extra):
            if wrong := missing(inner):
                return wrong
    return ""


def _requirements(distribution: importlib.metadata.Distribution, extra: str = "") -> list[Requirement]:
    """What a package requires: for an extra, or without any."""
    every = [Requirement(text) for text in distribution.requires or ()]
    if not extra:
        return [one for one in every if one.marker is None or one.marker.evaluate({"extra": ""})]
    needs = lambda one: one.marker.evaluate({"extra": extra}) and not one.marker.evaluate({"extra": ""})
    return [one for one in every if one.marker is not None and needs(one)]


def _versions(problems: list[str]) -> Iterator[str]:
    try:
        distribution = importlib.metadata.distribution(_PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        yield f"python {platform.python_version()}; {_PACKAGE} runs from a directory, without an installation"
        return
    pythons = SpecifierSet(distribution.metadata["Requires-Python"])
    if platform.python_version() not in pythons:
        problems.append(f"Python is {platform.python_version()}, but {pythons} is needed")
    needed = [*_requirements(distribution), *_requirements(distribution, "train")]
    requirements = sorted(needed, key=lambda one: one.name.lower())
    wrong = [text for text in map(missing, requirements) if text]
    if wrong:
        problems += [*wrong, f'remedy: pip install --upgrade "{_PACKAGE}[train]"']
    names = [_PACKAGE, *(one.name for one in requirements), "jaxlib"]
    shown = [f"{name} {_version(name)}" for name in names]
    yield from textwrap.wrap(", ".join([f"python {platform.python_version()}", *shown]), 76, break_on_hyphens=False)


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"


def _machine() -> Iterator[str]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    yield f"{platform.system()} {platform.machine()}, {cpu_cores()} CPU cores, {_bytes(memory)} of memory"
    yield f"{_bytes(shutil.disk_usage('.').free)} free on the disk of the working directory"
    try:
        cache = pathlib.Path(os.environ.get("JAX_COMPILATION_CACHE_DIR") or cache_directory())
        size = sum(file.stat().st_size for file in cache.rglob("*") if file.is_file())
    except OSError as error:
        yield f"compiled programs are not kept: {error.strerror}"
    else:
        yield f"{_bytes(size)} of compiled programs in {_from_home(cache)}"


def _data() -> Iterator[str]:
    yield "digits and synthetic: part of the package"
    place = os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
    if "://" in place:
        yield f"TFDS sets in {place}, which is not listed"
        return
    directory = pathlib.Path(place).expanduser()
    prepared = sorted(prepared_sets(directory))
    place = f"TFDS sets in {_from_home(directory)}"
    yield f"{place}: {', '.join(prepared) or 'none'}"
    if not prepared:
        yield "  TFDS_DATA_DIR names another directory; depthmup train --config=cifar10_resnet"
        yield "  says how to prepare a set"


def prepared_sets(directory: pathlib.Path) -> Iterator[str]:
    """The TFDS sets that were prepared in a directory, and whether they can be read without TensorFlow."""
    for pattern in ("*/*/dataset_info.json", "*/*/*/dataset_info.json"):
        for info in directory.glob(pattern):
            try:
                readable = json.loads(info.read_text(encoding="utf-8")).get("fileFormat") == "array_record"
            except (OSError, ValueError, AttributeError):
                readable = False
            name = info.parent.relative_to(directory).as_posix()
            yield name if readable else f"{name} (not as array_record: prepare it again)"


def _extras() -> Iterator[str]:
    try:
        distribution = importlib.metadata.distribution(_PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return
    for extra, use in _EXTRAS.items():
        absent = any(map(missing, _requirements(distribution, extra)))
        yield f"{'-' if absent else '+'} {extra:13} {use}"
        if absent:
            yield f'  {"":13} pip install "{_PACKAGE}[{extra}]"'


def probe() -> None:
    """Prints, as lines of JSON, what takes JAX to find; for a process of its own, because a device may hang."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # leave the memory of a GPU to others
    for name, answer in (("devices", _found_devices), ("digits", _digits)):
        try:
            print(json.dumps({name: answer()}), flush=True)
        except Exception as error:
            print(json.dumps({f"{name} error": _in_words(error)}), flush=True)


def _found_devices() -> list[str]:
    import jax

    return [_described(device.device_kind, device.memory_stats) for device in jax.local_devices()]


def _described(kind: str, memory_stats: object) -> str:
    try:
        limit = (memory_stats() or {}).get("bytes_limit")  # type: ignore[operator]
    except Exception:  # not all backends have it
        limit = None
    return f"{kind}, {_bytes(limit)} of memory for JAX" if limit else kind


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


def _devices(found: Json, problems: list[str]) -> Iterator[str]:
    if "devices" not in found:
        platforms = os.environ.get("JAX_PLATFORMS")
        chosen = f", with JAX_PLATFORMS={platforms}" if platforms else ""
        problem = f"JAX finds no device{chosen}: {found['devices error']}"
        problems.append(problem)
        yield problem
        return
    for kind in dict.fromkeys(found["devices"]):
        yield f"{found['devices'].count(kind)} x {kind}"


def _in_words(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")


def _from_home(path: pathlib.Path) -> str:
    home = pathlib.Path("~").expanduser()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)


def _bytes(count: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"
