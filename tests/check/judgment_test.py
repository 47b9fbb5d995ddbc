"""From numbers to verdicts, and one name for the same layer of every network."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import depthmup_flax as dm
from depthmup_flax.check.check import chosen_sizes
from depthmup_flax.check.judgment import verdict_of
from depthmup_flax.check.layers import SizedNetwork, collapsers, collect_layers, named_alike
from depthmup_flax.check.networks import Network, traced
from depthmup_flax.check.records import Size
from depthmup_flax.util.power_fits import fit_power


@pytest.mark.parametrize("slope", [-0.5, 0.0, 0.37, 2.0])
def test_a_power_is_found_inside_its_interval(slope):
    rng = np.random.default_rng(0)
    inside = 0
    for _ in range(200):
        fit = fit_power({size: list(3 * size**slope * np.exp(0.1 * rng.normal(size=4))) for size in (32, 64, 128)})
        inside += abs(fit.slope - slope) < fit.interval
    assert 180 <= inside <= 198  # 95 % of 200, give or take 2.5 standard deviations


def test_slope_and_interval_are_those_of_a_linear_regression():
    values = {size: list(np.random.default_rng(size).lognormal(size=2)) for size in (32, 64, 128)}
    fit = fit_power(values)
    x, y = np.log([(size, value) for size, seeds in values.items() for value in seeds]).T
    regression = scipy.stats.linregress(x, y)
    assert fit.slope == pytest.approx(regression.slope)
    assert fit.interval == pytest.approx(scipy.stats.t.ppf(0.975, 4) * regression.stderr)
    assert str(fit_power({size: [2.0, 2.0] for size in (1, 2, 4)})) in ("+0.00 +- 0.00", "-0.00 +- 0.00")


def test_zero_overflow_and_noise_have_their_own_verdicts():
    sizes = (1, 2, 4)
    verdict = lambda values: verdict_of(fit_power(dict(zip(sizes, values, strict=True))), 0.2)
    assert verdict([[0.0, 0.0]] * 3) == "zero"
    assert verdict([[1.0, 1.0], [2.0, 2.0], [0.0, 0.0]]) == "below precision"
    assert verdict([[1.0, 1.0], [2.0, 2.0], [math.inf, 8.0]]) == "explodes"
    assert verdict([[1.0, 1.0], [1e9, 1e9], [1e18, 1e18]]) == "explodes"
    assert verdict([[1.0, 9.0], [9.0, 1.0], [1.0, 9.0]]) == "unclear"
    assert verdict([[1.0, 1.01], [1.0, 1.02], [1.01, 1.0]]) == "flat"
    assert verdict([[1.0, 1.01], [1.41, 1.42], [2.0, 2.01]]) == "grows"
    assert verdict([[2.0, 2.01], [1.41, 1.42], [1.0, 1.01]]) == "vanishes"


def test_only_indices_that_count_layers_become_a_star():
    names = [
        [f"Block_{i}/Dense_{j}" for i in range(depth) for j in range(2)] + ["head", f"block_{depth - 1}_norm", "in_1"]
        for depth in (2, 4, 8)
    ]
    collapse = collapsers(names, [{}, {}, {}])[2]
    assert collapse("Block_7/Dense_1") == "Block_*/Dense_1"
    assert collapse("block_3_norm") == "block_*_norm"
    assert collapse("in_1") == "in_1"
    # Nothing is counted at one depth.
    assert collapsers([names[0]] * 3, [{}, {}, {}])[0]("Block_1/Dense_1") == "Block_1/Dense_1"


def test_stem_blocks_and_readout_that_share_a_name_stay_apart():
    leaf = lambda role, in_branch=False: dm.ParamInfo(dm.Role(role), (1,), in_branch=in_branch)
    infos = [
        {"Dense_0/kernel": leaf("input")}
        | {f"Dense_{i}/kernel": leaf("hidden", True) for i in range(1, depth + 1)}
        | {f"Dense_{depth + 1}/kernel": leaf("output")}
        for depth in (4, 8, 16)
    ]
    four, eight, _ = collapsers([list(info) for info in infos], infos)
    assert [four(f"Dense_{i}") for i in (0, 1, 4, 5)] == ["Dense_0", "Dense_*", "Dense_*", "Dense_* (output)"]
    assert eight("Dense_5/kernel") == "Dense_*/kernel"


def verdicts_of(power, *, sizes=(64, 256), noise=0.1, seeds=4):
    """Verdicts on 200 measurements of ``size^power``."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(200):
        values = {n: list(n**power * np.exp(noise * rng.normal(size=seeds))) for n in sizes}
        found.append(verdict_of(fit_power(values), 0.2))
    return {verdict: found.count(verdict) / 200 for verdict in found}


