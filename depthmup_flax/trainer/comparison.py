"""Two runs side by side: which columns of their first steps are off, by how much, and what was done.

The limits are from healthy runs of small networks (reproduction/pages/course.md).
"""

from __future__ import annotations

import dataclasses
import functools
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from depthmup_flax.rule.measures import GRADIENT, LARGEST, PARAMETER, RELATIVE, RULE, SMALLEST, UPDATE
from depthmup_flax.rule.recorded import BASE, LOSS, STEP
from depthmup_flax.util.errors import listed
from depthmup_flax.util.table import Table

RATE, NUMBER = "rate", "number"
Columns = Mapping[str, Sequence[Any]]

# Kind of a column -> the largest factor from the reference, either way, at steps 1 and 2, of the rate at all: later,
# larger networks are ahead. Adam's rate shows in the mean over roles of updates.
LIMITS = {RATE: 1.02, PARAMETER: 1.25, UPDATE: 1.4, RELATIVE: 1.17, GRADIENT: 8.0}
# The same of the largest and the smallest tensor of a role, over the mean of those at its place in other layers.
TENSOR_LIMITS = {PARAMETER: 1.25, UPDATE: 1.3, RELATIVE: 1.3, GRADIENT: 5.0}
MEAN_LIMITS, LAST = {1: 1.17, 2: 1.35}, 2  # the noise of two batches is in the second update
DEVIATIONS = 4  # of the ratio by the numbers of a role, which widen its limit, in squares
# The loss must have fallen by this part of what the reference's has, once that is this part of its first, from this
# step on: before, the noise of batches is as large.
LEARNED, LEAST_LEARNED, FIRST_OF_LOSS = 0.35, 0.35, 16
_STILL = 0.05  # updates that are a smaller part of the reference's are none
_ORDER = (NUMBER, *LIMITS, LOSS)
# What columns of a kind are in a sentence.
_PARTS = {
    RATE: "rate",
    UPDATE: "updates",
    RELATIVE: "updates",
    GRADIENT: "gradients",
    PARAMETER: "parameters",
}
_CAUSES = {
    NUMBER: "it was changed, or not rescaled for another batch size or length",
    RATE: "optimizer.learning_rate, the schedule or warm-up, or a batch size or length without the rule's rescaling",
    UPDATE: "base sizes of the audit that are not the reference's, or parameters without their factor",
    RELATIVE: "the learning rate or its schedule; a frozen parameter where it is near 0",
    GRADIENT: "a multiplier of a branch or the readout, the initial values, the loss or the data",
    PARAMETER: "initial values that were not rescaled (dm.rescale_init), another initializer, or an audit's base that "
    "is not the reference's",
    LOSS: "other labels or data than the reference's, or parameters that do not train",
}
_FROZEN = "frozen, or of low precision"
_OF_A_TENSOR = {
    UPDATE: "one tensor lacks the rule's factor, or has a learning rate of its own",
    RELATIVE: "one tensor lacks the rule's factor, or has a learning rate of its own",
    PARAMETER: "the initial values of one tensor",
    GRADIENT: "a factor in the forward pass of one tensor, or its initial values",
}


@dataclasses.dataclass(frozen=True)
class Deviation:
    """A column that is off course: ``factor`` times the reference's at ``step``."""

    step: int
    name: str
    factor: float

    @property
    def kind(self) -> str:
        """number, rate, update, gradient, parameter or loss."""
        return kind_of(self.name)


