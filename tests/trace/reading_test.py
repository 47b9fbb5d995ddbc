"""What is read of small graphs: axes, numbers, residual sums, factors; and what a row of a table does."""

import ast
import math
import pathlib

import jax
import jax.numpy as jnp
import pytest

import depthmup_flax
from depthmup_flax.trace import constants, factors
from depthmup_flax.trace.axes import axis_groups
from depthmup_flax.trace.facts import traced
from depthmup_flax.trace.graph import CONST, INPUT, PARAM, Graph
from depthmup_flax.trace.kinds import ACTIVATION
from depthmup_flax.trace.slices import sliced
from depthmup_flax.trace.tracing import trace
from depthmup_flax.trace.uses import ENTRYWISE, LOOKUP, PRODUCT

X = jax.ShapeDtypeStruct((3, 8), jnp.float32)
W = jax.ShapeDtypeStruct((8, 8), jnp.float32)


def graph_of(function, **params):
    """The graph of ``function(params, x)`` for matrices W, or parameters of other shapes."""
    shapes = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in params.items()}
    return trace(lambda p, _, x: function(p, x), shapes or {"w": W}, {}, X, {})


def facts_of(function, **params):
    return traced(graph_of(function, **params), {}, (), ())


# --- the room


def test_reading_graphs_knows_no_rule():
    folder = pathlib.Path(depthmup_flax.__file__).parent / "trace"
    rooms = set()
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module.startswith("depthmup_flax."):
                rooms.add(node.module.split(".")[1])
    assert rooms == {"trace", "util"}


# --- graphs


def test_a_loop_occurs_once_and_its_nodes_know_how_often_they_run():
    graph = graph_of(lambda p, x: jax.lax.scan(lambda h, w: (h @ w, None), x, p["w"])[0], w=(5, 8, 8))
    (product,) = (node for node in graph.nodes if node.op == "dot_general")
    assert [length for _, length in product.loops] == [5]
    ((start, end),) = graph.carries()
    assert graph.nodes[start].op == "carry"
    assert graph.nodes[end] is product


def test_what_is_needed_depends_on_the_places_that_are_cut():
    graph = Graph()
    w, x = graph.add(PARAM, (), (8, 8), {"path": "w"}), graph.add(INPUT, (), (3, 8))
    product = graph.add("dot_general", (x, w), (3, 8))
    graph.output = graph.add("add", (product, x), (3, 8))
    assert graph.needed() == [True] * 4
    assert graph.needed({(w, -1)}) == [False, True, True, True]
    assert graph.needed({(x, product)}) == [True] * 4  # the sum reads it, too
    assert graph.needed({(product, graph.output)}) == [False, True, False, True]
    assert set(graph.upstream(graph.output, lambda i: i == product)) == {graph.output, product, x}


@pytest.mark.parametrize(
    ("old", "new", "groups"),
    [
        ((6, 4), (2, 3, 4), [([0], [0, 1]), ([1], [2])]),
        ((2, 3, 4), (6, 4), [([0, 1], [0]), ([2], [1])]),
        ((1, 6), (6, 1), [([1], [0])]),
        ((4, 6), (3, 8), [([0, 1], [0, 1])]),
        ((4, 8), (2, 4, 8), [([0, 1], [0, 1, 2])]),  # put together by devices
    ],
)
def test_reshaped_axes_are_in_the_smallest_groups_of_equal_sizes(old, new, groups):
    assert axis_groups(old, new) == groups


@pytest.mark.parametrize(
    ("op", "params", "values", "number"),
    [
        ("mul", {}, (2.0, 3.0), 6.0),
        ("reduce_sum", {}, (2.0,), 8.0),
        ("reduce_prod", {}, (2.0,), 16.0),
        ("integer_pow", {"y": -2}, (2.0,), 0.25),
        ("broadcast_in_dim", {}, (2.0,), 2.0),
        ("log", {}, (-1.0,), None),
        ("mul", {}, (2.0, None), None),
        ("tan", {}, (2.0,), None),
    ],
)
def test_operations_on_numbers_are_folded(op, params, values, number):
    assert constants.folded(op, params, values, count=4) == number


# --- uses, sums and factors


def test_kinds_and_uses_tell_products_look_ups_and_scales_apart():
    def function(p, x):
        rows = p["table"][jnp.argmax(x, 1)]
        return (rows + x @ p["w"]) * p["scale"]

    facts = facts_of(function, table=(20, 8), w=(8, 8), scale=(8,))
    uses = {path: [(use.kind, set(use.into), set(use.out)) for use in several] for path, several in facts.uses.items()}
    assert uses == {
        "table": [(LOOKUP, {0}, {1})],
        "w": [(PRODUCT, {0}, {1})],
        "scale": [(ENTRYWISE, set(), {0})],
    }
    assert {PARAM, ACTIVATION, CONST} <= set(facts.kinds)


