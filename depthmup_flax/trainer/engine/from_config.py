"""From a config to what it describes: data, model, rule, optimizer. Bad input fails here, before compilation."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from depthmup_flax.config.fields import default_config, field_paths, get_field, make_parametrization, validate
from depthmup_flax.config.hyperparameters import hyperparameters
from depthmup_flax.data import Dataset, load, steps_of_epoch
from depthmup_flax.data.registry import find_source
from depthmup_flax.data.user_data import UserDataset
from depthmup_flax.models import MODELS, create_model
from depthmup_flax.networks.import_paths import is_import_path
from depthmup_flax.rule.direction_traits import require_norms
from depthmup_flax.rule.info_trees import flatten_info
from depthmup_flax.rule.parametrization import Geometry, Parametrization
from depthmup_flax.storage.sweep_records import CONTINUOUS
from depthmup_flax.trainer.engine.config_optimizer import OF_NORMS, require_optimizer
from depthmup_flax.trainer.engine.device_batches import abstract_batch
from depthmup_flax.trainer.engine.experiment import Experiment
from depthmup_flax.trainer.engine.network import ConfigNetwork
from depthmup_flax.trainer.engine.network_training import NetworkTraining, network_training
from depthmup_flax.trainer.engine.task import Hyper, Task
from depthmup_flax.trainer.engine.user_task import UserTask, require_pure, user_task
from depthmup_flax.util.errors import InputError
from depthmup_flax.util.surroundings import own_surroundings

_READS = {"image": "images", "tokens": "text"}  # `input_kind` of a network -> kind of a source of data


@own_surroundings()
def build(config: ConfigDict, *, load: Callable[[ConfigDict], Dataset] = load) -> Experiment:
    """Checks ``config`` and builds what it describes; opens the data with ``load``, and trains nothing."""
    validate(config)
    rule = make_parametrization(config)
    hyper = hyperparameters(config)
    require_optimizer(config, rule)
    _require_model(config, rule)  # before the data are opened, which may take minutes
    dataset = load(config.data)
    named = ConfigNetwork(config.model, dataset.num_classes)
    if named.is_ours:
        _require_kind(config, bool(dataset.num_classes) and dataset.input_kind == MODELS[config.model.name].input_kind)
    described = {"config": config, "dataset": dataset, "rule": rule, "hyperparameters": hyper}
    described |= _steps(config.train, dataset)
    task = named.task(rule)
    if task is not None:
        return Experiment(**described, work=_task(config, dataset, hyper, task))
    _require_no_hyper(config)
    network = network_training(config, rule, hyper, named, dataset.input_spec, described["total_steps"])
    require_followed(network, rule, config)
    experiment = Experiment(**described, work=network)
    _require_step(experiment, network)
    if config.optimizer.name in OF_NORMS:
        _require_norms(network)
    return experiment


def count_parameters(config: ConfigDict, *, load: Callable[[ConfigDict], Dataset] = load) -> int:
    """`Experiment.parameters`, of a user's network by its shapes alone: without audit and initial values."""
    if is_import_path(config.model.name):
        dataset, rule = load(config.data), make_parametrization(config)
        named = ConfigNetwork(config.model, dataset.num_classes)
        if named.task(rule) is None:
            params, _ = named.functions(rule).shapes(dataset.input_spec)
            return sum(leaf.size for leaf in jax.tree.leaves(params))
    return build(config, load=load).parameters


def require_read(config: ConfigDict, read: Collection[str], paths: Collection[str] = ()) -> None:
    """A training step of the user's own reads every number that is set, and those that a sweep varies, ``paths``."""
    changed = set(_changed(config, CONTINUOUS)) - {"optimizer.learning_rate"}
    for path in [*(f"hyper.{name}" for name in config.hyper), *sorted(changed), *paths]:
        if (name := path.rpartition(".")[2]) not in read:
            reads = ", ".join(sorted(read)) or "nothing"
            raise _refused(config, path, f"does not read hyper[{name!r}]; it reads {reads}. Read it, or leave it out")


def _task(config: ConfigDict, dataset: Dataset, hyper: Hyper, task: Task) -> UserTask:
    """A training step of the user's own, checked."""
    of_networks = [path for path in field_paths(config) if path.startswith(("optimizer.", "loss"))]
    unread = [path for path in of_networks if path not in CONTINUOUS] + ["train.accumulate"]
    for path in _changed(config, unread):
        raise _refused(config, path, "has a training step of its own, which reads only numbers in hyper")
    user = user_task(task, config.model.name, hyper, abstract_batch(config, dataset))
    require_read(config, user.read)
    return user


