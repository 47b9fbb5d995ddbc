"""Attention of infinite width in training against networks of the package's own layers."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import depthmup_flax as dm
from depthmup_flax.nn.attention import SelfAttention
from depthmup_flax.nn.blocks import TransformerConfig
from depthmup_flax.nn.layers import STEM, Dense, Readout
from depthmup_flax.util.errors import InputError
from reproduction.theory import attention_training

pytestmark = pytest.mark.usefixtures("float64")

X = 2 * np.random.default_rng(0).normal(size=(2, 3, 4))  # two examples of three tokens, so large that attention moves
Y = np.array([1.0, -1.0])
HEAD_DIM, DEPTH, STEPS, RATE, GAMMA0 = 2, 2, 5, 0.04, 4.0


def training(**fields):
    return attention_training(
        X, Y,
        **{"head_dim": HEAD_DIM, "steps": STEPS, "depth": DEPTH, "learning_rate": RATE, "gamma0": GAMMA0, **fields},
    )  # fmt: skip


class Attention(nn.Module):
    """The theory's network at base width ``HEAD_DIM``, one head."""

    width: int
    rule = dm.get_parametrization("depth_mup", gamma0=GAMMA0 * HEAD_DIM**0.5)

    @nn.compact
    def __call__(self, x):
        config = TransformerConfig(
            rule=self.rule, depth_ratio=DEPTH, norm="none", num_heads=self.width // HEAD_DIM, causal=True
        )
        h = Dense(self.width, STEM, name="stem")(x)
        for layer in range(DEPTH):
            h = config.residual(SelfAttention(config, name=f"attention_{layer}"))(h)
        return Readout(1, self.rule, self.width / HEAD_DIM, name="readout")(h.mean(1))[:, 0]


def of_networks(width, count, frozen):
    """(count, STEPS, P) outputs before every step. The rule's rate is eta_0 gamma0^2 times the base width."""
    model, x = Attention(width), jnp.asarray(X)
    info = dm.audit(model, Attention(HEAD_DIM), x, in_code=[model.rule]).info
    optimizer = dm.freeze(dm.sgd(RATE / HEAD_DIM, info, model.rule), info, ["stem", "readout", *frozen])
    loss = lambda params: jnp.mean((model.apply({"params": params}, x) - Y) ** 2) / 2

    def run(key):
        def step(carry, _):
            params, state = carry
            updates, state = optimizer.update(jax.grad(loss)(params), state)
            return (optax.apply_updates(params, updates), state), model.apply({"params": params}, x)

        params = jax.tree.map(lambda w: w.astype(jnp.float64), nn.unbox(model.init(key, x))["params"])
        return jax.lax.scan(step, (params, optimizer.init(params)), length=STEPS)[1]

    keys = jax.random.split(jax.random.key(width), count)
    return np.asarray(jax.jit(lambda keys: jax.lax.map(run, keys, batch_size=32))(keys))


@pytest.mark.slow
def test_our_attention_approaches_the_limit_as_one_over_width_and_without_training_queries_it_does_not():
    limit = np.asarray(training(causal=True, populations=16).mean.outputs)
    single, frozen = {}, {}
    for width, count in ((64, 128), (256, 32)):
        single[width] = np.mean((of_networks(width, count, []) - limit) ** 2)
        without = of_networks(width, count, ["attention_*/query"])
        frozen[width] = np.mean((without.mean(0) - limit) ** 2)
    power = lambda errors: np.log(errors[256] / errors[64]) / np.log(4)
    assert abs(power(single) + 1) < 0.2, single
    assert power(frozen) > -0.6, frozen  # the square of a mean's error would fall as width^-2


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"head_dim": 0}, "head_dim is 0"),
        ({"samples": 50}, "samples is 50: use an even number of at least"),
        ({"samples": 3002, "head_dim": 4}, "samples is 3002: use a multiple of 8"),
        ({"gamma0": 0.0}, "gamma0 is 0.0: use a positive number"),
    ],
)
def test_bad_input_is_one_sentence(fields, sentence):
    with pytest.raises(InputError, match=sentence):
        training(**fields)
