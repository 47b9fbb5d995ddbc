"""Where the best rate of a large network lies, from the runs of smaller ones; and what one more size would tell."""

from __future__ import annotations

import base64
import dataclasses
import importlib.util
import json
import math
import os
import pathlib
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from depthmup_flax.report.optimum import EDGE_HIGH, EDGE_LOW, filled
from depthmup_flax.report.own_records import OwnRuns, Run, read_runs
from depthmup_flax.rule.batch_and_steps import OPTIMIZER_RULES, Hyperparameters
from depthmup_flax.search.forecast.law import CHECKED_COST_RATIO, Forecast, Rung, forecast_loss
from depthmup_flax.search.ladder.law import Law, Prediction, Size, known_laws
from depthmup_flax.search.ladder.next_size import Next, Searched, next_sizes, work
from depthmup_flax.search.ladder.regret import Curve, Regret, expected_regret
from depthmup_flax.storage.files import as_path, write_atomically
from depthmup_flax.storage.sweep_records import finite_or_none
from depthmup_flax.util.errors import InputError, did_you_mean, require_number, shown
from depthmup_flax.util.table import Table

FIGURE = "Best rate against size with its 95 % band, and what one more size would bring"
BUDGET = 0.1  # of a run of the target, for one more size
_FALLBACK = "sp"  # of a table that names no rule: the widest law
_FEWEST_RUNGS = 4  # of a forecast
_MEASURED = {"width": 16, "depth": 64}  # the largest ratios in the sweeps to which laws were fitted
_SHAPE = 5  # rates of a curve that says what errors cost
_DECAYS = ("weight_decay", "wd", "decay")  # columns
_GAIN = 0.9  # of the regret: a size that leaves more is not proposed


