"""An audit and its printed form: one line per parameter, equal layers in one line, and what to write."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import jax

from depthmup_flax.rule.factor import ONE, Factor
from depthmup_flax.rule.info_trees import collapsed, conflicts, sizes, template
from depthmup_flax.rule.parametrization import AuditRecord, Parametrization, ParamInfo, Role
from depthmup_flax.trace.graph import Place
from depthmup_flax.util.errors import InputError, did_you_mean
from depthmup_flax.util.groups import grouped
from depthmup_flax.util.table import Table, notebook_html
from depthmup_flax.util.types import InfoTree


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that is missing or wrong, or that an audit could not judge."""

    name: str  # also of a kernel, function or primitive that was not read
    paths: tuple[str, ...]  # of parameters
    text: str
    code: str  # what to write or do
    certain: bool = True  # False: it depends on the optimizer
    # What parameters may carry instead: the factor that is wanted over the one that was found, and where.
    factor: Factor | None = dataclasses.field(default=None, repr=False)
    places: tuple[Place, ...] = dataclasses.field(default=(), repr=False)
    parts: tuple[Finding, ...] = dataclasses.field(default=(), repr=False)  # the same of each kind of branches
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
    found: float | None  # in the code
    wanted: Factor | None  # by the rule, whichever it is
    expected: float | None = None  # the same under the rule that the code's factors are of
    missing: tuple[str, ...] = ()  # names of findings
    carried: Factor = ONE  # what the parameter carries, see `ParamInfo`
    why_not: str = ""  # why there is no info

    @property
    def lacks(self) -> bool:
        """Whether the code has another factor than the rule wants, or an unknown one."""
        return self.found is None or self.expected is None or not math.isclose(self.found, self.expected, rel_tol=5e-3)

    @property
    def in_branch(self) -> bool:
        """Whether it is inside a residual branch."""
        return self.info is not None and self.info.in_branch


