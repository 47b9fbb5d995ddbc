"""Writes the tables in rule_benchmark.md from reproduction/rules/records:

    python -m reproduction.pages.rule_benchmark_table

With a work directory it first copies that directory's records to reproduction/rules/records:

    for rule in mup depth_mup ...; do python -m reproduction.rules $rule --workdir=runs/rules/all; done
    python -m reproduction.pages.rule_benchmark_table runs/rules/all
"""

from __future__ import annotations

import pathlib
import statistics
import sys
from typing import Any

from depthmup_flax.report.verdict import TOLERANCE
from reproduction.pages.generated_parts import with_part
from reproduction.rules import runs, table
from reproduction.rules.rule_file import DEFAULT, Rule, read_rule, shipped_rules
from reproduction.rules.tasks import FACTORS, TARGETS, TASKS

PAGE = pathlib.Path(__file__).with_name("rule_benchmark.md")
PART = "<!-- rules: python -m reproduction.pages.rule_benchmark_table -->", "<!-- end of rules -->"


def main(workdirs: list[str]) -> None:
    """Renews the page."""
    for workdir in workdirs:
        for name in TASKS:
            runs.ship(pathlib.Path(workdir) / name, runs.SHIPPED / name)
    PAGE.write_text(renewed(PAGE.read_text()))


def renewed(page: str) -> str:
    """The page with what the records give: all rules, then each rule's regret at the largest target of each task."""
    losses = {name: runs.read_losses(name, runs.SHIPPED / name) for name in TASKS}
    scored = [(rule, runs.all_scores(rule, losses)) for rule in map(read_rule, shipped_rules())]
    rows = table.compared(scored)
    count = sum(len(of) for one in losses.values() for of in one.of.values())
    cost = sum(one.core_s for one in losses.values()) / 60
    size = f"n = {len(TASKS)} tasks, {count:,} runs, at most {cost:.0f} core-minutes."
    summary = f"**{table.headline(rows)}** {_default(rows)} {_edges(losses, scored)} {size}"
    largest = str(max(TARGETS))
    names = [row["rule"] for row in rows]
    per_task = [[f"`{task}`", *(_regret(row["scores"].get(task), largest) for row in rows)] for task in TASKS]
    parts = [
        summary,
        _table(table.HEADER, map(table.cells, rows)),
        f"Regret at {largest} times the cost, of each task:",
    ]
    return with_part(page, *PART, "\n\n".join([*parts, _table(("task", *names), per_task)]))


def _default(rows: list[dict[str, Any]]) -> str:
    """Where the package's own default loses more than a small regret to another rule."""
    regret = lambda row, task: statistics.mean(score["regret"] for score in row["scores"][task].values())
    own = next(row for row in rows if row["rule"] == DEFAULT)
    lost = []
    for task in own["scores"]:
        best = min((row for row in rows if task in row["scores"]), key=lambda row: regret(row, task))
        if (by := regret(own, task) - regret(best, task)) > TOLERANCE:
            lost.append(f"`{task}` ({by:.3f} to {best['rule']})")
    place = [row["rule"] for row in rows].index(DEFAULT) + 1
    where = f"on {len(lost)} of {len(own['scores'])} tasks" + f": {', '.join(lost)}" * bool(lost)
    return f"The default, {DEFAULT}, is number {place}. It loses more than {TOLERANCE:g} to another rule {where}."


def _edges(losses: dict[str, runs.Losses], scored: list[tuple[Rule, runs.Scores]]) -> str:
    """Where tuning would go on beyond its grid."""
    at_edge = []
    for rule, of in scored:
        for name in of:
            rate, factor = runs.tuned(rule, TASKS[name], losses[name])
            if rate in (TASKS[name].rates[0], TASKS[name].rates[-1]) or (
                rule.second and factor in (FACTORS[0], FACTORS[-1])
            ):
                at_edge.append(f"{rule.name} on `{name}`")
    if not at_edge:
        return "No tuned value lies at the edge of its grid."
    return f"Tuned values at the edge of their grid: {', '.join(at_edge)}."


def _regret(costs: dict[str, dict[str, float]] | None, cost: str) -> str:
    if costs is None:
        return "not covered"
    return f"{costs[cost]['regret']:.3f}{', diverged' * (costs[cost]['diverged'] > 0)}"


def _table(header: object, rows: object) -> str:
    lines = [tuple(header), ("---",) * len(tuple(header)), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    main(sys.argv[1:])
