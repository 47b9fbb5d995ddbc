"""Data of the user: every kind of split gives the batches of the arrays that they hold; wrong ones are one sentence."""

import collections
import itertools
import json
import pathlib
import re
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from data_sets import assert_batches_equal, error, load

from depthmup_flax import data
from depthmup_flax.data import stored_dataset
from depthmup_flax.data.dataset import chance_loss
from depthmup_flax.networks.import_paths import register
from depthmup_flax.util.errors import UserCodeError

NAME = "python:their_data:load"
PAGE = pathlib.Path(__file__).parents[2] / "docs/input.md"
X = np.random.default_rng(0).normal(size=(40, 3, 2)).astype(np.float32)
Y = np.arange(40, dtype=np.int32) % 5
PAIR = (X[:30], Y[:30]), (X[30:], Y[30:])


@pytest.fixture
def given(monkeypatch):
    """Makes its arguments the result of ``their_data:load``, and loads it with fields of config.data."""
    module = types.ModuleType("their_data")
    monkeypatch.setitem(sys.modules, "their_data", module)

    def load_given(*parts, **fields):
        module.load = lambda: parts
        return load(NAME, **fields)

    load_given.module = module
    return load_given


def batches_of(seed):
    rng = np.random.default_rng(seed)
    while True:
        rows = rng.integers(0, len(X), 8)
        yield X[rows], Y[rows]


def prepared(dataset, batch, key=None):
    return dataset.prepare("none", key, batch)


class Records(collections.UserList):
    """A source with random access that is no list."""


KINDS = {
    "pair": lambda x, y: (x, y),
    "dict": lambda x, y: {"image": x, "label": y},
    "jax": lambda x, y: (jnp.asarray(x), jnp.asarray(y)),
    "records": lambda x, y: Records([(a, int(b)) for a, b in zip(x, y, strict=True)]),
    "list of dicts": lambda x, y: [{"x": a, "y": b} for a, b in zip(x, y, strict=True)],
}


def test_the_parquet_files_of_the_page_are_read(given, tmp_path, monkeypatch):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    images = X[:, :1, :1] + np.zeros((40, 8, 8), np.float32)
    for split, rows in (("train", slice(30)), ("test", slice(30, 40))):
        columns = {"x": list(images[rows].reshape(-1, 64)), "label": Y[rows]}
        pandas.DataFrame(columns).to_parquet(tmp_path / f"{split}.parquet")
    monkeypatch.chdir(tmp_path)
    exec(re.search(r"```python\n(# my_table.py.*?)```", PAGE.read_text(), re.DOTALL)[1], scope := {})
    dataset = given(*scope["load"]())
    found, labels = prepared(dataset, dataset.train.arrays())
    np.testing.assert_array_equal(found, images[:30, ..., None])
    np.testing.assert_array_equal(labels, Y[:30])
    assert (len(dataset.test), dataset.num_classes) == (10, 5)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_split_gives_the_examples_that_it_holds(given, kind):
    dataset = given(*(KINDS[kind](*split) for split in PAIR))
    assert (len(dataset.train), len(dataset.test), dataset.unit) == (30, 10, "examples")
    batch = data.train_batch(dataset.train, seed=3, step=2, batch_size=8)
    indices = data.batch_indices(3, 2, 30, 8)
    jax.tree.map(np.testing.assert_array_equal, prepared(dataset, batch), (X[indices], Y[indices]))
    (_, last) = data.eval_batches(dataset.test, 6)
    assert last["mask"].tolist() == [1, 1, 1, 1, 0, 0]
    jax.tree.map(lambda got, want: np.testing.assert_array_equal(got[:4], want[36:]), prepared(dataset, last), (X, Y))
    assert dataset.input_spec == jax.ShapeDtypeStruct((1, 3, 2), jnp.float32)
    assert "float32[3, 2], targets int32[]" in dataset.describe()
    assert dataset.has_epochs


