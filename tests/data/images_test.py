"""Sets of images: checks of arrays, statistics, preparation on the device."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
import sklearn.datasets
from data_sets import load, load_crops
from sklearn.model_selection import train_test_split

from depthmup_flax import data
from depthmup_flax.data.dataset import chance_loss


def test_statistics_are_those_of_the_training_images():
    digits = load(name="synthetic")
    pixels = digits.train.arrays()["image"].reshape(-1, 3) / 255.0
    np.testing.assert_allclose(digits.mean, pixels.mean(0), rtol=1e-5)
    np.testing.assert_allclose(digits.std, pixels.std(0), rtol=1e-5)
    assert digits.mean.dtype == digits.std.dtype == np.float32
    images = np.full((4, 2, 2, 1), 7, np.uint8)
    constant = data.from_arrays(images, np.arange(4), images, np.arange(4), num_classes=4)
    assert not np.asarray(data.normalize(images / 255.0, constant.mean, constant.std)).round(6).any()


def test_the_digits_are_those_of_scikit_learn_and_split_as_it_splits_them():
    bundle, opened = sklearn.datasets.load_digits(), load()
    parts = train_test_split(np.arange(1797), train_size=1500, test_size=297, stratify=bundle.target, random_state=0)
    for split, part in zip((opened.train, opened.test), parts, strict=True):
        arrays = split.arrays()
        np.testing.assert_array_equal(arrays["label"], bundle.target[part])
        images = np.round(bundle.images[part] * (255 / 16)).astype(np.uint8)
        np.testing.assert_array_equal(arrays["image"][..., 0], images)


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


def test_statistics_of_a_stream_are_those_of_a_sample(photographs, monkeypatch):
    exact = load_crops(photographs)
    images = exact.train.arrays()["image"] / 255.0
    np.testing.assert_allclose(exact.mean, images.mean((0, 1, 2)), rtol=1e-6)
    np.testing.assert_allclose(exact.std, images.std((0, 1, 2)), rtol=1e-6)
    monkeypatch.setattr("depthmup_flax.data.images.STATISTICS_SAMPLE", 5)
    sampled = [load_crops(photographs) for _ in range(2)]
    np.testing.assert_array_equal(*(np.stack([dataset.mean, dataset.std]) for dataset in sampled))
    assert not np.array_equal(sampled[0].mean, exact.mean)
    np.testing.assert_allclose(sampled[0].mean, exact.mean, atol=0.1)


def images_with(labels):
    blank = np.zeros((len(labels), 2, 2, 1), np.uint8)
    return data.from_arrays(blank, np.array(labels), blank[:2], np.array(labels[:2]), num_classes=4)


def test_the_loss_of_a_constant_guess_is_the_entropy_of_the_labels(tmp_path):
    assert chance_loss(images_with([0, 1, 2, 3] * 500)) == pytest.approx(np.log(4), abs=1e-3)
    expected = scipy.stats.entropy([0.9, 0.1])
    assert chance_loss(images_with([0] * 900 + [1] * 100)) == pytest.approx(expected, abs=1e-3)
    text = "".join(np.random.default_rng(0).choice(list("aab"), 20_000))
    (tmp_path / "text.txt").write_text(text)
    expected = scipy.stats.entropy([text.count("a"), text.count("b")])
    assert chance_loss(load(f"text:{tmp_path / 'text.txt'}", context=8)) == pytest.approx(expected, abs=5e-3)
