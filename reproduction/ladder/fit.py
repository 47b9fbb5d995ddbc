"""Fits the law of the distance, and measures it on families that it never saw.

    python -m reproduction.ladder.fit

Writes the constants of the package (depthmup_flax/search/ladder/constants.json) and coverage.md beside this file. A
family is a network, an optimizer and data. For each, forms of the law are fitted to the other families and predict its
larger sizes: from the smallest size alone, and from all smaller ones. Of the forms whose 95 % intervals hold .90 to .98
of these, the one with the highest likelihood is fitted to all. The first form is the line to beat: two numbers, a
normal law with one spread and without the errors of optima.
"""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import scipy.special
from scipy.optimize import minimize

from depthmup_flax.search.ladder.law import AXES, FILE, Law, Prediction, Search
from depthmup_flax.search.ladder.regret import expected_regret
from depthmup_flax.util.table import Table
from reproduction.ladder.searches import RULES, Line, Measured, lines

PAGE = pathlib.Path(__file__).with_name("coverage.md")
_NORMAL = 1e6  # degrees of freedom
_FREEDOM = 4.0
_COVERED = (0.90, 0.98)  # of 95 % intervals, by families left out
_LEAST_NOISE = 0.05  # octaves
_FARTHEST = 2.0  # octaves of size at least, of a prediction that is judged
_SLOPES = {"examples": -0.25, "batch_size": 0.5}  # of `rescaled_hyperparameters`, Adam


@dataclasses.dataclass(frozen=True)
class Form:
    """Which constants are fitted."""

    name: str
    freedom: float = _FREEDOM
    errors: bool = True  # of optima are in the law
    weighted: bool = True  # a family of n lines counts as sqrt(n)
    each_axis: bool = False  # width and depth have spreads of their own
    means: bool = False  # the mean slopes are fitted
    base: bool = False  # the spread follows a power of the base's width

    @property
    def start(self) -> list[float]:
        """Of the fit: logarithms of noise and spreads, mean slopes, the power."""
        return [-1.6, -1.5, *([-1.5] * self.each_axis), *([0.0, 0.0] * self.means), *([0.0] * self.base)]

    def law(self, constants: Sequence[float], base_width: int = 32) -> Law:
        """The law of these constants, for a base."""
        values = list(constants)
        noise, spreads = math.hypot(math.exp(values[0]), _LEAST_NOISE), [math.exp(values[1])] * 2
        rest = values[2:]
        if self.each_axis:
            spreads[1] = math.exp(rest.pop(0))
        slopes = [rest.pop(0), rest.pop(0)] if self.means else [0.0, 0.0]
        factor = (base_width / 32) ** -rest[0] if self.base else 1.0
        of_axes = dict(zip(AXES, [spread * factor for spread in spreads] + [0.0, 0.0], strict=True))
        return Law(dict(zip(AXES, [*slopes, 0.0, 0.0], strict=True)), of_axes, noise, self.freedom)

    def searches(self, line: Line) -> list[Search]:
        """The searches of a line, with or without their errors."""
        own = [measured.search for measured in line.sizes]
        return own if self.errors else [dataclasses.replace(search, error=0.0) for search in own]


FORMS = (
    Form("two numbers: one spread, normal", _NORMAL, errors=False, weighted=False),
    Form("one spread, t, errors of optima"),
    Form("and mean slopes", means=True),
    Form("a spread for each axis", each_axis=True),
    Form("both", each_axis=True, means=True),
    Form("both, heavier tails", 2.2, each_axis=True, means=True),
    Form("one spread and the base's width", base=True),
    Form("one spread, t, no errors", errors=False),
)


