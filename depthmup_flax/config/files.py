"""Config files: Python with ``get_config()``, shipped ones by name."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import inspect
import os
import pathlib
import sys
from typing import TYPE_CHECKING, Any

from depthmup_flax.util.errors import InputError, UserCodeError, closest

if TYPE_CHECKING:
    from ml_collections import ConfigDict

_PACKAGE = pathlib.Path(__file__).parents[1]
NAME_A_CONFIG = "name a shipped config, such as digits, or a Python file with get_config()"


def shipped_directory() -> pathlib.Path:
    """Their directory: inside an installed package, beside it in a checkout."""
    installed = _PACKAGE / "configs"
    return installed if installed.is_dir() else _PACKAGE.parent / "configs"


def shipped_names() -> list[str]:
    """All names, sorted; single runs first."""
    paths = [path.relative_to(shipped_directory()).with_suffix("") for path in shipped_directory().rglob("*.py")]
    return sorted((path.as_posix() for path in paths), key=lambda name: ("/" in name, name))


def is_config(word: str) -> bool:
    """Whether a word names a config, as `path_of` takes it."""
    name = word.partition(":")[0]
    return name.endswith(".py") or name in shipped_names()


def path_of(named: str) -> str:
    """The file of a config as named on a command line: ``digits``, ``sweeps/vit:gpu`` or ``my/config.py:gpu``.

    Keeps any ``:argument``. `InputError` for a name that is neither a file nor a shipped config.
    """
    name, colon, argument = named.partition(":")
    if name.endswith(".py") or os.path.isfile(name):
        return named
    if name not in shipped_names():
        same_end = [other for other in shipped_names() if other.endswith(f"/{name}")]
        meant = same_end[0] if same_end else closest(name, shipped_names())
        hint = f"did you mean {meant!r}? " if meant else ""
        raise InputError(f"config {named!r} is neither a file nor a shipped config: {hint}depthmup config lists them.")
    return f"{shipped_directory() / name}.py{colon}{argument}"


def shipped_name(path: str | pathlib.Path) -> str | None:
    """The name of the shipped config in a file; ``None`` for another file."""
    absolute, directory = pathlib.Path(path).resolve(), shipped_directory().resolve()
    return absolute.relative_to(directory).with_suffix("").as_posix() if absolute.is_relative_to(directory) else None


def run_name(path: str) -> str:
    """The default name of a config's runs: that of its file, with any argument: ``digits-smoke``."""
    name, _, argument = path.partition(":")
    return "-".join((pathlib.Path(name).stem, *([argument] if argument else [])))


def from_file(path: str | pathlib.Path, *arguments: Any) -> ConfigDict:
    """``get_config(*arguments)`` of another config, to derive one from it.

    ``path`` is a shipped config, "sweeps/vit", or a file, ``pathlib.Path(__file__).with_name("parent.py")``.
    """
    if path in shipped_names():
        path = shipped_directory() / f"{path}.py"
    if not (os.path.isfile(path) and os.access(path, os.R_OK)):
        raise InputError(f"config file {str(path)!r} cannot be read: {NAME_A_CONFIG}.")
    name = f"{pathlib.Path(path).stem}_config"
    loader = importlib.machinery.SourceFileLoader(name, os.path.abspath(path))
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec is not None
    if (directory := os.path.dirname(os.path.abspath(path))) not in sys.path:
        sys.path.append(directory)  # it may import the files beside it
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        loader.exec_module(module)
    finally:
        del sys.modules[name]  # what it says is the config; its file is no part of what a run is
    get_config = getattr(module, "get_config", None)
    if not callable(get_config):
        raise InputError(f"{path} has no function get_config(): define one that returns a config.")
    try:
        inspect.signature(get_config).bind(*arguments)
    except TypeError as error:
        raise InputError(f"get_config() of {path}: {error}; FILE:NAME, or --config.scale=NAME, gives one.") from error
    return get_config(*arguments)


def load(named: str) -> ConfigDict:
    """The locked config of ``FILE.py`` or ``FILE.py:argument``; ``get_config`` receives the argument."""
    from ml_collections import ConfigDict  # here, as the commands say which extra has it

    path, *arguments = named.split(":", 1)
    try:
        config = from_file(path, *arguments)
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        raise UserCodeError(f"config {path} fails.") from error
    if not isinstance(config, ConfigDict):
        raise InputError(f"get_config() of {path} returns {config!r}: return a config, such as default_config().")
    return config.lock()
