"""Provenance of a result: package versions and the commit of the source."""

import importlib.metadata
import pathlib
import platform
import subprocess

PACKAGES = ("depthmup-flax", "jax", "flax", "optax", "orbax-checkpoint", "numpy", "pillow")


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that affect numerical results."""
    result = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            result[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:  # a checkout that is not installed
            result[package] = "not installed"
    return result


def commit() -> str | None:
    """The commit of the checkout that holds this package, with ``-dirty`` if tracked files differ from it.

    ``None`` outside a git checkout, and for a package installed inside another repository.
    """
    root = str(pathlib.Path(__file__).parents[1])

    def git(*arguments: str) -> str:
        return subprocess.run(["git", "-C", root, *arguments], capture_output=True, text=True, check=True).stdout

    try:
        git("ls-files", "--error-unmatch", "records/provenance.py")  # fails unless the repository tracks this file
        changed = git("status", "--porcelain", "--untracked-files=no", "--", root).strip()
        return git("rev-parse", "--short=12", "HEAD").strip() + ("-dirty" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None
