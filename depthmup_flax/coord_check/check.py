"""The coordinate check: networks of several sizes in, a report out."""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from depthmup_flax.coord_check.diagnosis import Cause, Evidence, diagnose
from depthmup_flax.coord_check.layer_names import collapsers, in_branches
from depthmup_flax.coord_check.measure import (
    BRANCH_VECTORS,
    BRANCHES,
    EVERYTHING,
    Record,
    group_of,
    measure,
)
from depthmup_flax.coord_check.networks import Network, checked_outputs
from depthmup_flax.coord_check.plan import require_growth, require_plan
from depthmup_flax.coord_check.verdict import ATTENTION_SCALE, NO_ANSWER, Quantity, Table, judge
from depthmup_flax.errors import InputError
from depthmup_flax.rule.info_trees import flatten_info
from depthmup_flax.rule.parametrization import Parametrization, ParamInfo, Role

Loss = Callable[[jax.Array], jax.Array]


@dataclasses.dataclass(frozen=True)
class Report:
    """What a check found; ``print`` it.

    Attributes:
      records: every number measured.
      quantities: exponents and verdicts.
      causes: of a failure, with the layers at fault.
      rule: the parametrization that was checked.
      seeds: networks per size.
      tolerance: on exponents.
    """

    records: list[Record]
    quantities: list[Quantity]
    causes: list[Cause]
    rule: Parametrization
    seeds: int
    tolerance: float

    @property
    def ok(self) -> bool:
        """Whether every quantity is as it must be."""
        return all(q.passed for q in self.quantities)

    @property
    def failures(self) -> list[Quantity]:
        """The quantities that are not."""
        return [q for q in self.quantities if not q.passed]

    def __str__(self) -> str:
        rule, lines = self.rule, []
        lines.append(
            f"coordinate check: alpha {rule.alpha:g}, gamma {rule.gamma:g}, width rule {rule.width}; "
            f"{self.seeds} seeds; exponents, 95 % intervals, flat within {self.tolerance:g}"
        )
        for axis in sorted({q.axis for q in self.quantities}, reverse=True):
            mine = [q for q in self.quantities if q.axis == axis]
            failed = [q for q in mine if not q.passed]
            sizes = sorted({r.size for r in self.records if r.axis == axis})
            word = "PASS" if not failed else "UNCLEAR" if all(q.verdict in NO_ANSWER for q in failed) else "FAIL"
            lines += [
                "",
                f"{axis} {', '.join(map(str, sizes))}: {word}, {len(mine) - len(failed)} of {len(mine)} right",
            ]
            lines += _rows(mine)
        for cause in self.causes:
            lines += ["", f"likely cause ({cause.name}): {cause.text}"]
            shown = ", ".join(cause.layers[:8]) + (
                f" and {len(cause.layers) - 8} more" if len(cause.layers) > 8 else ""
            )
            lines.append(f"  at {shown}")
        return "\n".join(lines)

    def save(self, directory: str | pathlib.Path) -> None:
        """Writes ``records.jsonl``, ``report.txt`` and, with matplotlib, ``coord_check.png``."""
        path = pathlib.Path(directory)
        path.mkdir(parents=True, exist_ok=True)
        rows = (
            json.dumps({**dataclasses.asdict(r), "value": r.value if math.isfinite(r.value) else None})
            for r in self.records
        )
        (path / "records.jsonl").write_text("".join(row + "\n" for row in rows), encoding="utf-8")
        (path / "report.txt").write_text(f"{self}\n", encoding="utf-8")
        try:
            import matplotlib  # noqa: F401  # optional and heavy
        except ImportError:
            print('no figure: it needs matplotlib, `pip install "depthmup-flax[report]"`.')
            return
        from depthmup_flax.coord_check.figure import draw

        draw(self, path / "coord_check.png")


