"""The figures: each is a function that yields rows of ratios to a named alternative, with their bounds.

Those in `TOGETHER` measure all stacks of a setting in one contest; the others measure its first stack.
"""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.contest import Contender, Unavailable, fastest, measure, ratio, require_same_size, seconds_of, spread
from benchmarks.curves import curve_res_mlp, curve_simple_resnet, curve_vit, search
from benchmarks.row import Row, unavailable
from benchmarks.setting import Model, Setting, sized, with_base
from depthmup_flax.util.power_fits import fit_power


def parametrization(setting: Setting) -> Iterator[Row]:
    """A step with the rule against the same network with Optax alone, and against plain Flax."""
    title = "cost of the rule: step with / without"
    for name, model in setting.networks("ResMLP 256x64", "ViT 128x6", "SimpleResNet 128x12").items():
        args: dict[str, Any] = {"model": model, "batch": setting.batch(name), "seconds": setting.seconds}
        rules = ["on", "off", *(["plain"] if model["name"] != "resnet" else [])]
        contenders = [setting.jax(rule, "train_step", rule=rule, **args) for rule in rules]
        measured = measure(contenders, 3 * setting.rounds)
        yield Row(
            title, name, "no multipliers, optax.adam", ratio(measured, "on", "off"), 1.02, seconds=seconds_of(measured)
        )
        if "plain" in rules:
            note = "its convolutions are not scanned" if model["name"] == "simple_resnet" else ""
            yield Row(title, name, "the network written in plain Flax", ratio(measured, "on", "plain"), note=note)


def set_up(setting: Setting) -> Iterator[Row]:
    """Init, trace and compile at depth 1024 against depth 8."""
    low, high = (4, 8) if setting.quick else (8, 1024)
    sizes = {"res_mlp": 64, "vit": 32, "simple_resnet": 64}
    for name, width in sizes.items():
        fields = {"name": name, "width": 16 if setting.quick else width}
        if name == "vit":
            fields |= {"patch_size": 8, **WAYS["scanned, remat=dots"]}  # at both depths
        shallow, deep = (with_base({**fields, "depth": depth}) for depth in (low, high))
        contenders = [
            setting.jax(kind, "set_up", model=model) for kind, model in (("shallow", shallow), ("deep", deep))
        ]
        measured = measure(contenders, setting.rounds, warm=False)
        case = f"{name} width {fields['width']}"
        yield Row(
            f"set-up, depth {high} / {low}",
            case,
            f"depth {low}",
            ratio(measured, "deep", "shallow"),
            1.5,
            seconds=seconds_of(measured),
        )


# Ways to run a network: a scan, a scan that recomputes all but products in the backward pass, and a loop over blocks.
WAYS: dict[str, Model] = {
    "scanned": {"remat": "none"},
    "scanned, remat=dots": {"remat": "dots"},
    "unrolled": {"scan": False, "remat": "none"},
}


def scanned(setting: Setting) -> Iterator[Row]:
    """The scanned network against the unrolled one."""
    for name, model in setting.networks("ResMLP 256x8", "ResMLP 256x64", "ViT 128x6", "SimpleResNet 128x12").items():
        args: dict[str, Any] = {"batch": setting.batch(name), "seconds": setting.seconds}
        contenders = [setting.jax(way, "train_step", model={**model, **fields}, **args) for way, fields in WAYS.items()]
        measured = measure(contenders, setting.rounds)
        for way in ("scanned", "scanned, remat=dots"):
            value = ratio(measured, way, "unrolled")
            yield Row(f"step, {way} / unrolled", name, "scan=False", value, 1.1, seconds=seconds_of(measured))


