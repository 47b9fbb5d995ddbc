"""Folders of images: one sub-folder per class, or the official layouts of ImageNet and Tiny ImageNet."""

import collections
import csv
import dataclasses
import logging
import os
from collections.abc import Sequence

from depthmup_flax.data.dataset import DataConfig
from depthmup_flax.data.decoding import Encoded, EncodedExamples, EncodedSet, printable_path, read_error
from depthmup_flax.errors import InputError

log = logging.getLogger(__name__)

# What `data.suffixes` may name: formats that every build of Pillow reads. Of several frames the first counts.
SUFFIXES = ("bmp", "gif", "jpeg", "jpg", "pgm", "png", "ppm", "tif", "tiff", "webp")
_KAGGLE_LIST = "LOC_val_solution.csv"  # the classes of ImageNet's flat val/, in the root; the images are further down
_MOST_NAMED = 5  # kinds of unread files, or pairs of similar classes, in one warning

Files = list[tuple[str, int]]
Entries = list[os.DirEntry[str]]


def open_folder(directory: str, suffixes: str = DataConfig.suffixes) -> EncodedSet:
    """The images that ``list_folder`` lists, to be read as RGB."""

    def examples(files: Files) -> EncodedExamples:
        return lambda positions: [Encoded(printable_path(files[i][0]), *files[i]) for i in positions], len(files)

    train, test, classes = list_folder(directory, suffixes)
    return EncodedSet(examples(train), examples(test), num_classes=len(classes), channels=3, class_names=tuple(classes))


def separated(suffixes: str) -> list[str]:
    """The suffixes that `data.suffixes` names; there may be spaces after its commas."""
    return [suffix.strip() for suffix in suffixes.split(",")]


def list_folder(directory: str, suffixes: str = DataConfig.suffixes) -> tuple[Files, Files, list[str]]:
    """(path, label) of the training and test images, and the class names: the sorted folders of ``train/``.

    Images are files with one of ``suffixes``, separated by commas, in any case:

    * ``train/<class>/``, and ``test/<class>/`` or, if ``test/`` has no class folders, ``val/<class>/``.
    * Tiny ImageNet: ``train/<class>/images/`` and ``val/images/``, with the latter's classes in
      ``val/val_annotations.txt``.
    * ImageNet: a flat ``val/``, with its classes in Kaggle's ``LOC_val_solution.csv`` in ``directory``. As Kaggle
      ships it, ``train/`` and ``val/`` are in ``ILSVRC/Data/CLS-LOC/``.

    Hidden files are left out. One warning counts all others beside the images and the class folders, such as files of
    other kinds, folders inside a class, and links to nothing; another names classes that differ by case only. A link
    with one of ``suffixes`` is an image, which may be missing: to read that one is an error.

    Raises:
      InputError: a folder is missing or cannot be read, a class has no images, a test class is not a training class, or
        the images do not match the list of their classes.
      RunStopped: the storage fails.
    """
    listing = _Listing(directory, tuple(f".{suffix}" for suffix in separated(suffixes)))
    root = os.path.expanduser(directory)
    if not os.path.isdir(root):
        raise listing.error(f"but there is no folder {root!r}; give the folder that holds train/ and test/.")
    kaggle = os.path.join(root, "ILSVRC", "Data", "CLS-LOC")
    base = kaggle if os.path.isdir(kaggle) else root
    train = os.path.join(base, "train")
    classes = listing.subfolders(train)
    if not classes:
        raise listing.error(f"but {train!r} has no class folders; put the images into train/<class>/.")
    labels = {name: label for label, name in enumerate(classes)}
    train_files = listing.class_files(train, labels)
    if empty := set(range(len(classes))) - {label for _, label in train_files}:
        raise listing.error(
            f"but {os.path.join(train, classes[min(empty)])!r} contains no {_alternatives(listing.suffixes)} image; "
            f"add images or remove that folder.{listing.remedy()}"
        )
    test_files = _test_files(listing, base, os.path.join(root, _KAGGLE_LIST), labels)
    listing.report()
    _report_similar(classes, train)
    return train_files, test_files, classes


