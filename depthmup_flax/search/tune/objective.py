"""The loss by which a search compares its runs, and the examples on which that is measured."""

from __future__ import annotations

from ml_collections import ConfigDict

from depthmup_flax.storage.records import OBJECTIVES, TEST, TRAIN, VALIDATION
from depthmup_flax.trainer.engine.experiment import Experiment
from depthmup_flax.util.errors import InputError, did_you_mean

AUTO = "auto"
CHOICES = (AUTO, *OBJECTIVES)
FRACTION = 0.1  # of the training examples that are held out, where the config sets no other


def require_objective(objective: str) -> None:
    """Raises `InputError` for what is not of `CHOICES`."""
    if objective not in CHOICES:
        raise InputError(f"objective is {objective!r}: {did_you_mean(str(objective), CHOICES)}")


def prepare_objective(objective: str, proxy: ConfigDict, experiment: Experiment) -> str:
    """The objective of a search, one of `OBJECTIVES`; sets in ``proxy`` what runs need to measure it.

    ``validation`` holds out `FRACTION` of the training examples; the number of steps stays that of all of them.
    ``auto`` is ``validation`` where a run passes over a set of examples, which it may memorize. It is ``train`` for
    batches without end, whose examples are all new, and where examples cannot be held out: for a training step of the
    user's own without an evaluation, and for batches of nearly the whole set.

    Args:
      objective: of `CHOICES`.
      proxy: the config of the search's runs, changed in place.
      experiment: what ``proxy``, or its target, describes without held-out examples.

    Raises:
      InputError: runs cannot measure it.
    """
    require_objective(objective)
    fraction = proxy.data.validation_fraction
    problem = "" if fraction else _why_nothing_is_held_out(experiment)
    if objective == AUTO:
        objective = TRAIN if problem else VALIDATION
    if objective == VALIDATION and problem:
        raise InputError(f"objective is 'validation', and {problem}. Or use 'train'.")
    if objective == TEST and not experiment.workload.evaluates:
        raise InputError(f"objective is 'test', and {experiment.dataset.name!r} is not evaluated: use 'train'.")
    if objective == VALIDATION and not fraction:
        proxy.data.validation_fraction = FRACTION
        proxy.train.steps = proxy.train.steps or experiment.total_steps
    return objective


def _why_nothing_is_held_out(experiment: Experiment) -> str:
    """The reason, and the remedy; "" if `FRACTION` of the training examples can be held out and evaluated."""
    workload, dataset = experiment.workload, experiment.dataset
    if workload.task.evaluate is None:
        return "the task has no evaluate: give it one"
    if not dataset.has_epochs:
        return f"{dataset.name!r} gives batches without end, whose examples are all new: give a set of examples"
    train, held_out = len(dataset.train), round(FRACTION * len(dataset.train))
    if not 0 < held_out <= train - workload.batch_size:
        rest = f"{held_out} of {train} training examples to hold out leave less than a batch"
        return f"train.batch_size is {workload.batch_size}: {rest}. Use at most {train - held_out}"
    return ""


def objective_text(objective: str, dataset_size: int, held_out: int) -> str:
    """What runs are compared by, for the terminal."""
    if objective == VALIDATION:
        return (
            f"objective: the loss on {held_out:,} of the {dataset_size:,} training examples, which the proxy does not "
            "train on; the test set is not used"
        )
    if objective == TEST:
        return "objective: the loss on the test set, which therefore no longer measures the target's quality"
    return "objective: the training loss"