def muon(setting: Setting) -> Iterator[Row]:
    """A step with Muon against one with Adam: Newton-Schulz costs the same for any batch."""
    for name, model in setting.networks("ResMLP 256x8", "ViT 128x6").items():
        for batch in (setting.batch(name), 8 * setting.batch(name)):
            args: dict[str, Any] = {"model": model, "batch": batch, "seconds": setting.seconds}
            contenders = [setting.jax(one, "train_step", optimizer=one, **args) for one in ("muon", "adam")]
            measured = measure(contenders, setting.rounds)
            value = ratio(measured, "muon", "adam")
            yield Row("step, Muon / Adam", f"{name}, batch {batch}", "dm.adamw", value, seconds=seconds_of(measured))


def features(setting: Setting) -> Iterator[Row]:
    """Features for CPUs: a step without each against a step with it."""
    title = "step on CPU, without / with"
    features = {
        "conv": ("JAX's convolutions and their gradients", ("SimpleResNet 128x6",)),
    }
    for feature, (alternative, names) in features.items():
        for name, model in setting.networks(*names).items():
            batch = setting.batch(name) // (4 if feature == "conv" else 1)  # a step takes seconds
            args = {"model": model, "batch": batch, "seconds": setting.seconds}
            contenders = [
                setting.jax(kind, "train_step", kind, without=feature if kind == "without" else "", **args)
                for kind in ("with", "without")
            ]
            measured = measure(contenders, setting.rounds)
            yield Row(title, name, alternative, ratio(measured, "without", "with"), seconds=seconds_of(measured))


STEP_BARS = {"res_mlp": 1.3, "vit": 0.9, "simple_resnet": 0.8, "resnet": 0.8}


def against_torch(setting: Setting) -> Iterator[Row]:
    """A training step: the fastest of PyTorch's modes against the fastest of ours."""
    names = ["ResMLP 256x64", "SimpleResNet 128x12", "ResNet-18", "ViT 128x6"]
    # One core compares the programs; all cores also compare how they are distributed.
    for cores in (1, 0):
        for name, model in setting.networks(*names).items():
            yield from _against_torch(setting, name, model, cores)


def _against_torch(setting: Setting, name: str, model: Model, cores: int) -> Iterator[Row]:
    title = "step, PyTorch + mup / ours"
    args = {"batch": setting.batch(name), "seconds": setting.seconds}
    ours = {
        (stack, way): setting.jax(process := f"{stack.name}, {way}", "train_step", process, stack, model=fields, **args)
        for stack in setting.stacks
        for way, fields in ((way, {**model, **fields}) for way, fields in WAYS.items())
    }
    convolves = model["name"] in ("simple_resnet", "resnet")
    modes = ["eager", "fused", "compile", *(["channels_last"] if convolves else [])]
    theirs = [setting.torch(mode, "train_step", model=model, mode=mode, **args) for mode in modes]
    contenders = [dataclasses.replace(one, cores=cores) for one in (*ours.values(), *theirs)]
    measured = measure(contenders, setting.rounds)
    require_same_size(name, measured)
    modes = [mode for mode in modes if mode in measured]
    if not modes:
        yield unavailable(title, f"{setting.python} runs none of its modes")
        return
    mode = fastest(measured, modes)
    for stack in setting.stacks:
        way = fastest(measured, [f"{stack.name}, {way}" for way in WAYS])
        yield Row(
            title,
            f"{name}, one core" if cores else name,
            f"PyTorch, {mode}",
            ratio(measured, mode, way),
            STEP_BARS[model["name"]],
            at_most=False,
            note=way.removeprefix(f"{stack.name}, "),
            seconds=seconds_of(measured),
            stack=stack.name,
        )


