"""`depthmup predict` for data of the user's own: arrays in, arrays out."""

from __future__ import annotations

import io
import pathlib
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from depthmup_flax.storage.files import write_atomically
from depthmup_flax.util.errors import InputError

if TYPE_CHECKING:
    from depthmup_flax.trainer.runs.trained import TrainedRun

_SUFFIXES = (".npy", ".npz")


def write_outputs(run: TrainedRun, file: pathlib.Path, out: pathlib.Path | None) -> str:
    """Applies the network to a file of inputs; writes ``out`` or, without one, describes the outputs.

    Args:
      run: of a network that reads data of the user's own.
      file: .npy, or .npz with an array for each part of the inputs.
      out: .npy.

    Raises:
      InputError: the file cannot be read, or holds other inputs than the network reads.
    """
    outputs = run.predict(read_inputs(file, run.data.inputs))  # type: ignore[union-attr]
    if not isinstance(outputs, np.ndarray):
        raise InputError(
            f"{run.directory} holds {run.config.model.name}, which returns {type(outputs).__name__}: only one array is "
            "written. In Python: dm.load_run(directory).predict(inputs)."
        )
    if out is None:
        return f"outputs {_described(outputs)}. --out=outputs.npy writes them."
    content = io.BytesIO()
    np.save(content, outputs)
    write_atomically(out, content.getvalue())
    return f"written: {out}, {outputs.dtype}{list(outputs.shape)}"


def _described(outputs: np.ndarray) -> str:
    shape = f"{outputs.dtype}{list(outputs.shape)}"
    if not outputs.size:
        return shape
    mean, std, low, high = (f"{f(outputs):.4g}" for f in (np.mean, np.std, np.min, np.max))
    return f"{shape}: mean {mean}, standard deviation {std}, from {low} to {high}"


def read_inputs(file: pathlib.Path, spec: Any) -> Any:
    """The arrays of a file in the structure of ``spec``, a tree with the network's inputs as leaves."""
    import jax

    from depthmup_flax.rule.info_trees import path_name

    if file.suffix not in _SUFFIXES:
        raise InputError(f"the inputs are {str(file)!r}: name a file that ends in .npy or .npz.")
    try:
        with file.open("rb") as opened:
            content = np.load(opened, allow_pickle=False)
            arrays = [content] if isinstance(content, np.ndarray) else dict(content)
    except FileNotFoundError as error:
        raise InputError(f"there is no file {str(file)!r}: name a .npy or .npz file of inputs.") from error
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{file} cannot be read ({error}): write it with np.save or np.savez.") from error
    flat, structure = jax.tree_util.tree_flatten_with_path(spec)
    names = [path_name(path) for path, _ in flat]
    if isinstance(arrays, dict):
        is_listed = len(names) == 1 or all(re.fullmatch(r"arr_\d+", name) for name in arrays)  # no names were given
        arrays = list(arrays.values()) if is_listed else [arrays[name] for name in names if name in arrays]
    if len(arrays) != len(names):
        wanted = f"the arrays {', '.join(names)}" if len(names) > 1 else "one array"
        raise InputError(f"{file} does not hold {wanted}, which the network reads: write it with np.savez.")
    return jax.tree.unflatten(structure, arrays)
