"""How different layers of trained residual MLPs are: their features (TP6 10.4, Fig. 17 to 19) and gradients (8.1).

TP6 is Yang et al. (arXiv:2310.02244).
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import optax
from ml_collections import ConfigDict

from depthmup_flax.auditing.config_audit import audited_model
from depthmup_flax.data import Dataset, batch_indices
from depthmup_flax.models import ResMLP
from depthmup_flax.report.style import colors
from depthmup_flax.rule.optimizer import adamw, freeze
from depthmup_flax.rule.parametrization import get_parametrization
from depthmup_flax.util.errors import InputError
from depthmup_flax.util.types import ArrayTree, Batch
from reproduction.figure_files import format_slope
from reproduction.limits import finite_networks as networks
from reproduction.limits.config_fields import check_fields, is_distinct, is_whole, require, require_fractions
from reproduction.limits.feature_distances import distances, four_digits, mean_interval, slopes
from reproduction.limits.fitted_rates import aligned
from reproduction.limits.image_examples import image_set
from reproduction.limits.panels import Page, Panel, finish, page, points, size_axis
from reproduction.limits.pipeline import Case, Row, Values
from reproduction.theory.gaussian_averages import get_activation

_FITTED = 4  # smallest fractions, to which slopes are fitted
_CLAIMS = {"depth_mup": "1/2", "ode": "to 1 with depth"}
_Kind = tuple[str, str]  # rule and nonlinearity


def cases(config: ConfigDict) -> list[Case]:
    """A few seeds of each kind of network at each depth."""
    check_fields(config, whole="width base_depth batch_size inputs", several="seeds", sizes="depths")
    check_fields(config, positive="learning_rate branch_multiplier")
    require_fractions(config, config.depths)
    times = config.times
    rising = is_distinct(times, lambda step: is_whole(step, 0)) and list(times) == sorted(times) and times[-1] >= 1
    require(config, "times", rising, "give rising numbers of steps, such as (0, 10, 100)")
    if config.data.augment == "resized_crop":
        raise InputError("data.augment is 'resized_crop', which crops images as they are read: use 'imagenet'.")
    for kind in config.kinds:
        if not isinstance(kind, (tuple, list)) or len(kind) != 2:
            raise InputError(f"config.kinds has {kind!r}: give pairs such as ('depth_mup', 'relu').")
        _model(config, kind[0], kind[1], depth=1, classes=1)
    kinds = itertools.product(config.kinds, config.depths)
    return [{"rule": rule, "nonlinearity": nonlinearity, "depth": depth} for (rule, nonlinearity), depth in kinds]


def measure(config: ConfigDict, case: Case) -> Values:
    """``d(eps)``, the likeness of neighbors' gradients and the training loss of each seed at each time."""
    dataset = image_set(config)
    if config.inputs > len(dataset.test):
        raise InputError(f"config.inputs is {config.inputs}: the data set has {len(dataset.test)} held-out images.")
    model = _model(config, **case, classes=dataset.num_classes)
    distances_SxTxE, likeness_SxT, losses_SxT = _train(config, model, dataset)
    return {
        "data": config.data.name,
        **{name: config[name] for name in ("width", "batch_size", "learning_rate")},
        **{name: list(config[name]) for name in ("times", "fractions")},
        "distances": four_digits(distances_SxTxE),
        "likeness": four_digits(likeness_SxT),
        "losses": four_digits(losses_SxT),
    }


def gradient_likeness(model: ResMLP, params: ArrayTree, x_B: jax.Array, y_B: jax.Array) -> jax.Array:
    """Cosine of the gradients of neighboring blocks' weights, of each example alone; the mean over examples and blocks.

    The gradient is ``phi'(h^l) dx^l`` times ``x^(l-1)`` (TP6 8.1, 8.3), where ``dx`` and ``x`` change little from a
    block to the next. What ``h^l`` of a wide network leaves, as they are independent of each other, is `overlap`.
    """

    def of_example(example: tuple[jax.Array, jax.Array]) -> jax.Array:
        loss = lambda params: _loss(model, params, *(array[None] for array in example))
        kernels_LxNxN = jax.grad(loss)(params)["blocks"]["branch"]["dense_0"]["kernel"]
        unit_LxNxN = kernels_LxNxN / jnp.linalg.norm(kernels_LxNxN, axis=(1, 2), keepdims=True)
        return jnp.einsum("lij,lij->l", unit_LxNxN[1:], unit_LxNxN[:-1]).mean()

    return jax.lax.map(of_example, (x_B, y_B)).mean()


