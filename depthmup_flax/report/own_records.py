"""Runs that somebody's own loop trained, from a table of theirs; and such a table as a sweep."""

from __future__ import annotations

import dataclasses
import math
import os
import pathlib
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

from depthmup_flax.storage.run_tables import LOGGED, NAMES, TextTable, as_table, read_table, role_of
from depthmup_flax.storage.sweep_records import COMPLETED, DIVERGED, LEARNING_RATE, Record, Sweep, SweepInfo
from depthmup_flax.util.errors import InputError

_FIELDS = {"width": "model.width", "depth": "model.depth", "rule": "parametrization.preset"}
_NEEDED = ("width", "depth", "learning_rate", "loss")
_NUMBERS = (*_NEEDED, "initial_loss", "steps", "batch_size", "parameters")
_WHOLE = ("width", "depth")
_FEWEST_RUNS = 6  # of a setting's value: two sizes with three rates
_START = 0.02  # of a logged run: a loss before it is the initial one

Size = tuple[int, int, int, int]  # width, depth, steps, batch size; 0 is unknown


@dataclasses.dataclass(frozen=True)
class Run:
    """A run of a table."""

    line: int
    width: int
    depth: int
    rate: float
    loss: float  # NaN if it diverged
    seed: int
    initial_loss: float  # NaN if unknown
    steps: int  # 0 if unknown, as are the next two
    batch_size: int
    parameters: int
    settings: tuple[tuple[str, Hashable], ...]  # what else runs differ in: column -> value

    @property
    def size(self) -> Size:
        """Width, depth, steps and batch size."""
        return self.width, self.depth, self.steps, self.batch_size

    @property
    def point(self) -> Hashable:
        """All but the seed and what was measured."""
        return *self.size, self.rate, self.settings


@dataclasses.dataclass(frozen=True)
class OwnRuns:
    """The runs of a table, each once, with equally many seeds at each rate of a size."""

    name: str
    runs: Sequence[Run]
    notes: tuple[str, ...]  # what was left out, in sentences


def read_csv(path: pathlib.Path) -> Sweep:
    """A table of runs as a sweep: a line per run, with columns that `read_runs` knows.

    ``initial_loss`` is that of the first steps: what a run learned is measured from there. The base is the smallest
    width and depth; a column ``rule`` tells rules and controls apart.

    Raises:
      InputError: see `read_runs`; or there is no initial loss.
    """
    own = read_runs(path)
    if any(math.isnan(run.initial_loss) for run in own.runs):
        raise InputError(
            f"{str(path)!r} has no column 'initial_loss', or an empty cell there: a report measures from the loss of "
            f"the first steps what is learned. Add it, or use depthmup ladder, which needs none."
        )
    records = [_record(run, f"{str(path)!r}, line {run.line}") for run in own.runs]
    axes = {axis: sorted({record.point[axis] for record in records}) for axis in records[0].point}
    base = {"model": {f"base_{name}": axes[_FIELDS[name]][0] for name in _WHOLE}}
    info = SweepInfo(path.stem, f"Runs of {path.name}", "own", LEARNING_RATE, axes, base, runs=len(records))
    return Sweep(info, records, list(own.notes), axes)


def _record(run: Run, where: str) -> Record:
    finite = math.isfinite(run.loss)
    sizes = {_FIELDS["width"]: run.width, _FIELDS["depth"]: run.depth}
    settings = {_FIELDS.get(name, name): value for name, value in run.settings}
    return Record(
        run=where,
        status=COMPLETED if finite else DIVERGED,
        point={**sizes, LEARNING_RATE: run.rate, "seed": run.seed, **settings},
        width=run.width,
        depth=run.depth,
        parameters=run.parameters,
        seed=run.seed,
        steps=run.steps,
        train_loss=None,
        train_loss_avg=run.loss if finite else None,
        slice_steps=1,
        train_loss_slices=[run.initial_loss],
    )


def read_runs(source: str | os.PathLike[str] | Any, names: Mapping[str, str | None] | None = None) -> OwnRuns:
    """The runs of a table.

    Args:
      source: a file; or column -> values, or a list of rows, name -> value, such as pandas has them.
      names: role of `NAMES` -> column; others are found by usual names, such as ``n_embd`` for the width.

    A loss that is empty, NaN or infinite is that of a diverged run. Of a log, with a row for each evaluation, the last
    row of a run counts.

    Raises:
      InputError: there is no such table, it lacks a column, or has a cell that cannot be read.
    """
    is_path = isinstance(source, (str, os.PathLike))
    table = read_table(pathlib.Path(source).expanduser()) if is_path else as_table(source)
    columns = list(table.columns)
    known = {role: role_of(columns, role, (names or {}).get(role), table.source) for role in NAMES}
    for role in _NEEDED:
        if known[role] is None:
            shown = ", ".join(columns[:20])
            raise InputError(f"{table.source} has no column {role!r}, but {shown}: name it, as --{role}=COLUMN.")
    taken = {role: name for role, name in known.items() if name is not None and name != role}
    notes = [*table.notes, *(["Columns: " + ", ".join(f"{k} is {v}" for k, v in taken.items()) + "."] if taken else [])]
    rows, others = _typed(table, known, notes)
    logged = str(known["steps"]).lower() in LOGGED
    rows = _last_of_log(rows, others, notes) if logged else rows
    runs = _with_settings(rows, others, known["rule"], notes)
    runs = _equally_many_seeds(_once(runs, known["seed"] is not None, notes), notes)
    return OwnRuns(pathlib.Path(source).name if is_path else "runs", runs, tuple(notes))


