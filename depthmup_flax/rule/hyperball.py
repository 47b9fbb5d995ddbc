"""Hyperball under the rule: hidden matrices keep their norm, and their updates are a share of it (arXiv:2606.16899).

``W <- R Norm(W - eta R Norm(u))`` for every matrix, where ``R`` is its initial Frobenius norm, ``Norm(x) = x / ||x||``
and ``u`` the update of Adam (AdamH) or Muon (MuonH); Adam trains the other parameters. It has no weight decay, which
would change the norm.

What the rule adds. ``R`` grows as ``m_out^1/2``, as the entries start with ``1/sqrt(fan_in)``. An update of Adam is
aligned with its input, nearly of rank one: its largest singular value is its norm, so a step of a constant share of
``R`` changes features by ``m_in^1/2`` more in wide networks: the geometry ``norm_matched``, whose factor is
``m_in^-1/2``. An update of Muon with full rank has ``min(fan_in, fan_out)`` equal singular values, so where input and
output grow alike the share is the same at every width, as the paper has it. One of fewer examples than features has
fewer, which division by its norm would enlarge, in wide networks more. So MuonH divides by the norm of an orthogonal
matrix of full rank. Over depth, a branch's update has the factor ``r^-gamma``, as with every optimizer.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from depthmup_flax.rule.direction_traits import described, norms, require_norms
from depthmup_flax.rule.info_trees import flatten_info, has_no_value, info_of, map_info
from depthmup_flax.rule.muon import Place, by_role, geometry_by_role, orthogonal_direction, require_matrices
from depthmup_flax.rule.optimizer import ScalarOrSchedule, depthmup, require_ranges
from depthmup_flax.rule.parametrization import PRESETS, Geometry, Parametrization, ParamInfo, Role
from depthmup_flax.util.types import ArrayTree, Dtype, InfoTree, Scalar


def adamh(
    learning_rate: ScalarOrSchedule,
    info: InfoTree,
    rule: Parametrization = PRESETS["depth_mup"],
    *,
    b1: Scalar = 0.9,
    b2: Scalar = 0.999,
    eps: Scalar = 1e-8,
    mu_dtype: Dtype | None = None,
    adam_ratio: Scalar = 0.1,
    clip_rms: Scalar | None = None,
) -> optax.GradientTransformationExtraArgs:
    """AdamH: steps of hidden matrices are ``learning_rate`` times their norm, which they keep.

    Args:
      learning_rate: the share of the norm that a step at the base model moves; a number or a schedule.
      info, rule, clip_rms: as in `depthmup_flax.depthmup`.
      b1, b2, eps, mu_dtype: as in ``optax.scale_by_adam``.
      adam_ratio: Adam's rate, of embeddings, readouts, norms and biases, over ``learning_rate``.

    Raises:
      InputError: a hidden parameter whose input and output dimensions are unknown. From ``init``: one that starts at
        zero; values that are being traced are not judged.
    """
    info = info_of(info)
    require_ranges({"b1": b1, "b2": b2, "eps": eps})
    require_matrices(info)
    adam = optax.scale_by_adam(b1, b2, eps, mu_dtype=mu_dtype)
    matched = optax.chain(adam, _of_norm(info))
    return _hyperball(matched, adam, Geometry.NORM_MATCHED, learning_rate, info, rule, adam_ratio, clip_rms)


def muonh(
    learning_rate: ScalarOrSchedule,
    info: InfoTree,
    rule: Parametrization = PRESETS["depth_mup"],
    *,
    beta: Scalar = 0.95,
    nesterov: bool = True,
    ns_steps: int = 5,
    b1: Scalar = 0.9,
    b2: Scalar = 0.999,
    eps: Scalar = 1e-8,
    mu_dtype: Dtype | None = None,
    place: Place | None = None,
    adam_ratio: Scalar = 0.1,
    clip_rms: Scalar | None = None,
) -> optax.GradientTransformationExtraArgs:
    """MuonH: `adamh` with the updates of `depthmup_flax.muon` in place of Adam's for hidden matrices."""
    info = info_of(info)
    require_ranges({"b1": b1, "b2": b2, "eps": eps})
    adam = optax.scale_by_adam(b1, b2, eps, mu_dtype=mu_dtype)
    orthogonal = orthogonal_direction(info, rule, beta, nesterov, ns_steps, "frobenius", None, eps, mu_dtype, place)
    # At the base the norm of this direction, whose singular values are max(1, fan_out / fan_in)^1/2; elsewhere
    # m_out^1/2 times the base's, as the norm of the parameter is.
    shares = optax.chain(orthogonal, _of_norm(info, lambda leaf: math.sqrt(leaf.fan_out)))
    return _hyperball(shares, adam, Geometry.ORTHOGONAL, learning_rate, info, rule, adam_ratio, clip_rms)


def _hyperball(
    hidden: optax.GradientTransformation,
    adam: optax.GradientTransformation,
    geometry: Geometry,
    learning_rate: ScalarOrSchedule,
    info: InfoTree,
    rule: Parametrization,
    adam_ratio: Scalar,
    clip_rms: Scalar | None,
) -> optax.GradientTransformationExtraArgs:
    others = optax.chain(adam, optax.scale(adam_ratio))
    steps = depthmup(
        described(by_role(info, hidden, others), 0),
        info,
        rule,
        learning_rate,
        clip_rms=clip_rms,
        geometry=geometry_by_role(info, geometry),
    )
    return optax.chain(steps, _kept_norms(info, rule))


def _of_norm(info: InfoTree, own: Callable[[ParamInfo], float] | None = None) -> optax.GradientTransformation:
    """Updates of matrices times the norm of the parameter over their own, which is ``own`` of a leaf or measured."""

    def matched(_: str, leaf: ParamInfo, update: jax.Array, param: jax.Array) -> jax.Array:
        norm = norms(leaf, update) if own is None else jnp.asarray(own(leaf))
        share = norms(leaf, param) / jnp.where(norm == 0, 1, norm)
        return (update * share).astype(update.dtype)

    return optax.stateless(lambda updates, params: map_info(matched, info, updates, params))


def _kept_norms(info: InfoTree, rule: Parametrization) -> optax.GradientTransformation:
    """Updates after which each hidden matrix has the norm that it had, without the factor that it carries."""
    all_matched = dict.fromkeys(flatten_info(info), Geometry.NORM_MATCHED)

    def uncarried(_: str, leaf: ParamInfo, param: jax.Array) -> jax.Array:
        return param if has_no_value(param) else leaf.uncarried(param, rule)

    def init(params: ArrayTree) -> optax.EmptyState:
        require_norms(info, map_info(uncarried, info, params), all_matched)
        return optax.EmptyState()

    def kept(_: str, leaf: ParamInfo, update: jax.Array, param: jax.Array) -> jax.Array:
        if leaf.role is not Role.HIDDEN:
            return update
        old = leaf.uncarried(param, rule)
        moved = leaf.uncarried(param + update, rule)
        at_old_norm = moved * (norms(leaf, old) / norms(leaf, moved))
        return ((at_old_norm - old) * leaf.factor(rule)).astype(update.dtype)

    def update(updates: ArrayTree, state: optax.EmptyState, params: ArrayTree = None) -> tuple[ArrayTree, ArrayTree]:
        return map_info(kept, info, updates, params), state

    return optax.GradientTransformation(init, update)
