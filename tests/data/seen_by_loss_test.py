"""What a loss sees of a user's batches: the same answer for every source, with and without a ``prepare``."""

import dataclasses

import grain
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from depthmup_flax.data import load
from depthmup_flax.data.dataset import DataConfig, chance_loss
from depthmup_flax.networks.import_paths import register
from depthmup_flax.trainer.engine.losses import named_loss
from depthmup_flax.util.errors import InputError

SOURCES = ("array", "records", "stream")
CLASSES = 5


class Records:
    def __init__(self, inputs, targets):
        self.inputs, self.targets = inputs, targets

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        return {"a": self.inputs[index], "b": self.targets[index]}


def pair(key, batch):
    return batch["a"], batch["b"]


def moved(key, batch):
    """Targets that only exist after it: those of the data plus 1."""
    return 2 * batch["a"], batch["b"] + 1


def masked(key, batch):
    """As of masked tokens: in training alone most targets are -100."""
    return batch["a"], batch["b"] if key is None else jnp.where(batch["b"] > 2, batch["b"], -100)


def drawn(seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(32, 3)).astype(np.float32), rng.integers(0, CLASSES, 32).astype(np.int32)


def data_set(source, inputs, targets, prepare, ignore_label=None):
    arrays = {"a": inputs, "b": targets}
    train = {"array": arrays, "records": Records(inputs, targets), "stream": lambda seed: iter([arrays] * 3)}[source]
    test = {name: np.zeros_like(x[:8]) for name, x in arrays.items()}
    place = register(lambda: (train, test, prepare), "data")
    return load(DataConfig(name=f"python:{place}", ignore_label=ignore_label))


def read_all(dataset, source):
    if source == "stream":
        dataset.train.batch(0, 0)
    else:
        dataset.train.read(np.arange(len(dataset.train)))


def look(source, inputs, targets, prepare=pair, ignore_label=None):
    dataset = data_set(source, inputs, targets, prepare, ignore_label)
    dataset.require_labels(CLASSES)
    read_all(dataset, source)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(
    "prepare", [pair, lambda key, batch: (batch["a"] * 2, batch["b"] + 0)], ids=["as is", "changed"]
)
class TestEverySource:
    @pytest.mark.parametrize("label", [-1, -100, CLASSES, 255])
    def test_refuses_a_label_that_is_no_class(self, source, prepare, label):
        inputs, targets = drawn()
        targets[11] = label
        with pytest.raises(InputError, match=rf"11\W.*{label}"):
            look(source, inputs, targets, prepare)

    def test_takes_labels_that_are_classes(self, source, prepare):
        look(source, *drawn(), prepare)

    @pytest.mark.parametrize("label", [-1, -100, 255])
    def test_takes_a_label_that_is_ignored_and_no_other(self, source, prepare, label):
        inputs, targets = drawn()
        targets[11] = label
        look(source, inputs, targets, prepare, ignore_label=label)
        targets[12] = label - 1
        with pytest.raises(InputError, match="12"):
            look(source, inputs, targets, prepare, ignore_label=label)

    def test_refuses_a_negative_probability_and_takes_an_empty_row(self, source, prepare):
        inputs, labels = drawn()
        targets = np.eye(CLASSES, dtype=np.float32)[labels]
        targets[3] = 0
        look(source, inputs, targets, prepare)
        targets[4, 2] = -0.5
        with pytest.raises(InputError, match="4"):
            look(source, inputs, targets, prepare)

    @pytest.mark.parametrize("value", [np.nan, np.inf])
    @pytest.mark.parametrize("part", [0, 1])
    def test_refuses_numbers_that_are_not_finite_by_their_index(self, source, prepare, value, part):
        inputs, labels = drawn()
        both = [inputs, np.eye(CLASSES, dtype=np.float32)[labels]]
        both[part][7, 1] = value
        with pytest.raises(InputError, match=r"7.*\[1\]"):
            look(source, *both, prepare)


@pytest.mark.parametrize("source", SOURCES)
def test_targets_that_come_out_of_prepare_are_looked_at(source):
    inputs, targets = drawn()
    targets = np.minimum(targets, CLASSES - 2)
    look(source, inputs, targets, moved)
    targets[9] = CLASSES - 1
    with pytest.raises(InputError, match=f"9.*{CLASSES}"):
        look(source, inputs, targets, moved)


@pytest.mark.parametrize("source", SOURCES)
def test_targets_that_only_training_has_are_looked_at(source):
    with pytest.raises(InputError, match="-100"):
        look(source, *drawn(), masked)
    look(source, *drawn(), masked, ignore_label=-100)


@pytest.mark.parametrize("source", SOURCES)
def test_a_missing_number_that_prepare_replaces_is_taken(source):
    inputs, targets = drawn()
    inputs[2, 2] = np.nan
    look(source, inputs, targets, lambda key, batch: (jnp.nan_to_num(batch["a"]), batch["b"]))


def test_a_test_set_is_looked_at():
    inputs, targets = drawn()
    bad = {"a": inputs * np.nan, "b": targets}
    place = register(lambda: ({"a": inputs, "b": targets}, bad, pair), "data")
    with pytest.raises(InputError, match=r"test\[0\]"):
        load(DataConfig(name=f"python:{place}"))


def test_tags_of_a_larger_vocabulary_are_taken():
    tokens = np.random.default_rng(0).integers(0, 1000, (32, 6)).astype(np.int32)
    look("array", tokens, tokens % CLASSES)


