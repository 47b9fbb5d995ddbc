"""TP6's plane of (alpha, gamma), measured: which features explode, stand still, or are redundant (TP6 Fig. 1).

ResMLPs as TP6 6.3 writes them, ``x^l = x^(l-1) + a L^-alpha MS(phi(W^l x^(l-1)))`` with stem and readout frozen, are
trained on a few random examples under the rule's powers of depth themselves (base depth 1).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from ml_collections import ConfigDict

from depthmup_flax.errors import InputError
from depthmup_flax.limits import finite_networks as networks
from depthmup_flax.limits.feature_paths import digits, distances, mean_interval, require_fractions, slopes
from depthmup_flax.limits.rates import aligned, legend_below, require_positive, require_sizes, require_whole
from depthmup_flax.limits.run import Case, Row, Values
from depthmup_flax.power_fits import EXPLODES, Fit, fit_power
from depthmup_flax.report.style import canvas, colors, format_slope
from depthmup_flax.rule.directions import direction
from depthmup_flax.rule.optimizer import depthmup, freeze
from depthmup_flax.rule.parametrization import PRESETS, ParamInfo, Role, get_parametrization
from depthmup_flax.rule.phase_diagram import classify
from depthmup_flax.rule.roles import param_info

_FLAT = 0.125  # a fitted power up to here counts as none: half of the grid's spacing
_INPUTS = 16
_MAP = 1.0  # powers that get the darkest colors


class Factors(NamedTuple):
    """What (alpha, gamma) does to a block at some depth, as numbers that a compiled program takes as arguments."""

    branch: jax.Array
    gradient: jax.Array
    update: jax.Array


def factors(alpha: float, gamma: float, branch_multiplier: float, depth: int) -> Factors:
    """The rule's ``a L^-alpha``, ``L^delta`` and ``L^-gamma`` (TP6 Def. 6.2), in float32."""
    rule = get_parametrization(alpha=alpha, gamma=gamma, branch_multiplier=branch_multiplier)
    block = ParamInfo(Role.HIDDEN, shape=(1, 1), in_branch=True, depth_ratio=depth)
    found = rule.residual_multiplier(depth), rule.gradient_scale(block), rule.update_scale(block)
    return Factors(*(jnp.asarray(factor, jnp.float32) for factor in found))


def cases(config: ConfigDict) -> list[Case]:
    """Growth at every depth and (alpha, gamma), and paths over depth along the line alpha + gamma = 1."""
    require_whole(config, "width", "examples", "steps", "path_steps")
    require_whole(config, "seeds", at_least=2)
    require_whole(config, "seed", at_least=0)
    require_sizes(config, "depths", "path_depths")
    require_positive(config, "learning_rate", "path_learning_rate", "branch_multiplier")
    _require_numbers(config, "alphas", "gammas", "path_alphas")
    direction(config.optimizer)
    networks.network(config.nonlinearity, config.width, 1)
    if len(config.depths) < 3:
        raise InputError(f"config.depths is {config.depths}: a power of depth needs three depths or more.")
    require_fractions(config.fractions, config.path_depths)
    for alpha in (*config.alphas, *config.path_alphas):
        factors(alpha, 0.0, config.branch_multiplier, 1)
    growth = [
        {"what": "growth", "depth": depth, "alpha": alpha, "gamma": gamma}
        for depth, alpha, gamma in itertools.product(config.depths, config.alphas, config.gammas)
    ]
    on_line = {alpha for alpha, gamma in itertools.product(config.alphas, config.gammas) if _diversity(alpha, gamma)}
    paths = [
        {"what": "path", "depth": depth, "alpha": alpha, "gamma": round(1 - alpha, 12)}
        for depth, alpha in itertools.product(config.path_depths, sorted({*on_line, *config.path_alphas}))
    ]
    return growth + paths


def _diversity(alpha: float, gamma: float) -> bool:
    """Whether TP6's claims give a feature-diversity exponent."""
    return classify(alpha, gamma).feature_diversity_exponent is not None


