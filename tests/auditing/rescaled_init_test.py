"""Initial values as the rule wants them, from any initializers."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import depthmup_flax as dm
from depthmup_flax import InputError, ParamInfo, Role, get_parametrization, rescale_init
from depthmup_flax.auditing import init_factors, multiplied

RULE = get_parametrization("depth_mup")
NORMAL = nn.initializers.normal(0.02)
ROLES = {"stem": Role.INPUT, "w": Role.HIDDEN, "zero": Role.HIDDEN, "head": Role.OUTPUT, "bias": Role.VECTOR}


def infos(params, m=4.0):
    """The roles of `weights` and `adapters`, by their names."""

    def one(path, leaf):
        role = ROLES.get(path) or (Role.HIDDEN if path.endswith("down") else Role.INPUT)
        width_in = m if role in (Role.HIDDEN, Role.OUTPUT) else 1.0
        width_out = 1.0 if role is Role.OUTPUT or path.endswith("down") else m
        return ParamInfo(role, leaf.shape, width_in, width_out, path.startswith("block"), model_width=m)

    return {path: one(path, leaf) for path, leaf in params.items()}


@functools.partial(jax.jit, static_argnums=(0, 1))
def weights(init, n, rng):
    keys = jax.random.split(jax.random.key(rng), 4)
    sizes = {"stem": (50, n), "w": (n, n), "head": (n, 60)}
    arrays = {path: init(key, shape) for key, (path, shape) in zip(keys, sizes.items(), strict=False)}
    return {**arrays, "bias": jax.random.normal(keys[3], (n,)), "zero": jnp.zeros((n, n))}


@pytest.mark.parametrize(
    ("init", "factors"),
    [
        (nn.initializers.lecun_normal(), {"head": 4**0.5}),
        (nn.initializers.kaiming_uniform(), {"head": 4**0.5}),
        (NORMAL, {"w": 4**-0.5}),
        (nn.initializers.variance_scaling(1.0, "fan_out", "normal"), {"stem": 4**0.5}),
    ],
)
def test_initial_deviations_are_corrected_by_exact_powers_of_the_ratio(init, factors):
    for seed in range(5):
        params, base = weights(init, 128, seed), weights(init, 32, seed + 100)
        info = infos(params)
        new = rescale_init(params, base, info, RULE)
        for path, leaf in params.items():
            np.testing.assert_array_equal(new[path], leaf * np.float32(factors.get(path, 1.0)), err_msg=path)


@pytest.mark.parametrize("power", [0.5, 1.0])
@pytest.mark.parametrize(("m", "r"), [(4.0, 3.0), (2.0, 6.0), (1.0, 16.0)])
def test_initializers_that_know_the_depth_are_corrected_by_exact_powers(m, r, power):
    keys = jax.random.split(jax.random.key(0))
    width = int(64 * m)
    base = {"w": 0.02 * jax.random.normal(keys[0], (64, 64))}
    params = {"w": 0.02 * r**-power * jax.random.normal(keys[1], (width, width))}
    info = {"w": ParamInfo(Role.HIDDEN, (width, width), m, m, True, r, model_width=m)}
    new = rescale_init(params, base, info, RULE)
    np.testing.assert_allclose(new["w"], params["w"] * m**-0.5 * r**power, rtol=1e-6)


@pytest.mark.parametrize(("width", "m", "r"), [(16, 4.0, 3.5), (32, 8.0, 7.0), (64, 4.0, 3.0), (64, 8.0, 6.0)])
def test_powers_of_the_depth_are_taken_for_none_of_the_width(width, m, r):
    large = int(width * m)
    for seed in range(20):
        keys = jax.random.split(jax.random.key(seed), 4)
        base = {"w": jax.random.normal(keys[0], (width, width)) * width**-0.5}
        base["b"] = jax.random.uniform(keys[1], (width,), minval=-1, maxval=1) * width**-0.5
        params = {"w": jax.random.normal(keys[2], (large, large)) * large**-0.5}
        params["b"] = jax.random.uniform(keys[3], (large,), minval=-1, maxval=1) * large**-0.5
        info = {"w": ParamInfo(Role.HIDDEN, (large, large), m, m, True, r, model_width=m)}
        info["b"] = ParamInfo(Role.VECTOR, (large,), 1.0, m, True, r, model_width=m)
        new = rescale_init(params, base, info, RULE)
        np.testing.assert_allclose(new["w"], params["w"], rtol=1e-6)
        np.testing.assert_allclose(new["b"], params["b"] * m**0.5, rtol=1e-6)


def test_a_correction_that_is_no_power_is_the_measured_one():
    init = nn.initializers.xavier_normal()
    params, base = weights(init, 128, 0), weights(init, 32, 1)
    info = infos(params)
    new = rescale_init(params, base, info, RULE)
    assert float(new["head"].std()) == pytest.approx(float(base["head"].std()), rel=1e-5)
    np.testing.assert_array_equal(new["w"], params["w"])


def test_the_standard_parametrization_changes_no_initial_value():
    params, base = weights(NORMAL, 128, 0), weights(NORMAL, 32, 1)
    info = infos(params)
    new = rescale_init(params, base, info, get_parametrization("sp"))
    assert all(new[path] is params[path] for path in params)


def test_initial_values_of_an_nnx_model_can_be_corrected():
    def model(n):
        init = nnx.initializers.normal(0.02)
        return nnx.Sequential(
            nnx.Linear(3, n, rngs=nnx.Rngs(0)), nnx.Linear(n, n, kernel_init=init, rngs=nnx.Rngs(1)),
            nnx.Linear(n, 2, kernel_init=nnx.initializers.zeros, rngs=nnx.Rngs(2)),
        )  # fmt: skip

    wide, base = model(64), model(16)
    before = wide.layers[1].kernel[...]
    info = dm.audit(wide, base, jnp.ones((2, 3))).info
    nnx.update(wide, rescale_init(wide, base, info, RULE))
    np.testing.assert_allclose(wide.layers[1].kernel[...], before / 2, rtol=1e-6)


def test_traced_initial_values_are_those_that_eager_calls_give():
    init = nn.initializers.xavier_normal()  # a measured factor
    seeds = jnp.arange(3)
    base = weights(init, 32, 100)
    info = infos(jax.eval_shape(lambda: weights(init, 128, 0)))
    of_seed = lambda rng: rescale_init(weights(init, 128, rng), base, info, RULE)
    eager = [of_seed(int(rng)) for rng in seeds]
    together = jax.jit(jax.vmap(of_seed))(seeds)
    factors = init_factors(weights(init, 128, 0), base, info, RULE)  # once, for all seeds
    once = jax.vmap(lambda rng: multiplied(weights(init, 128, rng), factors))(seeds)
    for path, leaf in eager[0].items():
        # Compiled normals are rounded differently.
        np.testing.assert_allclose(together[path], np.stack([one[path] for one in eager]), rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(once[path][0], leaf, rtol=1e-6, atol=1e-7)


def test_a_traced_parameter_that_is_constant_in_one_model_alone_becomes_nan():
    params, base = weights(NORMAL, 128, 0), weights(NORMAL, 32, 1)
    info = infos(params)
    new = jax.jit(lambda w: rescale_init({**params, "w": w}, base, info, RULE))(jnp.zeros((128, 128)))
    assert {path for path, leaf in new.items() if not np.isfinite(leaf).all()} == {"w"}


@pytest.mark.filterwarnings("error")
def test_the_deviation_of_complex_weights_is_that_of_both_parts():
    draw = lambda n, phase: {"w": phase * jax.random.normal(jax.random.key(n), (n, n)) / n**0.25}
    params = draw(256, 1j)
    (start,) = init_factors(params, draw(64, 1 + 0j), infos(params), RULE).values()
    assert start.factor == pytest.approx(4**-0.25, rel=0.02)


def test_what_cannot_be_rescaled_is_named():
    params, base = weights(NORMAL, 128, 0), weights(NORMAL, 32, 1)
    info = infos(params)
    with pytest.raises(InputError, match="rule is 'depth_mup'"):
        rescale_init(params, base, info, "depth_mup")
    with pytest.raises(InputError, match=r"'bias' has shape \(32,\), but info was made for \(128,\)"):
        rescale_init(base, base, info, RULE)
    with pytest.raises(InputError, match="'w' is constant in the model alone"):
        rescale_init({**params, "w": jnp.zeros((128, 128))}, base, info, RULE)
    with pytest.raises(InputError, match="'zero' is in the model but not in info"):
        rescale_init(params, base, {path: leaf for path, leaf in info.items() if path != "zero"}, RULE)


RANK = 4


def adapters(key, n, std):
    """Blocks ``h + W2 silu(W1 h)`` of a fixed inner width, W1 with ``std / sqrt(n)``, between a stem and a readout."""
    keys = jax.random.split(key, 4)
    return {
        "stem": jax.random.normal(keys[0], (12, n)) / 12**0.5,
        "block_0_down": std * jax.random.normal(keys[1], (n, RANK)) / n**0.5,
        "block_0_up": 0.5 * jax.random.normal(keys[2], (RANK, n)),
        "block_1_down": std * jax.random.normal(keys[1], (n, RANK)) / n**0.5,
        "block_1_up": 0.5 * jax.random.normal(keys[2], (RANK, n)),
        "head": jax.random.normal(keys[3], (n, 4)) / 8**0.5,
    }


def adapter_features(params, x, m):
    """What the second block's first matrix reads out of the stream, and the logits."""
    h, found = x @ params["stem"], None
    for i in range(2):
        found = h @ params[f"block_{i}_down"]
        h = h + jax.nn.silu(found) @ params[f"block_{i}_up"]
    return found, h @ params["head"] / m


