"""Writes a table of reproduction/pages/rule_benchmark.md: python -m reproduction.pages.by_class_table. No JAX."""

from __future__ import annotations

import pathlib

from reproduction.pages.generated_parts import with_part
from reproduction.rules.by_class import table
from reproduction.rules.by_class.tasks import WAYS

PAGE = pathlib.Path(__file__).with_name("rule_benchmark.md")
PART = "<!-- by class: python -m reproduction.pages.by_class_table -->", "<!-- end of by class -->"


def renewed(page: str) -> str:
    """The page with what the records give."""
    found = table.results()
    header = ("task", "attention", *WAYS)
    rows = [
        (
            f"`{one.name}`",
            "yes" if one.attention else "no",
            *(f"{one.losses[way]:.3f} ({one.excess[way].mean():.3f})" for way in WAYS),
        )
        for one in found
    ]
    lines = [header, ["---"] * len(header), *rows]
    tasks = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    decided = "\n".join(f"* {sentence}." for sentence in table.decisions(found))
    return with_part(page, *PART, f"{tasks}\n\n{decided}")


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text()))
