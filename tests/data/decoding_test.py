"""Encoded images: crops of files, several hosts, damaged files."""

import contextlib
import errno
import io
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
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
from depthmup_flax.data import crops, decoding
from depthmup_flax.util.errors import RunStopped


def test_a_training_image_is_the_drawn_part_of_its_file(photographs):
    split = load_crops(photographs).train
    batch, indices = data.train_batch(split, 5, 3, 8), data.batch_indices(5, 3, 11, 8)
    draws = crops.crop_draws(5, 3, 8).tolist()
    for image, label, index, draw in zip(batch["image"], batch["label"], indices, draws, strict=True):
        path = training_files(photographs)[index]
        assert label == "ab".index(path.parent.name)
        with PIL.Image.open(path) as whole:
            part = whole.crop(crops.random_box(draw, *whole.size)).resize((SIZE, SIZE), PIL.Image.Resampling.BILINEAR)
        # The pixels around a box count at its edge, and some JPEGs are decoded at reduced size.
        assert np.abs(image[1:-1, 1:-1] - np.asarray(part, float)[1:-1, 1:-1]).mean() < 3


def test_evaluation_sees_the_center_of_the_image_resized_to_256_224ths(photographs):
    test = load_crops(photographs, image_size=56).test
    for image, path in zip(test.arrays()["image"][:4], sorted((photographs / "test/a").glob("*")), strict=True):
        with PIL.Image.open(path) as whole:
            scale = 64 / min(whole.size)
            resized = whole.resize([round(side * scale) for side in whole.size], PIL.Image.Resampling.BILINEAR)
            left, top = (round((side - 56) / 2) for side in resized.size)
            expected = np.asarray(resized.crop((left, top, left + 56, top + 56)), float)
        assert np.abs(image - expected).mean() < 5  # the center may lie between two pixels
        assert np.corrcoef(image.ravel(), expected.ravel())[0, 1] > 0.99


@pytest.mark.parametrize(("mode", "suffix"), [("L", "png"), ("CMYK", "jpg"), ("P", "png"), ("RGBA", "png")])
def test_files_of_any_mode_are_cropped_as_color_images(tmp_path, mode, suffix):
    write_photographs(tmp_path)
    path = training_files(tmp_path)[0]
    path.unlink()
    image = PIL.Image.fromarray(smooth(40, 60, 0)).convert(mode)
    image.save(path.with_suffix(f".{suffix}"))
    draws = crops.crop_draws(0, 0, 1)
    (pixels,) = load_crops(tmp_path).train.read(np.array([0]), draws)["image"]
    box = crops.random_box(draws[0].tolist(), 60, 40)
    expected = image.convert("RGB").crop(box).resize((SIZE, SIZE), PIL.Image.Resampling.BILINEAR)
    assert np.abs(pixels[1:-1, 1:-1] - np.asarray(expected, float)[1:-1, 1:-1]).mean() < 4


def test_a_host_decodes_its_own_part_only(photographs, monkeypatch):
    split = load_crops(photographs).train
    decoded = []
    monkeypatch.setattr(decoding, "decode", lambda *args: decoded.append(args) or np.zeros((SIZE, SIZE, 3), np.uint8))
    data.train_batch(split, 0, 0, 8, slice(2, 4))
    assert len(decoded) == 2


def test_an_image_that_vanishes_from_a_stream_is_named_and_restoring_it_resumes_the_same_batches(tmp_path):
    split = load_crops(write_photographs(tmp_path)).train
    expected = [data.train_batch(split, 0, step, 4) for step in range(6)]
    stream = data.train_stream(split, 0, 4)
    assert_batches_equal(next(stream), expected[0])
    path = training_files(tmp_path)[data.batch_indices(0, 5, 11, 4)[0]]
    path.rename(tmp_path / "aside")
    message = error(lambda: [next(stream) for _ in range(12)])
    assert f"its image {path} cannot be read" in message
    (tmp_path / "aside").rename(path)
    again = data.train_stream(split, 0, 4, start_step=2)
    for step in range(2, 6):
        assert_batches_equal(next(again), expected[step])


def test_a_test_image_damaged_in_mid_run_is_named(tmp_path):
    test = load_crops(write_photographs(tmp_path)).test
    path = tmp_path / "test/b/05.jpg"
    path.write_bytes(path.read_bytes()[:300])
    for rows in (slice(None), slice(1, 2)):  # place 1 of the last batch is class b's last image
        message = error(lambda rows=rows: list(data.eval_batches(test, 5, rows)))
        assert f"its image {path} cannot be read" in message
    assert len(list(data.eval_batches(test, 5, slice(0, 1)))) == 2  # the host that does not read it


def a_bomb():
    """A PNG that claims 30000x30000 pixels and has one."""
    file = io.BytesIO()
    PIL.Image.new("RGB", (1, 1)).save(file, "PNG")
    content = bytearray(file.getvalue())
    content[16:24] = struct.pack(">II", 30_000, 30_000)
    content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
    return bytes(content)


