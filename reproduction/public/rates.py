"""Best rates of published sweeps: their exponents, what a carried rate costs, and how far off it is.

Each function takes runs and returns rows of a table. Logarithms are to base 2; a factor is a function of the octaves of
width, depth and tokens between base and target.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from scipy import stats

from reproduction.public.curves import Curve, curve_of, interval, resampled
from reproduction.public.sources import Run, grouped

Factor = Callable[[float, float, float], float]
Pair = tuple[Curve, Curve]  # base and target


def power(width: float, depth: float, tokens: float = 0.0) -> Factor:
    """The factor width^.. depth^.. tokens^.. of a rate, in octaves."""
    return lambda m, r, d: width * m + depth * r + tokens * d


NONE = power(0, 0)
# Of one global rate, which the hidden matrices of the blocks decide.
ENTRYWISE_RULES: Mapping[str, Factor] = {
    "none": NONE,
    "mup, completep, ode: 1/m": power(-1, 0),
    "depth_mup: 1/(m sqrt r)": power(-1, -0.5),
    "1/(m r)": power(-1, -1),
    "depth_mup, d^-1/4": power(-1, -0.5, -0.25),
    "depth_mup, d^-1/2": power(-1, -0.5, -0.5),
}
# The width's exponent of an optimizer's hidden matrices (`depthmup_flax.rule.parametrization.WIDTH_RULES`).
WIDTH_EXPONENTS: Mapping[str, float] = {
    **dict.fromkeys(("adamw", "nadamw", "mars", "cautious", "lion", "mini", "sophia"), -1.0),
    **dict.fromkeys(("muon", "scion", "kron"), 0.0),
    "soape": -0.5,
}
ENTRYWISE = tuple(name for name, exponent in WIDTH_EXPONENTS.items() if exponent == -1)
DURATIONS = {"none": 0.0, "d^-1/4": -0.25, "d^-1/2": -0.5}


def octaves(base: Curve, target: Curve) -> tuple[float, float, float]:
    """Of width, depth and tokens."""
    return (
        math.log2(target.width / base.width),
        math.log2(target.depth / base.depth),
        math.log2(target.tokens / base.tokens),
    )


def regret(pair: Pair, factor: Factor) -> float:
    """What the base's best rate, times the factor, costs at the target."""
    base, target = pair
    return target.regret(base.best + factor(*octaves(base, target)))


@dataclasses.dataclass(frozen=True)
class Regrets:
    """Of one factor over pairs of cells."""

    factor: str
    pairs: int
    mean: float
    bounds: tuple[float, float]  # 95 %, groups resampled
    largest: float
    outside: int  # rates beyond the target's grid, where its end counts: a lower bound


def regrets(pairs: Mapping[str, Sequence[Pair]], factors: Mapping[str, Factor]) -> list[Regrets]:
    """One row for each factor; the interval resamples the groups of ``pairs``."""
    rows = []
    for name, factor in factors.items():
        groups = [[regret(pair, factor) for pair in group] for group in pairs.values()]
        moved = [(b.best + factor(*octaves(b, t)), t) for group in pairs.values() for b, t in group]
        every = [value for group in groups for value in group]
        rows.append(
            Regrets(
                factor=name,
                pairs=len(every),
                mean=float(np.mean(every)),
                bounds=resampled(groups),
                largest=max(every),
                outside=sum(not target.within(at) for at, target in moved),
            )
        )
    return rows


@dataclasses.dataclass(frozen=True)
class Exponents:
    """Of the best rate, by least squares, with an intercept for each group."""

    of: str
    cells: int
    values: Mapping[str, float]
    bounds: Mapping[str, tuple[float, float]]  # 95 %, clusters resampled
    correlation: float  # the largest between two regressors, group means removed; 0 for one regressor


