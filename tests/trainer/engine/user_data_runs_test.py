"""Runs on the user's data: in memory, as records and as batches by seed; alone, in lanes, resumed, planned."""

import itertools
import os

import numpy as np
import pytest

from depthmup_flax.config import default_config
from depthmup_flax.data import batch_indices, load
from depthmup_flax.networks.import_paths import register
from depthmup_flax.search.sweep.grid import sweep_config
from depthmup_flax.search.sweep.runner import sweep
from depthmup_flax.trainer.engine.from_config import build
from depthmup_flax.trainer.loop import train_and_evaluate
from depthmup_flax.util.errors import InputError, UserCodeError

RNG = np.random.default_rng(0)
LABELS = np.arange(96) % 3
IMAGES = (RNG.normal(size=(3, 5, 4, 2))[LABELS] + RNG.normal(size=(96, 5, 4, 2))).astype(np.float32)
TEST = IMAGES[80:], LABELS[80:]


def batches(seed):
    """The batches that our order of the first 64 examples gives."""
    for step in itertools.count():
        rows = batch_indices(seed, step, 64, 16)
        yield {"image": IMAGES[rows], "label": LABELS[rows]}


def in_memory():
    return (IMAGES[:64], LABELS[:64]), TEST


def by_seed():
    return batches, {"image": TEST[0], "label": TEST[1]}


def config(data, **train):
    run = default_config()
    run.model.update(width=8, depth=2)
    run.data.name = f"python:{register(data, 'data')}"
    run.train.update(batch_size=16, steps=12, log_every=2, eval_every=4, average_steps=4, **train)
    return run


def losses(record):
    return record["train_loss"], record["test_loss"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return train_and_evaluate(config(in_memory), tmp_path_factory.mktemp("whole"))


def test_batches_by_seed_train_as_the_same_examples_in_memory(whole, tmp_path):
    np.testing.assert_allclose(losses(train_and_evaluate(config(by_seed), tmp_path)), losses(whole), rtol=1e-5)


def test_records_train_as_the_same_examples_in_memory(whole, tmp_path):
    records = lambda: ([*zip(IMAGES[:64], LABELS[:64], strict=True)], [*zip(*TEST, strict=True)])
    run = config(records)
    run.data.placement = "device"
    assert losses(train_and_evaluate(run, tmp_path)) == losses(whole)


def test_a_resumed_run_skips_the_batches_before_its_step(whole, tmp_path):
    failed = str(tmp_path / "failed")

    def interrupted(seed):
        for step, batch in enumerate(batches(seed)):
            if step == 9 and not os.path.exists(failed):
                open(failed, "w").close()
                raise OSError("storage")
            yield batch

    run = config(lambda: (interrupted, by_seed()[1]))
    with pytest.raises(UserCodeError, match="storage"):
        train_and_evaluate(run, tmp_path / "run")
    np.testing.assert_allclose(losses(train_and_evaluate(run, tmp_path / "run")), losses(whole), rtol=1e-5)


def test_without_a_test_split_nothing_is_evaluated(whole, tmp_path):
    run = config(lambda: (in_memory()[0], None))
    rate = run.optimizer.learning_rate
    grids = {"rates": {"optimizer.learning_rate": (rate, 2 * rate), "seed": (0,)}}
    records = sweep(sweep_config(run, grids, figure="own", title="Own.", scale="smoke"), tmp_path / "s", lanes=0)
    assert [record.status for record in records] == ["completed"] * 2
    assert [record.test_loss for record in records] == [None] * 2
    (same,) = (record for record in records if record.point["optimizer.learning_rate"] == rate)
    assert same.train_loss == pytest.approx(whole["train_loss"], rel=1e-4)


@pytest.mark.slow
def test_lanes_of_several_seeds_train_as_runs_alone(tmp_path):
    grids = {"rates": {"optimizer.learning_rate": (1e-3,), "seed": (0, 1)}}
    swept = sweep_config(config(by_seed), grids, figure="own", title="Own.", scale="smoke")
    records = sweep(swept, tmp_path / "s", lanes=0)
    assert len(records) == 2
    for record in records:
        run = config(by_seed)
        run.optimizer.learning_rate, run.seed = record.point["optimizer.learning_rate"], record.point["seed"]
        alone = train_and_evaluate(run, tmp_path / record.run)
        np.testing.assert_allclose((record.train_loss, record.test_loss), losses(alone), rtol=1e-4)


@pytest.mark.slow
def test_our_language_model_trains_on_their_tokens(tmp_path):
    tokens = np.arange(3000).reshape(100, 30) % 7
    run = default_config("gpt")
    run.model.update(width=16, depth=1, num_heads=2)
    split = lambda key, batch: (batch["tokens"][:, :-1], batch["tokens"][:, 1:])
    run.data.name = f"python:{register(({'tokens': tokens[:80]}, {'tokens': tokens[80:]}, split), 'data')}"
    run.data.augment = "none"
    run.train.update(batch_size=16, steps=20, eval_every=20)
    assert train_and_evaluate(run, tmp_path)["test_loss"] < np.log(7)


@pytest.mark.parametrize(
    ("data", "change", "says"),
    [
        (by_seed, lambda run: run.train.update(steps=0), ["train.steps is 0", "1000"]),
        (by_seed, lambda run: run.train.update(batch_size=8), ["train.batch_size is 8", "=16"]),
        (lambda: ((np.zeros((32, 3)), np.zeros((32, 2))), None), lambda run: None, ["model.name is 'res_mlp'"]),
        (lambda: (batches, None), lambda run: None, ["number of classes"]),
    ],
)
def test_what_cannot_be_trained_is_one_sentence_before_anything_is_compiled(data, change, says):
    run = config(data)
    change(run)
    with pytest.raises(InputError) as caught:
        build(run, load=load)
    assert all(part in str(caught.value) for part in says), caught.value
