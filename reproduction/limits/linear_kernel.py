"""The feature kernel of a linear residual network over layer time, before and after one step of SGD (B24 Fig. 7).

B24 is Bordelon et al. (arXiv:2309.16620). ``H^l = |h^l|^2 / N`` of one input x with ``|x|^2 / D = 1``; the step is on
(x, y), and the blocks alone are trained.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from depthmup_flax.report.style import colors
from reproduction.limits import finite_networks as networks
from reproduction.limits.config_fields import check_fields
from reproduction.limits.fitted_rates import Line, aligned, range_text, rate, rates_table
from reproduction.limits.panels import Page, Panel, draw_groups, finish, guide, page, points, size_axis
from reproduction.limits.pipeline import Case, Row, Values
from reproduction.theory import linear_training, one_step_kernel

_ABOVE_NOISE = 2.0  # an ensemble is fitted where the error of theory is this many times the noise of its mean
_DEEP = 16  # from here on theory's error is a power of depth
_MARKS = 8  # points of a profile, at most
_LIMIT_TIMES = 64  # intervals of layer time at which the limit is computed
_NAMES, _COLORS = {"before": "H_0", "change": "H_1 - H_0"}, {"before": "tab:blue", "change": "tab:orange"}


def cases(config: ConfigDict) -> list[Case]:
    """Theory, where depth 0 is infinity; wide networks over depth; networks of one depth over width."""
    check_fields(config, whole="profile_width width_depth lanes", sizes="theory_depths depths widths")
    check_fields(config, positive="learning_rate gamma0 target", groups="profile_seeds seeds")
    ensembles = [("depth", config.profile_width, depth, config.profile_seeds) for depth in config.depths]
    for width, seeds in networks.ensemble_sizes(config.widths, config.seeds).items():
        ensembles.append(("width", width, config.width_depth, seeds))
    depths = sorted({0, *config.theory_depths, *config.depths, config.width_depth})
    return [{"what": "theory", "depth": depth} for depth in depths] + [
        {"what": "networks", "width": width, "depth": depth, "seeds": seeds, "panel": panel}
        for panel, width, depth, seeds in ensembles
    ]


def measure(config: ConfigDict, case: Case) -> Values:
    """``H_0`` and ``H_1`` at every layer."""
    depth, scale = case["depth"], config.learning_rate * config.gamma0 * config.target
    if case["what"] == "networks":
        return _of_networks(config, case["width"], depth, case["seeds"], scale)
    times = np.linspace(0, 1, (depth or _LIMIT_TIMES) + 1)
    before, change = _theory(config, depth) if depth else _limit(times, scale)
    profiles = {"time": times.tolist(), "before": before.tolist(), "change": change.tolist()}
    printed = {"printed": (printed_kernel(times, scale) - before).tolist()}
    return {**profiles, **(_errors(before, change, scale) if depth else printed)}


def _limit(times: np.ndarray, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """``H_0`` and ``H_1 - H_0`` at infinite width and depth."""
    before = np.exp(times)
    return before, np.asarray(one_step_kernel(jnp.asarray(times), scale)) - before


def _errors(before_L: np.ndarray, change_L: np.ndarray, scale: float) -> dict[str, float]:
    """Root mean square over layers of the differences to infinite depth."""
    limit_before, limit_change = _limit(np.linspace(0, 1, len(before_L)), scale)
    rms = lambda difference_L: float(np.sqrt(np.mean(difference_L**2)))
    return {"error_before": rms(before_L - limit_before), "error_change": rms(change_L - limit_change)}


def printed_kernel(times: np.ndarray, scale: float) -> np.ndarray:
    """``H_1(tau)`` as B24 Eq. 7 and 99 print it, for comparison; `one_step_kernel` is right.

    The equation inherits ``G_0 = e^-tau + 1 - e^-1`` from Eq. 92, which solves ``dG/dtau = -G, G(1) = 1`` wrongly, and
    has 1 + 1/e where its own Eq. 98 integrates to 1 - 1/e.
    """
    e = np.exp(times)
    bracket = times**3 / 3 + times**2 / 2 + (1 + np.exp(-1)) * (times**2 * e - times * e + e - 1)
    return np.asarray(e + 2 * scale**2 * e * bracket)


def _theory(config: ConfigDict, depth: int) -> tuple[np.ndarray, np.ndarray]:
    """``H_0`` and ``H_1 - H_0`` at infinite width and this depth."""
    batches, rate = (jnp.ones((2, 1, 1)), jnp.full((2, 1), config.target)), config.learning_rate
    features = np.asarray(linear_training(*batches, depth=depth, learning_rate=rate, gamma0=config.gamma0).features)
    return features[:, 0, 0], features[:, 1, 1] - features[:, 0, 0]


def _of_networks(config: ConfigDict, width: int, depth: int, seeds: int, scale: float) -> Values:
    model = networks.network("linear", width, depth, gamma0=config.gamma0)
    x_TxBxD = jnp.ones((2, 1, 1), jnp.float32)
    y_TxB = jnp.full((2, 1), config.target, jnp.float32)
    optimizer = networks.mean_field_sgd(model, x_TxBxD[0], config.learning_rate)
    kernel = lambda params: jnp.mean(networks.forward(model, params, x_TxBxD[0])[1][:, 0] ** 2, axis=-1)
    keys = networks.network_keys(config.seed, width, depth, seeds)
    kernels_SxTxL = networks.trajectories(model, optimizer, x_TxBxD, y_TxB, kernel, keys, lanes=config.lanes)
    before_SxL, after_SxL = np.moveaxis(np.asarray(kernels_SxTxL, np.float64), 1, 0)
    change_SxL = after_SxL - before_SxL
    values: Values = _errors(before_SxL.mean(0), change_SxL.mean(0), scale)
    for name, kernel_SxL, theory_L in zip(_NAMES, (before_SxL, change_SxL), _theory(config, depth), strict=True):
        values[name] = kernel_SxL.mean(0).tolist()
        values[f"spread_{name}"] = kernel_SxL.std(0, ddof=1).tolist()
        values[f"square_errors_{name}"] = networks.group_means(np.mean((kernel_SxL - theory_L) ** 2, 1))
    return values


class _Study:
    """The rows, by what they are."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.theory = {row["depth"]: row for row in rows if row["what"] == "theory"}
        self.of_depth = {row["depth"]: row for row in rows if row.get("panel") == "depth"}
        self.of_width = {row["width"]: row for row in rows if row.get("panel") == "width"}
        profile = next(iter(self.of_depth.values()))
        self.wide, self.seeds = profile["width"], profile["seeds"]
        self.width_depth = next(iter(self.of_width.values()))["depth"]
        self.width_seeds = range_text(row["seeds"] for row in self.of_width.values())

    def noise(self, name: str, depth: int) -> float:
        """What a finite number of networks adds to the root mean square difference of their mean."""
        spread = np.array(self.of_depth[depth][f"spread_{name}"])
        return float(np.sqrt(np.mean(spread**2) / self.seeds))


