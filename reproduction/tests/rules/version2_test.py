"""Version 2's cells are what planted losses ask for, and the decision follows its margin."""

import numpy as np
import pytest

from reproduction.rules.runs import Losses, values_at
from reproduction.rules.version2 import runs, table
from reproduction.rules.version2.tasks import PROXY, SEARCHES, SEEDS, TARGETS, TASKS

NAME, CHANCE, BEST = "digits_mlp_adam", 3.0, 2.0**-7
OCTAVES = {"depth_mup": 0, "completep": 1}  # by how many the best rate moves; other rules: 2


def planted():
    task, of, known = TASKS[NAME], {}, runs.rules()
    loss = lambda rate, octaves: 1 + 0.1 * (np.log2(rate / BEST) - octaves) ** 2
    for rate in task.rates:
        of[(*values_at(known["sp"], task, PROXY), rate)] = {seed: loss(rate, 0) for seeds in SEARCHES for seed in seeds}
    for name, rule in known.items():
        for times in (0.5, 1, 2, 4):
            values = (*values_at(rule, task, TARGETS["both x4"]), BEST * times)
            of[values] = dict.fromkeys(SEEDS, loss(values[-1], OCTAVES.get(name, 2)))
    return Losses(of, CHANCE, frozenset(of), 0.0)


def test_regrets_and_limits_of_planted_losses():
    cells = table._cells(TASKS[NAME], TARGETS["both x4"], planted())
    assert [cells[name].regret for name in ("depth_mup", "completep", "sp")] == pytest.approx([0, 0.05, 0.2])
    assert {name: cell.limit for name, cell in cells.items()} == pytest.approx(dict.fromkeys(cells, 0))
    assert cells["auto"] == cells["depth_mup"]  # one matrix in a branch
    assert cells["sp"].learned == pytest.approx(1)


def cells(task, auto, noise=0.0):
    of = {"auto": auto, "depth_mup": 0.15, "completep": 0.1}
    return {(task, "depth x4", rule): table.Cell(regret, 0.0, noise, 1.0, best=1.0) for rule, regret in of.items()}


@pytest.mark.parametrize(("auto", "chosen"), [(0.109, "auto"), (0.111, "completep")])
def test_auto_is_the_default_within_the_margin_of_the_better_preset(auto, chosen):
    assert table.decision(cells("task", auto)).startswith(f"Decision, as registered: {chosen}: ")


def test_nothing_is_decided_that_changes_without_the_noisy_cells():
    decided = table.decision(cells("task", 0.105) | cells("noisy", 0.5, noise=0.02))
    assert decided.startswith("Decision, as registered: not resolved, the default stays: ")
    decided = table.decision(cells("task", 0.5) | cells("noisy", 0.5, noise=0.02))
    assert decided.startswith("Decision, as registered: completep: ")


def test_only_targets_that_are_done_for_all_tasks_decide_as_registered():
    begun = {(task, "both x4", rule): cell for (task, _, rule), cell in cells("task", 0.1).items()}
    registered, other = table.decision(cells("task", 0.5) | cells("other", 0.5) | begun).splitlines()
    assert "both x4" not in registered
    assert "both x4" in other
