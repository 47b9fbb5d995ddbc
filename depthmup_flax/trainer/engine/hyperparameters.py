"""What runs of one compiled program may differ in."""

from __future__ import annotations

from ml_collections import ConfigDict

from depthmup_flax.config.fields import get_field, make_parametrization
from depthmup_flax.storage.sweep_records import CONTINUOUS, SEED
from depthmup_flax.trainer.engine.network import ConfigNetwork

RULE = "parametrization"  # the section of a config; hyperparameters with this beginning are fields of the rule
_WHOLE = ("optimizer.warmup_steps",)


def hyperparameters(config: ConfigDict) -> dict[str, float]:
    """The seed, fields of `CONTINUOUS` that are set, numbers in ``hyper``, and the rule.

    A preset is a name of the rule's numbers. A network that keeps numbers of the rule as attributes, as NNX and Equinox
    modules may, has none of them: traced, they would be other parts of it, or lost.
    """
    fields = {path: get_field(config, path) for path in CONTINUOUS}
    values = {path: value for path, value in fields.items() if value is not None}
    if ConfigNetwork(config.model, 0).keeps_rule:
        values = {path: value for path, value in values.items() if not path.startswith(f"{RULE}.")}
    else:
        values |= {f"{RULE}.{name}": value for name, value in make_parametrization(config).numbers().items()}
    values |= {f"hyper.{name}": value for name, value in config.hyper.items()}
    return {SEED: config.seed, **{path: value if path in _WHOLE else float(value) for path, value in values.items()}}
