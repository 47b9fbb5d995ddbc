"""Tuning of a large network through its proxy: sweep, choose, write the large network's config."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Sequence

from ml_collections import ConfigDict

from depthmup_flax.data import LoadOnce
from depthmup_flax.files import write_atomically
from depthmup_flax.sweep.runner import sweep
from depthmup_flax.training.config import field_paths, get_field, set_field
from depthmup_flax.training.experiment import build
from depthmup_flax.tune.choice import Choice, best, describe
from depthmup_flax.tune.proxy import proxy_config, tuning_sweep


def tune(
    target: ConfigDict,
    target_file: str | pathlib.Path,
    parent: ConfigDict,
    workdir: str | pathlib.Path,
    *,
    width: int,
    depth: int,
    steps: int = 0,
    names: Sequence[str] = (),
    arguments: Sequence[str] = (),
    overwrite: bool = False,
    octaves: int = 4,
    seeds: int = 3,
    lanes: int | None = None,
) -> Choice:
    """Sweeps the proxy, or resumes its sweep; prints the optimum and writes ``workdir/tuned.py``.

    Args:
      target: the large network's config, with the fields that the command line sets.
      target_file: the config file of ``target``, which ``tuned.py`` loads.
      parent: the config as the file has it.
      workdir: directory for the sweep's records and ``tuned.py``.
      width, depth: of the proxy.
      steps: training steps of a proxy run; 0: the target's.
      names: keys of `TUNABLE` to tune together with the learning rate.
      arguments: arguments of ``get_config`` in ``target_file``.
      overwrite: delete the search in ``workdir``.
      octaves: factors of two to try on each side of the config's learning rate.
      seeds: per point.
      lanes: see `depthmup_flax.sweep.runner.sweep`.

    Raises:
      InputError: an invalid proxy or option, or every run diverged.
    """
    proxy, large = proxy_config(target, width, depth)
    if steps:
        # Averaged over a whole short run, the loss would measure how early it falls.
        average = proxy.train.average_steps or max(1, steps // 5)
        proxy.train.update(steps=steps, epochs=0.0, average_steps=min(average, steps))
    config = tuning_sweep(proxy, names, octaves, seeds)
    load = LoadOnce()
    ratio = build(large, load=load).cost / build(proxy, load=load).cost
    print(
        f"proxy: width {width} (target {target.model.width}), depth {depth} (target {target.model.depth})", flush=True
    )
    records = sweep(config, workdir, lanes=lanes, load=load, overwrite=overwrite)
    choice = best(records)
    for path, value in choice.values.items():
        set_field(large, path, float(f"{value:.4g}"))
    summary = describe(choice, proxy)
    tuned = pathlib.Path(workdir) / "tuned.py"
    write_atomically(tuned, tuned_file(pathlib.Path(target_file), arguments, large, parent, summary))
    seconds = sum(record.wall_time_s for record in records)
    print(
        f"{summary}\n\n{len(records)} runs of the proxy took {seconds:,.0f} s. The same search on the target would be "
        f"{ratio:,.0f} times the work (parameters times examples).\n"
        f"Next: python train.py --config={tuned} --workdir={pathlib.Path(workdir) / 'target'}\n"
        f"Figures of the search: python -m depthmup_flax.report {workdir}",
        flush=True,
    )
    return choice


def tuned_file(
    original: pathlib.Path, arguments: Sequence[str], config: ConfigDict, parent: ConfigDict, summary: str
) -> str:
    """Text of a config file that calls ``original`` with ``arguments`` and sets what differs in ``config``."""
    changed = [path for path in field_paths(config) if get_field(config, path) != get_field(parent, path)]
    lines = "\n".join(f"            {path!r}: {get_field(config, path)!r}," for path in changed)
    return f'''"""{original.stem}, with hyperparameters from a small proxy.

{summary}
"""

from ml_collections import ConfigDict

from depthmup_flax.training.config import from_file


def get_config() -> ConfigDict:
    """The configuration."""
    config = from_file({", ".join(map(repr, (os.fspath(original.resolve()), *arguments)))})
    config.update_from_flattened_dict(
        {{
{lines}
        }}
    )
    return config
'''