@dataclasses.dataclass(frozen=True, repr=False)
class Comparison:
    """Two runs side by side; print shows a table and a sentence.

    Attributes:
      reference, run: ``step`` and other names -> columns at the steps that both have; the reference's as the rule
        wants them of the run.
      spread: name -> the relative standard deviation of a ratio of root mean squares of so many normal numbers.
      numbers: settings that both must share -> the reference's, as the rule wants it of the run, and the run's.
    """

    reference: Columns
    run: Columns
    spread: Mapping[str, float]
    numbers: Mapping[str, tuple[Any, Any]] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def factors(self) -> dict[str, list[float]]:
        """Name -> run over reference at each step; NaN where one of them is 0 or unknown, 0 where only the run's is."""
        found = {name: list(map(_factor, self.run[name], self.reference[name])) for name in self.run if name != STEP}
        still = [i for i, rate in enumerate(self.run.get(RATE, ())) if rate == 0]
        for name in (name for name in found if kind_of(name) in (UPDATE, RELATIVE)):
            for i in still:  # Hyperball's updates are the rounding of a norm there
                found[name][i] = math.nan
        return found

    @property
    def deviations(self) -> list[Deviation]:
        """All that are off course, the earliest first."""
        first = min(self.run[STEP], default=0)
        different = {name: pair for name, pair in self.numbers.items() if _differ(*pair)}
        found = [Deviation(first, f"{NUMBER}/{name}", _factor(*pair[::-1])) for name, pair in different.items()]
        for i, step in enumerate(self.run[STEP]):
            sized = {name: x for name, x in self.factors.items() if kind_of(name) in LIMITS}
            at_step = {name: factors[i] for name, factors in sized.items() if step <= LAST or name == RATE}
            ones = [(name, x, _limit(name), self.spread[name]) for name, x in at_step.items()]
            means = {name: x for name, x in at_step.items() if kind_of(name) == UPDATE and not of_a_tensor(name)}
            if some := {name: x for name, x in means.items() if x > 0}:  # not NaN
                spread = math.hypot(*(self.spread[name] for name in some)) / len(some)
                ones.append(
                    (
                        f"{UPDATE}/all roles",
                        statistics.geometric_mean(some.values()),
                        MEAN_LIMITS[min(step, LAST)],
                        spread,
                    )
                )
            found += [Deviation(step, name, x) for name, x, most, spread in ones if _is_off(x, most, spread)]
            found += [Deviation(step, LOSS, share) for share in self._learned(i) if share < LEARNED]
        return sorted(found, key=lambda one: (one.step, _ORDER.index(one.kind), of_a_tensor(one.name)))

    def _learned(self, i: int) -> list[float]:
        """By how much the loss has fallen to a step over how much the reference's has; nothing where that is little."""
        if LOSS not in self.run or self.run[STEP][0] != 1 or self.run[STEP][i] < FIRST_OF_LOSS:
            return []
        (start, now), (own_start, own_now) = ((x[LOSS][0], x[LOSS][i]) for x in (self.reference, self.run))
        if own_start is not None and now is not None and own_now is None:  # it was not finite
            return [0.0]
        if None in (start, now, own_start, own_now) or start - now < LEAST_LEARNED * start:
            return []
        return [(own_start - own_now) / (start - now)]

    @property
    def on_course(self) -> bool:
        """Whether nothing is off course."""
        return not self.deviations

    @property
    def sentence(self) -> str:
        """What is off by how much at the first such step, and what causes it."""
        if self.on_course:
            return f"on course to step {max(self.run[STEP])}: {_compared(self)} the reference."
        first = self.deviations[0]
        same = [one for one in self.deviations if (one.step, one.kind) == (first.step, first.kind)]
        return f"off course at step {first.step}: {_what(self, same)}. {_cause(self, same)}"

    def __repr__(self) -> str:
        steps = self.run[STEP]
        shown = sorted({i for i, step in enumerate(steps) if step in (1, 2, 4, 8)} | {len(steps) - 1} - {-1})
        shares = {name: factors for name, factors in self.factors.items() if kind_of(name) in (*LIMITS, LOSS)}
        rows = [(name, *(f"{factors[i]:.3g}" for i in shown)) for name, factors in shares.items()]
        table = Table(("run / reference, at step", *(str(steps[i]) for i in shown)), rows, "<" + ">" * len(shown))
        return f"{table}\n\n{self.sentence}"


def _compared(comparison: Comparison) -> str:
    """ "rate, updates, gradients and parameters of all roles fit", of the kinds that both runs have."""
    kinds = {kind_of(name) for name in comparison.factors}
    *parts, last = dict.fromkeys(part for kind, part in _PARTS.items() if kind in kinds) or ["the loss"]
    if last in ("rate", "the loss"):
        return f"{last} fits"
    return f"{', '.join(parts)}{' and ' if parts else ''}{last} of all roles fit"


def _what(comparison: Comparison, same: Sequence[Deviation]) -> str:
    """By how much columns of one kind are off at a step."""
    kind, rule = same[0].kind, "times what the rule and the reference say"
    if kind == NUMBER:
        names = [one.name.partition("/")[2] for one in same]
        pairs = {name: comparison.numbers[name] for name in names}
        return listed([f"{name} is {value}, and by the reference {wanted}" for name, (wanted, value) in pairs.items()])
    if kind == LOSS:
        return f"the loss has fallen by {same[0].factor:.2g} times what the reference's has"
    if bad := [one.name for one in same if math.isinf(one.factor)]:
        return f"{_PARTS[kind]} of {bad[0].split('/')[1]} are not finite"
    if kind == RATE:
        return f"the learning rate is {same[0].factor:.3g} {rule}"
    if means := [one for one in same if not of_a_tensor(one.name)]:
        roles = ", ".join(f"{one.name.partition('/')[2]} {one.factor:.3g}" for one in means)
        return f"{kind}s of {roles} {rule}"
    parts = []
    for one in same:
        _, role, which = one.name.split("/")
        parts.append(f"the {which} {kind} of a tensor of {role} is {one.factor:.3g}")
    return f"{listed(parts)} times what its place in other layers and the reference say"


