"""Sets of images: checks of arrays, statistics, preparation on the device."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from data_sets import error, load, load_crops

from depthmup_flax import data
from depthmup_flax.data import decoding


def test_statistics_are_those_of_the_training_images():
    digits = load(name="synthetic")
    pixels = digits.train.arrays()["image"].reshape(-1, 3) / 255.0
    np.testing.assert_allclose(digits.mean, pixels.mean(0), rtol=1e-5)
    np.testing.assert_allclose(digits.std, pixels.std(0), rtol=1e-5)
    assert digits.mean.dtype == digits.std.dtype == np.float32


def test_normalize_gives_mean_0_and_deviation_1():
    digits = load(name="synthetic")
    images = data.augment("none", jax.random.key(0), jnp.asarray(digits.train.arrays()["image"]))
    normal = data.normalize(images, digits.mean, digits.std)
    np.testing.assert_allclose(normal.mean((0, 1, 2)), 0, atol=1e-3)
    np.testing.assert_allclose(normal.std((0, 1, 2)), 1, atol=1e-3)


def test_a_constant_channel_normalizes_to_zero():
    images = np.full((4, 2, 2, 1), 7, np.uint8)
    constant = data.from_arrays(images, np.arange(4), images, np.arange(4))
    assert not np.asarray(data.normalize(images / 255.0, constant.mean, constant.std)).round(6).any()


def test_prepared_images_are_augmented_with_a_key_and_only_normalized_without():
    digits = load()
    batch = jax.tree.map(jnp.asarray, digits.train.read(np.arange(8)))
    plain, labels = digits.prepare("imagenet", None, batch)
    np.testing.assert_array_equal(labels, batch["label"])
    np.testing.assert_allclose(plain, (batch["image"] / 255.0 - digits.mean) / digits.std, rtol=1e-4, atol=1e-5)

    @jax.jit
    def both(key, batch):
        expected = data.augment("imagenet", key, batch["image"])
        return digits.prepare("imagenet", key, batch)[0], data.normalize(expected, digits.mean, digits.std)

    np.testing.assert_array_equal(*both(jax.random.key(0), batch))
    assert plain.shape[1:] == digits.input_spec.shape[1:]
    assert plain.dtype == digits.input_spec.dtype


@pytest.mark.parametrize("label", [-1, 4])
def test_label_out_of_range_is_named(label):
    images, labels = np.zeros((5, 4, 4, 1), np.uint8), np.array([0, 1, 2, label, label])
    message = error(data.from_arrays, images, np.arange(5) % 4, images, labels, num_classes=4, name="mine")
    assert f"data set 'mine', test split: the label at index 3 is {label}, outside 0..3" in message


def test_numbers_beyond_float32_are_refused_like_infinite_ones():
    images, labels = np.zeros((5, 4, 4, 1)), np.zeros(5, int)
    bad = images.copy()
    bad[3, 0, 0, 0] = 1e39
    message = error(data.from_arrays, bad, labels, images, labels)
    assert "train split: 1 of 5 images contain NaN or infinite values, the first at index 3 (as float32)" in message


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_in_images_is_counted_and_located(value):
    images, labels = np.zeros((5, 4, 4, 1), np.float32), np.zeros(5, int)
    bad = images.copy()
    bad[[2, 4], 1, 1, 0] = value
    message = error(data.from_arrays, bad, labels, images, labels)
    assert "train split: 2 of 5 images contain NaN or infinite values, the first at index 2" in message


@pytest.mark.parametrize(
    ("images", "labels", "says"),
    [
        (np.zeros((5, 4, 4, 1), np.uint8), np.zeros(4, int), "images [N, H, W, C] and labels [N]"),
        (np.zeros((5, 4, 4), np.uint8), np.zeros(5, int), "images [N, H, W, C] and labels [N]"),
        (np.zeros((0, 4, 4, 1), np.uint8), np.zeros(0, int), "N > 0"),
        (np.zeros((5, 4, 4, 1), np.uint8), np.zeros(5), "labels are float64"),
        (np.zeros((5, 4, 4, 1), np.int64), np.zeros(5, int), "images are int64"),
        (np.zeros((5, 4, 5, 1), np.uint8), np.zeros(5, int), "train images are 4x5x1, and test images are 4x4x1"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(images, labels, says):
    good = np.zeros((5, 4, 4, 1), np.uint8), np.zeros(5, int)
    assert says in error(data.from_arrays, images, labels, *good)


def test_the_device_flips_half_of_the_crops_and_evaluation_none(photographs):
    opened = load_crops(photographs)
    image = data.train_batch(opened.train, 0, 0, 1)["image"]
    batch = {"image": jnp.asarray(np.repeat(image, 400, axis=0)), "label": jnp.zeros(400, jnp.int32)}
    plain, _ = opened.prepare("resized_crop", None, batch)
    np.testing.assert_allclose(plain[0], (image[0] / 255 - opened.mean) / opened.std, rtol=1e-4, atol=1e-5)
    flipped, _ = opened.prepare("resized_crop", jax.random.key(0), batch)
    mirrored = (flipped == plain[:, :, ::-1]).all((1, 2, 3))
    assert ((flipped == plain).all((1, 2, 3)) ^ mirrored).all()
    assert 0.4 < mirrored.mean() < 0.6


def test_statistics_of_a_stream_decode_only_the_sample_with_any_number_of_threads(photographs, monkeypatch):
    exact = load_crops(photographs)
    images = exact.train.arrays()["image"] / 255.0
    np.testing.assert_allclose(exact.mean, images.mean((0, 1, 2)), rtol=1e-6)
    np.testing.assert_allclose(exact.std, images.std((0, 1, 2)), rtol=1e-6)
    monkeypatch.setattr("depthmup_flax.data.images.STATISTICS_SAMPLE", 5)
    decoded, decode = [], decoding.decode
    monkeypatch.setattr(decoding, "decode", lambda *args: decoded.append(args[0].where) or decode(*args))
    one, three = load_crops(photographs, read_threads=1), load_crops(photographs, read_threads=3)
    assert len(decoded) == 2 * (1 + 5)  # the first image gives the shape of all
    assert decoded[1:6] == sorted(decoded[1:6])
    np.testing.assert_array_equal([one.mean, one.std], [three.mean, three.std])
    np.testing.assert_allclose(one.mean, exact.mean, atol=0.1)
