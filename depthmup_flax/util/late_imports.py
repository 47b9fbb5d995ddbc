"""Names of a package that are imported at their first use, so that ``--help`` does not import JAX."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import NoReturn

from depthmup_flax.util.errors import closest
from depthmup_flax.util.extras import missing


def imported(module: str, why: str) -> ModuleType:
    """Imports a module; `InputError` if it lacks a package that an extra installs."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        if (explained := missing(error, why)) is None:
            raise
        raise explained from error


def imported_late(
    package: str, names: Mapping[str, str], modules: Mapping[str, str] | None = None
) -> Callable[[str], object]:
    """The ``__getattr__`` of a package.

    Args:
      package: its name.
      names: module of the package -> the names that it defines, with spaces.
      modules: attribute that is a module -> the module.
    """
    module_of = {name: module for module, of_module in names.items() for name in of_module.split()}
    modules = modules or {}

    def get(name: str) -> object:
        if name not in module_of and name not in modules:
            meant = None if name.startswith("_") else closest(name, [*module_of, *modules])
            hint = f". Did you mean {meant!r}?" if meant else ""
            sentence = f"module {package!r} has no attribute {name!r}{hint}"
            raise AttributeError(sentence, obj=sys.modules[package])  # with a name, Python would add a hint of its own
        module = imported(f"{package}.{module_of.get(name) or modules[name]}", f"{package}.{name}")
        value = getattr(module, name) if name in module_of else module
        setattr(sys.modules[package], name, value)
        return value

    return get


class _Named(ModuleType):
    """A module whose call names its functions."""

    def __call__(self, *_: object, **__: object) -> NoReturn:
        functions = ", ".join(name for name in self.__all__ if name.islower())
        study = "a dm.Study, which has methods to tune, forecast, sweep, report and check a network of yours"
        raise TypeError(f"{self.__name__} is a module: use {study}, or the module's functions: {functions}")


def named_when_called(package: str) -> None:
    """Makes the call of a package, such as ``dm.sweep(...)``, raise a `TypeError` that names what to call."""
    sys.modules[package].__class__ = _Named
