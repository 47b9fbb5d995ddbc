"""What must be the same in all processes of a run: config, code, libraries and data."""

from __future__ import annotations

import hashlib
import pathlib
from typing import Any

import jax
import numpy as np
from flax.traverse_util import flatten_dict

import depthmup_flax
from depthmup_flax.data import Dataset
from depthmup_flax.provenance import commit, versions
from depthmup_flax.training.experiment import Experiment

# A host may have its own copy of the data, and its own number of cores.
_PER_HOST = ("data.data_dir", "data.read_threads")
_EXAMPLES = 4  # of each split, which are hashed


def facts(experiment: Experiment) -> dict[str, Any]:
    """Named values that differ if the processes would not train the same network on the same data.

    Reads a few examples; numbers of other examples are not compared.
    """
    fields = flatten_dict(experiment.config.to_dict(), sep=".")
    return {
        **{f"config.{name}": value for name, value in fields.items() if name not in _PER_HOST},
        "the commit": commit(),
        "the code": _source_digest(),
        **{f"the version of {name}": version for name, version in versions().items()},
        "jax_enable_x64": jax.config.jax_enable_x64,  # type: ignore[attr-defined]
        "jax_default_matmul_precision": jax.config.jax_default_matmul_precision,  # type: ignore[attr-defined]
        **_facts_of_data(experiment.dataset),
    }


def _source_digest() -> str:
    """Of all files of the package: a commit does not tell what was edited since."""
    root, digest = pathlib.Path(depthmup_flax.__file__).parent, hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def _facts_of_data(dataset: Dataset) -> dict[str, Any]:
    found: dict[str, Any] = {"the number of classes": dataset.num_classes}
    for name, split in (("training", dataset.train), ("test", dataset.test)):
        digest = hashlib.sha256()
        for field, values in sorted(split.read(np.linspace(0, len(split) - 1, _EXAMPLES).astype(int)).items()):
            digest.update(f"{field} {values.dtype} {values.shape} ".encode() + np.ascontiguousarray(values).tobytes())
        found[f"the number of {name} examples"] = len(split)
        found[f"the hash of {name} examples"] = digest.hexdigest()[:12]
    return found
