"""Is a run on course? What its first third records, beside that of a run of another size: by role, from step 2 on.

The rule keeps updates, gradients and parameters of each role equal at all sizes, times known powers of width and depth
(`depthmup_flax.rule.measures`). Where a run's differ from its proxy's, its rate, start, network or data do.
"""

from __future__ import annotations

import functools
import json
import logging
import math
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from depthmup_flax.rule.measures import COUNT, GRADIENT, PARAMETER, RELATIVE, RULE, UPDATE
from depthmup_flax.rule.recorded import BASE, LOSS, NUMBERS, STEP, recorded_columns
from depthmup_flax.storage.files import as_path, read_json, write_atomically
from depthmup_flax.storage.run_hash import differences
from depthmup_flax.trainer.comparison import LIMITS, RATE, Columns, Comparison, kind_of, of_a_tensor
from depthmup_flax.util.errors import InputError, listed, without_token
from depthmup_flax.util.types import Json

if TYPE_CHECKING:
    from ml_collections import ConfigDict

log = logging.getLogger(__name__)

FILE = "course.json"
Source = str | os.PathLike[str] | Columns | Any

# Settings that runs of all sizes share, apart from those that `tuned_hyperparameters` has.
_SHARED = (
    *(f"optimizer.{name}" for name in ("schedule", "final_fraction", "decay_fraction", "decay_shape")),
    *("optimizer.decay_width_exponent", "optimizer.clip_rms", "optimizer.frozen", "label_smoothing"),
)
_RESCALED = ("weight_decay", "momentum", "b1", "b2")  # the warm-up shows in the rate
# Fields of a config that must be equal for a comparison.
_SAME = (
    *(f"parametrization.{name}" for name in ("preset", "alpha", "gamma", "inner_gamma", "width")),
    *("model.name", "optimizer.name", "data.name", "loss"),
)


def compare_runs(reference: Source, run: Source) -> Comparison:
    """The first steps of a run beside those of another size, such as its proxy, by what the rule keeps equal.

    Args:
      reference: the state of an optimizer by `depthmup_flax.record_course`, or the directory of `save_course`, of a
        run, of a search (`depthmup_flax.tune`) or of a forecast; or columns: ``{"step": [1, 2, 4],
        "update/hidden+branch": [...], ...}``, with values of `depthmup_flax.measures`.
      run: the same of the other run.

    Raises:
      InputError: a directory holds no such record, or nothing is comparable.
    """
    theirs, ours = map(_content, (reference, run))
    if "config" in theirs and "config" in ours:
        return compared(theirs, ours)
    if not (STEP in theirs["columns"] and STEP in ours["columns"]):
        raise InputError(f"a mapping has no column {STEP!r}: name the steps of its rows, counted from 1.")
    numbers, own_numbers = (x.get(NUMBERS, {}) for x in (theirs, ours))
    if (one_sided := sorted((numbers.keys() ^ own_numbers.keys()) - {BASE})) and numbers and own_numbers:
        raise InputError(f"{one_sided[0]} is a number of one run alone: give it to dm.record_course of both, or none.")
    shared = {name: (numbers[name], value) for name, value in own_numbers.items() if name in numbers}
    return _joined(theirs["columns"], ours["columns"], shared)


def _content(source: Source) -> Json:
    """Columns and numbers, as ``course.json`` has them."""
    if isinstance(source, (str, os.PathLike)):
        return read_course(source)
    columns = dict(source) if isinstance(source, Mapping) else recorded_columns(source)
    return {NUMBERS: columns.pop(NUMBERS, {}), "columns": columns}


def save_course(directory: str | os.PathLike[str], opt_state: Any) -> None:
    """Writes ``course.json`` into a directory, for `compare_runs`, from the state of `record_course`'s optimizer."""
    if isinstance(opt_state, (str, os.PathLike)):
        raise InputError(f"opt_state is {opt_state!r}: the directory comes first, save_course('runs/base', opt_state).")
    as_path(directory).mkdir(parents=True, exist_ok=True)
    write_atomically(as_path(directory) / FILE, json.dumps(_content(opt_state)) + "\n")


