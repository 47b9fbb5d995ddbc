"""The training curve of infinite width and depth as a prediction for finite networks on images (B24, section 4).

B24 is Bordelon et al. (arXiv:2309.16620). Nothing is fitted: `reproduction.theory.nonlinear_training` has the
outputs for the same images, rate and number of steps. The error of a network is the root mean square of its outputs'
difference to the limit's, over images and over the steps after the first update.
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
from reproduction import theory
from reproduction.limits import finite_networks as networks
from reproduction.limits.config_fields import check_fields, is_whole, require
from reproduction.limits.finite_networks import GROUPS
from reproduction.limits.fitted_rates import aligned, rate, rates_table
from reproduction.limits.image_examples import image_set, labeled_images
from reproduction.limits.panels import Color, Page, Panel, draw_groups, finish, guide, page, points, size_axis
from reproduction.limits.pipeline import Case, Row, Values
from reproduction.theory.argument_checks import LAYERS

LIMIT, NETWORKS = "limit", "networks"
_ABOVE_NOISE = 2.0


def cases(config: ConfigDict) -> list[Case]:
    """The limit, then networks of each depth and width."""
    check_fields(config, whole="images steps lanes", several="populations", groups="seeds", sizes="widths depths")
    check_fields(config, positive="learning_rate gamma0")
    known = config.nonlinearity in theory.ACTIVATIONS
    require(config, "nonlinearity", known, f"use one of {', '.join(theory.ACTIVATIONS)}")
    even = is_whole(config.limit_depth, 2) and config.limit_depth % 2 == 0
    require(config, "limit_depth", even, "use an even number from 2 up, half of it is a depth too")
    _examples(config)
    sizes = itertools.product(config.depths, config.widths)
    return [{"what": LIMIT}, *({"what": NETWORKS, "depth": depth, "width": width} for depth, width in sizes)]


def measure(config: ConfigDict, case: Case) -> Values:
    """Outputs (steps + 1, P) before each step and after the last, with their errors; of networks by groups."""
    x_PxD, y_P = _examples(config)
    if case["what"] == LIMIT:
        return {"images": image_set(config).describe(), "targets": y_P.tolist(), **_limit(config, x_PxD, y_P)}
    outputs_SxTxP = _networks(config, case["width"], case["depth"], x_PxD, y_P)
    groups_GxSxTxP = outputs_SxTxP.reshape(GROUPS, -1, *outputs_SxTxP.shape[1:])
    rounded = functools.partial(np.round, decimals=5)
    return {
        "seeds": len(outputs_SxTxP),
        "outputs": rounded(groups_GxSxTxP.mean(1)).tolist(),
        "spread": rounded(groups_GxSxTxP.std(1)).tolist(),
    }


def _examples(config: ConfigDict) -> tuple[np.ndarray, np.ndarray]:
    return labeled_images(config, config.images, asked_by="images")


def _limit(config: ConfigDict, x_PxD: np.ndarray, y_P: np.ndarray) -> Values:
    """In float32, whose rounding is far below Monte Carlo's error."""
    x, y, key = jnp.asarray(x_PxD, jnp.float32), jnp.asarray(y_P, jnp.float32), jax.random.key(config.seed)

    def at_depth(depth: int) -> theory.Estimate:
        return theory.nonlinear_training(
            x,
            y,
            activation=config.nonlinearity,
            steps=config.steps + 1,
            depth=depth,
            learning_rate=config.learning_rate,
            gamma0=config.gamma0,
            trained=LAYERS,
            populations=config.populations,
            key=jax.random.fold_in(key, depth),
        )

    estimate = theory.infinite_depth(at_depth, config.limit_depth)
    return {"outputs": estimate.mean.outputs.tolist(), "error": estimate.error.outputs.tolist()}


def _networks(config: ConfigDict, width: int, depth: int, x_PxD: np.ndarray, y_P: np.ndarray) -> np.ndarray:
    """(S, steps + 1, P) outputs of S networks."""
    x, y = jnp.asarray(x_PxD, jnp.float32), jnp.asarray(y_P, jnp.float32)
    model = networks.network(config.nonlinearity, width, depth, gamma0=config.gamma0)
    optimizer = networks.mean_field_sgd(model, x, config.learning_rate, trained=LAYERS)
    x_TxPxD, y_TxP = (jnp.repeat(values[None], config.steps + 1, axis=0) for values in (x, y))
    observe = lambda params: networks.forward(model, params, x)[0]
    keys = networks.network_keys(config.seed, width, depth, config.seeds)
    outputs = networks.trajectories(model, optimizer, x_TxPxD, y_TxP, observe, keys, lanes=config.lanes)
    return np.asarray(outputs, np.float64)


