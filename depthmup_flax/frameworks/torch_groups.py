"""The rule on torch modules: parameter groups of ``torch.optim``, initial values in place, and clipping."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from depthmup_flax.auditing.rescaled_init import init_factors, require_order
from depthmup_flax.frameworks.group_factors import GroupFactors, group_factors
from depthmup_flax.networks.torch_modules import parameters_by_name, values_of
from depthmup_flax.rule import info_trees
from depthmup_flax.rule.parametrization import PRESETS, Parametrization
from depthmup_flax.util.errors import InputError, require_number
from depthmup_flax.util.imports import require
from depthmup_flax.util.types import ArrayTree, InfoTree


def param_groups(
    module: Any,
    info: InfoTree,
    rule: Parametrization = PRESETS["depth_mup"],
    *,
    learning_rate: float,
    weight_decay: float = 0.0,
    eps: float = 1e-8,
    optimizer: str = "adam",
    mask: ArrayTree | Callable[[Any], ArrayTree] | None = None,
) -> list[dict[str, Any]]:
    """Groups for ``torch.optim.AdamW`` or ``SGD``, after `rescale_init_`: a rate, decay and epsilon for each parameter.

    Steps are those of `depthmup_flax.adamw`; parameters with equal numbers share a group. At the base model there is
    one group, of plain settings, and one without decay. They replace the optimizer's own ``lr``, ``weight_decay`` and
    ``eps``. Schedulers of ``torch.optim.lr_scheduler`` that multiply rates fit. Those with an absolute rate
    (``eta_min``, ``min_lr``, ``swa_lr``, ``CyclicLR``) give each group the same, which is wrong: use ``LambdaLR``. A
    loop that sets rates must write ``group["lr"] = rate * group["lr_factor"]``.

    Args:
      module: the torch module itself, before ``torch.compile`` or DDP wrap it; FSDP2 may have sharded it.
      info: its audit, or the audit's ``info``.
      rule: the parametrization, that of `rescale_init_`.
      learning_rate: eta, the one rate that transfers.
      weight_decay: lambda: a step removes ``eta * lambda`` of a decayed parameter, at every width and depth. Not for
        ``torch.optim.Adam``, which adds decay to the gradient.
      eps: Adam's epsilon at the base model.
      optimizer: ``"adam"`` for those whose steps do not depend on the gradient's size (AdamW, Adam, NAdam, RAdam);
        ``"sgd"`` for SGD, with momentum or without.
      mask: which parameters decay, in place of ``info.decay``: a dictionary of bools by name, or a function of one of
        shapes, such as ``lambda shapes: {name: len(s.shape) > 1 for name, s in shapes.items()}``.

    Raises:
      InputError: ``info`` is of another module, the initial values are not those of `rescale_init_`, or groups cannot
        do what the rule wants: parts of a tensor carry different factors, or a norm that multiplies by 1 + weight
        carries one and decays.
    """
    require_number("learning_rate", learning_rate, least=0)
    require_number("weight_decay", weight_decay, least=0)
    require_number("eps", eps, least=0)
    info = info_trees.with_decay(info_trees.info_of(info), mask)
    parameters = _parameters_of(module, info)
    factors = group_factors(info, rule, optimizer)
    if weight_decay:
        _require_decay_to_zero(info)
    _require_rescaled(parameters, info, rule)
    groups: dict[GroupFactors, list[Any]] = {}
    for name, parameter in parameters.items():
        groups.setdefault(factors[name], []).append(parameter)
    settings = {"learning_rate": learning_rate, "weight_decay": weight_decay}
    if optimizer == "adam":
        settings["eps"] = eps
    return [_group(members, own, **settings) for own, members in groups.items()]


def _group(
    members: Sequence[Any],
    own: GroupFactors,
    learning_rate: float,
    weight_decay: float,
    eps: float | None = None,
) -> dict[str, Any]:
    """A group of ``torch.optim``, which keeps the last two entries, too."""
    group = {
        "params": list(members),
        "lr": learning_rate * own.rate,
        "weight_decay": weight_decay * own.decay,
        "lr_factor": own.rate,
        "gradient_scale": own.gradient,
    }
    if eps is not None:
        group["eps"] = eps * own.epsilon
    return group


def rescale_init_(
    module: Any,
    base: Any,
    info: InfoTree,
    rule: Parametrization = PRESETS["depth_mup"],
) -> None:
    """`depthmup_flax.rescale_init` in place: fresh initial values get the rule's standard deviations.

    ``base`` is a fresh module of the base model, from the same initializers; it stays as it is. Call it once, before
    FSDP shards the module. Saved parameters run in the module's own code; do not call it for loaded ones.
    """
    torch = require("torch", "rescale_init_")
    parameters = _parameters_of(module, info, base)
    for name, parameter in parameters.items():
        if not _has_values(parameter):
            raise InputError(
                f"parameter {name!r} has no values here: call rescale_init_ after initializing the module, and before "
                "sharding it."
            )
    own = {name: values_of(parameter) for name, parameter in parameters.items()}
    of_base = {name: values_of(parameter) for name, parameter in parameters_by_name(base).items()}
    starts = init_factors(own, of_base, info, rule)
    with torch.no_grad():
        for name, parameter in parameters.items():
            start = starts[name]
            if start.changes:
                parameter.mul_(_like(start.factor * start.carried, parameter))
                parameter.add_(_like(start.offset * (start.carried - 1), parameter))


def clip_grad_rms_(groups: Any, max_rms: float) -> Any:
    """Scales all gradients by one factor, as `depthmup_flax.clip_by_global_rms`; returns their root mean square before.

    ``groups`` are an optimizer with the groups of `param_groups`, or these. Gradients count with the group's
    ``gradient_scale``, so that the threshold transfers. At the base model it is
    ``torch.nn.utils.clip_grad_norm_(parameters, max_rms * sqrt(number of parameters))``.
    """
    torch = require("torch", "clip_grad_rms_")
    require_number("max_rms", max_rms, above=0)
    norms, grads = [], []
    for group in getattr(groups, "param_groups", groups):
        if not isinstance(group, dict) or "gradient_scale" not in group:
            raise InputError("a group has no gradient_scale: pass an optimizer with the groups of dm.param_groups.")
        for parameter in group["params"]:
            if parameter.grad is not None:
                grads.append(parameter.grad)
                norms.append(group["gradient_scale"] * torch.linalg.vector_norm(parameter.grad.float()))
    if not grads:
        raise InputError("no parameter has a gradient: call clip_grad_rms_ after loss.backward().")
    count = sum(grad.numel() for grad in grads)
    rms = torch.linalg.vector_norm(torch.stack(norms)) / count**0.5
    factor = (max_rms / rms).clamp(max=1.0)  # of a NaN it is one, so that the run ends as diverged
    for grad in grads:
        grad.mul_(factor.to(grad.dtype))
    return rms


def _parameters_of(module: Any, info: InfoTree, base: Any = None) -> dict[str, Any]:
    """Name -> parameter; `InputError` unless they are those that ``info`` was made for, and not those of ``base``."""
    if not info_trees.is_torch(module):
        raise InputError(f"module is {type(module).__name__}: pass the torch.nn.Module of the audit.")
    infos = info_trees.flatten_info(info)
    parameters = parameters_by_name(module)
    if base is not None:
        require_order(parameters, parameters_by_name(base), infos)
    for name in sorted(parameters.keys() ^ infos.keys()):
        there, not_there = ("the module", "info") if name in parameters else ("info", "the module")
        raise InputError(
            f"parameter {name!r} is in {there} but not in {not_there}: pass the module that was audited, itself, not "
            "one that torch.compile or DDP returns."
        )
    for name, parameter in parameters.items():
        if tuple(parameter.shape) != infos[name].shape:
            raise InputError(
                f"parameter {name!r} has shape {tuple(parameter.shape)}, but info was made for {infos[name].shape}: "
                "pass the module that was audited, not its base."
            )
        if parameter.is_inference():
            raise InputError(
                f"parameter {name!r} was made under torch.inference_mode, so it cannot train: build the module outside "
                "of it."
            )
    return parameters


def _require_decay_to_zero(info: InfoTree) -> None:
    """Raises `InputError` for a parameter whose decay has another aim than 0, which no group can say."""
    for name, leaf in info_trees.flatten_info(info).items():
        if leaf.decay and leaf.offset and leaf.carries:
            raise InputError(
                f"parameter {name!r} multiplies by {leaf.offset:g} + weight and carries a factor, so it would have to "
                "decay towards another value than 0. Leave it without decay: pass a mask."
            )


_RESCALE = (
    "Call dm.rescale_init_(model, base, audit, rule) once on the fresh module, with this rule; after a second call, "
    "build the module anew"
)


def _require_rescaled(parameters: Mapping[str, Any], info: InfoTree, rule: Parametrization) -> None:
    """Raises `InputError` if `rescale_init_` was not called. Values that are sharded or absent are not judged."""
    if all(map(_has_values, parameters.values())):
        arrays = {name: values_of(parameter) for name, parameter in parameters.items()}
        info_trees.require_rescaled(info, arrays, rule, _RESCALE)


def _has_values(parameter: Any) -> bool:
    """Whether all values are in this process."""
    return not (parameter.is_meta or hasattr(parameter, "device_mesh"))


def _like(value: Any, parameter: Any) -> Any:
    """A number as it is; an array as a tensor beside a parameter."""
    torch = require("torch", "rescale_init_")
    if isinstance(value, float | int):
        return value
    return torch.as_tensor(value, dtype=parameter.dtype, device=parameter.device)
