"""Pictures of training over time: loss at the transferred x, and how early the optimum is decided."""

from __future__ import annotations

from typing import Any

import numpy as np

from depthmup_flax.report.analysis import Row, Study
from depthmup_flax.report.figures import spread_sentence, variant_panels
from depthmup_flax.report.optimum import vertices
from depthmup_flax.report.style import colors, hyperparameter_axis, title_of, value_label


def draw_curves(study: Study) -> Any:
    """Training loss over steps, every size at the x that is best at the base."""
    figure, panels = variant_panels(study, sharey=True)
    figure.suptitle(
        f"Training loss over time, every size at the base's best {study.scale.name}\n{spread_sentence(study.variants)}",
        fontsize=11,
    )
    low, high, log_y = _limits(study)
    for axis, variant, panel, has_legend in panels:
        palette = colors(axis.sizes)
        stopped = []
        for row in axis.rows(variant):
            index = row.curve.index(variant.transferred) if variant.transferred is not None else None
            size = getattr(row.curve, axis.name)
            if index is None:
                stopped.append(f"{size} not run")
                continue
            if row.curve.diverged[index]:
                stopped.append(f"{size} diverged")
            elif np.nanmin(row.curve.slices[:, index].mean(0)) > high:
                stopped.append(f"{size} above the panel")
            _over_steps(panel, row, index, palette[size], high)
        panel.set_yscale("log" if log_y else "linear")
        panel.set_ylim(low, high)
        at = (
            "" if variant.transferred is None else f"{study.scale.name} {value_label(variant.transferred, study.scale)}"
        )
        panel.set_title("\n".join(filter(None, (title_of(variant.name), at))), fontsize=10)
        if stopped:
            text = f"{axis.name} " + ", ".join(stopped)
            panel.text(0.97, 0.97, text, transform=panel.transAxes, ha="right", va="top", fontsize=8, wrap=True)
        _finish(panel, axis.other, axis.fixed, "training loss")
        if has_legend:
            _legend(panel, axis.name, palette)
    return figure


def _over_steps(panel: Any, row: Row, index: int, color: Any, high: float) -> None:
    losses = row.curve.slices[:, index]  # (S, T)
    steps, means = row.curve.slice_ends, losses.mean(0)
    panel.plot(steps, means, color=color, linewidth=1.5, marker="o", markersize=2.5)
    if len(losses) > 1:
        # The spread of a loss far above the panel would cover it.
        spread = np.where(means > high, np.nan, losses.std(0, ddof=1))
        panel.fill_between(steps, means - spread, means + spread, color=color, alpha=0.18, linewidth=0)
    if row.curve.diverged[index] and np.isfinite(means).any():
        last = int(np.flatnonzero(np.isfinite(means))[-1])
        panel.plot(steps[last], means[last], "x", color=color, markersize=8, markeredgewidth=2)


def _limits(study: Study) -> tuple[float, float, bool]:
    """Of the runs that did not diverge, as the others would flatten them; log if more than twenty-fold apart."""
    losses = [
        row.curve.slices[:, index].ravel()
        for variant in study.variants
        for row in variant.rows
        if variant.transferred is not None
        and (index := row.curve.index(variant.transferred)) is not None
        and not row.curve.diverged[index]
        and row.useful
    ]
    finite = np.concatenate(losses) if losses else np.array([0.0, 1.0])
    low, high = float(np.nanmin(finite)), float(np.nanmax(finite))
    if low > 0 and high > 20 * low:
        return low / 1.2, high * 1.2, True
    margin = 0.05 * (high - low) or 1.0
    return low - margin, high + margin, False


def draw_over_time(study: Study) -> Any:
    """The optimum of each size after each time slice."""
    figure, panels = variant_panels(study, sharey=True)
    figure.suptitle(f"Best {study.scale.name} after each slice of training time", fontsize=11)
    for axis, variant, panel, has_legend in panels:
        palette = colors(axis.sizes)
        for row in axis.rows(variant):
            # What diverged in the end is missing from the start: nobody would choose it.
            means = np.where(row.curve.diverged[:, None] > 0, np.nan, row.curve.slices.mean(0))  # (X, T)
            best = vertices(study.scale.coordinate(row.curve.x), means.T)
            color = palette[getattr(row.curve, axis.name)]
            panel.plot(row.curve.slice_ends, best, color=color, linewidth=1.5, marker="o", markersize=3)
        coordinates = study.scale.coordinate(study.scale.values)
        panel.set_ylim(coordinates[0] - 0.5, coordinates[-1] + 0.5)
        hyperparameter_axis(panel.yaxis, study.scale)
        panel.set_title(title_of(variant.name), fontsize=10)
        _finish(panel, axis.other, axis.fixed, panel.get_ylabel())
        if has_legend:
            _legend(panel, axis.name, palette)
    return figure


def _finish(panel: Any, other: str, fixed: int, label: str) -> None:
    panel.set_xlabel("step")
    panel.set_xlim(left=0)
    panel.xaxis.get_major_locator().set_params(integer=True)
    panel.grid(alpha=0.25)
    panel.set_ylabel(f"{label}\n({other} {fixed})" if panel.get_subplotspec().is_first_col() else "")


def _legend(panel: Any, name: str, palette: dict[int, Any]) -> None:
    from matplotlib.lines import Line2D

    lines = [Line2D([], [], color=color, label=str(size)) for size, color in palette.items()]
    panel.legend(handles=lines, title=name, fontsize=8, title_fontsize=9, loc="upper left", bbox_to_anchor=(1, 1))
