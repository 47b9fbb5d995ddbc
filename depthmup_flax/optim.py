"""The rule around any optax optimizer: two elementwise scalings, and decay outside them.

The order of the parts is a contract (TP6 Definition 6.1; decay as in B24 App. L):

    1. gradients * gradient scale          n^d r^delta gamma0
    2. clipping (optional)                 on the scaled gradients, so that its threshold transfers
    3. the optimizer's direction           any optax transformation, untouched
    4. updates * update scale              n^-c r^-gamma gamma0 and the role's constant
    5. + weight_decay * parameter          outside the multipliers: the same rate at every width and depth
    6. * -learning_rate                    a number, a traced array or a schedule; schedules multiply eta alone

Every number may be a traced JAX scalar, so a sweep can build the chain inside a mapped function.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from depthmup_flax.errors import InputError, did_you_mean
from depthmup_flax.parametrization import Parametrization, Scalar
from depthmup_flax.params import frozen_paths, is_info, is_nnx, path_name

ScalarOrSchedule: TypeAlias = Scalar | optax.Schedule


def scale_by_depthmup(
    inner: optax.GradientTransformation, info: Any, parametrization: Parametrization
) -> optax.GradientTransformationExtraArgs:
    """Steps 1, 3 and 4 of the contract: ``inner`` between the gradient scale and the update scale (TP6 Def. 6.1).

    Args:
      inner: an optax *direction*: no learning rate, no decay (``optax.scale_by_adam()``, ``optax.trace(0.9)``,
        ``optax.scale_by_lion()``, ``optax.identity()`` for SGD). A finished ``optax.adamw(lr)`` would have its decay
        scaled too, which shrinks it with width; use `depthmup` for decay.
      info: tree of `ParamInfo` with the parameters' structure.
      parametrization: the rule.

    Returns:
      The direction, not yet multiplied by ``-learning_rate``.

    Raises:
      InputError: ``inner`` is a finished optimizer, or linear in the gradient where the parametrization allows
        normalized updates only.
    """
    require_direction(inner, parametrization)
    return optax.chain(_scale_gradients(info, parametrization), inner, _scale_updates(info, parametrization))


def depthmup(
    inner: optax.GradientTransformation,
    info: Any,
    parametrization: Parametrization,
    learning_rate: ScalarOrSchedule,
    *,
    weight_decay: Scalar = 0.0,
    clip_rms: Scalar | None = None,
) -> optax.GradientTransformationExtraArgs:
    """A finished optimizer from any optax direction: the six steps of this module's docstring.

    Args:
      inner: the direction (see `scale_by_depthmup`).
      info: tree of `ParamInfo` with the parameters' structure.
      parametrization: the rule.
      learning_rate: eta, or a schedule ``step -> eta``; the one rate that transfers.
      weight_decay: lambda. Where ``info.decay``, a step removes ``eta(t) * lambda`` of the parameter, whatever its
        width and depth (B24 App. L, Eq. 138).
      clip_rms: largest root mean square of all scaled gradients together (see `clip_by_global_rms`).

    Raises:
      InputError: as `scale_by_depthmup`.
    """
    require_direction(inner, parametrization)
    parts = [_scale_gradients(info, parametrization)]
    if clip_rms is not None:
        parts.append(clip_by_global_rms(clip_rms))
    parts += [inner, _scale_updates(info, parametrization)]
    if not _is_zero(weight_decay):
        parts.append(optax.add_decayed_weights(weight_decay, mask=lambda _: decay_mask(info)))
    return optax.chain(*parts, optax.scale_by_learning_rate(learning_rate))


def sgd(
    learning_rate: ScalarOrSchedule,
    info: Any,
    parametrization: Parametrization,
    *,
    momentum: Scalar | None = None,
    nesterov: bool = False,
    weight_decay: Scalar = 0.0,
    clip_rms: Scalar | None = None,
) -> optax.GradientTransformationExtraArgs:
    """SGD, with momentum if given (unscaled: it transfers, B24 K.5). Decay is decoupled, not added to the gradient."""
    if parametrization.normalized_updates_only:
        _refuse_linear(parametrization)
    inner = _sgd_direction(momentum, nesterov)
    return depthmup(inner, info, parametrization, learning_rate, weight_decay=weight_decay, clip_rms=clip_rms)


def adamw(
    learning_rate: ScalarOrSchedule,
    info: Any,
    parametrization: Parametrization,
    *,
    b1: Scalar = 0.9,
    b2: Scalar = 0.999,
    eps: Scalar = 1e-8,
    weight_decay: Scalar = 0.0,
    clip_rms: Scalar | None = None,
    **kwargs: Any,
) -> optax.GradientTransformationExtraArgs:
    """Adam (``weight_decay=0``) or AdamW. ``eps`` is compared with the *scaled* gradient, so it transfers too.

    ``kwargs`` go to ``optax.scale_by_adam``.
    """
    inner = optax.scale_by_adam(b1=b1, b2=b2, eps=eps, **kwargs)
    return depthmup(inner, info, parametrization, learning_rate, weight_decay=weight_decay, clip_rms=clip_rms)


def freeze(
    optimizer: optax.GradientTransformation, info: Any, patterns: Sequence[str]
) -> optax.GradientTransformationExtraArgs:
    """``optimizer`` for all parameters but those that match; these get an update of zero.

    Frozen leaves are hidden from ``optimizer``: they have no optimizer state and do not count in clipping.

    Args:
      optimizer: finished, as `depthmup` returns it.
      info: tree of `ParamInfo` with the parameters' structure.
      patterns: globs of parameter paths or of their beginnings: TP6 10.2 freezes ``("stem", "readout")``.

    Raises:
      InputError: a pattern matches no parameter, or everything is frozen.
    """
    frozen = frozen_paths(info, patterns)
    labels = jax.tree_util.tree_map_with_path(
        lambda path, _: "frozen" if path_name(path) in frozen else "trained", info, is_leaf=is_info
    )
    return optax.partition({"trained": optimizer, "frozen": optax.set_to_zero()}, labels)


def direction(name: str, **kwargs: Any) -> optax.GradientTransformation:
    """An entrywise optax direction by name; ``kwargs`` go to optax as they are.

    ``sgd`` (with an optional ``momentum``), ``momentum`` (0.9 unless given), ``adam``, ``adamw`` (the same: a
    direction has no decay), ``nadam``, ``adabelief``, ``adagrad``, ``rmsprop``, ``sign_sgd``, and ``<name>`` for
    every other ``optax.scale_by_<name>``: ``lion``, ``radam``, ``yogi``, ...

    Raises:
      InputError: no such direction, an argument it does not take, or one whose update of an entry depends on other
        entries (TP6 Definition 6.1 is about entrywise optimizers).
    """
    plain = all(value is None or isinstance(value, (bool, int, float)) for value in kwargs.values())
    if plain:
        return _direction_of_numbers(name, tuple(sorted(kwargs.items())))
    return _checked_direction(name, kwargs, measure=True)


@functools.cache
def _direction_of_numbers(name: str, kwargs: tuple[tuple[str, Any], ...]) -> optax.GradientTransformation:
    # Ours are entrywise with any numbers; it takes half a second to measure.
    return _checked_direction(name, dict(kwargs), measure=name not in _DIRECTIONS)


def _checked_direction(name: str, kwargs: Mapping[str, Any], measure: bool) -> optax.GradientTransformation:
    make = _direction_factory(name)
    try:
        inner = make(**kwargs)
    except TypeError as error:
        takes = ", ".join(inspect.signature(make).parameters)
        raise InputError(f"optimizer.kwargs of {name!r}: {error}; it takes {takes or 'nothing'}.") from error
    if measure and not is_entrywise(inner):
        raise InputError(
            f"optimizer.name is {name!r}, whose update of an entry depends on other entries: the rule is for entrywise "
            "optimizers such as sgd, momentum, adam, lion or rmsprop."
        )
    return inner


def direction_eps(name: str, **kwargs: Any) -> float | None:
    """The epsilon that a direction adds to a gradient's size, ``None`` if it has none; for the printed table.

    Where optax adds it under the square root (rmsprop, adagrad), this is its square root.
    """
    parameters = inspect.signature(_direction_factory(name)).parameters
    if "eps" not in parameters:
        return None
    eps = kwargs.get("eps", parameters["eps"].default)
    in_sqrt = "eps_in_sqrt" in parameters and kwargs.get("eps_in_sqrt", parameters["eps_in_sqrt"].default)
    return math.sqrt(eps) if in_sqrt or name in ("adagrad", "rss") else eps


def warmup_schedule(kind: str, warmup_steps: Scalar, total_steps: int) -> optax.Schedule:
    """Step -> fraction of eta: linear from 0 over ``warmup_steps``, then ``constant`` 1 or ``cosine`` to 0 at the end.

    B24 Fig. 3: 1000 warm-up steps alone, or 2000 followed by a cosine. ``warmup_steps`` may be traced, which optax's
    own joined schedules do not allow.
    """
    if isinstance(warmup_steps, int) and warmup_steps >= total_steps:
        raise InputError(f"optimizer.warmup_steps is {warmup_steps}: use fewer than the {total_steps} training steps.")

    def fraction(step: Any) -> jax.Array:
        rise = step / jnp.maximum(warmup_steps, 1)
        after = jnp.ones_like(rise)
        if kind == "cosine":
            done = jnp.clip((step - warmup_steps) / (total_steps - warmup_steps), 0, 1)
            after = 0.5 * (1 + jnp.cos(jnp.pi * done))
        return jnp.where(step < warmup_steps, rise, after)

    return fraction


def clip_by_global_rms(threshold: Scalar) -> optax.GradientTransformation:
    """Scales all gradients down together so that their root mean square is at most ``threshold``.

    The scaled gradients of TP6 Definition 6.1 are of order one *entrywise*, so their global norm grows like the square
    root of the number of parameters while their root mean square does not: this threshold transfers over width and
    depth. At the base model it is ``optax.clip_by_global_norm(threshold * sqrt(number of parameters))``.
    """

    def update(updates: Any, state: optax.EmptyState, params: Any = None) -> tuple[Any, optax.EmptyState]:
        del params
        count = sum(leaf.size for leaf in jax.tree.leaves(updates))
        rms = optax.tree.norm(updates) / jnp.sqrt(float(max(count, 1)))
        # Divides only when above the threshold; a NaN gradient stays NaN and ends the run as diverged.
        factor = jnp.where(rms > threshold, threshold / rms, 1.0)
        return jax.tree.map(lambda g: g * factor.astype(g.dtype), updates), state

    return optax.GradientTransformation(lambda _: optax.EmptyState(), update)


def decay_mask(info: Any) -> Any:
    """Tree of booleans: where weight decay applies (matrices, unless a parameter was annotated otherwise)."""
    return jax.tree.map(lambda leaf: leaf.decay, info, is_leaf=is_info)


def homogeneity(inner: optax.GradientTransformation) -> float:
    """The power with which an optimizer's updates follow its gradients: 1 for SGD, 0 for Adam, Lion, RMSprop.

    Measured on the 100th update with a gradient of order one and its double, so it holds for any optax direction; NaN
    if there is no update to measure.
    """
    with jax.ensure_compile_time_eval():
        return _homogeneity(_probe(inner))


# Two entries that differ, so that an optimizer which only looks at ratios has something to look at.
_PROBE_GRADIENT = (1.0, -0.7)


def _probe(inner: optax.GradientTransformation) -> jax.Array:
    """(2, 2): the 100th update of two entries under a constant gradient, and under its double."""
    params = jnp.ones(2)

    def hundredth(scale: jax.Array) -> jax.Array:
        grads = scale * jnp.array(_PROBE_GRADIENT)

        def step(carry: tuple[Any, Any], _: None) -> tuple[tuple[Any, Any], None]:
            update, state = inner.update(grads, carry[1], params)
            return (update, state), None

        return jax.lax.scan(step, (jnp.zeros(2), inner.init(params)), None, length=100)[0][0]

    return jax.jit(jax.vmap(hundredth))(jnp.array([1.0, 2.0]))


def _homogeneity(probe: jax.Array) -> float:
    once, twice = jnp.linalg.norm(probe, axis=1)
    return round(float(jnp.log2(twice / once)), 1) + 0.0


def is_entrywise(inner: optax.GradientTransformation) -> bool:
    """Whether an entry's first two updates depend on itself alone. Measured, with other entries changed."""

    def first_entry(others: float) -> jax.Array:
        # 128 x 128, from where on some optimizers factor their statistics.
        params = {"w": jnp.full((128, 128), others).at[0, 0].set(1.0)}
        state, updates = inner.init(params), []
        for size in (1.0, -0.3):
            grads = {"w": jnp.full((128, 128), others).at[0, 0].set(size)}
            update, state = inner.update(grads, state, params)
            updates.append(update["w"][0, 0])
        return jnp.stack(updates)

    try:
        with jax.ensure_compile_time_eval():
            # One program, which compiles faster than each operation by itself.
            return bool(jax.jit(lambda: jnp.allclose(first_entry(0.5), first_entry(2.0), rtol=1e-5))())
    except jax.errors.ConcretizationTypeError:  # a mapped momentum or beta: nothing to look at
        return True
    except TypeError:  # it wants more than gradients, such as the loss
        return False