def a_socket(path):
    with socket.socket(socket.AF_UNIX) as server, contextlib.chdir(path.parent):  # as its name must be short
        server.bind(path.name)


HOSTILE = {
    "empty": (lambda path: path.write_bytes(b""), "it is empty"),
    "text": (lambda path: path.write_text("<html>404</html>"), "Pillow cannot read its format"),
    "truncated": (lambda path: path.write_bytes(_jpeg()[:-200]), "image file is truncated"),
    "bomb": (lambda path: path.write_bytes(a_bomb()), "Image size (900000000 pixels) exceeds limit"),
    "pipe": (os.mkfifo, "it is not a regular file"),
    "socket": (a_socket, "it is not a regular file"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "it is not a regular file"),
    "folder": (os.mkdir, "it is not a regular file"),
    "dangling-link": (lambda path: path.symlink_to("absent"), "No such file or directory"),
    "link-to-itself": (lambda path: path.symlink_to(path.name), "Too many levels of symbolic links"),
}


def _jpeg():
    file = io.BytesIO()
    PIL.Image.fromarray(noise(64, 64)).save(file, "JPEG")
    return file.getvalue()


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_is_no_image_is_named_and_why(tmp_path, kind):
    bad = write_flat_folder(tmp_path) / "train/b/1.png"
    bad.unlink()
    make, reason = HOSTILE[kind]
    make(bad)
    link = f", a link to {os.readlink(bad)!r}," if "link" in kind else ""
    for placement in ("device", "stream"):
        message = error(load, name=f"folder:{tmp_path}", placement=placement)
        assert f"its image {bad}{link} cannot be read ({reason}" in message


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EMFILE], ids=os.strerror)
def test_a_failure_of_the_storage_stops_the_run_and_is_no_bad_example(tmp_path, monkeypatch, number):
    bad = str(write_flat_folder(tmp_path) / "train/b/1.png")
    real = os.stat

    def stat(path):
        if path == bad:
            raise OSError(number, os.strerror(number), path)
        return real(path)

    monkeypatch.setattr(decoding.os, "stat", stat)
    for policy in ("error", "skip"):
        with pytest.raises(RunStopped, match=f"its image {bad} cannot be read"):
            load(name=f"folder:{tmp_path}", on_bad_example=policy)


@pytest.mark.parametrize("change", [os.remove, lambda path: path.rename(f"{path}.old")], ids=["removed", "renamed"])
def test_a_file_that_vanishes_after_the_listing_is_an_error_even_if_bad_examples_are_skipped(tmp_path, change):
    split = load_crops(write_photographs(tmp_path), on_bad_example="skip").train
    path = training_files(tmp_path)[3]
    change(path)
    assert f"its image {path} cannot be read (No such file" in error(split.read, np.array([3]), None)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (b"two\nlines.png", r"two\nlines.png'"),
        (b"not\xffutf8.png", r"not\udcffutf8.png'"),
        (b"\x1b[31mred.png", r"\x1b[31mred.png'"),
        ("Bär 1.png".encode(), "Bär 1.png cannot"),
    ],
    ids=["newline", "invalid-utf8", "escape-code", "umlaut"],
)
def test_any_file_name_is_read_and_its_message_can_be_printed(tmp_path, name, shown):
    path = os.path.join(os.fsencode(write_flat_folder(tmp_path) / "train/a"), name)
    shutil.copy(tmp_path / "train/a/0.png", path)
    assert len(load(name=f"folder:{tmp_path}").train) == 7
    with open(path, "wb"):
        message = error(load, name=f"folder:{tmp_path}")
    message.encode()
    assert shown in message


@pytest.mark.slow
def test_the_benchmark_measures_a_folder_and_a_tfds_set_of_the_same_files(photographs):
    pytest.importorskip("tensorflow_datasets")
    flags = [f"--images={photographs}", "--size=16", "--cores=1", "--repeats=1", "--seconds=0.1"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.input", *flags],
        cwd=Path(data.__file__).parents[2],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=True,
    )
    result, _ = json.JSONDecoder().raw_decode(done.stdout)
    assert {row["source"] for row in result["streams"]} == {"folder", "tfds"}
    assert all(row["images_per_s"]["lowest"] > 0 for row in result["streams"])
    assert result["images"] == 11


def test_streamed_set_equals_the_set_in_memory(tmp_path):
    name = f"folder:{write_flat_folder(tmp_path)}"
    memory, stream = load(name=name, placement="device"), load(name=name, placement="stream")
    for field in ("image", "label"):
        np.testing.assert_array_equal(memory.train.arrays()[field], stream.train.arrays()[field])
    np.testing.assert_allclose(memory.mean, stream.mean, rtol=1e-6)


def test_unequal_image_sizes_name_two_files_and_the_remedy(tmp_path):
    write_flat_folder(tmp_path)
    write_image(tmp_path / "test/b/odd.png", noise(6, 9))
    message = error(load, name=f"folder:{tmp_path}")
    assert f"{tmp_path}/train/a/0.png is 6x6x3 and {tmp_path}/test/b/odd.png is 6x9x3" in message
    assert message.startswith("data.image_size is 0: ")
