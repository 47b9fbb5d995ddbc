"""Experts are matrices of their own to Muon in every spelling, and heads are not."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import depthmup_flax as dm
from depthmup_flax.rule.info_trees import flatten_info

RULE = dm.get_parametrization("depth_mup")
EXPERTS = 4
X = jax.random.normal(jax.random.key(0), (4, 6))  # as many tokens as heads and experts


def router(p, h):
    return jax.nn.softmax(h @ p["router"])


def top_two(p, h):
    """The two largest gates, over their sum; the others are 0."""
    gates = router(p, h)
    least = jax.lax.top_k(gates, 2)[0][:, -1:]
    kept = jnp.where(gates >= least, gates, 0.0)
    return kept / kept.sum(-1, keepdims=True)


def sigmoids(p, h):
    """One number for each expert, which is compared with no other."""
    return jax.nn.sigmoid(h @ p["router"])


def shares(p, h):
    gates = jax.nn.softplus(h @ p["router"] + 0.1)
    return gates / gates.sum(-1, keepdims=True)


def gated_after(p, h, gates=router):
    hidden = jax.nn.relu(jnp.einsum("bd,edf->bef", h, p["up"]))
    return jnp.einsum("bed,be->bd", jnp.einsum("bef,efd->bed", hidden, p["down"]), gates(p, h))


def gated_by_a_product(p, h, gates=router):
    hidden = jax.nn.relu(jnp.einsum("bd,edf->bef", h, p["up"]))
    outputs = jnp.einsum("bef,efd->bed", hidden, p["down"])
    return (outputs * gates(p, h)[:, :, None]).sum(1)


def gated_between(p, h, gates=router):
    hidden = jax.nn.relu(jnp.einsum("bd,edf->bef", h, p["up"]))
    return jnp.einsum("bef,be,efd->bd", hidden, gates(p, h), p["down"])


def gated_before(p, h, gates=router):
    inputs = jnp.einsum("bd,be->bed", h, gates(p, h))
    hidden = jax.nn.relu(jnp.einsum("bed,edf->bef", inputs, p["up"]))
    return jnp.einsum("bef,efd->bd", hidden, p["down"])


def mapped(p, h, axis, gates=router):
    """`vmap` over experts, as ``nn.vmap`` with ``out_axes`` has it."""
    expert = lambda up, down: jax.nn.relu(h @ up) @ down
    outputs = jax.vmap(expert, out_axes=axis)(p["up"], p["down"])
    return jnp.einsum("ebd,be->bd" if axis == 0 else "bed,be->bd", outputs, gates(p, h))


def mapped_layers(p, h, gates=router):
    """Each of two layers for itself."""
    hidden = jax.vmap(lambda up: h @ up, out_axes=1)(p["up"])
    outputs = jax.vmap(lambda u, down: u @ down, in_axes=(1, 0), out_axes=1)(jax.nn.relu(hidden), p["down"])
    return jnp.einsum("bed,be->bd", outputs, gates(p, h))


def gated_units(p, h, gates=router):
    """GLU experts, whose sum over experts is the last product's."""
    hidden = jax.nn.silu(jnp.einsum("bd,edf->ebf", h, p["up"])) * jnp.einsum("bd,edf->ebf", h, jnp.sin(p["up"]))
    return jnp.einsum("ebf,be,efd->bd", hidden, gates(p, h), p["down"])


def gated_copies(p, h, gates=router):
    inputs = jnp.repeat(h[:, None], EXPERTS, 1) * gates(p, h)[..., None]
    hidden = jax.nn.relu(jnp.einsum("bed,edf->bef", inputs, p["up"]))
    return jnp.tensordot(hidden, p["down"], [[1, 2], [0, 1]])


def mean_of_all(p, h):
    """An ensemble without a router."""
    hidden = jax.nn.relu(jnp.einsum("bd,edf->bef", h, p["up"]))
    return jnp.einsum("bef,efd->bed", hidden, p["down"]).mean(1) + h * (h @ p["router"]).mean(1, keepdims=True)