def _cause(comparison: Comparison, same: Sequence[Deviation]) -> str:
    """What was done, where the factors show it, else what is usual."""
    kind = same[0].kind
    if f"{NUMBER}/{BASE}" in [one.name for one in same]:
        return "Cause: the run's audit has another base than the reference's: pass the tuned network to dm.audit."
    if kind != NUMBER and any(math.isinf(one.factor) for one in same):
        return "Usual cause: numbers that overflow, in low precision, or a loss that is not finite."
    if kind in _OF_A_TENSOR and all(of_a_tensor(one.name) for one in same):
        still = kind in (UPDATE, RELATIVE) and all(one.name.endswith(SMALLEST) for one in same)
        return f"Cause: {f'one tensor does not train, or hardly: {_FROZEN}' if still else _OF_A_TENSOR[kind]}."
    if kind == UPDATE:
        return _cause_of_updates(comparison, comparison.run[STEP].index(same[0].step), same)
    return f"Usual cause: {_CAUSES[kind]}."


def _cause_of_updates(comparison: Comparison, i: int, same: Sequence[Deviation]) -> str:
    """What the factors of roles at the i-th step show."""
    named = {name: factors[i] for name, factors in comparison.factors.items() if kind_of(name) == UPDATE}
    roles = {name.partition("/")[2]: x for name, x in named.items() if not (of_a_tensor(name) or math.isnan(x))}
    if min(roles.values()) < _STILL:
        return f"Cause: parameters that do not train: {_FROZEN}."
    if max(roles.values()) < LIMITS[RELATIVE] * min(roles.values()):
        return "Cause: the learning rate, its schedule or warm-up, as the factor is the same in all roles."
    lacking = {role: _lacking(comparison, role, i) for role in roles}
    if all(max(x / lacking[role], lacking[role] / x) < LIMITS[UPDATE] for role, x in roles.items()):
        return "Cause: the optimizer has no rule, such as plain optax: use dm.adamw(rate, audit.info)."
    if any(of_a_tensor(one.name) for one in same):
        return f"Cause: {_OF_A_TENSOR[UPDATE]}."
    return f"Usual cause: {_CAUSES[UPDATE]}."


def _lacking(comparison: Comparison, role: str, i: int) -> float:
    """The factor of a role's updates, over the reference's, by an optimizer without the rule."""
    name = f"{RULE}/{role}"
    factor = _factor(comparison.reference[name][i], comparison.run[name][i]) if name in comparison.run else math.nan
    return 1.0 if math.isnan(factor) else factor


def _factor(value: Any, reference: Any) -> float:
    """Infinite for a value that is not finite, which is None, where the reference's is a number."""
    numbers = all(isinstance(x, (int, float)) for x in (value, reference))
    if value is None and isinstance(reference, (int, float)):
        return math.inf
    return float(value) / float(reference) if numbers and reference != 0 else math.nan


def _is_off(factor: float, most: float, spread: float) -> bool:
    limit = math.exp(math.hypot(math.log(most), DEVIATIONS * spread))
    return not math.isnan(factor) and not 1 / limit <= factor <= limit


def _limit(name: str) -> float:
    return (TENSOR_LIMITS if of_a_tensor(name) else LIMITS)[kind_of(name)]


def _differ(one: Any, other: Any) -> bool:
    if isinstance(one, (int, float)) and isinstance(other, (int, float)):
        return abs(one - other) > (LIMITS[RATE] - 1) * max(abs(one), abs(other))
    plain = lambda x: list(x) if isinstance(x, tuple) else x  # as JSON has it
    return bool(plain(one) != plain(other))


def of_a_tensor(name: str) -> bool:
    """Whether a column is of the largest or the smallest tensor of a role."""
    return name.endswith((f"/{LARGEST}", f"/{SMALLEST}"))


def kind_of(name: str) -> str:
    """update, gradient, parameter, ... of the name of a column."""
    return name.partition("/")[0]
