"""A plan as text for one screen, and as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

from depthmup_flax.plan.estimate import Memory, Plan, Seconds
from depthmup_flax.plan.roofline import CALIBRATION, KernelKind
from depthmup_flax.util.types import Json

_GIB = 2**30
_LONGEST = 5
_MOST_KINDS = 8


def text(plan: Plan, remedies: Sequence[str] = ()) -> str:
    """The lines of a plan, with settings that would make it fit."""
    rows = [
        ("model", f"{plan.model}, {plan.parameters:,} parameters"),
        ("data", plan.data),
        ("devices", _devices(plan)),
        ({True: "fits", False: "TOO BIG", None: "memory"}[plan.memory.fits], memory_line(plan.memory)),
        *[("to fit" * (i == 0), remedy) for i, remedy in enumerate(remedies)],
        *_time_rows(plan),
    ]
    if plan.collectives:
        sums = "; ".join(
            f"{kind} {one.times} times, {one.bytes / 2**20:,.1f} MiB" for kind, one in plan.collectives.items()
        )
        rows.append(("sums", sums))
    if plan.seconds and plan.kernels.times:
        at_peak = f"{_ms(plan.seconds.kernels)} at peak, included above"
        rows.append(("kernels", f"{plan.kernels.times} times, of which the compiler estimates no time; {at_peak}"))
    if plan.kinds:
        rows += [("kernels" * (i == 0), line) for i, line in enumerate(_kernel_rows(plan.kinds))]
    elif plan.seconds:
        rows += [("longest" * (i == 0), line) for i, line in enumerate(_longest(plan, plan.seconds))]
    rows.append(("compiled", f"in {plan.compile_s:.0f} s. {_caveat(plan)}".rstrip()))
    return "\n".join(f"{name:<9} {line}" for name, line in rows)


def as_json(plan: Plan) -> Json:
    """A plan as JSON, in bytes and seconds, with the longest operations."""
    tree = dataclasses.asdict(dataclasses.replace(plan, longest=plan.longest[:_LONGEST]))
    tree["memory"] |= {"total": plan.memory.total, "fits": plan.memory.fits}
    return json.loads(json.dumps(tree))


def memory_line(memory: Memory) -> str:
    """``5.1 of 15.8 GiB a device: parameters 0.1, ...``."""
    scale, unit = _scale(memory.total)
    show = lambda size, scale=scale: f"{size / scale:.2f}" if size < 9.995 * scale else f"{size / scale:,.1f}"
    limit, inside = f" {unit}", ""
    if memory.limit is not None:
        limit_scale, limit_unit = _scale(memory.limit)
        limit = f" of {show(memory.limit, limit_scale)} {limit_unit}"
        if unit != limit_unit:
            limit, inside = f" {unit}{limit}", f" {unit}"
    parts = ", ".join(
        f"{kind} {show(getattr(memory, kind))}" for kind in ("parameters", "optimizer", "data", "temporaries")
    )
    excess = f"; {show(memory.total - (memory.limit or 0))} {unit} too much" if memory.fits is False else ""
    return f"{show(memory.total)}{limit} a device: {parts}{inside}{excess}"


def _scale(size: int) -> tuple[int, str]:
    return (_GIB, "GiB") if size >= _GIB / 4 else (2**20, "MiB")


def duration(seconds: float) -> str:
    """``1 h 29 min``, ``2 min 5 s`` or ``3.1 s``."""
    if seconds < 60:
        return f"{seconds:.2g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (rest, "s")]
    first = next(i for i, (count, _) in enumerate(parts) if count)
    return " ".join(f"{count} {unit}" for count, unit in parts[first : first + 2] if count)


def _devices(plan: Plan) -> str:
    axes = ", ".join(f"{axis} {size}" for axis, size in plan.mesh.items() if size > 1) or "one device"
    lanes = ""
    if plan.lanes:
        group, each = plan.lanes, plan.lanes.per_device
        lanes = f"; {each} run(s) at a time on each, of {group.runs} with {group.label}"
    return f"{plan.devices} {plan.device_kind}; mesh {axes}; batch {plan.batch_size}{lanes}"


def _time_rows(plan: Plan) -> list[tuple[str, str]]:
    seconds = plan.seconds
    if seconds is None and not plan.gflops:
        return []
    if seconds is None:
        amount = f"{plan.gflops:,.0f}" if plan.gflops >= 100 else f"{plan.gflops:.2g}"
        return [("products", f"{amount} GFLOP a step on each device")]
    bound = "" if seconds.by_compiler else "at least "
    runs = f"the group's {plan.lanes.runs} runs" if plan.lanes else "the run"
    rate, share = plan.units_per_step / seconds.step, seconds.products / seconds.step
    total = duration(plan.steps * seconds.step)
    step = f"{bound}{_ms(seconds.step)}, {rate:,.0f} {plan.unit}/s; {plan.steps:,} steps for {runs}: {bound}{total}"
    parts = f"computation {_ms(seconds.computation)}, communication {_ms(seconds.communication)} if nothing overlaps"
    peaks = f"at peak, products alone {_ms(seconds.products)} ({share:.0%} of the step), memory {_ms(seconds.memory)}"
    return [("step", step), ("", parts), ("", peaks)]


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms" if seconds >= 1e-6 or not seconds else "under 0.001 ms"


def _longest(plan: Plan, seconds: Seconds) -> list[str]:
    weights = [cost.cycles if seconds.by_compiler else cost.bytes for cost in plan.longest]
    whole, estimated, lines = sum(weights), seconds.computation - seconds.by_compiler * seconds.kernels, []
    for cost, weight in list(zip(plan.longest, weights, strict=True))[:_LONGEST]:
        share, times = weight / whole, f", {cost.times} times" if cost.times > 1 else ""
        lines.append(f"{_ms(share * estimated):<8} ({share:.0%})  {cost.place}{times}")
    return lines


def _kernel_rows(kinds: Sequence[KernelKind]) -> list[str]:
    """The kinds of a GPU's kernels that take longest, and all together."""
    rows, whole = [*kinds[:_MOST_KINDS]], _total("all", kinds)
    if others := kinds[_MOST_KINDS:]:
        rows.append(_total(f"{len(others)} other kinds", others))
    scale, unit = (1e9, "GB") if whole.bytes >= 1e9 else (1e6, "MB")
    lines = [f"{'kind':<40} {'number':>7} {unit:>8} {'ms, at least':>13}"]
    for kind in (*rows, whole):
        lines.append(f"{kind.name:<40} {kind.times:>7,} {kind.bytes / scale:>8.2f} {1e3 * kind.seconds:>13.3f}")
    return lines


def _total(name: str, kinds: Sequence[KernelKind]) -> KernelKind:
    sums = (sum(getattr(kind, field) for kind in kinds) for field in ("times", "bytes", "flops", "seconds"))
    return KernelKind(name, *sums)


def _caveat(plan: Plan) -> str:
    if plan.seconds is None:
        return "No time is estimated: the peaks of this device are not known." if plan.memory.fits is not False else ""
    if plan.seconds.by_compiler:
        return "Times are the TPU compiler's own estimates, never calibrated against a chip: compare plans by them."
    return CALIBRATION
