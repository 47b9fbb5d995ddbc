"""What a compiled program costs in one call: estimated cycles, bytes of memory, communication, and where they arise."""

from __future__ import annotations

import dataclasses
import re
from collections import defaultdict
from collections.abc import Mapping

from depthmup_flax.plan.hlo_text import Instruction, Program, memory_bytes, shape_bytes

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast")
BETWEEN_SLICES = " between slices"
_WORKSPACE = re.compile(r"[su]8\[\d+\]\{0\}")  # scratch memory, at most, of cuBLAS and cuDNN
# These move no data, or are counted where they start.
_FREE = ("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id", "replica-id")
_IN_PLACE = "output_to_operand_aliasing={{}: (0"  # the same bytes in other tiles
_SLICES = ("dynamic-slice", "slice", "gather")


@dataclasses.dataclass(frozen=True)
class Collective:
    """All communications of one kind."""

    times: int
    bytes: int  # of the whole arrays: gathered, or before they are scattered

    @property
    def mib(self) -> float:
        """`bytes` in MiB."""
        return self.bytes / 2**20


@dataclasses.dataclass(frozen=True)
class Kernels:
    """Pallas kernels, for which the TPU compiler estimates no cycles: what their authors say that they take."""

    times: int = 0
    flops: int = 0
    bytes: int = 0


@dataclasses.dataclass(frozen=True)
class Cost:
    """What the operations of one place in the model take."""

    place: str
    cycles: int
    bytes: int
    times: int


@dataclasses.dataclass(frozen=True)
class HloCosts:
    """Costs of one call of a program on one device.

    Attributes:
      cycles: the TPU compiler's estimate, without communication and ``kernels``; 0 if it gives none.
      bytes: read from and written to memory, each operation by itself.
      collectives: by kind.
      places: the longest first.
      kernels: those without an estimate.
    """

    cycles: int
    bytes: int
    collectives: Mapping[str, Collective]
    places: tuple[Cost, ...]
    kernels: Kernels = Kernels()

    @property
    def link_bytes(self) -> int:
        """What a device receives from others of its slice, at most; of a sum twice: it is scattered, then gathered."""
        near = {kind: one.bytes for kind, one in self.collectives.items() if not kind.endswith(BETWEEN_SLICES)}
        return sum((2 if kind == "all-reduce" else 1) * size for kind, size in near.items())

    @property
    def network_bytes(self) -> int:
        """What a device receives from other slices."""
        return sum(one.bytes for kind, one in self.collectives.items() if kind.endswith(BETWEEN_SLICES))


def hlo_costs(program: Program) -> HloCosts:
    """The costs of a compiled program."""
    places: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    collectives: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    counted: set[tuple[str, str]] = set()
    kernels = Kernels()
    for instruction, computation, times in program.executed():
        cycles, size = instruction.estimated_cycles, _bytes_moved(instruction, computation, program)
        if cycles or size:
            total = places[place_of(instruction)]
            for i, amount in enumerate((cycles * times, size * times, times)):
                total[i] += amount
        if (kernel := _kernel(instruction)) and not cycles:
            flops, touched = kernel
            kernels = Kernels(kernels.times + times, kernels.flops + times * flops, kernels.bytes + times * touched)
        for kind, bytes_, channel in _communications(instruction, computation, program):
            if channel is None or (kind, channel) not in counted:
                counted.add((kind, channel or ""))
                collectives[kind][0] += times
                collectives[kind][1] += bytes_ * times
    costs = [Cost(place, *total) for place, total in places.items()]
    return HloCosts(
        cycles=sum(cost.cycles for cost in costs),
        bytes=sum(cost.bytes for cost in costs),
        collectives={kind: Collective(*total) for kind, total in sorted(collectives.items())},
        places=tuple(sorted(costs, key=lambda cost: (cost.cycles, cost.bytes), reverse=True)),
        kernels=kernels,
    )


