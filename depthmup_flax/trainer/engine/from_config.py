"""From a config to what it describes: data, model, rule, optimizer. Bad input fails here, before compilation."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from depthmup_flax.config.fields import default_config, field_paths, get_field, make_parametrization, validate
from depthmup_flax.data import Dataset, load, steps_of_epoch
from depthmup_flax.data.registry import find_source
from depthmup_flax.data.user_data import UserDataset
from depthmup_flax.models import MODELS, create_model
from depthmup_flax.networks.import_paths import is_import_path
from depthmup_flax.rule.info_trees import flatten_info
from depthmup_flax.rule.parametrization import Parametrization
from depthmup_flax.rule.roles import axes_from_annotations, info_from_annotations, init_shapes, variable_shapes
from depthmup_flax.storage.sweep_records import CONTINUOUS
from depthmup_flax.trainer.engine.config_optimizer import make_optimizer, require_optimizer
from depthmup_flax.trainer.engine.experiment import Experiment, NetworkExperiment, StepExperiment, hyperparameters
from depthmup_flax.trainer.engine.losses import named_loss
from depthmup_flax.trainer.engine.user_network import UserNetwork
from depthmup_flax.trainer.engine.user_task import require_pure, user_task
from depthmup_flax.util.errors import InputError
from depthmup_flax.util.surroundings import own_surroundings

_READS = {"image": "images", "tokens": "text"}  # `input_kind` of a network -> kind of a source of data


@own_surroundings()
def build(config: ConfigDict, *, load: Callable[[ConfigDict], Dataset] = load) -> Experiment:
    """Checks ``config`` and builds what it describes; opens the data with ``load``, and trains nothing."""
    validate(config)
    rule, name = make_parametrization(config), config.model.name
    require_optimizer(config, rule)
    if is_import_path(name):
        return _of_users_code(config, rule, load(config.data))
    _require_no_hyper(config)
    new_model = functools.partial(create_model, rule=rule, **config.model)
    new_model(num_classes=1)  # refuses bad fields before the data are opened, which may take minutes
    reads = MODELS[name].input_kind
    _require_fit(config, find_source(config.data.name)[0].kind in ("arrays", _READS[reads]))
    dataset = load(config.data)
    _require_fit(config, dataset.input_kind == reads and bool(dataset.num_classes))
    if isinstance(dataset, UserDataset):
        dataset.require_labels(dataset.num_classes)
    model = new_model(num_classes=dataset.num_classes)
    variables = variable_shapes(model, dataset.input_spec)  # a deep network takes a second to trace
    shapes = variables["params"]
    is_base = model.base_width in (0, model.width)
    info = info_from_annotations(shapes, shapes if is_base else init_shapes(model.base(), dataset.input_spec))
    steps = _steps(config.train, dataset)
    experiment = NetworkExperiment(
        config=config,
        dataset=dataset,
        rule=rule,
        **steps,
        model=model,
        info=info,
        variables=variables,
        axes=axes_from_annotations(shapes),
        optimizer=make_optimizer(config, info, rule, steps["total_steps"]),
    )
    if config.loss != "cross_entropy":  # which fits every data set of classes
        require_pure(*_step(experiment), config.model.name)
    return experiment


def count_parameters(config: ConfigDict, *, load: Callable[[ConfigDict], Dataset] = load) -> int:
    """`Experiment.parameters`, of a user's network by its shapes alone: without audit and initial values."""
    if is_import_path(config.model.name):
        dataset, rule = load(config.data), make_parametrization(config)
        network = UserNetwork(config.model, dataset.num_classes)
        if network.task(rule) is None:
            params, _ = network.functions(rule).shapes(dataset.input_spec)
            return sum(leaf.size for leaf in jax.tree.leaves(params))
    return build(config, load=load).parameters


def abstract_batch(config: ConfigDict, dataset: Dataset) -> Any:
    """Shapes of a prepared training batch."""
    batch = batch_shapes(config, dataset)
    key = jax.eval_shape(lambda: jax.random.key(0))
    return jax.eval_shape(lambda key, batch: dataset.prepare(config.data.augment, key, batch), key, batch)


