"""A run read from its work directory: network, parameters, config, metrics, predictions."""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
import os
import pathlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from depthmup_flax.config import fields as configs
from depthmup_flax.config.fields import code_of
from depthmup_flax.data import (
    DATA_DEFAULTS,
    DataConfig,
    Dataset,
    ImageDataset,
    TextDataset,
    Tokenizer,
    UserDataset,
)
from depthmup_flax.data.image_files import checked_images, read_images
from depthmup_flax.models import create_model
from depthmup_flax.networks.import_paths import is_import_path
from depthmup_flax.networks.model_functions import ModelFunctions
from depthmup_flax.rule.info_trees import info_from_json, param_count
from depthmup_flax.rule.parametrization import Parametrization
from depthmup_flax.storage.files import as_path, reachable, read_json
from depthmup_flax.trainer.engine.experiment import hyperparameters
from depthmup_flax.trainer.engine.network import our_functions
from depthmup_flax.trainer.engine.user_model import UserNetwork, fitted, restored_state
from depthmup_flax.trainer.engine.workload import Task
from depthmup_flax.trainer.runs.checkpoint import read_checkpoint
from depthmup_flax.trainer.runs.directory import RESTORE, Columns, chosen_step, read_metrics, require_run, stored_data
from depthmup_flax.trainer.runs.text_generation import SAMPLE_TEMPERATURE, generate
from depthmup_flax.util.errors import InputError
from depthmup_flax.util.types import ArrayTree, InfoTree, Json

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class TrainedRun:
    """What `load_run` returns. Arrays are on the first device.

    Attributes:
      directory: the work directory.
      step: of the checkpoint.
      config: of the run, resolved.
      model: a Flax module; ``model.apply(run.variables, run.preprocess(images), train=False)`` are logits. Of your own
        code what ``model.name`` makes: an NNX or Equinox module with the trained values, or your `Task`.
      rule: the parametrization.
      params: nested dictionaries of arrays; for a pair (init, apply) what its ``init`` returns. Of a `Task` the arrays
        of its state by path.
      collections: what the forward pass updates: ``batch_stats``, BatchNorm's running averages; else empty.
      state: of a `Task`, with all its parts; ``None`` for networks.
      info: the role of each parameter, for `depthmup_flax.depthmup` and `depthmup_flax.param_table`; of a `Task` empty.
      metrics: name -> column, with a row per logged step, NaN for missing values: ``pandas.DataFrame(run.metrics)``.
      result: of ``result.json``; ``None`` if the run has not ended.
      data: shape and normalization of images, or context and tokenizer, or shapes of your data; no examples.
    """

    directory: pathlib.Path
    step: int
    config: ConfigDict
    model: Any
    rule: Parametrization
    params: ArrayTree
    collections: ArrayTree
    info: InfoTree
    metrics: Columns
    result: Json | None
    data: ImageDataset | TextDataset | UserDataset
    functions: ModelFunctions | None = None  # of a network
    state: Any = None

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

    @property
    def class_names(self) -> tuple[str, ...]:
        """The name of each class, by label; the labels if the data set has no names."""
        return self._of(ImageDataset).class_names or tuple(map(str, range(self.data.num_classes)))

    @property
    def tokenizer(self) -> Tokenizer:
        """Text to tokens and back, of a language model."""
        return self._of(TextDataset).tokenizer

    def preprocess(self, images: object) -> jax.Array:
        """The model's inputs, as in the evaluation: float32 ``[B, H, W, C]``, normalized by the training set.

        Args:
          images: ``[B, H, W, C]``, integers in 0..255 or floats in 0..1, of the size of the data set.

        Raises:
          InputError: another shape, values outside that range, or a language model.
        """
        return self._prepared(checked_images(images, self._of(ImageDataset).image_shape))

    def predict(self, inputs: Any, *, batch_size: int | None = None) -> Any:
        """The network's outputs in evaluation, as NumPy arrays, computed ``batch_size`` examples at a time.

        Of our models they are logits, float32: raw images ``[B, H, W, C]`` -> ``[B, classes]``, or tokens ``[B, T]`` ->
        ``[B, T, V]``, with T at most ``run.data.context``. The argmax is the predicted label.

        Args:
          inputs: images, which are preprocessed as in the evaluation; tokens; or, for data of your own, what your
            ``load`` gives as inputs, and your ``prepare`` if there is one: ``[B, ...]``.
          batch_size: by default ``config.train.eval_batch_size``.

        Raises:
          InputError: inputs that the network does not read, or a run of a `Task`.
          UserCodeError: the user's network fails.
        """
        given = self._checked(inputs)
        count = len(jax.tree.leaves(given)[0])
        size = min(batch_size or self.config.train.eval_batch_size, max(1, count))
        if not count:
            example = jax.tree.map(lambda x: jnp.zeros((1, *x.shape[1:]), x.dtype), given)
            shapes = jax.eval_shape(self._outputs, self.params, self.collections, example)
            return jax.tree.map(lambda x: np.zeros((0, *x.shape[1:]), x.dtype), shapes)
        parts = []
        for start in range(0, count, size):
            batch = jax.tree.map(lambda x: _filled(x[start : start + size], size), given)  # noqa: B023
            outputs = self._outputs(self.params, self.collections, batch)
            parts.append(jax.tree.map(lambda x: np.asarray(x)[: count - start], outputs))  # noqa: B023
        return jax.tree.map(lambda *same: np.concatenate(same), *parts)

    def require_scores(self) -> None:
        """Raises `InputError` unless the outputs for images are scores of classes, ``[B, classes]``."""
        example = jax.ShapeDtypeStruct((1, *self._of(ImageDataset).image_shape), jnp.uint8)
        outputs = jax.eval_shape(self._outputs, self.params, self.collections, example)
        shapes, classes = [leaf.shape for leaf in jax.tree.leaves(outputs)], self.data.num_classes
        if shapes != [(1, classes)]:
            raise InputError(
                f"{self.directory} holds {self.config.model.name}, whose outputs for one image have the shapes "
                f"{shapes}, not the {classes} classes of {self.data.name}: in Python, "
                "dm.load_run(workdir).predict(images) gives them."
            )

    def read_images(self, paths: Sequence[str | os.PathLike[str]]) -> np.ndarray:
        """Image files as uint8 ``[B, H, W, C]``, decoded, resized and cropped as in the evaluation.

        Raises:
          InputError: a file cannot be read, or cannot be brought to the network's size.
        """
        fields = DataConfig(**{name: self.config.data[name] for name in DATA_DEFAULTS})
        return read_images(list(map(pathlib.Path, paths)), self._of(ImageDataset).image_shape, fields)

    def generate(
        self, prompt: str = "\n", tokens: int = 200, *, temperature: float = SAMPLE_TEMPERATURE, seed: int = 0
    ) -> str:
        """The text with which a language model continues ``prompt``, without the prompt; equal seeds give equal texts.

        Args:
          prompt: the model sees its last ``run.data.context`` tokens.
          tokens: number of tokens to draw.
          temperature: divides the logits; below 1, likely tokens become likelier.
          seed: of the draws.

        Raises:
          InputError: a model of images, an argument outside its range, or a character that is not in the training text.
        """
        text = self._of(TextDataset)
        if not prompt or tokens < 1 or not 0 < temperature < math.inf:
            raise InputError(
                f"the prompt is {prompt!r}, tokens is {tokens} and temperature is {temperature}: give at least one "
                "character, at least one token, and a temperature above 0."
            )
        drawn = generate(
            self.require_network(),
            (self.params, self.collections),
            text.tokenizer.encode(prompt),
            tokens,
            key=jax.random.key(seed),
            context=text.context,
            temperature=temperature,
        )
        return text.tokenizer.decode(drawn)

    def require_network(self) -> ModelFunctions:
        """The network's functions; `InputError` for a run of a `Task`."""
        if self.functions is None:
            raise InputError(
                f"{self.directory} holds {self.config.model.name}, a training step, which has no outputs: call your "
                "own functions with run.state."
            )
        return self.functions

    def _of(self, kind: type) -> Any:
        """The description of the data; `InputError` unless it is of this ``kind``."""
        if not isinstance(self.data, kind):
            holds = {ImageDataset: "a model of images", TextDataset: "a language model"}
            held = holds.get(type(self.data), "a model of your data")
            raise InputError(f"{self.directory} holds {held}: use run.predict, or run.generate of a language model.")
        return self.data

    def _checked(self, inputs: Any) -> Any:
        """Inputs [B, ...] as the network reads them, as NumPy arrays of its types; else `InputError`."""
        self.require_network()
        if isinstance(self.data, ImageDataset):
            return checked_images(inputs, self.data.image_shape)
        if isinstance(self.data, UserDataset):
            return _checked_parts(inputs, self.data.inputs)
        tokens, vocabulary, context = np.asarray(inputs), self.data.num_classes, self.data.context
        whole = tokens.ndim == 2 and np.issubdtype(tokens.dtype, np.integer) and 0 < tokens.shape[1] <= context
        if not whole or (tokens.size and not 0 <= tokens.min() <= tokens.max() < vocabulary):
            raise InputError(
                f"tokens are {tokens.dtype}{list(tokens.shape)}: give integers in 0..{vocabulary - 1}, [B, T] with T "
                f"at most {context}, such as run.tokenizer.encode(text)[None]."
            )
        return tokens.astype(np.int32)

    def _prepared(self, images: Any) -> jax.Array:
        labels = jnp.zeros(len(images), jnp.int32)
        batch = {"image": jnp.asarray(images), "label": labels}
        return self.data.prepare(self.config.data.augment, None, batch)[0]

    @functools.cached_property
    def _outputs(self) -> Any:
        """``(params, collections, images in 0..255, tokens or inputs) -> outputs``, compiled for each shape."""
        apply = self.require_network().apply
        in_float32 = lambda x: x.astype(jnp.float32) if jnp.issubdtype(x.dtype, jnp.floating) else x

        def outputs(params: ArrayTree, collections: ArrayTree, inputs: Any) -> Any:
            x = self._prepared(inputs) if isinstance(self.data, ImageDataset) else inputs
            return jax.tree.map(in_float32, apply(params, collections, x, train=False, key=None)[0])

        return jax.jit(outputs)


