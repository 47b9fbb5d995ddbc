"""Data sets on disk that several files of tests read and none changes."""

import pytest
from data_sets import prepare_tfds, write_photographs


@pytest.fixture(scope="session")
def photographs(tmp_path_factory):
    return write_photographs(tmp_path_factory.mktemp("photographs"))


@pytest.fixture(scope="session")
def tfds_dir(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tfds")
    labels = [0, 3, 1, 2, 9, 5, 7, 8]
    prepare_tfds(directory, "mnist", "3.0.1", {"train": labels, "test": labels[:3]}, (28, 28, 1), 10)
    prepare_tfds(directory, "cifar10", "3.0.2", {"train": labels, "test": labels[:3]}, (32, 32, 3), 10)
    imagenet = {"train": labels, "validation": labels[:4], "test": [-1, -1]}
    prepare_tfds(directory, "imagenet2012", "5.1.0", imagenet, (None, None, 3), 1000)
    return str(directory)
