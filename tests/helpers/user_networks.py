"""One residual network, and a decoder, in the style of each library; ``edit`` names what its forward pass lacks."""

import equinox as eqx
import flax.linen as nn
import haiku as hk
import jax
import jax.numpy as jnp
from flax import nnx

import depthmup_flax as dm

RULE = dm.get_parametrization("depth_mup")
WIDTH, DEPTH = 16, 2  # of the base
VECTORS = jax.ShapeDtypeStruct((6, 5), jnp.float32)
TOKENS = jax.ShapeDtypeStruct((2, 6), jnp.int32)


def branch_factor(depth, edit):
    return 1.0 if edit in ("no_branch", "bent") else RULE.residual_multiplier(depth / DEPTH)


def end(y, edit):
    """Of a branch: of a nonlinearity, no parameter carries the factor."""
    return jnp.tanh(y) if edit == "bent" else y


def readout_factor(width, edit):
    return 1.0 if edit == "no_readout" else RULE.readout_multiplier(width / WIDTH)


class RuleNet(nn.Module):
    """Takes the rule that a Study gives it; its base is 8 x 2."""

    width: int
    depth: int
    rule: dm.Parametrization

    @nn.compact
    def __call__(self, x):
        h = nn.Dense(self.width)(x)
        for _ in range(self.depth):
            h = h + self.rule.residual_multiplier(self.depth / 2) * nn.Dense(self.width)(nn.relu(h))
        return nn.Dense(3)(h * self.rule.readout_multiplier(self.width / 8))


class PlainNet(nn.Module):
    """Has no factor of any rule: its parameters carry them."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        h = nn.Dense(self.width, name="stem")(x)
        for i in range(self.depth):
            h = h + nn.Dense(self.width, name=f"block_{i}")(nn.relu(h))
        return nn.Dense(3, name="head")(h)


class NnxRuleNet(nnx.Module):
    """Keeps a number of the rule as an attribute."""

    def __init__(self, width, depth, rule, *, rngs):
        self.stem, self.head = nnx.Linear(5, width, rngs=rngs), nnx.Linear(width, 3, rngs=rngs)
        self.block = nnx.List([nnx.Linear(width, width, rngs=rngs) for _ in range(depth)])
        self.multiplier = rule.residual_multiplier(depth / DEPTH)

    def __call__(self, x):
        h = self.stem(x)
        for block in self.block:
            h = h + self.multiplier * block(jax.nn.relu(h))
        return self.head(h)


class LinenNet(nn.Module):
    width: int
    depth: int
    edit: str = ""

    @nn.compact
    def __call__(self, x, train=False):
        h = nn.Dense(self.width, name="stem")(x)
        for i in range(self.depth):
            y = nn.BatchNorm(use_running_average=not train, name=f"norm_{i}")(h)
            y = nn.Dropout(0.5, deterministic=not train)(nn.Dense(self.width, name=f"block_{i}")(nn.relu(y)))
            h = h + branch_factor(self.depth, self.edit) * end(y, self.edit)
        return nn.Dense(3, name="head")(h * readout_factor(self.width, self.edit))


class NnxNet(nnx.Module):
    def __init__(self, width, depth, edit="", *, rngs):
        self.stem, self.head = nnx.Linear(5, width, rngs=rngs), nnx.Linear(width, 3, rngs=rngs)
        self.norm = nnx.List([nnx.BatchNorm(width, rngs=rngs) for _ in range(depth)])
        self.block = nnx.List([nnx.Linear(width, width, rngs=rngs) for _ in range(depth)])
        self.drop = nnx.Dropout(0.5, rngs=rngs)
        self.factors, self.edit = (branch_factor(depth, edit), readout_factor(width, edit)), edit

    def __call__(self, x):
        h = self.stem(x)
        for norm, block in zip(self.norm, self.block, strict=True):
            h = h + self.factors[0] * end(self.drop(block(jax.nn.relu(norm(h)))), self.edit)
        return self.head(h * self.factors[1])


class EqxNet(eqx.Module):
    stem: eqx.nn.Linear
    norm: list
    block: list
    head: eqx.nn.Linear
    factors: tuple
    drop: eqx.nn.Dropout
    edit: str = eqx.field(static=True)

    def __init__(self, width, depth, edit="", *, key):
        keys = jax.random.split(key, depth + 2)
        self.stem, self.head = eqx.nn.Linear(5, width, key=keys[0]), eqx.nn.Linear(width, 3, key=keys[1])
        self.norm = [eqx.nn.LayerNorm(width) for _ in range(depth)]
        self.block = [eqx.nn.Linear(width, width, key=k) for k in keys[2:]]
        self.factors, self.edit = (branch_factor(depth, edit), readout_factor(width, edit)), edit
        self.drop = eqx.nn.Dropout(0.5)

    def __call__(self, x, key=None):
        h = self.stem(x)
        for norm, block in zip(self.norm, self.block, strict=True):
            h = h + self.factors[0] * end(self.drop(block(jax.nn.relu(norm(h))), key=key), self.edit)
        return self.head(h * self.factors[1])


def haiku_net(width, depth, edit=""):
    def forward(x, is_training):
        h = hk.Linear(width, name="stem")(x)
        for i in range(depth):
            y = hk.BatchNorm(True, True, 0.9, name=f"norm_{i}")(h, is_training)
            h = h + branch_factor(depth, edit) * end(hk.Linear(width, name=f"block_{i}")(jax.nn.relu(y)), edit)
        return hk.Linear(3, name="head")(h * readout_factor(width, edit))

    return hk.transform_with_state(forward)


def pair_net(width, depth, edit=""):
    def init(key, x):
        layer = lambda n, m: {"w": jax.random.normal(key, (n, m)), "b": jnp.zeros(m)}
        blocks = {f"block_{i}": layer(width, width) for i in range(depth)}
        return {"stem": layer(x.shape[-1], width), "head": layer(width, 3), **blocks}

    def apply(params, x):
        dense = lambda name, x: x @ params[name]["w"] + params[name]["b"]
        h = dense("stem", x)
        for i in range(depth):
            h = h + branch_factor(depth, edit) * end(dense(f"block_{i}", jax.nn.relu(h)), edit)
        h = h.astype(jnp.float8_e4m3fn).astype(h.dtype) if edit == "rounded" else h
        return dense("head", h * readout_factor(width, edit))

    return init, apply
