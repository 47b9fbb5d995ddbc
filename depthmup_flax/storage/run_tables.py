"""Tables of runs as people have them: text with a header line, of any trainer, as named columns of text.

Read are commas, semicolons, tabs or blanks between cells; UTF-8, UTF-16 and Latin-1; gzip; comment lines. What a table
lacks or repeats is an `InputError` or a note, which says what was done.
"""

from __future__ import annotations

import csv
import dataclasses
import gzip
import io
import pathlib
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from depthmup_flax.util.errors import InputError, did_you_mean, printable

# Columns of steps in a log.
LOGGED = ("step", "iter", "iteration", "global_step", "_step", "it")
# Role -> names under which trainers write it, in lower case, the likeliest first.
NAMES: Mapping[str, Sequence[str]] = {
    "width": ("width", "n_embd", "d_model", "hidden_size", "n_embed", "hidden_dim", "embed_dim", "model_dim", "dim"),
    "depth": ("depth", "n_layer", "n_layers", "num_layers", "num_hidden_layers", "layers", "n_blocks"),
    "learning_rate": ("learning_rate", "lr", "eta", "peak_lr", "max_lr", "base_lr", "rate"),
    # Held-out ones before those of training, which a bare one is in most trackers.
    "loss": (
        *("val_loss", "validation_loss", "eval_loss", "valid_loss", "dev_loss", "loss_val", "loss_eval"),
        *("test_loss", "loss_test", "final_loss", "loss", "train_loss", "training_loss", "loss_train"),
    ),
    "seed": ("seed", "random_seed", "rng_seed"),
    "initial_loss": ("initial_loss", "init_loss", "first_loss", "chance_loss"),
    "steps": ("steps", "train_steps", "total_steps", "num_steps", "max_iters", "max_steps", "iters", *LOGGED),
    "batch_size": ("batch_size", "batch", "global_batch_size"),
    "parameters": ("parameters", "params", "n_params", "num_params", "num_parameters"),
    "rule": ("rule", "parametrization", "parameterization"),
    "state": ("state", "status", "run_state", "run_status"),
}
NEEDED = ("width", "depth", "learning_rate", "loss")
# Words in names of columns that grow toward the better; and in those that do not all the same, as in 100 - acc.
_ACCURACIES = {"acc", "acc1", "valacc", "top1", "f1", "bleu", "rouge", "auc"}
_ERRORS = {"err", "error", "loss", "minus", "1", "100"}
_DELIMITERS = (",", ";", "\t", "|")
_EMPTY = ("", "none", "null", "na", "n/a", "#n/a", "<na>", "-", "--", "?", "diverged")
_NO_NUMBER = (*_EMPTY, "nan")
_MOST = 2**27  # characters of a cell: the csv module's own limit is 131,072
_INDEX = "(index)"  # a column without a name
_THOUSANDS = re.compile(r"[1-9]\d{0,2}(,\d{3})+")
_NUMBER_CELL = re.compile(r"(^|[,;\t| ])[-+]?\d[\d.e+-]*([,;\t| ]|$)")
_DECIMAL_COMMA = re.compile(r"[-+]?\d+,\d+(e[-+]?\d+)?", re.IGNORECASE)
_DECIMAL_POINT = re.compile(r"[-+]?\d+\.\d+")
_MARKS = {b"\xff\xfe\x00\x00": "utf-32", b"\x00\x00\xfe\xff": "utf-32", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
# JSON, HTML, or control characters at the beginning
_NO_TEXT = re.compile(r"\s*[{\[<]|[\s\S]{0,1000}?[\x01-\x08\x0e-\x1a\x1c-\x1f]")

Row = tuple[int, list[str]]  # number of a line and its cells


@dataclasses.dataclass(frozen=True)
class TextTable:
    """The cells of a table, and what was done to read them."""

    source: str  # for sentences
    columns: Mapping[str, Sequence[str]]  # name -> a cell of each row
    lines: Sequence[int]  # of each row in the file
    notes: tuple[str, ...] = ()
    decimal_comma: bool = False  # whether 0,5 is a half

    def text(self, name: str, row: int) -> str:
        """A cell, with a point in decimal numbers."""
        text = self.columns[name][row].strip()
        return text.replace(",", ".") if self.decimal_comma and _DECIMAL_COMMA.fullmatch(text) else text

    def number(self, name: str, row: int, whole: bool) -> float | None:
        """The number in a cell, NaN for an empty one; ``None`` if it is another text.

        Only ``whole`` numbers may have commas between thousands: 2,345 may be a loss in a table with decimal commas.
        """
        text = self.text(name, row)
        if whole and _THOUSANDS.fullmatch(self.columns[name][row]):
            text = "both" if self.decimal_comma else text.replace(",", "")
        try:
            return float("nan" if text.lower() in _EMPTY else text)
        except ValueError:
            return None


def is_table(path: pathlib.Path) -> bool:
    """Whether a path means a table, not a directory of records: a file, or a name that ends as one."""
    return path.is_file() or path.name.lower().removesuffix(".gz").endswith((".csv", ".tsv", ".txt"))


def read_table(path: pathlib.Path) -> TextTable:
    """The table in a file; `InputError` if there is none."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{str(path)!r} cannot be read ({error.strerror or error}): name a table of runs.") from error
    source = repr(str(path))
    text = io.StringIO(_decoded(content, source), newline=None)
    lines = [(number, line) for number, line in enumerate(text, 1) if line.strip()]
    if lines and lines[0][1].lower().startswith("sep="):  # of a spreadsheet
        lines = lines[1:]
    lines = _without_comments(lines)
    if len(lines) < 2:
        raise InputError(f"{source} has no line of a run: it needs a header line, and a line for each run.")
    delimiter = _delimiter(lines[0][1])
    return _table(_rows(lines, delimiter, source), source, delimiter)


def _without_comments(lines: Sequence[tuple[int, str]]) -> list[tuple[int, str]]:
    """The other lines; below the last comment of the beginning, without its sign, if they have no names themselves."""
    first = next((i for i, (_, line) in enumerate(lines) if not line.lstrip().startswith("#")), len(lines))
    rows = [(number, line) for number, line in lines[first:] if not line.lstrip().startswith("#")]
    if first and rows and _NUMBER_CELL.search(rows[0][1]):  # as NumPy's savetxt writes a header
        number, header = lines[first - 1]
        rows.insert(0, (number, header.lstrip(" #")))
    return rows


def as_table(source: Any) -> TextTable:
    """The table of column -> values, of a data frame, or of a list of rows, name -> value."""
    values = _by_column(source)
    lengths = {len(column) for column in values.values()}
    if len(lengths) != 1 or 0 in lengths:
        raise InputError("records have no rows: give a file, a data frame, a list of rows or column -> values.")
    columns = {str(name): ["" if cell is None else str(cell) for cell in column] for name, column in values.items()}
    return TextTable("records", columns, range(1, 1 + lengths.pop()))


def _by_column(source: Any) -> Mapping[str, Sequence[Any]]:
    if hasattr(source, "to_dict"):
        source = source.to_dict("list") if hasattr(source, "iloc") else source.to_dict(as_series=False)
    if isinstance(source, (list, tuple)) and all(isinstance(row, Mapping) for row in source):
        names = dict.fromkeys(name for row in source for name in row)
        return {name: [row.get(name) for row in source] for name in names}
    return source if isinstance(source, Mapping) else {}


def columns_of(table: TextTable, given: Mapping[str, str], ignored: Sequence[str]) -> dict[str, str | None]:
    """Role of `NAMES` -> its column: the ``given`` one, or the first with a usual name; ``None`` if there is none."""
    columns = list(table.columns)
    shown = printable(", ".join(name[:40] for name in columns[:20])) + ", ..." * (len(columns) > 20)
    if unknown := [role for role in given if role not in NAMES]:
        raise InputError(f"columns has {unknown[0]!r}: {did_you_mean(str(unknown[0]), NAMES)}")
    if absent := [name for name in (*given.values(), *ignored) if name not in columns]:
        raise InputError(f"{table.source} has no column {absent[0]!r}: it has {shown}.")
    others = [name for name in columns if name not in ignored]
    filled = [name for name in others if any(cell.strip().lower() not in _NO_NUMBER for cell in table.columns[name])]
    usual = _usual_columns(others) | _usual_columns(filled)
    result = {role: given.get(role) or usual.get(role) for role in NAMES}
    if lacking := [role for role in NEEDED if result[role] is None]:
        role = lacking[0]
        raise InputError(f"{table.source} has no column {role!r}, but {shown}: name it, as --column.{role}=NAME.")
    return result


def _usual_columns(columns: Sequence[str]) -> dict[str, str]:
    """Role -> the column with the likeliest of its usual names, which may be the last parts of a longer one.

    A short name comes before a part of a longer one, ``lr`` before ``optimizer.learning_rate``; but of losses the kind
    counts first, ``eval/loss`` before ``loss``.
    """
    result = dict[str, str]()
    for role in NAMES:
        places = dict[str, tuple[int, int]]()
        for name in columns:
            if place := _place(name, role):
                places[name] = place if role == "loss" else place[::-1]
        if places:
            result[role] = min(places, key=places.__getitem__)
    return result


def is_accuracy(name: str) -> bool:
    """Whether a column is named as what grows toward the better."""
    words = set(re.split("[^a-z0-9]", name.lower()))
    return not words & _ERRORS and (not words.isdisjoint(_ACCURACIES) or any("accuracy" in word for word in words))


def other_losses(columns: Iterable[str], loss: str | None) -> list[str]:
    """The columns of losses but this one: what runs measured, not their settings."""
    return [name for name in columns if name != loss and _place(name, "loss")]


def _place(name: str, role: str) -> tuple[int, int] | None:
    """Which usual name of a role a column ends with, the longest, and how many parts stand before it."""
    names, parts = list(map(_squeezed, NAMES[role])), re.split("[/.]", name)
    for start in range(len(parts)):
        if (end := "".join(map(_squeezed, parts[start:]))) in names:
            return names.index(end), start
    return None


def is_logged(steps: str | None) -> bool:
    """Whether the name of a column of steps is that of a log, which has a row for each evaluation of a run."""
    return steps is not None and _squeezed(_last(steps)) in map(_squeezed, LOGGED)


def _squeezed(name: str) -> str:
    """``valloss`` for ``val/loss``, ``val_loss`` and ``Val Loss``."""
    return re.sub("[^a-z0-9]", "", name.lower())


def _last(name: str) -> str:
    """``n_embd`` for ``model.n_embd``."""
    return re.split("[/.]", name)[-1]


def _decoded(content: bytes, source: str) -> str:
    if content.startswith(b"\x1f\x8b"):
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(f"{source} is a damaged gzip file ({error}): copy it again.") from error
    encoding = next((name for mark, name in _MARKS.items() if content.startswith(mark)), "utf-8-sig")
    if encoding == "utf-8-sig" and b"\x00" in content[:2]:
        encoding = "utf-16-be" if content[:1] == b"\x00" else "utf-16-le"
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError:
        text = content.decode("latin-1")
    if _NO_TEXT.match(text):
        raise InputError(f"{source} is no table of text: save it as CSV, as pandas' to_csv does.")
    return text


def _delimiter(header: str) -> str | None:
    """What stands between the cells of the header; ``None``: blanks."""
    outside = re.sub(r'"[^"]*"', "", header)
    counts = {mark: outside.count(mark) for mark in _DELIMITERS}
    best = max(counts, key=lambda mark: counts[mark])
    return best if counts[best] else None if len(header.split()) > 1 else ","


def _rows(lines: Sequence[tuple[int, str]], delimiter: str | None, source: str) -> list[Row]:
    """The cells of each row, with the number of its last line."""
    if delimiter is None:
        return [(number, line.split()) for number, line in lines]
    before = csv.field_size_limit(_MOST)
    reader, rows = csv.reader((line.replace("\x00", "") for _, line in lines), delimiter=delimiter), list[Row]()
    try:
        begun = 0
        for row in reader:
            if reader.line_num - begun > 1 and reader.line_num == len(lines) and len(row) < len(rows[0][1]):
                raise InputError(f"{source}, line {lines[begun][0]}, opens a quote that no line closes: close it.")
            begun = reader.line_num
            rows.append((lines[begun - 1][0], [cell.strip() for cell in row]))
    except csv.Error as error:
        raise InputError(f"{source} cannot be read as a table ({error}): save it as CSV.") from error
    finally:
        csv.field_size_limit(before)
    return rows


def _table(rows: list[Row], source: str, delimiter: str | None) -> TextTable:
    header, notes = rows[0][1], list[str]()
    body = [row for row in rows[1:] if row[1] != header]
    if (joined := len(rows) - len(body)) > 1:
        notes.append(f"The header line occurs {joined} times: files were joined.")
    header = _with_index(header, body)
    if len(body) > 1 and len(body[-1][1]) < len(header):
        notes.append(f"Line {body[-1][0]}, the last one, is cut off and left out.")
        body = body[:-1]
    if not body:
        raise InputError(f"{source} has no line of a run: it needs a line for each run below its header.")
    _require_cells(header, body, source)
    decimal_point = any(_DECIMAL_POINT.match(cell) for _, row in body for cell in row)
    columns = {name: [row[place] for _, row in body] for place, name in enumerate(header) if name}
    is_comma = delimiter not in (",", None) and not decimal_point
    return TextTable(source, columns, [number for number, _ in body], tuple(notes), is_comma)


def _require_cells(header: Sequence[str], body: Sequence[Row], source: str) -> None:
    """`InputError` unless each column has one name and each name a cell in each row."""
    names = [name for name in header if name]
    if twice := [name for name in names if names.count(name) > 1]:
        raise InputError(f"{source} has two columns {twice[0]!r}: rename one.")
    for number, row in body:
        if len(row) < len(header) or any(row[len(header) :]):
            raise InputError(
                f"{source}, line {number}, has {len(row)} cells and the header {len(header)}: give both as many."
            )


def _with_index(header: list[str], body: Sequence[Row]) -> list[str]:
    """The header with a name for the column without one, as pandas writes it; and "" for one without name and cells."""
    if not header[0]:
        return [_INDEX, *header[1:]]
    if not body or any(len(row) != len(header) + 1 for _, row in body):
        return header
    return [_INDEX, *header] if body[0][1][-1] else [*header, ""]
