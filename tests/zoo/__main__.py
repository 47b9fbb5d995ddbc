"""What the audit and the coordinate check say of models in the styles of public code, right and with mistakes.

python -m tests.zoo audit             all cases of the audit
python -m tests.zoo check 'gpt*'      some cases of the check; all of them take long
"""

import argparse
import concurrent.futures
import fnmatch
import multiprocessing

from .outcomes import RIGHT, TOOLS, confusion, names_of, outcome


def main() -> None:
    """Prints what is not as it should be, and the confusion table."""
    parser = argparse.ArgumentParser(prog="python -m tests.zoo")
    parser.add_argument("tool", choices=(*TOOLS, "both"))
    parser.add_argument("cases", nargs="*", default=["*"], help="globs of names, such as 'gpt*'")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--all", action="store_true", help="print every case")
    arguments = parser.parse_args()
    tools = TOOLS if arguments.tool == "both" else (arguments.tool,)
    work = [
        (tool, name)
        for tool in tools
        for name in names_of(tool)
        if any(fnmatch.fnmatchcase(name, glob) for glob in arguments.cases)
    ]
    outcomes = []
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(arguments.processes, mp_context=context) as pool:
        for done in concurrent.futures.as_completed([pool.submit(outcome, *item) for item in work]):
            outcomes.append(done.result())
            if arguments.all or outcomes[-1].kind != RIGHT:
                print(outcomes[-1], flush=True)
    print(confusion(outcomes))


if __name__ == "__main__":
    main()
