"""Folders of images: one sub-folder per class, or the official layouts of ImageNet and Tiny ImageNet."""

import csv
import os

from depthmup_flax.data.decoding import Encoded, EncodedExamples, EncodedSet
from depthmup_flax.errors import InputError

_EXTENSIONS = (".jpg", ".jpeg", ".png")
_KAGGLE_LIST = "LOC_val_solution.csv"  # the classes of ImageNet's flat val/, in the root; the images are further down

Files = list[tuple[str, int]]


def open_folder(directory: str) -> EncodedSet:
    """The images that ``list_folder`` lists, to be read as RGB."""

    def examples(files: Files) -> EncodedExamples:
        return lambda positions: [Encoded(files[i][0], *files[i]) for i in positions], len(files)

    train, test, classes = list_folder(directory)
    return EncodedSet(examples(train), examples(test), num_classes=len(classes), channels=3)


def list_folder(directory: str) -> tuple[Files, Files, list[str]]:
    """(path, label) of the training and test images, and the class names: the sorted folders of ``train/``.

    Images are .jpg, .jpeg or .png files, in any case:

    * ``train/<class>/``, and ``test/<class>/`` or, if ``test/`` has no class folders, ``val/<class>/``.
    * Tiny ImageNet: ``train/<class>/images/`` and ``val/images/``, with the latter's classes in
      ``val/val_annotations.txt``.
    * ImageNet: a flat ``val/``, with its classes in Kaggle's ``LOC_val_solution.csv`` in ``directory``. As Kaggle
      ships it, ``train/`` and ``val/`` are in ``ILSVRC/Data/CLS-LOC/``.

    Raises:
      InputError: a folder is missing, a class has no images, a test class is not a training class, or the images do
        not match the list of their classes.
    """
    field = f"data.name is 'folder:{directory}'"
    root = os.path.expanduser(directory)
    if not os.path.isdir(root):
        raise InputError(f"{field}, but there is no folder {root!r}; give the folder that holds train/ and test/.")
    kaggle = os.path.join(root, "ILSVRC", "Data", "CLS-LOC")
    base = kaggle if os.path.isdir(kaggle) else root
    train = os.path.join(base, "train")
    classes = _subfolders(train)
    if not classes:
        raise InputError(f"{field}, but {train!r} has no class folders; put the images into train/<class>/.")
    labels = {name: label for label, name in enumerate(classes)}
    train_files = _class_files(train, labels, field)
    if empty := set(range(len(classes))) - {label for _, label in train_files}:
        raise InputError(
            f"{field}, but {os.path.join(train, classes[min(empty)])!r} contains no .jpg, .jpeg or .png image; "
            "add images or remove that folder."
        )
    return train_files, _test_files(base, os.path.join(root, _KAGGLE_LIST), labels, field), classes


def _test_files(base: str, kaggle_list: str, labels: dict[str, int], field: str) -> Files:
    val = os.path.join(base, "val")
    # Before test/, which has no labels in Tiny ImageNet and ImageNet.
    annotations = os.path.join(val, "val_annotations.txt")
    if os.path.isfile(annotations):
        return _annotated_files(annotations, labels, field)
    flat = _images(val)
    if flat and os.path.isfile(kaggle_list):
        return _listed_files(kaggle_list, val, flat, labels, field)
    folders = [os.path.join(base, split) for split in ("test", "val")]
    for folder in folders:
        if _subfolders(folder):
            if files := _class_files(folder, labels, field):
                return files
            raise InputError(f"{field}, but the class folders of {folder!r} contain no images; add some.")
    if flat:
        raise InputError(
            f"{field}, but the images in {val!r} have no class folders; put them into val/<class>/, or ImageNet's "
            f"{_KAGGLE_LIST} at {kaggle_list!r}."
        )
    for folder in folders:
        if os.path.isdir(folder):
            raise InputError(f"{field}, but {folder!r} has no class folders; put its images into one for each class.")
    raise InputError(f"{field}, but {base!r} has neither test/ nor val/; put held-out images into test/<class>/.")


def _class_files(folder: str, labels: dict[str, int], field: str) -> Files:
    files: Files = []
    for name in _subfolders(folder):
        directory = os.path.join(folder, name)
        paths = _images(directory) or _images(os.path.join(directory, "images"))
        files += [(path, _label(name, labels, directory, field)) for path in paths]
    return files


def _annotated_files(annotations: str, labels: dict[str, int], field: str) -> Files:
    images = os.path.join(os.path.dirname(annotations), "images")
    with open(annotations, encoding="utf-8", errors="replace") as lines:
        rows = [line.split("\t") for line in lines if line.strip()]
    if not rows or any(len(row) < 2 for row in rows):
        raise InputError(f"{field}, but {annotations!r} is not lines of <file><tab><class>...; restore that file.")
    for name, *_ in rows:
        # The list may come from anyone: it must not point at other files of this machine.
        if name in ("", ".", "..") or os.path.basename(name) != name or "\0" in name:
            raise InputError(
                f"{field}, but {annotations!r} lists {name!r}, which is not the name of a file in {images!r}; "
                "correct that line."
            )
    return [(os.path.join(images, row[0]), _label(row[1].strip(), labels, annotations, field)) for row in rows]


def _listed_files(kaggle_list: str, folder: str, paths: list[str], labels: dict[str, int], field: str) -> Files:
    """The images ``paths`` of ``folder``; a class is the first word of the prediction in the list."""
    with open(kaggle_list, encoding="utf-8", errors="replace", newline="") as lines:
        rows = list(csv.DictReader(lines))
    predictions = {row.get("ImageId"): (row.get("PredictionString") or "").split() for row in rows}
    if not rows or None in predictions or not all(predictions.values()):
        raise InputError(
            f"{field}, but {kaggle_list!r} is not lines of ImageId,PredictionString with a class in each; restore it."
        )
    images = {os.path.splitext(os.path.basename(path))[0]: path for path in paths}
    if extra := [path for name, path in images.items() if name not in predictions]:
        raise InputError(f"{field}, but {kaggle_list!r} has no line for {extra[0]!r}; add it or remove that image.")
    if lost := [name for name in predictions if name not in images]:
        raise InputError(f"{field}, but {folder!r} has no image {lost[0]!r}, which {kaggle_list!r} lists; restore it.")
    return [(path, _label(predictions[name][0], labels, kaggle_list, field)) for name, path in images.items()]


def _label(name: str, labels: dict[str, int], where: str, field: str) -> int:
    if name not in labels:
        raise InputError(f"{field}, but the test class {name!r} ({where}) is not among the folders of train/; add it.")
    return labels[name]


def _subfolders(directory: str) -> list[str]:
    return [entry.name for entry in _entries(directory) if entry.is_dir()]


def _images(directory: str) -> list[str]:
    return [entry.path for entry in _entries(directory) if entry.name.lower().endswith(_EXTENSIONS)]


def _entries(directory: str) -> list[os.DirEntry[str]]:
    """A folder's entries, sorted by name, without hidden ones; none if there is no folder."""
    if not os.path.isdir(directory):
        return []
    with os.scandir(directory) as entries:
        return sorted((entry for entry in entries if not entry.name.startswith(".")), key=lambda entry: entry.name)
