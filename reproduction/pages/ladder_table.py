"""Writes the tables of reproduction/pages/ladder.md: python -m reproduction.pages.ladder_table. No JAX."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from reproduction.pages.generated_parts import with_part

HERE = pathlib.Path(__file__).parent
PAGE, RESULTS = HERE / "ladder.md", HERE.parent / "ladder"
BUDGETS = {"a quarter of a run": "", "one run": "_one_run"}  # of the target -> the end of its files' names
WAYS = {"rate": "ladder", "of_smallest": "smallest", "of_nearest": "nearest", "of_sp": "sp"}
TARGETS_PART = "<!-- targets: python -m reproduction.pages.ladder_table -->", "<!-- end of targets -->"
DECISION_PART = "<!-- decision: python -m reproduction.pages.ladder_table -->", "<!-- end of decision -->"
_INSIDE, _WIDTH = 9, 1.5

Results = Mapping[str, Mapping[str, Any]]


def results(budget: str) -> Results:
    """What `reproduction.ladder.runs check` wrote."""
    return json.loads((RESULTS / f"results{BUDGETS[budget]}.json").read_text())


def regrets(found: Results) -> dict[str, np.ndarray]:
    """Way -> its regret at each target, as a share of what is learned."""
    return {way: np.array([one["regret"][way] for one in found.values()]) for way in WAYS}


def decision(budget: str) -> list[str]:
    """The three registered sentences, with what the runs say."""
    found = results(budget)
    inside = sum(one["inside"] for one in found.values())
    width = float(np.mean([one["width_octaves"] for one in found.values()]))
    mean = {way: float(values.mean()) for way, values in regrets(found).items()}
    holds = (
        inside >= _INSIDE and width <= _WIDTH,
        mean["rate"] <= mean["of_smallest"] / 2 and mean["rate"] <= mean["of_nearest"],
        mean["rate"] < mean["of_sp"],
    )
    words = ["holds" if one else "**does not hold**" for one in holds]
    return [
        f"*The intervals hold* {words[0]}: {inside} of {len(found)} inside, mean width {width:.2f} octaves "
        f"(registered: {_INSIDE}, and {_WIDTH}).",
        f"*The ladder pays* {words[1]}: mean regret {mean['rate']:.4f}, smallest {mean['of_smallest']:.4f}, nearest "
        f"{mean['of_nearest']:.4f}.",
        f"*And against sp* {words[2]}: sp with a straight line costs {mean['of_sp']:.3f}.",
    ]


def renewed(page: str) -> str:
    """The page with what the results give."""
    decided = "\n".join(f"| {budget} | {' '.join(decision(budget))} |" for budget in BUDGETS)
    page = with_part(page, *DECISION_PART, f"| budget | outcome |\n|---|---|\n{decided}")
    tables = []
    for budget in BUDGETS:
        found = results(budget)
        header = ("target", "best rate (log2)", "inside", "width, octaves", *WAYS.values())
        rows = [
            (
                f"`{name}`",
                f"{np.log2(one['truth']):.2f} ± {one['error_octaves']:.2f}",
                "yes" if one["inside"] else "no",
                f"{one['width_octaves']:.2f}",
                *(f"{one['regret'][way]:.4f}" for way in WAYS),
            )
            for name, one in found.items()
        ]
        lines = [header, ["---"] * len(header), *rows]
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        tables.append(f"Budget of {budget} of the target:\n\n{table}")
    return with_part(page, *TARGETS_PART, "\n\n".join(tables))


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text()))
