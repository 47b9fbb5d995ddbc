"""The loss by which a search compares its runs, and the examples on which that is measured."""

from __future__ import annotations

from ml_collections import ConfigDict

from depthmup_flax.engine.experiment import Experiment
from depthmup_flax.records.table import OBJECTIVES, TEST, TRAIN, VALIDATION
from depthmup_flax.util.errors import InputError, did_you_mean

AUTO = "auto"
CHOICES = (AUTO, *OBJECTIVES)
FRACTION = 0.1  # of the training examples that are held out, where the config sets no other


def prepare_objective(objective: str, proxy: ConfigDict, experiment: Experiment) -> str:
    """The objective of a search, one of `OBJECTIVES`; sets in ``proxy`` what runs need to measure it.

    ``validation`` holds out `FRACTION` of the training examples; the number of steps stays that of all of them.
    ``auto`` is ``validation`` where a run passes over a set of examples, which it may memorize. It is ``train`` for
    batches without end, whose examples are all new, and for a training step of the user's own without an evaluation.

    Args:
      objective: of `CHOICES`.
      proxy: the config of the search's runs, changed in place.
      experiment: what `proxy`, or its target, describes without held-out examples.

    Raises:
      InputError: runs cannot measure it.
    """
    if objective not in CHOICES:
        raise InputError(f"objective is {objective!r}: {did_you_mean(objective, CHOICES)}")
    evaluates, dataset = experiment.workload.task.evaluate is not None, experiment.dataset
    if objective == AUTO:
        objective = VALIDATION if evaluates and dataset.has_epochs else TRAIN
    if objective != TRAIN and not evaluates:
        raise InputError(f"objective is {objective!r}, and the task has no evaluate: give it one, or use 'train'.")
    if objective == TEST and not len(dataset.test):
        raise InputError(f"objective is 'test', and {dataset.name!r} has no test examples: use 'validation'.")
    if objective == VALIDATION and not dataset.has_epochs:
        raise InputError(
            f"objective is 'validation', and {dataset.name!r} gives batches without end, whose examples are all new: "
            "use 'train'."
        )
    if objective == VALIDATION and not proxy.data.validation_fraction:
        proxy.data.validation_fraction = FRACTION
        proxy.train.steps = proxy.train.steps or experiment.total_steps
    return objective


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
