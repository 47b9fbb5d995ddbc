"""What the check and the audit say of each case, beside what is so."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Sequence

from depthmup_flax.check.judgment import NO_ANSWER
from depthmup_flax.util.errors import InputError

from .cases import CASES

PASS, FAIL, UNCLEAR, REFUSED = "PASS", "FAIL", "UNCLEAR", "REFUSED"
RIGHT, FALSE_PASS, FALSE_FAIL, WRONG_CAUSE, OPEN = "right", "false PASS", "false FAIL", "wrong cause", "unclear"
TOOLS = ("check", "audit")


@dataclasses.dataclass(frozen=True)
class Outcome:
    """One case under one tool."""

    tool: str
    case: str
    verdict: str
    names: tuple[str, ...]  # causes or findings, in the order in which they are printed
    wanted: str | None  # the right name; ``None`` if nothing is wrong
    seconds: float

    @property
    def kind(self) -> str:
        """How the verdict compares with what is so."""
        if self.verdict == UNCLEAR:
            return OPEN
        if self.verdict == PASS:
            return RIGHT if self.wanted is None else FALSE_PASS
        if self.wanted is None:
            return FALSE_FAIL
        return RIGHT if self.names[:1] == (self.wanted,) else WRONG_CAUSE

    def __str__(self) -> str:
        said = ", ".join((self.verdict, *self.names))
        return f"{self.kind:<11} {self.tool} {self.case}: {said}; it is {self.wanted or 'right'} ({self.seconds:.0f} s)"


def names_of(tool: str) -> list[str]:
    """The cases for a tool: the audit sees neither initial values nor optimizers."""
    return [name for name, case in CASES.items() if tool == "check" or not case.mistake or case.mistake.in_audit]


def outcome(tool: str, name: str) -> Outcome:
    """Runs one case."""
    case, start = CASES[name], time.perf_counter()
    wanted = case.mistake and case.mistake.cause
    try:
        if tool == "check":
            report = case.check()
            open_only = report.failures and all(q.verdict in NO_ANSWER for q in report.failures)
            verdict = PASS if report.ok else UNCLEAR if open_only else FAIL
            names = tuple(cause.name for cause in report.causes)
        else:
            audit = case.audit()
            verdict, names = PASS if audit.ok else FAIL, tuple(finding.name for finding in audit.findings)
    except InputError as error:
        verdict, names = REFUSED, (str(error),)
    return Outcome(tool, name, verdict, tuple(dict.fromkeys(names)), wanted, time.perf_counter() - start)


def confusion(outcomes: Sequence[Outcome]) -> str:
    """The table of both tools."""
    kinds = (FALSE_PASS, FALSE_FAIL, WRONG_CAUSE, OPEN)
    lines = [f"{'tool':<6} {'cases':>6} " + " ".join(f"{kind:>12}" for kind in kinds) + f" {'time':>8}"]
    for tool in TOOLS:
        of_tool = [o for o in outcomes if o.tool == tool]
        counts = Counter(o.kind for o in of_tool)
        right = sum(o.wanted is None for o in of_tool)
        totals = {FALSE_PASS: len(of_tool) - right, FALSE_FAIL: right, WRONG_CAUSE: len(of_tool) - right}
        cells = [f"{counts[kind]} of {totals.get(kind, len(of_tool))}" for kind in kinds]
        seconds = sum(o.seconds for o in of_tool)
        if of_tool:
            lines.append(f"{tool:<6} {len(of_tool):>6} " + " ".join(f"{c:>12}" for c in cells) + f" {seconds:>6.0f} s")
    return "\n".join(lines)
