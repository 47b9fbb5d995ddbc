"""Linear residual networks in training on images, one example a step, against theory (TP6 Fig. 8 and 9, section 10.1).

TP6 is Yang et al. (arXiv:2310.02244). Stem and readout are frozen. Root mean squares of layers are of a step's example,
before its update: those "after 5 steps" are of the sixth example.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from depthmup_flax.report.style import colors
from depthmup_flax.util.errors import InputError
from depthmup_flax.util.types import ArrayTree
from reproduction.limits import finite_networks as networks
from reproduction.limits.config_fields import check_fields, require
from reproduction.limits.finite_networks import GROUPS
from reproduction.limits.fitted_rates import Line, aligned, rate, rates_table
from reproduction.limits.image_examples import image_set, labeled_images
from reproduction.limits.panels import Page, Panel, draw_groups, finish, guide, page, points, size_axis, size_ticks
from reproduction.limits.pipeline import Case, Row, Values
from reproduction.theory import linear_training

_QUARTERS = ("0", "L/4", "L/2", "3L/4", "L")  # the layers that are shown
_DEEP = 32  # from here on theory's differences are a power of depth
_ERRORS = {"square_errors": "layers", "square_errors_outputs": "outputs"}


def cases(config: ConfigDict) -> list[Case]:
    """Theory over depth, networks of one depth over width, and of one width over some depths."""
    check_fields(config, whole="depth network_width lanes", sizes="steps widths theory_depths network_depths")
    check_fields(config, positive="learning_rate gamma0", groups="seeds")
    depths = sorted({config.depth, *config.theory_depths, *config.network_depths})
    for depth in depths:
        if depth % 4:
            raise InputError(f"config.depth, theory_depths or network_depths has {depth}: use multiples of 4.")
    doubled = any(2 * depth in depths for depth in depths)
    require(config, "theory_depths", doubled, "give depths of which each is twice another, such as (16, 32, 64)")
    _examples(config)
    sizes = [(width, config.depth) for width in config.widths]
    sizes += [(config.network_width, depth) for depth in config.network_depths]
    return [{"what": "theory", "depth": depth} for depth in depths] + [
        {"what": "networks", "width": width, "depth": depth, "seeds": config.seeds}
        for width, depth in dict.fromkeys(sizes)
    ]


def measure(config: ConfigDict, case: Case) -> Values:
    """Root mean squares (steps, quarters), and outputs of every pass."""
    targets_T = _examples(config)[1]
    about = {"steps": list(config.steps), "targets": targets_T.tolist(), "images": image_set(config).describe()}
    if case["what"] == "networks":
        return {**about, **_of_networks(config, case["width"], case["depth"], case["seeds"])}
    rms_TxQ, outputs_T = _theory(config, case["depth"])
    rms = {"start": rms_TxQ[0].tolist(), "rms": rms_TxQ[list(config.steps)].tolist()}
    return {**about, **rms, "outputs": outputs_T.tolist()}


def _examples(config: ConfigDict) -> tuple[np.ndarray, np.ndarray]:
    """An image and its label for each step, and for the outputs after the last."""
    return labeled_images(config, max(config.steps) + 1, asked_by="steps")


def _theory(config: ConfigDict, depth: int) -> tuple[np.ndarray, np.ndarray]:
    """(T, quarters) root mean squares of layers and (T,) outputs, at infinite width."""
    batches = (jnp.asarray(values[:, None]) for values in _examples(config))
    training = linear_training(*batches, depth=depth, learning_rate=config.learning_rate, gamma0=config.gamma0)
    squares_QxT = np.diagonal(training.features[:: depth // 4], axis1=1, axis2=2)
    return np.sqrt(squares_QxT).T, np.asarray(training.outputs[:, 0])


def _of_networks(config: ConfigDict, width: int, depth: int, seeds: int) -> Values:
    inputs_TxD, targets_T = _examples(config)
    x_TxD = jnp.asarray(inputs_TxD, jnp.float32)
    model = networks.network("linear", width, depth, gamma0=config.gamma0)
    optimizer = networks.mean_field_sgd(model, x_TxD[:1], config.learning_rate)

    def observe(params: ArrayTree) -> tuple[jax.Array, jax.Array]:
        """Observes all examples at a time, which costs no more than one: reading the weights takes the time."""
        outputs_T, stream_LxTxN = networks.forward(model, params, x_TxD)
        return jnp.mean(stream_LxTxN[:: depth // 4] ** 2, -1), outputs_T

    y_TxB = jnp.asarray(targets_T[:, None], jnp.float32)
    keys = networks.network_keys(config.seed, width, depth, seeds)
    observed = networks.trajectories(model, optimizer, x_TxD[:, None], y_TxB, observe, keys, lanes=config.lanes)
    # Of step t, the values of its own example.
    squares_SxTxQxT, outputs_SxTxT = (np.asarray(values, np.float64) for values in observed)
    squares_SxTxQ = np.diagonal(squares_SxTxQxT, axis1=1, axis2=3).transpose(0, 2, 1)
    outputs_SxT = np.diagonal(outputs_SxTxT, axis1=1, axis2=2)
    (theory_TxQ, theory_T), steps = _theory(config, depth), list(config.steps)
    rms_SxPxQ = np.sqrt(squares_SxTxQ[:, steps])
    return {
        "rms": rms_SxPxQ.mean(0).tolist(),
        "spread": rms_SxPxQ.std(0, ddof=1).tolist(),
        "outputs": outputs_SxT.mean(0).tolist(),
        "spread_outputs": outputs_SxT.std(0, ddof=1).tolist(),
        "square_errors": networks.group_means(np.mean((rms_SxPxQ - theory_TxQ[steps]) ** 2, (1, 2))),
        # The last output, which no update follows, included.
        "square_errors_outputs": networks.group_means(np.mean((outputs_SxT - theory_T) ** 2, 1)),
    }


class _Study:
    """The rows by size: theory and networks, and which of the networks are over width and which over depth."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.theory = {row["depth"]: row for row in rows if row["what"] == "theory"}
        self.networks = {(row["width"], row["depth"]): row for row in rows if row["what"] == "networks"}
        first = next(iter(self.networks.values()))
        self.seeds, self.steps, self.depth = (first[name] for name in ("seeds", "steps", "depth"))
        self.of_width = {width: row for (width, depth), row in sorted(self.networks.items()) if depth == self.depth}
        self.widths = list(self.of_width)
        self.network_width = next((w for w, depth in self.networks if depth != self.depth), self.widths[-1])
        self.network_depths = sorted(depth for width, depth in self.networks if width == self.network_width)
        self.widest, self.at_depth = self.of_width[self.widths[-1]], self.theory[self.depth]

    def differences(self, name: str, step: int | None = None) -> dict[int, float]:
        """Depth -> root mean square difference of theory to that of twice the depth; of one step or all."""
        values = {depth: np.array(row[name])[step] for depth, row in self.theory.items()}
        pairs = {depth: (here, values[2 * depth]) for depth, here in values.items() if 2 * depth in values}
        return {depth: float(np.sqrt(np.mean((here - there) ** 2))) for depth, (here, there) in pairs.items()}


