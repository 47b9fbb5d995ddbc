"""Apply a trained network: classes of image files, or the continuation of a text.

    depthmup predict RUN [IMAGE ...] [FLAG ...]

Examples:
    depthmup predict runs/digits image.png
    depthmup predict runs/digits photographs/ --top=1 --out=classes.csv
    depthmup predict runs/gpt --prompt="ROMEO:" --tokens=200

RUN is the --workdir of a run. Images are resized and normalized as in its
evaluation. Exit codes: 0 success, 2 bad input.
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
from depthmup_flax.util.errors import InputError, printable
from depthmup_flax.workdir.directory import as_path
from depthmup_flax.workdir.files import write_atomically

if TYPE_CHECKING:
    from depthmup_flax.runs.trained import TrainedRun


_USAGE = "depthmup predict runs/digits image.png, or depthmup predict runs/gpt --prompt='ROMEO:'"
# A file, and the most probable classes with their probabilities.
Prediction = tuple[pathlib.Path, list[tuple[str, float]]]


def define(parser: Parser) -> None:
    """Adds the flags."""
    parser.define_words()
    parser.flag("--which", default="latest", help="The checkpoint: latest, best (test accuracy), or its step.")
    parser.flag("--top", type=int, default=3, help="Images: classes to show, most probable first.")
    parser.flag("--out", help="Images: write the classes to this .csv or .json.")
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
    from depthmup_flax.process.compilation_cache import cache_compilations
    from depthmup_flax.runs.trained import load_run

    cache_compilations()
    run = load_run(args.words[0], int(args.which) if args.which.isdigit() else args.which)
    if run.data.input_kind == "tokens":
        _write_text(run, args)
    else:
        _classify(run, args, out)
    return 0


def _write_text(run: TrainedRun, args: argparse.Namespace) -> None:
    arguments = args.words[1:]
    if arguments or args.prompt is None:
        given = f"unexpected argument {arguments[0]!r}" if arguments else "--prompt is not set"
        raise InputError(f"{given}: {run.directory} holds a language model; give a text, --prompt='ROMEO:'.")
    text = run.generate(args.prompt, args.tokens, temperature=args.temperature, seed=args.seed)
    print(printable(args.prompt + text))


def _classify(run: TrainedRun, args: argparse.Namespace, out: pathlib.Path | None) -> None:
    from depthmup_flax.data.given_images import image_files

    arguments = args.words[1:]
    if args.prompt is not None or not arguments:
        given = "--prompt is set" if arguments or args.prompt is not None else "no image was given"
        raise InputError(f"{given}: {run.directory} holds a model of images; name image files or directories.")
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
        writer.writerow([file, *(cell for name, probability in best for cell in (name, f"{probability:.6g}"))])
    return text.getvalue()


def as_json(predictions: Iterator[Prediction]) -> str:
    """``[{"file": ..., "classes": [{"name": ..., "probability": ...}, ...]}, ...]``, a line per file."""
    rows = [
        {"file": str(file), "classes": [{"name": name, "probability": value} for name, value in best]}
        for file, best in predictions
    ]
    return "[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n"


def _output_path(text: str) -> pathlib.Path:
    path = as_path(text)
    if path.suffix not in (".csv", ".json"):
        raise InputError(f"--out is {text!r}: use a name that ends in .csv or .json.")
    if not path.parent.is_dir():
        raise InputError(f"--out is {text!r}: there is no directory {str(path.parent)!r}. Create it.")
    return path
