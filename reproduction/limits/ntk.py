"""The tangent kernel of a residual MLP over the angle between two inputs, width and depth (B24 Fig. 6).

B24 is Bordelon et al. (arXiv:2309.16620). The blocks alone are trained: ``K = a^2 int G Phi dtau`` (Prop. 2), without
the terms of stem and readout.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from depthmup_flax.report.style import colors
from reproduction.limits import finite_networks as networks
from reproduction.limits.config_fields import check_fields, require
from reproduction.limits.finite_networks import GROUPS
from reproduction.limits.fitted_rates import Line, aligned, range_text, rate, rates_table
from reproduction.limits.panels import Page, Panel, draw_groups, finish, guide, page, points, size_axis
from reproduction.limits.pipeline import Case, Row, Values
from reproduction.theory import get_activation, gram, lazy_kernels, tangent_variance

_ABOVE_NOISE = 4.0  # an ensemble's error over depth is fitted where theory's is this many times the noise
_DEEP = 16  # from here on errors are powers of depth


def cases(config: ConfigDict) -> list[Case]:
    """A theory per depth, of which 0 is infinity, and its variance and ensembles of each width at networks' depths."""
    check_fields(config, whole="lanes", several="angles network_angles", sizes="theory_depths widths depths")
    check_fields(config, positive="branch_multiplier", groups="seeds")
    get_activation(config.nonlinearity)
    spaces = config.network_angles - 1
    remedy = f"use a multiple of {spaces}, plus 1, so that theory has networks' angles"
    require(config, "angles", (config.angles - 1) % spaces == 0, remedy)
    ensembles = [
        {"what": "networks", "width": width, "depth": depth, "seeds": seeds, "nonlinearity": config.nonlinearity}
        for depth in config.depths
        for width, seeds in networks.ensemble_sizes(config.widths, config.seeds).items()
    ]
    theory_depths = sorted({0, *config.theory_depths, *config.depths})
    theories = [{"what": "theory", "depth": depth} for depth in theory_depths]
    return theories + [{"what": "variance", "depth": depth} for depth in config.depths] + ensembles


def measure(config: ConfigDict, case: Case) -> Values:
    """``K`` between an input at angle 0 and others of angles up to pi, all with ``|x|^2 / D = 1``."""
    if case["what"] == "theory":
        angles = np.linspace(0, math.pi, config.angles)
        return {"angle": angles.tolist(), "kernel": _theory(config, angles, case["depth"]).tolist()}
    angles = np.linspace(0, math.pi, config.network_angles)
    if case["what"] == "variance":
        start, multiplier = gram(jnp.asarray(_circle(angles))), config.branch_multiplier
        numbers = tangent_variance(start, config.nonlinearity, depth=case["depth"], branch_multiplier=multiplier)
        value, error = (np.asarray(number[0]).tolist() for number in numbers)
        return {"angle": angles.tolist(), "variance": value, "error": error}
    kernel_SxA = np.asarray(_of_networks(config, angles, case["width"], case["depth"], case["seeds"]), np.float64)
    squares_S = np.mean((kernel_SxA - _theory(config, angles, case["depth"])) ** 2, 1)
    statistics = {"kernel": kernel_SxA.mean(0).tolist(), "spread": kernel_SxA.std(0, ddof=1).tolist()}
    return {"angle": angles.tolist(), **statistics, "square_errors": networks.group_means(squares_S)}


def _circle(angles: np.ndarray) -> np.ndarray:
    """(A, 2) inputs on a circle."""
    return math.sqrt(2) * np.stack([np.cos(angles), np.sin(angles)], 1)


def _theory(config: ConfigDict, angles: np.ndarray, depth: int) -> np.ndarray:
    start, multiplier = gram(jnp.asarray(_circle(angles))), config.branch_multiplier
    kernels = lazy_kernels(start, config.nonlinearity, depth=depth or None, branch_multiplier=multiplier)
    return np.asarray(kernels.tangent(["blocks"])[0])


