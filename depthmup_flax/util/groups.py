"""Items in groups, and the group that the paths of equal layers are in."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable
from typing import TypeVar

_Item = TypeVar("_Item")
_Key = TypeVar("_Key")


def grouped(items: Iterable[_Item], key: Callable[[_Item], _Key]) -> dict[_Key, list[_Item]]:
    """Key -> its items. Keys are in the order of their first items, items in the order in which they came."""
    groups: dict[_Key, list[_Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


@functools.lru_cache(maxsize=1 << 16)
def series(path: str) -> str:
    """What paths of equal layers have in common: the path with ``*`` for every number.

    A number at the end of a name is dropped, as libraries leave out the first: ``linear``, ``linear_1`` and
    ``linear_2`` are one series. The audit asks for the same few paths many times, so results are kept.
    """
    return re.sub(r"\d+", "*", re.sub(r"_?\d+(?=/|$)", "", path))