@dataclasses.dataclass(frozen=True, eq=False)
class Ladder:
    """What runs of smaller networks say about a target; print shows it."""

    target: Size
    rule: str  # whose law it is
    prediction: Prediction
    regret: Regret
    learned: float  # the loss before learning minus the lowest at the largest size; NaN if it is unknown
    searched: Sequence[Searched]  # by cost
    steps: Sequence[Next]  # sizes that may be added, by cost
    budget: float
    forecast: Forecast | None
    notes: Sequence[str]
    kept: float | None = None  # the rate of which the regret is expected, if not the best one
    of_smallest: Regret | None = None  # of the smallest size's best rate, if no rate is kept
    why_no_forecast: str = ""

    @property
    def rate(self) -> float:
        """The best rate of the target."""
        return 2.0**self.prediction.mean

    @property
    def interval(self) -> tuple[float, float]:
        """95 %, of the rate."""
        low, high = self.prediction.interval
        return 2.0**low, 2.0**high

    @property
    def next(self) -> Next | None:
        """The useful size that lowers the expected regret most within the budget, or else the cheapest."""
        cheap = [one for one in self.useful if one.cost <= self.budget]
        return min(cheap, key=lambda one: one.regret.mean) if cheap else next(iter(self.useful), None)

    @property
    def useful(self) -> list[Next]:
        """The sizes that lower the expected regret by a tenth."""
        return [one for one in self.steps if one.regret.mean < _GAIN * self.regret.mean]

    def __repr__(self) -> str:
        return "\n".join([*self.statement, *self._tables, *(f"- {note}" for note in self.notes)])

    @property
    def statement(self) -> list[str]:
        """The best rate with its error, what one more size would bring, and what the smallest size's rate costs."""
        unit = "what is learned" if math.isfinite(self.learned) else "the loss"
        low, high = self.interval
        of_kept = f" of the tuned {self.kept:.2g}" if self.kept else ""
        first = f"best rate at {self.target}: {self.rate:.2g} ({low:.2g} to {high:.2g}), "
        first += f"expected regret{of_kept} {_with_high(self.regret, f'of {unit} ')}"
        if (best := self.next) is None:
            why = "would hardly lower it" if self.steps else "costs more than a run of the target"
            second = f"one more size {why}"
        else:
            after, cost = _percent(best.regret.mean), _percent(best.cost)
            second = f"one more size, {best.size}, would make it {after} and cost {cost} of the target's run"
        lines = [first, second]
        if self.of_smallest:
            small = self.searched[0].search
            lines.append(
                f"{2**small.rate:.2g}, the best rate of {small.size}, would cost {_with_high(self.of_smallest)}"
            )
        return [*lines, *self._too_far]

    @property
    def _too_far(self) -> list[str]:
        """A warning if the target is farther from the smallest size than those to which the laws were fitted."""
        sizes = [one.search.size for one in self.searched]
        ratios = {name: getattr(self.target, name) / min(getattr(size, name) for size in sizes) for name in _MEASURED}
        far = [f"{ratio:,.3g} times the smallest {name}" for name, ratio in ratios.items() if ratio > _MEASURED[name]]
        measured = " and ".join(f"{most} times the {name}" for name, most in _MEASURED.items())
        return [f"Warning: the target has {' and '.join(far)}: the law was measured up to {measured}."] * bool(far)

    @property
    def _tables(self) -> list[str]:
        head: Sequence[str] = ("width x depth", "best rate", "error, octaves", "loss", "seeds")
        rows: list[tuple[Any, ...]] = []
        for one in self.searched:
            numbers = f"{2**one.search.rate:.3g}", f"{one.search.error:.2f}", f"{one.lowest:.4g}"
            rows.append((str(one.search.size), *numbers, len(one.curve.losses)))
        lines = ["", *Table(head, rows, "<>>>>").lines]
        if self.steps:
            rows = []
            head = ("one more size", "at rates", "runs", "of the target's cost", "expected regret", "90 %: below")
            for step in self.steps:
                rates = ", ".join(f"{rate:.2g}" for rate in step.rates)
                shares = map(_percent, (step.cost, step.regret.mean, step.regret.high))
                rows.append((str(step.size), rates, step.runs, *shares))
            lines += ["", *Table(head, rows, "<<>>>>").lines]
        return [*lines, "", *self.forecast_lines, ""]

    @property
    def forecast_line(self) -> str:
        """The target's loss at the best rate."""
        if self.forecast is None:
            return f"no forecast of the loss: {self.why_no_forecast}"
        low, high = self.forecast.interval
        ends = f"95 % interval {low:.4g} to {high:.4g}"
        return f"forecast of one run at the best rate: loss {self.forecast.loss:.4g}, {ends}"

    @property
    def forecast_lines(self) -> list[str]:
        """The same, the law, and what to beware of."""
        if self.forecast is None:
            return [self.forecast_line]
        law = self.forecast.fits[0]
        lines = [law.warning, self.forecast_line, f"law: loss ~ {law.law}"]
        if (ratio := _cost_ratio(self.target, self.searched)) > CHECKED_COST_RATIO:
            lines.append(
                f"Warning: the target costs {ratio:,.3g} times a run of the largest size: forecasts were checked up to "
                f"{CHECKED_COST_RATIO} times."
            )
        return list(filter(None, lines))

    def as_json(self) -> dict[str, Any]:
        """Its numbers, for a file."""
        fields = {name: getattr(self, name) for name in ("statement", "rule", "rate", "interval", "notes")}
        searches = [dataclasses.asdict(one.search) for one in self.searched]
        parts = {name: getattr(self, name) for name in ("target", "regret", "forecast")}
        given = {name: part and dataclasses.asdict(part) for name, part in parts.items()}
        fields["learned"] = finite_or_none(self.learned)
        return {**fields, **given, "searches": searches, "next": [dataclasses.asdict(one) for one in self.steps]}

    def write(self, directory: str | os.PathLike[str]) -> list[pathlib.Path]:
        """Writes ``ladder.json``, and with matplotlib the figure, into a directory; returns the files."""
        place = as_path(directory)
        files = {"ladder.json": (json.dumps(self.as_json(), indent=1) + "\n").encode(), **self._pictures}
        place.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            write_atomically(place / name, content)
        return [place / name for name in files]

    def html(self, text: str) -> str:
        """A text above the figure, for a notebook."""
        picture = base64.b64encode(self._pictures.get("ladder.png", b"")).decode()
        shown = f'<img alt="{FIGURE}" src="data:image/png;base64,{picture}">' if picture else ""
        return f"<pre>{escape(text)}</pre>{shown}"

    def _repr_html_(self) -> str:
        return self.html(repr(self))

    @property
    def _pictures(self) -> dict[str, bytes]:
        """Name -> file; nothing without matplotlib."""
        if importlib.util.find_spec("matplotlib") is None:
            return {}
        from depthmup_flax.search.ladder import figure

        return figure.pictures_of(self)


def with_notes(sentence: str, notes: Sequence[str]) -> str:
    """An error with what was done to the table, which may be its cause."""
    return "\n".join([sentence, *(f"- {note}" for note in notes)])


