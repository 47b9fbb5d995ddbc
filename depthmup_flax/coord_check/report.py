"""The result of a check: its text, and the files it saves."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import math
import pathlib

from depthmup_flax.coord_check.diagnosis import Cause
from depthmup_flax.coord_check.figure import draw
from depthmup_flax.coord_check.recorded_sizes import EVERYTHING, Record
from depthmup_flax.coord_check.verdict import ATTENTION_SCALE, NO_ANSWER, Quantity
from depthmup_flax.rule.parametrization import Parametrization

_SHOWN_LAYERS = 8
_COLUMN = 58  # characters


@dataclasses.dataclass(frozen=True)
class Report:
    """The result of a check; ``print`` it."""

    records: list[Record]  # all numbers measured
    quantities: list[Quantity]  # exponents and verdicts
    causes: list[Cause]  # of a failure, with the layers at fault
    rule: Parametrization
    seeds: int  # networks per size
    tolerance: float  # largest exponent that counts as flat

    @property
    def ok(self) -> bool:
        """Whether every quantity passed."""
        return not self.failures

    @property
    def failures(self) -> list[Quantity]:
        """The quantities that did not pass."""
        return [q for q in self.quantities if not q.passed]

    def __str__(self) -> str:
        lines = [
            f"coordinate check: alpha {self.rule.alpha:g}, gamma {self.rule.gamma:g}, width rule {self.rule.width}",
            "size ~ width^exponent or depth^exponent; "
            f"95 % intervals of {self.seeds} seeds; flat within {self.tolerance:g}",
        ]
        for axis in sorted({q.axis for q in self.quantities}, reverse=True):
            lines += ["", *self._axis_lines(axis)]
        for cause in self.causes:
            more = len(cause.layers) - _SHOWN_LAYERS
            shown = ", ".join(cause.layers[:_SHOWN_LAYERS]) + (f" and {more} more" if more > 0 else "")
            lines += ["", f"likely cause ({cause.name}): {cause.text}", f"  at {shown}"]
        return "\n".join(lines)

    def _axis_lines(self, axis: str) -> list[str]:
        """A heading, and one line per quantity, failures first."""
        quantities = sorted((q for q in self.quantities if q.axis == axis), key=lambda q: q.passed)
        failed = [q for q in quantities if not q.passed]
        sizes = sorted({r.size for r in self.records if r.axis == axis})
        word = "PASS" if not failed else "UNCLEAR" if all(q.verdict in NO_ANSWER for q in failed) else "FAIL"
        passed = f"{len(quantities) - len(failed)} of {len(quantities)} passed"
        return [
            f"{axis} {', '.join(map(str, sizes))}: {word}, {passed}",
            f"  {'':<4} {'size of':<{_COLUMN}} {'step':>4}  {'exponent':>16}  {'theory':>6}  verdict",
            *map(_line, quantities),
        ]

    def save(self, directory: str | pathlib.Path) -> None:
        """Writes ``records.jsonl``, ``report.txt`` and, with matplotlib, ``coord_check.png``."""
        path = pathlib.Path(directory)
        path.mkdir(parents=True, exist_ok=True)
        rows = (
            json.dumps({**dataclasses.asdict(r), "value": r.value if math.isfinite(r.value) else None})
            for r in self.records
        )
        (path / "records.jsonl").write_text("".join(row + "\n" for row in rows), encoding="utf-8")
        (path / "report.txt").write_text(f"{self}\n", encoding="utf-8")
        if importlib.util.find_spec("matplotlib") is None:
            print('No figure: matplotlib is not installed. Run pip install "depthmup-flax[report]".')
            return
        verdict = "PASS" if self.ok else "FAIL: " + ", ".join(cause.name.replace("_", " ") for cause in self.causes)
        legend = f"flat lines pass, thick red lines fail; mean and range over n = {self.seeds} seeds"
        title = f"{str(self).splitlines()[0]}: {verdict}\n{legend}"
        draw(path / "coord_check.png", self.records, self.failures, title)


def _line(q: Quantity) -> str:
    if q.kind == ATTENTION_SCALE:
        what = f"{ATTENTION_SCALE} x head dimension, {q.name}"
    elif q.kind == "activation":
        what = f"activation {q.name}"
    elif q.group == EVERYTHING:
        what = f"change of {q.name}"
    else:
        what = f"change of {q.name}, training {q.group} alone"
    if len(what) > _COLUMN:
        what = f"{what[: _COLUMN // 2 - 1]}...{what[-(_COLUMN - _COLUMN // 2 - 2) :]}"
    theory = "?" if q.theory is None else f"{q.theory:+.1f}" if q.theory else "0"
    mark = "ok" if q.passed else "FAIL" if q.verdict not in NO_ANSWER else "??"
    return f"  {mark:<4} {what:<{_COLUMN}} {q.step:>4}  {q.fit!s:>16}  {theory:>6}  {q.verdict}"
