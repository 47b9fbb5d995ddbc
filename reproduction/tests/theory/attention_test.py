"""Kernels of transformers of infinite width against the package's own networks, and against closed formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from depthmup_flax.models import GPT
from depthmup_flax.util.errors import InputError
from reproduction.theory import transformer_kernels

pytestmark = pytest.mark.usefixtures("float64")

TOKENS = np.array([[0, 1, 2, 1], [1, 3, 0, 0]])  # two examples that share tokens
HEAD_DIM, BASE_WIDTH, DEPTH, A = 4, 16, 2, 1.5


def embedded():
    """H of token embeddings of variance 1 and positions of variance ``1 / BASE_WIDTH`` (`GPT`)."""
    tokens, positions = TOKENS.reshape(-1), np.tile(np.arange(4), 2)
    same = lambda x: (x[:, None] == x) * 1.0
    return jnp.asarray(same(tokens) + same(positions) / BASE_WIDTH)


def kernels(**fields):
    return transformer_kernels(
        embedded(), **{"tokens": 4, "depth": DEPTH, "causal": True, "branch_multiplier": A, **fields}
    )


def of_networks(width, count, **fields):
    """(count, L, P, T, P, T) kernels of the stream of `GPT` after every layer, before training."""
    rule = GPT(4).rule.replace(branch_multiplier=A)
    model = GPT(
        4, width=width, depth=DEPTH, base_width=BASE_WIDTH, base_depth=1, head_dim=HEAD_DIM, rule=rule,
        remat="none", param_dtype=jnp.float64, **fields,
    )  # fmt: skip

    def stream(key):
        _, recorded = model.init_with_output(key, TOKENS, mutable=["params", "intermediates"])
        (h,) = recorded["intermediates"]["transformer"]["blocks"]["stream"]
        return jnp.einsum("lptn,lqun->lptqu", h, h) / width

    keys = jax.random.split(jax.random.key(width), count)
    return np.asarray(jax.jit(lambda keys: jax.lax.map(stream, keys, batch_size=32))(keys))


def power(errors):
    """The power of size between the errors of two sizes."""
    (small, first), (large, last) = errors.items()
    return np.log(last / first) / np.log(large / small)


@pytest.mark.slow
@pytest.mark.parametrize(("qk_norm", "queries", "other"), [(True, "normalized", "zero"), (False, "zero", "normalized")])
def test_our_networks_approach_the_kernels_of_their_queries_alone_as_one_over_width(qk_norm, queries, other):
    """Heads of 4 features, whose number grows with the width."""
    limit, wrong = (kernels(queries=name, head_dim=HEAD_DIM, heads=1024).H[1:] for name in (queries, other))
    found = {width: of_networks(width, 2**13 // width, qk_norm=qk_norm) for width in (64, 256)}
    errors = {width: np.mean((of_width - limit) ** 2) for width, of_width in found.items()}
    assert abs(power(errors) + 1) < 0.1, errors
    mean, noise = found[256].mean(0), found[256].std(0, ddof=1) / len(found[256]) ** 0.5
    deviation = lambda exact: float(np.sqrt(np.mean(((mean - exact) / noise) ** 2)))
    assert deviation(limit) < 1.4
    assert deviation(wrong) > 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("exponent", "dims", "own", "other"), [(-0.5, (2, 8), "random", "zero"), (-1.0, (8, 32), "zero", "random")]
)
def test_as_heads_grow_the_scale_of_logits_decides_if_they_stay_different_or_become_one(exponent, dims, own, other):
    """Kernels approach their own limit as 1 / d, and stay away from that of the other scale."""
    fields = {"depth": 1, "activation": None, "heads": 8192, "populations": 8}
    finite = {d: kernels(queries="random", head_dim=d, scale=d**exponent, **fields).H[1] for d in dims}
    distances = lambda queries: {
        d: float(jnp.sqrt(jnp.mean((H - kernels(queries=queries, **fields).H[1]) ** 2))) for d, H in finite.items()
    }
    assert abs(power(distances(own)) + 1) < 0.2
    assert power(distances(other)) > -0.3


def test_attention_that_takes_the_mean_is_the_closed_form_of_its_equation():
    """With the mean m over both tokens, ``dm / dtau = a^2 m`` for a = 1; a layer multiplies it by ``1 + a^2 / L``."""
    fields = {"causal": False, "activation": None, "norm": False, "branch_multiplier": 1.0}
    means = np.asarray(embedded()).reshape(2, 4, 2, 4).mean((1, 3))[:, None, :, None]
    grown = lambda of_layers: kernels(depth=1, **fields).H[0] + means * (of_layers - 1)[:, None, None, None, None]
    np.testing.assert_allclose(kernels(depth=3, **fields).H, grown((1 + 1 / 3) ** np.arange(4)), rtol=1e-12)
    errors = {}
    for steps in (8, 32):
        limit = kernels(depth=None, steps=steps, **fields)
        errors[steps] = np.abs(limit.H - grown(np.exp(np.asarray(limit.layer_time)))).max()
    assert abs(power(errors) + 2) < 0.2, errors


@pytest.mark.slow
def test_heads_with_gaussian_logits_are_an_integral_over_the_difference_of_two():
    C = np.array([[1.0, 0.3], [0.3, 1.0]])
    found = transformer_kernels(jnp.asarray(C), tokens=2, depth=1, queries="random", activation=None, heads=4096)
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    first = 1 / (1 + np.exp(-nodes * np.sqrt(C[0, 0] * (C[0, 0] + C[1, 1] - 2 * C[0, 1]))))
    both = np.stack([first, 1 - first])
    exact = C[0, 0] + np.einsum("an,ab,bn,n->", both, C, both, weights) / weights.sum()
    assert abs(found.H[1, 0, 0, 0, 0] - exact) < 4 * found.error[1, 0, 0, 0, 0]
    assert found.error[1, 0, 0, 0, 0] < 0.01


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"tokens": 3}, "tokens is 3: use a divisor of 8"),
        ({"queries": "ones"}, "queries is 'ones'"),
        ({"depth": 0}, "depth is 0: use a whole number of at least 1, or None for the limit"),
        ({"scale": 1.0}, "scale is 1.0, but head_dim is infinite"),
        ({"activation": "swish"}, "activation is 'swish'"),
        ({"populations": 1}, "populations is 1"),
    ],
)
def test_bad_input_is_one_sentence(fields, sentence):
    with pytest.raises(InputError, match=sentence):
        kernels(**fields)