def table(rows: list[Row]) -> str:
    """Powers of errors over width and depth, and outputs beside theory's."""
    study = _Study(rows)
    rates, errors = [], [["n x square error", *(f"width {width}" for width in study.widths)]]
    for name, label in _ERRORS.items():
        of_width = {width: row[name] for width, row in study.of_width.items()}
        what = f"{label}: network to theory, depth {study.depth}, over width"
        rates.append(rate(what, of_width, -1, study.seeds))
        errors.append([label, *(f"{width * float(np.mean(groups)):.1f}" for width, groups in of_width.items())])
    over_depth = {f"layers after {step} step(s)": study.differences("rms", i) for i, step in enumerate(study.steps)}
    for label, differences in {**over_depth, "outputs": study.differences("outputs")}.items():
        deep = {depth: [value] for depth, value in differences.items() if depth >= _DEEP}
        rates.append(rate(f"{label}: theory to twice the depth, over depth", deep, -1, "exact"))
    return "\n\n".join([rates_table(rates), *map(aligned, (errors, _layers(study), _outputs(study))), _NOTE])


_NOTE = f"""\
Errors over width: squares, mean over layers and steps, networks in {GROUPS} groups. Over depth: root mean square
difference of theory to theory of twice the depth, from depth {_DEEP} up. n: networks at each size. |x|^2 / D = 1."""


def _line(label: str, values: Sequence[float], spec: str, spread: Sequence[float] = ()) -> Line:
    spreads = [f" ± {std:{spec}}" for std in spread] or [""] * len(values)
    return [label, *(f"{value:{spec}}{std}" for value, std in zip(values, spreads, strict=True))]


def _layers(study: _Study) -> list[Line]:
    """Root mean squares of the widest networks beside theory's."""
    theory, widest, named = study.at_depth, study.widest, f"networks, width {study.widths[-1]}"
    lines = [[f"rms of layers, depth {study.depth}", *_QUARTERS]]
    lines.append(_line("before training: theory", theory["start"], ".3f"))
    for i, step in enumerate(study.steps):
        lines.append(_line(f"after {step} step(s): theory", theory["rms"][i], ".3f"))
        lines.append(_line(named, widest["rms"][i], ".3f", widest["spread"][i]))
    return lines


def _outputs(study: _Study) -> list[Line]:
    theory, widest = study.at_depth, study.widest
    return [
        [f"outputs f_t, depth {study.depth}", *(f"t = {t}" for t in range(len(theory["outputs"])))],
        _line("target", theory["targets"], "+.0f"),
        _line("theory", theory["outputs"], ".2f"),
        _line(f"networks, width {study.widths[-1]}", widest["outputs"], ".2f", widest["spread_outputs"]),
    ]


