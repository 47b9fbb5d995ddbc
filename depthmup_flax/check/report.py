"""The result of a check: its text, its notes, its figure and its files."""

from __future__ import annotations

import dataclasses
import importlib.util
import io
import json
import logging
import math
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from depthmup_flax.auditing.audit_report import Finding, summary
from depthmup_flax.check.causes import Reading
from depthmup_flax.check.judgment import FINITE, FLAT, NO_ANSWER, UNCLEAR, VANISHES, Quantity
from depthmup_flax.check.records import ACTIVATION, CHANGE, DECAY, EFFECT, GRADIENT, START, UPDATE, Record, Table
from depthmup_flax.rule.parametrization import Parametrization
from depthmup_flax.storage.files import write_atomically
from depthmup_flax.storage.workdir import COORD_CHECK, claimed
from depthmup_flax.util import table as text_table
from depthmup_flax.util.imports import installs

if TYPE_CHECKING:
    from matplotlib.axes import Axes

log = logging.getLogger(__name__)

_SHOWN_LAYERS = 8
_SHOWN_FAILURES, _SHOWN_PASSED = 12, 6  # lines per axis
_COLUMNS = ("", "size of", "step", "exponent", "verdict")


@dataclasses.dataclass(frozen=True)
class Report:
    """The result of a check; ``print`` it, or ``print(report.details())`` for all lines."""

    records: list[Record]  # all measured numbers
    quantities: list[Quantity]  # exponents and verdicts
    causes: list[Finding]  # of failures; findings of the audit fail the check themselves
    rule: Parametrization
    seeds: int  # networks per size
    tolerance: float  # largest exponent that counts as flat
    notes: tuple[str, ...] = ()  # information, such as the sizes to use

    @property
    def ok(self) -> bool:
        """Whether every quantity passed and the audit found no mistake."""
        return not self.failures and not self.causes

    @property
    def failures(self) -> list[Quantity]:
        """The quantities that did not pass."""
        return [q for q in self.quantities if not q.passed]

    def __str__(self) -> str:
        """One screen: the failures, what passed with the largest deviation from the rule, the causes and the notes."""
        return self._text(_SHOWN_FAILURES, _SHOWN_PASSED)

    def details(self) -> str:
        """The text with a line for every quantity."""
        return self._text(len(self.quantities), len(self.quantities))

    def _repr_html_(self) -> str:
        """The same screen in a notebook."""
        return text_table.notebook_html(*self._parts(_SHOWN_FAILURES, _SHOWN_PASSED))

    def _text(self, failures: int, passed: int) -> str:
        return "\n".join(map(str, self._parts(failures, passed)))

    def _parts(self, failures: int, passed: int) -> Iterator[str | text_table.Table]:
        """The lines and tables of the report, with so many failures and other quantities of each axis."""
        rule = self.rule
        yield f"coordinate check: alpha {rule.alpha:g}, gamma {rule.gamma:g}, width rule {rule.width}"
        intervals = f"95 % intervals of {self.seeds} seeds; flat within {self.tolerance:g}"
        yield f"size over the rule's ~ width^exponent or depth^exponent; {intervals}"
        for axis in sorted({q.axis for q in self.quantities}, reverse=True):
            yield ""
            yield from self._of_axis(axis, failures, passed)
        what = "cause" if self.failures else "FAIL, though these sizes do not show it"
        for cause in self.causes:
            yield ""
            yield f"{what} ({cause.name}): {cause.text} Write: {cause.code}"
            more = f" and {len(cause.paths) - _SHOWN_LAYERS} more" * (len(cause.paths) > _SHOWN_LAYERS)
            yield f"at {', '.join(cause.paths[:_SHOWN_LAYERS])}{more}"
        for note in self.notes:
            yield ""
            yield f"note: {note}"

    def _of_axis(self, axis: str, failures: int, passed: int) -> Iterator[str | text_table.Table]:
        """The verdict over an axis, and a table of some of its quantities, failures first."""
        quantities = [q for q in self.quantities if q.axis == axis]
        marks = list(map(_mark, quantities))
        failed = [q for q in quantities if not q.passed]
        others = [q for q in quantities if q.passed]
        if passed < len(others):
            others.sort(key=_deviation, reverse=True)
        word = "PASS"
        if failed:
            word = "UNCLEAR" if all(q.verdict in NO_ANSWER for q in failed) else "FAIL"
        sizes = ", ".join(map(str, Table(self.records).sizes(axis)))
        line = f"{axis} {sizes}: {word}, {marks.count('ok')} of {len(quantities)} right"
        yield line + (f", {marks.count('??')} unclear" if "??" in marks else "")
        yield text_table.Table(_COLUMNS, list(map(_cells, [*failed[:failures], *others[:passed]])), "<<>><")
        hidden_failures = len(failed[failures:])
        if hidden := hidden_failures + len(others[passed:]):
            more = f", {hidden_failures} of them failures" if hidden_failures else ""
            yield f"and {hidden} more{more}: report.details() (--details)"

    def save(self, directory: str | pathlib.Path) -> None:
        """Writes the files of `write_to` to a directory that no other process uses.

        Raises:
          InputError: it cannot be written, or holds another kind of work. Nothing in it has changed.
        """
        with claimed(directory, COORD_CHECK) as claim:
            self.write_to(claim.workdir)

    def write_to(self, path: pathlib.Path) -> None:
        """Writes ``records.jsonl``, ``report.txt``, ``details.txt`` and, with matplotlib, ``coord_check.png``."""
        finite = lambda r: {**dataclasses.asdict(r), "value": r.value if math.isfinite(r.value) else None}
        write_atomically(path / "records.jsonl", "".join(f"{json.dumps(finite(r))}\n" for r in self.records))
        write_atomically(path / "report.txt", f"{self}\n")
        write_atomically(path / "details.txt", f"{self.details()}\n")
        if importlib.util.find_spec("matplotlib") is None:
            log.warning("no figure: matplotlib is not installed. Run %s.", installs("report"))
            return
        legend = f"flat lines pass, thick red lines fail; mean and range over n = {self.seeds} seeds"
        title = f"{str(self).splitlines()[0]}: {'PASS' if self.ok else 'FAIL'}\n{legend}"
        write_atomically(path / "coord_check.png", _draw(self.records, self.failures, title))


