"""Scores of the cells that are done, and what they decide, as registration.md fixes both. No JAX."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np
import scipy.stats

from depthmup_flax.util.table import Table
from reproduction.rules import runs as version1
from reproduction.rules.score import capped, left_out_minimum
from reproduction.rules.version2 import runs
from reproduction.rules.version2.tasks import PROXY, SEEDS, TARGETS, TASKS, Task

FIXED, MARGIN, NOISE = ("depth_mup", "completep"), 0.01, 0.02
COMPARED = ("auto", *FIXED)
STARTED = ("depth x4", "both x4")  # 12 hours end in the last cell of the second
# Rules without runs of their own -> the rule whose runs they share at one matrix in a branch, and at more.
BY_MATRICES = {"auto": FIXED, "spectral": FIXED}


@dataclasses.dataclass(frozen=True)
class Cell:
    """A rule at a task and target, in units of what the best candidate learned there."""

    regret: float  # at the rates of the searches, their mean
    limit: float  # what remains at the rule's own best rate
    noise: float  # standard error of the regret over seeds
    learned: float  # share of that unit which the proxy learned
    best: float  # the best candidate's loss


Cells = Mapping[tuple[str, str, str], Cell]  # task, target, rule


def cells(records: pathlib.Path, tasks: Mapping[str, Task] = TASKS) -> Cells:
    """The cells of the committed records that are done, with all rules."""
    found: dict[tuple[str, str, str], Cell] = {}
    for name, task in tasks.items():
        if (records / name / "sweep.json").exists():
            losses = runs.losses(records / name)
            for target, sizes in TARGETS.items():
                try:
                    found |= {(name, target, rule): cell for rule, cell in _cells(task, sizes, losses).items()}
                except KeyError:  # a run that the records lack
                    continue
    return found


def matrices(task: Task) -> int:
    """Matrices that follow one another in a branch, as `dm.audit` counts them: 2 stands for more."""
    return 1 if task.model == "simple_resnet" or task.config().model.get("block_depth") == 1 else 2


def _cells(task: Task, sizes: tuple[int, int], losses: version1.Losses) -> dict[str, Cell]:
    of_seeds = lambda one: capped(np.array([losses.of[one][seed] for seed in SEEDS]), losses.chance)
    known = runs.rules()
    proxy = version1.values_at(known["sp"], task, PROXY) or ()
    tuned = runs.searched(proxy, losses, task.rates)
    at = {name: version1.values_at(rule, task, sizes) or () for name, rule in known.items()}
    transferred = {name: np.mean([of_seeds((*own, rate)) for rate in tuned], axis=0) for name, own in at.items()}
    rates = {values: _rates(losses, values) for values in at.values()}
    every = np.stack([of_seeds((*values, rate)) for values, own in rates.items() for rate in own])
    best = _left_out(every)
    unit = losses.chance - best.mean()
    small = np.mean([runs.mean(losses, proxy, rate, [s for seeds in runs.SEARCHES for s in seeds]) for rate in tuned])
    found = {}
    for name, values in at.items():
        excess = (transferred[name] - best) / unit
        limit = left_out_minimum(np.stack([of_seeds((*values, rate)) for rate in rates[values]]))
        noise = float(excess.std(ddof=1) / np.sqrt(len(SEEDS)))
        found[name] = Cell(
            float(excess.mean()),
            float((limit - best.mean()) / unit),
            noise,
            float((losses.chance - small) / unit),
            float(best.mean()),
        )
    several = matrices(task) > 1
    return found | {name: found[pair[several]] for name, pair in BY_MATRICES.items()}


def _rates(losses: version1.Losses, values: version1.Values) -> list[float]:
    """The rates at which a rule's network has all seeds."""
    return sorted(one[-1] for one, seeds in losses.of.items() if one[:-1] == values and set(SEEDS) <= seeds.keys())


def _left_out(losses: np.ndarray) -> np.ndarray:
    """Of candidates and seeds (C, S): each seed's loss of the candidate that is best on the other seeds, (S,)."""
    seeds = range(losses.shape[1])
    return np.array([losses[np.delete(losses, seed, axis=1).mean(1).argmin(), seed] for seed in seeds])