def test_a_source_of_grain_streams_the_batches_of_the_arrays(given):
    grain = pytest.importorskip("grain")
    source = grain.MapDataset.source(list(zip(X[:30], Y[:30], strict=True)))
    dataset = given(source, None)
    assert dataset.placement == "stream"
    assert len(dataset.test) == 0
    arrays = given(*PAIR).train
    for step, batch in zip(range(5, 8), data.train_stream(dataset.train, 1, 8, start_step=5), strict=False):
        assert_batches_equal(batch, data.train_batch(arrays, 1, step, 8))


def test_inputs_may_be_a_dict_and_an_example_may_have_a_mask(given):
    split = lambda rows: ({"left": X[rows], "mask": Y[rows] > 2}, {"deep": (X[rows], X[rows] * 2)})
    dataset = given(split(slice(30)), split(slice(30, 40)))
    (batch,) = data.eval_batches(dataset.test, 10)
    assert batch["mask"].tolist() == [1] * 10
    jax.tree.map(np.testing.assert_array_equal, prepared(dataset, batch), split(slice(30, 40)))
    spec = {"left": jax.ShapeDtypeStruct((1, 3, 2), jnp.float32), "mask": jax.ShapeDtypeStruct((1,), bool)}
    assert dataset.input_spec == spec
    assert (dataset.input_kind, dataset.num_classes) == ("arrays", 0)


@pytest.mark.parametrize(
    ("given_as", "held"), [(np.float64, np.float32), (np.int64, np.int32), (np.uint8, np.uint8), (np.float16,) * 2]
)
def test_64_bits_become_32_and_other_dtypes_stay(given, given_as, held):
    dataset = given((np.ones((4, 2), given_as), np.arange(4)), None)
    assert {x.dtype for x in dataset.train.arrays().values()} == {np.dtype(held), np.dtype(np.int32)}


def test_batches_by_seed_are_functions_of_seed_and_step(given):
    dataset = given(batches_of, (X, Y))
    assert (dataset.placement, dataset.has_epochs) == ("stream", False)
    assert data.steps_of_epoch(dataset.train, 8) is None
    written = {seed: list(itertools.islice(batches_of(seed), 30)) for seed in (0, 1)}
    # Two seeds in turn, read-ahead that a sweep repeats, a resumed run, and a run from its start.
    for seed, step in [(0, 0), (1, 0), (0, 1), (1, 1), (0, 9), (0, 7), (1, 2), (0, 29), (0, 0), (1, 29)]:
        batch = data.train_batch(dataset.train, seed, step, 8)
        jax.tree.map(np.testing.assert_array_equal, prepared(dataset, batch), written[seed][step])
    resumed = itertools.islice(data.train_stream(dataset.train, 1, 8, start_step=20, rows=np.arange(4, 8)), 3)
    for step, batch in enumerate(resumed, 20):
        wanted = jax.tree.map(lambda x: x[4:], written[1][step])
        jax.tree.map(np.testing.assert_array_equal, prepared(dataset, batch), wanted)


def test_limits_keep_as_many_examples_of_any_split(given):
    for kind in KINDS.values():
        dataset = given(kind(*PAIR[0]), kind(*PAIR[1]), train_examples=12, test_examples=4)
        assert (len(dataset.train), len(dataset.test)) == (12, 4)
        order = np.random.default_rng(0).permutation(30)[:12]
        jax.tree.map(np.testing.assert_array_equal, prepared(dataset, dataset.train.arrays()), (X[order], Y[order]))


@pytest.mark.parametrize(
    ("kind", "fields", "placement"),
    [
        ("pair", {}, "device"),
        ("pair", {"placement": "stream"}, "stream"),
        ("records", {}, "stream"),
        ("records", {"placement": "device"}, "device"),
    ],
)
def test_arrays_lie_on_the_device_and_records_are_read(given, kind, fields, placement):
    dataset = given(*(KINDS[kind](*split) for split in PAIR), **fields)
    assert dataset.placement == placement
    assert dataset.num_classes == (5 if kind == "pair" or placement == "device" else 0)


