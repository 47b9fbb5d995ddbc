"""The large network with the hyperparameters of its proxy: its config file, rescaled or compared on request."""

from __future__ import annotations

import logging
import os
import pathlib
import shlex
import textwrap
from collections.abc import Sequence

import numpy as np
from ml_collections import ConfigDict

from depthmup_flax.config.fields import default_config, field_paths, get_field, set_field, set_model
from depthmup_flax.config.files import from_file, shipped_name
from depthmup_flax.config.rescaling import rescale_target
from depthmup_flax.data import LoadOnce
from depthmup_flax.rule.parametrization import PRESETS
from depthmup_flax.search.sweep.grid import sweep_config
from depthmup_flax.search.sweep.runner import sweep
from depthmup_flax.search.tune.carry import carry, compare_on_ladder
from depthmup_flax.search.tune.searches import Search
from depthmup_flax.search.tune.tuning import tune
from depthmup_flax.storage import workdir as workdirs
from depthmup_flax.storage.files import absolute, is_bucket, write_atomically
from depthmup_flax.storage.sweep_records import AUTO, COMPARISON, COMPLETED, LEARNING_RATE, SEED, Record
from depthmup_flax.trainer.engine.from_config import build
from depthmup_flax.util import messages
from depthmup_flax.util.errors import InputError, require_number
from depthmup_flax.util.table import Table

log = logging.getLogger(__name__)

_PRESET = "parametrization.preset"
_MEASURES = "test_accuracy", "test_loss", "validation_accuracy", "validation_loss", "train_loss_avg"  # of a record


def tune_target(
    target: tuple[ConfigDict, ConfigDict],
    search: Search,
    file: str,
    workdir: str | os.PathLike[str],
    *,
    lanes: int | None = None,
    overwrite: bool = False,
    batch_size: int | None = None,
    total_steps: int | None = None,
    objective: str = AUTO,
    compare: Sequence[str] = (),
    ladder: float | None = None,
) -> pathlib.Path:
    """Tunes the proxy of a large network, logs the optimum, and writes ``workdir/tuned.py``, which it returns.

    Args:
      target: ``(proxy, target)`` of `proxy_config`.
      search: on the proxy.
      file: the target's config file with any ``:argument``, which ``tuned.py`` loads.
      workdir, lanes, overwrite, objective: see `depthmup_flax.tune`.
      batch_size, total_steps: of the target; hyperparameters follow them. ``None``: its config's.
      compare: presets under which the target is trained with the best values, too; see `compare_presets`. With a
        ladder, a size of it: see `compare_on_ladder`.
      ladder: what sizes between proxy and target may cost, in runs of the target, see `carry`.
    """
    proxy, large = target
    if ladder is not None:
        require_number("ladder", ladder, above=0)
    load = LoadOnce()
    require_presets(compare, large)
    built = build(large, load=load)
    for preset in compare:  # a network may refuse one: before the search
        other = large.copy_and_resolve_references()
        other.parametrization.preset = preset
        build(other, load=load)
    built_proxy = build(proxy.copy_and_resolve_references(), load=load)
    steps, examples = (built_proxy.total_steps, built.total_steps), len(built.dataset.train)
    rescales = (batch_size, total_steps) != (None, None)
    if rescales:  # fails before anything is trained
        if (batch_size or 0) > examples:
            raise InputError(f"target.batch_size is {batch_size}: use at most the {examples} examples.")
        rescale_target(proxy, steps[0], large.copy_and_resolve_references(), steps[1], batch_size, total_steps)
    sizes = (f"{name} {proxy.model[name]} (target {large.model[name]})" for name in ("width", "depth"))
    log.info("proxy: %s", ", ".join(sizes))
    best = tune(proxy, search, workdir, objective=objective, lanes=lanes, overwrite=overwrite, load=load)
    for path, value in best.fields.items():
        for config in (proxy, large):
            set_field(config, path, value)
    rescaled = ""
    if rescales:
        table = rescale_target(proxy, steps[0], large, steps[1], batch_size, total_steps)
        rescaled = f"\n\nFor the target's batch size and steps:\n{table}"
    carry(best, proxy, large, (steps[0], large.train.steps or steps[1]), ladder, lanes=lanes, load=load)
    summary = repr(best) + rescaled
    large.train.update(record_course=True, reference=absolute(best.directory))
    tuned = best.directory / "tuned.py"
    with workdirs.claimed(best.directory, workdirs.TUNE, lock=".lock-records"):  # the sweep's
        write_atomically(tuned, derived_file(file, large, summary))
    work = f"{built.cost / built_proxy.cost:,.0f} times the work (parameters times examples)"
    log.info(
        "%s\n\n%d runs of the proxy took %s s. The same search on the target would be %s.\nWritten to %s",
        *(summary, len(best.records), f"{best.wall_time_s:,.0f}", work, tuned),
        extra=messages.RESULT,
    )
    if compare and ladder is not None:
        compared = compare_on_ladder(best, proxy, steps[0], compare, search.seeds, lanes=lanes, load=load)
        log.info("%s", compared, extra=messages.RESULT)
    elif compare:
        table = compare_presets(large, compare, search.seeds, best.directory / COMPARISON, load)
        log.info("%s", table, extra=messages.RESULT)
    return tuned


