"""Packages that an extra of depthmup-flax installs: one sentence says which, where one is missing."""

from __future__ import annotations

import importlib

from depthmup_flax.util.errors import InputError

# Module -> the extra that installs it. The core needs jax, flax, optax and numpy alone.
EXTRA_OF = {
    **dict.fromkeys(("absl", "grain", "ml_collections", "orbax"), "train"),
    **dict.fromkeys(("PIL", "packaging", "scipy", "sklearn", "tensorboardX"), "train"),
    **dict.fromkeys(("jinja2", "matplotlib"), "report"),
    "tensorflow_datasets": "tfds",
    "wandb": "wandb",
}


def require(package: str, why: str) -> None:
    """Imports ``package``, or says how to install it.

    Args:
      package: the name of a module, such as "sklearn".
      why: what needs it, as the subject of a sentence: "data.name='digits'", "depthmup train".

    Raises:
      InputError: it cannot be imported.
    """
    try:
        importlib.import_module(package)
    except ImportError as error:
        raise InputError(sentence(package, why, error)) from error


def sentence(package: str, why: str, error: ImportError) -> str:
    """The sentence about a module of `EXTRA_OF` that cannot be imported."""
    absent = isinstance(error, ModuleNotFoundError) and error.name == package
    reason = "is not installed" if absent else f"cannot be imported ({error})"
    return f'{why} needs {package}, which {reason}. Run pip install "depthmup-flax[{EXTRA_OF[package]}]".'


def missing(error: ImportError, why: str) -> InputError | None:
    """The error to raise instead of an `ImportError`, if an extra installs what is missing."""
    package = (error.name or "").partition(".")[0]
    return InputError(sentence(package, why, error)) if package in EXTRA_OF else None
