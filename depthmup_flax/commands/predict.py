"""Apply a trained network: classes of images, the continuation of a text, or outputs.

    depthmup predict RUN [IMAGE ... | INPUTS.npy] [FLAG ...]

Examples:
    depthmup predict runs/digits photographs/ --top=1 --out=classes.csv
    depthmup predict runs/gpt --prompt="ROMEO:" --tokens=200
    depthmup predict runs/mine inputs.npy --out=outputs.npy

RUN is the --workdir of a run. Images are resized and normalized as in its
evaluation. Inputs for data of your own are as your function gives them to the
network, [B, ...], in a .npy or .npz file. Exit codes: 0 success, 2 bad input.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import pathlib
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from depthmup_flax.commands.parser import Parser
from depthmup_flax.storage.files import as_path, write_atomically
from depthmup_flax.util.errors import InputError, printable

if TYPE_CHECKING:
    from depthmup_flax.trainer.runs.trained import TrainedRun

# A file, and the most probable classes with their probabilities.
Prediction = tuple[pathlib.Path, list[tuple[str, float]]]


def define(parser: Parser) -> None:
    """Adds the flags."""
    parser.define_words()
    parser.flag("--which", default="latest", help="The checkpoint: latest, best (test accuracy), or its step.")
    parser.flag("--top", type=int, default=3, help="Images: classes to show, most probable first.")
    parser.flag("--out", help="Write classes to this .csv or .json, outputs to this .npy.")
    parser.flag("--prompt", help="Text: the beginning to continue.")
    parser.flag("--tokens", type=int, default=200, help="Text: tokens to write.")
    parser.flag("--temperature", type=float, default=0.8, help="Text: below 1 favors likely tokens.")
    parser.flag("--seed", type=int, default=0, help="Text: equal seeds give equal texts.")


def main(args: argparse.Namespace) -> None:
    """Prints or writes the predictions."""
    if not args.words:
        raise InputError("no run is given: depthmup predict runs/digits image.png.")
    # Late imports: --help and a wrong flag answer at once.
    from depthmup_flax.data import TextDataset, UserDataset
    from depthmup_flax.data.image_files import image_files
    from depthmup_flax.devices.host import cache_compilations
    from depthmup_flax.trainer.runs.trained import load_run

    cache_compilations()
    run = load_run(args.words[0], int(args.which) if args.which.isdigit() else args.which)
    run.require_network()
    files, out = args.words[1:], None if args.out is None else as_path(args.out)
    if isinstance(run.data, TextDataset):
        if files or args.prompt is None:
            raise InputError(f"{run.directory} holds a language model: give it a text alone, --prompt='ROMEO:'.")
        text = run.generate(args.prompt, args.tokens, temperature=args.temperature, seed=args.seed)
        print(printable(args.prompt + text))
    elif not files or args.prompt is not None:
        reads = "inputs.npy" if isinstance(run.data, UserDataset) else "image files or directories"
        raise InputError(f"{run.directory} holds a network that reads files: name {reads}.")
    elif isinstance(run.data, UserDataset):
        print(write_outputs(run, pathlib.Path(files[0]), out))
    else:
        run.require_scores()
        _show_classes(classified(run, image_files(files), args.top), out)


def _show_classes(predictions: Iterator[Prediction], out: pathlib.Path | None) -> None:
    if out is None:
        for file, best in predictions:
            shown = "  ".join(f"{printable(name)} {probability:.1%}" for name, probability in best)
            print(f"{printable(str(file))}  {shown}", flush=True)
    elif out.suffix not in (".csv", ".json"):
        raise InputError(f"--out is {str(out)!r}: use a name that ends in .csv or .json.")
    else:
        write_atomically(out, (as_csv if out.suffix == ".csv" else as_json)(predictions))
        print(f"written: {out}")


def classified(run: TrainedRun, files: Sequence[pathlib.Path], top: int) -> Iterator[Prediction]:
    """The ``top`` most probable classes of each file, in batches of ``train.eval_batch_size``."""
    size = run.config.train.eval_batch_size
    for start in range(0, len(files), size):
        part = files[start : start + size]
        logits = run.predict(run.read_images(part))
        odds = np.exp(logits - logits.max(-1, keepdims=True))
        probabilities = odds / odds.sum(-1, keepdims=True)
        for file, row in zip(part, probabilities, strict=True):
            best = np.argsort(-row, kind="stable")[:top]
            yield file, [(run.class_names[label], float(row[label])) for label in best]


def as_csv(predictions: Iterator[Prediction]) -> str:
    """A row per file: ``file,class_1,probability_1,class_2,...``."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    rows = list(predictions)
    places = range(1, len(rows[0][1]) + 1)
    writer.writerow(["file", *(name for i in places for name in (f"class_{i}", f"probability_{i}"))])
    for file, best in rows:
        cells = (cell for name, probability in best for cell in (_cell(name), f"{probability:.6g}"))
        writer.writerow([_cell(str(file)), *cells])
    return text.getvalue()


