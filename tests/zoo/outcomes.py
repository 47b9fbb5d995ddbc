"""What the audit says of each kind, right and with each mistake, beside what is so."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from depthmup_flax.util.errors import InputError

from .cases import Kind
from .catalog import KINDS
from .scales import fault

PASS, FAIL, NOT_JUDGED, REFUSED = "ok", "missing", "not judged", "refused"
RIGHT, FALSE_PASS, FALSE_FAIL, WRONG_CAUSE, OPEN = "right", "false PASS", "false FAIL", "wrong cause", "not judged"


@dataclasses.dataclass(frozen=True)
class Outcome:
    """One case."""

    kind_name: str
    mistake: str
    verdict: str
    names: tuple[str, ...]
    wanted: str | None
    seconds: float
    rare: bool

    @property
    def kind(self) -> str:
        """How the verdict compares with what is so."""
        if self.verdict == NOT_JUDGED:
            return OPEN
        if self.verdict == PASS:
            return FALSE_PASS if self.wanted is not None or self.names else RIGHT
        if self.wanted is None:
            return OPEN if self.verdict == REFUSED else FALSE_FAIL
        return RIGHT if self.wanted in self.names[:1] else OPEN if self.verdict == REFUSED else WRONG_CAUSE

    def __str__(self) -> str:
        said = ", ".join((self.verdict, *self.names))[:300]
        name = self.kind_name + (f"-{self.mistake}" if self.mistake else "")
        return f"{self.kind:<11} {name}: {said}; it is {self.wanted or 'right'} ({self.seconds:.2f} s)"


MOST = 6


def tried(name: str, every: bool = False) -> list[str]:
    """The mistakes of a kind that are tried: a third, another one for each kind, if there are many."""
    found = KINDS[name].mistakes()
    own = [mistake for mistake in found if mistake.startswith("only_")]
    return found if every or len(found) <= MOST else [*found[list(KINDS).index(name) % 3 :: 3], *own[:1]]


def outcomes(name: str, every: bool = False) -> Iterator[Outcome]:
    """The right model of a kind, and its mistakes."""
    for mistake in dict.fromkeys(("", *tried(name, every))):
        yield outcome(name, KINDS[name], mistake)


def outcome(name: str, kind: Kind, mistake: str) -> Outcome:
    """One case; a right model that is "ok" with wrong widths of parameters is a false PASS that names them."""
    start, wanted, names = time.perf_counter(), fault(mistake).cause if mistake else None, ()
    try:
        audit = kind.audit(mistake)
        seconds = time.perf_counter() - start
        verdict, names = audit.verdict, tuple(dict.fromkeys(finding.name for finding in audit.findings))
        if verdict == PASS:
            names = () if mistake else tuple(kind.wrong_widths(audit))
    except InputError as error:
        verdict, names, seconds = REFUSED, (str(error),), time.perf_counter() - start
    return Outcome(name, mistake, verdict, names, wanted, seconds, kind.rare)


COLUMNS = (FALSE_PASS, FALSE_FAIL, WRONG_CAUSE, OPEN)


def row(title: str, found: Sequence[Outcome]) -> str:
    """Counts of these cases: right models, wrong ones, and what the audit got wrong, as a row of Markdown."""
    counts, right = Counter(o.kind for o in found), sum(o.wanted is None for o in found)
    return _cells(title, right, len(found) - right, *(counts[column] for column in COLUMNS))


def table(found: Sequence[Outcome]) -> str:
    """Counts by group."""
    group_of = lambda o: o.kind_name.partition("/")[0]
    lines = [_cells("kinds", "right", "wrong", *COLUMNS), "|---" * (len(COLUMNS) + 3) + "|"]
    lines += [row(group, [o for o in found if group_of(o) == group]) for group in dict.fromkeys(map(group_of, found))]
    return "\n".join([*lines, row("all", found)])


def _cells(*cells: Any) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"
