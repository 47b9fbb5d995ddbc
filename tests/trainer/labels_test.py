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
    """Reads all examples, as training and evaluation do; returns the labels of training."""
    named = isinstance(network, str)
    settings = {} if named else {"model.audit": False}
    study = dm.Study(network, data, base=(8, 2), steps=2, batch_size=8, quiet=True, settings=settings)
    dataset = build(study.config()).dataset
    batches = [
        dataset.train.read(np.arange(8) + 8 * step) if dataset.has_epochs else dataset.train.batch(0, step)
        for step in range(2)
    ]
    dataset.test.read(np.arange(len(dataset.test)))
    return np.concatenate([dataset.labels(batch) if named else dataset.spec.unflatten(batch)[1] for batch in batches])


above, below = changed(Y, 13, 4), changed(Y, 13, -1)
padded = changed(TOKENS, (3, 4), -1)
WRONG = {
    "memory, above": ((X, above), (X, Y)),
    "memory, below": ((X, below), (X, Y)),
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
    with pytest.raises(dm.InputError, match=r"\[\d.*\] is (4|-1): the network returns"):
        read(data, network)


@pytest.mark.parametrize("given", [(records(X, Y), records(X, Y)), (stream(X, Y), None)])
def test_right_labels_are_read(given):
    np.testing.assert_array_equal(read(given), Y)


@pytest.mark.parametrize("labels", [np.eye(4, dtype=np.float32)[Y], Y > 1, None])
def test_a_network_gets_no_number_of_classes_where_the_data_have_none(labels):
    data = (stream(X, Y), None) if labels is None else ((X, labels), (X, labels))
    with pytest.raises(dm.InputError, match="num_classes"):
        read(data, taking)


@pytest.mark.parametrize(("train", "test"), [(changed(Y, 13, 255), Y), (3 * Y, 3 * Y), (Y, changed(Y, 3, 5)), (Y, Y)])
def test_classes_without_examples_are_said_in_a_line(train, test, caplog):
    with contextlib.suppress(dm.InputError):
        read(((X, train), (X, test)))
    has_gaps = train is not Y or test is not Y
    assert [("no training example" in record.message) for record in caplog.records] == [True] * has_gaps
