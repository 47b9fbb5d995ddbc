"""`Study`: what the commands do, for a network, data and a loss of this process."""

from __future__ import annotations

import atexit
import dataclasses
import functools
import inspect
import logging
import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import optax
from ml_collections import ConfigDict

from depthmup_flax.auditing.audit_report import Audit
from depthmup_flax.check.report import Report as CheckReport
from depthmup_flax.config.fields import (
    PYTHON,
    config_hash,
    default_config,
    field_paths,
    get_field,
    make_parametrization,
    set_field,
    validate,
)
from depthmup_flax.data import LoadOnce
from depthmup_flax.networks.import_paths import register
from depthmup_flax.report.sweep_report import Report, make_report
from depthmup_flax.report.verdict import TOLERANCE
from depthmup_flax.rule.parametrization import PRESETS, Parametrization
from depthmup_flax.search.coordinate_check import check_config
from depthmup_flax.search.forecast.forecasting import DEFAULT, TargetForecast, forecast
from depthmup_flax.search.forecast.ladder import LadderPlan
from depthmup_flax.search.sweep.grid import as_tuple, powers_of_two, sweep_config
from depthmup_flax.search.sweep.runner import OnRecord, sweep
from depthmup_flax.search.tune import tuning
from depthmup_flax.search.tune.carry import carry
from depthmup_flax.search.tune.choice import Best, flat_records
from depthmup_flax.search.tune.searches import EXTEND, TRIALS, Search, default_names, search_of, seed_values
from depthmup_flax.storage.files import absolute, as_path
from depthmup_flax.storage.sweep_records import AUTO, LEARNING_RATE, SEED, TRAIN
from depthmup_flax.trainer.engine.from_config import build as build_experiment
from depthmup_flax.trainer.engine.network import ConfigNetwork
from depthmup_flax.trainer.loop import train_and_evaluate
from depthmup_flax.trainer.run_log import Writer
from depthmup_flax.util.errors import InputError, closest, require_number, shown, without_token
from depthmup_flax.util.messages import show_lines
from depthmup_flax.util.types import Json

log = logging.getLogger(__name__)

_STEPS = 1000  # of a run
_OCTAVES = 4  # on each side of the config's learning rate, where no values are given
_SHORT = {"rule": "parametrization.preset", "optimizer": "optimizer.name", "width": "model.width"}
_KWARGS = "optimizer.kwargs."  # of a direction, which may have others than the config lists


@dataclasses.dataclass(frozen=True, repr=False)
class Swept:
    """The runs of `Study.sweep`."""

    records: list[dict[str, Any]]  # a flat dictionary for each run, see `depthmup_flax.storage.sweep_records.flat`
    directory: pathlib.Path  # that holds them
    objective: str = TRAIN  # the loss by which they are compared

    def report(
        self, out: str | os.PathLike[str] | None = None, *, tolerance: float = TOLERANCE, loss: str | None = None
    ) -> Report:
        """`depthmup_flax.make_report` of all runs in `directory`; a notebook shows it, print gives the text."""
        return make_report([self.directory], out, tolerance=tolerance, loss=loss)

    def __repr__(self) -> str:
        return f"{len(self.records)} runs in {str(self.directory)!r}; .report() analyzes them, .records holds them"


