"""Programs on eight devices for `sharding_test`, each for a process of its own; they return JSON."""

import contextlib
import dataclasses
import functools
import json
import pathlib
import re
from unittest import mock

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import depthmup_flax as dm
from depthmup_flax.auditing.config_audit import audited_model, of_module
from depthmup_flax.config import default_config
from depthmup_flax.devices import sharding
from depthmup_flax.nn import attention, fused_attention
from depthmup_flax.nn.cpu_convolution import conv_same
from depthmup_flax.nn.transformer import Embed
from depthmup_flax.rule.info_trees import path_name
from depthmup_flax.trainer.engine.device_batches import put_train_data
from depthmup_flax.trainer.engine.from_config import build
from depthmup_flax.trainer.engine.program import ShardedProgram
from depthmup_flax.trainer.engine.task import batch_key

STEPS = 4
LAYOUTS = {
    "one": {"data": 1, "fsdp": 1},
    "data 8": {"data": 8, "fsdp": 1},
    "data 2, fsdp 4": {"data": 2, "fsdp": 4},
}


def config_of(model, dropout=True):
    config = default_config("gpt" if model == "llama" else model)
    config.model.update(width=16, depth=4)
    config.train.update(batch_size=16, steps=STEPS)
    config.data.augment = "cifar" if model == "res_mlp" else "none"
    if model == "simple_resnet":
        config.model.norm = "batch"
    elif model == "vit":
        config.model.update(patch_size=4, num_heads=2, dropout=0.1 if dropout else 0.0)
    elif model == "llama":
        config.model.update(positions="rotary", norm="rms", mlp="swiglu", qk_norm=True, num_kv_heads=2)
    elif model == "gpt":
        config.model.update(num_heads=2)
    if config.model.name == "gpt":
        config.data.update(name=f"text:{__file__}", context=16, augment="shift")
    return config


def program_of(experiment, mesh, accumulate=1, **fields):
    """The experiment in double precision, with other fields of the model."""
    config = experiment.config.copy_and_resolve_references()
    config.train.accumulate = accumulate
    network = experiment.network
    model = network.model.clone(param_dtype=jnp.float64, dtype="float64", **fields)
    of_model = dataclasses.replace(network, config=config, made=of_module(model))
    replaced = dataclasses.replace(experiment, config=config, work=of_model)
    return ShardedProgram(replaced, mesh, put_train_data(experiment.dataset, mesh))


def trained(experiment, mesh, accumulate=1, **fields):
    """Losses of every step, and the last parameters."""
    program = program_of(experiment, mesh, accumulate, **fields)
    state, losses = program.initial_state(), []
    with contextlib.closing(program.calls(0)) as calls:
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
        marks = [float(np.sum(np.asarray(p) * rng.normal(size=p.shape))) for p in jax.tree.leaves(state.carry.params)]
        split = [
            path_name(path) for path, p in jax.tree_util.tree_flatten_with_path(state.carry.params)[0]
            if not p.sharding.is_fully_replicated
        ]  # fmt: skip
        found[name] = {"losses": losses, "marks": marks, "split": split}
    return found


def in_parts(model):
    """Whole batches, in four parts, and with activations computed again."""
    experiment = build(config_of(model, dropout=False))
    mesh = sharding.make_mesh(LAYOUTS["data 2, fsdp 4"])
    found = {"whole": trained(experiment, mesh, remat="none")[0], "parts": trained(experiment, mesh, accumulate=4)[0]}
    for policy in ("dots", "full"):
        found[policy] = trained(experiment, mesh, remat=policy)[0]
    return found