@dataclasses.dataclass(frozen=True)
class Audit:
    """The result of `audit`; ``print(audit)`` shows it as a table.

    Attributes:
      rows: one per parameter; "?" is what the trace does not tell.
      findings: what is missing or wrong, each with the code to write.
      not_judged: what was not read, each with the parameters that it concerns and what to do.
      notes: initial values to set, and what else to know.
      width_ratio, depth_ratio: of the model to the base model; the depth counts residual sums, of all streams together.
      record: what the code has of a rule, such as ``record.alpha``, the exponent of its branches' multipliers;
        ``None``: it has none, and parameters carry them.
      accepted: names of findings and of what was not judged with which optimizers take the info all the same.
    """

    rows: Sequence[Row]
    findings: tuple[Finding, ...]
    not_judged: tuple[Finding, ...]
    notes: tuple[str, ...]
    width_ratio: float
    depth_ratio: float
    structure: jax.tree_util.PyTreeDef = dataclasses.field(repr=False)
    record: AuditRecord = dataclasses.field(default=AuditRecord(), repr=False)
    accepted: frozenset[str] = frozenset()
    pairs: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)  # path -> that in the base model

    @property
    def verdict(self) -> Literal["ok", "missing", "not judged"]:
        """``ok``: with ``info``, the rule holds: all factors were read, and are in the code or carried by parameters.

        ``missing``: some are neither. Else ``not judged``. Findings that are not ``certain``, as they depend on the
        optimizer, do not count.
        """
        if self.certain:
            return "missing"
        return "not judged" if self.not_judged else "ok"

    @property
    def certain(self) -> tuple[Finding, ...]:
        """The findings that do not depend on the optimizer."""
        return tuple(finding for finding in self.findings if finding.certain)

    @property
    def corrections(self) -> str:
        """What is missing and what was not judged, with the code to write; "" for ``ok``."""
        return "\n\n".join("\n".join(lines) for lines in _listed(self.certain, self.not_judged))

    @property
    def ok(self) -> bool:
        """Whether the verdict is ``ok``, which is also ``bool(audit)``."""
        return self.verdict == "ok"

    def __bool__(self) -> bool:
        return self.ok

    def require(self) -> None:
        """Raises `InputError` unless the verdict is ``ok``, with what is missing or was not judged."""
        if not self.ok:
            raise InputError(f"the audit says {self._headline} print(audit) shows what to write.")

    @property
    def _headline(self) -> str:
        """The verdict in one sentence."""
        certain = dict.fromkeys(f"{finding.name} ({summary(finding.paths)})" for finding in self.certain)
        ok = "every factor is in the code"
        if any(not row.carried.is_one for row in self.rows):
            ok += ", or carried by a parameter"
        if self.record.alpha is not None:
            ok += f"; the code is for alpha = {self.record.alpha:g}"
        return f"{self.verdict}: {'; '.join(certain) or places(self.not_judged) or ok}."

    def accept(self, *names: str) -> Audit:
        """The audit with an ``info`` that optimizers take although something is missing or was not judged.

        Args:
          *names: of findings, and of what was not judged: all that remain.
        """
        present = {one.name for one in (*self.certain, *self.not_judged)}
        for name in names:
            if name not in present:
                raise InputError(f"accept has {name!r}: {did_you_mean(name, present)}")
        return dataclasses.replace(self, accepted=frozenset(names))

    def under(self, rule: Parametrization) -> Audit:
        """The audit with the findings of one rule: without what it does not want, with what the code has of another.

        Under ``mup`` no branch lacks a multiplier, for example; and a multiplier of ``completep`` is one too many.
        """
        findings = [one for one in self.findings if one.factor is None or not _is_one(one.factor.under(rule))]
        names = {"alpha": "missing_branch_multiplier", "branch_multiplier": "missing_branch_multiplier"}
        for field, text in conflicts(self.record, rule):
            paths = tuple(row.path for row in self.rows if row.in_branch and row.found != 1 and row.found is not None)
            code = "h = h + rule.residual_multiplier(r) * y"
            if field not in names:
                paths = tuple(row.path for row in self.rows if row.info is not None and row.info.role is Role.OUTPUT)
                code = "logits = logits * rule.readout_multiplier(m)"
            findings.append(Finding(names.get(field, "readout_not_scaled"), paths, text, code))
        return dataclasses.replace(self, findings=tuple(findings))

    def require_roles(self) -> None:
        """Raises `InputError` if the role of a parameter could not be read."""
        for row in self.rows:
            if row.info is None:
                names = tuple("width_in" if k == 0 else "width_out" for k in range(len(row.shape)))
                raise InputError(
                    f"the role of parameter {row.path!r} of shape {row.shape} was not read ({row.why_not}): name its "
                    f"axes, such as overrides={{{row.path!r}: Axes({names!r}, in_branch=False)}}."
                )

    @functools.cached_property
    def info(self) -> InfoTree:
        """The `ParamInfo` of every parameter, in the model's containers.

        It serves every rule. Optimizers refuse it unless the audit is ok, or `accept` names what is not; and under a
        rule other than that whose factors the code has.

        Raises:
          InputError: a role could not be read.
        """
        self.require_roles()
        open_ = {one.name for one in (*self.certain, *self.not_judged)}
        record = dataclasses.replace(self.record, problem=self._headline if open_ - self.accepted else "")
        infos = [row.info and dataclasses.replace(row.info, audited=record) for row in self.rows]
        return jax.tree_util.tree_unflatten(self.structure, infos)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))

    def __str__(self) -> str:
        return "\n".join(map(str, self._parts))

    def _repr_html_(self) -> str:
        return notebook_html(*self._parts)

    @property
    def _parts(self) -> list[str | Table]:
        """The verdict in one line, a table with equal layers in one row, findings, what was not judged, and notes."""
        parts: list[str | Table] = [*_wrapped(self._headline, ""), "", _table(self.rows), *_wrapped(self._ratios, "")]
        parts += ["\n".join(["", *lines]) for lines in _listed(self.findings, self.not_judged)]
        for note in self.notes:
            sentences, *code = f"Note: {note}".split("\n")
            parts.append("\n".join(["", *_wrapped(sentences, ""), *(f"   {line}" for line in code)]))
        return parts

    @property
    def _ratios(self) -> str:
        """The ratios of the two models; of streams with depth ratios of their own, each with the parts of the model."""
        parts: dict[float, list[str]] = {}
        for row in self.rows:
            if row.info is not None and row.in_branch:
                parts.setdefault(row.info.depth_ratio, []).append(row.path)
        several = [f"{ratio:g} in {names}" for ratio, names in _told_apart(parts).items()]
        depth = " and ".join(several) if len(several) > 1 else f"{self.depth_ratio:g}"
        return f"width ratio m = {self.width_ratio:g}, depth ratio r = {depth}; factors are relative to the base model"


