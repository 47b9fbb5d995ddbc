"""Depth-muP for Flax and Optax: tune a small network once, train a deeper, wider one with the same hyperparameters.

The rule is in `depthmup_flax.rule.parametrization`; its docstring has the notation. `audit` says what each
parameter is, `depthmup`, `adamw` and others are optimizers that follow the rule, and `Study` tunes, sweeps and
trains a network of yours. Importing this package starts no device and imports no TensorFlow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from depthmup_flax.util.imports import imported_late

if TYPE_CHECKING:  # each is imported at its first use, so that reading records needs neither Flax nor JAX
    from depthmup_flax.auditing import audit, baked, rescale_init, rescaled_before
    from depthmup_flax.auditing.overrides import Axes
    from depthmup_flax.check import Network, Source, checked_network, coord_check
    from depthmup_flax.frameworks.rule_table import export
    from depthmup_flax.frameworks.torch_groups import clip_grad_rms_, param_groups, rescale_init_
    from depthmup_flax.models import GPT, ResMLP, ResNet, SimpleResNet, ViT, create_model
    from depthmup_flax.nn.attention import attention_fn
    from depthmup_flax.nn.layers import Conv, Dense, Norm, Readout, ResidualBranch
    from depthmup_flax.report.sweep_report import Report, make_report
    from depthmup_flax.rule.batch_and_steps import Hyperparameters, rescaled_hyperparameters
    from depthmup_flax.rule.direction_traits import entrywise
    from depthmup_flax.rule.hyperball import adamh, muonh
    from depthmup_flax.rule.measures import measures
    from depthmup_flax.rule.muon import muon, muon_geometry
    from depthmup_flax.rule.optimizer import adamw, clip_by_global_rms, depthmup, freeze, scale_by_depthmup, sgd
    from depthmup_flax.rule.param_table import param_table
    from depthmup_flax.rule.parametrization import (
        PRESETS,
        Geometry,
        Parametrization,
        ParamInfo,
        Role,
        get_parametrization,
    )
    from depthmup_flax.rule.recorded import record_course
    from depthmup_flax.search.forecast.forecasting import forecast
    from depthmup_flax.search.forecast.ladder import LadderPlan
    from depthmup_flax.search.ladder.ladder import Ladder, ladder
    from depthmup_flax.search.study import Study
    from depthmup_flax.search.sweep.grid import at_scale, powers_of_two, sweep_config
    from depthmup_flax.search.sweep.runner import sweep
    from depthmup_flax.search.tune.searches import Search, search_of
    from depthmup_flax.search.tune.tuning import proxy_config, tune
    from depthmup_flax.storage.sweep_records import read_records
    from depthmup_flax.trainer.course import compare_runs, save_course
    from depthmup_flax.trainer.engine.task import Task
    from depthmup_flax.trainer.runs.trained import TrainedRun, load_run
    from depthmup_flax.util.errors import InputError
    from depthmup_flax.util.imports import __version__

__all__ = [
    "GPT", "PRESETS", "Axes", "Conv", "Dense", "Geometry", "Hyperparameters", "InputError", "Ladder", "LadderPlan",
    "Network", "Norm", "ParamInfo", "Parametrization", "Readout", "Report", "ResMLP", "ResNet", "ResidualBranch",
    "Role", "Search", "SimpleResNet", "Source", "Study", "Task", "TrainedRun", "ViT", "__version__", "adamh",
    "adamw", "at_scale", "attention_fn", "audit", "baked", "checked_network", "clip_by_global_rms",
    "clip_grad_rms_", "compare_runs", "coord_check", "create_model", "depthmup", "entrywise", "export", "forecast",
    "freeze", "get_parametrization", "ladder", "load_run", "make_report", "measures", "muon", "muon_geometry",
    "muonh", "param_groups", "param_table", "powers_of_two", "proxy_config", "read_records", "record_course",
    "rescale_init", "rescale_init_", "rescaled_before", "rescaled_hyperparameters", "save_course",
    "scale_by_depthmup", "search_of", "sgd", "sweep", "sweep_config", "tune",
]  # fmt: skip

if not TYPE_CHECKING:  # type checkers would accept any name
    __getattr__ = imported_late(__name__)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
