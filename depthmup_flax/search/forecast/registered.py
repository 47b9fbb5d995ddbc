"""A registered forecast: a file with its date and hash, written before the target is trained and never changed."""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import json
import math
import pathlib
import statistics
from collections.abc import Mapping
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from depthmup_flax.config.fields import listed, run_differences, to_json
from depthmup_flax.data import stored_dataset
from depthmup_flax.report.loss_surfaces import LOSSES
from depthmup_flax.search.forecast.course import Course, Watch
from depthmup_flax.search.forecast.law import AXES, STEPS, Forecast, Rung
from depthmup_flax.storage.records.run_hash import json_text, without_execution
from depthmup_flax.storage.records.table import COMPLETED, LOSS_FIELDS, SEED
from depthmup_flax.storage.workdir import buckets
from depthmup_flax.storage.workdir import directory as workdirs
from depthmup_flax.storage.workdir.files import create, modified_s, read_json
from depthmup_flax.storage.workdir.seal import sealed
from depthmup_flax.trainer.runs.directory import RESTORE, require_run
from depthmup_flax.util.errors import InputError
from depthmup_flax.util.table import Table
from depthmup_flax.util.types import Json

FILE = "forecast.json"
# The largest ratio of costs, target to largest rung, at which registered forecasts were checked (docs/forecast.md).
CHECKED_COST_RATIO = 249
_OF_CHANCE = 0.98  # a network with a larger share of the loss of chance has not begun to learn
_SURPRISING = 2.0  # an inflation above it means that the rungs follow no law of these forms
NO_COURSE = "the rungs' training losses follow no law, or an earlier version wrote it"
_REMEDY = "restore it, or register a forecast in another --workdir"


@dataclasses.dataclass(frozen=True)
class Registered:
    """The content of ``forecast.json``; print shows it.

    Attributes:
      date: of the registration, UTC.
      objective: the loss of `depthmup_flax.storage.records.table.OBJECTIVES` that is forecast.
      target: its sizes.
      rungs: the ladder with its losses.
      forecast: the loss and its interval.
      config: of the target, as JSON.
      data: what its runs read, with checksums (`depthmup_flax.data.stored_dataset`).
      course: of its training loss; ``None`` if the rungs' curves follow no law, or an earlier version wrote the file.
      chance: the cross-entropy of the best constant guess; ``None`` for other losses.
      sha256: of all others.
      path: of the file.
    """

    date: str
    objective: str
    batch_size: int
    target: Rung
    rungs: tuple[Rung, ...]
    forecast: Forecast
    config: Json
    data: Json = dataclasses.field(default_factory=dict)
    course: Course | None = None
    chance: float | None = None
    sha256: str = ""
    path: pathlib.Path = pathlib.Path(FILE)

    @property
    def loss(self) -> float:
        """The forecast loss."""
        return self.forecast.loss

    @property
    def interval(self) -> tuple[float, float]:
        """95 %, of one run of the target."""
        return self.forecast.interval

    @property
    def largest(self) -> Rung:
        """The rung with the highest cost."""
        return max(self.rungs, key=lambda rung: rung.cost)

    @property
    def cost_ratio(self) -> float:
        """Cost of a run of the target over that of the largest rung, in parameters times examples."""
        return self.target.cost / self.largest.cost

    @property
    def unlearned(self) -> list[Rung]:
        """Rungs whose mean loss is that of chance, or higher."""
        return [rung for rung in self.rungs if self.chance and np.mean(rung.losses) > _OF_CHANCE * self.chance]

    def as_json(self) -> Json:
        """The object in the file, without its path."""
        fields = dataclasses.asdict(self)
        del fields["path"]
        return {**fields, "cost_ratio": self.cost_ratio}

    def __repr__(self) -> str:
        return describe(self)

    def watch(self) -> Watch:
        """Compares the target's training with its course, in your own loop; `InputError` without a course."""
        if self.course is None:
            raise InputError(f"{self.path} has no course: {NO_COURSE}.")
        return Watch(self.course)

    def check(self, run: str | pathlib.Path) -> Checked:
        """Whether the target, trained in the directory ``run``, reached a loss in the interval.

        Raises:
          InputError: the run is not the target's, or has not ended.
        """
        directory = workdirs.as_path(run)
        require_run(directory)
        config, data = (read_json(directory / name, RESTORE) for name in ("config.json", "data.json"))
        differing = run_differences(*({**tree, SEED: 0} for tree in (config, self.config)))
        if changed := stored_dataset.changes(self.data, data):
            differing.append(f"the data: {changed}")
        if differing:
            raise InputError(
                f"the run in {str(directory)!r} is not the target of this forecast ({listed(differing)}): train the "
                "target with its config; another seed is allowed."
            )
        path = directory / "result.json"
        if not path.exists():
            raise InputError(f"the run in {str(directory)!r} has not ended: resume it, then check.")
        result = read_json(path, RESTORE)
        loss = result[LOSS_FIELDS[self.objective]] if result["status"] == COMPLETED else None
        first = modified_s(directory / "data.json")  # written once; a resumed run renews config.json
        began = datetime.datetime.fromtimestamp(first, datetime.UTC)
        return Checked(self, loss, began.isoformat(timespec="seconds"))


