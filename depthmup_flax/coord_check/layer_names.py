"""One name for the same layer of networks of different depths."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from depthmup_flax.rule.parametrization import ParamInfo, Role


def collapsers(
    names_of_networks: Sequence[Sequence[str]], infos: Sequence[Mapping[str, ParamInfo]]
) -> list[Callable[[str], str]]:
    """For each network, a function of a path that writes ``*`` for an index which counts layers.

    That is one whose values differ between networks: ``block_7`` of a deep network becomes ``block_*``, while
    ``Dense_1`` of every block stays apart from ``Dense_0``. Modules that are different things are not counted together:
    of ``Dense_0`` (a stem), ``Dense_1`` to ``Dense_8`` (blocks) and ``Dense_9`` (the readout) become ``Dense_0``,
    ``Dense_*`` and ``Dense_* (output)``.

    Args:
      names_of_networks: paths of parameters and activations of each network.
      infos: path -> `ParamInfo` of each.
    """
    kinds = [_kinds(info) for info in infos]
    counting: set[tuple[str, str, str]] = set()

    def walk(i: int, name: str, visit: Callable[[tuple[str, str, str], str], None]) -> str:
        done, path = "", ""
        for part in name.split("/"):
            path = f"{path}/{part}"
            template, kind = re.sub(r"\d+", "*", part), kinds[i].get(path[1:], "")
            visit((done, template, kind), part)
            label = f" ({kind})" if kind and "branch" not in kind else ""
            done = f"{done}/{template + label if (done, template, kind) in counting else part}"
        return done[1:]

    def note(seen: dict[tuple[str, str, str], list[set[str]]], i: int, key: tuple[str, str, str], part: str) -> None:
        seen.setdefault(key, [set() for _ in names_of_networks])[i].add(part)

    deepest = max((name.count("/") for names in names_of_networks for name in names), default=0)
    for _ in range(deepest + 1):  # a level is decided once those above it are
        seen: dict[tuple[str, str, str], list[set[str]]] = {}
        for i, names in enumerate(names_of_networks):
            for name in names:
                walk(i, name, functools.partial(note, seen, i))
        # A place that some networks do not have at all (a fourth stage, say) counts nothing.
        differing = {key for key, sets in seen.items() if len({frozenset(s) for s in sets if s}) > 1}
        if differing <= counting:
            break
        counting |= differing
    return [functools.partial(walk, i, visit=lambda key, part: None) for i in range(len(kinds))]


def in_branches(info: Mapping[str, ParamInfo], activations: Iterable[str]) -> list[str]:
    """The activations of modules that have, or are in modules that have, parameters inside residual branches."""
    kinds = _kinds(info)

    def kind(name: str) -> str:
        while name and name not in kinds:
            name = name.rpartition("/")[0]
        return kinds.get(name, "")

    return [name for name in activations if kind(name) == "branch"]


def _kinds(info: Mapping[str, ParamInfo]) -> dict[str, str]:
    """Path of a module or parameter -> what it has: ``branch`` or the roles of its weights."""
    below: dict[str, set[ParamInfo]] = {}
    for path, leaf in info.items():
        parts = path.split("/")
        for end in range(1, len(parts) + 1):
            below.setdefault("/".join(parts[:end]), set()).add(leaf)
    found = {}
    for path, leaves in below.items():
        roles = {leaf.role.value for leaf in leaves}
        weights = roles - {Role.VECTOR.value, Role.FIXED.value}
        found[path] = "branch" if any(leaf.in_branch for leaf in leaves) else ", ".join(sorted(weights or roles))
    return found