def _of_networks(config: ConfigDict, angles: np.ndarray, width: int, depth: int, seeds: int) -> jax.Array:
    """(S, A) kernels: all outputs are differentiated along one direction, the gradient at angle 0."""
    model = networks.network(config.nonlinearity, width, depth, branch_multiplier=config.branch_multiplier)
    x_AxD = jnp.asarray(_circle(angles), jnp.float32)

    def kernel(key: jax.Array) -> jax.Array:
        params = networks.init(model, key, x_AxD)
        outputs = lambda blocks: networks.forward(model, {**params, "blocks": blocks}, x_AxD)[0]
        direction = jax.grad(lambda blocks: outputs(blocks)[0])(params["blocks"])
        return jax.jvp(outputs, (params["blocks"],), (direction,))[1]

    keys = networks.network_keys(config.seed, width, depth, seeds)
    return jax.jit(lambda keys: jax.lax.map(kernel, keys, batch_size=config.lanes))(keys)


class _Study:
    """The rows, and errors in units of the mean square over angles of K at infinite depth."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.theory = {row["depth"]: row for row in rows if row["what"] == "theory"}
        self.variance = {row["depth"]: row for row in rows if row["what"] == "variance"}
        self.networks = {(row["width"], row["depth"]): row for row in rows if row["what"] == "networks"}
        self.widths = sorted({width for width, _ in self.networks})
        self.depths = sorted({depth for _, depth in self.networks})
        self.seeds = {width: row["seeds"] for (width, _), row in self.networks.items()}
        row = next(iter(self.networks.values()))
        self.nonlinearity, self._angle = row["nonlinearity"], row["angle"]
        self._unit = float(np.mean(self.kernel(0) ** 2))

    def kernel(self, depth: int) -> np.ndarray:
        """Theory at the networks' angles; depth 0 is infinity."""
        return np.asarray(np.interp(self._angle, self.theory[depth]["angle"], self.theory[depth]["kernel"]))

    def error(self, depth: int, width: int | None = None) -> float:
        """The distance of theory at this depth, or of the mean over networks, to infinite width and depth."""
        kernel = self.networks[width, depth]["kernel"] if width else self.kernel(depth)
        return float(np.mean((kernel - self.kernel(0)) ** 2)) / self._unit

    def noise(self, width: int, depth: int) -> float:
        """What a finite number of networks adds to the error of their mean."""
        return float(np.mean(np.square(self.networks[width, depth]["spread"]))) / self.seeds[width] / self._unit

    def errors_of_network(self, width: int, depth: int) -> np.ndarray:
        """(G,) distances of single networks to theory at their depth, the mean of each group."""
        return np.array(self.networks[width, depth]["square_errors"]) / self._unit

    def limit_of_errors(self, depth: int) -> float:
        """What N times `errors_of_network` approaches as N grows (App. H)."""
        return float(np.mean(self.variance[depth]["variance"])) / self._unit


