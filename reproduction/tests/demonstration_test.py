"""reproduction/pages/demonstration.py: its procedure on tiny networks, and its page against its records."""

import numpy as np
import pytest
from small_runs import a_sweep

from reproduction.pages import demonstration


def test_the_tables_of_the_demonstration_are_what_its_records_give():
    page = demonstration.PAGE.read_text()
    assert demonstration.renewed(page, demonstration.recorded()) == page


def test_points_of_a_repetition_are_the_same_again_and_no_other_ones():
    pair = demonstration.PAIRS["resmlp"]
    draw = lambda *which: [tuple(point.values()) for point in demonstration.points(pair, *which, 64)]
    assert draw(0, demonstration.SMALL) == draw(0, demonstration.SMALL)
    assert not set(draw(0, demonstration.SMALL)) & set(draw(1, demonstration.SMALL))
    rates, multipliers = np.log([point[:2] for point in draw(0, demonstration.SMALL)]).T
    for drawn, ends in ((rates, pair.rates), (multipliers, demonstration.MULTIPLIERS)):
        low, high = np.log(ends)
        assert low < drawn.min() < low + 0.2 * (high - low)
        assert high - 0.2 * (high - low) < drawn.max() < high


@pytest.mark.slow
def test_the_large_network_is_trained_with_what_was_best_for_the_small_one(tmp_path, monkeypatch):
    pair = demonstration.Pair("tiny", lambda data: a_sweep().base, (16, 4), (1e-4, 1e-2), "test_accuracy", 0.1)
    monkeypatch.setattr(demonstration, "PAIRS", {"tiny": pair})
    monkeypatch.setattr(demonstration, "RECORDS", tmp_path)
    monkeypatch.setattr(demonstration, "FLOPS", tmp_path / "flops.json")
    monkeypatch.setattr(demonstration, "REPETITIONS", 2)
    monkeypatch.setattr(demonstration, "SMALL_TRIALS", (1, 3))
    monkeypatch.setattr(demonstration, "LARGE_TRIALS", 2)
    demonstration.run("tiny", "")
    small, kept = (demonstration.Records("tiny", part) for part in ("small", "kept"))
    assert len(small.read.records) == 6
    for repetition in range(2):
        drawn = demonstration.points(pair, repetition, demonstration.SMALL, 3)
        losses = [small[point].train_loss_avg for point in drawn]
        best = drawn[int(np.argmin(losses))]
        for preset in (demonstration.RULE, demonstration.CONTROL):
            record = kept[{**best, demonstration.PRESET: preset}]
            assert (record.width, record.depth, record.seed) == (16, 4, repetition)
    found = demonstration.outcomes("tiny")
    assert [(one.way, one.trials) for one in found[-2:]] == [("searched large", 1), ("searched large", 2)]
    assert [one.cost for one in found[-2:]] == [1, 2]
    first = next(one for one in found if one.trials == 3)
    assert 1 < first.cost < 4
    records = (tmp_path / "tiny-kept" / "records.jsonl").read_text()
    demonstration.run("tiny", "")  # trains nothing again
    assert (tmp_path / "tiny-kept" / "records.jsonl").read_text() == records
