"""Residual MLPs trained at points of the (alpha, gamma) plane: growth of features over depth, and their paths.

The networks are those of Yang et al. (arXiv:2310.02244, TP6), section 6.3, ``x^l = x^(l-1) + a L^-alpha
MS(phi(W^l x^(l-1)))``, with stem and readout frozen. They are trained on a few random examples under the rule's powers
of depth themselves (base depth 1).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from ml_collections import ConfigDict

from depthmup_flax.auditing.config_audit import audited_model
from depthmup_flax.models import ResMLP
from depthmup_flax.rule.directions import direction
from depthmup_flax.rule.optimizer import depthmup, freeze
from depthmup_flax.rule.parametrization import ParamInfo, Role, get_parametrization
from depthmup_flax.util.types import ArrayTree
from reproduction.limits import finite_networks as networks
from reproduction.limits.config_fields import check_fields, require, require_fractions
from reproduction.limits.feature_distances import distances, four_digits
from reproduction.limits.phase_claims import classify
from reproduction.limits.pipeline import Case, Values
from reproduction.theory.gaussian_averages import Activation, get_activation

_INPUTS = 16


class PhaseFactors(NamedTuple):
    """What (alpha, gamma) does to a block at some depth, as numbers that a compiled program takes as arguments."""

    branch: jax.Array
    gradient: jax.Array
    update: jax.Array


class _Program(NamedTuple):
    nonlinearity: str
    optimizer: str
    width: int
    depth: int
    steps: int
    fractions: tuple[float, ...] = ()


class _Data(NamedTuple):
    x_BxD: jax.Array
    y_B: jax.Array
    keys: jax.Array  # of the networks


def factors(alpha: float, gamma: float, branch_multiplier: float, depth: int) -> PhaseFactors:
    """The rule's ``a L^-alpha``, ``L^delta`` and ``L^-gamma`` (TP6 Def. 6.2), in float32."""
    rule = get_parametrization(alpha=alpha, gamma=gamma, branch_multiplier=branch_multiplier)
    block = ParamInfo(Role.HIDDEN, shape=(1, 1), in_branch=True, depth_ratio=depth)
    values = rule.residual_multiplier(depth), rule.gradient_scale(block), rule.update_scale(block)
    return PhaseFactors(*(jnp.asarray(value, jnp.float32) for value in values))


def has_diversity(alpha: float, gamma: float) -> bool:
    """Whether TP6's claims give a feature-diversity exponent."""
    return classify(alpha, gamma).feature_diversity_exponent is not None


def cases(config: ConfigDict) -> list[Case]:
    """Growth at every depth and (alpha, gamma), and paths over depth along the line alpha + gamma = 1."""
    check_fields(config, whole="width examples steps path_steps", several="seeds", sizes="depths path_depths")
    positive, numbers = "learning_rate path_learning_rate branch_multiplier", "alphas gammas path_alphas"
    check_fields(config, positive=positive, numbers=numbers)
    claimed = all(has_diversity(alpha, 1 - alpha) for alpha in config.path_alphas)
    require(config, "path_alphas", claimed, "diversity is claimed for alpha from 0.5 to 1; use those")
    direction(config.optimizer)
    networks.network(config.nonlinearity, config.width, 1)
    require(config, "depths", len(config.depths) > 2, "a power of depth needs three depths or more")
    require_fractions(config, config.path_depths)
    for alpha in (*config.alphas, *config.path_alphas):
        factors(alpha, 0.0, config.branch_multiplier, 1)
    on_line = {alpha for alpha, gamma in itertools.product(config.alphas, config.gammas) if has_diversity(alpha, gamma)}
    path_alphas = sorted({*on_line, *config.path_alphas})
    return [
        {"what": "growth", "depth": depth, "alpha": alpha, "gamma": gamma}
        for depth, alpha, gamma in itertools.product(config.depths, config.alphas, config.gammas)
    ] + [
        {"what": "path", "depth": depth, "alpha": alpha, "gamma": round(1 - alpha, 12)}
        for depth, alpha in itertools.product(config.path_depths, path_alphas)
    ]


def measure(config: ConfigDict, case: Case) -> Values:
    """Root mean squares of features and of their changes, or distances along the path over depth, of each seed."""
    data = _Data(*examples(config), jax.random.split(jax.random.key(config.seed), config.seeds))
    rule = factors(case["alpha"], case["gamma"], config.branch_multiplier, case["depth"])
    program = _Program(config.nonlinearity, config.optimizer, config.width, case["depth"], config.steps)
    if case["what"] == "growth":
        growth = _growth(program, data, rule, jnp.float32(config.learning_rate))
        return {"width": config.width, "steps": config.steps, **{k: four_digits(v) for k, v in growth.items()}}
    program = program._replace(steps=config.path_steps, fractions=(1 / case["depth"], *config.fractions))
    distances_SxE = _path(program, data, rule, jnp.float32(config.path_learning_rate))
    measured = {"distances": four_digits(distances_SxE[:, 1:]), "layer": four_digits(distances_SxE[:, 0])}
    return {"steps": config.path_steps, "fractions": list(config.fractions), **measured}


