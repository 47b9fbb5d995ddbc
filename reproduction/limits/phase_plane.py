"""TP6's plane of (alpha, gamma), measured: which features explode, stand still, or are redundant (TP6 Fig. 1).

TP6 is Yang et al. (arXiv:2310.02244). `phase_networks` measures; here powers of depth become classes, a table and a
figure.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from depthmup_flax.report.style import colors
from depthmup_flax.rule.parametrization import PRESETS
from depthmup_flax.util.power_fits import EXPLODES, Fit, fit_power
from reproduction.figure_files import format_slope
from reproduction.limits.feature_distances import mean_interval, slopes
from reproduction.limits.fitted_rates import aligned
from reproduction.limits.panels import Page, Panel, finish, page, points
from reproduction.limits.phase_claims import classify
from reproduction.limits.phase_networks import cases, has_diversity, measure
from reproduction.limits.pipeline import Row

if TYPE_CHECKING:
    from matplotlib.collections import QuadMesh

__all__ = ["cases", "figure", "measure", "table"]

_FLAT = 0.125  # a fitted power up to here counts as none: half of the grid's spacing
_MAP = 1.0  # powers that get the darkest colors


@dataclasses.dataclass(frozen=True)
class _Cell:
    """A point of the plane: fitted powers of depth, after the last step unless said otherwise."""

    alpha: float
    gamma: float
    initial: Fit
    first_change: Fit
    change: Fit
    preactivation: Fit
    nonlinear: Fit  # of L times what linearizing each block leaves out
    kappa: float | None  # of the deepest trained path

    @property
    def claimed(self) -> str:
        """What TP6's claims say, in a word."""
        phase = classify(self.alpha, self.gamma)
        claims = phase.stable_at_init, phase.stable_in_training, phase.nontrivial, phase.faithful_in_training
        return _word(claims, phase.feature_diversity_exponent)

    @property
    def measured(self) -> str:
        """What the powers say, in the same words."""
        bounded = lambda fit: fit.state != EXPLODES and not fit.slope > _FLAT
        changed = not self.change.slope < -_FLAT
        return _word((bounded(self.initial), bounded(self.change), changed, bounded(self.preactivation)), self.kappa)

    def cells(self) -> list[str]:
        change = 1 - self.alpha - self.gamma  # TP6 Claim 7.2, which presumes stability at initialization
        preactivation = max(-self.gamma, change)  # the larger of the parts ``dW x ~ L^-gamma`` and ``W dx``
        claims = [f"{power:+.2f}" if self.alpha >= 0.5 else "none" for power in (change, preactivation)]
        fits = [str(fit) for fit in (self.initial, self.first_change, self.change, self.preactivation)]
        powers = [*fits[:3], claims[0], fits[3], claims[1]]
        differs = "" if self.measured == self.claimed else "differs"
        return [f"{self.alpha:g}", f"{self.gamma:g}", *powers, self.measured, self.claimed, differs]


def _word(claims: Sequence[bool | None], kappa: float | None) -> str:
    """The class: stable at initialization, stable in training, nontrivial, faithful; each presumes those before it."""
    names = zip(("explodes at init", "unstable", "trivial", "unfaithful"), claims, strict=True)
    diverse = "diverse" if (kappa or 0.0) > 0.25 else "redundant"
    return next((name for name, holds in names if not holds), diverse)


class _Study:
    """What the rows say: cells of the plane, and kappa along its line."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.growth = [row for row in rows if row["what"] == "growth"]
        self.paths = {(row["alpha"], row["depth"]): row for row in rows if row["what"] == "path"}
        self.depths = sorted({row["depth"] for row in self.growth})
        self.path_depths = sorted({depth for _, depth in self.paths})
        self.path_alphas = sorted({alpha for alpha, _ in self.paths})
        self.path_steps, self.fractions = (next(iter(self.paths.values()))[name] for name in ("steps", "fractions"))
        self.alphas, self.gammas = (sorted({row[name] for row in self.growth}) for name in ("alpha", "gamma"))
        self.width, self.steps = self.growth[0]["width"], self.growth[0]["steps"]
        self.seeds = len(self.growth[0]["initial"])
        self.cells = {point: self._cell(*point) for point in itertools.product(self.alphas, self.gammas)}
        self.agreeing = sum(cell.measured == cell.claimed for cell in self.cells.values())

    def kappa(self, alpha: float, depth: int, smallest: int | None = None) -> tuple[float, float]:
        """1 - slope of the distances along the path (at the smallest eps only), and half of its interval over seeds."""
        distances_SxE = _array(self.paths[alpha, depth]["distances"])
        return mean_interval(1 - slopes(self.fractions[:smallest], distances_SxE[:, :smallest]))

    def roughness(self, alpha: float) -> Fit:
        """Power of depth of ``L d(1/L)^2``, the sum of squares of all layers' increments."""
        return fit_power({depth: depth * _array(self.paths[alpha, depth]["layer"]) ** 2 for depth in self.path_depths})

    def _cell(self, alpha: float, gamma: float) -> _Cell:
        rows = {row["depth"]: row for row in self.growth if (row["alpha"], row["gamma"]) == (alpha, gamma)}
        known = alpha in self.path_alphas and has_diversity(alpha, gamma)

        def fit(name: str, step: int) -> Fit:
            values = {depth: _array(row[name]).reshape(self.seeds, -1)[:, step] for depth, row in rows.items()}
            return fit_power({depth: of_seeds.tolist() for depth, of_seeds in values.items()})

        kappa = self.kappa(alpha, self.path_depths[-1])[0] if known else None
        last = {name: fit(name, -1) for name in ("change", "preactivation", "nonlinear")}
        return _Cell(alpha, gamma, fit("initial", 0), fit("change", 0), **last, kappa=kappa)