def table(rows: list[Row]) -> str:
    """Powers of the errors over depth and width, and errors times width."""
    study = _Study(rows)
    depths = [f"depth {depth}" for depth in study.depths]
    errors = [["N x square error", *depths, "all depths", "power from half the width"]]
    means = {width: float(np.mean([study.errors_of_network(width, d) for d in study.depths])) for width in study.widths}
    for width in study.widths:
        values = [width * study.errors_of_network(width, depth).mean() for depth in study.depths]
        half = means.get(width // 2)
        power = f"{math.log2(means[width] / half):+.2f}" if half else ""
        errors.append([f"width {width}", *(f"{v:.1f}" for v in values), f"{width * means[width]:.1f}", power])
    limits = [study.limit_of_errors(depth) for depth in study.depths]
    errors.append(["theory, App. H", *(f"{v:.1f}" for v in limits), f"{np.mean(limits):.1f}", ""])
    return "\n\n".join([rates_table(_rates(study)), aligned(errors), _NOTE])


_NOTE = f"""\
The blocks alone are trained. Errors are squares, averaged over angles, in units of the mean square of K at infinite
width and depth. Powers of depth are fitted from {_DEEP} up; the ensemble's at the depths where theory's error is above
{_ABOVE_NOISE:g} times the noise of the ensemble's mean, with theory's there below. Networks are in {GROUPS} groups."""


def _rates(study: _Study) -> list[Line]:
    widest, theory = study.widths[-1], "theory of depth L to infinite depth, over depth"
    above = [d for d in study.depths if study.error(d) > _ABOVE_NOISE * study.noise(widest, d)]
    deep = {depth: [study.error(depth)] for depth in study.theory if depth >= _DEEP}
    ensemble = {depth: [study.error(depth, widest)] for depth in above}
    rates = [
        rate(theory, deep, -2, "exact"),
        rate(f"mean of networks, width {widest}, to infinite depth, over depth", ensemble, -2, study.seeds[widest]),
        rate(theory, {depth: [study.error(depth)] for depth in above}, None, "exact"),
    ]
    for depth in study.depths:
        errors, n = {w: study.errors_of_network(w, depth) for w in study.widths}, range_text(study.seeds.values())
        rates.append(rate(f"network of depth {depth} to theory of that depth, over width", errors, -1, n))
    for width in study.widths:
        errors, n = {d: study.errors_of_network(width, d) for d in study.depths if d >= _DEEP}, study.seeds[width]
        rates.append(rate(f"network of width {width} to theory of its depth, over depth", errors, 0, n))
    return rates


def figure(rows: list[Row]) -> Page:
    """K over the angle; the mean's error over depth; a network's over width, and times width over depth."""
    study = _Study(rows)
    title = (
        f"Tangent kernel of the blocks of a residual MLP ({study.nonlinearity}) at initialization\n"
        f"theory: infinite width; networks: n = {range_text(study.seeds.values())} at each width and depth"
    )
    drawing, panels = page(2, 2, title, width=4.8, height=4.2)
    _draw_kernels(panels[0, 0], study)
    _draw_over_depth(panels[0, 1], study)
    _draw_networks(panels[1], study)
    finish(panels.flat)
    return drawing


def _draw_kernels(panel: Panel, study: _Study) -> None:
    palette, widest = colors(study.depths), study.widths[-1]
    for depth in study.depths[:: math.ceil(len(study.depths) / 3)]:
        theory, row, color = study.theory[depth], study.networks[widest, depth], palette[depth]
        panel.plot(theory["angle"], theory["kernel"], color=color, linewidth=1.5, label=f"theory, depth {depth}")
        points(panel, row["angle"], row["kernel"], row["spread"], color=color)
    limit = study.theory[0]
    panel.plot(limit["angle"], limit["kernel"], color="black", linewidth=1.8, label="theory, infinite depth")
    points(panel, [], [], [], color="0.4", label=f"networks, width {widest}:\nmean ± std of one")
    panel.set_xticks(np.linspace(0, math.pi, 5), labels=["0", "π/4", "π/2", "3π/4", "π"])
    panel.set(title="(a) kernel", xlabel="angle between the inputs", ylabel="K")


def _draw_over_depth(panel: Panel, study: _Study) -> None:
    depths = sorted(depth for depth in study.theory if depth)
    exact = [study.error(depth) for depth in depths]
    panel.plot(depths, exact, color="black", linewidth=1.8, label="theory, infinite width")
    for width, color in colors(study.widths).items():
        errors, noise = zip(*((study.error(d, width), study.noise(width, d)) for d in study.depths), strict=True)
        points(panel, study.depths, errors, color=color, label=f"networks, width {width}")
        panel.plot(study.depths, noise, ":", color=color, linewidth=1)
    panel.plot([], [], ":", color="0.4", linewidth=1, label="noise of n networks' mean")
    guide(panel, depths, 3 * exact[0], -2, "expected slope -2")
    size_axis(panel, depths, "depth L", title="(b) mean kernel to infinite depth", ylabel="relative square error")


def _draw_networks(panels: Sequence[Panel], study: _Study) -> None:
    over_width, times_width = panels
    ylabel = f"relative square error\n(± std over {GROUPS} groups of networks)"
    for depth, color in colors(study.depths).items():
        groups = {width: study.errors_of_network(width, depth) for width in study.widths}
        draw_groups(over_width, groups, color, f"depth {depth}")
    top = max(study.errors_of_network(study.widths[0], depth).mean() for depth in study.depths)
    guide(over_width, study.widths, 1.7 * top, -1, "expected slope -1")
    size_axis(over_width, study.widths, "width N", title="(c) one network to theory of its depth", ylabel=ylabel)
    for width, color in colors(study.widths).items():
        groups = {depth: width * study.errors_of_network(width, depth) for depth in study.depths}
        draw_groups(times_width, groups, color, f"width {width}")
    limits = [study.limit_of_errors(depth) for depth in study.depths]
    times_width.plot(study.depths, limits, color="black", linewidth=1.8, label="theory, N to infinity (App. H)")
    times_width.set_ylim(bottom=0)
    title, ylabel = "(d) the same, times width", "N x " + ylabel
    size_axis(times_width, study.depths, "depth L", title=title, ylabel=ylabel, log=False)
