"""`load`: the sources that a name can mean, fields that limit and place them, fields that are refused."""

import re
import sys

import numpy as np
import pytest
from data_sets import error, load, load_crops, write_flat_folder

from depthmup_flax import data
from depthmup_flax.config import field_comments
from depthmup_flax.data import dataset, registry
from depthmup_flax.data.registry import DataSource


def test_digits_are_1500_and_297_balanced_examples():
    digits = load(name="digits")
    assert (len(digits.train), len(digits.test), digits.num_classes) == (1500, 297, 10)
    assert digits.image_shape == (8, 8, 1)
    batch = digits.train.arrays()
    assert (batch["image"].dtype, batch["label"].dtype) == (np.uint8, np.int32)
    assert (batch["image"].min(), batch["image"].max()) == (0, 255)
    assert np.bincount(batch["label"]).min() > 140
    assert len(set(batch["label"][:40])) == 10
    np.testing.assert_array_equal(batch["image"], load().train.arrays()["image"])
    train, test = ({x.tobytes() for x in split.arrays()["image"]} for split in (digits.train, digits.test))
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
    assert len(load(name="synthetic", train_examples=5000).train) == 5000


def test_limited_examples_are_a_fixed_mixed_subset():
    small = load(train_examples=200, test_examples=50)
    assert (len(small.train), len(small.test)) == (200, 50)
    labels = small.train.arrays()["label"]
    assert len(set(labels)) == 10
    np.testing.assert_array_equal(labels, load(train_examples=200).train.arrays()["label"])


def test_placement_auto_streams_what_exceeds_the_limit(tmp_path, monkeypatch):
    name = f"folder:{write_flat_folder(tmp_path)}"
    assert load(name=name).placement == "device"
    monkeypatch.setattr(dataset, "MEMORY_LIMIT", 0)
    assert (load(name=name).placement, load().placement) == ("stream", "stream")
    assert load(placement="device").placement == "device"


def test_a_source_is_one_entry_of_the_table(monkeypatch):
    def from_mine(place, config):
        return load("digits", train_examples=len(place))

    mine = DataSource("mine:<place>", from_mine, "images", ("image_size",))
    monkeypatch.setitem(registry.SOURCES, "mine", mine)
    assert len(load("mine:a:b").train) == len("a:b")
    assert error(load, "mine:a:b", context=32).startswith("data.context is 32: ")
    assert "mine:<place>" in error(load, "mien")


def test_the_comment_of_data_name_lists_the_forms_of_all_sources():
    meaning = field_comments.of_class(data.DataConfig)["name"]
    assert re.findall(r"[a-z]+(?::<[a-z]+>)*", meaning.partition(": ")[2]) == [
        s.form for s in registry.SOURCES.values()
    ]


@pytest.mark.parametrize(("name", "meant"), [("digit", "digits"), ("foldr:/x", "folder:<dir>"), ("digits:", "digits")])
def test_an_unknown_name_lists_the_forms_and_the_closest(name, meant):
    message = error(load, name)
    assert message.startswith(f"data.name is {name!r}: ")
    assert all(source.form in message for source in registry.SOURCES.values())
    assert message.endswith(f"Did you mean {meant}?")


@pytest.mark.parametrize("name", ["folder:", "", "hf:mnist", "cifar10"])
def test_a_name_without_the_place_that_it_needs_or_of_no_source_is_refused(name):
    assert error(load, name).startswith(f"data.name is {name!r}: there is no such data set")


WRONG = [
    ("digits", "augment", "cifer"),
    ("digits", "augment", "shift"),
    ("digits", "context", 32),
    ("digits", "tokenizer", "byte"),
    ("digits", "placement", "gpu"),
    ("digits", "train_examples", -1),
    ("digits", "test_examples", 298),
    ("digits", "image_size", -8),
    ("digits", "image_size", 8.5),
    ("folder:x", "data_dir", "x"),
    ("tfds:mnist", "data_dir", "gs://x"),
    ("text:a.txt", "image_size", 32),
]


@pytest.mark.parametrize(("name", "field", "value"), WRONG)
def test_a_wrong_field_or_one_of_other_sources_is_named_with_its_value(name, field, value):
    assert error(load, name=name, **{field: value}).startswith(f"data.{field} is {value!r}")


@pytest.mark.parametrize("fields", [{"name": "digits"}, {"image_size": 0}, {"placement": "device"}])
def test_resized_crops_that_cannot_be_are_refused(photographs, fields):
    assert error(load_crops, photographs, **fields).startswith("data.augment is 'resized_crop': ")


@pytest.mark.parametrize(
    ("package", "use"),
    [
        ("sklearn", lambda folder: load("digits")),
        ("PIL", lambda folder: load("digits")),
        ("PIL", lambda folder: load(f"folder:{folder}")),
        ("grain", lambda folder: data.train_stream(load("synthetic").train, 0, 8)),
    ],
    ids=["digits-sklearn", "digits-pillow", "folder-pillow", "stream-grain"],
)
def test_a_package_that_is_missing_is_named_with_the_extra_that_installs_it(photographs, monkeypatch, package, use):
    monkeypatch.setitem(sys.modules, package, None)
    message = error(use, photographs)
    assert f"needs {package}," in message
    assert 'pip install ".[train]"' in message


def test_resized_crops_are_streamed_however_small_the_set(photographs):
    assert load_crops(photographs).placement == "stream"
    assert load_crops(photographs, augment="imagenet").placement == "device"
