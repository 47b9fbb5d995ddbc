"""An audit and its printed form: one line per parameter or equal layers, and what to write."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import textwrap
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

import jax

from depthmup_flax.auditing.relative_factors import close
from depthmup_flax.rule.factor import ONE, Factor
from depthmup_flax.rule.info_trees import HasInfo, collapsed, conflicts, parts_of, sizes, template
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
    # What parameters may carry instead: the wanted factor over the one of the code, and where.
    factor: Factor | None = dataclasses.field(default=None, repr=False)
    places: tuple[Place, ...] = dataclasses.field(default=(), repr=False)
    found: float | None = None  # the factor of the code
    # The same of each kind of branches.
    parts: tuple[Finding, ...] = dataclasses.field(default=(), repr=False)
    source: str = ""  # where it is in the code, file.py:12

    @property
    def place(self) -> str:
        """Its name, and where it is in the code."""
        return f"{self.name} in {self.source}" if self.source else self.name


@dataclasses.dataclass(frozen=True)
class Row:
    """What an audit says about one parameter.

    Factors are relative to the base model; ``None`` is unknown.
    """

    path: str
    shape: tuple[int, ...]
    info: ParamInfo | None
    uses: float
    found: float | None  # in the code
    wanted: Factor | None  # by the rule, whichever it is
    expected: float | None = None  # the same under the rule that the code's factors are of
    missing: tuple[str, ...] = ()  # names of findings
    carried: Factor = ONE  # what the parameter carries, see `ParamInfo`
    # In the code and wanted, of what it carries, where that is not the factor of its branch.
    of_carried: tuple[float, Factor] | None = None
    why_not: str = ""  # why there is no info

    @property
    def lacks(self) -> bool:
        """Whether the code has another factor than the rule wants, or an unknown one."""
        return not close(self.found, self.expected)

    @property
    def in_branch(self) -> bool:
        """Whether it is inside a residual branch."""
        return self.info is not None and self.info.in_branch


@dataclasses.dataclass(frozen=True)
class Audit(HasInfo):
    """The result of `audit`; ``print(audit)`` shows it as a table.

    Optimizers, `rescale_init` and others take it in place of its ``info``.

    Attributes:
      rows: one per parameter; "?" is what the trace does not tell.
      findings: what is missing or wrong, each with the code to write.
      not_judged: what was not read, each with the parameters that it concerns and what to do.
      notes: initial values to set, and what else to know.
      width_ratio, depth_ratio: of the model to the base model; the depth counts residual sums, of
        all streams together.
      record: what the code has of a rule, such as ``record.alpha``, the exponent of its branches'
        multipliers; ``None``: it has none, and parameters carry them.
      accepted: names of findings and of what was not judged that do not count, see `accept`.
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
    # Path -> that in the base model.
    pairs: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)

    @property
    def verdict(self) -> Literal["ok", "missing", "not judged"]:
        """What the audit says in a word.

        ``ok``: with ``info``, the rule holds: all factors were read, and are in the code or carried
        by parameters.

        ``missing``: some are neither. Else ``not judged``. Findings that are not ``certain``, as
        they depend on the optimizer, do not count, nor those that were accepted.
        """
        if self._remaining(self.certain):
            return "missing"
        return "not judged" if self._remaining(self.not_judged) else "ok"

    def _remaining(self, findings: Sequence[Finding]) -> list[Finding]:
        """Those that were not accepted."""
        return [finding for finding in findings if finding.name not in self.accepted]

    @property
    def certain(self) -> tuple[Finding, ...]:
        """The findings that do not depend on the optimizer."""
        return tuple(finding for finding in self.findings if finding.certain)

    @property
    def corrections(self) -> str:
        """What is missing and what was not judged, with the code to write; "" for ``ok``."""
        missing = self._remaining(self.certain)
        not_judged = self._remaining(self.not_judged)
        return "\n\n".join("\n".join(lines) for lines in _listed(missing, not_judged))

    @property
    def ok(self) -> bool:
        """Whether the verdict is ``ok``, which is also ``bool(audit)``."""
        return self.verdict == "ok"

    def __bool__(self) -> bool:
        return self.ok

    def require(self) -> Audit:
        """The audit itself; `InputError` with what is missing or was not judged, unless it is ``ok``."""
        if not self.ok:
            raise InputError(f"the audit says {self._headline} print(audit) shows what to write.")
        return self

    @property
    def _headline(self) -> str:
        """The verdict in one sentence."""
        missing = places(self._remaining(self.certain))
        what = missing or places(self._remaining(self.not_judged)) or self._why_ok
        return f"{self.verdict}: {what}."

    @property
    def _why_ok(self) -> str:
        """Where the factors are."""
        text = "every factor is in the code"
        if any(not row.carried.is_one for row in self.rows):
            text += ", or carried by a parameter"
        if self.record.alpha is not None:
            text += f"; the code is for alpha = {self.record.alpha:g}"
            if close(self.width_ratio, self.depth_ratio):
                text += ", or has that power of the width, as m = r"
        counted = (*self.certain, *self.not_judged)
        accepted = [finding for finding in counted if finding.name in self.accepted]
        if accepted:
            text = f"accepted: {places(accepted)}; else {text}"
        return text

    def accept(self, *names: str) -> Audit:
        """The audit without what you answer for: ``ok``, if nothing else is missing or not judged.

        Args:
          *names: of findings, and of what was not judged.
        """
        counted = {finding.name for finding in (*self.certain, *self.not_judged)}
        for name in names:
            if name not in counted:
                meant = did_you_mean(name, counted) if counted else "the audit is ok, and accepts nothing."
                raise InputError(f"accept has {name!r}: {meant}")
        return dataclasses.replace(self, accepted=self.accepted.union(names))

    def under(self, rule: Parametrization) -> Audit:
        """The audit with the findings of one rule.

        It lacks what the rule does not want, and has what the code has of another rule.

        Under ``mup`` no branch lacks a multiplier, for example; and a multiplier of ``completep``
        is one too many.
        """
        findings = []
        for finding in self.findings:
            if finding.factor is None or not close(finding.factor.under(rule), 1.0):
                findings.append(finding)
        accepted = self.accepted
        for field, text in conflicts(self.record, rule):
            conflict = self._conflict(field, text)
            findings.append(conflict)
            accepted -= {conflict.name}  # no optimizer takes it
        return dataclasses.replace(self, findings=tuple(findings), accepted=accepted)

    def _conflict(self, field: str, text: str) -> Finding:
        """A field of a rule, whose factors stand in the code with another number, as a finding."""
        if field in ("alpha", "branch_multiplier"):
            paths = [row.path for row in self.rows if row.in_branch and row.found not in (1, None)]
            code = "h = h + rule.residual_multiplier(r) * y"
            return Finding("missing_branch_multiplier", tuple(paths), text, code)
        infos = {row.path: row.info for row in self.rows if row.info is not None}
        paths = [path for path, info in infos.items() if info.role is Role.OUTPUT]
        code = "logits = logits * rule.readout_multiplier(m)"
        return Finding("readout_not_scaled", tuple(paths), text, code)

    def require_roles(self) -> None:
        """Raises `InputError` if the role of a parameter could not be read."""
        for row in self.rows:
            if row.info is None:
                names = ("width_in", *["width_out"] * len(row.shape))[: len(row.shape)]
                raise InputError(
                    f"the role of parameter {row.path!r} of shape {row.shape} was not read "
                    f"({row.why_not}): name its axes, such as "
                    f"overrides={{{row.path!r}: Axes({names!r}, in_branch=False)}}."
                )

    @functools.cached_property
    def info(self) -> InfoTree:
        """The `ParamInfo` of every parameter, in the model's containers.

        It serves every rule. Optimizers refuse it unless the audit is ok, or `accept` names what is
        not; and under a rule other than that whose factors the code has.

        Raises:
          InputError: a role could not be read.
        """
        self.require_roles()
        problem = "" if self.ok else self._headline
        record = dataclasses.replace(self.record, problem=problem)
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
        """The verdict, a table, the findings, what was not judged, and notes."""
        parts: list[str | Table] = [*_wrapped(self._headline, ""), "", _table(self.rows)]
        parts += _wrapped(self._ratios, "")
        for lines in _listed(self.findings, self.not_judged, self.accepted):
            parts.append("\n".join(["", *lines]))
        for note in self.notes:
            sentences, *code = f"Note: {note}".split("\n")
            lines = ["", *_wrapped(sentences, ""), *(f"   {line}" for line in code)]
            parts.append("\n".join(lines))
        return parts

    @property
    def _ratios(self) -> str:
        """The ratios of the two models.

        Of streams with depth ratios of their own, each is named with the parts of the model.
        """
        parts: dict[float, list[str]] = {}
        for row in self.rows:
            if row.info is not None and row.in_branch:
                parts.setdefault(row.info.depth_ratio, []).append(row.path)
        several = [f"{ratio:g} in {names}" for ratio, names in _told_apart(parts).items()]
        depth = " and ".join(several) if len(several) > 1 else f"{self.depth_ratio:g}"
        ratios = f"width ratio m = {self.width_ratio:g}, depth ratio r = {depth}"
        return f"{ratios}; factors are relative to the base model"


