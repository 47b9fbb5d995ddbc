"""Every figure of the papers is a grid at every scale, and at the smallest trains and becomes a report."""

import pytest
from flax.traverse_util import flatten_dict, unflatten_dict
from ml_collections import ConfigDict
from processes import ROOT

from depthmup_flax.config import from_file
from depthmup_flax.report.sweep_report import analysis_of, make_report
from depthmup_flax.report.tables import as_data, as_text
from depthmup_flax.search.sweep.grid import expand
from depthmup_flax.search.sweep.runner import sweep
from depthmup_flax.storage.sweep_records import CONTINUOUS, SEED, read_info, read_sweep

SWEEPS = sorted(path for room in ("", "reproduction/") for path in (ROOT / f"{room}configs/sweeps").glob("*.py"))


# Another model or optimizer in grids of which a sweep of the residual MLP has all.
ONE_GRID = {
    "batch_and_steps_gpt": "batch_32",
    "batch_and_steps_sgd": "batch_64",
    "block_depth_tuned": "abs_two",
    "lr_width_depth_sgd": "depths",
    "lr_width_depth_conv": "widths",
    "muon_conv": "beside adam",
    "muon_gpt": "beside adam",
    "which_exponent_gpt": "rules",
    "vit": "cosine",
    "which_exponent_vit": "inner",
}
# Sweeps over another number of networks that other sweeps train.
SIBLINGS = (
    *(f"other_hparams_{name}" for name in ("b2", "gamma0", "input_lr_factor", "output_lr_factor", "weight_decay")),
    "megatron_largest_rate", "megatron_multiplier",
)  # fmt: skip
# One of them in every run of the tests.
SMOKE = [
    pytest.param(path, marks=[pytest.mark.slow] * (path.stem != "abs")) for path in SWEEPS if path.stem not in SIBLINGS
]
# These have all kinds of figures; the others' reports are text.
DRAWN = ("block_multiplier", "block_depth_heatmap")


@pytest.mark.parametrize("path", SMOKE, ids=lambda path: path.stem)
def test_every_figure_has_a_smoke_scale_from_config_to_report(path, tmp_path):
    config = from_file(path, "smoke")
    config.extend = 0
    config.base.data.update(test_examples=8)
    config.base.train.update(steps=6, average_steps=3, log_every=2, batch_size=8)
    names = [ONE_GRID[path.stem]] if path.stem in ONE_GRID else [*config.grids]
    with config.ignore_type(), config.unlocked():
        config.grids = {f"{name} {i}": part for name in names for i, part in enumerate(thinned(config.grids[name]))}
    if config.base.data.name.startswith("text:"):
        (tmp_path / "text.txt").write_text("to be or not to be, that is the question. " * 60)
        config.base.data.name = f"text:{tmp_path / 'text.txt'}"
    # One run after another: convolutions of several lanes are slow on CPU.
    records = sweep(config, tmp_path / "sweep", lanes=1)
    assert len(records) == len(expand(config)) == read_info(tmp_path / "sweep").runs
    if path.stem in DRAWN:
        report = make_report([tmp_path / "sweep"], tmp_path / "report")
        assert (tmp_path / "report" / "report.html").exists()
        data, text = report.data, report.text
    else:
        read = read_sweep([tmp_path / "sweep"])
        analysis = analysis_of(read)
        data = as_data(read, analysis)
        text = as_text(data, analysis)
    diverged = sum(record.status == "diverged" for record in records)
    lines = text.splitlines()
    assert lines[:3] == [data["headline"], "", config.title]
    assert f"{len(records)} runs, {diverged} diverged " in lines[-1]
    assert data["figure"] == config.figure


LONG = [
    "abs",
    "block_depth",
    "block_depth_tuned",
    "block_multiplier",
    "layernorm",
    "lr_width_depth_mlp",
    "lr_width_depth_sgd",
    "ode_sde",
    "pre_nonlin",
    "trained_ends",
]


SHORTER = {
    "train.steps": lambda steps: 4 + steps // 15,
    "train.average_steps": lambda steps: max(1, steps // 15),
    "train.batch_size": lambda size: size // 8,
    "optimizer.warmup_steps": lambda steps: steps // 15,
}


def thinned(grid):
    """Two grids of one program each: the first values of the axes of programs, and the last ones."""
    axes = flatten_dict(grid.to_dict(), sep=".")
    axes = {path: tuple(map(SHORTER.get(path, lambda value: value), values)) for path, values in axes.items()}
    programs = [path for path, values in axes.items() if len(values) > 1 and path not in (*CONTINUOUS, SEED)]
    for end in (0, -1) if programs else (0,):
        yield unflatten_dict({**axes, **{path: (axes[path][end],) for path in programs}}, sep=".")


GPU10 = ["lr_width_depth_conv", "trained_ends", "which_preset"]
HAVE = {"long": LONG, "gpu10": GPU10}  # scales of some sweeps alone
LACK = dict.fromkeys(("gpu", "paper"), ("cifar10", "digits", "which_preset"))  # scales of all others


def thin_numbers(grid):
    """Thins axes of numbers to their first and last values, and seeds to one: others have no meaning of their own."""
    for name, values in grid.items():
        if isinstance(values, ConfigDict):
            thin_numbers(values)
        elif len(values) > 1 and all(type(value) in (int, float) for value in values):
            grid[name] = values[:1] if name == SEED else values[:: len(values) - 1]


@pytest.mark.parametrize("scale", ["smoke", "cpu", "long", "gpu10", "gpu", "paper"])
def test_every_scale_of_every_figure_is_a_grid(scale):
    for path in SWEEPS:
        if path.stem not in HAVE.get(scale, {path.stem}) or path.stem in LACK.get(scale, set()):
            continue
        config = from_file(path, scale)
        for grid in config.grids.values():
            thin_numbers(grid)
        runs = expand(config)
        assert len({run.hash for run in runs}) == len(runs) > 1, path
        assert config.scale == scale, path
