"""Write the verdict, tables, figures and page of a sweep.

    depthmup report [DIR ...] [FLAG ...]

Examples:
    depthmup report
    depthmup report runs/sweeps/digits
    depthmup report runs/part0 runs/part1 --out=runs/report
    depthmup report my_runs.csv

DIR is the --workdir of a sweep; several are the shards of one sweep. The
default is the newest sweep below ./runs. A file has a line for each run of your
own loop: width,depth,learning_rate,seed,initial_loss,loss.
Exit codes: 0 success, 2 bad input.
"""

import argparse
import pathlib
import shlex

from depthmup_flax.commands.parser import Parser
from depthmup_flax.report import make_report
from depthmup_flax.report.curves import LOSSES
from depthmup_flax.report.verdict import TOLERANCE
from depthmup_flax.storage.files import as_path
from depthmup_flax.storage.sweep_records import COMPARISON
from depthmup_flax.util import messages
from depthmup_flax.util.errors import InputError

_RUNS = pathlib.Path("runs")  # where commands write by default


def define(parser: Parser) -> None:
    """Adds the flags."""
    parser.define_words()
    parser.flag("--out", help="Directory for page and figures; default DIR/report, or DIR/report_LOSS.")
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
    if not args.words:
        print(f"the newest sweep: {directories[0]}", flush=True)
    place = directories[0].with_suffix("")
    out = args.out or place / (f"report_{args.loss}" if args.loss else "report")
    report = make_report(directories, out, tolerance=args.tolerance, loss=args.loss)
    print(report.text)
    print("\nwritten:", *report.paths, sep="\n  ")
    tuned = directories[0] / "tuned.py"
    tune = "depthmup tune --config=CONFIG.py, for a large network of yours"
    messages.next_step(f"depthmup train --config={shlex.quote(str(tuned))}" if tuned.exists() else tune)
    return 0


def newest_sweep(runs: pathlib.Path) -> pathlib.Path:
    """The sweep or search in or below ``runs`` that was written to last; `InputError` if there is none."""
    records = [path for path in runs.rglob("records*.jsonl") if path.parent.name != COMPARISON]
    if not records:
        raise InputError(
            f"there is no sweep below ./{runs}: name the --workdir of a sweep, depthmup report DIR, or run one: "
            "depthmup sweep --config=sweeps/digits."
        )
    return max(records, key=lambda path: path.stat().st_mtime_ns).parent
