"""Notes of a report: information, never a failure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from depthmup_flax.auditing.audit_table import summary
from depthmup_flax.check.causes import TEXTS
from depthmup_flax.check.judgment import FINITE, Quantity
from depthmup_flax.check.layer_names import Layers
from depthmup_flax.check.recorded_sizes import BRANCHES, EVERYTHING, OUTPUT, Table
from depthmup_flax.check.trends import fit_trend
from depthmup_flax.rule.parametrization import Parametrization

_NOTHING = 1e-3  # smaller shares are rounding: the block is linear in its weights
_FALLS, _STAYS = -0.15, -0.25  # around a third of Depth-muP's exponent, -1/2, which small networks do not reach


def notes(
    table: Table,
    quantities: Sequence[Quantity],
    rule: Parametrization,
    layers: Layers,
    precisions: Sequence[str],
    unread: Sequence[str],
    unjudged: Sequence[str],
    tolerance: float,
) -> list[str]:
    """All notes.

    Args:
      table, quantities, rule, layers, tolerance: of the check.
      precisions: those below float32 in which forward passes are written.
      unread: axes over which the audit could not read the code.
      unjudged: parameters about which it could not judge something.
    """
    low = f"the forward pass is written in {' and '.join(precisions)}; the check computes it in float32."
    audit = f"the code could not be audited over {' and '.join(unread)}, so measurements alone decide there: dm.audit "
    random = random_to_few_features(table, layers)
    measured = (
        f"the audit could not judge {summary(unjudged)}, so their effect was measured. A scale inside an operation "
        "that is not read shows only in the activations that the network records: dm.audit says what to do."
    )
    return [
        *_finite_sizes(table, quantities, tolerance),
        *([low] if precisions else []),
        *([f"{audit}on these networks says why."] if unread else []),
        *([measured] if unjudged else []),
        *([f"{TEXTS['random_start_of_few_features']} These are {', '.join(random)}."] if random else []),
        *_laziness(table, rule),
    ]


def _finite_sizes(table: Table, quantities: Sequence[Quantity], tolerance: float) -> list[str]:
    """The sizes to use where exponents are those of small networks."""
    lines = []
    for axis in table.axes():
        finite = [q for q in quantities if (q.axis, q.verdict) == (axis, FINITE)]
        if finite:
            lines.append(
                f"these networks are small: {len(finite)} of their exponents over {axis} are not the expected ones "
                f"yet, though code, initial values and updates are right. To see them arrive, use "
                f"{_setting(f'{axis}s', _sizes_needed(table, axis, finite, tolerance))}."
            )
    return lines


def _sizes_needed(table: Table, axis: str, quantities: Sequence[Quantity], tolerance: float) -> tuple[int, ...]:
    sizes = table.sizes(axis)
    return max(q.trend.sizes_needed(sizes, q.expected, tolerance) for q in quantities if q.trend)


def _setting(name: str, values: Sequence[int]) -> str:
    """The setting in Python and on a command line."""
    python = values[0] if len(values) == 1 else tuple(values)
    return f"{name}={python} (--{name}={','.join(map(str, values))})"


def what_to_run(table: Table, unclear: Sequence[Quantity], tolerance: float) -> str:
    """The sizes or seeds that decide what is unclear."""
    lines = []
    for axis in table.axes():
        open_here = [q for q in unclear if q.axis == axis]
        narrow = [q for q in open_here if q.trend and q.fit.interval < tolerance]
        if narrow:
            wanted = _sizes_needed(table, axis, narrow, tolerance)
            text = "exponents are too far from the right ones for a pass, and too near for a mistake"
            lines.append(f"{text}, as those of small networks may be: use {_setting(f'{axis}s', wanted)}")
        if len(narrow) < len(open_here):
            seeds = max(len(seeds) for seeds in table.values(axis, EVERYTHING, "activation", OUTPUT, 0).values())
            width = max(q.fit.interval for q in open_here)
            times = min(4, max(2, math.ceil((width / tolerance) ** 2)))
            more = _setting("seeds", (times * seeds,))
            lines.append(f"the intervals over {axis} are too wide for a verdict: use {more}")
    return "; ".join(lines) + "."


def random_to_few_features(table: Table, layers: Layers) -> list[str]:
    """The weights of this cause; see `ParamInfo.to_few_features`."""
    falls_enough = -0.75  # between 1/sqrt(fan_in) and 1/fan_in
    few = [path for path, leaf in layers.weights.items() if leaf.to_few_features and "width" in table.axes()]
    return [path for path in few if table.fit("width", EVERYTHING, "weight", path, 0).slope > falls_enough]


def _laziness(table: Table, rule: Parametrization) -> list[str]:
    """The nonlinear share of a block's change over depth; nothing if it was not measured, or if it is zero.

    This is the share of the change of the outputs that is quadratic in the change of one block's weights. If several
    matrices follow one another in a branch and each moves by ``L^-1/2``, it falls as ``L^-1/2``: every block becomes
    linear in its own weights (TP6 sec. 9).
    """
    steps = table.steps("depth", BRANCHES, "nonlinear")
    if not steps:
        return []
    shares = table.values("depth", BRANCHES, "nonlinear", OUTPUT, steps[-1])
    fit = table.fit("depth", BRANCHES, "nonlinear", OUTPUT, steps[-1])
    if fit.state != "fitted" or max(v for seeds in shares.values() for v in seeds) < _NOTHING:
        return []
    text = f"the share of a block's change that is nonlinear in its own weights' change ~ depth^{fit}"
    if fit.slope - fit.interval > _STAYS:
        return [f"{text}: blocks keep learning features of their own."]
    trend = fit_trend(shares)
    if trend and trend.converges(0.0, -_STAYS):
        now = f"{trend.slopes[-1]:+.2f} between the two largest depths"
        return [f"{text}, but {now}: it converges, so blocks keep learning features of their own."]
    if fit.slope + fit.interval < _FALLS and rule.alpha < 1:
        return [
            f"{text}: deep networks learn no features inside a block (TP6 sec. 9). A block of one matrix loses "
            "nothing; with more, the preset 'completep' keeps them, but makes layers alike: compare both "
            "(reproduction/pages/which_exponent.md)."
        ]
    return [f"{text}: add depths or seeds to tell whether it falls."]
