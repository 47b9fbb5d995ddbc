"""The tuner finds a planted optimum, says how certain it is, and writes a config that trains at the tuned values."""

import dataclasses
import json
import math

import pytest
from planted_sweeps import record_with
from processes import ROOT

from depthmup_flax.config.fields import default_config, get_field, set_field
from depthmup_flax.config.files import from_file
from depthmup_flax.config.rescaling import rescale_target
from depthmup_flax.search.tune.choice import best_choice, describe
from depthmup_flax.search.tune.tune_target import derived_file
from depthmup_flax.search.tune.tuning import proxy_config
from depthmup_flax.trainer.engine.config_optimizer import optimizer_kwargs
from depthmup_flax.util.errors import InputError

RATE = "optimizer.learning_rate"


def planted_loss(rate, multiplier, seed):
    """Lowest at rate 3e-3 and multiplier 2."""
    noise = 0.003 * math.sin(seed * 7 + multiplier)
    return 1.0 + 0.05 * math.log2(rate / 3e-3) ** 2 + 0.1 * math.log2(multiplier / 2) ** 2 + noise


def planted_records(rates, multipliers, seeds=(0, 1, 2)):
    path = "parametrization.branch_multiplier"
    return [
        record_with(
            point={RATE: rate, path: multiplier, "seed": seed},
            seed=seed,
            train_loss_avg=planted_loss(rate, multiplier, seed),
        )
        for rate in rates
        for multiplier in multipliers
        for seed in seeds
    ]


def test_the_tuner_recovers_a_planted_optimum_and_says_how_certain_it_is():
    choice = best_choice(planted_records([1e-3 * 2.0**k for k in range(-3, 5)], [0.5, 1.0, 2.0, 4.0]))
    assert choice.values["parametrization.branch_multiplier"] == 2.0
    assert choice.values[RATE] == pytest.approx(3e-3, rel=0.03)
    assert choice.interval[0] <= 3e-3 * 1.03
    assert choice.interval[1] >= 3e-3 * 0.97
    assert choice.warnings == ()
    assert list(choice.around) == [2e-3, 4e-3, 8e-3]
    losses = [f"{loss:.3g} at {rate:g}" for rate, loss in choice.around.items()]
    assert f"Training loss at the nearest learning rates of the grid: {', '.join(losses)}." in describe(
        choice, default_config()
    )


@pytest.mark.parametrize(("apart", "warns"), [(0.1, False), (1.5, True), (3.0, True)])
def test_an_interval_beyond_the_tried_values_says_that_seeds_do_not_agree(apart, warns):
    loss = lambda r: 1.0 + 0.05 * (math.log2(r.point[RATE]) + 7 + apart * (r.seed - 1)) ** 2
    planted = planted_records([2.0**k for k in range(-9, -4)], [2.0])
    records = [dataclasses.replace(record, train_loss_avg=loss(record)) for record in planted]
    choice = best_choice(records)
    assert any("beyond the values that were tried" in warning for warning in choice.warnings) == warns


def test_a_warning_names_what_lies_at_the_edge_of_the_grid():
    edge = best_choice(planted_records([1e-3 * 2.0**k for k in range(-3, 1)], [0.5, 1.0]))
    for warning, field in zip(edge.warnings, (RATE, "parametrization.branch_multiplier"), strict=True):
        assert f"the best {field}, " in warning
        assert "highest of the grid" in warning


def test_the_optimum_may_lie_along_another_axis_and_words_are_no_edges():
    records = planted_records([1e-3 * 2.0**k for k in range(-3, 5)], [0.5, 1.0, 2.0, 4.0])
    worse = [dataclasses.replace(record, train_loss_avg=record.train_loss_avg + 1.0) for record in records]
    named = [
        dataclasses.replace(record, point={**record.point, "optimizer.schedule": schedule})
        for schedule, some in (("constant", worse), ("cosine", records))
        for record in some
    ]
    choice = best_choice(named, "parametrization.branch_multiplier")
    assert choice.values[RATE] == 4e-3
    assert choice.values["optimizer.schedule"] == "cosine"
    assert "95 % interval of the branch multiplier" in describe(choice, default_config())
    assert not choice.warnings


def planted_curve(losses):
    """The optimum of three seeds of equal losses at rates 1e-3, 2e-3, 4e-3, ...; ``None`` for a diverged run."""
    records = planted_records([1e-3 * 2**k for k in range(len(losses))], [1.0])
    of_rate = dict(zip(sorted({record.point[RATE] for record in records}), losses, strict=True))
    return best_choice(
        [
            dataclasses.replace(r, train_loss_avg=loss, status="diverged" if loss is None else "completed")
            for r in records
            for loss in [of_rate[r.point[RATE]]]
        ]
    )


@pytest.mark.parametrize(("beside", "what"), [(500.0, "the loss is 500, against 0.1"), (None, "a run diverges")])
def test_an_instability_next_to_the_best_rate_is_not_called_an_edge(beside, what):
    (warning,) = planted_curve([0.3, 0.1, beside, None]).warnings
    assert f"at 0.004, {what}" in warning
    assert "Consider 0.001" in warning


def test_a_hundredfold_loss_next_to_one_near_zero_is_not_an_instability():
    assert planted_curve([0.3, 0.01, 0.0005, 0.0001, 0.02, 0.1]).warnings == ()


def target_config():
    config = default_config()
    config.model.update(width=32, depth=8, base_width=8, base_depth=2)
    return config


