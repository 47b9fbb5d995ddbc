"""The tuned hyperparameters at the target's batch size and number of steps."""

from __future__ import annotations

import dataclasses
import warnings

from ml_collections import ConfigDict

from depthmup_flax.config.fields import optimizer_kwargs, set_field
from depthmup_flax.rule.rescaling import (
    DEFAULT,
    OPTIMIZER_RULES,
    Hyperparameters,
    RescalingRule,
    rescaled_hyperparameters,
    rescaling_table,
)
from depthmup_flax.util.errors import InputError

_FIELDS = ("learning_rate", "warmup_steps", "weight_decay")


@dataclasses.dataclass(frozen=True)
class Rescaling:
    """The flags ``--target.batch_size``, ``--target.steps`` (``None``: not given) and ``--rescale.*``."""

    batch_size: int | None = None
    steps: int | None = None
    rule: RescalingRule = DEFAULT

    def __post_init__(self) -> None:
        for name in ("batch_size", "steps"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"--target.{name} is {value}: use a whole number of at least 1.")

    @property
    def wanted(self) -> bool:
        """Whether a flag asks for it; without one the target keeps the proxy's hyperparameters."""
        return self != Rescaling()


def tuned_hyperparameters(config: ConfigDict, total_steps: int) -> Hyperparameters:
    """Those of a run of ``config``; arguments of the optimizer that are not set have optax's values."""
    kwargs = {
        name: value for name, value in optimizer_kwargs(config).items() if name in ("momentum", "b1", "b2", "eps")
    }
    if config.optimizer.name == "momentum":
        kwargs.setdefault("momentum", 0.9)
    fields = {name: config.optimizer[name] for name in _FIELDS}
    return Hyperparameters(batch_size=config.train.batch_size, steps=total_steps, **fields, **kwargs)


def rescale_target(
    proxy: ConfigDict, proxy_steps: int, large: ConfigDict, large_steps: int, rescaling: Rescaling
) -> str:
    """Sets the fields of ``large`` that batch size and steps change; returns the table of `rescaling_table`.

    Args:
      proxy: the tuned run, with the best values set.
      proxy_steps, large_steps: training steps that the two configs describe.
      large: the target, changed in place.
      rescaling: the flags.

    Raises:
      InputError: no rule is known for ``optimizer.name``.
    """
    tuned, name = tuned_hyperparameters(proxy, proxy_steps), proxy.optimizer.name
    batch_size = rescaling.batch_size or large.train.batch_size
    steps = rescaling.steps or max(1, round(large_steps * large.train.batch_size / batch_size))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the table has them
        target = rescaled_hyperparameters(
            tuned, batch_size=batch_size, steps=steps, optimizer=name, rule=rescaling.rule
        )
    values = {f"optimizer.{field}": getattr(target, field) for field in _FIELDS}
    if name in OPTIMIZER_RULES:
        own = (*OPTIMIZER_RULES[name].averages, *(("eps",) if OPTIMIZER_RULES[name].eps else ()))
        changed = [field for field in own if getattr(target, field) != getattr(tuned, field)]
        values |= {f"optimizer.kwargs.{field}": getattr(target, field) for field in changed}
    for path, value in {**values, "train.batch_size": batch_size, "train.steps": steps}.items():
        set_field(large, path, float(f"{value:.6g}") if isinstance(value, float) else value)
    return rescaling_table(tuned, target, name, rescaling.rule)
