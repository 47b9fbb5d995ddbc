"""What the import path in ``model.name`` makes: a network of the user's, or a training step of their own."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
from ml_collections import ConfigDict

from depthmup_flax.engine.task import Task
from depthmup_flax.rule.parametrization import Parametrization
from depthmup_flax.user_code.calls import calling
from depthmup_flax.user_code.fields import model_fields, parameters
from depthmup_flax.user_code.model_functions import ModelFunctions, model_functions
from depthmup_flax.user_code.named import resolve


@dataclasses.dataclass(frozen=True)
class UserNetwork:
    """The class or function that ``model.name`` names, with the fields of ``config.model``.

    Attributes:
      config: of the model.
      num_classes: of the data, for a model that takes it.
    """

    config: ConfigDict
    num_classes: int

    @functools.cached_property
    def named(self) -> Any:
        """The class or function."""
        return resolve(self.config.name, "model.name")

    @property
    def takes_rule(self) -> bool:
        """Whether the model is given the parametrization."""
        return bool({"rule", "parametrization"} & parameters(self.named).keys())

    def make(self, rule: Parametrization, width: int | None = None, depth: int | None = None) -> Callable[..., Any]:
        """The class or function with all its arguments but random keys; by default with the config's sizes."""
        sizes = {"width": width or self.config.width, "depth": depth or self.config.depth}
        # A field that was not set keeps the default that it has in the code.
        given = {name: value for name in model_fields(self.named) if (value := self.config.get(name)) is not None}
        passed = {"rule": rule, "parametrization": rule, "num_classes": self.num_classes}
        takes = parameters(self.named)
        ours = {name: value for name, value in (passed | sizes).items() if name in takes}
        return functools.partial(self.named, **given | ours)

    def functions(self, rule: Parametrization, width: int | None = None, depth: int | None = None) -> ModelFunctions:
        """The network as pure functions."""
        return model_functions(self.make(rule, width, depth), self.config.name)

    def task(self, rule: Parametrization) -> Task | None:
        """The training step, if that is what is made."""
        make = self.make(rule)
        if {"rngs", "key"} & parameters(self.named).keys():
            return None
        made: list[Any] = []
        with calling(self.config.name):
            jax.eval_shape(lambda: made.append(make()))  # a large network is not computed
            return make() if isinstance(made[0], Task) else None
