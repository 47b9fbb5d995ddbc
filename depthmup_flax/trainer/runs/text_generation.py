"""Text from a language model, token by token."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from depthmup_flax.data import TextDataset
from depthmup_flax.models.base import LanguageModel
from depthmup_flax.networks.model_functions import ModelFunctions
from depthmup_flax.nn.layers import LogitFactors
from depthmup_flax.trainer.engine.experiment import NetworkExperiment
from depthmup_flax.trainer.engine.workload import TrainState
from depthmup_flax.util.types import ArrayTree

# The text at the end of a run. A temperature below 1 makes a small model's text more orderly.
SAMPLE_TOKENS = 300
SAMPLE_TEMPERATURE = 0.8


def generate(
    functions: ModelFunctions,
    variables: tuple[ArrayTree, ArrayTree],
    prompt: np.ndarray | jax.Array | Sequence[int],
    length: int,
    *,
    key: jax.Array,
    context: int,
    temperature: float = 1.0,
) -> np.ndarray:
    """Continues ``prompt`` by ``length`` tokens (int32 ``[length]``), each drawn from the model's softmax.

    A compiled loop over a buffer of ``context`` tokens, filled from the left, as a causal model ignores what follows
    the last token. A full buffer drops its oldest token.

    Args:
      functions: of a causal model, which maps int32 ``[1, context]`` to logits ``[1, context, V]``.
      variables: parameters and state.
      prompt: tokens ``[P]``, at least one; the model sees the last ``context`` of them.
      length: number of tokens to draw.
      key: PRNG key.
      context: number of tokens that the model sees, at most as many as it was initialized with.
      temperature: divides the logits; below 1, likely tokens become likelier.
    """

    def draw(variables: tuple[ArrayTree, ArrayTree], buffer: jax.Array, used: jax.Array, key: jax.Array) -> jax.Array:
        def step(carry: tuple[jax.Array, jax.Array], key: jax.Array) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
            buffer, used = carry
            logits_V = _logits(functions, variables, buffer, used - 1)
            token = jax.random.categorical(key, logits_V / temperature).astype(buffer.dtype)
            buffer = jnp.where(used == context, jnp.roll(buffer, -1), buffer)
            used = jnp.minimum(used + 1, context)
            return (buffer.at[used - 1].set(token), used), token

        return jax.lax.scan(step, (buffer, used), jax.random.split(key, length))[1]

    seen = np.asarray(prompt)[-context:]
    buffer = np.zeros(context, np.int32)
    buffer[: len(seen)] = seen
    return np.asarray(jax.jit(draw)(variables, buffer, np.int32(len(seen)), key))


def _logits(
    functions: ModelFunctions, variables: tuple[ArrayTree, ArrayTree], tokens_T: jax.Array, position: jax.Array
) -> jax.Array:
    """``[V]``: the logits at one position; a `LanguageModel` computes no others."""
    flags = {"factors": True} if isinstance(functions.linen, LanguageModel) else {}
    outputs, _ = functions.apply(*variables, tokens_T[None], train=False, key=None, **flags)
    if not flags:
        return outputs[0, position]
    factors: LogitFactors = outputs
    return dataclasses.replace(factors, x=factors.x[:, position]).product()[0]


def sample_text(experiment: NetworkExperiment, dataset: TextDataset, state: TrainState) -> str:
    """The text of a language model after a newline; a function of its parameters and seed."""
    tokens = generate(
        experiment.functions(experiment.rule),
        (state.carry.params, state.carry.collections),
        [dataset.tokenizer.newline],
        SAMPLE_TOKENS,
        key=jax.random.key(experiment.config.seed),
        context=dataset.context,
        temperature=SAMPLE_TEMPERATURE,
    )
    return dataset.tokenizer.decode(tokens)
