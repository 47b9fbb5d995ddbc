"""The tangent kernel of a residual MLP over the angle between two inputs, width and depth (B24 Fig. 6).

The blocks alone are trained: ``K = a^2 int G Phi dtau`` (B24 Prop. 2), without the terms of stem and readout.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from depthmup_flax.errors import InputError
from depthmup_flax.limits import networks
from depthmup_flax.limits.common import (
    Rate,
    aligned,
    guide,
    rate,
    rates_table,
    require_positive,
    require_sizes,
    require_whole,
)
from depthmup_flax.limits.run import Case, Row, Values
from depthmup_flax.report.style import canvas, colours, size_ticks
from depthmup_flax.theory import get_activation, gram, lazy_kernels

_GROUPS = 8  # of networks, whose mean errors are the points of a fit
_ABOVE_NOISE = 4.0  # an ensemble's error over depth is fitted where the theory's is so many times the noise


def cases(config: ConfigDict) -> list[Case]:
    """A theory per depth, of which 0 is infinity, and an ensemble of networks per width and depth."""
    require_whole(config, "lanes")
    require_whole(config, "seed", at_least=0)
    require_whole(config, "angles", "network_angles", at_least=2)
    require_sizes(config, "theory_depths", "widths", "depths")
    require_positive(config, "branch_multiplier")
    get_activation(config.nonlinearity)
    if (config.angles - 1) % (config.network_angles - 1):
        raise InputError(
            f"config.angles is {config.angles}: use a multiple of {config.network_angles - 1}, plus 1, so that theory "
            "has networks' angles."
        )
    if not isinstance(config.seeds, int) or config.seeds < 2 * _GROUPS or config.seeds % _GROUPS:
        raise InputError(f"config.seeds is {config.seeds!r}: use a multiple of {_GROUPS} from {2 * _GROUPS} up.")
    depths = sorted({*config.theory_depths, *config.depths})
    ensembles = [
        {"what": "networks", "width": width, "depth": depth, "seeds": config.seeds, "nonlinearity": config.nonlinearity}
        for depth in config.depths
        for width in config.widths
    ]
    return [{"what": "theory", "depth": depth} for depth in (0, *depths)] + ensembles


def measure(config: ConfigDict, case: Case) -> Values:
    """``K`` between an input at angle 0 and others of angles up to pi, all with ``|x|^2 / D = 1``."""
    if case["what"] == "theory":
        angles = np.linspace(0, math.pi, config.angles)
        return {"angle": angles.tolist(), "kernel": _theory(config, angles, case["depth"]).tolist()}
    angles = np.linspace(0, math.pi, config.network_angles)
    found_SxA = np.asarray(_of_networks(config, angles, case["width"], case["depth"]), np.float64)
    squares_S = np.mean((found_SxA - _theory(config, angles, case["depth"])) ** 2, 1)
    return {
        "angle": angles.tolist(),
        "kernel": found_SxA.mean(0).tolist(),
        "spread": found_SxA.std(0, ddof=1).tolist(),
        "square_errors": squares_S.reshape(_GROUPS, -1).mean(1).tolist(),
    }


def _circle(angles: np.ndarray) -> np.ndarray:
    """(A, 2) inputs on a circle."""
    return math.sqrt(2) * np.stack([np.cos(angles), np.sin(angles)], 1)


def _theory(config: ConfigDict, angles: np.ndarray, depth: int) -> np.ndarray:
    start = gram(jnp.asarray(_circle(angles)))
    multiplier = config.branch_multiplier
    found = lazy_kernels(start, config.nonlinearity, depth=depth or None, branch_multiplier=multiplier)
    return np.asarray(found.tangent(["blocks"])[0])


def _of_networks(config: ConfigDict, angles: np.ndarray, width: int, depth: int) -> jax.Array:
    """(S, A) of networks: the gradient at angle 0 is a direction, along which all outputs are differentiated."""
    model = networks.network(config.nonlinearity, width, depth, branch_multiplier=config.branch_multiplier)
    x_AxD = jnp.asarray(_circle(angles), jnp.float32)

    def kernel(key: jax.Array) -> jax.Array:
        params = networks.init(model, key, x_AxD)

        def outputs(blocks: Any) -> jax.Array:
            return networks.forward(model, {**params, "blocks": blocks}, x_AxD)[0]

        direction = jax.grad(lambda blocks: outputs(blocks)[0])(params["blocks"])
        return jax.jvp(outputs, (params["blocks"],), (direction,))[1]

    keys = jax.random.split(jax.random.key(config.seed), config.seeds)
    return jax.jit(lambda keys: jax.lax.map(kernel, keys, batch_size=config.lanes))(keys)


class _Study:
    """The rows, and errors in units of the mean square over angles of K at infinite depth."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.theory = {row["depth"]: row for row in rows if row["what"] == "theory"}
        self.networks = {(row["width"], row["depth"]): row for row in rows if row["what"] == "networks"}
        self.widths = sorted({width for width, _ in self.networks})
        self.depths = sorted({depth for _, depth in self.networks})
        first = next(iter(self.networks.values()))
        self.seeds, self.nonlinearity, self._angle = first["seeds"], first["nonlinearity"], first["angle"]
        self._unit = float(np.mean(self.kernel(0) ** 2))

    def kernel(self, depth: int) -> np.ndarray:
        """Theory at the networks' angles; depth 0 is infinity."""
        return np.interp(self._angle, self.theory[depth]["angle"], self.theory[depth]["kernel"])

    def error_of_depth(self, depth: int) -> float:
        """Of theory at this depth, to infinite depth."""
        return float(np.mean((self.kernel(depth) - self.kernel(0)) ** 2)) / self._unit

    def error_of_ensemble(self, width: int, depth: int) -> float:
        """Of the mean over networks, to infinite width and depth."""
        return float(np.mean((self.networks[width, depth]["kernel"] - self.kernel(0)) ** 2)) / self._unit

    def noise(self, width: int, depth: int) -> float:
        """What finitely many networks add to `error_of_ensemble`."""
        return float(np.mean(np.square(self.networks[width, depth]["spread"]))) / self.seeds / self._unit

    def errors_of_network(self, width: int, depth: int) -> np.ndarray:
        """Of single networks to theory at their depth, a mean per group."""
        return np.array(self.networks[width, depth]["square_errors"]) / self._unit


