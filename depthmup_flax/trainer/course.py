"""Is a run on course? What its first third records, beside that of a run of another size: by role, from step 2 on.

The rule keeps updates, gradients and parameters of each role equal at all sizes, times known powers of width and depth
(`depthmup_flax.rule.measures`). Where a run's differ from its proxy's, its rate, start, network or data do.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
import math
import os
import pathlib
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from depthmup_flax.config.fields import get_field
from depthmup_flax.config.rescaling import rescale_target
from depthmup_flax.rule.measures import COUNT, GRADIENT, PARAMETER, RELATIVE, UPDATE
from depthmup_flax.storage.files import as_path, read_json, write_atomically
from depthmup_flax.storage.run_hash import differences
from depthmup_flax.trainer.engine.config_optimizer import learning_rate
from depthmup_flax.util.errors import InputError, listed
from depthmup_flax.util.table import Table
from depthmup_flax.util.types import Json

log = logging.getLogger(__name__)

FILE, RATE, STEP = "course.json", "rate", "step"
Columns = Mapping[str, Sequence[Any]]
Source = str | os.PathLike[str] | Columns

# Kind of a column -> the largest factor from the reference, either way, at steps 1 and 2, of the rate at all
# (reproduction/pages/course.md): later, larger networks are ahead. Adam's rate shows in the mean over roles of updates.
LIMITS = {RATE: 1.02, PARAMETER: 1.25, UPDATE: 1.4, RELATIVE: 1.17, GRADIENT: 8.0}
MEAN_LIMIT, LAST = 1.17, 2
DEVIATIONS = 4  # of the ratio by the numbers of a role, which widen its limit, in squares
_CAUSES = {
    RATE: "optimizer.learning_rate, the schedule or warm-up, or a batch size or length without the rule's rescaling",
    UPDATE: "the learning rate or its schedule; a frozen or low-precision parameter where it is near 0",
    RELATIVE: "the learning rate or its schedule; a frozen parameter where it is near 0",
    GRADIENT: "a multiplier of a branch or the readout, the initial values, the loss or the data",
    PARAMETER: "initial values that were not rescaled (dm.rescale_init), or another initializer",
}
# Fields of a config that must be equal for a comparison.
_SAME = (
    *(f"parametrization.{name}" for name in ("preset", "alpha", "gamma", "inner_gamma", "width")),
    *("model.name", "optimizer.name", "data.name", "loss"),
)


@dataclasses.dataclass(frozen=True)
class Deviation:
    """A column that is off course: ``factor`` times the reference's at ``step``."""

    step: int
    name: str
    factor: float

    @property
    def kind(self) -> str:
        """update, gradient, parameter or rate."""
        return _kind(self.name)


