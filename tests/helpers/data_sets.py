"""Data sets that tests write to disk, and real ones that they find there."""

import io
import os
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

from depthmup_flax import data
from depthmup_flax.util.errors import InputError


def load(name="digits", **fields):
    return data.load(data.DataConfig(name=str(name), **fields))


SIZE = 16


def load_crops(root, **fields):
    """The image folder ``root``, randomly cropped to `SIZE`."""
    return load(**{"name": f"folder:{root}", "image_size": SIZE, "augment": "resized_crop", **fields})


def real_data(path):
    """The path in the directory of real data; skips the test if it is not there."""
    root = os.environ.get("DEPTHMUP_DATA", "")
    if not root:
        pytest.skip("DEPTHMUP_DATA is not set: it names a directory of real data.")
    if not (Path(root) / path).exists():
        pytest.skip(f"DEPTHMUP_DATA is {root}: it contains no {path}.")
    return Path(root) / path


def error(call, *args, **kwargs) -> str:
    """The message of the InputError that the call raises: one line."""
    with pytest.raises(InputError) as caught:
        call(*args, **kwargs)
    message = str(caught.value)
    assert "\n" not in message
    return message


def assert_batches_equal(batch, expected):
    assert batch.keys() == expected.keys()
    for field in expected:
        np.testing.assert_array_equal(batch[field], expected[field])


def noise(height, width, channels=3, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels), np.uint8)


def smooth(height, width, seed):
    """Noise without detail finer than a few pixels, uint8 [H, W, 3]."""
    import scipy.ndimage

    normal = np.random.default_rng(seed).normal(size=(height, width, 3))
    blurred = scipy.ndimage.gaussian_filter(normal, (4, 4, 0), mode="nearest")
    return np.clip(128 + 40 * blurred / blurred.std(), 0, 255).astype(np.uint8)


def write_image(path, pixels, mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    PIL.Image.fromarray(pixels).convert(mode).save(path)


def write_flat_folder(root, test="test", size=(6, 6)):
    """Two classes of three training and two test images of one color; class b is brighter."""
    for split, count in (("train", 3), (test, 2)):
        for brightness, name in ((40, "a"), (200, "b")):
            for i in range(count):
                write_image(root / split / name / f"{i}.png", np.full((*size, 3), brightness + i, np.uint8))
    return root


def write_photographs(root, train=11, test=7):
    """Smooth images of different shapes in two classes; training image i is ``training_files(root)[i]``."""
    for split, count in (("train", train), ("test", test)):
        for i in range(count):
            path = root / split / "ab"[i % 2] / f"{i:02}.{'jpg' if i % 3 else 'png'}"
            write_image(path, smooth(30 + 5 * i, 90 - 4 * i, i))
    return root


def training_files(root):
    return sorted((root / "train").glob("a/*")) + sorted((root / "train").glob("b/*"))


def prepare_tfds(directory, name, version, splits, shape, num_classes, text=False):
    """A real TFDS set of noise images on disk, written without TensorFlow: splits maps a split to its labels."""
    tfds = pytest.importorskip("tensorflow_datasets")

    def encoded(i):
        height, width, channels = (side or 20 + i for side in shape)
        file = io.BytesIO()
        mode = "L" if channels == 1 or i == 1 else "RGB"
        PIL.Image.fromarray(noise(height, width, 3, seed=i)).convert(mode).save(file, "PNG")
        file.seek(0)
        return file

    features = tfds.features.FeaturesDict(
        {
            "image": tfds.features.Text() if text else tfds.features.Image(shape=shape),
            "label": tfds.features.ClassLabel(num_classes=num_classes),
        }
    )
    body = {
        "VERSION": tfds.core.Version(version),
        "name": name,
        "__module__": __name__,
        "_info": lambda self: tfds.core.DatasetInfo(
            builder=self, features=features, supervised_keys=("image", "label")
        ),
        "_split_generators": lambda self, manager: {split: self._generate_examples(split) for split in splits},
        "_generate_examples": lambda self, split: (
            (i, {"image": "words" if text else encoded(i), "label": label}) for i, label in enumerate(splits[split])
        ),
    }
    with tfds.core.registered.skip_registration():
        builder = type(name, (tfds.core.GeneratorBasedBuilder,), body)
    builder(data_dir=directory, file_format="array_record").download_and_prepare()
