"""Runs that somebody's own loop trained, from a table of theirs; and such a table as a sweep."""

from __future__ import annotations

import dataclasses
import math
import os
import pathlib
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from depthmup_flax.storage.run_tables import (
    NEEDED,
    TextTable,
    as_table,
    columns_of,
    is_accuracy,
    is_logged,
    other_losses,
    read_table,
)
from depthmup_flax.storage.sweep_records import (
    COMPLETED,
    DIVERGED,
    LEARNING_RATE,
    LOSS_FIELDS,
    OWN,
    TEST,
    TRAIN,
    VALIDATION,
    Record,
    Sweep,
    SweepInfo,
)
from depthmup_flax.util.errors import InputError, printable

_FIELDS = {"width": "model.width", "depth": "model.depth", "rule": "parametrization.preset"}
_OPTIONAL = ("steps", "batch_size", "parameters")
_NUMBERS = (*NEEDED, "initial_loss", *_OPTIONAL)
_WHOLE = ("width", "depth")
_MOST = 2**31  # of a width or depth
_FEWEST_RUNS = 6  # of a setting's value: two sizes with three rates
# Columns of trackers that no training depends on.
_NO_SETTINGS = ("state", "status", "host", "hostname", "user", "tags", "notes", "created", "commit", "device", "gpu")
_MOST_UNFINISHED = 0.25  # of the runs of a log
_ENDED = 0.99  # of the steps of the longest run of a size: a shorter one has not ended
# What trackers, schedulers and our own records call a run that has ended, and one that has not.
_FINISHED = ("finished", "finish", "completed", "complete", "done", "success", "succeeded", "terminated", "ended", "ok")
_UNFINISHED = (
    *("crashed", "crash", "failed", "fail", "failure", "error", "killed", "running", "pending", "queued", "waiting"),
    *("preempted", "preempting", "canceled", "cancelled", "aborted", "interrupted", "stopped", "pruned", "timeout"),
    *("oom", "outofmemory", "nodefail", "scheduled", "starting", "stopping"),
)
_INFINITE = ("nan", "inf", "infinity", "diverged")  # a loss that diverged; an empty one may be that of a crash
_HILL = 4  # rates of a curve whose shape tells an accuracy
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
    """The runs of a table, each once; a rate of a size may lack some of the seeds of the others."""

    name: str
    runs: Sequence[Run]
    notes: tuple[str, ...]  # what was left out, in sentences
    objective: str = TRAIN  # the loss of `OBJECTIVES` that the name of its column means
    loss: str = ""  # its column
    # Width and depth -> rates of which no run has ended.
    unfinished: Mapping[tuple[int, int], Sequence[float]] = dataclasses.field(default_factory=dict)
    # Column -> its value, of those that have one in all runs.
    constants: Mapping[str, Hashable] = dataclasses.field(default_factory=dict)


def read_csv(
    path: pathlib.Path,
    columns: Mapping[str, str] | None = None,
    ignored: Sequence[str] = (),
    initial_loss: float | None = None,
    rule: str | None = None,
) -> Sweep:
    """A table of runs as a sweep: a line per run, with columns that `read_runs` knows.

    The base is the smallest width and depth; a column ``rule`` tells rules and controls apart.

    Args:
      path, columns, ignored: see `read_runs`.
      rule: of the runs: those of other rules are left out.
      initial_loss: before learning: what a run learned is measured from there. ``None``: a column of the table.

    Raises:
      InputError: see `read_runs`; or there is no initial loss.
    """
    own = read_runs(path, columns, ignored)
    runs = own.runs if rule is None else _under(own.runs, rule)
    if initial_loss is not None:
        runs = [dataclasses.replace(run, initial_loss=initial_loss) for run in runs]
    if lacking := sum(math.isnan(run.initial_loss) for run in runs):
        raise InputError(
            f"{str(path)!r} has {_rows(lacking)} without the loss before learning, from which a report measures what "
            "is learned. Give it, as --initial=10.8 or in a column initial_loss; depthmup ladder needs none."
        )
    records = [_record(run, f"{str(path)!r}, line {run.line}", own.objective) for run in runs]
    axes = {axis: sorted({record.point[axis] for record in records}) for axis in records[0].point}
    base = {"model": {f"base_{name}": axes[_FIELDS[name]][0] for name in _WHOLE}}
    title, count = f"Runs of {path.name}", len(records)
    info = SweepInfo(path.stem, title, OWN, LEARNING_RATE, axes, base, objective=own.objective, runs=count)
    return Sweep(info, records, list(own.notes), axes, own.unfinished)


