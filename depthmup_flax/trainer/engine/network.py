"""The network that ``config.model`` names, of this package or the user's: at any size, under any rule, and audited."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from depthmup_flax.auditing.config_audit import Audited, audited_model, audited_under_any_rule, of_module
from depthmup_flax.auditing.rescaled_init import init_factors
from depthmup_flax.devices.host import drawn
from depthmup_flax.models import MODELS, create_model
from depthmup_flax.networks.import_paths import resolve
from depthmup_flax.networks.model_functions import ModelFunctions, model_functions
from depthmup_flax.networks.user_code import calling, model_fields, parameters, takes
from depthmup_flax.rule.info_trees import flatten_info
from depthmup_flax.rule.parametrization import PRESETS, Parametrization
from depthmup_flax.trainer.engine.task import Task
from depthmup_flax.util.errors import InputError
from depthmup_flax.util.types import ArrayTree, InfoTree

Sizes = tuple[int, int]  # width, depth

_OF_STARTS = PRESETS["mup"]  # the rule under which initial values are measured


@dataclasses.dataclass(frozen=True)
class ConfigNetwork:
    """The class or function that ``config.model`` names, with its fields."""

    config: ConfigDict  # of the model
    num_classes: int  # of the data, or its tokens, for a network that takes them

    @property
    def is_ours(self) -> bool:
        """Whether it is one of `depthmup_flax.models`, whose errors and initial values are its own."""
        return self.config.name in MODELS

    @functools.cached_property
    def named(self) -> Any:
        """The class or function."""
        return MODELS[self.config.name] if self.is_ours else resolve(self.config.name, "model.name")

    @property
    def takes_rule(self) -> bool:
        """Whether its code has the rule's constants; else parameters carry them."""
        return takes(self.named, "rule")

    @property
    def sizes(self) -> Sizes:
        """Width and depth."""
        return self.config.width, self.config.depth

    @property
    def base_sizes(self) -> Sizes:
        """Width and depth of the base."""
        return self.config.base_width or self.config.width, self.config.base_depth or self.config.depth

    def under(self, rule: Parametrization, sizes: Sizes | None = None) -> ModelFunctions:
        """The network as pure functions, by default at its own sizes; numbers of the rule may be traced."""
        if self.is_ours:
            return of_module(self._model(rule, sizes))
        return model_functions(self._bound(rule, *(sizes or self.sizes)), self.config.name)

    def _model(self, rule: Parametrization, sizes: Sizes | None) -> Any:
        """One of ours."""
        model = create_model(num_classes=self.num_classes, rule=rule, **self.config)
        return model if sizes is None else model.resized(*sizes)

    @functools.cached_property
    def functions(self) -> Callable[..., ModelFunctions]:
        """`under`, of which each result is traced once; numbers of the rule must not be traced.

        The next `ConfigNetwork` traces the user's code anew: what it calls may have been edited, as in a notebook.
        """
        return functools.cache(self.under)

    def audited(self, inputs: ArrayTree, sizes: Sizes | None = None) -> Audited:
        """What the audit says of the network of these sizes, by default its own, under every rule."""
        if self.is_ours:
            return audited_model(self._model(_OF_STARTS, sizes), inputs)
        options: dict[str, Any] = {"output": self.config.audited_output, "takes_rule": self.takes_rule}
        try:
            return audited_under_any_rule(self.functions, sizes or self.sizes, self.base_sizes, inputs, **options)
        except InputError as error:
            # The argument of `depthmup_flax.audit` is a field here.
            raise InputError(str(error).replace("output=", "model.audited_output=")) from error

    def init_ratios(self, inputs: ArrayTree, info: InfoTree, sizes: Sizes | None = None) -> dict[str, float]:
        """Path of a parameter -> what multiplies its initial values under muP; see `rescale_init`.

        Initial values are measured under a rule that stands for all with a factor of the width. Under ``standard`` they
        stay as they are.
        """
        sizes = sizes or self.sizes
        if self.is_ours or sizes == self.base_sizes or not self.config.rescale_init:
            return dict.fromkeys(flatten_info(info), 1.0)
        key, zeros = jax.random.key(0), jax.tree.map(jnp.zeros_like, inputs)
        inits = (self.functions(_OF_STARTS, of).init for of in (sizes, self.base_sizes))
        own, base = (drawn(lambda key, init=init: init(key, zeros)[0], key) for init in inits)
        return {path: start.factor for path, start in init_factors(own, base, info, _OF_STARTS).items()}

    def task(self, rule: Parametrization) -> Task | None:
        """The training step, if that is what is made."""
        if self.is_ours or {"rngs", "key"} & parameters(self.named).keys():
            return None
        make = self._bound(rule, *self.sizes)
        made = list[Any]()
        with calling(self.config.name):
            jax.eval_shape(lambda: made.append(make()))  # a large network is not computed
            return make() if isinstance(made[0], Task) else None

    def _bound(self, rule: Parametrization, width: int, depth: int) -> Callable[..., Any]:
        """A user's class or function with all its arguments but random keys."""
        # A field that was not set keeps the default that it has in the code.
        given = {name: x for name in model_fields(self.named) if (x := self.config.get(name)) is not None}
        passed = {"rule": rule, "num_classes": self.num_classes, "width": width, "depth": depth}
        known = parameters(self.named)
        if "num_classes" in known and not self.num_classes:
            del passed["num_classes"]  # its default, if there is one
            if known["num_classes"].default is inspect.Parameter.empty:
                raise InputError(
                    f"model.name is {self.config.name!r}: it takes num_classes, which is known of integer labels in "
                    "memory alone, and these data have none. Give num_classes a default, or leave it out."
                )
        taken = {name: value for name, value in passed.items() if name in known}
        return functools.partial(self.named, **given | taken)