def _require_numbers(config: ConfigDict, *names: str) -> None:
    for name in names:
        found = config[name]
        values = list(found) if isinstance(found, (tuple, list)) else []
        real = all(isinstance(v, (int, float)) and not isinstance(v, bool) and math.isfinite(v) for v in values)
        if not values or not real or len(set(values)) < len(values):
            raise InputError(f"config.{name} is {found!r}: give different numbers, such as (0.5, 1.0).")
    for alpha in config.path_alphas:
        if not _diversity(alpha, 1 - alpha):
            raise InputError(
                f"config.path_alphas is {config.path_alphas}: diversity is claimed for alpha from 0.5 to 1; use those."
            )


def measure(config: ConfigDict, case: Case) -> Values:
    """Of each seed: root mean squares of features and of their changes, or distances along the path over depth."""
    x_BxD, y_B = examples(config)
    keys = jax.random.split(jax.random.key(config.seed), config.seeds)
    rule = factors(case["alpha"], case["gamma"], config.branch_multiplier, case["depth"])
    sizes = (config.nonlinearity, config.width, case["depth"], config.optimizer)
    if case["what"] == "growth":
        rate = jnp.float32(config.learning_rate)
        found = _growth(x_BxD, y_B, keys, rule, rate, sizes=sizes, steps=config.steps)
        return {"width": config.width, "steps": config.steps, **{name: digits(of) for name, of in found.items()}}
    rate = jnp.float32(config.path_learning_rate)
    fractions = (1 / case["depth"], *config.fractions)
    found_SxE = _path(x_BxD, y_B, keys, rule, rate, sizes=sizes, steps=config.path_steps, fractions=fractions)
    of_layer, distances_SxE = found_SxE[:, 0], found_SxE[:, 1:]
    return {
        "steps": config.path_steps,
        "fractions": list(config.fractions),
        "distances": digits(distances_SxE),
        "layer": digits(of_layer),
    }


def examples(config: ConfigDict) -> tuple[jax.Array, jax.Array]:
    """(B, D) Gaussian inputs and (B,) random targets of -1 and 1, the same for every network."""
    key_x, key_y = jax.random.split(jax.random.key(config.seed + 1))
    x_BxD = jax.random.normal(key_x, (config.examples, _INPUTS), jnp.float32)
    return x_BxD, jax.random.rademacher(key_y, (config.examples,), jnp.float32)


_Sizes = tuple[str, int, int, str]  # nonlinearity, width, depth, optimizer: what a program is compiled for


@functools.partial(jax.jit, static_argnames=("sizes", "steps"))
def _growth(
    x_BxD: jax.Array, y_B: jax.Array, keys: jax.Array, rule: Factors, rate: jax.Array, *, sizes: _Sizes, steps: int
) -> dict[str, jax.Array]:
    """Root mean squares (S,) of ``x^L`` at the start, and (S, steps) of the changes of ``x^L`` and all ``h^l``."""

    def features(params: Any, stream_LxBxN: jax.Array) -> tuple[jax.Array, jax.Array]:
        kernels_LxNxN = params["blocks"]["branch"]["dense_0"]["kernel"]
        return stream_LxBxN[-1], jnp.einsum("lbi,lij->lbj", stream_LxBxN[:-1], kernels_LxNxN)

    last_SxTxBxN, pre_SxTxLxBxN = _train(x_BxD, y_B, keys, rule, rate, sizes, steps, features)
    return {
        "initial": _rms(last_SxTxBxN[:, 0], 1),
        "change": _rms(last_SxTxBxN[:, 1:] - last_SxTxBxN[:, :1], 2),
        "preactivation": _rms(pre_SxTxLxBxN[:, 1:] - pre_SxTxLxBxN[:, :1], 2),
    }


