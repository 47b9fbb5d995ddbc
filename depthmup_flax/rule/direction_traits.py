"""What is known of an optax direction or of a wrapper around one without running it.

A *direction* is an optax transformation without learning rate or decay: ``optax.scale_by_adam()``,
``optax.trace(0.9)``. `TRAITS` says which of optax's own the rule covers, and what to write instead of the others. The
parts of a composed transformation (``chain``, ``masked``, ``partition``, ``inject_hyperparams``, ...) are read from the
functions that its ``update`` closes over: nothing is traced or compiled.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

from depthmup_flax.rule.info_trees import flatten_info, named_geometries
from depthmup_flax.rule.parametrization import Geometry, Parametrization, ParamInfo, Role
from depthmup_flax.rule.update_dependence import require_function_of_own_gradients
from depthmup_flax.util.errors import InputError
from depthmup_flax.util.types import ArrayTree, InfoTree


@dataclasses.dataclass(frozen=True)
class Traits:
    """What the rule says of a transformation inside `depthmup`. It covers those without ``why``."""

    degree: int | None = None  # the power with which updates follow gradients: 1 for SGD, 0 for Adam (epsilon aside)
    # Each entry depends on its own gradients alone (TP6 Definition 6.1). The rule also covers some averages over many
    # entries: those of scaled gradients are of order one at every size.
    entrywise: bool = True
    why: str = ""  # it is refused
    instead: str = ""  # what to write
    outside: bool = False  # it is right around the finished optimizer, or after it
    composed: bool = False  # nothing but the transformations that it wraps
    geometry: Geometry | None = None  # of its updates, if they are not entrywise


def _rows(names: str, *args: Any, **fields: Any) -> dict[str, Traits]:
    return dict.fromkeys(names.split(), Traits(*args, **fields))


_LEARNS_ITS_RATE = "it chooses one learning rate from norms over all parameters, which grow with the network"
_AROUND = "Put it around the finished optimizer: "
_AFTER = "Put it after the finished optimizer: "

# The optax function that makes a transformation -> its traits. Tests measure every row.
# A new one is a row here; a wrapper that hides its parts also needs `_children` or `parts_of`, and one that only some
# parameters see `_ALTERNATIVES`.
# Names that are not here, of a later optax or another library, are read by `update_dependence`, given parameters.
TRAITS: Mapping[str, Traits] = {
    **_rows("identity trace ema scale scale_by_schedule scale_by_optimistic_gradient clip zero_nans", 1),
    **_rows("snapshot monitor", 1),  # they change nothing
    **_rows("clip_by_block_rms centralize clip_by_global_rms", 1, entrywise=False),
    **_rows("scale_by_adam scale_by_amsgrad scale_by_adamax scale_by_radam scale_by_adan scale_by_belief", 0),
    **_rows("scale_by_yogi scale_by_lion scale_by_rms scale_by_stddev scale_by_rss scale_by_adadelta", 0),
    **_rows("scale_by_rprop scale_by_sign", 0),
    **_rows("scale_by_acprop scale_by_ademamix scale_by_simplified_ademamix scale_by_adopt", 0),
    **_rows("scale_by_factored_rms", 0, entrywise=False),
    **_rows("set_to_zero entrywise"),
    # Not entrywise, with a rule of their own.
    **_rows("scale_by_muon", 0, False, geometry=Geometry.ORTHOGONAL),
    **_rows("scale_by_trust_ratio", 0, False, geometry=Geometry.NORM_MATCHED),
    # It multiplies by the size of the weights, so what precedes it must normalize (`geometry_of`).
    **_rows("scale_by_param_block_rms", 1, False, geometry=Geometry.NORM_MATCHED),
    # Composed of other transformations, which are read.
    **_rows("chain named_chain masked partition inject_stateful_hyperparams flatten", composed=True),
    **_rows("with_extra_args_support conditionally_mask conditionally_transform", composed=True),
    **_rows("split_real_and_imaginary", composed=True),
    # Refused.
    **_rows("clip_by_global_norm", 1, False,
        "a norm over all parameters grows with the network, so its threshold does not transfer",
        "Use clip_rms of depthmup, or depthmup_flax.clip_by_global_rms in its place."),
    **_rows("adaptive_grad_clip", 1, False,
        "its threshold follows the norms of parameters, which the rule scales differently from updates",
        "Use clip_rms of depthmup, or optax.clip_by_block_rms in its place."),
    **_rows("normalize_by_update_norm normalize", 0, False,
        "it divides by a norm over all parameters, which grows with the network",
        "Use an entrywise normalization: optax.scale_by_sign() or optax.scale_by_rms()."),
    **_rows("scale_by_novograd", 0, False,
        "it divides by the norm of a gradient, which grows with the parameter's size",
        "Use optax.scale_by_adam()."),
    **_rows("scale_by_sm3", 0, False,
        "its statistics are largest values of rows and columns, which slowly grow with their lengths",
        "Use optax.scale_by_factored_rms(), whose statistics are averages."),
    **_rows("add_decayed_weights", 1, True,
        "the rule would scale the decay, too, which then vanishes as the network grows",
        "Use weight_decay of depthmup; after scale_by_depthmup, optax.add_decayed_weights is right."),
    **_rows("scale_by_param_block_norm", 1, False,
        "it multiplies by the norm of parameters, which grows with their number",
        "Use optax.scale_by_param_block_rms() after optax.scale_by_factored_rms(), or optax.scale_by_trust_ratio()."),
    **_rows("scale_by_shape", 1, False,
        "its factors follow the shapes of matrices, where the rule has its own", "Use depthmup_flax.muon."),
    **_rows("scale_by_galore", 0, False,
        "its updates have a rank that does not grow with the network, so no power of the width is right",
        "Use depthmup_flax.muon or an entrywise direction, such as optax.scale_by_adam()."),
    **_rows("add_noise differentially_private_aggregate", 1, False,
        "the noise averages out as the network grows, so its strength does not transfer",
        "Leave it out."),
    **_rows("scale_by_distance_over_gradients scale_by_dog scale_by_dowg scale_by_polyak scale_by_lbfgs "
        "dadapt_adamw prodigy momo momo_adam", 0, False,
        _LEARNS_ITS_RATE,
        "Use optax.scale_by_adam() and tune learning_rate."),
    **_rows("scale_by_cocob scale_by_madgrad", None, True,
        "it compares parameters with their initial values, which the rule scales differently from updates",
        "Use optax.scale_by_adam(), or optax.scale_by_rss() for AdaGrad."),
    **_rows("scale_by_sophia hutchinson_estimator_diag_hessian", None, True,
        "second derivatives grow with the network by other powers than gradients", "Use optax.scale_by_adam()."),
    # Of scale_by_depthmup.
    **_rows("_scale_by_info", None, True, "it follows the rule already", "Pass the direction alone."),
    # Right outside only.
    **_rows("MultiSteps apply_every", 1, True, "the decay of depthmup would act at every micro-step",
        _AROUND + "optax.MultiSteps(depthmup(...), every_k_schedule).", outside=True),
    **_rows("apply_if_finite", None, False, "the decay of depthmup would act at the steps that it skips",
        _AROUND + "optax.apply_if_finite(depthmup(...), max_consecutive_errors).", outside=True),
    **_rows("lookahead", None, True, "it moves the parameters themselves, which the rule must not scale",
        _AROUND + "optax.lookahead(depthmup(...), sync_period, slow_step_size).", outside=True),
    **_rows("schedule_free", None, True, "it averages the parameters themselves, which the rule must not scale",
        _AROUND + "optax.contrib.schedule_free(depthmup(...), learning_rate).", outside=True),
    **_rows("sam", None, False, "its perturbation is a step of the parameters, which needs the rule as well",
        _AROUND + "optax.contrib.sam(depthmup(...), depthmup(...)), the second of optax.identity().", outside=True),
    **_rows("mechanize", None, False, _LEARNS_ITS_RATE, "Tune learning_rate instead."),
    **_rows("reduce_on_plateau", None, True, "the decay of depthmup would not follow its learning rate",
        _AFTER + "optax.chain(depthmup(...), optax.contrib.reduce_on_plateau()).", outside=True),
    **_rows("keep_params_nonnegative", None, True, "it needs the updates as they are added to the parameters",
        _AFTER + "optax.chain(depthmup(...), optax.keep_params_nonnegative()).", outside=True),
    **_rows("scale_by_backtracking_linesearch scale_by_zoom_linesearch", None, False,
        "it searches along the updates as they are added to the parameters",
        _AFTER + "optax.chain(depthmup(...), optax.scale_by_backtracking_linesearch(...)).", outside=True),
}  # fmt: skip


def homogeneity(inner: optax.GradientTransformation) -> int | None:
    """The power with which a direction's updates follow its gradients: 1 for SGD, 0 for Adam, Lion, RMSprop.

    From `TRAITS`; ``None`` if that does not tell: a part is not listed, or ``optax.partition`` mixes both.
    """
    return _degree(inner.update)


def require_direction(inner: optax.GradientTransformation, rule: Parametrization) -> None:
    """Raises `InputError` unless ``rule`` allows ``inner``, by its known parts; `check_direction` reads others."""
    if not isinstance(rule, Parametrization):
        raise InputError(f"rule is {rule!r}: use depthmup_flax.get_parametrization(name).")
    if not hasattr(inner, "update"):
        raise InputError(f"inner is {inner!r}: use an optax transformation, such as optax.scale_by_adam().")
    parts = list(parts_of(inner.update))
    refused = [part.name for part in parts if part.name in TRAITS and TRAITS[part.name].why]
    wrapper = refused[:1] == [parts[0].name] and TRAITS[parts[0].name].outside  # it may wrap a finished optimizer
    if not wrapper and any(_steps_downhill(part) for part in parts):
        raise InputError(_finished(parts))
    if refused:
        name = next((name for name in refused if name != "add_decayed_weights"), refused[0])
        raise InputError(f"inner has {_described(name)}")
    if rule.normalized_updates_only and homogeneity(inner) == 1:
        alpha, gamma = rule.alpha, rule.gamma
        raise InputError(
            f"the parametrization with alpha={alpha:g}, gamma={gamma:g} (preset 'block_only') is for Adam-like "
            f"optimizers: SGD's learning rate would grow as r^{alpha - gamma:g} with the depth ratio r. Use "
            "parametrization.preset='depth_mup', which scales only the block with SGD, or an Adam-like optimizer."
        )


def entrywise(inner: optax.GradientTransformation) -> optax.GradientTransformationExtraArgs:
    """``inner``, which `depthmup` then takes for an entrywise direction without reading it.

    For one whose mixing of entries does not matter, such as the rounding of an 8-bit state by blocks, or whose kernels
    cannot be read. `depthmup_flax.coord_check` measures whether it follows the rule.
    """
    inner_update = optax.with_extra_args_support(inner).update

    def update(updates: ArrayTree, state: ArrayTree, params: ArrayTree = None, **extra_args: Any) -> Any:
        return inner_update(updates, state, params, **extra_args)

    return optax.GradientTransformationExtraArgs(inner.init, update)


def _finished(parts: list[_Part]) -> str:
    """The sentence about a finished optimizer: what to pass instead, as far as its parts tell."""
    others = ("scale", "scale_by_schedule", "identity", "add_decayed_weights", "clip_by_global_rms")
    names = [part.name for part in parts if part.name in TRAITS and part.name not in others]
    refused = [name for name in names if TRAITS[name].why]
    right = [f"{written(name)}(...)" for name in names if not TRAITS[name].why and not TRAITS[name].composed]
    here = f"optax.chain({', '.join(right)})" if len(right) > 1 else "".join(right)
    message = "inner is a finished optimizer, which has a learning rate of its own"
    if "scale_by_muon" in names:
        return f"{message}: use depthmup_flax.muon(learning_rate, info, rule), which has one for all parameters."
    if refused and not right:
        return f"{message}, with {_described(refused[0])}"
    if not right and any(part.name == "identity" for part in parts):
        here = "optax.identity()"
    elif "partition" in names or not right:
        here = "such as optax.scale_by_adam() for optax.adam(...) or optax.identity() for optax.sgd(...)"
    message += f": pass the direction alone, {here}."
    if any(part.name == "add_decayed_weights" for part in parts):
        message += " Give weight_decay to depthmup."
    return message + (f" It has {_described(refused[0])}" if refused else "")


def _described(name: str) -> str:
    """A refused transformation, why, and what to write instead."""
    return f"{written(name)}: {TRAITS[name].why}. {TRAITS[name].instead}"


def written(name: str) -> str:
    """A transformation as a user writes it: ``optax.contrib.scale_by_muon``."""
    return f"optax.{name}" if name in vars(optax) else f"optax.contrib.{name}"


class _Part(NamedTuple):
    """An update function, composed of others or not."""

    name: str  # of the function that made it; "" for one that is not from optax, nor from here
    closure: Mapping[str, Any]  # the variables that it closes over


def parts_of(update: Callable[..., Any]) -> Iterator[_Part]:
    """An ``update`` function and those that it is composed of."""
    closure, name, children = _closure(update), _made_by(update), _children(update)
    if "inner_factory" in closure:  # of optax.inject_hyperparams
        factory, closure, children = closure["inner_factory"], closure["other_hps"], []
        name = _made_by(factory.func if isinstance(factory, functools.partial) else factory)
    hidden = name in TRAITS and TRAITS[name].composed and not children  # what it wraps cannot be seen
    yield _Part("" if hidden else name, closure)
    for child in children:
        yield from parts_of(child)


def _degree(update: Callable[..., Any]) -> int | None:
    degrees, name = [_degree(child) for child in _children(update)], _made_by(update)
    if not degrees:
        return TRAITS[name].degree if name in TRAITS else None
    if name == "partition":  # alternatives, not steps
        return degrees[0] if len(set(degrees)) == 1 else None
    if 0 in degrees:  # what precedes or follows a normalization changes nothing
        return 0
    return None if None in degrees or not name else 1


def _children(update: Callable[..., Any]) -> list[Callable[..., Any]]:
    """The update functions that ``update`` calls."""
    owner = getattr(update, "__self__", None)
    if isinstance(owner, optax.MultiSteps):
        return [owner.inner_opt.update]
    if _made_by(update) in ("entrywise", "monitor", "snapshot"):  # what the last two measure is not an update
        return []
    return [child for value in _closure(update).values() for child in _update_functions(value)]


def _update_functions(value: Any) -> list[Callable[..., Any]]:
    if isinstance(value, (optax.GradientTransformation, optax.GradientTransformationExtraArgs)):
        return [value.update]
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if isinstance(value, (tuple, list)):
        return [function for item in value for function in _update_functions(item)]
    return [value] if inspect.isfunction(value) and value.__name__ in ("update", "update_fn") else []


def _closure(function: Callable[..., Any]) -> Mapping[str, Any]:
    function = inspect.unwrap(function)  # of jax.jit
    if not inspect.isfunction(function):
        return {}
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    # A function that calls itself is in its own closure.
    return {name: cell.cell_contents for name, cell in cells if cell.cell_contents is not function}


def _made_by(function: Any) -> str:
    """``scale_by_adam`` for a function of optax or of this package, or for one that it made; "" for any other."""
    module, name = getattr(function, "__module__", None) or "", getattr(function, "__qualname__", "")
    return name.split(".")[0] if module.partition(".")[0] in ("optax", "depthmup_flax") else ""


def _steps_downhill(part: _Part) -> bool:
    """Whether a part multiplies by minus a learning rate, as a finished optimizer's last part does."""
    if part.name == "scale_by_schedule":
        return _made_by(part.closure.get("step_size_fn")) == "scale_by_learning_rate"
    if part.name == "scale":
        return _is_negative(part.closure.get("step_size"))
    # Of optax.inject_hyperparams, optax.adam; optimizers in one piece, optax.contrib.prodigy.
    contrib = sys.modules.get("optax.contrib")  # not imported here: it is slow
    factory = vars(optax).get(part.name) or getattr(contrib, part.name, None)
    signature = inspect.signature(factory).parameters if inspect.isfunction(factory) else {}
    return part.name not in TRAITS and "learning_rate" in signature


