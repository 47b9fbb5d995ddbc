"""How much one to five steps move features and logits, as fitted powers of width and depth, from both sides.

Every parameter group is trained alone: all at once, a wrong block exponent hides behind the stem. Sizes are those at
which the limits show: m from 8 up, L from 32 up, a = 1/2. Networks under a rule that does not fit must *not* be
flat, or the test could not fail.
"""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import depthmup_flax as dm
from depthmup_flax.auditing.config_audit import audited_model

pytestmark = pytest.mark.usefixtures("optimized")

GROUPS = ("blocks", "stem", "readout", "biases", "all")
TIMES = (1, 5)
SEEDS = 4
# A power has two ends; a size between them would hardly move it.
WIDTHS = (128, 512)
DEPTHS = (32, 256)
RATES = {"sgd": 0.1, "adam": 0.003}
FLAT = 0.1


def optimizer(name, info, rule):
    return dm.sgd(RATES[name], info, rule) if name == "sgd" else dm.adamw(RATES[name], info, rule)


def in_group(group: jax.Array, path) -> jax.Array:
    """1 where the parameter at ``path`` belongs to GROUPS[group], a traced index."""
    names = [key.key for key in path]
    in_branch = any(name.startswith(("blocks", "segment", "conv_")) for name in names)
    own = "biases" if names[-1] == "bias" else "blocks" if in_branch else names[0]
    own = own if own in GROUPS else "stem"  # widening convolutions, shortcuts, positions
    return (group == GROUPS.index("all")) | (group == GROUPS.index(own))


def moves(model, x, name: str, groups=GROUPS, seeds: int = SEEDS, times=TIMES) -> np.ndarray:
    """Log RMS change of the last residual stream and of the logits: [group, seed, time, quantity].

    Steps are calls of one program: convolutions inside a loop are slow on CPU.
    """
    indices = [jnp.array(GROUPS.index(group)) for group in groups]
    y = x if jnp.issubdtype(x.dtype, jnp.integer) else jax.random.randint(jax.random.key(101), x.shape[:1], 0, 10)
    info = audited_model(model, x).info
    opt = optimizer(name, info, model.rule)

    def forward(params):
        logits, recorded = model.apply({"params": params}, x, mutable=["intermediates"])
        return logits, jax.tree.leaves(recorded)[-1][-1]  # the last block of the last stack

    def loss(params):
        return optax.softmax_cross_entropy_with_integer_labels(forward(params)[0], y).mean()

    def rms(a):
        return jnp.sqrt(jnp.mean(a**2))

    @jax.jit
    def begin(key):
        params = nn.unbox(model.init(key, x))["params"]
        return params, opt.init(params), forward(params)

    @jax.jit
    def step(params, state, start, group):
        updates, state = opt.update(jax.grad(loss)(params), state, params)
        updates = jax.tree_util.tree_map_with_path(lambda path, u: u * in_group(group, path), updates)
        params = optax.apply_updates(params, updates)
        logits, stream = forward(params)
        return params, state, (rms(stream - start[1]), rms(logits - start[0]))

    def train(key, group):
        *carry, start = begin(key)
        found = {}
        for time in range(1, max(times) + 1):
            *carry, found[time] = step(*carry, start, group)
        return [found[time] for time in times]

    keys = jax.random.split(jax.random.key(0), seeds)
    by_seed = np.array(jax.device_get([[train(key, group) for key in keys] for group in indices]), np.float64)
    with np.errstate(divide="ignore"):  # behind a readout that trains alone
        return np.log(by_seed)


@functools.cache
def exponents(name: str, preset: str, axis: str, sizes: tuple[int, ...], groups=GROUPS, times=TIMES) -> np.ndarray:
    """Slopes of log change against log size, [group, time, quantity], for ResMLP."""
    x = jax.random.normal(jax.random.key(100), (16, 24))
    rule = dm.get_parametrization(preset, branch_multiplier=0.5)
    found = []
    for size in sizes:
        grown = (
            {"width": size, "depth": 4, "base_depth": 4}
            if axis == "width"
            else {"width": 32, "depth": size, "base_depth": 8}
        )
        model = dm.ResMLP(10, base_width=16, rule=rule, use_bias=True, **grown)
        found.append(moves(model, x, name, groups, times=times).mean(1))
    return slopes(sizes, found)


