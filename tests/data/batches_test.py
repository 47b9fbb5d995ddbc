"""Batches: order, streams, resume, parts of several hosts, evaluation."""

import numpy as np
import pytest
from data_sets import assert_batches_equal, error, load, load_crops, write_flat_folder

from depthmup_flax import data


@pytest.mark.parametrize("size", [24, 26])
def test_batch_indices_walk_through_a_fresh_permutation_each_epoch_and_drop_the_remainder(size):
    assert data.steps_per_epoch(size, 4) == 6
    one, two = np.array([data.batch_indices(0, step, size, 4) for step in range(12)]).reshape(2, 24)
    assert len(set(one)) == len(set(two)) == 24
    assert (one != two).any()


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
    return load(name=f"folder:{write_flat_folder(tmp_path)}", placement="stream").train


def test_stream_gives_the_batches_of_training_in_memory(tmp_path, streamed):
    memory = load(name=f"folder:{tmp_path}", placement="device").train
    stream = data.train_stream(streamed, seed=5, batch_size=2)
    for step in range(8):  # more than two epochs
        assert_batches_equal(next(stream), memory.read(data.batch_indices(5, step, 6, 2)))


def test_stream_starts_at_any_step_and_reads_the_rows_of_one_host(streamed):
    stream = data.train_stream(streamed, 5, 4, start_step=1001, rows=slice(2, 4))
    assert_batches_equal(next(stream), streamed.read(data.batch_indices(5, 1001, 6, 4)[2:4]))


@pytest.mark.parametrize("batch_size", [64, 99, 300])
def test_eval_batches_cover_every_example_once_in_order(batch_size):
    test = load().test
    batches = list(data.eval_batches(test, batch_size))
    assert {batch["image"].shape[0] for batch in batches} == {batch_size}
    real = np.concatenate([batch["mask"] for batch in batches]) == 1
    assert real.sum() == 297
    for field, values in test.arrays().items():
        np.testing.assert_array_equal(np.concatenate([batch[field] for batch in batches])[real], values)


def test_batch_larger_than_the_set_is_refused():
    for call in (
        lambda: data.batch_indices(0, 0, 10, 11),
        lambda: data.steps_per_epoch(10, 11),
        lambda: data.train_stream(load(train_examples=10).train, 0, 11),
    ):
        message = error(call)
        assert "batch_size is 11" in message
        assert "10, the number of training examples" in message


@pytest.mark.parametrize("hosts", [2, 4])
@pytest.mark.parametrize("blocks", [True, False])
def test_parts_of_several_hosts_are_the_batch_of_one_bit_for_bit(photographs, hosts, blocks):
    split = load_crops(photographs).train
    parts = [np.arange(8).reshape(hosts, -1)[i] if blocks else np.arange(i, 8, hosts) for i in range(hosts)]
    streams = [data.train_stream(split, 2, 8, start_step=5, rows=rows) for rows in parts]
    whole = data.train_stream(split, 2, 8, start_step=5)
    for _ in range(3):
        batch = next(whole)
        for rows, stream in zip(parts, streams, strict=True):
            assert_batches_equal(next(stream), {field: values[rows] for field, values in batch.items()})


@pytest.mark.parametrize("hosts", [2, 4])
@pytest.mark.parametrize("batch_size", [4, 8])
def test_evaluation_on_several_hosts_reads_every_example_once(photographs, hosts, batch_size):
    test = load_crops(photographs).test  # 7 examples: with batches of 8 on 4 hosts, the last host has one
    per_host = batch_size // hosts
    parts = [list(data.eval_batches(test, batch_size, slice(i * per_host, (i + 1) * per_host))) for i in range(hosts)]
    for *batches, expected in zip(*parts, data.eval_batches(test, batch_size), strict=True):
        assert_batches_equal({k: np.concatenate([batch[k] for batch in batches]) for k in expected}, expected)
    assert sum(batch["mask"].sum() for part in parts for batch in part) == 7


def test_a_host_without_examples_in_the_last_batch_gets_zeros_of_the_same_shape(photographs):
    test = load_crops(photographs, test_examples=5).test
    first, last = data.eval_batches(test, 4, np.array([2, 3]))
    assert {k: (v.shape, v.dtype) for k, v in last.items()} == {k: (v.shape, v.dtype) for k, v in first.items()}
    assert not any(values.any() for values in last.values())


@pytest.mark.parametrize("step", [1, 4, 9])
def test_a_stream_resumed_at_any_step_gives_the_crops_of_an_uninterrupted_one(photographs, step):
    split = load_crops(photographs).train
    uninterrupted = data.train_stream(split, 1, 4)
    for _ in range(step):
        next(uninterrupted)
    state = uninterrupted.get_state()
    restored = data.train_stream(split, 1, 4)
    restored.set_state(state)
    resumed = data.train_stream(load_crops(photographs).train, 1, 4, start_step=step)
    for _ in range(3):
        batch = next(uninterrupted)
        assert_batches_equal(next(resumed), batch)
        assert_batches_equal(next(restored), batch)


def test_the_same_image_is_cropped_anew_in_every_epoch(photographs):
    split = load_crops(photographs, train_examples=2).train
    seen = [np.sort(data.train_batch(split, 0, step, 2)["image"].reshape(2, -1).sum(1)) for step in range(6)]
    assert len({tuple(sums) for sums in seen}) == 6
