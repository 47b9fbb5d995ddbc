"""The forecast of a large network: trains its ladder, fits the law, writes a file; compares a trained target."""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
import math
import pathlib

import numpy as np
from ml_collections import ConfigDict

from depthmup_flax.config.fields import to_json
from depthmup_flax.config.rescaling import rescale_target
from depthmup_flax.data import LoadOnce, stored_dataset
from depthmup_flax.report.curves import LOSSES
from depthmup_flax.search.forecast.ladder import LadderPlan, ladder_sweep, rung_config
from depthmup_flax.search.forecast.law import AXES, CHECKED_COST_RATIO, STEPS, Fit, Forecast, Rung, forecast_loss
from depthmup_flax.search.sweep.runner import sweep
from depthmup_flax.search.tune.tuning import require_mup
from depthmup_flax.storage import sweep_records
from depthmup_flax.storage import workdir as workdirs
from depthmup_flax.storage.files import absolute, as_path, from_fields, read_json, reading, write_atomically
from depthmup_flax.storage.run_hash import SOURCE, changed_code, json_text, run_differences, without_execution
from depthmup_flax.storage.sweep_records import Record
from depthmup_flax.trainer.course import mean_columns, write_course
from depthmup_flax.trainer.engine.from_config import build, count_parameters
from depthmup_flax.trainer.runs.directory import RESTORE, require_run
from depthmup_flax.util.errors import InputError, listed
from depthmup_flax.util.surroundings import own_surroundings
from depthmup_flax.util.table import Table
from depthmup_flax.util.types import Json

log = logging.getLogger(__name__)

DEFAULT = LadderPlan()
FILE = "forecast.json"
_OF_CHANCE = 0.98  # a network with a larger share of the loss of chance has not begun to learn


@dataclasses.dataclass(frozen=True, kw_only=True)
class TargetForecast(Forecast):
    """The content of ``forecast.json``; print shows it."""

    objective: str  # the loss of `depthmup_flax.storage.sweep_records.OBJECTIVES` that is forecast
    batch_size: int
    target: Rung  # its sizes
    rungs: tuple[Rung, ...]  # the ladder with its losses
    config: Json  # of the target, as JSON
    data: Json  # what its runs read, with checksums (`depthmup_flax.data.stored_dataset`)
    chance: float | None = None  # the cross-entropy of the best constant guess; ``None`` for other losses

    def __repr__(self) -> str:
        (low, high), target, name = self.interval, self.target, LOSSES[self.objective]
        largest = max(self.rungs, key=lambda rung: rung.cost)
        cost_ratio = target.cost / largest.cost
        shown = lambda r: (r.width, r.depth, f"{r.steps:,}", f"{r.parameters:,}", np.mean(r.losses), len(r.losses))
        laws = [(f"{name} ~ {fit.law}", f"{fit.left_out_error:.1%}", f"{fit.loss:.4g}") for fit in self.fits]
        seeds = f"seeds differ by {self.seed_spread:.1%} in the costly half of rungs"
        if len(self.rungs[0].losses) == 1:
            seeds = "one seed of each rung: how much seeds differ is unknown, and the interval may be too narrow"
        factors = {axis: getattr(target, axis) / max(getattr(rung, axis) for rung in self.rungs) for axis in AXES}
        beyond = ", ".join(f"{axis} {factor:.3g} times" for axis, factor in factors.items() if factor > 1)
        beyond = f"{beyond} that of any rung; " if beyond else ""
        averaged = not math.isclose(self.loss, self.fits[0].loss, rel_tol=1e-9)
        by = ", by the law and what checked targets gained" if averaged else ""
        lines = [
            *Table(("width", "depth", "steps", "parameters", name, "seeds"), [*map(shown, self.rungs)], ">>>>>>").lines,
            "",
            *Table(("law (the first one forecasts)", "error for rungs left out", "target"), laws, "<>>").lines,
            "",
            seeds,
            f"target: width {target.width}, depth {target.depth}, {target.steps:,} steps of {self.batch_size} examples",
            *filter(None, [self.fits[0].warning]),
            f"forecast of one run{by}: {name} {self.loss:.4g}, 95 % interval {low:.4g} to {high:.4g}",
            self.test,
            f"extrapolation: {beyond}cost {cost_ratio:.3g} times that of the largest "
            f"(width {largest.width}, depth {largest.depth}, {largest.steps:,} steps)",
        ]
        if cost_ratio > CHECKED_COST_RATIO:
            lines.append(
                f"Warning: forecasts were checked against trained targets up to {CHECKED_COST_RATIO} times the cost of "
                "the largest rung: this one lies beyond."
            )
        if factors[STEPS] > 1:
            lines.append(
                "Warning: what only long runs learn is not foreseen, and the interval is wider for it. Targets of 3 to "
                "8 times the longest rung's steps were checked; use rungs of the target's steps."
            )
        if unlearned := sum(np.mean(rung.losses) > _OF_CHANCE * (self.chance or math.inf) for rung in self.rungs):
            lines.append(
                f"Warning: {unlearned} of {len(self.rungs)} rungs have not begun to learn: their loss is that of "
                f"chance, {self.chance:.4g}, or higher. No law describes them: use larger or longer rungs."
            )
        return "\n".join(lines)

    @property
    def best(self) -> float:
        """The lowest mean loss of a rung."""
        return min(float(np.mean(rung.losses)) for rung in self.rungs)

    @property
    def tells(self) -> bool:
        """Whether the interval lies below the best rung's loss: else a run that gains nothing may pass."""
        return self.best > self.interval[1]

    @property
    def test(self) -> str:
        """The loss above which a run is worse than forecast, and how often one without any gain is found so."""
        if self.tells:
            return (
                f"test: a run above {self.most:.4g} is worse than forecast (so is 1 good run in 20);\n"
                f"of runs that gain nothing over the best rung, {self.best:.4g}, {self.power:.0%} are above"
            )
        return (
            f"test: cannot tell. The interval reaches to the best rung's own loss, {self.best:.4g}: a run that gains\n"
            "nothing may pass. Use more --seeds, larger rungs, or a larger target."
        )

    def check(self, run: str | pathlib.Path) -> Checked:
        """Whether the target, trained in the directory ``run``, reached a loss in the interval, and is good enough.

        Raises:
          InputError: the run is not the target's, or has not ended.
        """
        directory = as_path(run)
        require_run(directory)
        config, data = (read_json(directory / name, RESTORE) for name in ("config.json", "data.json"))
        unrecorded = lambda tree: {**tree, sweep_records.SEED: 0, "train": {**tree["train"], "record_course": False}}
        differing = changed_code(self.config, config)
        differing += run_differences(unrecorded(self.config), unrecorded(config))
        if changed := stored_dataset.changes(self.data, data):
            differing.append(f"the data: {changed}")
        if differing:
            raise InputError(f"{str(directory)!r} is no run of this target ({listed(differing)}): train its config.")
        if not (directory / "result.json").exists():
            raise InputError(f"the run in {str(directory)!r} has not ended: resume it, then check.")
        result = read_json(directory / "result.json", RESTORE)
        completed = result["status"] == sweep_records.COMPLETED
        loss = result[sweep_records.LOSS_FIELDS[self.objective]] if completed else None
        (low, high), name = self.interval, LOSSES[self.objective]
        inside = loss is not None and low <= loss <= high
        passes = loss is not None and loss <= self.most
        error = None if loss is None else loss / self.loss - 1
        reached = "the target diverged" if loss is None else f"the target's {name} is {loss:.4g}"
        interval = f"forecast {self.loss:.4g}, 95 % interval {low:.4g} to {high:.4g}"
        text = f"{'inside' if inside else 'outside'}: {reached}, {interval}"
        text = text if error is None else f"{text} (error {error:+.1%})"
        verdict = "not worse than forecast" if passes else "worse than forecast"
        if passes and not self.tells:
            verdict += ", but the best rung's own loss would be no worse: the forecast cannot tell"
        return Checked(inside, passes, loss, error, f"{text}\n{verdict} (limit {self.most:.4g})")