def test_prepare_is_the_users_and_has_no_key_in_evaluation(given):
    def prepare(key, batch):
        noise = 0 if key is None else jax.random.normal(key, batch["a"].shape)
        return batch["a"] + noise, batch["b"] * 3

    dataset = given({"a": X[:30], "b": Y[:30]}, {"a": X[30:], "b": Y[30:]}, prepare)
    batch = dataset.train.read(np.arange(4))
    np.testing.assert_array_equal(prepared(dataset, batch)[0], X[:4])
    key = jax.random.key(1)
    noisy = jax.jit(lambda batch: prepared(dataset, batch, key))(batch)[0]
    np.testing.assert_allclose(noisy - X[:4], jax.random.normal(key, (4, 3, 2)), atol=1e-6)
    assert dataset.num_classes == 13  # of prepared targets


KIND_CASES = {
    "image": ((np.zeros((6, 4, 4, 1), np.uint8), np.arange(6)), 6),
    "tokens": ((np.full((6, 5), 7), np.arange(30).reshape(6, 5) % 4), 8),
    "arrays": ((np.zeros((6, 4)), np.arange(6)), 6),
}


@pytest.mark.parametrize("kind", KIND_CASES)
def test_the_kind_and_the_classes_are_those_that_our_models_need(given, kind):
    split, classes = KIND_CASES[kind]
    dataset = given(split, None)
    assert (dataset.input_kind, dataset.num_classes) == (kind, classes)
    assert given((X, Y * 0), (X, Y)).num_classes == 5  # a class that only the test has counts


def test_another_dict_is_the_batch_itself_of_which_a_model_is_told_the_names(given):
    dataset = given({"left": X, "right": X}, None)
    assert prepared(dataset, dataset.train.read(np.arange(2))).keys() == {"left", "right"}
    assert "'left'" in error(lambda: dataset.input_spec)
    error(lambda: given(*PAIR, lambda key, batch: batch[0].sum()).input_spec)


def test_data_themselves_and_objects_of_this_process_may_be_named(given):
    given.module.splits = PAIR
    for name in ("their_data:splits", register(lambda: PAIR, "data"), register(PAIR, "data")):
        assert len(load(f"python:{name}").train) == 30


@pytest.mark.parametrize("own", [False, True])
def test_data_json_has_shapes_and_no_examples(given, own):
    split = {"a": X, "b": (Y, X)} if own else ({"a": X}, Y)
    prepare = [lambda key, batch: ((batch["a"], batch["b"][0]), batch["b"][1])] if own else []
    dataset = given(split, None, *prepare)
    text = json.dumps(stored_dataset.to_json(dataset))
    assert len(text) < 500
    read = stored_dataset.from_json(json.loads(text))
    for field in ("name", "num_classes", "spec", "inputs", "targets", "input_spec", "input_kind"):
        assert getattr(read, field) == getattr(dataset, field)
    batch = dataset.train.read(np.arange(3))
    if own:
        assert "prepare" in error(prepared, read, batch)
    else:
        jax.tree.map(np.testing.assert_array_equal, prepared(read, batch), ({"a": X[:3]}, Y[:3]))


def bad_record(index):
    return {"x": np.zeros(3 if index == 5 else 4), "y": 0}


def changes(seed):
    yield X[:8], Y[:8]
    yield X[:8, :2], Y[:8]


def shrinks(seed):
    yield X[:8], Y[:8]
    yield X[:7], Y[:7]


def ends(seed):
    yield X[:8], Y[:8]


@pytest.mark.parametrize(
    ("splits", "named"),
    [
        ((PAIR[0],), "result"),
        ((*PAIR, 3), "prepare"),
        (((X, Y[:9]), None), "train"),
        (((X[:0], Y[:0]), None), "train"),
        (([], None), "train"),
        (((X, np.array(["a"] * 40)), None), "train[1]"),
        (((X, np.full(40, 2**40)), None), "train[1]"),
        (((X, Y), (X[:, :2], Y)), "test"),
        (((X, Y), {"x": X, "y": Y}), "test"),
        (((X, Y), X), "test"),
        (((X, Y), iter([])), "test"),
        ((batches_of(0), None), "train"),
        ((3, None), "train"),
        (([{"x": None}], None), "train[0]['x']"),
        ((lambda seed: iter([]), None), "train(0)"),
        ((lambda seed: batches_of(None), None), "train(0)"),
    ],
)
def test_wrong_results_are_one_sentence_that_names_the_function_and_the_part(given, splits, named):
    message = error(given, *splits)
    assert message.startswith(f"data.name is {NAME!r}: ")
    assert named in message


