"""Blank data: programs for them are those for the real set."""

import re

import jax
import numpy as np
import PIL.Image
import pytest
from data_sets import error
from ml_collections import ConfigDict

from depthmup_flax.data import DATA_DEFAULTS, dataset, load
from depthmup_flax.data import blank as blank_data
from depthmup_flax.data.blank import BlankSplit, PlannedData
from depthmup_flax.devices import sharding
from depthmup_flax.trainer.engine.device_batches import abstract_examples, abstract_train_data, put_train_data


def fields(**changed):
    return ConfigDict({**DATA_DEFAULTS, **changed})


def blank(**changed):
    return PlannedData()(fields(**changed))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("images")
    for split, count in (("train", 6), ("test", 2)):
        for label in "ab":
            (root / split / label).mkdir(parents=True)
            for i in range(count):
                PIL.Image.new("RGB", (12, 10), (i, 0, 0)).save(root / split / label / f"{i}.png")
    return root


def same_programs(one, other):
    """Whether training compiles the same for both."""
    mesh = sharding.make_mesh()
    shapes = lambda dataset: (
        dataset.placement, dataset.num_classes, dataset.input_spec, len(dataset.train), dataset.input_kind,
        abstract_examples(dataset, (4,)),
    )  # fmt: skip
    assert shapes(one) == shapes(other)
    types = lambda tree: jax.tree.map(lambda x: (x.shape, x.dtype, x.sharding), tree)
    return types(abstract_train_data(one, mesh)) == types(put_train_data(other, mesh))


@pytest.mark.parametrize("changed", [{}, {"placement": "stream"}, {"train_examples": 5}, {"augment": "resized_crop"}])
def test_a_blank_folder_has_the_shapes_and_the_placement_of_the_real_one(changed, folder, monkeypatch):
    monkeypatch.setitem(blank_data._IMAGES, "known", (12, 4, 2, None))
    gone = blank(name="folder:no/such/known", image_size=8, **changed)
    real = load(fields(name=f"folder:{folder}", image_size=8, **changed))
    assert isinstance(gone.train, BlankSplit)
    assert same_programs(gone, real)


@pytest.mark.parametrize("tokenizer", ["char", "byte"])
def test_a_blank_text_has_the_shapes_and_the_placement_of_the_real_one(tokenizer, tmp_path, monkeypatch):
    text = "".join(chr(97 + i % 26) for i in range(3000))
    (tmp_path / "text.txt").write_text(text)
    real = load(fields(name=f"text:{tmp_path}/text.txt", context=16, tokenizer=tokenizer))
    monkeypatch.setitem(blank_data._TEXTS, "known.txt", (len(text), 26))
    gone = blank(name="text:no/known.txt", context=16, tokenizer=tokenizer)
    assert same_programs(gone, real)


def test_a_set_larger_than_the_limit_is_streamed_as_in_training(monkeypatch):
    assert blank(name="tfds:cifar10").placement == "device"
    assert blank(name="tfds:imagenet2012", image_size=224).placement == "stream"
    monkeypatch.setattr(dataset, "MEMORY_LIMIT", 100 * 2**20)
    assert blank(name="tfds:cifar10").placement == "stream"


def test_data_that_are_here_are_read_once(folder):
    data = PlannedData()
    real, again = (data(fields(name=f"folder:{folder}", image_size=8)) for _ in range(2))
    assert real is again
    assert np.asarray(real.train.arrays()["image"]).any()


def test_what_a_blank_set_lacks_is_asked_for():
    assert re.search("no folder .* or synthetic", error(blank, name="folder:mine", image_size=8))
    assert re.search("no file .* data.name=text:tinyshakespeare.txt", error(blank, name="text:mine.txt"))
    assert "To plan" not in error(blank, name="python:no_module:f")
    assert "Set data.image_size" in error(blank, name="tfds:imagenet2012")


def test_a_field_that_training_refuses_is_refused_without_the_data():
    assert "data.augment" in error(blank, name="folder:no/such", augment="imagnet")
    assert "data.placement" in error(blank, name="text:no/such.txt", placement="gpu")
    assert "data.image_size" in error(blank, name="tfds:imagenet2012", augment="resized_crop")
    assert "there is no such data set" in error(blank, name="cifar10")
