"""Laws of the loss, fitted to a ladder of networks, and the loss they forecast.

A law is an irreducible part and power laws, such as ``E + A parameters^-a + B steps^-b``, fitted by least squares of
relative errors; ``E, A, B`` are not negative. What is chosen here was tried on published runs of up to 9 billion
parameters and on the package's own (reproduction/public, reproduction/pages/forecasts.md).
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence

import numpy as np
from scipy import optimize, stats

WIDTH, DEPTH, STEPS, PARAMETERS, COST = "width", "depth", "steps", "parameters", "cost"
AXES = (WIDTH, DEPTH, STEPS)
# Logarithms to base 2, of exponents from 1/4 to the square root of 2. With smaller ones a few rungs are fitted by
# nearly a logarithm, which has no irreducible part: published ladders then forecast losses that are too low.
_EXPONENTS = (-2, 0.5)
_AT_BOUND = 1e-3  # of these logarithms
# The largest ratio of costs, target to largest rung, at which forecasts were checked (reproduction/pages/forecasts.md).
CHECKED_COST_RATIO = 249
_GRID_STEP = 0.5  # of the search for the exponents' start
_LEVEL = 0.95
# Root mean square of log(reached / forecast) of the ten checked targets that are longer than all rungs
# (reproduction/pages/forecasts.md); nine of them reached lower losses, and of four later ones two. Ladders of more
# lengths measure it themselves.
LONGER_ERROR = 0.125
_LENGTHS = 5
# What earlier targets gained over their best rung, as powers of their parameters and steps over that rung's, and the
# standard deviations of these exponents over ladders. Fitted afterwards to 37 checked ones; rungs had more than half of
# the loss of chance.
_GAIN = {PARAMETERS: (0.0145, 0.005), STEPS: (0.115, 0.022)}
_OF_CHANCE = 0.5
_FALSE_ALARMS = 0.05
# Rungs of the target's own steps that do without the others.
_ENOUGH, _SIZES = 6, 3
# By which the errors of costly rungs count: they have one sign, so they are few. Chosen on published runs, of whose
# forecasts 91 % then lie inside (reproduction/public).
_BEYOND = 1.25
_SHAPES = 2.0  # the largest ratio of width to depth over the smallest, above which depth has a term


@dataclasses.dataclass(frozen=True)
class Rung:
    """A size of network, and the losses of its seeds."""

    width: int
    depth: int
    steps: int
    parameters: int = 0
    losses: tuple[float, ...] = ()  # one for each seed; none for the target

    @property
    def cost(self) -> float:
        """Parameters times steps: proportional to the operations of a run in a family of networks."""
        return float(self.parameters) * self.steps


@dataclasses.dataclass(frozen=True)
class Fit:
    """A law fitted to a ladder."""

    law: str  # as a formula
    left_out_error: float  # root mean square of the errors of log loss for each rung, by the law of the others
    loss: float  # of the target
    # Standard deviation of the log loss of one run of the target: from how much its forecast changes without each rung
    # (jackknife) and by the seeds' noise of each, the errors for left-out rungs and for costly ones by much cheaper
    # ones, and its own seed
    deviation: float
    at_bound: bool = False  # whether an exponent is the least allowed one: the data may ask for less

    @property
    def warning(self) -> str:
        """What an exponent at its bound means; empty without one."""
        if not self.at_bound:
            return ""
        return (
            f"Warning: an exponent of the law is at its bound, {2.0 ** _EXPONENTS[0]:g}: if the loss falls more "
            "slowly, a far target ends below the interval. Add sizes nearer to the target."
        )


@dataclasses.dataclass(frozen=True)
class Forecast:
    """The forecast loss of one run of the target."""

    loss: float  # by the first of ``fits``, and by what earlier targets gained
    interval: tuple[float, float]  # 95 %, of one run with another seed
    most: float  # the loss that one run in twenty exceeds: above it, a run is worse than it should be
    power: float  # the probability that a run that gains nothing over the best rung exceeds ``most``
    fits: tuple[Fit, ...]  # by the law that forecasts, and by others for comparison
    seed_spread: float  # relative standard deviation over seeds, of the costly half of rungs; 0 for one seed


def forecast_loss(rungs: Sequence[Rung], target: Rung, chance: float | None = None) -> Forecast:
    """The loss of one run of ``target``, from a ladder with equally many seeds for each rung.

    Six rungs or more with the target's steps are used without the others. Where all have the same steps, the law is
    ``E + A parameters^-a``; else that of arXiv:2203.15556, eq. 2, with steps for examples. Where shapes differ, depth
    has a term, too: at equal parameters, deep and shallow networks reach different losses.

    Args:
      rungs, target: sizes, with the losses of rungs.
      chance: the loss of the best constant guess. Where rungs have more than half of it, the law's forecast is averaged
        with what earlier targets gained (`_gain`), by inverse variances; ``None``: the law's alone.
    """
    rungs = _of_own_steps(rungs, target)
    seeds, spread = len(rungs[0].losses), seed_spread(rungs)
    sizes = _varying((PARAMETERS, STEPS), rungs)
    laws = [_with_depth(sizes, rungs), sizes]  # the first one forecasts
    if len(sizes) > 1:
        laws += [(COST,), (PARAMETERS,)]
    fits = tuple(fit(law, rungs, target, spread) for law in dict.fromkeys(laws))
    lengths = {rung.steps for rung in rungs}
    unmeasured = target.steps > max(lengths) and len(lengths) < _LENGTHS
    deviation, log_loss = math.hypot(fits[0].deviation, LONGER_ERROR * unmeasured), math.log(fits[0].loss)
    best_rung = min(rungs, key=_loss)
    best = _loss(best_rung)
    seed_noise = spread * math.sqrt(1 + 1 / seeds)  # of one run minus the mean of a rung
    if chance is not None and best > _OF_CHANCE * chance:
        gain, gain_deviation = _gain(best_rung, target, seed_noise)
        log_loss, deviation = _averaged((log_loss, deviation), (math.log(best) - gain, gain_deviation))
        deviation = max(deviation, seed_noise)
    normal = stats.norm(log_loss, max(deviation, 1e-12))
    low, middle, high = np.exp(normal.ppf([(1 - _LEVEL) / 2, 0.5, (1 + _LEVEL) / 2])).tolist()
    most = float(np.exp(normal.ppf(1 - _FALSE_ALARMS)))
    power = float(stats.norm.sf(math.log(most / best) / max(seed_noise, 1e-12)))
    return Forecast(middle, (low, high), most, power, fits, spread)


def seed_spread(rungs: Sequence[Rung]) -> float:
    """Standard deviation of log losses over seeds, of the costly half of rungs; 0 for one seed.

    Small networks may differ several times as much as those that are more like the target, or less.
    """
    costly = sorted(rungs, key=_cost)[len(rungs) // 2 :]
    logs = np.log([rung.losses for rung in costly])  # [rungs, seeds]
    return float(np.sqrt(logs.var(1, ddof=1).mean())) if logs.shape[1] > 1 else 0.0


def _gain(best: Rung, target: Rung, seed_noise: float) -> tuple[float, float]:
    """By how much earlier targets improved on the log loss of their best rung, at this one's size; the deviation."""
    gain, deviation = 0.0, seed_noise
    for axis, (exponent, error) in _GAIN.items():
        log_ratio = math.log(max(1.0, getattr(target, axis) / getattr(best, axis)))
        gain += exponent * log_ratio
        deviation = math.hypot(deviation, error * log_ratio)
    return gain, deviation


