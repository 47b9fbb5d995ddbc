"""From a config to what it describes: data, model, rule, optimizer. Bad input fails here, before compilation."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
from ml_collections import ConfigDict

from depthmup_flax.config.fields import make_parametrization, validate
from depthmup_flax.data import Dataset, load, steps_of_epoch
from depthmup_flax.data.sources.registry import find_source
from depthmup_flax.models import MODELS, create_model
from depthmup_flax.networks.named import is_import_path
from depthmup_flax.rule.parametrization import Parametrization
from depthmup_flax.rule.roles import axes_from_annotations, info_from_annotations, init_shapes, variable_shapes
from depthmup_flax.trainer.engine.experiment import Experiment, NetworkExperiment, StepExperiment, hyperparameters
from depthmup_flax.trainer.engine.optimizers import make_optimizer, require_optimizer
from depthmup_flax.trainer.engine.user_checks import (
    abstract_batch,
    require_data_parallel,
    require_labels,
    require_no_hyper,
    require_only_hyper,
    require_read,
    require_rule,
)
from depthmup_flax.trainer.engine.user_network import UserNetwork
from depthmup_flax.trainer.engine.user_task import require_pure, user_task
from depthmup_flax.util.errors import InputError


def build(config: ConfigDict, *, load: Callable[[ConfigDict], Dataset] = load) -> Experiment:
    """Checks ``config`` and builds what it describes; opens the data with ``load``, and trains nothing.

    Raises:
      InputError: a config, or data, that the user can correct.
      UserCodeError: the user's model, loss or data fail.
    """
    validate(config)
    parametrization = make_parametrization(config)
    require_optimizer(config, parametrization)
    if is_import_path(config.model.name):
        return _of_users_code(config, parametrization, load(config.data))
    require_no_hyper(config)
    new_model = functools.partial(create_model, parametrization=parametrization, **config.model)
    new_model(num_classes=1)  # refuses bad fields before the data are opened, which may take minutes
    _require_kind(config.model.name, config.data.name)
    dataset = load(config.data)
    _require_fit(config.model.name, dataset)
    model = new_model(num_classes=dataset.num_classes)
    variables = variable_shapes(model, dataset.input_spec)  # a deep network takes a second to trace
    shapes = variables["params"]
    is_base = model.base_width in (0, model.width)
    info = info_from_annotations(shapes, shapes if is_base else init_shapes(model.base(), dataset.input_spec))
    steps = _steps(config.train, dataset)
    experiment = NetworkExperiment(
        config=config,
        dataset=dataset,
        parametrization=parametrization,
        **steps,
        model=model,
        infos=info,
        variables=variables,
        axes=axes_from_annotations(shapes),
        optimizer=make_optimizer(config, info, parametrization, steps["total_steps"]),
    )
    if config.loss != "cross_entropy":  # which fits every data set of classes
        _require_step(experiment)
    return experiment


def count_parameters(config: ConfigDict, *, load: Callable[[ConfigDict], Dataset] = load) -> int:
    """`Experiment.parameters`, of a user's network by its shapes alone: without audit and initial values.

    Raises:
      InputError, UserCodeError: see `build`.
    """
    if is_import_path(config.model.name):
        dataset, rule = load(config.data), make_parametrization(config)
        network = UserNetwork(config.model, dataset.num_classes)
        if network.task(rule) is None:
            params, _ = network.functions(rule).shapes(dataset.input_spec)
            return sum(leaf.size for leaf in jax.tree.leaves(params))
    return build(config, load=load).parameters


def _of_users_code(config: ConfigDict, rule: Parametrization, dataset: Dataset) -> Experiment:
    network, steps = UserNetwork(config.model, dataset.num_classes), _steps(config.train, dataset)
    require_data_parallel(config)
    if (task := network.task(rule)) is not None:
        require_only_hyper(config)
        user = user_task(task, config.model.name, hyperparameters(config), abstract_batch(config, dataset))
        require_read(config, user.read)
        return StepExperiment(config=config, dataset=dataset, parametrization=rule, **steps, user=user)
    require_no_hyper(config)
    require_rule(config, network)
    model = config.model
    functions = network.functions(rule)
    params, collections = shapes = functions.shapes(dataset.input_spec)
    key = jax.eval_shape(lambda: jax.random.key(0))
    forward = functools.partial(functions.apply, train=True)
    require_pure(lambda key, *arguments: forward(*arguments, key=key), (key, *shapes, dataset.input_spec), model.name)
    if config.loss == "cross_entropy":
        require_labels(dataset, functions.outputs(dataset.input_spec))
    found = network.audited(dataset.input_spec, rule)
    if found.findings and model.audit:
        raise InputError(
            f"model.name is {model.name!r}: its forward pass does not follow the rule. Change it as below, or train "
            f"anyway with --config.model.audit=False, in Python dm.Study(..., audit=False).\n\n{found.text}"
        )
    experiment = NetworkExperiment(
        config=config,
        dataset=dataset,
        parametrization=rule,
        **steps,
        model=network,
        infos=found.info,
        variables={"params": params, **collections},
        axes={},
        optimizer=make_optimizer(config, found.info, rule, steps["total_steps"]),
        audited=found,
        init_factors=network.init_factors(dataset.input_spec, rule, found.info),
    )
    _require_step(experiment)
    return experiment


def _require_step(experiment: NetworkExperiment) -> None:
    """Traces a training step, in which the loss may fail or be impure."""
    config, dataset = experiment.config, experiment.dataset
    arguments = experiment.state_shapes(), abstract_batch(config, dataset)
    require_pure(experiment.workload.step({}), arguments, config.model.name)


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


_READS = {"image": "images", "tokens": "text"}  # `input_kind` of a network -> kind of a source of data


def _require_kind(name: str, data: str) -> None:
    """The model must read what sources of this kind hold; the user's arrays are looked at once they are loaded."""
    holds, reads = find_source(data)[0].kind, _READS[MODELS[name].input_kind]
    if holds not in ("arrays", reads):
        fitting = " or ".join(repr(other) for other, model in MODELS.items() if _READS[model.input_kind] == holds)
        raise InputError(
            f"model.name is {name!r}, which reads {reads}, but data.name is {data!r}, which holds {holds}: use "
            f"model.name = {fitting}, or other data."
        )


def _require_fit(name: str, dataset: Dataset) -> None:
    """The model must read what the data set holds."""
    reads = MODELS[name].input_kind
    if dataset.input_kind != reads:
        raise InputError(
            f"model.name is {name!r}, which reads {_READS[reads]}, but data.name is {dataset.name!r}, which holds "
            f"{dataset.describe()}: use a network of your own, or other data."
        )
    if not dataset.num_classes:
        raise InputError(
            f"data.name is {dataset.name!r}: model.name {name!r} needs to know the number of classes, and targets that "
            "are streamed do not tell it. Give arrays, or records with data.placement=device."
        )
