"""What runs of one compiled program may differ in."""

from __future__ import annotations

import inspect

import flax.linen as nn
from ml_collections import ConfigDict

from depthmup_flax.config.fields import get_field, make_parametrization
from depthmup_flax.networks.import_paths import is_import_path, resolve
from depthmup_flax.networks.user_code import takes
from depthmup_flax.storage.sweep_records import CONTINUOUS, SEED

RULE = "parametrization"  # the section of a config; hyperparameters with this beginning are fields of the rule
_WHOLE = ("optimizer.warmup_steps",)


def hyperparameters(config: ConfigDict) -> dict[str, float]:
    """The seed, fields of `CONTINUOUS` that are set, numbers in ``hyper``, and the rule.

    A preset is a name of the rule's numbers. A network that keeps numbers of the rule as attributes, as NNX and Equinox
    modules may, has none of them: traced, they would be other parts of it, or lost.
    """
    values = {path: value for path in CONTINUOUS if (value := get_field(config, path)) is not None}
    values |= {f"{RULE}.{name}": value for name, value in make_parametrization(config).numbers().items()}
    values |= {f"hyper.{name}": value for name, value in config.hyper.items()}
    if _keeps_rule(config.model.name):
        values = {path: value for path, value in values.items() if not path.startswith(f"{RULE}.")}
    return {SEED: config.seed, **{path: value if path in _WHOLE else float(value) for path, value in values.items()}}


def _keeps_rule(name: str) -> bool:
    """Whether modules may have attributes that are made of the rule's numbers: Linen ones have none."""
    if not is_import_path(name):
        return False
    named = resolve(name, "model.name")
    return takes(named, "rule") and not (inspect.isclass(named) and issubclass(named, nn.Module))
