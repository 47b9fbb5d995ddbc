"""The rule's numbers: against microsoft/mup, and against the papers' tables."""

import dataclasses
import functools
import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from depthmup_flax import InputError, Parametrization, ParamInfo, Role, get_parametrization
from depthmup_flax.rule.parametrization import PRESETS, Geometry

RULE = PRESETS["depth_mup"]

# Effective learning-rate multipliers of microsoft/mup 1.0.0 (MuSGD, MuAdam at lr=1 with torch 2.13, one step on unit
# gradients): optim.py MuSGD lines 102-116, MuAdam lines 59-68. Base -> target: MLP 64 -> 512, conv 8 -> 64, and two
# layers of different ratios, n 64 -> 512 (8) and p 32 -> 64 (2).
MUP = [
    # name, role, m_in, m_out, MuSGD, MuAdam
    ("stem.weight", Role.INPUT, 1, 8, 8, 1),
    ("stem.bias", Role.VECTOR, 1, 8, 8, 1),
    ("hidden n->n", Role.HIDDEN, 8, 8, 1, 0.125),
    ("hidden n->4n", Role.HIDDEN, 8, 8, 1, 0.125),
    ("hidden.bias", Role.VECTOR, 1, 8, 8, 1),
    ("layernorm.weight", Role.VECTOR, 1, 8, 8, 1),
    ("readout.weight", Role.OUTPUT, 8, 1, 8, 1),
    ("readout.bias", Role.FIXED, 1, 1, 1, 1),
    ("conv c->2c", Role.HIDDEN, 8, 8, 1, 0.125),
    ("n->p.weight", Role.HIDDEN, 8, 2, 0.25, 0.125),
    ("n->p.bias", Role.VECTOR, 1, 2, 2, 1),
    ("p->n.weight", Role.HIDDEN, 2, 8, 4, 0.5),
    ("p->n.bias", Role.VECTOR, 1, 8, 8, 1),
    ("p readout.weight", Role.OUTPUT, 2, 1, 2, 1),
]


def info(role: Role, **fields) -> ParamInfo:
    return ParamInfo(role=role, shape=(), **fields)


@pytest.mark.parametrize(("name", "role", "m_in", "m_out", "sgd", "adam"), MUP, ids=[row[0] for row in MUP])
def test_width_multipliers_are_those_of_microsoft_mup(name, role, m_in, m_out, sgd, adam):
    rule, leaf = PRESETS["mup"], info(role, width_in=m_in, width_out=m_out)
    assert rule.lr_multiplier(leaf, degree=1) == pytest.approx(sgd)
    assert rule.lr_multiplier(leaf, degree=0) == pytest.approx(adam)


def test_readout_forward_and_init_are_those_of_microsoft_mup():
    # layer.py MuReadout.forward lines 54-56: output_mult * x / width_mult; _rescale_parameters line 50: weights times
    # sqrt(width_mult), so their std stays that of the base fan-in.
    rule = PRESETS["mup"]
    assert rule.readout_multiplier(8.0) == 0.125
    assert 1 / math.sqrt(rule.readout_fan_in(512, 8.0)) == pytest.approx(math.sqrt(8) / math.sqrt(512))


@pytest.mark.parametrize("r", [1.0, 4.0, 100.0])
@pytest.mark.parametrize(("alpha", "gamma"), [(0.5, 0.5), (1.0, 0.0), (0.7, 0.3)])
def test_depth_multipliers_of_stable_parametrizations_are_those_of_the_papers(alpha, gamma, r):
    rule = Parametrization(alpha=alpha, gamma=gamma)
    leaf = info(Role.HIDDEN, in_branch=True, depth_ratio=r)
    assert rule.lr_multiplier(leaf, degree=1) == pytest.approx(r ** (2 * alpha - 1))  # B24 App. M
    assert rule.lr_multiplier(leaf, degree=0) == pytest.approx(r ** (alpha - 1))  # TP6 Table 1 at alpha = 1/2
    assert rule.residual_multiplier(r) == pytest.approx(r**-alpha)
    outside = info(Role.HIDDEN, in_branch=False)
    assert rule.lr_multiplier(outside, degree=1) == rule.lr_multiplier(outside, degree=0) == 1.0


def test_standard_parametrization_multiplies_nothing():
    rule = PRESETS["sp"]
    for role in Role:
        leaf = info(role, width_in=8.0, width_out=8.0, in_branch=True, depth_ratio=16.0, model_width=8.0)
        assert rule.gradient_scale(leaf) == rule.update_scale(leaf) == rule.forward_multiplier(leaf) == 1.0
    assert rule.readout_fan_in(512, 8.0) == 512


def test_sp_with_sqrt_depth_divides_branches_alone_and_keeps_the_one_rate_of_sgd():
    """B24 Fig. B.2 and B.3: one rate at every size; Adam's r^-1/2 is TP6 Table 1's, for want of one in B24."""
    rule, r = PRESETS["sp_sqrt_depth"], 16.0
    assert rule.residual_multiplier(r) == pytest.approx(r**-0.5)
    for role in Role:
        leaf = info(role, width_in=8.0, width_out=8.0, in_branch=True, depth_ratio=r, model_width=8.0)
        assert rule.lr_multiplier(leaf, degree=1) == pytest.approx(1.0)
        assert rule.lr_multiplier(leaf, degree=0) == pytest.approx(r**-0.5)
        assert rule.init_ratio(leaf) is None
    assert rule.readout_multiplier(8.0) == rule.output_divisor(8.0) == 1.0


