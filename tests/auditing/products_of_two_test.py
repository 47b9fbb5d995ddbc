"""Factors that several products have in common are shared by them, or each has its own."""

import jax
import jax.numpy as jnp
import pytest

import depthmup_flax as dm

RULE = dm.get_parametrization("depth_mup")
X = jax.ShapeDtypeStruct((2, 7, 5), jnp.float32)
# --- readouts that are multiplied with each other


def two_readouts(end):
    """A residual network; ``end`` makes the output of its stream, of two readouts and m."""

    def of(width, depth):
        shapes = {"stem": (5, width), "one": (width, 3), "other": (width, 3)}
        for i in range(depth):
            shapes |= {f"up_{i}": (width, width), f"down_{i}": (width, width)}

        def apply(p, x):
            h = x @ p["stem"]
            for i in range(depth):
                y = jax.nn.gelu(jax.nn.standardize(h) @ p[f"up_{i}"]) @ p[f"down_{i}"]
                h = h + RULE.residual_multiplier(depth / 2) * y
            return end(jax.nn.standardize(h), p["one"], p["other"], width / 8)

        return apply, {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}

    return of(32, 6), of(8, 2)


RIGHT = {
    "behind": lambda h, a, b, m: (h @ a) * (h @ b) / m**2,
    "each": lambda h, a, b, m: (h @ a / m) * (h @ b / m),
    "one for both": lambda h, a, b, m: (h @ a / m**2) * (h @ b),
    "summed": lambda h, a, b, m: jnp.einsum("btc,btc->bt", h @ a, h @ b) / m**2,
    "of three": lambda h, a, b, m: (h @ a) * (h @ b) * (h @ a) / m**3,
    "squared": lambda h, a, b, m: jnp.square(h @ a) * (h @ b) / m**3,
    "a gate": lambda h, a, b, m: (h @ a) * jax.nn.sigmoid(h @ b / m) / m,
}
WRONG = {
    "once": (lambda h, a, b, m: (h @ a) * (h @ b) / m, "readout_not_scaled"),
    "not at all": (lambda h, a, b, m: (h @ a) * (h @ b), "readout_not_scaled"),
    "three times": (lambda h, a, b, m: (h @ a / m) * (h @ b) / m**2, "readout_scaled_twice"),
    "a gate without": (lambda h, a, b, m: (h @ a) * jax.nn.sigmoid(h @ b) / m, "readout_not_scaled"),
}


@pytest.mark.parametrize("carry", [True, False])
@pytest.mark.parametrize("name", RIGHT)
def test_readouts_that_are_multiplied_share_the_factor_of_all(name, carry):
    result = dm.audit(*two_readouts(RIGHT[name]), X, carry=carry).under(RULE)
    assert result.ok, str(result)
    assert all(row.carried.is_one for row in result.rows)


@pytest.mark.parametrize("name", WRONG)
def test_too_few_or_too_many_factors_of_such_readouts_are_named(name):
    end, finding = WRONG[name]
    result = dm.audit(*two_readouts(end), X, carry=False).under(RULE)
    assert {each.name for each in result.findings} == {finding}
    carried = dm.audit(*two_readouts(end), X).under(RULE)
    assert carried.ok or {each.name for each in carried.findings} == {finding}


# --- a matrix beside one of low rank, and vectors that are summed


def layers(layer, shapes, place):
    """``layer`` inside or at the end of each branch, or in a network without branches."""

    def of(width, depth):
        number = depth if place != "plain" else 1
        sizes = {"stem": (5, width), "head": (width, 3)}
        for i in range(number):
            sizes |= {f"{i}_{name}": shape for name, shape in shapes(width).items()} | {f"{i}_out": (width, width)}

        def apply(p, x):
            h = x @ p["stem"]
            for i in range(number):
                own = {name.removeprefix(f"{i}_"): w for name, w in p.items() if name.startswith(f"{i}_")}
                y = jax.nn.standardize(h) if place != "plain" else jax.nn.gelu(h)
                if place == "end":
                    y = layer(own, jax.nn.gelu(y @ own["out"]), width / 8)
                else:
                    y = jax.nn.gelu(layer(own, y, width / 8)) @ own["out"]
                h = jax.nn.gelu(y) if place == "plain" else h + RULE.residual_multiplier(depth / 2) * y
            return jax.nn.standardize(h) @ p["head"] * (8 / width)

        return apply, {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in sizes.items()}

    depth = 2 if place == "plain" else 6
    return (of(32, depth), of(8, 2)), {"axes": "width"} if place == "plain" else {}


def low_rank(width):
    return {"kernel": (width, width), "a": (width, 4), "b": (4, width)}