def exponents(
    of: str,
    curves: Sequence[Curve],
    regressors: Mapping[str, Callable[[Curve], float]],
    group: Callable[[Curve], object],
    cluster: Callable[[Curve], object] | None = None,
    draws: int = 2000,
) -> Exponents:
    """Exponents of the best rates of curves with an inner optimum.

    Args:
      of: names the row.
      curves: the cells.
      regressors: name -> the base-2 logarithm of a size.
      group: cells with an intercept of their own.
      cluster: cells that are resampled together; ``None``: the groups.
    """
    cells = [curve for curve in curves if curve.inner]
    cluster = cluster or group
    x = np.array([[size(curve) for size in regressors.values()] for curve in cells])
    y = np.array([curve.best for curve in cells])
    groups = np.unique([str(group(curve)) for curve in cells], return_inverse=True)[1]
    clusters = np.unique([str(cluster(curve)) for curve in cells], return_inverse=True)[1]
    members = [np.flatnonzero(clusters == c) for c in range(clusters.max() + 1)]
    random = np.random.default_rng(0)
    found = []
    for _ in range(draws if len(members) > 1 else 0):
        chosen = np.concatenate([members[i] for i in random.integers(len(members), size=len(members))])
        if (slope := _within(x[chosen], y[chosen], groups[chosen])) is not None:
            found.append(slope)
    slopes = _within(x, y, groups)
    if slopes is None:
        raise ValueError(f"{of}: the sizes of its cells do not tell the exponents apart.")
    nowhere = (math.nan, math.nan)
    bounds = {
        name: interval(draw[i] for draw in found) if len(found) > 100 else nowhere for i, name in enumerate(regressors)
    }
    values = dict(zip(regressors, map(float, slopes), strict=True))
    return Exponents(of, len(cells), values, bounds, _collinear(x, groups))


