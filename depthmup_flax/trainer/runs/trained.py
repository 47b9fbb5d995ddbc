"""A run read from its work directory: network, parameters, config, metrics, predictions."""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from ml_collections import ConfigDict

from depthmup_flax.config import fields as configs
from depthmup_flax.config.fields import code_of
from depthmup_flax.config.hyperparameters import hyperparameters
from depthmup_flax.data import Dataset, ImageDataset, TextDataset, UserDataset
from depthmup_flax.data.image_files import checked_images
from depthmup_flax.networks.model_functions import ModelFunctions
from depthmup_flax.rule.info_trees import info_from_json, param_count
from depthmup_flax.rule.parametrization import Parametrization
from depthmup_flax.storage.files import as_path, read_json, reading
from depthmup_flax.storage.run_hash import SOURCE, changed_code
from depthmup_flax.trainer.engine.network import ConfigNetwork
from depthmup_flax.trainer.engine.network_task import averaged
from depthmup_flax.trainer.engine.task import Task
from depthmup_flax.trainer.engine.user_task import fitted, restored_state
from depthmup_flax.trainer.run_log import read_metrics
from depthmup_flax.trainer.runs.checkpoint import read_checkpoint
from depthmup_flax.trainer.runs.directory import RESTORE, chosen_step, require_run, stored_data
from depthmup_flax.util.errors import InputError
from depthmup_flax.util.surroundings import own_surroundings
from depthmup_flax.util.types import ArrayTree, InfoTree, Json

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class TrainedRun:
    """What `load_run` returns. Arrays are on the first device."""

    directory: pathlib.Path  # the work directory
    step: int  # of the checkpoint
    config: ConfigDict  # of the run, resolved
    # A Flax module; ``model.apply(run.variables, run.preprocess(images), train=False)`` are logits. Of your own code
    # what ``model.name`` makes: an NNX or Equinox module with the trained values, or your `Task`.
    model: Any
    rule: Parametrization  # the parametrization
    # Nested dictionaries of arrays; for a pair (init, apply) what its ``init`` returns. Of a `Task` the arrays of its
    # state by path.
    params: ArrayTree
    collections: ArrayTree  # what the forward pass updates: ``batch_stats``, BatchNorm's running averages; else empty
    # The role of each parameter, for `depthmup_flax.depthmup` and `depthmup_flax.param_table`; of a `Task` empty
    info: InfoTree
    # Name -> column, with a row per logged step, NaN for missing values: ``pandas.DataFrame(run.metrics)``
    metrics: dict[str, np.ndarray]
    result: Json | None  # of ``result.json``; ``None`` if the run has not ended
    # Shape and normalization of images, or context and tokenizer, or shapes of your data; no examples
    data: ImageDataset | TextDataset | UserDataset
    functions: ModelFunctions | None = None  # of a network
    state: Any = None  # of a `Task`, with all its parts; ``None`` for networks

    def __repr__(self) -> str:
        model = self.config.model
        size = f", {param_count(self.info):,} parameters" if self.functions else ""
        return (
            f"TrainedRun({str(self.directory)!r}, step {self.step}: {model.name}, width {model.width}, depth "
            f"{model.depth}{size})"
        )

    @property
    def batch_stats(self) -> ArrayTree:
        """BatchNorm's running averages; else empty."""
        return self.collections.get("batch_stats", {})

    @property
    def variables(self) -> dict[str, ArrayTree]:
        """The first argument of ``model.apply`` of a Linen module."""
        return {"params": self.params, "batch_stats": self.batch_stats, **self.collections}

    @own_surroundings()
    def preprocess(self, images: object) -> jax.Array:
        """The model's inputs, as in the evaluation: float32 ``[B, H, W, C]``, normalized by the training set.

        Args:
          images: ``[B, H, W, C]``, integers in 0..255 or floats in 0..1, of the size of the data set.

        Raises:
          InputError: another shape, values outside that range, or another kind of data.
        """
        if not isinstance(self.data, ImageDataset):
            raise InputError(f"{self.directory} has no model of images: call run.predict with what the network reads.")
        return self._prepared(checked_images(images, self.data.image_shape))

    @own_surroundings()
    def predict(self, inputs: Any, *, batch_size: int | None = None) -> Any:
        """The network's outputs in evaluation, as NumPy arrays, computed ``batch_size`` examples at a time.

        Of our models they are logits, float32: raw images ``[B, H, W, C]`` -> ``[B, classes]``, or tokens ``[B, T]`` ->
        ``[B, T, V]``, with T at most ``run.data.context``. The argmax is the predicted label.

        Args:
          inputs: images, which are preprocessed as in the evaluation; tokens; or, for data of your own, what your
            ``load`` gives as inputs, and your ``prepare`` if there is one: ``[B, ...]``, with B at least 1.
          batch_size: by default ``config.train.eval_batch_size``.

        Raises:
          InputError: images that the network does not read, or a run of a `Task`.
          UserCodeError: the user's network fails.
        """
        if self.functions is None:
            raise InputError(f"{self.directory} holds a training step without outputs: call yours with run.state.")
        if isinstance(self.data, ImageDataset):
            inputs = checked_images(inputs, self.data.image_shape)
        size = batch_size or self.config.train.eval_batch_size
        parts = []
        for start in range(0, len(jax.tree.leaves(inputs)[0]), size):
            batch = jax.tree.map(lambda x: x[start : start + size], inputs)  # noqa: B023
            parts.append(jax.device_get(self._outputs(self.params, self.collections, batch)))
        return jax.tree.map(lambda *same: np.concatenate(same), *parts)

    def _prepared(self, images: Any) -> jax.Array:
        labels = jnp.zeros(len(images), jnp.int32)
        batch = {"image": jnp.asarray(images), "label": labels}
        return self.data.prepare(self.config.data.augment, None, batch)[0]

    @functools.cached_property
    def _outputs(self) -> Any:
        """``(params, collections, images in 0..255, tokens or inputs) -> outputs``, compiled for each shape."""
        assert self.functions is not None
        apply = self.functions.apply
        in_float32 = lambda x: x.astype(jnp.float32) if jnp.issubdtype(x.dtype, jnp.floating) else x

        def outputs(params: ArrayTree, collections: ArrayTree, inputs: Any) -> Any:
            x = self._prepared(inputs) if isinstance(self.data, ImageDataset) else inputs
            return jax.tree.map(in_float32, apply(params, collections, x, train=False, key=None)[0])

        return jax.jit(outputs)


