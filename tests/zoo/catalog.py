"""The kinds of models, by what is special about them."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

import depthmup_flax as dm

from . import kernels, libraries, networks, stacks, streams
from .branches import BRANCHES, WEIGHTLESS, mlp
from .cases import Kind
from .fresh import FRESH
from .outsider import OUTSIDER
from .places import PLACES
from .residual import RESIDUAL
from .scales import LOOPED_RULE, A, Scales
from .scope import NAMINGS, Scope
from .stacks import NORMS, TOKENS, VECTORS, WRITES, stack
from .streams import simple
from .styles import STYLES
from .unseen import UNSEEN

LONG = jax.ShapeDtypeStruct((2, 128), jnp.int32)
IMAGES = jax.ShapeDtypeStruct((2, 8, 8, 3), jnp.float32)
FLAT = jax.ShapeDtypeStruct((3, 12), jnp.float32)
T, V = jnp.zeros((2, 6), jnp.int32), jnp.zeros((3, 12))
_READOUTS = ("no_readout", "root_readout", "double_readout", "kept_readout")  # cancelled by a norm of the features
COMPLETEP = dm.get_parametrization("completep", branch_multiplier=A)


def _branches() -> dict[str, Kind]:
    harmless = dict.fromkeys(("retention", "linear_bare"), ("root_heads", "plain_heads"))  # normed, or not judged
    return {name: Kind(stack(name), TOKENS, harmless=harmless.get(name, ())) for name in BRANCHES} | {
        f"{name}_mlp": Kind(stack(name, "mlp"), TOKENS) for name in ("attention", "rotary", "grouped", "lru", "experts")
    }


def _weightless() -> dict[str, Kind]:
    of_two = lambda name: ("none", f"only_{name}", "only_mlp", "first_layer", "stream", "no_readout")
    of_one = ("none", "squared", "first_layer", "by_width", "stream", "no_readout")
    two = {f"{name}_mlp": Kind(stack(name, "mlp"), TOKENS, only=of_two(name)) for name in WEIGHTLESS}
    alone = {f"{name}_alone": Kind(stack(name), TOKENS, only=of_one) for name in WEIGHTLESS}
    bare = {
        f"{name}_bare": Kind(stack(name, norm="unscaled"), VECTORS, only=of_one)
        for name in ("average_pool", "fft", "shift", "causal_mean", "tanh", "self_similar")
    }
    scanned = {f"{name}_scanned": Kind(stack(name, "mlp", scan=True), TOKENS) for name in ("average_pool", "fft")}
    return two | alone | bare | scanned


def _norms() -> dict[str, Kind]:
    norms_at = {"pre": ("rms", "layer", "tanh", "none"), "post": ("layer", "unscaled"), "end": ("rms", "unscaled"),
                "sandwich": ("rms",)}  # fmt: skip
    kinds = {
        f"{place}_{norm}": Kind(stack("attention", "mlp", norm=norm, place=place), TOKENS)
        for place, norms in norms_at.items()
        for norm in norms
    }
    gains = {"layer_scale": stacks.folded, "rezero": stacks.rezero, "skip_init": stacks.skip_init}
    kinds |= {name: Kind(stack("attention", "mlp", gain=gain), TOKENS) for name, gain in gains.items()}
    kinds["rezero_without_norm"] = Kind(stack("attention", "mlp", norm="none", gain=stacks.rezero), TOKENS)
    kinds["post_scanned"] = Kind(stack("attention", "mlp", norm="layer", place="post", scan=True), TOKENS)
    kinds["deep_norm"] = Kind(stack("attention", "mlp", place="post", write_as="deep"), TOKENS, harmless=("stream",))
    kinds["bert"] = Kind(stack("fused", "mlp", norm="layer", place="post", start=stacks.positions), TOKENS)
    return kinds


def _names() -> dict[str, Kind]:
    # The MLP is as many times wider inside as the audited model is wider than the base model.
    kind = functools.partial(Kind, x=TOKENS, only=("none", "first_layer", "only_mlp4", "root_heads", "no_readout"))
    nets = {"": stack("attention", "mlp4"), "_bias": stack("mlp_bias")}
    rare = ("words", "letters", "lettered_blocks")  # names that do not say which layer is the third
    kinds = {
        f"{naming}{end}": kind(net, naming=naming, rare=naming in rare)
        for naming in NAMINGS
        for end, net in nets.items()
    }
    scanned = stack("attention", "mlp4", scan=True)
    kinds |= {f"{naming}_scanned": kind(scanned, naming=naming) for naming in ("nested", "list", "letters", "dots")}
    return kinds | {f"{naming}_deep": kind(stack("mlp"), naming=naming, size=(32, 24)) for naming in ("nested", "list")}


def _ends() -> dict[str, Kind]:
    two = functools.partial(stack, "attention", "mlp")
    return {
        "tied": Kind(two(**stacks.tied()), TOKENS),
        "tied_scanned": Kind(two(**stacks.tied(), scan=True), TOKENS),
        "pooled": Kind(two(end=stacks.pooled), VECTORS),
        "multiplied_input": Kind(two(end=stacks.multiplied_input), TOKENS),
        "two_heads": Kind(two(end=stacks.heads_two), VECTORS),
        "hidden_head": Kind(two(end=stacks.hidden_head), TOKENS),
        "positions": Kind(two(start=stacks.positions), TOKENS),
        "class_token": Kind(two(start=stacks.class_token, end=stacks.first_token), VECTORS),
        "bottleneck": Kind(two(between=stacks.bottleneck), VECTORS),
        "autoencoder": Kind(networks.autoencoder, VECTORS),
        "perceiver": Kind(networks.perceiver, VECTORS),
        "perceiver_once": Kind(functools.partial(networks.perceiver, repeat=False), VECTORS),
        "completep": Kind(two(), TOKENS, rule=COMPLETEP),
        "completep_scanned": Kind(two(scan=True), TOKENS, rule=COMPLETEP),
        "width_alone": Kind(two(), TOKENS, size=(64, 2), arguments={"axes": "width"}),
        "depth_alone": Kind(two(), TOKENS, size=(16, 8), arguments={"axes": "depth"}),
        "twice": Kind(two(), TOKENS, size=(32, 4)),
        "thrice": Kind(two(), TOKENS, size=(48, 6)),
        "scanned": Kind(two(scan=True), TOKENS, size=(48, 6)),
    }


def looped(p: Scope, x: jax.Array, e: Scales) -> jax.Array:
    """One block, used at every depth."""
    h = stacks.read(p, x, e)
    for i in range(e.depth):
        h = streams.add(e, h, mlp(p / "block", stacks.rms(p / "block", h), e), "mlp", i)
    return stacks.write(p, h, e)


def looped_scan(p: Scope, x: jax.Array, e: Scales) -> jax.Array:
    """The same in ``lax.scan``."""
    q = p / "block"
    weights = Scope({}, {("norm",): q("norm", e.width), ("up",): q("up", e.width, 2 * e.width),
                         ("down",): q("down", 2 * e.width, e.width)})  # fmt: skip
    body = lambda h, _: (streams.add(e, h, mlp(weights, stacks.rms(weights, h), e), "mlp", None), None)
    return stacks.write(p, jax.lax.scan(body, stacks.read(p, x, e), length=e.depth)[0], e)


def _streams() -> dict[str, Kind]:
    of_edges, of_nodes = streams.edges, streams.nodes_out
    two, both = streams.two_inputs, streams.both_out
    encoder_decoder = lambda **options: Kind(functools.partial(networks.encoder_decoder, **options), TOKENS)
    return {
        "graph": Kind(simple(streams.graph(False), of_edges, of_nodes), VECTORS),
        "graph_sequential": Kind(simple(streams.graph(True), of_edges, of_nodes), VECTORS),
        "graph_scanned": Kind(simple(streams.graph(False), of_edges, of_nodes, scan=True), VECTORS),
        "segments": Kind(simple(streams.segments), VECTORS),
        "graph_attention": Kind(simple(streams.graph_attention), VECTORS),
        "co_attention": Kind(simple(streams.co_attention, two, both), TOKENS),
        "co_attention_scanned": Kind(simple(streams.co_attention, two, both, scan=True), TOKENS),
        "one_reads_other": Kind(simple(streams.one_reads_other, two, both), TOKENS),
        "joint_attention": Kind(simple(streams.joint_attention, two, both), TOKENS),
        "reversible": Kind(simple(streams.reversible, streams.twice, both), TOKENS),
        "reversible_halves": Kind(simple(streams.reversible_halves), TOKENS),
        "additive_coupling": Kind(simple(streams.additive_coupling), TOKENS),
        "pair_and_single": Kind(simple(streams.pair_and_single, of_edges, of_nodes), VECTORS),
        "hyper_connections": Kind(
            simple(streams.hyper_connections, streams.hyper_start, streams.hyper_out), TOKENS, rare=True
        ),
        "momentum": Kind(simple(streams.momentum, streams.wavenet_start, of_nodes), TOKENS, rare=True),
        "highway": Kind(simple(streams.highway), TOKENS),
        "parallel_sums": Kind(simple(streams.parallel_sums), TOKENS),
        "parallel_first": Kind(simple(streams.parallel_first), TOKENS),
        "conformer": Kind(simple(streams.conformer), TOKENS),
        "wavenet": Kind(simple(streams.wavenet, streams.wavenet_start, streams.skips_out), TOKENS),
        "conditioned": Kind(simple(streams.conditioned, streams.condition_start, of_nodes), TOKENS),
        "own_condition": Kind(simple(streams.own_condition(2), streams.twice, streams.condition_out), TOKENS),
        "own_condition_of_three": Kind(simple(streams.own_condition(3), streams.twice, of_nodes), TOKENS),
        "own_conditions_of_two": Kind(simple(streams.own_conditions_of_two, two, both), TOKENS),
        "own_time": Kind(simple(streams.own_time), TOKENS),
        "conditioned_scanned": Kind(simple(streams.conditioned, streams.condition_start, of_nodes, scan=True), TOKENS),
        "injected": Kind(simple(streams.injected, streams.twice, of_nodes), TOKENS, rare=True),
        "value_residual": Kind(simple(streams.value_residual, streams.twice, of_nodes), TOKENS),
        "encoder_decoder": encoder_decoder(),
        "t5": encoder_decoder(bias=True),
        "bart": encoder_decoder(place="post", norm="layer", tied=True),
        "deeper_decoder": encoder_decoder(decoder=2),
        "unet": Kind(networks.unet, VECTORS),
        "clip": Kind(networks.towers, TOKENS),
        "clip_normed": Kind(functools.partial(networks.towers, unit=True), TOKENS, harmless=_READOUTS),
        "siamese": Kind(functools.partial(networks.towers, shared=True), TOKENS),
        "two_outputs": Kind(functools.partial(networks.towers, similarity=False), TOKENS,
                            arguments={"output": lambda result: jnp.concatenate(result)}),
        "stages": Kind(networks.stages, VECTORS),
        "merging": Kind(functools.partial(networks.stages, projected=False), VECTORS),
        "images": Kind(networks.images, IMAGES),
        "ensemble": Kind(networks.ensemble, FLAT),
        "masked_autoencoder": Kind(networks.masked_autoencoder, VECTORS),
        "looped": Kind(looped, TOKENS, rule=LOOPED_RULE),
        "looped_scan": Kind(looped_scan, TOKENS, rule=LOOPED_RULE),
    }  # fmt: skip


def _kernels() -> dict[str, Kind]:
    kinds = {
        name: Kind(stack((name, branch)), LONG if name == "flash" else TOKENS, rare=name in kernels.RARE)
        for name, branch in kernels.KERNELS.items()
    }
    flash = ("flash", kernels.KERNELS["flash"])
    return kinds | {
        "flash_scanned": Kind(stack(flash, "mlp", scan=True), LONG, rare=True),
        "norm_kernel": Kind(stack("attention", "mlp", norm="kernel"), TOKENS, rare=True),
        "sum_kernel": Kind(stack("attention", "mlp", write_as="kernel"), TOKENS, rare=True),
    }


NORMS["kernel"], WRITES["kernel"] = kernels.norm_kernel, kernels.sum_kernel


_LINEN: Mapping[str, dict[str, Any]] = {
    "plain": {},
    "batch_norm": {"norm": functools.partial(nn.BatchNorm, use_running_average=False)},
    "group_norm": {"norm": functools.partial(nn.GroupNorm, num_groups=4)},
    "fp8": {"dense": functools.partial(nn.Dense, use_bias=False, dot_general_cls=nn.Fp8DotGeneralOp)},
    "spectral_norm": {"wrap": libraries.spectral_norm},
    "weight_norm": {"wrap": nn.WeightNorm},
}  # fmt: skip
_DROPS = (
    libraries.drop_path, libraries.drop_path_floor, libraries.drop_path_flax, libraries.drop_batch, libraries.dropout,
    libraries.noisy,
)  # fmt: skip


def _libraries() -> dict[str, Kind]:
    linen = lambda options: Kind(functools.partial(libraries.LinenNet, **options), T, None)
    kinds = {f"linen_{name}": linen(options) for name, options in _LINEN.items()}
    haiku = lambda make, x: Kind(lambda e: make(e, x), x, None)
    return kinds | {
        "nnx": Kind(libraries.nnx_net(), T, None),
        "nnx_tied": Kind(libraries.nnx_net(tied=True), T, None),
        "equinox": Kind(libraries.eqx_net, T, None),
        "haiku_mlp": haiku(libraries.haiku_mlp, V),
        "haiku_unnamed": haiku(libraries.haiku_unnamed, V),
        "haiku_attention": haiku(libraries.haiku_attention, T),
        "haiku_stack": haiku(libraries.haiku_stack, V),
    }


def _random() -> dict[str, Kind]:
    kinds = {drop.__name__: Kind(functools.partial(libraries.LinenNet, drop=drop), T, None) for drop in _DROPS}
    kinds |= {
        f"{drop.__name__}_train": Kind(
            functools.partial(libraries.LinenNet, drop=drop), T, None, arguments={"train": True}
        )
        for drop in (libraries.drop_path, libraries.drop_path_flax)
    }
    return kinds | {
        "scanned_drop_path": Kind(libraries.ScannedLinen, T, None),
        "nnx_dropout": Kind(libraries.nnx_net(drop=0.1), T, None),
    }


def _writes() -> dict[str, Kind]:
    outside = functools.partial(stack, "attention", "mlp", write_as="outside")
    kinds = {name: Kind(stack("attention", "mlp", write_as=name), TOKENS) for name in WRITES if name != "kernel"}
    return kinds | {
        "outside_without_norm": Kind(outside(norm="none"), TOKENS),
        "outside_scanned": Kind(outside(scan=True), TOKENS),
    }


GROUPS: Mapping[str, Mapping[str, Kind]] = {
    "branches": _branches(), "weightless": _weightless(), "norms": _norms(), "names": _names(), "ends": _ends(),
    "streams": _streams(), "kernels": _kernels(), "libraries": _libraries(), "random": _random(),
    "sums": _writes(),
}  # fmt: skip
KINDS: Mapping[str, Kind] = {
    **{f"{group}/{name}": kind for group, kinds in GROUPS.items() for name, kind in kinds.items()},
    **STYLES,
    **FRESH,
    **OUTSIDER,
    **PLACES,
    **RESIDUAL,
    **UNSEEN,
}
