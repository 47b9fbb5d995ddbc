"""Compiled programs as text (HLO), and the bytes of memory that their instructions move."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Iterator, Mapping
from typing import TypeAlias

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast")
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (.*?) ([a-z][\w\-]*)\(")
_ARRAY = re.compile(r"\b(pred|[a-z]+\d+(?:e\d+m\d+\w*)?)\[([\d,]*)\]")
_ARRAY_IN_CORE = re.compile(r"\w+\[[\d,]*\]\{[^}]*S\(\d+\)[^}]*\}")
_CALLED = re.compile(
    r"\b(?:calls|to_apply|called_computations|branch_computations|true_computation|false_computation)="
)
_WORKSPACE = re.compile(r"[su]8\[\d+\]\{0\}")  # scratch memory of cuBLAS and cuDNN, an upper bound
# These move no data, or are counted where they start.
FREE = ("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id", "replica-id")
_IN_PLACE = "output_to_operand_aliasing={{}: (0"  # the same bytes in another tiling
_SLICES = ("dynamic-slice", "slice", "gather")


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of a computation."""

    name: str
    shape: str  # of the result, with types; a tuple's in parentheses
    opcode: str
    operands: tuple[str, ...]  # names; of a constant its value, of a parameter its number
    attributes: str  # the text after the operands
    is_root: bool = False  # its result is the computation's

    @property
    def source(self) -> str:
        """The path of the operation in the traced program, or "" for one that the compiler added."""
        return _first_group(r'op_name="((?:[^"\\]|\\.)*)"', self.attributes)

    @property
    def collective(self) -> str:
        """The kind of the collective that it starts, or ""."""
        kind = self.opcode.removesuffix("-start")
        return kind if kind in COLLECTIVES else ""

    def called(self) -> list[str]:
        """The computations that it runs, except the condition and the body of a loop."""
        names: list[str] = []
        for found in _CALLED.finditer(self.attributes):
            listed = re.match(r"\{[^}]*\}|%?[\w.\-]+", self.attributes[found.end() :])
            names += re.findall(r"[\w.\-]+", listed[0]) if listed else []
        return names


Computation: TypeAlias = Mapping[str, Instruction]  # by name, in order


@dataclasses.dataclass(frozen=True)
class Program:
    """A compiled program of one device."""

    computations: Mapping[str, Computation]
    entry: str

    @property
    def takes_steps(self) -> bool:
        """Whether it loops over training steps (`depthmup_flax.trainer.engine.program`)."""
        entry = self.computations[self.entry].values()
        return any(one.opcode == "while" and one.source == "jit(_take_steps)/while" for one in entry)

    def executed(self) -> Iterator[tuple[Instruction, Computation, int]]:
        """Instructions outside fusions, each with its computation and the number of times that it runs in one call.

        A loop of unknown length counts once: `take_steps` has such a loop around a step. Of the branches of a condition
        the longest one counts.
        """
        return self._executed(self.entry, 1)

    def _executed(self, name: str, times: int) -> Iterator[tuple[Instruction, Computation, int]]:
        computation = self.computations[name]
        for instruction in computation.values():
            called, opcode = instruction.called(), instruction.opcode
            if opcode == "while":
                called = [_first_group(r"\bbody=%?([\w.\-]+)", instruction.attributes)]
            else:
                yield instruction, computation, times
            if opcode == "conditional":
                called = [max(called, key=lambda branch: len(self.computations[branch]))]
            if opcode in ("while", "conditional", "call", "async-start"):
                for inner in called:
                    yield from self._executed(inner, times * (self._trips(instruction) if opcode == "while" else 1))

    def inside(self, instruction: Instruction) -> Iterator[tuple[Instruction, Computation]]:
        """The instructions of a fusion, each with its computation."""
        for name in instruction.called():
            for inner in self.computations.get(name, {}).values():
                yield inner, self.computations[name]
                yield from self.inside(inner)

    def fused(self, fusion: Instruction) -> Computation:
        """The computation of a fusion."""
        return self.computations[fusion.called()[0]]

    def _trips(self, loop: Instruction) -> int:
        if known := _first_group(r'"known_trip_count":\{"n":"(\d+)"', loop.attributes):
            return int(known)
        # The TPU compiler does not say. JAX's loops count from 0 to the constant of their condition.
        condition = self.computations[_first_group(r"\bcondition=%?([\w.\-]+)", loop.attributes)]
        instructions = [*condition.values(), *(inner for one in condition.values() for inner, _ in self.inside(one))]
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
        elif name and (found := _INSTRUCTION.match(line)):
            root, own_name, shape, opcode = found.groups()
            inside, _, attributes = line[found.end() :].partition(")")
            operands = [inside] if opcode in ("constant", "parameter") else re.findall(r"%([\w.\-]+)", inside)
            computations[name][own_name] = Instruction(
                own_name, shape, opcode, tuple(operands), attributes, is_root=bool(root)
            )
    return Program(computations, entry)


