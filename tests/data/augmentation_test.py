"""Random image transformations on the device."""

import jax
import jax.numpy as jnp
import numpy as np
import PIL.Image
import pytest
import scipy.ndimage
from data_sets import noise

from depthmup_flax import data
from depthmup_flax.config import default_config
from depthmup_flax.data import augmentation

IMAGES = np.stack([noise(16, 16, seed=i) for i in range(8)])

# Compiled once for a name and a shape.
augment = jax.jit(data.augment, static_argnums=0)
warp = jax.jit(augmentation.affine_warp)


def over_keys(transform, count, image):
    """The transform of the image under ``count`` keys."""
    return jax.jit(jax.vmap(transform, (0, None)))(jax.random.split(jax.random.key(0), count), image)


def test_augment_none_only_rescales():
    out = augment("none", None, jnp.asarray(IMAGES))
    assert out.dtype == jnp.float32
    np.testing.assert_allclose(out, IMAGES / 255.0, rtol=1e-6)


@pytest.mark.parametrize(("name", "channels"), [("none", 3), ("cifar", 1), ("cifar", 3), ("imagenet", 3)])
def test_augment_gives_images_in_0_to_1_for_bytes_and_floats(name, channels):
    images = jnp.asarray(IMAGES[..., :channels])
    out = augment(name, jax.random.key(0), images)
    assert (out.shape, out.dtype) == (images.shape, jnp.float32)
    assert 0 <= out.min() < out.max() <= 1
    if channels == 3:
        np.testing.assert_allclose(augment(name, jax.random.key(0), images.astype(jnp.float32)), out, atol=1e-6)


@pytest.mark.parametrize("name", ["cifar", "imagenet"])
def test_augment_of_an_example_depends_on_its_own_key_only(name):
    same = jnp.asarray(np.repeat(IMAGES[:1], 8, axis=0))
    one, again, other = (augment(name, jax.random.key(seed), same) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, again)
    assert np.abs(one - other).max(axis=(1, 2, 3)).min() > 0
    assert len({np.asarray(image).tobytes() for image in one}) == 8
    np.testing.assert_allclose(augment(name, jax.random.key(0), same.at[1:].set(0))[0], one[0], atol=1e-6)


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_a_tpu_crops_the_same_images_by_products_and_gathers_no_pixels(dtype, monkeypatch):
    images, keys = (IMAGES + (0 if dtype == "uint8" else 0.25)).astype(dtype), jax.random.split(jax.random.key(0), 2)
    several = lambda keys, images: jax.vmap(lambda key: data.augment("imagenet", key, images))(keys)
    program = lambda platform: jax.jit(several).trace(keys, images).lower(lowering_platforms=(platform,)).as_text()
    assert ("gather" in program("cpu"), "gather" in program("tpu")) == (True, False)
    expected = jax.jit(several)(keys, images)
    monkeypatch.setattr(jax.lax, "platform_dependent", lambda *args, tpu, default: tpu(*args))
    np.testing.assert_array_equal(jax.jit(lambda *args: several(*args))(keys, images), expected)


def test_flips_preserve_the_histogram_and_mirror_half_of_the_images():
    image = jnp.asarray(IMAGES[0])
    flipped = over_keys(augmentation.random_flip, 400, image)
    np.testing.assert_array_equal(np.sort(flipped[:20].reshape(20, -1)), np.sort(image.reshape(1, -1)).repeat(20, 0))
    mirrored = (flipped == image[:, ::-1]).all((1, 2, 3))
    assert ((flipped == image).all((1, 2, 3)) ^ mirrored).all()
    assert 0.4 < mirrored.mean() < 0.6


def test_crops_shift_by_at_most_an_eighth_of_the_side():
    image = noise(32, 32).astype(np.float32)
    padded = np.pad(image, ((4, 4), (4, 4), (0, 0)))
    windows = {padded[i : i + 32, j : j + 32].tobytes(): (i, j) for i in range(9) for j in range(9)}
    crops = np.asarray(over_keys(augmentation.random_crop, 600, jnp.asarray(image)))
    assert {windows[crop.tobytes()] for crop in crops} == set(windows.values())


