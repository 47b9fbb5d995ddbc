"""What stands in front of products, behind a readout, or on the stream: read, or not passed in silence."""

import jax
import jax.numpy as jnp
import pytest

import depthmup_flax as dm
from depthmup_flax import Role
from depthmup_flax.rule.info_trees import flatten_info

RULE = dm.get_parametrization("depth_mup")
X = jax.ShapeDtypeStruct((4, 10), jnp.float32)
SIZE, BASE = (64, 6), (16, 2)


def normed(h):
    return h / jnp.sqrt(jnp.mean(h**2, -1, keepdims=True) + 1e-6)


def net(width, depth, *, read=1.0, merged="branch", few=1.0):
    """A residual MLP: ``read`` is the power of the width on what a block's first product reads.

    ``merged``: how every other layer joins an earlier array; ``few``: the power of 1/m on features that a last layer of
    fixed size reads.
    """
    m, c = width / BASE[0], RULE.residual_multiplier(depth / BASE[1])
    shapes = {"stem": (10, width), "few": (width, 6), "head": (6, 3)}
    for i in range(depth):
        shapes |= {f"up_{i}": (width, 2 * width), f"down_{i}": (2 * width, width), f"merge_{i}": (2 * width, width)}

    def function(p, x):
        h = x @ p["stem"]
        first = h
        for i in range(depth):
            h = h + c * jax.nn.relu(m**read * normed(h) @ p[f"up_{i}"]) @ p[f"down_{i}"]
            y = jnp.concatenate([h, jnp.tanh(first)], -1) @ p[f"merge_{i}"]
            h = h + c * y if merged == "branch" else y
        return jax.nn.relu(normed(h) @ p["few"] * m**-few) @ p["head"]

    return function, {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}


def audited(**options):
    return dm.audit(net(*SIZE, **options), net(*BASE, **options), X, rule=RULE)


@pytest.mark.parametrize("power", [-0.5, 0.5])
def test_a_factor_of_the_width_on_what_a_product_reads_is_named(power):
    (finding,) = audited(read=power).findings
    assert finding.name == "hidden_scaled_with_width"
    assert set(finding.paths) == {f"up_{i}" for i in range(SIZE[1])}
    assert audited(read=0.0).ok


def test_a_matrix_that_the_stream_passes_through_in_every_layer_is_not_judged():
    audit = audited(read=0.0, merged="product")
    assert audit.verdict == "not judged"
    assert {path for one in audit.not_judged for path in one.paths} == {f"merge_{i}" for i in range(SIZE[1])}


def test_few_features_are_outputs_if_they_are_multiplied_as_a_readout_and_hidden_if_not():
    for few, role in ((1.0, Role.OUTPUT), (0.0, Role.HIDDEN)):
        audit = audited(read=0.0, few=few)
        assert audit.ok
        assert flatten_info(audit.info)["few"].role is role
    (finding,) = audited(read=0.0, few=0.5).findings
    assert finding.paths == ("few",)


def test_kernels_of_each_example_have_the_role_of_the_weights_that_they_are_made_of():
    def modulated(width, depth):
        shapes = {"code": (10, width), "const": (5, width), "head": (width, 3)}
        for i in range(depth):
            shapes |= {f"affine_{i}": (width, width), f"weight_{i}": (width, width)}
        c = RULE.residual_multiplier(depth / BASE[1])

        def function(p, x):
            code = jnp.tanh(x @ p["code"])
            h = jnp.broadcast_to(p["const"], (x.shape[0], 5, width))
            for i in range(depth):
                w = p[f"weight_{i}"] * (code @ p[f"affine_{i}"])[:, :, None]
                w = w / jnp.sqrt(jnp.sum(w**2, 1, keepdims=True) + 1e-8)
                h = h + c * jnp.einsum("btn,bnm->btm", jax.nn.relu(h), w)
            return h.mean(1) @ p["head"] * RULE.readout_multiplier(width / BASE[0])

        return function, {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}

    audit = dm.audit(modulated(*SIZE), modulated(*BASE), X, rule=RULE)
    roles = {path: (leaf.role, leaf.in_branch) for path, leaf in flatten_info(audit.info).items()}
    assert audit.ok
    assert roles["weight_3"] == (Role.HIDDEN, True)
    assert roles["const"] == (Role.INPUT, False)