def test_everything_is_one_at_the_base_model_under_every_preset():
    for rule in PRESETS.values():
        for role in Role:
            leaf = info(role, in_branch=role is not Role.OUTPUT)
            assert rule.gradient_scale(leaf) == rule.update_scale(leaf) == rule.forward_multiplier(leaf) == 1.0


def test_ntk_is_gamma0_of_one_over_sqrt_width():
    leaf = info(Role.HIDDEN, width_in=16.0, width_out=16.0, model_width=16.0)
    by_hand = PRESETS["depth_mup"].replace(gamma0=0.25)
    ntk = PRESETS["ntk"]
    assert ntk.output_divisor(16.0) == by_hand.output_divisor(16.0) == 0.25
    assert ntk.lr_multiplier(leaf, 1) == by_hand.lr_multiplier(leaf, 1)
    assert ntk.lr_multiplier(leaf, 0) == by_hand.lr_multiplier(leaf, 0)


def test_gamma0_gives_sgd_its_square_and_adam_itself():
    rule = PRESETS["depth_mup"].replace(gamma0=3.0)
    for role in Role:
        assert rule.lr_multiplier(info(role), degree=1) == pytest.approx(9.0)  # B24 Eq. 3
        assert rule.lr_multiplier(info(role), degree=0) == pytest.approx(3.0)


def test_inner_gamma_replaces_gamma_inside_branches_alone():
    rule = get_parametrization(inner_gamma=0.0)
    leaf = info(Role.HIDDEN, in_branch=True, depth_ratio=16.0)
    inner = dataclasses.replace(leaf, inner=True)
    assert (rule.update_scale(leaf), rule.update_scale(inner)) == (0.25, 1.0)
    assert rule.lr_multiplier(inner, degree=1) == 4.0  # the sqrt(L) of arXiv:2512.21075 for SGD
    assert PRESETS["depth_mup"].update_scale(inner) == 0.25


def test_role_constants_multiply_their_role_alone():
    for role in Role:
        rule = get_parametrization(**{f"{role}_lr_factor": 0.25})
        for other in Role:
            assert rule.update_scale(info(other)) == (0.25 if other is role else 1.0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: get_parametrization("depth_mpu"), "parametrization.preset is 'depth_mpu': did you mean 'depth_mup'?"),
        (lambda: get_parametrization(alhpa=0.5), "parametrization has no field 'alhpa': did you mean 'alpha'?"),
        (lambda: Parametrization(alpha=-0.5), "parametrization.alpha is -0.5"),
        (lambda: Parametrization(alpha=float("nan")), "parametrization.alpha is nan"),
        (lambda: Parametrization(width="wide"), "parametrization.width is 'wide': use 'mup' or 'standard'"),
        (lambda: Parametrization(gamma0=0.0), "parametrization.gamma0 is 0.0"),
        (lambda: Parametrization(input_lr_factor=-1.0), "parametrization.input_lr_factor is -1.0"),
        (lambda: RULE.residual_multiplier("4"), "depth_ratio is '4'"),
        (lambda: RULE.attention_scale("8", 4), "head_dim is '8'"),
        (lambda: RULE.readout_multiplier(0.0), "width_ratio is 0.0"),
    ],
)
def test_bad_parametrization_is_named(call, message):
    with pytest.raises(InputError) as error:
        call()
    assert message in str(error.value)


def test_ratios_may_be_traced():
    mapped = jax.jit(lambda r: (RULE.residual_multiplier(r), RULE.readout_multiplier(r)))
    assert [float(x) for x in mapped(jnp.float32(4.0))] == [0.5, 0.25]
    assert RULE.residual_multiplier(np.int64(4)) == RULE.residual_multiplier(Fraction(4)) == 0.5


def test_a_rule_whose_numbers_are_traced_has_those_of_the_preset():
    leaves = [info(role, width_in=4.0, width_out=8.0, model_width=4.0) for role in Role]
    leaves += [dataclasses.replace(leaf, in_branch=True, depth_ratio=16.0) for leaf in leaves]
    leaves.append(dataclasses.replace(leaves[-1], inner=True))

    def factors(rule):
        of_leaf = [rule.gradient_scale, *(functools.partial(rule.update_scale, geometry=g) for g in Geometry)]
        whole = [rule.residual_multiplier(16.0), rule.readout_multiplier(4.0), rule.output_divisor(4.0)]
        whole += [rule.readout_fan_in(64, 4.0), rule.attention_scale(32, 8)]
        return [*whole, *(factor(leaf) for factor in of_leaf for leaf in leaves)]

    presets = [rule.replace(inner_gamma=0.25) for rule in PRESETS.values()]
    numbers = jax.tree.map(lambda *x: jnp.array(x, jnp.float32), *(rule.numbers() for rule in presets))
    found = jax.jit(jax.vmap(lambda numbers: factors(RULE.replace(**numbers))))(numbers)
    np.testing.assert_allclose(np.transpose(found), [factors(rule) for rule in presets], rtol=1e-6)
