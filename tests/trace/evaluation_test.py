"""A graph computes what its function does, and factors stand where they are put."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from depthmup_flax.trace.evaluation import NotEvaluated, evaluate, work
from depthmup_flax.trace.graph import INPUT, PARAM
from depthmup_flax.trace.tracing import trace

W, V = (np.random.default_rng(k).normal(size=(3, 4, 4)).astype(np.float32) for k in (0, 1))
X = np.random.default_rng(2).normal(size=(2, 4)).astype(np.float32)


def graph_of(function):
    shapes = {name: jax.ShapeDtypeStruct(W.shape, W.dtype) for name in "vw"}
    return trace(function, shapes, {}, jax.ShapeDtypeStruct(X.shape, X.dtype), {})


def values(graph):
    given = {"v": V, "w": W}
    result = {}
    for i, node in enumerate(graph.nodes):
        if node.op == PARAM:
            result[i] = given[node.params["path"]]
        elif node.op == INPUT:
            result[i] = X
    return result


def rnn(p, s, x, reverse=False):
    def step(h, w):
        h = jnp.tanh(h @ w) + x
        return h, (h * 2, w.sum())

    last, (stacked, sums) = lax.scan(step, x, p["w"], reverse=reverse)
    return last + stacked[0] - stacked[-1] + sums[1]


def nested(p, s, x):
    inner = lambda h, w: lax.scan(lambda h, v: (jnp.sin(h @ v), None), h, p["v"])[0] @ w
    return lax.scan(lambda h, w: (inner(h, w), None), x, p["w"])[0]


FUNCTIONS = {
    "scan": rnn,
    "reversed": lambda p, s, x: rnn(p, s, x, reverse=True),
    "nested": nested,
    "cond": lambda p, s, x: lax.cond(x[0, 0] > 0, lambda: x @ p["w"][0], lambda: x @ p["v"][0]),
    "convolution": lambda p, s, x: jnp.convolve(x[0], p["w"][0, 0]),
    "lookup": lambda p, s, x: jnp.take(p["w"], jnp.argmax(x, -1) % 3, axis=0).sum(1),
    "transform": lambda p, s, x: jnp.fft.irfft(jnp.fft.rfft(x @ p["w"][1]) * (1 + 2j)),
    "norm": lambda p, s, x: jax.nn.softmax(jax.nn.gelu(x @ p["w"][0]) / jnp.std(x, -1, keepdims=True)),
    "stack": lambda p, s, x: jnp.stack([x @ p["w"][0], x @ p["v"][0]]).sum(0),
    "product": lambda p, s, x: jnp.einsum("bi,lij,ljk->lkb", x, p["w"], p["v"]),
    "several": lambda p, s, x: jnp.concatenate(jnp.split(x @ p["w"][2], 2, -1)[::-1], -1),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_graph_computes_what_its_function_does(name):
    graph = graph_of(FUNCTIONS[name])
    wanted = FUNCTIONS[name]({"v": V, "w": W}, {}, X)
    np.testing.assert_allclose(evaluate(graph, values(graph), {}), wanted, rtol=2e-5, atol=2e-5)


def test_a_factor_multiplies_an_array_everywhere_or_where_one_operation_reads_it():
    graph = graph_of(lambda p, s, x: (lambda y: jnp.cos(y) + jnp.sin(y))(x @ p["w"][0]))
    node = {each.op: i for i, each in enumerate(graph.nodes)}
    y = X @ W[0]
    everywhere = evaluate(graph, values(graph), {(node["dot_general"], -1): 0.5})
    in_one = evaluate(graph, values(graph), {(node["dot_general"], node["sin"]): 0.5})
    np.testing.assert_allclose(everywhere, np.cos(y / 2) + np.sin(y / 2), rtol=1e-5)
    np.testing.assert_allclose(in_one, np.cos(y) + np.sin(y / 2), rtol=1e-5)


def test_a_loop_of_unknown_length_is_not_evaluated():
    graph = graph_of(lambda p, s, x: lax.while_loop(lambda h: h.sum() < 9, lambda h: h + 1, x) @ p["w"][0])
    assert work(graph) == np.inf
    with pytest.raises(NotEvaluated):
        evaluate(graph, values(graph), {})
