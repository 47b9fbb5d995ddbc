"""Random and center boxes, and resizing."""

import io

import numpy as np
import PIL.Image
import pytest
import scipy.ndimage
import scipy.stats
from data_sets import load, noise, smooth, write_flat_folder, write_image

from depthmup_flax.data import crops


def boxes(width, height, count=4000):
    drawn = crops.crop_draws(0, 0, count).tolist()
    return np.array([crops.random_box(draws, width, height) for draws in drawn])


@pytest.mark.parametrize(("width", "height"), [(500, 375), (375, 500), (64, 64)])
def test_crops_lie_in_the_image_with_the_areas_and_ratios_of_the_recipe(width, height):
    left, top, right, bottom = boxes(width, height).T
    assert (left.min(), top.min(), right.max(), bottom.max()) == (0, 0, width, height)
    across, down = right - left, bottom - top
    rounding = 0.5 / across + 0.5 / down
    assert (np.abs(np.log(across / down)) <= np.log(4 / 3) + 1.01 * rounding).all()
    share = across * down / (width * height)
    assert (share >= 0.08 * (1 - 1.01 * rounding)).all()
    assert share.max() <= 1


def test_crops_are_uniform_in_area_and_logarithm_of_the_ratio_where_every_box_fits():
    left, top, right, bottom = boxes(2000, 2000).T
    across, down = right - left, bottom - top
    share = across * down / 2000**2
    fits = share < 0.7  # up to 3/4, boxes of every ratio fit, so none was drawn again
    assert fits.sum() > 2000
    assert scipy.stats.kstest(share[fits], "uniform", (0.08, 0.62)).pvalue > 0.01
    ratio = np.log(across / down)[fits]
    assert scipy.stats.kstest(ratio, "uniform", (np.log(3 / 4), 2 * np.log(4 / 3))).pvalue > 0.01
    place = left[fits] / (2000 - across[fits])
    assert scipy.stats.kstest(place, "uniform").pvalue > 0.01


@pytest.mark.parametrize(
    ("width", "height", "expected"),
    [(1000, 30, (480, 0, 520, 30)), (30, 1000, (0, 480, 30, 520)), (1, 1, (0, 0, 1, 1))],
)
def test_an_image_that_no_box_fits_is_cropped_in_the_center(width, height, expected):
    largest = [[0.999, 0.5, 0.0, 0.0]] * crops.ATTEMPTS
    assert crops.random_box(largest, width, height) == expected


def test_a_box_that_does_not_fit_is_drawn_again():
    too_wide, small = [0.999, 0.5, 0.0, 0.0], [0.0, 0.5, 0.999, 0.999]
    assert crops.random_box([too_wide, small], 1000, 100) == (911, 11, 1000, 100)


def test_draws_of_a_place_depend_on_seed_and_step_alone():
    draws = crops.crop_draws(3, 17, 8)
    np.testing.assert_array_equal(crops.crop_draws(3, 17, 32)[:8], draws)
    assert len({crops.crop_draws(*key, 8).tobytes() for key in [(3, 17), (3, 18), (4, 17), (17, 3)]}) == 4
    assert len({draw.tobytes() for draw in draws}) == 8


@pytest.mark.parametrize("scale", [1, 2, 4, 8])
def test_a_jpeg_decoded_at_reduced_size_looks_like_full_decoding(scale):
    file = io.BytesIO()
    PIL.Image.fromarray(np.kron(smooth(75, 101, 0), np.ones((8, 8, 1), np.uint8))).save(file, "JPEG", quality=95)
    full = PIL.Image.open(file)
    side = 48 * scale + 3
    box = (120, 40, 120 + side, 40 + side)
    expected = np.asarray(full.resize((48, 48), PIL.Image.Resampling.BILINEAR, box=box), float)
    image = PIL.Image.open(file)
    actual = np.asarray(crops.resize_box(image, "RGB", 48, box), float)
    assert image.size[0] == -(-808 // scale)
    assert np.abs(actual - expected).mean() < 1.5
    if scale == 1:
        np.testing.assert_array_equal(actual, expected)


def test_image_size_resizes_the_shorter_side_and_crops_the_center(tmp_path):
    write_flat_folder(tmp_path)
    for split in ("train", "test"):
        # A gray frame left and right of a 40x40 square whose left half is black and right half white.
        pixels = np.full((40, 80, 3), 128, np.uint8)
        pixels[:, 20:40], pixels[:, 40:60] = 0, 255
        write_image(tmp_path / split / "a" / "wide.png", pixels)
    folder = load(name=f"folder:{tmp_path}", image_size=10)
    assert folder.image_shape == (10, 10, 3)
    wide = folder.train.arrays()["image"][3]
    assert wide[:, 1:4].max() == 0
    assert wide[:, 6:9].min() == 255


def test_large_jpegs_decoded_at_reduced_size_look_like_full_decoding(tmp_path):
    smooth = scipy.ndimage.gaussian_filter(noise(320, 400).astype(float), (12, 12, 0)) * 8 - 900
    write_flat_folder(tmp_path)
    write_image(tmp_path / "train/a/0.jpg", np.clip(smooth, 0, 255).astype(np.uint8))
    (tmp_path / "train/a/0.png").unlink()
    image = load(name=f"folder:{tmp_path}", image_size=32).train.arrays()["image"][0]
    with PIL.Image.open(tmp_path / "train/a/0.jpg") as full:
        expected = np.asarray(full.resize((40, 32), PIL.Image.Resampling.BOX))[:, 4:36]
    assert np.abs(image.astype(float) - expected).mean() < 3