ADAPTED = {
    "beside": lambda p, u, m: (u @ p["kernel"] + (u @ p["a"]) @ p["b"]) / m,
    "each": lambda p, u, m: (u @ p["kernel"]) / m + ((u @ p["a"]) @ p["b"]) / m,
    "in front": lambda p, u, m: (u / m) @ p["kernel"] + (u @ p["a"]) @ p["b"] / m,
    "one weight": lambda p, u, m: u @ (p["kernel"] + p["a"] @ p["b"]) / m,
}


@pytest.mark.parametrize("place", ["inside", "end", "plain"])
@pytest.mark.parametrize("name", ADAPTED)
def test_both_paths_of_an_adapted_layer_carry_the_factor_of_their_sum(name, place):
    models, axes = layers(ADAPTED[name], low_rank, place)
    assert not dm.audit(*models, X, carry=False, **axes).ok
    result = dm.audit(*models, X, **axes)
    if not result.ok:
        assert result.findings
        return
    parts = [row for row in result.rows if row.path.partition("_")[2] in ("kernel", "a", "b")]
    carrying = {row.path.partition("_")[2] for row in parts if not row.carried.is_one}
    assert "kernel" in carrying
    assert carrying & {"a", "b"}
    right, axes = layers(lambda p, u, m: ADAPTED[name](p, u, 1.0), low_rank, place)
    assert dm.audit(*right, X, **axes).ok


def vector(width):
    return {"c": (width,), "d": (width,)}


SUMS = {
    "multiplied and summed": lambda c, u: (u * c).sum(-1, keepdims=True),
    "@": lambda c, u: (u @ c)[..., None],
    "einsum": lambda c, u: jnp.einsum("btn,n->bt", u, c)[..., None],
    "one column": lambda c, u: (u[..., None] * c[:, None]).sum(-2),
}


@pytest.mark.parametrize("place", ["inside", "end", "plain"])
@pytest.mark.parametrize("name", SUMS)
def test_a_vector_that_is_summed_over_the_width_is_a_weight_in_every_spelling(name, place):
    right, axes = layers(lambda p, u, m: SUMS[name](p["c"], u) * p["d"], vector, place)
    wrong, _ = layers(lambda p, u, m: SUMS[name](p["c"], u) * p["d"] * m**-0.5, vector, place)
    for carry in (True, False):
        result = dm.audit(*right, X, carry=carry, **axes)
        assert result.ok, str(result)
    roles = {row.path.partition("_")[2]: row.info.role for row in result.rows}
    assert roles["c"] == dm.Role.HIDDEN
    assert roles["d"] == dm.Role.VECTOR
    assert dm.audit(*wrong, X, carry=False, **axes).findings
    carried = dm.audit(*wrong, X, **axes)
    assert carried.ok
    assert not all(row.carried.is_one for row in carried.rows if row.path.endswith(("_c", "_d")))


# --- complex outputs of a state space


def complex_states(width):
    return {"B": (width, 4), "C_re": (width, 4), "C_im": (width, 4), "D": (width,)}


def complex_matrices(width):
    return {"B": (width, width, 2), "C": (width, width, 2), "D": (width,)}


def s4(p, u, c):
    """y = Re(sum C h) + D u, of each feature's own states."""
    states = jnp.cumsum(u[..., None] * p["B"], 1) * jnp.exp(1j * jnp.arange(4.0))
    return 2 * c * (states * (p["C_re"] + 1j * p["C_im"])).sum(-1).real + p["D"] * u


def s5(p, u, c):
    """The same of states of all features."""
    read, write = (jax.lax.complex(p[name][..., 0], p[name][..., 1]) for name in "BC")
    states = jnp.cumsum(u.astype(jnp.complex64) @ read, 1)
    return c * (states @ write).real + p["D"] * u


@pytest.mark.parametrize("place", ["inside", "end"])
@pytest.mark.parametrize(("layer", "shapes"), [(s4, complex_states), (s5, complex_matrices)], ids=["S4", "S5"])
def test_the_complex_output_of_a_state_space_beside_its_input(layer, shapes, place):
    right, _ = layers(lambda p, u, m: layer(p, u, 1.0), shapes, place)
    wrong, _ = layers(lambda p, u, m: layer(p, u, m**-0.5), shapes, place)
    for carry in (True, False):
        assert dm.audit(*right, X, carry=carry).ok
    assert not dm.audit(*wrong, X, carry=False).ok
    result = dm.audit(*wrong, X)
    carrying = {row.path.partition("_")[2] for row in result.rows if not row.carried.is_one}
    assert not result.ok or (carrying & {"C", "C_re"} and "D" not in carrying)
