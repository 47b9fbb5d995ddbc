"""Image sets that need no download: scikit-learn's digits, and a synthetic set."""

import numpy as np

from depthmup_flax.data.crops import fit
from depthmup_flax.data.dataset import ArraySplit

NUM_CLASSES = 10


def digits(image_size: int) -> tuple[ArraySplit, ArraySplit]:
    """8x8 gray digits, values 0..16 stretched to 0..255: 1500 training and 297 test examples, stratified.

    ``image_size`` > 0 resizes them.
    """
    from PIL import Image
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    bundle = load_digits()
    images = np.round(bundle.images * (255 / 16)).astype(np.uint8)
    resized = np.stack([np.asarray(fit(Image.fromarray(image), "L", image_size)) for image in images])
    split = ArraySplit({"image": resized[..., None], "label": bundle.target})
    train, test = train_test_split(
        np.arange(len(images)), train_size=1500, test_size=297, stratify=bundle.target, random_state=0
    )
    return split.take(train), split.take(test)


def synthetic(side: int, train: int, test: int) -> tuple[ArraySplit, ArraySplit]:
    """Ten random color templates under noise: ``train`` and ``test`` examples of ``side`` x ``side`` pixels."""
    blocks = np.arange(side) * 8 // side
    templates = np.random.default_rng(0).normal(size=(NUM_CLASSES, 8, 8, 3))[:, blocks][:, :, blocks]

    def draw(count: int, seed: int) -> ArraySplit:
        rng = np.random.default_rng(seed)
        labels = rng.permutation(np.arange(count) % NUM_CLASSES)
        noise = rng.normal(size=(count, side, side, 3))
        images = np.clip(128 + 32 * templates[labels] + 48 * noise, 0, 255).astype(np.uint8)
        return ArraySplit({"image": images, "label": labels})

    return draw(train, 1), draw(test, 2)