def experts_in_the_middle(p, h, gates=router):
    hidden = jax.nn.relu(jnp.einsum("bd,def->bef", h, p["up"].swapaxes(0, 1)))
    return jnp.einsum("bed,be->bd", jnp.einsum("bef,fed->bed", hidden, p["down"].swapaxes(0, 1)), gates(p, h))


SPELLINGS = {
    "gates after": gated_after,
    "gates of the top two": functools.partial(gated_after, gates=top_two),
    "gates by a product": gated_by_a_product,
    "gates between": gated_between,
    "gates before": gated_before,
    "vmap": functools.partial(mapped, axis=0),
    "vmap with out_axes": functools.partial(mapped, axis=1),
    "a vmap for each layer": mapped_layers,
    "an ensemble": mean_of_all,
    "experts in the middle": experts_in_the_middle,
    "gated units": gated_units,
    "gated copies": gated_copies,
}
SPELLINGS |= {
    f"{name}, {gates.__name__}": functools.partial(spelling, gates=gates)
    for gates in (sigmoids, shares)
    for name, spelling in SPELLINGS.items()
    if name not in ("gates of the top two", "an ensemble")
}


def experts_of(width):
    up, down = (EXPERTS, width, 2 * width), (EXPERTS, 2 * width, width)
    return {"up": up, "down": down, "router": (width, EXPERTS)}


def info_of(block, shapes_of, widths=(32, 16)):
    """Path in the block -> `ParamInfo`, of a residual network."""

    def network(width):
        shapes = {"stem": (6, width), "block": shapes_of(width), "readout": (width, 5)}
        is_shape = lambda x: isinstance(x, tuple)
        params = jax.tree.map(lambda shape: jax.ShapeDtypeStruct(shape, jnp.float32), shapes, is_leaf=is_shape)

        def apply(p, x):
            stream = x @ p["stem"]
            stream = stream + block(p["block"], nn.standardize(stream))
            return nn.standardize(stream) @ p["readout"]

        return apply, params

    info = dm.audit(network(widths[0]), network(widths[1]), X).info
    return {path.removeprefix("block/"): leaf for path, leaf in flatten_info(info).items() if path.startswith("block")}


@pytest.mark.parametrize("name", SPELLINGS)
def test_a_gradient_of_one_expert_does_not_change_the_updates_of_others(name):
    infos = info_of(SPELLINGS[name], experts_of)
    infos = {path: infos[path] for path in ("up", "down")}
    optimizer = dm.muon(1.0, infos, RULE)
    grads = {path: jax.random.normal(jax.random.key(1), leaf.shape) for path, leaf in infos.items()}
    steep = jax.tree.map(lambda g: g.at[0].multiply(100.0), grads)
    update = jax.jit(lambda grads: optimizer.update(grads, optimizer.init(grads), grads)[0])
    for before, after in zip(jax.tree.leaves(update(grads)), jax.tree.leaves(update(steep)), strict=True):
        np.testing.assert_allclose(after[1:], before[1:], rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(np.linalg.norm(after[0]), np.linalg.norm(before[1]), rtol=0.2)


def attention(p, h, before_scores=lambda x: x, after=lambda x, h: x):
    """Of a batch of one, with heads as an axis of their own."""
    q, k, v = (jnp.einsum("td,dhk->thk", h, p[name]) for name in "qkv")
    scores = jnp.einsum("thk,shk->hts", before_scores(q), before_scores(k)) / q.shape[-1]
    values = jnp.einsum("hts,shk->thk", jax.nn.softmax(scores), v)
    return jnp.einsum("thk,hkd->td", after(values, h), p["out"])


def rms_normed(x):
    return x * jax.lax.rsqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-6)


def gated_heads(p, h):
    """A sigmoid for each head, which compares no heads."""
    return attention(p, h, after=lambda x, h: x * jax.nn.sigmoid(h @ p["gates"])[:, :, None])


