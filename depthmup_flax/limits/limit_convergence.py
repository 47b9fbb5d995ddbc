"""Square errors of networks to the limit of infinite width and depth, split into their parts (B24 Fig. 5, B.7)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict
from sklearn.datasets import load_digits

from depthmup_flax.errors import InputError
from depthmup_flax.limits import finite_networks as networks
from depthmup_flax.limits.rates import (
    Rate,
    aligned,
    guide,
    keys_of,
    legend_below,
    rate,
    rates_table,
    require_positive,
    require_sizes,
    require_whole,
)
from depthmup_flax.limits.run import Case, Row, Values
from depthmup_flax.report.style import canvas, colors, size_ticks
from depthmup_flax.theory import ACTIVATIONS, Ensemble, FiniteSizeError, SquareError, finite_size_error, infinite_depth
from depthmup_flax.theory import nonlinear_training as theory_of

THEORY, LIMIT, NETWORK = "theory", "limit", "network"
_DIGITS = (0, 0, 1, 1)  # the last is predicted, not trained on
_SAMPLES, _POPULATIONS = 1024, 8  # at least, in each population, and of these
_ABOVE_NOISE = 3.0
_WIDE, _DEEP = 32, 8  # from which the variance is near its limit


def cases(config: ConfigDict) -> list[Case]:
    """Theory at each depth, its limit, and an ensemble for each width and depth."""
    names, rates = config.nonlinearities, config.learning_rates
    if not isinstance(names, (tuple, list)) or not names or len(set(names)) < len(names):
        raise InputError(f"config.nonlinearities is {names!r}: give different names, such as ('relu', 'linear').")
    if not isinstance(rates, (tuple, list)) or len(names) != len(rates):
        raise InputError(f"config.learning_rates is {rates!r}: give one for each of {', '.join(names)}.")
    if not all(isinstance(rate, (int, float)) and 0 < rate < math.inf for rate in rates):
        raise InputError(f"config.learning_rates is {rates!r}: use positive numbers.")
    for name in names:
        if name not in ACTIVATIONS:
            raise InputError(f"config.nonlinearities has {name!r}: use some of {', '.join(ACTIVATIONS)}.")
    require_whole(config, "seed", at_least=0)
    require_sizes(config, "widths", "depths")
    require_positive(config, "gamma0")
    require_whole(config, "steps", "lanes", "seeds_times_width", "samples")
    require_whole(config, "limit_depth", at_least=2)
    if config.limit_depth % 2:
        raise InputError(f"config.limit_depth is {config.limit_depth}: use an even number, half of it is a depth too.")
    if config.seeds_times_width < 4 * max(config.widths):
        raise InputError(
            f"config.seeds_times_width is {config.seeds_times_width}: use at least {4 * max(config.widths)}, four "
            "networks at the largest width."
        )
    found: list[Case] = []
    for name in config.nonlinearities:
        found += [{"what": THEORY, "nonlinearity": name, "depth": depth} for depth in config.depths]
        found.append({"what": LIMIT, "nonlinearity": name})
        found += [
            {"what": NETWORK, "nonlinearity": name, "depth": depth, "width": width}
            for depth in config.depths
            for width in config.widths
        ]
    return found


def measure(config: ConfigDict, case: Case) -> Values:
    """Outputs (steps + 1, P) and losses before each step and after the last, with their errors or variances."""
    if case["what"] == NETWORK:
        return _networks(config, case["nonlinearity"], case["width"], case["depth"])
    # Samples of their own for every depth, and for the limit, so that errors are independent.
    key = jax.random.fold_in(jax.random.key(config.seed), [THEORY, LIMIT].index(case["what"]))
    theory = _theory(config, case["nonlinearity"], key)
    found = theory(case["depth"]) if case["what"] == THEORY else infinite_depth(theory, config.limit_depth)
    return {
        "outputs": found.mean.outputs.tolist(),
        "outputs_error": found.error.outputs.tolist(),
        "losses": found.mean.losses.tolist(),
        "losses_error": found.error.losses.tolist(),
    }


def _examples() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(P, D) digits of the bundled set, standardised together, (P,) labels of -1 and 1 and shares in the loss."""
    digits = load_digits()
    chosen = [np.flatnonzero(digits.target == d)[_DIGITS[:i].count(d)] for i, d in enumerate(_DIGITS)]
    x = digits.data[chosen]
    shares = np.full(len(chosen), 1 / (len(chosen) - 1))
    shares[-1] = 0.0
    return (x - x.mean()) / x.std(), np.where(digits.target[chosen] == 0, 1.0, -1.0), shares


def _learning_rate(config: ConfigDict, nonlinearity: str) -> float:
    return dict(zip(config.nonlinearities, config.learning_rates, strict=True))[nonlinearity]