def _percent(share: float) -> str:
    """``0.4 %``, with two digits."""
    return f"{float(f'{100 * share:.2g}'):g} %"


def _with_high(regret: Regret, unit: str = "") -> str:
    """``0.4 % (90 %: below 1 %)``; a mean above that is of few large regrets, as of rates that diverge."""
    rare = "; few costly cases make the mean" if regret.mean > regret.high else ""
    return f"{_percent(regret.mean)} {unit}(90 %: below {_percent(regret.high)}{rare})"


def ladder(
    records: Any,
    target: tuple[int, int],
    *,
    steps: int | None = None,
    batch_size: int | None = None,
    rule: str | None = None,
    optimizer: str = "adam",
    weight_decay: float | None = None,
    initial_loss: float | None = None,
    budget: float = BUDGET,
    columns: Mapping[str, str] | None = None,
    ignored: Sequence[str] = (),
    kept: float | None = None,
) -> Ladder:
    """The best learning rate of a large network, from a table of runs of smaller ones, of any trainer.

    Args:
      records: a file such as ``runs.csv``, a data frame, a list of rows, or column -> values: a row for each run, with
        width, depth, learning rate and loss; and steps, batch size, seed, parameters, rule, initial loss and state
        (``finished``) if known.
        Other columns in which runs differ are settings: the one of the lowest loss is taken.
      target: its width and depth.
      steps, batch_size: of the target; ``None``: those of the largest size in the table. Other ones move the rate as
        `rescaled_hyperparameters` says.
      rule: whose law is used, ``depth_mup``, ``completep``, ``mup`` or ``sp``; ``None``: the table's, or else ``sp``.
      optimizer, weight_decay: a name of `OPTIMIZER_RULES`, and the decay of its runs, by default that of a column: for
        other steps and batch sizes.
      initial_loss: before learning, such as the logarithm of the number of classes; the regret is then a share of what
        is learned, not of the loss.
      budget: the most that one more size may cost, in runs of the target.
      columns: role -> name, as in ``{"width": "n_embd"}``, where `read_runs` does not find it.
      ignored: other columns that are no settings, such as the host.
      kept: a rate of the target whose regret is wanted in place of the best one's.

    Raises:
      InputError: the table cannot be read, or no size has its best rate inside of its grid.
    """
    if not isinstance(target, (tuple, list)) or len(target) != 2:
        raise InputError(f"target is {shown(target)}: it is a width and a depth, such as (512, 24).")
    own = records if isinstance(records, OwnRuns) else read_runs(records, columns, ignored)
    for name, number in (("width", target[0]), ("depth", target[1]), ("steps", steps), ("batch_size", batch_size)):
        if number is not None:
            require_number(f"target.{name}", number, least=1, whole=True)
    require_number("budget", budget, above=0)
    notes, given_rule = list(own.notes), rule
    runs, rule = _of_one_series(own.runs, rule, notes)
    decay = _decay({**own.constants, **dict(runs[0].settings)}) if weight_decay is None else weight_decay
    law, initial = _law(rule, optimizer, decay), _initial(runs, initial_loss, notes)
    searched = _searched(runs, own.unfinished, law, initial, notes)
    large = searched[-1]
    goal = _goal(target, {"steps": steps, "batch_size": batch_size}, searched, notes)
    examples = {size.place[2] for size in [goal, *(one.search.size for one in searched)]}
    if decay and weight_decay is None and len(examples) > 1:
        notes.append(
            f"The runs' weight decay is {decay:g}: with decay the best rate stays for other numbers of examples. "
            "--weight_decay=0 moves it as without."
        )
    prediction = law.predict([one.search for one in searched], goal)
    learned = initial - large.lowest if initial - large.lowest > 0 else math.nan
    unit = learned if math.isfinite(learned) else abs(large.lowest) or 1.0
    shape = max((one for one in searched if len(one.curve.rates) >= _SHAPE), key=searched.index, default=large).curve
    regret = expected_regret(shape, prediction, unit, math.log2(kept) if kept else None)
    small = None if kept else expected_regret(shape, prediction, unit, searched[0].search.rate)
    if given_rule is None:
        options: Any = {"steps": steps, "batch_size": batch_size, "optimizer": optimizer, "weight_decay": weight_decay}
        notes += _of_other_rules(own, target, rule, initial_loss=initial, **options)
    forecast, why = _forecast(searched, goal)
    return Ladder(
        target=goal,
        rule=rule,
        prediction=prediction,
        regret=regret,
        learned=learned,
        searched=searched,
        steps=next_sizes(law, searched, goal, prediction, shape, unit),
        budget=budget,
        forecast=forecast,
        notes=notes,
        kept=kept,
        of_smallest=small,
        why_no_forecast=why,
    )


