"""Programs on eight devices for `sharding_test`, each for a process of its own; they return JSON."""

import dataclasses
import functools
import json
import pathlib
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from depthmup_flax.nn import fused_attention, transformer
from depthmup_flax.nn.cpu import dense_product
from depthmup_flax.parallel import sharding
from depthmup_flax.rule.info_trees import path_name
from depthmup_flax.training.config import default_config
from depthmup_flax.training.device_batches import Waiting, put_train_data, train_calls
from depthmup_flax.training.experiment import build
from depthmup_flax.training.multi_step import train_step_of
from depthmup_flax.training.sharded_program import ShardedProgram

STEPS = 4
LAYOUTS = {
    "one": {"data": 1, "fsdp": 1, "tensor": 1},
    "data 8": {"data": 8, "fsdp": 1, "tensor": 1},
    "data 2, fsdp 4": {"data": 2, "fsdp": 4, "tensor": 1},
    "data 2, fsdp 2, tensor 2": {"data": 2, "fsdp": 2, "tensor": 2},
}


def config_of(model, dropout=True):
    config = default_config(model)
    config.model.update(width=16, depth=4)
    config.train.update(batch_size=16, steps=STEPS)
    config.data.augment = "cifar" if model == "res_mlp" else "none"
    if model == "simple_resnet":
        config.model.norm = "batch"
    elif model == "resnet":
        config.model.update(width=8, norm="layer")
        config.optimizer.update(name="momentum", learning_rate=0.05)
    elif model == "vit":
        config.model.update(patch_size=4, num_heads=2, dropout=0.1 if dropout else 0.0)
    elif model == "gpt":
        config.model.update(num_heads=2)
        config.data.update(name=f"text:{__file__}", context=16, augment="shift")
    return config


def program_of(experiment, mesh, accumulate=1, **fields):
    """The experiment in double precision, with other fields of the model."""
    config = experiment.config.copy_and_resolve_references()
    config.train.accumulate = accumulate
    model = experiment.model.clone(param_dtype=jnp.float64, dtype="float64", **fields)
    return ShardedProgram(
        dataclasses.replace(experiment, config=config, model=model), mesh, put_train_data(experiment.dataset, mesh)
    )


def trained(experiment, mesh, accumulate=1, **fields):
    """Losses of every step, and the last parameters."""
    program, batch_size = program_of(experiment, mesh, accumulate, **fields), experiment.config.train.batch_size
    state, losses = program.initial_state(), []
    with train_calls(experiment.dataset, 0, batch_size, 0, mesh, program.call_length, Waiting()) as calls:
        for _ in range(STEPS):
            state = program.take(state, next(calls))
            losses.append(float(state.last_loss))
    return losses, state


def compared(model, layouts):
    experiment = build(config_of(model))
    found = {}
    for name in layouts:
        axes = LAYOUTS[name]
        mesh = sharding.make_mesh(axes, jax.devices()[: int(np.prod(list(axes.values())))])
        losses, state = trained(experiment, mesh)
        # Random projections of the parameters, so that all of them are compared.
        rng = np.random.default_rng(0)
        marks = [float(np.sum(np.asarray(p) * rng.normal(size=p.shape))) for p in jax.tree.leaves(state.params)]
        split = [
            path_name(path) for path, p in jax.tree_util.tree_flatten_with_path(state.params)[0]
            if not p.sharding.is_fully_replicated
        ]  # fmt: skip
        found[name] = {"losses": losses, "marks": marks, "split": split}
    return found


def in_parts(model):
    """Whole batches, in four parts, and with activations computed again."""
    experiment = build(config_of(model, dropout=False))
    mesh = sharding.make_mesh(LAYOUTS["data 2, fsdp 2, tensor 2"])
    found = {"whole": trained(experiment, mesh, remat="none")[0], "parts": trained(experiment, mesh, accumulate=4)[0]}
    for policy in ("dots", "full"):
        found[policy] = trained(experiment, mesh, remat=policy)[0]
    return found