def _cell(text: str) -> str:
    """Text of others that neither a terminal nor a spreadsheet takes for a command."""
    shown = printable(text)
    return f"'{shown}" if shown.startswith(("=", "+", "-", "@")) else shown


def as_json(predictions: Iterator[Prediction]) -> str:
    """``[{"file": ..., "classes": [{"name": ..., "probability": ...}, ...]}, ...]``, a line per file."""
    rows = [
        {"file": str(file), "classes": [{"name": name, "probability": value} for name, value in best]}
        for file, best in predictions
    ]
    return "[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n"


def write_outputs(run: TrainedRun, file: pathlib.Path, out: pathlib.Path | None) -> str:
    """Applies a network that reads data of the user's own to a .npy or .npz file of inputs.

    Writes ``out``, a .npy file, or without one describes the outputs; `InputError` for other inputs than it reads.
    """
    outputs = run.predict(read_inputs(file, run.data.inputs))  # type: ignore[union-attr]
    if not isinstance(outputs, np.ndarray):
        kind = type(outputs).__name__
        raise InputError(f"{run.config.model.name} returns {kind}: in Python, dm.load_run(RUN).predict(inputs).")
    shape = f"{outputs.dtype}{list(outputs.shape)}"
    if out is None:
        mean, std, low, high = (f"{f(outputs):.4g}" for f in (np.mean, np.std, np.min, np.max))
        return (
            f"outputs {shape}: mean {mean}, standard deviation {std}, from {low} to {high}. --out=FILE.npy writes it."
        )
    content = io.BytesIO()
    np.save(content, outputs)
    write_atomically(out, content.getvalue())
    return f"written: {out}, {shape}"


def read_inputs(file: pathlib.Path, spec: Any) -> Any:
    """The arrays of a file in the structure of ``spec``, a tree with the network's inputs as leaves."""
    import jax

    from depthmup_flax.rule.info_trees import path_name

    try:
        with file.open("rb") as opened:
            content = np.load(opened, allow_pickle=False)
            arrays = [content] if isinstance(content, np.ndarray) else dict(content)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{file} cannot be read ({error}): name a file of np.save or np.savez.") from error
    flat, structure = jax.tree_util.tree_flatten_with_path(spec)
    names = [path_name(path) for path, _ in flat]
    if isinstance(arrays, dict):
        is_listed = len(names) == 1 or all(re.fullmatch(r"arr_\d+", name) for name in arrays)  # no names were given
        arrays = list(arrays.values()) if is_listed else [arrays[name] for name in names if name in arrays]
    if len(arrays) != len(names):
        raise InputError(f"{file} does not hold the arrays that the network reads, {', '.join(names)}: use np.savez.")
    return jax.tree.unflatten(structure, arrays)
