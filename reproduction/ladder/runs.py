"""Ten registered targets: `predict` climbs their ladders and writes predictions, `check` trains the targets.

    python -m reproduction.ladder.runs predict [--budget=1] [NAME ...]
    python -m reproduction.ladder.runs check [--budget=1] [NAME ...]

Both resume. Predictions are committed before `check` is run (registration.md). Runs are kept below ./runs/ladder.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from depthmup_flax.config.fields import set_size
from depthmup_flax.search.ladder.climb import climb
from depthmup_flax.search.ladder.law import Search as Found
from depthmup_flax.search.ladder.law import Size
from depthmup_flax.search.ladder.of_search import ladder_of_runs, runs_of_search
from depthmup_flax.search.ladder.regret import Curve
from depthmup_flax.search.sweep.grid import sweep_config
from depthmup_flax.search.sweep.runner import sweep
from depthmup_flax.search.tune.searches import Search
from depthmup_flax.search.tune.tuning import tune
from depthmup_flax.storage.sweep_records import LEARNING_RATE, SEED, TRAIN, Record, read_sweep
from reproduction.rules.version2.tasks import _ADAM, _DATA, _DECAY, _LLAMA, _OTHER, _SMALL, _TWO, _VIT, Task

HERE = pathlib.Path(__file__).parent
RUNS = pathlib.Path("runs/ladder")
SEEDS, TRUTH_SEEDS = (0, 1, 2), (10, 11, 12)
BUDGETS: Mapping[float, str] = {0.25: "", 1.0: "_one_run"}  # in runs of the target -> the end of its files' names
TOLERANCE = 0.001
_OCTAVES = 3  # of the truth's grid, on each side
_EXTEND = 4
_FIRST = 10  # steps, whose mean loss is that before learning


@dataclasses.dataclass(frozen=True)
class Target:
    """A proxy's task, and the size to which its rate is carried."""

    task: Task
    width: int
    depth: int


def _mlp(data: str, optimizer: str, width: int, depth: int, **fields: Any) -> Task:
    momentum = 0.9 if optimizer == "momentum" else None
    rates = _ADAM if optimizer == "adam" else _OTHER
    return Task("res_mlp", width, depth, _DATA + data, optimizer, rates, fields=fields, momentum=momentum)


TARGETS: Mapping[str, Target] = {
    "digits_mlp_adam_both": Target(_mlp("digits", "adam", 24, 3), 96, 12),
    "digits_mlp_muon_both": Target(_mlp("digits", "muon", 24, 3), 96, 12),
    "teacher_mlp_sgd_both": Target(_mlp("teacher", "momentum", 24, 3), 96, 12),
    "pairs_gpt_adam_both": Target(Task("gpt", 24, 3, f"{_DATA}pairs", "adam", _ADAM, 16, 400, _SMALL), 72, 9),
    "gratings_vit_adam_both": Target(Task("vit", 24, 3, f"{_DATA}gratings", "adam", _ADAM, 32, 400, _VIT), 72, 9),
    "teacher_mlp_adam_width": Target(_mlp("teacher", "adam", 24, 4), 96, 4),
    "teacher_mlp2_adam_depth": Target(_mlp("teacher", "adam", 24, 3, **_TWO), 24, 48),
    "clear_resnet_adam_depth": Target(
        Task("simple_resnet", 16, 3, f"{_DATA}clear", "adam", _ADAM, 32, 400, {"norm": "layer"}), 16, 48
    ),
    "chains_llama_adamw_depth": Target(
        Task("gpt", 16, 2, f"{_DATA}chains", "adamw", _ADAM, 8, 400, _LLAMA, _DECAY), 16, 32
    ),
    "chains_gpt_muon_width": Target(Task("gpt", 16, 3, f"{_DATA}chains", "muon", _OTHER, 8, 400, _SMALL), 64, 3),
}


def configs(target: Target, preset: str = "depth_mup") -> tuple[ConfigDict, ConfigDict]:
    """The proxy's, whose sizes are the base, and the target's."""
    proxy = target.task.config()
    proxy.parametrization.preset = preset
    proxy.train.log_every = _FIRST
    large = proxy.copy_and_resolve_references()
    set_size(large, target.width, target.depth)
    return proxy, large


def predict(name: str, budget: float) -> dict[str, Any]:
    """Searches the proxy, climbs, and returns what is registered."""
    target, place = TARGETS[name], RUNS / name
    proxy, large = configs(target)
    steps = target.task.steps
    best = tune(proxy, Search({LEARNING_RATE: target.task.rates}, SEEDS, _EXTEND), place, objective=TRAIN)
    proxy.optimizer.learning_rate = best.fields[LEARNING_RATE]
    searched = read_sweep([place])
    runs, chance = runs_of_search(searched, proxy, steps), searched.info.chance
    options: Any = {"budget": budget, "tolerance": TOLERANCE, "objective": TRAIN, "chance": chance}
    found = climb(runs, proxy, large, (steps, steps), place, **options)
    kept = ladder_of_runs(runs, large, steps, initial_loss=chance)
    sizes = [(one.search.size.width, one.search.size.depth) for one in found.searched]
    return {
        "rate": found.rate,
        "interval": found.interval,
        "regret": dataclasses.asdict(found.regret),
        "of_smallest": 2.0 ** kept.searched[0].search.rate,
        "of_nearest": 2.0 ** found.searched[-1].search.rate,
        "of_sp": straight_line(name, sizes, best.fields[LEARNING_RATE]),
    }