def examples(config: ConfigDict) -> tuple[jax.Array, jax.Array]:
    """(B, D) Gaussian inputs and (B,) random targets of -1 and 1, the same for every network."""
    key_x, key_y = jax.random.split(jax.random.key(config.seed + 1))
    x_BxD = jax.random.normal(key_x, (config.examples, _INPUTS), jnp.float32)
    return x_BxD, jax.random.rademacher(key_y, (config.examples,), jnp.float32)


@functools.partial(jax.jit, static_argnums=0)
def _growth(program: _Program, data: _Data, rule: PhaseFactors, rate: jax.Array) -> dict[str, jax.Array]:
    """Root mean squares (S,) of ``x^L`` at the start, and (S, steps) of the changes of ``x^L`` and all ``h^l``.

    And (S, steps) of `nonlinear_part`.
    """

    def features(params: ArrayTree, stream_LxBxN: jax.Array) -> tuple[jax.Array, jax.Array]:
        return stream_LxBxN, _preactivations(_kernels(params), stream_LxBxN)

    stream_SxTxLxBxN, pre_SxTxLxBxN = _train(program, data, rule, rate, features)
    kernels_SxLxNxN = jax.lax.map(
        lambda key: _kernels(networks.init(_model(program, rule), key, data.x_BxD)), data.keys
    )
    untrained = jax.vmap(jax.vmap(_preactivations, (None, 0)))(kernels_SxLxNxN, stream_SxTxLxBxN)
    last_SxTxBxN = stream_SxTxLxBxN[:, :, -1]
    nonlinear_SxTxLxBxN = nonlinear_part(get_activation(program.nonlinearity), untrained, pre_SxTxLxBxN)
    return {
        "initial": _rms(last_SxTxBxN[:, 0], 1),
        "change": _rms(last_SxTxBxN[:, 1:] - last_SxTxBxN[:, :1], 2),
        "preactivation": _rms(pre_SxTxLxBxN[:, 1:] - pre_SxTxLxBxN[:, :1], 2),
        "nonlinear": program.depth * rule.branch * jnp.mean(jnp.abs(nonlinear_SxTxLxBxN[:, 1:]), (2, 3, 4)),
    }


def _kernels(params: ArrayTree) -> jax.Array:
    return params["blocks"]["branch"]["dense_0"]["kernel"]


def _preactivations(kernels_LxNxN: jax.Array, stream_LxBxN: jax.Array) -> jax.Array:
    """All ``W^l x^(l-1)``; the stream has ``x^L``, too."""
    return jnp.einsum("lbi,lij->lbj", stream_LxBxN[:-1], kernels_LxNxN)


def nonlinear_part(phi: Activation, untrained: jax.Array, trained: jax.Array) -> jax.Array:
    """What linearizing each block in its trained weights leaves out (TP6 Def. 7.7), without ``L^-alpha``.

    ``MS(phi(W_t x) - phi(W_0 x) - phi'(W_0 x) (W_t - W_0) x)``.
    """
    left_out = phi.function(trained) - phi.function(untrained) - phi.slope(untrained) * (trained - untrained)
    return left_out - left_out.mean(-1, keepdims=True)


@functools.partial(jax.jit, static_argnums=0)
def _path(program: _Program, data: _Data, rule: PhaseFactors, rate: jax.Array) -> jax.Array:
    """(S, E) distances after training."""
    observe = lambda _, stream_LxBxN: distances(stream_LxBxN, program.fractions)
    return _train(program, data, rule, rate, observe)[:, -1]


def _train(
    program: _Program,
    data: _Data,
    rule: PhaseFactors,
    rate: jax.Array,
    observe: Callable[[ArrayTree, jax.Array], ArrayTree],
) -> Any:
    """``observe(params, stream)`` of all seeds before and after each full-batch step.

    The parametrization has no powers of depth; ``rule`` has them, as arguments: one program serves the whole plane.
    """
    model = _model(program, rule)
    info = audited_model(model, data.x_BxD).info
    inner = optax.chain(optax.scale(rule.gradient), direction(program.optimizer), optax.scale(rule.update))
    optimizer = freeze(depthmup(inner, info, model.rule, rate), info, ("stem", "readout"))
    x_TxBxD, y_TxB = (jnp.broadcast_to(v, (program.steps + 1, *v.shape)) for v in (data.x_BxD, data.y_B))
    seen = lambda params: observe(params, networks.forward(model, params, data.x_BxD)[1])
    return networks.trajectories(model, optimizer, x_TxBxD, y_TxB, seen, data.keys, lanes=len(data.keys))


def _model(program: _Program, rule: PhaseFactors) -> ResMLP:
    flat = get_parametrization(alpha=0.0, gamma=0.0, branch_multiplier=rule.branch)
    sizes = (program.nonlinearity, program.width, program.depth)
    return networks.network(*sizes, rule=flat, pre_nonlin=False, mean_subtraction=True)


def _rms(values: jax.Array, axis: int) -> jax.Array:
    """Over all axes from ``axis`` on."""
    return jnp.sqrt(jnp.mean(values**2, range(axis, values.ndim)))
