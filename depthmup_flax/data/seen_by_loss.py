"""What a loss sees of a user's batches, looked at on the host: finite numbers, and labels for which it is bounded.

A cross-entropy of a label that is no class, or of a negative probability, falls without bound, and a run of it looks
like the best of all; a NaN looks like a learning rate that is too high. Both come out of ``prepare``, too.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from depthmup_flax.util.errors import InputError
from depthmup_flax.util.types import HostBatch

# The number of an example in a batch -> where the user finds it.
Locate = Callable[[int], str]


@dataclasses.dataclass(frozen=True)
class Labels:
    """What the labels of a cross-entropy must be."""

    classes: int  # of the network's outputs
    ignored: int | None = None  # ``data.ignore_label``
    tokens: bool = False  # the inputs are tokens, of the same classes


class BatchCheck:
    """Looks at flat batches of a split; thread-safe.

    Attributes:
      labels: of a cross-entropy, once a network has one; ``None`` for another loss.

    Args:
      prepare: a batch -> inputs and targets, or what the user's own training step reads.
      compiled: whether it is the user's own, of which then only what is looked at is computed.
    """

    def __init__(self, prepare: Callable[[Any], Any], *, compiled: bool) -> None:
        self.labels: Labels | None = None
        targets = lambda batch: prepare(batch)[1]
        self._prepare, self._targets = (jax.jit(prepare), jax.jit(targets)) if compiled else (prepare, targets)

    def __call__(self, batch: HostBatch, locate: Locate) -> None:
        """Raises `InputError` that names the first example whose numbers are not finite, or whose label is none."""
        if not all(map(_is_finite, batch.values())):
            _require_finite(_computed(self._prepare, batch), locate)
        if self.labels is not None:
            self.require_labels(batch, self.labels, locate)

    def require_labels(self, batch: HostBatch, labels: Labels, locate: Locate) -> None:
        """Raises `InputError` for a label, or token, that is none of ``labels``."""
        if labels.tokens:
            inputs, targets = _computed(self._prepare, batch)
            _require_labels("inputs", inputs, labels, locate)
        else:
            targets = _computed(self._targets, batch)
        _require_labels("targets", targets, labels, locate)


def _computed(function: Callable[[Any], Any], batch: HostBatch) -> Any:
    """A function of a batch on the host, so that an accelerator's work goes on, if JAX has that platform."""
    try:
        place: Any = jax.default_device(jax.local_devices(backend="cpu")[0])
    except RuntimeError:
        place = contextlib.nullcontext()
    with place:
        return jax.tree.map(np.asarray, function(batch))


def _is_finite(values: np.ndarray) -> bool:
    return not np.issubdtype(values.dtype, np.inexact) or bool(np.isfinite(values).all())


def _require_finite(prepared: Any, locate: Locate) -> None:
    """A NaN of the user's data may be replaced by ``prepare``, so that what comes out of it counts."""
    for path, leaf in jax.tree.leaves_with_path(prepared):
        values = np.asarray(leaf)
        if not _is_finite(values):
            index = tuple(np.argwhere(~np.isfinite(values))[0].tolist())
            part = _part(path)
            raise InputError(
                f"{locate(index[0])} has {values[index]} in its {part}{_rest(index)}: numbers must be finite. "
                "Remove the example, or replace the number, in the data or in prepare."
            )


def _require_labels(name: str, values: np.ndarray, labels: Labels, locate: Locate) -> None:
    if np.issubdtype(values.dtype, np.inexact):
        wrong = values < 0
        remedy = "probabilities are at least 0. Change the data, or use a loss of your own."
    else:
        wrong = (values < 0) | (values >= labels.classes)
        if labels.ignored is not None:
            wrong &= values != labels.ignored
        remedy = (
            f"the network returns {labels.classes} outputs, for labels 0 to {labels.classes - 1}. Change the data or "
            "the network, or use a loss of your own"
        )
    where = np.argwhere(wrong)
    if len(where):
        index = tuple(where[0].tolist())
        value = values[index]
        if not np.issubdtype(values.dtype, np.inexact):
            remedy += f"; if {value} marks what has no label: data.ignore_label={value}." if name == "targets" else "."
        raise InputError(f"{locate(index[0])} has {value} in its {name}{_rest(index)}: {remedy}")


def _part(path: tuple[Any, ...]) -> str:
    """``inputs['mask']`` for a leaf of a pair; of another tree its path."""
    first, *rest = path or (None,)
    names: Mapping[Any, str] = {0: "inputs", 1: "targets"}
    of_pair = names.get(getattr(first, "idx", None))
    return f"{of_pair}{jax.tree_util.keystr(tuple(rest))}" if of_pair else jax.tree_util.keystr(path)


def _rest(index: tuple[int, ...]) -> str:
    """The place within an example."""
    return str(list(index[1:])) if index[1:] else ""
