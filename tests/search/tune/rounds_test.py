"""A search over several hyperparameters finds a planted optimum, keeps what it cannot improve, resumes, and trains what
its points say.
"""

import itertools
import math

import numpy as np
import optax
import optax_loops
import pytest
from planted_sweeps import record_with
from processes import ROOT
from user_networks import RuleNet

import depthmup_flax as dm
from depthmup_flax.config.fields import default_config
from depthmup_flax.config.files import from_file
from depthmup_flax.data.blank import PlannedData
from depthmup_flax.rule.info_trees import flatten_info
from depthmup_flax.search.sweep.grid import expand, sweep_config
from depthmup_flax.search.tune.searches import CONFIRM, SHRINK, Search, search_of, tuned_ranges, unread
from depthmup_flax.trainer.engine.from_config import build
from depthmup_flax.util.errors import InputError

RATE, A, OUT = "optimizer.learning_rate", "parametrization.branch_multiplier", "parametrization.output_lr_factor"
BEST = {RATE: 3e-3, A: 0.5, OUT: 4.0}


def planted(point, seed, best):
    """Losses with a valley in which the rate and a trade off; the sine is noise."""
    x = {path: math.log2(point[path] / value) for path, value in best.items()}
    noise = 0.01 * math.sin(sum(1000 * value for value in x.values()) + seed)
    return 1.0 + 0.1 * (x[RATE] + x[A] / 2) ** 2 + 0.05 * x[A] ** 2 + 0.03 * x[OUT] ** 2 + noise


def searched(best, seed=0, diverges=lambda point: False):
    """The choice of a search whose runs have planted losses, and all points in order."""
    config = default_config()
    config.seed = seed
    search = search_of(config, [(A, None), (OUT, None)])
    sweep = {"figure": search.figure, "title": "t", "scale": "proxy", "extend": search.rounds}
    config = sweep_config(config, {"proxy": search.grid()}, **sweep)
    runs, done = expand(config), {}
    for _ in range(search.rounds + 1):
        for run in runs:
            loss = None if diverges(run.point) else planted(run.point, run.seed, best)
            done[run.hash] = record_with(point=run.point, seed=run.seed, train_loss_avg=loss)
        more = itertools.chain(*(part for part, _ in search.more(config, runs, done)))
        runs += [run for run in more if run.hash not in done]
    assert {point["seed"] for point in (run.point for run in runs[-2 * CONFIRM :])} == set(range(seed + 3, seed + 11))
    return search.choice(config, list(done.values())), [run.point for run in runs]


def test_a_search_finds_a_planted_optimum_off_the_grid_and_repeats_itself():
    choice, points = searched(BEST)
    distance = {path: abs(math.log2(choice.values[path] / value)) for path, value in BEST.items()}
    assert max(distance.values()) < 0.75
    # The rate alone, at a = 1 and factor 1, has the loss 1 + .05 + .03 * 4 at best.
    assert planted(choice.values, 0, BEST) < 1.06
    assert "Gain 0.1" in choice.compared
    assert choice.warnings == ()
    again, same = searched(BEST)
    assert (again, same) == (choice, points)
    assert searched(BEST, seed=7)[1] != points


def test_each_box_is_smaller_and_in_the_ranges_and_one_round_has_one_seed():
    _, points = searched(BEST)
    boxes = np.array_split(points[27 : 27 + 48], len(SHRINK))
    spread = [np.ptp(np.log2([[point[path] for path in BEST] for point in box]), axis=0) for box in boxes]
    for before, after in itertools.pairwise(spread):
        np.testing.assert_array_less(after, 0.8 * before)
    assert all(0.25 <= point[A] <= 4 and 1 / 8 <= point[OUT] <= 8 for point in points)
    assert [len({point["seed"] for point in box}) for box in boxes] == [1] * len(SHRINK)
    assert {point["seed"] for point in points[-2 * CONFIRM :]}.isdisjoint(point["seed"] for point in points[:75])


def test_what_a_search_does_not_improve_keeps_the_configs_values():
    """The last mean of a search for the optimum at 1 misses it a little."""
    choice, _ = searched({RATE: 1e-3, A: 1.0, OUT: 1.0})
    assert (choice.values[A], choice.values[OUT]) == (1.0, 1.0)
    assert choice.values[RATE] == pytest.approx(1e-3, rel=0.1)
    assert "only the tuned learning rate" in choice.compared


def test_diverging_corners_do_not_move_a_search():
    choice, _ = searched(BEST, diverges=lambda point: point[RATE] * point[A] > 4e-3)
    assert planted(choice.values, 0, BEST) < 1.06


def test_the_grid_of_rates_is_extended_before_the_first_box():
    choice, points = searched({**BEST, RATE: 6e-2, A: 1.0, OUT: 1.0})
    assert max(point[RATE] for point in points[:27]) == 1.6e-2
    assert [point[RATE] for point in points[27:33]] == [3.2e-2] * 3 + [6.4e-2] * 3
    assert choice.values[RATE] == pytest.approx(6e-2, rel=0.5)


def test_an_optimum_at_the_end_of_a_range_is_named():
    choice, _ = searched({**BEST, OUT: 64.0})
    (warning,) = choice.warnings
    assert f"the best {OUT}" in warning
    assert "0.125 to 8" in warning


