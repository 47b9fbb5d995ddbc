"""Ensembles of finite networks as `reproduction.theory` has them, trained in one compiled program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from depthmup_flax.auditing.config_audit import audited_model
from depthmup_flax.models import ResMLP
from depthmup_flax.rule.optimizer import freeze, sgd
from depthmup_flax.rule.parametrization import Parametrization, get_parametrization
from depthmup_flax.util.types import ArrayTree
from reproduction.theory.argument_checks import LAYERS

GROUPS = 8  # of networks in an ensemble; the mean errors of groups are the points of a fit


def network(
    nonlinearity: str,
    width: int,
    depth: int,
    *,
    rule: Parametrization | None = None,
    pre_nonlin: bool = True,
    mean_subtraction: bool = False,
    **settings: float,
) -> ResMLP:
    """`ResMLP` as B24 Eq. 1 writes it, with one output; in Depth-muP with ``settings``, or in another rule."""
    rule = rule or get_parametrization("depth_mup", **settings)
    form: dict[str, Any] = {"pre_nonlin": pre_nonlin, "mean_subtraction": mean_subtraction, "rule": rule}
    return ResMLP(1, nonlinearity=nonlinearity, width=width, depth=depth, base_width=1, base_depth=1, **form)


def mean_field_sgd(
    model: ResMLP, x_BxD: jax.Array, rate: float, *, trained: Sequence[str] = ("blocks",), **kwargs: Any
) -> optax.GradientTransformation:
    """`sgd` at B24's rate eta_0, that is ``eta_0 gamma0^2 N`` in its mean-field form, on ``trained`` of ``LAYERS``.

    The paper's stem divides its input by sqrt(D); ours starts at that scale and takes the same steps at rate / D.
    """
    rule = model.rule.replace(input_lr_factor=1 / x_BxD.shape[-1])
    info = audited_model(model, x_BxD).info
    optimizer = sgd(rate, info, rule, **kwargs)
    frozen = [name for name in LAYERS if name not in trained]
    return freeze(optimizer, info, frozen) if frozen else optimizer


def init(model: ResMLP, key: jax.Array, x_BxD: jax.Array) -> ArrayTree:
    """Initial parameters, as plain arrays."""
    return nn.unbox(model.init(key, x_BxD))["params"]


def forward(model: ResMLP, params: ArrayTree, x_BxD: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(B,) outputs and (L + 1, B, N) the residual stream from the stem to the last block."""
    outputs, recorded = model.apply({"params": params}, x_BxD, mutable=["intermediates"])
    stream = recorded["intermediates"]["blocks"]["stream"][0]
    stem = x_BxD.reshape(len(x_BxD), -1) @ params["stem"]["kernel"]
    return outputs[:, 0], jnp.concatenate([stem[None].astype(stream.dtype), stream])


def trajectories(
    model: ResMLP,
    optimizer: optax.GradientTransformation,
    x_TxBxD: jax.Array,
    y_TxB: jax.Array,
    observe: Callable[[ArrayTree], ArrayTree],
    keys: jax.Array,
    *,
    lanes: int,
) -> Any:
    """Trains a network per key on the mean of ``(f - y)^2 / 2`` over each step's batch, ``lanes`` at a time.

    Returns ``observe(params)`` before every step: leaves (keys, T, ...).
    """

    def run(key: jax.Array) -> ArrayTree:
        params = init(model, key, x_TxBxD[0])

        def step(carry: Any, batch: tuple[jax.Array, jax.Array]) -> tuple[Any, ArrayTree]:
            (params, state), (x_BxD, y_B) = carry, batch
            loss = lambda p: jnp.mean((forward(model, p, x_BxD)[0] - y_B) ** 2) / 2
            updates, new_state = optimizer.update(jax.grad(loss)(params), state, params)
            return (optax.apply_updates(params, updates), new_state), observe(params)

        return jax.lax.scan(step, (params, optimizer.init(params)), (x_TxBxD, y_TxB))[1]

    return jax.jit(lambda keys: jax.lax.map(run, keys, batch_size=lanes))(keys)


def ensemble_sizes(widths: Sequence[int], seeds: int) -> dict[int, int]:
    """Width -> number of networks: ``seeds`` of the widest, twice as many of half its width, at half the cost."""
    return {width: seeds * (max(widths) // width) for width in sorted(widths)}


def network_keys(seed: int, width: int, depth: int, count: int) -> jax.Array:
    """Keys of ``count`` networks; networks of other sizes share none, so that errors of sizes are independent."""
    return jax.random.split(jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), width), depth), count)


def group_means(values_S: np.ndarray) -> list[float]:
    """Means over `GROUPS` groups of networks."""
    return [float(value) for value in values_S.reshape(GROUPS, -1).mean(1)]