@dataclasses.dataclass(frozen=True)
class Checked:
    """What the target of a forecast reached; print shows ``text``."""

    inside: bool  # whether the loss lies in the interval
    passes: bool  # whether it is at most ``most``, which one good run in twenty exceeds
    loss: float | None  # ``None`` if the target diverged
    error: float | None  # the relative error of the forecast
    text: str

    def __repr__(self) -> str:
        return self.text


def read(directory: str | pathlib.Path) -> TargetForecast:
    """The forecast in a directory; `InputError` if there is none."""
    path = as_path(directory) / FILE
    if not path.exists():
        raise InputError(f"{str(directory)!r} holds no forecast: name the workdir of one.")
    fields = read_json(path, remedy := "restore it, or make the forecast again")
    with reading(path, remedy):
        rung = lambda given: from_fields(Rung, {**given, "losses": tuple(given["losses"])}, path)
        own = {
            **fields,
            "interval": tuple(fields["interval"]),
            "fits": tuple(from_fields(Fit, given, path) for given in fields["fits"]),
            "target": rung(fields["target"]),
            "rungs": tuple(map(rung, fields["rungs"])),
        }
        return from_fields(TargetForecast, own, path)


@own_surroundings()
def forecast(
    tuned: ConfigDict,
    workdir: str | pathlib.Path,
    plan: LadderPlan = DEFAULT,
    *,
    width: int | None = None,
    depth: int | None = None,
    steps: int | None = None,
    batch_size: int | None = None,
    objective: str = sweep_records.AUTO,
    lanes: int | None = None,
    load: LoadOnce | None = None,
) -> tuple[TargetForecast, ConfigDict]:
    """The forecast of a target, and the target's config; trains the runs of the ladder that ``workdir`` lacks.

    Args:
      tuned: a config with tuned hyperparameters, at any width and depth and at the batch size and steps for which they
        were tuned. Rungs have the target's batch size; other steps than the tuned ones change what
        `depthmup_flax.rescaled_hyperparameters` changes.
      workdir: of the ladder's records and ``forecast.json``.
      plan: of the ladder.
      width, depth, steps, batch_size: of the target; ``None``: those of ``tuned``.
      objective: the loss that is forecast: ``train``, ``test``, ``validation`` with ``data.validation_fraction``;
        ``auto``: what a run evaluates at its end, else the training loss.
      lanes: see `depthmup_flax.search.sweep.runner.sweep`.
      load: shared with a caller that uses the same data.

    Raises:
      InputError: bad sizes, a rule that does not transfer, diverged rungs, or a workdir with another ladder.
    """
    load = load or LoadOnce()
    built, tuned = build(tuned, load=load), tuned.copy_and_resolve_references()
    tuned.train.record_course = True
    require_rule(tuned)
    target = Rung(width or tuned.model.width, depth or tuned.model.depth, steps or built.total_steps)
    batch_size = batch_size or tuned.train.batch_size
    at = lambda rung: rung_config(tuned, built.total_steps, built.epoch_steps, rung, batch_size)
    evaluated = sweep_records.VALIDATION if tuned.data.validation_fraction else sweep_records.TEST
    measured = (evaluated, sweep_records.TRAIN) if built.evaluates else (sweep_records.TRAIN,)
    loss = measured[0] if objective == sweep_records.AUTO else objective
    if loss not in measured:
        raise InputError(f"objective is {objective!r}: runs of this config measure {' and '.join(measured)}.")
    parameters = functools.cache(lambda rung: count_parameters(at(rung), load=load))
    rungs = plan.rungs(target, parameters)
    target = dataclasses.replace(target, parameters=parameters(target))
    share = plan.seeds * sum(rung.cost for rung in rungs) / target.cost
    log.info("the ladder: %d sizes, %.3g %% of the target's operations", len(rungs), 100 * share)
    if share > 1:
        log.warning("The ladder costs more than the target: train the target, or forecast a larger one.")
    for length in sorted({rung.steps for rung in (*rungs, target)}):
        if (length, batch_size) != (built.total_steps, tuned.train.batch_size):
            config = tuned.copy_and_resolve_references()
            table = rescale_target(tuned, built.total_steps, config, built.total_steps, batch_size, length)
            log.info("for %d steps of %d examples:\n%s", length, batch_size, table)
    directory = as_path(workdir)
    grid = ladder_sweep({rung: at(rung) for rung in rungs}, plan.seeds, loss)
    records = sweep(grid, directory, lanes=lanes, load=load, kind=workdirs.FORECAST)
    ladder = tuple(with_losses(rung, records, loss) for rung in rungs)
    chance = sweep_records.read_info(directory).chance
    result = TargetForecast(
        objective=loss,
        batch_size=batch_size,
        target=target,
        rungs=ladder,
        **vars(forecast_loss(ladder, target, chance)),
        config=config_json(at(target)),
        data=stored_dataset.to_json(built.dataset),
        chance=chance,
    )
    write_atomically(directory / FILE, json_text(dataclasses.asdict(result)))
    largest, large = max(rungs, key=lambda rung: rung.cost), at(target)
    courses = [record.course for record in of_rung(largest, records) if record.course]
    if courses:  # a training step of the user's own records none
        write_course(directory, at(largest), largest.steps, mean_columns(courses))
        large.train.reference = absolute(directory)
    return result, large


