"""Write the verdict, tables, figures and page of a sweep, or the curves of training runs.

    depthmup report [DIR ...] [FLAG ...]

Examples:
    depthmup report
    depthmup report runs/sweeps/digits --open
    depthmup report runs/part0 runs/part1 --out=runs/report
    depthmup report runs/small runs/large --open

DIR is the --workdir of a sweep, or of a forecast; several are the shards of one
sweep. Or each DIR is that of a training run, finished or not. The default is the
newest sweep or run below ./runs.
Exit codes: 0 success, 2 bad input.
"""

import argparse
import os
import pathlib
import shlex
import sys
import webbrowser
from collections.abc import Mapping
from typing import Any

from depthmup_flax.commands.parser import Parser
from depthmup_flax.report import Report, make_report
from depthmup_flax.report.loss_surfaces import LOSSES
from depthmup_flax.report.presets import COMPARISON
from depthmup_flax.report.run_curves import report_runs
from depthmup_flax.report.yardstick import TOLERANCE
from depthmup_flax.storage.workdir import buckets
from depthmup_flax.storage.workdir import directory as workdirs
from depthmup_flax.util import messages
from depthmup_flax.util.errors import InputError

_RUNS = pathlib.Path("runs")  # where commands write by default
_OF_SWEEP, _OF_RUN = {"sweep.json"}, {workdirs.MARK, "metrics.jsonl"}  # files of what a report can be of
_KINDS = (workdirs.SWEEP, workdirs.TUNE, workdirs.RUN)
_OF_SWEEPS = {"tolerance": TOLERANCE, "loss": None}  # flags and their defaults
_NAMED = 5  # directories in a sentence


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
    directories = [workdirs.as_path(argument) for argument in args.words]
    if not directories:
        directories = [newest_work(_RUNS)]
        kind = "training run" if _is_run(directories[0]) else "sweep"
        print(f"the newest {kind}: {directories[0]}", flush=True)
    if len(directories) == 1 and _kind(directories[0]) == workdirs.FORECAST:
        from depthmup_flax.search.forecast.target_loss import read  # imports JAX

        _require_unset(args, {"out": None, "open": False, **_OF_SWEEPS}, f"{str(directories[0])!r} holds a forecast")
        print(read(directories[0]))
        return 0
    runs = [directory for directory in directories if _is_run(directory)]
    if len(runs) == len(directories):
        return _show(report_runs(directories, _for_runs(args, directories[0])), args)
    for directory in directories:
        if directory not in runs:
            _require_sweep(directory)
    if runs:
        kinds = f"{str(runs[0])!r} holds a training run, and others hold a sweep"
        raise InputError(f"{kinds}: a report is of one sweep, or of training runs. Report each by itself.")
    out = (
        workdirs.as_path(args.out) if args.out else directories[0] / (f"report_{args.loss}" if args.loss else "report")
    )
    report = make_report(directories, out, tolerance=args.tolerance, loss=args.loss)
    _show(report, args)
    tuned = directories[0] / "tuned.py"
    tune = "depthmup tune --config=CONFIG.py, for a large network of yours"
    messages.next_step(f"depthmup train --config={shlex.quote(str(tuned))}" if tuned.exists() else tune)
    return 0


def _show(report: Report, args: argparse.Namespace) -> int:
    """Prints a report's text and files, and opens its page if asked to; returns the exit code."""
    if args.open and report.html:
        _open(report.paths[0])
    print(report.text)
    if report.paths:
        print("\nwritten:")
    for path in report.paths:
        print(f"  {path}")
    return 0


def _is_run(directory: pathlib.Path) -> bool:
    return _kind(directory) == workdirs.RUN


def _kind(directory: pathlib.Path) -> str | None:
    """The kind of work that a directory says it holds."""
    with buckets.reachable([directory]):
        return workdirs.kind_of(directory, wait=False) if (directory / workdirs.MARK).exists() else None


def _for_runs(args: argparse.Namespace, first: pathlib.Path) -> pathlib.Path:
    """Where the report of runs goes; `InputError` if a flag for sweeps is given."""
    _require_unset(args, _OF_SWEEPS, f"{str(first)!r} holds a training run")
    return workdirs.as_path(args.out) if args.out else first / "report"


def _require_unset(args: argparse.Namespace, defaults: Mapping[str, Any], why: str) -> None:
    """`InputError` if one of these flags is given."""
    for name, default in defaults.items():
        if getattr(args, name) != default:
            raise InputError(f"--{name} is for sweeps, and {why}: leave it out.")


def _require_sweep(directory: pathlib.Path) -> None:
    """`InputError` if a directory on a disk is absent or does not hold a sweep; it names the work below."""
    if buckets.is_bucket(directory) or (directory / "sweep.json").exists():
        return
    if below := work_below(directory):
        more = f" and {len(below) - _NAMED} more" if len(below) > _NAMED else ""
        raise InputError(
            f"{str(directory)!r} holds no sweep and no training run itself: name one of those below it, "
            f"{', '.join(map(str, below[:_NAMED]))}{more}."
        )
    workdirs.require_kind(directory, workdirs.SWEEP, "name the --workdir of a sweep or of training runs")


def newest_work(runs: pathlib.Path) -> pathlib.Path:
    """The first of `work_below`; `InputError` if there is none."""
    if found := work_below(runs):
        return found[0]
    raise InputError(
        f"there is no sweep and no run below ./{runs}: name the --workdir of a sweep, depthmup report DIR, or run "
        "one: depthmup sweep --config=sweeps/digits."
    )


def work_below(runs: pathlib.Path) -> list[pathlib.Path]:
    """The directories of sweeps, searches and training runs in and below ``runs``, the last written first."""
    found = []
    for path, folders, files in os.walk(runs):
        if _OF_SWEEP.issubset(files) or _OF_RUN.issubset(files):
            directory = pathlib.Path(path)
            kind = workdirs.kind_of(directory)
            # Below a search lies what it wrote: the target's run, and a comparison, which the search's report has.
            folders[:] = [name for name in folders if kind == workdirs.TUNE and name != COMPARISON]
            if kind in _KINDS:
                written = [directory / name for name in files if name.startswith(("sweep.json", "metrics", "records"))]
                found.append((max(file.stat().st_mtime_ns for file in written), directory))
    return [directory for _, directory in sorted(found, reverse=True)]


def _open(page: pathlib.Path) -> None:
    """Opens the page in a browser; prints its path if that fails."""
    display = sys.platform in ("darwin", "win32") or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    )
    if buckets.is_bucket(page) or not display or not webbrowser.open(page.resolve().as_uri()):
        print(f"cannot open a browser: open {page} yourself", flush=True)
