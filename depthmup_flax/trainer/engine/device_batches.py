"""Data on the devices: training examples for several steps in a call, batches for evaluation, read-ahead."""

from __future__ import annotations

import collections
import functools
import itertools
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import jax
import numpy as np
from flax import struct
from ml_collections import ConfigDict

from depthmup_flax.data import Dataset, batch_indices, eval_batches, train_batch
from depthmup_flax.data.user_data import BatchStream
from depthmup_flax.devices import sharding
from depthmup_flax.trainer.engine.task import Periods
from depthmup_flax.util.surroundings import own_surroundings
from depthmup_flax.util.types import Batch, HostBatch, Json

T = TypeVar("T")

CALL_S = 1.0  # how long a call may take: signals are answered between calls

_READ_AHEAD = 2  # streamed batches on the devices that wait for the step
_TILE = 128  # numbers side by side in a tile of a TPU's memory


@struct.dataclass
class StepsCall:
    """What one call of a training program reads."""

    count: np.int32  # steps to take: an argument of the compiled program, so that it changes no result
    # For each of S possible steps and U seeds a batch: rows of the training data, int32 [S, U, B], or streamed examples
    # [S, U, B, ...]. There is no axis S if it is 1, and no U for the streamed batches of a single run.
    examples: Any


def abstract_examples(dataset: Dataset, shape: tuple[int, ...]) -> Any:
    """Shapes and dtypes of `StepsCall.examples` with the axes ``shape``."""
    return batch_shapes(dataset, *shape) if dataset.placement == "stream" else jax.ShapeDtypeStruct(shape, np.int32)


def batch_shapes(dataset: Dataset, *shape: int) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes and dtypes of training examples as they are read, with the axes ``shape``."""
    one = dataset.train.read(np.arange(1))
    return {name: jax.ShapeDtypeStruct((*shape, *x.shape[1:]), x.dtype) for name, x in one.items()}


def abstract_batch(config: ConfigDict, dataset: Dataset) -> Any:
    """Shapes and dtypes of a prepared training batch."""
    prepare = functools.partial(dataset.prepare, config.data.augment)
    key = jax.eval_shape(lambda: jax.random.key(0))
    return jax.eval_shape(prepare, key, batch_shapes(dataset, config.train.batch_size))


class CallLength:
    """The number of steps of the next call: as many as run in `CALL_S`, at most ``most``, none beyond an event."""

    def __init__(self, most: int, periods: Periods) -> None:
        self.most, self._periods = most, periods
        self.steps = 1  # until a speed is known

    def at(self, step: int) -> int:
        """Steps of the call that begins after ``step``."""
        return min(self.steps, self.most, self._periods.steps_to_next(step))

    def adapt(self, steps_per_s: float) -> None:
        """Sets `steps` by a measured speed."""
        self.steps = max(1, min(self.most, int(steps_per_s * CALL_S)))


def put_train_data(dataset: Dataset, mesh: jax.sharding.Mesh) -> Batch | None:
    """The training examples, all on every device; ``None`` if they are streamed.

    An example is a row: images are ``[N, H * W * C]``. XLA:TPU gathers rows of whole tiles in place; other rows, and
    images ``[N, H, W, C]``, it would copy into another layout in every call.
    """
    if dataset.placement == "stream":
        return None
    return sharding.put_everywhere({name: _as_rows(x, mesh) for name, x in dataset.train.arrays().items()}, mesh)


def abstract_train_data(dataset: Dataset, mesh: jax.sharding.Mesh) -> Any:
    """Shapes, dtypes and shardings of `put_train_data`, for devices that may be absent."""
    if dataset.placement == "stream":
        return None
    size, place = len(dataset.train), sharding.replicated(mesh)
    rows = {name: _as_rows(x, mesh) for name, x in dataset.train.read(np.arange(1)).items()}
    return {name: jax.ShapeDtypeStruct((size, *x.shape[1:]), x.dtype, sharding=place) for name, x in rows.items()}


def batch_of(dataset: Dataset, data: Batch | None, examples: Any) -> Any:
    """The batch for ``examples`` of a `StepsCall`: these rows of ``data`` from `put_train_data`, if there are any."""
    if data is None:
        return examples

    def batch(rows: jax.Array, example: np.ndarray) -> jax.Array:
        found = rows[examples]
        if example.ndim == 1:
            return found
        return found[..., : example.size].reshape(*examples.shape, *example.shape[1:])

    one = dataset.train.read(np.arange(1))
    return {name: batch(rows, one[name]) for name, rows in data.items()}


def _as_rows(x: np.ndarray, mesh: jax.sharding.Mesh) -> np.ndarray:
    """``[N, ...] -> [N, numbers of an example]``, with zeros at the end where a TPU needs them; ``[N]`` as it is."""
    if x.ndim == 1:
        return x
    rows = x.reshape(len(x), -1)
    missing = -rows.shape[1] % _TILE if sharding.platform(mesh) == "tpu" else 0
    return np.pad(rows, ((0, 0), (0, missing))) if missing else rows


def calls(
    dataset: Dataset, seeds: Sequence[int], batch_size: int, first_step: int, length: CallLength
) -> Generator[StepsCall, None, None]:
    """Calls, on the host, for U seeds from ``first_step`` on. A batch is a function of seed and step."""
    split, step = dataset.train, first_step
    while True:
        count = length.at(step)
        if dataset.placement == "stream":
            batches = {seed: train_batch(split, seed, step, batch_size) for seed in set(seeds)}
            examples: Any = jax.tree.map(lambda *x: np.stack(x), *[batches[seed] for seed in seeds])
        else:
            examples = np.zeros((length.most, len(seeds), batch_size), np.int32)
            for i, (place, seed) in itertools.product(range(count), enumerate(seeds)):
                examples[i, place] = batch_indices(seed, step + i, len(split), batch_size)
            if length.most == 1:
                examples = examples[0]
        yield StepsCall(np.int32(count), examples)
        step += count


def consumed(dataset: Dataset, seeds: Iterable[int], step: int) -> Json:
    """Seed -> checksum of the batches of a user's stream before ``step``, for a checkpoint; of other data nothing."""
    if not isinstance(dataset.train, BatchStream):
        return {}
    found = {str(seed): dataset.train.consumed(seed, step) for seed in sorted(set(seeds))}
    return {seed: checksum for seed, checksum in found.items() if checksum is not None}


