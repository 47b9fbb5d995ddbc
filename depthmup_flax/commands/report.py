"""Write the verdict, tables, figures and page of a sweep.

    depthmup report [DIR ...] [FLAG ...]

Examples:
    depthmup report
    depthmup report runs/sweeps/digits --open
    depthmup report runs/part0 runs/part1 --out=runs/report

DIR is the --workdir of a sweep, or of a forecast; several are the shards of one
sweep. The default is the newest sweep below ./runs.
Exit codes: 0 success, 2 bad input.
"""

import argparse
import os
import pathlib
import shlex
import sys
import webbrowser

from depthmup_flax.commands.parser import Parser
from depthmup_flax.report import make_report
from depthmup_flax.report.loss_surfaces import LOSSES
from depthmup_flax.report.preset_comparison import COMPARISON
from depthmup_flax.report.verdict import TOLERANCE
from depthmup_flax.storage import workdir as workdirs
from depthmup_flax.storage.files import as_path, is_bucket, reachable
from depthmup_flax.util import messages
from depthmup_flax.util.errors import InputError

_RUNS = pathlib.Path("runs")  # where commands write by default


def define(parser: Parser) -> None:
    """Adds the flags."""
    parser.define_words()
    parser.flag("--out", help="Directory for page and figures; default DIR/report, or DIR/report_LOSS.")
    parser.flag("--open", action="store_true", help="Open the page in a browser.")
    parser.flag(
        "--tolerance",
        type=float,
        default=TOLERANCE,
        help="Regret that counts as small, as a share of what the base learned; 0 to 1.",
    )
    parser.flag(
        "--loss",
        choices=list(LOSSES),
        help="Which loss: of the end of training, or after it; default: the sweep's objective.",
    )


def main(args: argparse.Namespace) -> int:
    """Prints tables, warnings and the paths of the files; returns the exit code."""
    directories = [as_path(argument) for argument in args.words] or [newest_sweep(_RUNS)]
    kinds = [_kind(directory) for directory in directories]
    if not args.words:
        print(f"the newest sweep: {directories[0]}", flush=True)
    if kinds == [workdirs.FORECAST]:
        from depthmup_flax.search.forecast.forecasting import read  # imports JAX

        print(read(directories[0]))
        return 0
    for directory, kind in zip(directories, kinds, strict=True):
        if kind == workdirs.RUN or not (is_bucket(directory) or (directory / "sweep.json").exists()):
            workdirs.require_kind(
                directory, workdirs.SWEEP, "name that of a sweep; TensorBoard draws the curves of runs"
            )
    out = args.out or directories[0] / (f"report_{args.loss}" if args.loss else "report")
    report = make_report(directories, out, tolerance=args.tolerance, loss=args.loss)
    if args.open and report.html:
        _open(report.paths[0])
    print(report.text)
    print("\nwritten:", *report.paths, sep="\n  ")
    tuned = directories[0] / "tuned.py"
    tune = "depthmup tune --config=CONFIG.py, for a large network of yours"
    messages.next_step(f"depthmup train --config={shlex.quote(str(tuned))}" if tuned.exists() else tune)
    return 0


def _kind(directory: pathlib.Path) -> str | None:
    """The kind of work that a directory says it holds."""
    with reachable([directory]):
        return workdirs.kind_of(directory) if (directory / workdirs.MARK).exists() else None


def newest_sweep(runs: pathlib.Path) -> pathlib.Path:
    """The sweep or search in or below ``runs`` that was written to last; `InputError` if there is none."""
    found = [
        (max(file.stat().st_mtime_ns for file in (path, *path.parent.glob("records*"))), path.parent)
        for path in runs.rglob("sweep.json")
        if path.parent.name != COMPARISON
    ]
    if not found:
        raise InputError(
            f"there is no sweep below ./{runs}: name the --workdir of a sweep, depthmup report DIR, or run one: "
            "depthmup sweep --config=sweeps/digits."
        )
    return max(found)[1]


def _open(page: pathlib.Path) -> None:
    """Opens the page in a browser; prints its path if that fails."""
    display = sys.platform in ("darwin", "win32") or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    )
    if is_bucket(page) or not display or not webbrowser.open(page.resolve().as_uri()):
        print(f"cannot open a browser: open {page} yourself", flush=True)
