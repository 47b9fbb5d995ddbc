"""Tuning of a large network through its proxy: sweep, choose, write the large network's config."""

from __future__ import annotations

import logging
import os
import pathlib
import shlex
import textwrap
from collections.abc import Sequence
from typing import Any

from ml_collections import ConfigDict

from depthmup_flax.config import shipped as shipped_configs
from depthmup_flax.config.fields import field_paths, get_field, set_field, set_model
from depthmup_flax.config.files import from_file
from depthmup_flax.data import LoadOnce
from depthmup_flax.report.presets import COMPARISON
from depthmup_flax.search.sweep.grid import sweep_config
from depthmup_flax.search.sweep.runner import sweep
from depthmup_flax.search.tune.choice import describe
from depthmup_flax.search.tune.comparison import compare_presets, require_presets
from depthmup_flax.search.tune.objective import AUTO, objective_text, prepare_objective
from depthmup_flax.search.tune.rescaled_target import Rescaling, rescale_target
from depthmup_flax.search.tune.rounds import Search, without_unread
from depthmup_flax.storage import workdir as workdirs
from depthmup_flax.storage.files import as_path, is_bucket, write_atomically
from depthmup_flax.trainer.engine.from_config import build
from depthmup_flax.util import messages
from depthmup_flax.util.errors import InputError

log = logging.getLogger(__name__)


def tune(
    large: ConfigDict,
    proxy: ConfigDict,
    search: Search,
    file: str,
    workdir: str,
    lanes: int | None,
    overwrite: bool,
    rescaling: Rescaling,
    *,
    objective: str = AUTO,
    compare: Sequence[str] = (),
) -> None:
    """Searches on the proxy, or resumes the search; prints the optimum and writes ``workdir/tuned.py``.

    Args:
      large: the target, from `proxy_config`; gets the best values.
      proxy: from `proxy_config`, too.
      search: from `search_of`; hyperparameters on which the training does not depend are left out.
      file: the large network's config file with any ``:argument``, which ``tuned.py`` loads.
      workdir: directory for the sweep's records and ``tuned.py``.
      lanes, overwrite: see `depthmup_flax.search.sweep.runner.sweep`.
      rescaling: the target's batch size and steps.
      objective: see `prepare_objective`.
      compare: presets under which the target is trained with the best values, too; see `compare_presets`.

    Raises:
      InputError: every run diverged, or the optimizer cannot be rescaled.
    """
    load = LoadOnce()
    require_presets(compare, large)
    built = build(large, load=load)
    objective = prepare_objective(objective, proxy, built)
    built_proxy = build(proxy, load=load)
    search = without_unread(search, built_proxy)
    if rescaling.wanted:  # fails before anything is trained
        batch_size, examples = rescaling.batch_size or 0, len(built.dataset.train)
        if batch_size > examples:
            raise InputError(f"--target.batch_size is {batch_size}: use at most the {examples} training examples.")
        rescale_target(
            proxy, built_proxy.total_steps, large.copy_and_resolve_references(), built.total_steps, rescaling
        )
    ratio = built.cost / built_proxy.cost
    sizes = (f"{name} {proxy.model[name]} (target {large.model[name]})" for name in ("width", "depth"))
    log.info("proxy: %s", ", ".join(sizes))
    log.info("%s", objective_text(objective, len(built.dataset.train), len(built_proxy.dataset.test)))
    grid = sweep_config(
        proxy,
        {"proxy": search.grid(proxy)},
        figure=search.figure,
        title="Tuning of a proxy",
        scale="proxy",
        extend=search.extend,
        objective=objective,
    )
    options: Any = {"lanes": lanes, "load": load, "overwrite": overwrite, "kind": workdirs.TUNE}
    records = sweep(grid, workdir, **options, more=search.more)
    choice = search.choice(grid, records)
    summary = describe(choice, proxy)
    for path, value in choice.values.items():
        for config in (proxy, large):
            set_field(config, path, float(f"{value:.4g}"))
    if rescaling.wanted:
        table = rescale_target(proxy, built_proxy.total_steps, large, built.total_steps, rescaling)
        summary += f"\n\nFor the target's batch size and steps:\n{table}"
    directory = as_path(workdir)
    tuned = directory / "tuned.py"
    text = derived_file(file, large, summary)
    with workdirs.claimed(directory, workdirs.TUNE, lock=".lock-records"):  # the sweep's
        write_atomically(tuned, text)
    seconds = sum(record.wall_time_s for record in records)
    work = f"{ratio:,.0f} times the work (parameters times examples)"
    log.info(
        "%s\n\n%d runs of the proxy took %s s. The same search on the target would be %s.\nWritten to %s",
        *(summary, len(records), f"{seconds:,.0f}", work, tuned),
        extra=messages.RESULT,
    )
    if compare:
        table = compare_presets(large, compare, search.seeds, directory / COMPARISON, load)
        log.info("%s", table, extra=messages.RESULT)
    next_training(tuned, "target")


def next_training(tuned: pathlib.Path, run: str) -> None:
    """Prints how to train a config file, which in a bucket must be copied first, in the directory ``run`` beside it."""
    command = f"depthmup train --config={shlex.quote(str(tuned))}"
    if is_bucket(tuned):
        command = f"gcloud storage cp {shlex.quote(str(tuned))} . && depthmup train --config={tuned.name}"
    messages.next_step(f"{command} --workdir={shlex.quote(str(tuned.with_name(run)))}")


def derived_file(file: str, config: ConfigDict, summary: str, **options: str) -> str:
    """`tuned_file` that derives ``config`` from the file and arguments of ``--config``."""
    parent, *arguments = file.split(":", 1)
    return tuned_file(pathlib.Path(parent), arguments, config, from_file(parent, *arguments), summary, **options)


def tuned_file(
    original: pathlib.Path,
    arguments: Sequence[str],
    config: ConfigDict,
    parent: ConfigDict,
    summary: str,
    origin: str = "with hyperparameters from a small proxy",
) -> str:
    """Text of a config file that calls ``original`` with ``arguments`` and sets what differs in ``config``.

    The file names a shipped config, which another machine may have elsewhere, and the absolute path of a user's file.
    """
    parent_name = shipped_configs.name_of(original) or os.fspath(original.resolve())
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
    update = ["config.update_from_flattened_dict(", "    {"]
    update += [f"        {path!r}: {value!r}," for path, value in changed.items()] + ["    }", ")"]
    if changed.keys() - known:  # hyperparameters that the command line added
        update = ["with config.unlocked():", *(f"    {line}" for line in update)]
    body = textwrap.indent("\n".join([*statements, *update]), "    ")
    return f'''"""{original.stem}, {origin}.

{summary}
"""

from ml_collections import ConfigDict

{imported}


def get_config() -> ConfigDict:
    """The configuration."""
    config = from_file({", ".join(map(repr, (parent_name, *arguments)))})
{body}
    return config
'''
