"""A lower bound of the time that one GPU takes for a compiled program, kernel by kernel.

A kernel takes the longer of its bytes at the bandwidth that copies reach and its products at the speed that large
products reach, and its launch. Not seen are caches, the library kernels' own efficiency, and the host.

References:
  Williams, Waterman, Patterson, Roofline, Communications of the ACM 52 (2009).
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections import defaultdict

import jax

from benchmarks.gpu.hlo import FREE, Computation, Instruction, Program, array_sizes, bytes_moved, parse

# Measured on one H200 with jax 0.11.2, against the data sheet: a copy reaches 4.3 of 4.8 TB/s; products of 8192 reach
# 698 of 989 TFLOP/s in bfloat16, 392 in TF32, 51 in float32. The launch is assumed.
BANDWIDTH_REACHED = 0.9
PRODUCTS_REACHED, IN_TF32, IN_FLOAT32 = 0.7, 0.39, 0.051
LAUNCH = 2e-6  # seconds


@dataclasses.dataclass(frozen=True)
class Peaks:
    """The peaks of a GPU: FLOP/s of bfloat16 products, and bytes/s of its memory (NVIDIA's data sheets, SXM, dense)."""

    flops: float
    memory_bandwidth: float


H100, H200 = Peaks(989e12, 3352e9), Peaks(989e12, 4800e9)

# Estimated (jax 0.10.2) | measured there (0.11.2), ms: ViT-S/16, batch 256, a loop 57.1 | 64.1, unrolled 37.5 | 45.6;
# ViT-B/16, batch 128, 67.1 | 72.6; GPT-2, 16 x 1024 tokens, in a loop 98.2 | 101.5, unrolled 65.8 | 75.1; ResNet-18,
# batch 256, 10.4 | 17.4; 27 lanes of ResMLP 128x128, 5.4 | 5.8. Later defaults: ViT-S 18.1 | 27, GPT-2 29.4 | 38.5,
# ResNet-18 8.97 | 16.1.

_CONTAINERS = ("call", "conditional", "async-start")  # what they run is counted instead


@dataclasses.dataclass(frozen=True)
class KernelKind:
    """All kernels of one kind in a call of a program, or in a step.

    Attributes:
      name: XLA's, such as ``input_reduce_fusion`` or ``cublas lt matmul``.
      seconds: at least.
      flops: of products.
    """

    name: str
    times: int
    bytes: int
    flops: int
    seconds: float


def step_kernels(compiled: jax.stages.Compiled, peaks: Peaks) -> tuple[KernelKind, ...]:
    """`kernel_kinds` of a compiled program."""
    return kernel_kinds(parse(compiled.as_text() or ""), peaks)


def kernel_kinds(program: Program, peaks: Peaks) -> tuple[KernelKind, ...]:
    """The kernels of a program for GPUs by kind, the longest first; communication is not among them.

    Of a program that takes several steps in a call, they are those of a step, without those of the call.
    """
    totals: dict[str, list[float]] = defaultdict(lambda: [0, 0, 0, 0.0])
    of_call = program.computations[program.entry] if program.takes_steps else None
    for one, computation, times in program.executed():
        if computation is of_call:
            continue
        if one.opcode in (*FREE, *_CONTAINERS) or one.opcode.endswith("-done") or one.collective:
            continue
        moved, products = bytes_moved(one, computation, program), _products(one, computation, program)
        computing = sum(flops / _speed(product, around, peaks) for product, around, flops in products)
        seconds = max(moved / (BANDWIDTH_REACHED * peaks.memory_bandwidth), computing) + LAUNCH
        total = totals[_kind(one)]
        for i, amount in enumerate((1, moved, sum(flops for *_, flops in products), seconds)):
            total[i] += times * amount
    kinds = [KernelKind(name, int(n), int(size), int(flops), t) for name, (n, size, flops, t) in totals.items()]
    return tuple(sorted(kinds, key=lambda kind: kind.seconds, reverse=True))


def _kind(kernel: Instruction) -> str:
    if target := re.search(r'custom_call_target="([^"]*)"', kernel.attributes):
        return target[1].strip("_").replace("$", " ")
    return re.sub(r"[.\d]+$", "", kernel.name) if kernel.opcode == "fusion" else kernel.opcode


def _products(
    kernel: Instruction, computation: Computation, program: Program
) -> list[tuple[Instruction, Computation, int]]:
    """The products of a kernel, each with its computation and its FLOP."""
    inside = program.inside(kernel) if kernel.opcode == "fusion" else ()
    found = [(one, around, product_flops(one, around)) for one, around in ((kernel, computation), *inside)]
    return [product for product in found if product[2]]


def _speed(product: Instruction, computation: Computation, peaks: Peaks) -> float:
    """FLOP/s of a product, by the dtype of its first operand and by its precision."""
    if not computation[product.operands[0]].shape.startswith(("f32", "f64")):
        return PRODUCTS_REACHED * peaks.flops
    exact = re.search(r"operand_precision\W+(HIGHEST|highest)", product.attributes)
    return (IN_FLOAT32 if exact else IN_TF32) * peaks.flops


def product_flops(one: Instruction, computation: Computation) -> int:
    """FLOP of a product, a convolution or an attention; 0 for other instructions."""
    if one.opcode == "dot" or "__cublas" in one.attributes:
        return _of_matrices(one, computation)
    if one.opcode == "convolution" or "__cudnn$conv" in one.attributes:
        return _of_convolution(one, computation)
    return _of_attention(one, computation) if "__cudnn$fmha" in one.attributes else 0


def _of_matrices(one: Instruction, computation: Computation) -> int:
    contracted = re.search(r'lhs_contracting_dim(?:ension)?s"?[=:][{\[]([^}\]]*)', one.attributes)
    left = array_sizes(computation[one.operands[0]].shape)[0]
    over = math.prod(left[int(axis)] for axis in re.findall(r"\d+", contracted[1])) if contracted else 1
    return 2 * math.prod(array_sizes(one.shape)[0]) * over


def _of_convolution(one: Instruction, computation: Computation) -> int:
    """Every output adds up the kernel's entries that lead to its channel; gradients have the same products."""
    first, second = (array_sizes(computation[name].shape)[0] for name in one.operands[:2])
    result = array_sizes(one.shape)[0]
    outputs, kernel = result, second
    if "convBackwardInput" in one.attributes:
        outputs, kernel = first, second
    if "convBackwardFilter" in one.attributes:
        outputs, kernel = second, result
    labels = re.search(r"dim_labels=\w+_(\w+)->", one.attributes)
    channels = kernel[labels[1].index("o")] if labels else 1
    return 2 * math.prod(outputs) * math.prod(kernel) // channels


def _of_attention(one: Instruction, computation: Computation) -> int:
    """Two products of the size of the logits times a head's dimension, backward five; half if causal."""
    logits = re.search(r'"intermediate_tensor_shape".*?"dimensions": ?\[([^\]]*)\]', one.attributes)
    size = math.prod(map(int, re.findall(r"\d+", logits[1]))) if logits else 0
    head = array_sizes(computation[one.operands[0]].shape)[0][-1]
    products = 5 if "fmhaSoftmaxBackward" in one.attributes else 2
    return 2 * size * head * products // (2 if "CAUSAL" in one.attributes else 1)