def _under(runs: Sequence[Run], rule: str) -> list[Run]:
    """The runs of a rule; all of them, named so, where the table names none."""
    rules = {str(value) for run in runs for name, value in run.settings if name == "rule"}
    if rules and rule not in rules:
        raise InputError(f"rule is {rule!r}, of which the table has no run: it has {', '.join(sorted(rules))}.")
    if rules:
        return [run for run in runs if ("rule", rule) in run.settings]
    return [dataclasses.replace(run, settings=(*run.settings, ("rule", rule))) for run in runs]


def _record(run: Run, where: str, objective: str) -> Record:
    finite = math.isfinite(run.loss)
    sizes = {_FIELDS["width"]: run.width, _FIELDS["depth"]: run.depth}
    settings = {_FIELDS.get(name, name): value for name, value in run.settings}
    losses: dict[str, Any] = {"train_loss_avg": None, LOSS_FIELDS[objective]: run.loss if finite else None}
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
        slice_steps=1,
        train_loss_slices=[run.initial_loss],
        **losses,
    )


def read_runs(source: Any, columns: Mapping[str, str] | None = None, ignored: Sequence[str] = ()) -> OwnRuns:
    """The runs of a table.

    Args:
      source: a file; or column -> values, or a list of rows, name -> value, such as pandas has them.
      columns: role of `NAMES` -> column; others are found by usual names, such as ``n_embd`` for the width.
      ignored: further columns that are no settings.

    A loss that is empty, NaN, infinite or one of a few words is that of a diverged run. Runs that a column ``state``
    does not call finished are left out, unless they diverged, see `_ended`. Of a log, with a row for each evaluation,
    the last row of a run counts.

    Raises:
      InputError: there is no such table, it lacks a column, has a cell that cannot be read, or accuracies as losses.
    """
    is_path = isinstance(source, (str, os.PathLike))
    table = read_table(pathlib.Path(source).expanduser()) if is_path else as_table(source)
    known = columns_of(table, columns or {}, ignored)
    name, notes = known["loss"] or "", list(table.notes)
    if taken := [f"{role} is {name}" for role, name in known.items() if name not in (None, role)]:
        notes.append(f"Columns: {', '.join(taken)}.")
    unread = [name for name in table.columns if name not in known.values()]
    if others := other_losses(unread, name):
        notes.append(
            f"The loss is that of {name}. Also there: {', '.join(others)}. For another: --column.loss={others[0]}."
        )
    rows = _typed(table, known, [*ignored, *others])
    runs = _ended(table, known, rows, notes)
    runs = _last_of_log(runs, notes) if is_logged(known["steps"]) else _of_equal_length(runs)
    constants = _constants(runs)
    runs = _with_settings(runs, known["rule"], notes)
    runs = _once(runs, known["seed"] is not None, notes)
    _require_losses(runs, name, table.source)
    notes += _said_of_diverged(runs, table, name)
    runs = _of_common_seeds(runs, notes)
    unfinished = _rates_left_out(rows, runs)
    if said := [f"{_named(size)} at {', '.join(f'{x:.3g}' for x in rates)}" for size, rates in unfinished.items()]:
        notes.append(f"Rates without a run that has ended: {'; '.join(said[:8])}.")
    objective = next((kind for kind, part in ((VALIDATION, "val"), (TEST, "test")) if part in name.lower()), TRAIN)
    table_name = pathlib.Path(source).name if is_path else "runs"
    return OwnRuns(table_name, runs, tuple(notes), objective, name, unfinished, constants)


