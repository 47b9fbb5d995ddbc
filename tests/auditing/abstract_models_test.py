"""`audit` and the optimizers read shapes alone: no array exists and no device starts."""

import pathlib

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
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


@pytest.mark.parametrize("make", [dm.adamw, dm.sgd, dm.muon, dm.adamh], ids=lambda make: make.__name__)
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_an_optimizer_of_shapes_has_the_state_of_one_of_arrays(make, decay):
    """Of parameters that carry factors, of a norm with an offset, too."""

    def network(width, depth):
        def apply(p, x):
            h = x @ p["stem"]
            for k in range(depth):
                y = jnp.tanh(h @ p[f"block{k}"])
                h = h + y / jnp.sqrt(jnp.mean(y**2, -1, keepdims=True) + 1e-6) * (1 + p[f"scale{k}"])
            return h @ p["head"]

        drawn = lambda *shape: jax.random.normal(jax.random.key(0), shape) / shape[0] ** 0.5
        blocks = {f"block{k}": drawn(width, width) for k in range(depth)}
        scales = {f"scale{k}": jnp.zeros(width) for k in range(depth)}
        return apply, {"stem": drawn(5, width), "head": drawn(width, 3), **blocks, **scales}

    model, base = network(16, 4), network(8, 2)
    audit = dm.audit(model, base, X)
    assert audit.ok, str(audit)
    assert {row.info.offset for row in audit.rows} == {0, 1}
    params = dm.rescale_init(model[1], base[1], audit)
    options = {} if make is dm.adamh else {"weight_decay": decay}
    optimizer = make(0.1, audit, **options)
    shapes = jax.eval_shape(lambda p: p, params)
    of_shapes = jax.eval_shape(lambda: optimizer.init(shapes))
    of_arrays = jax.eval_shape(lambda x: x, optimizer.init(params))
    assert jax.tree.structure(of_shapes) == jax.tree.structure(of_arrays)
    assert [x.shape for x in jax.tree.leaves(of_shapes)] == [x.shape for x in jax.tree.leaves(of_arrays)]


def test_an_abstract_nnx_optimizer_is_that_of_the_model():
    audit = dm.audit(NnxNet(16, 4, nnx.Rngs(0)), NnxNet(8, 2, nnx.Rngs(0)), X)
    make = lambda model: nnx.Optimizer(model, dm.adamw(0.1, audit), wrt=nnx.Param)
    abstract = nnx.eval_shape(lambda: make(abstract_nnx(16, 4)))
    concrete = nnx.eval_shape(lambda: make(NnxNet(16, 4, nnx.Rngs(0))))
    shapes = lambda optimizer: jax.tree.map(jnp.shape, nnx.state(optimizer))
    assert shapes(abstract) == shapes(concrete)
