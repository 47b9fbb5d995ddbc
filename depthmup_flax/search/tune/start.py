"""Whether a proxy starts near a constant guess: the loss of its random start beside what it learns."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import jax
import numpy as np

from depthmup_flax.data.dataset import chance_loss, spaced
from depthmup_flax.storage.sweep_records import SEED
from depthmup_flax.trainer.engine.experiment import Experiment, NetworkExperiment

EXAMPLES = 2048  # on which the start is measured: its loss is then known to about 0.02
SHARE = 0.1  # of what is learned, by which a start may be above the constant guess


def excess_at_start(experiment: Experiment, seeds: Sequence[int]) -> float | None:
    """The loss before the first step minus that of the best constant guess, in nats, mean over seeds.

    It is measured on training examples. Of logits that start with a small variance s^2 it is about s^2 / 2, and it
    falls with the width where the rule divides the readout by it. ``None`` where no constant guess is known
    (`chance_loss`).
    """
    chance = _chance(experiment)
    if chance is None:
        return None
    return statistics.fmean(_loss_at_start(experiment, seed) for seed in seeds) - chance


def _chance(experiment: Experiment) -> float | None:
    """The loss of the best constant guess; ``None`` for other losses than the cross-entropy of classes."""
    classifies = isinstance(experiment, NetworkExperiment) and experiment.config.loss == "cross_entropy"
    return chance_loss(experiment.dataset) if classifies else None


def _loss_at_start(experiment: Experiment, seed: int) -> float:
    """The mean loss of a fresh network on `EXAMPLES` training examples."""
    split, most = experiment.dataset.train, experiment.config.train.eval_batch_size
    rows = spaced(len(split), EXAMPLES)
    size = min(most, len(rows))
    state = jax.jit(experiment.init)({SEED: seed})
    evaluate = jax.jit(experiment.evaluate({}))
    losses = []
    for start in range(0, len(rows) // size * size, size):
        batch = split.read(rows[start : start + size])
        mask = np.ones(size, np.float32)
        losses.append(evaluate(state, {**batch, "mask": mask}).means()["loss"])
    return statistics.fmean(losses)


def start_warning(experiment: Experiment, seeds: Sequence[int], lowest: float) -> str:
    """A sentence where the start is above the constant guess by more than `SHARE` of what is learned; else "".

    Args:
      experiment: of the proxy with its best hyperparameters.
      seeds: of the initial values.
      lowest: the lowest final loss of the search.
    """
    chance = _chance(experiment)
    if chance is None or not lowest < chance:
        return ""
    excess = excess_at_start(experiment, seeds)
    assert excess is not None
    return large_start(excess, chance - lowest)


def large_start(excess: float, learned: float) -> str:
    """The sentence of `start_warning` for an excess at the start and what is learned, both in nats."""
    if excess <= SHARE * learned:
        return ""
    return (
        f"before training the proxy's loss is {excess:.2g} above that of a constant guess, and it learns "
        f"{learned:.2g}: the best learning rate also undoes a random start that is smaller in wider networks, where "
        "another rate may be best. Start the readout at zero (model.zero_init_readout=True), or use a wider base or "
        "more steps."
    )
