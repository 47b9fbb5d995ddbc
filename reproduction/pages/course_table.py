"""Writes the tables and the figure of reproduction/pages/course.md: python -m reproduction.pages.course_table [OUT]

With OUT, of `reproduction.course.measure` or `.loops`, its records replace the committed ones of the same networks.
"""

from __future__ import annotations

import collections
import gzip
import json
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

import depthmup_flax as dm
from depthmup_flax.report import style
from depthmup_flax.trainer.comparison import of_a_tensor
from depthmup_flax.trainer.course import mean_columns
from reproduction.course.loops import FAULTS, TEST
from reproduction.course.measure import NETWORKS, OPTIMIZERS, config_of, faults
from reproduction.pages.generated_parts import with_part

HERE = pathlib.Path(__file__).parent
PAGE = HERE / "course.md"
RECORDS = HERE.parent / "course" / "records.jsonl.gz"
PART = "<!-- course: python -m reproduction.pages.course_table -->", "<!-- end of course -->"
LOOPS = HERE.parent / "course" / "loops.jsonl.gz"
OF_LOOPS = "<!-- loops: python -m reproduction.pages.course_table -->", "<!-- end of loops -->"
HEALTHY = "healthy"
_LAST = 8  # step that is kept


def main(out: str = "") -> None:
    """Renews records, page and figure."""
    if out:
        experiment = lambda record: (record["network"], record["optimizer"])
        records = collected(pathlib.Path(out))
        kept = [record for record in read() if experiment(record) not in set(map(experiment, records))]
        write(RECORDS, kept + records)
        keep_loops(pathlib.Path(out))
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


def read(path: pathlib.Path = RECORDS) -> list[dict[str, Any]]:
    """The committed records."""
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).decode().splitlines()]


def write(path: pathlib.Path, records: Sequence[dict[str, Any]]) -> None:
    """Commits records."""
    path.write_bytes(gzip.compress("".join(json.dumps(record) + "\n" for record in records).encode(), mtime=0))


def keep_loops(out: pathlib.Path) -> None:
    """Replaces the committed records of loops of the networks that OUT has."""
    found = [json.loads(line) for path in sorted(out.glob("*.jsonl")) for line in path.read_text().splitlines()]
    kept = read(LOOPS) if LOOPS.exists() else []
    names = {one["network"] for one in found}
    write(LOOPS, [one for one in kept if one["network"] not in names] + found)


def loop_table(records: Sequence[dict[str, Any]]) -> str:
    """Of each fault and network: the share of comparisons that are off course, and the kind and step that say so."""
    networks = list(dict.fromkeys(one["network"] for one in records))
    rows = [["", *(f"{name}{', test' if name in TEST else ''}" for name in networks)]]
    found = {name: _loop_outcomes([one for one in records if one["network"] == name]) for name in networks}
    for fault in (HEALTHY, *FAULTS):
        rows.append([fault, *(_loop_cell(found[name].get(fault, [])) for name in networks)])
    caught = [sum(_is_caught(found[name].get(fault, [])) for fault in FAULTS) for name in networks]
    rows.append(["**caught, of 12**", *(f"**{count}**" for count in caught)])
    return _table(rows)


def _loop_outcomes(records: Sequence[dict[str, Any]]) -> dict[str, list[str]]:
    """Fault -> what is said of each run beside each healthy one of the base; "" where nothing is."""
    width = min(one["width"] for one in records)
    base = [one for one in records if (one["fault"], one["width"]) == (HEALTHY, width)]
    outcomes = collections.defaultdict(list)
    for one in records:
        for proxy in base if "course" in one else ():
            if proxy is not one:
                deviations = dm.compare_runs(proxy["course"], one["course"]).deviations
                outcomes[one["fault"]].append(f"{_said(deviations[0])}" if deviations else "")
        if "refused" in one:
            outcomes[one["fault"]].append("refused before step 1")
    return outcomes


def _said(deviation: Any) -> str:
    return f"{deviation.kind}{' of a tensor' if of_a_tensor(deviation.name) else ''}, {deviation.step}"


def _is_caught(outcomes: Sequence[str]) -> bool:
    return bool(outcomes) and sum(map(bool, outcomes)) >= 0.9 * len(outcomes)


def _loop_cell(outcomes: Sequence[str]) -> str:
    said = collections.Counter(one for one in outcomes if one)
    if not outcomes:
        return "not run"
    share = f"{said.total()} of {len(outcomes)}"
    return share + (f" ({said.most_common(1)[0][0]})" if said else "")


Found = Mapping[str, Sequence[tuple[Mapping[str, Any], int | None]]]