def _filled(x: np.ndarray, size: int) -> np.ndarray:
    return np.concatenate([x, np.zeros((size - len(x), *x.shape[1:]), x.dtype)])


def _checked_parts(inputs: Any, specs: Any) -> Any:
    """``inputs`` with the structure of ``specs`` and a leading axis B, as arrays of their types; else `InputError`."""

    def checked(spec: jax.ShapeDtypeStruct, part: Any) -> np.ndarray:
        array = np.asarray(part)
        if array.shape[1:] != spec.shape or not array.ndim or not np.can_cast(array.dtype, spec.dtype, "same_kind"):
            raise ValueError(f"{array.dtype}{list(array.shape)} in place of {spec.dtype}{['B', *spec.shape]}")
        return array.astype(spec.dtype)

    try:
        given = jax.tree.map(checked, specs, inputs)
        if len(sizes := {len(array) for array in jax.tree.leaves(given)}) > 1:
            raise ValueError(f"{sorted(sizes)} examples in its parts")
    except ValueError as error:
        raise InputError(
            f"inputs are not {specs} with a leading axis B, which the network reads ({error}): prepare them as for "
            "training; one example as inputs[None]."
        ) from error
    return given


def load_run(workdir: str | os.PathLike[str], which: str | int = "latest") -> TrainedRun:
    """Reads a run that `depthmup_flax.trainer.loop.train_and_evaluate` wrote, also while it trains.

    Its checkpoints may have been written on any number of devices and processes. The data set may be absent.

    Args:
      workdir: of the run, on a disk or in a bucket.
      which: ``"latest"``, ``"best"`` (by the evaluated accuracy), or the step of a checkpoint.

    Raises:
      InputError: there is no run, it has no such checkpoint, a file of it is damaged, or the user's code that it names
        cannot be imported.
    """
    path = as_path(workdir)
    with reachable([path]):
        require_run(path)
        stored = read_json(path / "config.json", RESTORE)
        config = configs.from_json(stored)
        data, now, before = stored_data(path), code_of(config), configs.stored_code(stored)
        step, state, meta = _read(path, which, config, data)
        if changed := sorted(name for name in before.keys() & now.keys() if before[name] != now[name]):
            log.warning("the code of %s has changed since the run: its outputs may differ.", ", ".join(changed))
        return TrainedRun(
            directory=path,
            step=step,
            config=config,
            rule=configs.make_parametrization(config),
            info=info_from_json(meta["param_info"]),
            metrics=read_metrics(path / "metrics.jsonl"),
            result=read_json(path / "result.json", RESTORE) if (path / "result.json").exists() else None,
            data=data,
            **_restored(config, data, state["carry"]),
        )


