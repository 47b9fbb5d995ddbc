"""Where a result comes from: versions of packages, and the commit of the source."""

from __future__ import annotations

import importlib.metadata
import pathlib
import platform
import subprocess

PACKAGES = ("depthmup-flax", "jax", "flax", "optax", "orbax-checkpoint", "numpy")


def versions() -> dict[str, str]:
    """Of Python and the packages that decide a run's numbers."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:  # imported from a checkout that is not installed
            found[package] = "not installed"
    return found


def commit() -> str | None:
    """The commit of the source tree that this package is imported from, ``-dirty`` if files differ from it."""
    root = pathlib.Path(__file__).parent

    def git(*arguments: str) -> str:
        return subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True).stdout

    try:
        git("ls-files", "--error-unmatch", "provenance.py")  # installed inside somebody else's repository
        changed = git("status", "--porcelain", "--untracked-files=no", "--", str(root)).strip()
        return git("rev-parse", "--short=12", "HEAD").strip() + ("-dirty" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None