def _typed(table: TextTable, known: Mapping[str, str | None], ignored: Sequence[str]) -> dict[int, Run]:
    """Place of a row in the table -> the row, with the cells of all further columns as settings.

    Rows without a size or a rate are left out.
    """
    used = {name for role, name in known.items() if role != "rule"} | set(ignored)
    others = [name for name in table.columns if name not in used]
    numbers = {role: _numbers(table, role, known[role]) for role in _NUMBERS}
    rows = [row for row in range(len(table.lines)) if _is_run(*(numbers[role][row] for role in NEEDED[:3]))]
    if not rows:
        raise InputError(f"{table.source} has no row with a width, a depth and a learning rate above 0.")
    seeds = _seeds(table.columns[known["seed"]]) if known["seed"] else [0] * len(table.lines)
    settings = lambda row: tuple((name, table.text(name, row)) for name in others)
    known_at = lambda row: {role: column[row] for role, column in numbers.items()}
    return {row: _run(table.lines[row], known_at(row), seeds[row], settings(row)) for row in rows}


def _ended(table: TextTable, known: Mapping[str, str | None], rows: Mapping[int, Run], notes: list[str]) -> list[Run]:
    """The rows that the column of states calls finished, and of the others those that diverged.

    These have a loss that is NaN or infinite, at a rate above all that have finished: else the machine failed. If the
    column calls no row finished, the rows with words that are not known count.
    """
    if lacking := len(table.lines) - len(rows):
        notes.append(f"{_rows(lacking)} without a width, a depth or a rate above 0: left out.")
    state, loss = known["state"], known["loss"]
    if state is None or loss is None:
        return list(rows.values())
    judged = _by_state(table, state, loss, rows)
    counted = lambda words: ", ".join(f"{word} ({count:,})" for word, count in words.most_common(6))
    remedy = f"Name another column, as --column.state=NAME, or leave it out: --ignore={state}."
    if judged.left_out and not _highest_rates(judged.ended):
        raise InputError(f"{table.source} has no run that has ended: {state} is {counted(judged.left_out)}. {remedy}")
    if judged.left_out:
        count = _rows(judged.left_out.total())
        notes.append(f"{count} of runs that have not finished left out: {state} {counted(judged.left_out)}.")
    if judged.diverged:
        notes.append(
            f"{_rows(len(judged.diverged))} of runs that have not finished count as diverged: their loss is not "
            "finite, and no higher rate of their size has finished."
        )
    if judged.unknown:
        notes.append(f"{state} has words that tell of no end: {counted(judged.unknown)}. Their rows count. {remedy}")
    return judged.ended + judged.diverged


class _ByState(NamedTuple):
    """The rows of a table by what its column of states calls them, and how often it has which words."""

    ended: list[Run]
    diverged: list[Run]  # of those that have not finished
    unknown: Counter[str]  # of rows that count
    left_out: Counter[str]


def _by_state(table: TextTable, state: str, loss: str, rows: Mapping[int, Run]) -> _ByState:
    words = {row: "".join(filter(str.isalnum, table.text(state, row).lower())) for row in rows}
    tells = any(word in _FINISHED for word in words.values())
    result = _ByState([], [], Counter(), Counter())
    crashed: list[tuple[Run, str]] = []
    for row, run in rows.items():
        word, shown = words[row], printable(table.text(state, row))[:40] or "empty"
        if word == DIVERGED:
            result.ended.append(dataclasses.replace(run, loss=math.nan))
        elif word in _FINISHED:
            result.ended.append(run)
        elif not tells and word not in _UNFINISHED:
            result.unknown[shown] += 1
            result.ended.append(run)
        elif table.text(loss, row).lower().lstrip("+-") in _INFINITE:
            crashed.append((run, shown))
        else:
            result.left_out[shown] += 1
    highest = _highest_rates(result.ended)
    for run, shown in crashed:
        if run.rate >= highest.get(_width_and_depth(run), 0.0):
            result.diverged.append(run)
        else:
            result.left_out[shown] += 1
    return result


def _highest_rates(runs: Sequence[Run]) -> dict[tuple[int, int], float]:
    """Width and depth -> the highest rate at which a run has a finite loss."""
    result: dict[tuple[int, int], float] = {}
    for run in runs:
        if math.isfinite(run.loss):
            size = _width_and_depth(run)
            result[size] = max(run.rate, result.get(size, 0.0))
    return result