_Size = tuple[int, int]  # width and depth


class Study:
    """The limit, and what networks of each width and depth differ from it."""

    def __init__(self, rows: Sequence[Row]) -> None:
        (self.limit,) = (row for row in rows if row["what"] == LIMIT)
        self.networks = {(row["width"], row["depth"]): row for row in rows if row["what"] == NETWORKS}
        self.widths = sorted({width for width, _ in self.networks})
        self.depths = sorted({depth for _, depth in self.networks})
        self.largest = self.widths[-1], self.depths[-1]
        self.seeds = self.networks[self.largest]["seeds"]
        self.targets_P, self.limit_TxP = np.array(self.limit["targets"]), np.array(self.limit["outputs"])
        self.limit_losses_T = np.mean((self.limit_TxP - self.targets_P) ** 2, 1) / 2
        self.limit_error = float(np.sqrt(np.mean(np.square(self.limit["error"])[1:])))

    def square_errors(self, size: _Size) -> np.ndarray:
        """(GROUPS,) mean square of a network's difference to the limit, after the first update."""
        return self._squares_GxT(size, self.limit_TxP)[:, 1:].mean(1)

    def error(self, size: _Size) -> float:
        """The root of their mean."""
        return float(np.sqrt(self.square_errors(size).mean()))

    def mean_square_error(self, size: _Size) -> tuple[float, float]:
        """Mean square difference of the mean over initial weights to the limit, unbiased, and its standard error.

        Jackknife over groups, as outputs of different steps are dependent.
        """
        row = self.networks[size]
        outputs_GxTxP, squares_GxTxP = np.array(row["outputs"]), np.array(row["spread"]) ** 2
        without = [self._of_mean(np.delete(outputs_GxTxP, g, 0), np.delete(squares_GxTxP, g, 0)) for g in range(GROUPS)]
        error = (np.var(without) * (GROUPS - 1)) ** 0.5
        return self._of_mean(outputs_GxTxP, squares_GxTxP), float(error)

    def _of_mean(self, outputs_GxTxP: np.ndarray, squares_GxTxP: np.ndarray) -> float:
        count, mean_TxP = self.seeds * len(outputs_GxTxP) // GROUPS, outputs_GxTxP.mean(0)
        variance_TxP = (squares_GxTxP + (outputs_GxTxP - mean_TxP) ** 2).mean(0)  # over all networks, biased
        return float(np.mean(((mean_TxP - self.limit_TxP) ** 2 - variance_TxP / (count - 1))[1:]))

    def losses_GxT(self, size: _Size) -> np.ndarray:
        """Mean loss of networks, by groups, before each step and after the last."""
        return self._squares_GxT(size, self.targets_P) / 2

    def _squares_GxT(self, size: _Size, to: np.ndarray) -> np.ndarray:
        row = self.networks[size]
        return np.mean((np.array(row["outputs"]) - to) ** 2 + np.array(row["spread"]) ** 2, 2)


