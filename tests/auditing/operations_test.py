"""What an audit reads of single operations: calls, kernels, normalized weights, random numbers, products.

The zoo has the kinds that people use in whole models: each claim here is about what it lacks.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from edited_nets import DEPTH, RULE, WIDTH, audited, said
from jax.experimental import pallas as pl
from jax.sharding import PartitionSpec as P

import depthmup_flax as dm
from depthmup_flax import InputError, Role, audit
from depthmup_flax.rule.info_trees import flatten_info
from depthmup_flax.trace.stand_ins import STAND_INS

# --- kernels


def foreign(y):
    """A kernel that JAX knows by name alone."""
    return jax.ffi.ffi_call("mine", jax.ShapeDtypeStruct(y.shape, y.dtype))(y)


def pallas(y):
    """A kernel whose body is not read."""

    def kernel(x_ref, o_ref):
        o_ref[...] = x_ref[...] * 1.0

    return pl.pallas_call(kernel, jax.ShapeDtypeStruct(y.shape, y.dtype), name="mine")(y)


@pytest.mark.parametrize("kernel", [foreign, pallas])
def test_a_kernel_is_not_judged_or_read_as_what_the_user_gives(kernel):
    middle = lambda y, *_: kernel(y)
    (place,) = audited(middle=middle).not_judged
    assert place.name == "mine"
    assert "known={'mine'" in place.code
    verdicts = {"ok": lambda y: y * 1.0, "hidden_scaled_with_width": lambda y: y * y.shape[-1] ** 0.5}
    assert [said(audited(middle=middle, known={"mine": function})) for function in verdicts.values()] == [*verdicts]


@pytest.mark.parametrize(
    ("known", "text"),
    [
        ({"mnie": lambda y: y}, "mnie"),
        ({"mine": lambda y: y[0]}, "must return"),
        ({"mine": lambda y, z: y}, "fails on the arrays"),
    ],
)
def test_a_known_function_that_is_not_called_or_does_not_fit_is_refused(known, text):
    with pytest.raises(InputError, match=text):
        audited(middle=lambda y, *_: foreign(y), known=known)


def test_cudnns_attention_is_read_as_what_it_computes():
    rng = np.random.default_rng(0)
    q, k, v = (jnp.asarray(rng.normal(size=(2, 5, heads, 8)), jnp.float32) for heads in (4, 2, 2))
    params = {"scale": 0.3, "layout": 0, "variadic_args": (False, False)}
    ours = STAND_INS["dot_product_attention_fwd_wrapper"](params)(q, k, v, *[jnp.zeros(0)] * 7)
    np.testing.assert_allclose(ours, jax.nn.dot_product_attention(q, k, v, scale=0.3), rtol=1e-5, atol=1e-6)


# --- calls and other operations, in the middle or at the end of a branch


def on_devices(function, spec):
    def call(y):
        mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
        return jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec)(y)

    return call


def rounded(y):
    scale = jnp.max(jnp.abs(y)) / 127
    return jnp.round(y / scale).astype(jnp.int8).astype(y.dtype) * scale


READ = {
    "shard_map": on_devices(lambda y: jax.lax.psum(jnp.tanh(y), "data"), P()),
    "all_to_all": on_devices(lambda y: jax.lax.all_to_all(y, "data", 0, 0, tiled=True), P("data")),
    "barrier": jax.lax.optimization_barrier,
    "scan": lambda y: jax.lax.scan(lambda c, _: (c * 1.0, None), y, length=3)[0],
    "while": lambda y: jax.lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] * 1.0), (0, y))[1],
    "mask": lambda y: jnp.where((y > 0).astype(jnp.int32).astype(bool), y, 0),
    "unitary_fft": lambda y: jnp.fft.fft(y, norm="ortho").real,
}
FACTOR = {"fft": lambda y: jnp.fft.fft(y).real, "shard_map": on_devices(lambda y: y * y.shape[-1] ** 0.5, P("data"))}
UNREAD = {
    "callback": lambda y: jax.pure_callback(np.tanh, jax.ShapeDtypeStruct(y.shape, y.dtype), y),
    "foreign": foreign,
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
    assert result.not_judged[0].source.startswith("operations_test.py:")
    assert said(audited("no_multiplier", middle=middle)) == "missing_branch_multiplier"


# --- numbers and normalized weights


class Scanned(nn.Module):
    """Stochastic depth with a rate that is scanned over: a number that the code does not hold."""

    width: int
    depth: int
    edit: str = ""
    uses_rate: str = "mask"

    @nn.compact
    def __call__(self, x):
        layers = nn.scan(Layer, {"params": 0}, split_rngs={"params": True, "dropout": True}, length=self.depth)
        c = 1.0 if self.edit == "no_multiplier" else float(RULE.residual_multiplier(self.depth / DEPTH))
        h, _ = layers(self.width, c, self.uses_rate, name="layers")(
            nn.Dense(self.width, name="stem")(x), jnp.linspace(0.1, 0.4, self.depth)
        )
        return nn.Dense(8, name="head")(h * RULE.readout_multiplier(self.width / WIDTH))


class Layer(nn.Module):
    width: int
    multiplier: float
    uses_rate: str

    @nn.compact
    def __call__(self, h, rate):
        y = nn.Dense(self.width, name="dense")(nn.relu(nn.LayerNorm(name="norm")(h)))
        if self.uses_rate == "mask":
            y = jnp.where(jax.random.bernoulli(self.make_rng("dropout"), 1 - rate, (len(h), 1)), y / (1 - rate), 0)
        else:
            y = y * rate
        return h + self.multiplier * y, None


def test_a_keep_rate_that_is_an_array_cancels_and_any_other_number_of_an_array_is_not_judged():
    assert said(audited(model=Scanned)) == "ok"
    assert said(audited("no_multiplier", model=Scanned)) == "missing_branch_multiplier"
    result = audited(model=Scanned, uses_rate="factor")
    assert result.verdict == "not judged"
    assert {"layers/dense/kernel"} <= set(result.not_judged[0].paths)


def test_a_factor_of_the_width_inside_a_branch_is_found():
    assert said(audited("root_inside")) == "hidden_scaled_with_width"


def test_a_number_in_the_state_that_does_not_cancel_is_not_judged():
    def times_state(y, module, i):
        return y * module.variable("constants", f"c_{i}", lambda: jnp.ones(())).value

    assert audited(end=times_state).verdict == "not judged"


def test_a_norm_of_a_whole_matrix_hides_its_size_and_is_not_judged():
    class OverNorm(nn.Module):
        features: int

        @nn.compact
        def __call__(self, x):
            kernel = self.param("kernel", nn.initializers.lecun_normal(), (x.shape[-1], self.features))
            return x @ (kernel / jnp.linalg.norm(kernel))

    assert audited(dense=lambda n, name: OverNorm(n, name=name)).verdict == "not judged"


def test_a_learned_scalar_before_the_readout_is_no_factor():
    def forward(params, x):
        h = x @ params["stem"] * RULE.readout_multiplier(params["stem"].shape[1] / WIDTH)
        return h * jnp.exp(params["scale"]) @ params["head"]

    model, base = (
        (forward, {"stem": jnp.ones((8, n)), "scale": jnp.zeros(()), "head": jnp.ones((n, 5))})
        for n in (2 * WIDTH, WIDTH)
    )
    assert audit(model, base, jnp.ones((4, 8))).ok


# --- what stands in front of products, behind a readout, or on the stream

SIZE, BASE = (64, 6), (16, 2)
X = jax.ShapeDtypeStruct((4, 10), jnp.float32)


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


def net_audit(**options):
    return dm.audit(net(*SIZE, **options), net(*BASE, **options), X, carry=False)


@pytest.mark.parametrize("power", [-0.5, 0.5])
def test_a_factor_of_the_width_on_what_a_product_reads_is_named(power):
    (finding,) = net_audit(read=power).findings
    assert finding.name == "hidden_scaled_with_width"
    assert set(finding.paths) == {f"up_{i}" for i in range(SIZE[1])}
    assert net_audit(read=0.0).ok


def test_a_matrix_that_the_stream_passes_through_in_every_layer_is_not_judged():
    audit = net_audit(read=0.0, merged="product")
    assert audit.verdict == "not judged"
    assert {path for one in audit.not_judged for path in one.paths} == {f"merge_{i}" for i in range(SIZE[1])}


def test_few_features_are_outputs_if_they_are_multiplied_as_a_readout_and_hidden_if_not():
    for few, role in ((1.0, Role.OUTPUT), (0.0, Role.HIDDEN)):
        audit = net_audit(read=0.0, few=few)
        assert audit.ok
        assert flatten_info(audit.info)["few"].role is role
    (finding,) = net_audit(read=0.0, few=0.5).findings
    assert finding.paths == ("few",)


# --- biases


GATES = {
    "no gate": lambda y, g: y,
    "gate": lambda y, g: g * y,
    "gate with a bias": lambda y, g: y * (g + 1.0),
    "sigmoid": lambda y, g: jax.nn.sigmoid(g) * y,
    "two gates": lambda y, g: (y * g[:, ::-1]) * jnp.tanh(g),
}


def with_biases(width, depth, of_bias, gate):
    """Branches whose product and bias are multiplied apart, in front of a gate."""
    c = float(RULE.residual_multiplier(depth / 2))
    shapes = {"stem": (5, width), "head": (width, 3)}
    for i in range(depth):
        shapes |= {f"w_{i}": (width, width), f"b_{i}": (width,), f"gate_{i}": (5, width)}
    if gate is GATES["no gate"]:
        shapes = {name: shape for name, shape in shapes.items() if "gate" not in name}

    def apply(p, x):
        h = x @ p["stem"]
        for i in range(depth):
            y = c * (jax.nn.gelu(h) @ p[f"w_{i}"]) + of_bias(c) * p[f"b_{i}"]
            h = h + gate(y, x @ p[f"gate_{i}"] if f"gate_{i}" in p else None)
        return h @ p["head"] * (8 / width)

    return apply, {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}


@pytest.mark.parametrize("gate", GATES)
def test_a_bias_that_is_multiplied_apart_from_its_product_has_the_factor_of_the_branch(gate):
    x = jax.ShapeDtypeStruct((2, 5), jnp.float32)
    pair = lambda *size_and_bias: with_biases(*size_and_bias, GATES[gate])
    of = lambda of_bias: audit(pair(16, 8, of_bias), pair(8, 2, of_bias), x, carry=False)
    assert said(of(lambda c: c)) == "ok"
    assert not of(lambda c: 1.0).ok