@functools.partial(jax.jit, static_argnums=(1, 2))
def adapter_change(key, n, std):
    """How far three steps of Adam move the features, when everything trains."""
    m = n / 32
    info = infos(jax.eval_shape(lambda k: adapters(k, n, 1.0), key), m)
    x, labels = jax.random.normal(jax.random.key(1), (4, 12)), jnp.arange(4)
    optimizer = dm.adamw(3e-3, info, RULE)
    params = start = adapters(key, n, std)
    state = optimizer.init(params)

    def loss(params):
        logits = adapter_features(params, x, m)[1]
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    for _ in range(3):
        updates, state = optimizer.update(jax.grad(loss)(params), state, params)
        params = optax.apply_updates(params, updates)
    return jnp.sqrt(jnp.mean((adapter_features(params, x, m)[0] - adapter_features(start, x, m)[0]) ** 2))


@pytest.mark.slow
@pytest.mark.parametrize(("scaled", "least", "most"), [(False, 0.3, 0.6), (True, -0.15, 0.15)])
def test_products_to_a_fixed_number_of_features_change_as_the_root_of_the_width_unless_they_start_smaller(
    scaled, least, most
):
    """What `ParamInfo.to_few_features` says, measured: 1/sqrt(fan_in) grows, 1/fan_in is flat."""
    widths = (256, 1024, 4096)
    changes = [
        np.mean([adapter_change(jax.random.key(seed), n, (n / 32) ** -0.5 if scaled else 1.0) for seed in range(8)])
        for n in widths
    ]
    exponent = np.polyfit(np.log(widths), np.log(changes), 1)[0]
    assert least < exponent < most, changes


