"""Packages: what an extra of depthmup-flax installs, names that are imported at their first use, and the version."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from depthmup_flax.util.errors import InputError, closest

try:
    __version__ = importlib.metadata.version("depthmup-flax")  # a build takes it from the repository's last tag
except importlib.metadata.PackageNotFoundError:  # a checkout on the path
    __version__ = "not installed"

# Module -> the extra that installs it. The core needs jax, flax, optax and numpy alone.
EXTRA_OF = {
    **dict.fromkeys(("absl", "grain", "ml_collections", "orbax"), "train"),
    **dict.fromkeys(("PIL", "scipy", "sklearn", "tensorboardX"), "train"),
    **dict.fromkeys(("jinja2", "matplotlib"), "report"),
    "tensorflow_datasets": "tfds",
    **dict.fromkeys(("torch", "torchax"), "torch"),
    "wandb": "wandb",
}


def require(module: str, why: str) -> ModuleType:
    """Imports a module; `InputError`, of which ``why`` is the subject, with the extra that installs what it lacks."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        if (explained := missing(error, why)) is None:
            raise
        raise explained from error


def missing(error: ImportError, why: str) -> InputError | None:
    """The error to raise instead of an `ImportError`, if an extra installs what is missing."""
    package = (error.name or "").partition(".")[0]
    if package not in EXTRA_OF:
        return None
    reason = "is not installed" if isinstance(error, ModuleNotFoundError) else f"cannot be imported ({error})"
    return InputError(f"{why} needs {package}, which {reason}. Run {installs(EXTRA_OF[package])}.")


def installs(extra: str) -> str:
    """The command that installs an extra; the package is on no index yet."""
    return f'pip install ".[{extra}]" in a clone of depthmup-flax'


def imported_late(package: str) -> Callable[[str], object]:
    """The ``__getattr__`` of a package, which imports at its first use what its source imports ``if TYPE_CHECKING``."""
    importing: Any = sys.modules[package]
    tree = ast.parse(importing.__loader__.get_source(package))
    indented = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.col_offset)
    module_of = {alias.name: str(node.module) for node in indented for alias in node.names}

    def get(name: str) -> object:
        if name not in module_of:
            meant = None if name.startswith("_") else closest(name, module_of)
            hint = f". Did you mean {meant!r}?" if meant else ""
            raise AttributeError(f"module {package!r} has no attribute {name!r}{hint}")
        value = getattr(require(module_of[name], f"{package}.{name}"), name)
        setattr(importing, name, value)
        return value

    return get