def achieved(setting: Setting) -> Iterator[Row]:
    """FLOP/s of lanes at width 512 against a matrix product."""
    width, lanes, size = (16, (1, 2), 64) if setting.quick else (512, (1, 4), 2048)
    kinds: dict[str, Model] = {"res_mlp": {"depth": 16}, "vit": {"depth": 6, "patch_size": 8}}
    for name, fields in kinds.items():
        model = {"name": name, "width": width, **fields, "dtype": "float32"}
        steps = [
            setting.jax(
                f"{k} lanes", "lanes_step", f"lanes{k}", model=model, batch=64, lanes=k, seconds=setting.seconds
            )
            for k in lanes
        ]
        peak = setting.jax("peak", "matrix_product", "peak", size=size, dtype="float32", seconds=setting.seconds)
        measured = measure([*steps, peak], setting.rounds)
        speed = {k: [one["flops"] / one["seconds"] for one in rounds] for k, rounds in measured.items()}
        for step in steps:
            share = [mine / best for mine, best in zip(speed[step.name], speed["peak"], strict=True)]
            note = f"{np.median(speed[step.name]) / 1e12:.3g} of {np.median(speed['peak']) / 1e12:.3g} TFLOP/s"
            yield Row(
                "FLOP/s of a step / of a matrix product",
                f"{name} {width}x{fields['depth']}, {step.name}",
                f"{size} x {size}, float32",
                spread(share),
                unit="",
                note=note,
            )


def input_share(setting: Setting) -> Iterator[Row]:
    """Share of a CIFAR step that gathering and augmenting the batch takes."""
    names = ("ResNet-18", "ResNet-18, width 16", "SimpleResNet 128x12")
    for name, model in setting.networks(*names).items():
        args: dict[str, Any] = {"model": model, "batch": setting.batch(name), "seconds": setting.seconds}
        measured = measure(
            [setting.jax(data, "train_step", data=data, **args) for data in ("ready", "cifar")], setting.rounds
        )
        pairs = zip(measured["ready"], measured["cifar"], strict=True)
        shares = [1 - ready["seconds"] / whole["seconds"] for ready, whole in pairs]
        yield Row(
            "input and augmentation, share of a step",
            name,
            "a batch that is ready",
            spread(shares),
            0.1,
            unit="",
            seconds=seconds_of(measured),
        )


def host(setting: Setting) -> Iterator[Row]:
    """The host's share of a step of train.py, and what several steps in a call save."""
    from depthmup_flax.trainer.engine import program as programs

    for name, side in (("ResMLP 64x8", 8), ("ResMLP 128x16", 32)):
        model, most = sized("ResMLP 8x4" if setting.quick else name), programs.MOST_STEPS
        args: dict[str, Any] = {"model": model, "batch": 64, "side": side, "seconds": setting.seconds}
        ways = {"single": (1, True), "calls": (most, True), "device": (most, False)}
        contenders = [
            setting.jax(way, "loop_step", way, most=steps, host=host, **args) for way, (steps, host) in ways.items()
        ]
        measured = measure(contenders, setting.rounds)
        seconds = seconds_of(measured)
        case, times = f"{name}, {side}x{side} pixels", {way: 1e6 * one["median"] for way, one in seconds.items()}
        note = f"{times['single']:.0f} and {times['calls']:.0f} us"
        value = ratio(measured, "single", "calls")
        yield Row(
            f"step of train.py, single / {most} in a call", case, "single steps", value, note=note, seconds=seconds
        )
        for way in ("single", "calls"):
            pairs = zip(measured[way], measured["device"], strict=True)
            share = spread([1 - device["seconds"] / whole["seconds"] for whole, device in pairs])
            note = f"{times[way] - times['device']:.0f} us a step"
            title = f"host's share of a step of train.py, {'single steps' if way == 'single' else f'{most} in a call'}"
            yield Row(title, case, "the same program alone", share, unit="", note=note, seconds=seconds)


