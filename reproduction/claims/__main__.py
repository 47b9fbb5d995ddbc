"""Write a report of a sweep that also judges the papers' claims: python -m reproduction.claims DIR [DIR ...]

The directories are the shards of one sweep; the report goes to DIR/report.
"""

import pathlib
import sys

from depthmup_flax.report import make_report
from reproduction.claims import judged_claims


def main(directories: list[str]) -> None:
    """Writes the report and prints its text."""
    paths = [pathlib.Path(directory) for directory in directories]
    print(make_report(paths, paths[0] / "report", claims=judged_claims.as_data).text)


if __name__ == "__main__":
    main(sys.argv[1:])