def muon_updates():
    """Of one step of Muon, by layout: the largest difference from one device, and what devices gather and exchange."""
    # A prime number of layers: they divide over no layout.
    model, tokens = dm.GPT(48, width=32, depth=7), jnp.zeros((2, 8), jnp.int32)
    boxed = jax.jit(model.init)(jax.random.key(0), tokens)["params"]
    info, axes, params = audited_model(model, tokens).info, sharding.logical_axes(boxed), nn.unbox(boxed)
    rule = dm.get_parametrization("depth_mup")
    grads = jax.tree.map(lambda p: np.random.default_rng(p.size).normal(size=p.shape).astype(p.dtype), params)
    plain = dm.muon(1.0, info, rule)
    expected = jax.device_get(jax.jit(lambda g, p: plain.update(g, plain.init(p), p)[0])(grads, params))
    found = {}
    for name, sizes in LAYOUTS.items():
        mesh = sharding.make_mesh(sizes, jax.devices()[: int(np.prod(list(sizes.values())))])
        optimizer = dm.muon(1.0, info, rule, place=sharding.on_whole_matrices)
        arguments = grads, optimizer.init(params), params
        layout = sharding.state_shardings(arguments, axes, mesh)

        def update(*arguments, mesh=mesh, optimizer=optimizer):
            with sharding.activations_on(mesh):
                return optimizer.update(*arguments)

        compiled = jax.jit(update, in_shardings=layout, out_shardings=layout[:2]).lower(*arguments).compile()
        updates, _ = compiled(*jax.device_put(arguments, layout))
        text = compiled.as_text()
        types = {kind: re.findall(rf"= (.*) {kind}(?:-start)?\(", text) for kind in ("all-gather", "all-to-all")}
        shapes = {kind: re.findall(r"\[([\d,]+)\]", " ".join(parts)) for kind, parts in types.items()}
        difference = jax.tree.map(lambda a, b: float(np.abs(a - b).max()), jax.device_get(updates), expected)
        found[name] = {"error": max(jax.tree.leaves(difference)), **shapes}
    return found


def conv_gradients():
    """Of the kernel of a convolution, on images that are split in ways that their types do and do not say."""
    x, kernel = jnp.arange(64.0).reshape(8, 2, 2, 2), jnp.arange(12.0).reshape(3, 1, 2, 2)
    found = {"one": jax.grad(lambda kernel: (conv_same(x, kernel) ** 2).sum())(kernel)}
    for checked in (True, False):
        mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))

        def loss(kernel, mesh=mesh, checked=checked):
            def squares(x, kernel):
                return conv_same(x, kernel) ** 2

            specs = (P("data"), P())
            return jax.shard_map(squares, mesh=mesh, in_specs=specs, out_specs=P("data"), check_vma=checked)(
                x, kernel
            ).sum()

        found[f"shard_map, check_vma={checked}"] = jax.jit(jax.grad(loss))(kernel)
    explicit = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Explicit,))
    with jax.set_mesh(explicit):
        split = jax.device_put(x, NamedSharding(explicit, P("data")))
        gradient = jax.jit(jax.grad(lambda kernel, x: (conv_same(x, kernel) ** 2).sum()))
        found["explicit"] = gradient(jax.device_put(kernel, NamedSharding(explicit, P())), split)
    return {name: np.asarray(value).tolist() for name, value in found.items()}


def derivatives():
    """Of a product with a `gathered` kernel, forward and reverse and of a batch of kernels, on one device and eight."""
    names, tangent = ("width_in", "inner_out"), jnp.linspace(-1.0, 1.0, 32).reshape(4, 8)
    kernel, x = jnp.sin(jnp.arange(32.0)).reshape(4, 8), jnp.cos(jnp.arange(32.0)).reshape(8, 4)

    def loss(kernel):
        return jnp.sin(sharding.stream(x) @ sharding.gathered(kernel, names)).sum()

    def all_of(mesh):
        with contextlib.nullcontext() if mesh is None else sharding.activations_on(mesh):
            return {
                "forward": jax.jvp(loss, (kernel,), (tangent,))[1],
                "reverse": jax.grad(loss)(kernel),
                "forward over reverse": jax.jvp(jax.grad(loss), (kernel,), (tangent,))[1],
                "of several": jax.vmap(jax.grad(loss))(jnp.stack([kernel, tangent])),
            }

    eight = sharding.make_mesh(LAYOUTS["data 2, fsdp 4"])
    found = {name: jax.jit(functools.partial(all_of, mesh))() for name, mesh in (("one", None), ("eight", eight))}
    return {name: jax.tree.map(lambda x: np.asarray(x).tolist(), value) for name, value in found.items()}


