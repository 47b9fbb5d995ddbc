"""Prepared TensorFlow Datasets image sets, read without TensorFlow."""

import difflib
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from depthmup_flax.data.images import Encoded
from depthmup_flax.errors import InputError

Fetch = Callable[[list[int]], list[Encoded]]


class TfdsSet(NamedTuple):
    """Readers of the training and test examples by position, their counts, and what the features declare."""

    fetches: tuple[Fetch, Fetch]
    lengths: tuple[int, int]
    num_classes: int
    channels: int


def open_tfds(name: str, data_dir: str) -> TfdsSet:
    """Opens the set ``name`` (``<set>``, ``<set>/<config>`` or ``<set>:<version>``) below ``data_dir``.

    The test examples are the "test" split, or "validation" where there is no test split or it has no labels.

    Args:
      name: as in the TFDS catalogue.
      data_dir: "" for TFDS's own default.

    Raises:
      InputError: TFDS is not installed, the set is unknown, not prepared, prepared in a format without random access,
        or not image classification.
    """
    try:
        import tensorflow_datasets as tfds
    except ImportError as error:
        raise InputError(
            f"data.name is 'tfds:{name}', but TensorFlow Datasets cannot be imported ({error}); "
            'run `pip install "depthmup-flax[tfds]"`.'
        ) from error
    if data_dir and "://" not in data_dir and not os.path.isdir(os.path.expanduser(data_dir)):
        raise InputError(f"data.data_dir is {data_dir!r}, but there is no such directory; create it or correct it.")
    builder = _prepared_builder(tfds, name, data_dir)
    image_key, label_key = _supervised_keys(tfds, builder, name)
    train, test = _open_splits(tfds, builder, name, data_dir, image_key, label_key)
    features = builder.info.features
    overwrite = _build_command(name, data_dir, "--overwrite")
    return TfdsSet(
        fetches=(
            _fetch(*train, name, image_key, label_key, overwrite),
            _fetch(*test, name, image_key, label_key, overwrite),
        ),
        lengths=(len(train[1]), len(test[1])),
        num_classes=features[label_key].num_classes,
        channels=features[image_key].shape[-1] or 3,
    )


def _build_command(name: str, data_dir: str, *flags: str) -> str:
    # array_record, because TFDS's default format (tfrecord) has no random access.
    options = ([f"--data_dir={data_dir}"] if data_dir else []) + ["--file_format=array_record", *flags]
    return f'`pip install "depthmup-flax[tfds-prepare]"` and `tfds build {name} {" ".join(options)}`'


def _prepared_builder(tfds: Any, name: str, data_dir: str) -> Any:
    not_prepared = InputError(
        f"data.name is 'tfds:{name}', but that set is not prepared in "
        f"{data_dir or 'the default TFDS directory'}; run {_build_command(name, data_dir)} once."
    )
    try:
        builder = tfds.builder(name, data_dir=os.path.expanduser(data_dir) or None)
    except tfds.core.DatasetNotFoundError as error:
        known = tfds.list_builders(with_community_datasets=False)
        close = " or ".join(f"'tfds:{match}'" for match in difflib.get_close_matches(name, known))
        hint = f"did you mean {close}?" if close else "see https://www.tensorflow.org/datasets/catalog."
        raise InputError(f"data.name is 'tfds:{name}', which is not a TFDS set; {hint}") from error
    except ImportError as error:
        # The code of some sets needs TensorFlow; once prepared, they open without it.
        raise not_prepared from error
    except (ValueError, AssertionError) as error:  # a config or a version that the set does not have
        reason = str(error).splitlines()[0]
        raise InputError(
            f"data.name is 'tfds:{name}', which TFDS refuses ({reason}); correct its config or version."
        ) from error
    if not builder.is_prepared():
        raise not_prepared
    return builder


def _supervised_keys(tfds: Any, builder: Any, name: str) -> tuple[str, str]:
    """The keys of the image and the label; InputError unless the set is one uint8 image -> one class."""
    keys, features = builder.info.supervised_keys, builder.info.features
    if (
        isinstance(keys, tuple)
        and len(keys) == 2
        and all(isinstance(key, str) for key in keys)
        and isinstance(features[keys[0]], tfds.features.Image)
        and features[keys[0]].np_dtype == np.uint8
        and isinstance(features[keys[1]], tfds.features.ClassLabel)
    ):
        return keys
    raise InputError(
        f"data.name is 'tfds:{name}', which is not image classification with 8-bit images "
        f"(its supervised keys are {keys}); choose a set of that kind."
    )


def _open_splits(
    tfds: Any, builder: Any, name: str, data_dir: str, image_key: str, label_key: str
) -> list[tuple[str, Any]]:
    """The training and the test split: pairs of the TFDS split name and its random-access source."""
    # The images stay encoded: TFDS's decoder without TensorFlow leaves gray files of a color set with two axes.
    decoders = {image_key: tfds.decode.SkipDecoding()}
    sources = []
    for candidates in (["train"], ["test", "validation"]):
        for split in candidates:
            if split not in builder.info.splits:
                continue
            _check_files(builder, split, name)
            try:
                source = builder.as_data_source(split=split, decoders=decoders)
                first = source[0]
            except NotImplementedError as error:
                raise InputError(
                    f"data.name is 'tfds:{name}', but it was prepared as {builder.info.file_format.value}, "
                    f"which has no random access; run {_build_command(name, data_dir, '--overwrite')} once."
                ) from error
            except RuntimeError as error:  # array_record's, for a damaged or missing file
                raise _unreadable(split, name, error, _build_command(name, data_dir, "--overwrite")) from error
            # TFDS marks unlabeled examples, such as ImageNet's test split, with -1.
            if first[label_key] >= 0:
                sources.append((split, source))
                break
        else:
            raise InputError(
                f"data.name is 'tfds:{name}', which has no labeled {' or '.join(candidates)} split "
                f"(its splits are {', '.join(builder.info.splits)}); choose another set."
            )
    return sources


def _check_files(builder: Any, split: str, name: str) -> None:
    """InputError if a file of the split is not in the set's own directory: the names come from dataset_info.json."""
    directory = os.path.normpath(os.fspath(builder.data_path))
    for path in builder.info.splits[split].filepaths:
        if os.path.dirname(os.path.normpath(os.fspath(path))) != directory:
            raise InputError(
                f"data.name is 'tfds:{name}', but its dataset_info.json places the {split} split at "
                f"{os.fspath(path)!r}, outside {directory!r}; correct its filepathTemplate."
            )


def _unreadable(split: str, name: str, error: Exception, remedy: str) -> InputError:
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return InputError(
        f"data.name is 'tfds:{name}', but the files of its {split} split cannot be read ({reason}); restore them, or "
        f"run {remedy}."
    )


def _fetch(split: str, source: Any, name: str, image_key: str, label_key: str, overwrite: str) -> Fetch:
    def fetch(positions: list[int]) -> list[Encoded]:
        try:
            records = source.__getitems__(positions)
        except RuntimeError as error:
            raise _unreadable(split, name, error, overwrite) from error
        return [
            Encoded(f"number {position} of the {split} split of tfds:{name}", record[image_key], int(record[label_key]))
            for position, record in zip(positions, records, strict=True)
        ]

    return fetch
