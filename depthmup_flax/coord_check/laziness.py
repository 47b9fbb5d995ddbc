"""How nonlinear a block is in the change of its own weights: information, never a failure."""

from __future__ import annotations

from depthmup_flax.coord_check.recorded_sizes import BRANCHES, OUTPUT, Table

_NOTHING = 1e-3  # a smaller share is that of a block that is linear in its weights, or rounding
_FALLS, _STAYS = -0.15, -0.25  # around a third of the exponent of Depth-muP, -1/2, which small networks do not reach


def laziness_notes(table: Table) -> list[str]:
    """What the nonlinear share of a block's change says; nothing if it was not measured, or if it is zero.

    The share is that of the change of the outputs that is quadratic in the change of one block's weights. Where
    several matrices follow one another in a branch and each moves by ``L^-1/2``, it falls as ``L^-1/2``: every block
    becomes linear in its own weights (TP6 sec. 9).
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
    if fit.slope + fit.interval < _FALLS:
        return [
            f"{text}: deep networks learn no features inside a block (TP6 sec. 9). A block of one matrix loses "
            "nothing; with more, the preset 'ode' (alpha=1, gamma=0) keeps them, at the price of layers that are alike."
        ]
    return [f"{text}: add depths or seeds to tell whether it falls."]