def _goal(
    target: tuple[int, int], given: Mapping[str, int | None], searched: Sequence[Searched], notes: list[str]
) -> Size:
    """The target with its steps and batch size, by default the largest size's; those that no run names are unknown."""
    at = searched[-1].search.size
    goal = dataclasses.replace(at, width=target[0], depth=target[1])
    for name, value in given.items():
        if value and getattr(at, name):
            goal = dataclasses.replace(goal, **{name: value})
        elif value:
            notes.append(f"The table has no {name}: target.{name} is left out.")
        values = sorted({getattr(one.search.size, name) for one in searched})
        if len(values) > 1 and not value:
            notes.append(
                f"Sizes differ in {name}: {', '.join(map(str, values))}. The target is taken to have the largest "
                f"size's, {getattr(at, name)}: --target.{name}=N."
            )
    return goal


def _of_other_rules(own: OwnRuns, target: tuple[int, int], rule: str, **options: Any) -> list[str]:
    """Under which of the table's other rules the best rate lies where."""
    sentences = []
    for other in sorted({str(dict(run.settings).get("rule")) for run in own.runs} & known_laws().keys() - {rule}):
        try:
            found = ladder(dataclasses.replace(own, notes=()), target, rule=other, **options)
            sentences.append(f"Under {other}, {found.statement[0]}.")
        except InputError as error:
            sentences.append(f"Under {other}, {error}")
    return sentences


def _initial(runs: Sequence[Run], given: float | None, notes: list[str]) -> float:
    """The loss before learning, the runs' median if it is not given; NaN if unknown, or not above the lowest loss."""
    known = [given] if given else [run.initial_loss for run in runs if math.isfinite(run.initial_loss)]
    initial = float(np.median(known)) if known else math.nan
    if initial <= min(run.loss for run in runs if math.isfinite(run.loss)):
        notes.append(f"The initial loss, {initial:.4g}, is not above the lowest one: it is left out.")
        return math.nan
    return initial


def _decay(settings: Mapping[str, Any]) -> float:
    """The number in a column of weight decays; 0 without one."""
    named = [value for name, value in settings.items() if re.split("[/.]", name)[-1] in _DECAYS]
    return next((value for value in named if isinstance(value, float) and math.isfinite(value)), 0.0)


def _law(rule: str, optimizer: str, weight_decay: float) -> Law:
    laws = known_laws()
    if rule not in laws:
        raise InputError(f"rule is {rule!r}: {did_you_mean(rule, laws)}")
    if optimizer not in OPTIMIZER_RULES:
        raise InputError(f"optimizer is {optimizer!r}: {did_you_mean(optimizer, OPTIMIZER_RULES)}")
    of = OPTIMIZER_RULES[optimizer]
    duration = of.duration_of(Hyperparameters(1.0, batch_size=1, steps=1, weight_decay=weight_decay))
    slopes = {**laws[rule].slopes, "examples": duration, "batch_size": of.batch}
    return dataclasses.replace(laws[rule], slopes=slopes)


def _of_one_series(runs: Sequence[Run], rule: str | None, notes: list[str]) -> tuple[list[Run], str]:
    """The runs with the settings of the lowest loss at the largest size, and the rule of their law."""
    named = lambda settings: str(dict(settings).get("rule", ""))
    runs = [run for run in runs if named(run.settings) == rule] or runs
    finite = [run for run in runs if math.isfinite(run.loss)]
    if not finite:
        raise InputError("no run has a finite loss: add runs at lower rates.")
    best = min(finite, key=lambda run: (-(run.width**2) * run.depth, run.loss)).settings
    if (count := len({run.settings for run in runs})) > 1:
        shown = ", ".join(f"{name} {value}" for name, value in best)
        notes.append(f"Of {count} settings of other columns the best at the largest size is taken: {shown}.")
    if rule is None and named(best) not in known_laws():
        notes.append(
            f"No known rule is named: the law is that of {_FALLBACK}. Name yours: --rule=mup, depth_mup, completep."
        )
    rule = rule or (named(best) if named(best) in known_laws() else _FALLBACK)
    return [run for run in runs if run.settings == best], rule


