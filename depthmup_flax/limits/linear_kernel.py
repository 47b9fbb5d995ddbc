"""The feature kernel of a linear residual network over layer time, before and after one step of SGD (B24 Fig. 7).

``H^l = |h^l|^2 / N`` of one input x with ``|x|^2 / D = 1``; the step is on (x, y), and the blocks alone are trained.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from depthmup_flax.limits import finite_networks as networks
from depthmup_flax.limits.rates import (
    GROUPS,
    Rate,
    aligned,
    draw_groups,
    guide,
    in_groups,
    keys_of,
    legend_below,
    networks_of,
    rate,
    rates_table,
    require_in_groups,
    require_positive,
    require_sizes,
    require_whole,
    spoken_range,
)
from depthmup_flax.limits.run import Case, Row, Values
from depthmup_flax.report.style import canvas, colors, size_ticks
from depthmup_flax.theory import linear_training, one_step_kernel

_ABOVE_NOISE = 2.0  # an ensemble is fitted where the error of theory is so many times the noise of its mean
_DEEP = 16  # from here on theory's error is a power of depth
_MARKS = 8  # of a profile, at most


def cases(config: ConfigDict) -> list[Case]:
    """Theory, where depth 0 is infinity; wide networks over depth; networks of one depth over width."""
    require_whole(config, "profile_width", "width_depth", "lanes")
    require_whole(config, "seed", at_least=0)
    require_sizes(config, "theory_depths", "depths", "widths")
    require_positive(config, "learning_rate", "gamma0", "target")
    require_in_groups(config, "profile_seeds", "seeds")
    depths = sorted({*config.theory_depths, *config.depths, config.width_depth})
    wide = [_networks(config.profile_width, depth, config.profile_seeds) for depth in config.depths]
    per_width = networks_of(config.widths, config.seeds)
    over_width = [_networks(width, config.width_depth, seeds) for width, seeds in per_width.items()]
    return [
        *({"what": "theory", "depth": depth} for depth in (0, *depths)),
        *({**case, "panel": "depth"} for case in wide),
        *({**case, "panel": "width"} for case in over_width),
    ]


def _networks(width: int, depth: int, seeds: int) -> Case:
    return {"what": "networks", "width": width, "depth": depth, "seeds": seeds}


def measure(config: ConfigDict, case: Case) -> Values:
    """``H_0`` and ``H_1`` at every layer."""
    step = (config.learning_rate, config.gamma0, config.target)
    if case["what"] == "networks":
        return _of_networks(config, case["width"], case["depth"], case["seeds"])
    depth = case["depth"]
    if depth:
        before, after = _theory(depth, *step)
        found = {"time": _times(depth).tolist(), "before": before.tolist(), "change": (after - before).tolist()}
        return {**found, **_to_the_limit(before, after - before, step)}
    times, scale = _times(64), math.prod(step)
    before, change = _limit(times, scale)
    printed = printed_kernel(times, scale) - before
    return {"time": times.tolist(), "before": before.tolist(), "change": change.tolist(), "printed": printed.tolist()}


def _times(depth: int) -> np.ndarray:
    return np.linspace(0, 1, depth + 1)


def _limit(times: np.ndarray, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """``H_0`` and ``H_1 - H_0`` at infinite width and depth."""
    before = np.exp(times)
    return before, np.asarray(one_step_kernel(jnp.asarray(times), scale)) - before


def _to_the_limit(before_L: np.ndarray, change_L: np.ndarray, step: tuple[float, ...]) -> dict[str, float]:
    """Root mean square over layers of the differences to infinite depth."""
    limits = _limit(_times(len(before_L) - 1), math.prod(step))
    errors = (float(np.sqrt(np.mean((f - limit) ** 2))) for f, limit in zip((before_L, change_L), limits, strict=True))
    return dict(zip(("error_before", "error_change"), errors, strict=True))


def printed_kernel(times: np.ndarray, scale: float) -> np.ndarray:
    """``H_1(tau)`` as B24 Eq. 7 and 99 print it, for comparison; `one_step_kernel` is right.

    The equation inherits ``G_0 = e^-tau + 1 - e^-1`` from Eq. 92, which solves ``dG/dtau = -G, G(1) = 1`` wrongly, and
    has 1 + 1/e where its own Eq. 98 integrates to 1 - 1/e.
    """
    e = np.exp(times)
    bracket = times**3 / 3 + times**2 / 2 + (1 + np.exp(-1)) * (times**2 * e - times * e + e - 1)
    return np.asarray(e + 2 * scale**2 * e * bracket)


def _theory(depth: int, learning_rate: float, gamma0: float, target: float) -> tuple[np.ndarray, np.ndarray]:
    """Infinite width at this depth."""
    inputs, targets = jnp.ones((2, 1, 1)), jnp.full((2, 1), target)
    features = linear_training(inputs, targets, depth=depth, learning_rate=learning_rate, gamma0=gamma0).features
    return np.asarray(features[:, 0, 0]), np.asarray(features[:, 1, 1])


def _of_networks(config: ConfigDict, width: int, depth: int, seeds: int) -> Values:
    model = networks.network("linear", width, depth, gamma0=config.gamma0)
    x_TxBxD = jnp.ones((2, 1, 1), jnp.float32)
    y_TxB = jnp.full((2, 1), config.target, jnp.float32)
    optimizer = networks.mean_field_sgd(model, x_TxBxD[0], config.learning_rate)

    def kernel(params: Any) -> jax.Array:
        return jnp.mean(networks.forward(model, params, x_TxBxD[0])[1][:, 0] ** 2, axis=-1)

    keys = keys_of(config.seed, width, depth, seeds)
    found = networks.trajectories(model, optimizer, x_TxBxD, y_TxB, kernel, keys, lanes=config.lanes)
    before_SxL, after_SxL = np.moveaxis(np.asarray(found, np.float64), 1, 0)
    theory_before, theory_after = _theory(depth, config.learning_rate, config.gamma0, config.target)
    change_SxL = after_SxL - before_SxL
    step = (config.learning_rate, config.gamma0, config.target)
    return {
        **_to_the_limit(before_SxL.mean(0), change_SxL.mean(0), step),
        "before": before_SxL.mean(0).tolist(),
        "change": change_SxL.mean(0).tolist(),
        "spread_before": before_SxL.std(0, ddof=1).tolist(),
        "spread_change": change_SxL.std(0, ddof=1).tolist(),
        "square_errors_before": in_groups(np.mean((before_SxL - theory_before) ** 2, 1)),
        "square_errors_change": in_groups(np.mean((change_SxL - (theory_after - theory_before)) ** 2, 1)),
    }


class _Study:
    """The rows, by what they are."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.theory = {row["depth"]: row for row in rows if row["what"] == "theory"}
        self.of_depth = {row["depth"]: row for row in rows if row.get("panel") == "depth"}
        self.of_width = {row["width"]: row for row in rows if row.get("panel") == "width"}
        first, other = next(iter(self.of_depth.values())), next(iter(self.of_width.values()))
        self.wide, self.seeds = first["width"], first["seeds"]
        self.width_depth = other["depth"]
        self.width_seeds = spoken_range(row["seeds"] for row in self.of_width.values())

    def noise(self, name: str, depth: int) -> float:
        """What finitely many networks add to the root mean square difference of their mean."""
        spread = np.array(self.of_depth[depth][f"spread_{name}"])
        return float(np.sqrt(np.mean(spread**2) / self.seeds))

    def above_noise(self, name: str) -> list[int]:
        """Depths at which an ensemble can tell its depth from infinity."""
        return [d for d in self.of_depth if self.theory[d][f"error_{name}"] > _ABOVE_NOISE * self.noise(name, d)]


