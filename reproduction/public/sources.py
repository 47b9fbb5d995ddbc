"""Published sweeps as one table of runs. The files stay outside of the repository; README.md says where they come from.

    runs = step_law(directory)

``directory`` is that of `data_directory`: the environment variable ``DEPTHMUP_PUBLIC``. Each reader takes it and
returns the runs of one source; `READERS` has them by name.
"""

from __future__ import annotations

import csv
import dataclasses
import json
import math
import os
import pathlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

VARIABLE = "DEPTHMUP_PUBLIC"


@dataclasses.dataclass(frozen=True)
class Run:
    """One training run. A number that a source does not tell is 0."""

    source: str
    series: str  # runs that may be compared: the same data, optimizer and kind of network
    width: int  # model dimension
    depth: int  # blocks
    parameters: float  # as the source counts them
    tokens: float  # examples that the run saw: tokens, or images
    loss: float  # nats a token, or an error rate
    rate: float = 0.0  # peak learning rate
    batch: float = 0.0  # examples a step
    steps: float = 0.0
    decay: float = 0.0  # weight decay as given to the optimizer

    @property
    def cost(self) -> float:
        """Parameters times examples."""
        return self.parameters * self.tokens


def data_directory() -> pathlib.Path | None:
    """Where the files of the sources lie, or ``None``."""
    given = os.environ.get(VARIABLE)
    return pathlib.Path(given) if given else None


def _rows(path: pathlib.Path) -> Iterable[dict[str, str]]:
    with path.open(newline="") as file:
        yield from csv.DictReader(file)


def step_law(directory: pathlib.Path) -> list[Run]:
    """1,911 dense transformers, AdamW; a series for each shape and number of tokens is left to the caller."""
    return [_step_law_run(row, "step_law", "dense") for row in _rows(directory / "steplaw/step_law_dense.csv")]


def step_law_moe(directory: pathlib.Path) -> list[Run]:
    """708 mixtures of experts of one width and depth; the series names the expert's width and the active ones."""
    runs = []
    for row in _rows(directory / "steplaw/moe_lr_bs_loss.csv"):
        runs.append(_step_law_run(row, "step_law_moe", f"moeh {row['moeh']}, {row['topk']} of {row['nume']}"))
    return [run for run in runs if math.isfinite(run.loss)]


def _step_law_run(row: Mapping[str, str], source: str, series: str) -> Run:
    """Batches are sequences of 2,048 tokens; the smoothed loss is the one that the source fits."""
    return Run(
        source=source,
        series=series,
        width=int(row["h"]),
        depth=int(row["numl"]),
        parameters=float(row["N"]),
        tokens=float(row["D"]),
        loss=float(row["smooth loss"] or "nan"),
        rate=float(row["lr"]),
        batch=2048 * float(row["bs"]),
        steps=float(row["ti"]),
        decay=0.1,
    )


def gemstones(directory: pathlib.Path) -> list[Run]:
    """22 shapes at a constant rate, a row for each 2 billion tokens: one run is many rows."""
    return _gemstones(directory / "gemstones/gemstones_hot.jsonl", "constant rate")


def _gemstones(path: pathlib.Path, series: str) -> list[Run]:
    runs = []
    for line in path.read_text().splitlines():
        row = json.loads(line)
        sizes = {name: int(row[name]) for name in ("width", "depth")}
        numbers = {"tokens": float(row["tokens"]), "steps": float(row["step"]), "loss": float(row["final_loss"])}
        runs.append(
            Run(source="gemstones", series=series, parameters=float(row["params_active_precise"]), **sizes, **numbers)
        )
    return runs


# Of experiments/optimizer_sweep: 32 layers, an MLP of four times the width; parameters without embeddings.
MARIN_WIDTHS = {"130m": 512, "300m": 768, "520m": 1024, "1.2b": 1536}
MARIN_DEPTH = 32
_MARIN_CONTEXT = 4096


def marin_optimizers(directory: pathlib.Path) -> list[Run]:
    """Twelve optimizers: the best configuration of each cell and its variations of the rate; series: the optimizer.

    A cell is an optimizer, a width and a number of tokens (20, 40, ... a parameter). Everything but the rate is the
    cell's best configuration.
    """
    runs = []
    for path in sorted((directory / "marin_optimizers").glob("*/*/*/result.json")):
        optimizer, size, ratio = path.parts[-4:-1]
        cell = json.loads(path.read_text())
        best = cell.get("best_config") or {}
        width = MARIN_WIDTHS[size]
        parameters = float(16 * MARIN_DEPTH * width**2)
        batch = float(best["train_batch_size"] * _MARIN_CONTEXT)
        tokens = 20 * parameters * int(ratio)
        base = Run(
            source="marin_optimizers",
            series=optimizer,
            width=width,
            depth=MARIN_DEPTH,
            parameters=parameters,
            tokens=tokens,
            loss=float((cell.get("baseline") or {}).get("loss") or cell["min_loss"]),
            rate=float(best["learning_rate"]),
            batch=batch,
            steps=tokens / batch,
            decay=float(best.get("weight_decay") or 0),
        )
        runs.append(base)
        for other in cell.get("ablations") or []:
            loss = other["loss"]
            if other["param"] == "learning_rate" and isinstance(loss, int | float) and math.isfinite(loss):
                runs.append(dataclasses.replace(base, rate=float(other["value"]), loss=float(loss)))
    return runs


