"""Folders of images: one sub-folder per class, or Tiny ImageNet's official layout."""

import os

from depthmup_flax.errors import InputError

_EXTENSIONS = (".jpg", ".jpeg", ".png")

Files = list[tuple[str, int]]


def list_folder(directory: str) -> tuple[Files, Files, list[str]]:
    """The (path, label) pairs of the training and test images, and the class names.

    Reads ``train/<class>/*.jpg`` (or jpeg, png, any case) and ``test/`` or else ``val/`` alike. Tiny ImageNet keeps
    its images in ``train/<class>/images/`` and ``val/images/``, with the classes of the latter in
    ``val/val_annotations.txt``. Classes are the sorted names of the training folders.

    Raises:
      InputError: a missing folder, no classes, a class without images, or a test class that is not a training class.
    """
    field = f"data.name is 'folder:{directory}'"
    root = os.path.expanduser(directory)
    if not os.path.isdir(root):
        raise InputError(f"{field}, but there is no folder {root!r}; give the folder that holds train/ and test/.")
    train = os.path.join(root, "train")
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
    return train_files, _test_files(root, classes, field), classes


def _test_files(root: str, classes: list[str], field: str) -> Files:
    labels = {name: label for label, name in enumerate(classes)}
    # First, because Tiny ImageNet's test/ has no labels.
    annotations = os.path.join(root, "val", "val_annotations.txt")
    if os.path.isfile(annotations):
        return _annotated_files(annotations, labels, field)
    for split in ("test", "val"):
        folder = os.path.join(root, split)
        if os.path.isdir(folder):
            files = _class_files(folder, _subfolders(folder), labels, field)
            if not files:
                raise InputError(f"{field}, but {folder!r} holds no images; put them into {split}/<class>/.")
            return files
    raise InputError(f"{field}, but {root!r} has neither test/ nor val/; put held-out images into test/<class>/.")


def _class_files(folder: str, names: list[str], labels: dict[str, int], field: str) -> Files:
    files: Files = []
    for name in names:
        directory = os.path.join(folder, name)
        paths = _images(directory) or _images(os.path.join(directory, "images"))
        files += [(path, _label(name, labels, directory, field)) for path in paths]
    return files


def _annotated_files(annotations: str, labels: dict[str, int], field: str) -> Files:
    images = os.path.join(os.path.dirname(annotations), "images")
    with open(annotations, encoding="utf-8") as lines:
        rows = [line.split("\t") for line in lines if line.strip()]
    if not rows or any(len(row) < 2 for row in rows):
        raise InputError(f"{field}, but {annotations!r} is not lines of <file><tab><class>...; restore that file.")
    return [(os.path.join(images, row[0]), _label(row[1].strip(), labels, annotations, field)) for row in rows]


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
