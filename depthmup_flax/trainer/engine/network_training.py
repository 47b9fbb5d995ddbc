"""A config's network in training: with its loss and optimizer, under any hyperparameters."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from ml_collections import ConfigDict

from depthmup_flax.auditing.config_audit import Audited
from depthmup_flax.auditing.rescaled_init import Start, carried_factors, multiplied
from depthmup_flax.config.fields import set_field
from depthmup_flax.config.hyperparameters import RULE
from depthmup_flax.devices.sharding import AxisNames, logical_axes
from depthmup_flax.networks.model_functions import ModelFunctions
from depthmup_flax.rule.param_table import param_table
from depthmup_flax.rule.parametrization import Parametrization
from depthmup_flax.storage.sweep_records import SEED
from depthmup_flax.trainer.engine.config_optimizer import make_optimizer, update_facts
from depthmup_flax.trainer.engine.losses import Loss, named_loss
from depthmup_flax.trainer.engine.network import ConfigNetwork, Sizes
from depthmup_flax.trainer.engine.network_task import NetworkState, network_task, state_of
from depthmup_flax.trainer.engine.recorder import Recorder, recorder_of
from depthmup_flax.trainer.engine.task import Hyper, Task
from depthmup_flax.util.types import ArrayTree, InfoTree, Json


@dataclasses.dataclass(frozen=True, kw_only=True)
class NetworkTraining:
    """A network, trained by the gradient of a loss with an optax optimizer that follows the rule."""

    config: ConfigDict
    rule: Parametrization
    hyperparameters: Mapping[str, float]  # of the config
    total_steps: int | None  # None: the learning rate is constant
    example: Any  # shape and type of inputs with B = 1
    named: ConfigNetwork
    made: ModelFunctions  # the network under ``rule``: to make a user's takes as long as to trace it
    audited: Audited  # under every rule
    init_ratios: Mapping[str, float]  # path -> what multiplies initial values under muP
    optimizer: optax.GradientTransformation  # of the whole update

    @property
    def info(self) -> InfoTree:
        """`ParamInfo` of the parameters."""
        return self.audited.info

    @property
    def params(self) -> ArrayTree:
        """The shapes of the parameters."""
        return self.made.shapes(self.example)[0]

    @property
    def axes(self) -> Mapping[str, AxisNames]:
        """Path of a parameter -> its logical axes, by which it is sharded."""
        return logical_axes(self.made.boxed_shapes(self.example)[0])

    @functools.cached_property
    def loss(self) -> Loss:
        """Of the outputs."""
        return named_loss(self.config.loss, self.config.label_smoothing, self.config.data.ignore_label)

    @property
    def model(self) -> Any:
        """What the network is in its library: of ours a Linen module, under ``rule``."""
        return self.made.adapter.model

    @property
    def averaged(self) -> tuple[str, ...]:
        """The metrics that are averaged over steps."""
        return self.loss.averaged

    @functools.cached_property
    def task(self) -> Task:
        """Initializes, trains and evaluates."""
        train = self.config.train
        return network_task(self.under, self.example, self.loss, accumulate=train.accumulate, ema_decay=train.ema_decay)

    def under(self, hyper: Hyper) -> tuple[ModelFunctions, optax.GradientTransformation]:
        """The network and the optimizer under hyperparameters, which may be traced."""
        own = self.hyperparameters
        fields = {path: x for path, x in hyper.items() if path != SEED and x is not own.get(path)}
        if not fields:
            return self.functions(self.rule), self.optimizer
        changed, rule = self.config.copy_and_resolve_references(), self.rule_under(hyper)
        with changed.ignore_type():  # values may be traced
            for path, value in fields.items():
                if not path.startswith(f"{RULE}."):
                    set_field(changed, path, value)
        return self.functions(rule), make_optimizer(changed, self.info, rule, self.total_steps)

    def rule_under(self, hyper: Hyper) -> Parametrization:
        """The rule under hyperparameters: the same object, of which `made` is, unless a number is replaced."""
        numbers = {path.removeprefix(f"{RULE}."): x for path, x in hyper.items() if path.startswith(f"{RULE}.")}
        replaced = {name: x for name, x in numbers.items() if x is not self.hyperparameters.get(f"{RULE}.{name}")}
        return self.rule.replace(**replaced) if replaced else self.rule

    def functions(self, rule: Parametrization) -> ModelFunctions:
        """The network under a rule, as pure functions, with the initial values that the rule wants."""
        made = self.made if rule is self.rule else self.named.under(rule)  # numbers of another rule may be traced
        starts = self.starts(rule)
        if not any(start.changes for start in starts.values()):
            return made
        return dataclasses.replace(made, start=lambda params: multiplied(params, starts))

    def starts(self, rule: Parametrization) -> dict[str, Start]:
        """Path of a parameter -> what changes its initial values under a rule, whose numbers may be traced."""
        power = rule.width_power
        starts = {}
        for path, start in carried_factors(self.info, rule).items():
            ratio: Any = self.init_ratios[path]
            if ratio != 1:  # under ``standard`` initial values stay as they are
                ratio = jnp.where(power == 0, 1.0, ratio) if hasattr(power, "dtype") else ratio if power else 1.0
            starts[path] = dataclasses.replace(start, factor=ratio)
        return starts

    @property
    def shapes(self) -> NetworkState:
        """What a step carries, with shapes and dtypes in place of arrays."""
        new = lambda params, collections: state_of(params, collections, self.optimizer, self.config.train.ema_decay)
        return jax.eval_shape(new, *self.made.shapes(self.example))

    @functools.cached_property
    def _updates(self) -> Json:
        """See `update_facts`."""
        return update_facts(self.config, self.info)

    def recorder(self, total_steps: int) -> Recorder:
        """Measures the course of a run of so many steps."""
        nesterov = self._updates.get("degree") == 1 and self.config.optimizer.kwargs.nesterov
        whole = self.config.mesh.fsdp > 1
        of = self.params, self.info, self.rule_under, self._updates
        return recorder_of(*of, nesterov=nesterov, whole=whole, total_steps=total_steps)

    def table(self, epoch_steps: int) -> str:
        """`param_table` for the optimizer of this run."""
        optimizer = self.config.optimizer
        return param_table(
            self.info,
            self.rule,
            **self._updates,
            weight_decay=optimizer.weight_decay,
            decay_width_exponent=optimizer.decay_width_exponent,
            learning_rate=optimizer.learning_rate,
            epoch_steps=epoch_steps,
            frozen=optimizer.frozen,
        )


def network_training(
    config: ConfigDict,
    rule: Parametrization,
    hyper: Mapping[str, float],
    named: ConfigNetwork,
    example: Any,
    total_steps: int | None,
    sizes: Sizes | None = None,
) -> NetworkTraining:
    """The network of these sizes, by default those of the config, audited, with its optimizer; ``example``: inputs."""
    audited = named.audited(example, sizes)
    return NetworkTraining(
        config=config,
        rule=rule,
        hyperparameters=hyper,
        total_steps=total_steps,
        example=example,
        named=named,
        made=named.functions(rule, sizes),
        audited=audited,
        init_ratios=named.init_ratios(example, audited.info, sizes),
        optimizer=make_optimizer(config, audited.info, rule, total_steps),
    )