def _told_apart(parts: Mapping[float, Sequence[str]]) -> dict[float, str]:
    """Parameters by ratio -> the shortest names of their modules of which no two are equal."""
    for length in itertools.count(1):
        modules = {ratio: _modules(paths, length) for ratio, paths in parts.items()}
        together = set().union(*modules.values())
        if len(together) == sum(map(len, modules.values())):
            break
    return {ratio: summary(names, numbered=True) for ratio, names in modules.items()}


def _modules(paths: Sequence[str], length: int) -> list[str]:
    """The first parts of paths."""
    return list(dict.fromkeys("/".join(parts_of(path)[:length]) for path in paths))


_COLUMNS = ("parameter", "shape", "role", "uses", "in code", "wanted", "carried", "missing")
_ALIGNMENT = "<<<>>>><"


def _table(rows: Sequence[Row]) -> Table:
    """Equal layers in one row; without columns that would be empty."""
    shown = list(range(6))
    if any(not row.carried.is_one for row in rows):
        shown.append(6)
    if any(row.missing for row in rows):
        shown.append(7)
    groups = list(grouped(rows, _same).values())
    names = [collapsed([row.path for row in group]) for group in groups]
    lines = []
    for group, name in zip(groups, names, strict=True):
        cells = _cells(group, names.count(name) > 1)
        lines.append([cells[k] for k in shown])
    alignment = "".join(_ALIGNMENT[k] for k in shown)
    return Table([_COLUMNS[k] for k in shown], lines, alignment, ruled=True)