@dataclasses.dataclass(frozen=True)
class Checked:
    """A forecast and what the target reached.

    Attributes:
      loss: ``None`` if the target diverged.
      began: when the run wrote its first file, UTC, by the file system.
    """

    forecast: Registered
    loss: float | None
    began: str

    @property
    def inside(self) -> bool:
        """Whether the loss lies in the interval."""
        low, high = self.forecast.interval
        return self.loss is not None and low <= self.loss <= high

    def as_json(self) -> Json:
        """The result for scripts."""
        registered = self.forecast
        return {
            "inside": self.inside,
            "loss": self.loss,
            "forecast": registered.loss,
            "interval": list(registered.interval),
            "error": None if self.loss is None else self.loss / registered.loss - 1,
            "cost_ratio": registered.cost_ratio,
            "registered": registered.date,
            "began": self.began,
            "sha256": registered.sha256,
        }

    def __repr__(self) -> str:
        registered = self.forecast
        low, high = registered.interval
        interval = f"{registered.loss:.4g}, 95 % interval {low:.4g} to {high:.4g}"
        if self.loss is None:
            return f"outside: the target diverged. Forecast {LOSSES[registered.objective]}: {interval}."
        lines = [
            f"{'inside' if self.inside else 'outside'}: the target's {LOSSES[registered.objective]} is "
            f"{self.loss:.4g}, forecast {interval} (error {self.loss / registered.loss - 1:+.1%})",
            f"registered {registered.date}, the run began {self.began}",
        ]
        if self.began < registered.date:
            lines.append("Warning: the run is older than the forecast.")
        return "\n".join(lines)


def describe(registered: Registered) -> str:
    """The ladder, the law, the forecast and how far it extrapolates."""
    forecast, target = registered.forecast, registered.target
    name = LOSSES[registered.objective]
    columns, rows = ("width", "depth", "steps", "parameters", name, "seeds"), []
    for rung in registered.rungs:
        mean = sum(rung.losses) / len(rung.losses)
        numbers = (rung.width, rung.depth, rung.steps, rung.parameters)
        rows.append((*(f"{number:,}" for number in numbers), f"{mean:.4g}", str(len(rung.losses))))
    sizes = f"width {target.width}, depth {target.depth}, {target.steps:,} steps of {registered.batch_size} examples"
    weights = ", ".join(f"{form} {weight:.0%}" for form, weight in forecast.weights.items())
    wider = f", which widens the interval {forecast.inflation:.2g} times" if forecast.inflation > 1.05 else ""
    lines = [
        *Table(columns, rows, ">>>>>>").lines,
        "",
        f"law ({forecast.form}): {name} ~ {forecast.law}",
        f"the smaller rungs foretell the larger ones with an error of {forecast.held_out_error:.1%}{wider}",
        f"{_seeds(registered)}; weights of the forms: {weights}",
        f"target: {sizes}",
        *expected_loss(registered),
        _course(registered.course),
    ]
    if forecast.inflation > _SURPRISING:
        lines.append("Warning: the rungs do not follow one law: use larger or longer rungs.")
    if unlearned := registered.unlearned:
        lines.append(
            f"Warning: {len(unlearned)} of {len(registered.rungs)} rungs have not begun to learn: their loss is that "
            f"of chance, {registered.chance:.4g}, or higher. No law describes them: use larger or longer rungs."
        )
    if registered.sha256:
        lines += [f"registered {registered.date} in {registered.path}", f"sha256 {registered.sha256}"]
    return "\n".join(lines)