def table(rows: list[Row]) -> str:
    """Powers of the errors over depth and width, and errors times width."""
    study = _Study(rows)
    each = study.seeds // _GROUPS
    rates = [_depth_rate(study), *(_ensemble_rate(study, width) for width in study.widths)]
    rates += [
        rate(
            f"network at depth {depth} to theory at depth {depth}, over width",
            {width: study.errors_of_network(width, depth) for width in study.widths},
            -1,
            f"{_GROUPS} x {each}",
        )
        for depth in study.depths
    ]
    widest = study.widths[-1]
    over_depth = {depth: study.errors_of_network(widest, depth) for depth in study.depths}
    rates.append(rate(f"network of width {widest} to theory at its depth, over depth", over_depth, 0, f"{_GROUPS} x {each}"))
    errors = [["width x square error", *(f"depth {depth}" for depth in study.depths)]] + [
        [f"width {width}", *(f"{width * study.errors_of_network(width, depth).mean():.2f}" for depth in study.depths)]
        for width in study.widths
    ]
    return "\n\n".join([rates_table(rates), aligned(errors), _NOTE])


_NOTE = (
    "Layers: the blocks. Errors: squares, mean over angles, in units of the mean square of K at infinite width and depth.\n"
    f"An ensemble is fitted at the depths where the theory's own error is above {_ABOVE_NOISE:g} times the noise of its mean."
)


def _depth_rate(study: _Study) -> Rate:
    depths = [depth for depth in study.theory if depth]
    return rate(
        "theory at depth L to infinite depth, over depth", {d: [study.error_of_depth(d)] for d in depths}, -2, "exact"
    )