def table(rows: list[Row]) -> str:
    """Powers of the errors over depth and width, and the values at the last layer."""
    study = _Study(rows)
    rates = [line for name in _NAMES for line in _rates(study, name)]
    return "\n\n".join([rates_table(rates), aligned(_last_layer(study)), _NOTE])


_NOTE = f"""\
The blocks alone are trained; |x|^2 / D = 1. Errors over depth: root mean square over layers of the difference to
infinite depth. Theory's power is fitted from depth {_DEEP} up; networks' at the depths where theory's error is above
{_ABOVE_NOISE:g} times the noise of their mean, with theory's there below. Errors over width: squares, mean over layers.
As printed: B24 Eq. 7, which inherits a slip from Eq. 92. Theory is the corrected formula."""


def _rates(study: _Study, name: str) -> list[Line]:
    label, theory = _NAMES[name], study.theory
    above = [d for d in study.of_depth if theory[d][f"error_{name}"] > _ABOVE_NOISE * study.noise(name, d)]
    deep = [depth for depth in study.theory if depth >= _DEEP]
    to_limit = f"{label}: {{}} to infinite depth, over depth"
    errors = lambda rows, depths: {depth: [rows[depth][f"error_{name}"]] for depth in depths}
    mean = f"mean of networks, width {study.wide},"
    single = f"{label}: network of depth {study.width_depth} to theory of that depth, over width"
    of_width = {width: row[f"square_errors_{name}"] for width, row in study.of_width.items()}
    return [
        rate(to_limit.format("theory of depth L"), errors(study.theory, deep), -1, "exact"),
        rate(to_limit.format(mean), errors(study.of_depth, above), -1, study.seeds),
        rate(to_limit.format("theory of depth L"), errors(study.theory, above), None, "exact"),
        rate(single, of_width, -1, study.width_seeds),
    ]