def _array(values: ArrayLike) -> np.ndarray:
    """An array of a record; a value that overflowed is infinite."""
    return np.nan_to_num(np.array(values, np.float64), nan=np.inf, posinf=np.inf)


def table(rows: list[Row]) -> str:
    """Powers of depth at each point of the plane beside TP6's claims, and kappa along the line."""
    study = _Study(rows)
    head = ["alpha", "gamma", "initial", "change, step 1", f"step {study.steps}", "claim", "pre-act.", "", "measured"]
    lines = [[*head, "TP6", ""], *(cell.cells() for cell in study.cells.values())]
    counted = f"The measured class is TP6's at {study.agreeing} of {len(study.cells)} points."
    return "\n\n".join([aligned(lines), counted, _path_table(study), _linear_table(study), _note(study)])


def _path_table(study: _Study) -> str:
    depths = [f"depth {depth}" for depth in study.path_depths]
    lines = [["kappa at alpha", *depths, f"eps to {study.fractions[1]:g}", "TP6", "roughness", "1 - 2 alpha"]]
    for alpha in study.path_alphas:
        kappas = [format_slope(*study.kappa(alpha, depth)) for depth in study.path_depths]
        local = format_slope(*study.kappa(alpha, study.path_depths[-1], 2))
        claim = f"{classify(alpha, 1 - alpha).feature_diversity_exponent:g}"
        power = str(study.roughness(alpha)) if len(study.path_depths) > 2 else "needs 3 depths"
        lines.append([f"{alpha:g}", *kappas, local, claim, power, f"{1 - 2 * alpha:+.2f}"])
    return aligned(lines)


def _linear_table(study: _Study) -> str:
    """Where what linearizing a block leaves out falls faster than 1/L (TP6 Def. 7.7), on the line alpha + gamma = 1."""
    lines = [["nonlinear part at alpha", "power", "alpha - 1", "layerwise linear", "TP6", ""]]
    for (alpha, gamma), cell in study.cells.items():
        claim = classify(alpha, gamma).layerwise_linear
        if claim is not None:
            measured = cell.nonlinear.slope < -_FLAT
            words = ["yes" if linear else "no" for linear in (measured, claim)]
            lines.append([f"{alpha:g}", str(cell.nonlinear), f"{alpha - 1:+.2f}", *words])
            lines[-1].append("" if measured == claim else "differs")
    return aligned(lines)


def _note(study: _Study) -> str:
    deepest, low, high = study.path_depths[-1], study.fractions[0], study.fractions[-1]
    depths = ", ".join(map(str, study.depths))
    return f"""Powers of depth over {depths}, width {study.width}, n = {study.seeds} seeds: of
the root mean square of x^L at the start, and of what steps change in x^L and in the pre-activations h^l.
Of the last, the larger of two parts is expected, L^-gamma from W and L^(1 - alpha - gamma) from x; both show
at these depths. A power up to {_FLAT:g} counts as none. Where alpha < 1/2 growth is exponential in
L^(1 - 2 alpha), no power, and TP6 claims nothing more.
kappa = 1 - slope of log d(eps) over log eps from {low:g} to {high:g}, after {study.path_steps} steps, on the line
alpha + gamma = 1; 'eps to': over the two smallest eps at depth {deepest}. TP6's is for L to infinity, then
eps to 0. Above 1/4 at the largest depth counts as diverse.
roughness: power of depth of L d(1/L)^2, the sum of squares of all layers' increments, which stays at
alpha = 1/2 alone; a smooth path adds 1/L.
nonlinear part: power of depth of L^(1 - alpha) |phi(W_t x) - phi(W_0 x) - phi'(W_0 x) (W_t - W_0) x|, averaged, minus
its mean over neurons, after {study.steps} steps. It falls where blocks are linear in what training adds (TP6 Def. 7.7,
Claim 7.6). alpha - 1: a change of L^-gamma is left out in its square, also by ReLU, of which it is the share of
neurons that switch times their change."""