def fitted(form: Form, chosen: Sequence[Line], start: Sequence[float]) -> np.ndarray:
    """The constants of highest likelihood."""
    lines_of = Counter(line.family for line in chosen)
    weights = [lines_of[line.family] ** -0.5 if form.weighted else 1.0 for line in chosen]
    searches = [form.searches(line) for line in chosen]

    def unlikeliness(constants: np.ndarray) -> float:
        laws = {line.base[0]: form.law(constants, line.base[0]) for line in chosen}
        own = (laws[line.base[0]].likelihood(of_line) for line, of_line in zip(chosen, searches, strict=True))
        narrow = float(np.sum(np.square(constants)))  # keeps a constant that the lines do not determine finite
        return 0.01 * narrow - math.fsum(w * one for w, one in zip(weights, own, strict=True))

    return minimize(unlikeliness, start, method="L-BFGS-B", options={"maxiter": 40, "ftol": 1e-5}).x


@dataclasses.dataclass(frozen=True)
class Judged:
    """A prediction, and what was measured."""

    line: Line
    several: bool  # from more than one size
    error: float  # octaves
    prediction: Prediction
    regret: float  # of the predicted rate, share of what is learned
    expected: float
    high: float  # 90 % expected below

    @property
    def inside(self) -> bool:
        """Whether the best rate is in the 95 % interval."""
        return abs(self.error) <= self.prediction.interval[1] - self.prediction.mean

    @property
    def likelihood(self) -> float:
        """The logarithm of the density."""
        t, nu = self.error / self.prediction.scale, self.prediction.freedom
        gamma = scipy.special.gammaln((nu + 1) / 2) - scipy.special.gammaln(nu / 2)
        height = gamma - math.log(nu * math.pi) / 2 - math.log(self.prediction.scale)
        return float(height - (nu + 1) / 2 * math.log1p(t * t / nu))


def targets(line: Line) -> Iterator[tuple[Measured, list[Measured]]]:
    """Each size at least two octaves from a smaller one, with the smallest, and with all smaller ones."""
    for large in line.sizes:
        place = large.search.size.place[:2]
        below = [one for one in line.sizes if one is not large and (one.search.size.place[:2] <= place).all()]
        far = max(below, key=lambda one: (place - one.search.size.place[:2]).sum(), default=None)
        if far is not None and (place - far.search.size.place[:2]).sum() > _FARTHEST - 1e-9:
            yield large, [far]
            if len(below) > 1:
                yield large, below


def judged(form: Form, law: Law, line: Line) -> Iterator[Judged]:
    """The predictions of a law for a line."""
    own = dict(zip(map(id, line.sizes), form.searches(line), strict=True))
    for large, below in targets(line):
        truth = own[id(large)]
        prediction = law.predict([own[id(one)] for one in below], truth.size, truth.error)
        carried = law.predict([own[id(one)] for one in below], truth.size)  # without the error of the truth
        nearest = max(below, key=lambda one: one.search.size.place[:2].sum())
        expected = expected_regret(nearest.curve, carried, nearest.learned)
        error = truth.rate - prediction.mean
        regret = min(1.0, float(large.curve.regret(np.array([-error]))[0]) / large.learned)
        yield Judged(line, len(below) > 1, error, prediction, regret, expected.mean, expected.high)


def left_out(form: Form, chosen: Sequence[Line]) -> list[Judged]:
    """Predictions for each family by the law of the others."""
    start, result = fitted(form, chosen, form.start), list[Judged]()
    for family in sorted({line.family for line in chosen}):
        constants = fitted(form, [line for line in chosen if line.family != family], start)
        for line in chosen:
            if line.family == family:
                result += judged(form, form.law(constants, line.base[0]), line)
    return result


def row(name: str, found: Sequence[Judged]) -> tuple[str, ...]:
    """A line of the table."""
    errors = np.array([one.error for one in found])
    half = [one.prediction.interval[1] - one.prediction.mean for one in found]
    return (
        name,
        str(len(found)),
        f"{np.sqrt(np.mean(errors**2)):.2f}",
        f"{np.median(half):.2f}",
        f"{np.mean([one.inside for one in found]):.2f}",
        f"{math.fsum(one.likelihood for one in found):.1f}",
        f"{np.mean([one.regret for one in found]):.3f} ({np.mean([one.expected for one in found]):.3f})",
        f"{np.mean([one.regret <= one.high for one in found]):.2f}",
    )