def require_rule(tuned: ConfigDict) -> None:
    """Raises `InputError` unless the rule of ``tuned`` transfers, from base sizes that it names."""
    require_mup(tuned.parametrization.preset)
    for name in ("width", "depth"):
        if not tuned.model[f"base_{name}"]:
            raise InputError(f"model.base_{name} is 0: set it to the {name} at which the hyperparameters were tuned.")


def config_json(config: ConfigDict) -> Json:
    """A config as the file holds it: without what does not change the training, such as paths."""
    tree = json.loads(to_json(config))
    return without_execution(tree) | ({SOURCE: tree[SOURCE]} if SOURCE in tree else {})


def of_rung(rung: Rung, records: list[Record]) -> list[Record]:
    """The records of a rung's runs."""
    steps_of = lambda record: record.point.get("train.steps", rung.steps)  # a diverged run took fewer
    return [r for r in records if (r.width, r.depth, steps_of(r)) == (rung.width, rung.depth, rung.steps)]


def with_losses(rung: Rung, records: list[Record], objective: str) -> Rung:
    """A rung with the losses of its runs among ``records``; `InputError` if one diverged or is not positive."""
    own = of_rung(rung, records)
    size = f"width {rung.width}, depth {rung.depth}, {rung.steps} steps"
    losses = tuple(loss for record in own if (loss := record.loss(objective)) is not None)
    if len(losses) < len(own) or not losses:
        raise InputError(f"runs of a rung ({size}) diverged: lower optimizer.learning_rate, and use another workdir.")
    if min(losses) <= 0:
        raise InputError(f"the loss of a rung ({size}) is {min(losses):.3g}: power laws need losses above 0.")
    return dataclasses.replace(rung, losses=losses)