def dense_gradients():
    """Of the kernel of a dense product, on arrays that are split in ways that their types do and do not say."""
    x, kernel = jnp.arange(24.0).reshape(8, 3), jnp.arange(6.0).reshape(3, 2)
    found = {"one": jax.grad(lambda kernel: (dense_product(x, kernel) ** 2).sum())(kernel)}
    for checked in (True, False):
        mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))

        def loss(kernel, mesh=mesh, checked=checked):
            def squares(x, kernel):
                return dense_product(x, kernel) ** 2

            specs = (P("data"), P())
            return jax.shard_map(squares, mesh=mesh, in_specs=specs, out_specs=P("data"), check_vma=checked)(
                x, kernel
            ).sum()

        found[f"shard_map, check_vma={checked}"] = jax.jit(jax.grad(loss))(kernel)
    explicit = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Explicit,))
    with jax.set_mesh(explicit):
        split = jax.device_put(x, NamedSharding(explicit, P("data")))
        gradient = jax.jit(jax.grad(lambda kernel, x: (dense_product(x, kernel) ** 2).sum()))
        found["explicit"] = gradient(jax.device_put(kernel, NamedSharding(explicit, P())), split)
    return {name: np.asarray(value).tolist() for name, value in found.items()}


def fused_attention_parts():
    """Attention's value and gradients with the kernel of TPUs on several meshes, and the shapes of a device's parts."""
    q, k, v, g = (jax.random.normal(key, (8, 5, 256), jnp.bfloat16) for key in jax.random.split(jax.random.key(0), 4))
    found = {}
    interpreted = functools.partial(fused_attention.fused_attention, interpret=True)
    with (
        mock.patch.object(transformer, "traced_platform", return_value="tpu"),
        mock.patch.object(transformer, "fused_attention", interpreted),
    ):
        for name, axes in LAYOUTS.items():
            mesh = sharding.make_mesh(axes, jax.devices()[: int(np.prod(list(axes.values())))])

            def gradients(q, k, v, g, mesh=mesh):
                attend = functools.partial(transformer.attention, head_dim=64, scale=0.125, causal=True)
                with sharding.activations_on(mesh):
                    value, pull = jax.vjp(attend, q, k, v)
                    return value, *pull(g)

            values = jax.jit(gradients)(q, k, v, g)
            parts = [x.sharding.shard_shape(x.shape) for x in values]
            found[name] = {"values": [np.asarray(x, np.float32).tolist() for x in values], "parts": parts}
    return found


def step_of(experiment):
    prepare = functools.partial(experiment.dataset.prepare, experiment.config.data.augment)
    return train_step_of(experiment, experiment.model, experiment.optimizer, prepare, 0)


def on_mesh(mesh, step, state, batch):
    with sharding.activations_on(mesh):
        return step(state, batch)


def memory():
    """Bytes of the training state and of all arguments and temporaries on one device, of the compiled step."""
    config = config_of("res_mlp")
    config.model.update(width=256, depth=8)
    config.data.placement = "stream"  # else the data are an argument, too
    experiment, found = build(config), {}
    for fsdp in (1, 2, 4, 8):
        mesh = sharding.make_mesh({"data": -1, "fsdp": fsdp, "tensor": 1})
        program = ShardedProgram(experiment, mesh, None)
        shapes = program.abstract_state
        shardings = jax.tree.map(lambda x: x.sharding, shapes)
        with train_calls(experiment.dataset, 0, 16, 0, mesh, program.call_length, Waiting()) as calls:
            batch = next(calls).examples
        # Without donation: what is written to the next state's arrays is no temporary.
        step = jax.jit(functools.partial(on_mesh, mesh, step_of(experiment)), out_shardings=shardings)
        analysis = step.lower(shapes, batch).compile().memory_analysis()
        whole = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(shapes))
        found[fsdp] = {
            "whole_state": whole,
            "arguments": analysis.argument_size_in_bytes,
            "temporaries": analysis.temp_size_in_bytes,
        }
    return found


def write(path, program, *arguments):
    """Writes the result of ``program``, one of the functions above, to ``path``; with double precision allowed."""
    jax.config.update("jax_enable_x64", True)
    assert jax.device_count() == 8
    pathlib.Path(path).write_text(json.dumps(globals()[program](*arguments)))
    return 0