_NAMES = {"before": "H_0", "change": "H_1 - H_0"}


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


def _rates(study: _Study, name: str) -> list[Rate]:
    label, above = _NAMES[name], study.above_noise(name)
    deep = [depth for depth in study.theory if depth >= _DEEP]
    to_limit = f"{label}: {{}} to infinite depth, over depth"

    def theory(depths: Sequence[int]) -> dict[int, list[float]]:
        return {depth: [study.theory[depth][f"error_{name}"]] for depth in depths}

    return [
        rate(to_limit.format("theory of depth L"), theory(deep), -1, "exact"),
        rate(
            to_limit.format(f"mean of networks, width {study.wide},"),
            {depth: [study.of_depth[depth][f"error_{name}"]] for depth in above},
            -1,
            str(study.seeds),
        ),
        rate(to_limit.format("theory of depth L"), theory(above), None, "exact"),
        rate(
            f"{label}: network of depth {study.width_depth} to theory of that depth, over width",
            {width: row[f"square_errors_{name}"] for width, row in study.of_width.items()},
            -1,
            study.width_seeds,
        ),
    ]


def _last_layer(study: _Study) -> list[list[str]]:
    """``H_1`` at the last layer: before plus change."""

    def at_end(row: Row, name: str = "change") -> float:
        return float(row["before"][-1] + row[name][-1])

    lines = [
        ["H_1 at tau = 1", "theory", f"networks, width {study.wide}: mean", "± std of H_1 - H_0", "± std of its mean"]
    ]
    for depth, row in study.of_depth.items():
        spread = row["spread_change"][-1]
        found = [f"{at_end(row):.2f}", f"{spread:.2f}", f"{spread / math.sqrt(study.seeds):.2f}"]
        lines.append([f"depth {depth}", f"{at_end(study.theory[depth]):.2f}", *found])
    limit = study.theory[0]
    lines.append(["infinite depth", f"{at_end(limit):.2f}", "", "", ""])
    return [*lines, ["infinite depth, as printed", f"{at_end(limit, 'printed'):.2f}", "", "", ""]]