def _rates_left_out(rows: Mapping[int, Run], runs: Sequence[Run]) -> dict[tuple[int, int], list[float]]:
    """Width and depth -> rates of the rows of which no run is left."""
    sizes = _grouped(runs, _width_and_depth)
    result = dict[tuple[int, int], list[float]]()
    for size, own in _grouped(rows.values(), _width_and_depth).items():
        if rates := {run.rate for run in own} - {run.rate for run in sizes.get(size, ())}:
            result[own[0].width, own[0].depth] = sorted(rates)
    return result


def _named(size: tuple[int, int]) -> str:
    return f"{size[0]} x {size[1]}"


def _run(line: int, known: Mapping[str, float], seed: int, settings: tuple[tuple[str, str], ...]) -> Run:
    return Run(
        line=line,
        rate=known["learning_rate"],
        loss=known["loss"] if math.isfinite(known["loss"]) else math.nan,
        seed=seed,
        initial_loss=known["initial_loss"],
        **{role: int(x) if 1 <= (x := known[role]) <= _MOST**2 else 0 for role in (*_WHOLE, *_OPTIONAL)},
        settings=settings,
    )


def _is_run(width: float, depth: float, rate: float) -> bool:
    return not math.isnan(width + depth) and 0 < rate < math.inf


def _numbers(table: TextTable, role: str, name: str | None) -> list[float]:
    """The column of a role, NaN for empty cells; `InputError` for what no run has."""
    if name is None:
        return [math.nan] * len(table.lines)
    numbers = []
    for row, line in enumerate(table.lines):
        number, text = table.number(name, row, role in (*_WHOLE, *_OPTIONAL)), table.columns[name][row]
        if number is None:
            shown = repr(printable(text[:40]))
            raise InputError(f"{table.source}, line {line}: {name} is {shown}: write a number.")
        if problem := _problem(role, number):
            raise InputError(f"{table.source}, line {line}: {name} is {text}: {problem}")
        numbers.append(number)
    return numbers


def _problem(role: str, number: float) -> str:
    """What is wrong with the number of a role; "" if nothing is."""
    if role == "learning_rate" and number < 0:
        return "a rate is above 0. If the column has logarithms, write their powers."
    if role in _WHOLE and not ((1 <= number <= _MOST and number.is_integer()) or math.isnan(number)):
        return "use a whole number above 0."
    return ""


def _seeds(texts: Sequence[str]) -> list[int]:
    """Whole numbers as they are, other texts as numbers below 0."""
    others = {text: -1 - place for place, text in enumerate(dict.fromkeys(texts))}
    return [int(text) if text.isdecimal() else others[text] for text in texts]


def _rows(count: int) -> str:
    return f"{count:,} rows" if count > 1 else "one row"


def _is_function(keys: Sequence[Hashable], values: Sequence[Hashable]) -> bool:
    """Whether each key has one value."""
    return len(set(zip(keys, values, strict=True))) == len(set(keys))


def _last_of_log(rows: Sequence[Run], notes: list[str]) -> list[Run]:
    """The last row of each run."""
    evaluated = {row.steps for row in rows if math.isfinite(row.loss)}  # at others the trainer logs something else
    of_one_step = [own for own in _runs_of_log(rows) if len({row.steps for row in own}) == 1]
    alone = {row.line for own in of_one_step for row in own}  # of a table with a row for each run
    is_log = len(alone) < len(rows)
    rows = [row for row in rows if row.steps in evaluated or row.line in alone] or rows
    ends = {size: max(row.steps for row in own) for size, own in _grouped(rows, _width_and_depth).items()}
    lasts = [_at_end(own, ends[_width_and_depth(own[0])]) for own in _runs_of_log(rows)]
    kept, unfinished = [row for own in lasts for row in own], lasts.count([])
    if is_log and len(kept) < len(rows):
        notes.append("The table is a log: of each run the row of its last step counts.")
    if unfinished > _MOST_UNFINISHED * len(lasts):
        raise InputError(
            f"{unfinished} of {len(lasts)} runs end before {_ENDED:.0%} of the longest of their size. If the column of "
            "rates has those of each step, name one of the highest rates: --column.learning_rate=NAME. If lengths "
            "differ on purpose, name the column of planned steps: --column.steps=NAME."
        )
    if unfinished:
        notes.append(f"{unfinished} runs end before others of their size: left out.")
    return kept


