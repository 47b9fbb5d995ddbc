"""A rule as a file: ``RULE``, and what is tuned on the proxy besides the learning rate.

    RULE = dm.Parametrization(alpha=1.0, gamma=0.0)

or a function of the size, for exponents that no `Parametrization` has; ``None`` leaves out tasks that the rule does not
cover:

    def RULE(width_ratio, depth_ratio, config):
        return dm.get_parametrization("sp", hidden_lr_factor=1 / width_ratio)

    TUNED = ("learning_rate", "input_lr_factor")
"""

from __future__ import annotations

import dataclasses
import pathlib
import runpy
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from ml_collections import ConfigDict

from depthmup_flax.models import create_model
from depthmup_flax.networks.user_code import calling
from depthmup_flax.rule.parametrization import PRESETS, Parametrization, Role
from depthmup_flax.util.errors import InputError, did_you_mean, shown

SHIPPED = pathlib.Path(__file__).with_name("rules")
DEFAULT = "depth_mup"
_RATE = "learning_rate"
# Fields of a config's rule, and those among them that can be tuned as a second hyperparameter.
TUNABLE = (*(f"{role}_lr_factor" for role in Role), "branch_multiplier")
FIELDS = ("alpha", "gamma", "inner_gamma", "width", "gamma0", *TUNABLE)
_OF_DEPTH = ("alpha", "gamma", "inner_gamma")  # which mean nothing at the base's depth

Function: TypeAlias = Callable[[float, float, ConfigDict], Parametrization | None]


@dataclasses.dataclass(frozen=True)
class Rule:
    """What a file states."""

    name: str
    rule: Parametrization | Function
    second: str | None = None  # tuned besides the learning rate, a name of `TUNABLE`

    def fields(self, config: ConfigDict) -> dict[str, Any] | None:
        """`FIELDS` of the rule at a config's size; ``None`` if it does not cover the config.

        Fields that mean nothing at a size have the default's value, so that equal runs are trained once.
        """
        model = create_model(num_classes=1, rule=PRESETS[DEFAULT], **config.model)
        m, r = model.width_ratio, model.depth_ratio
        if isinstance(self.rule, Parametrization):
            rule = self.rule
        else:
            with calling(f"RULE of {self.name}"):
                at_size = self.rule(m, r, config)
            if at_size is None:
                return None
            rule = _required(at_size, self.name)
        if rule.normalized_updates_only and config.optimizer.name in ("sgd", "momentum"):
            return None
        fields = {name: getattr(rule, name) for name in FIELDS} | {"gamma0": rule.output_divisor(m)}
        idle = [*(_OF_DEPTH if r == 1 else ()), *(["width"] if m == 1 else [])]
        return fields | {name: getattr(PRESETS[DEFAULT], name) for name in idle}


def _required(rule: object, name: str) -> Parametrization:
    """``rule`` itself; `InputError` for anything else, and for a subclass, which may override what no config says."""
    if type(rule) is not Parametrization:
        raise InputError(
            f"RULE of {name} is {shown(rule)}: it must be a dm.Parametrization, or a function RULE(width_ratio, "
            "depth_ratio, config) that returns one, or None for a task that it does not cover."
        )
    return rule


def shipped_rules() -> list[str]:
    """The names of the rules with committed records."""
    return sorted(path.stem for path in SHIPPED.glob("*.py"))


def read_rule(named: str) -> Rule:
    """The rule of a Python file, or a shipped one by its name.

    Raises:
      InputError: the file cannot be read, or does not state a rule.
      UserCodeError: the file fails.
    """
    path = SHIPPED / f"{named}.py" if named in shipped_rules() else pathlib.Path(named)
    if not path.is_file():
        raise InputError(f"rule is {named!r}: name a Python file, or one of {', '.join(shipped_rules())}.")
    if path.stem in shipped_rules() and path.resolve().parent != SHIPPED.resolve():
        raise InputError(f"rule is {named!r}, which has the name of a rule of the benchmark: rename the file.")
    with calling(str(path)):
        stated: Mapping[str, Any] = runpy.run_path(str(path))
    if "RULE" not in stated:
        raise InputError(f"{path} has no RULE: write RULE = dm.Parametrization(...), or a function RULE.")
    rule = stated["RULE"]
    if isinstance(rule, type) or not callable(rule):
        _required(rule, path.stem)
    return Rule(path.stem, rule, _second(stated.get("TUNED", (_RATE,)), path))


def _second(tuned: Any, path: pathlib.Path) -> str | None:
    if not isinstance(tuned, (str, tuple, list)):
        raise InputError(f"TUNED of {path} is {tuned!r}: use a tuple of names, such as ({_RATE!r},).")
    names = [tuned] if isinstance(tuned, str) else list(tuned)
    others = [name for name in names if name != _RATE]
    for name in others:
        if name not in TUNABLE:
            raise InputError(f"TUNED of {path} has {name!r}: {did_you_mean(str(name), [_RATE, *TUNABLE])}")
    if len(others) > 1:
        raise InputError(f"TUNED of {path} has {', '.join(others)}: give one besides {_RATE}.")
    return others[0] if others else None