@functools.partial(jax.jit, static_argnames=("sizes", "steps", "fractions"))
def _path(
    x_BxD: jax.Array,
    y_B: jax.Array,
    keys: jax.Array,
    rule: Factors,
    rate: jax.Array,
    *,
    sizes: _Sizes,
    steps: int,
    fractions: tuple[float, ...],
) -> jax.Array:
    """(S, E) distances after training."""
    observe = lambda _, stream_LxBxN: distances(stream_LxBxN, fractions)
    return _train(x_BxD, y_B, keys, rule, rate, sizes, steps, observe)[:, -1]


def _train(
    x_BxD: jax.Array,
    y_B: jax.Array,
    keys: jax.Array,
    rule: Factors,
    rate: jax.Array,
    sizes: _Sizes,
    steps: int,
    observe: Callable[[Any, jax.Array], Any],
) -> Any:
    """``observe(params, stream)`` of all seeds before and after each full-batch step.

    The parametrization has no power of depth of its own: ``rule`` has them as arguments, and so one program serves the
    whole plane.
    """
    nonlinearity, width, depth, name = sizes
    flat = get_parametrization(alpha=0.0, gamma=0.0, branch_multiplier=rule.branch)
    model = networks.network(nonlinearity, width, depth, rule=flat, pre_nonlin=False, mean_subtraction=True)
    info = param_info(model, model.base(), x_BxD)
    inner = optax.chain(optax.scale(rule.gradient), direction(name), optax.scale(rule.update))
    optimizer = freeze(depthmup(inner, info, flat, rate), info, ("stem", "readout"))
    seen = lambda params: observe(params, networks.forward(model, params, x_BxD)[1])
    x_TxBxD, y_TxB = (jnp.broadcast_to(of_step, (steps + 1, *of_step.shape)) for of_step in (x_BxD, y_B))
    return networks.trajectories(model, optimizer, x_TxBxD, y_TxB, seen, keys, lanes=len(keys))


def _rms(values: jax.Array, axis: int) -> jax.Array:
    """Over all axes from ``axis`` on."""
    return jnp.sqrt(jnp.mean(values**2, range(axis, values.ndim)))


@dataclasses.dataclass(frozen=True)
class _Cell:
    """A point of the plane: fitted powers of depth, after the last step unless said otherwise."""

    alpha: float
    gamma: float
    initial: Fit
    first_change: Fit
    change: Fit
    preactivation: Fit
    kappa: float | None  # of the deepest trained path

    @property
    def expected_change(self) -> float | None:
        """TP6 Claim 7.2, which presumes stability at initialization."""
        return 1 - self.alpha - self.gamma if self.alpha >= 0.5 else None

    @property
    def expected_preactivation(self) -> float | None:
        """The larger of the parts ``dW x ~ L^-gamma`` and ``W dx``."""
        return None if self.expected_change is None else max(-self.gamma, self.expected_change)

    @property
    def claimed(self) -> str:
        """What TP6's claims say, in a word."""
        said = classify(self.alpha, self.gamma)
        return _word(
            said.stable_at_init,
            said.stable_in_training,
            said.nontrivial,
            said.faithful_in_training,
            said.feature_diversity_exponent,
        )

    @property
    def measured(self) -> str:
        """What the powers say, in the same words."""
        nontrivial = not self.change.slope < -_FLAT
        return _word(
            not _grows(self.initial), not _grows(self.change), nontrivial, not _grows(self.preactivation), self.kappa
        )


def _grows(fit: Fit) -> bool:
    return fit.state == EXPLODES or fit.slope > _FLAT


def _word(
    stable_at_init: bool,
    stable_in_training: bool | None,
    nontrivial: bool | None,
    faithful: bool | None,
    kappa: float | None,
) -> str:
    """The class; each claim presumes those before it."""
    if not stable_at_init:
        return "explodes at init"
    if not stable_in_training:
        return "unstable"
    if not nontrivial:
        return "trivial"
    if not faithful:
        return "unfaithful"
    return "diverse" if (kappa or 0.0) > 0.25 else "redundant"