@pytest.mark.parametrize(
    ("train", "read", "named"),
    [
        ([bad_record(i) for i in range(9)], lambda s: s.read(np.arange(9)), "train[5]"),
        ([{"x": 1}, {"y": 1}], lambda s: s.read(np.arange(2)), "train[1]"),
        (changes, lambda s: s.batch(1, 1), "train(1)[1]"),
        (shrinks, lambda s: s.batch(1, 1), "has 7 examples"),
        (ends, lambda s: s.batch(1, 1), "after 1 batches"),
        (batches_of, lambda s: data.steps_of_epoch(s, 16), "train.batch_size is 16"),
        (batches_of, lambda s: data.train_batch(s, 0, 0, 4), "train.batch_size is 4"),
    ],
)
def test_data_unlike_the_first_example_are_one_sentence_when_read(given, train, read, named):
    assert named in error(read, given(train, None).train)


@pytest.mark.parametrize(
    ("splits", "field", "value"),
    [
        (PAIR, "augment", "cifar"),
        (PAIR, "image_size", 8),
        (PAIR, "train_examples", 31),
        ((batches_of, None), "train_examples", 31),
        ((batches_of, None), "validation_fraction", 0.1),
        ((batches_of, None), "placement", "device"),
        ((PAIR[0], None), "test_examples", 3),
    ],
)
def test_fields_that_cannot_be_obeyed_are_refused(given, splits, field, value):
    assert error(given, *splits, **{field: value}).startswith(f"data.{field} is {value!r}")


def fails(*_):
    raise KeyError("theirs")


@pytest.mark.parametrize(
    ("parts", "named"),
    [
        ((PAIR[0], None, fails), "prepare"),
        ((*PAIR, lambda key, batch: batch if key is not None else fails()), "prepare"),
        ((fails, None), "train(0)"),
        ((type("Source", (list,), {"__getitem__": fails})([1]), None), "train.__getitem__(0)"),
    ],
)
def test_exceptions_of_the_user_keep_their_traceback_below_the_name_of_the_function(given, parts, named):
    with pytest.raises(UserCodeError, match="theirs") as caught:
        given(*parts)
    assert named in str(caught.value)
    assert isinstance(caught.value.__cause__, KeyError)
    given.module.load = fails
    with pytest.raises(UserCodeError, match=r"their_data:load.*theirs"):
        load(NAME)


def test_the_chance_of_a_users_targets_is_that_of_the_prepared_ones_and_numbers_have_none(given):
    rng = np.random.default_rng(0)
    x, classes = rng.normal(size=(1300, 3)), rng.integers(0, 6, 1300)
    dataset = given((x, classes), None, lambda key, batch: (batch[0], batch[1] // 2))
    assert chance_loss(dataset) == pytest.approx(np.log(3), abs=0.01)
    assert chance_loss(given((x, x[:, 0]), None)) is None


def test_the_digest_is_that_of_the_examples_or_of_a_fingerprint(given):
    records = KINDS["records"]
    assert given(*PAIR).checksums != given((X[:30] + 1, Y[:30]), PAIR[1]).checksums
    source = records(*PAIR[0])
    first = given(source, None).checksums
    source.fingerprint = lambda: "version 2"
    assert given(source, None).checksums != first


@pytest.mark.parametrize("kind", ["records", "batches"])
def test_data_that_state_their_version_are_known(given, kind):
    def source():
        return KINDS["records"](*PAIR[0]) if kind == "records" else lambda seed: itertools.repeat(PAIR[0])

    stated = [source(), source()]
    for each, version in zip(stated, ("version 1", "version 2"), strict=True):
        each.fingerprint = lambda version=version: version
    one, other = (given(each, None) for each in stated)
    assert (given(source(), None).is_known, one.is_known) == (False, True)
    assert one.checksums != other.checksums