def worth(found: Sequence[Judged]) -> tuple[bool, float]:
    """Whether the coverage is as it should be, then the likelihood."""
    covered = np.mean([one.inside for one in found])
    return bool(_COVERED[0] <= covered <= _COVERED[1]), math.fsum(one.likelihood for one in found)


HEAD = ("law", "n", "rms", "half width", "inside", "log likelihood", "regret (expected)", "below its 90 %")


def spreads_of_training(law: Law, chosen: Sequence[Line]) -> dict[str, float]:
    """The spreads of examples and batch size, from lines that differ in these."""

    def changed(logs: np.ndarray) -> Law:
        spreads = {**law.spreads, "examples": math.exp(logs[0]), "batch_size": math.exp(logs[1])}
        return dataclasses.replace(law, slopes={**law.slopes, **_SLOPES}, spreads=spreads)

    searches = [[one.search for one in line.sizes] for line in chosen]
    unlikeliness = lambda logs: -math.fsum(map(changed(logs).likelihood, searches))
    return dict(changed(minimize(unlikeliness, [-1.5, -1.5], method="Nelder-Mead").x).spreads)


def one_seed_error(every: Sequence[Line]) -> float:
    """The median of the optima's standard errors times the root of the number of seeds."""
    own = [one for line in every for one in line.sizes if len(one.curve.losses) > 1]
    return float(np.median([one.search.error * math.sqrt(len(one.curve.losses)) for one in own]))


def main() -> None:
    """Fits, writes the constants, and prints and writes the table."""
    every = lines()
    varied = lambda line: len({(one.search.size.steps, one.search.size.batch_size) for one in line.sizes}) > 1
    of_training = [line for line in every if varied(line) and line.rule == "depth_mup" and " adam " in line.family]
    constants, text = {}, []
    for rule in RULES:
        chosen = [line for line in every if line.rule == rule and not varied(line)]
        results = {form: left_out(form, chosen) for form in FORMS}
        best = max(FORMS[1:], key=lambda form: worth(results[form]))
        law = best.law(fitted(best, chosen, best.start))
        law = dataclasses.replace(law, slopes={**law.slopes, **_SLOPES}, one_seed=one_seed_error(every))
        law = dataclasses.replace(law, spreads=spreads_of_training(law, of_training))
        constants[rule] = dataclasses.asdict(law)
        rows = [
            row(f"{form.name}{' (taken)' * (form is best)}{', several sizes' * several}", own)
            for form, found in results.items()
            for several in (False, True)
            if (own := [one for one in found if one.several == several])
        ]
        families = len({line.family for line in chosen})
        text.append(
            f"## {rule}: {len(chosen)} lines of {families} families\n\n```\n{Table(HEAD, rows, '<>>>>>>>')}\n```\n"
        )
        print(text[-1], flush=True)
    rounded = lambda value: {k: round(v, 4) for k, v in value.items()} if isinstance(value, dict) else round(value, 4)
    each = ({name: rounded(value) for name, value in law.items()} for law in constants.values())
    shown = [f"{json.dumps(rule)}: {json.dumps(law)}" for rule, law in zip(constants, each, strict=True)]
    FILE.write_text("{\n" + ",\n".join(shown) + "\n}\n")
    PAGE.write_text(_INTRODUCTION + "\n".join(text))


_INTRODUCTION = """# How far a rate carries: the law by families left out

Written by `python -m reproduction.ladder.fit`. Each family (network, optimizer, data) is predicted by the law of the
others, at sizes at least two octaves from the smallest. `rms` and `half width` (median, of the 95 % interval) are in
octaves of the rate; `inside` is how many best rates lie in their interval; `regret` is what the predicted rate costs on
the measured curve, as a share of what is learned, beside what the law expects; and how many lie below its 90th
percentile.

"""


if __name__ == "__main__":
    main()