@own_surroundings()
def load_run(workdir: str | os.PathLike[str], which: str | int = "latest", *, ema: bool = False) -> TrainedRun:
    """Reads a run that `depthmup_flax.trainer.loop.train_and_evaluate` wrote, also while it trains.

    Its checkpoints may have been written on any number of devices and processes. The data set may be absent.

    Args:
      workdir: of the run, on a disk or in a bucket.
      which: ``"latest"`` or the step of a checkpoint.
      ema: read the exponential average of the parameters, which runs with ``train.ema_decay`` have.

    Raises:
      InputError: there is no run, no average of its parameters, or no such checkpoint, a file of it is damaged, or the
        user's code that it names cannot be imported.
    """
    path = as_path(workdir)
    require_run(path)
    stored = read_json(path / "config.json", RESTORE)
    with reading(path / "config.json", RESTORE):
        config = configs.from_json(stored)
    data = stored_data(path)
    step, rule = chosen_step(path, which, config), configs.make_parametrization(config)
    named = ConfigNetwork(config.model, data.num_classes)
    task = named.task(rule)
    if ema and (task is not None or not config.train.ema_decay):
        raise InputError(f"{path} has no average of its parameters: train.ema_decay was 0. Leave ema out.")
    params = "carry/ema" if ema else "carry/params"
    parts = (params, "carry/collections") if task is None else ("carry",)  # a training step may carry anything
    state, meta = read_checkpoint(path / "checkpoints" / str(step), parts)
    for changed in changed_code(stored, {SOURCE: code_of(config)}):
        log.warning("%s the run: its outputs may differ.", changed)
    if ema:
        state["carry"]["params"] = averaged(optax.EmaState(**state["carry"].pop("ema")), config.train.ema_decay)
    return TrainedRun(
        directory=path,
        step=step,
        config=config,
        rule=rule,
        info=info_from_json(meta["param_info"]),
        metrics=read_metrics(path / "metrics.jsonl"),
        result=read_json(path / "result.json", RESTORE) if (path / "result.json").exists() else None,
        data=data,
        **_restored(config, data, rule, named, task, state["carry"]),
    )


def _restored(
    config: ConfigDict, data: Dataset, rule: Parametrization, named: ConfigNetwork, task: Task | None, carry: Json
) -> dict[str, Any]:
    """The fields of `TrainedRun` that are made of what a step carried, and of the user's code."""
    name, collections = config.model.name, carry.get("collections", {})
    if task is not None:
        state = restored_state(task, name, hyperparameters(config), carry)
        return {"model": task, "params": carry, "collections": {}, "state": state}
    functions = named.functions(rule)
    shapes = functions.shapes(data.input_spec)
    params, collections = fitted(shapes[0], carry["params"], name), fitted(shapes[1], collections, name)
    model = functions.model(params, collections)
    return {"model": model, "functions": functions, "params": params, "collections": collections}
