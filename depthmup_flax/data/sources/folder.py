"""Folders of images: one sub-folder per class, or the official layouts of ImageNet and Tiny ImageNet."""

import collections
import contextlib
import csv
import dataclasses
import logging
import os

from depthmup_flax.data.checksums import of_texts
from depthmup_flax.data.dataset import DataConfig
from depthmup_flax.data.decoding import Encoded, EncodedExamples, printable_path, read_error
from depthmup_flax.data.images import ImageDataset
from depthmup_flax.data.sources.source import NotHere, Source, images_of_files
from depthmup_flax.util.errors import InputError

log = logging.getLogger(__name__)

# What `data.suffixes` may name: formats that every build of Pillow reads.
SUFFIXES = ("bmp", "gif", "jpeg", "jpg", "pgm", "png", "ppm", "tif", "tiff", "webp")
_KAGGLE_LIST = "LOC_val_solution.csv"  # the classes of ImageNet's flat val/
_MOST_NAMED = 5  # kinds of unread files in a warning

Files = list[tuple[str, int]]
Entries = list[os.DirEntry[str]]


def _load(directory: str, config: DataConfig) -> ImageDataset:
    def examples(files: Files) -> EncodedExamples:
        fetch = lambda positions: [Encoded(printable_path(files[i][0]), *files[i]) for i in positions]
        names = (f"{os.path.basename(path)} {label}" for path, label in files)
        return EncodedExamples(fetch, len(files), of_texts(names))

    train, test, classes = list_folder(directory, config.suffixes)
    return images_of_files(config, examples(train), examples(test), 3, tuple(classes))


FOLDER = Source("folder:<dir>", _load, "images", ("image_size", "suffixes", "on_bad_example"))


def separated(suffixes: str) -> list[str]:
    """The suffixes that `data.suffixes` names; spaces around commas are ignored."""
    return [suffix.strip() for suffix in suffixes.split(",")]


def list_folder(directory: str, suffixes: str = DataConfig.suffixes) -> tuple[Files, Files, list[str]]:
    """(path, label) of the training and test images, and the class names: the sorted folders of ``train/``.

    Images are files with one of ``suffixes``, separated by commas, in any case:

    * ``train/<class>/``, and ``test/<class>/`` or, if ``test/`` has no class folders, ``val/<class>/``.
    * Tiny ImageNet: ``train/<class>/images/`` and ``val/images/``, with the latter's classes in
      ``val/val_annotations.txt``.
    * ImageNet: a flat ``val/``, with its classes in Kaggle's ``LOC_val_solution.csv`` in ``directory``. As Kaggle
      ships it, ``train/`` and ``val/`` are in ``ILSVRC/Data/CLS-LOC/``.

    Hidden files are ignored. A warning counts other entries that are not read. A link with one of ``suffixes`` is an
    image; to read one that leads nowhere is an error.

    Raises:
      InputError: a folder is missing or unreadable, a class has no images, a test class is not a training class, or the
        list of classes does not match the images.
      RunStopped: the storage fails.
    """
    listing = _Listing(f"data.name is 'folder:{directory}'", tuple(f".{suffix}" for suffix in separated(suffixes)))
    root = os.path.expanduser(directory)
    if not os.path.isdir(root):
        raise NotHere(f"{listing.field}: there is no folder {root!r}. Give the folder that holds train/ and test/.")
    kaggle = os.path.join(root, "ILSVRC", "Data", "CLS-LOC")
    base = kaggle if os.path.isdir(kaggle) else root
    train = os.path.join(base, "train")
    classes = listing.subfolders(train)
    if not classes:
        raise listing.error(f"{train!r} has no class folders. {_where_else(root)}Put the images into train/<class>/.")
    listing.labels = {name: label for label, name in enumerate(classes)}
    train_files = listing.class_files(train)
    if empty := set(range(len(classes))) - {label for _, label in train_files}:
        raise listing.error(
            f"{os.path.join(train, classes[min(empty)])!r} contains no {', '.join(listing.suffixes)} image. Add images "
            f"or remove the folder.{listing.remedy()}"
        )
    test_files = listing.test_files(base, os.path.join(root, _KAGGLE_LIST))
    listing.report()
    if untested := set(range(len(classes))) - {label for _, label in test_files}:
        log.warning("%s: the test images have none of the class %r.", listing.field, classes[min(untested)])
    if len(classes) == 1:
        log.warning("%s: there is one class, %r, so there is nothing to learn.", listing.field, classes[0])
    return train_files, test_files, classes