def table(rows: list[Row]) -> str:
    """Powers of the error over width and depth, the error of every size, and losses in the course of training."""
    study = Study(rows)
    (widest, deepest), last = study.largest, len(study.limit_losses_T) - 1
    square = lambda sizes: {key: study.square_errors(size) for key, size in sizes.items()}
    rates = [
        rate(f"depth {depth}, over width", square({n: (n, depth) for n in study.widths}), -1, study.seeds)
        for depth in study.depths
    ]
    rates += [
        rate(f"width {width}, over depth", square({n: (width, n) for n in study.depths}), None, study.seeds)
        for width in study.widths
    ]
    means = {depth: study.mean_square_error((widest, depth)) for depth in study.depths}
    positive = {depth: [value] for depth, (value, error) in means.items() if value > _ABOVE_NOISE * error}
    rates.append(rate(f"mean of networks of width {widest}, over depth", positive, None, study.seeds))
    errors = [["error of a network", *(f"depth {depth}" for depth in study.depths)]]
    errors += [[f"width {n}", *(f"{study.error((n, depth)):.4f}" for depth in study.depths)] for n in study.widths]
    errors.append([f"mean, width {widest}", *(f"{max(value, 0) ** 0.5:.4f}" for value, _ in means.values())])
    times = sorted({0, 1, last // 2, last})
    losses = [["loss", *(f"step {time}" for time in times)]]
    losses.append(["infinite width and depth", *(f"{study.limit_losses_T[time]:.4f}" for time in times)])
    for width, depth in ((study.widths[0], study.depths[0]), (study.widths[0], deepest), (widest, deepest)):
        losses_GxT = study.losses_GxT((width, depth))
        means, stds = losses_GxT.mean(0), losses_GxT.std(0, ddof=1) / GROUPS**0.5
        cells = (f"{means[time]:.4f} ± {stds[time]:.4f}" for time in times)
        losses.append([f"networks, width {width}, depth {depth}", *cells])
    note = _NOTE.format(error=study.limit_error, seeds=study.seeds)
    return "\n\n".join([f"Square errors\n{rates_table(rates)}", aligned(errors), aligned(losses), note])


_NOTE = f"""\
Error: root mean square difference of a network's outputs to the limit's, over images and the steps after the first
update; labels are -1 and 1. The limit's own error, of Monte Carlo and of its extrapolation in depth, is {{error:.4f}}.
The last line is of the mean over initial weights, without the noise of n networks: what finite depth and width shift.
n = {{seeds}} networks of each size; fits are to the means of {GROUPS} groups, ± of a loss is its standard error."""


def figure(rows: list[Row]) -> Page:
    """Losses over steps for networks over width and over depth, then the error over both."""
    study = Study(rows)
    (widest, deepest), steps = study.largest, len(study.limit_losses_T) - 1
    title = (
        f"Residual MLPs in training ({study.limit['images']}; {len(study.targets_P)} of them, {steps} steps of SGD)\n"
        f"points: mean ± std of {GROUPS} groups, n = {study.seeds} networks of each size; black: theory, nothing fitted"
    )
    drawing, panels = page(2, 2, title, width=4.8, height=4.4)
    _draw_losses(panels[0, 0], study, {f"width {n}": (n, deepest) for n in study.widths[::2]})
    _draw_losses(panels[0, 1], study, {f"depth {n}": (widest, n) for n in study.depths[::2]})
    for panel, size in zip(panels[0], (f"depth {deepest}", f"width {widest}"), strict=True):
        panel.set(title=f"loss of networks of {size}", xlabel="step", ylabel="loss")
    for depth, color in colors(study.depths).items():
        _draw_errors(panels[1, 0], study, {n: (n, depth) for n in study.widths}, color, f"depth {depth}")
    guide(panels[1, 0], study.widths, 1.2 * study.error((study.widths[0], study.depths[0])), -1 / 2, "slope -1/2")
    for width, color in colors(study.widths).items():
        _draw_errors(panels[1, 1], study, {n: (width, n) for n in study.depths}, color, f"width {width}")
    _draw_means(panels[1, 1], study)
    for panel, sizes, name in zip(panels[1], (study.widths, study.depths), ("width N", "depth L"), strict=True):
        size_axis(panel, sizes, name, title="a network's error", ylabel="root mean square")
    finish(panels.flat)
    return drawing


def _draw_losses(panel: Panel, study: Study, sizes: Mapping[str, _Size]) -> None:
    steps = range(len(study.limit_losses_T))
    for (label, size), color in zip(sizes.items(), colors(range(len(sizes))).values(), strict=True):
        losses_GxT = study.losses_GxT(size)
        points(panel, steps, losses_GxT.mean(0), losses_GxT.std(0, ddof=1), color=color, label=label, joined=True)
    panel.plot(steps, study.limit_losses_T, color="black", linewidth=1.8, label="infinite width and depth", zorder=5)


def _draw_errors(panel: Panel, study: Study, sizes: Mapping[int, _Size], color: Color, label: str) -> None:
    groups = {key: np.sqrt(study.square_errors(size)) for key, size in sizes.items()}
    draw_groups(panel, {key: list(values) for key, values in groups.items()}, color, label)


def _draw_means(panel: Panel, study: Study) -> None:
    """Error of the mean over the widest networks, where it is above its noise; in square the bars are symmetric."""
    widest, _ = study.largest
    means = {depth: study.mean_square_error((widest, depth)) for depth in study.depths}
    shown = {depth: value for depth, value in means.items() if value[0] > _ABOVE_NOISE * value[1]}
    roots = [value**0.5 for value, _ in shown.values()]
    bars = [error / (2 * value**0.5) for value, error in shown.values()]
    points(panel, list(shown), roots, bars, color="tab:red", label=f"mean, width {widest}", joined=True)
