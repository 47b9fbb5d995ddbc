"""The forecast of a large network: trains its ladder, fits the law, registers the loss."""

from __future__ import annotations

import functools
import logging
import pathlib
import time

import numpy as np
from ml_collections import ConfigDict
from tqdm import tqdm

from depthmup_flax.config.fields import listed, run_differences
from depthmup_flax.data import LoadOnce, stored_dataset
from depthmup_flax.search.forecast.course import Curves, course_of
from depthmup_flax.search.forecast.ladder import LadderPlan, Size, ladder_sweep, rung_config
from depthmup_flax.search.forecast.ladder_time import planned_by_time
from depthmup_flax.search.forecast.law import Rung, forecast_loss
from depthmup_flax.search.forecast.registered import FILE, Registered, config_json, now, read, register
from depthmup_flax.search.sweep.runner import sweep
from depthmup_flax.search.tune.objective import AUTO, require_objective
from depthmup_flax.search.tune.proxy import require_mup
from depthmup_flax.search.tune.rescaled_target import Rescaling, rescale_target
from depthmup_flax.storage.records.table import TEST, TRAIN, VALIDATION, Record, read_info
from depthmup_flax.storage.workdir import directory as workdirs
from depthmup_flax.trainer.engine.experiment import Experiment
from depthmup_flax.trainer.engine.from_config import build, count_parameters
from depthmup_flax.util.errors import InputError

log = logging.getLogger(__name__)

DEFAULT = LadderPlan()


def forecast(
    tuned: ConfigDict,
    workdir: str | pathlib.Path,
    plan: LadderPlan = DEFAULT,
    *,
    width: int | None = None,
    depth: int | None = None,
    steps: int | None = None,
    batch_size: int | None = None,
    objective: str = AUTO,
    lanes: int | None = None,
    load: LoadOnce | None = None,
) -> tuple[Registered, ConfigDict]:
    """The registered forecast of a target, and the target's config; resumes the ladder, or reads what is registered.

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
      InputError: bad sizes, a rule that does not transfer, diverged rungs, or a workdir with another forecast.
    """
    load = load or LoadOnce()
    require_rule(tuned)
    built = build(tuned, load=load)
    given = {"width": width or tuned.model.width, "depth": depth or tuned.model.depth}
    target = Size(**given, steps=steps or built.total_steps)
    batch_size = batch_size or tuned.train.batch_size
    at = lambda size: rung_config(tuned, built.total_steps, built.epoch_steps, size, batch_size)
    parameters = functools.cache(lambda size: count_parameters(at(size), load=load))
    loss = _objective(objective, tuned, built)
    directory = workdirs.as_path(workdir)
    if plan.timed:
        sizes = planned_by_time(plan, target, directory, parameters, at, loss, lanes, load)
    else:
        sizes = plan.sizes(target, parameters)
    if (directory / FILE).exists():
        return _already(read(directory), at(target), sizes, plan.seeds, loss), at(target)
    rungs = [Rung(size.width, size.depth, size.steps, parameters(size)) for size in (*sizes, target)]
    _log_plan(rungs, plan.seeds)
    _log_rescaling(tuned, built.total_steps, batch_size, {target.steps, *(size.steps for size in sizes)})
    grid = ladder_sweep({size: at(size) for size in sizes}, plan.seeds, loss)
    started = time.perf_counter()
    records = sweep(grid, directory, lanes=lanes, load=load, kind=workdirs.FORECAST)
    if plan.timed:
        log.info("the ladder took %s", tqdm.format_interval(time.perf_counter() - started))
    ladder = tuple(with_losses(rung, records, loss) for rung in rungs[:-1])
    registered = Registered(
        date=now(),
        objective=loss,
        batch_size=batch_size,
        target=rungs[-1],
        rungs=ladder,
        forecast=forecast_loss(ladder, rungs[-1]),
        config=config_json(at(target)),
        data=stored_dataset.to_json(built.dataset),
        course=course_of({rung: _curves(rung, records) for rung in ladder}, rungs[-1], at(target).train.log_every),
        chance=read_info(directory).chance,
    )
    with workdirs.claimed(directory, workdirs.FORECAST, lock=".lock-records"):
        return register(registered, directory), at(target)


def require_rule(tuned: ConfigDict) -> None:
    """Raises `InputError` unless the rule of ``tuned`` transfers, from base sizes that it names."""
    require_mup(tuned.parametrization.preset)
    for name in ("width", "depth"):
        if not tuned.model[f"base_{name}"]:
            raise InputError(f"model.base_{name} is 0: set it to the {name} at which the hyperparameters were tuned.")