def _seeds(registered: Registered) -> str:
    if len(registered.rungs[0].losses) == 1:
        return "one seed of each rung: how much seeds differ is unknown, and the interval may be too narrow"
    return f"seeds differ by {registered.forecast.seed_spread:.1%}"


def _course(course: Course | None) -> str:
    if course is None:
        return f"no course of the training loss: {NO_COURSE}"
    early = [k for k, end in enumerate(course.ends) if end <= math.ceil(course.ends[-1] / 3)]
    factor = statistics.median(math.sqrt(course.high[k] / course.low[k]) for k in early or [0])
    return f"course: training loss in {len(course.ends)} blocks of steps, in the first third within {factor:.3g} times"


def expected_loss(registered: Registered) -> list[str]:
    """The loss of a run of the target, with its interval, and how far the target lies beyond the largest rung."""
    low, high = registered.interval
    name = LOSSES[registered.objective]
    return [
        f"forecast of one run: {name} {registered.loss:.4g}, 95 % interval {low:.4g} to {high:.4g}",
        extrapolation(registered),
    ]


def extrapolation(registered: Registered) -> str:
    """How far the target lies beyond the largest rung."""
    target, largest = registered.target, registered.largest
    factors = {axis: getattr(target, axis) / max(getattr(rung, axis) for rung in registered.rungs) for axis in AXES}
    beyond = ", ".join(f"{axis} {factor:.3g} times" for axis, factor in factors.items() if factor > 1)
    beyond = f"{beyond} that of any rung; " if beyond else ""
    text = (
        f"extrapolation: {beyond}cost {registered.cost_ratio:.3g} times that of the largest "
        f"(width {largest.width}, depth {largest.depth}, {largest.steps:,} steps)"
    )
    if registered.cost_ratio > CHECKED_COST_RATIO:
        text += (
            f"\nWarning: forecasts were checked against trained targets up to {CHECKED_COST_RATIO} times the cost of "
            "the largest rung: this one lies beyond."
        )
    if factors[STEPS] > 1:
        text += (
            "\nWarning: of the checked targets that are longer than all rungs, 4 of 10 reached a lower loss than the "
            "interval: what only long runs learn is not foreseen. Use rungs of the target's steps."
        )
    return text


def now() -> str:
    """The date of a registration."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def config_json(config: ConfigDict) -> Json:
    """A config as the file holds it: without what does not change the training, such as paths."""
    return without_execution(json.loads(to_json(config)))


def _hash(fields: Json) -> str:
    return hashlib.sha256(json_text({**fields, "sha256": ""}).encode()).hexdigest()


def register(registered: Registered, directory: pathlib.Path) -> Registered:
    """Writes the file, or returns what another process has registered there."""
    fields = registered.as_json()
    create(directory / FILE, sealed(json_text({**fields, "sha256": _hash(fields)})))
    return read(directory)


def read(directory: pathlib.Path) -> Registered:
    """The forecast in a directory.

    Raises:
      InputError: there is none, or it has changed since it was registered.
    """
    path = directory / FILE
    with buckets.reachable([directory]):
        if not path.exists():
            raise InputError(f"{str(directory)!r} holds no forecast: name the --workdir of one.")
        fields = read_json(path, _REMEDY)
    if _hash(fields) != fields.get("sha256"):
        raise InputError(f"{path} is not what was registered, by its sha256: {_REMEDY}.")
    return _from_json(fields, path)


def _from_json(fields: Mapping[str, Any], path: pathlib.Path) -> Registered:
    rung = lambda given: Rung(**{**given, "losses": tuple(given["losses"])})
    law, course = fields["forecast"], fields.get("course")
    return Registered(
        date=fields["date"],
        objective=fields["objective"],
        batch_size=fields["batch_size"],
        target=rung(fields["target"]),
        rungs=tuple(map(rung, fields["rungs"])),
        forecast=Forecast(**{**law, "interval": tuple(law["interval"])}),
        config=fields["config"],
        data=fields.get("data", {}),
        course=course and Course(course.pop("every"), **{name: tuple(values) for name, values in course.items()}),
        chance=fields.get("chance"),
        sha256=fields["sha256"],
        path=path,
    )