@dataclasses.dataclass(frozen=True, repr=False)
class Comparison:
    """Two runs side by side; print shows a table and a sentence.

    Attributes:
      reference, run: ``step`` and other names -> columns at the steps that both have; the reference's as the rule
        wants them of the run.
      spread: name -> the relative standard deviation of a ratio of root mean squares of so many normal numbers.
    """

    reference: Columns
    run: Columns
    spread: Mapping[str, float]

    @functools.cached_property
    def factors(self) -> dict[str, list[float]]:
        """Name -> run over reference at each step; NaN where one of them is 0 or unknown, 0 where only the run's is."""
        found = {name: list(map(_factor, self.run[name], self.reference[name])) for name in self.run if name != STEP}
        still = [i for i, rate in enumerate(self.run.get(RATE, ())) if rate == 0]
        for name in (name for name in found if _kind(name) in (UPDATE, RELATIVE)):
            for i in still:  # Hyperball's updates are the rounding of a norm there
                found[name][i] = math.nan
        return found

    @property
    def deviations(self) -> list[Deviation]:
        """All that are off course, the earliest first."""
        found = []
        for i, step in enumerate(self.run[STEP]):
            at_step = {name: factors[i] for name, factors in self.factors.items() if step <= LAST or name == RATE}
            ones = [(name, x, LIMITS[_kind(name)], self.spread[name]) for name, x in at_step.items()]
            if some := {name: x for name, x in at_step.items() if _kind(name) == UPDATE and x > 0}:  # not NaN
                spread = math.hypot(*(self.spread[name] for name in some)) / len(some)
                ones.append((f"{UPDATE}/all roles", statistics.geometric_mean(some.values()), MEAN_LIMIT, spread))
            found += [Deviation(step, name, x) for name, x, most, spread in ones if _is_off(x, most, spread)]
        return sorted(found, key=lambda one: (one.step, list(LIMITS).index(one.kind)))

    @property
    def on_course(self) -> bool:
        """Whether nothing is off course."""
        return not self.deviations

    @property
    def sentence(self) -> str:
        """What is off by how much at the first such step, and what usually causes it."""
        if self.on_course:
            last = max(self.run[STEP], default=0)
            return f"on course to step {last}: rate, updates, gradients and parameters of all roles fit the reference."
        first = self.deviations[0]
        same = [one for one in self.deviations if (one.step, one.kind) == (first.step, first.kind)]
        roles = ", ".join(f"{one.name.partition('/')[2]} {one.factor:.3g}" for one in same)
        what = f"the learning rate is {first.factor:.3g}" if first.kind == RATE else f"{first.kind}s of {roles}"
        return (
            f"off course at step {first.step}: {what} times what the rule and the reference say. Usual cause: "
            f"{_CAUSES[first.kind]}."
        )

    def __repr__(self) -> str:
        steps = self.run[STEP]
        shown = sorted({i for i, step in enumerate(steps) if step in (1, 2, 4, 8)} | {len(steps) - 1} - {-1})
        rows = [(name, *(f"{factors[i]:.3g}" for i in shown)) for name, factors in self.factors.items()]
        table = Table(("run / reference, at step", *(str(steps[i]) for i in shown)), rows, "<" + ">" * len(shown))
        return f"{table}\n\n{self.sentence}"


def compare_runs(reference: Source, run: Source) -> Comparison:
    """The first third of a run beside that of another size, such as its proxy, by what the rule keeps equal.

    Args:
      reference: the directory of a run, of a search (`depthmup_flax.tune`) or of a forecast; or columns of your own
        loop: ``{"step": [1, 2, 4], "update/hidden+branch": [...], ...}``, with values of `depthmup_flax.measures`.
      run: the same of the other run.

    Raises:
      InputError: a directory holds no such record, or nothing is comparable.
    """
    theirs, ours = ({"columns": x} if isinstance(x, Mapping) else read_course(x) for x in (reference, run))
    if "config" in theirs and "config" in ours:
        return compared(theirs, ours)
    if not (STEP in theirs["columns"] and STEP in ours["columns"]):
        raise InputError(f"a mapping has no column {STEP!r}: name the steps of its rows, counted from 1.")
    return _joined(theirs["columns"], ours["columns"])


def compared(reference: Json, run: Json) -> Comparison:
    """`compare_runs` of two contents of ``course.json``."""
    theirs, ours = ConfigDict(reference["config"]), ConfigDict(run["config"])
    same, own_same = ({path: get_field(config, path) for path in _SAME} for config in (theirs, ours))
    if found := differences(same, own_same):
        raise InputError(f"the runs are not comparable: {listed(found)}.")
    columns, own = dict(reference["columns"]), run["columns"]
    size, length = ours.train.batch_size, run["total_steps"]
    if (theirs.train.batch_size, reference["total_steps"]) != (size, length):
        rescaled = theirs.copy_and_resolve_references()
        try:
            rescale_target(theirs, reference["total_steps"], rescaled, reference["total_steps"], size, length)
            after = rates(rescaled, length, columns[STEP])
        except InputError:  # an optimizer whose rule over batch size and steps is not known
            return _joined(_only(columns, PARAMETER, GRADIENT), own)
        before, columns[RATE] = columns[RATE], after
        for name in [name for name in columns if _kind(name) in (UPDATE, RELATIVE)]:
            factors = (new / old if old else math.nan for new, old in zip(after, before, strict=True))
            columns[name] = [a and a * b for a, b in zip(columns[name], factors, strict=True)]
        if theirs.train.batch_size != size:  # noise, and so gradients and updates, depend on the batch size
            columns = _only(columns, PARAMETER, RATE)
    return _joined(columns, own)


def rates(config: ConfigDict, total_steps: int, steps: Sequence[int]) -> list[float]:
    """The learning rate of each of ``steps``, counted from 1."""
    return [float(f"{rate:.6g}") for rate in np.asarray(learning_rate(config, total_steps)(np.array(steps) - 1))]


