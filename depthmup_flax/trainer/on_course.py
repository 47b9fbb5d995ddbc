"""Whether a run is on the course of the forecast that ``config.forecast`` names."""

from __future__ import annotations

import contextlib
import logging
import pathlib
from collections.abc import Mapping

from ml_collections import ConfigDict

from depthmup_flax.config.fields import listed, run_differences
from depthmup_flax.data import stored_dataset
from depthmup_flax.devices.process import distributed
from depthmup_flax.search.forecast.course import Watch
from depthmup_flax.search.forecast.registered import NO_COURSE, Registered, config_json, read
from depthmup_flax.storage.records.table import SEED
from depthmup_flax.storage.workdir import directory as workdirs
from depthmup_flax.trainer.engine.experiment import Experiment
from depthmup_flax.trainer.runs.directory import read_metrics
from depthmup_flax.util.errors import InputError
from depthmup_flax.util.types import Json

log = logging.getLogger(__name__)

_NONE = "or leave --config.forecast empty"


def require_course(experiment: Experiment, data: Json) -> None:
    """Checks that the curves can be compared, and logs how else the run differs from the forecast's target.

    Raises:
      InputError: no forecast, no course, or a run of another size, length, batch size or loss.
    """
    if not (place := experiment.config.forecast):
        return
    where = f"forecast is {place!r}"
    try:
        registered = read(workdirs.as_path(place))
    except InputError as error:
        raise InputError(f"{where}: {str(error).removesuffix('.')}, {_NONE}.") from error
    target = registered.target
    if registered.course is None:
        raise InputError(f"{where}, which has no course ({NO_COURSE}): register it in another --workdir, {_NONE}.")
    config = config_json(experiment.config)
    ours = {
        "model.width": (target.width, config["model"]["width"]),
        "model.depth": (target.depth, config["model"]["depth"]),
        "train.steps": (target.steps, experiment.total_steps),
        "train.batch_size": (registered.batch_size, config["train"]["batch_size"]),
        "loss": (registered.config["loss"], config["loss"]),
    }
    other = [f"{name}: {there!r} there, {here!r} here" for name, (there, here) in ours.items() if there != here]
    if other:
        raise InputError(f"{where}, whose course is of another run ({listed(other)}): train its target, {_NONE}.")
    if registered.course.every % experiment.config.train.log_every:
        raise InputError(
            f"train.log_every is {experiment.config.train.log_every}: the course in {place!r} has rows every "
            f"{registered.course.every} steps. Use a divisor, such as that number, {_NONE}."
        )
    _log_differences(registered, config, data)


def _log_differences(registered: Registered, config: Json, data: Json) -> None:
    differing = run_differences(*({**tree, SEED: 0} for tree in (registered.config, config)))
    if changed := stored_dataset.changes(registered.data, data):
        differing.append(f"the data: {changed}")
    if differing and distributed.is_first():
        log.warning("the run differs from the target of the forecast (%s).", listed(differing))


class CourseWatch:
    """Compares the rows of a run with the course of its forecast; does nothing if ``config.forecast`` is empty.

    Args:
      config: of the run.
      metrics: its ``metrics.jsonl``, whose rows are read again.
      first_step: later rows are new.
    """

    def __init__(self, config: ConfigDict, metrics: pathlib.Path, first_step: int) -> None:
        course = read(workdirs.as_path(config.forecast)).course if config.forecast else None
        self._watch = None if course is None else Watch(course)
        if self._watch is None or not first_step:
            return
        rows = read_metrics(metrics)
        with contextlib.suppress(InputError):  # rows of an attempt with a larger log_every
            for step, loss in zip(rows["step"], rows.get("train_loss", ()), strict=False):
                if loss == loss:  # rows of evaluations have none
                    self._watch.update(int(step), float(loss))
        if not 0 <= first_step - self._watch.step < config.train.log_every:  # rows are lost
            self._watch = Watch(self._watch.course, first_step)
            left = [int(step) for step in rows.get("off_course_since", ()) if step == step]
            self._watch.left = left[-1] if left else None

    @property
    def left(self) -> int | None:
        """The step at which the run left the band, or ``None``."""
        return None if self._watch is None else self._watch.left

    def columns(self, step: int, metrics: Mapping[str, float]) -> dict[str, float]:
        """The expected loss, its band and since when the run is outside, for a row; warns when it leaves the band."""
        if self._watch is None:
            return {}
        if warning := self._watch.update(step, metrics["train_loss"]):
            log.warning("%s", warning)
        left = {} if self._watch.left is None else {"off_course_since": float(self._watch.left)}
        return {**self._watch.course.row(step), **left}