def _first_group(pattern: str, text: str) -> str:
    """What the parentheses of ``pattern`` match, or ""."""
    found = re.search(pattern, text)
    return found[1] if found else ""


def array_sizes(shape: str) -> list[tuple[int, ...]]:
    """The dimensions of an array, or of each array of a tuple."""
    return [tuple(map(int, filter(None, sizes.split(",")))) for _, sizes in _ARRAY.findall(shape)]


@functools.cache
def shape_bytes(shape: str) -> int:
    """The bytes of an array or of a tuple of arrays, without padding."""
    bits = 0
    for kind, sizes in _ARRAY.findall(shape):
        item = 8 if kind == "pred" else int(_first_group(r"(\d+)", kind) or 0)
        bits += item * math.prod(map(int, filter(None, sizes.split(","))))
    return bits // 8


@functools.cache
def memory_bytes(shape: str) -> int:
    """`shape_bytes` of the arrays in a device's memory, without those in the faster memory of a core."""
    return shape_bytes(_ARRAY_IN_CORE.sub("", shape))


def _operand_bytes(instruction: Instruction, computation: Computation) -> int:
    return sum(shape_bytes(computation[name].shape) for name in instruction.operands if name in computation)


def bytes_moved(instruction: Instruction, computation: Computation, program: Program) -> int:
    """Bytes of memory that an instruction reads and writes; of a slice or an update of a part, only those."""
    opcode = instruction.opcode
    if opcode in FREE or opcode.endswith("-done") or instruction.collective:
        return 0
    if opcode == "copy-start":
        return memory_bytes(instruction.shape)  # its result names the copy and the original
    if opcode == "slice-start":
        return shape_bytes(instruction.shape) - _operand_bytes(instruction, computation)
    sizes = [memory_bytes(computation[name].shape) if name in computation else 0 for name in instruction.operands]
    read = sum(_read_by(instruction, number, size, program) for number, size in enumerate(sizes))
    return read + _written(instruction, computation, program)


def _read_by(user: Instruction, number: int, size: int, program: Program) -> int:
    """Bytes that an instruction reads of its operand ``number``, which has ``size`` bytes."""
    if user.opcode in _SLICES and number == 0:
        return min(size, shape_bytes(user.shape))
    if user.opcode == "dynamic-update-slice" and number == 0:
        return 0  # updated in place
    if user.opcode == "fusion":
        inside = program.fused(user)
        parameters = [one for one in inside.values() if one.opcode == "parameter" and one.operands == (str(number),)]
        return sum(_read_inside(one, size, inside, program) for one in parameters)
    return size


def _read_inside(value: Instruction, size: int, inside: Computation, program: Program) -> int:
    """Bytes that the instructions of a fusion read of one of its values."""
    read = 0
    for user in inside.values():
        for number, name in enumerate(user.operands):
            if name == value.name:
                follow = user.opcode == "bitcast" or _IN_PLACE in user.attributes
                read += _read_inside(user, size, inside, program) if follow else _read_by(user, number, size, program)
    return min(read, size)


def _written(instruction: Instruction, computation: Computation, program: Program) -> int:
    """Bytes that an instruction writes."""
    size, operands = memory_bytes(instruction.shape), instruction.operands
    if instruction.opcode == "dynamic-update-slice" and operands[1] in computation:
        return min(size, shape_bytes(computation[operands[1]].shape))
    if instruction.opcode in ("bitcast", "tuple"):
        return min(size, sum(_written(computation[name], computation, program) for name in operands))
    if instruction.opcode == "fusion":
        inside = program.fused(instruction)
        return min(size, sum(_written(one, inside, program) for one in inside.values() if one.is_root))
    if instruction.opcode == "custom-call":
        return memory_bytes(_WORKSPACE.sub("", instruction.shape))
    return size