@dataclasses.dataclass
class _Listing:
    """Reads folders and collects the entries that are not read."""

    field: str  # the start of every message
    suffixes: tuple[str, ...]  # with dots
    labels: dict[str, int] = dataclasses.field(default_factory=dict)  # by class
    unread: Entries = dataclasses.field(default_factory=list)

    def error(self, problem: str) -> InputError:
        return InputError(f"{self.field}: {problem}")

    def entries(self, directory: str) -> Entries:
        """A folder's entries without hidden ones, sorted by name; empty if the folder is absent."""
        try:
            with os.scandir(directory) as entries:
                return sorted((entry for entry in entries if not entry.name.startswith(".")), key=lambda e: e.name)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise read_error(f"{self.field}: the folder {directory!r}", error) from error

    def lines(self, path: str) -> list[str]:
        """The lines of a list of classes, with their ends."""
        try:
            with open(path, encoding="utf-8", errors="replace", newline="") as lines:
                return list(lines)
        except OSError as error:
            raise read_error(f"{self.field}: {path!r}", error) from error

    def subfolders(self, directory: str) -> list[str]:
        return [entry.name for entry in self.entries(directory) if _is_folder(entry)]

    def images(self, directory: str) -> tuple[list[str], Entries]:
        """The images of a folder, and its other entries."""
        images: Entries = []
        others: Entries = []
        for entry in self.entries(directory):
            (images if entry.name.lower().endswith(self.suffixes) else others).append(entry)
        return [entry.path for entry in images], others

    def class_files(self, folder: str) -> Files:
        files: Files = []
        for entry in self.entries(folder):
            if not _is_folder(entry):
                self.unread.append(entry)
                continue
            paths, others = self.images(entry.path)
            if not paths:
                paths, inner = self.images(os.path.join(entry.path, "images"))
                others = inner if paths else others
            self.unread += others
            files += [(path, self.label(entry.name, entry.path)) for path in paths]
        return files

    def label(self, name: str, where: str) -> int:
        if name not in self.labels:
            raise self.error(f"the test class {name!r} ({where!r}) is not among the folders of train/. Add it.")
        return self.labels[name]

    def test_files(self, base: str, kaggle_list: str) -> Files:
        val = os.path.join(base, "val")
        # Tiny ImageNet and ImageNet have a test/ without labels, so val/ goes first.
        annotations = os.path.join(val, "val_annotations.txt")
        if os.path.isfile(annotations):
            return self.annotated_files(annotations)
        flat, others = self.images(val)
        if flat and os.path.isfile(kaggle_list):
            self.unread += others
            return self.listed_files(kaggle_list, val, flat)
        for folder in (os.path.join(base, "test"), val):
            if self.subfolders(folder):
                if files := self.class_files(folder):
                    return files
                raise self.error(f"the class folders of {folder!r} contain no images. Add some.{self.remedy()}")
        listed = f", or put ImageNet's list of the images in {val!r} at {kaggle_list!r}" if flat else ""
        found = _similar(base, ("valid", "validation", "Test", "Val"))
        hint = f"Rename {found!r} to {'test' if found.lower().endswith('test') else 'val'}, or put" if found else "Put"
        raise self.error(f"{base!r} has no test images in class folders. {hint} them into test/<class>/{listed}.")

    def annotated_files(self, annotations: str) -> Files:
        images = os.path.join(os.path.dirname(annotations), "images")
        rows = [line.split("\t") for line in self.lines(annotations) if line.strip()]
        if not rows or any(len(row) < 2 for row in rows):
            raise self.error(f"{annotations!r} is not lines of <file><tab><class>.... Restore that file.")
        for name, *_ in rows:
            # An untrusted list must not name other files of this machine.
            if name in ("", ".", "..") or os.path.basename(name) != name or "\0" in name:
                raise self.error(
                    f"{annotations!r} lists {name!r}, which is not the name of a file in {images!r}. Correct that line."
                )
        return [(os.path.join(images, row[0]), self.label(row[1].strip(), annotations)) for row in rows]

    def listed_files(self, kaggle_list: str, folder: str, paths: list[str]) -> Files:
        """The images ``paths`` of ``folder``; a class is the first word of the prediction in the list."""
        rows = list(csv.DictReader(self.lines(kaggle_list)))
        predictions = {row.get("ImageId"): (row.get("PredictionString") or "").split() for row in rows}
        if not rows or None in predictions or not all(predictions.values()):
            raise self.error(
                f"{kaggle_list!r} is not lines of ImageId,PredictionString with a class in each. Restore it."
            )
        images = {os.path.splitext(os.path.basename(path))[0]: path for path in paths}
        if different := images.keys() ^ predictions.keys():
            name = min(map(str, different))
            problem = "has no line for" if name in images else f"lists what {folder!r} lacks,"
            raise self.error(f"{kaggle_list!r} {problem} {name!r}. Restore the list and the images.")
        return [(path, self.label(predictions[name][0], kaggle_list)) for name, path in images.items()]

    def report(self) -> None:
        """Warns of entries that are not read."""
        if not self.unread:
            return
        kinds = collections.Counter(_kind(entry) for entry in self.unread).most_common()
        others = sum(count for _, count in kinds[_MOST_NAMED:])
        counts = [f"{kind} {count}" for kind, count in [*kinds[:_MOST_NAMED], ("others", others)] if count]
        number = "1 entry is" if len(self.unread) == 1 else f"{len(self.unread)} entries are"
        first, named = self.unread[0].path, ", ".join(counts)
        log.warning("%s: %s not read (%s), the first: %r.%s", self.field, number, named, first, self.remedy())

    def remedy(self) -> str:
        """How to read unread files that may be images; "" if there are none."""
        known = {f".{suffix}" for suffix in SUFFIXES} - set(self.suffixes)
        if not (more := sorted(known & {_kind(entry) for entry in self.unread})):
            return ""
        suffixes = ",".join(suffix[1:] for suffix in (*self.suffixes, *more))
        return f" To read {', '.join(more)} files as well, set data.suffixes={suffixes}."


def _similar(directory: str, names: tuple[str, ...]) -> str | None:
    """A folder in ``directory`` with one of ``names``, in any case."""
    wanted = {name.lower() for name in names}
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        return next((entry.path for entry in entries if entry.name.lower() in wanted and _is_folder(entry)), None)
    return None


def _where_else(root: str) -> str:
    """A sentence about a folder that may be the one that is meant; "" if none is seen."""
    if found := _similar(root, ("train", "training")):
        return f"Rename {found!r} to train. " if os.path.basename(found) != "train" else ""
    with contextlib.suppress(OSError), os.scandir(root) as entries:
        for entry in entries:
            if _is_folder(entry) and os.path.isdir(os.path.join(entry.path, "train")):
                return f"Did you mean 'folder:{printable_path(entry.path)}'? "
    return ""


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _kind(entry: os.DirEntry[str]) -> str:
    if _is_folder(entry):
        return "folders"
    if entry.is_symlink() and not os.path.exists(entry.path):
        return "links to nothing"
    return printable_path(os.path.splitext(entry.name)[1].lower()) or "without a suffix"