@pytest.mark.parametrize(("power", "verdict"), [(-0.5, "vanishes"), (-1.0, "vanishes"), (0.5, "grows"), (0.0, "flat")])
def test_two_sizes_tell_a_mistake_from_a_right_exponent(power, verdict):
    shares = verdicts_of(power)
    assert shares[verdict] > 0.97
    assert set(shares) <= {verdict, "unclear"}


@pytest.mark.parametrize(
    ("flops", "equations", "widths", "depths"),
    [
        (1e6, 50, (128, 512), (8, 32)),  # small: far from the base
        (1e6, 100, (128, 512), (4, 16)),  # layers that are not in a loop compile one by one
        (9e8, 100, (32, 128), (2, 8)),  # a transformer of 4 layers of width 128 on 512 tokens
        (1e12, 1e4, (32, 128), (2, 8)),  # nothing is cheap enough: the smallest
    ],
)
def test_sizes_grow_until_they_cost_too_much(flops, equations, widths, depths):
    assert chosen_sizes(32, 2, flops, equations) == (widths, depths)


BASE = (8, 2)
RULE = dm.get_parametrization("depth_mup")
X = jnp.ones((2, 5, 3))


def mixer(width, depth):
    """Blocks that mix tokens by a matrix of a fixed size."""

    def init(key):
        layer = {"mix": jnp.zeros((5, 5)), "w": jnp.zeros((width, width))}
        return {"stem": jnp.zeros((3, width)), "head": jnp.zeros((width, 4)), **{f"b{i}": layer for i in range(depth)}}

    def apply(p, x):
        h = x @ p["stem"]
        for i in range(depth):
            y = p[f"b{i}"]["mix"] @ jnp.tanh(h) @ p[f"b{i}"]["w"]
            h = h + RULE.residual_multiplier(depth / BASE[1]) * y
        return h @ p["head"] * RULE.readout_multiplier(width / BASE[0])

    return apply, init


def network(width, depth):
    (apply, init), (base, base_init) = mixer(width, depth), mixer(*BASE)
    shapes, base_shapes = (jax.eval_shape(f, jax.random.key(0)) for f in (init, base_init))
    info = dm.audit((apply, shapes), (base, base_shapes), X).info
    return Network(init, lambda p: (apply(p, X), {}), info, dm.adamw(1e-3, info, RULE))


def test_a_matrix_that_does_not_grow_is_no_weight_though_it_looks_like_one_at_the_base_width():
    sizes = [Size("width", w, w, 2) for w in (8, 16, 32)] + [Size("depth", d, 8, d) for d in (2, 4, 8)]
    sized = named_alike([SizedNetwork(size, traced(network(*size[2:]))) for size in sizes])
    assert sized[-1].info["b0/mix"].role is dm.Role.HIDDEN
    layers = collect_layers(sized)
    assert "b*/mix" in layers.vectors
    assert not {*layers.weights} - {"stem", "b*/w", "head"}


def test_the_logits_of_a_tied_table_before_their_multiplier_are_no_feature():
    tokens = jnp.arange(4)

    def apply(p):
        h = p["table"][tokens]
        logits = h @ p["table"].T
        return logits * 8 / h.shape[-1], {"table": h, "table/attend": logits}

    def build(width):
        info = {"table": dm.ParamInfo(dm.Role.INPUT, (16, width), width_out=width / 8)}
        return Network(lambda key: {"table": jnp.zeros((16, width))}, apply, info, dm.adamw(1e-3, info, RULE))

    sizes = [Size("width", width, width, 1) for width in (16, 32, 64)]  # 16 features for 16 tokens
    layers = collect_layers(named_alike([SizedNetwork(size, traced(build(size.width))) for size in sizes]))
    assert layers.readout_activations == {"table/attend"}
