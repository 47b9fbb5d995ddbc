"""The command of registered runs that resume: which of them, for how many processor hours, and where."""

from __future__ import annotations

import argparse
import logging
import pathlib
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from depthmup_flax.commands import console

log = logging.getLogger(__name__)
Item = TypeVar("Item")


class Asked(NamedTuple):
    """What a command line asks for."""

    names: Sequence[str]
    hours: float
    workdir: pathlib.Path


def asked(
    module: str,
    description: str | None,
    flag: str,
    known: Collection[str],
    workdir: str,
    groups: Mapping[str, Sequence[str]] | None = None,
) -> Asked:
    """Reads the command line of ``python -m module``, and shows messages.

    Args:
      flag: that takes names with commas, such as ``--tasks``.
      known: the names; all of them by default.
      workdir: the default.
      groups: names of several.
    """
    groups = groups or {}
    parser = argparse.ArgumentParser(
        f"python -m {module}", description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    of_groups = "".join(f", or {name}" for name in groups)
    parser.add_argument(flag, dest="names", help=f"Names with commas{of_groups}; default: all.")
    parser.add_argument("--hours", type=float, default=1.0, help="Processor hours after which nothing further starts.")
    parser.add_argument("--workdir", type=pathlib.Path, default=pathlib.Path(workdir))
    args = parser.parse_args()
    names = list(known) if args.names is None else groups.get(args.names, args.names.split(","))
    if unknown := [name for name in names if name not in known]:
        parser.error(f"{flag} has {unknown[0]!r}: use {', '.join(known)}")
    console.show()
    return Asked(names, args.hours, args.workdir)


def within(hours: float, items: Iterable[Item]) -> Iterator[Item]:
    """The items, one after another, until ``hours`` of processor time are used; a message says so then."""
    start = time.process_time()
    for item in items:
        if time.process_time() - start > 3600 * hours:
            log.warning("%g processor hours are used; the same command continues", hours)
            return
        yield item