class _Study:
    """What the rows say: cells of the plane, and kappa along its line."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.growth = [row for row in rows if row["what"] == "growth"]
        self.paths = {(row["alpha"], row["depth"]): row for row in rows if row["what"] == "path"}
        self.depths = sorted({row["depth"] for row in self.growth})
        self.path_depths = sorted({depth for _, depth in self.paths})
        self.path_alphas = sorted({alpha for alpha, _ in self.paths})
        self.alphas, self.gammas = (sorted({row[name] for row in self.growth}) for name in ("alpha", "gamma"))
        self.width, self.steps = self.growth[0]["width"], self.growth[0]["steps"]
        self.seeds = len(self.growth[0]["initial"])
        self.cells = {point: self._cell(*point) for point in itertools.product(self.alphas, self.gammas)}

    def kappa(self, alpha: float, depth: int, smallest: int | None = None) -> tuple[float, float]:
        """1 - slope of the distances along the path (at the smallest eps only), and half of its interval over seeds."""
        row = self.paths[alpha, depth]
        found = slopes(row["fractions"][:smallest], _array(row["distances"])[:, :smallest])
        return mean_interval(1 - found)

    def roughness(self, alpha: float) -> Fit:
        """Power of depth of ``L d(1/L)^2``, the sum of squares of all layers' increments."""
        return fit_power({depth: depth * _array(self.paths[alpha, depth]["layer"]) ** 2 for depth in self.path_depths})

    def _cell(self, alpha: float, gamma: float) -> _Cell:
        rows = {row["depth"]: row for row in self.growth if (row["alpha"], row["gamma"]) == (alpha, gamma)}
        known = alpha in self.path_alphas and _diversity(alpha, gamma)

        def fit(name: str, step: int) -> Fit:
            values = {depth: _array(row[name]).reshape(self.seeds, -1)[:, step] for depth, row in rows.items()}
            return fit_power({depth: of_seeds.tolist() for depth, of_seeds in values.items()})

        return _Cell(
            alpha,
            gamma,
            initial=fit("initial", 0),
            first_change=fit("change", 0),
            change=fit("change", -1),
            preactivation=fit("preactivation", -1),
            kappa=self.kappa(alpha, self.path_depths[-1])[0] if known else None,
        )


def _array(values: Any) -> np.ndarray:
    """Of a record; what overflowed is infinite."""
    found = np.array(values, np.float64)
    return np.where(np.isnan(found), np.inf, found)


def table(rows: list[Row]) -> str:
    """Powers of depth at each point of the plane beside TP6's claims, and kappa along the line."""
    study = _Study(rows)
    lines = [
        [
            "alpha",
            "gamma",
            "initial",
            "change, step 1",
            f"step {study.steps}",
            "claim",
            "pre-act.",
            "",
            "measured",
            "TP6",
            "",
        ]
    ]
    for cell in study.cells.values():
        lines.append(
            [
                f"{cell.alpha:g}",
                f"{cell.gamma:g}",
                str(cell.initial),
                str(cell.first_change),
                str(cell.change),
                _signed(cell.expected_change),
                str(cell.preactivation),
                _signed(cell.expected_preactivation),
                cell.measured,
                cell.claimed,
                "" if cell.measured == cell.claimed else "differs",
            ]
        )
    agree = sum(cell.measured == cell.claimed for cell in study.cells.values())
    counted = f"The measured class is TP6's at {agree} of {len(study.cells)} points."
    return "\n\n".join([aligned(lines), counted, _path_table(study), _note(study)])


def _signed(value: float | None) -> str:
    return "none" if value is None else f"{value:+.2f}"