def open_lm(directory: pathlib.Path) -> list[Run]:
    """104 runs on three data sets and, as the series ``grid``, the best run of each of 50 shapes.

    The grid's losses are validation losses of its own; those of the 104 are means over the first validation set.
    """
    runs = list(_open_lm_grid(directory / "open_lm/grid.json"))
    for path in sorted((directory / "open_lm/models").glob("*.json")):
        model = json.loads(path.read_text())
        hyper = model["hyperparameters"]
        width, depth = _open_lm_shape(pathlib.Path(hyper["model"]).stem)
        batch = 2048 * float(hyper["global_bs"])
        runs.append(
            Run(
                source="open_lm",
                series=model["dataset_name"],
                width=width,
                depth=depth,
                parameters=float(hyper["params"]),
                tokens=float(hyper["tokens"]),
                loss=float(model["results"][0]["loss"]),
                rate=float(hyper["lr"]),
                batch=batch,
                steps=float(hyper["tokens"]) / batch,
                decay=float(hyper["wd"]),
            )
        )
    return runs


_OPEN_LM_NAMED = {"open_lm_1b": (2048, 24), "open_lm_7b": (4096, 32)}


def _open_lm_shape(name: str) -> tuple[int, int]:
    """Width and depth of a model's name, such as d=96_l=8_h=4."""
    if name in _OPEN_LM_NAMED:
        return _OPEN_LM_NAMED[name]
    fields = dict(part.split("=") for part in name.split("_"))
    return int(fields["d"]), int(fields["l"])


def _open_lm_grid(path: pathlib.Path) -> Iterable[Run]:
    """Names are model-batch-rate-decay-batch-tokens-warm-up-cool-down; tokens are 20 a parameter."""
    best: dict[tuple[int, int], Run] = {}
    for name, loss in json.loads(path.read_text()).items():
        model, _, rest = name.partition("-")
        batch, rate, decay, _, tokens, _ = rest.split("-", 5)
        width, depth = _open_lm_shape(model)
        run = Run(
            source="open_lm",
            series="grid",
            width=width,
            depth=depth,
            parameters=float(tokens) / 20,
            tokens=float(tokens),
            loss=float(loss),
            rate=float(rate),
            batch=2048 * float(batch),
            steps=float(tokens) / (2048 * float(batch)),
            decay=float(decay),
        )
        if (width, depth) not in best or run.loss < best[width, depth].loss:
            best[width, depth] = run
    return best.values()


def marin_isoflops(directory: pathlib.Path) -> list[Run]:
    """Runs of equal compute on three data sets, width and depth growing together; the series is the data set."""
    runs = []
    for data in ("comma", "dclm", "nemotron"):
        for row in _rows(directory / f"marin_isoflops/isoflop-{data}.csv"):
            rate = next(value for name, value in row.items() if name.endswith("learning_rate"))
            loss = row["eval/paloma/macro_loss"]
            if not loss:
                continue
            tokens, steps = float(row["throughput/total_tokens"]), float(row["trainer.num_train_steps"] or 0)
            runs.append(
                Run(
                    source="marin_isoflops",
                    series=data,
                    width=int(float(row["model.hidden_dim"])),
                    depth=int(float(row["model.num_layers"])),
                    parameters=float(row["parameter_count"]),
                    tokens=tokens,
                    loss=float(loss),
                    rate=float(rate or 0),
                    batch=tokens / steps if steps else 0.0,
                    steps=steps,
                )
            )
    return runs


ISOFLOPS = ("llama_3", "misfitting", "ml_scalefit")


def isoflops(directory: pathlib.Path) -> list[Run]:
    """Runs of equal compute that others collected or read off figures, without shapes; the series is their source."""
    runs = []
    for series in ISOFLOPS:
        for row in _rows(directory / f"isoflops/{series}.csv"):
            if row["condition"] != "exp_loss":  # Llama 3's, a second reading of the same figure
                numbers = {"tokens": float(row["tokens"]), "loss": float(row["loss"])}
                sizes = {"width": 1, "depth": 1, "parameters": float(row["params"])}
                runs.append(Run(source="isoflops", series=series, **sizes, **numbers))
    return runs


# Image towers of arch_info.csv: width and depth.
_TOWERS = {"S": (384, 12), "M": (512, 12), "B": (768, 12), "L": (1024, 24), "H": (1280, 32), "g": (1408, 40)}


def open_clip(directory: pathlib.Path) -> list[Run]:
    """CLIP models; loss is 1 - zero-shot accuracy on ImageNet, parameters count both towers, the series is the data."""
    folder = directory / "open_clip"
    parameters = {row["model"]: 1e6 * float(row["mparams"]) for row in _rows(folder / "arch_info.csv")}
    seen: dict[tuple[str, str, float], Run] = {}
    for row in _rows(folder / "zeroshot_results.csv"):
        data, tower = row["upstream_dataset"], row["arch"].split("-")[1]
        if row["downstream_dataset"] != "imagenet1k" or not data.startswith("LAION") or tower not in _TOWERS:
            continue
        width, depth = _TOWERS[tower]
        samples = float(row["samples_seen"])
        run = Run(
            source="open_clip",
            series=data,
            width=width,
            depth=depth,
            parameters=parameters[row["arch"]],
            tokens=samples,
            loss=1 - float(row["acc1"]),
        )
        seen.setdefault((data, row["arch"], samples), run)
    return list(seen.values())


READERS: Mapping[str, Callable[[pathlib.Path], list[Run]]] = {
    "step_law": step_law,
    "gemstones": gemstones,
    "marin_optimizers": marin_optimizers,
    "step_law_moe": step_law_moe,
    "open_lm": open_lm,
    "marin_isoflops": marin_isoflops,
    "isoflops": isoflops,
    "open_clip": open_clip,
}


def grouped(runs: Iterable[Run], *fields: str) -> dict[tuple, list[Run]]:
    """Runs by the values of ``fields``, in their order."""
    groups: dict[tuple, list[Run]] = defaultdict(list)
    for run in runs:
        groups[tuple(getattr(run, field) for field in fields)].append(run)
    return dict(sorted(groups.items()))