WRONG = {
    "an unknown name": [("gama0", None)],
    "a name twice": [("gamma0", None), ("gamma0", (1, 2))],
    "a field and its name": [("gamma0", None), ("parametrization.gamma0", None)],
    "a range that falls": [("gamma0", (2, 1))],
    "no range": [("gamma0", 1)],
    "three ends": [("gamma0", ("1", "2", "3"))],
    "a text": [("gamma0", ("a", "b"))],
    "no end": [("gamma0", (1, math.inf))],
    "too many octaves": [("learning_rate", (1e-30, 1))],
    "no decay": [("weight_decay", None)],
    "an average": [("b1", None)],
    "a size": [("width", None)],
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_cannot_be_tuned_is_refused(wrong):
    with pytest.raises(InputError, match=WRONG[wrong][-1][0].rpartition(".")[2]):
        tuned_ranges(default_config(), WRONG[wrong], 4)


def test_a_search_that_cannot_succeed_is_refused():
    for name, value in {"trials": 2, "octaves": 0, "seeds": 0, "extend": -1}.items():
        with pytest.raises(InputError, match=f"{name} is {value}"):
            search_of(default_config(), [], **{name: value})


def test_ranges_are_those_given_or_octaves_around_the_configs_values():
    config = default_config()
    config.parametrization.branch_multiplier = 3.0
    ranges = tuned_ranges(config, [("branch_multiplier", None), ("gamma0", (0.5, 2))], 1)
    assert ranges == {RATE: (5e-4, 2e-3), A: (0.75, 12.0), "parametrization.gamma0": (0.5, 2.0)}


RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 5)).astype(np.float32)
LABELS = (X @ RNG.normal(size=(5, 3))).argmax(1)
STEPS = 15


def study(build=RuleNet, **arguments):
    splits = (X, LABELS), (X[:5], LABELS[:5])
    return dm.Study(build, splits, base=(8, 2), steps=STEPS, batch_size=10, objective="train", **arguments)


@pytest.mark.slow
def test_what_a_network_does_not_have_is_left_out_with_one_sentence(logged):
    def without_branches(width, depth):
        return plain(width, 0)

    roles = [f"parametrization.{role}_lr_factor" for role in ("input", "hidden", "output", "vector", "fixed")]
    # Gamma0, which is in the code, too, still scales the optimizer's gradients and updates.
    paths = [RATE, A, "parametrization.gamma0", *roles]
    assert unread(build(study(without_branches).config()), paths) == [A, roles[1]]
    frozen = build(study(settings={"optimizer.frozen": ("Dense_0",)}).config())
    search = search_of(frozen.config, [(path, (0.5, 2.0)) for path in paths], seeds=1)
    assert set(paths) - set(search.without_unread(frozen).ranges) == {roles[0]}
    (sentence,) = [record.getMessage() for record in logged.records]
    assert "does not depend on input_lr_factor" in sentence
    with pytest.raises(InputError, match="Name another hyperparameter"):
        Search({roles[0]: (0.5, 2.0)}, (0,), ranges={roles[0]: (0.5, 2.0)}).without_unread(frozen)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["cifar10_resmlp", "cifar10_resnet", "imagenet_resnet18", "imagenet_vit", "shakespeare_llama"]
)
def test_a_shipped_config_reads_a_factor_of_each_role_that_a_trained_parameter_has(name):
    config = from_file(name)
    if "stage_sizes" not in config.model:
        config.model.update(width=64, depth=3, base_width=64, base_depth=3)
    if config.data.name.startswith("text:"):
        config.data.name = f"text:{ROOT / 'README.md'}"
        config.train.batch_size = 8
    experiment = build(config, load=PlannedData())
    frozen = config.optimizer.frozen
    infos = {path: info for path, info in flatten_info(experiment.info).items() if not path.startswith(tuple(frozen))}
    absent = {str(role) for role in dm.Role} - {str(info.role) for info in infos.values()}
    roles = [f"parametrization.{role}_lr_factor" for role in dm.Role]
    expected = [path for path, role in zip(roles, dm.Role, strict=True) if str(role) in absent]
    assert unread(experiment, [RATE, A, "parametrization.gamma0", *roles]) == expected


def plain(width, depth):
    """`RuleNet` as others write it, without multipliers."""
    return RuleNet(width, depth, dm.get_parametrization("sp"))


def loss_by_optax(record):
    """A rate for each role, a in the network's branches."""
    model = RuleNet(8, 2, dm.get_parametrization("depth_mup", branch_multiplier=record["branch_multiplier"]))
    factors = {"Dense_0": record["input_lr_factor"], "Dense_3": record["output_lr_factor"], "": 1.0}
    adam = {name: optax.adam(record["learning_rate"] * factor) for name, factor in factors.items()}
    label = lambda params: {name: {"kernel": name if name in factors else "", "bias": ""} for name in params}
    optimizer = optax.multi_transform(adam, label)
    return optax_loops.trained(lambda: optimizer, (), model, record["seed"], X, LABELS, STEPS)[0]


@pytest.mark.slow
def test_a_search_in_lanes_trains_what_optax_trains_with_a_rate_for_each_role_and_resumes(tmp_path):
    """Parameters carry a, which the reference has in its code."""
    names = ["branch_multiplier", "input_lr_factor", "output_lr_factor"]
    arguments = {"tune": names, "trials": 6, "seeds": 1, "learning_rate": (0.01, 0.04), "lanes": 0, "extend": 0}
    first, rest = [], []

    def interrupt(record):
        first.append(record)
        if len(first) == 4:  # in the first box
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        study(plain, workdir=tmp_path).tune(**arguments, on_record=interrupt)
    best = study(plain, workdir=tmp_path).tune(**arguments, on_record=rest.append)
    total = 3 + 6 + 2 * CONFIRM
    assert len(best.records) == total
    assert len({record["run"] for record in best.records}) == total
    assert dict(best) == pytest.approx(dict(study().tune(**arguments)), rel=1e-3)
    points = {tuple(record[name] for name in ("learning_rate", *names)): record for record in best.records}
    for record in list(points.values())[3:6]:
        np.testing.assert_allclose(record["train_loss_avg"], loss_by_optax(record), rtol=2e-5)