def lookup_collectives():
    """Shapes that devices exchange for a look-up in a split table of 48 x 16 numbers, and for its gradient."""
    mesh, embed = sharding.make_mesh(LAYOUTS["data 2, fsdp 4"]), Embed(48, 16, dm.PRESETS["mup"], 1.0)

    def loss(params, tokens):
        with sharding.activations_on(mesh):
            return jnp.sin(sharding.stream(embed.apply({"params": params}, tokens))).sum()

    params = jax.eval_shape(lambda: nn.unbox(embed.init(jax.random.key(0), jnp.zeros((8, 3), int))["params"]))
    shardings = sharding.state_shardings(params, {"embedding": ("vocab_in", "width_out")}, mesh)
    gradient = jax.jit(jax.grad(loss), in_shardings=(shardings, sharding.batch_sharding(mesh)), out_shardings=shardings)
    text = gradient.lower(params, jax.ShapeDtypeStruct((8, 3), int)).compile().as_text()
    return re.findall(r"= \(?\w+\[([\d,]*)\]\S* (?:all-\w+|reduce-scatter|collective-permute)\(", text)


def stream_of_a_gpu():
    """What devices exchange for a stream with features last and its gradient, in programs as for GPUs."""
    found = {}
    for name in ("one", "data 2, fsdp 4"):
        axes = LAYOUTS[name]
        mesh = sharding.make_mesh(axes, jax.devices()[: int(np.prod(list(axes.values())))])
        split = sharding.batch_sharding(mesh)

        def gradient(x, mesh=mesh):
            with sharding.activations_on(mesh), mock.patch.object(sharding, "target_platform", return_value="gpu"):
                return jax.grad(lambda x: jnp.sin(sharding.stream(x)).sum())(x)

        program = jax.jit(gradient, in_shardings=split, out_shardings=split)
        text = program.lower(jax.ShapeDtypeStruct((8, 4, 3), float)).compile().as_text()
        layouts = re.findall(r"f\d+\[\d,\d,3\]{([\d,]*)", text)
        found[name] = {"exchanged": re.findall(r"all-\w+|reduce-scatter|collective-permute", text), "layouts": layouts}
    return found


def fused_attention_parts():
    """Attention's value and gradients with the kernel of TPUs on several meshes, and the shapes of a device's parts."""
    q, k, v, g = (jax.random.normal(key, (8, 5, 256), jnp.bfloat16) for key in jax.random.split(jax.random.key(0), 4))
    found = {}
    kernel = fused_attention.fused_attention
    interpreted = lambda q, k, v, form: kernel(q, k, v, form._replace(interpret=True))
    with (
        mock.patch.object(attention, "traced_platform", return_value="tpu"),
        mock.patch.object(attention, "fused_attention", interpreted),
    ):
        for name in ("one", "data 2, fsdp 4"):
            axes = LAYOUTS[name]
            mesh = sharding.make_mesh(axes, jax.devices()[: int(np.prod(list(axes.values())))])

            def gradients(q, k, v, g, mesh=mesh):
                attend = functools.partial(attention.attention, head_dim=64, scale=0.125, causal=True)
                with sharding.activations_on(mesh):
                    value, pull = jax.vjp(attend, q, k, v)
                    return value, *pull(g)

            values = jax.jit(gradients)(q, k, v, g)
            parts = [x.sharding.shard_shape(x.shape) for x in values]
            found[name] = {"values": [np.asarray(x, np.float32).tolist() for x in values], "parts": parts}
    return found


def step_of(experiment):
    prepare = functools.partial(experiment.dataset.prepare, experiment.config.data.augment)
    step = experiment.step({})
    return lambda state, batch: step(state, prepare(batch_key(0, state.step), batch))[0]


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
        mesh = sharding.make_mesh({"data": -1, "fsdp": fsdp})
        program = ShardedProgram(experiment, mesh, None)
        shapes = program.abstract_state
        shardings = jax.tree.map(lambda x: x.sharding, shapes)
        with contextlib.closing(program.calls(0)) as calls:
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
