"""Sets that need no files: scikit-learn's digits, and synthetic images."""

import dataclasses

import numpy as np

from depthmup_flax.data.crops import fit
from depthmup_flax.data.dataset import ArraySplit, DataConfig
from depthmup_flax.data.images import ImageDataset
from depthmup_flax.data.sources.source import Source, images_in_memory, limited, with_validation
from depthmup_flax.util.errors import InputError
from depthmup_flax.util.extras import require

_CLASSES = tuple("0123456789")
_MOST_BYTES = 2**34  # of images that are made in memory


def _require_memory(config: DataConfig, images: int, channels: int) -> None:
    size = images * config.image_size**2 * channels
    if size > _MOST_BYTES:
        takes = f"{images:,} images of that side take {size / 2**30:,.0f} GiB, more than {_MOST_BYTES / 2**30:.0f}"
        raise InputError(f"data.image_size is {config.image_size}: {takes}. Use a smaller one.")


def _load_digits(_: str, config: DataConfig) -> ImageDataset:
    for package in ("sklearn", "PIL"):
        require(package, "data.name='digits'")
    from PIL import Image
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    bundle = load_digits()
    _require_memory(config, len(bundle.images), 1)
    images = np.round(bundle.images * (255 / 16)).astype(np.uint8)
    resized = np.stack([np.asarray(fit(Image.fromarray(image), "L", config.image_size)) for image in images])
    split = ArraySplit({"image": resized[..., None], "label": bundle.target})
    parts = train_test_split(
        np.arange(len(images)), train_size=1500, test_size=297, stratify=bundle.target, random_state=0
    )
    train, test = with_validation(config, limited(config, map(split.take, parts)))
    return images_in_memory(config, train, test, _CLASSES)


def _load_synthetic(_: str, config: DataConfig) -> ImageDataset:
    _require_memory(config, (config.train_examples or 2048) + (config.test_examples or 512), 3)
    side = config.image_size or 8
    blocks = np.arange(side) * 8 // side
    means = 128 + 32 * np.random.default_rng(0).normal(size=(len(_CLASSES), 8, 8, 3))[:, blocks][:, :, blocks]

    def draw(count: int, seed: int) -> ArraySplit:
        rng = np.random.default_rng(seed)
        labels = rng.permutation(np.arange(count) % len(_CLASSES))
        pixels = rng.normal(size=(count, side, side, 3))
        pixels *= 48
        pixels += means[labels]
        return ArraySplit({"image": pixels.clip(0, 255, out=pixels).astype(np.uint8), "label": labels})

    splits = draw(config.train_examples or 2048, 1), draw(config.test_examples or 512, 2)
    train, test = with_validation(config, splits)
    return dataclasses.replace(images_in_memory(config, train, test, _CLASSES), class_names=())


DIGITS = Source("digits", _load_digits, "images", ("image_size",))
SYNTHETIC = Source("synthetic", _load_synthetic, "images", ("image_size",))