def _searched(
    runs: Sequence[Run],
    unfinished: Mapping[tuple[int, int], Sequence[float]],
    law: Law,
    initial: float,
    notes: list[str],
) -> list[Searched]:
    """The sizes with a best rate inside of their grid, by cost; `InputError` if there is none."""
    by_size: dict[tuple[int, int, int, int], list[Run]] = defaultdict(list)
    for run in runs:
        by_size[run.size].append(run)
    result, left_out = list[Searched](), list[str]()
    for size, own in by_size.items():
        curve = _curve(own, initial)
        search = curve.search(Size(*size), law.one_seed)
        if isinstance(search, str):
            left_out.append(f"{size[0]} x {size[1]} ({_reason(search, curve, unfinished.get(size[:2], ()))})")
            continue
        search = dataclasses.replace(search, error=max(search.error, curve.error_of_two))
        parameters = max(run.parameters for run in own)
        result.append(Searched(search, curve, parameters, float(np.nanmin(curve.losses.mean(0)))))
    if left_out:
        notes.append(f"Sizes whose best rate is not inside of their rates, left out: {', '.join(left_out[:8])}.")
    if not result:
        reasons = "; ".join(left_out[:4])
        sentence = f"no size has its best rate inside of its rates ({reasons}): add rates on both sides of the best."
        raise InputError(with_notes(sentence, notes[:-1]))
    return sorted(result, key=lambda one: work(one.search.size))


def _reason(why: str, curve: Curve, unfinished: Sequence[float]) -> str:
    """Why a size has no best rate: at an edge of its grid unless further rates have no run that has ended."""
    low, high = 2.0 ** curve.rates[0], 2.0 ** curve.rates[-1]
    beyond = {EDGE_LOW: [rate for rate in unfinished if rate < low], EDGE_HIGH: [r for r in unfinished if r > high]}
    if rates := beyond.get(why):
        return f"best beside {', '.join(f'{rate:.3g}' for rate in rates)}, where no run has ended"
    return why


def _curve(runs: Sequence[Run], initial: float) -> Curve:
    rates, seeds = sorted({run.rate for run in runs}), sorted({run.seed for run in runs})
    losses, present = np.full((len(seeds), len(rates)), np.nan), np.zeros((len(seeds), len(rates)), bool)
    row, column = ({value: i for i, value in enumerate(values)} for values in (seeds, rates))
    for run in runs:
        losses[row[run.seed], column[run.rate]] = run.loss
        present[row[run.seed], column[run.rate]] = True
    return Curve(np.log2(rates), filled(losses, present), math.inf if math.isnan(initial) else initial)


def _cost_ratio(target: Size, searched: Sequence[Searched]) -> float:
    """The cost of the target's run in runs of the largest size."""
    return work(target) / work(searched[-1].search.size)


def _forecast(searched: Sequence[Searched], target: Size) -> tuple[Forecast | None, str]:
    """The target's loss at the best rate, by the law of `depthmup_flax.search.forecast`; or why there is none."""
    seeds = min(len(one.curve.losses) for one in searched)
    counted = all(one.parameters for one in searched)
    rungs = []
    for one in searched:
        size, best = one.search.size, int(np.nanargmin(one.curve.losses.mean(0)))
        losses = tuple(one.curve.losses[:seeds, best].tolist())
        parameters = one.parameters if counted else size.parameters
        rungs.append(Rung(size.width, size.depth, size.steps or 1, parameters, losses))
    large, last = searched[-1].search.size, rungs[-1]
    parameters = round(last.parameters * (target.parameters / large.parameters))
    goal = Rung(target.width, target.depth, target.steps or 1, parameters)
    fewest = _FEWEST_RUNGS + 2 * (len({rung.steps for rung in rungs}) > 1)
    if len({rung.parameters for rung in rungs}) < _FEWEST_RUNGS or len(rungs) < fewest:
        return None, f"it needs {fewest} sizes with a best rate, and there are {len(rungs)}."
    if min(min(rung.losses) for rung in rungs) <= 0:
        return None, "it needs losses above 0."
    result, ratio = forecast_loss(rungs, goal), _cost_ratio(target, searched)
    if result.fits[0].at_bound and ratio > CHECKED_COST_RATIO:
        return None, (
            f"the target costs {ratio:,.3g} times a run of the largest size, and the exponent of the law, "
            f"{result.fits[0].law}, is at its bound. Add sizes nearer to the target."
        )
    return result, ""
