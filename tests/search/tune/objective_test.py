"""A search compares the loss that was asked for, by default on examples that no run trains on."""

import types

import pytest
from planted_sweeps import record_with
from processes import ROOT, run_lines

from depthmup_flax.config.fields import config_hash, default_config
from depthmup_flax.config.files import from_file
from depthmup_flax.report.sweep_report import analysis_of
from depthmup_flax.report.tables import as_data
from depthmup_flax.search.sweep.grid import expand, extension, sweep_config
from depthmup_flax.search.tune.choice import best_choice, describe
from depthmup_flax.search.tune.tune_target import require_presets, result
from depthmup_flax.search.tune.tuning import FRACTION, prepare_objective
from depthmup_flax.storage.sweep_records import read_sweep
from depthmup_flax.util.errors import InputError

RATE = "optimizer.learning_rate"


def memorizing(rate, seed=0):
    """The higher the rate the lower the training loss; held-out examples are learned best at 2."""
    held_out = {1.0: 0.5, 2.0: 0.4, 4.0: 0.9}[rate] + 0.01 * seed
    losses = {"train_loss_avg": 1 / rate, "validation_loss": held_out, "test_loss": 1 / held_out}
    return record_with(point={RATE: rate, "seed": seed}, seed=seed, **losses)


RECORDS = [memorizing(rate, seed) for rate in (1.0, 2.0, 4.0) for seed in (0, 1)]


@pytest.mark.parametrize(("objective", "lowest"), [("train", 4.0), ("validation", 2.0), ("test", 4.0)])
def test_the_best_value_is_that_of_the_objective_and_the_sentence_names_the_loss(objective, lowest):
    choice = best_choice(RECORDS, objective=objective)
    assert min(choice.around, key=choice.around.get) == lowest
    name = {"train": "Training"}.get(objective, objective.capitalize())
    assert f"{name} loss at the nearest learning rates" in describe(choice, default_config())


@pytest.mark.parametrize(("objective", "extended"), [("train", [8.0]), ("validation", [])])
def test_a_grid_is_extended_where_the_objective_is_lowest_at_its_edge(objective, extended):
    base = default_config()
    base.data.validation_fraction = 0.1
    grids = {"rates": {RATE: (1.0, 2.0, 4.0)}}
    config = sweep_config(base, grids, figure="f", title="t", scale="smoke", extend=1, objective=objective)
    done = {run.hash: memorizing(run.point[RATE]) for run in expand(config)}
    assert [run.point[RATE] for runs, _ in extension(config, expand(config), done) for run in runs] == extended


def described(evaluates=True, has_epochs=True, test=5, train=100, batch_size=90):
    """What `prepare_objective` reads of an experiment."""
    dataset = types.SimpleNamespace(name="d", has_epochs=has_epochs, train=range(train))
    task = types.SimpleNamespace(evaluate=(lambda: None) if evaluates else None)
    config = types.SimpleNamespace(train=types.SimpleNamespace(batch_size=batch_size))
    evaluates = evaluates and test > 0
    return types.SimpleNamespace(dataset=dataset, config=config, task=task, evaluates=evaluates, total_steps=70)


@pytest.mark.parametrize(
    ("asked", "of", "used", "share", "steps"),
    [
        ("auto", {}, "validation", FRACTION, 70),
        ("auto", {"test": 0}, "validation", FRACTION, 70),
        ("auto", {"has_epochs": False}, "train", 0.0, 0),
        ("auto", {"evaluates": False}, "train", 0.0, 0),
        ("auto", {"batch_size": 91}, "train", 0.0, 0),
        ("auto", {"train": 4, "batch_size": 2}, "train", 0.0, 0),
        ("train", {}, "train", 0.0, 0),
        ("test", {}, "test", 0.0, 0),
    ],
)
def test_runs_over_a_set_hold_examples_out_and_take_the_steps_of_the_whole_set(asked, of, used, share, steps):
    config = default_config()
    before = config_hash(config)
    assert prepare_objective(asked, config, described(**of)) == used
    assert (config.data.validation_fraction, config.train.steps) == (share, steps)
    assert (config_hash(config) == before) == (share == 0)


