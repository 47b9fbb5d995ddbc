"""Errors in the user's code keep their traceback, below one line that says which function was called with what."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import jax

from depthmup_flax.util.errors import InputError, UserCodeError

_REGISTERED = re.compile(r"\bsession:([^@\s]+)@[0-9a-f]{8}")  # a name of `depthmup_flax.networks.named.register`
_MOST_LEAVES = 6  # of an argument shown in an error


@contextlib.contextmanager
def calling(name: str, *trees: Any) -> Iterator[None]:
    """Raises `UserCodeError` for an exception inside, which is the user's code.

    `InputError` and `UserCodeError` pass as they are.

    Args:
      name: of the function, such as ``"my_package.net:Net.__call__"``.
      *trees: its arguments, whose shapes the error shows.
    """
    try:
        yield
    except (InputError, UserCodeError):
        raise
    except Exception as error:
        what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        shown = _REGISTERED.sub(r"\1", name)
        call = f"{shown}({shapes_of(*trees)})" if trees else shown
        raise UserCodeError(f"{call} failed: {what}") from error


def shapes_of(*trees: Any) -> str:
    """``float32[64, 8, 8, 1], int32[64]`` for the leaves of ``trees``; for a tree of many, ``181 arrays``."""
    shown: list[str] = []
    for tree in trees:
        leaves = jax.tree.leaves(tree)
        shown += [f"{len(leaves)} arrays"] if len(leaves) > _MOST_LEAVES else map(_shape_of, leaves)
    return ", ".join(shown)


def _shape_of(leaf: Any) -> str:
    if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
        return f"{leaf.dtype}{list(leaf.shape)}"
    return repr(leaf) if isinstance(leaf, (bool, int, float, str)) else type(leaf).__name__
