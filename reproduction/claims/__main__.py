"""Write a report of a sweep with the papers' claims and figures: python -m reproduction.claims DIR [DIR ...]

The directories are the shards of one sweep; the report goes to DIR/report.
"""

import pathlib
import sys

from depthmup_flax.report import make_report
from depthmup_flax.report.sweep_report import analysis_of, other_analysis
from depthmup_flax.storage.sweep_records import read_sweep
from reproduction.claims import figures, judged_claims


def main(directories: list[str]) -> None:
    """Writes the report and prints its text."""
    paths = [pathlib.Path(directory) for directory in directories]
    out = paths[0] / "report"
    sweep = read_sweep(paths)
    analysis = analysis_of(sweep)
    print(make_report(paths, out).text + judged_claims.claims_text(sweep, analysis, other_analysis(sweep, analysis)))
    figures.save_figures(analysis, out)


if __name__ == "__main__":
    main(sys.argv[1:])
