"""TFDS sets: read without TensorFlow, and refused with the command that prepares them."""

import json
import os
import sys

import numpy as np
import pytest
from data_sets import assert_batches_equal, error, load, noise, prepare_tfds, real_data

from depthmup_flax import data


@pytest.mark.parametrize("placement", ["device", "stream"])
def test_tfds_sets_read_without_tensorflow(tfds_dir, placement):
    mnist = load(name="tfds:mnist", data_dir=tfds_dir, placement=placement)
    assert (mnist.image_shape, mnist.num_classes, len(mnist.train), len(mnist.test)) == ((28, 28, 1), 10, 8, 3)
    cifar = load(name="tfds:cifar10", data_dir=tfds_dir, placement=placement)
    assert cifar.image_shape == (32, 32, 3)
    labels = cifar.train.arrays()["label"]
    assert sorted(labels) == [0, 1, 2, 3, 5, 7, 8, 9]
    # TFDS shuffles as it writes: the example with label 0 holds the image of seed 0.
    image = cifar.train.read(np.flatnonzero(labels == 0))["image"]
    np.testing.assert_array_equal(image[0], noise(32, 32, seed=0))
    assert "tensorflow" not in sys.modules


def test_tfds_uses_validation_where_test_has_no_labels(tfds_dir):
    imagenet = load(name="tfds:imagenet2012", data_dir=tfds_dir, image_size=16, placement="stream")
    assert (len(imagenet.test), imagenet.num_classes, imagenet.image_shape) == (4, 1000, (16, 16, 3))


def test_tfds_reads_gray_files_of_a_color_set(tfds_dir):
    imagenet = load(name="tfds:imagenet2012", data_dir=tfds_dir, image_size=16)
    batch = imagenet.train.arrays()
    (gray,) = batch["image"][batch["label"] == 3]
    np.testing.assert_array_equal(gray[..., 0], gray[..., 2])


def test_tfds_set_without_random_access_gives_the_command_that_rebuilds_it(tmp_path):
    prepare_tfds(tmp_path, "mnist", "3.0.1", {"train": [1], "test": [1]}, (28, 28, 1), 10)
    path = tmp_path / "mnist/3.0.1/dataset_info.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "fileFormat": "tfrecord"}))
    message = error(load, name="tfds:mnist", data_dir=str(tmp_path))
    assert "no random access" in message
    assert "--file_format=array_record --overwrite" in message


def test_tfds_set_that_is_not_image_classification_is_refused(tmp_path):
    prepare_tfds(tmp_path, "texts", "1.0.0", {"train": [1]}, (4, 4, 3), 10, text=True)
    assert "supervised keys" in error(load, name="tfds:texts", data_dir=str(tmp_path))


def test_tfds_set_without_test_examples_is_refused(tmp_path):
    prepare_tfds(tmp_path, "trainonly", "1.0.0", {"train": [1]}, (4, 4, 3), 10)
    assert "no labeled test or validation split" in error(load, name="tfds:trainonly", data_dir=str(tmp_path))


def test_tfds_set_is_cropped_alike_on_one_host_and_on_two(tfds_dir):
    fields = {"name": "tfds:imagenet2012", "data_dir": tfds_dir, "image_size": 12, "augment": "resized_crop"}
    split = load(**fields).train
    for step, batch in zip(range(2, 5), data.train_stream(split, 0, 4, start_step=2), strict=False):
        for rows in (slice(0, 2), slice(2, 4)):
            part = data.train_batch(split, 0, step, 4, rows)
            assert_batches_equal(part, {field: values[rows] for field, values in batch.items()})


def test_real_cifar10_has_its_known_statistics():
    data_dir = str(real_data("tfds/cifar10").parent)
    cifar = load(name="tfds:cifar10", data_dir=data_dir, placement="stream")
    assert (len(cifar.train), len(cifar.test), cifar.image_shape) == (50000, 10000, (32, 32, 3))
    np.testing.assert_allclose(cifar.mean, [0.4914, 0.4822, 0.4465], atol=0.005)
    np.testing.assert_allclose(cifar.std, [0.2470, 0.2435, 0.2616], atol=0.005)
    small = load(name="tfds:cifar10", data_dir=data_dir, train_examples=500, test_examples=100)
    assert np.bincount(small.train.arrays()["label"], minlength=10).min() > 20


# The code of coco needs TensorFlow to import.
@pytest.mark.parametrize(
    "name", ["cifar11", "cifar10_corrupted/fog_9", "cifar10:1.0.0", "two words", "cifar100", "coco"]
)
def test_a_tfds_set_that_is_not_prepared_gives_the_command_that_prepares_it(tfds_dir, name):
    message = error(load, name=f"tfds:{name}", data_dir=tfds_dir)
    assert f"tfds build {name} --data_dir={tfds_dir} --file_format=array_record" in message
    assert not os.path.exists(f"{tfds_dir}/{name}")


def test_absent_tfds_names_the_extras_and_the_command_that_prepares_the_set(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    message = error(load, name="tfds:cifar10")
    assert 'pip install ".[tfds]"' in message
    assert "tfds build cifar10 --file_format=array_record" in message
