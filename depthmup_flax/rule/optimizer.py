"""The rule around any optax optimizer: two elementwise scalings, and decay outside them.

`directions` has the names that a config may give; `direction_traits` says which directions the rule covers.

The order of the parts is a contract (TP6 Definition 6.1; decay as in B24 App. L):

    1. gradients * gradient scale          n^d r^delta gamma0
    2. clipping (optional)                 on the scaled gradients, so that its threshold transfers
    3. the optimizer's direction           any optax transformation, untouched
    4. updates * update scale              n^-c r^-gamma gamma0 and the role's constant
    5. + weight_decay * parameter          outside the multipliers: the same rate at every width and depth, or
                                           times a power of a hidden matrix's own width ratio (`decay_factor`)
    6. * -learning_rate                    a number, a traced array or a schedule; schedules multiply eta alone

Both scalings include the factor c that a parameter carries (`ParamInfo`), whose values the direction sees over c.

Every number may be a traced JAX scalar. Building an optimizer runs nothing on a device; its ``init`` checks shapes.
"""

from __future__ import annotations

import logging
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from depthmup_flax.rule import info_trees
from depthmup_flax.rule.direction_states import scaled_updates
from depthmup_flax.rule.direction_traits import check_direction, described
from depthmup_flax.rule.info_trees import is_info, map_info
from depthmup_flax.rule.parametrization import PRESETS, Geometry, Parametrization, ParamInfo, Role
from depthmup_flax.util.errors import InputError, require_number
from depthmup_flax.util.types import ArrayTree, Dtype, InfoTree, Scalar

log = logging.getLogger(__name__)

ScalarOrSchedule: TypeAlias = "Scalar | optax.Schedule"
DecayMask: TypeAlias = "ArrayTree | Callable[[Any], ArrayTree] | None"


def scale_by_depthmup(
    inner: optax.GradientTransformation,
    info: InfoTree,
    rule: Parametrization = PRESETS["depth_mup"],
    *,
    geometry: str | ArrayTree | None = None,
) -> optax.GradientTransformationExtraArgs:
    """Steps 1, 3 and 4 of the contract: ``inner`` between the gradient scale and the update scale (TP6 Def. 6.1).

    The result is not yet multiplied by ``-learning_rate``.

    Args:
      inner: an optax *direction* (`depthmup_flax.rule.direction_traits`): no learning rate, no decay, such as
        ``optax.scale_by_adam()``, ``optax.trace(0.9)`` or ``optax.identity()`` for SGD.
      info: an audit, or its ``info``: a tree of `ParamInfo` with the parameters' structure.
      rule: the parametrization.
      geometry: what ``inner`` fixes about the size of updates (`Geometry`), if it is neither optax's nor entrywise:
        ``"orthogonal"`` for singular values of order one, ``"two_sided"`` for Shampoo, ``"rotated"`` for SOAP,
        ``"norm_matched"``; or a tree of these with the parameters' structure. ``None``: as known of optax's, or
        entrywise.

    Raises:
      InputError: the rule does not cover ``inner``, or the geometry does not fit ``inner`` or a parameter. Without a
        ``geometry``, ``init`` reads other people's parts from a trace (`depthmup_flax.rule.update_dependence`).
    """
    return optax.chain(*_scaled(inner, info_trees.info_of(info), rule, geometry))


def depthmup(
    inner: optax.GradientTransformation,
    info: InfoTree,
    rule: Parametrization = PRESETS["depth_mup"],
    learning_rate: ScalarOrSchedule | None = None,
    *,
    weight_decay: Scalar = 0.0,
    decay_width_exponent: float = 0.0,
    clip_rms: Scalar | None = None,
    geometry: str | ArrayTree | None = None,
    mask: DecayMask = None,
) -> optax.GradientTransformationExtraArgs:
    """A finished optimizer from any optax direction: the six steps of this module's docstring.

    Args:
      inner, info, rule, geometry: as in `scale_by_depthmup`, and so are the errors.
      learning_rate: eta, or a schedule ``step -> eta``; the one rate that transfers. It must be given.
      weight_decay: lambda. Where ``info.decay``, a step removes ``eta(t) * lambda`` of the parameter, whatever its
        width and depth (B24 App. L, Eq. 138).
      decay_width_exponent: hidden matrices have lambda times their width ratio to this power, see `decay_factor`.
      clip_rms: largest root mean square of all scaled gradients together (see `clip_by_global_rms`).
      mask: which parameters decay, in place of ``info.decay``: as in ``optax.adamw``, a tree of bools or a function of
        the parameters, here of their shapes.
    """
    info = info_trees.with_decay(info_trees.info_of(info), mask)
    first, *others = _scaled(inner, info, rule, geometry)
    if learning_rate is None:
        raise InputError("learning_rate is None: give the base model's, as in learning_rate=1e-3.")
    if not callable(learning_rate):
        require_number("learning_rate", learning_rate, least=0)
    require_number("weight_decay", weight_decay, least=0)
    require_number("decay_width_exponent", decay_width_exponent)
    if clip_rms is not None:
        require_number("clip_rms", clip_rms, above=0)
    clip = () if clip_rms is None else (clip_by_global_rms(clip_rms),)
    parts = [first, *clip, *others]
    if not isinstance(weight_decay, (int, float)) or weight_decay != 0:
        parts += _decays(weight_decay, decay_width_exponent, info, rule)
    return optax.chain(*parts, optax.scale_by_learning_rate(learning_rate))


