"""The proxy of a large network, and the search for the best hyperparameters on it."""

from __future__ import annotations

import dataclasses
import logging
import math
import os
from collections.abc import Sequence
from typing import Any

from ml_collections import ConfigDict

from depthmup_flax.config.fields import default_config, get_field, set_field, set_size, validate
from depthmup_flax.data import LoadOnce
from depthmup_flax.rule.parametrization import PRESETS
from depthmup_flax.search.sweep.grid import sweep_config
from depthmup_flax.search.sweep.runner import OnRecord, sweep
from depthmup_flax.search.tune.choice import Best, Choice
from depthmup_flax.search.tune.searches import Search
from depthmup_flax.search.tune.start import start_warning
from depthmup_flax.storage import sweep_records
from depthmup_flax.storage import workdir as workdirs
from depthmup_flax.storage.files import as_path
from depthmup_flax.storage.sweep_records import Record
from depthmup_flax.trainer.course import mean_columns, write_course
from depthmup_flax.trainer.engine.experiment import Experiment
from depthmup_flax.trainer.engine.from_config import build
from depthmup_flax.util.errors import InputError, did_you_mean, require_number
from depthmup_flax.util.surroundings import own_surroundings

log = logging.getLogger(__name__)

_COMPARED = {
    sweep_records.VALIDATION: "the loss on held-out training examples, which the proxy does not train on",
    sweep_records.TEST: "the loss on the test set, which therefore no longer measures the target's quality",
    sweep_records.TRAIN: "the training loss",
}
FRACTION = 0.1  # of the training examples that are held out, where the config sets no other


@own_surroundings()
def tune(
    proxy: ConfigDict,
    search: Search,
    workdir: str | os.PathLike[str],
    *,
    objective: str = sweep_records.AUTO,
    lanes: int | None = None,
    overwrite: bool = False,
    on_record: OnRecord | None = None,
    load: LoadOnce | None = None,
) -> Best:
    """The best hyperparameters of a small network: trains what ``search`` asks for, many runs at a time, or resumes.

    Args:
      proxy: its config, from `proxy_config`, or with base sizes that are its own.
      search: from `search_of`, or a `Search` over values of any fields.
      workdir: of the records.
      objective: the loss by which runs are compared, see `prepare_objective`.
      lanes, overwrite, on_record, load: see `depthmup_flax.sweep`.

    Raises:
      InputError: a field or a value is wrong, or every run diverged.
    """
    load, proxy = load or LoadOnce(), proxy.copy_and_resolve_references()
    proxy.train.record_course = True  # the reference of larger runs
    experiment = build(proxy.copy_and_resolve_references(), load=load)
    objective = prepare_objective(objective, proxy, experiment)
    log.info("objective: %s", _COMPARED[objective])
    search = search.without_unread(experiment)
    grid = sweep_config(
        proxy,
        {"proxy": search.grid()},
        figure=search.figure,
        title="Tuning of a proxy",
        scale="proxy",
        x=search.x,
        extend=0 if isinstance(get_field(proxy, search.x), int) else search.rounds,  # whole numbers are not extended
        objective=objective,
    )
    directory = as_path(workdir)
    options: Any = {"lanes": lanes, "overwrite": overwrite, "load": load, "on_record": on_record}
    records = sweep(grid, directory, kind=workdirs.TUNE, more=search.more, **options)
    choice = search.choice(grid, records)
    warning = _start_warning(choice, proxy, search.seeds, records, load)
    if warning:
        choice = dataclasses.replace(choice, warnings=(*choice.warnings, warning))
    best = Best(choice, proxy, records, directory)
    write_reference(best, proxy, records, experiment.total_steps)
    return best


def _start_warning(
    choice: Choice, proxy: ConfigDict, seeds: Sequence[int], records: Sequence[Record], load: LoadOnce
) -> str:
    """`start_warning` of the proxy with the best values; what it learns is by the search's objective."""
    config = proxy.copy_and_resolve_references()
    for path, value in choice.values.items():
        set_field(config, path, value)
    losses = (record.loss(choice.objective) for record in records)
    lowest = min(loss for loss in losses if loss is not None)
    return start_warning(build(config, load=load), seeds, lowest)


def write_reference(best: Best, proxy: ConfigDict, records: Sequence[Record], total_steps: int) -> None:
    """Writes the course of the runs that are nearest to the best, as the reference of larger runs."""
    numbers = {path: value for path, value in best.fields.items() if isinstance(value, (int, float))}
    apart = lambda value, other: abs(math.log((value or 1e-9) / (other or 1e-9)))
    distance = lambda record: sum(apart(record.point[path], value) for path, value in numbers.items())
    completed = [record for record in records if record.status == sweep_records.COMPLETED and record.course]
    if not completed:  # a training step of the user's own records none
        return
    nearest = min(map(distance, completed))
    chosen = [record for record in completed if distance(record) == nearest]
    config = proxy.copy_and_resolve_references()
    for path, value in best.fields.items():
        set_field(config, path, value)
    rate = best.fields.get(sweep_records.LEARNING_RATE, config.optimizer.learning_rate)
    factor = rate / chosen[0].point.get(sweep_records.LEARNING_RATE, rate)
    columns = mean_columns([record.course for record in chosen], factor)
    write_course(best.directory, config, total_steps, columns)


