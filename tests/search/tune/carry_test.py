"""What is known of a target is said, or its ladder's rate is taken along with the reference of its runs."""

import dataclasses
import json
import math

import pytest
from planted_sweeps import RATES, X, record, sweep_of, write

from depthmup_flax.config.fields import default_config
from depthmup_flax.report import make_report
from depthmup_flax.search.ladder import climb as climbing
from depthmup_flax.search.tune.carry import carry, compare_on_ladder
from depthmup_flax.search.tune.choice import Best, best_choice
from depthmup_flax.storage.run_hash import run_hash_at
from depthmup_flax.trainer.course import rates, read_course

STEPS = 100
TREND = -0.3


def loss_of(width, rate, seed=0):
    off = math.log2(rate) + 7.3 - TREND * math.log2(width / 16)
    return 1 + 0.05 * off**2 + 0.001 * math.sin(9 * seed + off)


@pytest.fixture
def tuned(tmp_path):
    """A search on a proxy with planted losses: its best, and the configs of proxy and target."""
    proxy, target = default_config(), default_config()
    for config, width in ((proxy, 16), (target, 256)):
        config.model.update(width=width, depth=4, base_width=16, base_depth=4)
    axes = {X: RATES, "seed": (0, 1, 2)}
    model = {"width": 16, "depth": 4, "base_width": 16, "base_depth": 4}
    searched = sweep_of(lambda point: loss_of(16, point[X], point["seed"]), axes, model=model)
    course = {"step": [1, 2], "rate": [1.0, 1.0], "update/hidden": [1.0, 1.0]}
    info = dataclasses.replace(searched.info, base={**searched.info.base, "data": {"validation_fraction": 0.0}})
    known = lambda one: {"run": run_hash_at(info.base, one.point), "width": 16, "depth": 4, "course": course}
    records = [dataclasses.replace(one, **known(one)) for one in searched.records]
    searched = dataclasses.replace(searched, info=info, records=records)
    best = Best(best_choice(records), proxy, records, write(tmp_path / "t", searched))
    for config in (proxy, target):
        config.optimizer.learning_rate = best["learning_rate"]
    return best, proxy, target


@pytest.fixture
def rungs(monkeypatch):
    def planted(config, directory, **options):
        width, depth = config.base.model.width, config.base.model.depth
        given = config.grids.rung.optimizer.learning_rate
        return [record("run", {X: rate}, loss_of(width, rate), width=width, depth=depth) for rate in given]

    monkeypatch.setattr(climbing, "sweep", planted)


def test_without_a_budget_the_tuned_rate_stays_and_its_regret_is_said(tuned):
    best, proxy, target = tuned
    before = best["learning_rate"]
    carry(best, proxy, target, (STEPS, STEPS))
    assert best["learning_rate"] == before == target.optimizer.learning_rate
    assert repr(best).splitlines()[-2:] == best.ladder.statement
    assert not (best.directory / "ladder.json").exists()


def test_with_a_budget_the_rate_and_the_reference_are_the_ladders_and_the_report_shows_it(tuned, rungs, tmp_path):
    best, proxy, target = tuned
    before = best["learning_rate"]
    carry(best, proxy, target, (STEPS, STEPS), 1.0)
    rate = target.optimizer.learning_rate
    assert rate == best["learning_rate"] == pytest.approx(best.ladder.rate, rel=1e-3)
    assert abs(math.log2(rate / 2.0 ** (-7.3 + TREND * 4))) < abs(math.log2(before / 2.0 ** (-7.3 + TREND * 4)))
    assert best.interval == best.ladder.interval
    assert f"{rate:.4g}" in repr(best).splitlines()[-1]
    assert "<img" in best._repr_html_()
    config = proxy.copy_and_resolve_references()
    config.optimizer.learning_rate = rate
    assert read_course(best.directory)["columns"]["rate"] == rates(config, STEPS, [1, 2])
    report = make_report([best.directory], tmp_path / "out")
    assert report.data["ladder"] == best.ladder.statement
    assert best.ladder.statement[0] in report.text
    assert (tmp_path / "out" / "ladder.svg").read_bytes() == (best.directory / "ladder.svg").read_bytes()
    assert report.html.count("<img") == 2
    assert json.loads((best.directory / "ladder.json").read_text())["statement"] == best.ladder.statement


def test_a_search_with_its_best_rate_at_the_edge_has_no_ladder(tuned, caplog):
    best, proxy, target = tuned
    lines = (best.directory / "records.jsonl").read_text().splitlines()
    kept = [line for line in lines if json.loads(line)["point"][X] < 2.0**-8]
    (best.directory / "records.jsonl").write_text("\n".join(kept) + "\n")
    carry(best, proxy, target, (STEPS, STEPS), 1.0)
    assert best.ladder is None
    assert "No ladder" in caplog.text
    assert "No rules are compared" in compare_on_ladder(best, proxy, STEPS, ["sp"], [0])
