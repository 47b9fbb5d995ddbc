"""Input at ImageNet scale: random resized crops, the parts of several hosts, exact resume, damage in mid-run."""

import io
import json
import os
import subprocess
import sys
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import PIL.Image
import pytest
import scipy.ndimage
import scipy.stats

from depthmup_flax import data
from depthmup_flax.data import crops, dataset
from depthmup_flax.errors import InputError

SIZE = 16
HOSTS = [1, 2, 4]


def config(**fields):
    return types.SimpleNamespace(**{**data.DATA_DEFAULTS, **fields})


def load(root, **fields):
    return data.load(config(**{"name": f"folder:{root}", "image_size": SIZE, "augment": "resized_crop", **fields}))


def error(call, *args, **kwargs) -> str:
    with pytest.raises(InputError) as caught:
        call(*args, **kwargs)
    message = str(caught.value)
    assert "\n" not in message
    return message


def smooth(height, width, seed):
    """Noise without detail finer than a few pixels, uint8 [H, W, 3]."""
    noise = np.random.default_rng(seed).normal(size=(height, width, 3))
    blurred = scipy.ndimage.gaussian_filter(noise, (4, 4, 0), mode="nearest")
    return np.clip(128 + 40 * blurred / blurred.std(), 0, 255).astype(np.uint8)


def write_folder(root, train=11, test=7):
    """Photographs of different shapes in two classes; training image i is ``files[i]`` of `training_files`."""
    for split, count in (("train", train), ("test", test)):
        for i in range(count):
            path = root / split / "ab"[i % 2] / f"{i:02}.{'jpg' if i % 3 else 'png'}"
            path.parent.mkdir(parents=True, exist_ok=True)
            PIL.Image.fromarray(smooth(30 + 5 * i, 90 - 4 * i, i)).save(path)
    return root


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("photographs"))


def training_files(root):
    return sorted((root / "train").glob("a/*")) + sorted((root / "train").glob("b/*"))


def assert_equal(batch, expected):
    assert batch.keys() == expected.keys()
    for field in expected:
        np.testing.assert_array_equal(batch[field], expected[field])


# Boxes


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


# Pixels


def test_a_training_image_is_the_drawn_part_of_its_file(folder):
    split = load(folder).train
    batch, indices = data.train_batch(split, 5, 3, 8), data.batch_indices(5, 3, 11, 8)
    draws = crops.crop_draws(5, 3, 8).tolist()
    for image, label, index, draw in zip(batch["image"], batch["label"], indices, draws, strict=True):
        path = training_files(folder)[index]
        assert label == "ab".index(path.parent.name)
        with PIL.Image.open(path) as whole:
            part = whole.crop(crops.random_box(draw, *whole.size)).resize((SIZE, SIZE), PIL.Image.Resampling.BILINEAR)
        # The pixels around a box count at its edge, and some JPEGs are decoded at reduced size.
        assert np.abs(image[1:-1, 1:-1] - np.asarray(part, float)[1:-1, 1:-1]).mean() < 3