def text(found: Cells) -> str:
    """The table, what it leaves out, and the decision."""
    if not found:
        return "no cell is done"
    names = list(dict.fromkeys(rule for *_, rule in found))
    pairs = list(dict.fromkeys(key[:2] for key in found))
    rows = sorted((_row(rule, found, pairs) for rule in names), key=lambda row: float(row[1]))
    header = ("rule", "regret", *TARGETS, "share of the rate", "limit", *(f"minus {name}'s" for name in FIXED))
    noise = np.array([cell.noise for cell in found.values()])
    weak = [f"{task}, {target}" for task, target in pairs if found[task, target, FIXED[0]].learned < 0.5]
    noisy = sorted({f"{key[0]}, {key[1]}, {key[2]}" for key, cell in found.items() if cell.noise >= NOISE})
    each = [(f"{a}, {b}", *(f"{found[a, b, rule].regret:.3f}" for rule in names)) for a, b in pairs]
    return "\n".join(
        [
            *Table(header, rows, "<" + ">" * (len(header) - 1)).lines,
            "",
            *Table(("task, target", *names), each, "<" + ">" * len(names)).lines,
            "",
            f"{len(pairs)} of {len(TASKS) * len(TARGETS)} cells are done. Noise: median {np.median(noise):.4f}, "
            f"largest {noise.max():.4f}; {NOISE:g} or more in: {'; '.join(noisy) or 'none'}.",
            f"Proxies that learned less than half: {'; '.join(weak) or 'none'}.",
            decision(found),
        ]
    )


def _row(rule: str, found: Cells, pairs: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    own = [found[(*pair, rule)] for pair in pairs]
    regret, limit = np.mean([cell.regret for cell in own]), np.mean([cell.limit for cell in own])
    at = lambda target: [found[(*pair, rule)].regret for pair in pairs if pair[1] == target]
    return (
        rule,
        f"{regret:.4f}",
        *(f"{np.mean(values):.4f}" if (values := at(target)) else "" for target in TARGETS),
        f"{1 - limit / regret:.2f}" if regret > 0 else "",
        f"{limit:.4f}",
        *("" if rule == other else _difference(rule, other, found, pairs) for other in FIXED),
    )


def _difference(rule: str, other: str, found: Cells, pairs: Sequence[tuple[str, str]]) -> str:
    """Mean over tasks of the difference, Wilcoxon's p over tasks, and the range of means without one task."""
    tasks = list(dict.fromkeys(task for task, _ in pairs))
    of = lambda task: [found[(*p, rule)].regret - found[(*p, other)].regret for p in pairs if p[0] == task]
    values = np.array([np.mean(of(task)) for task in tasks])
    if not values.any() or len(values) < 2:
        return f"{values.mean():+.4f}"
    without = (values.sum() - values) / (len(values) - 1)
    p = scipy.stats.wilcoxon(values[values != 0]).pvalue
    return f"{values.mean():+.4f} (p {p:.3f}; {without.min():+.4f} to {without.max():+.4f})"


def decision(found: Cells) -> str:
    """Which rule the registration makes the default, "on the targets that are done for all tasks"; and others' answer.

    The second sentence has the targets that were started and are nearly done, which decided before: not as registered.
    """
    tasks = {task for task, *_ in found}
    done = [target for target in TARGETS if {task for task, of, _ in found if of == target} >= tasks]
    started = [target for target in STARTED if any(of == target for _, of, _ in found)]
    return f"Decision, as registered: {_by_targets(found, done)}\nNot as registered: {_by_targets(found, started)}"


def _by_targets(found: Cells, targets: Sequence[str]) -> str:
    """The decision by the cells of these targets."""
    pairs = [pair for pair in dict.fromkeys(key[:2] for key in found) if pair[1] in targets]
    quiet = [pair for pair in pairs if max(found[(*pair, rule)].noise for rule in COMPARED) < NOISE]
    if not quiet:
        return "no target is done for all tasks."
    chosen, means = _chosen(found, pairs)
    without, quiet_means = _chosen(found, quiet)
    listed = (
        f"{chosen} in all {len(pairs)} cells at {' and '.join(targets)} ({means}), {without} in the {len(quiet)} "
        f"without noise of {NOISE:g} or more ({quiet_means})"
    )
    return f"{chosen if chosen == without else 'not resolved, the default stays'}: {listed}."


def _chosen(found: Cells, pairs: Sequence[tuple[str, str]]) -> tuple[str, str]:
    """``auto``, or the fixed preset with the lower mean if that is lower by more than the margin; and the means."""
    means = {name: float(np.mean([found[(*pair, name)].regret for pair in pairs])) for name in COMPARED}
    better = min(FIXED, key=means.__getitem__)
    chosen = "auto" if means["auto"] <= means[better] + MARGIN else better
    return chosen, ", ".join(f"{name} {value:.4f}" for name, value in means.items())
