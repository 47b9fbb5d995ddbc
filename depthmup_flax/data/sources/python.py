"""Data of the user: what a function that ``data.name`` names returns."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import numpy as np

from depthmup_flax.data.dataset import ArraySplit, DataConfig, Placement
from depthmup_flax.data.example_spec import ExampleSpec, kind_of
from depthmup_flax.data.sources.source import Source, limited, placement, with_validation
from depthmup_flax.data.user_data import UserDataset, UserPrepare, user_dataset
from depthmup_flax.data.user_splits import BatchStream, RecordSplit, array_split, batches_in_memory
from depthmup_flax.networks.calls import calling
from depthmup_flax.networks.named import resolve
from depthmup_flax.util.errors import InputError

log = logging.getLogger(__name__)


def load_python(path: str, config: DataConfig) -> UserDataset:
    """The data of ``load() -> (train, test)`` or ``(train, test, prepare)``.

    A split is a pair ``(inputs, targets)`` or a dict of arrays, whose first axis is the example; inputs and targets may
    be dicts of arrays. Or it is an object with ``__len__`` and ``__getitem__``, whose records are such pairs or dicts
    without that axis. ``train`` may be a function ``batches(seed) -> iterator of batches`` without end, ``test`` an
    iterable of batches, which is read into memory, or None. ``prepare`` is a pure ``(key, batch) -> (inputs,
    targets)`` in the compiled step, without key in evaluation; see ``user_data.pair_or_batch`` for the default.

    Args:
      path: of the function or of what it would return, ``"module:name"`` or a name of `register`.
      config: limits examples, and says where they are placed.

    Raises:
      InputError: something else is returned.
      UserCodeError: the user's code fails.
    """
    where = f"data.name is {config.name!r}"
    train, test, prepare = _parts(path, where)
    train_split, spec = _train_split(train, f"{where}: train")
    test_split = _test_split(test, spec, f"{where}: test", config)
    if isinstance(train_split, BatchStream):
        _require_streamed(config)
        _, test_split = limited(config, (ArraySplit(spec.zeros(0)), test_split))
        return user_dataset(config.name, train_split, test_split, spec, "stream", prepare)
    for what, split in (("train", train_split), ("test", test_split)):
        _warn_of_nonfinite(split, f"{where}: {what}")
    finite, test_split = with_validation(config, limited(config, (train_split, test_split)))
    given = finite, test_split
    if config.placement == "device":
        finite, test_split = ArraySplit(finite.arrays()), ArraySplit(test_split.arrays())
    place: Placement = "stream"
    if isinstance(finite, ArraySplit):
        place = placement(config, sum(x.nbytes for x in finite.fields.values()))
    dataset = user_dataset(config.name, finite, test_split, spec, place, prepare)
    return dataclasses.replace(dataset, given=given)


PYTHON = Source("python:<module>:<function>", load_python, "arrays", ())


def _parts(path: str, where: str) -> tuple[Any, Any, UserPrepare | None]:
    """Training and test data, and prepare."""
    found = resolve(path, "the function in data.name", "my_package.data:load")
    if callable(found):
        with calling(path):
            found = found()
    if not (isinstance(found, (tuple, list)) and len(found) in (2, 3)):
        raise InputError(
            f"{where}: its result is {kind_of(found)}. It must be (train, test) or (train, test, prepare)."
        )
    train, test, *rest = found
    prepare = rest[0] if rest else None
    if prepare is not None and not callable(prepare):
        raise InputError(
            f"{where}: prepare is {kind_of(prepare)}. It must be a function prepare(key, batch) -> (inputs, targets)."
        )
    return train, test, prepare


def _train_split(train: Any, where: str) -> tuple[ArraySplit | RecordSplit | BatchStream, ExampleSpec]:
    if isinstance(train, (tuple, dict)):
        return array_split(train, where)
    if _is_source(train):
        records = RecordSplit.of(train, where)
        return records, records.spec
    if callable(train):
        stream = BatchStream(train, where)
        return stream, stream.spec
    if hasattr(type(train), "__iter__") and not _is_array(train):
        raise InputError(
            f"{where} is {kind_of(train)}: it cannot be read again from its start. Give a function batches(seed) that "
            "returns such an iterator."
        )
    raise _wrong(train, where, "or a function batches(seed) that returns an iterator of batches")


def _test_split(test: Any, spec: ExampleSpec, where: str, config: DataConfig) -> ArraySplit | RecordSplit:
    if test is None:
        return ArraySplit(spec.zeros(0))
    if isinstance(test, (tuple, dict)):
        arrays, own = array_split(test, where)
        spec.require(arrays.fields, own.structure, 1, where)
        return arrays
    if _is_source(test):
        return RecordSplit.of(test, where, spec)
    if hasattr(type(test), "__iter__") and not _is_array(test):
        return batches_in_memory(test, spec, where, config.test_examples, config.device_limit_mib)
    raise _wrong(test, where, "an iterable of batches, or None for no evaluation")


def _warn_of_nonfinite(split: object, where: str) -> None:
    """Warns of NaN or infinities in arrays in memory: a network that reads them diverges."""
    for name, x in split.fields.items() if isinstance(split, ArraySplit) else ():
        if not (x.size and np.issubdtype(x.dtype, np.floating)):
            continue
        bad = np.flatnonzero(~np.isfinite(x.reshape(len(x), -1)).all(-1))
        if len(bad):
            log.warning(
                "%s%s: %d examples have NaN or infinite numbers, first example %d.", where, name, len(bad), bad[0]
            )


def _is_source(split: Any) -> bool:
    """Whether its examples can be read by index."""
    kind = type(split)
    is_text = isinstance(split, (str, bytes))
    return hasattr(kind, "__len__") and hasattr(kind, "__getitem__") and not (_is_array(split) or is_text)


def _is_array(split: Any) -> bool:
    return hasattr(split, "shape") and hasattr(split, "dtype")


def _require_streamed(config: DataConfig) -> None:
    """Raises `InputError` for fields that batches by seed cannot obey."""
    endless = "train is a function batches(seed), which has no number of examples"
    if config.train_examples:
        raise InputError(f"data.train_examples is {config.train_examples}: {endless}. Use 0.")
    if config.validation_fraction:
        raise InputError(f"data.validation_fraction is {config.validation_fraction:g}: {endless}. Use 0.")
    if config.placement == "device":
        raise InputError(f"data.placement is 'device': {endless}. Use 'auto'.")


def _wrong(split: Any, where: str, more: str) -> InputError:
    return InputError(
        f"{where} is {kind_of(split)}: give a pair (inputs, targets) or a dict of arrays, an object with __len__ and "
        f"__getitem__, {more}."
    )