def training_step(config: ConfigDict, num_classes: int) -> Task | None:
    """The user's training step that ``model.name`` makes; ``None`` if it makes a network."""
    if not is_import_path(config.model.name):
        return None
    return UserNetwork(config.model, num_classes).task(configs.make_parametrization(config))


def _read(path: pathlib.Path, which: str | int, config: ConfigDict, data: Dataset) -> tuple[int, Json, Json]:
    """The step, the arrays and the description of the checkpoint that ``which`` means."""
    step = chosen_step(path, which, config)
    is_step = training_step(config, data.num_classes) is not None
    parts = ("carry",) if is_step else ("carry/params", "carry/collections")  # a training step may carry anything
    while True:
        try:
            return step, *read_checkpoint(path / "checkpoints" / str(step), parts)
        except InputError:
            # The run may be training: it deletes its older checkpoints.
            previous, step = step, chosen_step(path, which, config)
            if step == previous:
                raise


def _restored(config: ConfigDict, data: Dataset, carry: Json) -> dict[str, Any]:
    """The fields of `TrainedRun` that are made of what a step carried, and of the user's code."""
    rule, name, collections = configs.make_parametrization(config), config.model.name, carry.get("collections", {})
    if not is_import_path(name):
        model = create_model(num_classes=data.num_classes, rule=rule, **config.model)
        made = {"model": model, "functions": our_functions(model)}
        return made | {"params": carry["params"], "collections": collections}
    if (task := training_step(config, data.num_classes)) is not None:
        state = restored_state(task, name, hyperparameters(config), carry)
        return {"model": task, "params": carry, "collections": {}, "state": state}
    functions = UserNetwork(config.model, data.num_classes).functions(rule)
    shapes = functions.shapes(data.input_spec)
    params, collections = fitted(shapes[0], carry["params"], name), fitted(shapes[1], collections, name)
    model = functions.model(params, collections)
    return {"model": model, "functions": functions, "params": params, "collections": collections}
