"""The layouts of image folders, and those that are refused."""

import builtins
import errno
import os
import shutil

import numpy as np
import PIL.Image
import pytest
from data_sets import (
    assert_batches_equal,
    error,
    load,
    load_crops,
    noise,
    real_data,
    smooth,
    write_flat_folder,
    write_image,
    write_imagenet,
    write_photographs,
)

from depthmup_flax import data
from depthmup_flax.util.errors import RunStopped


@pytest.mark.parametrize("test", ["test", "val"])
def test_folder_reads_classes_in_sorted_order_without_a_warning(tmp_path, caplog, test):
    folder = load(name=f"folder:{write_flat_folder(tmp_path, test)}")
    assert (len(folder.train), len(folder.test), folder.num_classes) == (6, 4, 2)
    batch = folder.train.arrays()
    np.testing.assert_array_equal(batch["label"], [0, 0, 0, 1, 1, 1])
    np.testing.assert_array_equal(batch["image"][:, 0, 0, 0], [40, 41, 42, 200, 201, 202])
    (tmp_path / "train/.DS_Store").touch()  # hidden
    assert load(name=f"folder:{tmp_path}").num_classes == 2
    assert not caplog.messages


def test_folder_reads_the_tiny_imagenet_layout_without_a_warning(tmp_path, caplog):
    for name in ("n02", "n01"):
        write_image(tmp_path / "train" / name / "images" / f"{name}_0.JPEG", np.full((8, 8, 3), 50, np.uint8))
        (tmp_path / "train" / name / f"{name}_boxes.txt").write_text("")
    for i in range(2):
        write_image(tmp_path / "val/images" / f"val_{i}.JPEG", np.full((8, 8, 3), 100 * i, np.uint8))
    (tmp_path / "val/val_annotations.txt").write_text("val_1.JPEG\tn02\t0\t0\t7\t7\nval_0.JPEG\tn01\t0\t0\t7\t7\n")
    write_image(tmp_path / "test/images/test_0.JPEG", noise(8, 8))  # unlabeled in the official set
    tiny = load(name=f"folder:{tmp_path}")
    batch = tiny.test.arrays()
    np.testing.assert_array_equal(batch["label"], [1, 0])
    np.testing.assert_allclose(batch["image"][:, 4, 4, 0], [100, 0], atol=2)
    assert not caplog.messages  # of the boxes beside the images


@pytest.mark.parametrize("images", [".", "ILSVRC/Data/CLS-LOC"])
def test_folder_reads_the_flat_validation_images_of_imagenet_with_kaggles_list(tmp_path, images):
    name = f"folder:{write_imagenet(tmp_path, tmp_path / images)}"
    for placement in ("device", "stream"):
        imagenet = load(name=name, image_size=8, placement=placement)
        assert (len(imagenet.train), imagenet.num_classes, imagenet.image_shape) == (2, 2, (8, 8, 3))
        batch = imagenet.test.arrays()
        np.testing.assert_array_equal(batch["label"], [1, 0])
        np.testing.assert_allclose(batch["image"][:, 4, 4, 0], [90, 180], atol=2)


def test_folder_reads_imagenet_with_the_validation_images_moved_into_class_folders(tmp_path):
    write_imagenet(tmp_path, tmp_path)
    for i, name in ((1, "n02"), (2, "n01")):
        (tmp_path / "val" / name).mkdir()
        (tmp_path / f"val/ILSVRC2012_val_0000000{i}.JPEG").rename(tmp_path / f"val/{name}/{i}.JPEG")
    for _ in range(2):  # with the list, and without it
        labels = load(name=f"folder:{tmp_path}", image_size=8).test.arrays()["label"]
        np.testing.assert_array_equal(labels, [0, 1])
        (tmp_path / "LOC_val_solution.csv").unlink(missing_ok=True)


def test_folder_takes_any_case_of_extension_and_reads_gray_files_as_rgb(tmp_path, caplog):
    write_flat_folder(tmp_path)
    write_image(tmp_path / "train/a/gray.JPG", np.full((6, 6, 3), 90, np.uint8), "L")
    write_image(tmp_path / "train/a/cmyk.JpEg", np.full((6, 6, 3), 90, np.uint8), "CMYK")
    (tmp_path / "train/a/notes.txt").write_text("not an image")
    folder = load(name=f"folder:{tmp_path}")
    assert "1 entry is not read (.txt 1)" in caplog.text
    assert len(folder.train) == 8
    assert folder.image_shape == (6, 6, 3)


def test_real_tiny_imagenet_loads_in_its_official_layout():
    root = real_data("tiny-imagenet-200")
    tiny = load(name=f"folder:{root}", train_examples=500, test_examples=200)
    classes = len(os.listdir(root / "train"))
    assert (tiny.num_classes, tiny.image_shape) == (classes, (64, 64, 3))
    assert len(set(tiny.test.arrays()["label"])) == classes


