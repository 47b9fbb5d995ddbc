"""Draw a theory figure: infinite networks against trained ones.

    python -m reproduction.limits --config=FILE [--config.FIELD=VALUE ...] [FLAG ...]

Examples:
    python -m reproduction.limits --config=reproduction/configs/limits/ntk.py --config.scale=smoke
    python -m reproduction.limits --config=reproduction/configs/limits/ntk.py --config.widths="(64, 128)"

--config.scale is smoke, cpu, gpu or paper; comments of the file explain its fields. Measures the cases that
records.jsonl lacks, then writes the figure and report.txt: fitted and expected powers. Rerunning resumes.
"""

from __future__ import annotations

import argparse
import sys

from depthmup_flax.commands import console
from depthmup_flax.config import flags
from depthmup_flax.config.files import run_name
from depthmup_flax.util.errors import BAD_INPUT, InputError


def main(words: list[str]) -> int:
    """Measures, writes and prints the report; returns the exit code."""
    parser = argparse.ArgumentParser(
        "python -m reproduction.limits", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workdir", help="Directory; default runs/limits/ and the config's name.")
    parser.add_argument("--overwrite", action="store_true", help="Delete the records in --workdir and start again.")
    console.show()
    try:
        given, others = flags.split(words, None)
        args = parser.parse_args(others)
        from reproduction.limits.pipeline import run  # late: imports JAX

        workdir = args.workdir or f"runs/limits/{run_name(given.path())}"
        text, paths = run(given.resolved(), workdir, overwrite=args.overwrite)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
    print(text)
    print("written: " + ", ".join(map(str, paths)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
