"""A run that fails in the middle of training."""

import contextlib

import pytest

from depthmup_flax.trainer import loop


class Interrupted(Exception):
    """Raised in place of a call's data."""


@contextlib.contextmanager
def interrupted_before(step):
    """Within, a run that ``train_and_evaluate`` trains fails when it asks for the data of the step after ``step``."""
    original = loop.train_calls

    @contextlib.contextmanager
    def failing(dataset, seed, batch_size, first_step, *rest):
        def until(calls):
            done = first_step
            for call in calls:
                if done <= step < done + call.count:
                    raise Interrupted
                done += call.count
                yield call

        with original(dataset, seed, batch_size, first_step, *rest) as calls:
            yield until(calls)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(loop, "train_calls", failing)
        with pytest.raises(Interrupted):
            yield