@dataclasses.dataclass(frozen=True)
class _Rows:
    """Rows of a table with their numbers, and their cells in further columns."""

    numbers: list[dict[str, float]]  # of each row: role -> number
    cells: list[dict[str, str]]  # of each row: further column -> text
    lines: list[int]

    def only(self, kept: Iterable[int]) -> _Rows:
        """Some of the rows."""
        places = list(kept)
        numbers, cells = [self.numbers[i] for i in places], [self.cells[i] for i in places]
        return _Rows(numbers, cells, [self.lines[i] for i in places])


def _typed(table: TextTable, known: Mapping[str, str | None], notes: list[str]) -> tuple[_Rows, list[str]]:
    """The rows whose size and rate are known, and the names of further columns."""
    numbers, seeds = list[dict[str, float]](), dict[str, int]()
    for row, line in enumerate(table.lines):
        own = {}
        for role in _NUMBERS:
            own[role] = math.nan if (name := known[role]) is None else _number(table, name, row, line)
        for role in _WHOLE:
            if not math.isnan(own[role]) and not (own[role] >= 1 and own[role].is_integer()):
                text = f"{known[role]} is {own[role]:g}: use a whole number above 0."
                raise InputError(f"{table.source}, line {line}: {text}")
        if own["learning_rate"] < 0:
            raise InputError(
                f"{table.source}, line {line}: {known['learning_rate']} is {own['learning_rate']:g}: a rate is above "
                "0. If the column has logarithms, write their powers."
            )
        text = table.columns[known["seed"]][row] if known["seed"] else ""
        own["seed"] = int(text) if text.isdecimal() and len(text) < 10 else -1 - seeds.setdefault(text, len(seeds))
        own["seed"] = 0 if known["seed"] is None else own["seed"]
        numbers.append(own)
    complete = lambda own: 0 < own["learning_rate"] < math.inf and not math.isnan(own["width"] + own["depth"])
    kept = [place for place, own in enumerate(numbers) if complete(own)]
    if lacking := len(numbers) - len(kept):
        notes.append(f"{_rows(lacking)} without a width, a depth or a rate above 0: left out.")
    if not kept:
        raise InputError(f"{table.source} has no row with a width, a depth and a learning rate above 0.")
    used = {name for role, name in known.items() if role != "rule"}
    others = [name for name in table.columns if name not in used]
    cells = [{name: table.columns[name][row] for name in others} for row in range(len(numbers))]
    return _Rows(numbers, cells, list(table.lines)).only(kept), others


def _rows(count: int) -> str:
    return f"{count:,} rows" if count > 1 else "one row"


def _number(table: TextTable, name: str, row: int, line: int) -> float:
    number = table.number(name, row)
    if number is None:
        text = table.columns[name][row]
        raise InputError(f"{table.source}, line {line}: {name} is {text[:40]!r}: write a number.")
    return number


def _is_function(keys: Sequence[Hashable], values: Sequence[Hashable]) -> bool:
    """Whether each key has one value."""
    return len(set(zip(keys, values, strict=True))) == len(set(keys))


def _last_of_log(rows: _Rows, others: Sequence[str], notes: list[str]) -> _Rows:
    """The last row of each run, with the first one's loss as the initial one where it is of the run's beginning."""
    steps = [own["steps"] for own in rows.numbers]
    columns = {name: [cells[name] for cells in rows.cells] for name in others}
    of_run = [name for name in others if len(set(columns[name])) * _FEWEST_RUNS <= len(steps)]
    of_run = [name for name in of_run if not _is_function(steps, columns[name])]
    runs: dict[Hashable, list[int]] = defaultdict(list)
    for place, own in enumerate(rows.numbers):
        key = own["width"], own["depth"], own["learning_rate"], own["seed"]
        runs[*key, *(columns[name][place] for name in of_run)].append(place)
    longest: dict[Hashable, float] = defaultdict(float)
    for own in rows.numbers:
        size = own["width"], own["depth"]
        longest[size] = max(longest[size], own["steps"])
    kept, unfinished = [], 0
    for places in runs.values():
        last, first = max(places, key=lambda place: steps[place]), min(places, key=lambda place: steps[place])
        end = longest[rows.numbers[last]["width"], rows.numbers[last]["depth"]]
        if steps[last] < end and math.isfinite(rows.numbers[last]["loss"]):
            unfinished += 1
            continue
        if math.isnan(rows.numbers[last]["initial_loss"]) and steps[first] <= _START * end and first != last:
            rows.numbers[last]["initial_loss"] = rows.numbers[first]["loss"]
        rows.numbers[last]["steps"] = end
        kept += [place for place in places if steps[place] == steps[last]]
    if earlier := len(steps) - len(kept) - unfinished:
        notes.append(f"The table is a log: of each run the row of its last step counts ({_rows(earlier)} are earlier).")
    if unfinished:
        notes.append(f"{unfinished} runs end before others of their size: left out.")
    return rows.only(sorted(kept))