def test_a_folder_that_is_absent_or_lacks_classes_images_or_a_test_is_refused(tmp_path):
    name = f"folder:{tmp_path}"
    assert f"there is no folder '{tmp_path}/absent'" in error(load, name=f"{name}/absent")
    (tmp_path / "train").mkdir()
    assert f"'{tmp_path}/train' has no class folders" in error(load, name=name)
    (tmp_path / "train/a").mkdir()
    assert f"'{tmp_path}/train/a' contains no .jpg, .jpeg, .png image" in error(load, name=name)
    write_image(tmp_path / "train/a/0.png", noise(4, 4))
    assert f"'{tmp_path}' has no test images in class folders" in error(load, name=name)
    (tmp_path / "test/a").mkdir(parents=True)
    assert f"'{tmp_path}/test' contain no images" in error(load, name=name)


def test_a_flat_folder_for_testing_is_refused_with_the_place_of_the_list_of_its_classes(tmp_path):
    write_imagenet(tmp_path, tmp_path)
    listing = tmp_path / "LOC_val_solution.csv"
    listing.unlink()
    message = error(load, name=f"folder:{tmp_path}", image_size=8)
    assert f"the images in '{tmp_path}/val' at '{listing}'" in message


def test_test_class_outside_train_is_named(tmp_path):
    write_flat_folder(tmp_path)
    write_image(tmp_path / "test/zebra/0.png", noise(6, 6))
    assert f"the test class 'zebra' ('{tmp_path}/test/zebra')" in error(load, name=f"folder:{tmp_path}")


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ("", "ImageId,PredictionString"),
        ("Id,Class\nILSVRC2012_val_00000001,n01\n", "ImageId,PredictionString"),
        ("ImageId,PredictionString\nILSVRC2012_val_00000001,\n", "with a class in each"),
        ("ImageId,PredictionString\nILSVRC2012_val_00000001,n01 1\n", "has no line for 'ILSVRC2012_val_00000002'"),
        ("ImageId,PredictionString\nILSVRC2012_val_00000001,n01\nILSVRC2012_val_00000002,n09 1\n", "'n09'"),
        (
            "ImageId,PredictionString\n" + "".join(f"ILSVRC2012_val_0000000{i},n01 1\n" for i in (1, 2, 3)),
            "lacks, 'ILSVRC2012_val_00000003'",
        ),
    ],
)
def test_a_list_of_validation_classes_that_does_not_fit_is_named(lines, says, tmp_path):
    write_imagenet(tmp_path, tmp_path)
    (tmp_path / "LOC_val_solution.csv").write_text(lines)
    message = error(load, name=f"folder:{tmp_path}", image_size=8)
    assert says in message
    assert f"{tmp_path}/LOC_val_solution.csv" in message


def test_damaged_annotations_are_named(tmp_path):
    write_flat_folder(tmp_path, "val")
    (tmp_path / "val/val_annotations.txt").write_text("val_0.JPEG n01\n")
    assert "val_annotations.txt' is not lines of" in error(load, name=f"folder:{tmp_path}")


@pytest.mark.parametrize("name", ["../../secret.png", "/etc/passwd", "..", "", "a/b.png", "x\0.png"])
def test_a_list_of_images_that_points_elsewhere_is_refused(tmp_path, name):
    write_photographs(tmp_path)
    (tmp_path / "test").rename(tmp_path / "val")
    (tmp_path / "val/val_annotations.txt").write_text(f"{name}\ta\t0\t0\t7\t7\n")
    PIL.Image.fromarray(smooth(20, 20, 0)).save(tmp_path / "secret.png")
    message = error(load_crops, tmp_path)
    assert f"val_annotations.txt' lists {name!r}" in message


def test_linked_images_and_folders_are_read(photographs, tmp_path):
    (tmp_path / "train").symlink_to(photographs / "train")
    for path in (photographs / "test").glob("*/*"):
        link = tmp_path / "test" / path.parent.name / path.name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(path)
    linked, plain = load_crops(tmp_path), load_crops(photographs)
    assert_batches_equal(linked.test.arrays(), plain.test.arrays())
    assert_batches_equal(data.train_batch(linked.train, 0, 0, 8), data.train_batch(plain.train, 0, 0, 8))


def test_what_is_not_read_is_counted_once_with_its_kinds_and_the_remedy(tmp_path, caplog):
    write_flat_folder(tmp_path)
    for i in range(5):
        write_image(tmp_path / f"train/a/{i}.webp", noise(6, 6))
    write_image(tmp_path / "test/b/1.BMP", noise(6, 6))
    write_image(tmp_path / "train/loose.png", noise(6, 6))
    (tmp_path / "train/b/deeper").mkdir()
    (tmp_path / "train/b/LICENSE").touch()
    (tmp_path / "train/c").symlink_to("absent")
    (tmp_path / "train/d").symlink_to("d")
    folder = load(name=f"folder:{tmp_path}")
    (message,) = caplog.messages
    assert message.startswith(f"data.name is 'folder:{tmp_path}': 11 entries are not read")
    assert "(.webp 5, links to nothing 2, " in message
    for part in ("folders 1", "without a suffix 1", ".png 1", "others 1"):
        assert part in message
    assert f"the first: '{tmp_path}/train/a/0.webp'" in message
    assert message.endswith("set data.suffixes=jpg,jpeg,png,bmp,webp.")
    assert (len(folder.train), len(folder.test), folder.num_classes) == (6, 4, 2)
    caplog.clear()
    folder = load(name=f"folder:{tmp_path}", suffixes="jpg,jpeg,png,bmp,webp")
    assert "5 entries are" in caplog.text
    assert (len(folder.train), len(folder.test)) == (11, 5)


