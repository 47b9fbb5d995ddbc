"""A search says where its proxy's random start is large beside what it learns."""

import numpy as np
import pytest
from small_runs import small_base

from depthmup_flax.config import default_config
from depthmup_flax.data import LoadOnce
from depthmup_flax.search.tune.searches import Search
from depthmup_flax.search.tune.start import excess_at_start, is_large, start_warning
from depthmup_flax.search.tune.tuning import tune
from depthmup_flax.trainer.engine.from_config import build

RATE = "optimizer.learning_rate"
SENTENCE = "above that of equal logits"


def with_readout(zero):
    """A proxy of 128 examples, whose readout starts at zero or at random."""
    base = small_base(zero_init_readout=zero)
    base.train.eval_batch_size = 64
    return base


def test_the_excess_is_the_mean_cross_entropy_of_fresh_networks_minus_that_of_equal_logits():
    experiment = build(with_readout(zero=False), load=LoadOnce())
    batch = experiment.dataset.train.read(np.arange(128))
    inputs, labels = experiment.prepare(None, batch)
    losses = []
    for seed in (3, 4):
        params = experiment.init({"seed": seed}).carry.params
        logits = np.asarray(experiment.network.model.apply({"params": params}, inputs), np.float64)
        own = np.take_along_axis(logits, np.asarray(labels)[:, None], 1)[:, 0]
        losses.append(np.mean(np.log(np.exp(logits).sum(1)) - own))
    assert excess_at_start(experiment, (3, 4)) == pytest.approx(np.mean(losses) - np.log(10), abs=1e-4)


def test_a_readout_at_zero_starts_at_equal_logits_and_a_random_one_does_not():
    excess = [excess_at_start(build(with_readout(zero), load=LoadOnce()), (0, 1, 2)) for zero in (True, False)]
    assert abs(excess[0]) < 1e-5 < 0.2 < excess[1]


def test_a_tenth_of_what_is_learned_is_the_limit():
    assert is_large(excess=0.41, learned=0.4)
    assert not is_large(excess=0.39, learned=0.4)


@pytest.mark.parametrize(("frozen", "advised"), [((), True), (("readout",), False)])
def test_zero_is_not_advised_for_a_readout_that_may_be_frozen(frozen, advised):
    base = with_readout(zero=False)
    base.optimizer.frozen = frozen
    warning = start_warning(build(base, load=LoadOnce()), (0,), lowest=1.0)
    assert SENTENCE in warning
    assert ("zero_init_readout" in warning) == advised


def test_a_readout_at_zero_is_no_large_start_where_classes_are_not_equally_frequent(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("aaaaaaabaaaaaaac" * 64)
    base = small_base("gpt", num_heads=2, zero_init_readout=True)
    base.data = default_config("gpt").data
    base.data.update(name=f"text:{text}", context=8)
    base.train.eval_batch_size = 32
    assert abs(excess_at_start(build(base, load=LoadOnce()), (0,))) < 1e-5


@pytest.mark.parametrize(("zero", "warns"), [(False, True), (True, False)])
def test_a_search_warns_of_a_large_start_and_not_of_a_readout_at_zero(tmp_path, zero, warns):
    proxy = with_readout(zero)
    proxy.train.update(steps=60, average_steps=10)
    search = Search({RATE: (1e-3, 4e-3, 1.6e-2)}, seeds=(0,), extend=0)
    best = tune(proxy, search, tmp_path, objective="train")
    assert (SENTENCE in repr(best)) == warns


def test_nothing_is_measured_for_a_loss_without_a_constant_guess():
    base = with_readout(zero=False)
    base.loss = "optax:softmax_cross_entropy_with_integer_labels"
    assert excess_at_start(build(base, load=LoadOnce()), (0,)) is None
