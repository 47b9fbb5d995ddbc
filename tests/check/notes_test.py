"""What the notes of a check say of given measurements."""

import pytest

from depthmup_flax.check.report import _laziness
from depthmup_flax.check.records import BRANCHES, OUTPUT, Record, Table
from depthmup_flax.rule.parametrization import PRESETS


@pytest.mark.parametrize(
    ("preset", "shares", "words"),
    [  # measured: a GPT, and a residual MLP with two layers in a branch
        ("depth_mup", {4: 0.237, 8: 0.134, 16: 0.065, 32: 0.035}, "'completep' keeps them"),
        ("completep", {4: 0.216, 8: 0.129, 16: 0.104, 32: 0.101}, "it converges"),
        ("completep", {8: 0.206, 16: 0.211, 32: 0.216, 64: 0.222}, "keep learning features"),
        ("completep", {4: 0.24, 8: 0.16, 16: 0.11, 32: 0.07}, "add depths"),
    ],
)
def test_the_nonlinear_share_of_a_blocks_change_is_judged_in_the_limit_of_deep_networks(preset, shares, words):
    record = lambda depth, seed, value: Record("depth", depth, 32, depth, seed, BRANCHES, 2, "nonlinear", OUTPUT, value)
    spread = ((0, 0.95), (1, 1.0), (2, 1.05))
    (note,) = _laziness(Table([record(d, s, x * f) for d, x in shares.items() for s, f in spread]), PRESETS[preset])
    assert words in note
