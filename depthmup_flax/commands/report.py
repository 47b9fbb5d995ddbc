"""Write the verdict, tables, figures and page of a sweep, or compare two runs.

    depthmup report [DIR ...] [FLAG ...]

Examples:
    depthmup report
    depthmup report runs/sweeps/digits
    depthmup report runs/part0 runs/part1 --out=runs/report
    depthmup report my_runs.csv
    depthmup report runs/proxy runs/large

DIR is the --workdir of a sweep; several are the shards of one sweep. The
default is the newest sweep below ./runs. A file has a line for each run of your own
loop, with width, depth, learning rate, loss and the loss before learning. Two directories, of a
proxy's run or search and of a larger run, are compared by what the rule keeps equal.
Exit codes: 0 success, 2 bad input.
"""

import argparse
import importlib.util
import pathlib
import shlex
from collections.abc import Sequence

from depthmup_flax.commands.parser import Parser, columns
from depthmup_flax.report import make_report
from depthmup_flax.report.curves import LOSSES
from depthmup_flax.report.verdict import TOLERANCE, TRANSFERS
from depthmup_flax.storage import workdir as workdirs
from depthmup_flax.storage.files import as_path, write_atomically
from depthmup_flax.storage.run_tables import is_table
from depthmup_flax.storage.sweep_records import COMPARISON, LEARNING_RATE
from depthmup_flax.util import messages
from depthmup_flax.util.errors import InputError
from depthmup_flax.util.types import Json

_RUNS = pathlib.Path("runs")  # where commands write by default


def define(parser: Parser) -> None:
    """Adds the flags."""
    parser.define_words()
    parser.flag("--out", help="Directory for page and figures; default DIR/report, or DIR/report_LOSS.")
    small = "Regret that counts as small, as a share of what the base learned; 0 to 1."
    parser.flag("--tolerance", type=float, default=TOLERANCE, help=small)
    which = "Which loss: of the end of training, or after it; default: the sweep's objective."
    parser.flag("--loss", choices=list(LOSSES), help=which)
    parser.define_columns()


def main(args: argparse.Namespace) -> int:
    """Prints tables, warnings and the paths of the files; returns the exit code."""
    directories = [as_path(argument) for argument in args.words] or [newest_sweep(_RUNS)]
    if not args.words:
        print(f"the newest sweep: {directories[0]}", flush=True)
    if len(directories) == 2 and workdirs.kind_of(directories[1]) == workdirs.RUN:
        print_comparison(directories, args.out)
        return 0
    report = make_report(directories, args.out, tolerance=args.tolerance, loss=args.loss, **columns(args))
    print(report.text)
    print("\nwritten:", *report.paths, sep="\n  ")
    messages.next_step(next_command(directories[0], report.data))
    return 0


def next_command(place: pathlib.Path, data: Json) -> str:
    """What follows the report of a search, a table or another sweep, whose content ``data`` is."""
    tuned = place / "tuned.py"
    if tuned.exists():
        return f"depthmup train --config={shlex.quote(str(tuned))}"
    if is_table(place):
        return (
            f"depthmup ladder {shlex.quote(str(place))} --target.width=N --target.depth=N, and the flags of its columns"
        )
    if (rate := transferred_rate(data)) is not None:
        fields = f"--config.{LEARNING_RATE}={rate:g}"
        return f"depthmup train --config=LARGE.py {fields}, with the base sizes and other settings of this sweep"
    return "depthmup tune --config=CONFIG.py, for a large network of yours"


def transferred_rate(data: Json) -> float | None:
    """The base's best learning rate in the one variant of a report in which it transfers; ``None`` if not one does."""
    failing = {one["variant"] for one in data["verdicts"] if one["verdict"] != TRANSFERS}
    passing = {one["variant"] for one in data["verdicts"]} - failing
    rates = [one["transferred"] for one in data["variants"] if one["name"] in passing]
    return rates[0] if data["x"] == LEARNING_RATE and len(rates) == 1 else None


def print_comparison(directories: Sequence[pathlib.Path], out: str | None) -> None:
    """Prints the comparison of two runs, and draws it."""
    from depthmup_flax.trainer.course import compare_runs  # a late import: it is slow

    comparison = compare_runs(*directories)
    print(comparison)
    if importlib.util.find_spec("matplotlib"):
        from depthmup_flax.report import figures

        files = figures.of_course(comparison.reference, comparison.run)
        with workdirs.claimed(out or directories[1] / "report", workdirs.REPORT, flag="--out") as claim:
            for name, content in files.items():
                write_atomically(claim.workdir / name, content)
        print("\nwritten:", *(claim.workdir / name for name in files), sep="\n  ")


def newest_sweep(runs: pathlib.Path) -> pathlib.Path:
    """The sweep or search in or below ``runs`` that was written to last; `InputError` if there is none."""
    records = [path for path in runs.rglob("records*.jsonl") if path.parent.name != COMPARISON]
    if not records:
        raise InputError(f"there is no sweep below ./{runs}: name one, depthmup report DIR, or run depthmup sweep.")
    return max(records, key=lambda path: path.stat().st_mtime_ns).parent