def _listed(
    findings: Sequence[Finding],
    not_judged: Sequence[Finding],
    accepted: Collection[str] = (),
) -> list[list[str]]:
    """The lines of each finding, and of what was not judged, with what to write or do."""
    texts = []
    for n, finding in enumerate(findings, start=1):
        word = "accepted: " if finding.name in accepted else ""
        what = _wrapped(f"{n}. {word}{finding.name}: {finding.text}", "   ")
        texts.append([*what, f"   write: {finding.code}"])
    for finding in not_judged:
        word = "accepted" if finding.name in accepted else "not judged"
        what = _wrapped(f"?  {word}, {finding.place}: {finding.text}", "   ")
        texts.append([*what, *_wrapped(f"   do: {finding.code}", "   ")])
    return texts


def places(findings: Sequence[Finding]) -> str:
    """What is missing or was not judged, in one line."""
    texts: dict[str, None] = {}
    for finding in findings:
        where = f" ({summary(finding.paths)})" if finding.paths else ""
        texts[f"{finding.place}{where}"] = None
    return "; ".join(texts)


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        text,
        110,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _same(row: Row) -> str:
    """What equal layers have in common."""
    info = row.info and dataclasses.replace(row.info, shape=())
    path = template(row.path)
    return repr(dataclasses.replace(row, path=path, shape=(len(row.shape),), info=info))


def _cells(rows: Sequence[Row], numbered: bool) -> tuple[str, ...]:
    """The line of equal layers, whose numbers tell them from others."""
    row = rows[0]
    role = "?" if row.info is None else row.info.role_name
    found, wanted = row.of_carried or (row.found, row.wanted)
    return (
        collapsed([row.path for row in rows], numbered),
        sizes([row.shape for row in rows]),
        role,
        "?" if math.isnan(row.uses) else f"{row.uses:g}",
        "-" if wanted is None else number(found),
        "-" if wanted is None else str(wanted),
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
