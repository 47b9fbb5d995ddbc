"""The data room: sources, batches, augmentation, and what it says to bad input."""

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
from jax.scipy.ndimage import map_coordinates

from depthmup_flax import data
from depthmup_flax.data import augmentation
from depthmup_flax.errors import InputError

REAL = os.environ.get("DEPTHMUP_DATA", "")
needs_real = pytest.mark.skipif(not REAL, reason="DEPTHMUP_DATA names no directory of prepared sets")


def config(**fields):
    return types.SimpleNamespace(**{**data.DATA_DEFAULTS, **fields})


def load(**fields):
    return data.load(config(**fields))


def error(call, *args, **kwargs) -> str:
    with pytest.raises(InputError) as caught:
        call(*args, **kwargs)
    message = str(caught.value)
    assert "\n" not in message
    return message


def noise(height, width, channels=3, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels), np.uint8)


def write(path, pixels, mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    PIL.Image.fromarray(pixels).convert(mode).save(path)


def make_folder(root, test="test", size=(6, 6)):
    """Two classes of three training and two test images; class b is brighter."""
    for split, count in (("train", 3), (test, 2)):
        for brightness, name in ((40, "a"), (200, "b")):
            for i in range(count):
                write(root / split / name / f"{i}.png", np.full((*size, 3), brightness + i, np.uint8))
    return root


# Sources


def test_digits_are_1500_and_297_balanced_examples():
    digits = load(name="digits")
    assert (len(digits.train), len(digits.test), digits.num_classes) == (1500, 297, 10)
    assert digits.image_shape == (8, 8, 1)
    batch = digits.train.arrays()
    assert (batch["image"].dtype, batch["label"].dtype) == (np.uint8, np.int32)
    assert (batch["image"].min(), batch["image"].max()) == (0, 255)
    assert np.bincount(batch["label"]).min() > 140
    assert len(set(batch["label"][:40])) == 10


def test_digits_repeat_exactly_and_splits_do_not_overlap():
    one, two = load(), load()
    np.testing.assert_array_equal(one.train.arrays()["image"], two.train.arrays()["image"])
    train, test = ({x.tobytes() for x in split.arrays()["image"]} for split in (one.train, one.test))
    assert not train & test


def test_digits_resize_to_image_size():
    digits = load(image_size=16)
    assert digits.image_shape == (16, 16, 1)
    # Bilinear enlargement keeps the mean up to the border.
    np.testing.assert_allclose(digits.mean, load().mean, atol=0.02)


def test_synthetic_is_deterministic_and_learnable():
    synthetic = load(name="synthetic", image_size=12)
    assert (len(synthetic.train), len(synthetic.test), synthetic.image_shape) == (2048, 512, (12, 12, 3))
    train, test = synthetic.train.arrays(), synthetic.test.arrays()
    np.testing.assert_array_equal(train["image"], load(name="synthetic", image_size=12).train.arrays()["image"])
    centers = np.stack([train["image"][train["label"] == c].mean(0).ravel() for c in range(10)])
    distances = ((test["image"].reshape(512, 1, -1) - centers) ** 2).sum(-1)
    assert (distances.argmin(1) == test["label"]).mean() > 0.95


def test_synthetic_makes_as_many_examples_as_asked():
    assert len(load(name="synthetic", train_examples=5000).train) == 5000


def test_statistics_are_those_of_the_training_images():
    digits = load(name="synthetic")
    pixels = digits.train.arrays()["image"].reshape(-1, 3) / 255.0
    np.testing.assert_allclose(digits.mean, pixels.mean(0), rtol=1e-5)
    np.testing.assert_allclose(digits.std, pixels.std(0), rtol=1e-5)
    assert digits.mean.dtype == digits.std.dtype == np.float32


def test_limited_examples_are_a_fixed_mixed_subset():
    small = load(train_examples=200, test_examples=50)
    assert (len(small.train), len(small.test)) == (200, 50)
    labels = small.train.arrays()["label"]
    assert len(set(labels)) == 10
    np.testing.assert_array_equal(labels, load(train_examples=200).train.arrays()["label"])


@pytest.mark.parametrize("test", ["test", "val"])
def test_folder_reads_classes_in_sorted_order(tmp_path, test):
    folder = load(name=f"folder:{make_folder(tmp_path, test)}")
    assert (len(folder.train), len(folder.test), folder.num_classes) == (6, 4, 2)
    batch = folder.train.arrays()
    np.testing.assert_array_equal(batch["label"], [0, 0, 0, 1, 1, 1])
    np.testing.assert_array_equal(batch["image"][:, 0, 0, 0], [40, 41, 42, 200, 201, 202])


def test_folder_takes_any_case_of_extension_and_reads_gray_files_as_rgb(tmp_path):
    make_folder(tmp_path)
    write(tmp_path / "train/a/gray.JPG", np.full((6, 6, 3), 90, np.uint8), "L")
    write(tmp_path / "train/a/cmyk.JpEg", np.full((6, 6, 3), 90, np.uint8), "CMYK")
    (tmp_path / "train/a/notes.txt").write_text("not an image")
    folder = load(name=f"folder:{tmp_path}")
    assert len(folder.train) == 8
    assert folder.image_shape == (6, 6, 3)


def test_folder_reads_the_tiny_imagenet_layout(tmp_path):
    for name in ("n02", "n01"):
        write(tmp_path / "train" / name / "images" / f"{name}_0.JPEG", np.full((8, 8, 3), 50, np.uint8))
        (tmp_path / "train" / name / f"{name}_boxes.txt").write_text("")
    for i in range(2):
        write(tmp_path / "val/images" / f"val_{i}.JPEG", np.full((8, 8, 3), 100 * i, np.uint8))
    (tmp_path / "val/val_annotations.txt").write_text("val_1.JPEG\tn02\t0\t0\t7\t7\nval_0.JPEG\tn01\t0\t0\t7\t7\n")
    write(tmp_path / "test/images/test_0.JPEG", noise(8, 8))  # unlabeled in the official set
    tiny = load(name=f"folder:{tmp_path}")
    batch = tiny.test.arrays()
    np.testing.assert_array_equal(batch["label"], [1, 0])
    np.testing.assert_allclose(batch["image"][:, 4, 4, 0], [100, 0], atol=2)


def make_imagenet(root, images):
    """Two wnids of one training image each, two flat validation images, unlabeled test images, Kaggle's list."""
    for name in ("n02", "n01"):
        write(images / "train" / name / f"{name}_1.JPEG", np.full((9, 12, 3), 50, np.uint8))
    for i in (1, 2):
        write(images / "val" / f"ILSVRC2012_val_0000000{i}.JPEG", np.full((12, 9, 3), 90 * i, np.uint8))
    write(images / "test" / "ILSVRC2012_test_00000001.JPEG", noise(8, 8))
    (root / "LOC_val_solution.csv").write_text(
        "ImageId,PredictionString\n"
        "ILSVRC2012_val_00000002,n01 111 108 441 193 n01 5 6 7 8 \n"
        "ILSVRC2012_val_00000001,n02 111 108 441 193 \n"
    )
    return root


@pytest.mark.parametrize("images", [".", "ILSVRC/Data/CLS-LOC"])
def test_folder_reads_the_flat_validation_images_of_imagenet_with_kaggles_list(tmp_path, images):
    name = f"folder:{make_imagenet(tmp_path, tmp_path / images)}"
    for placement in ("device", "stream"):
        imagenet = load(name=name, image_size=8, placement=placement)
        assert (len(imagenet.train), imagenet.num_classes, imagenet.image_shape) == (2, 2, (8, 8, 3))
        batch = imagenet.test.arrays()
        np.testing.assert_array_equal(batch["label"], [1, 0])
        np.testing.assert_allclose(batch["image"][:, 4, 4, 0], [90, 180], atol=2)


def test_folder_reads_imagenet_with_the_validation_images_moved_into_class_folders(tmp_path):
    make_imagenet(tmp_path, tmp_path)
    for i, name in ((1, "n02"), (2, "n01")):
        (tmp_path / "val" / name).mkdir()
        (tmp_path / f"val/ILSVRC2012_val_0000000{i}.JPEG").rename(tmp_path / f"val/{name}/{i}.JPEG")
    for _ in range(2):  # with the list, and without it
        labels = load(name=f"folder:{tmp_path}", image_size=8).test.arrays()["label"]
        np.testing.assert_array_equal(labels, [0, 1])
        (tmp_path / "LOC_val_solution.csv").unlink(missing_ok=True)


def test_image_size_resizes_the_shorter_side_and_crops_the_center(tmp_path):
    make_folder(tmp_path)
    for split in ("train", "test"):
        # A gray frame left and right of a 40x40 square whose left half is black and right half white.
        pixels = np.full((40, 80, 3), 128, np.uint8)
        pixels[:, 20:40], pixels[:, 40:60] = 0, 255
        write(tmp_path / split / "a" / "wide.png", pixels)
    folder = load(name=f"folder:{tmp_path}", image_size=10)
    assert folder.image_shape == (10, 10, 3)
    wide = folder.train.arrays()["image"][3]
    assert wide[:, 1:4].max() == 0
    assert wide[:, 6:9].min() == 255


def test_large_jpegs_decoded_at_reduced_size_look_like_full_decoding(tmp_path):
    smooth = scipy.ndimage.gaussian_filter(noise(320, 400).astype(float), (12, 12, 0)) * 8 - 900
    make_folder(tmp_path)
    write(tmp_path / "train/a/0.jpg", np.clip(smooth, 0, 255).astype(np.uint8))
    (tmp_path / "train/a/0.png").unlink()
    image = load(name=f"folder:{tmp_path}", image_size=32).train.arrays()["image"][0]
    with PIL.Image.open(tmp_path / "train/a/0.jpg") as full:
        expected = np.asarray(full.resize((40, 32), PIL.Image.Resampling.BOX))[:, 4:36]
    assert np.abs(image.astype(float) - expected).mean() < 3


def prepare_tfds(directory, name, version, splits, shape, num_classes, text=False):
    """A real TFDS set of noise images on disk, written without TensorFlow: splits maps a split to its labels."""
    tfds = pytest.importorskip("tensorflow_datasets")

    def encoded(i):
        height, width, channels = (side or 20 + i for side in shape)
        file = io.BytesIO()
        mode = "L" if channels == 1 or i == 1 else "RGB"
        PIL.Image.fromarray(noise(height, width, 3, seed=i)).convert(mode).save(file, "PNG")
        file.seek(0)
        return file

    features = tfds.features.FeaturesDict(
        {
            "image": tfds.features.Text() if text else tfds.features.Image(shape=shape),
            "label": tfds.features.ClassLabel(num_classes=num_classes),
        }
    )
    body = {
        "VERSION": tfds.core.Version(version),
        "name": name,
        "__module__": __name__,
        "_info": lambda self: tfds.core.DatasetInfo(
            builder=self, features=features, supervised_keys=("image", "label")
        ),
        "_split_generators": lambda self, manager: {split: self._generate_examples(split) for split in splits},
        "_generate_examples": lambda self, split: (
            (i, {"image": "words" if text else encoded(i), "label": label}) for i, label in enumerate(splits[split])
        ),
    }
    with tfds.core.registered.skip_registration():
        builder = type(name, (tfds.core.GeneratorBasedBuilder,), body)
    builder(data_dir=directory, file_format="array_record").download_and_prepare()


@pytest.fixture(scope="module")
def tfds_dir(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tfds")
    labels = [0, 3, 1, 2, 9, 5, 7, 8]
    prepare_tfds(directory, "mnist", "3.0.1", {"train": labels, "test": labels[:3]}, (28, 28, 1), 10)
    prepare_tfds(directory, "cifar10", "3.0.2", {"train": labels, "test": labels[:3]}, (32, 32, 3), 10)
    imagenet = {"train": labels, "validation": labels[:4], "test": [-1, -1]}
    prepare_tfds(directory, "imagenet2012", "5.1.0", imagenet, (None, None, 3), 1000)
    return str(directory)


@pytest.mark.parametrize("placement", ["device", "stream"])
def test_tfds_sets_read_without_tensorflow(tfds_dir, placement):
    mnist = load(name="tfds:mnist", data_dir=tfds_dir, placement=placement)
    assert (mnist.image_shape, mnist.num_classes, len(mnist.train), len(mnist.test)) == ((28, 28, 1), 10, 8, 3)
    cifar = load(name="tfds:cifar10", data_dir=tfds_dir, placement=placement)
    assert cifar.image_shape == (32, 32, 3)
    labels = cifar.train.arrays()["label"]
    assert sorted(labels) == [0, 1, 2, 3, 5, 7, 8, 9]
    # TFDS shuffles as it writes: the example with label 0 holds the image of seed 0.
    image = cifar.train.read(np.flatnonzero(labels == 0))["image"]
    np.testing.assert_array_equal(image[0], noise(32, 32, seed=0))
    assert "tensorflow" not in sys.modules


def test_tfds_uses_validation_where_test_has_no_labels(tfds_dir):
    imagenet = load(name="tfds:imagenet2012", data_dir=tfds_dir, image_size=16, placement="stream")
    assert (len(imagenet.test), imagenet.num_classes, imagenet.image_shape) == (4, 1000, (16, 16, 3))


def test_tfds_reads_gray_files_of_a_color_set(tfds_dir):
    imagenet = load(name="tfds:imagenet2012", data_dir=tfds_dir, image_size=16)
    batch = imagenet.train.arrays()
    (gray,) = batch["image"][batch["label"] == 3]
    np.testing.assert_array_equal(gray[..., 0], gray[..., 2])


def test_placement_auto_streams_what_exceeds_the_limit(tmp_path):
    name = f"folder:{make_folder(tmp_path)}"
    assert load(name=name).placement == "device"
    assert load(name=name, device_limit_mib=0).placement == "stream"
    assert load(device_limit_mib=0).placement == "stream"


def test_streamed_set_equals_the_set_in_memory(tmp_path):
    name = f"folder:{make_folder(tmp_path)}"
    memory, stream = load(name=name, placement="device"), load(name=name, placement="stream")
    for field in ("image", "label"):
        np.testing.assert_array_equal(memory.train.arrays()[field], stream.train.arrays()[field])
    np.testing.assert_allclose(memory.mean, stream.mean, rtol=1e-6)


@needs_real
def test_real_cifar10_has_its_known_statistics():
    cifar = load(name="tfds:cifar10", data_dir=f"{REAL}/tfds", placement="stream")
    assert (len(cifar.train), len(cifar.test), cifar.image_shape) == (50000, 10000, (32, 32, 3))
    np.testing.assert_allclose(cifar.mean, [0.4914, 0.4822, 0.4465], atol=0.005)
    np.testing.assert_allclose(cifar.std, [0.2470, 0.2435, 0.2616], atol=0.005)
    small = load(name="tfds:cifar10", data_dir=f"{REAL}/tfds", train_examples=500, test_examples=100)
    assert np.bincount(small.train.arrays()["label"], minlength=10).min() > 20


@needs_real
def test_real_tiny_imagenet_loads_in_its_official_layout():
    tiny = load(name=f"folder:{REAL}/tiny-imagenet-200", train_examples=500, test_examples=200)
    classes = len(os.listdir(f"{REAL}/tiny-imagenet-200/train"))
    assert (tiny.num_classes, tiny.image_shape) == (classes, (64, 64, 3))
    assert len(set(tiny.test.arrays()["label"])) == classes


def test_importing_the_data_room_imports_no_heavy_library_and_starts_no_device():
    heavy = ["tensorflow", "tensorflow_datasets", "grain", "sklearn", "PIL"]
    program = (
        "import sys, depthmup_flax.data, jax._src.xla_bridge as bridge\n"
        f"assert not [name for name in {heavy} if name in sys.modules]\n"
        "assert not bridge._backends"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(data.__file__).parents[2])


# Batches


def test_batch_indices_walk_through_a_fresh_permutation_each_epoch():
    epochs = [
        np.concatenate([data.batch_indices(0, step, 24, 4) for step in range(start, start + 6)]) for start in (0, 6)
    ]
    for epoch in epochs:
        np.testing.assert_array_equal(np.sort(epoch), np.arange(24))
    assert (epochs[0] != epochs[1]).any()


def test_batch_indices_drop_the_remainder():
    assert data.steps_per_epoch(26, 4) == 6
    used = np.concatenate([data.batch_indices(0, step, 26, 4) for step in range(6)])
    assert len(set(used)) == 24


def test_batch_indices_are_a_pure_function_of_seed_and_step():
    first = data.batch_indices(3, 17, 100, 8)
    assert first.dtype == np.int32
    expected = first.copy()
    first[:] = 0  # the caller's copy
    for step in range(100):
        data.batch_indices(4, step, 100, 8)
    np.testing.assert_array_equal(data.batch_indices(3, 17, 100, 8), expected)
    assert (data.batch_indices(4, 17, 100, 8) != expected).any()


@pytest.fixture
def streamed(tmp_path):
    return load(name=f"folder:{make_folder(tmp_path)}", placement="stream").train


def assert_batches_equal(batch, expected):
    assert batch.keys() == expected.keys()
    for field in expected:
        np.testing.assert_array_equal(batch[field], expected[field])


def test_stream_gives_the_batches_of_training_in_memory(tmp_path, streamed):
    memory = load(name=f"folder:{tmp_path}", placement="device").train
    stream = data.train_stream(streamed, seed=5, batch_size=2)
    for step in range(8):  # more than two epochs
        assert_batches_equal(next(stream), memory.read(data.batch_indices(5, step, 6, 2)))


def test_stream_starts_at_any_step_and_reads_the_rows_of_one_host(streamed):
    stream = data.train_stream(streamed, 5, 4, start_step=1001, rows=slice(2, 4))
    assert_batches_equal(next(stream), streamed.read(data.batch_indices(5, 1001, 6, 4)[2:4]))


@pytest.mark.parametrize("start_step", [0, 7])
def test_stream_resumes_exactly_from_its_saved_state(streamed, start_step):
    stream = data.train_stream(streamed, 5, 2, start_step=start_step)
    for _ in range(3):
        next(stream)
    state = stream.get_state()
    expected = [next(stream) for _ in range(4)]
    resumed = data.train_stream(streamed, 5, 2)
    resumed.set_state(state)
    for batch in expected:
        assert_batches_equal(next(resumed), batch)


@pytest.mark.parametrize("batch_size", [64, 99, 300])
def test_eval_batches_cover_every_example_once_in_order(batch_size):
    test = load().test
    batches = list(data.eval_batches(test, batch_size))
    assert {batch["image"].shape[0] for batch in batches} == {batch_size}
    real = np.concatenate([batch["mask"] for batch in batches]) == 1
    assert real.sum() == 297
    for field, values in test.arrays().items():
        np.testing.assert_array_equal(np.concatenate([batch[field] for batch in batches])[real], values)


# Augmentation

IMAGES = np.stack([noise(32, 32, seed=i) for i in range(8)])


def test_augment_none_only_rescales():
    out = data.augment("none", jax.random.key(0), jnp.asarray(IMAGES))
    assert out.dtype == jnp.float32
    np.testing.assert_allclose(out, IMAGES / 255.0, rtol=1e-6)


@pytest.mark.parametrize("name", ["none", "cifar", "imagenet"])
@pytest.mark.parametrize("channels", [1, 3])
def test_augment_gives_images_in_0_to_1_for_bytes_and_floats(name, channels):
    images = jnp.asarray(IMAGES[..., :channels])
    transform = jax.jit(lambda key, x: data.augment(name, key, x))
    out = transform(jax.random.key(0), images)
    assert (out.shape, out.dtype) == (images.shape, jnp.float32)
    assert 0 <= out.min() < out.max() <= 1
    np.testing.assert_allclose(transform(jax.random.key(0), images.astype(jnp.float32)), out, atol=1e-6)


@pytest.mark.parametrize("name", ["cifar", "imagenet"])
def test_augment_differs_per_example_and_key_and_repeats_per_key(name):
    same = jnp.asarray(np.repeat(IMAGES[:1], 8, axis=0))
    transform = jax.jit(lambda key: data.augment(name, key, same))
    one, again, other = (transform(jax.random.key(seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, again)
    assert np.abs(one - other).max(axis=(1, 2, 3)).min() > 0
    assert len({np.asarray(image).tobytes() for image in one}) == 8


@pytest.mark.parametrize("name", ["cifar", "imagenet"])
def test_augment_of_an_example_depends_on_its_own_key_only(name):
    key = jax.random.key(0)
    mixed = IMAGES.copy()
    mixed[1:] = 0
    np.testing.assert_allclose(
        data.augment(name, key, jnp.asarray(mixed))[0], data.augment(name, key, jnp.asarray(IMAGES))[0], atol=1e-6
    )


def test_augment_maps_over_keys():
    keys = jax.random.split(jax.random.key(0), 3)
    out = jax.vmap(lambda key: data.augment("cifar", key, jnp.asarray(IMAGES)))(keys)
    np.testing.assert_allclose(out[2], data.augment("cifar", keys[2], jnp.asarray(IMAGES)), atol=1e-5)


def test_flips_preserve_the_histogram_and_mirror_half_of_the_images():
    image = jnp.asarray(IMAGES[0])
    flipped = jax.vmap(augmentation.random_flip, (0, None))(jax.random.split(jax.random.key(0), 400), image)
    np.testing.assert_array_equal(np.sort(flipped[:20].reshape(20, -1)), np.sort(image.reshape(1, -1)).repeat(20, 0))
    mirrored = (flipped == image[:, ::-1]).all((1, 2, 3))
    assert ((flipped == image).all((1, 2, 3)) ^ mirrored).all()
    assert 0.4 < mirrored.mean() < 0.6


def test_crops_shift_by_at_most_an_eighth_of_the_side():
    image = jnp.asarray(IMAGES[0], jnp.float32)
    padded = np.pad(image, ((4, 4), (4, 4), (0, 0)))
    windows = {padded[i : i + 32, j : j + 32].tobytes(): (i, j) for i in range(9) for j in range(9)}
    crops = jax.vmap(augmentation.random_crop, (0, None))(jax.random.split(jax.random.key(0), 600), image)
    assert {windows[np.asarray(crop).tobytes()] for crop in crops} == set(windows.values())


@pytest.mark.parametrize("degrees", [-90, 90, 8])
def test_rotation_has_the_direction_and_center_of_pillow(degrees):
    smooth = scipy.ndimage.gaussian_filter(noise(31, 31, 1)[..., 0].astype(np.float32), 2)
    ours = augmentation.affine_warp(jnp.asarray(smooth)[..., None], jnp.radians(degrees), 0.0, 1.0)[..., 0]
    theirs = np.asarray(PIL.Image.fromarray(smooth).rotate(degrees, PIL.Image.Resampling.BILINEAR))
    np.testing.assert_allclose(ours[3:-3, 3:-3], theirs[3:-3, 3:-3], atol=0.05)
    if abs(degrees) == 90:
        np.testing.assert_allclose(ours, np.rot90(smooth, degrees // 90), atol=1e-3)


def test_positions_between_pixels_have_the_values_of_jax_scipy():
    image = jax.random.uniform(jax.random.key(0), (7, 9, 3))
    rows, columns = jax.random.uniform(jax.random.key(1), (2, 200), minval=-2.0, maxval=10.0)
    expected = [map_coordinates(image[..., c], (rows, columns), order=1, mode="constant") for c in range(3)]
    ours = augmentation._bilinear(image, rows, columns)
    np.testing.assert_allclose(ours, jnp.stack(expected, -1), atol=1e-6)


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
    np.testing.assert_allclose(augmentation.affine_warp(jnp.asarray(image), angle, shear, scale), expected, atol=0.05)


def test_color_jitter_of_gray_images_keeps_them_gray_and_bounded():
    gray = jnp.asarray(np.repeat(IMAGES[0][..., :1], 3, axis=-1)) / 255
    out = augmentation.color_jitter(jax.random.key(0), gray)
    np.testing.assert_allclose(out[..., 0], out[..., 2], atol=1e-6)
    flat = jnp.full((4, 4, 3), 0.5)
    levels = jax.vmap(augmentation.color_jitter, (0, None))(jax.random.split(jax.random.key(0), 200), flat)[:, 0, 0, 0]
    # Contrast and saturation leave a flat gray image alone, so only brightness shows.
    assert 0.4 <= levels.min() < 0.41
    assert 0.59 < levels.max() <= 0.6


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
    moved, _ = digits.prepare("imagenet", jax.random.key(0), batch)
    expected = data.augment("imagenet", jax.random.key(0), batch["image"])
    np.testing.assert_array_equal(moved, data.normalize(expected, digits.mean, digits.std))
    assert plain.shape[1:] == digits.input_spec.shape[1:]
    assert plain.dtype == digits.input_spec.dtype


# Bad input


def test_unknown_data_set_lists_the_forms_and_the_closest():
    message = error(load, name="digit")
    assert "data.name is 'digit'" in message
    assert "digits, synthetic, tfds:<set>, folder:<dir> or text:<file>" in message
    assert "did you mean 'digits'" in message
    assert "'tfds:cifar10'" in error(load, name="cifar10")
    assert "'folder:/x'" in error(load, name="foldr:/x")
    assert "'text:/x.txt'" in error(load, name="/x.txt")
    assert "did you mean" not in error(load, name="folder:")


def test_unknown_tfds_set_names_the_closest(tfds_dir):
    message = error(load, name="tfds:cifar11", data_dir=tfds_dir)
    assert "data.name is 'tfds:cifar11', which is not a TFDS set; did you mean" in message
    assert " 'tfds:cifar10' " in message


@pytest.mark.parametrize("name", ["cifar10_corrupted/fog_9", "cifar10:1.0.0", "two words"])
def test_unknown_tfds_config_version_or_syntax_is_refused(tfds_dir, name):
    assert f"data.name is 'tfds:{name}', which" in error(load, name=f"tfds:{name}", data_dir=tfds_dir)


def test_missing_data_dir_is_named(tmp_path):
    pytest.importorskip("tensorflow_datasets")
    message = error(load, name="tfds:cifar10", data_dir=f"{tmp_path}/absent")
    assert f"data.data_dir is '{tmp_path}/absent'" in message


# The code of coco needs TensorFlow to import, the code of cifar100 does not.
@pytest.mark.parametrize("name", ["cifar100", "coco"])
def test_unprepared_tfds_set_gives_the_commands_that_prepare_it(tfds_dir, name):
    message = error(load, name=f"tfds:{name}", data_dir=tfds_dir)
    assert 'pip install "depthmup-flax[tfds-prepare]"' in message
    assert f"tfds build {name} --data_dir={tfds_dir} --file_format=array_record" in message
    assert not os.path.exists(f"{tfds_dir}/{name}")


def test_tfds_set_without_random_access_gives_the_command_that_rebuilds_it(tmp_path):
    prepare_tfds(tmp_path, "mnist", "3.0.1", {"train": [1], "test": [1]}, (28, 28, 1), 10)
    path = tmp_path / "mnist/3.0.1/dataset_info.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "fileFormat": "tfrecord"}))
    message = error(load, name="tfds:mnist", data_dir=str(tmp_path))
    assert "prepared as tfrecord" in message
    assert "--file_format=array_record --overwrite" in message


def test_tfds_set_that_is_not_image_classification_is_refused(tmp_path):
    prepare_tfds(tmp_path, "texts", "1.0.0", {"train": [1]}, (4, 4, 3), 10, text=True)
    assert "not image classification" in error(load, name="tfds:texts", data_dir=str(tmp_path))


def test_tfds_set_without_test_examples_is_refused(tmp_path):
    prepare_tfds(tmp_path, "trainonly", "1.0.0", {"train": [1]}, (4, 4, 3), 10)
    assert "no labeled test or validation split" in error(load, name="tfds:trainonly", data_dir=str(tmp_path))


def test_tfds_set_is_cropped_alike_on_one_host_and_on_two(tfds_dir):
    fields = {"name": "tfds:imagenet2012", "data_dir": tfds_dir, "image_size": 12, "augment": "resized_crop"}
    split = load(**fields).train
    for step, batch in zip(range(2, 5), data.train_stream(split, 0, 4, start_step=2), strict=False):
        for rows in (slice(0, 2), slice(2, 4)):
            part = data.train_batch(split, 0, step, 4, rows)
            assert_batches_equal(part, {field: values[rows] for field, values in batch.items()})


@pytest.mark.parametrize("template", ["../../../other/{SPLIT}", "/other/{SPLIT}", "deeper/{SPLIT}"])
def test_tfds_metadata_that_points_elsewhere_is_refused(tmp_path, template):
    prepare_tfds(tmp_path, "moved", "1.0.0", {"train": [1], "test": [1]}, (4, 4, 3), 10)
    path = tmp_path / "moved/1.0.0/dataset_info.json"
    info = json.loads(path.read_text())
    info["splits"][1]["filepathTemplate"] = template + ".{FILEFORMAT}-{SHARD_X_OF_Y}"
    path.write_text(json.dumps(info))
    message = error(load, name="tfds:moved", data_dir=str(tmp_path))
    assert "dataset_info.json places the test split at" in message
    assert f"outside '{tmp_path}/moved/1.0.0'; correct its filepathTemplate" in message


def test_damaged_tfds_files_are_named_at_the_start_and_in_mid_run(tmp_path):
    labels = list(range(10)) * 30
    prepare_tfds(tmp_path, "damaged", "1.0.0", {"train": labels, "test": [1]}, (28, 28, 1), 10)
    opened = load(name="tfds:damaged", data_dir=str(tmp_path), placement="stream")
    (file,) = (tmp_path / "damaged/1.0.0").glob("*train*")
    whole = file.read_bytes()
    with file.open("r+b") as damaged:
        damaged.seek(len(whole) // 2)
        damaged.write(b"x" * 3000)
    message = error(lambda: [next(data.train_stream(opened.train, 0, 150, start_step=step)) for step in (0, 1)])
    assert "data.name is 'tfds:damaged', but the files of its train split cannot be read (" in message
    assert f"tfds build damaged --data_dir={tmp_path} --file_format=array_record --overwrite" in message
    file.write_bytes(whole[: len(whole) // 2])
    assert "the files of its train split cannot be read" in error(load, name="tfds:damaged", data_dir=str(tmp_path))


def test_absent_tfds_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    assert 'pip install "depthmup-flax[tfds]"' in error(load, name="tfds:cifar10")


def test_absent_folder_is_named(tmp_path):
    assert f"there is no folder '{tmp_path}/absent'" in error(load, name=f"folder:{tmp_path}/absent")


def test_folder_without_classes_images_or_test_is_refused(tmp_path):
    name = f"folder:{tmp_path}"
    (tmp_path / "train").mkdir()
    assert "has no class folders" in error(load, name=name)
    (tmp_path / "train/a").mkdir()
    assert f"'{tmp_path}/train/a' holds no .jpg, .jpeg or .png image" in error(load, name=name)
    write(tmp_path / "train/a/0.png", noise(4, 4))
    assert "neither test/ nor val/" in error(load, name=name)
    (tmp_path / "test/a").mkdir(parents=True)
    assert "holds no images" in error(load, name=name)


def test_test_class_outside_train_is_named(tmp_path):
    make_folder(tmp_path)
    write(tmp_path / "test/zebra/0.png", noise(6, 6))
    message = error(load, name=f"folder:{tmp_path}")
    assert "'zebra'" in message
    assert "not among the folders of train/" in message


def test_folder_without_class_folders_for_testing_is_refused(tmp_path):
    make_imagenet(tmp_path, tmp_path)
    listing = tmp_path / "LOC_val_solution.csv"
    listing.unlink()
    message = error(load, name=f"folder:{tmp_path}", image_size=8)
    assert f"the images in '{tmp_path}/val' have no class folders" in message
    assert f"ImageNet's LOC_val_solution.csv at '{listing}'" in message
    for image in (tmp_path / "val").iterdir():
        image.unlink()
    assert f"'{tmp_path}/test' has no class folders" in error(load, name=f"folder:{tmp_path}", image_size=8)


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ("", "is not lines of ImageId,PredictionString"),
        ("Id,Class\nILSVRC2012_val_00000001,n01\n", "is not lines of ImageId,PredictionString"),
        ("ImageId,PredictionString\nILSVRC2012_val_00000001,\n", "with a class in each"),
        ("ImageId,PredictionString\nILSVRC2012_val_00000001,n01 1\n", "has no line for"),
        (
            "ImageId,PredictionString\nILSVRC2012_val_00000001,n01\nILSVRC2012_val_00000002,n09 1\n",
            "the test class 'n09'",
        ),
        (
            "ImageId,PredictionString\n" + "".join(f"ILSVRC2012_val_0000000{i},n01 1\n" for i in (1, 2, 3)),
            "has no image 'ILSVRC2012_val_00000003'",
        ),
    ],
)
def test_a_list_of_validation_classes_that_does_not_fit_is_named(lines, says, tmp_path):
    make_imagenet(tmp_path, tmp_path)
    (tmp_path / "LOC_val_solution.csv").write_text(lines)
    message = error(load, name=f"folder:{tmp_path}", image_size=8)
    assert says in message
    assert f"{tmp_path}/LOC_val_solution.csv" in message


def test_damaged_annotations_are_named(tmp_path):
    make_folder(tmp_path, "val")
    (tmp_path / "val/val_annotations.txt").write_text("val_0.JPEG n01\n")
    assert "val_annotations.txt' is not lines of" in error(load, name=f"folder:{tmp_path}")


def test_corrupt_image_is_named_in_memory_and_in_a_stream(tmp_path):
    name = f"folder:{make_folder(tmp_path)}"
    bad = tmp_path / "train/b/1.png"
    bad.write_bytes(bad.read_bytes()[:45])
    message = error(load, name=name, placement="device")
    assert f"image {bad} cannot be read" in message
    make_folder(tmp_path)
    stream = data.train_stream(load(name=name, placement="stream").train, 0, 6)
    bad.write_bytes(b"")
    assert f"image {bad} cannot be read" in error(lambda: [next(stream) for _ in range(10)])


def test_unequal_image_sizes_name_two_files_and_the_remedy(tmp_path):
    make_folder(tmp_path)
    write(tmp_path / "test/b/odd.png", noise(6, 9))
    message = error(load, name=f"folder:{tmp_path}")
    assert f"{tmp_path}/train/a/0.png is 6x6x3 and {tmp_path}/test/b/odd.png is 6x9x3" in message
    assert "set data.image_size (say 6)" in message


def test_label_out_of_range_is_named_when_streaming(tmp_path):
    prepare_tfds(tmp_path, "partly", "1.0.0", {"train": [1] * 4, "test": [-1, 2]}, (4, 4, 3), 10)
    partly = load(name="tfds:partly", data_dir=str(tmp_path), placement="stream")
    assert "of the test split of tfds:partly is -1, outside 0..9" in error(partly.test.arrays)


@pytest.mark.parametrize("label", [-1, 4])
def test_label_out_of_range_is_named(label):
    images, labels = np.zeros((5, 4, 4, 1), np.uint8), np.array([0, 1, 2, label, label])
    message = error(data.from_arrays, images, np.arange(5) % 4, images, labels, num_classes=4, name="mine")
    assert f"data set 'mine', test split: the label at index 3 is {label}, outside 0..3" in message


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_in_images_is_counted_and_located(value):
    images, labels = np.zeros((5, 4, 4, 1), np.float32), np.zeros(5, int)
    bad = images.copy()
    bad[[2, 4], 1, 1, 0] = value
    message = error(data.from_arrays, bad, labels, images, labels)
    assert "train split: 2 of 5 images hold NaN or infinite values, the first at index 2" in message


@pytest.mark.parametrize(
    ("images", "labels", "says"),
    [
        (np.zeros((5, 4, 4, 1), np.uint8), np.zeros(4, int), "images [N, H, W, C] and labels [N]"),
        (np.zeros((5, 4, 4), np.uint8), np.zeros(5, int), "images [N, H, W, C] and labels [N]"),
        (np.zeros((0, 4, 4, 1), np.uint8), np.zeros(0, int), "N > 0"),
        (np.zeros((5, 4, 4, 1), np.uint8), np.zeros(5), "labels are float64"),
        (np.zeros((5, 4, 4, 1), np.int64), np.zeros(5, int), "images are int64"),
        (np.zeros((5, 4, 5, 1), np.uint8), np.zeros(5, int), "train images are 4x5x1 but test images are 4x4x1"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(images, labels, says):
    good = np.zeros((5, 4, 4, 1), np.uint8), np.zeros(5, int)
    assert says in error(data.from_arrays, images, labels, *good)


def test_batch_larger_than_the_set_is_refused():
    for call in (
        lambda: data.batch_indices(0, 0, 10, 11),
        lambda: data.steps_per_epoch(10, 11),
        lambda: data.train_stream(load(train_examples=10).train, 0, 11),
    ):
        message = error(call)
        assert "batch_size is 11" in message
        assert "10 training examples" in message


@pytest.mark.parametrize(
    ("field", "value", "remedy"),
    [
        ("augment", "cifer", "none, cifar, imagenet"),
        ("augment", "shift", "none, cifar, imagenet, resized_crop for images"),
        ("context", 32, "which is for text; leave it at 64"),
        ("tokenizer", "byte", "which is for text; leave it at 'char'"),
        ("placement", "gpu", "auto, device, stream"),
        ("train_examples", -1, "use 0"),
        ("test_examples", 298, "there are 297"),
        ("image_size", -8, "use 0"),
    ],
)
def test_bad_field_is_named_with_its_value_and_remedy(field, value, remedy):
    message = error(load, **{field: value})
    assert f"data.{field} is {value!r}" in message
    assert remedy in message


def test_unknown_augmentation_is_refused_on_the_device_too():
    assert "data.augment is 'cifer'" in error(data.augment, "cifer", jax.random.key(0), jnp.asarray(IMAGES))
    assert "data.augment is 'cifar', which is random" in error(data.augment, "cifar", None, jnp.asarray(IMAGES))
