"""`audit` and the optimizers read shapes alone: no array exists and no device starts."""

import pathlib

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx
from processes import Process

import depthmup_flax as dm

RULE = dm.get_parametrization("depth_mup")
X = jax.ShapeDtypeStruct((2, 5), jnp.float32)


class Net(nn.Module):
    width: int
    depth: int
    scaled: bool = True

    @nn.compact
    def __call__(self, x):
        h = nn.Dense(self.width)(x)
        multiplier = RULE.residual_multiplier(self.depth / 2) if self.scaled else 1.0
        for _ in range(self.depth):
            h = h + multiplier * nn.Dense(self.width)(nn.relu(h))
        return nn.Dense(3)(h) * RULE.readout_multiplier(self.width / 8)


class NnxNet(nnx.Module):
    def __init__(self, width, depth, rngs):
        self.width, self.depth = width, depth
        self.stem, self.head = nnx.Linear(5, width, rngs=rngs), nnx.Linear(width, 3, rngs=rngs)
        self.blocks = nnx.List([nnx.Linear(width, width, rngs=rngs) for _ in range(depth)])

    def __call__(self, x):
        h = self.stem(x)
        for block in self.blocks:
            h = h + RULE.residual_multiplier(self.depth / 2) * block(nnx.relu(h))
        return self.head(h) * RULE.readout_multiplier(self.width / 8)


def pair(*sizes):
    model = Net(*sizes)
    params = jax.eval_shape(lambda x: model.init(jax.random.key(0), x)["params"], X)
    return lambda params, x: model.apply({"params": params}, x), params


def abstract_nnx(width, depth):
    return nnx.eval_shape(lambda: NnxNet(width, depth, nnx.Rngs(0)))


def verdicts():
    """Audits with a platform that does not exist, so any array would raise; the exit code counts wrong verdicts."""
    jax.config.update("jax_platforms", "none_such")
    right = [dm.audit(make(16, 4), make(8, 2), X).ok for make in (Net, pair, abstract_nnx)]
    for make in (Net, pair):
        audits = [dm.audit(make(16, 4, False), make(8, 2, False), X, carry=carry) for carry in (True, False)]
        right += [audit.verdict == verdict for audit, verdict in zip(audits, ("ok", "missing"), strict=True)]
    jax.eval_shape(dm.adamw(1e-3, dm.rescaled_before(audits[0].info), RULE).init, pair(16, 4)[1])
    try:
        jnp.zeros(1)
    except RuntimeError:
        return right.count(False)
    return 99  # the platform exists: nothing was tested


def test_an_audit_of_shapes_makes_no_array(tmp_path):
    process = Process(pathlib.Path(tmp_path, "log"), verdicts)
    assert process.wait() == 0, process.text()
