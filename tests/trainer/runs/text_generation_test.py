"""Tokens drawn from a model: those of a loop by hand, and their frequencies."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from depthmup_flax import create_model, get_parametrization
from depthmup_flax.trainer.engine.network import our_functions
from depthmup_flax.trainer.runs.text_generation import generate


class Counter(nn.Module):
    """The next token is surely the last one plus the first one that the model sees, modulo 7."""

    @nn.compact
    def __call__(self, tokens, *, train=False):
        assert tokens.dtype == jnp.int32
        return 1e4 * jax.nn.one_hot((tokens + tokens[:, :1]) % 7, 7)


def by_hand(prompt, length, context):
    tokens = list(prompt)
    for _ in range(length):
        seen = tokens[-context:]
        tokens.append((seen[-1] + seen[0]) % 7)
    return tokens[len(prompt) :]


@pytest.mark.parametrize("prompt", [[3], [1, 2], [4, 5, 6, 1], [4, 5, 6, 1, 2, 3]])
@pytest.mark.parametrize("context", [1, 4])
def test_a_sample_is_that_of_a_loop_over_the_last_tokens_written_by_hand(prompt, context):
    tokens = generate(our_functions(Counter()), ({}, {}), prompt, 12, key=jax.random.key(0), context=context)
    assert (tokens.shape, tokens.dtype) == ((12,), np.int32)
    np.testing.assert_array_equal(tokens, by_hand(prompt, 12, context))


def test_a_sample_of_a_gpt_does_not_depend_on_what_pads_its_buffer():
    model = create_model("gpt", num_classes=7, rule=get_parametrization("depth_mup"), width=8, depth=1, num_heads=1)
    shapes = jax.eval_shape(lambda: nn.unbox(model.init(jax.random.key(1), jnp.zeros((1, 4), jnp.int32))))
    # Random numbers would take long to compile.
    variables = jax.tree.map(lambda x: jnp.sin(jnp.arange(1.0, x.size + 1).reshape(x.shape)), shapes)

    @jax.jit
    def draw(key, tokens):
        return jax.random.categorical(key, model.apply(variables, tokens)[0, -1] / 0.5)

    tokens, prompt = [], [1, 2, 3]
    for key in jax.random.split(jax.random.key(0), 12):
        seen = [*prompt, *tokens][-4:]
        tokens.append(int(draw(key, jnp.array([seen], jnp.int32))))
    ours = generate(
        our_functions(model), (variables["params"], {}), prompt, 12, key=jax.random.key(0), context=4, temperature=0.5
    )
    np.testing.assert_array_equal(ours, tokens)


class Fixed(nn.Module):
    """Logits that do not depend on the input."""

    @nn.compact
    def __call__(self, tokens, *, train=False):
        logits = self.param("logits", nn.initializers.zeros, (5,))
        return logits * jnp.ones((*tokens.shape, 5))


def test_frequencies_of_a_sample_are_the_softmax_at_its_temperature():
    model = Fixed()
    variables = {"params": {"logits": jnp.array([0.0, 0.5, 1.0, 1.5, 2.0])}}
    for temperature in (0.5, 1.0):
        functions, given = our_functions(model), (variables["params"], {})
        tokens = generate(functions, given, [0], 4000, key=jax.random.key(0), context=2, temperature=temperature)
        expected = jax.nn.softmax(variables["params"]["logits"] / temperature)
        # Five standard deviations of a frequency.
        np.testing.assert_allclose(np.bincount(tokens, minlength=5) / 4000, expected, atol=5 * 0.5 / 4000**0.5)