class SmallReadout(nn.Module):
    width: int
    depth: int
    scale: float  # of the readout's initial values

    @nn.compact
    def __call__(self, x):
        h = nn.Dense(self.width)(x)
        for _ in range(self.depth):
            h = h + nn.Dense(self.width)(nn.relu(h))
        init = (
            nn.initializers.variance_scaling(self.scale**2, "fan_in", "normal") if self.scale else nn.initializers.zeros
        )
        return nn.Dense(10, kernel_init=init, name="head")(h)


@pytest.mark.parametrize("scale", [0.0, 0.125, 1.0])
def test_a_readout_that_starts_smaller_in_both_models_is_taken_and_stays_so(scale):
    x = jnp.ones((8, 12))
    model, base, full, full_base = (SmallReadout(*size, s) for s in (scale, 1.0) for size in ((128, 16), (32, 4)))
    of = lambda network, seed: network.init(jax.random.key(seed), x)["params"]
    audit = dm.audit(model, base, x)
    assert audit.verdict == "ok"
    started, whole = (rescale_init(of(a, 0), of(b, 1), audit.info) for a, b in ((model, base), (full, full_base)))
    dm.adamw(1e-3, audit.info).init(started)
    # In the plain code, which has no multiplier, the function at the start is as much smaller as the readout.
    sizes = [float(jnp.std(network.apply({"params": p}, x))) for network, p in ((model, started), (full, whole))]
    assert sizes[0] == pytest.approx(scale * sizes[1], rel=1e-4, abs=1e-7)


@pytest.mark.parametrize(("base_width", "m"), [(64, 2), (128, 2), (64, 4), (16, 4)])
def test_biases_from_the_fan_in_start_as_the_bases_at_every_width(base_width, m):
    """Each is short: its sampling error may be as large as a factor of sqrt(m)."""
    rng, seeds = np.random.default_rng(0), range(30)
    drawn = lambda width, limit: {str(k): rng.uniform(-limit, limit, width).astype(np.float32) for k in seeds}
    info = {str(k): dm.ParamInfo(Role.VECTOR, (m * base_width,), 1, m) for k in seeds}
    limits = base_width**-0.5, (m * base_width) ** -0.5
    for own_limit, factor in ((limits[1], m**0.5), (limits[0], 1.0)):
        params, base = drawn(m * base_width, own_limit), drawn(base_width, limits[0])
        after = dm.rescale_init(params, base, info)
        right = sum(np.allclose(after[k], factor * params[k], rtol=1e-5) for k in params)
        assert right >= 29