def _is_negative(value: Any) -> bool:
    try:
        return bool(np.all(np.asarray(value) < 0))
    except (jax.errors.TracerArrayConversionError, TypeError):  # a mapped value cannot be looked at
        return False


def check_direction(
    inner: optax.GradientTransformation, info: InfoTree, rule: Parametrization, geometry: str | ArrayTree | None
) -> tuple[optax.GradientTransformation, Mapping[str, Geometry]]:
    """``inner``, and path -> geometry of its updates: as `TRAITS` say or, of other people's, as ``geometry`` says.

    Without a ``geometry``, the ``init`` of what `TRAITS` does not list calls `require_function_of_own_gradients`.

    Raises:
      InputError: the rule does not cover ``inner``, or the geometry does not fit ``inner`` or a parameter.
    """
    require_direction(inner, rule)
    known = geometry_of(inner)
    if geometry is None and known is None:
        raise InputError(
            "inner treats parameters differently, some with updates that are not entrywise: pass geometry=, a tree of "
            f"one of {', '.join(Geometry)} for each parameter. For Muon, use depthmup_flax.muon."
        )
    kinds = named_geometries(info, geometry if geometry is not None else known)
    foreign = any(part.name not in TRAITS for part in parts_of(inner.update))
    for path, leaf in flatten_info(info).items():
        kind = kinds[path]
        if known not in (None, kind) and not foreign:
            raise InputError(f"geometry is '{kind}', but the updates of inner are '{known}': leave geometry out.")
        _require_fit(path, leaf, kind)
    if geometry is not None or not foreign:
        return inner, kinds

    def init(params: ArrayTree) -> ArrayTree:
        require_function_of_own_gradients(inner, params)
        return inner.init(params)

    return optax.GradientTransformationExtraArgs(init, optax.with_extra_args_support(inner).update), kinds