def _runs_of_log(rows: Sequence[Run]) -> Iterable[list[Run]]:
    """The rows of each run: those of a size, a rate and a seed, and of what has few values, no function of the step."""
    steps = [row.steps for row in rows]
    columns = [[row.settings[i] for row in rows] for i in range(len(rows[0].settings))]
    named = lambda column: len(set(column)) * _FEWEST_RUNS <= len(rows) and not _is_function(steps, column)
    of_run = [i for i, column in enumerate(columns) if named(column)]
    return _grouped(rows, lambda row: (row.size[:2], row.rate, row.seed, *(row.settings[i] for i in of_run))).values()


def _at_end(rows: Sequence[Run], end: int) -> list[Run]:
    """The rows of a run's last step; none if it ends well before ``end`` with a finite loss.

    The loss of its first row is the initial one where it is of the run's beginning.
    """
    first, last = (of(rows, key=lambda row: row.steps) for of in (min, max))
    ended = [row for row in rows if row.steps == last.steps]
    if last.steps < _ENDED * end and math.isfinite(ended[-1].loss):
        return []
    begun = first.loss if first.steps <= _START * end and first.steps < last.steps else math.nan
    initial = lambda row: begun if math.isnan(row.initial_loss) else row.initial_loss
    return [dataclasses.replace(row, steps=end, initial_loss=initial(row)) for row in ended]


def _of_equal_length(runs: Sequence[Run]) -> list[Run]:
    """The runs of a size whose steps differ by a hundredth with the steps of the longest of them."""
    lengths = dict[Hashable, dict[int, int]]()
    for size, own in _grouped(runs, _width_and_depth).items():
        longest, lengths[size] = 0, {}
        for steps in sorted({run.steps for run in own}, reverse=True):
            longest = longest if steps >= _ENDED * longest > 0 else steps
            lengths[size][steps] = longest
    return [dataclasses.replace(run, steps=lengths[_width_and_depth(run)][run.steps]) for run in runs]


def _width_and_depth(run: Run) -> tuple[int, int]:
    return run.width, run.depth


def _constants(runs: Sequence[Run]) -> dict[str, Hashable]:
    """The settings in which runs do not differ."""
    columns = {name: [str(run.settings[i][1]) for run in runs] for i, (name, _) in enumerate(runs[0].settings)}
    return {name: _values(texts)[0] for name, texts in columns.items() if len(set(texts)) == 1}


def _with_settings(runs: Sequence[Run], rule: str | None, notes: list[str]) -> list[Run]:
    """The runs with the settings in which they differ alone; says which columns are none."""
    settings, left_out = dict[str, list[Hashable]](), defaultdict[str, list[str]](list)
    for i, (name, _) in enumerate(runs[0].settings):
        values = _values([str(run.settings[i][1]) for run in runs])
        if name == rule:
            settings["rule"] = values
        elif len(set(values)) > 1 and name.lower() not in _NO_SETTINGS:
            if reason := _why_no_setting(values, runs):
                left_out[reason].append(name)
            else:
                settings[name] = values
    if said := [f"{', '.join(names[:12])} ({reason})" for reason, names in left_out.items()]:
        notes.append(f"Columns that are no settings, left out: {'; '.join(said)}.")
    each = [tuple((name, values[place]) for name, values in settings.items()) for place in range(len(runs))]
    return [dataclasses.replace(run, settings=own) for run, own in zip(runs, each, strict=True)]


def _why_no_setting(values: Sequence[Hashable], runs: Sequence[Run]) -> str:
    """The reason why a column is none; "" if it is one."""
    sizes, rates = [_width_and_depth(run) for run in runs], [run.rate for run in runs]
    points = list(zip(sizes, rates, strict=True))
    keys = [(*point, run.seed) for point, run in zip(points, runs, strict=True)]
    measured = isinstance(values[0], float) and not _is_function(points, values) and _is_function(keys, values)
    if measured or len(set(values)) > max(2, len(values) / _FEWEST_RUNS):
        return "values of a run's own"
    of_rate = _is_function(rates, values) and _is_function(values, rates)
    return "given by the size or the rate" if of_rate or _is_function(sizes, values) else ""


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


