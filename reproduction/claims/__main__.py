"""Write a report of a sweep with the papers' claims and figures: python -m reproduction.claims DIR [DIR ...]

The directories are the shards of one sweep; the report goes to DIR/report.
"""

import pathlib
import sys

from depthmup_flax.report import make_report
from depthmup_flax.report.sweep_report import analyses
from depthmup_flax.storage.records import read_sweep
from reproduction.claims import figures, judged_claims


def main(directories: list[str]) -> None:
    """Writes the report and prints its text."""
    paths = [pathlib.Path(directory) for directory in directories]
    out = paths[0] / "report"
    print(make_report(paths, out, claims=judged_claims.as_data).text)
    figures.save_figures(analyses(read_sweep(paths))[0], out)


if __name__ == "__main__":
    main(sys.argv[1:])