def place_of(instruction: Instruction) -> str:
    """Where an operation comes from, such as ``backward transformer/blocks/attention/query/dot_general``.

    It is the path of JAX's name scopes without the names of transformations.
    """
    path = instruction.source.replace("\\", "")
    if instruction.opcode in ("copy", "copy-start") and re.fullmatch(r"\w+[.\[][^/]*", path):
        return f"copy of {path}"  # an argument in another layout
    if not path:
        return f"{re.sub(r'[.0-9]+$', '', instruction.name)}, added by the compiler"
    first, *rest = [
        word for word in _WORD.findall(path) if word not in _TRANSFORMATIONS and not word.startswith("branch_")
    ]
    words = [word.removeprefix("jit(").rstrip(")") if word.startswith("jit(") else word for word in rest]
    kept = [word for word in words if word and "(" not in word and "." not in word]
    when = "recomputed " if "rematted_computation" in path else "backward " if "transpose(jvp" in path else ""
    return when + ("/".join(kept) or first)


_WORD = re.compile(r"(?:[^/()]|\((?:[^()]|\([^()]*\))*\))+")  # slashes inside parentheses do not separate
_TRANSFORMATIONS = {
    "while",
    "body",
    "cond",
    "closed_call",
    "checkpoint",
    "rematted_computation",
    "layer",
    "shard_map",
    "vmap",
}


def _kernel(instruction: Instruction) -> tuple[int, int] | None:
    """FLOPs and bytes of a Pallas kernel, by the estimate that it was written with; zeros without one."""
    if 'custom_call_target="tpu_custom_call"' not in instruction.attributes:
        return None
    found = re.search(r'"cost_estimate":\{"flops":"(\d+)".*?"bytes_accessed":"(\d+)"', instruction.attributes)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _communications(
    instruction: Instruction, computation: Mapping[str, Instruction], program: Program
) -> list[tuple[str, int, str | None]]:
    """Kind, bytes and channel of the collectives that an instruction starts, by itself or inside a fusion."""
    if kind := _collective(instruction):
        return [(kind, _payload(kind, instruction, computation), instruction.channel)]
    transfer = re.search(r'megascale_transfer_type="(\w+)"', instruction.attributes)
    if instruction.opcode == "send" and transfer:
        name = transfer[1].lower().replace("_", "-") + BETWEEN_SLICES
        return [(name, _operand_bytes(instruction, computation), instruction.channel)]
    if instruction.opcode not in ("fusion", "async-start"):
        return []
    # The TPU compiler names a sum of which each device keeps a part.
    scatters = any(name.startswith("all-reduce-scatter") for name in instruction.called())
    found = []
    for inner, around in program.inside(instruction):
        if kind := _collective(inner):
            kind = "reduce-scatter" if scatters and kind == "all-reduce" else kind
            found.append((kind, _payload(kind, inner, around), inner.channel))
    return found


def _collective(instruction: Instruction) -> str | None:
    kind = instruction.opcode.removesuffix("-start")
    return kind if kind in COLLECTIVES else None


def _payload(kind: str, instruction: Instruction, computation: Mapping[str, Instruction]) -> int:
    operands = _operand_bytes(instruction, computation)
    if kind != "all-gather":
        return operands
    # The start of an asynchronous one returns its operands, too.
    return shape_bytes(instruction.shape) - (operands if instruction.opcode.endswith("-start") else 0)


def _operand_bytes(instruction: Instruction, computation: Mapping[str, Instruction]) -> int:
    return sum(shape_bytes(computation[name].shape) for name in instruction.operands if name in computation)


def _bytes_moved(instruction: Instruction, computation: Mapping[str, Instruction], program: Program) -> int:
    """Bytes of memory that an instruction reads and writes: of a slice, or where it updates a part, only that."""
    opcode = instruction.opcode
    if opcode in _FREE or opcode.endswith("-done") or _collective(instruction):
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


def _read_inside(value: Instruction, size: int, inside: Mapping[str, Instruction], program: Program) -> int:
    read = 0
    for user in inside.values():
        for number, name in enumerate(user.operands):
            if name == value.name:
                follow = user.opcode == "bitcast" or _IN_PLACE in user.attributes
                read += _read_inside(user, size, inside, program) if follow else _read_by(user, number, size, program)
    return min(read, size)


def _written(instruction: Instruction, computation: Mapping[str, Instruction], program: Program) -> int:
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