def batch_shapes(config: ConfigDict, dataset: Dataset) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes of a training batch as it is read."""
    size, one = config.train.batch_size, dataset.train.read(np.arange(1))
    return {name: jax.ShapeDtypeStruct((size, *x.shape[1:]), x.dtype) for name, x in one.items()}


def require_read(config: ConfigDict, read: Collection[str], paths: Collection[str] = ()) -> None:
    """A training step of the user's own reads every number that is set, and those that a sweep varies, ``paths``."""
    changed = set(_changed(config, CONTINUOUS)) - {"optimizer.learning_rate"}
    for path in [*(f"hyper.{name}" for name in config.hyper), *sorted(changed), *paths]:
        if (name := path.rpartition(".")[2]) not in read:
            reads = ", ".join(sorted(read)) or "nothing"
            raise _refused(config, path, f"does not read hyper[{name!r}]; it reads {reads}. Read it, or leave it out")


def _of_users_code(config: ConfigDict, rule: Parametrization, dataset: Dataset) -> Experiment:
    network, steps, model = UserNetwork(config.model, dataset.num_classes), _steps(config.train, dataset), config.model
    common = {"config": config, "dataset": dataset, "rule": rule, **steps}
    if config.mesh.fsdp not in (1, -1):
        raise _refused(config, "mesh.fsdp", "is not split over devices: use mesh.fsdp=1 and mesh.data=-1")
    if (task := network.task(rule)) is not None:
        of_networks = [path for path in field_paths(config) if path.startswith(("optimizer.", "loss"))]
        unread = [path for path in of_networks if path not in CONTINUOUS] + ["train.accumulate"]
        for path in _changed(config, unread):
            raise _refused(config, path, "has a training step of its own, which reads only numbers in hyper")
        user = user_task(task, model.name, hyperparameters(config), abstract_batch(config, dataset))
        require_read(config, user.read)
        return StepExperiment(**common, user=user)
    _require_no_hyper(config)
    functions, loss = network.functions(rule), named_loss(config.loss)
    params, collections = shapes = functions.shapes(dataset.input_spec)

    def of_batch(key: jax.Array, params: Any, collections: Any, batch: Any) -> Any:
        inputs, targets = batch
        outputs, new = functions.apply(params, collections, inputs, train=True, key=key)
        if config.loss == "cross_entropy" and isinstance(dataset, UserDataset) and dataset.has_integer_targets:
            dataset.require_labels(jax.tree.leaves(outputs)[0].shape[-1])
        return new, loss.metrics(outputs, targets)

    key = jax.eval_shape(lambda: jax.random.key(0))
    require_pure(of_batch, (key, *shapes, abstract_batch(config, dataset)), model.name)
    found = network.audited(dataset.input_spec, rule)
    multipliers = (leaf.carried.multiplier for leaf in flatten_info(found.info).values())
    carries_a = rule.branch_multiplier > 0 and any(multiplier != 0 for multiplier in multipliers)
    for name in ("gamma0", *(() if carries_a else ("branch_multiplier",))):
        if config.parametrization[name] is not None and not network.takes_rule:
            advice = "give it a field or parameter rule, and use rule.residual_multiplier and rule.readout_multiplier"
            raise _refused(
                config, f"parametrization.{name}", f"does not take the rule, so it cannot apply it: {advice}"
            )
    if found.audit.certain and model.audit:
        raise InputError(
            f"model.name is {model.name!r}: its forward pass does not follow the rule. Change it as below, or train "
            f"anyway with model.audit=False.\n\n{found.audit.corrections}"
        )
    experiment = NetworkExperiment(
        **common,
        model=network,
        made=functions,
        info=found.info,
        variables={"params": params, **collections},
        optimizer=make_optimizer(config, found.info, rule, steps["total_steps"]),
        audited=found.audit,
        init_factors=network.init_factors(dataset.input_spec, rule, found.info),
    )
    step, arguments = _step(experiment)
    jax.eval_shape(step, *arguments)
    return experiment


def _step(experiment: NetworkExperiment) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A training step and the shapes of its arguments, to be traced: the loss or the gradient may fail."""
    batch = abstract_batch(experiment.config, experiment.dataset)
    return experiment.step({}), (experiment.state_shapes(), batch)


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


def _require_fit(config: ConfigDict, fits: bool) -> None:
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
