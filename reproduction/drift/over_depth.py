"""What the drift over depth is: of a convolutional network under SGD, and of a GPT tuned at depth 4; see over_depth.md.

    TEXT=tinyshakespeare.txt TFDS_DATA_DIR=... python -m reproduction.drift.over_depth [--hours=1] [--sweeps=conv,...]

Rerunning continues; a finished sweep is copied to the committed records.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable, Mapping, Sequence

from ml_collections import ConfigDict

from depthmup_flax.config import from_file
from depthmup_flax.data import LoadOnce
from depthmup_flax.search.sweep.grid import expand, powers_of_two, sweep_config
from depthmup_flax.search.sweep.runner import sweep
from depthmup_flax.storage.sweep_records import LEARNING_RATE, SEED, read_sweep
from reproduction.drift.cells import RANDOM, Cell
from reproduction.rules.command import asked, within
from reproduction.rules.runs import begun, ship

RECORDS = pathlib.Path(__file__).with_name("records")
SEEDS = (0, 1, 2, 3)
DEPTH, WIDTH, PRESET, NORM = "model.depth", "model.width", "parametrization.preset", "model.norm"
ZERO_BRANCH, STEPS, WARMUP = "model.zero_init_branch", "train.steps", "optimizer.warmup_steps"

AS_IT_IS = "as it is"
# What is changed of the convolutional network, one thing at a time.
CONV: Mapping[str, Mapping[str, object]] = {
    AS_IT_IS: {},
    "LayerNorm in the branches": {NORM: "layer"},
    "branches' last weights at zero": {ZERO_BRANCH: True},
    "branches times r^-1 (completep)": {PRESET: "completep"},
}
LONG: Mapping[str, Mapping[str, object]] = {"600 steps": {STEPS: 600, WARMUP: 60}}
CONV_USUAL = {NORM: "none", ZERO_BRANCH: False, PRESET: "depth_mup", STEPS: 200, WARMUP: 20}
CONV_DEPTHS = (4, 8, 16)

# The search's values at 32 x 4: records/which_preset_search_all-cpu.
RATE = 0.01657
BRANCH, INPUT, OUTPUT = (
    f"parametrization.{one}" for one in ("branch_multiplier", "input_lr_factor", "output_lr_factor")
)
HIDDEN, VECTOR = "parametrization.hidden_lr_factor", "parametrization.vector_lr_factor"
FOUND: Mapping[str, float] = {BRANCH: 0.269, INPUT: 7.702, OUTPUT: 5.014}
GPT_USUAL: Mapping[str, float] = dict.fromkeys((*FOUND, HIDDEN, VECTOR), 1.0)
GPT: Mapping[str, Mapping[str, float]] = {"all three as found": FOUND}
PARTS: Mapping[str, Mapping[str, float]] = {
    "none": {},
    "branch multiplier alone": {BRANCH: FOUND[BRANCH]},
    "embeddings' factor alone": {INPUT: FOUND[INPUT]},
    "readout's factor alone": {OUTPUT: FOUND[OUTPUT]},
}
GPT_DEPTHS = (4, 32)
OCTAVES = powers_of_two(-1.5, 1.5, 0.5)
ROLES: Mapping[str, Sequence[str]] = {
    AS_IT_IS: (),
    "all": (INPUT, HIDDEN, VECTOR, OUTPUT),
    "embeddings": (INPUT,),
    "hidden matrices": (HIDDEN,),
    "norms and biases": (VECTOR,),
    "readout": (OUTPUT,),
}


def conv(variants: Mapping[str, Mapping[str, object]] = CONV) -> ConfigDict:
    """The convolutional network of the cells, at three depths, in half octaves, with four seeds."""
    base = Cell("conv", "sgd", RANDOM).base()
    common = {WIDTH: (32,), DEPTH: CONV_DEPTHS, LEARNING_RATE: powers_of_two(-5, -2, 0.5), SEED: SEEDS}
    grids = {name: {**_single({**CONV_USUAL, **changed}), **common} for name, changed in variants.items()}
    return sweep_config(base, grids, figure="drift", title="Convolutional network over depth", scale="cpu", extend=2)


def gpt() -> ConfigDict:
    """The GPT at depth 4 and 32, with what a search found at depth 4."""
    return _gpt(GPT, OCTAVES, SEEDS)


def gpt_parts() -> ConfigDict:
    """The same with a part of what the search found: fewer rates and seeds, as depth 32 is slow."""
    return _gpt(PARTS, powers_of_two(-1, 2), SEEDS[:2])


def _gpt(variants: Mapping[str, Mapping[str, float]], times: Sequence[float], seeds: Sequence[int]) -> ConfigDict:
    rates = tuple(RATE * each for each in times)
    common = {DEPTH: GPT_DEPTHS, LEARNING_RATE: rates, SEED: seeds}
    grids = {name: {**_single({**GPT_USUAL, **changed}), **common} for name, changed in variants.items()}
    return sweep_config(_gpt_base(), grids, figure="drift", title="GPT over depth", scale="cpu")


def conv_long() -> ConfigDict:
    """The convolutional network with three times the steps."""
    return conv(LONG)


def gpt_roles() -> ConfigDict:
    """The GPT as the search found it, and with the rate of one role of parameters doubled."""
    common = {DEPTH: GPT_DEPTHS, LEARNING_RATE: (RATE,), SEED: SEEDS}
    grids = {name: {**_single(doubled(roles)), **common} for name, roles in ROLES.items()}
    return sweep_config(_gpt_base(), grids, figure="drift", title="GPT, roles", scale="cpu")


def doubled(roles: Sequence[str]) -> dict[str, float]:
    """The search's values with the rate factors of some roles doubled."""
    found = {**GPT_USUAL, **FOUND}
    return {**found, **{role: 2 * found[role] for role in roles}}


SWEEPS: Mapping[str, Callable[[], ConfigDict]] = {
    "gpt": gpt,
    "gpt-roles": gpt_roles,
    "gpt-parts": gpt_parts,
    "conv": conv,
    "conv-long": conv_long,
}


def _gpt_base() -> ConfigDict:
    config = from_file("shakespeare_gpt_deep", "cpu")
    config.data.name = f"text:{os.environ.get('TEXT', 'tinyshakespeare.txt')}"
    config.train.same_code = True  # the module may grow; the data's checksum is in the records
    return config


def _single(values: Mapping[str, object]) -> dict[str, Sequence[object]]:
    return {path: (value,) for path, value in values.items()}


def train(names: Sequence[str], workdir: pathlib.Path, hours: float) -> None:
    """Trains what the records lack, until ``hours`` of processor time are used."""
    load = LoadOnce()
    for name in within(hours, [name for name in names if not is_done(name)]):
        of_records = RECORDS / f"over-depth-{name}"
        directory = begun(workdir / name, of_records)
        sweep(SWEEPS[name](), directory, load=load)
        ship(directory, of_records)


def is_done(name: str) -> bool:
    """Whether the committed records have as many runs as the sweep, wherever the text lay."""
    directory = RECORDS / f"over-depth-{name}"
    if not (directory / "sweep.json").exists():
        return False
    return len(read_sweep([directory]).records) >= len(expand(SWEEPS[name]()))


if __name__ == "__main__":
    own = asked("reproduction.drift.over_depth", __doc__, "--sweeps", SWEEPS, "runs/over_depth")
    train(own.names, own.workdir, own.hours)