def _ensemble_rate(study: _Study, width: int) -> Rate:
    depths = [d for d in study.depths if study.error_of_depth(d) > _ABOVE_NOISE * study.noise(width, d)]
    values = {d: [study.error_of_ensemble(width, d)] for d in depths}
    return rate(f"mean of networks of width {width} to infinite depth, over depth", values, -2, str(study.seeds))


def figure(rows: list[Row]) -> Any:
    """K over the angle; its error over depth; networks' error over width."""
    study = _Study(rows)
    found, panels = canvas(1, 3, width=4.5, height=4.4)
    found.suptitle(
        f"Tangent kernel of the blocks of a residual MLP ({study.nonlinearity}) at initialisation\n"
        f"theory: infinite width; networks: n = {study.seeds} at each width and depth",
        fontsize=11,
    )
    _draw_kernels(panels[0, 0], study)
    _draw_over_depth(panels[0, 1], study)
    _draw_over_width(panels[0, 2], study)
    for panel in panels[0]:
        panel.grid(alpha=0.25)
        panel.legend(fontsize=7.5)
    return found


def _draw_kernels(panel: Any, study: _Study) -> None:
    palette, widest = colours(study.depths), study.widths[-1]
    for depth in study.depths[:: math.ceil(len(study.depths) / 3)]:
        theory, row, colour = study.theory[depth], study.networks[widest, depth], palette[depth]
        panel.plot(theory["angle"], theory["kernel"], color=colour, linewidth=1.5, label=f"theory, depth {depth}")
        panel.errorbar(
            row["angle"], row["kernel"], row["spread"], color=colour, fmt="o", markersize=4, capsize=2, linewidth=1
        )
    limit = study.theory[0]
    panel.plot(limit["angle"], limit["kernel"], color="black", linewidth=1.8, label="theory, infinite depth")
    panel.errorbar([], [], [], color="0.4", fmt="o", markersize=4, capsize=2, label=f"networks, width {widest}:\nmean ± std")
    panel.set_xticks(np.linspace(0, math.pi, 5), labels=["0", "π/4", "π/2", "3π/4", "π"])
    panel.set(title="(a) kernel", xlabel="angle between the inputs", ylabel="K")


def _draw_over_depth(panel: Any, study: _Study) -> None:
    depths = sorted(depth for depth in study.theory if depth)
    exact = [study.error_of_depth(depth) for depth in depths]
    panel.plot(depths, exact, color="black", linewidth=1.8, label="theory, infinite width")
    palette = colours(study.widths)
    for width in study.widths:
        errors = [study.error_of_ensemble(width, depth) for depth in study.depths]
        noise = [study.noise(width, depth) for depth in study.depths]
        panel.plot(study.depths, errors, "o", color=palette[width], markersize=5, label=f"mean of networks, width {width}")
        panel.plot(study.depths, noise, ":", color=palette[width], linewidth=1)
    panel.plot([], [], ":", color="0.4", linewidth=1, label="noise of that mean")
    guide(panel, depths, 2 * exact[0], -2, "slope -2")
    panel.set_yscale("log")
    size_ticks(panel, depths, "depth L")
    panel.set(title="(b) to infinite depth", ylabel="relative square error of the mean")


def _draw_over_width(panel: Any, study: _Study) -> None:
    palette = colours(study.depths)
    for depth in study.depths:
        groups = np.array([study.errors_of_network(width, depth) for width in study.widths])
        panel.errorbar(
            study.widths,
            groups.mean(1),
            groups.std(1, ddof=1),
            color=palette[depth],
            fmt="o-",
            markersize=4,
            linewidth=1,
            capsize=2,
            label=f"depth {depth}",
        )
    top = max(study.errors_of_network(study.widths[0], depth).mean() for depth in study.depths)
    guide(panel, study.widths, 1.5 * top, -1, "slope -1")
    panel.set_yscale("log")
    size_ticks(panel, study.widths, "width N")
    panel.set(
        title=f"(c) networks to theory at their depth\n± std of {_GROUPS} groups of networks",
        ylabel="relative square error of a network",
    )