def test_spaces_and_the_order_of_suffixes_change_nothing_that_is_read(tmp_path):
    write_flat_folder(tmp_path)
    for i, suffix in enumerate(("bmp", "webp")):
        write_image(tmp_path / f"train/a/{i}.{suffix}", np.full((6, 6, 3), 90 + i, np.uint8))
    expected, *others = (
        load(name=f"folder:{tmp_path}", suffixes=suffixes).train.arrays()
        for suffixes in ("png,bmp,webp", "png, bmp , webp", "webp,bmp,png")
    )
    assert len(expected["label"]) == 8
    for other in others:
        assert_batches_equal(other, expected)


def test_a_class_of_other_files_is_refused_with_the_remedy(tmp_path):
    write_flat_folder(tmp_path)
    write_image(tmp_path / "train/c/0.webp", noise(6, 6))
    message = error(load, name=f"folder:{tmp_path}")
    assert f"'{tmp_path}/train/c' contains no .jpg, .jpeg, .png image" in message
    assert message.endswith("set data.suffixes=jpg,jpeg,png,webp.")


@pytest.mark.parametrize("target", [".", "..", "../train"])
def test_a_class_that_is_a_link_to_its_own_or_its_parents_folder_is_refused(tmp_path, target):
    (write_flat_folder(tmp_path) / "train/loop").symlink_to(target)
    assert f"'{tmp_path}/train/loop' contains no .jpg, .jpeg, .png image" in error(load, name=f"folder:{tmp_path}")


@pytest.mark.parametrize("path", ["train", "train/b", "test/a"])
def test_a_folder_that_cannot_be_read_is_named(tmp_path, monkeypatch, path):
    write_flat_folder(tmp_path)
    _fail(monkeypatch, os, "scandir", tmp_path / path, errno.EACCES)
    message = error(load, name=f"folder:{tmp_path}")
    assert f"the folder '{tmp_path}/{path}' cannot be read (Permission denied)" in message


def test_a_folder_that_the_storage_does_not_deliver_stops_the_run(tmp_path, monkeypatch):
    write_flat_folder(tmp_path)
    _fail(monkeypatch, os, "scandir", tmp_path / "train/b", errno.ESTALE)
    with pytest.raises(RunStopped, match=f"the folder '{tmp_path}/train/b' cannot be read"):
        load(name=f"folder:{tmp_path}")


def test_a_list_of_classes_that_cannot_be_read_is_named(tmp_path, monkeypatch):
    write_imagenet(tmp_path, tmp_path)
    _fail(monkeypatch, builtins, "open", tmp_path / "LOC_val_solution.csv", errno.EACCES)
    message = error(load, name=f"folder:{tmp_path}", image_size=8)
    assert f"'{tmp_path}/LOC_val_solution.csv' cannot be read (Permission denied)" in message


def _fail(monkeypatch, module, function, path, number):
    """Makes a function of the system fail for one path: the superuser may read everything."""
    real = getattr(module, function)

    def failing(name, *args, **kwargs):
        if os.fspath(name) == str(path):
            raise OSError(number, os.strerror(number), str(path))
        return real(name, *args, **kwargs)

    monkeypatch.setattr(module, function, failing)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda root: (root / "train").rename(root / "Train"), "Train"),
        (lambda root: (root / "test").rename(root / "valid"), "valid"),
        (lambda root: [(root / "x").mkdir(), (root / "train").rename(root / "x" / "train")], "x"),
    ],
)
def test_a_folder_that_may_be_the_one_that_is_meant_is_named(change, named, tmp_path):
    write_flat_folder(tmp_path)
    change(tmp_path)
    assert str(tmp_path / named) in error(load, name=f"folder:{tmp_path}")


def test_a_class_without_test_images_and_a_set_of_one_class_are_warned_of(tmp_path, logged):
    write_flat_folder(tmp_path)
    first, *others = sorted(path.name for path in (tmp_path / "train").iterdir())
    shutil.rmtree(tmp_path / "test" / first)
    load(name=f"folder:{tmp_path}")
    assert f"none of the class {first!r}" in logged.text
    for name in others:
        for split in ("train", "test"):
            shutil.rmtree(tmp_path / split / name)
    write_image(tmp_path / "test" / first / "a.png", np.zeros((6, 6, 3), np.uint8))
    load(name=f"folder:{tmp_path}")
    assert "one class" in logged.text
