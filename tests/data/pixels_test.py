"""Pixels of files of every mode, against NumPy's arithmetic on the numbers in the file."""

import io
import struct
import zlib

import numpy as np
import PIL.Image
import pytest
from data_sets import load, load_crops, write_flat_folder, write_photographs

from depthmup_flax.data.crops import fit
from depthmup_flax.data.dataset import DataConfig
from depthmup_flax.data.decoding import BadExample, Encoded, decode

RAMP = np.arange(48).reshape(6, 8)
WIDE = (RAMP * 1390 + 7).astype(np.uint16)  # from 7 to 65337
BYTES = (RAMP * 5).astype(np.uint8)


def png(values, color_type, depth):
    """A PNG written without Pillow; ``values`` [H, W, ...] of 8 or 16 bits, or packed bytes of 1, 2, 4."""
    height, columns = values.shape[:2]
    width = columns * 8 // depth if depth < 8 else columns
    lines = b"".join(b"\0" + row.astype(">u2" if depth == 16 else np.uint8).tobytes() for row in values)

    def chunk(name, content):
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">IIBBBBB", width, height, depth, color_type, 0, 0, 0)
    image = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + image


def saved(pixels, format, mode=None, **options):
    file = io.BytesIO()
    image = PIL.Image.fromarray(pixels)
    (image.convert(mode) if mode else image).save(file, format, **options)
    return file.getvalue()


def pixels(content, channels=3):
    return decode(Encoded("it", content, 0), channels, DataConfig(name="folder:here"))


def color(gray):
    return np.repeat(gray[..., None], 3, axis=-1)


def and_alpha(values, alpha):
    return np.concatenate([values, np.full((*values.shape[:2], 1), alpha, values.dtype)], axis=-1)


