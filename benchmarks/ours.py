"""Contenders of this package, with and without the features that are measured."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from ml_collections import ConfigDict

from benchmarks import plain
from benchmarks.timing import RATE, repeated, timed
from benchmarks.train_step import make_train_step
from depthmup_flax import sweep_config
from depthmup_flax.commands.parser import one_device_per_core
from depthmup_flax.config import default_config
from depthmup_flax.data import LoadOnce
from depthmup_flax.devices import sharding
from depthmup_flax.nn import layers
from depthmup_flax.rule.parametrization import PRESETS
from depthmup_flax.trainer.engine import program as programs
from depthmup_flax.trainer.engine.device_batches import calls as host_calls
from depthmup_flax.trainer.engine.device_batches import put_train_data
from depthmup_flax.trainer.engine.experiment import Experiment
from depthmup_flax.trainer.engine.from_config import build
from depthmup_flax.trainer.engine.program import ShardedProgram
from depthmup_flax.trainer.engine.task import TrainState
from depthmup_flax.util.flops import count_flops

Measure = Callable[[], dict[str, float]]


def train_step(
    model: Mapping[str, Any],
    batch: int,
    side: int = 32,
    rule: str = "on",
    data: str = "ready",
    seconds: float = 0.4,
    without: str = "",
    optimizer: str = "adam",
) -> Measure:
    """A training step on one device.

    Args:
      model: fields of ``config.model``.
      batch: batch size.
      side: side of the images in pixels.
      rule: ``on``; ``off``: no multipliers and Optax's Adam; ``plain``: also the network of `benchmarks.plain`.
      data: ``ready``: the same normalized images in every step; otherwise an augmentation, of images that are gathered
        from 50,000 on the device.
      seconds: duration of a measurement.
      without: a feature for CPUs to leave out in the whole process: ``conv``, whose operations are then JAX's own.
      optimizer: ``config.optimizer.name``, for ``rule="on"``.
    """
    if without == "conv":
        layers.conv_same = layers.convolve
    experiment, network, transformation = _parts(model, batch, side, rule, optimizer)
    examples = 50_000 if data != "ready" else batch
    images = jax.random.randint(jax.random.key(0), (examples, side, side, 3), 0, 256).astype(jnp.uint8)
    stored = {"image": images, "label": jnp.arange(examples) % 10}
    if data == "ready":
        stored["image"] = (images / 255.0 - 0.5).astype(jnp.float32)

    def prepare(key: jax.Array | None, stored: Any) -> tuple[jax.Array, jax.Array]:
        if data == "ready":
            return stored["image"], stored["label"]
        assert key is not None  # the step gives a key where it trains
        rows = jax.random.randint(jax.random.fold_in(key, 1), (batch,), 0, examples)
        return experiment.dataset.prepare(data, key, jax.tree.map(lambda x: x[rows], stored))

    return _steps(experiment, network, transformation, prepare, stored, seconds)


def _parts(
    model: Mapping[str, Any], batch: int, side: int, rule: str, optimizer: str = "adam"
) -> tuple[Experiment, nn.Module, optax.GradientTransformation]:
    config = _config(model, batch, side)
    config.optimizer.name = optimizer
    experiment = build(config)
    if rule == "on":
        return experiment, experiment.network.model, experiment.network.optimizer
    network = experiment.network.model.clone(rule=PRESETS["sp"])
    if rule == "plain":
        network = plain.NETWORKS[model["name"]](**{k: v for k, v in model.items() if k in plain.FIELDS})
    return experiment, network, optax.adam(RATE)


def _config(model: Mapping[str, Any], batch: int, side: int) -> ConfigDict:
    config = default_config(model["name"])
    config.model.update(model)
    config.optimizer.learning_rate = RATE
    config.data.update(name="synthetic", image_size=side, train_examples=max(batch, 10), test_examples=10)
    config.train.update(batch_size=batch, steps=10**6, average_steps=1)
    return config


def _step_of(network: Any, optimizer: Any, prepare: Any) -> Callable[[TrainState, Any], TrainState]:
    _, step = make_train_step(network, optimizer, prepare=prepare, seed=0, log_every=50)
    return lambda state, batch: step(state, batch)[0]


def _init_of(experiment: Experiment, network: Any, optimizer: Any) -> TrainState:
    init, _ = make_train_step(network, optimizer, prepare=experiment.dataset.prepare, seed=0)
    return init(experiment.dataset.input_spec)


def _steps(experiment: Experiment, network: Any, optimizer: Any, prepare: Any, stored: Any, seconds: float) -> Measure:
    @jax.jit
    def init() -> TrainState:
        return _init_of(experiment, network, optimizer)

    function = _step_of(network, optimizer, prepare)
    state = init()
    compiled = jax.jit(function, donate_argnums=0).lower(state, stored).compile()
    facts = {
        "parameters": sum(x.size for x in jax.tree.leaves(state.carry.params)),
        "flops": count_flops(jax.make_jaxpr(function)(state, stored)),
        "temporary_bytes": getattr(compiled.memory_analysis(), "temp_size_in_bytes", 0),
    }

    def run(count: int) -> None:
        nonlocal state
        for _ in range(count):
            state = compiled(state, stored)
        jax.block_until_ready(state)

    measure = repeated(run, seconds)
    return lambda: {**measure(), **facts}


def set_up(model: Mapping[str, Any], batch: int = 16, side: int = 32) -> Measure:
    """Time from a config to a compiled step: model, optimizer, initial state, tracing, compilation."""

    def once() -> None:
        jax.clear_caches()
        experiment, network, optimizer = _parts(model, batch, side, "on")
        init = jax.jit(lambda: _init_of(experiment, network, optimizer))
        state = jax.block_until_ready(init())
        white = jnp.ones((batch, side, side, 3)), jnp.zeros(batch, jnp.int32)
        function = _step_of(network, optimizer, lambda key, _: white)
        jax.jit(lambda state: function(state, {}), donate_argnums=0).lower(state).compile()

    return lambda: {"seconds": timed(once)}


def curve(
    model: Mapping[str, Any],
    rates: Sequence[float],
    seeds: int,
    steps: int,
    batch: int,
    side: int,
    examples: int,
    tests: int,
) -> Measure:
    """A curve as ``depthmup sweep`` trains it, including compilation, choice of lanes and records."""
    one_device_per_core()
    from depthmup_flax.search.sweep.runner import sweep

    base = _config(model, batch, side)
    base.data.update(train_examples=examples, test_examples=tests)
    base.train.update(steps=steps, average_steps=steps, log_every=steps)
    grid = {"optimizer.learning_rate": tuple(rates), "seed": tuple(range(seeds))}
    config = sweep_config(base, {"curve": grid}, figure="benchmark", title="A curve.", scale="cpu")
    load = LoadOnce()
    parameters = build(base, load=load).parameters  # loads the data: synthetic ones take seconds to generate

    def once() -> None:
        jax.clear_caches()
        with tempfile.TemporaryDirectory() as directory:
            records = sweep(config, directory, load=load)
        assert len(records) == len(rates) * seeds

    return lambda: {"seconds": timed(once), "parameters": parameters}


def loop_step(model: Mapping[str, Any], batch: int, side: int, most: int, host: bool, seconds: float = 0.4) -> Measure:
    """A step of ``train.py``'s loop between two events, over data that are on the device.

    Args:
      model, batch, side, seconds: see `train_step`.
      most: steps in a call, at most.
      host: whether the host draws the examples of every call and places them; else every call has the same.
    """
    programs.MOST_STEPS = most
    config = _config(model, batch, side)
    config.data.update(train_examples=1024)
    config.train.update(log_every=10**6)
    experiment = build(config)
    mesh = sharding.make_mesh(config.mesh)
    program = ShardedProgram(experiment, mesh, put_train_data(experiment.dataset, mesh))
    program.call_length.steps = most
    calls = host_calls(experiment.dataset, [config.seed], batch, 0, program.call_length)
    state, same = program.initial_state(), jax.device_put(next(calls))

    def run(count: int) -> None:
        nonlocal state
        for _ in range(count):
            state = program.take(state, next(calls) if host else same)
        jax.block_until_ready(state)

    measure = repeated(run, seconds)
    return lambda: {"seconds": measure()["seconds"] / most}


def lanes_step(model: Mapping[str, Any], batch: int, lanes: int, side: int = 32, seconds: float = 0.4) -> Measure:
    """A step of the sweep's program with ``lanes`` networks on one device."""
    from depthmup_flax.search.sweep.grid import expand
    from depthmup_flax.trainer.engine.lanes import LaneProgram, lane_mesh

    rates = tuple(1e-4 * 2 ** (i / 8) for i in range(lanes))
    base = _config(model, batch, side)
    base.data.update(train_examples=1024)
    grid = {"optimizer.learning_rate": rates, "seed": (0,)}
    config = sweep_config(base, {"curve": grid}, figure="benchmark", title="Lanes.", scale="cpu")
    runs = expand(config)
    experiment, mesh = build(runs[0].config), lane_mesh()
    data = put_train_data(experiment.dataset, mesh)
    program = LaneProgram(experiment, runs, mesh, lanes, True, data)
    placed = program.place(runs)
    call = next(program.calls(placed, 0))
    inputs = jax.ShapeDtypeStruct((batch, side, side, 3), jnp.float32)
    prepare = lambda key, x: (x, jnp.zeros(batch, jnp.int32))
    function = _step_of(experiment.network.model, experiment.network.optimizer, prepare)
    facts = {
        "flops": count_flops(jax.make_jaxpr(function)(experiment.state_shapes(), inputs)) * len(runs),
        "temporary_bytes": program.bytes_per_device,
    }
    state = program.init(placed)

    def run(count: int) -> None:
        nonlocal state
        for _ in range(count):
            state = program.take(state, placed, call)
        jax.block_until_ready(state)

    run(2)
    program.call_length.adapt(1 / timed(run, 1))  # as training does after single steps
    call = next(program.calls(placed, 0))
    measure = repeated(run, seconds)
    return lambda: {"seconds": measure()["seconds"] / int(call.count), **facts}


def matrix_product(size: int, dtype: str, seconds: float = 0.4, precision: str = "default") -> Measure:
    """A product of two square matrices, as the peak of the device."""
    a = jax.random.normal(jax.random.key(0), (size, size), dtype)
    product = jax.jit(functools.partial(jnp.matmul, precision=precision))

    def run(count: int) -> None:
        c = a
        for _ in range(count):
            c = product(a, a)
        jax.block_until_ready(c)

    measure = repeated(run, seconds)
    return lambda: {**measure(), "flops": 2 * size**3}
