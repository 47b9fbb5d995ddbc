"""The printed form of an audit: one line per parameter, equal layers in one line, and what to write."""

from __future__ import annotations

import dataclasses
import math
import re
import textwrap
from collections.abc import Sequence

from depthmup_flax.auditing.parameter_trees import grouped, template
from depthmup_flax.rule.parametrization import ParamInfo
from depthmup_flax.util.table import Table


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that is missing or wrong."""

    name: str
    paths: tuple[str, ...]  # of parameters
    text: str
    code: str  # what to write
    certain: bool = True  # False: it depends on the optimizer


@dataclasses.dataclass(frozen=True)
class NotJudged:
    """One thing that an audit could not judge."""

    name: str  # of a kernel, function or primitive; or "width", "depth", "factor", "role", "sizes"
    paths: tuple[str, ...]  # of parameters
    text: str
    code: str  # what to do
    source: str = ""  # where it is in the code, file.py:12

    @property
    def place(self) -> str:
        """Its name, and where it is in the code."""
        return f"{self.name} in {self.source}" if self.source else self.name


@dataclasses.dataclass(frozen=True)
class Row:
    """What an audit says about one parameter. Factors are relative to the base model; ``None`` is unknown."""

    path: str
    shape: tuple[int, ...]
    info: ParamInfo | None
    uses: float
    found: float | None
    wanted: float | None
    missing: tuple[str, ...] = ()  # names of findings
    why_not: str = ""  # why there is no info

    @property
    def in_branch(self) -> bool:
        """Whether it is inside a residual branch."""
        return self.info is not None and self.info.in_branch


@dataclasses.dataclass(frozen=True)
class Results:
    """What an audit has found."""

    verdict: str  # in one sentence
    rows: Sequence[Row]
    findings: Sequence[Finding]
    not_judged: Sequence[NotJudged]
    notes: Sequence[str]
    width_ratio: float
    depth_ratio: float

    @property
    def ratios(self) -> str:
        """The ratios of the two models, in a sentence."""
        ratios = f"width ratio m = {self.width_ratio:g}, depth ratio r = {_depth_ratios(self.rows, self.depth_ratio)}"
        return f"{ratios}; factors are relative to the base model"


def printed(results: Results) -> list[str | Table]:
    """The verdict of an audit in one line, its table, findings, what was not judged, and notes."""
    parts: list[str | Table] = [*_wrapped(results.verdict, ""), "", _table(results.rows), *_wrapped(results.ratios, "")]
    parts += ["\n".join(["", *lines]) for lines in listed(results.findings, results.not_judged)]
    for note in results.notes:
        sentences, *code = f"Note: {note}".split("\n")
        parts.append("\n".join(["", *_wrapped(sentences, ""), *(f"   {line}" for line in code)]))
    return parts


def _table(rows: Sequence[Row]) -> Table:
    """Equal layers in one row."""
    columns = ("parameter", "shape", "role", "uses", "factor", "wanted", "missing")
    return Table(columns, list(map(_cells, grouped(rows, _same).values())), "<<<>>><", ruled=True)


def _depth_ratios(rows: Sequence[Row], r: float) -> str:
    """The depth ratio or, if streams have ratios of their own, each with the parts of the model."""
    parts: dict[float, list[str]] = {}
    for row in rows:
        if row.info is not None and row.in_branch:
            parts.setdefault(row.info.depth_ratio, []).append(row.path.split("/")[0])
    several = [f"{ratio:g} in {summary(list(dict.fromkeys(names)))}" for ratio, names in parts.items()]
    return " and ".join(several) if len(several) > 1 else f"{r:g}"


def listed(findings: Sequence[Finding], not_judged: Sequence[NotJudged]) -> list[list[str]]:
    """The lines of each finding, with the code to write, and of each thing that was not judged, with what to do."""
    texts = []
    for number, one in enumerate(findings, start=1):
        texts.append([*_wrapped(f"{number}. {one.name}: {one.text}", "   "), f"   write: {one.code}"])
    for other in not_judged:
        what = _wrapped(f"?  not judged, {other.place}: {other.text}", "   ")
        texts.append([*what, *_wrapped(f"do: {other.code}", "   ")])
    return texts


def places(not_judged: Sequence[NotJudged]) -> str:
    """What was not judged, in one line."""
    return "; ".join(f"{one.place} ({summary(one.paths)})" if one.paths else one.place for one in not_judged)


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, 110, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _same(row: Row) -> str:
    """What equal layers have in common."""
    info = row.info and dataclasses.replace(row.info, shape=())
    return repr(dataclasses.replace(row, path=template(row.path), shape=(len(row.shape),), info=info))


def _cells(rows: Sequence[Row]) -> tuple[str, str, str, str, str, str, str]:
    """The line of equal layers."""
    row = rows[0]
    role = "?" if row.info is None else row.info.role + ("+branch" if row.info.in_branch else "")
    return (
        collapsed([row.path for row in rows]),
        _shapes(rows),
        role,
        "?" if math.isnan(row.uses) else f"{row.uses:g}",
        number(row.found) if row.wanted is not None else "-",
        number(row.wanted) if row.wanted is not None else "-",
        ", ".join(row.missing),
    )


def number(x: float | None) -> str:
    """Four digits, or "?"."""
    return "?" if x is None else f"{x:.4g}"


def _shapes(rows: Sequence[Row]) -> str:
    """The shapes of equal layers, with "*" for sizes that differ: ``3x3x*x*``."""
    sizes = [sorted({row.shape[k] for row in rows}) for k in range(len(rows[0].shape))]
    return "x".join(str(several[0]) if len(several) == 1 else "*" for several in sizes) or "scalar"


def collapsed(paths: Sequence[str]) -> str:
    """One name for paths that differ in numbers alone: ``block_*/kernel``."""
    parts = [re.split(r"(\d+)", path) for path in paths]
    return "".join(column[0] if len(set(column)) == 1 else "*" for column in zip(*parts, strict=True))


def summary(paths: Sequence[str]) -> str:
    """At most three names for a sentence, one for equal layers."""
    names = [collapsed(group) for group in grouped(paths, template).values()]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