def overlap(nonlinearity: str) -> float:
    """``<phi'(u)>^2 / <phi'(u)^2>`` of a Gaussian u: what independent pre-activations leave of gradients' likeness.

    Of linear 1, of ReLU 1/2 and of the absolute value 0 (TP6 8.3), at any variance of u; of others that at variance 1.
    """
    slopes = get_activation(nonlinearity).slopes
    one, none = jnp.ones(()), jnp.zeros(())
    return float(slopes(one, one, none) / slopes(one, one, one))


def _loss(model: ResMLP, params: ArrayTree, x_B: jax.Array, y_B: jax.Array) -> jax.Array:
    logits_BxC = model.apply({"params": params}, x_B)
    return optax.softmax_cross_entropy_with_integer_labels(logits_BxC, y_B).mean()


def _model(config: ConfigDict, rule: str, nonlinearity: str, *, depth: int, classes: int) -> ResMLP:
    powers = get_parametrization(rule, branch_multiplier=config.branch_multiplier)
    sizes = {"width": config.width, "base_width": config.width, "base_depth": config.base_depth}
    return ResMLP(classes, depth=depth, nonlinearity=nonlinearity, rule=powers, **sizes)


def _train(config: ConfigDict, model: ResMLP, dataset: Dataset) -> tuple[np.ndarray, ...]:
    """(S, T, E) distances, (S, T) likeness of gradients and training losses at ``times``.

    A loss is the mean of the few steps before.
    """
    steps, unit = config.times[-1], math.gcd(*config.times)
    indices = lambda s, step: batch_indices(config.seed + s, step, len(dataset.train), config.batch_size)
    order_SxTxB = np.array([[indices(s, step) for step in range(steps)] for s in range(config.seeds)])
    needed, place = np.unique(order_SxTxB, return_inverse=True)
    place_SxKxUxB = jnp.asarray(place.reshape(config.seeds, steps // unit, unit, config.batch_size))
    keys = jax.random.split(jax.random.key(config.seed), config.seeds)
    examples = {name: jnp.asarray(array) for name, array in dataset.train.read(needed).items()}
    held_out = dataset.test.read(np.arange(config.inputs))
    seen = dataset.prepare("none", None, {name: jnp.asarray(array) for name, array in held_out.items()})

    @jax.jit
    def run(keys: jax.Array) -> tuple[jax.Array, ...]:
        # One after another: random numbers of several keys at a time take seconds to compile.
        params = jax.lax.map(lambda key: networks.init(model, key, seen[0]), keys)
        return jax.vmap(functools.partial(_run, config, model, dataset, seen, examples))(params, place_SxKxUxB, keys)

    distances_SxKxE, likeness_SxK, losses_SxK = (np.asarray(values, np.float64) for values in run(keys))
    losses_SxK = np.pad(losses_SxK, [(0, 0), (1, 0)], constant_values=math.nan)
    at = [time // unit for time in config.times]
    return distances_SxKxE[:, at], likeness_SxK[:, at], losses_SxK[:, at]


_State = tuple[ArrayTree, optax.OptState]
_Batches = tuple[jax.Array, jax.Array]  # places of examples, and random keys


def _run(
    config: ConfigDict,
    model: ResMLP,
    dataset: Dataset,
    seen: tuple[jax.Array, jax.Array],
    examples: Batch,
    params: ArrayTree,
    place_KxUxB: jax.Array,
    key: jax.Array,
) -> tuple[jax.Array, ...]:
    """One network's (K + 1, E) distances, (K + 1,) likeness and (K,) mean losses, of K rounds of steps.

    Distances and likeness are those before the first and after each round.
    """
    info = audited_model(model, dataset.input_spec).info
    optimizer = freeze(adamw(config.learning_rate, info, model.rule), info, ("stem", "readout"))

    def step(carry: _State, batch: _Batches) -> tuple[_State, jax.Array]:
        (params, state), (place_B, key) = carry, batch
        x, y_B = dataset.prepare(config.data.augment, key, {name: array[place_B] for name, array in examples.items()})
        value, gradients = jax.value_and_grad(lambda params: _loss(model, params, x, y_B))(params)
        updates, state = optimizer.update(gradients, state, params)
        return (optax.apply_updates(params, updates), state), value

    def observe(params: ArrayTree) -> tuple[jax.Array, jax.Array]:
        stream_LxBxN = networks.forward(model, params, seen[0])[1]
        return distances(stream_LxBxN, config.fractions), gradient_likeness(model, params, *seen)

    def round_of_steps(carry: _State, batches: _Batches) -> tuple[_State, tuple[jax.Array, ...]]:
        carry, losses_U = jax.lax.scan(step, carry, batches)
        return carry, (*observe(carry[0]), losses_U.mean())

    keys_KxU = jax.random.split(key, place_KxUxB.shape[:2])
    start = (params, optimizer.init(params))
    _, (*observed, losses_K) = jax.lax.scan(round_of_steps, start, (place_KxUxB, keys_KxU))
    with_start = [
        jnp.concatenate([at_start[None], later]) for at_start, later in zip(observe(params), observed, strict=True)
    ]
    return *with_start, losses_K


class _Study:
    """The rows by kind of network and depth."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = {(row["rule"], row["nonlinearity"], row["depth"]): row for row in rows}
        self.kinds = list(dict.fromkeys((row["rule"], row["nonlinearity"]) for row in rows))
        self.depths = sorted({row["depth"] for row in rows})
        self.times, self.fractions = rows[0]["times"], np.array(rows[0]["fractions"])
        self.seeds = len(rows[0]["distances"])

    def values(self, name: str, kind: _Kind, depth: int, time: int) -> np.ndarray:
        """(S, E) distances, or (S,) likeness or losses; NaN where a network diverged, and of losses at the start."""
        return np.array(self.rows[*kind, depth][name], np.float64)[:, self.times.index(time)]

    def slopes(self, kind: _Kind, depth: int, time: int) -> np.ndarray:
        return slopes(self.fractions[:_FITTED], self.values("distances", kind, depth, time)[:, :_FITTED])


def table(rows: list[Row]) -> str:
    """Slopes beside TP6's, over depth and time, and how far apart kinds are."""
    study = _Study(rows)
    first, depths = study.kinds[0], [f"depth {depth}" for depth in study.depths]
    slope_lines = [["slope", "step", *depths, "TP6"]]
    # Seed by seed: kinds share data and initial weights.
    differences = [[f"slope minus that of {', '.join(first)}", "step", *depths]]
    likeness = [["likeness of gradients", "step", *depths, "TP6"]]
    losses = [["training loss", "step", *depths]]
    for kind, time in itertools.product(study.kinds, study.times):
        start, claim = [", ".join(kind), str(time)], _CLAIMS.get(kind[0], "") if time else "1/2"
        of_depth = {depth: study.slopes(kind, depth, time) for depth in study.depths}
        slope_lines.append([*start, *map(_slope, of_depth.values()), claim])
        if kind != first:
            minus = [_slope(values_S - study.slopes(first, depth, time)) for depth, values_S in of_depth.items()]
            differences.append([*start, *minus])
        alike = [_slope(study.values("likeness", kind, depth, time)) for depth in study.depths]
        likeness.append([*start, *alike, "" if kind[0] == "ode" and time else f"{overlap(kind[1]):g}"])
        if time:
            means = [study.values("losses", kind, depth, time).mean() for depth in study.depths]
            losses.append([*start, *(f"{mean:.3f}" for mean in means)])
    row, fitted = rows[0], study.fractions[:_FITTED]
    note = f"""\
{row["data"]}, width {row["width"]}, Adam at {row["learning_rate"]:g}, batches of {row["batch_size"]}, \
n = {study.seeds} seeds, ± 95 % interval.
slope: of log d(eps) over log eps from {fitted[0]:g} to {fitted[-1]:g}, which is 1 - kappa.
TP6's is for infinite depth, then eps to 0.
likeness of gradients: cosine of the gradients of neighboring blocks' weights, of one example. TP6's (8.3) is for h^l
that are independent of each other: at the start and, under Depth-muP at infinite depth, later.
The training loss is the mean of the last few steps; held-out images are those of distances and gradients."""
    return "\n\n".join([*map(aligned, (slope_lines, differences, likeness, losses)), note])


def _slope(values_S: np.ndarray) -> str:
    mean, half = mean_interval(values_S)
    return format_slope(mean, half, 3) if math.isfinite(mean) else "diverged"


def figure(rows: list[Row]) -> Page:
    """``d`` over ``eps`` for each kind, over depth at the last step and over time at the largest depth; gradients."""
    study = _Study(rows)
    last, deepest = study.times[-1], study.depths[-1]
    title = (
        r"Feature diversity: distance $d(\epsilon)$ of features $\epsilon L$ layers apart, scaled to 1 at the smallest "
        rf"$\epsilon$ ({rows[0]['data']}, width {rows[0]['width']})"
        f"\nmean ± std over n = {study.seeds} seeds; numbers: slopes $1 - \\kappa$ ± 95 % interval, "
        f"fitted to $\\epsilon$ up to {Fraction(float(study.fractions[:_FITTED][-1]))}"
    )
    drawing, panels = page(3, len(study.kinds), title, width=4.3, height=4.3, sharey="row")
    for kind, top, middle, bottom in zip(study.kinds, *panels, strict=True):
        by_depth = {f"depth {depth}": (depth, last) for depth in study.depths}
        name = rf"{kind[0]} ($\alpha = {get_parametrization(kind[0]).alpha:g}$), {kind[1]}"
        _draw(top, study, kind, by_depth, f"{name}: after {last} steps", 0.0)
        by_time = {f"step {time}": (deepest, time) for time in study.times}
        _draw(middle, study, kind, by_time, rf"{name}: depth {deepest}, over $\epsilon^{{1/2}}$", 0.5)
        _draw_likeness(bottom, study, kind, f"{name}: neighbors' gradients")
    panels[0, 0].set_ylabel(r"$d(\epsilon)$")
    panels[1, 0].set_ylabel(r"$d(\epsilon)\; /\; \epsilon^{1/2}$")
    panels[2, 0].set_ylabel(f"cosine ± std, n = {study.seeds}")
    finish(panels.flat)
    return drawing


def _draw_likeness(panel: Panel, study: _Study, kind: _Kind, title: str) -> None:
    """Over depth at each time, and what independent pre-activations leave."""
    panel.axhline(overlap(kind[1]), color="0.45", linestyle="--", linewidth=1.4, label=r"independent $h^l$")
    for time, color in colors(study.times).items():
        values_DxS = np.array([study.values("likeness", kind, depth, time) for depth in study.depths])
        mean, spread = values_DxS.mean(1), values_DxS.std(1, ddof=1)
        points(panel, study.depths, mean, spread, color=color, label=f"step {time}", joined=True)
    size_axis(panel, study.depths, "depth", title="", ylabel="", log=False)
    panel.set_title(title, fontsize=10)


def _draw(
    panel: Panel, study: _Study, kind: _Kind, curves: dict[str, tuple[int, int]], title: str, power: float
) -> None:
    """Curves of (depth, time), and guides of slope 1/2 and 1, all divided by ``eps^power``."""
    x = study.fractions / study.fractions[0]
    for slope, dashes, label in ((0.5, "--", r"$\epsilon^{1/2}$"), (1.0, ":", r"$\epsilon$")):
        panel.plot(study.fractions, x ** (slope - power), dashes, color="0.45", linewidth=1.4, label=label)
    for (label, curve), color in zip(curves.items(), colors(range(len(curves))).values(), strict=True):
        distances_SxE = study.values("distances", kind, *curve) / x**power
        distances_SxE /= distances_SxE[:, :1].mean()
        mean, spread = distances_SxE.mean(0), distances_SxE.std(0, ddof=1)
        named = f"{label}: {_slope(study.slopes(kind, *curve))}"
        points(panel, study.fractions, mean, spread, color=color, label=named, joined=True)
    panel.set_xscale("log", base=2)
    panel.set_yscale("log", base=2)
    panel.set_xticks(study.fractions, labels=[str(Fraction(float(x)).limit_denominator(9999)) for x in study.fractions])
    panel.yaxis.set_major_formatter("{x:g}")
    panel.set_xlabel(r"$\epsilon$, fraction of the depth")
    panel.set_title(title, fontsize=10)