def sgd(
    learning_rate: ScalarOrSchedule,
    info: InfoTree,
    rule: Parametrization = PRESETS["depth_mup"],
    *,
    momentum: Scalar | None = None,
    nesterov: bool = False,
    weight_decay: Scalar = 0.0,
    decay_width_exponent: float = 0.0,
    clip_rms: Scalar | None = None,
) -> optax.GradientTransformationExtraArgs:
    """SGD, with momentum if given. Momentum transfers unscaled (B24 K.5); decay is decoupled from the gradient.

    The other arguments are those of `adamw`.
    """
    return depthmup(
        sgd_direction(momentum, nesterov),
        info,
        rule,
        learning_rate,
        weight_decay=weight_decay,
        decay_width_exponent=decay_width_exponent,
        clip_rms=clip_rms,
    )


def sgd_direction(momentum: Scalar | None = None, nesterov: bool = False) -> optax.GradientTransformation:
    """The gradient itself, or its running sum if ``momentum`` is given."""
    if momentum is None and nesterov:
        raise InputError("nesterov is set but momentum is not: give a momentum, such as 0.9.")
    require_ranges({"momentum": momentum})
    inner = optax.identity() if momentum is None else optax.trace(momentum, nesterov)
    return described(inner, 1, Geometry.LINEAR)


def adamw(
    learning_rate: ScalarOrSchedule,
    info: InfoTree,
    rule: Parametrization = PRESETS["depth_mup"],
    *,
    b1: Scalar = 0.9,
    b2: Scalar = 0.999,
    eps: Scalar = 1e-8,
    eps_root: Scalar = 0.0,
    mu_dtype: Dtype | None = None,
    nesterov: bool = False,
    weight_decay: Scalar = 0.0,
    mask: DecayMask = None,
    decay_width_exponent: float = 0.0,
    clip_rms: Scalar | None = None,
) -> optax.GradientTransformationExtraArgs:
    """Adam (``weight_decay=0``) or AdamW, with the arguments of ``optax.scale_by_adam``.

    Args:
      learning_rate: the base model's rate, a number or a schedule.
      info: an audit, or its ``info``.
      rule: the parametrization, by default Depth-muP.
      b1, b2, eps, eps_root, mu_dtype, nesterov: as in ``optax.scale_by_adam``; ``eps`` is compared with the *scaled*
        gradient, so it transfers, too.
      weight_decay: lambda, of matrices: biases, norms and tables of positions do not decay. See `depthmup`.
      mask: which parameters decay instead, as in ``optax.adamw``.
      decay_width_exponent: as in `decay_factor`.
      clip_rms: largest root mean square of all scaled gradients together, in place of ``optax.clip_by_global_norm``
        before this optimizer, whose threshold does not transfer. See `clip_by_global_rms`.
    """
    require_ranges({"b1": b1, "b2": b2, "eps": eps, "eps_root": eps_root})
    inner = optax.scale_by_adam(b1, b2, eps, eps_root, mu_dtype, nesterov=nesterov)
    return depthmup(
        described(inner, 0, Geometry.SIGN),
        info,
        rule,
        learning_rate,
        weight_decay=weight_decay,
        mask=mask,
        decay_width_exponent=decay_width_exponent,
        clip_rms=clip_rms,
    )


# Arguments of optax that mean the same in every direction which has them.
AVERAGES = ("b1", "b2", "b3", "decay", "momentum")
_EPSILONS = ("eps", "eps_root")


def require_ranges(arguments: Mapping[str, Any], where: str = "") -> None:
    """Raises `InputError` for an average or an epsilon out of its range; ``where`` precedes its name."""
    for name, value in arguments.items():
        if name in (*AVERAGES, *_EPSILONS) and value is not None:
            require_number(where + name, value, least=0, below=1 if name in AVERAGES else math.inf)