def _averaged(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    """Mean and deviation of two estimates with deviations, weighted by inverse variances."""
    (a, a_deviation), (b, b_deviation) = one, other
    if a_deviation == 0 or b_deviation == 0:
        return one if a_deviation <= b_deviation else other
    weights = a_deviation**-2, b_deviation**-2
    return (a * weights[0] + b * weights[1]) / sum(weights), sum(weights) ** -0.5


def _of_own_steps(rungs: Sequence[Rung], target: Rung) -> Sequence[Rung]:
    """The rungs with the target's steps if they suffice, else all."""
    own = [rung for rung in rungs if rung.steps == target.steps]
    enough = len(own) >= _ENOUGH and len({(rung.width, rung.depth) for rung in own}) >= _SIZES
    return own if enough else rungs


def _varying(axes: Sequence[str], rungs: Sequence[Rung]) -> tuple[str, ...]:
    """The axes along which rungs differ."""
    return tuple(axis for axis in axes if len({getattr(rung, axis) for rung in rungs}) > 1)


def _with_depth(axes: tuple[str, ...], rungs: Sequence[Rung]) -> tuple[str, ...]:
    """The axes and depth, if shapes differ and there are two rungs more than such a law has unknowns."""
    shapes = [rung.width / rung.depth for rung in rungs]
    unknowns = 1 + 2 * (len(axes) + 1)
    differ = max(shapes) > _SHAPES * min(shapes) and len({rung.depth for rung in rungs}) >= _SIZES
    return (*axes, DEPTH) if PARAMETERS in axes and differ and len(rungs) >= unknowns + 2 else axes


def fit(axes: Sequence[str], rungs: Sequence[Rung], target: Rung, seed_spread: float) -> Fit:
    """The law with a term for each of ``axes``, and what it says about the target.

    References:
      Efron and Stein, The Jackknife Estimate of Variance (1981).
    """
    law, (loss,), at_bound = _fitted(axes, rungs, [target])
    ratios = []
    for i, rung in enumerate(rungs):
        before, after, mean = rungs[:i], rungs[i + 1 :], _loss(rung)
        standard_error = seed_spread / math.sqrt(len(rung.losses))
        higher = dataclasses.replace(rung, losses=(mean * math.exp(standard_error),))
        moved = losses_by_law(axes, [*before, higher, *after], [target])[1][0] if standard_error else loss
        _, (own, without) = losses_by_law(axes, [*before, *after], [rung, target])
        ratios.append((moved / loss, without / loss, mean / own))
    by_seeds, by_rungs, errors = np.log(ratios).T  # few rungs may fit a law better than their seeds allow
    left_out_error, jackknife = math.sqrt(np.mean(errors**2)), math.sqrt((len(rungs) - 1) * np.var(by_rungs))
    beyond = _BEYOND * error_beyond(axes, rungs, target)
    deviation = math.hypot(jackknife, left_out_error, beyond, seed_spread, *by_seeds)
    return Fit(law, left_out_error, loss, deviation, at_bound)


def error_beyond(axes: Sequence[str], rungs: Sequence[Rung], target: Rung) -> float:
    """Root mean square of the errors of log loss for the costly half of rungs, by the law of much cheaper ones.

    They are cheaper than that half by the factor by which the target costs more than every rung, as far as one more
    than the law has unknowns remain. 0 if no rung remains to forecast.
    """
    ordered = sorted(rungs, key=_cost)
    costly = ordered[len(ordered) // 2 :]
    gap = max(1.0, target.cost / ordered[-1].cost)
    cheap = [rung for rung in ordered if rung.cost * gap < costly[0].cost]
    fewest = 2 + 2 * len(axes)
    cheap = cheap if len(cheap) >= fewest else ordered[:fewest]
    costly = [rung for rung in costly if rung not in cheap]
    varied = _varying(axes, cheap)
    if not costly or not varied:
        return 0.0
    _, forecasts = losses_by_law(varied, cheap, costly)
    losses = [_loss(rung) for rung in costly]
    return float(np.sqrt(np.mean(np.log(np.divide(losses, forecasts)) ** 2)))


def _cost(rung: Rung) -> float:
    return rung.cost


def _loss(rung: Rung) -> float:
    return float(np.mean(rung.losses))


def losses_by_law(axes: Sequence[str], rungs: Sequence[Rung], others: Sequence[Rung]) -> tuple[str, list[float]]:
    """The formula of the law of the mean losses of ``rungs``, and the losses of ``others`` by it."""
    law, forecast, _ = _fitted(axes, rungs, others)
    return law, forecast


def _fitted(axes: Sequence[str], rungs: Sequence[Rung], others: Sequence[Rung]) -> tuple[str, list[float], bool]:
    """`losses_by_law`, and whether the exponent of a term is the least allowed one."""
    losses = np.array([_loss(rung) for rung in rungs])
    units = [max(getattr(rung, axis) for rung in rungs) for axis in axes]
    sizes = np.array([[getattr(rung, axis) for axis in axes] for rung in (*rungs, *others)]) / units  # [rungs, axes]

    def fitted(logs: Sequence[float]) -> tuple[float, np.ndarray, np.ndarray]:
        terms = np.column_stack([np.ones(len(sizes)), sizes ** -(2.0 ** np.array(logs))])
        coefficients, error = optimize.nnls(terms[: len(rungs)] / losses[:, None], np.ones(len(rungs)))
        return error, coefficients, terms[len(rungs) :] @ coefficients

    error = lambda logs: fitted(logs)[0]
    values = np.arange(_EXPONENTS[0], _EXPONENTS[1] + _GRID_STEP / 2, _GRID_STEP)
    start = min(itertools.product(values, repeat=len(axes)), key=error)
    logs = optimize.minimize(error, start, method="Nelder-Mead", bounds=[_EXPONENTS] * len(axes)).x
    _, coefficients, forecast = fitted(logs)
    parts = [f"{coefficients[0]:.4g}"]
    for coefficient, axis, unit, exponent in zip(coefficients[1:], axes, units, 2.0**logs, strict=True):
        parts.append(f"{coefficient:.3g} ({axis} / {unit:,.6g})^-{exponent:.2g}")
    at_bound = bool(np.any((logs < _EXPONENTS[0] + _AT_BOUND) & (coefficients[1:] > 0)))
    return " + ".join(parts), forecast.tolist(), at_bound