def figure(rows: list[Row]) -> Any:
    """Profiles over layer time; errors of the mean over depth, and of a network over width."""
    study = _Study(rows)
    found, panels = canvas(2, 2, width=4.8, height=4.2)
    found.suptitle(
        "Feature kernel of linear residual networks, before and after one step of SGD on one example\n"
        f"profiles: mean ± its standard error, n = {study.seeds} networks of width {study.wide}; thin lines: theory of "
        "that depth",
        fontsize=11,
    )
    for panel, name in zip(panels[0], _NAMES, strict=True):
        _draw_profiles(panel, study, name)
    _draw_over_depth(panels[1, 0], study)
    _draw_over_width(panels[1, 1], study)
    for panel in panels.flat:
        panel.grid(alpha=0.25)
        legend_below(panel)
    return found


def _draw_profiles(panel: Any, study: _Study, name: str) -> None:
    for depth, color in colors(list(study.of_depth)).items():
        theory, row = study.theory[depth], study.of_depth[depth]
        panel.plot(theory["time"], theory[name], color=color, linewidth=1)
        marks = slice(None, None, math.ceil(depth / _MARKS))
        error = np.array(row[f"spread_{name}"][marks]) / math.sqrt(study.seeds)
        at, mean = theory["time"][marks], row[name][marks]
        panel.errorbar(at, mean, error, color=color, fmt="o", markersize=4, capsize=2, label=f"networks, depth {depth}")
    limit = study.theory[0]
    if name == "change":
        panel.plot(limit["time"], limit["printed"], ":", color="tab:red", linewidth=1.8, label="Eq. 7 as printed")
    panel.plot(limit["time"], limit[name], "--", color="black", linewidth=1.8, label="theory, infinite depth")
    number = "(a)" if name == "before" else "(b)"
    panel.set(title=f"{number} ${_NAMES[name]}$", xlabel=r"layer time $\tau = l / L$", ylabel=f"${_NAMES[name]}$")


def _draw_over_depth(panel: Any, study: _Study) -> None:
    depths = sorted(depth for depth in study.theory if depth)
    for name, color in _COLOURS.items():
        exact, measured = (
            [row[f"error_{name}"] for row in study_rows]
            for study_rows in ([study.theory[depth] for depth in depths], study.of_depth.values())
        )
        panel.plot(depths, exact, color=color, linewidth=1.5, label=f"${_NAMES[name]}$, theory")
        panel.plot(list(study.of_depth), measured, "o", color=color, markersize=5, label=f"${_NAMES[name]}$, networks")
        noise = [study.noise(name, depth) for depth in study.of_depth]
        panel.plot(list(study.of_depth), noise, ":", color=color, linewidth=1)
    panel.plot([], [], ":", color="0.4", linewidth=1, label="noise of n networks' mean")
    guide(panel, depths, 1.6 * study.theory[depths[0]]["error_change"], -1, "expected slope -1")
    panel.set_yscale("log")
    size_ticks(panel, depths, "depth L")
    panel.set(title="(c) mean profile to infinite depth", ylabel="root mean square difference")


def _draw_over_width(panel: Any, study: _Study) -> None:
    for name, color in _COLOURS.items():
        groups = {width: row[f"square_errors_{name}"] for width, row in study.of_width.items()}
        draw_groups(panel, groups, color, f"${_NAMES[name]}$")
        guide(
            panel, list(groups), 2 * np.mean(groups[min(groups)]), -1, "expected slope -1" if name == "change" else None
        )
    panel.set_yscale("log")
    size_ticks(panel, list(study.of_width), "width N")
    panel.set(
        title=f"(d) one network to theory, depth {study.width_depth}, n = {study.width_seeds}",
        ylabel=f"mean square difference\n(± std over {GROUPS} groups of networks)",
    )


_COLOURS = {"before": "tab:blue", "change": "tab:orange"}
