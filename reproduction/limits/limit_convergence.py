"""Square errors of networks to the limit of infinite width and depth, split into their parts (B24 Fig. 5, B.7).

B24 is Bordelon et al. (arXiv:2309.16620); `reproduction.theory.finite_size` has the decomposition.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from depthmup_flax.report.style import colors
from depthmup_flax.util.errors import InputError
from reproduction import theory
from reproduction.limits import finite_networks as networks
from reproduction.limits.config_fields import check_fields, is_distinct, is_number, is_whole, require
from reproduction.limits.fitted_rates import Line, aligned, rate, rates_table
from reproduction.limits.panels import Color, Page, Panel, finish, guide, page, points, size_axis
from reproduction.limits.pipeline import Case, Row, Values

THEORY, LIMIT, NETWORK = "theory", "limit", "network"
_DIGITS = (0, 0, 1, 1)  # the last is predicted, not trained on
_SAMPLES, _POPULATIONS = 1024, 8  # the least number in each population, and of populations
_ABOVE_NOISE = 3.0
_WIDE, _DEEP = 32, 8  # from which the variance is near its limit


def cases(config: ConfigDict) -> list[Case]:
    """Theory at each depth, its limit, and an ensemble for each width and depth."""
    names, rates = config.nonlinearities, config.learning_rates
    different = is_distinct(names, lambda name: isinstance(name, str))
    require(config, "nonlinearities", different, "give different names, such as ('relu', 'linear')")
    one_each = isinstance(rates, (tuple, list)) and len(names) == len(rates)
    positive = one_each and all(is_number(rate) and rate > 0 for rate in rates)
    require(config, "learning_rates", positive, f"give one for each of {', '.join(names)}, all positive numbers")
    for name in names:
        if name not in theory.ACTIVATIONS:
            raise InputError(f"config.nonlinearities has {name!r}: use some of {', '.join(theory.ACTIVATIONS)}.")
    require(config, "pre_nonlin", isinstance(config.pre_nonlin, bool), "use True or False")
    check_fields(config, whole="steps lanes seeds_times_width samples", sizes="widths depths", positive="gamma0")
    even = is_whole(config.limit_depth, 2) and config.limit_depth % 2 == 0
    require(config, "limit_depth", even, "use an even number from 2 up, half of it is a depth too")
    least = 4 * max(config.widths)
    enough = config.seeds_times_width >= least
    require(config, "seeds_times_width", enough, f"use at least {least}, four networks at the largest width")
    cases = [
        *({"what": THEORY, "depth": depth} for depth in config.depths),
        {"what": LIMIT},
        *({"what": NETWORK, "depth": d, "width": w} for d, w in itertools.product(config.depths, config.widths)),
    ]
    return [{"nonlinearity": name, **case} for name in names for case in cases]


def measure(config: ConfigDict, case: Case) -> Values:
    """Outputs (steps + 1, P) and losses before each step and after the last, with their errors or variances."""
    if case["what"] == NETWORK:
        return _networks(config, case["nonlinearity"], case["width"], case["depth"])
    # Theory has samples of its own for every depth, and for the limit, so that errors are independent.
    key = jax.random.fold_in(jax.random.key(config.seed), [THEORY, LIMIT].index(case["what"]))
    compute = functools.partial(_theory, config, case["nonlinearity"], key)
    at_depth = case["what"] == THEORY
    estimate = compute(case["depth"]) if at_depth else theory.infinite_depth(compute, config.limit_depth)
    parts = (("", estimate.mean), ("_error", estimate.error))
    return {name + suffix: getattr(part, name).tolist() for name in ("outputs", "losses") for suffix, part in parts}


def _examples() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(P, D) digits of the bundled set, standardized together, (P,) labels of -1 and 1 and shares in the loss."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    chosen = [np.flatnonzero(digits.target == d)[_DIGITS[:i].count(d)] for i, d in enumerate(_DIGITS)]
    x = digits.data[chosen]
    shares = np.full(len(chosen), 1 / (len(chosen) - 1))
    shares[-1] = 0.0
    return (x - x.mean()) / x.std(), np.where(digits.target[chosen] == 0, 1.0, -1.0), shares


def _theory(config: ConfigDict, nonlinearity: str, key: jax.Array, depth: int) -> theory.Estimate:
    x, y, shares = map(jnp.asarray, _examples())
    samples = max(_SAMPLES, 8 * depth * (config.steps + 1) * len(x))  # four for each Gaussian variable
    return theory.nonlinear_training(
        x,
        y,
        activation=nonlinearity,
        pre_nonlin=config.pre_nonlin,
        steps=config.steps + 1,
        depth=depth,
        learning_rate=config.learning_rates[config.nonlinearities.index(nonlinearity)],
        gamma0=config.gamma0,
        shares=shares,
        samples=samples,
        # Without a nonlinearity there is no Monte Carlo error.
        populations=2 if nonlinearity == "linear" else max(_POPULATIONS, config.samples // samples),
        key=jax.random.fold_in(key, depth),
    )


def _networks(config: ConfigDict, nonlinearity: str, width: int, depth: int) -> Values:
    x, y, shares = (jnp.asarray(values, jnp.float32) for values in _examples())
    form = {"pre_nonlin": config.pre_nonlin, "mean_subtraction": not config.pre_nonlin}
    model = networks.network(nonlinearity, width, depth, **form, gamma0=config.gamma0)
    learning_rate = config.learning_rates[config.nonlinearities.index(nonlinearity)]
    optimizer = networks.mean_field_sgd(model, x, learning_rate)
    count = config.seeds_times_width // width
    trained_x, trained_y = (jnp.repeat(values[None, :-1], config.steps + 1, axis=0) for values in (x, y))
    observe = lambda params: networks.forward(model, params, x)[0]
    keys, lanes = networks.network_keys(config.seed, width, depth, count), min(config.lanes, count)
    outputs = networks.trajectories(model, optimizer, trained_x, trained_y, observe, keys, lanes=lanes)
    outputs = np.asarray(outputs, np.float64)
    losses = ((outputs - np.asarray(y)) ** 2 / 2) @ np.asarray(shares, np.float64)
    ensemble = theory.Ensemble.of(outputs)
    return {
        "outputs": ensemble.mean.tolist(),
        "variance": ensemble.variance.tolist(),
        "losses": losses.mean(0).tolist(),
        "losses_error": (losses.std(0, ddof=1) / count**0.5).tolist(),
        "networks": count,
    }


_Errors = Mapping[int, theory.SquareError]  # of each size


class Study:
    """The rows of one nonlinearity by size, and the parts of the error after the last step."""

    def __init__(self, rows: Sequence[Row], nonlinearity: str) -> None:
        rows = [row for row in rows if row["nonlinearity"] == nonlinearity]
        self.nonlinearity = nonlinearity
        (self.limit,) = (row for row in rows if row["what"] == LIMIT)
        self.theory = {row["depth"]: row for row in rows if row["what"] == THEORY}
        self.networks = {(row["width"], row["depth"]): row for row in rows if row["what"] == NETWORK}
        self.widths = sorted({width for width, _ in self.networks})
        self.depths = sorted(self.theory)
        self.errors = {size: self._error(*size) for size in self.networks}

    def _error(self, width: int, depth: int) -> theory.FiniteSizeError:
        row, at_depth = self.networks[width, depth], self.theory[depth]
        return theory.finite_size_error(
            theory.Ensemble(np.array(row["outputs"][-1]), np.array(row["variance"][-1]), row["networks"]),
            at_depth["outputs"][-1],
            self.limit["outputs"][-1],
            at_depth_error=at_depth["outputs_error"][-1],
            limit_error=self.limit["outputs_error"][-1],
        )

    def over(self, part: str, start: int = 0, *, width: int = 0, depth: int = 0) -> _Errors:
        """Part of the error over the size that is not given, from ``start`` up where there is one."""
        sizes = self.depths if width else self.widths
        shown = [size for size in sizes if size >= start] or sizes
        return {size: getattr(self.errors[width or size, depth or size], part) for size in shown}


def studies(rows: Sequence[Row]) -> list[Study]:
    """A study of each nonlinearity."""
    return [Study(rows, name) for name in dict.fromkeys(row["nonlinearity"] for row in rows)]


def table(rows: list[Row]) -> str:
    """Powers of every part of the error, and the parts at all sizes."""
    return "\n\n".join([*map(_table_of, studies(rows)), _NOTE])


_NOTE = f"""\
Squares of outputs after the last step, averaged over four examples (one of them held out); labels are -1 and 1. The
blocks alone are trained. "mean" is the mean over initial weights to theory of the same depth, "depth" that theory to
infinite depth, "ensembled" the mean to infinite width and depth (-2 as long as "mean" is smaller). Errors are standard
errors; values below {_ABOVE_NOISE:g} of them are left out of fits, the variance is fitted from width {_WIDE} and depth
{_DEEP} up."""


def _rate(label: str, errors: _Errors, expected: float | None, n: str) -> Line:
    """The power of the errors that are clearly above their own uncertainty."""
    resolved = {size: [error.value] for size, error in errors.items() if error.value > _ABOVE_NOISE * error.error}
    return rate(label, resolved, expected, n)


def _table_of(study: Study) -> str:
    widest, over = study.widths[-1], study.over
    most, count = (str(study.networks[width, study.depths[0]]["networks"]) for width in (study.widths[0], widest))
    rates = [
        _rate(f"{part}, depth {depth}, over width", over(part, start, depth=depth), power, f"{most} .. {count}")
        for part, start, power in (("variance", _WIDE, -1), ("mean", 0, -2))
        for depth in study.depths
    ]
    at_widest = f"width {widest}, over depth"
    rates += [
        _rate(f"variance, {at_widest}", over("variance", _DEEP, width=widest), 0, count),
        _rate("depth, over depth", over("depth", width=widest), -2, "theory"),
        _rate("depth, over larger depths", over("depth", _DEEP, width=widest), -2, "theory"),
        _rate(f"ensembled, {at_widest}", over("ensembled", width=widest), -2, count),
        _rate(f"total, {at_widest}", over("total", width=widest), None, count),
    ]
    parts = ("variance", "mean", "depth", "ensembled", "total")
    values = [["width, depth", *parts]]
    for width, depth in itertools.product(study.widths, study.depths):
        errors = [getattr(study.errors[width, depth], part) for part in parts]
        values.append([f"{width}, {depth}", *(f"{e.value:.1e} ± {e.error:.0e}" for e in errors)])
    return f"{study.nonlinearity}\n\n{rates_table(rates)}\n\n{aligned(values)}"


def figure(rows: list[Row]) -> Page:
    """A row for each nonlinearity: loss, variance and mean error over width, what is left over depth."""
    counts = {row["width"]: row["networks"] for row in rows if row["what"] == NETWORK}
    ensembles = ", ".join(f"{n} (width {width})" for width, n in counts.items())
    title = "Residual MLPs and the limit of infinite width and depth\n"
    title += f"ensembles of n = {ensembles}; bars: standard errors"
    drawing, panels = page(len(studies(rows)), 4, title, width=3.9, height=4.4)
    for line, study in zip(panels, studies(rows), strict=True):
        _draw_losses(line[0], study)
        _draw_over_width(line[1], study, "variance", -1, "variance over initial weights")
        _draw_over_width(line[2], study, "mean", -2, "mean of networks to theory of their depth")
        _draw_over_depth(line[3], study)
    finish(panels.flat)
    return drawing


def _draw_losses(panel: Panel, study: Study) -> None:
    widest, steps = study.widths[-1], range(len(study.limit["losses"]))
    palette = colors(study.depths)
    for depth in study.depths[:: max(1, len(study.depths) // 2)]:
        row = study.networks[widest, depth]
        panel.plot(steps, study.theory[depth]["losses"], color=palette[depth], label=f"theory, depth {depth}")
        points(panel, steps, row["losses"], row["losses_error"], color=palette[depth])
    panel.plot(steps, study.limit["losses"], color="black", linewidth=1.8, label="theory, infinite depth")
    points(panel, [], [], [], color="0.4", label=f"networks, width {widest}")
    panel.set(title=f"{study.nonlinearity}: mean loss", xlabel="step", ylabel="loss")


def _draw_over_width(panel: Panel, study: Study, part: str, power: int, title: str) -> None:
    for depth, color in colors(study.depths).items():
        _draw_errors(panel, study.over(part, depth=depth), color, f"depth {depth}")
    largest = max(getattr(study.errors[study.widths[0], depth], part).value for depth in study.depths)
    guide(panel, study.widths, 1.6 * largest, power, f"slope {power}")
    size_axis(panel, study.widths, "width N", title=title, ylabel="square error")


def _draw_over_depth(panel: Panel, study: Study) -> None:
    widest = study.widths[-1]
    for width, color in colors(study.widths).items():
        _draw_errors(panel, study.over("ensembled", width=width), color, f"mean, width {width}")
    total = [error.value for error in study.over("total", width=widest).values()]
    panel.plot(study.depths, total, ":", color="0.3", label=f"one network, width {widest}")
    exact = study.over("depth", width=widest)
    _draw_errors(panel, exact, "black", "theory, infinite width")
    guide(panel, study.depths, 0.6 * exact[study.depths[0]].value, -2, "slope -2")
    size_axis(panel, study.depths, "depth L", title="to infinite width and depth", ylabel="square error")


def _draw_errors(panel: Panel, errors: _Errors, color: Color, label: str) -> None:
    """Draws the errors that differ from zero by more than their own error."""
    shown = {size: error for size, error in errors.items() if error.value > error.error}
    values, bars = ([getattr(error, name) for error in shown.values()] for name in ("value", "error"))
    points(panel, list(shown), values, bars, color=color, label=label, joined=True)
