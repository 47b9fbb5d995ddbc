"""Encoded images: crops of files, pixels of every mode, several hosts, damaged files."""

import errno
import io
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
import scipy.stats
from data_sets import (
    SIZE,
    assert_batches_equal,
    error,
    load,
    load_crops,
    noise,
    smooth,
    training_files,
    write_flat_folder,
    write_image,
    write_photographs,
)

from depthmup_flax import data
from depthmup_flax.data import image_files
from depthmup_flax.data.image_files import crop_draws, random_box
from depthmup_flax.util.errors import RunStopped

BILINEAR = PIL.Image.Resampling.BILINEAR


def boxes(width, height, count=4000):
    return np.array([random_box(draws, width, height) for draws in crop_draws(0, 0, count).tolist()])


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
    ("draws", "size", "expected"),
    [
        ([[0.999, 0.5, 0.0, 0.0]] * 10, (1000, 30), (480, 0, 520, 30)),  # no box fits: the center
        ([[0.999, 0.5, 0.0, 0.0]] * 10, (30, 1000), (0, 480, 30, 520)),
        ([[0.999, 0.5, 0.0, 0.0]] * 10, (1, 1), (0, 0, 1, 1)),
        ([[0.999, 0.5, 0.0, 0.0], [0.0, 0.5, 0.999, 0.999]], (1000, 100), (911, 11, 1000, 100)),  # drawn again
    ],
)
def test_a_box_that_does_not_fit_is_drawn_again_or_is_the_center(draws, size, expected):
    assert random_box(draws, *size) == expected


def test_draws_of_a_place_depend_on_seed_and_step_alone():
    draws = crop_draws(3, 17, 8)
    np.testing.assert_array_equal(crop_draws(3, 17, 32)[:8], draws)
    assert len({crop_draws(*key, 8).tobytes() for key in [(3, 17), (3, 18), (4, 17), (17, 3)]}) == 4
    assert len({draw.tobytes() for draw in draws}) == 8