def proxy_config(target: ConfigDict, width: int = 0, depth: int = 0, steps: int = 0) -> tuple[ConfigDict, ConfigDict]:
    """``(proxy, target)``: configs that both have the proxy's width and depth as their base.

    Args:
      target: of a run.
      width, depth: of the proxy; 0: the target's base sizes.
      steps: of the proxy's training; 0: the target's.

    Raises:
      InputError: the proxy is not smaller than the target, or the rule does not transfer.
    """
    validate(target)
    proxy, large = target.copy_and_resolve_references(), target.copy_and_resolve_references()
    width, depth = width or target.model.base_width, depth or target.model.base_depth
    proxy.mesh = default_config().mesh  # a sweep trains whole networks on each device
    for name, value in (("width", width), ("depth", depth)):
        largest = target.model[name]
        if not 1 <= value <= largest:
            raise InputError(f"proxy.{name} is {value}: set it to a number from 1 to model.{name}, {largest}.")
        proxy.model[f"base_{name}"] = large.model[f"base_{name}"] = value
    set_size(proxy, width, depth)
    if (width, depth) == (target.model.width, target.model.depth):
        raise InputError(f"proxy.width is {width} and proxy.depth {depth}, the target's: choose a smaller proxy.")
    preset = target.parametrization.preset
    require_mup(preset)
    if preset == "mup" and depth != target.model.depth:
        raise InputError("parametrization.preset is 'mup', for width alone: use 'depth_mup', or the target's depth.")
    require_number("proxy.steps", steps, least=0, whole=True)
    if steps:
        # Averaged over a whole short run, the loss would measure how early it falls.
        average = proxy.train.average_steps or max(1, steps // 5)
        proxy.train.update(steps=steps, epochs=0.0, average_steps=min(average, steps))
    return proxy, large


def require_mup(preset: str) -> None:
    """Raises `InputError` for a preset whose width rule is not muP's."""
    if PRESETS[preset].width != "mup":
        raise InputError(f"parametrization.preset is {preset!r}, which does not transfer: use 'depth_mup'.")


def prepare_objective(objective: str, proxy: ConfigDict, experiment: Experiment) -> str:
    """The objective of a search, one of `OBJECTIVES`; sets in ``proxy`` what runs need to measure it.

    ``validation`` holds out `FRACTION` of the training examples; the number of steps stays that of all of them.
    ``auto`` is ``validation`` where a run passes over a set of examples, which it may memorize; it is ``train`` for
    batches without end, whose examples are all new, and where examples cannot be held out.

    ``experiment`` is what ``proxy``, or its target, describes without held-out examples.
    """
    if objective not in sweep_records.OBJECTIVE_CHOICES:
        raise InputError(f"objective is {objective!r}: {did_you_mean(str(objective), sweep_records.OBJECTIVE_CHOICES)}")
    fraction = proxy.data.validation_fraction
    problem = "" if fraction else _why_nothing_is_held_out(experiment)
    if objective == sweep_records.AUTO:
        objective = sweep_records.TRAIN if problem else sweep_records.VALIDATION
    if objective == sweep_records.VALIDATION and problem:
        raise InputError(f"objective is 'validation', and {problem}. Or use 'train'.")
    if objective == sweep_records.TEST and not experiment.evaluates:
        raise InputError(f"objective is 'test', and {experiment.dataset.name!r} is not evaluated: use 'train'.")
    if objective == sweep_records.VALIDATION and not fraction:
        proxy.data.validation_fraction = FRACTION
        proxy.train.steps = proxy.train.steps or experiment.total_steps
    return objective


def _why_nothing_is_held_out(experiment: Experiment) -> str:
    """The reason, and the remedy; "" if `FRACTION` of the training examples can be held out and evaluated."""
    dataset, batch_size = experiment.dataset, experiment.config.train.batch_size
    if experiment.task.evaluate is None:
        return "the task has no evaluate: give it one"
    if not dataset.has_epochs:
        return f"{dataset.name!r} gives batches without end, whose examples are all new: give a set of examples"
    train, held_out = len(dataset.train), round(FRACTION * len(dataset.train))
    if not 0 < held_out <= train - batch_size:
        rest = f"{held_out} of {train} training examples to hold out leave less than a batch"
        return f"train.batch_size is {batch_size}: {rest}. Use at most {train - held_out}"
    return ""