PACKED = np.array([[0b00011011, 0b11100100]], np.uint8)  # 2 bits a pixel: 0 1 2 3 3 2 1 0


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        pytest.param(png(WIDE, 0, 16), color(WIDE // 256), id="png-gray-16"),
        pytest.param(png(color(WIDE), 2, 16), color(WIDE // 256), id="png-rgb-16"),
        pytest.param(png(and_alpha(WIDE[..., None], 99), 4, 16), color(WIDE // 256), id="png-gray-alpha-16"),
        pytest.param(png(and_alpha(color(WIDE), 99), 6, 16), color(WIDE // 256), id="png-rgba-16"),
        pytest.param(b"P5 8 6 65535\n" + WIDE.astype(">u2").tobytes(), color(WIDE // 256), id="pgm-16"),
        pytest.param(saved(WIDE, "TIFF"), color(WIDE // 256), id="tiff-gray-16"),
        pytest.param(png(PACKED, 0, 2), color(np.array([[0, 85, 170, 255, 255, 170, 85, 0]])), id="png-gray-2"),
        pytest.param(png(PACKED, 0, 1), color(255 * np.unpackbits(PACKED)[None]), id="png-1"),
        pytest.param(png(BYTES, 0, 8), color(BYTES), id="png-gray"),
        # Transparency is dropped: what lies under it counts.
        pytest.param(saved(BYTES, "PNG", transparency=5), color(BYTES), id="png-gray-one-transparent"),
        pytest.param(png(and_alpha(BYTES[..., None], 0), 4, 8), color(BYTES), id="png-gray-alpha"),
        pytest.param(png(and_alpha(color(BYTES), 0), 6, 8), color(BYTES), id="png-rgba"),
        pytest.param(saved(BYTES, "PNG", "P", transparency=5), color(BYTES), id="png-palette-one-transparent"),
        pytest.param(saved(color(BYTES), "BMP"), color(BYTES), id="bmp"),
        pytest.param(saved(color(BYTES), "WEBP", lossless=True), color(BYTES), id="webp"),
        pytest.param(
            saved(BYTES, "GIF", save_all=True, append_images=[PIL.Image.fromarray(255 - BYTES)]), color(BYTES), id="gif"
        ),
        pytest.param(saved(color(BYTES), "TIFF", "CMYK"), color(BYTES), id="tiff-cmyk"),
    ],
)
def test_pixels_are_those_of_the_file_scaled_by_its_depth(content, expected):
    np.testing.assert_array_equal(pixels(content), expected)
    gray = np.abs(pixels(content, channels=1)[..., 0] - expected[..., 0].astype(int))
    assert gray.max() <= 1  # Pillow rounds the luminance


@pytest.mark.parametrize("augment", ["none", "resized_crop"])
def test_a_16_bit_gray_file_is_cropped_and_resized_like_its_high_bytes(tmp_path, augment):
    for depth in (8, 16):
        write_photographs(tmp_path / str(depth))
        content = png(WIDE, 0, 16) if depth == 16 else png(WIDE // 256, 0, 8)
        (tmp_path / str(depth) / "train/a/00.png").write_bytes(content)
    eight, sixteen = (load_crops(tmp_path / depth, augment=augment).train.read(np.arange(2)) for depth in ("8", "16"))
    np.testing.assert_array_equal(sixteen["image"], eight["image"])
    assert np.ptp(sixteen["image"][0]) > 100


def twelve_bit_tiff():
    values = np.array([12, 0], "<u2").tobytes()  # packed: three bytes hold two pixels
    tags = [(256, 2), (257, 1), (258, 12), (259, 1), (262, 1), (273, 8), (277, 1), (278, 1), (279, 3)]
    entries = b"".join(struct.pack("<HHII", tag, 4 if tag == 273 else 3, 1, value) for tag, value in tags)
    return b"II*\0" + struct.pack("<I", 12) + values + struct.pack("<H", len(tags)) + entries + bytes(4)


@pytest.mark.parametrize(
    ("content", "mode"),
    [
        pytest.param(saved(RAMP.astype(np.int32), "TIFF"), "I", id="tiff-32"),
        pytest.param(saved(RAMP.astype(np.float32), "TIFF"), "F", id="tiff-float"),
        pytest.param(twelve_bit_tiff(), "I;16", id="tiff-12"),
    ],
)
def test_pixels_whose_white_is_not_known_are_refused(content, mode):
    with pytest.raises(BadExample, match=f"mode '{mode}', have no known white; convert it to 8 or 16 bits"):
        pixels(content)


def test_a_file_that_is_a_program_is_refused():
    with pytest.raises(BadExample, match="it is EPS, a program that another program would run"):
        pixels(saved(BYTES, "EPS"))


def test_orientation_tags_are_not_applied(tmp_path):
    write_flat_folder(tmp_path, size=(6, 9))
    before = load(name=f"folder:{tmp_path}").train.arrays()["image"]
    for path in tmp_path.glob("train/*/*.png"):
        with PIL.Image.open(path) as image:
            exif = image.getexif()
            exif[0x0112] = 6  # rotate by 90 degrees
            image.save(path, exif=exif)
    np.testing.assert_array_equal(load(name=f"folder:{tmp_path}").train.arrays()["image"], before)


def test_an_image_of_one_pixel_is_resized():
    one = PIL.Image.fromarray(np.full((1, 1, 3), 77, np.uint8))
    np.testing.assert_array_equal(np.asarray(fit(one, "RGB", 16)), np.full((16, 16, 3), 77))


def test_a_very_long_image_is_cropped_without_resizing_all_of_it():
    line = np.zeros((1, 30_000, 3), np.uint8)
    line[0, 14_990:15_010] = 200  # the center
    np.testing.assert_array_equal(np.asarray(fit(PIL.Image.fromarray(line), "RGB", 224)), np.full((224, 224, 3), 200))
    assert fit(PIL.Image.new("RGB", (1, 30_000)), "RGB", 224).size == (224, 224)
