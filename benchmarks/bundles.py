"""Cycles of kernels that the TPU compiler does not see into, from the instructions that it dumps of them."""

from __future__ import annotations

import dataclasses
import pathlib
import re

from benchmarks.gpu.hlo import parse

FLAGS = "--xla_jf_dump_llo_text=true --xla_jf_dump_llo_pass_label_regex=final_bundles --xla_jf_dump_to="
_BUNDLE = re.compile(r"^\s*(?:0x)?[0-9a-f]+\s+(?P<label>[A-Z]{2})?\s*:\s*(?P<depth>>*)\s*\{(?P<empty>\})?")
_EXIT = re.compile(r"scmp\.\w+\.s32\.totalorder (?P<counter>%\w+), (?P<end>\d+) /\* loop exit test")
# The grid's loop has two steps more than the grid, as it loads before and stores after a step; they skip the body.
_LOAD_AND_STORE = 2


@dataclasses.dataclass
class _Loop:
    """A loop of a kernel: its own bundles, without those of loops inside it."""

    outer: _Loop | None = None
    bundles: int = 0
    trips: int = 1

    def times(self, inside: bool = False) -> int:
        """How often the loop's bundles run; with ``inside``, the bundles of a loop in it, without its own trips."""
        if self.outer is None:
            return 1
        is_grid = self.outer.outer is None
        trips = self.trips - _LOAD_AND_STORE if inside and is_grid else self.trips
        return trips * self.outer.times(inside=True)


def bundle_cycles(text: str) -> int:
    """The bundles that a kernel runs, one a cycle: each of its listing times the trips of the loops around it.

    Both ways of a condition count, and no wait for memory does. Raises ValueError if a loop's trips are not stated.
    """
    return sum(loop.bundles * loop.times() for loop in _loops(text))


def _loops(text: str) -> list[_Loop]:
    found = [_Loop()]
    latest = {0: found[0]}  # depth -> the last loop that began there
    current = found[0]
    steps = dict[str, str](re.findall(r"(%\w+) = sadd\.s32 (\d+), %", text))  # of counters, which start at 0
    for line in text.splitlines():
        if (bundle := _BUNDLE.match(line)) is None:
            continue
        depth = len(bundle["depth"])
        if bundle["label"] == "LB":
            latest[depth] = _Loop(latest[depth - 1], trips=0)
            found.append(latest[depth])
        if not bundle["empty"]:  # of an empty bundle the depth is not listed
            current = latest[depth]
        current.bundles += 1
        if test := _EXIT.search(line):
            current.trips = -(-int(test["end"]) // int(steps[test["counter"]]))
    if any(loop.trips == 0 for loop in found):
        raise ValueError("a kernel has a loop whose number of trips the compiler's dump does not state")
    return found


def kernels(program: str, dump: pathlib.Path) -> dict[str, list[int]]:
    """The kernels of a compiled program -> how often it runs them and the cycles of one run each; see `FLAGS`.

    Kernels whose operands and results lie in different memories are listed apart. Of equal ones the compiler dumps one.
    """
    listed: dict[str, list[int]] = {}
    places: dict[tuple[str, ...], str] = {}  # types and memories -> the name
    dumped: dict[str, str] = {}
    for instruction, computation, times in parse(program).executed():
        if 'custom_call_target="tpu_custom_call"' not in instruction.attributes:
            continue
        kind = re.sub(r"[\d.]+$", "", instruction.name)
        operands = (computation[name].shape for name in instruction.operands)
        name = places.setdefault((kind, instruction.shape, *operands), instruction.name)
        listed.setdefault(name, [0, 0])[0] += times
        files = [path for path in dump.glob(f"*-{instruction.name}-*final_bundles.txt") if "schedule" not in path.name]
        if files:
            dumped[name] = files[-1].read_text()
    for name, counts in listed.items():
        counts[1] = bundle_cycles(dumped[name])
    return listed