def require_direction(inner: optax.GradientTransformation, parametrization: Parametrization) -> None:
    """``inner`` must be a direction, and its updates normalized if the parametrization asks for that.

    Raises:
      InputError: ``inner`` steps downhill already (a finished optimizer), or follows the gradient's size.
    """
    if not isinstance(parametrization, Parametrization):
        raise InputError(f"parametrization is {parametrization!r}: use depthmup_flax.get_parametrization(name).")
    try:
        with jax.ensure_compile_time_eval():
            probe = _probe(inner)
            finished = bool(jnp.vdot(probe[0], jnp.array(_PROBE_GRADIENT)) < 0)
            linear = not _homogeneity(probe) <= 0.5
    except (jax.errors.ConcretizationTypeError, TypeError):  # a mapped hyperparameter, or one that wants the loss
        return
    if finished:
        raise InputError(
            "inner is a finished optimizer, which steps downhill by its own learning rate: pass the direction alone, "
            "such as optax.scale_by_adam() for optax.adam(...) or optax.trace(0.9) for optax.sgd(..., momentum=0.9)."
        )
    if linear and parametrization.normalized_updates_only:
        _refuse_linear(parametrization)


def _refuse_linear(parametrization: Parametrization) -> None:
    alpha, gamma = parametrization.alpha, parametrization.gamma
    raise InputError(
        f"this parametrization (alpha={alpha:g}, gamma={gamma:g}) scales only the block and is for Adam-like "
        f"optimizers: with SGD its learning rate would grow as r^{alpha - gamma:g} and be unstable, and scaling only "
        "the block with SGD is 'depth_mup' already; use parametrization.preset='depth_mup' or an Adam-like optimizer."
    )