@pytest.mark.parametrize(
    ("asked", "of"),
    [
        ("best", {}),
        ("validation", {"evaluates": False}),
        ("validation", {"has_epochs": False}),
        ("validation", {"batch_size": 91}),
        ("test", {"test": 0}),
        ("test", {"evaluates": False}),
    ],
)
def test_an_objective_that_runs_cannot_measure_is_refused(asked, of):
    with pytest.raises(InputError, match=f"objective is '{asked}'"):
        prepare_objective(asked, default_config(), described(**of))


def test_presets_are_compared_by_accuracy_and_diverged_runs_are_counted():
    runs = [record_with(test_accuracy=share, test_loss=1.0, train_loss_avg=0.25) for share in (0.9, 0.94)]
    assert result(runs) == "test accuracy 92.0 % ± 2.8 %, training loss 0.25 ± 0"
    failed = record_with(status="diverged", train_loss_avg=None)
    assert result([*runs[:1], failed]) == "1 of 2 runs diverged, test accuracy 90.0 %, training loss 0.25"
    assert result([failed]) == "1 of 1 runs diverged"
    assert result([record_with(test_loss=0.5, train_loss_avg=0.25)]) == "test loss 0.5, training loss 0.25"


@pytest.mark.parametrize("names", [["spp"], ["depth_mup"], ["sp", "sp"]])
def test_presets_that_cannot_be_compared_are_refused(names):
    with pytest.raises(InputError, match="compare has"):
        require_presets(names, default_config())


@pytest.mark.slow
def test_the_command_tunes_on_held_out_examples_rescales_and_compares_presets_and_trains_no_run_again(tmp_path):
    target = f"--config={ROOT / 'configs/digits.py'}", "--config.model.width=16", "--config.model.depth=4"
    proxy = "--proxy.width=8", "--proxy.depth=2", "--proxy.steps=10", "--octaves=1", "--seeds=2", "--lanes=all"
    flags = "--tune=learning_rate", "--compare=sp", "--target.batch_size=128", "--target.steps=12"
    done, again = run_lines([["tune", *target, *proxy, *flags, "--workdir=t"]] * 2, cwd=tmp_path)
    assert (done.code, again.code) == (0, 0), done.error + again.error
    assert "the loss on held-out training examples" in done.out
    assert "Best on the proxy (width 8, depth 2): optimizer.learning_rate" in done.out
    search, compared = read_sweep([tmp_path / "t"]), read_sweep([tmp_path / "t" / "compare"])
    assert (search.info.objective, search.info.base["data"]["validation_fraction"]) == ("validation", FRACTION)
    for one in search.records:
        assert (one.steps, one.test_loss, one.test_accuracy) == (10, None, None)
        assert one.validation_loss > 0
        assert 0 <= one.validation_accuracy <= 1
    assert len((tmp_path / "t" / "records.jsonl").read_text().splitlines()) == len(search.records) >= 6
    tuned = from_file(tmp_path / "t" / "tuned.py")
    rate = tuned.optimizer.learning_rate
    assert (tuned.model.base_width, tuned.model.base_depth, tuned.model.width) == (8, 2, 16)
    assert (tuned.data.validation_fraction, tuned.train.batch_size, tuned.train.steps) == (0, 128, 12)
    for out in (done.out, again.out):
        assert [line.split()[2] for line in out.splitlines() if line.endswith(" d^-0.25")] == [f"{rate:.6g}"]
    # The report compares what the search has compared.
    assert as_data(search, analysis_of(search))["loss"] == "validation"
    for preset in ("depth_mup", "sp"):
        mine = [one for one in compared.records if one.point["parametrization.preset"] == preset]
        assert all(one.validation_loss is None and one.point[RATE] == rate for one in mine)
        assert f"{preset:9}  {result(mine)}" in done.out
    names = [one.run for one in compared.records if one.seed == tuned.seed]
    assert config_hash(tuned) in names  # the run that train makes of tuned.py
