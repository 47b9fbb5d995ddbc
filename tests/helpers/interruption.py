"""A run that fails in the middle of training."""

import contextlib

import pytest

from depthmup_flax.trainer.engine.program import ShardedProgram


class Interrupted(Exception):
    """Raised in place of a call's data."""


@contextlib.contextmanager
def interrupted_before(step):
    """Within, a run that ``train_and_evaluate`` trains fails when it asks for the data of the step after ``step``."""
    original = ShardedProgram.calls

    def failing(self, first_step):
        done = first_step
        with contextlib.closing(original(self, first_step)) as calls:
            for call in calls:
                if done <= step < done + call.count:
                    raise Interrupted
                done += call.count
                yield call

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ShardedProgram, "calls", failing)
        with pytest.raises(Interrupted):
            yield