def _path_table(study: _Study) -> str:
    row, deepest = next(iter(study.paths.values())), study.path_depths[-1]
    below = f"eps to {row['fractions'][1]:g}"
    head = ["kappa at alpha", *(f"depth {depth}" for depth in study.path_depths), below, "TP6"]
    lines = [[*head, "roughness", "1 - 2 alpha"]]
    for alpha in study.path_alphas:
        kappas = [format_slope(*study.kappa(alpha, depth)) for depth in study.path_depths]
        local = format_slope(*study.kappa(alpha, deepest, 2))
        claim = f"{classify(alpha, 1 - alpha).feature_diversity_exponent:g}"
        power = str(study.roughness(alpha)) if len(study.path_depths) > 2 else "needs 3 depths"
        lines.append([f"{alpha:g}", *kappas, local, claim, power, _signed(1 - 2 * alpha)])
    return aligned(lines)


def _note(study: _Study) -> str:
    row, deepest = next(iter(study.paths.values())), study.path_depths[-1]
    low, high = row["fractions"][0], row["fractions"][-1]
    depths = ", ".join(map(str, study.depths))
    return f"""Powers of depth over {depths}, width {study.width}, n = {study.seeds} seeds: of
the root mean square of x^L at the start, and of what steps change in x^L and in the pre-activations h^l.
Of the last, the larger of two parts is expected, L^-gamma from W and L^(1 - alpha - gamma) from x; both show
at these depths. A power up to {_FLAT:g} counts as none. Where alpha < 1/2 growth is exponential in
L^(1 - 2 alpha), no power, and TP6 claims nothing more.
kappa = 1 - slope of log d(eps) over log eps from {low:g} to {high:g}, after {row["steps"]} steps, on the line
alpha + gamma = 1; 'eps to': over the two smallest eps at depth {deepest}. TP6's is for L to infinity, then
eps to 0. Above 1/4 at the largest depth counts as diverse.
roughness: power of depth of L d(1/L)^2, the sum of squares of all layers' increments, which stays at
alpha = 1/2 alone; a smooth path adds 1/L."""


def figure(rows: list[Row]) -> Any:
    """Three maps of powers over the plane, and kappa along alpha + gamma = 1."""
    study = _Study(rows)
    found, panels = canvas(2, 2, width=5.0, height=4.8)
    agree = sum(cell.measured == cell.claimed for cell in study.cells.values())
    found.suptitle(
        r"Residual MLPs with branches times $L^{-\alpha}$, updates times $L^{-\gamma}$: fitted powers of depth $L$"
        f"\nwidth {study.width}, depths {study.depths[0]} to {study.depths[-1]}, n = {study.seeds} seeds; of the class "
        f"that TP6 claims at {agree} of {len(study.cells)} points",
        fontsize=11,
    )
    steps = f"in {study.steps} steps"
    _map(panels[0, 0], study, "initial", "(a) features $x^L$ at the start\nexpected: 0 right of the line; red explodes")
    _map(
        panels[0, 1],
        study,
        "change",
        f"(b) their change {steps}; boxes: $\\alpha + \\gamma = 1$\n"
        r"expected: $1 - \alpha - \gamma$; red is unstable, blue trivial",
    )
    image = _map(
        panels[1, 0],
        study,
        "preactivation",
        f"(c) change of pre-activations $h^l$ {steps}\n"
        r"expected: larger of $-\gamma$, $1 - \alpha - \gamma$; red boxes are unfaithful",
    )
    _presets(panels[0, 1], study)
    found.colorbar(image, ax=panels[1, 0], location="bottom", label="power of depth", extend="both", shrink=0.7)
    _draw_kappa(panels[1, 1], study)
    return found