@dataclasses.dataclass
class _Listing:
    """Reads folders, and remembers what it leaves out."""

    directory: str  # as the user gives it, which every error repeats
    suffixes: tuple[str, ...]  # with dots
    unread: Entries = dataclasses.field(default_factory=list)

    @property
    def field(self) -> str:
        return f"data.name is 'folder:{self.directory}'"

    def error(self, problem: str) -> InputError:
        return InputError(f"{self.field}, {problem}")

    def entries(self, directory: str) -> Entries:
        """A folder's entries, sorted by name, without hidden ones; none if there is no folder."""
        try:
            with os.scandir(directory) as entries:
                return sorted((entry for entry in entries if not entry.name.startswith(".")), key=lambda e: e.name)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise read_error(f"{self.field}, but the folder {directory!r}", error) from error

    def lines(self, path: str) -> list[str]:
        """The lines of a list of classes, with their ends."""
        try:
            with open(path, encoding="utf-8", errors="replace", newline="") as lines:
                return list(lines)
        except OSError as error:
            raise read_error(f"{self.field}, but {path!r}", error) from error

    def subfolders(self, directory: str) -> list[str]:
        return [entry.name for entry in self.entries(directory) if _is_folder(entry)]

    def images(self, directory: str) -> tuple[list[str], Entries]:
        """The images of a folder, and its other entries."""
        paths, others = [], []
        for entry in self.entries(directory):
            if entry.name.lower().endswith(self.suffixes):
                paths.append(entry.path)
            else:
                others.append(entry)
        return paths, others

    def class_files(self, folder: str, labels: dict[str, int]) -> Files:
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
            files += [(path, self.label(entry.name, labels, entry.path)) for path in paths]
        return files

    def label(self, name: str, labels: dict[str, int], where: str) -> int:
        if name not in labels:
            raise self.error(f"but the test class {name!r} ({where!r}) is not among the folders of train/; add it.")
        return labels[name]

    def report(self) -> None:
        """Warns of all entries that are not read, if there are any."""
        if not self.unread:
            return
        kinds = collections.Counter(_kind(entry) for entry in self.unread).most_common()
        counts = [f"{kind} {count}" for kind, count in kinds[:_MOST_NAMED]]
        if len(kinds) > _MOST_NAMED:
            counts.append(f"others {sum(count for _, count in kinds[_MOST_NAMED:])}")
        number = "1 entry is" if len(self.unread) == 1 else f"{len(self.unread)} entries are"
        start = f"{self.field}, of which {number} not read ({', '.join(counts)})"
        log.warning("%s, the first: %r.%s", start, self.unread[0].path, self.remedy())

    def remedy(self) -> str:
        """How to read those of the unread files that may be images; "" if there are none."""
        known = {f".{suffix}" for suffix in SUFFIXES} - set(self.suffixes)
        if not (more := sorted(known & {_kind(entry) for entry in self.unread})):
            return ""
        suffixes = ",".join(suffix[1:] for suffix in (*self.suffixes, *more))
        return f" To read {_alternatives(more, 'and')} files as well, set data.suffixes to {suffixes!r}."


def _test_files(listing: _Listing, base: str, kaggle_list: str, labels: dict[str, int]) -> Files:
    val = os.path.join(base, "val")
    # Before test/, which has no labels in Tiny ImageNet and ImageNet.
    annotations = os.path.join(val, "val_annotations.txt")
    if os.path.isfile(annotations):
        return _annotated_files(listing, annotations, labels)
    flat, others = listing.images(val)
    if flat and os.path.isfile(kaggle_list):
        listing.unread += others
        return _listed_files(listing, kaggle_list, val, flat, labels)
    folders = [os.path.join(base, split) for split in ("test", "val")]
    for folder in folders:
        if listing.subfolders(folder):
            if files := listing.class_files(folder, labels):
                return files
            raise listing.error(f"but the class folders of {folder!r} contain no images; add some.{listing.remedy()}")
    if flat:
        raise listing.error(
            f"but the images in {val!r} have no class folders; put them into val/<class>/, or ImageNet's "
            f"{_KAGGLE_LIST} at {kaggle_list!r}."
        )
    for folder in folders:
        if os.path.isdir(folder):
            raise listing.error(f"but {folder!r} has no class folders; put its images into one for each class.")
    raise listing.error(f"but {base!r} has neither test/ nor val/; put held-out images into test/<class>/.")


def _annotated_files(listing: _Listing, annotations: str, labels: dict[str, int]) -> Files:
    images = os.path.join(os.path.dirname(annotations), "images")
    rows = [line.split("\t") for line in listing.lines(annotations) if line.strip()]
    if not rows or any(len(row) < 2 for row in rows):
        raise listing.error(f"but {annotations!r} is not lines of <file><tab><class>...; restore that file.")
    for name, *_ in rows:
        # The list may come from anyone: it must not point at other files of this machine.
        if name in ("", ".", "..") or os.path.basename(name) != name or "\0" in name:
            raise listing.error(
                f"but {annotations!r} lists {name!r}, which is not the name of a file in {images!r}; correct that line."
            )
    return [(os.path.join(images, row[0]), listing.label(row[1].strip(), labels, annotations)) for row in rows]


def _listed_files(listing: _Listing, kaggle_list: str, folder: str, paths: list[str], labels: dict[str, int]) -> Files:
    """The images ``paths`` of ``folder``; a class is the first word of the prediction in the list."""
    rows = list(csv.DictReader(listing.lines(kaggle_list)))
    predictions = {row.get("ImageId"): (row.get("PredictionString") or "").split() for row in rows}
    if not rows or None in predictions or not all(predictions.values()):
        raise listing.error(
            f"but {kaggle_list!r} is not lines of ImageId,PredictionString with a class in each; restore it."
        )
    images = {os.path.splitext(os.path.basename(path))[0]: path for path in paths}
    if extra := [path for name, path in images.items() if name not in predictions]:
        raise listing.error(f"but {kaggle_list!r} has no line for {extra[0]!r}; add it or remove that image.")
    if lost := [name for name in predictions if name not in images]:
        raise listing.error(f"but {folder!r} has no image {lost[0]!r}, which {kaggle_list!r} lists; restore it.")
    return [(path, listing.label(predictions[name][0], labels, kaggle_list)) for name, path in images.items()]


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


def _alternatives(words: Sequence[str], conjunction: str = "or") -> str:
    *most, last = words
    return f"{', '.join(most)} {conjunction} {last}" if most else last


def _report_similar(classes: list[str], folder: str) -> None:
    by_name: dict[str, str] = {}
    pairs = [(other, name) for name in classes if (other := by_name.setdefault(name.casefold(), name)) != name]
    if pairs:
        named = ", ".join(f"{one!r} and {other!r}" for one, other in pairs[:_MOST_NAMED])
        more = ", ..." if len(pairs) > _MOST_NAMED else ""
        log.warning("%r has classes that differ by case only, which count as two: %s%s.", folder, named, more)
