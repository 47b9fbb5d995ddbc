"""Data on the devices: training examples that lie there or are streamed, batches for evaluation, read-ahead."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import queue
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar

import jax
import numpy as np

from depthmup_flax.data import Dataset, batch_indices, eval_batches, train_batch, train_stream
from depthmup_flax.errors import Preempted, RunStopped
from depthmup_flax.parallel import sharding
from depthmup_flax.training.calls import Call, CallLength
from depthmup_flax.types import Batch

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_READ_AHEAD = 2  # batches on the devices that wait for the step
_POLL_S = 0.5  # seconds between checks for a preemption
_PREEMPTED = "preempted while reading data; rerun the same command to resume."


@dataclasses.dataclass(frozen=True)
class Waiting:
    """When to stop waiting for a streamed batch.

    Attributes:
      stall_timeout_s: `RunStopped` after so many seconds.
      preempted: `Preempted` as soon as this returns true.
    """

    stall_timeout_s: float = math.inf
    preempted: Callable[[], bool] = lambda: False


class Closing(Iterator[T_co], Protocol[T_co]):
    """An iterator that must be closed after use, as a generator."""

    def close(self) -> None:
        """Ends the iteration."""


def put_train_data(dataset: Dataset, mesh: jax.sharding.Mesh) -> Batch | None:
    """The training examples, whole on every device; ``None`` if they are streamed."""
    return None if dataset.placement == "stream" else sharding.put_everywhere(dataset.train.arrays(), mesh)


def batch_of(data: Batch | None, examples: Any) -> Any:
    """The batch that `Call.examples` stands for: rows of ``data``, or, without ``data``, the examples themselves."""
    return examples if data is None else jax.tree.map(lambda x: x[examples], data)


def calls(
    dataset: Dataset, seeds: Sequence[int], batch_size: int, first_step: int, length: CallLength
) -> Generator[Call, None, None]:
    """Calls, on the host, for U seeds from ``first_step`` on; a batch is a pure function of (seed, step)."""
    split, step = dataset.train, first_step
    distinct = set(seeds)
    while True:
        count = length.at(step)
        if dataset.placement == "stream":
            batches = {seed: train_batch(split, seed, step, batch_size) for seed in distinct}
            examples: Any = jax.tree.map(lambda *x: np.stack(x), *[batches[seed] for seed in seeds])
        else:
            examples = np.zeros((length.most, len(seeds), batch_size), np.int32)
            for i, (place, seed) in itertools.product(range(count), enumerate(seeds)):
                examples[i, place] = batch_indices(seed, step + i, len(split), batch_size)
            if length.most == 1:
                examples = examples[0]
        yield Call(np.int32(count), examples)
        step += count


@contextlib.contextmanager
def train_calls(
    dataset: Dataset,
    seed: int,
    batch_size: int,
    first_step: int,
    mesh: jax.sharding.Mesh,
    length: CallLength,
    waiting: Waiting,
) -> Iterator[Iterator[Call]]:
    """An iterator over the calls of one run; every process contributes the rows of a batch that its devices hold.

    Rows of data on the devices are computed on the host. A streamed set is read ahead in threads and put on the devices
    while they compute. Both give the same batches, on any number of processes.

    Raises:
      RunStopped: from ``next``: a batch takes longer than ``waiting.stall_timeout_s``.
      Preempted: from ``next``: ``waiting.preempted`` while a batch is awaited.
    """
    if dataset.placement == "stream":
        source = _streamed(dataset, seed, batch_size, first_step, mesh)
    else:
        source = calls(dataset, [seed], batch_size, first_step, length)
    with contextlib.closing(read_ahead_if_streamed(dataset, source, waiting)) as watched:
        yield watched


def held_out_batches(
    dataset: Dataset,
    batch_size: int,
    mesh: jax.sharding.Mesh,
    waiting: Waiting,
) -> Iterator[Batch]:
    """The test split once, with a ``mask``; ``batch_size`` is rounded up to a multiple of the mesh's parts of a batch.

    Raises:
      RunStopped: as `train_calls`.
      Preempted: ``waiting.preempted`` between two batches, or while one is awaited.
    """
    parts = sharding.batch_shards(mesh)
    size = parts * math.ceil(min(batch_size, len(dataset.test)) / parts)
    rows = sharding.local_rows(mesh, size)
    batches = (sharding.put_batch(batch, rows, size, mesh) for batch in eval_batches(dataset.test, size, rows=rows))
    with contextlib.closing(read_ahead_if_streamed(dataset, batches, waiting)) as watched:
        for batch in watched:
            if waiting.preempted():
                raise Preempted(_PREEMPTED)
            yield batch


def read_ahead_if_streamed(dataset: Dataset, items: Generator[T, None, None], waiting: Waiting) -> Closing[T]:
    """``items``; read ahead in a thread, and with a time limit, where they come from files."""
    if dataset.placement != "stream":
        return items
    return ReadAhead(items, _READ_AHEAD, waiting, f"data set {dataset.name!r}")


def _streamed(
    dataset: Dataset, seed: int, batch_size: int, first_step: int, mesh: jax.sharding.Mesh
) -> Generator[Call, None, None]:
    rows = sharding.local_rows(mesh, batch_size)
    for batch in train_stream(dataset.train, seed, batch_size, start_step=first_step, rows=rows):
        yield Call(np.int32(1), sharding.put_batch(batch, rows, batch_size, mesh))


class ReadAhead(Generic[T]):
    """Makes the items of an iterator in a thread, before they are needed.

    Args:
      items: what to make; ``next`` raises their exception in place of an item.
      size: largest number of items that wait.
      waiting: when ``next`` raises `RunStopped` or `Preempted` instead of waiting longer.
      source: name of the source in that message.
    """

    def __init__(self, items: Iterator[T], size: int, waiting: Waiting, source: str) -> None:
        self._queue: queue.Queue[Any] = queue.Queue(size)
        self._waiting, self._source = waiting, source
        self._closed = threading.Event()
        # A daemon: a read that hangs must not keep the process alive.
        self._thread = threading.Thread(target=self._fill, args=(items,), daemon=True, name="read-ahead")
        self._thread.start()

    def __iter__(self) -> ReadAhead[T]:
        return self

    def __next__(self) -> T:
        until = time.monotonic() + self._waiting.stall_timeout_s
        while (left := until - time.monotonic()) > 0:
            try:
                item, error = self._queue.get(timeout=min(left, _POLL_S))
            except queue.Empty:
                if self._waiting.preempted():
                    raise Preempted(_PREEMPTED) from None
                continue
            if error is not None:
                raise error
            return item
        raise RunStopped(
            f"{self._source} gave no batch for {self._waiting.stall_timeout_s:g} s: check its storage, then rerun the "
            "same command to resume. train.stall_timeout_s sets how long to wait."
        )

    def close(self) -> None:
        """Ends the thread after its current item."""
        self._closed.set()
        with contextlib.suppress(queue.Empty):
            while True:
                self._queue.get_nowait()

    def _fill(self, items: Iterator[T]) -> None:
        try:
            for item in items:
                self._put((item, None))
                if self._closed.is_set():
                    return
            self._put((None, StopIteration()))
        except BaseException as error:  # raised again by `next`
            self._put((None, error))

    def _put(self, entry: tuple[Any, BaseException | None]) -> None:
        while not self._closed.is_set():
            with contextlib.suppress(queue.Full):
                self._queue.put(entry, timeout=0.5)
                return
