"""Draw a theory figure: infinite networks against trained ones.

    depthmup limits --config=NAME [--config.FIELD=VALUE ...] [FLAG ...]

Examples:
    depthmup limits --config=limits/ntk --config.scale=smoke
    depthmup limits --config=limits/ntk --config.widths="(64, 128)"
    depthmup limits --config=limits/phase_diagram --workdir=runs/phases

--config.scale is smoke, cpu, gpu or paper. Measures the cases that records.jsonl
lacks, then writes the figure and report.txt: fitted and expected powers.
Rerunning the command resumes. depthmup config limits/ntk explains the fields.
"""

import argparse

from depthmup_flax.commands import start
from depthmup_flax.commands.parser import Parser


def define(parser: Parser) -> None:
    """Adds the flags."""
    parser.define_config("A shipped config, such as limits/ntk, or a Python file.")
    parser.flag("--workdir", help="Directory; default runs/limits/ and the config's name.")
    parser.flag("--overwrite", action="store_true", help="Delete the records in --workdir and start again.")


def main(args: argparse.Namespace) -> None:
    """Measures, writes and prints the report."""
    from reproduction.limits.pipeline import run

    config = args.config.resolved()
    workdir = start.workdir(args, "runs/limits")
    text, paths = run(config, workdir, overwrite=args.overwrite)
    print(text)
    print("written: " + ", ".join(str(path) for path in paths))
