"""What the audit says of each kind of model, right and with mistakes.

python -m tests.zoo                 all kinds
python -m tests.zoo 'streams/*'     some
"""

import argparse
import fnmatch

from .catalog import KINDS
from .outcomes import RIGHT, outcomes, table


def main() -> None:
    """Prints what is not as it should be, and a table."""
    parser = argparse.ArgumentParser(prog="python -m tests.zoo")
    parser.add_argument("kinds", nargs="*", default=["*"], help="globs of names, such as 'streams/*'")
    parser.add_argument("--all", action="store_true", help="print every case")
    parser.add_argument("--every", action="store_true", help="try all mistakes of each kind, not a third of them")
    arguments = parser.parse_args()
    found = []
    for name in KINDS:
        if not any(fnmatch.fnmatchcase(name, glob) for glob in arguments.kinds):
            continue
        for outcome in outcomes(name, arguments.every):
            found.append(outcome)
            if arguments.all or outcome.kind != RIGHT:
                print(outcome, flush=True)
    print(table(found))
    print(f"{sum(outcome.seconds for outcome in found) / len(found):.2f} s per case")


if __name__ == "__main__":
    main()
