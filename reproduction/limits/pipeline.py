"""The steps of every figure: config -> cases -> records -> report and figure."""

from __future__ import annotations

import functools
import importlib
import json
import logging
import pathlib
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias, cast

import jax
from ml_collections import ConfigDict

from depthmup_flax.config import fields as configs
from depthmup_flax.data import stored_dataset
from depthmup_flax.storage.provenance import commit, versions
from depthmup_flax.storage.run_hash import differences
from depthmup_flax.util import imports as extras
from depthmup_flax.util.errors import InputError, did_you_mean, listed
from depthmup_flax.util.precision import products_in
from depthmup_flax.util.types import Json
from reproduction.figure_files import save
from reproduction.limits.image_examples import image_set
from reproduction.limits.panels import Page

log = logging.getLogger(__name__)

# config.figure -> its module of this package
_SAME = ("ntk", "linear_kernel", "linear_limit", "limit_convergence", "training_curve", "diversity")
FIGURES = {**{name: name for name in _SAME}, "resmlp_limit": "limit_convergence", "phase_diagram": "phase_plane"}
_FREE = ("title", "lanes")  # settings that change no number
_key = functools.partial(json.dumps, sort_keys=True)

Case: TypeAlias = Json  # what is measured: the key of a record
Values: TypeAlias = Json  # the result: numbers and nested lists of numbers
Row: TypeAlias = Json  # both together


class Figure(Protocol):
    """The functions of a module that makes a figure."""

    def cases(self, config: ConfigDict) -> list[Case]:
        """Everything to measure; checks the config, InputError before anything runs."""

    def measure(self, config: ConfigDict, case: Case) -> Values:
        """Computes one case, a theory's or a network's, with JAX in float64 unless it asks for float32."""

    def table(self, rows: list[Row]) -> str:
        """Fitted powers beside the expected ones, with intervals."""

    def figure(self, rows: list[Row]) -> Page:
        """Theory as lines, networks as points with n and spread."""


def figure_module(name: str) -> Figure:
    """The module of a figure; InputError for an unknown one."""
    if name not in FIGURES:
        raise InputError(f"config.figure is {name!r}: {did_you_mean(str(name), FIGURES)}")
    return cast(Figure, importlib.import_module(f"reproduction.limits.{FIGURES[name]}"))


def limits_config(figure: str, *, title: str, scale: str, **settings: Any) -> ConfigDict:
    """The config of a figure.

    Args:
      figure: name of the figure.
      title: one sentence.
      scale: size of the experiment: smoke, cpu or gpu.
      **settings: the fields that the figure's module reads; the config file explains each in a comment.
    """
    return ConfigDict({"figure": figure, "title": title, "scale": scale, **settings})


def run(
    config: ConfigDict, workdir: str | pathlib.Path, *, overwrite: bool = False, say: Callable[[str], None] = log.info
) -> tuple[str, list[pathlib.Path]]:
    """Measures the cases that the work directory lacks; returns the report's text and the files that were written.

    InputError for an unknown figure, a bad field, a work directory of other settings, or no matplotlib.
    """
    if "figure" not in config or "grids" in config:
        raise InputError("this config is not that of a theory figure: reproduction/configs/limits has those.")
    module = figure_module(config.figure)
    extras.require("matplotlib", "a figure")
    cases = module.cases(config)
    directory = pathlib.Path(workdir)
    directory.mkdir(parents=True, exist_ok=True)
    _require_same_figure(directory, config, overwrite)
    rows = _measure(module, config, cases, directory / "records.jsonl", say)
    text = f"{config.title}\n\n{module.table(rows)}\n"
    (directory / "report.txt").write_text(text, encoding="utf-8")
    pictures = save(module.figure(rows), directory, config.figure)
    return text, [directory / "records.jsonl", directory / "report.txt", *pictures]


def _measure(
    module: Figure, config: ConfigDict, cases: list[Case], path: pathlib.Path, say: Callable[[str], None]
) -> list[Row]:
    known = read_values(path) if path.exists() else {}
    about = {"versions": versions(), "commit": commit(), "device": jax.devices()[0].device_kind}
    rows = []
    for number, case in enumerate(cases, 1):
        values = known.get(_key(case))
        if values is None:
            started = time.perf_counter()
            with jax.enable_x64(True), products_in("float64"):
                values = module.measure(config, case)
            seconds = time.perf_counter() - started
            with path.open("a", encoding="utf-8") as file:
                line = {"case": case, "values": values, "seconds": round(seconds, 2), **about}
                file.write(json.dumps(line) + "\n")
            name = ", ".join(str(value) if key == "what" else f"{key} {value}" for key, value in case.items())
            say(f"[{number}/{len(cases)}] {name}: {seconds:.1f} s")
        rows.append({**case, **values})
    return rows


def read_values(path: pathlib.Path) -> dict[str, Values]:
    """Case -> values of the records in a file, from which a last line without an end, torn by a crash, is removed."""
    text = path.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        path.write_text(whole, encoding="utf-8")
    records = [json.loads(line) for line in whole.splitlines()]
    return {_key(record["case"]): record["values"] for record in records}


def _require_same_figure(directory: pathlib.Path, config: ConfigDict, overwrite: bool) -> None:
    """Writes ``limits.json``, the settings of the records; InputError if the directory has others."""
    path, records = directory / "limits.json", list(directory.glob("records*"))
    if records and not path.exists():
        raise InputError(f"{str(directory)!r} holds records of other work: choose another directory.")
    ours, data = json.loads(configs.to_json(config)), {}
    if "data" in config:
        data = stored_dataset.to_json(image_set(config))
    if overwrite:
        for old in records:
            old.unlink()
    elif records:
        binding = lambda settings: {name: value for name, value in settings.items() if name not in _FREE}
        stored = json.loads(path.read_text(encoding="utf-8"))
        if differing := differences(binding(stored["config"]), binding(ours)):
            raise InputError(
                f"workdir {str(directory)!r} holds other settings ({listed(differing)}): choose another "
                "directory, or pass --overwrite to delete its records."
            )
        if data:
            stored_dataset.require_same(stored.get("data", {}), data, f"the figure in {str(directory)!r}")
    path.write_text(json.dumps({"config": ours, "data": data}, indent=1) + "\n", encoding="utf-8")
