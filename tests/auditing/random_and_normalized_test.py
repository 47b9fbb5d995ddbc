"""Random masks, and weights that are normalized or stored in few bits, are no multipliers and hide none."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from edited_nets import DEPTH, RIGHT_AND_WRONG, RULE, WIDTH, audited, said

from depthmup_flax import audit


def keep(module, i):
    """A keep rate that falls with the number of the block, as in stochastic depth."""
    return 1 - 0.3 * i / (module.depth - 1)


def random_number(y, module):
    return jax.random.uniform(module.make_rng("dropout"), (y.shape[0], 1))


def where(y, module, i):
    return jnp.where(random_number(y, module) < keep(module, i), y / keep(module, i), 0)


def product(y, module, i):
    return y * (random_number(y, module) >= 1 - keep(module, i)) / keep(module, i)


def floor(y, module, i):
    return y / keep(module, i) * jnp.floor(keep(module, i) + random_number(y, module))


def without_rate(y, module, i):
    return y * (random_number(y, module) < keep(module, i))


def of_all_examples(y, module, i):
    kept = jax.random.bernoulli(module.make_rng("dropout"), keep(module, i))
    return jax.lax.cond(kept, lambda: y / keep(module, i), lambda: jnp.zeros_like(y))


def dropout(y, module, i):
    return nn.Dropout(1 - keep(module, i), broadcast_dims=(1,), deterministic=False)(y)


class ScaledWeight(nn.Module):
    """A matrix times a vector of scales, over the norm of each column."""

    features: int

    @nn.compact
    def __call__(self, x):
        kernel = self.param("kernel", nn.initializers.lecun_normal(), (x.shape[-1], self.features))
        centered = kernel - kernel.mean(0)
        kernel = centered / jnp.sqrt((centered**2).mean(0) * x.shape[-1] + 1e-4)
        return x @ (kernel * self.param("gain", nn.initializers.ones, (self.features,)))


def spectral(features, name):
    layer = nn.SpectralNorm(nn.Dense(features, name=name), name=f"sn_{name}")
    return lambda x: layer(x, update_stats=True)


def layer_scale(shape):
    return lambda y, module, i: y * module.param(f"scale_{i}", nn.initializers.constant(1e-4), shape(module))


KINDS = {
    "stochastic_depth": {"end": where},
    "stochastic_depth_product": {"end": product},
    "stochastic_depth_floor": {"end": floor},
    "stochastic_depth_without_rate": {"end": without_rate},
    "stochastic_depth_of_all": {"end": of_all_examples},
    "dropout": {"end": dropout, "middle": dropout},
    "spectral_norm": {"dense": spectral},
    "weight_norm": {"dense": lambda n, name: nn.WeightNorm(nn.Dense(n, name=name), name=f"wn_{name}")},
    "weight_standardization": {"dense": lambda n, name: ScaledWeight(n, name=name)},
    "layer_scale": {"end": layer_scale(lambda module: (module.width,))},
    "rezero": {"end": layer_scale(lambda module: ())},
    "fp8": {"dense": lambda n, name: nn.Dense(n, name=name, dot_general_cls=nn.Fp8DotGeneralOp)},
    "fp8_direct": {"dense": lambda n, name: nn.Dense(n, name=name, dot_general_cls=nn.Fp8DirectDotGeneralOp)},
}


QUICK = ("stochastic_depth", "stochastic_depth_without_rate", "dropout", "weight_standardization", "rezero")


@pytest.mark.parametrize("kind", [k if k in QUICK else pytest.param(k, marks=pytest.mark.slow) for k in KINDS])
def test_masks_and_normalized_weights_pass_and_hide_no_mistake(kind):
    assert {edit: said(audited(edit, **KINDS[kind])) for edit in RIGHT_AND_WRONG} == RIGHT_AND_WRONG


class Scanned(nn.Module):
    """Stochastic depth with a rate that is scanned over: a number that the code does not hold."""

    width: int
    depth: int
    edit: str = ""
    uses_rate: str = "mask"

    @nn.compact
    def __call__(self, x):
        layers = nn.scan(Layer, {"params": 0}, split_rngs={"params": True, "dropout": True}, length=self.depth)
        c = 1.0 if self.edit == "no_multiplier" else float(RULE.residual_multiplier(self.depth / DEPTH))
        h, _ = layers(self.width, c, self.uses_rate, name="layers")(
            nn.Dense(self.width, name="stem")(x), jnp.linspace(0.1, 0.4, self.depth)
        )
        return nn.Dense(8, name="head")(h * RULE.readout_multiplier(self.width / WIDTH))


class Layer(nn.Module):
    width: int
    multiplier: float
    uses_rate: str

    @nn.compact
    def __call__(self, h, rate):
        y = nn.Dense(self.width, name="dense")(nn.relu(nn.LayerNorm(name="norm")(h)))
        if self.uses_rate == "mask":
            y = jnp.where(jax.random.bernoulli(self.make_rng("dropout"), 1 - rate, (len(h), 1)), y / (1 - rate), 0)
        else:
            y = y * rate
        return h + self.multiplier * y, None


def test_a_keep_rate_that_is_an_array_cancels_and_any_other_number_of_an_array_is_not_judged():
    assert said(audited(model=Scanned)) == "ok"
    assert said(audited("no_multiplier", model=Scanned)) == "missing_branch_multiplier"
    result = audited(model=Scanned, uses_rate="factor")
    assert result.verdict == "not judged"
    assert {"layers/dense/kernel"} <= set(result.not_judged[0].paths)


def test_a_factor_of_the_width_inside_a_branch_is_found():
    assert said(audited("root_inside")) == "hidden_scaled_with_width"


def test_a_number_in_the_state_that_does_not_cancel_is_not_judged():
    def times_state(y, module, i):
        return y * module.variable("constants", f"c_{i}", lambda: jnp.ones(())).value

    assert audited(end=times_state).verdict == "not judged"


def test_a_norm_of_a_whole_matrix_hides_its_size_and_is_not_judged():
    class OverNorm(nn.Module):
        features: int

        @nn.compact
        def __call__(self, x):
            kernel = self.param("kernel", nn.initializers.lecun_normal(), (x.shape[-1], self.features))
            return x @ (kernel / jnp.linalg.norm(kernel))

    assert audited(dense=lambda n, name: OverNorm(n, name=name)).verdict == "not judged"


def test_a_learned_scalar_before_the_readout_is_no_factor():
    def forward(params, x):
        h = x @ params["stem"] * RULE.readout_multiplier(params["stem"].shape[1] / WIDTH)
        return h * jnp.exp(params["scale"]) @ params["head"]

    model, base = (
        (forward, {"stem": jnp.ones((8, n)), "scale": jnp.zeros(()), "head": jnp.ones((n, 5))})
        for n in (2 * WIDTH, WIDTH)
    )
    assert audit(model, base, jnp.ones((4, 8))).ok
