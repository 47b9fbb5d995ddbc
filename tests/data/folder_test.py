"""Image folders in ImageNet's layout, and those that are refused."""

import numpy as np
import pytest
from data_sets import assert_batches_equal, error, load, noise, write_flat_folder, write_image


@pytest.mark.parametrize("test", ["test", "val"])
def test_folder_reads_classes_and_files_in_sorted_order(tmp_path, test):
    name = f"folder:{write_flat_folder(tmp_path, test)}"
    folder = load(name=name)
    assert (len(folder.train), len(folder.test), folder.num_classes, folder.class_names) == (6, 4, 2, ("a", "b"))
    batch = folder.train.arrays()
    np.testing.assert_array_equal(batch["label"], [0, 0, 0, 1, 1, 1])
    np.testing.assert_array_equal(batch["image"][:, 0, 0, 0], [40, 41, 42, 200, 201, 202])
    # Hidden files, other files and loose files are ignored.
    for path in ("train/.DS_Store", "train/a/.hidden.png", "train/a/notes.txt", "train/loose.png"):
        (tmp_path / path).touch()
    assert_batches_equal(load(name=name).train.arrays(), batch)


def test_the_unlabeled_test_images_of_imagenet_are_ignored(tmp_path):
    write_flat_folder(tmp_path, "val")
    write_image(tmp_path / "test/ILSVRC2012_test_00000001.JPEG", noise(6, 6))
    assert len(load(name=f"folder:{tmp_path}").test) == 4


def test_folder_takes_any_case_of_extension_and_reads_gray_files_as_rgb(tmp_path):
    write_flat_folder(tmp_path)
    write_image(tmp_path / "train/a/gray.JPG", np.full((6, 6, 3), 90, np.uint8), "L")
    write_image(tmp_path / "train/a/cmyk.JpEg", np.full((6, 6, 3), 90, np.uint8), "CMYK")
    folder = load(name=f"folder:{tmp_path}")
    assert (len(folder.train), folder.image_shape) == (8, (6, 6, 3))


def test_a_folder_that_is_absent_or_lacks_classes_images_or_a_test_is_refused(tmp_path):
    name = f"folder:{tmp_path}"
    assert f"there is no folder '{tmp_path}/absent'" in error(load, name=f"{name}/absent")
    (tmp_path / "train/a").mkdir(parents=True)
    assert "val/<class>/" in error(load, name=name)
    (tmp_path / "test/a").mkdir(parents=True)
    assert f"'{tmp_path}/train' has no .jpeg, .jpg, .png files" in error(load, name=name)
    write_image(tmp_path / "train/a/0.png", noise(4, 4))
    assert f"'{tmp_path}/test' has no .jpeg, .jpg, .png files" in error(load, name=name)
    write_image(tmp_path / "test/zebra/0.png", noise(4, 4))
    assert "the test class 'zebra'" in error(load, name=name)
