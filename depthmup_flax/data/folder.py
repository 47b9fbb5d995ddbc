"""Folders of images: one sub-folder per class, or the official layouts of ImageNet and Tiny ImageNet."""

import csv
import os

from depthmup_flax.errors import InputError

_EXTENSIONS = (".jpg", ".jpeg", ".png")
# ImageNet as Kaggle gives it: the classes of the flat val/, beside the folder that holds the images further down.
_VAL_CLASSES = "LOC_val_solution.csv"
_KAGGLE_IMAGES = os.path.join("ILSVRC", "Data", "CLS-LOC")

Files = list[tuple[str, int]]


def list_folder(directory: str) -> tuple[Files, Files, list[str]]:
    """The (path, label) pairs of the training and test images, and the class names.

    Reads ``train/<class>/*.jpg`` (or jpeg, png, any case) and ``test/`` alike, or ``val/`` where ``test/`` has no class
    folders. Tiny ImageNet keeps its images in ``train/<class>/images/`` and ``val/images/``, with the classes of the
    latter in ``val/val_annotations.txt``. ImageNet's ``val/`` has no class folders either; its classes are in Kaggle's
    ``LOC_val_solution.csv``, here in ``directory``. In Kaggle's own layout ``train/`` and ``val/`` are in
    ``ILSVRC/Data/CLS-LOC/``. Classes are the sorted names of the training folders.

    Raises:
      InputError: a missing folder, no classes, a class without images, a test class that is not a training class, or
        images and a list of their classes that do not fit.
    """
    field = f"data.name is 'folder:{directory}'"
    root = os.path.expanduser(directory)
    if not os.path.isdir(root):
        raise InputError(f"{field}, but there is no folder {root!r}; give the folder that holds train/ and test/.")
    kaggle = os.path.join(root, _KAGGLE_IMAGES)
    base = kaggle if os.path.isdir(kaggle) else root
    train = os.path.join(base, "train")
    classes = _subfolders(train)
    if not classes:
        raise InputError(f"{field}, but {train!r} has no class folders; put the images into train/<class>/.")
    train_files = _class_files(train, classes, {name: label for label, name in enumerate(classes)}, field)
    filled = {label for _, label in train_files}
    for label, name in enumerate(classes):
        if label not in filled:
            raise InputError(
                f"{field}, but {os.path.join(train, name)!r} holds no .jpg, .jpeg or .png image; "
                "add images or remove that folder."
            )
    return train_files, _test_files(base, os.path.join(root, _VAL_CLASSES), classes, field), classes


def _test_files(base: str, val_classes: str, classes: list[str], field: str) -> Files:
    labels = {name: label for label, name in enumerate(classes)}
    # First, because the test/ of Tiny ImageNet and ImageNet have no labels.
    annotations = os.path.join(base, "val", "val_annotations.txt")
    if os.path.isfile(annotations):
        return _annotated_files(annotations, labels, field)
    val = os.path.join(base, "val")
    flat = _images(val)
    if flat and os.path.isfile(val_classes):
        return _listed_files(val_classes, val, flat, labels, field)
    for split in ("test", "val"):
        folder = os.path.join(base, split)
        names = _subfolders(folder)
        if names:
            files = _class_files(folder, names, labels, field)
            if not files:
                raise InputError(f"{field}, but {folder!r} holds no images; put them into {split}/<class>/.")
            return files
    if flat:
        raise InputError(
            f"{field}, but the images in {val!r} have no class folders; put them into val/<class>/, or ImageNet's "
            f"{_VAL_CLASSES} at {val_classes!r}."
        )
    for split in ("test", "val"):
        folder = os.path.join(base, split)
        if os.path.isdir(folder):
            raise InputError(f"{field}, but {folder!r} has no class folders; put the images into {split}/<class>/.")
    raise InputError(f"{field}, but {base!r} has neither test/ nor val/; put held-out images into test/<class>/.")


def _class_files(folder: str, names: list[str], labels: dict[str, int], field: str) -> Files:
    files: Files = []
    for name in names:
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
        # A list is data, which may come from anyone: it must not point at other files of this machine.
        if name in ("", ".", "..") or os.path.basename(name) != name or "\0" in name:
            raise InputError(
                f"{field}, but {annotations!r} lists {name!r}, which is not the name of a file in {images!r}; "
                "correct that line."
            )
    return [(os.path.join(images, row[0]), _label(row[1].strip(), labels, annotations, field)) for row in rows]


def _listed_files(listing: str, folder: str, paths: list[str], labels: dict[str, int], field: str) -> Files:
    """The images ``paths`` of ``folder`` with the first word of their prediction in the listing, which is a class."""
    with open(listing, encoding="utf-8", errors="replace", newline="") as lines:
        rows = list(csv.DictReader(lines))
    predictions = {row.get("ImageId"): (row.get("PredictionString") or "").split() for row in rows}
    if not rows or None in predictions or not all(predictions.values()):
        raise InputError(
            f"{field}, but {listing!r} is not lines of ImageId,PredictionString with a class in each; restore it."
        )
    found = {os.path.splitext(os.path.basename(path))[0]: path for path in paths}
    for name, path in found.items():
        if name not in predictions:
            raise InputError(f"{field}, but {listing!r} has no line for {path!r}; add it or remove that image.")
    for listed in predictions:
        if listed not in found:
            raise InputError(f"{field}, but {folder!r} has no image {listed!r}, which {listing!r} lists; restore it.")
    return [(path, _label(predictions[name][0], labels, listing, field)) for name, path in found.items()]


def _label(name: str, labels: dict[str, int], where: str, field: str) -> int:
    if name not in labels:
        raise InputError(f"{field}, but the test class {name!r} ({where}) is not among the folders of train/; add it.")
    return labels[name]


def _subfolders(directory: str) -> list[str]:
    if not os.path.isdir(directory):
        return []
    with os.scandir(directory) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))


def _images(directory: str) -> list[str]:
    if not os.path.isdir(directory):
        return []
    with os.scandir(directory) as entries:
        return sorted(
            entry.path
            for entry in entries
            if entry.name.lower().endswith(_EXTENSIONS) and not entry.name.startswith(".")
        )
