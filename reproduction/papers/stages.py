"""What registration.md lists, in the order in which it is trained."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterator, Mapping

from ml_collections import ConfigDict

from depthmup_flax.config import from_file
from depthmup_flax.search.sweep.grid import powers_of_two, sweep_config
from depthmup_flax.storage.sweep_records import LEARNING_RATE, SEED

CONFIGS = pathlib.Path(__file__).parents[1] / "configs" / "sweeps"
STEPS_OF_AN_EPOCH = 50_000 // 64
SEEDS, CONV_SEEDS = 5, 3
MLP, CONV = "lr_width_depth_mlp", "lr_width_depth_conv"
CONV_RATES = tuple(0.046 * rate for rate in powers_of_two(-3, 2))
Grids = Mapping[str, Mapping[str, tuple]]


@dataclasses.dataclass(frozen=True)
class Stage:
    """A part of a figure's sweep: what it holds is trained before the next one begins.

    Attributes:
      figure: name of the directory of its records. Stages of one figure share it, and their runs.
      parent: name of the sweep's config, whose scale ``paper`` has the paper's networks.
      epochs: of each run.
      grids: of the sweep.
      extend: how often a curve's grid may grow where its minimum lies at the edge.
    """

    figure: str
    parent: str
    epochs: int
    grids: Grids
    extend: int = 0

    def config(self) -> ConfigDict:
        """The sweep."""
        parent = from_file(CONFIGS / f"{self.parent}.py", "paper")
        steps = self.epochs * STEPS_OF_AN_EPOCH
        parent.base.train.update(epochs=0.0, steps=steps, log_every=STEPS_OF_AN_EPOCH, same_code=True)
        return sweep_config(
            parent.base, self.grids, figure=parent.figure, title=parent.title, scale=parent.scale, extend=self.extend
        )


def _grid(preset: str, depths: tuple[int, ...], rates: tuple[float, ...], seeds: int) -> dict[str, tuple]:
    return {
        "parametrization.preset": (preset,),
        "model.depth": depths,
        LEARNING_RATE: rates,
        SEED: tuple(range(seeds)),
    }


def _seed_by_seed(figure: str, epochs: int, best: float) -> Iterator[Stage]:
    """Depth-muP, then the standard parametrization beside it, with one more seed each time.

    ``best`` is the exponent of two in the middle of Depth-muP's grid.
    """
    for seeds in range(1, SEEDS + 1):
        rule = {"rule": _grid("depth_mup", (8, 32), powers_of_two(best - 2, best + 2), seeds)}
        control = {"control": _grid("sp", (8, 32), powers_of_two(best - 4, best + 1), seeds)}
        yield Stage(figure, MLP, epochs, rule)
        yield Stage(figure, MLP, epochs, {**rule, **control}, extend=2 if seeds == SEEDS else 0)


def _conv_seed_by_seed() -> Iterator[Stage]:
    """B24 Fig. 1: both rules, with one more seed each time."""
    for seeds in range(1, CONV_SEEDS + 1):
        grids = {preset: _grid(preset, (6, 24), CONV_RATES, seeds) for preset in ("depth_mup", "mup")}
        yield Stage("b24-fig1-5-epochs", CONV, 5, grids)


TEN, FIFTY = "fig10-10-epochs", "fig10-50-epochs"
STAGES = (
    *_seed_by_seed(TEN, 10, best=-10),
    # With frozen ends block_only at a rate is depth_mup at sqrt(32 / 8) times that rate: one run checks it.
    Stage("fig10-block-only", MLP, 10, {"one": _grid("block_only", (32,), (2.0**-11,), 1)}),
    *_seed_by_seed(FIFTY, 50, best=-11),
    Stage(FIFTY, MLP, 50, {"between": _grid("depth_mup", (8, 32), powers_of_two(-11.5, -10.5), SEEDS)}),
    Stage(FIFTY, MLP, 50, {"deeper": _grid("depth_mup", (64,), powers_of_two(-12, -10), SEEDS)}, extend=2),
    Stage(TEN, MLP, 10, {"deeper": _grid("depth_mup", (64,), powers_of_two(-12, -8), SEEDS)}, extend=2),
    *_conv_seed_by_seed(),
)