def _sgd_direction(momentum: Scalar | None = None, nesterov: bool = False) -> optax.GradientTransformation:
    if momentum is None and nesterov:
        raise InputError("nesterov is set but momentum is not: give a momentum, such as 0.9.")
    return optax.identity() if momentum is None else optax.trace(momentum, nesterov)


def _momentum_direction(momentum: Scalar = 0.9, nesterov: bool = False) -> optax.GradientTransformation:
    return optax.trace(momentum, nesterov)


# The names that differ from optax's ``scale_by_<name>``.
# All are entrywise; a test measures it, with their defaults.
_DIRECTIONS: Mapping[str, Callable[..., optax.GradientTransformation]] = {
    "sgd": _sgd_direction,
    "momentum": _momentum_direction,
    "adam": optax.scale_by_adam,
    "adamw": optax.scale_by_adam,
    "nadam": functools.partial(optax.scale_by_adam, nesterov=True),
    "adabelief": optax.scale_by_belief,
    "adagrad": optax.scale_by_rss,
    "rmsprop": optax.scale_by_rms,
    "sign_sgd": optax.scale_by_sign,
}


def _direction_factory(name: str) -> Callable[..., optax.GradientTransformation]:
    prefix = "scale_by_"
    make = _DIRECTIONS.get(name) or getattr(optax, prefix + str(name), None)
    not_directions = {"learning_rate", "schedule"}
    if make is None or name in not_directions:
        known = {*_DIRECTIONS, *(n.removeprefix(prefix) for n in dir(optax) if n.startswith(prefix))} - not_directions
        raise InputError(f"optimizer.name is {name!r}: {did_you_mean(name, known)}")
    return make


