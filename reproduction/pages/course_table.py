"""Writes the table and the figure of reproduction/pages/course.md: python -m reproduction.pages.course_table [OUT]

With OUT, of `reproduction.course.measure`, its records replace the committed ones of the same network and optimizer.
"""

from __future__ import annotations

import collections
import gzip
import json
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

import depthmup_flax as dm
from depthmup_flax.report import style
from depthmup_flax.trainer.course import mean_columns
from reproduction.course.measure import NETWORKS, OPTIMIZERS, config_of, faults
from reproduction.pages.generated_parts import with_part

HERE = pathlib.Path(__file__).parent
PAGE = HERE / "course.md"
RECORDS = HERE.parent / "course" / "records.jsonl.gz"
PART = "<!-- course: python -m reproduction.pages.course_table -->", "<!-- end of course -->"
HEALTHY = "healthy"
_LAST = 8  # step that is kept


def main(out: str = "") -> None:
    """Renews records, page and figure."""
    if out:
        experiment = lambda record: (record["network"], record["optimizer"])
        records = collected(pathlib.Path(out))
        kept = [record for record in read() if experiment(record) not in set(map(experiment, records))]
        lines = "".join(json.dumps(record) + "\n" for record in kept + records)
        RECORDS.write_bytes(gzip.compress(lines.encode(), mtime=0))
    PAGE.write_text(renewed(PAGE.read_text()))
    name, content = next(iter(style.pictures(drawn(found_at(read(), 1)), "course").items()))
    (PAGE.parent / name).write_bytes(content)


def collected(out: pathlib.Path) -> list[dict[str, Any]]:
    """Network, optimizer, fault, size, seed and columns of every run."""
    records = []
    for network, (_, sizes, _) in NETWORKS.items():
        for optimizer in OPTIMIZERS:
            path = out / f"{network}, {optimizer}".replace(" ", "_").replace(",", "") / "records.jsonl"
            config = config_of(network, optimizer, "")
            named = faults(network, optimizer, config, *sizes[-1])
            for line in path.read_text().splitlines() if path.exists() else []:
                run = json.loads(line)
                fits = lambda fields, run=run: all(
                    (tuple(x) if isinstance(x := run["point"][name], list) else x) == value
                    for name, value in fields.items()
                )
                fitting = [name for name in named if fits(named[name])]
                fault = max(fitting, key=lambda name: len(named[name]), default=HEALTHY)
                kept = [i for i, step in enumerate(run["course"]["step"]) if step <= _LAST]
                columns = {
                    name: [column[i] for i in kept]
                    for name, column in run["course"].items()
                    if not name.endswith(("/vector", "/vector+branch", "/fixed"))
                }
                fields = {"network": network, "optimizer": optimizer, "fault": fault}
                records.append(
                    {**fields, **{name: run[name] for name in ("width", "depth", "seed")}, "course": columns}
                )
    return records


def read() -> list[dict[str, Any]]:
    """The committed records."""
    return [json.loads(line) for line in gzip.decompress(RECORDS.read_bytes()).decode().splitlines()]


def found_at(records: Sequence[dict[str, Any]], seeds: int) -> dict[str, list[tuple[dict[str, Any], int | None]]]:
    """Fault -> its runs, each with the first step at which it is off course; by proxies of ``seeds`` runs."""
    found: dict[str, list[tuple[dict[str, Any], int | None]]] = collections.defaultdict(list)
    for network, (_, ((width, _), *_), _) in NETWORKS.items():
        for optimizer in OPTIMIZERS:
            own = [one for one in records if (one["network"], one["optimizer"]) == (network, optimizer)]
            is_proxy = lambda one, width=width: (one["fault"], one["width"]) == (HEALTHY, width) and one["seed"] < seeds
            proxies = [one["course"] for one in own if is_proxy(one)]
            for one in own if proxies else []:
                if not is_proxy(one):
                    deviations = dm.compare_runs(mean_columns(proxies), one["course"]).deviations
                    found[one["fault"]].append((one, deviations[0].step if deviations else None))
    return found


def renewed(page: str) -> str:
    """The page with what the records give, misses first."""
    one, three = (found_at(read(), seeds) for seeds in (1, 3))
    lines = [
        "| runs | n | seen at step 1 | at 2 | missed | missed, proxies of 3 seeds |",
        "|---|---|---|---|---|---|",
    ]
    order = sorted((name for name in one if name != HEALTHY), key=lambda name: -_missed(one[name]) / len(one[name]))
    for name in order:
        steps = [step for _, step in one[name]]
        early, late = (sum(step in some for step in steps) for some in ((1,), (2,)))
        counts = (len(steps), early, late, _missed(one[name]), f"{_missed(three[name])} of {len(three[name])}")
        lines.append(f"| {name} | {' | '.join(map(str, counts))} |")
    healthy = ["| healthy runs | n | false alarms, one run as proxy | proxies of 3 seeds |", "|---|---|---|---|"]
    for title, of in [*((network, {network}) for network in NETWORKS), ("all", set(NETWORKS))]:
        counts = []
        for found in (one, three):
            steps = [step for run, step in found[HEALTHY] if run["network"] in of]
            counts.append((sum(step is not None for step in steps), len(steps)))
        (alarms, n), (alarms_3, n_3) = counts
        healthy.append(f"| {title} | {n} | {alarms} | {alarms_3} of {n_3} |")
    return with_part(page, *PART, "\n".join([*lines, "", *healthy]))


def _missed(found: Sequence[tuple[dict[str, Any], int | None]]) -> int:
    return sum(step is None for _, step in found)


def drawn(found: dict[str, list[tuple[dict[str, Any], int | None]]]) -> Figure:
    """The share of runs that is seen at each step, a bar for each fault, misses first; false alarms below."""
    names = sorted(
        (name for name in found if name != HEALTHY), key=lambda name: _missed(found[name]) / len(found[name])
    )
    figure, ((axes,),) = style.canvas(1, 1, width=7, height=0.3 * len(names) + 1)
    parts = {"step 1": (1,), "step 2": (2,), "missed": (None,)}
    left = np.zeros(len(names) + 1)
    for (label, steps), color in zip(parts.items(), ("#1b5e7b", "#6fb1c8", "#d9d9d9"), strict=True):
        share = np.array([np.mean([step in steps for _, step in found[name]]) for name in (HEALTHY, *names)])
        axes.barh(range(len(names) + 1), share, left=left, color=color, label=label)
        left += share
    labels = [f"{name} (n = {len(found[name])})" for name in (HEALTHY, *names)]
    axes.set_yticks(range(len(labels)), labels)
    axes.set_xlabel("share of runs that are off course, by the step at which it is said")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return figure


if __name__ == "__main__":
    main(*sys.argv[1:])
