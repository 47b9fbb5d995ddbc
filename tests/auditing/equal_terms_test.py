"""A sum whose terms are one value is a product with a number, in every spelling."""

import functools
import operator

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import depthmup_flax as dm

RULE = dm.get_parametrization("depth_mup")
X = jax.ShapeDtypeStruct((2, 5), jnp.float32)


def tree(z, k):
    """Sums of sums."""
    terms = [z] * k
    while len(terms) > 1:
        terms = [*map(operator.add, terms[::2], terms[1::2]), *terms[len(terms) // 2 * 2 :]]
    return terms[0]


def tiled(z, k):
    return jnp.tile(z, (1,) * (z.ndim - 1) + (k,)).reshape(*z.shape[:-1], k, z.shape[-1]).sum(-2)


SPELLINGS = {
    "z + z": lambda z, k: functools.reduce(operator.add, [z] * k),
    "sum": lambda z, k: sum([z] * k),
    "of sums": tree,
    "jit": lambda z, k: functools.reduce(jax.jit(jnp.add), [z] * k),
    "computed again": lambda z, k: sum(2.0 * z for _ in range(k)),
    "- (- z - z)": lambda z, k: -functools.reduce(operator.sub, [z] * k, jnp.zeros_like(z)),
    "stack": lambda z, k: jnp.stack([z] * k, -1).sum(-1),
    "broadcast": lambda z, k: jnp.broadcast_to(z, (k, *z.shape)).sum(0),
    "tile": tiled,
    "repeat": lambda z, k: jnp.repeat(z, k, -1).reshape(*z.shape, k).sum(-1),
    "ones @": lambda z, k: jnp.tensordot(jnp.ones(k), jnp.stack([z] * k), 1),
    "einsum": lambda z, k: jnp.einsum("...,k->...", z, jnp.ones(k)),
    "fori_loop": lambda z, k: lax.fori_loop(0, k, lambda _, total: total + z, jnp.zeros_like(z)),
    "scan": lambda z, k: lax.scan(lambda total, _: (total + z, None), z, length=k - 1)[0],
    "z * k": lambda z, k: z * k,
}


def pair(width, depth, several, place, edited):
    """A residual network; ``several`` makes of one array another at a place."""
    branch = RULE.residual_multiplier(depth / 2) if edited else 1.0
    shapes = {"stem": (5, width), "head": (width, 3)}
    for i in range(depth):
        shapes |= {f"up_{i}": (width, width), f"down_{i}": (width, width)}
    at = lambda name, z: several(z) if place == name else z

    def apply(p, x):
        h = at("stem", x @ p["stem"])
        for i in range(depth):
            y = h * lax.rsqrt(jnp.square(h).mean(-1, keepdims=True))
            y = jax.nn.gelu(at("inside", y @ p[f"up_{i}"]))
            h = h + at("branch", branch * (y @ p[f"down_{i}"]))
        y = h * lax.rsqrt(jnp.square(h).mean(-1, keepdims=True))
        return at("head", y @ p["head"]) * (8 / width if edited else 1.0)

    return apply, {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}


def audit(spelling, place, number_of, *, edited=True, **options):
    of = lambda width, depth: pair(width, depth, lambda z: spelling(z, number_of(width, depth)), place, edited)
    return dm.audit(of(32, 6), of(8, 2), X, **options)


FINDINGS = {
    "stem": "embedding_scaled_with_width",
    "inside": "hidden_scaled_with_width",
    "branch": "missing_branch_multiplier",
    "head": "readout_not_scaled",
}


@pytest.mark.parametrize(
    ("name", "place"), [*((name, "inside") for name in SPELLINGS), *(("sum", place) for place in FINDINGS)]
)
def test_as_many_terms_as_the_network_is_wide_are_a_factor_of_the_width(name, place):
    spelling = SPELLINGS[name]
    with_width = functools.partial(audit, spelling, place, lambda width, depth: width // 4)
    fixed = functools.partial(audit, spelling, place, lambda width, depth: 3)
    assert {finding.name for finding in with_width(carry=False).findings} == {FINDINGS[place]}
    assert fixed(carry=False).ok
    assert fixed(edited=False).ok
    carried = with_width()
    assert carried.ok
    assert not all(row.carried.is_one for row in carried.rows)


@pytest.mark.parametrize("name", SPELLINGS)
def test_as_many_terms_as_the_network_is_deep_are_the_factor_of_a_branch(name):
    result = audit(SPELLINGS[name], "branch", lambda width, depth: depth, carry=False)
    (finding,) = result.findings
    assert finding.name == "missing_branch_multiplier"
    (in_code,) = {row.found for row in result.rows if row.path.startswith("down")}
    assert in_code == pytest.approx(3**0.5)


@pytest.mark.parametrize(("number", "is_right"), [(lambda width: 3, True), (lambda width: width // 4, False)])
def test_one_branch_that_a_loop_adds_several_times_to_the_stream_is_one_branch(number, is_right):
    def of(width, depth):
        _, shapes = pair(width, depth, None, "none", edited=True)

        def added(p, x):
            h = x @ p["stem"]
            for i in range(depth):
                y = RULE.residual_multiplier(depth / 2) * (jax.nn.gelu(h @ p[f"up_{i}"]) @ p[f"down_{i}"])
                for _ in range(number(width)):
                    h = h + y
            return h @ p["head"] * (8 / width)

        return added, shapes

    result = dm.audit(of(32, 6), of(8, 2), X, carry=False)
    assert result.depth_ratio == 3
    assert {finding.name for finding in result.findings} == (set() if is_right else {"missing_branch_multiplier"})
    assert not result.not_judged


def test_what_a_skip_connection_adds_again_is_no_factor_of_the_stream():
    """h + f(h), plus h."""

    def of(width, depth):
        _, shapes = pair(width, depth, None, "none", edited=True)

        def with_skip(p, x):
            h = x @ p["stem"]
            for i in range(depth):
                h = h + RULE.residual_multiplier(depth / 2) * (jax.nn.gelu(h @ p[f"up_{i}"]) @ p[f"down_{i}"])
            y = h + jnp.tanh(h)
            return (y + h) @ p["head"] * (8 / width)

        return with_skip, shapes

    assert dm.audit(of(32, 6), of(8, 2), X, carry=False).ok


def test_an_audit_says_the_same_when_python_has_specialized_the_code():
    """Calls are made by other instructions then, whose places in the code are others."""
    several = functools.partial(audit, SPELLINGS["sum"], "inside", lambda width, depth: 3)
    assert [several().verdict for _ in range(10)] == ["ok"] * 10
