"""What the jaxpr of a forward pass tells about its parameters; nothing is compiled."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest

from depthmup_flax.check.use_counts import count_uses
from depthmup_flax.rule.info_trees import path_name

H = jnp.ones((2, 3, 8))


class FusedWeights(nn.Module):
    """Attention from one array of query and key weights, and one of values."""

    fused_values: bool = False

    @nn.compact
    def __call__(self, h, _=None):
        w = self.param("w", nn.initializers.normal(), (3, 8, 8))
        values = self.param("values", nn.initializers.normal(), (8, 8))
        q, k, v = jnp.einsum("btd,ndk->nbtk", h, w)
        weights = jax.nn.softmax(jnp.einsum("btd,bsd->bts", nn.RMSNorm(name="norm")(q), k))
        return h + weights @ (v if self.fused_values else h @ values), None


class Looped(nn.Module):
    """A block whose weights are used in every round, or a block per round."""

    shared: bool

    @nn.compact
    def __call__(self, h):
        axes = {"variable_broadcast": "params"} if self.shared else {"variable_axes": {"params": 0}}
        rngs = {"split_rngs": {"params": not self.shared}}
        return nn.scan(nn.remat(FusedWeights), **axes, **rngs, length=5)(name="blocks")(h, None)[0].sum(-1)


def uses(module):
    params = jax.eval_shape(module.init, jax.random.key(0), H)["params"]
    jaxpr = jax.make_jaxpr(lambda p: jax.tree.leaves(module.apply({"params": p}, H))[0])(params)
    paths = [path_name(path) for path, _ in jax.tree_util.tree_flatten_with_path(params)[0]]
    found = count_uses(jaxpr, len(paths))
    return {path: found.counts[i] for i, path in enumerate(paths)}, {paths[i] for i in found.queries_and_keys}


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (
            nn.MultiHeadDotProductAttention(2),
            {f"{part}/{leaf}" for part in ("query", "key") for leaf in ("kernel", "bias")},
        ),
        (FusedWeights(), {"w", "norm/scale"}),
        (FusedWeights(fused_values=True), {"norm/scale"}),
        (Looped(shared=False), {"blocks/w", "blocks/norm/scale"}),
    ],
)
def test_queries_and_keys_are_found_by_what_the_outputs_see_of_them(module, expected):
    assert uses(module)[1] == expected


def test_a_loop_counts_the_uses_of_shared_weights():
    assert uses(Looped(shared=True))[0] == {"blocks/norm/scale": 5, "blocks/values": 5, "blocks/w": 5}
    assert uses(Looped(shared=False))[0] == {"blocks/norm/scale": 1, "blocks/values": 1, "blocks/w": 1}


def test_what_meets_in_an_operation_that_is_not_read_may_be_queries_and_keys():
    """A kernel of attention: the effect of its queries may vanish with width, as in attention that is read."""

    def scores(q, k, v):
        return jax.pure_callback(lambda q, k, v: q, q, q, k, v)

    def outputs(params):
        h = scores(H @ params["query"], H @ params["key"], H @ params["value"])
        return (h @ params["out"]).sum(-1)

    params = {name: jax.ShapeDtypeStruct((8, 8), jnp.float32) for name in ("key", "out", "query", "value")}
    found = count_uses(jax.make_jaxpr(outputs)(params), 4)
    assert found.queries_and_keys == {0, 2, 3}
