"""Prepared TensorFlow Datasets image sets, read without TensorFlow."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import os
from typing import TYPE_CHECKING

import numpy as np

from depthmup_flax.data.dataset import DataConfig
from depthmup_flax.data.decoding import Encoded, EncodedExamples
from depthmup_flax.data.images import ImageDataset
from depthmup_flax.data.sources.source import NotHere, Source, images_of_files
from depthmup_flax.util.errors import InputError
from depthmup_flax.util.extras import require

if TYPE_CHECKING:
    from tensorflow_datasets.core import DatasetBuilder
    from tensorflow_datasets.core.data_sources.base import BaseDataSource


def _load(name: str, config: DataConfig) -> ImageDataset:
    """The set ``<set>``, ``<set>/<config>`` or ``<set>:<version>`` in ``data_dir``; "" is TFDS's default.

    The test examples are the "test" split, or "validation" if that is absent or has no labels.

    Raises:
      NotHere: the set is unknown or not prepared.
      InputError: it is prepared without random access, or is not image classification.
    """
    source = _Set(name, config.data_dir)
    builder = source.builder()
    keys = source.supervised_keys(builder)
    image, label = (builder.info.features[key] for key in keys)
    train, test = (source.examples(builder, keys, splits) for splits in (["train"], ["test", "validation"]))
    return images_of_files(config, train, test, image.shape[-1] or 3, tuple(label.names))


TFDS = Source("tfds:<set>", _load, "images", ("image_size", "data_dir", "on_bad_example"))


@dataclasses.dataclass(frozen=True)
class _Set:
    """The set that the user names."""

    name: str
    data_dir: str

    def error(self, problem: str, kind: type[InputError] = InputError) -> InputError:
        return kind(f"data.name is 'tfds:{self.name}': {problem}")

    def build_command(self, overwrite: bool = False) -> str:
        """Prepares the set as array_record: TFDS's default, tfrecord, has no random access."""
        data_dir = f" --data_dir={self.data_dir}" if self.data_dir else ""
        command = f"tfds build {self.name}{data_dir} --file_format=array_record{' --overwrite' * overwrite}"
        return f'`pip install "depthmup-flax[tfds-prepare]"` and `{command}`'

    def builder(self) -> DatasetBuilder:
        try:
            require("tensorflow_datasets", f"data.name=tfds:{self.name}")
        except InputError as error:
            raise NotHere(f"{error} If the set is not prepared, run {self.build_command()} once.") from error
        import tensorflow_datasets as tfds

        directory = os.path.expanduser(self.data_dir)
        if directory and "://" not in directory and not os.path.isdir(directory):
            raise NotHere(
                f"data.data_dir is {self.data_dir!r}: there is no such directory. Name the directory of prepared sets."
            )
        place = self.data_dir or "the default TFDS directory"
        unprepared = self.error(f"it is not prepared in {place}. Run {self.build_command()} once.", NotHere)
        try:
            builder = tfds.builder(self.name, data_dir=directory or None)
        except tfds.core.DatasetNotFoundError as error:
            close = difflib.get_close_matches(self.name, tfds.list_builders(with_community_datasets=False))
            names = " or ".join(f"'tfds:{match}'" for match in close)
            hint = f"Did you mean {names}?" if close else "See https://www.tensorflow.org/datasets/catalog."
            raise self.error(f"TFDS has no such set. {hint}", NotHere) from error
        except ImportError as error:  # some sets need TensorFlow until they are prepared
            raise unprepared from error
        except (ValueError, AssertionError) as error:  # no such config or version
            reason = str(error).splitlines()[0]
            raise self.error(f"TFDS refuses it ({reason}). Correct its config or version.", NotHere) from error
        if not builder.is_prepared():
            raise unprepared
        return builder

    def supervised_keys(self, builder: DatasetBuilder) -> tuple[str, str]:
        """The keys of the image and the label; InputError unless the set maps a uint8 image to a class."""
        import tensorflow_datasets as tfds

        features = builder.info.features
        match builder.info.supervised_keys:
            case (str(image_key), str(label_key)):
                image, label = features[image_key], features[label_key]
                eight_bits = isinstance(image, tfds.features.Image) and image.np_dtype == np.uint8
                if eight_bits and isinstance(label, tfds.features.ClassLabel):
                    return image_key, label_key
        raise self.error(
            "it is not image classification with 8-bit images (its supervised keys are "
            f"{builder.info.supervised_keys}). Use such a set."
        )

    def examples(self, builder: DatasetBuilder, keys: tuple[str, str], candidates: list[str]) -> EncodedExamples:
        """The first of the splits ``candidates`` that exists and has labels."""
        import tensorflow_datasets as tfds

        # TFDS's decoder without TensorFlow returns gray files of a color set with two axes, so images stay encoded.
        decoders = {keys[0]: tfds.decode.SkipDecoding()}
        for split in (candidate for candidate in candidates if candidate in builder.info.splits):
            directory = os.path.normpath(os.fspath(builder.data_path))
            for path in map(os.fspath, builder.info.splits[split].filepaths):  # as dataset_info.json names them
                if os.path.dirname(os.path.normpath(path)) != directory:
                    problem = f"its dataset_info.json places the {split} split at {path!r}, outside {directory!r}"
                    raise self.error(f"{problem}. Correct its filepathTemplate.")
            try:
                records = builder.as_data_source(split=split, decoders=decoders)
            except NotImplementedError as error:
                problem = f"it was prepared as {builder.info.file_format.value}, which has no random access"
                raise self.error(f"{problem}. Run {self.build_command(overwrite=True)} once.") from error
            fetch = functools.partial(self.fetch, split, records, keys)
            if fetch([0])[0].label >= 0:  # -1 marks an unlabeled example, such as those of ImageNet's test split
                return EncodedExamples(fetch, len(records))
        problem = f"it has no labeled {' or '.join(candidates)} split (its splits are"
        raise self.error(f"{problem} {', '.join(builder.info.splits)}). Choose another set.")

    def fetch(self, split: str, records: BaseDataSource, keys: tuple[str, str], positions: list[int]) -> list[Encoded]:
        image, label = keys
        try:
            examples = records.__getitems__(positions)
        except RuntimeError as error:  # array_record's, for a damaged or missing file
            reason = (str(error).splitlines() or ["RuntimeError"])[0]
            remedy = f"Restore them, or run {self.build_command(overwrite=True)}."
            raise self.error(f"the files of its {split} split cannot be read ({reason}). {remedy}") from error
        where = f"of the {split} split of tfds:{self.name}"
        return [
            Encoded(f"number {position} {where}", example[image], int(example[label]))
            for position, example in zip(positions, examples, strict=True)
        ]