def _is_one(factor: float) -> bool:
    return math.isclose(factor, 1.0, rel_tol=5e-3)


def _told_apart(parts: Mapping[float, Sequence[str]]) -> dict[float, str]:
    """Parameters by ratio -> the shortest names of the modules that they are in, of which no two are equal."""
    cut = lambda length: {
        r: list(dict.fromkeys("/".join(path.split("/")[:length]) for path in paths)) for r, paths in parts.items()
    }
    alike = lambda names: len(set().union(*names.values())) < sum(map(len, names.values()))
    names = next(names for names in map(cut, itertools.count(1)) if not alike(names))
    return {r: summary(several, numbered=True) for r, several in names.items()}


def _table(rows: Sequence[Row]) -> Table:
    """Equal layers in one row; without columns that would be empty."""
    columns = ("parameter", "shape", "role", "uses", "in code", "wanted", "carried", "missing")
    shown = [*range(6), *([6] if any(not row.carried.is_one for row in rows) else [])]
    shown += [7] if any(row.missing for row in rows) else []
    pick = lambda cells: [cells[k] for k in shown]
    groups = list(grouped(rows, _same).values())
    names = [collapsed([row.path for row in group]) for group in groups]
    lines = [pick(_cells(group, names.count(name) > 1)) for group, name in zip(groups, names, strict=True)]
    return Table(pick(columns), lines, "".join(pick("<<<>>>><")), ruled=True)


def _listed(findings: Sequence[Finding], not_judged: Sequence[Finding]) -> list[list[str]]:
    """The lines of each finding, with the code to write, and of each thing that was not judged, with what to do."""
    texts = []
    for n, one in enumerate(findings, start=1):
        texts.append([*_wrapped(f"{n}. {one.name}: {one.text}", "   "), f"   write: {one.code}"])
    for other in not_judged:
        what = _wrapped(f"?  not judged, {other.place}: {other.text}", "   ")
        texts.append([*what, *_wrapped(f"   do: {other.code}", "   ")])
    return texts


def places(not_judged: Sequence[Finding]) -> str:
    """What was not judged, in one line."""
    return "; ".join(f"{one.place} ({summary(one.paths)})" if one.paths else one.place for one in not_judged)


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, 110, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _same(row: Row) -> str:
    """What equal layers have in common."""
    info = row.info and dataclasses.replace(row.info, shape=())
    return repr(dataclasses.replace(row, path=template(row.path), shape=(len(row.shape),), info=info))


def _cells(rows: Sequence[Row], numbered: bool) -> tuple[str, ...]:
    """The line of equal layers, whose numbers tell them from others."""
    row = rows[0]
    role = "?" if row.info is None else row.info.role_name
    return (
        collapsed([row.path for row in rows], numbered),
        sizes([row.shape for row in rows]),
        role,
        "?" if math.isnan(row.uses) else f"{row.uses:g}",
        number(row.found) if row.wanted is not None else "-",
        "-" if row.wanted is None else str(row.wanted),
        _carried(row),
        ", ".join(row.missing),
    )


def _carried(row: Row) -> str:
    """The factor that a parameter carries; in parentheses that of its place, which others carry."""
    if not row.carried.is_one:
        return str(row.carried)
    if row.missing or not row.found or row.wanted is None or not row.lacks:
        return ""
    return f"({row.wanted.over(row.found)})"


def number(x: float | None) -> str:
    """Four digits, or "?"."""
    return "?" if x is None else f"{x:.4g}"


def summary(paths: Sequence[str], numbered: bool = False) -> str:
    """At most three names for a sentence, one for equal layers."""
    names = [collapsed(group, numbered) for group in grouped(paths, template).values()]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
