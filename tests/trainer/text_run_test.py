"""Training a GPT on a text: it learns and resumes bit for bit, and its dropout is its own."""

import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from data_sets import error, load
from interruption import interrupted_before
from small_runs import assert_same_run

from benchmarks.train_step import make_train_step
from depthmup_flax import data
from depthmup_flax.config import default_config
from depthmup_flax.trainer.engine.from_config import build
from depthmup_flax.trainer.engine.losses import CROSS_ENTROPY
from depthmup_flax.trainer.engine.task import Means, batch_key, step_key
from depthmup_flax.trainer.loop import train_and_evaluate

PATTERN = "the rain in spain stays mainly in the plain.\n"


@pytest.fixture
def pattern(tmp_path):
    path = tmp_path / "pattern.txt"
    path.write_text(PATTERN * 200)
    return path


def tiny(path, **sections):
    config = default_config("gpt")
    config.model.update(width=32, depth=1, num_heads=2, dropout=0.1)
    config.data.update(name=f"text:{path}", context=24, augment="shift")
    config.train.update(batch_size=16, steps=8, eval_every=4, log_every=2)
    for section, fields in sections.items():
        config[section].update(fields)
    return config


@pytest.mark.slow
def test_a_gpt_learns_a_repeated_line(pattern, tmp_path, logged):
    result = train_and_evaluate(
        tiny(pattern, optimizer={"learning_rate": 5e-3}, train={"steps": 150, "eval_every": 150, "log_every": 50}),
        tmp_path / "run",
    )
    assert result["status"] == "completed"
    assert result["test_loss"] < 0.2 * math.log(len(set(PATTERN)))
    assert result["test_accuracy"] > 0.9
    printed = logged.text
    assert f"examples of 24 tokens, vocabulary {len(set(PATTERN))}, on the device" in printed
    assert " tokens/s" in printed
    metrics = (tmp_path / "run" / "metrics.jsonl").read_text()
    assert "tokens_per_s" in metrics
    assert "images" not in printed + metrics


@pytest.mark.slow
def test_a_resumed_text_run_is_bit_identical_with_dropout_and_shifts(pattern, tmp_path):
    config = tiny(pattern, data={"placement": "stream"})
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train_and_evaluate(config, whole)
    with interrupted_before(6):
        train_and_evaluate(config, parts)
    train_and_evaluate(config, parts)
    assert_same_run(whole, parts)


class Probe(nn.Module):
    """Logits that do not depend on the input, under dropout."""

    vocab_size: int = 5

    @nn.compact
    def __call__(self, tokens, *, train=False):
        logits = self.param("logits", nn.initializers.normal(), (self.vocab_size,))
        ones = jnp.ones((*tokens.shape, self.vocab_size))
        return logits * nn.Dropout(0.5, deterministic=not train)(ones)


def probe_losses(steps, seed):
    prepare = lambda key, batch: (batch["x"], batch["x"])
    init, step = make_train_step(Probe(), optax.sgd(0.0), prepare=prepare, seed=seed)
    step = jax.jit(step)
    state = jax.jit(lambda: init(jax.ShapeDtypeStruct((1, 8), jnp.int32)))()
    batch = {"x": jnp.zeros((4, 8), jnp.int32)}
    losses = []
    for _ in range(steps):
        state, _ = step(state, batch)
        losses.append(float(state.last_loss))
    return losses


def test_dropout_differs_from_step_to_step_and_seed_to_seed_and_repeats():
    losses = probe_losses(3, seed=0)
    assert len(set(losses)) == 3
    assert probe_losses(3, seed=0) == losses
    assert probe_losses(1, seed=1) != losses[:1]


def test_the_key_of_dropout_is_none_that_augmentation_uses():
    steps = jnp.arange(64)
    prepares = jax.vmap(lambda step: batch_key(0, step))(steps)
    of_examples = jax.vmap(lambda key: jax.random.split(key, 4))(prepares)
    augmentation = jax.random.key_data(jnp.concatenate([prepares, of_examples.ravel()]))
    dropout = jax.random.key_data(jax.vmap(lambda step: step_key(0, step))(steps))
    assert not {*map(tuple, dropout.tolist())} & {*map(tuple, augmentation.tolist())}


@pytest.fixture
def file(tmp_path):
    """1000 random characters."""
    path = tmp_path / "text.txt"
    path.write_text("".join(np.random.default_rng(0).choice(list("abcd e\n"), 1000)))
    return path


@pytest.mark.slow
def test_the_test_loss_is_the_mean_over_all_tokens_whatever_the_batch_size(file):
    dataset = load(f"text:{file}", context=16)
    model = Probe(vocab_size=dataset.num_classes)
    variables = model.init(jax.random.key(0), jnp.zeros((1, 16), jnp.int32))

    @jax.jit
    def step(batch):
        inputs, labels = dataset.prepare("shift", None, batch)
        return CROSS_ENTROPY.evaluate(model.apply(variables, inputs), labels, batch["mask"])

    inputs, labels = dataset.prepare("none", None, dataset.test.arrays())
    logits = model.apply(variables, inputs)
    expected = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
    for batch_size in (1, 4, 6):
        batches = data.eval_batches(dataset.test, batch_size)
        values = functools.reduce(Means.merge, map(step, batches)).means()
        assert float(values["loss"]) == pytest.approx(float(expected), rel=1e-5)
        assert float(values["accuracy"]) == pytest.approx(float((logits.argmax(-1) == labels).mean()), rel=1e-5)


def test_a_model_that_does_not_read_the_data_is_refused(file):
    gpt, mlp = default_config("gpt"), default_config()
    mlp.data.name = f"text:{file}"
    assert "model.name is 'gpt', which reads text" in error(build, gpt)
    assert "model.name is 'res_mlp', which reads images" in error(build, mlp)
