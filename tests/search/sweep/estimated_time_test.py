"""The time of groups is interpolated between measured ones as a power law of their cost."""

import pytest

from depthmup_flax.search.sweep.dry_run import Speed, estimate_s


def speed(cost):
    return Speed(lanes=1, devices=1, bytes_per_device=0, step_s=0.0, cost=cost, run_s=cost**0.5, once_s=2 * cost**0.1)


def test_power_laws_through_two_groups_give_the_time_of_those_between():
    costs, runs = (10.0, 300.0, 1000.0), (3, 1, 2)
    expected = sum(n * cost**0.5 + 2 * cost**0.1 for cost, n in zip(costs, runs, strict=True))
    assert estimate_s([speed(1000.0), speed(10.0)], costs, runs) == pytest.approx(expected)
    assert estimate_s([speed(10.0)], (10.0, 5.0), (1, 1)) == pytest.approx(2 * (10**0.5 + 2 * 10**0.1))
