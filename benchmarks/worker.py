"""The process of contenders: makes and runs what the lines of its input ask for, and answers in lines of JSON."""

import importlib
import json
import os
import sys


def main() -> None:
    """Until the input ends; `benchmarks.contest` has the other side. The argument: how many cores to use, 0 for all."""
    cores = int(sys.argv[1])
    if cores:  # before anything counts them
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-cores:])
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what contenders print is no answer
    made = []
    for line in sys.stdin:
        request = json.loads(line)
        if "make" in request:
            module, _, function = request["make"].partition(":")
            made.append(getattr(importlib.import_module(module), function)(**request["args"]))
            answer = len(made) - 1
        else:
            answer = made[request["run"]]()
        answers.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
