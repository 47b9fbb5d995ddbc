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

from depthmup_flax.commands.parser import Parser
from depthmup_flax.report import make_report
from depthmup_flax.report.loss_surfaces import LOSSES
from depthmup_flax.report.presets import COMPARISON
from depthmup_flax.report.yardstick import TOLERANCE
from depthmup_flax.storage import workdir as workdirs
from depthmup_flax.storage.files import as_path, is_bucket, reachable
from depthmup_flax.util import messages
from depthmup_flax.util.errors import InputError

_RUNS = pathlib.Path("runs")  # where commands write by default
_OF_SWEEP, _OF_RUN = {"sweep.json"}, {workdirs.MARK, "metrics.jsonl"}  # files of what a report can be of
_KINDS = (workdirs.SWEEP, workdirs.TUNE, workdirs.RUN)
_OF_SWEEPS = {"tolerance": TOLERANCE, "loss": None}  # flags and their defaults


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
    directories = [as_path(argument) for argument in args.words] or [newest_work(_RUNS)]
    kinds = [_kind(directory) for directory in directories]
    if not args.words:
        print(f"the newest {'training run' if kinds == [workdirs.RUN] else 'sweep'}: {directories[0]}", flush=True)
    if set(kinds) <= {workdirs.FORECAST, workdirs.RUN}:
        for name, default in _OF_SWEEPS.items():
            if getattr(args, name) != default:
                raise InputError(f"--{name} is for sweeps, and {str(directories[0])!r} holds none: leave it out.")
    if kinds == [workdirs.FORECAST]:
        from depthmup_flax.search.forecast.forecasting import read  # imports JAX

        print(read(directories[0]))
        return 0
    out = args.out or directories[0] / (f"report_{args.loss}" if args.loss else "report")
    if set(kinds) == {workdirs.RUN}:
        from depthmup_flax.report.run_report import report_runs  # imports JAX

        report = report_runs(directories, out)
    else:
        for directory, kind in zip(directories, kinds, strict=True):
            if kind == workdirs.RUN or not (is_bucket(directory) or (directory / "sweep.json").exists()):
                workdirs.require_kind(directory, workdirs.SWEEP, "name the --workdir of a sweep or of training runs")
        report = make_report(directories, out, tolerance=args.tolerance, loss=args.loss)
    if args.open and report.html:
        _open(report.paths[0])
    print(report.text)
    print("\nwritten:", *report.paths, sep="\n  ")
    if set(kinds) != {workdirs.RUN}:
        tuned = directories[0] / "tuned.py"
        tune = "depthmup tune --config=CONFIG.py, for a large network of yours"
        messages.next_step(f"depthmup train --config={shlex.quote(str(tuned))}" if tuned.exists() else tune)
    return 0


def _kind(directory: pathlib.Path) -> str | None:
    """The kind of work that a directory says it holds."""
    with reachable([directory]):
        return workdirs.kind_of(directory) if (directory / workdirs.MARK).exists() else None


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
    if is_bucket(page) or not display or not webbrowser.open(page.resolve().as_uri()):
        print(f"cannot open a browser: open {page} yourself", flush=True)