def slopes(sizes, found) -> np.ndarray:
    """Least squares of each entry of ``found[size]``, logarithms, against log size; NaN for what does not move."""
    from_mean = np.log(sizes) - np.mean(np.log(sizes))
    with np.errstate(invalid="ignore"):
        return np.tensordot(from_mean / np.sum(from_mean**2), np.stack(found), 1)


@pytest.mark.slow
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize(("axis", "sizes"), [("width", WIDTHS), ("depth", DEPTHS)])
@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_depth_mup_moves_are_flat_in_width_and_depth_for_each_group_alone(name, axis, sizes, group):
    of_group = exponents(name, "depth_mup", axis, sizes)[GROUPS.index(group)]
    features, logits = of_group[:, 0], of_group[:, 1]
    assert np.abs(logits).max() < FLAT, of_group
    if group != "readout":  # which is behind the features
        assert np.abs(features).max() < FLAT, of_group


@pytest.mark.slow
@pytest.mark.parametrize(("name", "features", "logits"), [("sgd", 0.5, 1.0), ("adam", 0.9, 1.3)])
def test_standard_parametrization_blocks_grow_with_width(name, features, logits):
    blocks, everything = exponents(name, "sp", "width", WIDTHS, ("blocks", "all"), times=(1,))[:, 0]
    assert blocks[0] == pytest.approx(features, abs=0.2)
    assert blocks[1] == pytest.approx(logits, abs=0.2)
    assert everything.min() > 0.2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_mup_explodes_with_depth(name):
    # The first step; later ones overflow.
    assert exponents(name, "mup", "depth", (16, 64), ("blocks",), times=(1,)).min() > 1.0


@pytest.mark.slow
def test_block_only_grows_like_the_square_root_of_depth_under_adam():
    """gamma = 0 in place of 1/2 (TP6 Fig. 10, middle)."""
    (blocks,) = exponents("adam", "block_only", "depth", DEPTHS, ("blocks",))
    np.testing.assert_allclose(blocks, 0.45, atol=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "depths"), [("sgd", (128, 1024)), ("adam", DEPTHS)])
def test_completep_blocks_move_as_much_at_every_depth(name, depths):
    """(1, 0) is on the stable line too (TP6 Claim 7.2), with SGD by r^(alpha - gamma) = r; it loses diversity.

    With SGD slopes converge as depth grows: -0.33, -0.12 and -0.04 from depths 16, 32 and 128 up.
    """
    (blocks,) = exponents(name, "completep", "depth", depths, ("blocks",))
    assert np.abs(blocks).max() < FLAT


@pytest.mark.slow
def test_ntk_features_stop_moving_with_width_while_logits_go_on():
    """B24 C.1: h moves as N^-1/2, f as N^0."""
    ((everything,),) = exponents("sgd", "ntk", "width", WIDTHS, ("all",), times=(1,))
    assert everything[0] == pytest.approx(-0.5, abs=0.12)
    assert abs(everything[1]) < 0.15


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_gamma0_sets_how_much_features_move_at_fixed_logit_change(name):
    """Features move in proportion to gamma0, logits do not depend on it, for SGD (B24) and Adam (our extension)."""
    x = jax.random.normal(jax.random.key(100), (16, 24))
    gammas = (0.01, 0.1)
    found = []
    for gamma0 in gammas:
        rule = dm.get_parametrization(gamma0=gamma0, branch_multiplier=0.5)
        # Readout at zero: otherwise the initial output f/gamma0 changes the loss's gradient too. Two steps, as the
        # blocks do not move in the first.
        model = dm.ResMLP(10, width=256, depth=4, base_width=16, rule=rule, use_bias=True, zero_init_readout=True)
        found.append(moves(model, x, name, ["all"]).mean(1)[0, -1])
    features, logits = slopes(gammas, found)
    assert logits == pytest.approx(0.0, abs=0.1)
    assert features > 0.8