def test_ignored_labels_are_in_no_mean_as_by_optax_where():
    rng = np.random.default_rng(0)
    logits = jnp.asarray(rng.normal(size=(6, 4, CLASSES)), jnp.float32)
    labels = rng.integers(0, CLASSES, (6, 4))
    labels[rng.uniform(size=labels.shape) < 0.4] = -100
    labels[2] = -100
    counted = labels != -100
    each = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.where(counted, labels, 0))
    expected = float(jnp.sum(each * counted) / counted.sum())
    loss = named_loss("cross_entropy", ignored=-100)
    assert float(loss.in_training(logits, jnp.asarray(labels))["loss"]) == pytest.approx(expected, rel=1e-6)
    parts = [loss.evaluate(logits[k : k + 3], jnp.asarray(labels[k : k + 3]), jnp.ones(3)) for k in (0, 3)]
    assert parts[0].merge(parts[1]).means()["loss"] == pytest.approx(expected, rel=1e-6)
    kept = loss.evaluate(logits, jnp.asarray(labels), jnp.asarray([1, 1, 1, 0, 0, 0]))
    of_first = float(jnp.sum((each * counted)[:3]) / counted[:3].sum())
    assert kept.means()["loss"] == pytest.approx(of_first, rel=1e-6)


def test_gradients_of_ignored_labels_are_zero_also_if_all_are():
    loss = named_loss("cross_entropy", 0.1, ignored=-1)
    labels = jnp.array([2, -1, 3])
    gradient = jax.grad(lambda logits: loss.in_training(logits, labels)["loss"])(jnp.ones((3, CLASSES)))
    assert np.abs(gradient[1]).max() == 0 < np.abs(gradient[0]).max()
    none = jax.grad(lambda logits: loss.in_training(logits, -jnp.ones(3, jnp.int32))["loss"])(jnp.ones((3, CLASSES)))
    assert np.abs(none).max() == 0


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_soft_targets_cost_what_optax_says_whatever_they_sum_to(smoothing):
    rng = np.random.default_rng(1)
    logits = jnp.asarray(3 * rng.normal(size=(8, CLASSES)), jnp.float32)
    targets = jnp.asarray(rng.uniform(size=(8, CLASSES)) * rng.integers(0, 3, (8, 1)), jnp.float32)
    smooth = (1 - smoothing) * targets + smoothing / CLASSES
    expected = float(optax.softmax_cross_entropy(logits, smooth).mean())
    got = float(named_loss("cross_entropy", smoothing).in_training(logits, targets)["loss"])
    assert got == pytest.approx(expected, rel=1e-5)
    assert got >= 0


def test_a_batch_of_another_size_is_named_by_its_own_number():
    inputs, targets = drawn()
    arrays, short = {"a": inputs, "b": targets}, {"a": inputs[:5], "b": targets[:5]}
    place = register(lambda: (lambda seed: iter([arrays, short]), None, pair), "data")
    dataset = load(DataConfig(name=f"python:{place}"))
    with pytest.raises(InputError, match=r"\[1\] has 5 examples: the first batch has 32"):
        dataset.train.batch(0, 1)


def test_a_source_without_an_end_is_told_from_an_empty_one():
    endless = grain.MapDataset.source(list(range(8))).map(lambda i: (np.zeros(3), i)).repeat()
    place = register(lambda: (endless, None), "data")
    with pytest.raises(InputError, match="repeat"):
        load(DataConfig(name=f"python:{place}"))


@pytest.mark.parametrize(("dtype", "label"), [("uint8", 255), ("uint8", -1), ("uint8", None), ("int8", 255)])
def test_labels_of_8_bits_are_read_whatever_label_is_ignored(dtype, label):
    inputs, labels = drawn()
    targets = labels.astype(dtype)
    if label is not None and np.can_cast(np.min_scalar_type(label), dtype):
        targets[3] = label
    assert data_set("array", inputs, targets, pair, label).num_classes == CLASSES
    look("array", inputs, targets, ignore_label=label)
    counted = named_loss("cross_entropy", ignored=label).in_training(jnp.zeros((32, 300)), jnp.asarray(targets))
    np.testing.assert_allclose(counted["loss"], np.log(300), rtol=1e-6)


def test_a_label_of_8_bits_is_not_ignored_for_another_one_with_its_bits():
    losses = named_loss("cross_entropy", ignored=-1).in_training(jnp.zeros((2, 300)), jnp.array([255, 255], "uint8"))
    np.testing.assert_allclose(losses["loss"], np.log(300), rtol=1e-6)


def test_probabilities_have_no_label_that_is_ignored():
    probabilities = jnp.full((2, CLASSES), 1 / CLASSES)
    loss = named_loss("cross_entropy", ignored=-1)
    for function in (loss.in_training, loss.evaluate):
        with pytest.raises(InputError, match=r"data\.ignore_label is -1"):
            function(jnp.zeros((2, CLASSES)), probabilities)


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_split_without_a_label_that_counts_is_refused(split):
    inputs, targets = drawn()
    targets[:] = -1 if split == "train" else 0
    test = np.zeros(8, np.int32) if split == "train" else np.full(8, -1, np.int32)
    place = register(lambda: ((inputs, targets), (inputs[:8], test)), "data")
    with pytest.raises(InputError, match=split):
        load(DataConfig(name=f"python:{place}", ignore_label=-1))


@pytest.mark.parametrize("source", ["array", "records"])
def test_ignored_labels_are_not_in_the_loss_of_a_constant_guess(source):
    inputs, targets = drawn()
    targets[:] = np.arange(32) % 2
    targets[::4] = -100
    chance = chance_loss(dataclasses.replace(data_set(source, inputs, targets, pair, -100), num_classes=2))
    counts = np.unique(targets[targets != -100], return_counts=True)[1]
    share = counts / counts.sum()
    assert chance == pytest.approx(-(share * np.log(share)).sum() + 1 / (2 * counts.sum()))
