"""`Study`: the commands on a network, data and a loss of this process."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
import logging
import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import jax
import optax
from ml_collections import ConfigDict

from depthmup_flax.auditing.network_audit import audited
from depthmup_flax.auditing.parameter_trees import flatten
from depthmup_flax.auditing.table import Audit
from depthmup_flax.config.fields import config_hash, default_config, make_parametrization, validate
from depthmup_flax.data import LoadOnce
from depthmup_flax.models import MODELS, create_model
from depthmup_flax.rule.info_trees import is_nnx, path_name
from depthmup_flax.rule.parametrization import Parametrization
from depthmup_flax.search.forecast.allocation import Recipe, recipe
from depthmup_flax.search.forecast.ladder import LadderPlan
from depthmup_flax.search.forecast.target_loss import DEFAULT, TargetForecast, forecast
from depthmup_flax.search.study.arguments import (
    checked_hyper,
    data_name,
    loss_name,
    model_name,
    require_names,
    require_same_shapes,
    size_of,
    sizes_of,
)
from depthmup_flax.search.study.names import field_of, in_python, rule_section, set_values
from depthmup_flax.search.study.results import Best, Swept
from depthmup_flax.search.study.searches import Grids, searched, swept, tuned, tuned_in_rounds
from depthmup_flax.search.study.shown_progress import shown_progress
from depthmup_flax.search.sweep.grid import as_tuple
from depthmup_flax.search.sweep.runner import OnRecord
from depthmup_flax.search.tune.objective import AUTO, prepare_objective, require_objective
from depthmup_flax.search.tune.ranges import default_names
from depthmup_flax.search.tune.rounds import EXTEND, TRIALS
from depthmup_flax.storage.files import as_path
from depthmup_flax.trainer.engine.experiment import NetworkExperiment, make_optimizer
from depthmup_flax.trainer.engine.from_config import build as build_experiment
from depthmup_flax.trainer.engine.user_network import UserNetwork
from depthmup_flax.trainer.loop import train_and_evaluate
from depthmup_flax.trainer.writers import Writer
from depthmup_flax.util.errors import InputError
from depthmup_flax.util.types import ArrayTree, InfoTree, Json

if TYPE_CHECKING:
    import optuna

    from depthmup_flax.check.report import Report as CheckReport

log = logging.getLogger(__name__)

T = TypeVar("T")

_STEPS = 1000  # of a run
_TRIALS = 32  # of a sampler
# In place of the audit's note, as a study makes the initial values itself.
_INITIAL_VALUES = (
    "initial values are not seen. tune, sweep and train give them the rule's standard deviations; in a loop of your "
    "own:\nwrite: params = study.rescale_init(params, width, depth)"
)
_SIZES = ("model.width", "model.depth", "model.base_width", "model.base_depth")


def _with_own_names(method: Callable[..., T]) -> Callable[..., T]:
    """A method whose errors name the arguments that were typed, see `in_python`."""

    @functools.wraps(method)
    def named(self: Study, *args: Any, **values: Any) -> T:
        try:
            return method(self, *args, **values)
        except InputError as error:
            error.args = (in_python(str(error), vars(self).get("_config") or default_config()),)
            raise

    return named


def _shown(method: Callable[..., T]) -> Callable[..., T]:
    """A method that shows its progress, unless the study is quiet; its errors see `_with_own_names`."""

    @functools.wraps(method)
    def shown(self: Study, *args: Any, **values: Any) -> T:
        with contextlib.nullcontext() if self._quiet else shown_progress():
            return method(self, *args, **values)

    return _with_own_names(shown)


class Study:
    """A network or training step at all sizes, with data: audit, tune, sweep, report, forecast and train it.

    Values of hyperparameters are keywords: short names such as ``learning_rate``, ``weight_decay``, ``warmup_steps``,
    ``b1``, ``gamma0``, ``output_lr_factor``, fields of the network, names in ``hyper``; or whole fields of the config,
    ``**{"optimizer.schedule": "cosine"}``.

    Args:
      build: ``(width, depth, ...) -> network`` or `depthmup_flax.Task`. It may also take ``rule``, a `Parametrization`;
        ``rngs`` (NNX) or ``key`` (Equinox); ``num_classes``; and fields with values. Or a class, its import path
        ``"my_package.net:Net"``, or the name of a model of this package.
      data: ``(train, test)`` or ``(train, test, prepare)``; a function that returns it; or a name of ``config.data``,
        such as ``"digits"`` or ``"python:my_package.data:load"``. A split is ``(inputs, targets)``, a dictionary of
        arrays, an object with ``__len__`` and ``__getitem__``; see docs.
      base: width and depth of the proxy, on which hyperparameters are tuned.
      rule: a preset, or a `Parametrization`.
      loss: ``"cross_entropy"``, ``"squared_error"``, or a function ``(outputs, targets) -> scalar``.
      optimizer: ``"adam"``, ``"sgd"``, ``"momentum"``, ``"muon"`` or another optax direction.
      steps: of every run, by default 1000, or what ``epochs`` makes. The loss that is compared is the mean of the last
        fifth.
      batch_size: examples of a step.
      seed: the first one.
      hyper: further numbers that a `Task` reads: ``{"temperature": 0.1}``.
      workdir: keeps all records and runs: the same call again resumes. ``None``: a temporary directory.
      quiet: do not show the progress of runs.
      objective: the loss by which ``tune``, ``sweep`` and its report compare runs. ``"validation"``: on a tenth of the
        training examples, which these runs do not train on (``data.validation_fraction``). ``"test"``, ``"train"``:
        runs train on all. ``"auto"``: validation, but train for batches without end, and for a `Task` that has no
        evaluation. ``train`` always uses all training examples.
      audit: refuse to train a network whose forward pass lacks multipliers of the rule.
      **settings: values for all calls.

    Raises:
      InputError: one of them is wrong.
    """

    @_with_own_names
    def __init__(
        self,
        build: Callable[..., Any] | str,
        data: Any,
        *,
        base: tuple[int, int] = (64, 4),
        rule: str | Parametrization = "depth_mup",
        loss: str | Callable[[Any, Any], Any] = "cross_entropy",
        optimizer: str = "adam",
        steps: int | None = None,
        batch_size: int = 64,
        seed: int = 0,
        hyper: Mapping[str, float] | None = None,
        workdir: str | os.PathLike[str] | None = None,
        audit: bool = True,
        objective: str = AUTO,
        quiet: bool = False,
        **settings: Any,
    ) -> None:
        if not isinstance(optimizer, str):
            raise InputError(
                f"optimizer is a {type(optimizer).__name__}: name one, such as 'adam', 'lion' or 'momentum'. An optax "
                "optimizer of your own needs a dm.Task."
            )
        config = default_config(model_name(build))
        if not (isinstance(base, (tuple, list)) and len(base) == 2):
            raise InputError(f"base is {base!r}: use the proxy's width and depth, such as (64, 4).")
        width, depth = size_of("the width in base", base[0]), size_of("the depth in base", base[1])
        config.model.update(width=width, depth=depth, base_width=width, base_depth=depth)
        if steps is None:
            steps = 0 if {"epochs", "train.epochs"} & settings.keys() else _STEPS
        elif "epochs" in settings:
            raise InputError(f"steps is {steps} and epochs is {settings['epochs']}: leave one out.")
        config.parametrization.update(rule_section(rule))
        with config.unlocked():
            config.hyper = checked_hyper(hyper or {})
        fields = {"data.name": data_name(data), "loss": loss_name(loss), "optimizer.name": optimizer, "seed": seed}
        set_values(config, {**fields, "train.steps": steps, "train.batch_size": batch_size})
        if steps > 0:  # else settings have epochs
            # A mean over a whole short run would measure how early the loss falls.
            config.train.update(average_steps=max(1, steps // 5), eval_every=max(1, steps // 10))
        if "audit" in config.model:
            config.model.audit = audit
        for name, value in settings.items():
            if field_of(config, name) in _SIZES:
                raise InputError(f"{name} is {value!r}: name the sizes of the proxy as base=(width, depth).")
        set_values(config, settings)
        validate(config)
        require_names(config)
        require_objective(objective)
        self._config, self._load, self._quiet, self._objective = config, LoadOnce(), quiet, objective
        self._workdir = None if workdir is None else as_path(workdir)

    def __repr__(self) -> str:
        model = self._config.model
        directory = "" if self._workdir is None else f", workdir={str(self._workdir)!r}"
        return f"Study({model.name}, base=({model.width}, {model.depth}){directory})"

    @functools.cached_property
    def workdir(self) -> pathlib.Path:
        """Where records and runs are; a temporary directory is deleted when Python ends."""
        if self._workdir is not None:
            return self._workdir
        directory = tempfile.mkdtemp(prefix="depthmup-")
        atexit.register(shutil.rmtree, directory, ignore_errors=True)
        return pathlib.Path(directory)

    @_with_own_names
    def config(self, width: int | None = None, depth: int | None = None, **values: Any) -> ConfigDict:
        """The config of a run, as the commands have it; by default of the proxy."""
        config = self._config.copy_and_resolve_references()
        sizes = {name: size_of(name, x) for name, x in (("width", width), ("depth", depth)) if x is not None}
        config.model.update(sizes)
        set_values(config, values)
        validate(config)
        require_names(config)
        return config

    @_with_own_names
    def audit(self, width: int | None = None, depth: int | None = None) -> Audit:
        """What the forward pass of a network lacks; ``print`` shows it with the code to write. Nothing is computed.

        At the base's width or depth a larger network is audited, because there nothing shows what grows.
        """
        config = self.config(width, depth)
        rule, model, dataset = make_parametrization(config), config.model, self._load(config.data)
        network = UserNetwork(model, dataset.num_classes)
        if model.name in MODELS:
            fields = {name: value for name, value in model.items() if name not in ("width", "depth")}
            own = functools.partial(create_model, rule=rule, num_classes=dataset.num_classes, **fields)
            make: Callable[[int, int], Any] = lambda width, depth: own(width=width, depth=depth)
            sizes, base_sizes = (model.width, model.depth), (model.base_width, model.base_depth)
            found = audited(make, sizes, base_sizes, dataset.input_spec, rule, name=model.name)
        elif network.task(rule) is not None:
            raise InputError("build returns a dm.Task: its parameters and optimizer are its own. Audit its network.")
        else:
            found = network.audited(dataset.input_spec, rule)
        if found.audit is None:
            raise InputError(f"the forward pass {found.not_judged[0].text.removeprefix('it ')}")
        notes = tuple(_INITIAL_VALUES if "rescale_init" in note else note for note in found.notes)
        return dataclasses.replace(found.audit, notes=tuple(dict.fromkeys(notes)))

    @_shown
    def tune(
        self,
        *,
        seeds: int | Sequence[int] = 3,
        extend: int = EXTEND,
        tune: Sequence[str] = (),
        sampler: optuna.samplers.BaseSampler | None = None,
        trials: int | None = None,
        at_once: int = 8,
        lanes: int | None = None,
        overwrite: bool = False,
        on_record: OnRecord | None = None,
        **values: Any,
    ) -> Best:
        """The best of a grid on the proxy, whose runs are trained together; the same call again resumes.

        Values are tuples, or one number each: ``learning_rate=dm.powers_of_two(-12, -5), weight_decay=(0, 0.1)``. The
        learning rate, or else the first one with several positive values, is interpolated between values, and its grid
        is extended while the best value lies at its edge.

        With names to ``tune``, such as ``["branch_multiplier", "output_lr_factor"]``, these and the learning rate are
        tuned in rounds of random points (`search.tune.rounds.Rounds`); without names and values, the learning
        rate, a, and the factors of input and readout. With a ``sampler`` of Optuna, or
        ``trials`` alone, it asks for the points. Values are then ranges: ``learning_rate=(1e-4, 1e-1)``.

        Args:
          seeds: their number, or the seeds.
          extend: values that may be added at each end of the grid.
          tune: names of hyperparameters.
          trials: number of points, by default 48 in rounds, 32 of a sampler.
          sampler, at_once: see `depthmup_flax.search.tune.optuna_search.search`.
          lanes, overwrite, on_record: see `depthmup_flax.search.sweep.runner.sweep`.
          **values: of the hyperparameters.

        Raises:
          InputError: a name or value is wrong, or every run diverged.
        """
        grids = self._grids(seeds, lanes, overwrite, on_record)
        in_rounds = bool(tune) or (not values and sampler is None and trials is None)
        points = (TRIALS if in_rounds else _TRIALS) if trials is None else trials
        if in_rounds:
            if sampler is not None:
                raise InputError(
                    "tune and sampler are given: leave one out. A sampler takes ranges, such as gamma0=(0.5, 2)."
                )
            names = as_tuple(tune) or default_names(grids.config)
            return tuned_in_rounds(grids, names, values, points, extend)
        if sampler is None and trials is None:
            return tuned(grids, grids.axes(values), extend)
        return searched(grids, grids.axes(values), sampler, points, at_once)

    @_shown
    def sweep(
        self,
        *,
        widths: Sequence[int] = (),
        depths: Sequence[int] = (),
        seeds: int | Sequence[int] = 2,
        extend: int = 0,
        lanes: int | None = None,
        overwrite: bool = False,
        on_record: OnRecord | None = None,
        shard: tuple[int, int] = (0, 1),
        **values: Any,
    ) -> Swept:
        """Trains a grid at the base's size and at other widths and depths, each with the base's other size.

        ``.report()`` says whether the base's best learning rate is best there, too. For most arguments see `tune`.
        With ``shard=(i, n)``, this process trains the i-th of n parts, from 0; the report reads what all have recorded.

        Raises:
          InputError: a name or value is wrong.
        """
        grids = dataclasses.replace(self._grids(seeds, lanes, overwrite, on_record), shard=shard)
        sizes = {"width": sizes_of("widths", widths), "depth": sizes_of("depths", depths)}
        return swept(grids, grids.axes(values), sizes, extend)

    @_shown
    def train(
        self,
        width: int | None = None,
        depth: int | None = None,
        *,
        overwrite: bool = False,
        writers: Sequence[Writer] = (),
        **values: Any,
    ) -> Json:
        """Trains one network, or resumes its training: ``study.train(width=512, depth=32, **best)``.

        Sizes that are not given are the base's: ``study.train(**best)`` trains the proxy.

        Returns:
          What `depthmup_flax.trainer.loop.train_and_evaluate` returns, and ``workdir``, the run's directory.
        """
        config = self.config(width, depth, **values)
        for size, given in (("width", width), ("depth", depth)):
            if given is None:
                log.info("%s is not given: it is the base's, %d", size, config.model[size])
        name = f"train_width{config.model.width}_depth{config.model.depth}_{config_hash(config)[:6]}"
        result = train_and_evaluate(config, self.workdir / name, overwrite=overwrite, writers=writers)
        return {**result, "workdir": str(self.workdir / name)}

    @_shown
    def forecast(
        self,
        width: int | None = None,
        depth: int | None = None,
        *,
        budget: float | str | None = None,
        axes: Sequence[str] | None = None,
        widths: Sequence[int] = (),
        depths: Sequence[int] = (),
        rung_steps: Sequence[int] = (),
        seeds: int = DEFAULT.seeds,
        objective: str = AUTO,
        lanes: int | None = None,
        **values: Any,
    ) -> TargetForecast:
        """The loss that ``study.train(width, depth, **values)`` will reach, from a ladder of smaller networks.

        The same call again resumes the ladder. ``.check(result["workdir"])`` compares it with a trained target.

        Args:
          width, depth: of the target; by default the base's.
          budget, axes: of a planned ladder; widths, depths, rung_steps: of another one; seeds: of each rung. See
            `depthmup_flax.LadderPlan`.
          objective: ``"test"``, ``"train"``, or ``"auto"``: the test loss, where runs are evaluated.
          lanes: see `depthmup_flax.search.sweep.runner.sweep`.
          **values: of the hyperparameters, as ``train`` has them: ``**best``.

        Raises:
          InputError: a name, value or size is wrong, or a rung diverged.
        """
        plan = LadderPlan(
            budget,
            axes,
            sizes_of("widths", widths),
            sizes_of("depths", depths),
            sizes_of("rung_steps", rung_steps),
            seeds,
        )
        config = self.config(width, depth, **values)
        name = f"forecast_width{config.model.width}_depth{config.model.depth}_{config_hash(config)[:6]}"
        return forecast(config, self.workdir / name, plan, objective=objective, lanes=lanes, load=self._load)[0]

    @_shown
    def recipe(self, compute: float, *, forecast: TargetForecast | None = None, **values: Any) -> Recipe:
        """A larger run for a compute budget, from values tuned at the base: ``study.train(**best, **recipe.values)``.

        Args:
          compute: parameters times examples, in those of ``study.train(**values)``.
          forecast: of this study at the same values: the law of its ladder chooses.
          **values: of the hyperparameters, ``**best``; and ``width``, ``depth``, ``batch_size`` of the run, which are
            otherwise chosen. See `depthmup_flax.recipe`.
        """
        given = {name: values.pop(name) for name in ("width", "depth", "batch_size") if name in values}
        return recipe(self.config(**values), compute, forecast=forecast, load=self._load, **given)

    @_with_own_names
    def optimizer(
        self, width: int | None = None, depth: int | None = None, **values: Any
    ) -> optax.GradientTransformation:
        """The optimizer of a network for your own loop: an optax one, for parameters in their library's containers.

        Containers are ``variables["params"]`` of Linen, ``nnx.state(model, nnx.Param)``, ``eqx.filter(model,
        eqx.is_inexact_array)``, Haiku's parameters, and what the ``init`` of a pair returns. Start from values of
        ``rescale_init``.

        Raises:
          InputError: a value is wrong, or the forward pass lacks multipliers, see ``audit``.
        """
        experiment = self._network(self.config(width, depth, **values))
        rule = experiment.rule
        return make_optimizer(experiment.config, _contained_info(experiment), rule, experiment.total_steps)

    @_with_own_names
    def rescale_init(self, params: ArrayTree, width: int | None = None, depth: int | None = None) -> ArrayTree:
        """Initial values for your own loop, as ``train`` has them: the rule's, from those that your code makes.

        Without this, readouts and embeddings of wide networks start too small or too large; see
        `depthmup_flax.rescale_init`.

        Args:
          params: new parameters of a network of this size, in the containers that ``optimizer`` takes.
          width, depth: of the network; by default the base's.
        """
        flatten(params, "params")  # refuses other trees before the network is traced
        experiment = self._network(self.config(width, depth))
        require_same_shapes(params, _contained_info(experiment))
        factor = lambda path, _: experiment.init_factors.get(path_name(path), 1.0)
        factors = jax.tree_util.tree_map_with_path(factor, experiment.variables["params"])
        contained = experiment.functions(experiment.rule).contained(factors)
        return jax.tree.map(lambda x, times: x * times, params, contained)

    def _network(self, config: ConfigDict) -> NetworkExperiment:
        experiment = build_experiment(config, load=self._load)
        if not isinstance(experiment, NetworkExperiment):
            raise InputError("build returns a dm.Task, whose step has its own optimizer: use that one.")
        return experiment

    @_shown
    def check(
        self,
        widths: Sequence[int] = (),
        depths: Sequence[int] = (),
        *,
        steps: int = 4,
        seeds: int = 4,
        batch_size: int = 4,
        tolerance: float = 0.2,
        **values: Any,
    ) -> CheckReport:
        """The coordinate check: initial values, optimizer, and what ``audit`` does not judge. ``print`` shows it.

        Args:
          widths, depths: at least three of each, or of one, which alone is checked; by default the check chooses both.
          steps, seeds, batch_size, tolerance: see `depthmup_flax.check.coord_check`.
          **values: of the hyperparameters, such as ``learning_rate``.
        """
        from depthmup_flax.search.study.prepared_check import prepared_check

        check = prepared_check(
            self.config(**values),
            widths=widths,
            depths=depths,
            steps=steps,
            seeds=seeds,
            batch_size=batch_size,
            tolerance=tolerance,
        )
        return check()

    def _grids(
        self, seeds: int | Sequence[int], lanes: int | None, overwrite: bool, on_record: OnRecord | None
    ) -> Grids:
        config, objective = self._compared
        return Grids(config, self.workdir, self._load, seeds, lanes, overwrite, on_record, objective)

    @functools.cached_property
    def _compared(self) -> tuple[ConfigDict, str]:
        """The config of the runs of grids, and the loss by which they are compared."""
        config = self.config()
        return config, prepare_objective(self._objective, config, build_experiment(config, load=self._load))


def _contained_info(experiment: NetworkExperiment) -> InfoTree:
    """The `ParamInfo` of the parameters in their library's containers."""
    info = experiment.functions(experiment.rule).contained(experiment.info)
    is_variable = lambda x: is_nnx(x, "Variable")  # nnx.Optimizer passes their arrays alone
    return jax.tree.map(lambda x: x.get_value() if is_variable(x) else x, info, is_leaf=is_variable)
