"""A data set without its examples, ``data.json`` of a run: what a trained network needs where the data are absent."""

from __future__ import annotations

import numpy as np

from depthmup_flax.data.dataset import ArraySplit, Dataset
from depthmup_flax.data.images import ImageDataset
from depthmup_flax.data.text import TextDataset, Tokenizer
from depthmup_flax.util.types import Json


def to_json(dataset: Dataset) -> Json:
    """What `from_json` needs: shape, normalization and class names of images, or context and vocabulary of a text."""
    common = {"name": dataset.name, "kind": dataset.input_kind, "num_classes": dataset.num_classes}
    if isinstance(dataset, TextDataset):
        return {**common, "context": dataset.context, "characters": dataset.tokenizer.characters}
    if isinstance(dataset, ImageDataset):
        lists = {name: list(getattr(dataset, name)) for name in ("image_shape", "class_names")}
        return {**common, **lists, "mean": dataset.mean.tolist(), "std": dataset.std.tolist()}  # exact, as float64
    raise TypeError(f"a {type(dataset).__name__} cannot be stored")


def from_json(stored: Json) -> ImageDataset | TextDataset:
    """The data set that `to_json` describes, without examples; its `Dataset.prepare` is that of training.

    Raises:
      KeyError, TypeError, ValueError: ``stored`` is not what `to_json` returns.
    """
    name, classes = str(stored["name"]), int(stored["num_classes"])
    if stored["kind"] == TextDataset.input_kind:
        tokens = ArraySplit({"tokens": np.zeros((0, 0), np.uint8)})
        tokenizer = Tokenizer(stored["characters"])
        return TextDataset(name, tokens, tokens, classes, "device", int(stored["context"]), tokenizer)
    height, width, channels = map(int, stored["image_shape"])
    images = ArraySplit({"image": np.zeros((0, height, width, channels), np.uint8), "label": np.zeros(0, np.int32)})
    mean, std = (np.asarray(stored[field], np.float32) for field in ("mean", "std"))
    names, shape = tuple(stored["class_names"]), (height, width, channels)
    return ImageDataset(name, images, images, classes, "device", shape, mean, std, class_names=names)