def _with_settings(rows: _Rows, others: Sequence[str], rule: str | None, notes: list[str]) -> list[Run]:
    """The runs with the settings in which they differ; says which columns are none."""
    count = len(rows.lines)
    sizes = [(own["width"], own["depth"]) for own in rows.numbers]
    rates = [own["learning_rate"] for own in rows.numbers]
    settings, own_value, of_size = dict[str, list[Hashable]](), list[str](), list[str]()
    for name in others:
        values = _values([cells[name] for cells in rows.cells])
        distinct = len(set(values))
        if name == rule:
            settings["rule"] = values
        elif distinct == 1:
            continue
        elif distinct > max(2, count / _FEWEST_RUNS):
            own_value.append(name)
        elif _is_function(sizes, values) or (_is_function(rates, values) and _is_function(values, rates)):
            of_size.append(name)
        else:
            settings[name] = values
    reasons = {"values of nearly every run's own": own_value, "given by the size or the rate": of_size}
    if said := [f"{', '.join(names[:12])} ({why})" for why, names in reasons.items() if names]:
        notes.append(f"Columns that are no settings, left out: {'; '.join(said)}.")
    whole = lambda value: int(value) if math.isfinite(value) and value >= 1 else 0
    return [
        Run(
            line=rows.lines[place],
            width=int(own["width"]),
            depth=int(own["depth"]),
            rate=own["learning_rate"],
            loss=own["loss"] if math.isfinite(own["loss"]) else math.nan,
            seed=int(own["seed"]),
            initial_loss=own["initial_loss"],
            **{name: whole(own[name]) for name in ("steps", "batch_size", "parameters")},
            settings=tuple((name, values[place]) for name, values in settings.items()),
        )
        for place, own in enumerate(rows.numbers)
    ]


def _values(texts: Sequence[str]) -> list[Hashable]:
    """Numbers where all texts are, else the texts."""
    try:
        return [float(text) for text in texts]
    except ValueError:
        return list(texts)


def _grouped(runs: Iterable[Run], key: Callable[[Run], Hashable]) -> dict[Hashable, list[Run]]:
    groups: dict[Hashable, list[Run]] = defaultdict(list)
    for run in runs:
        groups[key(run)].append(run)
    return groups


def _once(runs: Sequence[Run], has_seeds: bool, notes: list[str]) -> list[Run]:
    """Each run once: the later row of two. Without a column of seeds, rows of other losses are other seeds."""
    result, repeated, numbered = list[Run](), 0, 0
    for same in _grouped(runs, lambda run: (run.point, run.seed)).values():
        losses = {run.loss if run.loss == run.loss else None: run for run in same}
        if has_seeds or len(losses) == 1:
            result.append(same[-1])
            repeated += len(same) - 1
        else:
            result += [dataclasses.replace(run, seed=seed) for seed, run in enumerate(losses.values())]
            repeated += len(same) - len(losses)
            numbered += 1
    if repeated:
        notes.append(f"{_rows(repeated)} repeated: the later one of a run counts.")
    if numbered:
        notes.append("There is no column of seeds: rows that differ in the loss alone count as seeds.")
    return result


def _equally_many_seeds(runs: Sequence[Run], notes: list[str]) -> list[Run]:
    """As many seeds at each rate of a size, as keeps most runs; numbered anew where they differ between rates."""
    result = list[Run]()
    for group in _grouped(runs, lambda run: (run.size, run.settings)).values():
        at_rate = _grouped(group, lambda run: run.rate)
        counts = [len(own) for own in at_rate.values()]
        kept_by = {seeds: seeds * sum(count >= seeds for count in counts) for seeds in sorted(set(counts))}
        seeds = max(kept_by, key=lambda count: kept_by[count])
        equal = len({frozenset(run.seed for run in own) for own in at_rate.values()}) == 1
        for own in at_rate.values():
            if len(own) >= seeds:
                ordered = sorted(own, key=lambda run: run.seed)[:seeds]
                result += ordered if equal else [dataclasses.replace(run, seed=i) for i, run in enumerate(ordered)]
    if dropped := len(runs) - len(result):
        notes.append(f"Rates of a size have unequal numbers of seeds: {_rows(dropped)} left out to make them equal.")
    return result
