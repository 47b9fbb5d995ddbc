"""Batches on the devices: every process brings the rows that its own devices hold."""

from __future__ import annotations

import contextlib
import math
import queue
import threading
import time
from collections.abc import Callable, Generator, Iterator
from typing import Any, Generic, Protocol, TypeVar

import jax

from depthmup_flax.data import Dataset, batch_indices, eval_batches, train_stream
from depthmup_flax.errors import Preempted, RunStopped
from depthmup_flax.parallel import sharding

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

# Batches on the devices that wait for the step.
_READ_AHEAD = 2
_LOOK_S = 0.5  # between looks whether to leave
_ASKED = "asked to leave while data were read; the same command goes on."


def _never() -> bool:
    return False


class Closing(Iterator[T_co], Protocol[T_co]):
    """An iterator that is closed after use, as a generator is."""

    def close(self) -> None:
        """Nothing more is asked for."""


@contextlib.contextmanager
def train_batches(
    dataset: Dataset,
    seed: int,
    batch_size: int,
    first_step: int,
    mesh: jax.sharding.Mesh,
    *,
    stall_timeout_s: float = math.inf,
    asked: Callable[[], bool] = _never,
) -> Iterator[Iterator[dict[str, jax.Array]]]:
    """An iterator over batches from ``first_step`` on; the batch of a step is a pure function of (seed, step).

    A set that is placed on the device is gathered there, from indices that are computed on the host; another is read
    ahead in threads and put on the devices while they compute. Both give the same batches, on any number of processes.

    Raises:
      RunStopped: from ``next``: a batch takes longer than ``stall_timeout_s``.
      Preempted: from ``next``: ``asked`` says so while a batch is waited for.
    """
    make = _streamed if dataset.placement == "stream" else _gathered
    batches = make(dataset, seed, batch_size, first_step, mesh)
    with contextlib.closing(ahead_if_streamed(dataset, batches, stall_timeout_s, asked)) as watched:
        yield watched


def held_out_batches(
    dataset: Dataset,
    batch_size: int,
    mesh: jax.sharding.Mesh,
    *,
    stall_timeout_s: float = math.inf,
    asked: Callable[[], bool] = _never,
) -> Iterator[dict[str, jax.Array]]:
    """The whole test split once, with a ``mask``; ``batch_size`` is rounded up to a multiple of a batch's parts.

    Raises:
      RunStopped: as `train_batches`.
      Preempted: ``asked`` says so between two batches, or while one is waited for.
    """
    parts = sharding.batch_shards(mesh)
    size = parts * math.ceil(min(batch_size, len(dataset.test)) / parts)
    rows = sharding.local_rows(mesh, size)
    batches = (sharding.put_batch(batch, rows, size, mesh) for batch in eval_batches(dataset.test, size, rows=rows))
    watched = ahead_if_streamed(dataset, batches, stall_timeout_s, asked)
    try:
        for batch in watched:
            if asked():
                raise Preempted(_ASKED)
            yield batch
    finally:
        watched.close()


def ahead_if_streamed(
    dataset: Dataset, batches: Generator[T, None, None], stall_timeout_s: float, asked: Callable[[], bool] = _never
) -> Closing[T]:
    """``batches``, read ahead in a thread and watched where they are read from files; to be closed."""
    if dataset.placement != "stream":
        return batches
    return ReadAhead(batches, _READ_AHEAD, stall_timeout_s, f"data set {dataset.name!r}", asked)


def _streamed(
    dataset: Dataset, seed: int, batch_size: int, first_step: int, mesh: jax.sharding.Mesh
) -> Generator[dict[str, jax.Array], None, None]:
    rows = sharding.local_rows(mesh, batch_size)
    for batch in train_stream(dataset.train, seed, batch_size, start_step=first_step, rows=rows):
        yield sharding.put_batch(batch, rows, batch_size, mesh)


def _gathered(
    dataset: Dataset, seed: int, batch_size: int, first_step: int, mesh: jax.sharding.Mesh
) -> Generator[dict[str, jax.Array], None, None]:
    arrays = sharding.put_everywhere(dataset.train.arrays(), mesh)
    rows = sharding.local_rows(mesh, batch_size)
    gather = jax.jit(
        lambda arrays, rows: jax.tree.map(lambda a: a[rows], arrays), out_shardings=sharding.batch_sharding(mesh)
    )
    step = first_step
    while True:
        indices = batch_indices(seed, step, len(dataset.train), batch_size)
        yield gather(arrays, sharding.put_batch(indices[rows], rows, batch_size, mesh))
        step += 1


class ReadAhead(Generic[T]):
    """The items of an iterator, made in a thread before they are asked for.

    Args:
      items: what to make; an exception of theirs is raised by ``next`` in its place.
      size: items that wait, at most.
      timeout_s: ``next`` raises `RunStopped` if there is nothing for so long.
      what: the source, for that sentence.
      asked: whether to leave; then ``next`` raises `Preempted` instead of waiting.
    """

    def __init__(
        self, items: Iterator[T], size: int, timeout_s: float, what: str, asked: Callable[[], bool] = _never
    ) -> None:
        self._queue: queue.Queue[Any] = queue.Queue(size)
        self._timeout_s, self._what, self._asked = timeout_s, what, asked
        self._closed = threading.Event()
        # A daemon: a read that hangs must not keep the process.
        self._thread = threading.Thread(target=self._fill, args=(items,), daemon=True, name="read-ahead")
        self._thread.start()

    def __iter__(self) -> ReadAhead[T]:
        return self

    def __next__(self) -> T:
        until = time.monotonic() + self._timeout_s
        while (left := until - time.monotonic()) > 0:
            try:
                item, error = self._queue.get(timeout=min(left, _LOOK_S))
            except queue.Empty:
                if self._asked():
                    raise Preempted(_ASKED) from None
                continue
            if error is not None:
                raise error
            return item
        raise RunStopped(
            f"{self._what} gave no batch for {self._timeout_s:g} s: look at its storage, then run the same command "
            "again; train.stall_timeout_s sets how long to wait."
        )

    def close(self) -> None:
        """Ends the thread, after the item that it is making."""
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
        except BaseException as error:  # the main thread's to handle
            self._put((None, error))

    def _put(self, entry: tuple[Any, BaseException | None]) -> None:
        while not self._closed.is_set():
            with contextlib.suppress(queue.Full):
                self._queue.put(entry, timeout=0.5)
                return
