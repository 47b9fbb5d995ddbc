"""What the audit says of each kind of model, right and with mistakes.

python -m tests.zoo                 all kinds
python -m tests.zoo 'streams/*'     some
python -m tests.zoo --plain         right models whose edits are all taken out, so that parameters carry them
python -m tests.zoo --products      right models of which each product in turn has a factor of the width
python -m tests.zoo --packages      models of public packages, as far as they are installed
"""

import argparse
import fnmatch
from collections import Counter

from . import mutations, packages
from .carried import plain
from .catalog import KINDS
from .outcomes import RIGHT, outcomes, table


def main() -> None:
    """Prints what is not as it should be, and a table."""
    parser = argparse.ArgumentParser(prog="python -m tests.zoo")
    parser.add_argument("kinds", nargs="*", default=["*"], help="globs of names, such as 'streams/*'")
    parser.add_argument("--all", action="store_true", help="print every case")
    parser.add_argument("--every", action="store_true", help="all mistakes of each kind, not a third; all layers")
    parser.add_argument("--plain", action="store_true", help="take all edits out")
    parser.add_argument("--products", action="store_true", help="multiply each product by a power of the width")
    parser.add_argument("--packages", action="store_true", help="models of public packages")
    arguments = parser.parse_args()
    if arguments.packages:
        packages.run()
        print(packages.table())
        return
    names = [name for name in KINDS if any(fnmatch.fnmatchcase(name, glob) for glob in arguments.kinds)]
    if arguments.plain:
        verdicts = {name: plain(KINDS[name]) for name in names}
        print(*(f"{verdict:<11} {name}" for name, verdict in verdicts.items() if verdict != "ok"), sep="\n")
        print(Counter(verdicts.values()))
        return
    if arguments.products:
        count = Counter[tuple[str, str]]()
        for name in names:
            for product, power, outcome in mutations.outcomes(KINDS[name], arguments.every):
                count[name.partition("/")[0], outcome] += 1
                if arguments.all or outcome not in (mutations.FOUND, mutations.NOT_READ):
                    print(f"{outcome:<14} {name}: {' '.join(map(str, product))} times m^{power}", flush=True)
        print(mutations.table(count))
        return
    found = []
    for name in names:
        for outcome in outcomes(name, arguments.every):
            found.append(outcome)
            if arguments.all or outcome.kind != RIGHT:
                print(outcome, flush=True)
    print(table(found))
    print(f"{sum(outcome.seconds for outcome in found) / len(found):.2f} s per case")


if __name__ == "__main__":
    main()
