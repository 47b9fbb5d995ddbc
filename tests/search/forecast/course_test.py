"""The course of a target: block means, a band that holds for all blocks together, and one warning."""

import json
import math
import pathlib

import numpy as np
import pytest

from depthmup_flax.search.forecast.course import Course, Curves, Watch, block_ends, course_of, log_steps
from depthmup_flax.search.forecast.law import Rung
from depthmup_flax.search.forecast.registered import FILE, read
from depthmup_flax.util.errors import InputError

FORECASTS = pathlib.Path(__file__).parents[2] / "reproduction/forecasts"
STEPS = 60
NOISE = 0.02  # relative, of each step of each seed
GIVEN = Course(2, (2, 4, 8), (3.0, 2.0, 1.0), (2.5, 1.5, 0.5), (3.5, 2.5, 1.5))


def law(width, depth, steps=STEPS):
    """Losses after each step of a network without noise."""
    share = np.arange(1, steps + 1) / steps
    return 1 + 0.5 * share**-0.3 + 0.4 * width**-0.5 * (1 + share) + 0.2 / depth


def runs(random, count, width, depth):
    return law(width, depth) * (1 + NOISE * random.standard_normal((count, STEPS)))


def course(random):
    """Of a target of width 256 and depth 16, from seven small sizes with three seeds."""
    sizes = [(8, 1), (8, 2), (16, 1), (16, 2), (16, 4), (32, 2), (32, 4)]
    ends = np.arange(1, STEPS + 1) / STEPS
    curves = {Rung(w, d, STEPS, w * w * d): Curves(ends, runs(random, 3, w, d)) for w, d in sizes}
    return course_of(curves, Rung(256, 16, STEPS, 16 * 256**2), 1)


def left(course, losses):
    """The step at which a run leaves the band, if every step is a row."""
    watch = Watch(course)
    for step, loss in enumerate(losses, 1):
        watch.update(step, loss)
    return watch.left


def test_one_band_holds_for_all_blocks_and_a_loss_that_is_too_high_or_too_low_leaves_it_at_once():
    random = np.random.default_rng(0)
    found = course(random)
    healthy = runs(random, 300, 256, 16)
    assert sum(left(found, run) is not None for run in healthy) / len(healthy) < 0.02
    for factor in (1.3, 1 / 1.3):
        changed = np.where(np.arange(STEPS) < 10, healthy, factor * healthy)
        steps = [left(found, run) for run in changed]
        assert all(step is not None and 10 < step <= STEPS / 3 for step in steps)


def test_blocks_cover_the_run_in_whole_rows_and_grow():
    for every, steps in ((1, 60), (4, 200), (31, 1562), (100, 10_007), (3, 3)):
        ends = block_ends(every, steps)
        assert ends[-1] == steps
        assert all(end % every == 0 for end in ends[:-1])
        lengths = np.diff(ends, prepend=0)
        assert (lengths > 0).all()
        assert len(ends) <= 8 + math.log(steps / every) / math.log(1.1)
    assert lengths.max() <= 3


def test_rows_become_more_frequent_only_where_a_run_has_few():
    assert log_steps(50, 200) == 4
    assert log_steps(50, 100_000) == 50
    assert log_steps(1, 10) == 1
    assert log_steps(7, 10) == 1


@pytest.mark.parametrize("slice_steps", [1, 3, 7])
def test_the_mean_over_a_block_is_that_of_its_steps_also_in_a_shorter_run(slice_steps):
    """Against sums over single steps; a shorter run is compared at equal shares of the run."""
    losses = np.repeat(np.random.default_rng(0).uniform(1, 3, 6), slice_steps)  # constant within slices
    steps = len(losses)
    curves = Curves(np.arange(1, 7) / 6, losses[::slice_steps][None])
    fine = np.repeat(losses, 5)  # of a run of five times the steps
    ends = np.array([2, 9, 5 * steps])
    expected = [fine[:2].mean(), fine[2:9].mean(), fine[9:].mean()]
    np.testing.assert_allclose(curves.means(ends / (5 * steps))[0], expected)


def test_a_course_ends_where_losses_are_no_longer_positive():
    ends, target = np.arange(1, STEPS + 1) / STEPS, Rung(64, 1, STEPS, 64)
    less = lambda x: {Rung(w, 1, STEPS, w): Curves(ends, law(w, 1)[None] - x) for w in (8, 16, 32)}
    found = course_of(less(2), target, 1)
    assert law(32, 1)[found.ends[-1] - 1] > 2 > law(32, 1)[found.ends[-1] + 2]
    assert course_of(less(4), target, 1) is None


def test_a_run_is_warned_of_once_with_the_step_however_often_it_is_updated():
    losses = [3, 3, 4, 2, 9, 9, 9, 9]  # the mean of steps 3 and 4 is outside
    for every in (1, 2):
        watch = Watch(GIVEN)
        means = np.reshape(losses, (-1, every)).mean(1)
        warnings = [watch.update(every * k, loss) for k, loss in enumerate(means, 1)]
        assert [k * every for k, text in enumerate(warnings, 1) if text] == [4]
        assert watch.left == 4
        assert all(part in str(warnings[4 // every - 1]) for part in ("step 4", "steps 3 to 4", " 3, ", "1.5 to 2.5"))
        assert watch.update(10, 99.0) is None  # beyond the course
    assert Watch(GIVEN).update(2, float("nan"))
    with pytest.raises(InputError, match=r"^step is 3: "):
        Watch(GIVEN).update(3, 3.0)


def test_a_block_whose_beginning_is_unknown_is_not_judged():
    watch = Watch(GIVEN, 3)
    assert watch.update(4, 99.0) is None
    assert watch.update(8, 1.0) is None
    assert Watch(GIVEN, 2).update(4, 99.0)


def test_a_forecast_of_an_earlier_version_is_verified_and_has_no_course(tmp_path):
    (tmp_path / FILE).write_bytes((FORECASTS / "mlp_256x16.json").read_bytes())
    assert "course" not in json.loads((tmp_path / FILE).read_text())
    stored = read(tmp_path)
    assert stored.course is None
    with pytest.raises(InputError, match="has no course"):
        stored.watch()