def require_presets(names: Sequence[str], target: ConfigDict) -> None:
    """`InputError` unless ``names`` are presets other than the target's own, each given once."""
    others = PRESETS.keys() - {target.parametrization.preset}
    for name in names:
        if name not in others or names.count(name) > 1:
            raise InputError(f"compare has {name!r}: name each of {', '.join(sorted(others))} once at most.")


def compare_presets(
    target: ConfigDict, names: Sequence[str], seeds: Sequence[int], directory: pathlib.Path, load: LoadOnce
) -> str:
    """Trains ``target`` with the tuned values under its own preset and others, as a sweep; returns a table.

    At the proxy's size all width and depth ratios are 1, so that every preset is the same network: the search on the
    proxy was a search for each of them.
    """
    base = target.copy_and_resolve_references()
    base.mesh = default_config().mesh
    own = base.parametrization.preset
    rate = base.optimizer.learning_rate
    grid = {_PRESET: (own, *names), LEARNING_RATE: (rate,), SEED: tuple(seeds)}
    config = sweep_config(base, {"presets": grid}, figure=COMPARISON, title="Presets at the target", scale="target")
    records = sweep(config, directory, load=load)
    rows = [(f"  {name}", result([r for r in records if r.point[_PRESET] == name])) for name in grid[_PRESET]]
    runs = f"n = {len(seeds)} seeds, mean ± standard deviation" if len(seeds) > 1 else "one seed"
    size, steps = f"width {base.model.width}, depth {base.model.depth}", max(record.steps for record in records)
    head = f"The target ({size}) at learning rate {rate:.4g}, {steps:,} steps, {runs}:"
    below = "On the proxy all of these are the same network: the search tuned each of them."
    return f"{head}\n{Table((), rows, '<<')}\n{below}"


def result(records: Sequence[Record]) -> str:
    """``test accuracy 97.1 % ± 1.0 %, training loss 0.0019`` of completed runs: the first and last of `_MEASURES`."""
    completed = [record for record in records if record.status == COMPLETED]
    diverged = len(records) - len(completed)
    text = [f"{diverged} of {len(records)} runs diverged"] if diverged else []
    measured = [field for field in _MEASURES if completed and getattr(completed[0], field) is not None]
    for field in dict.fromkeys([*measured[:1], *measured[-1:]]):
        name = "training loss" if field == "train_loss_avg" else field.replace("_", " ")
        shown = (lambda x: f"{100 * x:.1f} %") if name.endswith("accuracy") else "{:.3g}".format
        values = [getattr(record, field) for record in completed]
        spread = f" ± {shown(np.std(values, ddof=1))}" if len(values) > 1 else ""
        text.append(f"{name} {shown(np.mean(values))}{spread}")
    return ", ".join(text)


def next_training(tuned: pathlib.Path, run: str) -> None:
    """Prints how to train a config file, which in a bucket must be copied first, in the directory ``run`` beside it."""
    command = f"depthmup train --config={shlex.quote(str(tuned))}"
    if is_bucket(tuned):
        command = f"gcloud storage cp {shlex.quote(str(tuned))} . && depthmup train --config={tuned.name}"
    messages.next_step(f"{command} --workdir={shlex.quote(str(tuned.with_name(run)))}")


def derived_file(
    file: str, config: ConfigDict, summary: str, origin: str = "with hyperparameters from a small proxy"
) -> str:
    """Text of a config file that calls ``file``, as ``--config`` names it, and sets what differs in ``config``.

    The file names a shipped config, which another machine may have elsewhere, and the absolute path of a user's file.
    """
    path, *arguments = file.split(":", 1)
    original, parent = pathlib.Path(path), from_file(path, *arguments)
    parent_name = shipped_name(original) or os.fspath(original.resolve())
    imported, statements = "from depthmup_flax.config import from_file", []
    if config.model.name != parent.model.name:
        parent = parent.copy_and_resolve_references()
        set_model(parent, config.model.name)
        imported += "\nfrom depthmup_flax.config.fields import set_model"
        statements.append(f"set_model(config, {config.model.name!r})")
    known = set(field_paths(parent))
    changed = {
        path: get_field(config, path)
        for path in field_paths(config)
        if path not in known or get_field(config, path) != get_field(parent, path)
    }
    statements += ["with config.unlocked():", "    config.update_from_flattened_dict({"]
    statements += [*(f"        {path!r}: {value!r}," for path, value in changed.items()), "    })"]
    body = textwrap.indent("\n".join(statements), "    ")
    about = f"{original.stem}, {origin}.\n\n{summary}".replace("\\", "\\\\").replace('"', '\\"')
    return f'''"""{about}
"""

from ml_collections import ConfigDict

{imported}


def get_config() -> ConfigDict:
    """The configuration."""
    config = from_file({", ".join(map(repr, (parent_name, *arguments)))})
{body}
    return config
'''
