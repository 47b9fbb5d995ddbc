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
_OPTIONAL = ("steps", "batch_size", "parameters")
_NUMBERS = (*_NEEDED, "initial_loss", *_OPTIONAL)
_WHOLE = ("width", "depth")
_FEWEST_RUNS = 6  # of a setting's value: two sizes with three rates
# Columns of trackers that no training depends on.
_NO_SETTINGS = ("state", "status", "host", "hostname", "user", "tags", "notes", "created", "commit", "device", "gpu")
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


def read_runs(source: Any, names: Mapping[str, str | None] | None = None, ignored: Sequence[str] = ()) -> OwnRuns:
    """The runs of a table.

    Args:
      source: a file; or column -> values, or a list of rows, name -> value, such as pandas has them.
      names: role of `NAMES` -> column; others are found by usual names, such as ``n_embd`` for the width.
      ignored: further columns that are no settings.

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
    runs = _typed(table, known, ignored, notes)
    if str(known["steps"]).lower() in LOGGED:
        runs = _last_of_log(runs, notes)
    runs = _with_settings(runs, known["rule"], notes)
    runs = _equally_many_seeds(_once(runs, known["seed"] is not None, notes), notes)
    return OwnRuns(pathlib.Path(source).name if is_path else "runs", runs, tuple(notes))


def _typed(table: TextTable, known: Mapping[str, str | None], ignored: Sequence[str], notes: list[str]) -> list[Run]:
    """The rows whose size and rate are known, with the cells of all further columns as settings."""
    used = {name for role, name in known.items() if role != "rule"} | set(ignored)
    others = [name for name in table.columns if name not in used]
    runs, seeds = list[Run](), dict[str, int]()
    for row, line in enumerate(table.lines):
        own = {role: _number(table, name, row) if (name := known[role]) else math.nan for role in _NUMBERS}
        for role in _WHOLE:
            if not ((own[role] >= 1 and own[role].is_integer()) or math.isnan(own[role])):
                text = f"{known[role]} is {own[role]:g}: use a whole number above 0."
                raise InputError(f"{table.source}, line {line}: {text}")
        if own["learning_rate"] < 0:
            raise InputError(
                f"{table.source}, line {line}: {known['learning_rate']} is {own['learning_rate']:g}: a rate is above "
                "0. If the column has logarithms, write their powers."
            )
        if math.isnan(own["width"] + own["depth"]) or not 0 < own["learning_rate"] < math.inf:
            continue
        text = table.columns[known["seed"]][row] if known["seed"] else "0"
        runs.append(
            Run(
                line=line,
                **{role: int(own[role]) for role in _WHOLE},
                rate=own["learning_rate"],
                loss=own["loss"] if math.isfinite(own["loss"]) else math.nan,
                seed=int(text) if text.isdecimal() else -1 - seeds.setdefault(text, len(seeds)),
                initial_loss=own["initial_loss"],
                **{role: int(own[role]) if 1 <= own[role] < math.inf else 0 for role in _OPTIONAL},
                settings=tuple((name, table.columns[name][row]) for name in others),
            )
        )
    if lacking := len(table.lines) - len(runs):
        notes.append(f"{_rows(lacking)} without a width, a depth or a rate above 0: left out.")
    if not runs:
        raise InputError(f"{table.source} has no row with a width, a depth and a learning rate above 0.")
    return runs


def _rows(count: int) -> str:
    return f"{count:,} rows" if count > 1 else "one row"


def _number(table: TextTable, name: str, row: int) -> float:
    number = table.number(name, row)
    if number is None:
        text = table.columns[name][row]
        raise InputError(f"{table.source}, line {table.lines[row]}: {name} is {text[:40]!r}: write a number.")
    return number


def _is_function(keys: Sequence[Hashable], values: Sequence[Hashable]) -> bool:
    """Whether each key has one value."""
    return len(set(zip(keys, values, strict=True))) == len(set(keys))


def _last_of_log(rows: Sequence[Run], notes: list[str]) -> list[Run]:
    """The last row of each run, with the first one's loss as the initial one where it is of the run's beginning."""
    steps = [row.steps for row in rows]
    columns = [[row.settings[i] for row in rows] for i in range(len(rows[0].settings))]
    named = lambda column: len(set(column)) * _FEWEST_RUNS <= len(rows) and not _is_function(steps, column)
    of_run = [i for i, column in enumerate(columns) if named(column)]
    ends = {size: max(row.steps for row in own) for size, own in _grouped(rows, _width_and_depth).items()}
    key = lambda row: (_width_and_depth(row), row.rate, row.seed, *(row.settings[i] for i in of_run))
    kept, unfinished = list[Run](), 0
    for own in _grouped(rows, key).values():
        last, first, end = (
            max(row.steps for row in own),
            min(own, key=lambda row: row.steps),
            ends[_width_and_depth(own[0])],
        )
        lasts = [row for row in own if row.steps == last]
        if last < end and math.isfinite(lasts[-1].loss):
            unfinished += 1
            continue
        begun = first.loss if first.steps <= _START * end and first.steps < last else math.nan
        initial = [begun if math.isnan(row.initial_loss) else row.initial_loss for row in lasts]
        kept += [dataclasses.replace(row, steps=end, initial_loss=i) for row, i in zip(lasts, initial, strict=True)]
    if len(kept) < len(rows):
        notes.append("The table is a log: of each run the row of its last step counts.")
    if unfinished:
        notes.append(f"{unfinished} runs end before others of their size: left out.")
    return kept


def _width_and_depth(run: Run) -> tuple[int, int]:
    return run.width, run.depth


def _with_settings(runs: Sequence[Run], rule: str | None, notes: list[str]) -> list[Run]:
    """The runs with the settings in which they differ alone; says which columns are none."""
    sizes, rates = [_width_and_depth(run) for run in runs], [run.rate for run in runs]
    settings, own_value, of_size = dict[str, list[Hashable]](), list[str](), list[str]()
    for i, (name, _) in enumerate(runs[0].settings if runs else ()):
        values = _values([str(run.settings[i][1]) for run in runs])
        distinct = len(set(values))
        if name == rule:
            settings["rule"] = values
        elif name.lower() in _NO_SETTINGS:
            continue
        elif distinct > max(2, len(runs) / _FEWEST_RUNS):
            own_value.append(name)
        elif distinct > 1:
            given = _is_function(sizes, values) or (_is_function(rates, values) and _is_function(values, rates))
            if given:
                of_size.append(name)
            else:
                settings[name] = values
    reasons = {"values of nearly every run's own": own_value, "given by the size or the rate": of_size}
    if said := [f"{', '.join(names[:12])} ({why})" for why, names in reasons.items() if names]:
        notes.append(f"Columns that are no settings, left out: {'; '.join(said)}.")
    each = [tuple((name, values[place]) for name, values in settings.items()) for place in range(len(runs))]
    return [dataclasses.replace(run, settings=own) for run, own in zip(runs, each, strict=True)]


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
        losses = {run.loss if math.isfinite(run.loss) else None: run for run in same}
        own = [same[-1]] if has_seeds or len(losses) == 1 else list(losses.values())
        result += own if has_seeds else [dataclasses.replace(run, seed=seed) for seed, run in enumerate(own)]
        repeated += sum(math.isfinite(run.loss) for run in same) - sum(math.isfinite(run.loss) for run in own)
        numbered += len(own) > 1
    if repeated > 0:
        notes.append(f"{_rows(repeated)} repeated: the later one of a run counts.")
    if numbered:
        notes.append("There is no column of seeds: rows that differ in the loss alone count as seeds.")
    return result


def _equally_many_seeds(runs: Sequence[Run], notes: list[str]) -> list[Run]:
    """As many seeds at each rate of a size, as keeps most runs; numbered anew where they differ between rates.

    A rate at which a run diverged stays so with any number of seeds.
    """
    result, dropped = list[Run](), 0
    for group in _grouped(runs, lambda run: (run.size, run.settings)).values():
        at_rate = _grouped(group, lambda run: run.rate)
        counts = [len(own) for own in at_rate.values()]
        kept_by = {seeds: seeds * sum(count >= seeds for count in counts) for seeds in sorted(set(counts))}
        seeds = max(kept_by, key=lambda count: kept_by[count])
        equal = len({frozenset(run.seed for run in own) for own in at_rate.values()}) == 1
        for own in at_rate.values():
            ordered = sorted(own, key=lambda run: run.seed)
            diverged = next((run for run in own if not math.isfinite(run.loss)), None)
            if not equal and diverged:
                ordered = [diverged] * seeds
            if len(ordered) >= seeds:
                result += (
                    ordered if equal else [dataclasses.replace(run, seed=i) for i, run in enumerate(ordered[:seeds])]
                )
            dropped += 0 if diverged else len(own) - seeds if len(own) >= seeds else len(own)
    if dropped:
        notes.append(f"Rates of a size have unequal numbers of seeds: {_rows(dropped)} left out to make them equal.")
    return result