def test_rotation_has_the_direction_and_center_of_pillow():
    smooth = scipy.ndimage.gaussian_filter(noise(31, 31, 1)[..., 0].astype(np.float32), 2)
    for degrees in (-90, 90, 8):
        ours = warp(smooth[..., None], np.radians(degrees), 0.0, 1.0)[..., 0]
        theirs = np.asarray(PIL.Image.fromarray(smooth).rotate(degrees, PIL.Image.Resampling.BILINEAR))
        np.testing.assert_allclose(ours[3:-3, 3:-3], theirs[3:-3, 3:-3], atol=0.05)
        if abs(degrees) == 90:
            np.testing.assert_allclose(ours, np.rot90(smooth, degrees // 90), atol=1e-3)


def test_warp_rotates_then_shears_then_scales_as_scipy_does():
    image = noise(24, 30).astype(np.float32)
    angle, shear, scale = 0.15, -0.12, 1.15
    # Forward, in (row, column) with rows downwards.
    rotate = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    forward = scale * np.array([[1, 0], [np.tan(shear), 1]]) @ rotate
    back, center = np.linalg.inv(forward), (np.array([24, 30]) - 1) / 2
    expected = np.stack(
        [
            scipy.ndimage.affine_transform(plane, back, center - back @ center, order=1, mode="grid-constant")
            for plane in np.moveaxis(image, -1, 0)
        ],
        axis=-1,
    )
    np.testing.assert_allclose(warp(image, angle, shear, scale), expected, atol=0.05)


def test_color_jitter_of_gray_images_keeps_them_gray_and_bounded():
    gray = jnp.asarray(np.repeat(IMAGES[0][..., :1], 3, axis=-1)) / 255
    out = over_keys(augmentation.color_jitter, 1, gray)[0]
    np.testing.assert_allclose(out[..., 0], out[..., 2], atol=1e-6)
    levels = np.asarray(over_keys(augmentation.color_jitter, 200, jnp.full((4, 4, 3), 0.5)))[:, 0, 0, 0]
    # Contrast and saturation leave a flat gray image alone, so only brightness shows.
    assert 0.4 <= levels.min() < 0.41
    assert 0.59 < levels.max() <= 0.6


@pytest.mark.parametrize("mix", ["mixup", "cutmix"])
def test_a_mixed_label_has_the_shares_of_the_images(mix):
    labels = jnp.arange(5)
    images = jnp.broadcast_to(labels[:, None, None, None], (5, 16, 24, 1)).astype(jnp.float32)  # pixels are the class
    shares, mix_images = [], jax.jit(augmentation.mixed, static_argnums=(0, 4))
    for seed in range(20):
        mixed_images, probabilities = mix_images(mix, jax.random.key(seed), images, labels, 7)
        np.testing.assert_allclose(probabilities.sum(-1), 1, rtol=1e-5)
        np.testing.assert_allclose(mixed_images.mean((1, 2, 3)), probabilities @ jnp.arange(7), rtol=1e-4)
        if mix == "cutmix":
            assert set(np.unique(mixed_images)) <= set(range(5))
        shares.append(float(probabilities[0, 0]))
    assert len(set(shares)) > 10
    assert min(shares) < 0.5 < max(shares)


def test_mixing_is_for_training_alone():
    config = default_config()
    config.data.augment = "none+mixup"
    dataset = data.load(config.data)
    batch = dataset.train.read(np.arange(8))
    prepare = jax.jit(dataset.prepare, static_argnums=0)
    images, labels = prepare(config.data.augment, jax.random.key(0), batch)
    plain, classes = dataset.prepare(config.data.augment, None, batch)
    assert images.shape == plain.shape
    assert labels.shape == (8, 10)
    np.testing.assert_array_equal(classes, batch["label"])
