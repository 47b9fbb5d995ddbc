"""The test by class: GPT-2's start as it is defined, and decisions that can fall either way."""

import jax
import numpy as np
import pytest

from reproduction.rules.by_class import table
from reproduction.rules.by_class.gpt2_start import network
from reproduction.rules.by_class.table import Result
from reproduction.rules.by_class.tasks import DEEPER, TASKS

LAST = {
    "mixture_mlp_adam": {"dense_0/kernel"},
    "products_mlp2_adamw": {"dense_1/kernel"},
    "shapes_vit_adam": {"out/kernel", "down/kernel"},
    "words_llama_adamw": {"out/kernel", "down/kernel"},
}


@pytest.mark.parametrize("name", LAST)
def test_the_last_matrices_of_branches_alone_start_smaller(name):
    task = TASKS[name]
    inputs = np.zeros((2, 8), int) if task.model == "gpt" else np.zeros((2, 8, 8, 1))
    starts = [network(task.width, depth, 8, name)[0](jax.random.key(0), inputs) for depth in (4, 16)]
    leaves = [jax.tree_util.tree_leaves_with_path(start) for start in starts]
    smaller = set()
    for (path, shallow), (_, deep) in zip(*leaves, strict=True):
        ratio = float(np.std(deep) / np.std(shallow)) if np.std(shallow) else 1.0
        if shallow.size > 500 and ratio != pytest.approx(1, abs=0.15):
            smaller.add("/".join(jax.tree_util.keystr(path, simple=True, separator="/").split("/")[-2:]))
            assert ratio == pytest.approx(16**0.5 / 4 / 2, rel=0.1)  # r is 4
    assert smaller == LAST[name]


def test_proxies_cost_the_same_and_targets_are_one_network():
    for task in TASKS.values():
        sizes = {way: task.proxy(way).model for way in ("depth_mup", "completep")}
        assert sizes["completep"].depth == DEEPER == 2 * sizes["depth_mup"].depth
        targets = [task.at(way, *task.target).model for way in ("depth_mup", "completep", "sp")]
        assert len({(model.width, model.depth) for model in targets}) == 1


def planted(of_completep, of_sp, count=8):
    """Results whose depth_mup has no excess."""
    names = list(TASKS)[:count]
    of = lambda completep, sp: {"depth_mup": 0.0, "completep": completep, "sp": sp, "gpt2": sp}
    return [
        Result(name, TASKS[name].attention, {}, {way: np.full(4, x) for way, x in of(completep, sp).items()})
        for name, completep, sp in zip(names, of_completep, of_sp, strict=False)
    ]


def test_a_class_follows_completep_only_if_it_is_ahead_in_three_of_four_by_more_than_the_margin():
    ahead = planted([-0.05, -0.05, -0.05, 0.02] * 2, [0.1] * 8)
    assert table.by_class(ahead, attention=True).endswith("the default is completep")
    small = planted([-0.012, -0.012, -0.012, 0.02] * 2, [0.1] * 8)
    assert table.by_class(small, attention=False).endswith("the default is depth_mup")
    few = planted([-0.2, -0.2, 0.01, 0.01] * 2, [0.1] * 8)
    assert table.by_class(few, attention=False).endswith("the default is depth_mup")
    assert table.by_class(ahead[:6], attention=True).endswith("no decision")


def test_untuned_beats_tuned_only_in_seven_of_eight():
    assert table.against_own_best(planted([0] * 8, [0.1] * 7 + [-0.01]), "sp").endswith("the claim holds")
    assert table.against_own_best(planted([0] * 8, [0.1] * 6 + [-0.01] * 2), "sp").endswith("does not hold")
    assert table.against_own_best(planted([0] * 8, [0.1] * 8, count=7), "sp").endswith("no decision")
