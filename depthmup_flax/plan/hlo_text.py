"""Compiled programs as text (HLO): computations, instructions, and how often each instruction runs in a call."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Iterator

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (.*?) ([a-z][\w\-]*)\(")
_ARRAY = re.compile(r"\b(pred|[a-z]+\d+(?:e\d+m\d+\w*)?)\[([\d,]*)\]")
_ARRAY_IN_CORE = re.compile(r"\w+\[[\d,]*\]\{[^}]*S\(\d+\)[^}]*\}")
_CALLED = re.compile(
    r"\b(?:calls|to_apply|called_computations|branch_computations|true_computation|false_computation)="
)


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of a computation."""

    name: str
    shape: str  # of the result, with types; a tuple's in parentheses
    opcode: str
    operands: tuple[str, ...]  # names; of a constant its value, of a parameter its number
    attributes: str  # what follows the operands
    is_root: bool = False  # its result is the computation's

    @property
    def source(self) -> str:
        """The path of the operation in the traced program, or "" for one that the compiler added."""
        found = re.search(r'op_name="((?:[^"\\]|\\.)*)"', self.attributes)
        return found[1] if found else ""

    @property
    def channel(self) -> str | None:
        """The number of a communication; the parts of one that overlaps with other work share it."""
        found = re.search(r"channel_id=(\d+)", self.attributes)
        return found[1] if found else None

    @property
    def estimated_cycles(self) -> int:
        """The TPU compiler's estimate; 0 if there is none."""
        found = re.search(r'"estimated_cycles":"(\d+)"', self.attributes)
        cycles = int(found[1]) if found else 0
        return cycles if cycles < 2**40 else 0  # unknown ones are near 2^63

    def called(self) -> list[str]:
        """The computations that it runs, but for the condition and the body of a loop."""
        names: list[str] = []
        for found in _CALLED.finditer(self.attributes):
            listed = re.match(r"\{[^}]*\}|%?[\w.\-]+", self.attributes[found.end() :])
            names += re.findall(r"[\w.\-]+", listed[0]) if listed else []
        return names


@dataclasses.dataclass(frozen=True)
class Program:
    """A compiled program of one device."""

    computations: dict[str, dict[str, Instruction]]  # name -> instructions by name, in order
    entry: str

    def executed(self) -> Iterator[tuple[Instruction, dict[str, Instruction], int]]:
        """Instructions outside fusions, each with its computation and the times that it runs in one call.

        A loop whose number of iterations is not a constant counts once: `take_steps` has such a loop around a step. Of
        the branches of a condition the longest one counts.
        """
        return self._executed(self.entry, 1)

    def _executed(self, name: str, times: int) -> Iterator[tuple[Instruction, dict[str, Instruction], int]]:
        computation = self.computations[name]
        for instruction in computation.values():
            if instruction.opcode == "while":
                body, condition = (_named(instruction.attributes, field) for field in ("body", "condition"))
                yield from self._executed(body, times * self._trips(instruction, condition))
                continue
            yield instruction, computation, times
            called = instruction.called()
            if instruction.opcode == "conditional":
                yield from self._executed(max(called, key=lambda branch: len(self.computations[branch])), times)
            elif instruction.opcode in ("call", "async-start"):
                for inner in called:
                    yield from self._executed(inner, times)

    def inside(self, instruction: Instruction) -> Iterator[tuple[Instruction, dict[str, Instruction]]]:
        """The instructions of a fusion, each with its computation."""
        for name in instruction.called():
            for inner in self.computations.get(name, {}).values():
                yield inner, self.computations[name]
                yield from self.inside(inner)

    def fused(self, fusion: Instruction) -> dict[str, Instruction]:
        """The computation of a fusion."""
        return self.computations[fusion.called()[0]]

    def _trips(self, loop: Instruction, condition: str) -> int:
        known = re.search(r'"known_trip_count":\{"n":"(\d+)"', loop.attributes)
        if known:
            return int(known[1])
        # The TPU compiler does not say. Loops of JAX count from 0 to the constant of their condition.
        instructions = list(self.computations[condition].values())
        instructions += [inner for one in instructions for inner, _ in self.inside(one)]
        constants = [one for one in instructions if one.opcode == "constant" and re.match(r"[su]\d+\[\]", one.shape)]
        return max((int(one.operands[0]) for one in constants), default=1)


def parse(text: str) -> Program:
    """The program whose ``Compiled.as_text`` is ``text``."""
    computations: dict[str, dict[str, Instruction]] = {}
    entry = name = ""
    for line in text.splitlines():
        if found := _COMPUTATION.match(line):
            name = found[2]
            computations[name] = {}
            entry = name if found[1] else entry
        elif name and (instruction := _instruction(line)):
            computations[name][instruction.name] = instruction
    return Program(computations, entry)


def _instruction(line: str) -> Instruction | None:
    found = _INSTRUCTION.match(line)
    if not found:
        return None
    root, name, shape, opcode = found.groups()
    inside, _, attributes = line[found.end() :].partition(")")
    names = [inside] if opcode in ("constant", "parameter") else re.findall(r"%([\w.\-]+)", inside)
    return Instruction(name, shape, opcode, tuple(names), attributes, bool(root))


def _named(attributes: str, field: str) -> str:
    found = re.search(rf"\b{field}=%?([\w.\-]+)", attributes)
    assert found, f"a loop without {field}"
    return found[1]


@functools.cache
def shape_bytes(shape: str) -> int:
    """The bytes of an array or of a tuple of arrays, without padding."""
    elements = lambda sizes: math.prod(map(int, filter(None, sizes.split(","))))
    return sum(_item_bits(kind) * elements(sizes) for kind, sizes in _ARRAY.findall(shape)) // 8


@functools.cache
def memory_bytes(shape: str) -> int:
    """`shape_bytes` of the arrays that lie in a device's memory, and not in a faster one of the core."""
    return shape_bytes(_ARRAY_IN_CORE.sub("", shape))


def _item_bits(kind: str) -> int:
    if kind == "pred":
        return 8
    found = re.search(r"\d+", kind)
    return int(found[0]) if found else 0