def found_at(records: Sequence[dict[str, Any]], seeds: int) -> Found:
    """Fault -> its runs, each with the first step at which it is off course, beside each proxy of ``seeds`` runs."""
    found: dict[str, list[tuple[dict[str, Any], int | None]]] = collections.defaultdict(list)
    for network, (_, ((width, _), *_), _) in NETWORKS.items():
        for optimizer in OPTIMIZERS:
            own = [one for one in records if (one["network"], one["optimizer"]) == (network, optimizer)]
            base = [one for one in own if (one["fault"], one["width"]) == (HEALTHY, width)]
            for start in range(0, len(base) - seeds + 1, seeds):
                proxies = base[start : start + seeds]
                reference = mean_columns([one["course"] for one in proxies])
                for one in own:
                    if not any(one is proxy for proxy in proxies):
                        deviations = dm.compare_runs(reference, one["course"]).deviations
                        found[one["fault"]].append((one, deviations[0].step if deviations else None))
    return found


def renewed(page: str) -> str:
    """The page with what the records give, misses first."""
    records = read()
    one, three = (found_at(records, seeds) for seeds in (1, 3))
    faulty = [["wrong runs", "n", "comparisons", "seen at step 1", "at 2", "missed", "missed, proxies of 3 seeds"]]
    for name in sorted((name for name in one if name != HEALTHY), key=lambda name: -_missed(one[name])):
        steps = [step for _, step in one[name]]
        shares = (f"{sum(step in some for step in steps) / len(steps):.0%}" for some in ((1,), (2,), (None,)))
        n = sum(record["fault"] == name for record in records)
        faulty.append([name, str(n), str(len(steps)), *shares, f"{_missed(three[name]):.0%}"])
    healthy = [["healthy runs", "n", "comparisons", "false alarms", "proxies of 3 seeds"]]
    by_network = [(name, lambda record, name=name: record["network"] == name) for name in NETWORKS]
    for title, of in [
        *by_network,
        ("all", lambda record: True),
        ("all after the limits were fixed", is_later),
        ("of these, the last", is_last),
    ]:
        n = sum(record["fault"] == HEALTHY and of(record) for record in records)
        steps, steps_3 = ([step for record, step in found[HEALTHY] if of(record)] for found in (one, three))
        if not n:
            continue
        alarms, alarms_3 = (sum(step is not None for step in some) for some in (steps, steps_3))
        healthy.append([title, str(n), str(len(steps)), str(alarms), f"{alarms_3} of {len(steps_3)}"])
    page = with_part(page, *OF_LOOPS, loop_table(read(LOOPS)))
    return with_part(page, *PART, "\n\n".join(map(_table, (faulty, healthy))))


def is_later(record: Mapping[str, Any]) -> bool:
    """Whether a run was trained after the limits had been fixed."""
    return "adam" not in record["optimizer"] or is_last(record)


def is_last(record: Mapping[str, Any]) -> bool:
    """Whether a run is of the last ones that were trained: Muon of three networks, constant Adam."""
    network, optimizer = record["network"], record["optimizer"]
    muon = optimizer.startswith("muon") and network in ("MLP", "GPT", "conv")
    return muon or (optimizer == "adam, constant" and network != "MLP")


def _table(rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (rows[0], ["---"] * len(rows[0]), *rows[1:]))


def _missed(found: Sequence[tuple[Mapping[str, Any], int | None]]) -> float:
    return sum(step is None for _, step in found) / len(found)


def drawn(found: Found) -> Figure:
    """The share of runs that is seen at each step, a bar for each fault, misses first; false alarms below."""
    names = sorted((name for name in found if name != HEALTHY), key=lambda name: _missed(found[name]))
    figure, ((axes,),) = style.canvas(1, 1, width=7, height=0.3 * len(names) + 1)
    parts = {"step 1": (1,), "step 2": (2,), "missed": (None,)}
    left = np.zeros(len(names) + 1)
    for (label, steps), color in zip(parts.items(), ("#1b5e7b", "#6fb1c8", "#d9d9d9"), strict=True):
        share = np.array([np.mean([step in steps for _, step in found[name]]) for name in (HEALTHY, *names)])
        axes.barh(range(len(names) + 1), share, left=left, color=color, label=label)
        left += share
    labels = [f"{name} (n = {len(found[name])})" for name in (HEALTHY, *names)]
    axes.set_yticks(range(len(labels)), labels)
    axes.set_xlabel("share of comparisons that are off course, by the step at which it is said")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return figure


if __name__ == "__main__":
    main(*sys.argv[1:])
