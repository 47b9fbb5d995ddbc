"""A data set without its examples, ``data.json`` of a run: to use the network, and to know the data again."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from depthmup_flax.data.dataset import ArraySplit, Dataset
from depthmup_flax.data.images import ImageDataset
from depthmup_flax.data.text import TextDataset, Tokenizer
from depthmup_flax.data.user_data import ExampleSpec, UserDataset, pair_or_batch
from depthmup_flax.util.errors import InputError
from depthmup_flax.util.types import Json


def to_json(dataset: Dataset) -> Json:
    """What `from_json` needs.

    That is shape, normalization and class names of images; context and vocabulary of a text; shapes and dtypes of an
    example, and of its inputs and targets, of a user's data. Numbers and checksums of examples are for `changes`.
    """
    common = {"name": dataset.name, "kind": dataset.input_kind, "num_classes": dataset.num_classes}
    train_checksum, test_checksum = dataset.checksums
    common |= {"train_examples": len(dataset.train), "train_checksum": train_checksum}
    common |= {"test_examples": len(dataset.test), "test_checksum": test_checksum}
    if isinstance(dataset, TextDataset):
        return {**common, "context": dataset.context, **dataclasses.asdict(dataset.tokenizer)}
    if isinstance(dataset, ImageDataset):
        lists = {name: list(getattr(dataset, name)) for name in ("image_shape", "class_names")}
        return {**common, **lists, "mean": dataset.mean.tolist(), "std": dataset.std.tolist()}  # exact, as float64
    if isinstance(dataset, UserDataset):
        trees = {"example": dataset.spec.tree, "inputs": dataset.inputs, "targets": dataset.targets}
        own = dataset.user_prepare is not pair_or_batch
        return {**common, **{name: _encoded(tree) for name, tree in trees.items()}, "own_prepare": own}
    raise TypeError(f"a {type(dataset).__name__} cannot be stored")


def from_json(stored: Json) -> ImageDataset | TextDataset | UserDataset:
    """The data set that `to_json` describes, without examples; a ``prepare`` of the user's own is not stored."""
    name, classes = str(stored["name"]), int(stored["num_classes"])
    if "example" in stored:

        def absent(key: jax.Array | None, batch: Any) -> Any:
            raise InputError(f"data.name is {name!r}: its prepare is not stored with the run. Give prepared inputs.")

        spec = ExampleSpec.of_tree(_decoded(stored["example"]))
        examples = ArraySplit(spec.zeros(0))
        prepare = absent if stored["own_prepare"] else pair_or_batch
        inputs, targets = (_decoded(stored[field]) for field in ("inputs", "targets"))
        return UserDataset(name, examples, examples, classes, "device", spec, prepare, inputs, targets)
    if stored["kind"] == TextDataset.input_kind:
        tokens = ArraySplit({"tokens": np.zeros((0, 0), np.uint8)})
        tokenizer = Tokenizer(stored["characters"], stored.get("file", ""), stored.get("unknown", 0))
        return TextDataset(name, tokens, tokens, classes, "device", int(stored["context"]), tokenizer)
    height, width, channels = map(int, stored["image_shape"])
    images = ArraySplit({"image": np.zeros((0, height, width, channels), np.uint8), "label": np.zeros(0, np.int32)})
    mean, std = (np.asarray(stored[field], np.float32) for field in ("mean", "std"))
    names, shape = tuple(stored["class_names"]), (height, width, channels)
    return ImageDataset(name, images, images, classes, "device", shape, mean, std, class_names=names)


# Fields that say whether data are the same -> their name. Mean and deviation follow from the training examples.
_COMPARED = {
    "kind": "kind of examples",
    "num_classes": "number of classes",
    "class_names": "names of classes",
    "image_shape": "shape of images",
    "characters": "vocabulary",
    "example": "shapes of an example",
    "inputs": "shapes of inputs",
    "targets": "shapes of targets",
    "train_examples": "number of training examples",
    "test_examples": "number of test examples",
    "train_checksum": "content of training examples",
    "test_checksum": "content of test examples",
}


def facts(stored: Json) -> Json:
    """The part of `to_json` that is the same for the same data, by its name in a sentence."""
    return {name: stored[field] for field, name in _COMPARED.items() if field in stored}


def changes(stored: Json, current: Json) -> str:
    """What differs between two results of `to_json`, as part of a sentence; "" if nothing does."""
    then, now = facts(stored), facts(current)
    values = lambda name: f" {then[name]} then, {now[name]} now" if isinstance(then[name], int) else ""
    return ", ".join(name + values(name) for name in then if name in now and then[name] != now[name])


def require_same(stored: Json, data: Json, work: str) -> None:
    """Raises `InputError` if two results of `to_json` differ; ``work``: "the run in 'runs/mine'"."""
    if changed := changes(stored, data):
        raise InputError(
            f"data.name is {data['name']!r}: its data have changed since {work} began "
            f"({changed}). Restore them to resume, choose another workdir, or set overwrite to start again."
        )


def _encoded(tree: Any) -> Any:
    """A tree of shapes and dtypes for JSON: "float32[8,8]"; its nodes are dicts and tuples, others become tuples."""
    if isinstance(tree, dict):
        return {name: _encoded(part) for name, part in tree.items()}
    if isinstance(tree, jax.ShapeDtypeStruct):
        return f"{tree.dtype}[{','.join(map(str, tree.shape))}]"
    parts = tree if isinstance(tree, (tuple, list)) else jax.tree.leaves(tree)
    return None if tree is None else [_encoded(part) for part in parts]


def _decoded(stored: Any) -> Any:
    if isinstance(stored, dict):
        return {name: _decoded(part) for name, part in stored.items()}
    if isinstance(stored, list):
        return tuple(map(_decoded, stored))
    if stored is None:
        return None
    dtype, _, shape = stored.removesuffix("]").partition("[")
    return jax.ShapeDtypeStruct(tuple(map(int, filter(None, shape.split(",")))), jnp.dtype(dtype))