def write_course(directory: pathlib.Path, config: ConfigDict, total_steps: int, columns: Columns) -> Json:
    """Writes ``course.json``; returns its content."""
    columns = {**columns, RATE: rates(config, total_steps, columns[STEP])}
    content = {"config": config.to_dict(), "total_steps": total_steps, "columns": columns}
    write_atomically(directory / FILE, json.dumps(content) + "\n")
    return content


def read_course(directory: str | os.PathLike[str]) -> Json:
    """The content of ``course.json``; `InputError` if there is none."""
    path = as_path(directory) / FILE
    if not path.exists():
        raise InputError(
            f"{str(directory)!r} holds no {FILE}: name the workdir of depthmup tune or forecast, or of a run with "
            "train.record_course=True."
        )
    return read_json(path, "train the run again")


def mean_columns(courses: Sequence[Columns], rate_factor: float = 1.0) -> dict[str, list[Any]]:
    """The geometric mean of the columns of runs with other seeds; updates times ``rate_factor``, to another rate."""
    factors = {UPDATE: rate_factor, RELATIVE: rate_factor, COUNT: len(courses)}

    def mean(name: str) -> list[Any]:
        rows = zip(*(course[name] for course in courses), strict=False)  # as far as all of them have come
        return [factors.get(_kind(name), 1.0) * math.prod(row) ** (1 / len(row)) if all(row) else None for row in rows]

    first = min(courses, key=lambda course: len(course[STEP]))
    return {STEP: list(first[STEP]), **{name: mean(name) for name in first if name != STEP}}


class Watch:
    """Compares a run with ``train.reference`` as its rows are recorded, and says each thing once."""

    def __init__(self, config: ConfigDict) -> None:
        self._said, path, self._stops = set[str](), config.train.reference, config.train.stop_off_course
        self._reference = self._unless_refused(lambda: read_course(path)) if path or self._stops else None

    def see(self, content: Json) -> None:
        """Logs what is new in the content of ``course.json``; raises it with ``train.stop_off_course``."""
        if self._reference is None or max(content["columns"][STEP]) < 2:
            return
        comparison = self._unless_refused(functools.partial(compared, self._reference, content))
        if comparison is None:
            self._reference = None
            return
        kinds = {one.kind for one in comparison.deviations}
        if kinds and self._stops:
            raise InputError(f"{comparison.sentence} Mend it and use overwrite, or go on: train.stop_off_course=False.")
        if kinds - self._said or not self._said:
            log.log(logging.WARNING if kinds - self._said else logging.INFO, "%s", comparison.sentence)
        self._said |= kinds | {STEP}

    def _unless_refused(self, function: Callable[[], Any]) -> Any:
        try:
            return function()
        except InputError as error:  # the search may be on another machine
            if self._stops:
                raise InputError(f"train.reference: {error}") from None
            log.warning("train.reference: this run is compared with nothing: %s", error)
            return None


def _only(columns: Columns, *kinds: str) -> dict[str, Sequence[Any]]:
    return {name: column for name, column in columns.items() if _kind(name) in (STEP, COUNT, *kinds)}


def _joined(reference: Columns, run: Columns) -> Comparison:
    """The steps and the names that both have."""
    steps = [step for step in run[STEP] if step in set(reference[STEP])]
    names = [name for name in run if name in reference and _kind(name) in LIMITS]
    if not names:
        raise InputError("the runs have no column in common: give both the values of dm.measures of the same roles.")
    at = lambda c: {name: [c[name][list(c[STEP]).index(step)] for step in steps] for name in (STEP, *names)}
    counts = lambda name: [columns.get(f"{COUNT}/{name.partition('/')[2]}", [])[:1] for columns in (reference, run)]
    spread = {name: math.hypot(*((2 * n) ** -0.5 for count in counts(name) for n in count)) for name in names}
    return Comparison(at(reference), at(run), spread)


def _factor(value: Any, reference: Any) -> float:
    known = value is not None and reference is not None and reference != 0
    return float(value) / float(reference) if known else math.nan


def _is_off(factor: float, most: float, spread: float) -> bool:
    limit = math.exp(math.hypot(math.log(most), DEVIATIONS * spread))
    return not math.isnan(factor) and not 1 / limit <= factor <= limit


def _kind(name: str) -> str:
    return name.partition("/")[0]
