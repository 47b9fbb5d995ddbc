"""The loss of a constant guess: the entropy of labels and tokens, against scipy's."""

import sys
import types

import numpy as np
import pytest
import scipy.stats
from data_sets import load

from depthmup_flax.data import from_arrays
from depthmup_flax.data.chance import chance_loss


def images(labels):
    """A set of images with these labels."""
    blank = np.zeros((len(labels), 2, 2, 1), np.uint8)
    return from_arrays(blank, np.array(labels), blank[:2], np.array(labels[:2]), num_classes=4)


def test_balanced_classes_have_the_logarithm_of_their_number():
    assert chance_loss(images([0, 1, 2, 3] * 500)) == pytest.approx(np.log(4), abs=1e-3)


def test_rare_classes_count_less():
    labels = [0] * 900 + [1] * 100
    assert chance_loss(images(labels)) == pytest.approx(scipy.stats.entropy([0.9, 0.1]), abs=1e-3)


def test_text_has_the_entropy_of_its_tokens(tmp_path):
    text = "".join(np.random.default_rng(0).choice(list("aab"), 20_000))
    (tmp_path / "text.txt").write_text(text)
    expected = scipy.stats.entropy([text.count("a"), text.count("b")])
    assert chance_loss(load(f"text:{tmp_path / 'text.txt'}", context=8)) == pytest.approx(expected, abs=5e-3)


@pytest.mark.parametrize("targets", ["classes", "numbers"])
def test_targets_of_a_user_are_prepared_and_numbers_have_no_chance(targets, monkeypatch):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1300, 3)).astype(np.float32)
    split = x, rng.integers(0, 6, len(x)).astype(np.int32) if targets == "classes" else x[:, 0]
    module = types.ModuleType("their_chance")
    module.load = lambda: (
        split,
        split,
        lambda key, batch: (batch[0], batch[1] // 2 if targets == "classes" else batch[1]),
    )
    monkeypatch.setitem(sys.modules, "their_chance", module)
    expected = pytest.approx(np.log(3), abs=0.01) if targets == "classes" else None
    assert chance_loss(load("python:their_chance:load")) == expected
