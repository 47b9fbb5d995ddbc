"""A crop decodes a JPEG down to the last row that it needs: to the same pixels, with the same errors."""

import io
import math
import time

import numpy as np
import PIL.Image
import pytest
from data_sets import noise, smooth

from depthmup_flax.data import crops, decoding, jpeg
from depthmup_flax.data.dataset import DataConfig

SIZE = 24
KINDS = {
    "4:4:4": {"subsampling": 0},
    "4:2:2": {"subsampling": 1},
    "4:2:0": {"subsampling": 2},
    "rgb": {"keep_rgb": True},
    "gray": {"mode": "L"},
    "cmyk": {"mode": "CMYK"},
    "two-frames": {"format": "MPO", "save_all": True, "append_images": [PIL.Image.new("RGB", (8, 8))]},
    "progressive": {"progressive": True},
    "restarts": {"restart_marker_rows": 1},
    "trailing-bytes": {"trailing": b"\n"},
}
SHORTENED = ("4:4:4", "4:2:2", "4:2:0", "rgb", "gray", "cmyk", "two-frames")


def encoded(pixels, *, mode="RGB", trailing=b"", **options):
    file = io.BytesIO()
    PIL.Image.fromarray(pixels).convert(mode).save(file, **{"format": "JPEG", "quality": 90, **options})
    return file.getvalue() + trailing


def crop(content, draws, size=SIZE):
    """The crop of a file as training reads it, or the reason why it is bad."""
    config = DataConfig(name="x", image_size=size, augment="resized_crop")
    try:
        return decoding.decode(decoding.Encoded("x", content, 0), 3, config, draws)
    except decoding.BadExample as error:
        return str(error.reason)


def whole_crop(content, box, size):
    """The crop of a file that Pillow decodes whole, at the reduced size that its ``draft`` chooses."""
    image = PIL.Image.open(io.BytesIO(content))
    (width, height), (left, top, right, bottom) = image.size, box
    across, down = math.ceil(width * size / (right - left)), math.ceil(height * size / (bottom - top))
    _, (_, _, reduced, _) = image.draft(None, (across, down))
    box = tuple(edge * reduced / width for edge in box)
    return np.asarray(image.convert("RGB").resize((size, size), PIL.Image.Resampling.BILINEAR, box=box))


def decoded_rows(content, rows):
    """How many rows Pillow decodes."""
    image = PIL.Image.open(io.BytesIO(content))
    jpeg.stop_after(image, rows)
    return image.tile[0][1][3]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("height", "width"), [(60, 80), (203, 57), (90, 333)])
def test_a_crop_has_the_pixels_of_the_whole_image_bit_for_bit(kind, height, width):
    content = encoded(noise(height, width), **KINDS[kind])
    draws = crops.crop_draws(0, 0, 24)
    for draw in draws:
        box = crops.random_box(draw.tolist(), width, height)
        for size in (8, SIZE, 96):  # decoded at 1, 1/2 or 1/4 of the size, and enlarged
            np.testing.assert_array_equal(crop(content, draw, size), whole_crop(content, box, size))
    np.testing.assert_array_equal(crop(content, None), whole_crop(content, crops.center_box(width, height, SIZE), SIZE))


@pytest.mark.parametrize("kind", KINDS)
def test_only_usual_files_are_decoded_in_part(kind):
    content = encoded(noise(60, 80), **KINDS[kind])
    assert decoded_rows(content, 20) == (20 if kind in SHORTENED else 60)
    assert decoded_rows(content, 60) == 60


def test_a_crop_at_the_top_takes_less_time_to_decode():
    content, times = encoded(smooth(2000, 500, 0)), []
    for rows in (200, 2000) * 5:
        image = PIL.Image.open(io.BytesIO(content))
        jpeg.stop_after(image, rows)
        started = time.thread_time()
        image.load()
        times.append(time.thread_time() - started)
    assert min(times[::2]) < 0.5 * min(times[1::2])


def reason_for_every_crop(content):
    """Why a file is bad, the same for every crop; empty if it is not."""
    draws = [None, *crops.crop_draws(1, 0, 12)]
    results = [crop(content, draw) for draw in draws]
    reasons = {result if isinstance(result, str) else "" for result in results}
    assert len(reasons) == 1, reasons
    return reasons.pop()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("share", [0.3, 0.9])
def test_a_file_that_is_cut_off_is_bad_for_every_crop(kind, share):
    content = encoded(noise(90, 90), **{**KINDS[kind], "append_images": []})
    reason = reason_for_every_crop(content[: int(share * len(content))])
    assert reason.startswith("image file is truncated")


@pytest.mark.parametrize("kind", ["4:2:0", "restarts"])
@pytest.mark.parametrize("marker", [0x02, 0xC0, 0xC4, 0xD3, 0xD8, 0xDA, 0xDB, 0xE0])
def test_damage_below_a_crop_counts_as_it_does_inside(kind, marker):
    content = encoded(noise(300, 300), **{"quality": 98, **KINDS[kind]})
    assert len(content) > 2 * 65536  # Pillow's usual piece of a file
    for share in (0.3, 0.6, 0.95):
        at = int(share * len(content))
        reason = reason_for_every_crop(content[:at] + bytes((0xFF, marker)) + content[at + 2 :])
        if marker in (0xC0, 0xD8, 0xDA):  # which no image has after the start of its scan
            assert reason == "broken data stream when reading image file"


@pytest.mark.parametrize("seed", range(8))
def test_random_damage_changes_neither_pixels_nor_errors_against_decoding_the_whole(monkeypatch, seed):
    rng = np.random.default_rng(seed)
    for kind in KINDS:
        content = bytearray(encoded(noise(60, 80, seed=seed), **KINDS[kind]))
        for at in rng.integers(2, len(content), rng.integers(1, 4)):
            content[at] = rng.integers(256)
        content = bytes(content)
        draws = [None, *crops.crop_draws(seed, 0, 4)]
        partly = [crop(content, draw) for draw in draws]
        with monkeypatch.context() as patch:
            patch.setattr(jpeg, "_height_at", lambda content: None)
            whole = [crop(content, draw) for draw in draws]
        for one, other in zip(partly, whole, strict=True):
            np.testing.assert_array_equal(one, other)