_WORDS = {
    START: "initial {}",
    GRADIENT: "gradient of {}",
    UPDATE: "update of {}",
    EFFECT: "effect of the update of {}",
    DECAY: "decay of {}, its share",
    ACTIVATION: "activation {}",
    CHANGE: "change of {}",
}


def _cells(q: Quantity) -> tuple[str, ...]:
    return _mark(q), _WORDS[q.kind].format(q.name), str(q.step), str(q.fit), _words(q)


def _deviation(q: Quantity) -> float:
    return abs(q.fit.slope) if q.fit.state == "fitted" else 0.0


def _mark(q: Quantity) -> str:
    """What the first column says: "??" for what the measurement does not decide, whether or not it may be so."""
    return "??" if q.verdict in NO_ANSWER else "ok" if q.passed else "FAIL"


def _words(q: Quantity) -> str:
    if q.passed and q.verdict == VANISHES:
        return "vanishes, as it may"
    return "as the rule" if q.verdict == FLAT else q.verdict


_Line = tuple[str, Mapping[int, Sequence[float]], bool]  # name, size -> a value per seed, failed

_SHOWN = 10  # lines with a name in a legend; failures come first
_PANELS = {
    START: "initial values",
    GRADIENT: "gradients, step 1",
    UPDATE: "updates, step 1",
    ACTIVATION: "activations before training",
    CHANGE: "changes by step 1",
}


def _draw(records: Sequence[Record], failures: Sequence[Quantity], title: str) -> bytes:
    """A PNG with a row per axis: sizes of parameters, and of activations where they are measured."""
    import matplotlib

    with matplotlib.rc_context({"text.usetex": False}):  # which a user's settings may ask for, without LaTeX here
        return _drawn(records, failures, title)


def _drawn(records: Sequence[Record], failures: Sequence[Quantity], title: str) -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    table = Table(records)
    axes = table.axes()
    kinds = [kind for kind in _PANELS if any(r.quantity == kind for r in records)]
    figure = Figure(figsize=(3.2 * len(kinds), 4.6 * len(axes) + 0.6), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=10)
    failed = {(q.axis, q.kind, q.name) for q in failures}
    for row, axis in zip(figure.subplots(len(axes), len(kinds), squeeze=False), axes, strict=True):
        for panel, kind in zip(row, kinds, strict=True):
            step = 0 if kind in (START, ACTIVATION) else 1
            names = table.names(axis, kind)
            lines = [(name, table.values(axis, kind, name, step), (axis, kind, name) in failed) for name in names]
            _panel(panel, axis, _PANELS[kind], lines)
    content = io.BytesIO()
    figure.savefig(content, dpi=130, format="png")
    return content.getvalue()