@pytest.mark.slow
@pytest.mark.usefixtures("unoptimized")
def test_convolutional_blocks_are_flat_under_depth_mup_and_not_under_sp_or_mup():
    """With SGD, as in B24. LayerNorm, or the narrow stem's randomness hides every exponent; after five steps."""
    x = jax.random.normal(jax.random.key(100), (8, 8, 8, 3))

    def slope(preset, sizes, seeds=SEEDS, **fixed):
        (axis,) = {"width", "depth"} - fixed.keys()
        rule = dm.get_parametrization(preset, branch_multiplier=0.5)
        found = []
        for size in sizes:
            fields = {axis: size, **fixed}
            model = dm.SimpleResNet(10, base_width=16, base_depth=4, rule=rule, norm="layer", **fields)
            found.append(moves(model, x, "sgd", ["blocks"], seeds, times=(5,)).mean(1)[0, -1])
        return slopes(sizes, found)

    assert np.abs(slope("depth_mup", (16, 64), width=32)).max() < 0.15
    assert slope("sp", (32, 96), seeds=2, depth=4).min() > 0.2  # flat under depth_mup: the ResNet below
    assert slope("mup", (8, 32), seeds=2, width=32).min() > 0.4


@pytest.mark.slow
@pytest.mark.usefixtures("unoptimized")
@pytest.mark.parametrize(
    ("model", "name", "sizes"),
    [
        (dm.ViT(10, depth=2, base_width=16, base_depth=2, patch_size=4), "adam", {"width": (64, 256)}),
        (dm.ResNet(10, depth=3, base_width=4, stage_sizes=(1, 2), norm="none"), "sgd", {"width": (16, 64)}),
    ],
    ids=["vit", "resnet"],
)
def test_moves_of_every_model_are_flat_under_depth_mup(model, name, sizes):
    """Its branches alone, its readout alone, and all together; the ones that the whole table is about."""
    images, tokens = jax.random.normal(jax.random.key(100), (4, 8, 8, 3)), jnp.arange(32).reshape(4, 8) ** 2 % 10
    ((field, values),) = sizes.items()
    model = model.clone(rule=dm.get_parametrization("depth_mup", branch_multiplier=0.5))
    grown = [model.clone(**{field: size}) for size in values]
    x = tokens if model.input_kind == "tokens" else images
    found = [moves(network, x, name, ("blocks", "readout", "all"), times=(1, 2)).mean(1) for network in grown]
    branches, readout, everything = slopes(values, found)
    # Small and few: an estimate within 0.3 is nearer to 0 than to any mistake's 1/2 and more.
    assert np.abs([branches, everything]).max() < 0.3
    assert np.abs(readout[:, 1]).max() < 0.3


LLAMA = {"positions": "rotary", "norm": "rms", "mlp": "swiglu", "qk_norm": True, "num_kv_heads": 2, "mlp_features": 48}


@pytest.mark.slow
@pytest.mark.usefixtures("unoptimized")
@pytest.mark.parametrize(("axis", "sizes", "wrong"), [("width", (64, 256), "sp"), ("depth", (8, 32), "mup")])
def test_todays_blocks_move_as_much_at_every_size_under_depth_mup_alone(axis, sizes, wrong):
    """Rotary positions, RMSNorm, SwiGLU, QK-norm, grouped queries; Adam."""
    tokens = jnp.arange(64).reshape(4, 16) ** 2 % 31

    def slope(preset):
        rule = dm.get_parametrization(preset, branch_multiplier=0.5)
        fixed = {"width": 32, "depth": 2} | LLAMA
        model = dm.GPT(31, base_width=16, base_depth=2, rule=rule, **fixed)
        found = [moves(model.clone(**{axis: size}), tokens, "adam", ("blocks", "all"), times=(1, 3)) for size in sizes]
        return slopes(sizes, [logs.mean(1) for logs in found])

    features, logits = np.moveaxis(slope("depth_mup"), -1, 0)
    # Over width a random readout hides what queries do at first: as m^-1/2.
    assert np.abs(features).max() < 0.15
    assert np.abs(logits).max() < 0.15 or (axis == "width" and logits.max() < 0)
    assert slope(wrong)[..., 0].min() > 0.35
