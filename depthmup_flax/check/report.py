"""The result of a check: its text and its files."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import logging
import math
import pathlib

from depthmup_flax.check.diagnosis import Cause
from depthmup_flax.check.figure import draw
from depthmup_flax.check.judgment import (
    ATTENTION_SCALE,
    CONVERGES,
    DECAY,
    FINITE,
    FLAT,
    GROWS,
    NO_ANSWER,
    START,
    UNCLEAR,
    UPDATE,
    USES,
    VANISHES,
    Quantity,
)
from depthmup_flax.check.recorded_sizes import AT_ONCE, EVERYTHING, Record
from depthmup_flax.rule.parametrization import Parametrization
from depthmup_flax.storage.workdir.directory import COORD_CHECK, claimed
from depthmup_flax.storage.workdir.files import write_atomically
from depthmup_flax.util import notebook_html
from depthmup_flax.util.table import Table

log = logging.getLogger(__name__)

_SHOWN_LAYERS = 8
_SHOWN_FAILURES, _SHOWN_PASSED = 12, 6  # lines per axis
_COLUMNS = ("", "size of", "step", "exponent", "theory", "verdict")


@dataclasses.dataclass(frozen=True)
class Report:
    """The result of a check; ``print`` it, or ``print(report.details())`` for all lines."""

    records: list[Record]  # all measured numbers
    quantities: list[Quantity]  # exponents and verdicts
    causes: list[Cause]  # likely causes of failures, and findings of the audit, which fail the check themselves
    rule: Parametrization
    seeds: int  # networks per size
    tolerance: float  # largest exponent that counts as flat
    notes: tuple[str, ...] = ()  # information, such as how nonlinear blocks are

    @property
    def ok(self) -> bool:
        """Whether every quantity passed and the audit found no mistake."""
        return not self.failures and not self.causes

    @property
    def failures(self) -> list[Quantity]:
        """The quantities that did not pass."""
        return [q for q in self.quantities if not q.passed]

    def __str__(self) -> str:
        """One screen: the causes, the failures, and what passed with the largest deviation from theory."""
        return self._text(_SHOWN_FAILURES, _SHOWN_PASSED)

    def details(self) -> str:
        """The text with a line for every quantity."""
        return self._text(len(self.quantities), len(self.quantities))

    def _repr_html_(self) -> str:
        """The same screen in a notebook."""
        text = notebook_html.heading(self._rule) + notebook_html.paragraphs([self._how])
        for axis in self._axes:
            verdict, cells, hidden = self._axis(axis, _SHOWN_FAILURES, _SHOWN_PASSED)
            text += notebook_html.heading(verdict) + cells.html()
            text += notebook_html.paragraphs([hidden] if hidden else [])
        causes = (f"{cause} At {layers}." for cause, layers in self._causes)
        return text + notebook_html.paragraphs([*causes, *(f"note: {note}" for note in self.notes)])

    def _text(self, failures: int, passed: int) -> str:
        lines = [self._rule, self._how]
        for axis in self._axes:
            verdict, cells, hidden = self._axis(axis, failures, passed)
            lines += ["", verdict, *(f"  {line}" for line in cells.lines), *([f"  {hidden}"] if hidden else [])]
        for cause, layers in self._causes:
            lines += ["", cause, f"  at {layers}"]
        return "\n".join([*lines, *(line for note in self.notes for line in ("", f"note: {note}"))])

    @property
    def _rule(self) -> str:
        return f"coordinate check: alpha {self.rule.alpha:g}, gamma {self.rule.gamma:g}, width rule {self.rule.width}"

    @property
    def _how(self) -> str:
        intervals = f"95 % intervals of {self.seeds} seeds; flat within {self.tolerance:g}"
        return f"size ~ width^exponent or depth^exponent; {intervals}"

    @property
    def _axes(self) -> list[str]:
        return sorted({q.axis for q in self.quantities}, reverse=True)

    @property
    def _causes(self) -> list[tuple[str, str]]:
        """Each cause in a sentence, and its layers."""
        what = "likely cause" if self.failures else "FAIL, though these sizes do not show it"
        sentences = []
        for cause in self.causes:
            more = len(cause.layers) - _SHOWN_LAYERS
            layers = ", ".join(cause.layers[:_SHOWN_LAYERS]) + (f" and {more} more" if more > 0 else "")
            sentences.append((f"{what} ({cause.name}): {cause.text}", layers))
        return sentences

    def _axis(self, axis: str, failures: int, passed: int) -> tuple[str, Table, str]:
        """The verdict, the table of quantities, and how many are not shown; empty if all are.

        Failures come first, then the largest deviations among what passed.
        """
        quantities = [q for q in self.quantities if q.axis == axis]
        failed = [q for q in quantities if not q.passed]
        others = [q for q in quantities if q.passed]
        if passed < len(others):
            others.sort(key=lambda q: -abs(q.fit.slope - q.expected) if q.fit.state == "fitted" else 0.0)
        hidden = [
            f"{len(kinds) - shown} {what}"
            for what, kinds, shown in (
                ("more failures", failed, min(failures, len(failed))),
                ("more passed", others, min(passed, len(others))),
            )
            if len(kinds) > shown
        ]
        sizes = sorted({r.size for r in self.records if r.axis == axis})
        word = "PASS" if not failed else "UNCLEAR" if all(q.verdict in NO_ANSWER for q in failed) else "FAIL"
        right, unclear = (sum(_mark(q) == mark for q in quantities) for mark in ("ok", "??"))
        counts = f"{right} of {len(quantities)} right" + (f", {unclear} unclear" if unclear else "")
        cells = Table(_COLUMNS, list(map(_cells, [*failed[:failures], *others[:passed]])), "<<>>><")
        rest = f"and {' and '.join(hidden)}: report.details() (--details)" if hidden else ""
        return f"{axis} {', '.join(map(str, sizes))}: {word}, {counts}", cells, rest

    def save(self, directory: str | pathlib.Path) -> None:
        """Writes the files of `write_to` to a directory that no other process uses.

        Raises:
          InputError: it cannot be written, or holds another kind of work. Nothing in it has changed.
        """
        with claimed(directory, COORD_CHECK) as claim:
            self.write_to(claim.directory)

    def write_to(self, path: pathlib.Path) -> None:
        """Writes ``records.jsonl``, ``report.txt``, ``details.txt`` and, with matplotlib, ``coord_check.png``."""
        rows = (
            json.dumps({**dataclasses.asdict(r), "value": r.value if math.isfinite(r.value) else None})
            for r in self.records
        )
        write_atomically(path / "records.jsonl", "".join(row + "\n" for row in rows))
        write_atomically(path / "report.txt", f"{self}\n")
        write_atomically(path / "details.txt", f"{self.details()}\n")
        if importlib.util.find_spec("matplotlib") is None:
            log.warning('no figure: matplotlib is not installed. Run pip install "depthmup-flax[report]".')
            return
        verdict = "PASS" if self.ok else "FAIL: " + ", ".join(cause.name.replace("_", " ") for cause in self.causes)
        legend = f"flat lines pass, thick red lines fail; mean and range over n = {self.seeds} seeds"
        title = f"{str(self).splitlines()[0]}: {verdict}\n{legend}"
        write_atomically(path / "coord_check.png", draw(self.records, self.failures, title))


def _cells(q: Quantity) -> tuple[str, ...]:
    what = {
        ATTENTION_SCALE: f"{ATTENTION_SCALE} x head dimension, {q.name}",
        "activation": f"activation {q.name}",
        "change": f"change of {q.name}" + ("" if q.group == EVERYTHING else f", training {q.group} alone"),
        START: f"initial {q.name}",
        USES: f"uses of {q.name} in a forward pass",
        UPDATE: f"update of {q.name}"
        + ("" if q.name.startswith(q.group) or q.group == AT_ONCE else f", training {q.group}"),
        DECAY: f"decay of {q.name}, its share",
    }[q.kind]
    theory = "?" if q.theory is None else f"{q.theory:+.1f}" if q.theory else "0"
    return _mark(q), what, str(q.step), str(q.fit), theory, _words(q)


def _mark(q: Quantity) -> str:
    """What the first column says: "??" for what the measurement does not decide, whether or not it may be so."""
    return "??" if q.verdict in NO_ANSWER else "ok" if q.passed else "FAIL"


def _words(q: Quantity) -> str:
    """The verdict, with the exponents between neighboring sizes if they decide."""
    slopes = ", ".join(f"{slope:+.2f}" for slope in q.trend.slopes) if q.trend else ""
    if q.verdict in (CONVERGES, FINITE, UNCLEAR) and slopes:
        return f"{slopes}: {q.verdict}"
    if q.passed and q.verdict == VANISHES:
        return "vanishes, as it may"
    if not q.expected:
        return q.verdict
    return {FLAT: "as theory", GROWS: "above theory", VANISHES: "below theory"}.get(q.verdict, q.verdict)
