"""Figures, tables and a page from the records of a sweep: python -m depthmup_flax.report DIR... [--out=DIR]

Several directories are the shards of one sweep. Exit code 0 on success, 2 for bad input.
"""

import pathlib

from absl import flags

from depthmup_flax import cli, console
from depthmup_flax.errors import InputError
from depthmup_flax.report import make_report
from depthmup_flax.workdir import buckets
from depthmup_flax.workdir import directory as workdirs

_OUT = flags.DEFINE_string("out", None, "Directory for report.html and the figures; default DIR/report.")


def main(argv: list[str]) -> int:
    """Prints tables, warnings and the paths of the files; returns the exit code."""
    directories = [workdirs.as_path(argument) for argument in argv[1:]]
    if not directories:
        raise InputError("no directory was given: name the one that a sweep wrote, python -m depthmup_flax.report DIR.")
    for directory in directories:  # before matplotlib is asked for
        _require_sweep(directory)
    report = make_report(directories, _OUT.value if _OUT.value else directories[0] / "report")
    print(report.text)
    print("\nwritten:")
    for path in report.paths:
        print(f"  {path}")
    console.next_step("depthmup tune --config=CONFIG.py, for a large network of yours")
    return 0


def _require_sweep(directory: pathlib.Path) -> None:
    """Raises `InputError` for a directory on a disk that is absent, or holds other work than a sweep."""
    if buckets.is_bucket(directory) or (directory / "sweep.json").exists():
        return
    remedy = "name the --workdir of a sweep"
    if not directory.is_dir():
        raise InputError(f"{str(directory)!r} {'is a file' if directory.exists() else 'does not exist'}: {remedy}.")
    kind = workdirs.kind_of(directory)
    raise InputError(f"{str(directory)!r} holds {'no sweep' if kind is None else workdirs.NAMES[kind]}: {remedy}.")


if __name__ == "__main__":
    cli.run(main)
