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
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from depthmup_flax.commands.parser import Parser
from depthmup_flax.commands.predicted_arrays import write_outputs
from depthmup_flax.storage.files import as_path, write_atomically
from depthmup_flax.util.errors import InputError, printable

if TYPE_CHECKING:
    from depthmup_flax.trainer.runs.trained import TrainedRun


_USAGE = "depthmup predict runs/digits image.png, or depthmup predict runs/gpt --prompt='ROMEO:'"
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


def main(args: argparse.Namespace) -> int:
    """Prints or writes the predictions; returns the exit code."""
    if not args.words:
        raise InputError(f"no run was given: {_USAGE}.")
    out = None if args.out is None else _output_path(args.out)
    # Late imports: --help and a wrong flag answer at once.
    from depthmup_flax.data import TextDataset, UserDataset
    from depthmup_flax.devices.host import cache_compilations
    from depthmup_flax.trainer.runs.trained import load_run

    cache_compilations()
    run = load_run(args.words[0], int(args.which) if args.which.isdigit() else args.which)
    run.require_network()
    if isinstance(run.data, UserDataset):
        _apply(run, args, out)
    elif isinstance(run.data, TextDataset):
        _write_text(run, args)
    else:
        _classify(run, args, out)
    return 0


def _apply(run: TrainedRun, args: argparse.Namespace, out: pathlib.Path | None) -> None:
    arguments = args.words[1:]
    if args.prompt is not None or len(arguments) != 1:
        given = "--prompt is set" if args.prompt is not None else f"{len(arguments)} files of inputs are given"
        raise InputError(f"{given}: {run.directory} holds a model of your data; name one file, inputs.npy.")
    _require_suffix(out, ".npy")
    print(write_outputs(run, pathlib.Path(arguments[0]), out))


def _write_text(run: TrainedRun, args: argparse.Namespace) -> None:
    arguments = args.words[1:]
    if arguments or args.prompt is None:
        given = f"unexpected argument {arguments[0]!r}" if arguments else "--prompt is not set"
        raise InputError(f"{given}: {run.directory} holds a language model; give a text, --prompt='ROMEO:'.")
    text = run.generate(args.prompt, args.tokens, temperature=args.temperature, seed=args.seed)
    print(printable(args.prompt + text))


def _classify(run: TrainedRun, args: argparse.Namespace, out: pathlib.Path | None) -> None:
    from depthmup_flax.data.image_files import image_files

    arguments = args.words[1:]
    if args.prompt is not None or not arguments:
        given = "--prompt is set" if arguments or args.prompt is not None else "no image was given"
        raise InputError(f"{given}: {run.directory} holds a model of images; name image files or directories.")
    _require_suffix(out, ".csv", ".json")
    run.require_scores()
    classes = len(run.class_names)
    if not 1 <= args.top <= classes:
        raise InputError(f"--top is {args.top}: use 1 to {classes}, the number of classes.")
    files = image_files(arguments)
    predictions = classified(run, files, args.top)
    if out is None:
        widest = max(len(printable(str(file))) for file in files)
        for file, best in predictions:
            shown = "  ".join(f"{printable(name)} {probability:.1%}" for name, probability in best)
            print(f"{printable(str(file)):{widest}}  {shown}", flush=True)
    else:
        write_atomically(out, (as_csv if out.suffix == ".csv" else as_json)(predictions))
        print(f"written: {out}, {len(files)} {'image' if len(files) == 1 else 'images'}")


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


def _output_path(text: str) -> pathlib.Path:
    path = as_path(text)
    _require_suffix(path, ".csv", ".json", ".npy")
    if not path.parent.is_dir():
        raise InputError(f"--out is {text!r}: there is no directory {str(path.parent)!r}. Create it.")
    return path


def _require_suffix(out: pathlib.Path | None, *suffixes: str) -> None:
    if out is not None and out.suffix not in suffixes:
        raise InputError(f"--out is {str(out)!r}: use a name that ends in {' or '.join(suffixes)}.")