def _objective(objective: str, tuned: ConfigDict, built: Experiment) -> str:
    """One of `depthmup_flax.storage.records.table.OBJECTIVES`, which runs measure."""
    require_objective(objective)
    evaluated = VALIDATION if tuned.data.validation_fraction else TEST
    if objective == AUTO:
        return evaluated if built.workload.evaluates else TRAIN
    if objective != TRAIN and (objective != evaluated or not built.workload.evaluates):
        raise InputError(f"--objective is {objective!r}, which runs of this config do not measure: use {AUTO!r}.")
    return objective


def _log_plan(rungs: list[Rung], seeds: int) -> None:
    *ladder, target = rungs
    share = seeds * sum(rung.cost for rung in ladder) / target.cost
    log.info(
        "target: width %d, depth %d, %s steps, %s parameters; ladder: %d sizes, seeds of each: %d, %.3g %% of the "
        "target's operations (parameters times examples)",
        *(target.width, target.depth, f"{target.steps:,}", f"{target.parameters:,}", len(ladder), seeds, 100 * share),
    )
    if share > 1:
        log.warning("The ladder costs more than the target: train the target, or forecast a larger one.")


def _log_rescaling(tuned: ConfigDict, tuned_steps: int, batch_size: int, steps: set[int]) -> None:
    """Logs what the longest and the shortest runs change in the tuned hyperparameters, and where that was measured."""
    for length in sorted({max(steps), min(steps)}):
        if (length, batch_size) != (tuned_steps, tuned.train.batch_size):
            config = tuned.copy_and_resolve_references()
            table = rescale_target(tuned, tuned_steps, config, tuned_steps, Rescaling(batch_size, length))
            log.info("for %d steps of %d examples:\n%s", length, batch_size, table)


def with_losses(rung: Rung, records: list[Record], objective: str) -> Rung:
    """A rung with the losses of its runs among ``records``; `InputError` if one diverged or is not positive."""
    own = _own(rung, records)
    size = f"width {rung.width}, depth {rung.depth}, {rung.steps} steps"
    losses = tuple(loss for record in own if (loss := record.loss(objective)) is not None)
    if len(losses) < len(own) or not losses:
        raise InputError(
            f"{len(own) - len(losses)} of {len(own)} runs of a rung ({size}) diverged: the settings are not stable "
            "there, and a forecast would leave that out. Lower optimizer.learning_rate, and use another --workdir."
        )
    if min(losses) <= 0:
        raise InputError(f"the loss of a rung ({size}) is {min(losses):.3g}: power laws need losses above 0.")
    return Rung(rung.width, rung.depth, rung.steps, rung.parameters, losses)


def _own(rung: Rung, records: list[Record]) -> list[Record]:
    steps_of = lambda record: record.point.get("train.steps", rung.steps)  # a diverged run took fewer
    return [r for r in records if (r.width, r.depth, steps_of(r)) == (rung.width, rung.depth, rung.steps)]


def _curves(rung: Rung, records: list[Record]) -> Curves:
    own = _own(rung, records)
    losses = np.array([record.train_loss_slices for record in own])
    return Curves(np.minimum(own[0].slice_steps * np.arange(1, losses.shape[1] + 1) / rung.steps, 1.0), losses)


def watched(config: ConfigDict, directory: pathlib.Path) -> ConfigDict:
    """A target's config with the forecast in ``directory``, which `depthmup_flax.trainer` then watches.

    It is unchanged if there is none, or if it has no course.
    """
    course = read(directory).course if (directory / FILE).exists() else None
    if course is None:
        return config
    config = config.copy_and_resolve_references()
    config.forecast = str(directory)
    if course.every % config.train.log_every:
        config.train.log_every = course.every
    return config


def _already(stored: Registered, target: ConfigDict, sizes: list[Size], seeds: int, objective: str) -> Registered:
    """What is registered, if it is of the same target and ladder."""
    differing = run_differences(stored.config, config_json(target))
    if stored.objective != objective:
        differing.append(f"objective: {stored.objective} there, {objective} here")
    if {(rung.width, rung.depth, rung.steps) for rung in stored.rungs} != {(s.width, s.depth, s.steps) for s in sizes}:
        differing.append("the ladder")
    if seeds != (registered := len(stored.rungs[0].losses)):
        differing.append(f"seeds: {registered} there, {seeds} here")
    if differing:
        raise InputError(
            f"{stored.path} holds another forecast ({listed(differing)}), which is never overwritten: choose another "
            "--workdir."
        )
    log.info("registered already; nothing is trained")
    return stored
