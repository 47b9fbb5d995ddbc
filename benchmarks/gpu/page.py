"""Measured whole steps as a Markdown table and as a figure of their share of the peak."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator, Sequence

from depthmup_flax.util.types import Json

SIDES = ("ours", "PyTorch", "plain Flax")
TITLES = ("ms a step (quartiles, n), GiB, share of the peak", *SIDES, "products at the peak, ms")
COLORS = {"ours": "#1b6ca8", "PyTorch": "#d1495b", "plain Flax": "#8d99ae"}


def table(result: Json) -> str:
    """Where the steps were measured, the table, and why sides are missing from it."""
    lines = [where(result), "", _cells(TITLES), _cells(["---"] * len(TITLES))]
    lines += [line(row, result["peak"]) for row in result["rows"]]
    return "\n".join([*lines, *_absences(result["rows"])])


def where(result: Json) -> str:
    """Device, peaks, versions and day."""
    peaks = ", ".join(f"{_peak(one):.3g} in {dtype}" for dtype, one in result["peak"].items())
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    sizes = "; tiny sizes, which say nothing about speed" if result["quick"] else ""
    return (
        f"**{result['hardware']}**, {result['day']}{sizes}; {versions}. Medians of {result['rounds']} interleaved "
        f"rounds; large products reached {peaks or 'a speed that was not measured'} (TFLOP/s)."
    )


def line(row: Json, peak: Json) -> str:
    """A row of `table`."""
    at_peak = seconds_at_peak(row, peak)
    lanes = row["sides"].get("ours", {}).get("lanes")
    title = f"{row['title']} (ours: {lanes} in lanes)" if lanes else row["title"]
    cells = [_cell(row["sides"].get(side), at_peak) for side in SIDES]
    return _cells([title, *cells, f"{1e3 * at_peak:.3g}" if at_peak else "-"])


def seconds_at_peak(row: Json, peak: Json) -> float | None:
    """Seconds that the row's products take at the measured speed of a large one, if both are known."""
    flops, speed = row["sides"].get("ours", {}).get("flops"), peak.get(row["case"]["dtype"])
    return flops / speed["median"] if flops and speed else None


def _peak(speed: Json) -> float:
    return float(speed["median"]) / 1e12


def _cell(side: Json | None, at_peak: float | None) -> str:
    if side is None:
        return "-"
    seconds = side["seconds"]
    low, median, high = (f"{1e3 * seconds[name]:.3g}" for name in ("low", "median", "high"))
    parts = [f"**{median}** ({low}-{high}, {seconds['n']})"]
    if side.get("bytes"):
        parts.append(f"{side['bytes'] / 2**30:.3g}")
    if at_peak:
        parts.append(f"{100 * at_peak / seconds['median']:.3g} %")
    return ", ".join(parts)


def _absences(rows: Sequence[Json]) -> Iterator[str]:
    """A sentence for each reason why a side is missing."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for side, why in row["absent"].items():
            reasons.setdefault((side, why), []).append(row["title"])
    for (side, why), titles in reasons.items():
        yield f"\n{side} was not measured in {len(titles)} of {len(rows)} rows: {why}"


def draw(result: Json, path: pathlib.Path) -> None:
    """Bars of the share of the peak that each side reaches, with milliseconds; nothing without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        print("matplotlib is not installed: no figure")
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    rows = result["rows"]
    sides = [side for side in SIDES if any(side in row["sides"] for row in rows)]
    height = 0.8 / len(sides)
    figure, axes = plt.subplots(figsize=(8, 1 + 0.8 * len(rows)), layout="constrained")
    for place, side in enumerate(sides):
        axes.barh(0, 0, color=COLORS[side], label=side)
        for y, row in enumerate(rows):
            at_peak, measured = seconds_at_peak(row, result["peak"]), row["sides"].get(side)
            if at_peak and measured:
                seconds, where_y = measured["seconds"]["median"], y + (place - (len(sides) - 1) / 2) * height
                axes.barh(where_y, at_peak / seconds, height, color=COLORS[side])
                axes.text(at_peak / seconds, where_y, f" {1e3 * seconds:.3g} ms", va="center", fontsize=8)
    axes.set_yticks(range(len(rows)), [row["title"] for row in rows], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("products at the measured peak / time of a step")
    axes.set_title(f"{result['hardware']}, n = {result['rounds']}", fontsize=8)
    axes.margins(x=0.15)
    figure.legend(loc="outside upper right", ncols=len(sides), fontsize=8)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _cells(texts: Sequence[str]) -> str:
    return f"| {' | '.join(texts)} |"
