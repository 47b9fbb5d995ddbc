"""The rule around any optax optimizer: two elementwise scalings, and decay outside them.

The order of the parts is a contract (TP6 Definition 6.1; decay as in B24 App. L):

    1. gradients * gradient scale          n^d r^delta gamma0
    2. clipping (optional)                 on the scaled gradients, so that its threshold transfers
    3. the optimizer's direction           any optax transformation, untouched
    4. updates * update scale              n^-c r^-gamma gamma0 and the role's constant
    5. + weight_decay * parameter          outside the multipliers: the same rate at every width and depth
    6. * -learning_rate                    a number, a traced array or a schedule; schedules multiply eta alone

Every number may be a traced JAX scalar, so a sweep can build the chain inside a mapped function. Building an optimizer
runs nothing on a device: shapes are checked by its ``init``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from depthmup_flax.errors import InputError
from depthmup_flax.rule.directions import checked_at_init, require_direction, sgd_direction
from depthmup_flax.rule.info_trees import frozen_paths, is_info, is_nnx, path_name, require_inner_layers
from depthmup_flax.rule.parametrization import Parametrization, ParamInfo
from depthmup_flax.types import ArrayTree, Dtype, InfoTree, Scalar

ScalarOrSchedule: TypeAlias = "Scalar | optax.Schedule"
Leaf: TypeAlias = "jax.Array | optax.MaskedNode"


def scale_by_depthmup(
    inner: optax.GradientTransformation, info: InfoTree, parametrization: Parametrization
) -> optax.GradientTransformationExtraArgs:
    """Steps 1, 3 and 4 of the contract: ``inner`` between the gradient scale and the update scale (TP6 Def. 6.1).

    The result is not yet multiplied by ``-learning_rate``.

    Args:
      inner: an optax *direction* (`depthmup_flax.rule.directions.require_direction`): no learning rate, no decay, such
        as ``optax.scale_by_adam()``, ``optax.trace(0.9)`` or ``optax.identity()`` for SGD. The rule would scale a
        finished optimizer's decay, too; use `depthmup` for decay.
      info: tree of `ParamInfo` with the parameters' structure.
      parametrization: the rule.

    Raises:
      InputError: the rule does not cover ``inner``. Parts that are neither optax's nor from here are read by ``init``,
        which traces their update with shapes (`depthmup_flax.rule.dependence`).
    """
    require_direction(inner, parametrization)
    require_inner_layers(info, parametrization)
    before, after = parametrization.gradient_scale, parametrization.update_scale
    return optax.chain(_scale_by_info(info, before), checked_at_init(inner), _scale_by_info(info, after))


def depthmup(
    inner: optax.GradientTransformation,
    info: InfoTree,
    parametrization: Parametrization,
    learning_rate: ScalarOrSchedule,
    *,
    weight_decay: Scalar = 0.0,
    clip_rms: Scalar | None = None,
) -> optax.GradientTransformationExtraArgs:
    """A finished optimizer from any optax direction: the six steps of this module's docstring.

    Args:
      inner, info, parametrization: as in `scale_by_depthmup`, and so are the errors.
      learning_rate: eta, or a schedule ``step -> eta``; the one rate that transfers.
      weight_decay: lambda. Where ``info.decay``, a step removes ``eta(t) * lambda`` of the parameter, whatever its
        width and depth (B24 App. L, Eq. 138).
      clip_rms: largest root mean square of all scaled gradients together (see `clip_by_global_rms`).
    """
    require_direction(inner, parametrization)
    require_inner_layers(info, parametrization)
    clip = () if clip_rms is None else (clip_by_global_rms(clip_rms),)
    parts = [_scale_by_info(info, parametrization.gradient_scale), *clip, checked_at_init(inner)]
    parts.append(_scale_by_info(info, parametrization.update_scale))
    if not isinstance(weight_decay, (int, float)) or weight_decay != 0:
        decayed = jax.tree.map(lambda leaf: leaf.decay, info, is_leaf=is_info)
        parts.append(optax.add_decayed_weights(weight_decay, mask=lambda _: decayed))
    return optax.chain(*parts, optax.scale_by_learning_rate(learning_rate))


def sgd(
    learning_rate: ScalarOrSchedule,
    info: InfoTree,
    parametrization: Parametrization,
    *,
    momentum: Scalar | None = None,
    nesterov: bool = False,
    weight_decay: Scalar = 0.0,
    clip_rms: Scalar | None = None,
) -> optax.GradientTransformationExtraArgs:
    """SGD, with momentum if given. Momentum transfers unscaled (B24 K.5); decay is decoupled from the gradient."""
    inner = sgd_direction(momentum, nesterov)
    return depthmup(inner, info, parametrization, learning_rate, weight_decay=weight_decay, clip_rms=clip_rms)


def adamw(
    learning_rate: ScalarOrSchedule,
    info: InfoTree,
    parametrization: Parametrization,
    *,
    b1: Scalar = 0.9,
    b2: Scalar = 0.999,
    eps: Scalar = 1e-8,
    eps_root: Scalar = 0.0,
    mu_dtype: Dtype | None = None,
    nesterov: bool = False,
    weight_decay: Scalar = 0.0,
    clip_rms: Scalar | None = None,
) -> optax.GradientTransformationExtraArgs:
    """Adam (``weight_decay=0``) or AdamW, with the arguments of ``optax.scale_by_adam``.

    ``eps`` is compared with the *scaled* gradient, so it transfers too.
    """
    inner = optax.scale_by_adam(b1, b2, eps, eps_root, mu_dtype, nesterov=nesterov)
    return depthmup(inner, info, parametrization, learning_rate, weight_decay=weight_decay, clip_rms=clip_rms)


def freeze(
    optimizer: optax.GradientTransformation, info: InfoTree, patterns: Sequence[str]
) -> optax.GradientTransformationExtraArgs:
    """A finished ``optimizer`` without updates, optimizer state and share in clipping of the frozen parameters.

    ``patterns`` are globs of parameter paths or of their first parts: TP6 10.2 freezes ``("stem", "readout")``. Each
    must match a parameter, and together not all.
    """
    frozen = frozen_paths(info, patterns)
    labels = jax.tree_util.tree_map_with_path(
        lambda path, _: "frozen" if path_name(path) in frozen else "trained", info, is_leaf=is_info
    )
    return optax.partition({"trained": optimizer, "frozen": optax.set_to_zero()}, labels)


def warmup_schedule(kind: str, warmup_steps: Scalar, total_steps: int) -> optax.Schedule:
    """The fraction of eta at a step: linear warm-up from 0, then ``constant`` at 1 or ``cosine`` to 0 at the end.

    B24 Fig. 3 uses 1000 warm-up steps alone, or 2000 followed by a cosine. ``warmup_steps`` may be traced, unlike in
    optax's joined schedules; a number that is not below ``total_steps`` raises `InputError`.
    """
    if isinstance(warmup_steps, int) and warmup_steps >= total_steps:
        raise InputError(f"optimizer.warmup_steps is {warmup_steps}: use fewer than the {total_steps} training steps.")

    def fraction(step: jax.typing.ArrayLike) -> jax.Array:
        step = jnp.asarray(step)
        rise = step / jnp.maximum(warmup_steps, 1)
        after = jnp.ones_like(rise)
        if kind == "cosine":
            done = jnp.clip((step - warmup_steps) / (total_steps - warmup_steps), 0, 1)
            after = 0.5 * (1 + jnp.cos(jnp.pi * done))
        return jnp.where(step < warmup_steps, rise, after)

    return fraction


def clip_by_global_rms(threshold: Scalar) -> optax.GradientTransformation:
    """Scales all gradients by one factor so that their root mean square is at most ``threshold``.

    This threshold transfers over width and depth: the scaled gradients of TP6 Definition 6.1 are of order one
    *entrywise*, so their global norm grows as the square root of the number of parameters, but their root mean square
    does not. At the base model it is ``optax.clip_by_global_norm(threshold * sqrt(number of parameters))``.
    """

    def update(updates: ArrayTree, state: optax.EmptyState, params: ArrayTree = None) -> tuple[ArrayTree, ArrayTree]:
        del params
        count = sum(leaf.size for leaf in jax.tree.leaves(updates))
        rms = optax.tree.norm(updates) / jnp.sqrt(float(max(count, 1)))
        # A NaN gradient stays NaN, so that the run ends as diverged.
        factor = jnp.where(rms > threshold, threshold / rms, 1.0)
        return jax.tree.map(lambda g: g * factor.astype(g.dtype), updates), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def _scale_by_info(info: InfoTree, scale_of: Callable[[ParamInfo], Scalar]) -> optax.GradientTransformation:
    """Multiplies each leaf by the number its `ParamInfo` maps to; leaves that optax masked out pass unchanged."""

    def init(params: ArrayTree) -> optax.EmptyState:
        _map_info(_require_match, info, params)
        return optax.EmptyState()

    def scale(_: str, leaf_info: ParamInfo, g: Leaf) -> Leaf:
        return g if isinstance(g, optax.MaskedNode) else g * jnp.asarray(scale_of(leaf_info), g.dtype)

    def update(updates: ArrayTree, state: optax.EmptyState, params: ArrayTree = None) -> tuple[ArrayTree, ArrayTree]:
        del params
        return _map_info(scale, info, updates), state

    return optax.GradientTransformation(init, update)


def _map_info(function: Callable[[str, ParamInfo, Leaf], Leaf], info: InfoTree, tree: ArrayTree) -> ArrayTree:
    """``function(path, leaf_info, array)`` over both trees."""

    def at_leaf(path: jax.tree_util.KeyPath, leaf_info: ParamInfo, leaf: Leaf) -> ArrayTree:
        if is_nnx(leaf, "Variable"):  # a node with one array; nnx.Optimizer passes it here and the array there
            return jax.tree.map(lambda array: function(path_name(path), leaf_info, array), leaf)
        return function(path_name(path), leaf_info, leaf)

    try:
        return jax.tree_util.tree_map_with_path(at_leaf, info, tree, is_leaf=is_info)
    except InputError:
        raise
    except ValueError as error:
        raise InputError(
            "the structure of the parameters is not that of info: pass the tree that info was made for. After "
            "param_info that is flax.linen.unbox(variables)['params'], as plain dictionaries."
        ) from error


def _require_match(path: str, leaf_info: ParamInfo, leaf: Leaf) -> Leaf:
    if isinstance(leaf, nn.meta.AxisMetadata):
        raise InputError(
            "the parameters are still in their annotations: unbox them, flax.linen.unbox(variables)['params']."
        )
    if not isinstance(leaf, optax.MaskedNode) and tuple(leaf.shape) != leaf_info.shape:
        raise InputError(
            f"parameter {path!r} has shape {tuple(leaf.shape)}, but info was made for {leaf_info.shape}: make info "
            "for the model that is trained."
        )
    return leaf
