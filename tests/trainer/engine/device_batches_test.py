"""Examples that lie on the devices as rows are the examples of the split."""

import jax
import numpy as np
import pytest

from depthmup_flax.data import DataConfig, TextDataset, Tokenizer, from_arrays
from depthmup_flax.data.dataset import ArraySplit
from depthmup_flax.data.user_data import load_python
from depthmup_flax.devices import sharding
from depthmup_flax.networks.import_paths import register
from depthmup_flax.trainer.engine.device_batches import abstract_train_data, batch_of, put_train_data


def images(dtype):
    pixels = np.random.default_rng(0).integers(0, 256, (12, 8, 6, 3)).astype(dtype)
    return from_arrays(pixels, np.arange(12) % 4, pixels, np.arange(12) % 4, num_classes=4)


def text():
    split = ArraySplit({"tokens": np.arange(60, dtype=np.uint8).reshape(6, 10)})
    return TextDataset("text:abc", split, split, 60, "device", 5, Tokenizer())


def own():
    """Arrays of several ranks and dtypes, one of them called "mask"."""
    rng = np.random.default_rng(0)
    inputs = {"mask": rng.random((6, 5)) > 0.5, "long": rng.random((6, 2, 1, 3, 2), np.float32), "one": np.arange(6.0)}
    split = inputs, rng.integers(0, 9, (6, 1), np.int8)
    return load_python(register((split, split), "data"), DataConfig())


@pytest.mark.parametrize("platform", ["cpu", "tpu"])
@pytest.mark.parametrize(
    ("dataset", "columns"),
    [(images(np.uint8), 144), (images(np.float32), 144), (text(), 10), (own(), 12)],
    ids=["bytes", "floats", "text", "own"],
)
def test_a_batch_of_rows_on_the_devices_is_the_batch_of_the_split(dataset, columns, platform, monkeypatch):
    monkeypatch.setattr(sharding, "platform", lambda mesh: platform)
    mesh = sharding.make_mesh()
    data = put_train_data(dataset, mesh)
    rows = [x.shape[1] for x in data.values() if x.ndim > 1]
    assert max(rows) == (columns if platform == "cpu" else -(-columns // 128) * 128)  # whole tiles on a TPU
    indices = np.array([3, 0, 5, 3])
    found = jax.jit(lambda data, indices: batch_of(dataset, data, indices))(data, indices)
    expected = dataset.train.read(indices)
    assert found.keys() == expected.keys()
    for name, x in expected.items():
        assert found[name].dtype == x.dtype
        np.testing.assert_array_equal(found[name], x)
    # A plan without the data has the same arguments.
    planned = abstract_train_data(dataset, mesh)
    assert {name: (x.shape, x.dtype, x.sharding) for name, x in planned.items()} == {
        name: (x.shape, x.dtype, x.sharding) for name, x in data.items()
    }
