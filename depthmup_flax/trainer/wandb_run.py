"""Metrics of a run on Weights & Biases."""

from __future__ import annotations

import importlib
import logging
import os
import pathlib
import secrets
from collections.abc import Mapping

from depthmup_flax.storage.workdir import buckets
from depthmup_flax.storage.workdir.files import read_json, write_atomically
from depthmup_flax.util.types import Json

log = logging.getLogger(__name__)


class WandbRun:
    """A run of wandb, which a resumed run continues. For a run in a bucket, wandb's own files are in ``./wandb``.

    The environment sets the project (``WANDB_PROJECT``, default ``depthmup-flax``), the directory (``WANDB_DIR``) and
    whether wandb uploads (not with ``WANDB_MODE=offline``).

    Args:
      directory: of the run; ``wandb.json`` in it holds the name by which wandb knows the run.
      config: of the run.
    """

    def __init__(self, directory: pathlib.Path, config: Json) -> None:
        wandb = importlib.import_module("wandb")
        # It must not ask for a key, as nobody may answer, or print lines.
        wandb.setup(settings=wandb.Settings(silent=True))
        local = None if buckets.is_bucket(directory) or "WANDB_DIR" in os.environ else str(directory)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "depthmup-flax"),
            id=_name(directory / "wandb.json"),
            name=directory.name,
            dir=local,
            config=config,
            resume="allow",
            settings=wandb.Settings(silent=True, console="off"),
        )
        offline = f"offline; to upload the run: wandb sync {self._run.dir.removesuffix('/files')}"
        log.info("wandb: %s", self._run.url or offline)

    def write_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
        """Logs the values. wandb drops those of a step that it already has."""
        self._run.log(dict(scalars), step=step)

    def close(self) -> None:
        """Uploads the last rows and ends the run."""
        self._run.finish()


def _name(path: pathlib.Path) -> str:
    if not path.exists():
        write_atomically(path, f'{{"id": "{secrets.token_hex(4)}"}}\n')
    return str(read_json(path, "delete it")["id"])