def _require_model(config: ConfigDict, rule: Parametrization) -> None:
    """A model of ours has such fields, and reads what the source of the data holds; a user's is not split."""
    if is_import_path(config.model.name):
        if config.mesh.fsdp not in (1, -1):
            raise _refused(config, "mesh.fsdp", "is not split over devices: use mesh.fsdp=1 and mesh.data=-1")
        return
    _require_no_hyper(config)
    create_model(num_classes=1, rule=rule, **config.model)
    reads = MODELS[config.model.name].input_kind
    _require_kind(config, find_source(config.data.name)[0].kind in ("arrays", _READS[reads]))


def require_followed(network: NetworkTraining, rule: Parametrization, config: ConfigDict) -> None:
    """The network follows a rule, that of ``config``, or its parameters carry what the code lacks."""
    named, section = network.named, config.parametrization
    carries_a = any(leaf.carried.multiplier != 0 for leaf in flatten_info(network.info).values())
    unapplied = ["gamma0"] if carries_a and rule.branch_multiplier > 0 else ["gamma0", "branch_multiplier"]
    for name in unapplied:
        if section[name] is not None and not named.takes_rule:
            advice = "give it a field or parameter rule, and use rule.residual_multiplier and rule.readout_multiplier"
            path = f"parametrization.{name}"
            raise _refused(config, path, f"does not take the rule, so it cannot apply it: {advice}")
    if rule.gamma0_width_exponent != 0 and not network.audited.divides_output:
        advice = "multiply logits by rule.readout_multiplier(m) / rule.output_divisor(m)"
        raise InputError(
            f"parametrization.gamma0_width_exponent is {rule.gamma0_width_exponent:g}: {config.model.name} does not "
            f"divide its output by that power of the width: {advice}."
        )
    audit = network.audited.audit.under(rule)
    if audit.certain and config.model.get("audit", True):
        raise InputError(
            f"model.name is {config.model.name!r}: its forward pass does not follow the rule. Change it as below, or "
            f"train anyway with model.audit=False.\n\n{audit.corrections}"
        )


def _require_step(experiment: Experiment, network: NetworkTraining) -> None:
    """Outputs fit the labels; the step can be traced and, with code of the user's own, is a pure function."""
    config, dataset = experiment.config, experiment.dataset
    classifies, is_ours = config.loss == "cross_entropy", network.named.is_ours
    if not (classifies and is_ours):
        require_pure(experiment.step({}), experiment.step_shapes(), config.model.name)
    if isinstance(dataset, UserDataset) and (classifies or is_ours):
        outputs = network.made.outputs(network.example)
        tokens = is_ours and dataset.input_kind == "tokens"
        dataset.require_labels(jax.tree.leaves(outputs)[0].shape[-1], tokens=tokens)


def _require_norms(network: NetworkTraining) -> None:
    """Matrices that keep their norm do not start at zero: such a run is not a number from its first step on."""
    inputs = jax.tree.map(jnp.zeros_like, network.example)
    params, _ = jax.jit(network.functions(network.rule).init)(jax.random.key(0), inputs)
    require_norms(network.info, params, dict.fromkeys(flatten_info(network.info), Geometry.NORM_MATCHED))


def _steps(train: ConfigDict, dataset: Dataset) -> dict[str, Any]:
    """``epoch_steps`` and ``total_steps``; a tenth of a run without epochs counts as one."""
    of_epoch = steps_of_epoch(dataset.train, train.batch_size)
    if of_epoch is None and not train.steps:
        raise InputError(f"train.steps is 0: {dataset.name!r} gives batches without end. Set it, such as to 1000.")
    total = train.steps or max(1, math.ceil(min(train.epochs * (of_epoch or 0), 2.0**40)))
    if total >= 2**31:
        field = "steps" if train.steps else "epochs"
        raise InputError(f"train.{field} is {train[field]}: use fewer than 2^31 steps.")
    return {"epoch_steps": of_epoch or math.ceil(total / 10), "total_steps": total}


def _require_kind(config: ConfigDict, fits: bool) -> None:
    """The model must read what the data hold."""
    if not fits:
        reads, (source, _) = _READS[MODELS[config.model.name].input_kind], find_source(config.data.name)
        fitting = [repr(name) for name, model in MODELS.items() if _READS[model.input_kind] == source.kind]
        raise InputError(
            f"model.name is {config.model.name!r}, which reads {reads}, but data.name is {config.data.name!r}, "
            f"which holds {source.kind}: use other data, of a known number of classes, or model.name = "
            f"{' or '.join(fitting) or 'a network of your own'}."
        )


def _require_no_hyper(config: ConfigDict) -> None:
    for name in config.hyper:
        raise _refused(config, f"hyper.{name}", "is no dm.Task, which alone reads it: leave it out")


def _changed(config: ConfigDict, paths: Collection[str]) -> list[str]:
    """Those of the fields ``paths`` that have not their default."""
    default = default_config(config.model.name)
    return [path for path in paths if get_field(config, path) != get_field(default, path)]


def _refused(config: ConfigDict, path: str, why: str) -> InputError:
    return InputError(f"{path} is {get_field(config, path)!r}: {config.model.name} {why}.")