@pytest.mark.parametrize(
    ("fields", "sizes", "message"),
    [
        ({}, (64, 8), "proxy.width is 64"),
        ({}, (32, 8), "proxy.width is 32 and proxy.depth 8"),
        ({"parametrization.preset": "sp"}, (8, 2), "does not transfer"),
        ({"parametrization.preset": "mup"}, (8, 2), "for width alone"),
    ],
)
def test_a_proxy_that_cannot_serve_is_refused(fields, sizes, message):
    config = target_config()
    for path, value in fields.items():
        set_field(config, path, value)
    with pytest.raises(InputError, match=message):
        proxy_config(config, *sizes)


def test_a_search_whose_runs_all_diverge_is_refused():
    with pytest.raises(InputError, match="every run diverged"):
        best_choice([dataclasses.replace(r, status="diverged") for r in planted_records([1e-3, 2e-3], [1.0])])


@pytest.mark.parametrize(("step", "advises"), [(1, False), (7, True)])
def test_the_rate_is_blamed_for_divergence_only_after_an_update(step, advises):
    records = [
        dataclasses.replace(record, status="diverged", diverged_at_step=step)
        for record in planted_records([1e-3, 2e-3], [1.0])
    ]
    with pytest.raises(InputError) as refused:
        best_choice(records)
    assert ("lower optimizer.learning_rate" in str(refused.value)) == advises


def test_the_tuned_file_sets_only_the_fields_that_differ_from_its_parent(tmp_path):
    parent = from_file(ROOT / "configs/cifar10_resnet.py")
    config = parent.copy_and_resolve_references()
    set_field(config, RATE, 0.125)
    set_field(config, "parametrization.gamma0", 2.0)
    path = tmp_path / "tuned.py"
    path.write_text(derived_file(str(ROOT / "configs/cifar10_resnet.py"), config, "Summary."))
    assert path.read_text().count("            '") == 2
    assert json.loads(from_file(path).to_json()) == json.loads(config.to_json())
    assert get_field(from_file(path), RATE) == 0.125
    # Another machine has the shipped config at another path.
    assert "config = from_file('cifar10_resnet')" in path.read_text()


def test_the_tuned_file_calls_its_parent_as_the_target_was_called(tmp_path):
    parent = tmp_path / """a'b"c\\N"\"\"d.py"""
    parent.write_text(
        "from depthmup_flax.config import default_config\n"
        "def get_config(size='small'):\n"
        "    config = default_config('res_mlp')\n"
        "    config.model.width = {'small': 8, 'large': 64}[size]\n"
        "    return config\n"
    )
    config = from_file(parent, "large")
    path = tmp_path / "tuned.py"
    path.write_text(derived_file(f"{parent}:large", config, "Summary."))
    assert from_file(path).model.width == 64


def rescaled(config, **flags):
    """``config`` after `rescale_target` from a run of 100 steps at batch size 32, and the table."""
    proxy, large = config.copy_and_resolve_references(), config.copy_and_resolve_references()
    proxy.train.update(batch_size=32, steps=100)
    return large, rescale_target(proxy, 100, large, 100, **flags)


def test_the_tuned_choice_is_rescaled_to_the_targets_batch_size_and_steps():
    config = default_config()
    config.train.batch_size = 32
    config.optimizer.update(warmup_steps=10, weight_decay=0.1, learning_rate=1e-3)
    large, table = rescaled(config, batch_size=128, steps=50)  # k = 4, d = 2
    assert (large.train.batch_size, large.train.steps, large.optimizer.warmup_steps) == (128, 50, 5)
    assert large.optimizer.learning_rate == pytest.approx(1e-3 * 2, rel=1e-5)  # kept over examples, for the decay
    assert large.optimizer.learning_rate * large.optimizer.weight_decay == pytest.approx(4e-4, rel=1e-5)
    assert optimizer_kwargs(large) == pytest.approx({"b1": 0.6, "b2": 0.996, "eps": 5e-9})
    assert "kept over examples" in table
    config.optimizer.weight_decay = 0.0
    assert rescaled(config, batch_size=128, steps=50)[0].optimizer.learning_rate == pytest.approx(
        1e-3 * 2 * 2**-0.25, rel=1e-5
    )
    config.optimizer.weight_decay = 0.1
    # Without --target.steps the number of examples is that of the target's config.
    assert rescaled(config, batch_size=128)[0].train.steps == 25
    # A tuned.py loads what was set.
    assert "'optimizer.kwargs.b1': 0.6" in derived_file(str(ROOT / "configs/digits.py"), large, "")


def test_only_arguments_of_the_optimizer_are_set():
    config = default_config()
    config.train.batch_size = 32
    config.optimizer.name = "sgd"
    assert optimizer_kwargs(rescaled(config, batch_size=64)[0]) == {}
    config.optimizer.name = "momentum"
    large, _ = rescaled(config, batch_size=64)
    assert optimizer_kwargs(large) == pytest.approx({"momentum": 0.8})
    assert large.optimizer.learning_rate == pytest.approx(4e-3)  # rate / (1 - momentum) doubles


def test_a_target_of_no_examples_or_no_steps_and_an_optimizer_without_a_rule_are_refused():
    config = default_config()
    for name in ("batch_size", "steps"):
        with pytest.raises(InputError, match=f"target.{name} is 0"):
            rescaled(config, **{name: 0})
    config.optimizer.name = "lion"
    with pytest.raises(InputError, match="optimizer is 'lion', of no known rule"):
        rescaled(config, batch_size=64)