def figure(rows: list[Row]) -> Page:
    """Root mean squares over width (Fig. 8) and depth (Fig. 9), a column per step; then errors and outputs."""
    study = _Study(rows)
    title = (
        f"Linear residual networks trained by SGD, one example a step ({rows[0]['images']})\n"
        f"points: mean ± std of n = {study.seeds} networks at each size; lines: theory at infinite width"
    )
    drawing, panels = page(3, max(3, len(study.steps)), title, width=4.2, height=3.9)
    for i, step in enumerate(study.steps):
        _draw_widths(panels[0, i], study, i)
        _draw_depths(panels[1, i], study, i)
        after = f"after {step} step{'s' * (step > 1)}"
        for panel, title in zip(panels[:, i], (f"{after}, depth {study.depth}", after), strict=False):
            panel.set(title=title, ylim=_range(study), ylabel="root mean square")
    _draw_error_over_width(panels[2, 0], study)
    _draw_difference_over_depth(panels[2, 1], study)
    _draw_outputs(panels[2, 2], study)
    finish(panels[:2, : len(study.steps)].flat, columns=3)
    finish(panels[2, :3])
    for unused in (*panels[:2, len(study.steps) :].flat, *panels[2, 3:]):
        unused.set_visible(False)
    return drawing


def _range(study: _Study) -> tuple[float, float]:
    """Limits of the axes of root mean squares, spreads included."""
    rows = [*study.networks.values(), *study.theory.values()]
    ends = [np.array(row["rms"]) + sign * np.array(row.get("spread", 0.0)) for row in rows for sign in (-1, 1)]
    low, high = min(float(end.min()) for end in ends), max(float(end.max()) for end in ends)
    return low - 0.05 * (high - low), high + 0.05 * (high - low)


def _draw_widths(panel: Panel, study: _Study, step: int) -> None:
    for quarter, color in colors(range(len(_QUARTERS))).items():
        means, stds = ([row[name][step][quarter] for row in study.of_width.values()] for name in ("rms", "spread"))
        points(panel, study.widths, means, stds, color=color, label=f"layer {_QUARTERS[quarter]}", joined=True)
        panel.axhline(study.at_depth["rms"][step][quarter], color=color, linestyle="--", linewidth=1.3)
        panel.axhline(study.at_depth["start"][quarter], color=color, linestyle=":", linewidth=1.0)
    panel.plot([], [], "--", color="0.4", linewidth=1.3, label="theory")
    panel.plot([], [], ":", color="0.4", linewidth=1.0, label="before training")
    size_ticks(panel, study.widths, "width n")


def _draw_depths(panel: Panel, study: _Study, step: int) -> None:
    depths = sorted(study.theory)
    rows = [study.networks[study.network_width, depth] for depth in study.network_depths]
    for quarter, color in colors(range(len(_QUARTERS))).items():
        theory, label = [study.theory[d]["rms"][step][quarter] for d in depths], f"layer {_QUARTERS[quarter]}"
        panel.plot(depths, theory, color=color, linewidth=1.5, label=label)
        means, stds = ([row[name][step][quarter] for row in rows] for name in ("rms", "spread"))
        points(panel, study.network_depths, means, stds, color=color)
    panel.plot([], [], "o", color="0.4", markersize=4, label=f"networks, width {study.network_width}")
    size_ticks(panel, depths, "depth L")


def _draw_error_over_width(panel: Panel, study: _Study) -> None:
    for (name, label), color in zip(_ERRORS.items(), ("tab:blue", "tab:orange"), strict=True):
        groups = {width: row[name] for width, row in study.of_width.items()}
        draw_groups(panel, groups, color, label)
        start = 2.5 * float(np.mean(groups[study.widths[0]]))
        guide(panel, study.widths, start, -1, "expected slope -1" if label == "layers" else None)
    title, ylabel = f"networks to theory, depth {study.depth}", f"square error (± std of {GROUPS} groups)"
    size_axis(panel, study.widths, "width n", title=title, ylabel=ylabel)


def _draw_difference_over_depth(panel: Panel, study: _Study) -> None:
    lines = {f"layers, step {step}": study.differences("rms", i) for i, step in enumerate(study.steps)}
    lines["outputs"] = study.differences("outputs")
    depths = list(lines["outputs"])
    for number, (label, values) in enumerate(lines.items()):
        points(panel, depths, list(values.values()), color=f"C{number}", label=label, joined=True)
    guide(panel, depths, 2 * max(values[min(depths)] for values in lines.values()), -1, "expected slope -1")
    size_axis(panel, depths, "depth L", title="theory of depth L to that of 2 L", ylabel="root mean square difference")


def _draw_outputs(panel: Panel, study: _Study) -> None:
    palette, times = colors(study.widths), range(len(study.at_depth["outputs"]))
    panel.plot(times, study.at_depth["targets"], "_", color="tab:red", markersize=9, label="target")
    panel.plot(times, study.at_depth["outputs"], "--", color="black", linewidth=1.3, label="theory")
    for width in (study.widths[0], study.widths[-1]):
        row, label = study.of_width[width], f"networks, width {width}"
        points(panel, times, row["outputs"], row["spread_outputs"], color=palette[width], label=label)
    panel.set_xticks(times)
    panel.set(title=f"outputs, depth {study.depth}", xlabel="step t", ylabel="f of the step's example")