@dataclasses.dataclass(repr=False, eq=False)
class Study:
    """A network or training step at all sizes, with data: audit, tune, sweep, report, forecast and train it.

    Values of hyperparameters are keywords of the methods: short names such as ``learning_rate``, ``weight_decay``,
    ``warmup_steps``, ``b1``, ``gamma0``, ``output_lr_factor``, fields of the network, names in ``hyper``; or whole
    fields of the config, ``**{"optimizer.schedule": "cosine"}``.

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
      optimizer: ``"adam"``, ``"sgd"``, ``"momentum"``, ``"muon"`` or the name of another optax direction; or a function
        ``(info, rule, learning_rate, ...)`` of the infos of the parameters, a `Parametrization` and a schedule, that
        returns an optax optimizer. It may also take ``weight_decay``, ``clip_rms`` and others, which are tuned by name.
      steps: of every run; 0: what ``settings={"epochs": ...}`` makes. The loss that is compared is the mean of the last
        fifth.
      batch_size: examples of a step.
      seed: the first one.
      hyper: further numbers that a `Task` reads: ``{"temperature": 0.1}``.
      workdir: keeps all records and runs: the same call again resumes. ``None``: a directory that is deleted when
        Python ends.
      objective: the loss by which ``tune``, ``sweep`` and its report compare runs. ``"validation"``: on a tenth of the
        training examples, which these runs do not train on (``data.validation_fraction``). ``"test"``, ``"train"``:
        runs train on all. ``"auto"``: validation, but train for batches without end, and for a `Task` that has no
        evaluation. ``train`` always uses all training examples.
      quiet: leave `logging` alone; else a study shows progress on standard output, unless logging is configured.
      settings: values for all calls. ``{"model.audit": False}`` trains networks that lack multipliers of the rule.

    Raises:
      InputError: one of them is wrong.
    """

    build: Callable[..., Any] | str
    data: Any
    _: dataclasses.KW_ONLY
    base: tuple[int, int] = (64, 4)
    rule: str | Parametrization = "depth_mup"
    loss: str | Callable[[Any, Any], Any] = "cross_entropy"
    optimizer: str | Callable[..., optax.GradientTransformation] = "adam"
    steps: int = _STEPS
    batch_size: int = 64
    seed: int = 0
    hyper: Mapping[str, float] = dataclasses.field(default_factory=dict)
    workdir: Any = None
    objective: str = AUTO
    quiet: bool = False
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.quiet:
            show_lines()
        self._config, self._load = self._base_config(), LoadOnce()
        self._course: dict[str, Any] = {}  # fields of ``config.train`` of a run after a search
        validate(self._config)
        if self.workdir is None:
            self.workdir = tempfile.mkdtemp(prefix="depthmup-")
            atexit.register(shutil.rmtree, self.workdir, ignore_errors=True)
        self.workdir = as_path(self.workdir)

    def _base_config(self) -> ConfigDict:
        named = isinstance(self.build, (str, functools.partial))
        if not (named or inspect.isclass(self.build) or inspect.isroutine(self.build)):
            raise InputError(
                f"build is {type(self.build).__name__}: it must be a class, or a function of width and depth that "
                "returns a network, such as lambda width, depth: Net(width, depth)."
            )
        is_arrays = isinstance(self.data, (tuple, list)) and all(hasattr(part, "dtype") for part in self.data)
        if is_arrays or not (isinstance(self.data, (str, tuple, list)) or callable(self.data)):
            raise InputError(
                f"data is {shown(self.data)}: it must be (train, test), such as ((x_train, y_train), (x_test, "
                "y_test)), a function that returns it, or a name, such as 'digits'."
            )
        if not (isinstance(self.optimizer, str) or callable(self.optimizer)):
            raise InputError(
                f"optimizer.name is {type(self.optimizer).__name__}: use a name, such as 'adam', or a function of "
                "(info, rule, learning_rate) that returns an optimizer."
            )
        name = lambda obj, kind, prefix="": obj if isinstance(obj, str) else prefix + register(obj, kind)
        config = default_config(name(self.build, "build"))
        config.parametrization.update(rule_section(self.rule))
        with config.unlocked():
            config.hyper = {key: float(value) for key, value in self.hyper.items()}
        (width, depth), steps = self.base, self.steps
        if "epochs" in self.settings or "train.epochs" in self.settings:
            steps = 0
        fields = {
            **{"model.width": width, "model.depth": depth, "model.base_width": width, "model.base_depth": depth},
            **{"data.name": name(self.data, "data", PYTHON), "loss": name(self.loss, "loss"), "seed": self.seed},
            "optimizer.name": name(self.optimizer, "optimizer"),
            **{"train.steps": steps, "train.batch_size": self.batch_size},
        }
        set_values(config, fields)
        if steps:
            # A mean over a whole short run would measure how early the loss falls.
            config.train.update(average_steps=max(1, steps // 5), eval_every=max(1, steps // 10))
        set_values(config, self.settings)
        return config

    def __repr__(self) -> str:
        model = self._config.model
        return f"Study({without_token(model.name)}, base=({model.width}, {model.depth}), workdir={str(self.workdir)!r})"

    def config(self, width: int | None = None, depth: int | None = None, **values: Any) -> ConfigDict:
        """The config of a run, as the functions and commands have it; by default of the proxy."""
        return self._sized(width, depth, **{f"train.{name}": value for name, value in self._course.items()} | values)

    def _sized(self, width: int | None = None, depth: int | None = None, **values: Any) -> ConfigDict:
        """The config of a size, which is the same before and after a search."""
        config = self._config.copy_and_resolve_references()
        sizes = {"model.width": width, "model.depth": depth}
        set_values(config, {path: size for path, size in sizes.items() if size is not None} | values)
        return config

    def audit(self, width: int | None = None, depth: int | None = None) -> Audit:
        """What the forward pass of a network lacks; ``print`` shows it with the code to write.

        At the base's width or depth a larger network is audited, because there nothing shows what grows.
        """
        config = self._sized(width, depth)
        rule, dataset = make_parametrization(config), self._load(config.data)
        network = ConfigNetwork(config.model, dataset.num_classes)
        if network.task(rule) is not None:
            raise InputError("build returns a dm.Task: its parameters and optimizer are its own. Audit its network.")
        found = network.audited(dataset.input_spec).audit.under(rule)
        # A study gives the initial values itself.
        notes = tuple(note for note in dict.fromkeys(found.notes) if "rescale_init" not in note)
        return dataclasses.replace(found, notes=notes)

    def tune(
        self,
        *,
        tune: Sequence[str] = (),
        seeds: int | Sequence[int] = 3,
        extend: int = EXTEND,
        trials: int = TRIALS,
        lanes: int | None = None,
        overwrite: bool = False,
        on_record: OnRecord | None = None,
        target: tuple[int, int] | None = None,
        ladder: float | None = None,
        **values: Any,
    ) -> Best:
        """The best of a search on the proxy, whose runs are trained together; the same call again resumes.

        Values are tuples, or one number each: ``learning_rate=dm.powers_of_two(-12, -5), weight_decay=(0, 0.1)``. The
        learning rate, or else the first one with several positive values, is interpolated between values, and its grid
        is extended while the best value lies at its edge.

        With names to ``tune``, such as ``["branch_multiplier", "output_lr_factor"]``, these and the learning rate are
        tuned in rounds of random points (`depthmup_flax.search.tune.searches.Search`), and values are ranges; without
        names and values, the learning rate, a, and the factors of input and readout.

        Args:
          tune: names of hyperparameters.
          seeds: their number, or the seeds.
          extend: values that may be added at each end of the grid.
          trials: points of all rounds.
          lanes, overwrite, on_record: see `depthmup_flax.sweep`.
          target: width and depth of a large network: says how far off the rate may be there, ``best.ladder``.
          ladder: what sizes up to the target may cost, in runs of it, such as 0.1: trains some, and takes the rate that
            they predict there. ``None``: no other size is trained.
          **values: of the hyperparameters.
        """
        self._require_target(target, ladder)
        config = self._sized()
        if tune or not values:
            names = as_tuple(tune) or default_names(config)
            named = [(name, values.get(name)) for name in dict.fromkeys((*names, *values))]
            search = search_of(config, named, seeds=seeds, trials=trials, extend=extend)
        else:
            search = Search(self._axes(values), seed_values(seeds, config.seed), extend)
        workdir = self._directory(search.figure, search.axes)
        options: Any = {"lanes": lanes, "overwrite": overwrite, "on_record": on_record, "load": self._load}
        best = tuning.tune(config, search, workdir, objective=self.objective, **options)
        if target is not None:
            fields: dict[str, Any] = best.fields
            proxy, large = (self._sized(*size, **fields) for size in ((), target))
            steps = build_experiment(config, load=self._load).total_steps
            carry(best, proxy, large, (steps, steps), ladder, lanes=lanes, load=self._load)
        self._course = {"record_course": True, "reference": absolute(best.directory)}
        return best

    def _require_target(self, target: Any, ladder: float | None) -> None:
        if ladder is not None:
            require_number("ladder", ladder, above=0)
        if (ladder is not None and target is None) or (target is not None and np.shape(target) != (2,)):
            raise InputError(f"target is {shown(target)}: give the large network's width and depth, as (256, 16).")
        if target is not None:
            for name, size, least in zip(("width", "depth"), target, self.base, strict=True):
                require_number(f"target's {name}", size, least=least, whole=True)
            validate(self._sized(*target))

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
        """
        sizes = {"width": as_tuple(widths), "depth": as_tuple(depths)}
        varied = [name for name in sizes if sizes[name]]
        for axis in varied:
            for size in sizes[axis]:
                require_number(f"{axis}s", size, least=1, whole=True)
        config, objective = self._compared
        search = Search(self._axes(values), seed_values(seeds, config.seed), extend)
        at_sizes = {name: (f"model.{name}", tuple(sorted({config.model[name], *sizes[name]}))) for name in varied}
        grids = {name: {path: line, **search.grid()} for name, (path, line) in at_sizes.items()}
        grid = sweep_config(
            config,
            grids or {"base": search.grid()},
            figure="sweep",
            title=f"Transfer over {' and '.join(varied)}" if varied else "A grid at the base",
            scale="study",
            x=search.x,
            extend=0 if isinstance(get_field(config, search.x), int) else extend,  # whole numbers are not extended
            objective=objective,
        )
        directory = self._directory("sweep", [*search.axes, *(f"model.{name}" for name in varied)])
        options: Any = {"lanes": lanes, "overwrite": overwrite, "on_record": on_record, "shard": shard}
        records = sweep(grid, directory, load=self._load, **options)
        return Swept(flat_records(records), directory, objective)

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
        directory = self._of_size("train", config)
        for size, given in (("width", width), ("depth", depth)):
            if given is None:
                log.info("%s is not given: it is the base's, %d", size, config.model[size])
        result = train_and_evaluate(config, directory, overwrite=overwrite, writers=writers)
        return {**result, "workdir": str(directory)}

    def forecast(
        self,
        width: int | None = None,
        depth: int | None = None,
        *,
        plan: LadderPlan = DEFAULT,
        objective: str = AUTO,
        lanes: int | None = None,
        **values: Any,
    ) -> TargetForecast:
        """The loss that ``study.train(width, depth, **values)`` will reach, from a ladder of smaller networks.

        The same call again resumes the ladder. ``.check(result["workdir"])`` compares it with a trained target.

        Args:
          width, depth: of the target; by default the base's.
          plan: of the ladder: ``dm.LadderPlan(budget=0.05)``, ``dm.LadderPlan(widths=(8, 12, 16, 32))``.
          objective: ``"test"``, ``"train"``, or ``"auto"``: the test loss, where runs are evaluated.
          lanes: see `depthmup_flax.sweep`.
          **values: of the hyperparameters, as ``train`` has them: ``**best``.
        """
        config = self._sized(width, depth, **values)
        place = self._of_size("forecast", config)
        return forecast(config, place, plan, objective=objective, lanes=lanes, load=self._load)[0]

    def check(self, widths: Sequence[int] = (), depths: Sequence[int] = (), **values: Any) -> CheckReport:
        """The coordinate check: initial values, optimizer, and what ``audit`` does not judge. ``print`` shows it.

        Args:
          widths, depths: at least two of each, or of one, which alone is checked; by default the check chooses both.
          **values: of the hyperparameters, such as ``learning_rate``; and ``steps``, ``seeds``, ``batch_size``,
            ``tolerance`` of the check, see `depthmup_flax.search.coordinate_check.check_config`.
        """
        own = {name: values.pop(name) for name in ("steps", "seeds", "batch_size", "tolerance") if name in values}
        return check_config(self._sized(**values), widths=widths, depths=depths, **own)

    @functools.cached_property
    def _compared(self) -> tuple[ConfigDict, str]:
        """The config of the runs of grids, and the loss by which they are compared."""
        config, experiment = self._sized(), build_experiment(self._sized(), load=self._load)
        return config, tuning.prepare_objective(self.objective, config, experiment)

    def _axes(self, values: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
        """Dotted field -> values, the learning rate first."""
        rate = self._config.optimizer.learning_rate
        if not values:
            return {LEARNING_RATE: tuple(rate * factor for factor in powers_of_two(-_OCTAVES, _OCTAVES))}
        axes: dict[str, tuple[Any, ...]] = {LEARNING_RATE: (rate,)}
        for name, given in values.items():
            path = field_of(self._config, name)
            if path in (SEED, "model.width", "model.depth"):
                raise InputError(f"{name} is {given!r}: give seeds=3, and to sweep widths=(64, 256), depths=(4, 16).")
            axes[path] = as_tuple(given)
        return axes

    def _directory(self, kind: str, paths: Sequence[str] | Mapping[str, Any]) -> pathlib.Path:
        """More values of the same axes add to what it holds."""
        return self.workdir / "_".join([kind, *sorted(path.rpartition(".")[2] for path in paths)])

    def _of_size(self, kind: str, config: ConfigDict) -> pathlib.Path:
        model = config.model
        return self.workdir / f"{kind}_width{model.width}_depth{model.depth}_{config_hash(config)[:6]}"


def field_of(config: ConfigDict, name: str) -> str:
    """The dotted field that a name means: the field itself, or its last part if no other field has it."""
    known = field_paths(config)
    if name in known or name.startswith(_KWARGS):
        return name
    if name in _SHORT:
        return _SHORT[name]
    fields = [path for path in known if path.rpartition(".")[2] == name]
    if len(fields) > 1:
        raise InputError(f"{name} may be {' or '.join(fields)}: write the whole name, **{{{fields[0]!r}: VALUE}}.")
    if not fields:
        near = closest(name, [*(path.rpartition(".")[2] for path in known), *_SHORT, *known])
        use = f"use hyper={{{name!r}: VALUE}} for what a dm.Task reads, or a field that depthmup config shows."
        raise InputError(f"{name} is not a hyperparameter of this study: {f'did you mean {near!r}?' if near else use}")
    return fields[0]


def set_values(config: ConfigDict, values: Mapping[str, Any]) -> None:
    """Sets the fields that names of `field_of` mean; `InputError` for a value of another type."""
    for name, value in values.items():
        path = field_of(config, name)
        value = value.item() if hasattr(value, "item") else value  # NumPy's and JAX's numbers
        if path.startswith(_KWARGS) and path.removeprefix(_KWARGS) not in config.optimizer.kwargs:
            with config.unlocked():
                config.optimizer.kwargs[path.removeprefix(_KWARGS)] = value
        else:
            set_field(config, path, tuple(value) if isinstance(value, list) else value)


def rule_section(rule: str | Parametrization) -> dict[str, Any]:
    """The fields of ``config.parametrization`` for a preset, or for any rule, by the preset that is closest to it."""
    if isinstance(rule, str):
        return {"preset": rule}
    if not isinstance(rule, Parametrization):
        raise InputError(f"rule is {shown(rule)}: use a preset, such as 'depth_mup', or a dm.Parametrization.")
    settable = [name for name in default_config().parametrization if name != "preset"]
    changes = {
        preset: {name: getattr(rule, name) for name in settable if getattr(rule, name) != getattr(known, name)}
        for preset, known in PRESETS.items()
    }
    same = [preset for preset, known in PRESETS.items() if known.replace(**changes[preset]) == rule]
    if not same:
        raise InputError(f"rule is {rule!r}, which no preset becomes: use dm.get_parametrization(PRESET, ...).")
    preset = min(same, key=lambda preset: len(changes[preset]))
    return {"preset": preset, **changes[preset]}