def coord_check(
    build: Callable[[int, int], Network],
    labels: Any = None,
    *,
    rule: Parametrization,
    width: int,
    depth: int,
    widths: Sequence[int] = (),
    depths: Sequence[int] = (),
    loss: Loss | None = None,
    steps: int = 10,
    seeds: int = 4,
    tolerance: float = 0.2,
    spectral: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> Report:
    """Trains networks of several widths and depths for a few steps; fits how everything's size follows both.

    Under a right parametrization activations, outputs and their changes keep their size (TP6 Table 1, Claims 7.1 and
    7.2; B24 Table 1). Everything is trained together, from a readout at zero (with a random one, outputs legitimately
    change a little less at larger widths for a while), and every group of parameters alone, because together a wrong
    exponent of the blocks hides behind the stem.

    Small networks are not asymptotic: use widths from 8 times the base, depths from 32 branches or a branch multiplier
    of at most 1/2, and a batch of a few examples. Exponents of what can go wrong differ by 1/2.

    The cost: every network is compiled once, and trained ``seeds`` times ``steps`` steps, and two for every group of
    parameters alone. Mind that groups are about as many as a layer has weights.

    Args:
      build: ``(width, depth) -> Network`` on a fixed batch, the same for all; `linen_network`, `nnx_network` make one.
      labels: integers of the shape of the outputs without the last axis, for the softmax cross-entropy. ``None``: with
        ``loss``.
      rule: the parametrization that the networks are built with; tells what theory expects.
      width, depth: of the networks whose depth or width is varied.
      widths, depths: what to try, at least 3 each; () leaves an axis out.
      loss: ``outputs -> scalar``, instead of ``labels``.
      steps: training steps.
      seeds: initial values per size.
      tolerance: largest exponent that counts as flat; above 0 and below 1/2.
      spectral: also record the spectral norm of every weight's update.
      say: called with a line per network; ``print`` shows how far it is.

    Raises:
      InputError: too few sizes or seeds, networks that do not grow with their sizes, or labels that do not fit the
        outputs; before anything is trained.
    """
    require_plan(widths, depths, width, depth, steps, seeds, tolerance)
    plan = [("width", w, w, depth) for w in widths] + [("depth", d, width, d) for d in depths]
    networks = [build(w, d) for _, _, w, d in plan]
    shapes = [checked_outputs(network) for network in networks]
    infos = [flatten_info(network.info) for network in networks]
    require_growth("width", widths, infos[: len(widths)])
    require_growth("depth", depths, infos[len(widths) :])
    loss = _checked_loss(labels, loss, shapes[0][0])
    names = [[*info, *activations] for info, (_, activations) in zip(infos, shapes, strict=True)]
    collapses = collapsers(names, infos)
    records = []
    for (axis, size, w, d), network, collapse in zip(plan, networks, collapses, strict=True):
        rows = measure(network, loss, rule, steps=steps, seeds=seeds, spectral=spectral, collapse=collapse)
        records += [Record(axis=axis, size=size, width=w, depth=d, **row) for row in rows]
        final = [
            r["value"]
            for r in rows
            if (r["group"], r["quantity"], r["name"], r["step"]) == (EVERYTHING, "change", "output", steps)
        ]
        say(f"width {w}, depth {d}: outputs changed by {sum(final) / len(final):.3g} in {steps} steps")
    weights: dict[str, ParamInfo] = {}
    for info, collapse in zip(infos, collapses, strict=True):
        weights.update({collapse(path): leaf for path, leaf in info.items()})
    weights = {path: leaf for path, leaf in weights.items() if leaf.role not in (Role.VECTOR, Role.FIXED)}
    groups = {path: group_of(path, lambda name: name) for path in weights}
    in_branch = {groups[path] for path, leaf in weights.items() if leaf.in_branch} | {BRANCHES, BRANCH_VECTORS}
    table = Table(records)
    branch_activations = {
        collapse(name)
        for info, collapse, (_, activations) in zip(infos, collapses, shapes, strict=True)
        for name in in_branches(info, activations)
    }
    quantities = judge(table, rule, tolerance, in_branch, branch_activations)
    causes = diagnose(Evidence(table, quantities, rule, weights, groups))
    return Report(records, quantities, causes, rule, seeds, tolerance)


def _checked_loss(labels: Any, loss: Loss | None, outputs: Any) -> Loss:
    if loss is not None and labels is not None:
        raise InputError("labels and loss are both given: give one, since a loss has its own targets.")
    if loss is not None:
        return loss
    if labels is None:
        raise InputError("labels and loss are both missing: give integer labels, or a loss of the outputs.")
    labels = jnp.asarray(labels)
    if not jnp.issubdtype(labels.dtype, jnp.integer) or labels.shape != outputs.shape[:-1]:
        raise InputError(
            f"labels have shape {labels.shape} and type {labels.dtype}, but the outputs have shape {outputs.shape}: "
            f"give integers of shape {outputs.shape[:-1]}, or a loss of your own."
        )
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= outputs.shape[-1]:
        raise InputError(
            f"labels run from {low} to {high}, but the network has {outputs.shape[-1]} outputs: give it as many "
            "classes as the data."
        )
    return lambda outputs: optax.softmax_cross_entropy_with_integer_labels(outputs, labels).mean()


def _rows(quantities: Sequence[Quantity]) -> list[str]:
    """One line per quantity, failures first."""
    lines = [f"  {'':<4} {'what':<58} {'step':>4}  {'exponent':>16}  {'theory':>6}  verdict"]
    for q in sorted(quantities, key=lambda q: q.passed):
        if q.kind == ATTENTION_SCALE:
            what = f"{ATTENTION_SCALE} x head dimension, {q.name}"
        elif q.kind == "activation":
            what = f"activation {q.name}"
        elif q.group == EVERYTHING:
            what = f"change of {q.name}"
        else:
            what = f"change of {q.name}, training {q.group} alone"
        theory = "?" if q.theory is None else f"{q.theory:+.1f}" if q.theory else "0"
        mark = "ok" if q.passed else "FAIL" if q.verdict not in NO_ANSWER else "??"
        lines.append(f"  {mark:<4} {_shortened(what, 58):<58} {q.step:>4}  {q.fit!s:>16}  {theory:>6}  {q.verdict}")
    return lines


def _shortened(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length // 2 - 1]}...{text[-(length - length // 2 - 2) :]}"