def _centered(values: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Without the mean of each group."""
    values = values.astype(float).copy()
    for name in np.unique(groups):
        values[groups == name] -= values[groups == name].mean(0)
    return values


def _within(x: np.ndarray, y: np.ndarray, groups: np.ndarray) -> np.ndarray | None:
    """Least-squares slopes with an intercept for each group; ``None`` if they are not determined."""
    x = _centered(x, groups)
    if np.linalg.matrix_rank(x, tol=1e-6) < x.shape[1]:
        return None
    return np.linalg.lstsq(x, _centered(y, groups), rcond=None)[0]


def _collinear(x: np.ndarray, groups: np.ndarray) -> float:
    """The largest correlation between two regressors."""
    if x.shape[1] < 2:
        return 0.0
    correlations = np.corrcoef(_centered(x, groups).T)
    return float(np.nanmax(np.abs(correlations - np.eye(len(correlations)))))


WIDTH = {"width": lambda curve: math.log2(curve.width)}
DEPTH = {"depth": lambda curve: math.log2(curve.depth)}
TOKENS = {"tokens": lambda curve: math.log2(curve.tokens)}
BATCH = {"batch": lambda curve: math.log2(curve.batch)}
BOTH = {"width sqrt(depth)": lambda curve: math.log2(curve.width) + math.log2(curve.depth) / 2}

# Step Law: batches of 64 to 512 sequences have five shapes and nearly all lengths.
_SEQUENCES = (64, 512)
STEP_LAW_BASE = (960, 7)


def step_law_curves(runs: Sequence[Run], sequences: tuple[float, float] = _SEQUENCES) -> list[Curve]:
    """One for each shape, number of tokens and batch size in a range, of five rates or more and an inner optimum."""
    curves = [curve_of(cell) for cell in grouped(runs, "width", "depth", "tokens", "batch").values()]
    low, high = sequences
    return [c for c in curves if c.inner and len(c.x) >= 5 and low <= c.batch / 2048 <= high]


def step_law_pairs(curves: Sequence[Curve]) -> dict[str, list[Pair]]:
    """From the smallest shape to larger ones at the same batch size, never to fewer tokens, by the target's shape."""
    pairs: dict[str, list[Pair]] = {}
    bases = [curve for curve in curves if (curve.width, curve.depth) == STEP_LAW_BASE]
    for target in curves:
        for base in bases:
            if base.batch == target.batch and base.tokens <= target.tokens and target.width > base.width:
                pairs.setdefault(f"{target.width} x {target.depth}", []).append((base, target))
    return pairs


def step_law_fitted(curves: Sequence[Curve]) -> Factor:
    """N^a D^b, fitted to these cells with an intercept for each batch size, as the source's law has it."""
    sizes = {"parameters": lambda c: 2 * math.log2(c.width) + math.log2(c.depth), **TOKENS}
    fit = exponents("N^a D^b", curves, sizes, lambda c: c.batch, draws=0).values
    return power(2 * fit["parameters"], fit["parameters"], fit["tokens"])


def longer_pairs(curves: Sequence[Curve]) -> dict[str, list[Pair]]:
    """From each cell to longer ones that differ in nothing else, by series, shape and batch size."""
    pairs: dict[str, list[Pair]] = {}
    for base in curves:
        for target in curves:
            same = all(getattr(base, f) == getattr(target, f) for f in ("series", "width", "depth", "batch"))
            if same and base.tokens < target.tokens and base.inner:
                key = f"{base.series}, {base.width} x {base.depth}, {base.batch:g}"
                pairs.setdefault(key, []).append((base, target))
    return pairs


def marin_curves(runs: Sequence[Run]) -> list[Curve]:
    """One for each optimizer, width and ratio of tokens to parameters, with three rates or more."""
    curves = [curve_of(cell) for cell in grouped(runs, "series", "width", "tokens").values()]
    return [curve for curve in curves if len(curve.x) >= 3]


def ratio(curve: Curve) -> int:
    """Tokens over 20 times the parameters of a cell of ``marin_optimizers``."""
    return round(curve.tokens / (20 * 16 * curve.depth * curve.width**2))


def marin_pairs(curves: Sequence[Curve]) -> dict[str, list[Pair]]:
    """From width 512 at 20 tokens a parameter to every wider cell of the same optimizer, by optimizer."""
    pairs: dict[str, list[Pair]] = {}
    bases = {c.series: c for c in curves if c.width == 512 and ratio(c) == 1 and c.series in WIDTH_EXPONENTS}
    for target in curves:
        if target.series in bases and target.width > 512:
            pairs.setdefault(target.series, []).append((bases[target.series], target))
    return pairs


def marin_lengths(curves: Sequence[Curve]) -> dict[str, list[Pair]]:
    """From width 512 at 20 tokens a parameter to longer runs of it, by optimizer. Batch sizes and decay may differ."""
    pairs: dict[str, list[Pair]] = {}
    for base in curves:
        for target in curves:
            same = (base.series, base.width, ratio(base)) == (target.series, 512, 1)
            if same and target.width == 512 and ratio(target) > 1:
                pairs.setdefault(base.series, []).append((base, target))
    return pairs


# The law of the distance: standard deviation of the best rate, in octaves, at no distance, and for each octave of it.
OWN_SPREAD, DISTANCE_SPREAD = 0.19, 0.21


def covered(pairs: Sequence[Pair], factor: Callable[[Pair], Factor]) -> tuple[int, int, float]:
    """How many targets with an inner optimum the law of the distance covers; of how many; rms error in octaves."""
    quantile, inside, errors = stats.norm.ppf(0.975), 0, []
    for base, target in pairs:
        if not (base.inner and target.inner):
            continue
        m, r, d = octaves(base, target)
        error = target.best - base.best - factor((base, target))(m, r, d)
        inside += abs(error) <= quantile * math.hypot(OWN_SPREAD, DISTANCE_SPREAD * (abs(m) + abs(r)))
        errors.append(error)
    return inside, len(errors), float(np.sqrt(np.mean(np.square(errors)))) if errors else math.nan


_DIVERGED = 0.5  # nats above the lowest loss of a cell


def trained(curve: Curve) -> Curve:
    """The curve without diverged runs: not what was registered, which has them in its parabolas."""
    kept = [i for i, loss in enumerate(curve.y) if loss < min(curve.y) + _DIVERGED]
    return dataclasses.replace(curve, x=tuple(curve.x[i] for i in kept), y=tuple(curve.y[i] for i in kept))


def marin_fitted(curves: Sequence[Curve]) -> Factor | None:
    """N^a D^b, fitted to one optimizer's best rates; ``None`` if its cells do not determine it."""
    sizes = {"parameters": lambda c: 2 * math.log2(c.width), **TOKENS}
    try:
        fit = exponents("N^a D^b", curves, sizes, lambda c: 0, draws=0).values
    except ValueError:
        return None
    return power(2 * fit["parameters"], 0.0, fit["tokens"])


@dataclasses.dataclass(frozen=True)
class OptimizerRegret:
    """Mean regrets of the factors of registration.md for one optimizer of ``marin_optimizers``."""

    optimizer: str
    pairs: int
    none: float
    rule: float
    quarter: float  # the rule times d^-1/4
    half: float
    fitted: float  # nan: not determined
    outside: int  # rates of the rule beyond the target's grid


def marin_regrets(curves: Sequence[Curve]) -> list[OptimizerRegret]:
    """A row for each optimizer with a wider cell."""
    rows = []
    for name, pairs in marin_pairs(curves).items():
        width = WIDTH_EXPONENTS[name]
        factors = {"none": NONE, "rule": power(width, 0)}
        factors |= {"quarter": power(width, 0, -0.25), "half": power(width, 0, -0.5)}
        fitted = marin_fitted([curve for curve in curves if curve.series == name])
        if fitted is not None:
            factors["fitted"] = fitted
        found = {row.factor: row for row in regrets({name: pairs}, factors)}
        means = {factor: found[factor].mean if factor in found else math.nan for factor in (*factors, "fitted")}
        rows.append(OptimizerRegret(optimizer=name, pairs=len(pairs), outside=found["rule"].outside, **means))
    return rows


def batch_pairs(curves: Sequence[Curve], most: float = 8.0) -> dict[str, list[Pair]]:
    """Cells that differ in their batch size alone, by up to ``most`` times, by series, shape, tokens and direction."""
    pairs: dict[str, list[Pair]] = {}
    for base in curves:
        for target in curves:
            same = all(getattr(base, f) == getattr(target, f) for f in ("series", "width", "depth", "tokens"))
            k = target.batch / base.batch
            if same and base.inner and 1 < max(k, 1 / k) <= most:
                way = "larger" if k > 1 else "smaller"
                pairs.setdefault(f"{way}, {base.series}, {base.width}, {base.tokens:g}", []).append((base, target))
    return pairs


@dataclasses.dataclass(frozen=True)
class BatchRegret:
    """Mean regret of carrying a rate to another batch size at equal tokens, with the factor k^power."""

    power: float
    pairs: int
    mean: float
    bounds: tuple[float, float]  # 95 %, cells of one shape and length resampled together


def batch_regrets(pairs: Mapping[str, Sequence[Pair]], powers: Sequence[float]) -> list[BatchRegret]:
    """A row for each power."""
    rows = []
    for exponent in powers:
        groups = []
        for group in pairs.values():
            moved = [(b.best + exponent * math.log2(t.batch / b.batch), t) for b, t in group]
            groups.append([target.regret(at) for at, target in moved])
        every = [value for group in groups for value in group]
        rows.append(BatchRegret(exponent, len(every), float(np.mean(every)), resampled(groups)))
    return rows


def moe_curves(runs: Sequence[Run]) -> list[Curve]:
    """One for each mixture of experts, number of tokens and batch size."""
    return [curve_of(cell) for cell in grouped(runs, "series", "tokens", "batch").values()]


def moe_half(curve: Curve) -> str:
    """Open or closed, as registration.md has it."""
    return "open" if curve.series.startswith("moeh 352,") else "closed"


def difference(pairs: Mapping[str, Sequence[Pair]], factor: Factor, other: Factor = NONE) -> tuple[float, float, float]:
    """Mean of regret(factor) - regret(other) and its 95 % interval, groups resampled."""
    groups = [[regret(pair, factor) - regret(pair, other) for pair in group] for group in pairs.values()]
    low, high = resampled(groups)
    return float(np.mean([value for group in groups for value in group])), low, high