def compared(reference: Json, run: Json) -> Comparison:
    """`compare_runs` of two contents of ``course.json``, of runs of this trainer."""
    from ml_collections import ConfigDict  # here, as a record of a loop of your own needs no extra

    from depthmup_flax.config.fields import get_field
    from depthmup_flax.config.rescaling import rescale_target, tuned_hyperparameters

    theirs, ours = ConfigDict(reference["config"]), ConfigDict(run["config"])
    # Another session's name of the same object has another token.
    named = lambda value: without_token(value) if isinstance(value, str) else value
    same, own_same = ({path: named(get_field(config, path)) for path in _SAME} for config in (theirs, ours))
    if found := differences(same, own_same):
        raise InputError(f"the runs are not comparable: {listed(found)}.")
    columns, own = dict(reference["columns"]), run["columns"]
    size, length = ours.train.batch_size, run["total_steps"]
    numbers = {path: (get_field(theirs, path), get_field(ours, path)) for path in _SHARED}
    if (theirs.train.batch_size, reference["total_steps"]) != (size, length):
        rescaled = theirs.copy_and_resolve_references()
        try:
            rescale_target(theirs, reference["total_steps"], rescaled, reference["total_steps"], size, length)
            after = rates(rescaled, length, columns[STEP])
        except InputError:  # an optimizer whose rule over batch size and steps is not known
            return _joined(_only(columns, PARAMETER, GRADIENT), own, numbers)
        before, columns[RATE] = columns[RATE], after
        for name in [name for name in columns if kind_of(name) in (UPDATE, RELATIVE) and not of_a_tensor(name)]:
            factors = (new / old if old else math.nan for new, old in zip(after, before, strict=True))
            columns[name] = [a and a * b for a, b in zip(columns[name], factors, strict=True)]
        if theirs.train.batch_size != size:  # noise, and so gradients and updates, depend on the batch size
            columns = _only(columns, PARAMETER, RATE, LOSS)
        theirs = rescaled
    tuned, own_tuned = (tuned_hyperparameters(config, length) for config in (theirs, ours))
    numbers |= {f"optimizer.{name}": (getattr(tuned, name), getattr(own_tuned, name)) for name in _RESCALED}
    return _joined(columns, own, numbers)


def rates(config: ConfigDict, total_steps: int, steps: Sequence[int]) -> list[float]:
    """The learning rate of each of ``steps``, counted from 1."""
    from depthmup_flax.trainer.engine.config_optimizer import learning_rate

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
        factor = 1.0 if of_a_tensor(name) else factors.get(kind_of(name), 1.0)
        return [factor * math.prod(row) ** (1 / len(row)) if all(row) else None for row in rows]

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
    return {name: column for name, column in columns.items() if kind_of(name) in (STEP, COUNT, *kinds)}


def _joined(reference: Columns, run: Columns, numbers: Mapping[str, tuple[Any, Any]]) -> Comparison:
    """The steps and the names that both have."""
    steps = [step for step in run[STEP] if step in set(reference[STEP])]
    names = [name for name in run if name in reference and kind_of(name) in (*LIMITS, LOSS, RULE)]
    if not names:
        raise InputError("the runs have no column in common: give both the values of dm.measures of the same roles.")
    if not steps:
        raise InputError("the runs have no step in common: record both from step 1 on, of one step or more.")
    at = lambda c: {name: [c[name][list(c[STEP]).index(step)] for step in steps] for name in (STEP, *names)}
    counts = lambda name: [columns.get(f"{COUNT}/{name.partition('/')[2]}", [])[:1] for columns in (reference, run)]
    spread = {name: math.hypot(*((2 * n) ** -0.5 for count in counts(name) for n in count)) for name in names}
    return Comparison(at(reference), at(run), spread, numbers)
