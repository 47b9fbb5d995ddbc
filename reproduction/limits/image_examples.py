"""Images of a data set as the theories take them: flat, of unit mean square, with labels of -1 and 1."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from depthmup_flax.data import Dataset, LoadOnce
from depthmup_flax.data.registry import SOURCES
from depthmup_flax.util.errors import InputError
from reproduction.limits.config_fields import require

_load = LoadOnce()


def image_set(config: ConfigDict) -> Dataset:
    """The set of ``config.data``; InputError if it has no images."""
    dataset, name = _load(config.data), config.data.name
    if dataset.input_kind != "image":
        forms = ", ".join(source.form for source in SOURCES.values() if source.kind == "images")
        raise InputError(f"data.name is {name!r}: it holds no images. Use one of {forms}.")
    return dataset


def labeled_images(config: ConfigDict, count: int, *, asked_by: str) -> tuple[np.ndarray, np.ndarray]:
    """(P, D) images with ``|x|^2 / D = 1``, and (P,) +1 for the upper half of the classes and -1 for the lower.

    InputError for a set without images, or of fewer than ``count``, which the field ``asked_by`` wants.
    """
    dataset = image_set(config)
    enough, held = count <= len(dataset.train), len(dataset.train)
    require(config, asked_by, enough, f"use fewer, it takes {count} images and {config.data.name} has {held}")
    chosen = np.random.default_rng(config.seed).permutation(len(dataset.train))[:count]
    batch = {name: jnp.asarray(values) for name, values in dataset.train.read(chosen).items()}
    prepared, labels = dataset.prepare("none", None, batch)
    flat_PxD = np.asarray(prepared, np.float64).reshape(count, -1)
    flat_PxD /= np.sqrt(np.mean(flat_PxD**2, 1, keepdims=True))
    return flat_PxD, np.where(2 * np.asarray(labels) < dataset.num_classes, -1.0, 1.0)
