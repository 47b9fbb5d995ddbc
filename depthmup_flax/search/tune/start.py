"""Whether a proxy starts near equal logits: the loss of its random start beside what it learns."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence

import jax
import numpy as np
from ml_collections import ConfigDict

from depthmup_flax.data.dataset import chance_loss, spaced
from depthmup_flax.storage.sweep_records import SEED
from depthmup_flax.trainer.engine.experiment import Experiment
from depthmup_flax.util.types import HostBatch

EXAMPLES = 2048  # on which the start is measured: its loss is then known to about 0.02
# Of what is learned, by which a start may be above equal logits: above twice it the random readout was the drift of the
# best rate, below once it never (reproduction/pages/drift.md).
SHARE = 1.0


def excess_at_start(experiment: Experiment, seeds: Sequence[int]) -> float | None:
    """The loss before the first step minus that of equal logits, ``log(classes)``, in nats, mean over seeds.

    It is measured on training examples. Of logits that start with a small variance s^2 it is about s^2 / 2, and a
    readout at zero has none. ``None`` where `_chance` is.
    """
    if _chance(experiment) is None:
        return None
    init, evaluate = jax.jit(experiment.init), jax.jit(experiment.evaluate({}))
    losses = [
        evaluate(state, batch).means()["loss"]
        for state in (init({SEED: seed}) for seed in seeds)
        for batch in _batches(experiment)
    ]
    return statistics.fmean(losses) - math.log(experiment.dataset.num_classes)


def _chance(experiment: Experiment) -> float | None:
    """The loss of the best constant guess; ``None`` for other losses than the cross-entropy of classes."""
    classifies = experiment.network is not None and experiment.config.loss == "cross_entropy"
    return chance_loss(experiment.dataset) if classifies else None


def _batches(experiment: Experiment) -> Iterator[HostBatch]:
    """`EXAMPLES` training examples, spaced evenly, in batches of one size; those that are left are left out."""
    split, most = experiment.dataset.train, experiment.config.train.eval_batch_size
    rows = spaced(len(split), EXAMPLES)
    size = min(most, len(rows))
    for start in range(0, len(rows) // size * size, size):
        yield {**split.read(rows[start : start + size]), "mask": np.ones(size, np.float32)}


def start_warning(experiment: Experiment, seeds: Sequence[int], lowest: float) -> str:
    """A sentence where the start is above equal logits by more than `SHARE` of what is learned; else "".

    What is learned is the loss of the best constant guess minus the lowest one.

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
    learned = chance - lowest
    if not is_large(excess, learned):
        return ""
    return (
        f"before training the proxy's loss is {excess:.2g} above that of equal logits, and it learns {learned:.2g}: "
        "the best learning rate may also undo a random start that is smaller in wider networks, where another rate is "
        f"then best. Try {_zero_readout(experiment.config)}a wider base, or more steps."
    )


def is_large(excess: float, learned: float) -> bool:
    """Whether a start is above equal logits by more than `SHARE` of what is learned; both in nats."""
    return excess > SHARE * learned


def _zero_readout(config: ConfigDict) -> str:
    """The first remedy; "" where the readout cannot start at zero: with it frozen, no gradient reaches other layers."""
    if config.optimizer.frozen or config.model.get("tied"):
        return ""
    if "zero_init_readout" in config.model:
        return "a readout at zero (model.zero_init_readout=True), "
    return "zeros as initial values of the readout, "