def test_a_branch_has_the_factor_behind_it_and_a_norm_hides_those_in_front():
    def block(h, w, factor):
        normed = h / jnp.sqrt(jnp.mean(h**2, -1, keepdims=True) + 1e-6)
        return h + factor * (0.5 * normed @ w)

    def function(p, x):
        h = 3.0 * (x @ p["in"])
        return block(block(h, p["a"], 0.25), p["b"], 1.0) @ p["out"]

    facts = facts_of(function, **{"in": (8, 8), "a": (8, 8), "b": (8, 8), "out": (8, 8)})
    assert [branch.factors for branch in facts.branches] == [{"a": {0.25}}, {"b": {1.0}}]
    assert [branch.total for branch in facts.branches] == [{"a": {0.125}}, {"b": {0.5}}]
    assert facts.own(facts.readouts)["in"] == {3.0}
    assert facts.inside == {"in": False, "a": True, "b": True, "out": False}
    assert facts.without(facts.branches[:1]).inside["a"] is False


def test_a_sum_in_front_of_a_nonlinearity_alone_is_no_residual_sum():
    facts = facts_of(lambda p, x: jnp.tanh(x @ p["a"] + x @ p["b"]), a=(8, 8), b=(8, 8))
    assert not facts.branches


@pytest.mark.parametrize(
    ("transform", "factor"),
    [
        (lambda y: jnp.fft.fft(y).real, 8**0.5),
        (lambda y: jnp.fft.ifft(y).real, 8**-0.5),
        (lambda y: jnp.fft.irfft(jnp.fft.rfft(y)), 1.0),
        (lambda y: jnp.fft.fft(y, norm="ortho").real, 1.0),
    ],
)
def test_a_fourier_transform_is_a_rotation_times_the_root_of_its_length_and_its_inverse_over_it(transform, factor):
    facts = facts_of(lambda p, x: x + transform(jnp.tanh(x) @ p["w"]))
    (branch,) = facts.branches
    assert list(branch.factors["w"]) == [pytest.approx(factor)]


def test_unknown_numbers_cancel_or_are_unknown():
    def function(p, x, divisor):
        rate = jnp.linspace(0.1, 0.9, 20)[jnp.arange(3)[1]]  # a number that is not read
        return rate * (x @ p["w"]) / (rate if divisor else 1.0)

    (cancelled,) = facts_of(lambda p, x: function(p, x, True)).readouts["w"]
    (unknown,) = facts_of(lambda p, x: function(p, x, False)).readouts["w"]
    assert math.isclose(cancelled, 1)
    assert math.isnan(unknown)


def test_slices_that_are_read_apart_are_parameters():
    def function(p, x):
        q, k = jnp.split(x @ p["w"], 2, axis=1)
        return jnp.tanh(q) + k

    slices = sliced(graph_of(function, w=(8, 16)))
    assert {path for path, _ in slices.slices.values()} == {"w"}
    assert len(slices.slices) == 2
    factors_of_w = slices.together(dict(zip(slices.slices, (2.0, 3.0), strict=True)))["w"]
    assert factors_of_w.shape == (1, 16)
    assert sorted(factors_of_w.ravel().tolist()) == [2.0] * 8 + [3.0] * 8
    assert sliced(graph_of(lambda p, x: x @ p["w"])) is None


def test_a_row_of_a_table_is_all_that_a_primitive_needs(monkeypatch):
    """The example of the room's docstring."""
    graph = graph_of(lambda p, x: x + jax.lax.cummax(0.5 * (x @ p["w"])))
    assert traced(graph, {}, (), ()).branches[0].factors == {"": {1.0}}
    monkeypatch.setitem(factors._OPERATIONS, "cummax", factors._of_sum)
    assert traced(graph, {}, (), ()).branches[0].factors == {"w": {0.5}}


def test_a_printed_reading_has_a_line_for_each_array():
    facts = facts_of(lambda p, x: x + 0.5 * (x @ p["w"]))
    lines = str(facts.reading).splitlines()
    assert len(lines) == len(facts.graph.nodes)
    (product,) = (line for line in lines if "dot_general" in line)
    assert "product w" in product
    assert "residual sum" in lines[-1]
    (scaled,) = (line for line in lines if " mul(" in line)
    assert "[0.5]" in scaled


def test_a_difference_of_all_pairs_has_the_shape_of_both():
    shapes = {"w": jax.ShapeDtypeStruct((3, 3), jnp.float32)}
    pairs = lambda p, s, x: (x @ p["w"])[:, None] - (x @ p["w"])[None]
    graph = trace(pairs, shapes, {}, jax.ShapeDtypeStruct((4, 3), jnp.float32), {})
    assert graph.nodes[graph.output].shape == (4, 4, 3)