def decay_factor(info: ParamInfo, width_exponent: float) -> float:
    """The factor of lambda: ``m_in^width_exponent`` for a hidden matrix, 1 for other parameters, 0 without decay.

    0: a step removes the same part of a weight at every width (arXiv:2510.19093; B24 App. L). -1: what AdamW does if it
    multiplies decay by the layer's own rate, eta / m, at one lambda for all widths; best for models that grow with
    their data (arXiv:2512.05620). -1/2: in that convention ``lambda ~ sqrt(m)`` (arXiv:2510.15262).
    """
    if not info.decay:
        return 0.0
    return info.width_in**width_exponent if info.role is Role.HIDDEN else 1.0


def freeze(
    optimizer: optax.GradientTransformation, info: InfoTree, patterns: Sequence[str]
) -> optax.GradientTransformationExtraArgs:
    """A finished ``optimizer`` that leaves frozen parameters alone: no updates, no state, no share in clipping.

    ``patterns`` are globs of paths or of their beginnings, each of which must match: TP6 10.2 freezes
    ``("stem", "readout")``.
    """
    info = info_trees.info_of(info)
    frozen = info_trees.frozen_paths(info, patterns)
    labels = jax.tree_util.tree_map_with_path(
        lambda path, _: "frozen" if info_trees.path_name(path) in frozen else "trained", info, is_leaf=is_info
    )
    # A function: optax would call labels in the structure of a module that can be called, as Equinox's.
    return optax.partition({"trained": optimizer, "frozen": optax.set_to_zero()}, lambda _: labels)


def clip_by_global_rms(threshold: Scalar) -> optax.GradientTransformation:
    """Scales all gradients by one factor so that their root mean square is at most ``threshold``.

    The threshold transfers over width and depth: entries of the scaled gradients are of order one (TP6 Definition 6.1),
    and so is their root mean square. At the base model it is
    ``optax.clip_by_global_norm(threshold * sqrt(number of parameters))``.
    """
    require_number("threshold", threshold, above=0)

    def update(updates: ArrayTree, state: optax.EmptyState, params: ArrayTree = None) -> tuple[ArrayTree, ArrayTree]:
        del params
        count = sum(leaf.size for leaf in jax.tree.leaves(updates))
        # A square of a float16 above 255 is infinite.
        wide = jax.tree.map(lambda g: g.astype(jnp.promote_types(g.dtype, jnp.float32)), updates)
        rms = optax.tree.norm(wide) / jnp.sqrt(float(max(count, 1)))
        # A NaN gradient stays NaN, so that the run ends as diverged.
        factor = jnp.where(rms > threshold, threshold / rms, 1.0)
        return jax.tree.map(lambda g: g * factor.astype(g.dtype), updates), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def _decays(
    weight_decay: Scalar, width_exponent: Scalar, info: InfoTree, rule: Parametrization
) -> list[optax.GradientTransformation]:
    """Decay of the parameters, of those with one `decay_factor` together; the exponent may be traced."""
    plain = isinstance(width_exponent, (int, float)) and width_exponent == 0
    ratio = lambda leaf: leaf.width_in if leaf.role is Role.HIDDEN and not plain else 1.0
    ratios = {ratio(leaf) for leaf in jax.tree.leaves(info, is_leaf=is_info) if leaf.decay}
    mask = lambda m: lambda params: map_info(lambda _, leaf, x: leaf.decay and ratio(leaf) == m, info, params)
    decays = [optax.add_decayed_weights(weight_decay * m**width_exponent, mask=mask(m)) for m in sorted(ratios)]

    def unshifted(leaf: ParamInfo, v: jax.Array) -> jax.Array:
        return v - leaf.carried_shift(rule)

    # A carried factor multiplies weight and decay alike, except that of a parameter with an offset.
    return [_seeing(decay, info, unshifted) for decay in decays]


def _scaled(
    inner: optax.GradientTransformation, info: InfoTree, rule: Parametrization, geometry: str | ArrayTree | None
) -> list[optax.GradientTransformation]:
    """Steps 1, 3 and 4 of the contract."""
    inner, kinds = check_direction(inner, info, rule, geometry)
    info_trees.require_followed(info, rule)
    info_trees.require_inner_layers(info, rule)

    def uncarried(leaf: ParamInfo, v: jax.Array) -> jax.Array:
        return leaf.uncarried(v, rule)

    before, after = rule.gradient_scale, rule.update_scale
    return [
        _scale_by_info(info, rule, before),
        _seeing(inner, info, uncarried),
        _scale_by_info(info, rule, after, kinds),
    ]