def figure(rows: list[Row]) -> Page:
    """Three maps of powers over the plane, and kappa along alpha + gamma = 1."""
    study = _Study(rows)
    title = (
        r"Residual MLPs with branches times $L^{-\alpha}$, updates times $L^{-\gamma}$: fitted powers of depth $L$"
        f"\nwidth {study.width}, depths {study.depths[0]} to {study.depths[-1]}, n = {study.seeds} seeds; of the class "
        f"that TP6 claims at {study.agreeing} of {len(study.cells)} points"
    )
    drawing, panels = page(2, 2, title, width=5.0, height=4.8)
    maps = {
        "initial": "(a) features $x^L$ at the start\nexpected: 0 right of the line; red explodes",
        "change": f"(b) their change in {study.steps} steps; boxes: $\\alpha + \\gamma = 1$\n"
        r"expected: $1 - \alpha - \gamma$; red is unstable, blue trivial",
        "preactivation": f"(c) change of pre-activations $h^l$ in {study.steps} steps\n"
        r"expected: larger of $-\gamma$, $1 - \alpha - \gamma$; red boxes are unfaithful",
    }
    for panel, (name, title) in zip(panels.flat, maps.items(), strict=False):
        image = _draw_map(panel, study, name, title)
    drawing.colorbar(image, ax=panels[1, 0], location="bottom", label="power of depth", extend="both", shrink=0.7)
    _draw_presets(panels[0, 1], study)
    _draw_kappa(panels[1, 1], study)
    return drawing


def _draw_map(panel: Panel, study: _Study, name: str, title: str) -> QuadMesh:
    """Powers over the plane; the colors end at ``_MAP``, the numbers do not.

    A line is left of alpha = 1/2, which is stable, and boxes are around the stable and nontrivial points.
    """
    from matplotlib.patches import Rectangle

    fits = [[getattr(study.cells[alpha, gamma], name) for alpha in study.alphas] for gamma in study.gammas]
    powers = np.array([[_MAP if fit.state == EXPLODES else fit.slope for fit in line] for line in fits])
    columns, lines = range(len(study.alphas)), range(len(study.gammas))
    image = panel.pcolormesh(columns, lines, powers, cmap="RdBu_r", vmin=-_MAP, vmax=_MAP, rasterized=True)
    for column, line in itertools.product(columns, lines):
        color = "white" if abs(powers[line, column]) > 0.6 * _MAP else "black"
        fit = fits[line][column]
        number = f"{fit.slope + 0.0:+.2f}".replace("-0.00", "0.00") if abs(fit.slope) < 10 else f"{fit.slope:+.0f}"
        number = "explodes" if fit.state == EXPLODES else number
        panel.text(column, line, number, ha="center", va="center", fontsize=8.5, color=color)
        phase = classify(study.alphas[column], study.gammas[line])
        if phase.stable_in_training and phase.nontrivial:
            corner = (column - 0.47, line - 0.47)
            panel.add_patch(Rectangle(corner, 0.94, 0.94, fill=False, edgecolor="black", linewidth=1.6))
    panel.axvline(sum(alpha < 0.5 for alpha in study.alphas) - 0.5, color="black", linewidth=2.5)
    panel.set_xticks(columns, labels=[f"{alpha:g}" for alpha in study.alphas])
    panel.set_yticks(lines, labels=[f"{gamma:g}" for gamma in study.gammas])
    panel.set(xlabel=r"$\alpha$", ylabel=r"$\gamma$")
    panel.set_title(title, fontsize=9.5)
    return image


def _draw_presets(panel: Panel, study: _Study) -> None:
    """Names under the numbers, of those that muP scales over width and that keep gamma0."""
    for name, rule in PRESETS.items():
        known = (rule.alpha, rule.gamma) in study.cells
        if known and rule.width == "mup" and not rule.gamma0_width_exponent:
            at = study.alphas.index(rule.alpha), study.gammas.index(rule.gamma) - 0.28
            color = "black" if rule.alpha >= 0.5 else "white"
            panel.text(*at, name, ha="center", va="center", fontsize=7, style="italic", color=color)


def _draw_kappa(panel: Panel, study: _Study) -> None:
    """Along alpha + gamma = 1; TP6's limit is a step."""
    panel.plot([0.5, 1.0], [0.0, 0.0], "--", color="0.45", linewidth=1.4, label="TP6, infinite depth")
    panel.plot([0.5], [0.0], "o", color="white", markeredgecolor="0.45", markersize=7)
    panel.plot([0.5], [0.5], "o", color="0.45", markersize=7)
    for depth, color in colors(study.path_depths).items():
        kappas, halves = zip(*(study.kappa(alpha, depth) for alpha in study.path_alphas), strict=True)
        points(panel, study.path_alphas, kappas, halves, color=color, label=f"depth {depth}", joined=True)
    panel.set(xlabel=r"$\alpha$, with $\gamma = 1 - \alpha$", ylim=(-0.05, 0.55))
    panel.set_ylabel(rf"$\kappa$ ± 95 % interval, n = {study.seeds}")
    panel.set_title(
        rf"(d) feature diversity after {study.path_steps} steps: $d(\epsilon) \sim \epsilon^{{1-\kappa}}$"
        f"\nfitted to $\\epsilon$ from {Fraction(study.fractions[0])} to {Fraction(study.fractions[-1])}",
        fontsize=9.5,
    )
    finish([panel])