def streaming(setting: Setting) -> Iterator[Row]:
    """Images per second on one core, with random resized crops, against other readers of the same files."""
    from benchmarks import streams

    with streams.image_folder(setting.images, 16 if setting.quick else 512) as folder:
        args = {
            "folder": folder,
            "size": 32 if setting.quick else 224,
            "batch": 8 if setting.quick else 64,
            "seconds": 0.1 if setting.quick else 4.0,
        }
        ours = dataclasses.replace(setting.ours("ours", "benchmarks.streams:ours", **args), cores=1)
        for name, function, options in (
            ("DataLoader", "data_loader", {}),
            ("tf.data, antialiased", "tf_data", {"same_pixels": True}),
            ("tf.data, not antialiased", "tf_data", {}),
        ):
            make = f"benchmarks.streams:{function}"
            other = Contender(name, make, {**args, **options}, python=setting.python, cores=1)
            try:
                measured = measure([ours, other], setting.rounds)
            except Unavailable:
                yield unavailable(f"images/s of a core, ours / {name}", f"{setting.python} cannot run it")
                continue
            speed = spread([1 / one["seconds"] for one in measured["ours"]])
            yield Row(
                "images/s of a core, ours / theirs",
                f"{args['size']} px from JPEG",
                name,
                ratio(measured, name, "ours"),
                1.0,
                at_most=False,
                note=f"ours {speed['median']:.0f}/s",
                seconds=seconds_of(measured),
            )


def memory(setting: Setting) -> Iterator[Row]:
    """Temporary memory and time of a step with and without remat, at depth 256."""
    depth = 8 if setting.quick else 256
    models: dict[str, Model] = {
        "ResMLP 256": {"name": "res_mlp", "width": 256},
        "ViT 64": {"name": "vit", "width": 64, "patch_size": 8},
        "SimpleResNet 64": {"name": "simple_resnet", "width": 64},
    }
    for name, fields in models.items():
        model = with_base({**fields, "depth": depth})
        contenders = [
            setting.jax(
                remat,
                "train_step",
                model={**model, "remat": remat},
                batch=setting.batch(name) // 4,
                seconds=setting.seconds,
            )
            for remat in ("none", "dots", "full")
        ]
        measured = measure(contenders, setting.rounds)
        bytes_of = {remat: rounds[0]["temporary_bytes"] for remat, rounds in measured.items()}
        for remat in ("dots", "full"):
            price = ratio(measured, remat, "none")
            yield Row(
                f"memory of a step, remat={remat} / none",
                f"{name}x{depth}",
                "remat=none",
                spread([bytes_of[remat] / bytes_of["none"]]),
                note=f"{bytes_of[remat] / 1e6:.0f} of {bytes_of['none'] / 1e6:.0f} MB, "
                f"step time x {price['median']:.2f} ({price['low']:.2f}-{price['high']:.2f})",
                seconds=seconds_of(measured),
            )


def restart(setting: Setting) -> Iterator[Row]:
    """Time from the command to its first step, with and without the compilation cache of an earlier start."""
    cases = {
        "ResNet-34, 32 px": ["resnet", "--config.model.depth=16"],
        "ViT 192x12, 32 px": ["vit", "--config.model.patch_size=4"],
    }
    for name, fields in cases.items():
        both = setting.ours("starts", "benchmarks.starts:first_step", fields=fields)
        rounds = measure([both], 1 if setting.quick else setting.rounds, warm=False)["starts"]
        seconds = {kind: spread([one[kind] for one in rounds]) for kind in ("cold", "again")}
        value = spread([one["again"] / one["cold"] for one in rounds])
        note = f"{seconds['again']['median']:.1f} of {seconds['cold']['median']:.1f} s"
        yield Row(
            "start to first step, restart / cold", name, "nothing compiled", value, 0.3, note=note, seconds=seconds
        )


# What a network of one's own imports, and the first use of every public name, of the report and checkpoints, too.
_IMPORTED = {
    "a network and its optimizer": ("from depthmup_flax import Dense, Readout, ResidualBranch, adamw, audit", 1.1),
    "every public name": ("from depthmup_flax import *", None),
}


