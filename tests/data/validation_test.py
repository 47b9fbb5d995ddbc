"""`data.validation_fraction`: examples that are evaluated come from the training set, and are not trained on."""

import collections

import numpy as np
import pytest
from data_sets import error, load, write_image

from depthmup_flax import data
from depthmup_flax.data.blank import PlannedData

INPUTS = np.arange(60, dtype=np.float32).reshape(30, 2)


def pair():
    return (INPUTS[:20], np.arange(20)), (INPUTS[20:], np.arange(20, 30))


def records():
    return [{"x": x, "y": y} for x, y in zip(INPUTS[:20], np.arange(20), strict=True)], None


def stream():
    return lambda seed: iter([{"x": INPUTS, "y": np.arange(30)}] * 100), None


def folder(tmp_path):
    for split, count in (("train", 10), ("test", 3)):
        for label in "ab":
            for i in range(count):
                shade = 100 * (label == "b") + 20 * (split == "test") + i
                write_image(tmp_path / split / label / f"{i}.png", np.full((6, 6, 3), shade, np.uint8))
    return f"folder:{tmp_path}"


def examples(split):
    """How often the split holds each example."""
    columns = split.arrays().values()
    return collections.Counter(zip(*(map(bytes, np.ascontiguousarray(x)) for x in columns), strict=True))


SOURCES = {
    "digits": lambda _: {"name": "digits"},
    "synthetic": lambda _: {"name": "synthetic", "train_examples": 40, "test_examples": 10},
    "folder": lambda path: {"name": folder(path)},
    "streamed folder": lambda path: {"name": folder(path), "placement": "stream"},
    "arrays": lambda _: {"name": f"python:{__name__}:pair"},
    "records": lambda _: {"name": f"python:{__name__}:records"},
    "limited": lambda _: {"name": "digits", "train_examples": 50, "test_examples": 5},
}


@pytest.mark.parametrize("source", SOURCES)
def test_held_out_examples_and_the_others_are_the_training_set_and_no_test_example(source, tmp_path):
    fields = SOURCES[source](tmp_path)
    whole, parts = load(**fields), load(**fields, validation_fraction=0.2)
    assert (whole.evaluated, parts.evaluated) == ("test", "validation")
    assert len(parts.test) == round(0.2 * len(whole.train))
    assert examples(parts.train) + examples(parts.test) == examples(whole.train)
    again = load(**fields, validation_fraction=0.2)
    assert examples(again.test) == examples(parts.test)
    if isinstance(parts, data.ImageDataset):  # the statistics are those of what is trained on
        assert not np.array_equal(whole.mean, parts.mean)


def test_held_out_text_is_the_end_of_the_training_text_and_in_no_training_window(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("".join(map(chr, range(0x4E00, 0x4E00 + 1000))))  # every character once
    whole, parts = (load(f"text:{path}", context=8, validation_fraction=share) for share in (0.0, 0.1))
    train, held_out, test = (set(split.arrays()["tokens"].ravel()) for split in (parts.train, parts.test, whole.test))
    assert (max(train) < 810, min(held_out), max(held_out) < 900) == (True, 810, True)
    assert not train & held_out
    assert not held_out & test
    # The limit of the test set does not cut it.
    assert len(load(f"text:{path}", context=8, validation_fraction=0.1, test_examples=2).test) == len(parts.test)


def test_a_plan_without_the_data_counts_the_examples_that_are_trained_on():
    fields = data.DataConfig(name="tfds:cifar10", validation_fraction=0.1, data_dir="/nowhere")
    planned = PlannedData()(fields)
    assert (len(planned.train), len(planned.test), planned.evaluated) == (45_000, 5_000, "validation")


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        *[
            ({"validation_fraction": share}, f"data.validation_fraction is {share!r}")
            for share in (1.0, -0.1, True, "x")
        ],
        ({"validation_fraction": 0.001, "train_examples": 100}, "of 100 training examples that holds out 0"),
        ({"validation_fraction": 0.999, "train_examples": 100}, "of 100 training examples that holds out 100"),
        ({"validation_fraction": 0.1, "name": f"python:{__name__}:stream"}, "batches(seed)"),
    ],
)
def test_a_share_that_cannot_be_held_out_is_refused(fields, says):
    assert says in error(load, **{"name": "digits", **fields})
