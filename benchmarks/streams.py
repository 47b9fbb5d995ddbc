"""Readers of the same image files on one core: batches of random resized crops, as arrays of bytes.

Those of PyTorch and TensorFlow follow their tutorials, without worker processes, because there is one core.
"""

import contextlib
import pathlib
import random
import tempfile
import time

from benchmarks.timing import repeated


@contextlib.contextmanager
def image_folder(images, count):
    """``images``, or a temporary folder of ``count`` photographs."""
    if images:
        yield images
        return
    from benchmarks.input import make_folder

    with tempfile.TemporaryDirectory() as directory:
        yield make_folder(pathlib.Path(directory), count)


def ours(folder, size, batch, seconds):
    """`depthmup_flax.data.train_stream`."""
    from benchmarks.input import config
    from depthmup_flax import data

    dataset = data.load(config(f"folder:{folder}", size))
    return _images_per_batch(data.train_stream(dataset.train, 0, batch), batch, seconds)


def data_loader(folder, size, batch, seconds):
    """PyTorch's DataLoader over Pillow, with the operations of torchvision's RandomResizedCrop and flip."""
    import numpy as np
    import torch
    from PIL import Image

    torch.set_num_threads(1)
    files = sorted(pathlib.Path(folder, "train").rglob("*.jpg"))

    class Images(torch.utils.data.Dataset):
        def __len__(self):
            return len(files)

        def __getitem__(self, i):
            with Image.open(files[i]) as opened:
                image = opened.convert("RGB")
            image = image.resize((size, size), Image.Resampling.BILINEAR, box=_random_box(*image.size))
            if random.random() < 0.5:
                image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
            return torch.from_numpy(np.array(image)), 0

    def forever():
        while True:
            yield from torch.utils.data.DataLoader(Images(), batch, shuffle=True, drop_last=True)

    return _images_per_batch(forever(), batch, seconds)


def tf_data(folder, size, batch, seconds, same_pixels=False):
    """tf.data, which decodes only the crop.

    As in its tutorials, it decodes with the fast DCT, whose pixels are 1.2 of 255 levels off, and resizes without
    antialiasing. With ``same_pixels`` it decodes and filters as Pillow does, which is what the others do.
    """
    import tensorflow as tf

    def crop(path):
        content = tf.io.read_file(path)
        shape = tf.image.extract_jpeg_shape(content)
        box = tf.zeros((1, 0, 4))
        begin, extent, _ = tf.image.sample_distorted_bounding_box(
            shape, box, aspect_ratio_range=(3 / 4, 4 / 3), area_range=(0.08, 1.0), use_image_if_no_bounding_boxes=True
        )
        window = tf.stack([begin[0], begin[1], extent[0], extent[1]])
        dct = "INTEGER_ACCURATE" if same_pixels else ""
        image = tf.image.decode_and_crop_jpeg(content, window, channels=3, dct_method=dct)
        image = tf.image.random_flip_left_right(tf.image.resize(image, (size, size), antialias=same_pixels))
        return tf.cast(image, tf.uint8)

    files = sorted(str(path) for path in pathlib.Path(folder, "train").rglob("*.jpg"))
    dataset = tf.data.Dataset.from_tensor_slices(files).shuffle(len(files)).repeat()
    dataset = dataset.map(crop, num_parallel_calls=tf.data.AUTOTUNE).batch(batch).prefetch(tf.data.AUTOTUNE)
    return _images_per_batch(dataset.as_numpy_iterator(), batch, seconds)


def _images_per_batch(batches, batch, seconds):
    """A contender that returns the seconds per image."""

    def run(count):
        for _ in range(count):
            next(batches)

    measure = repeated(run, seconds)

    def after_prefetched_batches():  # read ahead while others were measured
        until = time.perf_counter() + seconds / 2
        while time.perf_counter() < until:
            run(1)
        return {name: value / batch for name, value in measure().items()}

    return after_prefetched_batches


def _random_box(width, height):
    """A box of 0.08 to 1 of the area, with an aspect ratio of 3/4 to 4/3."""
    while True:
        area, ratio = random.uniform(0.08, 1.0) * width * height, 2 ** random.uniform(-0.415, 0.415)
        w, h = (area * ratio) ** 0.5, (area / ratio) ** 0.5
        if w <= width and h <= height:
            left, top = random.uniform(0, width - w), random.uniform(0, height - h)
            return left, top, left + w, top + h