def straight_line(name: str, sizes: Sequence[tuple[int, int]], start: float) -> float:
    """The target's rate by a line through the best rates under sp at the ladder's sizes, in octaves of parameters."""
    target = TARGETS[name]
    proxy, _ = configs(target, "sp")
    at, rates = [], []
    for width, depth in sizes:
        config = proxy.copy_and_resolve_references()
        set_size(config, width, depth)
        grid = tuple(float(f"{start * 2.0**k:.4g}") for k in (-1, 0, 1))
        records = _swept(config, grid, SEEDS[:1], RUNS / name / f"sp_width{width}_depth{depth}")
        at.append(_parameters(width, depth))
        rates.append(_found(records, width, depth).rate)
    line = np.polyfit(at, rates, 1) if len(at) > 1 else [0.0, rates[0]]
    return float(2.0 ** np.polyval(line, _parameters(target.width, target.depth)))


def _parameters(width: int, depth: int) -> float:
    return math.log2(width**2 * depth)


def _swept(config: ConfigDict, rates: Sequence[float], seeds: Sequence[int], place: pathlib.Path) -> list[Record]:
    grid = {LEARNING_RATE: tuple(rates), SEED: tuple(seeds)}
    title = "A registered ladder"
    return sweep(
        sweep_config(config, {"rates": grid}, figure="ladder", title=title, scale="cpu", extend=_EXTEND), place
    )


def _curve(records: Sequence[Record]) -> Curve:
    rates, seeds = sorted({r.point[LEARNING_RATE] for r in records}), sorted({r.seed for r in records})
    losses = {(r.seed, r.point[LEARNING_RATE]): r.loss(TRAIN) for r in records}
    values = [[losses.get((seed, rate)) for rate in rates] for seed in seeds]
    return Curve(np.log2(rates), np.array(values, np.float64))


def _found(records: Sequence[Record], width: int, depth: int) -> Found:
    found = _curve(records).search(Size(width, depth), 0.0)
    if isinstance(found, str):  # the best of a grid that was extended as far as it may be
        curve = _curve(records)
        return Found(Size(width, depth), float(curve.rates[np.nanargmin(curve.losses.mean(0))]))
    return found


def check(name: str, predicted: Mapping[str, Any]) -> dict[str, Any]:
    """Searches the target, and says what each way costs there, as a share of what is learned."""
    target = TARGETS[name]
    _, large = configs(target)
    near = 2.0 ** round(math.log2(predicted["rate"]))
    rates = [near * 2.0**k for k in range(-_OCTAVES, _OCTAVES + 1)]
    records = _swept(large, rates, TRUTH_SEEDS, RUNS / name / "truth")
    curve, truth = _curve(records), _found(records, target.width, target.depth)
    first = float(np.median([r.train_loss_slices[0] for r in records if r.train_loss_slices[0] is not None]))
    learned = first - float(np.nanmin(curve.losses.mean(0)))
    cost = lambda rate: min(1.0, float(curve.regret(np.array([math.log2(rate) - truth.rate]))[0]) / learned)
    _, of_sp = configs(target, "sp")
    with_sp = _curve(_swept(of_sp, [float(f"{predicted['of_sp']:.4g}")], TRUTH_SEEDS, RUNS / name / "truth_sp"))
    loss = float(with_sp.losses.mean())
    above = (loss - float(np.nanmin(curve.losses.mean(0)))) / learned
    low, high = predicted["interval"]
    return {
        "truth": 2.0**truth.rate,
        "error_octaves": truth.error,
        "inside": low <= 2.0**truth.rate <= high,
        "width_octaves": math.log2(high / low),
        "regret": {way: cost(predicted[way]) for way in ("rate", "of_smallest", "of_nearest")}
        | {"of_sp": min(1.0, above) if math.isfinite(above) else 1.0},
    }


def main() -> None:
    """Runs a command for targets that are not done, by default all; writes and prints what it found."""
    parser = argparse.ArgumentParser("python -m reproduction.ladder.runs")
    parser.add_argument("command", choices=("predict", "check"))
    parser.add_argument("names", nargs="*", choices=[*TARGETS, []], default=[])
    parser.add_argument("--budget", type=float, choices=tuple(BUDGETS), default=0.25, help="In runs of the target.")
    args = parser.parse_args()
    predictions, results = (HERE / f"{name}{BUDGETS[args.budget]}.json" for name in ("predictions", "results"))
    file = predictions if args.command == "predict" else results
    done = json.loads(file.read_text()) if file.exists() else {}
    for name in args.names or TARGETS:
        if name not in done:
            if args.command == "predict":
                done[name] = predict(name, args.budget)
            else:
                done[name] = check(name, json.loads(predictions.read_text())[name])
            file.write_text(json.dumps(done, indent=1) + "\n")
        print(name, done[name], flush=True)


if __name__ == "__main__":
    main()