def _panel(panel: Axes, axis: str, title: str, lines: Sequence[_Line]) -> None:
    """A log-log plot with a line and the range over seeds for each name, without lines that are zero or not finite."""
    panel.set(title=title, xlabel=axis, ylabel="root mean square", xscale="log", yscale="log")
    positive = lambda seeds: seeds and all(value > 0 and math.isfinite(value) for value in seeds)
    drawn = [line for line in lines if line[1] and all(map(positive, line[1].values()))]
    for i, (name, values, bad) in enumerate(sorted(drawn, key=lambda line: not line[2])):
        sizes = sorted(values)
        mean, low, high = (np.exp([f(np.log(values[size])) for size in sizes]) for f in (np.mean, np.min, np.max))
        color, width = ("tab:red", 2.2) if bad else (f"C{i % 10}", 1.1)
        label = name if i < _SHOWN else None
        panel.plot(sizes, mean, marker="os^vD*Px+<"[i % 10], markersize=4, label=label, color=color, linewidth=width)
        panel.fill_between(sizes, low, high, alpha=0.12, color=color, linewidth=0)
        panel.set_xticks(sizes, labels=map(str, sizes), minor=False)
    panel.minorticks_off()
    bottom, top = panel.get_ylim()
    if top / bottom < 100:  # a flat line must look flat
        middle = math.sqrt(bottom * top)
        panel.set_ylim(middle / 10, middle * 10)
    panel.grid(alpha=0.3)
    if drawn:
        # Below: lines and bands fill the panel.
        panel.legend(fontsize=8, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.2))


def notes(
    table: Table, quantities: Sequence[Quantity], causes: Sequence[Finding], readings: Mapping[str, Reading]
) -> tuple[str, ...]:
    """What else to know of a check, such as the sizes to use; ``readings`` are those over each axis."""
    return (*_of_gradients(table, quantities), *_of_readings(readings), *_of_failures(table, quantities, causes))


def _of_gradients(table: Table, quantities: Sequence[Quantity]) -> Iterator[str]:
    """The axes over which gradients are those of small networks."""
    for axis in table.axes():
        if finite := [q for q in quantities if (q.axis, q.verdict) == (axis, FINITE)]:
            yield (
                f"these networks are small: {len(finite)} of their gradients over {axis} do not have the rule's sizes "
                f"yet, though code, initial values and updates are right. To see them arrive, use "
                f"{_larger_sizes(table, axis)}."
            )


def _of_readings(readings: Mapping[str, Reading]) -> Iterator[str]:
    """What the audit did not judge."""
    for axis, reading in readings.items():
        if reading.error:
            yield f"the audit over {axis} failed, so measurements alone decide there. It raised {reading.error}"
        elif reading.audit is None:
            yield f"the code over {axis} was not audited: measurements alone decide there."
    if open_ := sorted({path for reading in readings.values() for path in reading.not_judged}):
        yield (
            f"the audit could not judge {summary(open_)}, so activations were measured. A scale inside an operation "
            "that is not read shows only in the activations that the network records: dm.audit says what to do."
        )


def _of_failures(table: Table, quantities: Sequence[Quantity], causes: Sequence[Finding]) -> Iterator[str]:
    """What to do about failures without a cause."""
    failures = [q for q in quantities if not q.passed]
    if failures and all(q.verdict == UNCLEAR for q in failures):
        sizes = " and ".join(_larger_sizes(table, axis) for axis in dict.fromkeys(q.axis for q in failures))
        yield (
            "unclear: exponents are too far from the rule's for a pass, and too near for a mistake, as those of small "
            f"networks may be, or their intervals are too wide. Use {sizes}, or more seeds (--seeds)."
        )
    elif failures and not causes:
        yield (
            "the cause is not known. Run dm.audit on the network and its base, which reads multipliers and roles; then "
            "look at initial values and updates above, at the optimizer, and at the learning rate."
        )


def _larger_sizes(table: Table, axis: str) -> str:
    """The setting of twice the sizes, in Python and on a command line."""
    wanted = tuple(2 * size for size in table.sizes(axis))
    return f"{axis}s={wanted} (--{axis}s={','.join(map(str, wanted))})"
