"""What must be the same in all processes of a run: config, code, libraries, data and work directory."""

from __future__ import annotations

import hashlib
import pathlib
from typing import Any

from flax.traverse_util import flatten_dict

from depthmup_flax.data import stored_dataset
from depthmup_flax.storage.provenance import settings, versions
from depthmup_flax.trainer.engine.experiment import Experiment
from depthmup_flax.util.types import Json

# A host may have its own copy of the data.
_PER_HOST = ("data.data_dir",)


def facts(experiment: Experiment, data: Json) -> dict[str, Any]:
    """Named values that differ if the processes would not train the same network on the same ``data``.

    ``data`` is from `depthmup_flax.data.stored_dataset.to_json`.
    """
    fields = flatten_dict(experiment.config.to_dict(), sep=".")
    return {
        **{f"config.{name}": value for name, value in fields.items() if name not in _PER_HOST},
        "the hash of the code": _source_digest(),
        **{f"the version of {name}": version for name, version in versions().items()},
        **settings(),
        **{f"the {name}": value for name, value in stored_dataset.facts(data).items()},
    }


def _source_digest() -> str:
    """Of all files of the package; a commit does not show later edits, and a copy may have no commit."""
    root, digest = pathlib.Path(__file__).parents[1], hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + path.read_bytes())
    return digest.hexdigest()[:12]
