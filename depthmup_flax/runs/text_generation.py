"""Text from a language model, token by token."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from depthmup_flax.data import TextDataset
from depthmup_flax.engine.experiment import Experiment
from depthmup_flax.engine.step import TrainState
from depthmup_flax.models.base import LanguageModel
from depthmup_flax.nn.layers import LogitFactors
from depthmup_flax.util.errors import InputError
from depthmup_flax.util.types import ArrayTree

# The text at the end of a run. A temperature below 1 makes a small model's text more orderly.
SAMPLE_TOKENS = 300
SAMPLE_TEMPERATURE = 0.8


def generate(
    model: nn.Module,
    variables: ArrayTree,
    prompt: np.ndarray | jax.Array | Sequence[int],
    length: int,
    *,
    key: jax.Array,
    context: int,
    temperature: float = 1.0,
) -> np.ndarray:
    """Continues ``prompt`` by ``length`` tokens (int32 ``[length]``), each drawn from the model's softmax.

    One compiled loop over a buffer of ``context`` tokens, filled from the left: a causal model ignores what follows the
    last token. A full buffer drops its oldest token.

    Args:
      model: causal; ``model.apply(variables, tokens, train=False)`` maps int32 ``[1, context]`` to logits
        ``[1, context, V]``.
      variables: of the model, without annotations.
      prompt: tokens ``[P]``, at least one; the model sees the last ``context`` of them.
      length: number of tokens to draw.
      key: PRNG key.
      context: number of tokens that the model sees, at most as many as it was initialized with.
      temperature: divides the logits; below 1, likely tokens become likelier.

    Raises:
      InputError: an argument outside its range, an empty prompt, or a token outside the model's vocabulary.
    """
    for name, value in {"length": length, "context": context}.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise InputError(f"{name} is {value!r}: use a whole number of at least 1.")
    if not (isinstance(temperature, (int, float)) and 0 < temperature < math.inf):
        raise InputError(f"temperature is {temperature!r}: use a number above 0, such as 1.0.")
    given = np.asarray(prompt)
    if given.ndim != 1 or not given.size or not np.issubdtype(given.dtype, np.integer):
        raise InputError(f"prompt has shape {given.shape}, type {given.dtype}: give at least one token, integers [P].")
    tokens = jax.ShapeDtypeStruct((1, context), jnp.int32)
    vocab_size = jax.eval_shape(lambda v, x: model.apply(v, x, train=False), variables, tokens).shape[-1]
    bad = given[(given < 0) | (given >= vocab_size)]
    if bad.size:
        raise InputError(f"prompt has the token {bad[0]}: use 0..{vocab_size - 1}, the vocabulary of the model.")

    def draw(variables: ArrayTree, buffer: jax.Array, used: jax.Array, key: jax.Array) -> jax.Array:
        def step(carry: tuple[jax.Array, jax.Array], key: jax.Array) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
            buffer, used = carry
            logits_V = _logits(model, variables, buffer, used - 1)
            token = jax.random.categorical(key, logits_V / temperature).astype(buffer.dtype)
            buffer = jnp.where(used == context, jnp.roll(buffer, -1), buffer)
            used = jnp.minimum(used + 1, context)
            return (buffer.at[used - 1].set(token), used), token

        return jax.lax.scan(step, (buffer, used), jax.random.split(key, length))[1]

    seen = given[-context:]
    buffer = np.zeros(context, np.int32)
    buffer[: len(seen)] = seen
    return np.asarray(jax.jit(draw)(variables, buffer, np.int32(len(seen)), key))


def _logits(model: nn.Module, variables: ArrayTree, tokens_T: jax.Array, position: jax.Array) -> jax.Array:
    """``[V]``: the logits at one position, without those of the others if the model can leave them out."""
    apply: Callable[..., Any] = functools.partial(model.apply, variables, tokens_T[None], train=False)
    if not isinstance(model, LanguageModel):
        return apply()[0, position]
    factors: LogitFactors = apply(factors=True)
    return dataclasses.replace(factors, x=factors.x[:, position]).product()[0]


def sample_text(experiment: Experiment, dataset: TextDataset, state: TrainState) -> str:
    """What a language model writes after a line's end; a function of its parameters and seed."""
    tokens = generate(
        experiment.model,
        {"params": state.params, "batch_stats": state.batch_stats},
        [dataset.tokenizer.newline],
        SAMPLE_TOKENS,
        key=jax.random.key(experiment.config.seed),
        context=dataset.context,
        temperature=SAMPLE_TEMPERATURE,
    )
    return dataset.tokenizer.decode(tokens)


def printable(text: str) -> str:
    """``text`` without control characters, which a terminal would obey."""
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)
