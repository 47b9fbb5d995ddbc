"""`load`: the sets that a name can mean, fields that limit and place them, fields that are refused."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from data_sets import error, load, load_crops, write_flat_folder

from depthmup_flax import data


def test_importing_the_data_room_imports_no_heavy_library_and_starts_no_device():
    heavy = ["tensorflow", "tensorflow_datasets", "grain", "sklearn", "PIL"]
    program = (
        "import sys, depthmup_flax.data, jax._src.xla_bridge as bridge\n"
        f"assert not [name for name in {heavy} if name in sys.modules]\n"
        "assert not bridge._backends"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(data.__file__).parents[2])


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


def test_limited_examples_are_a_fixed_mixed_subset():
    small = load(train_examples=200, test_examples=50)
    assert (len(small.train), len(small.test)) == (200, 50)
    labels = small.train.arrays()["label"]
    assert len(set(labels)) == 10
    np.testing.assert_array_equal(labels, load(train_examples=200).train.arrays()["label"])


def test_placement_auto_streams_what_exceeds_the_limit(tmp_path):
    name = f"folder:{write_flat_folder(tmp_path)}"
    assert load(name=name).placement == "device"
    assert load(name=name, device_limit_mib=0).placement == "stream"
    assert load(device_limit_mib=0).placement == "stream"


def test_unknown_data_set_lists_the_forms_and_the_closest():
    message = error(load, name="digit")
    assert "data.name is 'digit'" in message
    assert "digits, synthetic, tfds:<set>, folder:<dir> or text:<file>" in message
    assert "did you mean 'digits'" in message
    assert "'tfds:cifar10'" in error(load, name="cifar10")
    assert "'folder:/x'" in error(load, name="foldr:/x")
    assert "'text:/x.txt'" in error(load, name="/x.txt")
    assert "did you mean" not in error(load, name="folder:")


@pytest.mark.parametrize(
    ("field", "value", "remedy"),
    [
        ("augment", "cifer", "none, cifar, imagenet"),
        ("augment", "shift", "none, cifar, imagenet, resized_crop for images"),
        ("context", 32, "which is for text; leave it at 64"),
        ("tokenizer", "byte", "which is for text; leave it at 'char'"),
        (
            "suffixes",
            "png",
            "which is for folders of images; leave it at 'jpg,jpeg,png' or use data.name = 'folder:<dir>'",
        ),
        (
            "on_bad_example",
            "skip",
            "which is for image files; leave it at 'error' or use data.name = 'folder:<dir>' or",
        ),
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


@pytest.mark.parametrize("name", ["digits", "synthetic", "tfds:mnist", "text:a.txt"])
def test_fields_of_other_kinds_of_sets_are_refused(name):
    assert "data.suffixes is 'webp', which is for folders" in error(load, name=name, suffixes="webp")
    if not name.startswith("tfds:"):
        assert "data.on_bad_example is 'skip', which is for image" in error(load, name=name, on_bad_example="skip")


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"name": "digits"}, "data.augment is 'resized_crop', which crops image files, but data.name is"),
        ({"name": "synthetic"}, "use 'imagenet', or a tfds: or folder: set"),
        ({"name": "digit"}, "did you mean 'digits'"),
        ({"image_size": 0}, "data.image_size is 0; set the size that crops are resized to, such as 224"),
        ({"placement": "device"}, "data.placement is 'device'; use 'auto' or 'stream'"),
        ({"read_threads": -1}, "data.read_threads is -1; use 0 or a positive number"),
    ],
)
def test_resized_crops_that_cannot_be_are_refused(photographs, fields, says):
    assert says in error(load_crops, photographs, **fields)


def test_resized_crops_are_streamed_however_small_the_set(photographs):
    assert load_crops(photographs).placement == "stream"
    assert load_crops(photographs, augment="imagenet").placement == "device"
