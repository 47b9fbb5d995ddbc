"""The process of contenders: makes and runs them on request. Requests and answers are lines of JSON."""

import importlib
import json
import os
import sys


def main() -> None:
    """Serves `benchmarks.contest` until the input ends. The argument is the number of cores to use, 0 for all."""
    cores = int(sys.argv[1])
    if cores:  # before a library counts them
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-cores:])
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # output of contenders must not mix with answers
    contenders = []
    for line in sys.stdin:
        request = json.loads(line)
        if "make" in request:
            module, _, function = request["make"].partition(":")
            contenders.append(getattr(importlib.import_module(module), function)(**request["args"]))
            answer = len(contenders) - 1
        else:
            answer = contenders[request["run"]]()
        answers.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