@pytest.mark.parametrize("scale", [1, 2, 4, 8])
def test_a_jpeg_decoded_at_reduced_size_looks_like_full_decoding(scale):
    file = io.BytesIO()
    PIL.Image.fromarray(np.kron(smooth(75, 101, 0), np.ones((8, 8, 1), np.uint8))).save(file, "JPEG", quality=95)
    full = PIL.Image.open(file)
    side = 48 * scale + 3
    box = (120, 40, 120 + side, 40 + side)
    expected = np.asarray(full.resize((48, 48), PIL.Image.Resampling.BILINEAR, box=box), float)
    image = PIL.Image.open(file)
    found = np.asarray(crops.resize_box(image, "RGB", 48, box), float)
    assert image.size[0] == -(-808 // scale)
    assert np.abs(found - expected).mean() < 1.5


def test_evaluation_sees_the_center_of_the_image_resized_to_256_224ths(folder):
    test = load(folder, image_size=56).test
    for image, path in zip(test.arrays()["image"][:4], sorted((folder / "test/a").glob("*")), strict=True):
        with PIL.Image.open(path) as whole:
            scale = 64 / min(whole.size)
            resized = whole.resize([round(side * scale) for side in whole.size], PIL.Image.Resampling.BILINEAR)
            left, top = (round((side - 56) / 2) for side in resized.size)
            expected = np.asarray(resized.crop((left, top, left + 56, top + 56)), float)
        assert np.abs(image - expected).mean() < 5  # the center may lie between two pixels
        assert np.corrcoef(image.ravel(), expected.ravel())[0, 1] > 0.99


@pytest.mark.parametrize(("mode", "suffix"), [("L", "png"), ("CMYK", "jpg"), ("P", "png"), ("RGBA", "png")])
def test_files_of_any_mode_are_cropped_as_color_images(tmp_path, mode, suffix):
    write_folder(tmp_path)
    path = training_files(tmp_path)[0]
    path.unlink()
    image = PIL.Image.fromarray(smooth(40, 60, 0)).convert(mode)
    image.save(path.with_suffix(f".{suffix}"))
    draws = crops.crop_draws(0, 0, 1)
    (pixels,) = load(tmp_path).train.read(np.array([0]), draws)["image"]
    box = crops.random_box(draws[0].tolist(), 60, 40)
    expected = image.convert("RGB").crop(box).resize((SIZE, SIZE), PIL.Image.Resampling.BILINEAR)
    assert np.abs(pixels[1:-1, 1:-1] - np.asarray(expected, float)[1:-1, 1:-1]).mean() < 4


def test_the_device_flips_half_of_the_crops_and_evaluation_none(folder):
    opened = load(folder)
    image = data.train_batch(opened.train, 0, 0, 1)["image"]
    batch = {"image": jnp.asarray(np.repeat(image, 400, axis=0)), "label": jnp.zeros(400, jnp.int32)}
    plain, _ = opened.prepare("resized_crop", None, batch)
    np.testing.assert_allclose(plain[0], (image[0] / 255 - opened.mean) / opened.std, rtol=1e-4, atol=1e-5)
    flipped, _ = opened.prepare("resized_crop", jax.random.key(0), batch)
    mirrored = (flipped == plain[:, :, ::-1]).all((1, 2, 3))
    assert ((flipped == plain).all((1, 2, 3)) ^ mirrored).all()
    assert 0.4 < mirrored.mean() < 0.6


# Hosts and resume


@pytest.mark.parametrize("hosts", HOSTS)
@pytest.mark.parametrize("blocks", [True, False])
def test_parts_of_several_hosts_are_the_batch_of_one_bit_for_bit(folder, hosts, blocks):
    split = load(folder).train
    parts = [np.arange(8).reshape(hosts, -1)[i] if blocks else np.arange(i, 8, hosts) for i in range(hosts)]
    streams = [data.train_stream(split, 2, 8, start_step=5, rows=rows) for rows in parts]
    whole = data.train_stream(split, 2, 8, start_step=5)
    for _ in range(3):
        batch = next(whole)
        for rows, stream in zip(parts, streams, strict=True):
            assert_equal(next(stream), {field: values[rows] for field, values in batch.items()})


@pytest.mark.parametrize("hosts", HOSTS)
@pytest.mark.parametrize("batch_size", [4, 8])
def test_evaluation_on_several_hosts_reads_every_example_once(folder, hosts, batch_size):
    test = load(folder).test  # 7 examples: with batches of 8 on 4 hosts, the last host has one
    per_host = batch_size // hosts
    parts = [list(data.eval_batches(test, batch_size, slice(i * per_host, (i + 1) * per_host))) for i in range(hosts)]
    for *batches, expected in zip(*parts, data.eval_batches(test, batch_size), strict=True):
        assert_equal({k: np.concatenate([batch[k] for batch in batches]) for k in expected}, expected)
    assert sum(batch["mask"].sum() for part in parts for batch in part) == 7


def test_a_host_without_examples_in_the_last_batch_gets_zeros_of_the_same_shape(folder):
    test = load(folder, test_examples=5).test
    first, last = data.eval_batches(test, 4, np.array([2, 3]))
    assert {k: (v.shape, v.dtype) for k, v in last.items()} == {k: (v.shape, v.dtype) for k, v in first.items()}
    assert not any(values.any() for values in last.values())


def test_a_host_decodes_its_own_part_only(folder, monkeypatch):
    split = load(folder).train
    asked = []
    monkeypatch.setattr(dataset, "decode", lambda *args: asked.append(args) or np.zeros((SIZE, SIZE, 3), np.uint8))
    data.train_batch(split, 0, 0, 8, slice(2, 4))
    assert len(asked) == 2


@pytest.mark.parametrize("step", [1, 4, 9])
def test_a_stream_resumed_at_any_step_gives_the_crops_of_one_that_went_on(folder, step):
    split = load(folder).train
    uninterrupted = data.train_stream(split, 1, 4)
    for _ in range(step):
        next(uninterrupted)
    state = uninterrupted.get_state()
    restored = data.train_stream(split, 1, 4)
    restored.set_state(state)
    resumed = data.train_stream(load(folder, read_threads=3).train, 1, 4, start_step=step)
    for _ in range(3):
        batch = next(uninterrupted)
        assert_equal(next(resumed), batch)
        assert_equal(next(restored), batch)


def test_the_same_image_is_cropped_anew_in_every_epoch(folder):
    split = load(folder, train_examples=2).train
    seen = [np.sort(data.train_batch(split, 0, step, 2)["image"].reshape(2, -1).sum(1)) for step in range(6)]
    assert len({tuple(sums) for sums in seen}) == 6


# Statistics


def test_statistics_of_a_stream_need_no_more_than_the_sample_and_no_certain_threads(folder, monkeypatch):
    exact = load(folder)
    images = exact.train.arrays()["image"] / 255.0
    np.testing.assert_allclose(exact.mean, images.mean((0, 1, 2)), rtol=1e-6)
    np.testing.assert_allclose(exact.std, images.std((0, 1, 2)), rtol=1e-6)
    monkeypatch.setattr(dataset, "STATISTICS_SAMPLE", 5)
    asked, decode = [], dataset.decode
    monkeypatch.setattr(dataset, "decode", lambda *args: asked.append(args[0].where) or decode(*args))
    one, three = load(folder, read_threads=1), load(folder, read_threads=3)
    assert len(asked) == 10
    assert asked[:5] == sorted(asked[:5])
    np.testing.assert_array_equal([one.mean, one.std], [three.mean, three.std])
    np.testing.assert_allclose(one.mean, exact.mean, atol=0.1)


# Bad input and damage


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"name": "digits"}, "data.augment is 'resized_crop', which cuts parts out of image files, but data.name is"),
        ({"name": "synthetic"}, "use 'imagenet', or a tfds: or folder: set"),
        ({"name": "digit"}, "did you mean 'digits'"),
        ({"image_size": 0}, "data.image_size is 0; set the size that crops are resized to (say 224)"),
        ({"placement": "device"}, "data.placement is 'device'; use 'auto' or 'stream'"),
        ({"read_threads": -1}, "data.read_threads is -1; use 0 or a positive number"),
    ],
)
def test_resized_crops_that_cannot_be_are_refused(folder, fields, says):
    assert says in error(load, folder, **fields)