def expect(dataset: Dataset, earlier: Json, step: int) -> None:
    """Compares what `consumed` gave with the batches before ``step`` when a stream is read again."""
    if isinstance(dataset.train, BatchStream):
        for seed, checksum in earlier.items():
            dataset.train.expect(int(seed), step, checksum)


def host_test_batches(dataset: Dataset, size: int, rows: slice | np.ndarray, *, masked: bool) -> Iterator[HostBatch]:
    """The test split once, on the host; ``masked``: the last batch is filled up, and each has a ``mask``."""
    if masked:
        yield from eval_batches(dataset.test, size, rows=rows)
        return
    whole = len(dataset.test) // size * size
    for start in range(0, whole, size):
        yield dataset.test.read(np.arange(start, start + size)[rows])
    if whole < len(dataset.test):
        yield dataset.test.read(np.arange(whole, len(dataset.test)))


def read_ahead(dataset: Dataset, items: Iterable[T]) -> Generator[T, None, None]:
    """Yields ``items``, to be closed after use; if the data are streamed, a thread makes a few of them ahead."""
    if dataset.placement != "stream":
        yield from items
        return
    iterator, end, following = iter(items), object(), own_surroundings()(next)
    reader = ThreadPoolExecutor(1, "read-ahead")
    try:
        ready = collections.deque(reader.submit(following, iterator, end) for _ in range(_READ_AHEAD))
        while (item := ready.popleft().result()) is not end:
            ready.append(reader.submit(following, iterator, end))
            yield item  # type: ignore[misc]
    finally:
        reader.shutdown(cancel_futures=True)  # a thread inside JAX at the end of Python would abort the process