def _last_layer(study: _Study) -> list[Line]:
    """``H_1`` at the last layer: before plus change."""
    at_end = lambda row, name="change": f"{row['before'][-1] + row[name][-1]:.2f}"
    head = ["theory", f"networks, width {study.wide}: mean", "± std of H_1 - H_0", "± std of its mean"]
    lines = [["H_1 at tau = 1", *head]]
    for depth, row in study.of_depth.items():
        spreads = [f"{row['spread_change'][-1] / math.sqrt(n):.2f}" for n in (1, study.seeds)]
        lines.append([f"depth {depth}", at_end(study.theory[depth]), at_end(row), *spreads])
    lines.append(["infinite depth", at_end(study.theory[0]), "", "", ""])
    return [*lines, ["infinite depth, as printed", at_end(study.theory[0], "printed"), "", "", ""]]


def figure(rows: list[Row]) -> Page:
    """Profiles over layer time; errors of the mean over depth, and of a network over width."""
    study = _Study(rows)
    title = (
        "Feature kernel of linear residual networks, before and after one step of SGD on one example\n"
        f"profiles: mean ± its standard error, n = {study.seeds} networks of width {study.wide}; thin lines: theory of "
        "that depth"
    )
    drawing, panels = page(2, 2, title, width=4.8, height=4.2)
    for panel, name, letter in zip(panels[0], _NAMES, "ab", strict=True):
        _draw_profiles(panel, study, name, letter)
    _draw_over_depth(panels[1, 0], study)
    _draw_over_width(panels[1, 1], study)
    finish(panels.flat)
    return drawing


def _draw_profiles(panel: Panel, study: _Study, name: str, letter: str) -> None:
    for depth, color in colors(list(study.of_depth)).items():
        theory, row = study.theory[depth], study.of_depth[depth]
        panel.plot(theory["time"], theory[name], color=color, linewidth=1)
        marks = slice(None, None, math.ceil(depth / _MARKS))
        error = np.array(row[f"spread_{name}"][marks]) / math.sqrt(study.seeds)
        times, label = theory["time"][marks], f"networks, depth {depth}"
        points(panel, times, row[name][marks], error, color=color, label=label)
    limit = study.theory[0]
    if name == "change":
        panel.plot(limit["time"], limit["printed"], ":", color="tab:red", linewidth=1.8, label="Eq. 7 as printed")
    panel.plot(limit["time"], limit[name], "--", color="black", linewidth=1.8, label="theory, infinite depth")
    panel.set(title=f"({letter}) ${_NAMES[name]}$", xlabel=r"layer time $\tau = l / L$", ylabel=f"${_NAMES[name]}$")


def _draw_over_depth(panel: Panel, study: _Study) -> None:
    depths, network_depths = sorted(depth for depth in study.theory if depth), list(study.of_depth)
    for name, color in _COLORS.items():
        exact = [study.theory[depth][f"error_{name}"] for depth in depths]
        measured = [row[f"error_{name}"] for row in study.of_depth.values()]
        panel.plot(depths, exact, color=color, linewidth=1.5, label=f"${_NAMES[name]}$, theory")
        points(panel, network_depths, measured, color=color, label=f"${_NAMES[name]}$, networks")
        panel.plot(network_depths, [study.noise(name, d) for d in network_depths], ":", color=color, linewidth=1)
    panel.plot([], [], ":", color="0.4", linewidth=1, label="noise of n networks' mean")
    guide(panel, depths, 1.6 * study.theory[depths[0]]["error_change"], -1, "expected slope -1")
    ylabel = "root mean square difference"
    size_axis(panel, depths, "depth L", title="(c) mean profile to infinite depth", ylabel=ylabel)


def _draw_over_width(panel: Panel, study: _Study) -> None:
    widths = list(study.of_width)
    for name, color in _COLORS.items():
        groups = {width: row[f"square_errors_{name}"] for width, row in study.of_width.items()}
        draw_groups(panel, groups, color, f"${_NAMES[name]}$")
        start = 2 * float(np.mean(groups[min(widths)]))
        guide(panel, widths, start, -1, "expected slope -1" if name == "change" else None)
    title = f"(d) one network to theory, depth {study.width_depth}, n = {study.width_seeds}"
    ylabel = f"mean square difference\n(± std over {networks.GROUPS} groups of networks)"
    size_axis(panel, widths, "width N", title=title, ylabel=ylabel)