# They apply what they wrap to some parameters only.
_ALTERNATIVES = ("partition", "masked", "conditionally_mask")


def geometry_of(inner: optax.GradientTransformation) -> Geometry | None:
    """The geometry of a direction's updates, by `TRAITS`; ``None`` if it differs between parameters.

    Parts that are not listed count as entrywise (`check_direction` has them read).
    """
    geometry, parts = Geometry.LINEAR, list(parts_of(inner.update))
    for part in parts:
        traits = TRAITS.get(part.name, Traits())
        if traits.geometry is not None and traits.degree and geometry is Geometry.LINEAR:
            raise InputError(f"inner has {written(part.name)}: put it after optax.scale_by_factored_rms().")
        if traits.geometry is not None and any(other.name in _ALTERNATIVES for other in parts):
            return None
        if traits.geometry is not None or traits.degree == 0:
            geometry = traits.geometry or Geometry.SIGN
    return geometry


def matrix_updates(optimizer: optax.GradientTransformation, info: InfoTree) -> set[str]:
    """Paths of the parameters whose updates by a finished optimizer are not entrywise, as far as its parts tell."""
    parts = list(parts_of(optimizer.update))
    for part in parts:
        if isinstance(kinds := part.closure.get("geometries"), dict):  # of depthmup
            return {path for path, kind in kinds.items() if kind not in (Geometry.LINEAR, Geometry.SIGN)}
    known = any(TRAITS[part.name].geometry is not None for part in parts if part.name in TRAITS)
    return set(flatten_info(info)) if known else set()


def _require_fit(path: str, leaf: ParamInfo, geometry: Geometry) -> None:
    if geometry is Geometry.ORTHOGONAL and (leaf.role is Role.VECTOR or len(leaf.shape) < 2):
        raise InputError(f"parameter {path!r} of shape {leaf.shape} is no matrix: use dm.muon.")
    if geometry is Geometry.NORM_MATCHED and leaf.role is Role.HIDDEN and leaf.init_std == 0:
        raise InputError(
            f"parameter {path!r} starts at zero, which has no norm to match: start it at random (qk_norm=True in our "
            "GPT and ViT), or use optax.masked(optax.scale_by_trust_ratio(), mask) with 'sign' for it in a tree of "
            "geometries."
        )
