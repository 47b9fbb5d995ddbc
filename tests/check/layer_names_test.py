"""The layers of the networks of a check, by what they are in the widest."""

import jax
import jax.numpy as jnp

import depthmup_flax as dm
from depthmup_flax.check.layers import SizedNetwork, collapsers, collect_layers
from depthmup_flax.check.networks import Network, traced
from depthmup_flax.check.records import Size
from depthmup_flax.rule.info_trees import flatten_info

BASE = (8, 2)
RULE = dm.get_parametrization("depth_mup")
X = jnp.ones((2, 5, 3))


def mixer(width, depth):
    """Blocks that mix tokens by a matrix of a fixed size."""

    def init(key):
        layer = {"mix": jnp.zeros((5, 5)), "w": jnp.zeros((width, width))}
        return {"stem": jnp.zeros((3, width)), "head": jnp.zeros((width, 4)), **{f"b{i}": layer for i in range(depth)}}

    def apply(p, x):
        h = x @ p["stem"]
        for i in range(depth):
            y = p[f"b{i}"]["mix"] @ jnp.tanh(h) @ p[f"b{i}"]["w"]
            h = h + RULE.residual_multiplier(depth / BASE[1]) * y
        return h @ p["head"] * RULE.readout_multiplier(width / BASE[0])

    return apply, init


def network(width, depth):
    (apply, init), (base, base_init) = mixer(width, depth), mixer(*BASE)
    shapes, base_shapes = (jax.eval_shape(f, jax.random.key(0)) for f in (init, base_init))
    info = dm.audit((apply, shapes), (base, base_shapes), X, rule=RULE).info
    return Network(init, lambda p: (apply(p, X), {}), info, dm.adamw(1e-3, info, RULE))


def test_a_matrix_that_does_not_grow_is_no_weight_though_it_looks_like_one_at_the_base_width():
    sizes = [Size("width", w, w, 2) for w in (8, 16, 32)] + [Size("depth", d, 8, d) for d in (2, 4, 8)]
    networks = [traced(network(*size[2:])) for size in sizes]
    infos = [flatten_info(one.network.info) for one in networks]
    assert infos[-1]["b0/mix"].role is dm.Role.HIDDEN
    collapses = collapsers([[*info, *one.shapes] for info, one in zip(infos, networks, strict=True)], infos)
    sized = [SizedNetwork(*fields) for fields in zip(sizes, networks, infos, collapses, strict=True)]
    layers = collect_layers(sized)
    assert "b*/mix" in layers.vectors
    assert not {*layers.weights} - {"stem", "b*/w", "head"}
