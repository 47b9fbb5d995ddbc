"""Forecasts of large published runs from those that cost at most a tenth of them, by the package and by other laws.

python -m reproduction.public.forecasts      writes forecasts.csv
"""

from __future__ import annotations

import csv
import dataclasses
import io
import math
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor

import numpy as np
from scipy import optimize

from depthmup_flax.search.forecast.law import (
    COST,
    DEPTH,
    PARAMETERS,
    STEPS,
    WIDTH,
    Forecast,
    Rung,
    forecast_loss,
    losses_by_law,
)
from reproduction.public import sources
from reproduction.public.sources import Run, grouped

_NORMAL = 1.96
SHARE = 0.1  # of the target's cost, that a rung may have
_RUNGS, _SIZES = 6, 3
# Units of steps and parameters of a `Rung`, which are whole numbers.
_EXAMPLES, _PARAMETERS = 1e6, 1e3
# Billions of tokens of ``gemstones`` that count as runs of that length: it has a constant rate.
GEMSTONE_LENGTHS = (10, 20, 40, 60, 80, 100)
_GEMSTONE_SHARE = 0.103  # of which 205 shapes of 101 and 1,014 million parameters just exceed a tenth

Split = Callable[[Run], str]


@dataclasses.dataclass(frozen=True)
class Target:
    """A run to forecast, with its ladder."""

    run: Run
    half: str  # open, closed, or fresh: of the second try
    rungs: tuple[Run, ...]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a law says of a target; errors are of the logarithm, reached minus forecast."""

    source: str
    series: str
    half: str
    width: int
    depth: int
    tokens: float
    rungs: int
    cost_ratio: float  # target's over the most costly rung's
    loss: float
    forecast: float
    error: float
    half_width: float  # of the 95 % interval, of the logarithm
    inside: bool
    averaged_half_width: float  # of `AVERAGED`
    others: Mapping[str, float]  # law -> error


HALVES: Mapping[str, Split] = {
    "open_lm": lambda run: "open" if run.width <= 576 else "closed",
    "marin_isoflops": lambda run: "open" if run.width <= 1024 else "closed",
    "open_clip": lambda run: "open" if run.width <= 768 else "closed",
    "gemstones": lambda run: "open",
    "isoflops": lambda run: "fresh",
}
# Of the second try: what the open targets gained over their best rung, per logarithm of parameters and of tokens.
_GAIN, _GAIN_DEVIATION = 0.055, 0.018
AVERAGED = "averaged with the gain of the best rung"
GAIN, TENTHS = f"best rung (cost ratio)^-{_GAIN}", "exponents of .3"
OTHERS: Mapping[str, tuple[str, ...]] = {
    "E + A parameters^-a": (PARAMETERS,),
    "E + A cost^-a": (COST,),
    "E + A parameters^-a + B tokens^-b": (PARAMETERS, STEPS),
    "E + A width^-a + B depth^-b": (WIDTH, DEPTH),
    "E + A width^-a + B depth^-b + C tokens^-c": (WIDTH, DEPTH, STEPS),
}


def rung(run: Run) -> Rung:
    """A run as the package's laws take it: steps are millions of examples, parameters are thousands."""
    return Rung(
        width=run.width,
        depth=run.depth,
        steps=round(run.tokens / _EXAMPLES),
        parameters=round(run.parameters / _PARAMETERS),
        losses=(run.loss,),
    )


def targets(runs: Iterable[Run]) -> list[Target]:
    """The runs of a source that have six rungs or more of three sizes or more, as registration.md has it."""
    found = []
    for series in grouped(runs, "series").values():
        for target in series:
            rungs = tuple(other for other in series if _is_rung(other, target))
            if len(rungs) >= _RUNGS and len({r.parameters for r in rungs}) >= _SIZES:
                found.append(Target(target, HALVES[target.source](target), rungs))
    return found


def _is_rung(other: Run, target: Run) -> bool:
    no_larger = all(getattr(other, axis) <= getattr(target, axis) for axis in ("width", "depth", "parameters"))
    return no_larger and other.cost <= SHARE * target.cost and other.tokens <= 1.0001 * target.tokens


