"""Timing of all contenders. Imports neither JAX nor PyTorch."""

import time

# Learning rate of timed training steps. A network that has fitted its one batch has subnormal gradients, which slow
# PyTorch down by more than ten times and do not occur in training on data.
RATE = 1e-6


def repeated(run, seconds=0.4):
    """A contender that returns the seconds of one step.

    Args:
      run: ``run(count)`` takes ``count`` steps and waits for them.
      seconds: duration of a measurement; the first call chooses the number of steps accordingly.
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
    """Seconds that a call takes."""
    started = time.perf_counter()
    function(*args)
    return time.perf_counter() - started
