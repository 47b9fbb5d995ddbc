"""Steps of this package as `depthmup train` and `depthmup sweep` compile them, with the defaults of the configs."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from benchmarks.gpu.cases import Case
from benchmarks.timing import RATE, repeated, timed
from depthmup_flax.config import default_config, from_file
from depthmup_flax.data import Dataset, LoadOnce, TextDataset, Tokenizer, from_arrays
from depthmup_flax.data.dataset import ArraySplit
from depthmup_flax.devices import sharding
from depthmup_flax.search.sweep.grid import expand
from depthmup_flax.search.sweep.groups import plan
from depthmup_flax.search.sweep.lane_choice import GroupPrograms
from depthmup_flax.trainer.engine.device_batches import calls, put_train_data
from depthmup_flax.trainer.engine.from_config import build
from depthmup_flax.trainer.engine.lanes import lane_mesh
from depthmup_flax.trainer.engine.program import ShardedProgram
from depthmup_flax.util.flops import count_flops

Measure = Callable[[], dict[str, float]]

STEPS = 4  # in a call of a large network, where the host is not the limit


def step(seconds: float, **fields: Any) -> Measure:
    """A contender: the training step of a `Case`; of a sweep, that of a whole group, divided by its runs."""
    case = Case(**fields)
    return _lanes(case, seconds) if case.in_lanes else _step(case, seconds)


def _step(case: Case, seconds: float) -> Measure:
    program, data = _program(run_config(case), case)
    program.call_length.steps = min(STEPS, program.call_length.most)
    compiled = program.traced().lower().compile()
    state = program.initial_state()
    call = jax.device_put(next(calls(program.experiment.dataset, [0], case.batch, 0, program.call_length)))

    def run(count: int) -> None:
        nonlocal state
        for _ in range(count):
            state = compiled(state, None, call, data)
        jax.block_until_ready(state)

    measure = repeated(run, seconds)
    facts = {
        "parameters": sum(x.size for x in jax.tree.leaves(state.carry.params)),
        "bytes": bytes_of(compiled),
        "flops": products(case),
    }
    return lambda: {"seconds": measure()["seconds"] / int(call.count), **facts}


def _lanes(case: Case, seconds: float) -> Measure:
    config, load = sweep_config(case), LoadOnce()
    group = max(plan(config, expand(config), load), key=lambda group: len(group.runs))
    mesh = lane_mesh(jax.devices()[:1])
    data = put_train_data(group.experiment.dataset, mesh)
    program = GroupPrograms(group, mesh, data).for_runs(group.runs, len(group.runs))
    lanes = program.place(group.runs)
    state, call = program.init(lanes), next(program.calls(lanes, 0))

    def run(count: int) -> None:
        nonlocal state
        for _ in range(count):
            state = program.take(state, lanes, call)
        jax.block_until_ready(state)

    run(2)
    program.call_length.adapt(1 / timed(run, 1))  # as training does after single steps
    call = next(program.calls(lanes, 0))
    measure = repeated(run, seconds)
    alone = ShardedProgram(group.experiment, sharding.make_mesh(devices=jax.devices()[:1]), data)
    facts = {
        "parameters": group.experiment.parameters,
        "bytes": program.bytes_per_device,
        "flops": count_flops(alone.traced().jaxpr),
        "lanes": program.capacity,
    }
    return lambda: {"seconds": measure()["seconds"] / (int(call.count) * program.capacity), **facts}


def run_config(case: Case) -> ConfigDict:
    """The config of a run of ``case``."""
    config = default_config(case.network)
    config.model.update(width=case.width, depth=case.depth, base_width=case.width // 4, base_depth=case.depth // 2)
    config.model.dtype = case.dtype
    config.data.update(name="text:random" if case.network == "gpt" else "folder:random")
    config.optimizer.update(name="adamw", learning_rate=RATE, weight_decay=0.01)
    config.train.update(batch_size=case.batch, steps=10**6, log_every=10**6)
    if case.network == "gpt":
        config.data.context = case.size
    else:
        config.data.image_size = case.size
    if case.network == "resnet":
        config.model.update(stem="imagenet", norm="batch", base_depth=4)
    else:
        config.model.num_heads = case.heads
    if case.network == "vit":
        config.model.patch_size = 16
    return config


def sweep_config(case: Case) -> ConfigDict:
    """The sweep of the papers' residual MLP at one depth, with synthetic images of the size of CIFAR's."""
    config = from_file(pathlib.Path(__file__).parents[2] / "reproduction/configs/sweeps/lr_width_depth_mlp.py", "gpu")
    config.base.model.update(width=case.width, base_width=case.width)
    config.base.data.update(name="synthetic", image_size=case.size, train_examples=5000, test_examples=500)
    config.base.train.batch_size = case.batch
    config.grids.depths.model.depth = (case.depth,)
    del config.grids["widths"]
    return config


def products(case: Case) -> int:
    """FLOP of the matrix products of a step: each once, whole squares of causal attention, too."""
    config = run_config(case)
    config.model.remat = "none"
    if case.heads:
        config.model.attention = "xla"
    return count_flops(_program(config, case)[0].traced().jaxpr)


def _program(config: ConfigDict, case: Case) -> tuple[ShardedProgram, Any]:
    """The program of a run on one device, and its data."""
    experiment = build(config, load=lambda fields: random_data(fields, case))
    mesh = sharding.make_mesh(devices=jax.devices()[:1])
    data = put_train_data(experiment.dataset, mesh)
    return ShardedProgram(experiment, mesh, data), data


def random_data(fields: Any, case: Case) -> Dataset:
    """Two batches of random pixels or tokens: products of zeros draw less power, and so are faster."""
    rng, count = np.random.default_rng(0), 2 * case.batch
    if fields.name.startswith("text:"):
        kind = np.min_scalar_type(case.classes - 1)
        tokens = rng.integers(0, case.classes, (count, 2 * fields.context), kind)
        train, test = (ArraySplit({"tokens": part}) for part in (tokens, tokens[:1, : fields.context + 1]))
        return TextDataset(fields.name, train, test, case.classes, "device", fields.context, Tokenizer())
    images = rng.integers(0, 256, (count, fields.image_size, fields.image_size, 3), np.uint8)
    labels = rng.integers(0, case.classes, count)
    return from_arrays(images, labels, images[:1], labels[:1], case.classes, fields.name)


def bytes_of(compiled: jax.stages.Compiled) -> int:
    """Device memory of a program: arguments, results and temporaries, by the compiler's account."""
    memory = compiled.memory_analysis()
    size = lambda kind: getattr(memory, f"{kind}_size_in_bytes", 0)
    return size("temp") + size("argument") + size("output") - size("alias")  # a donated state counts once