def gemstone_targets(runs: Sequence[Run]) -> list[Target]:
    """Shapes of ``gemstones`` at six lengths, each from shapes of a tenth of its parameters at the same length."""
    found = []
    for length in GEMSTONE_LENGTHS:
        equal = [run for run in runs if round(run.tokens / 2.0007e9) == length // 2]
        for target in equal:
            rungs = [other for other in equal if other.cost <= _GEMSTONE_SHARE * target.cost]
            rungs = [other for other in rungs if other.width <= target.width]
            if len(rungs) >= _RUNGS:
                found.append(Target(target, "open", tuple(rungs)))
    return found


def outcome(target: Target) -> Outcome:
    """The package's forecast and those of `OTHERS`."""
    run, rungs = target.run, [rung(other) for other in target.rungs]
    aim = dataclasses.replace(rung(run), losses=())
    forecast = forecast_loss(rungs, aim)
    low, high = forecast.interval
    averaged, averaged_half_width = _averaged(target, forecast)
    others = _others(target, rungs, aim)
    return Outcome(
        source=run.source,
        series=run.series,
        half=target.half,
        width=run.width,
        depth=run.depth,
        tokens=run.tokens,
        rungs=len(rungs),
        cost_ratio=run.cost / max(other.cost for other in target.rungs),
        loss=run.loss,
        forecast=forecast.loss,
        error=math.log(run.loss / forecast.loss),
        half_width=math.log(high / low) / 2,
        inside=low <= run.loss <= high,
        averaged_half_width=averaged_half_width,
        others={name: math.log(run.loss / loss) for name, loss in {AVERAGED: averaged, **others}.items()},
    )


def _averaged(target: Target, law: Forecast) -> tuple[float, float]:
    """The law's loss, averaged with the best rung's less the gain by inverse variances; half of the interval."""
    best = min(target.rungs, key=_loss)
    ratios = [target.run.parameters / best.parameters, target.run.tokens / best.tokens]
    logs = [math.log(max(1.0, ratio)) for ratio in ratios]
    low, high = law.interval
    estimates = math.log(law.loss), math.log(best.loss) - _GAIN * sum(logs)
    variances = (math.log(high / low) / 2 / _NORMAL) ** 2, (_GAIN_DEVIATION * math.hypot(*logs)) ** 2
    mean = float(np.average(estimates, weights=np.divide(1, variances)))
    return math.exp(mean), _NORMAL / math.sqrt(sum(1 / variance for variance in variances))


def _others(target: Target, rungs: Sequence[Rung], aim: Rung) -> dict[str, float]:
    """The losses by other laws."""
    best = min(target.rungs, key=_loss)
    found = {GAIN: best.loss * (target.run.cost / best.cost) ** -_GAIN, TENTHS: _of_tenths(rungs, aim)}
    return found | {name: losses_by_law(axes, rungs, [aim])[1][0] for name, axes in OTHERS.items()}


def _loss(run: Run) -> float:
    return run.loss


def _of_tenths(rungs: Sequence[Rung], aim: Rung) -> float:
    """E + A parameters^-.3 + B steps^-.3, least squares of relative errors."""
    sizes = np.array([(one.parameters, one.steps) for one in (*rungs, aim)], float)
    terms = np.column_stack([np.ones(len(sizes)), (sizes / sizes.max(0)) ** -0.3])
    losses = np.array([one.losses[0] for one in rungs])
    coefficients, _ = optimize.nnls(terms[:-1] / losses[:, None], np.ones(len(rungs)))
    return float(terms[-1] @ coefficients)


@dataclasses.dataclass(frozen=True)
class Score:
    """Of one law over targets."""

    targets: int
    median: float  # of absolute errors
    rms: float
    mean: float
    inside: float  # share; nan for laws whose interval is not computed
    half_width: float  # median
    interval: float  # mean interval score of the logarithm (Gneiting and Raftery, 2007, eq. 43); smaller is better


def score(outcomes: Sequence[Outcome], law: str = "") -> Score:
    """Of the package's law, or of one of `OTHERS`."""
    errors = np.array([one.others[law] if law else one.error for one in outcomes])
    half = np.array([one.averaged_half_width if law else one.half_width for one in outcomes])
    outside = np.maximum(0, abs(errors) - half)
    known = law in ("", AVERAGED)
    return Score(
        targets=len(outcomes),
        median=float(np.median(np.abs(errors))),
        rms=float(np.sqrt(np.mean(errors**2))),
        mean=float(errors.mean()),
        inside=float(np.mean(outside == 0)) if known else math.nan,
        half_width=float(np.median(half)) if known else math.nan,
        interval=float(np.mean(2 * half + 40 * outside)) if known else math.nan,
    )


HERE = pathlib.Path(__file__).parent
FINAL, REGISTERED = HERE / "forecasts.csv", HERE / "forecasts_registered.csv"


def written(outcomes: Sequence[Outcome]) -> str:
    """A table in CSV: a row for each target, numbers with five digits."""
    text = io.StringIO()
    rows = [{**vars(one), **{f"error, {law}": error for law, error in one.others.items()}} for one in outcomes]
    for row in rows:
        del row["others"]
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({k: f"{v:.5g}" if isinstance(v, float) else v for k, v in row.items()})
    return text.getvalue()


def read(path: pathlib.Path) -> list[Outcome]:
    """The outcomes of a table of `written`."""
    fields = {field.name: field.type for field in dataclasses.fields(Outcome) if field.name != "others"}
    kinds: Mapping[str, Callable[[str], object]] = {"int": int, "float": float, "str": str, "bool": "True".__eq__}
    found = []
    for row in csv.DictReader(io.StringIO(path.read_text())):
        row = {"averaged_half_width": "nan", **row}  # the first tables lack it
        own = {name: kinds[str(kind)](row[name]) for name, kind in fields.items()}
        others = {name.partition(", ")[2]: float(x) for name, x in row.items() if name.startswith("error, ")}
        found.append(Outcome(**own, others=others))
    return found


def main() -> None:
    """Forecasts every target, on two processes, and writes `FINAL`: about five minutes of two cores."""
    directory = sources.data_directory()
    if directory is None:
        raise SystemExit(f"set {sources.VARIABLE} to the directory of the published files (README.md)")
    chosen = [
        target
        for name in ("open_lm", "marin_isoflops", "isoflops", "open_clip")
        for target in targets(sources.READERS[name](directory))
    ]
    chosen += gemstone_targets(sources.gemstones(directory))
    with ProcessPoolExecutor(2) as pool:
        FINAL.write_text(written(list(pool.map(outcome, chosen, chunksize=4))))


if __name__ == "__main__":
    main()
