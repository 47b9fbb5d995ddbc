"""Names of a package that are imported at their first use, so that ``--help`` does not import JAX."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from types import ModuleType

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


def imported_late(package: str, names: Mapping[str, str]) -> Callable[[str], object]:
    """The ``__getattr__`` of a package.

    Args:
      package: its name.
      names: module of the package -> the names that it defines, with spaces.
    """
    module_of = {name: module for module, of_module in names.items() for name in of_module.split()}

    def get(name: str) -> object:
        if name not in module_of:
            meant = None if name.startswith("_") else closest(name, module_of)
            hint = f". Did you mean {meant!r}?" if meant else ""
            sentence = f"module {package!r} has no attribute {name!r}{hint}"
            raise AttributeError(sentence, obj=sys.modules[package])  # with a name, Python would add a hint of its own
        value = getattr(imported(f"{package}.{module_of[name]}", f"{package}.{name}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return get
