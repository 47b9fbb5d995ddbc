"""Examples that cannot be decoded are skipped alike in memory, in a stream, on every host and after a resume."""

import os

import numpy as np
import pytest
from data_sets import assert_batches_equal, error, load, load_crops, smooth, write_image

from depthmup_flax import data
from depthmup_flax.data import decoding
from depthmup_flax.data.sources import source

BAD_TRAIN = (0, 4, 5, 23)  # the first, two in a row, the last
BAD_TEST = (2, 11)


def write_set(root, bad_train=BAD_TRAIN, bad_test=BAD_TEST, count=24):
    """Two classes of 12 training and 12 test images; image i of a split has color 10 i, and bad ones are empty."""
    for split in ("train", "test"):
        for i in range(count):
            path = root / split / "ab"[i >= count // 2] / f"{i:02}.png"
            write_image(path, np.full((4, 4, 3), 10 * i, np.uint8))
    for split, bad in (("train", bad_train), ("test", bad_test)):
        for i in bad:
            (root / split / "ab"[i >= count // 2] / f"{i:02}.png").write_bytes(b"")
    return root


def skipping(root, **fields):
    return load(name=f"folder:{root}", on_bad_example="skip", **fields)


def ids(batch):
    return (batch["image"][:, 0, 0, 0] // 10).tolist()


@pytest.fixture(autouse=True)
def _many_may_be_bad(monkeypatch):
    monkeypatch.setattr(decoding, "MOST_BAD", 0.25)


def test_by_default_a_bad_example_is_an_error(tmp_path):
    message = error(load, name=f"folder:{write_set(tmp_path, bad_train=(4,))}")
    assert f"its image {tmp_path}/train/a/04.png cannot be read (it is empty)" in message
    assert message.endswith("set data.on_bad_example=skip.")


@pytest.mark.parametrize("placement", ["device", "stream"])
def test_the_next_good_example_takes_the_place_of_a_bad_one_in_training(tmp_path, placement):
    train = skipping(write_set(tmp_path), placement=placement).train
    replaced = {0: 1, 4: 6, 5: 6, 23: 1}
    batch = train.arrays()
    assert ids(batch) == [replaced.get(i, i) for i in range(24)]
    np.testing.assert_array_equal(batch["label"], [replaced.get(i, i) >= 12 for i in range(24)])


@pytest.mark.parametrize("placement", ["device", "stream"])
def test_the_test_counts_each_good_example_once_on_one_host_and_on_two(tmp_path, placement):
    test = skipping(write_set(tmp_path), placement=placement).test
    good = [i for i in range(24) if i not in BAD_TEST]
    listed = good if placement == "device" else list(range(24))  # a stream has zeros in place of bad examples
    for rows in (slice(None), slice(0, 3), slice(3, 5)):
        batches = list(data.eval_batches(test, 5, rows))
        counted = [i for batch in batches for i in np.array(ids(batch))[batch["mask"] > 0]]
        places = [listed[start : start + 5][rows] for start in range(0, 24, 5)]
        assert counted == [i for batch in places for i in batch if i in good]
        labels = [label for batch in batches for label in batch["label"][batch["mask"] > 0]]
        assert labels == [i >= 12 for i in counted]
        assert all(len(batch["mask"]) == len(range(5)[rows]) for batch in batches)


def test_streams_memory_two_hosts_and_a_resumed_run_see_the_same_batches(tmp_path):
    memory = skipping(write_set(tmp_path), placement="device")
    expected = [data.train_batch(memory.train, 3, step, 8) for step in range(9)]
    assert any(i in ids(batch) for batch in expected for i in (1, 6))
    for start in (0, 4):
        stream = data.train_stream(skipping(tmp_path, placement="stream").train, 3, 8, start_step=start)
        for step in range(start, 9):
            assert_batches_equal(next(stream), expected[step])
    hosts = [skipping(tmp_path, placement="stream").train for _ in range(2)]
    for step in (8, 0, 5):
        for train, rows in zip(hosts, (slice(0, 5), slice(5, 8)), strict=True):
            part = data.train_batch(train, 3, step, 8, rows)
            assert_batches_equal(part, {field: values[rows] for field, values in expected[step].items()})


def test_a_replacement_is_cropped_by_the_draws_of_the_place_it_takes(tmp_path, caplog):
    image = smooth(40, 50, 7)  # the same everywhere
    for i in range(24):
        write_image(tmp_path / f"train/a/{i:02}.png", image)
    write_image(tmp_path / "test/a/0.png", image)
    expected = data.train_batch(load_crops(tmp_path).train, 0, 0, 24)
    (tmp_path / "train/a/05.png").write_bytes(b"")
    assert_batches_equal(data.train_batch(load_crops(tmp_path, on_bad_example="skip").train, 0, 0, 24), expected)
    assert "05.png" in caplog.text


def test_statistics_are_those_of_what_is_trained_on(tmp_path):
    memory, stream = (skipping(write_set(tmp_path), placement=placement) for placement in ("device", "stream"))
    colors = memory.train.arrays()["image"][..., 0] / 255
    for dataset in (memory, stream):
        np.testing.assert_allclose(dataset.mean, np.full(3, colors.mean()), rtol=1e-5)
        np.testing.assert_allclose(dataset.std, np.full(3, colors.std()), rtol=1e-5)


def test_a_bad_example_warns_once_for_each_split_and_all_are_marked(tmp_path, caplog):
    write_set(tmp_path)
    dataset = skipping(tmp_path, placement="device")
    train, test = caplog.messages
    assert train.startswith(
        f"data.name is 'folder:{tmp_path}': its image {tmp_path}/train/a/00.png cannot be read (it is empty). "
    )
    assert f"its image {tmp_path}/test/" in test
    assert np.flatnonzero(dataset.bad_examples).tolist() == [*BAD_TRAIN, *(24 + i for i in BAD_TEST)]


def test_a_marked_example_is_not_decoded_again(tmp_path, monkeypatch):
    train = skipping(write_set(tmp_path, bad_test=()), placement="stream").train
    train.arrays()
    seen, real = [], decoding.decode
    monkeypatch.setattr(decoding, "decode", lambda example, *args: seen.append(example.where) or real(example, *args))
    train.arrays()
    assert len(seen) == 24
    assert not any(os.path.getsize(path) == 0 for path in seen)


def test_a_set_without_bad_examples_is_the_same_with_skip(tmp_path):
    root = write_set(tmp_path, bad_train=(), bad_test=())
    for placement in ("device", "stream"):
        ours, theirs = skipping(root, placement=placement), load(name=f"folder:{root}", placement=placement)
        assert_batches_equal(ours.train.arrays(), theirs.train.arrays())
        assert_batches_equal(ours.test.arrays(), theirs.test.arrays())
        assert not ours.bad_examples.any()


@pytest.mark.parametrize("placement", ["device", "stream"])
@pytest.mark.parametrize(
    ("bad_train", "bad_test", "says"),
    [
        (range(7), (), "the 24 examples of the training split"),
        (range(24), (), "the 24 examples of the training split"),
        ((), range(12, 24), "the 24 examples of the test split"),
    ],
    ids=["share", "all", "test"],
)
def test_too_many_bad_examples_are_an_error(tmp_path, placement, bad_train, bad_test, says):
    write_set(tmp_path, bad_train, bad_test)

    def use():
        dataset = skipping(tmp_path, placement=placement)
        dataset.train.arrays()
        list(data.eval_batches(dataset.test, 5))

    message = error(use)
    assert message.startswith("data.on_bad_example is 'skip': ")
    assert f"of {says} of 'folder:{tmp_path}' cannot be decoded, more than 25%" in message
    assert any(f"at least {count} " in message for count in range(7, 13))  # threads mark several before one refuses


def test_a_set_that_was_refused_is_refused_again(tmp_path, monkeypatch):
    write_set(tmp_path, bad_train=range(1, 24), bad_test=())
    monkeypatch.setattr(source, "channel_statistics", lambda train: (np.zeros(3), np.ones(3)))
    train = skipping(tmp_path, placement="stream").train
    for _ in range(2):  # the second time no example is new
        assert "cannot be decoded" in error(train.read, np.array([5]))


@pytest.mark.parametrize("limit", [1, 3])
def test_a_small_part_of_a_set_that_is_all_bad_is_an_error(tmp_path, limit):
    order = np.random.default_rng(0).permutation(24)[:limit]
    write_set(tmp_path, bad_train=[int(i) for i in order], bad_test=())
    message = error(skipping, tmp_path, train_examples=limit)
    assert f"of the {limit} examples of the training split of" in message


@pytest.mark.parametrize("placement", ["device", "stream"])
def test_only_the_examples_that_a_limit_keeps_are_counted_named_and_used_as_replacements(
    tmp_path, monkeypatch, caplog, placement
):
    monkeypatch.setattr(decoding, "MOST_BAD", 0.1)
    order = np.random.default_rng(0).permutation(24)
    kept, others = order[:10].tolist(), order[10:].tolist()
    bad = [kept[4], *others]  # 15 of the set's 24, but one of the ten that are kept
    write_set(tmp_path, bad, bad_test=())
    dataset = skipping(tmp_path, placement=placement, train_examples=10)
    assert ids(dataset.train.arrays()) == [*kept[:4], *kept[5:6], *kept[5:]]
    assert np.flatnonzero(dataset.bad_examples).tolist() == [kept[4]]
    (message,) = caplog.messages
    assert f"/{kept[4]:02}.png cannot be read" in message


def test_a_tfds_example_that_cannot_be_decoded_is_skipped(tfds_dir, monkeypatch, caplog):
    fields = {"name": "tfds:mnist", "data_dir": tfds_dir, "placement": "stream"}
    good = load(**fields).train.arrays()
    real = decoding.decode

    def decode(example, *args):
        damaged = example.where.startswith("number 3 of the train split")
        return real(example._replace(source=example.source[:60]) if damaged else example, *args)

    monkeypatch.setattr(decoding, "decode", decode)
    assert "its image number 3 of the train split of tfds:mnist cannot be read" in error(load, **fields)
    skipped = load(**fields, on_bad_example="skip")
    assert "number 3 of the train split" in caplog.text
    order = [0, 1, 2, 4, 4, 5, 6, 7]
    assert_batches_equal(skipped.train.arrays(), {field: values[order] for field, values in good.items()})


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("on_bad_example", "ignore", "error, skip"),
        ("suffixes", "jpg,heic", "'heic' is not read"),
        ("suffixes", ".jpg", "'.jpg' is not read"),
        ("suffixes", "", "'' is not read"),
    ],
)
def test_a_field_that_cannot_be_used_is_refused(field, value, says):
    message = error(load, name="folder:x", **{field: value})
    assert message.startswith(f"data.{field} is {value!r}: ")
    assert says in message
