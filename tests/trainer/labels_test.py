"""Labels that are no classes of the network are refused with their place, in memory, in records and in streams."""

import contextlib

import flax.linen as nn
import numpy as np
import pytest

import depthmup_flax as dm
from depthmup_flax.trainer.engine.from_config import build

X, Y = np.zeros((16, 4), np.float32), np.arange(16, dtype=np.int32) % 4
IMAGES, TOKENS = np.zeros((16, 4, 4, 3), np.uint8), np.arange(16 * 5, dtype=np.int32).reshape(16, 5) % 7


class Net(nn.Module):
    width: int
    depth: int
    classes: int = 4

    @nn.compact
    def __call__(self, x):
        return nn.Dense(self.classes)(nn.Dense(self.width)(x))


def taking(width, depth, num_classes):
    return Net(width, depth, num_classes)


def changed(labels, place, value):
    labels = labels.copy()
    labels[place] = value
    return labels


def records(x, y):
    return type("Records", (), {"__len__": lambda _: len(x), "__getitem__": lambda _, i: (x[i], y[i])})()


def stream(x, y):
    def batches(seed):
        while True:
            yield from ((x[i : i + 8], y[i : i + 8]) for i in (0, 8))

    return batches


def read(data, network=Net):
    """Reads all examples, as training and evaluation do."""
    named = isinstance(network, str)
    settings = {} if named else {"model.audit": False}
    study = dm.Study(network, data, base=(8, 2), steps=2, batch_size=8, quiet=True, settings=settings)
    dataset = build(study.config()).dataset
    for step in range(2):
        dataset.train.batch(0, step) if not dataset.has_epochs else dataset.train.read(np.arange(8) + 8 * step)
    dataset.test.read(np.arange(len(dataset.test)))


above, below = changed(Y, 13, 4), changed(Y, 13, -1)
padded = changed(TOKENS, (3, 4), -1)
WRONG = {
    "memory, above": ((X, above), (X, Y)),
    "memory, below": ((X, below), (X, Y)),
    "memory, test": ((X, Y), (X, below)),
    "records, above": (records(X, above), (X, Y)),
    "records, test": ((X, Y), records(X, below)),
    "stream, below": (stream(X, below), None),
    "stream, prepared": (stream(X, above), None, lambda key, batch: (2 * batch[0], batch[1])),
}
OF_OURS = {
    "res_mlp": ((IMAGES, below), (IMAGES, Y)),
    "gpt, targets": ((TOKENS[:, :-1], padded[:, 1:]), (TOKENS[:, :-1], TOKENS[:, 1:])),
    "gpt, inputs": ((padded[:, 1:], TOKENS[:, 1:]), (TOKENS[:, :-1], TOKENS[:, 1:])),
}


@pytest.mark.parametrize("name", [*WRONG, *OF_OURS])
def test_a_label_that_is_no_class_is_refused_with_its_place(name):
    data, network = (WRONG[name], Net) if name in WRONG else (OF_OURS[name], name.partition(",")[0])
    with pytest.raises(dm.InputError, match=r"(\[\d+\]|example \d+) has (4|-1) in its"):
        read(data, network)


@pytest.mark.parametrize("given", [((X, Y), (X, Y)), (records(X, Y), records(X, Y)), (stream(X, Y), None)])
def test_right_labels_are_read(given):
    read(given)


NOT_KNOWN = {"one-hot": np.eye(4, dtype=np.float32)[Y], "float": Y.astype(np.float32), "bool": Y > 1}


@pytest.mark.parametrize("name", [*NOT_KNOWN, "stream"])
def test_a_network_gets_no_number_of_classes_where_the_data_have_none(name):
    data = (stream(X, Y), None) if name == "stream" else ((X, NOT_KNOWN[name]), (X, NOT_KNOWN[name]))
    with pytest.raises(dm.InputError, match="num_classes"):
        read(data, taking)


GAPS = {"a mark for none": (changed(Y, 13, 255), Y), "gaps": (3 * Y, 3 * Y), "never trained": (Y, changed(Y, 3, 5))}


@pytest.mark.parametrize("name", [*GAPS, "none"])
def test_classes_without_examples_are_said_in_a_line(name, caplog):
    train, test = GAPS.get(name, (Y, Y))
    with contextlib.suppress(dm.InputError):
        read(((X, train), (X, test)))
    assert [("no training example" in record.message) for record in caplog.records] == [True] * (name in GAPS)
