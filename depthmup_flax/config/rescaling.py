"""The fields of a config that another batch size or number of steps changes."""

from __future__ import annotations

import warnings

from ml_collections import ConfigDict

from depthmup_flax.config.fields import set_field
from depthmup_flax.rule.batch_and_steps import (
    OPTIMIZER_RULES,
    Hyperparameters,
    rescaled_hyperparameters,
    rescaling_table,
)
from depthmup_flax.util.errors import require_number

_FIELDS = ("learning_rate", "warmup_steps", "weight_decay")


def tuned_hyperparameters(config: ConfigDict, total_steps: int) -> Hyperparameters:
    """Those of a run of ``config``; arguments of the optimizer that are not set have optax's values."""
    given = config.optimizer.kwargs
    kwargs = {name: value for name in ("momentum", "b1", "b2", "eps") if (value := given.get(name)) is not None}
    if config.optimizer.name == "momentum":
        kwargs.setdefault("momentum", 0.9)
    fields = {name: config.optimizer[name] for name in _FIELDS}
    return Hyperparameters(batch_size=config.train.batch_size, steps=total_steps, **fields, **kwargs)


def rescale_target(
    proxy: ConfigDict,
    proxy_steps: int,
    large: ConfigDict,
    large_steps: int,
    batch_size: int | None = None,
    steps: int | None = None,
) -> str:
    """Sets the fields of ``large`` that batch size and steps change; returns the table of `rescaling_table`.

    Args:
      proxy: the tuned run, with the best values set.
      proxy_steps, large_steps: training steps that the two configs describe.
      large: the target, changed in place.
      batch_size, steps: of the target; ``None``: its config's, and as many examples.
    """
    for field, value in (("batch_size", batch_size), ("steps", steps)):
        if value is not None:
            require_number(f"target.{field}", value, least=1, whole=True)
    tuned, name = tuned_hyperparameters(proxy, proxy_steps), proxy.optimizer.name
    batch_size = batch_size or large.train.batch_size
    steps = steps or max(1, round(large_steps * large.train.batch_size / batch_size))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the table has them
        target = rescaled_hyperparameters(tuned, batch_size=batch_size, steps=steps, optimizer=name)
    values = {f"optimizer.{field}": getattr(target, field) for field in _FIELDS}
    own = (*OPTIMIZER_RULES[name].averages, *(("eps",) if OPTIMIZER_RULES[name].eps else ()))
    changed = [field for field in own if getattr(target, field) != getattr(tuned, field)]
    values |= {f"optimizer.kwargs.{field}": getattr(target, field) for field in changed}
    for path, value in {**values, "train.batch_size": batch_size, "train.steps": steps}.items():
        set_field(large, path, float(f"{value:.6g}") if isinstance(value, float) else value)
    return rescaling_table(tuned, target, name)
