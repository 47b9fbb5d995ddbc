"""Schedules of a config are optax's; one of one's own is named by its import path."""

import numpy as np
import optax
import pytest

import depthmup_flax as dm
from depthmup_flax.config.fields import default_config
from depthmup_flax.trainer.engine import schedules
from depthmup_flax.trainer.engine.from_config import build

WARMUP, STEPS = 10, 100
RISE = optax.linear_schedule(0.0, 1.0, WARMUP)
WSD = lambda shape: optax.join_schedules(
    [RISE, optax.constant_schedule(1.0), lambda step: 0.1 + 0.9 * shape(min(step / 30, 1.0))], [WARMUP, 70]
)


def fields(**values):
    section = default_config().optimizer
    section.update(warmup_steps=WARMUP, final_fraction=0.1, decay_fraction=0.3, **values)
    return section


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"schedule": "constant"}, optax.join_schedules([RISE, optax.constant_schedule(1.0)], [WARMUP])),
        ({"schedule": "cosine"}, optax.warmup_cosine_decay_schedule(0.0, 1.0, WARMUP, STEPS, end_value=0.1)),
        ({"schedule": "linear"}, optax.join_schedules([RISE, optax.linear_schedule(1.0, 0.1, 90)], [WARMUP])),
        ({"schedule": "wsd"}, WSD(lambda x: 1 - x)),
        ({"schedule": "wsd", "decay_shape": "sqrt"}, WSD(lambda x: 1 - x**0.5)),
        ({"schedule": "wsd", "decay_shape": "cosine"}, WSD(lambda x: (1 + np.cos(np.pi * x)) / 2)),
        ({"schedule": "rsqrt"}, lambda step: min(step / WARMUP, (WARMUP / max(step, 1)) ** 0.5)),
        ({"schedule": "users_code:steps_down"}, lambda step: min(step / WARMUP, 1.0 if step < 50 else 0.25)),
    ],
    ids=lambda value: "-".join(value.values()) if isinstance(value, dict) else None,
)
def test_a_schedule_is_that_of_optax(values, expected):
    found = schedules.fraction(fields(**values), STEPS)
    np.testing.assert_allclose(
        [found(step) for step in range(0, 101, 5)], [expected(s) for s in range(0, 101, 5)], atol=1e-6
    )


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"schedule": "cosin"}, "optimizer.schedule"),
        ({"schedule": "users_code:absent"}, "optimizer.schedule"),
        ({"schedule": "users_code:steps_wrongly"}, "optimizer.schedule"),
        ({"schedule": "wsd", "decay_shape": "square"}, "optimizer.decay_shape"),
        ({"schedule": "wsd", "decay_fraction": 0.0}, "optimizer.decay_fraction"),
        ({"final_fraction": 1.5}, "optimizer.final_fraction"),
        ({"warmup_steps": 100}, "optimizer.warmup_steps"),
        ({"name": "users_code:chain", "clip_rms": 1.0}, "optimizer.clip_rms"),
        ({"name": "users_code:steps_down"}, "optimizer.name"),
    ],
)
def test_a_mistake_in_the_optimizer_names_its_field_before_anything_trains(values, field):
    config = default_config()
    config.data.update(name="synthetic", train_examples=64, test_examples=16)
    config.train.steps = STEPS
    config.optimizer.update(values)
    with pytest.raises(dm.InputError) as raised:
        build(config)
    assert str(raised.value).startswith(field)


@pytest.mark.parametrize("warmup", [60, 80, 95])
@pytest.mark.parametrize("shape", ["linear", "cosine", "sqrt"])
def test_the_rate_does_not_jump_where_a_long_warm_up_meets_the_decay(warmup, shape):
    section = fields(schedule="wsd", decay_shape=shape)
    section.warmup_steps = warmup
    rates = np.array([float(schedules.fraction(section, STEPS)(step)) for step in range(STEPS + 1)])
    assert rates[warmup] == pytest.approx(1.0)
    assert (np.diff(rates)[: warmup - 1] > 0).all()
    assert (np.diff(rates)[warmup:] <= 0).all()
    assert rates[-1] == pytest.approx(0.1)
