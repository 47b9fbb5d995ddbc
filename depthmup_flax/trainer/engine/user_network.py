"""A network of the user's own, which ``model.name`` imports, adapted to the config's sizes and rule, and audited."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from depthmup_flax.auditing.config_audit import Audited, audited
from depthmup_flax.auditing.rescaled_init import Start, carried_factors, init_factors, multiplied
from depthmup_flax.devices.host import drawn
from depthmup_flax.networks.import_paths import resolve
from depthmup_flax.networks.model_functions import ModelFunctions, model_functions
from depthmup_flax.networks.user_code import calling, model_fields, parameters, takes
from depthmup_flax.rule.parametrization import Parametrization
from depthmup_flax.trainer.engine.task import Task
from depthmup_flax.util.errors import InputError
from depthmup_flax.util.types import InfoTree


@dataclasses.dataclass(frozen=True)
class UserNetwork:
    """The class or function that ``model.name`` names, with the fields of ``config.model``."""

    config: ConfigDict  # of the model
    num_classes: int  # of the data, for a model that takes it

    @functools.cached_property
    def named(self) -> Any:
        """The class or function."""
        return resolve(self.config.name, "model.name")

    @property
    def takes_rule(self) -> bool:
        """Whether its code has the rule's constants; else parameters carry a."""
        return takes(self.named, "rule")

    @property
    def keeps_rule(self) -> bool:
        """Whether modules may have attributes that are made of the rule's numbers: Linen ones have none."""
        return self.takes_rule and not (inspect.isclass(self.named) and issubclass(self.named, nn.Module))

    def make(self, rule: Parametrization, width: int | None = None, depth: int | None = None) -> Callable[..., Any]:
        """The class or function with all its arguments but random keys; by default with the config's sizes."""
        sizes = {"width": width or self.config.width, "depth": depth or self.config.depth}
        # A field that was not set keeps the default that it has in the code.
        given = {name: value for name in model_fields(self.named) if (value := self.config.get(name)) is not None}
        passed = {"rule": rule, "num_classes": self.num_classes}
        known = parameters(self.named)
        if "num_classes" in known and not self.num_classes:
            del passed["num_classes"]  # its default, if there is one
            if known["num_classes"].default is inspect.Parameter.empty:
                raise InputError(
                    f"model.name is {self.config.name!r}: it takes num_classes, which is known of integer labels in "
                    "memory alone, and these data have none. Give num_classes a default, or leave it out."
                )
        ours = {name: value for name, value in (passed | sizes).items() if name in known}
        return functools.partial(self.named, **given | ours)

    @functools.cached_property
    def functions(self) -> Callable[..., ModelFunctions]:
        """``(rule, width=None, depth=None)`` -> the network as pure functions, which is traced once.

        The next `UserNetwork` traces anew: what the user's function calls may have been edited, as in a notebook.
        """
        return functools.cache(lambda rule, *sizes: model_functions(self.make(rule, *sizes), self.config.name))

    @property
    def base_sizes(self) -> tuple[int, int]:
        """Width and depth of the base."""
        return self.config.base_width or self.config.width, self.config.base_depth or self.config.depth

    def audited(self, inputs: Any, rule: Parametrization, sizes: tuple[int, int] | None = None) -> Audited:
        """Roles and missing multipliers of the network of these sizes, by default its own."""
        sizes = sizes or (self.config.width, self.config.depth)
        functions, output = functools.partial(self.functions, rule), self.config.audited_output
        in_code = (rule,) if self.takes_rule and rule.alpha > 0 else ()
        try:
            return audited(functions, sizes, self.base_sizes, inputs, output=output, in_code=in_code)
        except InputError as error:
            # The argument of `depthmup_flax.audit` is a field here.
            raise InputError(str(error).replace("output=", "model.audited_output=")) from error

    def init_factors(
        self, inputs: Any, rule: Parametrization, info: InfoTree, sizes: tuple[int, int] | None = None
    ) -> dict[str, Start]:
        """Path of a parameter -> what changes its initial values, if anything does; see `rescale_init`."""
        sizes = sizes or (self.config.width, self.config.depth)
        if sizes == self.base_sizes or not self.config.rescale_init:
            return carried_factors(info, rule)
        key, zeros = jax.random.key(0), jax.tree.map(jnp.zeros_like, inputs)
        inits = (self.functions(rule, *of).init for of in (sizes, self.base_sizes))
        own, base = (drawn(lambda key, init=init: init(key, zeros)[0], key) for init in inits)
        return init_factors(own, base, info, rule)

    def task(self, rule: Parametrization) -> Task | None:
        """The training step, if that is what is made."""
        make, made = self.make(rule), list[Any]()
        if {"rngs", "key"} & parameters(self.named).keys():
            return None
        with calling(self.config.name):
            jax.eval_shape(lambda: made.append(make()))  # a large network is not computed
            return make() if isinstance(made[0], Task) else None


def rescaled(functions: ModelFunctions, factors: Mapping[str, Start]) -> ModelFunctions:
    """The network with initial values changed by `UserNetwork.init_factors`."""
    if not any(start.changes for start in factors.values()):
        return functions
    return dataclasses.replace(functions, start=lambda params: multiplied(params, factors))
