"""The clock of all contenders, whatever they are written in."""

import time

# Of timed training steps. A network that has fitted its one batch has gradients that are subnormal numbers, with
# which PyTorch is tens of times slower; training on data does not get there.
RATE = 1e-6


def repeated(run, seconds=0.4):
    """``run(count)`` takes ``count`` steps and waits for them -> a contender that gives the seconds of one step.

    The number of steps fills ``seconds``; it is found in the first call.
    """
    count = None

    def measure():
        nonlocal count
        if count is None:
            run(2)  # compiles, and warms up
            count = max(1, round(seconds / timed(run, 2)))
        return {"seconds": timed(run, count) / count}

    return measure


def timed(function, *args):
    """Seconds of a call."""
    started = time.perf_counter()
    function(*args)
    return time.perf_counter() - started