def importing(setting: Setting) -> Iterator[Row]:
    """Importing this package, in a new process, against its three foundations."""
    statements = {"theirs": "import jax, flax, optax", **{case: code for case, (code, _) in _IMPORTED.items()}}
    contenders = [
        setting.ours(name, "benchmarks.starts:importing", "starts", statement=code) for name, code in statements.items()
    ]
    measured = measure(contenders, 1 if setting.quick else 3 * setting.rounds)
    seconds = seconds_of(measured)
    for case, (_, bar) in _IMPORTED.items():
        note = f"{seconds[case]['median']:.2f} s"
        value = ratio(measured, case, "theirs")
        yield Row("import depthmup_flax", case, "import jax, flax, optax", value, bar, note=note, seconds=seconds)


def growth(setting: Setting) -> Iterator[Row]:
    """Exponents of step time and memory in the network's FLOPs."""
    tiny = setting.quick
    base: dict[str, dict[str, Any]] = {
        "ResMLP": {"name": "res_mlp", "width": 128, "depth": 16},
        "ViT": {"name": "vit", "width": 64, "depth": 4, "patch_size": 8, **WAYS["scanned, remat=dots"]},
        "SimpleResNet": {"name": "simple_resnet", "width": 64, "depth": 8},
    }
    for (name, fields), axis in itertools.product(base.items(), ("depth", "width")):
        factors = (1, 4, 16) if axis == "depth" and not tiny else (1, 2, 4)
        models = [{**fields, axis: fields[axis] * factor} for factor in factors]
        contenders = [
            setting.jax(str(factor), "train_step", model=model, batch=16, seconds=setting.seconds)
            for factor, model in zip(factors, models, strict=True)
        ]
        yield from _exponents(f"{name}, {axis} {models[0][axis]}-{models[-1][axis]}", contenders, setting)
    model = {"name": "res_mlp", "width": 16 if tiny else 128, "depth": 4 if tiny else 16}
    contenders = [
        setting.jax(str(k), "lanes_step", model=model, batch=16, lanes=k, seconds=setting.seconds)
        for k in ((1, 2, 3) if tiny else (1, 4, 16))
    ]
    yield from _exponents(
        f"ResMLP {model['width']}x{model['depth']}, lanes {contenders[0].name}-{contenders[-1].name}",
        contenders,
        setting,
    )


def _exponents(case: str, contenders: list[Contender], setting: Setting) -> Iterator[Row]:
    measured = measure(contenders, setting.rounds)
    flops = [measured[c.name][0]["flops"] for c in contenders]
    rounds = len(next(iter(measured.values())))
    times = [_exponent(flops, [measured[c.name][i]["seconds"] for c in contenders]) for i in range(rounds)]
    size = _exponent(flops, [measured[c.name][0]["temporary_bytes"] for c in contenders])
    ends = [np.median([one["seconds"] for one in measured[c.name]]) for c in (contenders[0], contenders[-1])]
    note = f"{1e3 * ends[0]:.3g} to {1e3 * ends[1]:.3g} ms; temporary memory ~ FLOPs^{size:.2f}"
    yield Row(
        "growth: exponent of step time in FLOPs",
        case,
        "1",
        spread(times),
        unit="",
        note=note,
        seconds=seconds_of(measured),
    )


def _exponent(sizes: list[int], values: list[float]) -> float:
    return fit_power({size: [value] for size, value in zip(sizes, values, strict=True)}).slope


FIGURES: dict[str, Callable[[Setting], Iterator[Row]]] = {
    function.__name__: function
    for function in (
        parametrization,
        set_up,
        scanned,
        muon,
        features,
        against_torch,
        curve_res_mlp,
        curve_simple_resnet,
        curve_vit,
        search,
        achieved,
        input_share,
        host,
        streaming,
        memory,
        restart,
        importing,
        growth,
    )
}
TOGETHER = frozenset({"against_torch", "curve_res_mlp", "curve_simple_resnet", "curve_vit", "search"})
RESULTS = pathlib.Path(__file__).parent / "results"
