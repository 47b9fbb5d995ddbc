"""Calls are read through; of kernels, the mathematics that a user gives in their place."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from edited_nets import DEPTH, RIGHT_AND_WRONG, RULE, audited, said
from jax.experimental import pallas as pl
from jax.extend.core import Primitive
from jax.sharding import PartitionSpec as P

from depthmup_flax import InputError, audit
from depthmup_flax.auditing.trace import KNOWN

HEAD_DIM, HEADS, LENGTH = 64, 2, 128  # of the base model; the head dimension grows


def foreign(q, k, v, scale):
    """A kernel that JAX knows by name alone."""
    return jax.ffi.ffi_call("attention", jax.ShapeDtypeStruct(q.shape, q.dtype))(q * scale, k, v)


def cudnn(q, k, v, scale):
    """The primitive of ``implementation="cudnn"``, which JAX traces only beside cuDNN."""
    primitive = Primitive("dot_product_attention_fwd_wrapper")
    primitive.multiple_results = True
    primitive.def_abstract_eval(lambda q, *_, **params: [q])
    arguments = (q, k, v, *[jnp.zeros(0)] * 7)
    return primitive.bind(*arguments, scale=float(scale), layout=1, variadic_args=(False, False))[0]


def pallas_attention(q, k, v, scale):
    """A kernel whose body is not read."""

    def attention(q_ref, k_ref, v_ref, out_ref):
        out_ref[...] = written_out(q_ref[...] * scale, k_ref[...], v_ref[...])

    return pl.pallas_call(attention, jax.ShapeDtypeStruct(q.shape, q.dtype), name="attention")(q * scale, k, v)


def written_out(q, k, v):
    return jnp.einsum("bhts,bhsd->bhtd", jax.nn.softmax(jnp.einsum("bhtd,bhsd->bhts", q, k)), v)


class Decoder(nn.Module):
    """Attention in every branch; ``edit`` names a mistake."""

    heads_dim: int
    depth: int
    edit: str
    attention: object

    @nn.compact
    def __call__(self, x):
        d, width = self.heads_dim, HEADS * self.heads_dim
        h = nn.Dense(width, name="stem")(x) * (width**0.5 if self.edit == "root_embedding" else 1)
        for i in range(self.depth):
            y = nn.LayerNorm(name=f"norm_{i}")(h)
            q, k, v = (nn.DenseGeneral((HEADS, d), name=f"{name}_{i}")(y).swapaxes(1, 2) for name in "qkv")
            scale = d**-0.5 if self.edit == "root_heads" else RULE.attention_scale(d, HEAD_DIM)
            y = self.attention(q, k, v, scale).swapaxes(1, 2)
            y = nn.DenseGeneral(width, axis=(-2, -1), name=f"out_{i}")(y)
            h = h + (1 if self.edit == "no_multiplier" else RULE.residual_multiplier(self.depth / DEPTH)) * y
        h = h * (1 if self.edit == "no_readout" else RULE.readout_multiplier(d / HEAD_DIM))
        return nn.Dense(8, name="head")(h)


def decoder(attention, edit, **kwargs):
    model, base = Decoder(2 * HEAD_DIM, 2 * DEPTH, edit, attention), Decoder(HEAD_DIM, DEPTH, edit, attention)
    return audit(model, base, jax.ShapeDtypeStruct((1, LENGTH, 8), jnp.float32), **kwargs)


def test_multipliers_around_an_attention_kernel_and_its_scale_are_read():
    wanted = RIGHT_AND_WRONG | {"root_heads": "attention_scale"}
    assert {edit: said(decoder(cudnn, edit)) for edit in wanted} == wanted


@pytest.mark.parametrize("kernel", [foreign, pallas_attention])
def test_a_kernel_is_not_judged_or_read_as_what_the_user_gives(kernel):
    result = decoder(kernel, "root_heads")
    (place,) = result.not_judged
    assert (result.verdict, place.name) == ("not judged", "attention")
    assert place.source.startswith("kernels_test.py:")
    assert {"q_0/kernel", "k_0/kernel", "v_0/kernel"} <= set(place.paths)
    assert "known={'attention'" in place.code
    wanted = {"": "ok", "root_heads": "attention_scale"}
    assert {edit: said(decoder(kernel, edit, known={"attention": written_out})) for edit in wanted} == wanted


@pytest.mark.parametrize(
    ("known", "text"),
    [
        ({"attentoin": written_out}, "attentoin"),
        ({"attention": lambda q, k, v: q[0]}, "must return"),
        ({"attention": lambda q: q}, "fails on the arrays"),
    ],
)
def test_a_known_function_that_is_not_called_or_does_not_fit_is_refused(known, text):
    with pytest.raises(InputError, match=text):
        decoder(foreign, "", known=known)


def test_cudnns_attention_is_read_as_what_it_computes():
    rng = np.random.default_rng(0)
    q, k, v = (jnp.asarray(rng.normal(size=(2, 5, heads, 8)), jnp.float32) for heads in (4, 2, 2))
    params = {"scale": 0.3, "layout": 0, "variadic_args": (False, False)}
    ours = KNOWN["dot_product_attention_fwd_wrapper"](params)(q, k, v, *[jnp.zeros(0)] * 7)
    np.testing.assert_allclose(ours, jax.nn.dot_product_attention(q, k, v, scale=0.3), rtol=1e-5, atol=1e-6)


# --- kernels and operations of other kinds, in the middle or at the end of a branch


def pallas(y):
    def kernel(x_ref, o_ref):
        o_ref[...] = x_ref[...] * 1.0

    return pl.pallas_call(kernel, jax.ShapeDtypeStruct(y.shape, y.dtype))(y)


def on_devices(function, spec):
    def call(y):
        mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
        return jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec)(y)

    return call


@jax.custom_vjp
def with_own_derivative(y):
    return y * 1.0


with_own_derivative.defvjp(lambda y: (y, None), lambda residual, g: (g,))


def rounded(y):
    scale = jnp.max(jnp.abs(y)) / 127
    return jnp.round(y / scale).astype(jnp.int8).astype(y.dtype) * scale


READ = {
    "shard_map": on_devices(lambda y: jax.lax.psum(jnp.tanh(y), "data"), P()),
    "all_to_all": on_devices(lambda y: jax.lax.all_to_all(y, "data", 0, 0, tiled=True), P("data")),
    "custom_vjp": with_own_derivative,
    "remat": jax.checkpoint(jnp.tanh),
    "barrier": jax.lax.optimization_barrier,
    "scan": lambda y: jax.lax.scan(lambda c, _: (c * 1.0, None), y, length=3)[0],
    "while": lambda y: jax.lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] * 1.0), (0, y))[1],
    "cond": lambda y: jax.lax.cond(y[0, 0] > 0, lambda y: y, lambda y: y * 1.0, y),
    "sort": lambda y: jnp.sort(y, axis=0),
    "unitary_fft": lambda y: jnp.fft.fft(y, norm="ortho").real,
}
FACTOR = {
    "fft": lambda y: jnp.fft.fft(y).real,
    "shard_map": on_devices(lambda y: y * y.shape[-1] ** 0.5, P("data")),
}
UNREAD = {
    "callback": lambda y: jax.pure_callback(np.tanh, jax.ShapeDtypeStruct(y.shape, y.dtype), y),
    "foreign": lambda y: jax.ffi.ffi_call("mine", jax.ShapeDtypeStruct(y.shape, y.dtype))(y),
    "cholesky": lambda y: jnp.linalg.cholesky(y @ y.T + jnp.eye(y.shape[0])) @ y,
    "rounded": rounded,
    "pallas": pallas,
    "reference": lambda y: jax.new_ref(y)[...],
}


@pytest.mark.parametrize("name", READ)
def test_an_operation_that_is_read_hides_no_multiplier(name):
    end = lambda y, *_: READ[name](y)
    assert [said(audited(edit, end=end)) for edit in ("", "no_multiplier")] == ["ok", "missing_branch_multiplier"]


@pytest.mark.parametrize("name", FACTOR)
def test_a_factor_of_the_width_in_an_operation_is_found(name):
    assert said(audited(middle=lambda y, *_: FACTOR[name](y))) == "hidden_scaled_with_width"


@pytest.mark.parametrize("name", UNREAD)
def test_what_is_not_understood_is_not_judged_and_found_mistakes_still_count(name):
    middle = lambda y, *_: UNREAD[name](y)
    result = audited(middle=middle)
    assert result.verdict == "not judged"
    assert {"up_0/kernel", "up_1/kernel"} <= set(result.not_judged[0].paths)
    assert result.not_judged[0].source.startswith("kernels_test.py:")
    assert said(audited("no_multiplier", middle=middle)) == "missing_branch_multiplier"


def test_products_of_experts_are_read():
    product = jax.lax.ragged_dot

    def experts(edit):
        def forward(params, x):
            h, sizes = x @ params["stem"], jnp.array([64, 64])
            for up, down in zip(params["up"], params["down"], strict=True):
                y = product(jax.nn.relu(product(h / jnp.sqrt(jnp.mean(h**2)), up, sizes)), down, sizes)
                h = h + (1 if edit else RULE.residual_multiplier(len(params["up"]) / DEPTH)) * y
            return h * RULE.readout_multiplier(h.shape[1] / 128) @ params["head"]

        def shapes(n, depth):
            shape = lambda *size: jax.ShapeDtypeStruct(size, jnp.float32)
            layers = {"up": [shape(2, n, n)] * depth, "down": [shape(2, n, n)] * depth}
            return forward, {"stem": shape(8, n), "head": shape(n, 5), **layers}

        return audit(shapes(256, 2 * DEPTH), shapes(128, DEPTH), jnp.ones((128, 8)))

    assert [said(experts(edit)) for edit in (False, True)] == ["ok", "missing_branch_multiplier"]
    assert {row.info.role for row in experts(False).rows if row.path.startswith("up")} == {"hidden"}