def gated_values(p, h):
    """The gate of each head precedes scores and values that are summed entry by entry (GLA)."""
    q, k, v = (jnp.einsum("td,dhk->thk", h, p[name]) for name in "qkv")
    v = v * jax.nn.sigmoid(h @ p["gates"])[:, :, None]
    scores = (q[:, None] * k[None]).sum(-1) / q.shape[-1]
    values = (jax.nn.softmax(scores, 1)[..., None] * v[None]).sum(1)
    return jnp.einsum("thk,hkd->td", values, p["out"])


def recurrent_heads(p, h):
    """A state for each head, which a gate lets fade."""
    q, k, v = (jnp.einsum("td,dhk->thk", h, p[name]) for name in "qkv")

    def step(state, x):
        q, k, v, gate = x
        state = gate[:, None, None] * state + k[:, :, None] * v[:, None]
        return state, jnp.einsum("hk,hkj->hj", q, state)

    start = jnp.zeros((EXPERTS, q.shape[-1], q.shape[-1]))
    values = jax.lax.scan(step, start, (q, k, v, jax.nn.sigmoid(h @ p["gates"])))[1]
    return jnp.einsum("thk,hkd->td", values, p["out"])


def heads_of(width):
    shapes = {name: (width, EXPERTS, width // EXPERTS) for name in "qkv"}
    return {**shapes, "out": (EXPERTS, width // EXPERTS, width), "gates": (width, EXPERTS)}


@pytest.mark.parametrize(
    "block",
    [attention, functools.partial(attention, before_scores=rms_normed), gated_heads, gated_values, recurrent_heads],
    ids=["attention", "normed", "gated", "gated values", "recurrent"],
)
def test_heads_and_their_size_are_one_output_of_one_matrix(block):
    def with_gates(p, h):
        return block(p, h) + 0.0 * (h @ p["gates"]).sum()

    infos = info_of(with_gates, heads_of)
    assert {(infos[name].in_axes, infos[name].out_axes) for name in "qkv"} == {((0,), (1, 2))}
    assert (infos["out"].in_axes, infos["out"].out_axes) == ((0, 1), (2,))


def test_more_experts_have_updates_of_the_same_size():
    """The gates sum to 1, so that the singular values of each are those at the base."""

    def largest(number):
        of = lambda width: {"up": (number[width], width, 2 * width), "down": (number[width], 2 * width, width),
                            "router": (width, number[width])}  # fmt: skip
        infos = info_of(gated_after, of)
        infos = {path: infos[path] for path in ("up", "down")}
        grads = {path: jax.random.normal(jax.random.key(1), leaf.shape) for path, leaf in infos.items()}
        optimizer = dm.muon(1.0, infos, RULE, ns_steps=12)
        updates = optimizer.update(grads, optimizer.init(grads), grads)[0]
        return {path: np.linalg.norm(update[0], 2) for path, update in updates.items()}

    few, many = largest({32: 4, 16: 4}), largest({32: 8, 16: 4})
    assert many == {path: pytest.approx(size, rel=0.3) for path, size in few.items()}
    assert all(size > 0 for size in few.values())


def test_optax_sees_the_stack_as_we_do():
    """Each expert's update is optax's of that matrix alone, times its factor at the base."""
    infos = info_of(gated_after, experts_of, widths=(16, 16))
    grads = jax.random.normal(jax.random.key(1), infos["up"].shape)
    optimizer = dm.muon(1.0, {"up": infos["up"]}, RULE)
    update = optimizer.update({"up": grads}, optimizer.init({"up": grads}), {"up": grads})[0]["up"]
    theirs = optax.contrib.scale_by_muon(weight_dimension_numbers=optax.contrib.MuonDimensionNumbers(0, 1))
    for expert in range(EXPERTS):
        expected, _ = theirs.update(grads[expert], theirs.init(grads[expert]))
        np.testing.assert_allclose(update[expert], -0.2 * 32**0.5 * expected, rtol=1e-3, atol=1e-5)
