"""Llama 3 of google-tunix, as published, on a text file: tuned at 2 layers, trained at 12, with the rule and without.

    pip install google-tunix && python examples/tunix_llama3.py TEXT_FILE  # of 160 kB or more

Tiny Shakespeare, nats per character at the small model's best rate (2.24): 2.13 +- .03 with, 2.72 +- .15 without (n=5)
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from optax import softmax_cross_entropy_with_integer_labels as cross_entropy
from tunix.models.llama3.model import Llama3, ModelConfig

import depthmup_flax as dm

LENGTH, BATCH, RATES = 32, 16, dm.powers_of_two(-10, -4)
INPUTS = jnp.arange(LENGTH)[None], None, jnp.tril(jnp.ones((1, LENGTH, LENGTH), bool))  # positions, no cache, mask


def llama(size, vocabulary, seed):
    """Tunix's model of (width, layers): more heads, of one size."""
    heads = {"num_heads": size[0] // 16, "num_kv_heads": size[0] // 16, "head_dim": 16}
    sizes = {"embed_dim": size[0], "hidden_dim": 4 * size[0], "num_layers": size[1], "vocab_size": vocabulary}
    return Llama3(ModelConfig(**sizes, **heads, rope_theta=10_000, norm_eps=1e-5), rngs=nnx.Rngs(seed))


def losses(text, size, base=None, rates=RATES, steps=300, seed=0):
    """The mean loss of the last tenth of the steps, for each learning rate. No part of the text is seen twice."""
    windows = np.lib.stride_tricks.sliding_window_view(text, LENGTH + 1)[::LENGTH]
    windows = np.random.default_rng(seed).permutation(windows)[: steps * BATCH].reshape(-1, BATCH, LENGTH + 1)
    model, adam = llama(size, text.max() + 1, seed), optax.adam
    if base:
        rule, small = dm.get_parametrization("depth_mup"), llama(base, text.max() + 1, seed)
        audit = dm.audit(model, small, (windows[0, :, :-1], *INPUTS), output=0)
        nnx.update(model, dm.rescale_init(model, small, audit.info, rule))
        adam = lambda rate: dm.adamw(rate, audit.info, rule)
    graph, start = nnx.split(model)

    @jax.jit
    def train(rate):
        def step(state, window):
            loss = lambda p: cross_entropy(nnx.merge(graph, p)(window[:, :-1], *INPUTS)[0], window[:, 1:]).mean()
            value, gradients = jax.value_and_grad(loss)(state[0])
            updates, moments = adam(rate).update(gradients, state[1], state[0])
            return (optax.apply_updates(state[0], updates), moments), value

        return jax.lax.scan(step, (start, adam(rate).init(start)), windows)[1][-steps // 10 :].mean()

    return [float(train(rate)) for rate in rates]


if __name__ == "__main__":
    characters = np.unique(np.fromfile(sys.argv[1], np.uint8), return_inverse=True)[1]
    for name, *run in (("small", (32, 2)), ("with the rule", (64, 12), (32, 2)), ("without", (64, 12))):
        print(name, dict(zip(RATES, np.round(losses(characters, *run), 3), strict=True)))