def _seeing(
    inner: optax.GradientTransformation, info: InfoTree, values: Callable[[ParamInfo, jax.Array], jax.Array]
) -> optax.GradientTransformation:
    """``inner``, which sees ``values(leaf_info, parameter)`` of parameters that carry a factor."""
    if not any(leaf.carries for leaf in info_trees.flatten_info(info).values()):
        return inner
    inner_update = optax.with_extra_args_support(inner).update

    def seen(params: ArrayTree) -> ArrayTree:
        if params is None:
            return None

        def of_leaf(_: str, leaf: ParamInfo, x: Any) -> Any:
            if not leaf.carries or isinstance(x, jax.ShapeDtypeStruct):
                return x
            return values(leaf, x).astype(x.dtype)

        return map_info(of_leaf, info, params)

    def update(updates: ArrayTree, state: ArrayTree, params: ArrayTree = None, **extra_args: Any) -> Any:
        return inner_update(updates, state, seen(params), **extra_args)

    return optax.GradientTransformationExtraArgs(lambda params: inner.init(seen(params)), update)


def _scale_by_info(
    info: InfoTree,
    rule: Parametrization,
    scale_of: Callable[..., Scalar],
    geometries: Mapping[str, Geometry] | None = None,
) -> optax.GradientTransformation:
    """Multiplies each leaf by the number its `ParamInfo` and geometry map to; its ``init`` checks the parameters."""

    def factor_of(path: str, leaf_info: ParamInfo) -> Scalar:
        return scale_of(leaf_info) if geometries is None else scale_of(leaf_info, geometries[path])

    def init(params: ArrayTree) -> ArrayTree:
        map_info(_require_match, info, params)
        if geometries is None:
            return optax.EmptyState()
        info_trees.require_rescaled(info, params, rule)
        _warn_of_coarse(info, params, factor_of)
        return scaled_updates(geometries, info, params)

    def update(updates: ArrayTree, state: ArrayTree, params: ArrayTree = None) -> tuple[ArrayTree, ArrayTree]:
        del params

        def scale(path: str, leaf_info: ParamInfo, g: jax.Array) -> jax.Array:
            return g * jnp.asarray(factor_of(path, leaf_info), g.dtype)

        return map_info(scale, info, updates), state

    return optax.GradientTransformation(init, update)


def _warn_of_coarse(info: InfoTree, params: ArrayTree, update_scale: Callable[[str, ParamInfo], Scalar]) -> None:
    """Warns of parameters of 16 bits whose steps the rule makes smaller.

    A step below half the distance to the next number, at most 0.4 % of a bfloat16, is lost.
    """
    coarse: list[str] = []

    def look(path: str, leaf_info: ParamInfo, leaf: jax.Array) -> jax.Array:
        factor = update_scale(path, leaf_info)
        smaller = isinstance(factor, numbers.Real) and float(factor) < 1
        if smaller and jnp.issubdtype(leaf.dtype, jnp.floating) and jnp.finfo(leaf.dtype).bits <= 16:
            coarse.append(f"{path} is {leaf.dtype}")
        return leaf

    map_info(look, info, params)
    if coarse:
        log.warning(
            "%s, and the rule makes its steps smaller as networks grow: those below half a unit in the last place are "
            "lost. Keep parameters in float32 and compute in 16 bits, as Flax does with dtype=jnp.bfloat16 alone.",
            coarse[0],
        )


def _require_match(path: str, leaf_info: ParamInfo, leaf: jax.Array) -> jax.Array:
    if isinstance(leaf, nn.meta.AxisMetadata):
        raise InputError("the parameters still have their annotations: pass flax.linen.unbox(variables)['params'].")
    if type(leaf).__module__.partition(".")[0] == "torch":
        raise InputError(f"parameter {path!r} is torch's: give its optimizer dm.param_groups(module, info, rule, ...).")
    if leaf.dtype == jnp.float16:
        raise InputError(
            f"parameter {path!r} is float16, in which Adam's epsilon of 1e-8 and small gradients are 0: keep "
            "parameters in float32 and compute in 16 bits, as Flax does with dtype=jnp.float16 alone."
        )
    if tuple(leaf.shape) != leaf_info.shape:
        shapes = f"has shape {tuple(leaf.shape)}, but info was made for {leaf_info.shape}"
        other = "pass the parameters of the network that info was made for, not of its base"
        raise InputError(f"parameter {path!r} {shapes}: {other}.")
    return leaf