def _map(panel: Any, study: _Study, name: str, title: str) -> Any:
    """Powers over the plane; the colors end at ``_MAP``, the numbers do not."""
    fits = [[getattr(study.cells[alpha, gamma], name) for alpha in study.alphas] for gamma in study.gammas]
    powers = np.array([[_MAP if fit.state == EXPLODES else fit.slope for fit in line] for line in fits])
    columns, lines = range(len(study.alphas)), range(len(study.gammas))
    image = panel.pcolormesh(columns, lines, powers, cmap="RdBu_r", vmin=-_MAP, vmax=_MAP, rasterized=True)
    for column, line in itertools.product(columns, lines):
        color = "white" if abs(powers[line, column]) > 0.6 * _MAP else "black"
        panel.text(column, line, _number(fits[line][column]), ha="center", va="center", fontsize=8.5, color=color)
    panel.set_xticks(columns, labels=[f"{alpha:g}" for alpha in study.alphas])
    panel.set_yticks(lines, labels=[f"{gamma:g}" for gamma in study.gammas])
    panel.set_xlabel(r"$\alpha$")
    panel.set_ylabel(r"$\gamma$")
    panel.set_title(title, fontsize=9.5)
    _boundaries(panel, study)
    return image


def _number(fit: Fit) -> str:
    if fit.state == EXPLODES:
        return "explodes"
    return f"{fit.slope + 0.0:+.2f}".replace("-0.00", "0.00") if abs(fit.slope) < 10 else f"{fit.slope:+.0f}"


def _boundaries(panel: Any, study: _Study) -> None:
    """A line left of alpha = 1/2, which is stable, and boxes around the stable and nontrivial points."""
    from matplotlib.patches import Rectangle

    unstable = sum(alpha < 0.5 for alpha in study.alphas)
    panel.axvline(unstable - 0.5, color="black", linewidth=2.5)
    for (column, alpha), (line, gamma) in itertools.product(enumerate(study.alphas), enumerate(study.gammas)):
        said = classify(alpha, gamma)
        if said.stable_in_training and said.nontrivial:
            corner = (column - 0.47, line - 0.47)
            panel.add_patch(Rectangle(corner, 0.94, 0.94, fill=False, edgecolor="black", linewidth=1.6))


def _presets(panel: Any, study: _Study) -> None:
    """Names under the numbers, of those that muP scales over width and that keep gamma0."""
    for name, rule in PRESETS.items():
        known = (rule.alpha, rule.gamma) in study.cells
        if known and rule.width == "mup" and not rule.gamma0_width_exponent:
            at = study.alphas.index(rule.alpha), study.gammas.index(rule.gamma) - 0.28
            color = "black" if rule.alpha >= 0.5 else "white"
            panel.text(*at, name, ha="center", va="center", fontsize=7, style="italic", color=color)


def _draw_kappa(panel: Any, study: _Study) -> None:
    """Along alpha + gamma = 1; TP6's limit is a step."""
    panel.plot([0.5, 1.0], [0.0, 0.0], "--", color="0.45", linewidth=1.4, label="TP6, infinite depth")
    panel.plot([0.5], [0.0], "o", color="white", markeredgecolor="0.45", markersize=7)
    panel.plot([0.5], [0.5], "o", color="0.45", markersize=7)
    for depth, color in colors(study.path_depths).items():
        kappas, halves = zip(*(study.kappa(alpha, depth) for alpha in study.path_alphas), strict=True)
        style = {"fmt": "o-", "markersize": 4, "capsize": 2, "linewidth": 1.3}
        panel.errorbar(study.path_alphas, kappas, halves, color=color, label=f"depth {depth}", **style)
    row = next(iter(study.paths.values()))
    panel.set(xlabel=r"$\alpha$, with $\gamma = 1 - \alpha$", ylim=(-0.05, 0.55))
    panel.set_ylabel(rf"$\kappa$ ± 95 % interval, n = {study.seeds}")
    panel.set_title(
        rf"(d) feature diversity after {row['steps']} steps: $d(\epsilon) \sim \epsilon^{{1-\kappa}}$"
        f"\nfitted to $\\epsilon$ from {Fraction(row['fractions'][0])} to {Fraction(row['fractions'][-1])}",
        fontsize=9.5,
    )
    panel.grid(alpha=0.25)
    legend_below(panel)