@pytest.mark.parametrize("scale", [1, 2, 4, 8])
def test_a_jpeg_decoded_at_reduced_size_looks_like_full_decoding(scale):
    file = io.BytesIO()
    PIL.Image.fromarray(np.kron(smooth(75, 101, 0), np.ones((8, 8, 1), np.uint8))).save(file, "JPEG", quality=95)
    side = 48 * scale + 3
    box = (120, 40, 120 + side, 40 + side)
    expected = np.asarray(PIL.Image.open(file).resize((48, 48), BILINEAR, box=box), float)
    image = PIL.Image.open(file)
    actual = np.asarray(image_files.resize_box(image, "RGB", 48, box), float)
    assert image.size[0] == -(-808 // scale)
    assert np.abs(actual - expected).mean() < 1.5
    if scale == 1:
        np.testing.assert_array_equal(actual, expected)


def test_image_size_resizes_the_shorter_side_and_crops_the_center(tmp_path):
    write_flat_folder(tmp_path)
    # A gray frame left and right of a 40x40 square whose left half is black and right half white.
    pixels = np.full((40, 80, 3), 128, np.uint8)
    pixels[:, 20:40], pixels[:, 40:60] = 0, 255
    write_image(tmp_path / "train/a/wide.png", pixels)
    folder = load(name=f"folder:{tmp_path}", image_size=10)
    assert folder.image_shape == (10, 10, 3)
    wide = folder.train.arrays()["image"][3]
    assert (wide[:, 1:4].max(), wide[:, 6:9].min()) == (0, 255)


def test_a_training_image_is_the_drawn_part_of_its_file(photographs):
    split = load_crops(photographs).train
    batch, indices = data.train_batch(split, 5, 3, 8), data.batch_indices(5, 3, 11, 8)
    draws = crop_draws(5, 3, 8).tolist()
    for image, label, index, draw in zip(batch["image"], batch["label"], indices, draws, strict=True):
        path = training_files(photographs)[index]
        assert label == "ab".index(path.parent.name)
        with PIL.Image.open(path) as whole:
            part = whole.crop(random_box(draw, *whole.size)).resize((SIZE, SIZE), BILINEAR)
        # The pixels around a box count at its edge, and some JPEGs are decoded at reduced size.
        assert np.abs(image[1:-1, 1:-1] - np.asarray(part, float)[1:-1, 1:-1]).mean() < 3


def test_evaluation_sees_the_center_of_the_image_resized_to_256_224ths(photographs):
    test = load_crops(photographs, image_size=56).test
    for image, path in zip(test.arrays()["image"][:4], sorted((photographs / "test/a").glob("*")), strict=True):
        with PIL.Image.open(path) as whole:
            scale = 64 / min(whole.size)
            resized = whole.resize([round(side * scale) for side in whole.size], BILINEAR)
            left, top = (round((side - 56) / 2) for side in resized.size)
            expected = np.asarray(resized.crop((left, top, left + 56, top + 56)), float)
        assert np.abs(image - expected).mean() < 5  # the center may lie between two pixels
        assert np.corrcoef(image.ravel(), expected.ravel())[0, 1] > 0.99


RAMP = (np.arange(48).reshape(6, 8) * 5).astype(np.uint8)
COLOR = np.repeat(RAMP[..., None], 3, axis=-1)


@pytest.mark.parametrize(
    ("mode", "format", "options"),
    [("L", "PNG", {}), ("P", "PNG", {"transparency": 5}), ("RGBA", "PNG", {}), ("LA", "PNG", {}), ("CMYK", "JPEG", {})],
)
def test_files_of_any_mode_are_read_as_color_and_transparency_is_dropped(mode, format, options):
    file = io.BytesIO()
    PIL.Image.fromarray(RAMP).convert(mode).save(file, format, **options)
    example = image_files.Encoded("it", file.getvalue(), 0)
    pixels = image_files.decode(example, 3, data.DataConfig(name="folder:here"))
    np.testing.assert_allclose(pixels.astype(int), COLOR, atol=0 if format == "PNG" else 12)


def test_a_host_decodes_its_own_part_only(photographs, monkeypatch):
    split = load_crops(photographs).train
    decoded = []
    blank = np.zeros((SIZE, SIZE, 3), np.uint8)
    monkeypatch.setattr(image_files, "decode", lambda *args: decoded.append(args) or blank)
    data.train_batch(split, 0, 0, 8, slice(2, 4))
    assert len(decoded) == 2


def test_a_streamed_set_has_the_examples_the_statistics_and_the_digest_of_one_in_memory(tmp_path):
    name = f"folder:{write_flat_folder(tmp_path)}"
    memory, stream = load(name=name, placement="device"), load(name=name, placement="stream")
    assert_batches_equal(memory.train.arrays(), stream.train.arrays())
    np.testing.assert_allclose(memory.mean, stream.mean, rtol=1e-6)
    train, test = memory.checksums
    assert (train, test) == stream.checksums
    write_image(tmp_path / "train/a/0.png", np.full((6, 6, 3), 41, np.uint8))
    assert (load(name=name).checksums[0] != train, load(name=name).checksums[1]) == (True, test)


def test_an_image_that_vanishes_from_a_stream_is_named_and_restoring_it_resumes_the_same_batches(tmp_path):
    split = load_crops(write_photographs(tmp_path)).train
    expected = [data.train_batch(split, 0, step, 4) for step in range(6)]
    stream = data.train_stream(split, 0, 4)
    assert_batches_equal(next(stream), expected[0])
    path = training_files(tmp_path)[data.batch_indices(0, 5, 11, 4)[0]]
    path.rename(tmp_path / "aside")
    assert str(path) in error(lambda: [next(stream) for _ in range(12)])
    (tmp_path / "aside").rename(path)
    again = data.train_stream(split, 0, 4, start_step=2)
    for step in range(2, 6):
        assert_batches_equal(next(again), expected[step])


def a_bomb():
    """A PNG that claims 30000x30000 pixels and has one."""
    file = io.BytesIO()
    PIL.Image.new("RGB", (1, 1)).save(file, "PNG")
    content = bytearray(file.getvalue())
    content[16:24] = struct.pack(">II", 30_000, 30_000)
    content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
    return bytes(content)


def encoded(pixels, format):
    file = io.BytesIO()
    PIL.Image.fromarray(pixels).save(file, format)
    return file.getvalue()


HOSTILE = {
    "empty": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_text("<html>404</html>"),
    "truncated": lambda path: path.write_bytes(encoded(noise(64, 64), "JPEG")[:-200]),
    "bomb": lambda path: path.write_bytes(a_bomb()),
    "a program": lambda path: path.write_bytes(encoded(COLOR, "EPS")),  # which Pillow would start
    "16 bits": lambda path: path.write_bytes(encoded(RAMP.astype(np.uint16), "PNG")),
    "folder": os.mkdir,
    "dangling link": lambda path: path.symlink_to("absent"),
}


@pytest.mark.parametrize("placement", ["device", "stream"])
@pytest.mark.parametrize("kind", HOSTILE)
def test_what_is_no_image_is_named(tmp_path, kind, placement):
    bad = write_flat_folder(tmp_path) / "train/b/1.png"
    bad.unlink()
    HOSTILE[kind](bad)
    assert f"its image {str(bad)!r} cannot be read (" in error(load, name=f"folder:{tmp_path}", placement=placement)


def test_a_failure_of_the_storage_asks_to_rerun(tmp_path, monkeypatch):
    write_flat_folder(tmp_path)

    def fails(path):
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))

    monkeypatch.setattr(Path, "read_bytes", fails)
    with pytest.raises(RunStopped, match="rerun the command"):
        load(name=f"folder:{tmp_path}")


def test_unequal_image_sizes_name_a_file_and_the_remedy(tmp_path):
    write_flat_folder(tmp_path)
    write_image(tmp_path / "test/b/odd.png", noise(6, 9))
    message = error(load, name=f"folder:{tmp_path}")
    assert message.startswith("data.image_size is 0: ")
    assert "6x6x3" in message
    assert f"{str(tmp_path / 'test/b/odd.png')!r} is 6x9x3" in message