def _theory(config: ConfigDict, nonlinearity: str, key: jax.Array) -> Callable[[int], Any]:
    x, y, shares = _examples()

    def at(depth: int) -> Any:
        each = max(_SAMPLES, 8 * depth * (config.steps + 1) * len(x))  # four for each Gaussian variable
        return theory_of(
            jnp.asarray(x),
            jnp.asarray(y),
            activation=nonlinearity,
            steps=config.steps + 1,
            depth=depth,
            learning_rate=_learning_rate(config, nonlinearity),
            gamma0=config.gamma0,
            shares=jnp.asarray(shares),
            samples=each,
            # Without a nonlinearity there is no Monte Carlo error.
            populations=2 if nonlinearity == "linear" else max(_POPULATIONS, config.samples // each),
            key=jax.random.fold_in(key, depth),
        )

    return at


def _networks(config: ConfigDict, nonlinearity: str, width: int, depth: int) -> Values:
    x, y, shares = (jnp.asarray(values, jnp.float32) for values in _examples())
    model = networks.network(nonlinearity, width, depth, gamma0=config.gamma0)
    optimizer = networks.mean_field_sgd(model, x, _learning_rate(config, nonlinearity))
    count = config.seeds_times_width // width
    trained_x, trained_y = (jnp.repeat(values[None, :-1], config.steps + 1, axis=0) for values in (x, y))
    outputs = networks.trajectories(
        model,
        optimizer,
        trained_x,
        trained_y,
        lambda params: networks.forward(model, params, x)[0],
        keys_of(config.seed, width, depth, count),
        lanes=min(config.lanes, count),
    )
    outputs = np.asarray(outputs, np.float64)
    losses = ((outputs - np.asarray(y)) ** 2 / 2) @ np.asarray(shares, np.float64)
    found = Ensemble.of(outputs)
    return {
        "outputs": found.mean.tolist(),
        "variance": found.variance.tolist(),
        "losses": losses.mean(0).tolist(),
        "losses_error": (losses.std(0, ddof=1) / count**0.5).tolist(),
        "networks": count,
    }


class _Study:
    """What the rows say of one nonlinearity, after the last step."""

    def __init__(self, rows: Sequence[Row], nonlinearity: str) -> None:
        mine = [row for row in rows if row["nonlinearity"] == nonlinearity]
        self.nonlinearity = nonlinearity
        (self.limit,) = (row for row in mine if row["what"] == LIMIT)
        self.theory = {row["depth"]: row for row in mine if row["what"] == THEORY}
        self.networks = {(row["width"], row["depth"]): row for row in mine if row["what"] == NETWORK}
        self.widths = sorted({width for width, _ in self.networks})
        self.depths = sorted(self.theory)
        self.errors = {size: self._error(*size) for size in self.networks}

    def _error(self, width: int, depth: int) -> FiniteSizeError:
        row, at = self.networks[width, depth], self.theory[depth]
        return finite_size_error(
            Ensemble(np.array(row["outputs"][-1]), np.array(row["variance"][-1]), row["networks"]),
            at["outputs"][-1],
            self.limit["outputs"][-1],
            at_depth_error=at["outputs_error"][-1],
            limit_error=self.limit["outputs_error"][-1],
        )

    def over_width(self, part: str, depth: int) -> dict[int, SquareError]:
        """Width -> this part of the error."""
        return {width: getattr(self.errors[width, depth], part) for width in self.widths}

    def over_depth(self, part: str, width: int) -> dict[int, SquareError]:
        """Depth -> this part of the error."""
        return {depth: getattr(self.errors[width, depth], part) for depth in self.depths}


def _studies(rows: Sequence[Row]) -> list[_Study]:
    return [_Study(rows, name) for name in dict.fromkeys(row["nonlinearity"] for row in rows)]


def _resolved(errors: Mapping[int, SquareError]) -> dict[int, SquareError]:
    """Those that are clearly above their own uncertainty."""
    return {size: found for size, found in errors.items() if found.value > _ABOVE_NOISE * found.error}


def _at(sizes: Sequence[int], errors: Mapping[int, SquareError]) -> dict[int, SquareError]:
    return {size: errors[size] for size in sizes}


def _rate(what: str, errors: Mapping[int, SquareError], expected: float | None, n: str) -> Rate:
    return rate(what, {size: [found.value] for size, found in _resolved(errors).items()}, expected, n)


def table(rows: list[Row]) -> str:
    """Powers of every part of the error, and the parts at all sizes."""
    return "\n\n".join([*(_table_of(study) for study in _studies(rows)), _NOTE])


_NOTE = f"""\
Squares of outputs after the last step, averaged over four examples (one of them held out); labels are -1 and 1. The
blocks alone are trained. "mean" is the mean over initial weights to theory of the same depth, "depth" that theory to
infinite depth, "ensembled" the mean to infinite width and depth (-2 as long as "mean" is smaller). Errors are standard
errors; values below {_ABOVE_NOISE:g} of them are left out of fits, the variance is fitted from width {_WIDE} and depth
{_DEEP} up."""


def _table_of(study: _Study) -> str:
    widest, count = study.widths[-1], study.networks[study.widths[-1], study.depths[0]]["networks"]
    n = f"{study.networks[study.widths[0], study.depths[0]]['networks']} .. {count}"
    wide = [width for width in study.widths if width >= _WIDE] or study.widths
    rates = [
        _rate(f"variance, depth {depth}, over width", _at(wide, study.over_width("variance", depth)), -1, n)
        for depth in study.depths
    ]
    rates += [
        _rate(f"mean, depth {depth}, over width", study.over_width("mean", depth), -2, n) for depth in study.depths
    ]
    deep = [depth for depth in study.depths if depth >= _DEEP] or study.depths
    variance = _at(deep, study.over_depth("variance", widest))
    rates += [
        _rate(f"variance, width {widest}, over depth", variance, 0, str(count)),
        _rate("depth, over depth", study.over_depth("depth", widest), -2, "theory"),
        _rate("depth, over larger depths", _at(deep, study.over_depth("depth", widest)), -2, "theory"),
        _rate(f"ensembled, width {widest}, over depth", study.over_depth("ensembled", widest), -2, str(count)),
        _rate(f"total, width {widest}, over depth", study.over_depth("total", widest), None, str(count)),
    ]
    said = lambda found: f"{found.value:.1e} ± {found.error:.0e}"
    parts = ("variance", "mean", "depth", "ensembled", "total")
    values = [["width, depth", *parts]] + [
        [f"{width}, {depth}", *(said(getattr(study.errors[width, depth], part)) for part in parts)]
        for width in study.widths
        for depth in study.depths
    ]
    return f"{study.nonlinearity}\n\n{rates_table(rates)}\n\n{aligned(values)}"


def figure(rows: list[Row]) -> Any:
    """A row for each nonlinearity: loss, variance and mean error over width, what is left over depth."""
    studies = _studies(rows)
    found, panels = canvas(len(studies), 4, width=3.9, height=4.4)
    counts = {row["width"]: row["networks"] for row in rows if row["what"] == NETWORK}
    found.suptitle(
        "Residual MLPs and the limit of infinite width and depth\n"
        + "ensembles of n = "
        + ", ".join(f"{n} (width {width})" for width, n in counts.items())
        + "; bars: standard errors",
        fontsize=11,
    )
    for line, study in zip(panels, studies, strict=True):
        _draw_losses(line[0], study)
        _draw_over_width(line[1], study, "variance", -1, "variance over initial weights")
        _draw_over_width(line[2], study, "mean", -2, "mean of networks to theory of their depth")
        _draw_over_depth(line[3], study)
        for panel in line:
            panel.grid(alpha=0.25)
            legend_below(panel)
    return found


def _draw_losses(panel: Any, study: _Study) -> None:
    widest, steps = study.widths[-1], range(len(study.limit["losses"]))
    palette = colors(study.depths)
    for depth in study.depths[:: max(1, len(study.depths) // 2)]:
        row = study.networks[widest, depth]
        panel.plot(steps, study.theory[depth]["losses"], color=palette[depth], label=f"theory, depth {depth}")
        panel.errorbar(
            steps, row["losses"], row["losses_error"], color=palette[depth], fmt="o", markersize=4, capsize=2
        )
    panel.plot(steps, study.limit["losses"], color="black", linewidth=1.8, label="theory, infinite depth")
    panel.errorbar([], [], [], color="0.4", fmt="o", markersize=4, label=f"networks, width {widest}")
    panel.set(title=f"{study.nonlinearity}: mean loss", xlabel="step", ylabel="loss")


def _draw_over_width(panel: Any, study: _Study, part: str, power: int, title: str) -> None:
    palette, largest = colors(study.depths), 0.0
    for depth in study.depths:
        _draw_errors(panel, study.over_width(part, depth), color=palette[depth], label=f"depth {depth}")
        largest = max(largest, study.over_width(part, depth)[study.widths[0]].value)
    guide(panel, study.widths, 1.6 * largest, power, f"slope {power}")
    panel.set_yscale("log")
    size_ticks(panel, study.widths, "width N")
    panel.set(title=title, ylabel="square error")


def _draw_over_depth(panel: Any, study: _Study) -> None:
    palette = colors(study.widths)
    for width in study.widths:
        _draw_errors(panel, study.over_depth("ensembled", width), color=palette[width], label=f"mean, width {width}")
    total = {depth: found.value for depth, found in study.over_depth("total", study.widths[-1]).items()}
    panel.plot(*zip(*total.items(), strict=True), ":", color="0.3", label=f"one network, width {study.widths[-1]}")
    exact = study.over_depth("depth", study.widths[-1])
    _draw_errors(panel, exact, color="black", linewidth=1.8, label="theory, infinite width")
    guide(panel, study.depths, 0.6 * exact[study.depths[0]].value, -2, "slope -2")
    panel.set_yscale("log")
    size_ticks(panel, study.depths, "depth L")
    panel.set(title="to infinite width and depth", ylabel="square error")


def _draw_errors(panel: Any, errors: Mapping[int, SquareError], **style: Any) -> None:
    """Those that can be told from zero."""
    shown = {size: found for size, found in errors.items() if found.value > found.error}
    style = {"fmt": "o-", "markersize": 4, "capsize": 2, "linewidth": 1.2, **style}
    panel.errorbar(list(shown), [e.value for e in shown.values()], [e.error for e in shown.values()], **style)
