"""Figures of many runs: learning-rate curves, and a search from the command line to its result."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from benchmarks.contest import measure, ratio, require_same_size, seconds_of
from benchmarks.row import Row, unavailable
from benchmarks.setting import Setting, sized

# A curve: network, side of its images, steps of a run, bound.
CURVES: dict[str, list[tuple[str, int, int, float]]] = {
    "ResMLP": [
        ("ResMLP 128x16", 8, 1000, 4.0),
        ("ResMLP 128x16", 32, 1000, 3.0),
        ("ResMLP 32x16", 8, 2000, 8.0),
        ("ResMLP 32x16", 32, 2000, 8.0),
    ],
    "SimpleResNet": [("SimpleResNet 32x6", 32, 150, 1.5)],
    "ViT": [("ViT 64x4", 16, 100, 1.5)],
}


def curve_res_mlp(setting: Setting) -> Iterator[Row]:
    """A curve of ResMLP."""
    yield from _curves(setting, "ResMLP", "fused")


def curve_simple_resnet(setting: Setting) -> Iterator[Row]:
    """A curve of SimpleResNet."""
    yield from _curves(setting, "SimpleResNet", "channels_last")


def curve_vit(setting: Setting) -> Iterator[Row]:
    """A curve of a ViT."""
    yield from _curves(setting, "ViT", "fused")


def _curves(setting: Setting, kind: str, mode: str) -> Iterator[Row]:
    """Learning rates x seeds, against the same runs in PyTorch one after another."""
    title, quick = "a curve, PyTorch + mup / ours", setting.quick
    for network, side, steps, bar in [(f"{kind} 8x4", 8, 3, 0.0)] if quick else CURVES[kind]:
        args: dict[str, Any] = {
            "model": sized(network),
            "rates": [1e-4 * 2**i for i in range(2 if quick else 8)],
            "seeds": 1 if quick else 4,
            "steps": steps,
            "batch": 64,
            "side": side,
            "examples": 100 if quick else 10_000,
            "tests": 64 if quick else 500,
        }
        ours = [setting.jax(stack.name, "curve", stack.name, stack, **args) for stack in setting.stacks]
        theirs = setting.torch("PyTorch", "curve", measured=1 if quick else 4, **args)
        measured = measure([*ours, theirs], setting.rounds, warm=False)
        if "PyTorch" not in measured:
            yield unavailable(title, f"{setting.python} cannot run PyTorch and mup")
            continue
        require_same_size(network, measured)
        seconds = seconds_of(measured)
        runs = f"{len(args['rates'])} rates x {args['seeds']} seeds x {steps} steps"
        for stack in setting.stacks:
            yield Row(
                title,
                f"{network}, {side}x{side} pixels, {runs}",
                f"one after another, {mode}",
                ratio(measured, "PyTorch", stack.name),
                bar,
                at_most=False,
                note=f"{seconds[stack.name]['median']:.0f} s with compilation",
                seconds=seconds,
                stack=stack.name,
            )


def search(setting: Setting) -> Iterator[Row]:
    """``depthmup tune`` from the command line to its result, against the same runs in a script with PyTorch and mup."""
    title = "a search, whole process, PyTorch + mup / ours"
    network = "SimpleResNet 16x4" if setting.quick else "SimpleResNet 32x6"
    args: dict[str, Any] = {
        "model": sized(network),
        "rate": 2.0**-8,
        "octaves": 1 if setting.quick else 2,
        "seeds": 1 if setting.quick else 3,
        "steps": 3 if setting.quick else 200,
        "batch": 8 if setting.quick else 64,
        "side": 8 if setting.quick else 32,
        "examples": 64 if setting.quick else 5000,
    }
    rates = 2 * args["octaves"] + 1
    runs = None if setting.quick else rates * args["seeds"]
    tune = "benchmarks.starts:tune"
    ours = [setting.ours(stack.name, tune, stack.name, stack, runs=runs, **args) for stack in setting.stacks]
    theirs = setting.torch("PyTorch", "search", **args)
    theirs = dataclasses.replace(theirs, make="benchmarks.starts:torch_search")
    measured = measure([*ours, theirs], setting.rounds, warm=False)
    if "PyTorch" not in measured:
        yield unavailable(title, f"{setting.python} cannot run PyTorch and mup")
        return
    require_same_size(network, measured)
    seconds, side = seconds_of(measured), args["side"]
    for stack in setting.stacks:
        yield Row(
            title,
            f"{network}, {side}x{side} pixels, {rates} rates x {args['seeds']} seeds x {args['steps']} steps",
            "one after another, channels_last",
            ratio(measured, "PyTorch", stack.name),
            2.0,
            at_most=False,
            note=f"{seconds[stack.name]['median']:.0f} of {seconds['PyTorch']['median']:.0f} s",
            seconds=seconds,
            stack=stack.name,
        )