def _require_losses(runs: Sequence[Run], name: str, source: str) -> None:
    """`InputError` for a column that is named as an accuracy, or has the shape of one at each size.

    Losses have that shape, too, where all rates are too high.
    """
    curves = _grouped(runs, lambda run: (run.size, run.settings)).values()
    remedy = f"write a column such as 100 - {name}, and name it: --column.loss=NAME"
    if is_accuracy(name):
        raise InputError(f"{source}: {name} looks like an accuracy, and a loss is wanted, which falls: {remedy}.")
    if all(map(_is_hill, curves)):
        raise InputError(
            f"{source}: {name} is lowest at an end of the rates of each size, and highest inside of them. If it is an "
            f"accuracy, {remedy}. If it is a loss, add rates beyond that end."
        )


def _is_hill(runs: Sequence[Run]) -> bool:
    """Whether the highest mean of a curve is at a rate inside of the grid, and the lowest at an end."""
    finite = [run for run in runs if math.isfinite(run.loss)]
    rates = sorted({run.rate for run in finite})
    means = [statistics.fmean(run.loss for run in finite if run.rate == rate) for rate in rates]
    ends = (0, len(means) - 1)
    return len(means) >= _HILL and means.index(min(means)) in ends and means.index(max(means)) not in ends


def _said_of_diverged(runs: Sequence[Run], table: TextTable, loss: str) -> list[str]:
    """How many runs count as diverged, and what they have in the column of losses."""
    rows = {line: row for row, line in enumerate(table.lines)}
    lines = [run.line for run in runs if math.isnan(run.loss)]
    texts = [printable(table.columns[loss][rows[line]])[:40] or "empty" for line in lines]
    said = [f"{text} ({n:,}, first in line {lines[texts.index(text)]})" for text, n in Counter(texts).most_common(6)]
    return [f"Runs that count as diverged, by their {loss} or state: {', '.join(said)}."] * bool(said)


def _of_common_seeds(runs: Sequence[Run], notes: list[str]) -> list[Run]:
    """The runs of seeds that at least half of a size's rates have; numbered anew where rates have other seeds.

    A rate at which a run diverged stays so.
    """
    result, lacking, dropped = list[Run](), list[str](), 0
    for group in _grouped(runs, lambda run: (run.size, run.settings)).values():
        numbered = [run for own in _grouped(group, lambda run: run.rate).values() for run in _numbered(own)]
        rates_and_runs = lambda kept: (len({run.rate for run in kept}), len(kept))
        kept = max(_common(group), _common(numbered), key=rates_and_runs)
        dropped += len(group) - len(kept)
        seeds = len({run.seed for run in kept})
        for own in _grouped(sorted(kept, key=lambda run: run.rate), lambda run: run.rate).values():
            if len(own) < seeds and all(math.isfinite(run.loss) for run in own):
                lacking.append(f"{_named((own[0].width, own[0].depth))} at {own[0].rate:.3g} ({len(own)} of {seeds})")
        result += kept
    if dropped:
        notes.append(f"{_rows(dropped)} of seeds that less than half of the rates of a size have: left out.")
    if lacking:
        lacking = list(dict.fromkeys(lacking))  # other settings may lack the same
        shown = ", ".join(lacking[:8]) + ", ..." * (len(lacking) > 8)
        notes.append(f"Rates without all seeds, whose losses are filled in from the seeds there: {shown}.")
    return result


def _common(runs: Sequence[Run]) -> list[Run]:
    """The runs of seeds that at least half of the rates have."""
    rates, of_seed = {run.rate for run in runs}, Counter(run.seed for run in runs)
    kept = [run for run in runs if 2 * of_seed[run.seed] >= len(rates)]
    lost = {run.rate for run in runs if 2 * of_seed[run.seed] < len(rates) and not math.isfinite(run.loss)}
    return [dataclasses.replace(run, loss=math.nan) if run.rate in lost else run for run in kept]


def _numbered(runs: Sequence[Run]) -> list[Run]:
    """The runs of a rate with seeds from 0 on; all of them the diverged one, if one diverged."""
    diverged = [run for run in runs if not math.isfinite(run.loss)]
    chosen = diverged[:1] * len(runs) if diverged else sorted(runs, key=lambda run: run.seed)
    return [dataclasses.replace(run, seed=i) for i, run in enumerate(chosen)]