def test_resized_crops_are_streamed_however_small_the_set(folder):
    assert load(folder).placement == "stream"
    assert load(folder, augment="imagenet").placement == "device"


def test_an_image_that_vanishes_in_mid_run_is_named_and_its_return_goes_on_with_the_same_batches(tmp_path):
    split = load(write_folder(tmp_path)).train
    expected = [data.train_batch(split, 0, step, 4) for step in range(6)]
    stream = data.train_stream(split, 0, 4)
    assert_equal(next(stream), expected[0])
    path = training_files(tmp_path)[data.batch_indices(0, 5, 11, 4)[0]]
    path.rename(tmp_path / "aside")
    message = error(lambda: [next(stream) for _ in range(12)])
    assert f"its image {path} cannot be read" in message
    (tmp_path / "aside").rename(path)
    again = data.train_stream(split, 0, 4, start_step=2)
    for step in range(2, 6):
        assert_equal(next(again), expected[step])


def test_a_test_image_damaged_in_mid_run_is_named(tmp_path):
    test = load(write_folder(tmp_path)).test
    path = tmp_path / "test/b/05.jpg"
    path.write_bytes(path.read_bytes()[:300])
    for rows in (slice(None), slice(1, 2)):  # place 1 of the last batch is class b's last image
        message = error(lambda rows=rows: list(data.eval_batches(test, 5, rows)))
        assert f"its image {path} cannot be read" in message
    assert len(list(data.eval_batches(test, 5, slice(0, 1)))) == 2  # the host that does not read it


@pytest.mark.parametrize("name", ["../../secret.png", "/etc/passwd", "..", "", "a/b.png", "x\0.png"])
def test_a_list_of_images_that_points_elsewhere_is_refused(tmp_path, name):
    write_folder(tmp_path)
    (tmp_path / "test").rename(tmp_path / "val")
    (tmp_path / "val/val_annotations.txt").write_text(f"{name}\ta\t0\t0\t7\t7\n")
    PIL.Image.fromarray(smooth(20, 20, 0)).save(tmp_path / "secret.png")
    message = error(load, tmp_path)
    assert f"val_annotations.txt' lists {name!r}, which is not the name of a file in '{tmp_path}/val/images'" in message


def test_linked_images_and_folders_are_read(folder, tmp_path):
    (tmp_path / "train").symlink_to(folder / "train")
    for path in (folder / "test").glob("*/*"):
        link = tmp_path / "test" / path.parent.name / path.name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(path)
    linked, plain = load(tmp_path), load(folder)
    assert_equal(linked.test.arrays(), plain.test.arrays())
    assert_equal(data.train_batch(linked.train, 0, 0, 8), data.train_batch(plain.train, 0, 0, 8))


def test_the_benchmark_measures_a_folder_and_a_tfds_set_of_the_same_files(folder):
    pytest.importorskip("tensorflow_datasets")
    flags = [f"--images={folder}", "--size=16", "--cores=1", "--repeats=1", "--seconds=0.1"]
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