def _scale_gradients(info: Any, parametrization: Parametrization) -> optax.GradientTransformation:
    return _scale_by_info(info, parametrization.gradient_scale)


def _scale_updates(info: Any, parametrization: Parametrization) -> optax.GradientTransformation:
    return _scale_by_info(info, parametrization.update_scale)


def _scale_by_info(info: Any, scale_of: Callable[[Any], Scalar]) -> optax.GradientTransformation:
    """Multiplies each leaf by the number its `ParamInfo` maps to; leaves that optax masked out pass untouched."""

    def init(params: Any) -> optax.EmptyState:
        _map_info(_require_match, info, params)
        return optax.EmptyState()

    def scale(path: Any, leaf_info: Any, g: Any) -> Any:
        return g if isinstance(g, optax.MaskedNode) else g * jnp.asarray(scale_of(leaf_info), g.dtype)

    def update(updates: Any, state: optax.EmptyState, params: Any = None) -> tuple[Any, optax.EmptyState]:
        del params
        return _map_info(scale, info, updates), state

    return optax.GradientTransformation(init, update)


def _map_info(function: Callable[[Any, Any, Any], Any], info: Any, tree: Any) -> Any:
    """``function(path, leaf_info, array)`` over both trees."""

    def at_leaf(path: Any, leaf_info: Any, leaf: Any) -> Any:
        if is_nnx(leaf, "Variable"):  # a node with one array; nnx.Optimizer passes it here and the array there
            return jax.tree.map(lambda array: function(path, leaf_info, array), leaf)
        return function(path, leaf_info, leaf)

    try:
        return jax.tree_util.tree_map_with_path(at_leaf, info, tree, is_leaf=is_info)
    except InputError:
        raise
    except ValueError as error:
        raise InputError(
            "the parameters have another structure than info: pass what info was made for; after param_info that is "
            "flax.linen.unbox(variables)['params'], as plain dictionaries."
        ) from error


def _require_match(path: Any, leaf_info: Any, leaf: Any) -> Any:
    if isinstance(leaf, nn.meta.AxisMetadata):
        raise InputError(
            "the parameters are still in their annotations: unbox them, flax.linen.unbox(variables)['params']."
        )
    if not isinstance(leaf, optax.MaskedNode) and tuple(leaf.shape) != leaf_info.shape:
        raise InputError(
            f"parameter {path_name(path)!r} has shape {tuple(leaf.shape)}, but info was made for {leaf_info.shape}: "
            "make it for the model that is trained."
        )
    return leaf


def _is_zero(value: Any) -> bool:
    return isinstance(value, (int, float)) and value == 0
