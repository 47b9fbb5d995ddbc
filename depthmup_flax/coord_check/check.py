"""The coordinate check of networks of several sizes."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import itertools
import logging
import numbers
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from depthmup_flax.coord_check.audited import code_findings
from depthmup_flax.coord_check.diagnosis import Evidence, diagnose
from depthmup_flax.coord_check.judgment import judge
from depthmup_flax.coord_check.layer_names import SizedNetwork, collapsers, collect_layers, sample_blocks
from depthmup_flax.coord_check.measure import Loss, Measurement
from depthmup_flax.coord_check.networks import Network, Traced, traced
from depthmup_flax.coord_check.notes import notes
from depthmup_flax.coord_check.probe import Probe
from depthmup_flax.coord_check.recorded_sizes import EVERYTHING, OUTPUT, Record, Size, Table
from depthmup_flax.coord_check.report import Report
from depthmup_flax.process.cores import cpu_cores
from depthmup_flax.rule.info_trees import flatten_info, param_count
from depthmup_flax.rule.parametrization import Parametrization, ParamInfo, require_parametrization
from depthmup_flax.util.errors import InputError
from depthmup_flax.util.precision import products_in

log = logging.getLogger(__name__)

_COMPILERS = 4  # threads; a compilation of a large network may take a GB


@products_in("float32")
def coord_check(
    build: Callable[[int, int], Network],
    labels: jax.typing.ArrayLike | None = None,
    *,
    rule: Parametrization,
    width: int,
    depth: int,
    widths: Sequence[int] = (),
    depths: Sequence[int] = (),
    loss: Loss | None = None,
    steps: int = 10,
    seeds: int = 4,
    tolerance: float = 0.2,
    spectral: bool = False,
    say: Callable[[str], None] = log.info,
) -> Report:
    """Trains networks of several widths and depths for a few steps, and fits exponents of their sizes.

    Under a right parametrization activations, outputs and their changes keep their size (TP6 Table 1, Claims 7.1 and
    7.2; B24 Table 1). All parameters train together, from a readout at zero (after a random one, outputs change
    slightly less at larger widths for a while). Each group of parameters also trains alone, as the stem hides a wrong
    exponent of the blocks when all train together.

    Small networks are not asymptotic: use widths from 8 times the base, depths from 32 branches or a branch multiplier
    of at most 1/2, and a batch of a few examples. Mistakes change exponents by 1/2 or more. Matrix products have full
    float32 precision, unless ``jax.default_matmul_precision`` is set.

    Cost: one compilation per network, then ``seeds`` times ``steps`` steps for all parameters and 2 steps for each
    group alone. There are about as many groups as weights in a layer.

    Args:
      build: ``(width, depth) -> Network`` on a fixed batch, the same for all; see `linen_network`, `nnx_network`.
      labels: integers of the shape of the outputs without the last axis, for the softmax cross-entropy. ``None`` if
        ``loss`` is given.
      rule: the parametrization of the networks, which gives the expected exponents.
      width: width of the networks whose depth varies.
      depth: depth of the networks whose width varies.
      widths, depths: sizes to try, at least 3 each; () leaves an axis out.
      loss: ``outputs -> scalar``, instead of ``labels``.
      steps: training steps.
      seeds: initial values per size.
      tolerance: largest exponent that counts as flat; above 0 and below 1/2.
      spectral: also record the spectral norm of every weight's update.
      say: called with a progress line per network, for example ``print``; the default logs it.

    Raises:
      InputError: before training, for too few sizes or seeds, networks that do not grow with their sizes, or labels
        that do not fit the outputs.
    """
    require_parametrization(rule)
    require_plan(widths, depths, width, depth, steps, seeds, tolerance)
    sizes = [Size("width", w, w, depth) for w in widths] + [Size("depth", d, width, d) for d in depths]
    distinct = {size[2:]: size for size in sizes}  # a network may be on both axes
    network_of = {key: traced(_built(build, size)) for key, size in distinct.items()}
    networks = [network_of[size[2:]] for size in sizes]
    infos = [flatten_info(network.network.info) for network in networks]
    _require_growth("width", widths, infos[: len(widths)])
    if rule.width == "mup":
        _require_width_ratios(widths, infos[: len(widths)])
    if not _uses_grow(depths, networks[len(widths) :]):
        _require_growth("depth", depths, infos[len(widths) :])
    loss = _checked_loss(labels, loss, networks[0].shapes[OUTPUT])
    collapses = collapsers([[*info, *one.shapes] for info, one in zip(infos, networks, strict=True)], infos)
    sized = [SizedNetwork(*fields) for fields in zip(sizes, networks, infos, collapses, strict=True)]
    blocks = [None] * len(widths) + sample_blocks(sized[len(widths) :])
    measurements = [
        Measurement(one, masks, loss, rule, steps, seeds, spectral) for one, masks in zip(sized, blocks, strict=True)
    ]
    records = train_networks(measurements, say)
    layers = collect_layers(sized)
    table = Table(records, layers.readout_activations)
    quantities = judge(table, rule, tolerance, layers)
    found = {axis: code_findings(axis, sized, rule) for axis in table.axes()}
    probe = Probe(networks[0].network, loss, collapses[0])
    causes = diagnose(Evidence(table, quantities, rule, layers, tolerance, probe, found))
    low = sorted({network.precision for network in networks if network.precision})
    unread = [axis for axis, findings in found.items() if findings is None and networks[0].network.source]
    return Report(records, quantities, causes, rule, seeds, tolerance, tuple(notes(table, rule, layers, low, unread)))


def train_networks(measurements: Sequence[Measurement], say: Callable[[str], None]) -> list[Record]:
    """The records of all networks, which are compiled in parallel and run one after another.

    A network on both axes is measured once, for the depth, which records more.
    """
    first = measurements[0]
    distinct = {measurement.size[2:]: measurement for measurement in measurements}
    say(
        f"{len(distinct)} networks: each is compiled, then trains {first.seeds} times {sum(first.lengths)} steps "
        f"({first.steps} together, the rest by {len(first.groups) - 1} groups of parameters alone)"
    )
    start = time.monotonic()
    records: dict[tuple[int, int], list[Record]] = {}
    with concurrent.futures.ThreadPoolExecutor(min(_COMPILERS, cpu_cores())) as pool:
        # Tracing needs this thread's settings, such as the precision of products.
        compiled = [pool.submit(measurement.lowered().compile) for measurement in distinct.values()]
        for done, (measurement, program) in enumerate(zip(distinct.values(), compiled, strict=True), start=1):
            size = measurement.size
            records[size[2:]] = new = measurement.records(program.result())
            last = Table(new).values(size.axis, EVERYTHING, "change", OUTPUT, measurement.steps)
            seconds = time.monotonic() - start
            left = f", about {seconds / done * (len(distinct) - done):.0f} s left" if done < len(distinct) else ""
            say(
                f"network {done} of {len(distinct)}, width {size.width}, depth {size.depth}: outputs changed by "
                f"{np.mean(last[size.size]):.3g} in {measurement.steps} steps ({seconds:.0f} s{left})"
            )
    return [
        dataclasses.replace(record, axis=measurement.size.axis, size=measurement.size.size)
        for measurement in measurements
        for record in records[measurement.size[2:]]
        if measurement.blocks is not None or record.quantity != "nonlinear"
    ]


def require_plan(
    widths: Sequence[int], depths: Sequence[int], width: int, depth: int, steps: int, seeds: int, tolerance: float
) -> None:
    """Raises `InputError` for arguments that `coord_check` cannot use."""
    for name, sizes in (("widths", widths), ("depths", depths)):
        if isinstance(sizes, (str, bytes)) or not isinstance(sizes, Collection) or not all(map(_is_integer, sizes)):
            raise InputError(f"{name} is {sizes!r}: give integers, such as {name}=(128, 256, 512).")
    if not widths and not depths:
        raise InputError("widths and depths are both empty: give at least three sizes of one.")
    for name, sizes in (("widths", widths), ("depths", depths)):
        if sizes and (len(set(sizes)) < 3 or min(sizes) < 1):
            raise InputError(f"{name} is {tuple(sizes)}: use at least three positive sizes, such as (64, 128, 256).")
    for name, value in (("width", width), ("depth", depth), ("steps", steps), ("seeds", seeds)):
        if not _is_integer(value):
            raise InputError(f"{name} is {value!r}: use an integer.")
        if value < 1:
            raise InputError(f"{name} is {value}: use a positive number.")
    if seeds < 2:
        raise InputError(f"seeds is {seeds}: a confidence interval needs at least 2. Use, for example, seeds=4.")
    if not isinstance(tolerance, numbers.Real) or not 0 < float(tolerance) < 0.5:
        raise InputError(
            f"tolerance is {tolerance}: use a number above 0 and below 0.5; mistakes have exponents of 1/2 or more."
        )


def _is_integer(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _built(build: Callable[[int, int], Network], size: Size) -> Network:
    """The network of a size; raises `InputError` for something else."""
    network = build(size.width, size.depth)
    if not isinstance(network, Network):
        raise InputError(
            f"build({size.width}, {size.depth}) returned {type(network).__name__}: return a Network, from "
            "linen_network, nnx_network or Network(init, apply, info, optimizer)."
        )
    if not (isinstance(network.optimizer, tuple) and callable(getattr(network.optimizer, "update", None))):
        raise InputError(f"optimizer is {network.optimizer!r}: pass an optax optimizer, such as dm.adamw(1e-3, ...).")
    return network


def _require_width_ratios(widths: Sequence[int], infos: Sequence[Mapping[str, ParamInfo]]) -> None:
    """Raises `InputError` unless m grows with the argument ``width`` of ``build``."""
    ratios = {n: max(leaf.model_width for leaf in info.values()) for n, info in zip(widths, infos, strict=True)}
    for small, large in itertools.pairwise(sorted(ratios)):
        if ratios[large] <= ratios[small]:
            raise InputError(
                f"info has the width ratio m = {ratios[small]:g} at width {small} and {ratios[large]:g} at width "
                f"{large}: build the model and its info with the argument width of build(width, depth)."
            )


def _uses_grow(sizes: Sequence[int], networks: Sequence[Traced]) -> bool:
    """Whether networks have equally many parameters, and deeper ones use them more often."""
    pairs = sorted(zip(sizes, networks, strict=True), key=lambda pair: pair[0])
    counts = [(param_count(network.network.info), network.uses.counts.total()) for _, network in pairs]
    return all(few[0] == many[0] and few[1] < many[1] for few, many in itertools.pairwise(counts)) and bool(counts)


def _require_growth(axis: str, sizes: Sequence[int], infos: Sequence[Mapping[str, ParamInfo]]) -> None:
    """Raises `InputError` unless networks grow with their sizes: equal networks would pass."""
    of_size = dict(sorted(zip(sizes, infos, strict=True), key=lambda pair: pair[0]))
    for (small, few), (large, many) in itertools.pairwise(of_size.items()):
        if param_count(many) <= param_count(few):
            raise InputError(
                f"build makes a network of {param_count(few)} parameters at {axis} {small} and of {param_count(many)} "
                f"at {axis} {large}: build the model with the argument {axis} of build(width, depth)."
            )
        few, many = ({path: leaf for path, leaf in info.items() if leaf.in_branch} for info in (few, many))
        if axis == "width" or not few or not many:
            continue
        if param_count(many) <= param_count(few):
            raise InputError(
                f"info has {param_count(few)} parameters inside residual branches at depth {small} and "
                f"{param_count(many)} at depth {large}, but the network grows: let in_branch match the branches of "
                "every layer."
            )
        ratios = [max(leaf.depth_ratio for leaf in leaves.values()) for leaves in (few, many)]
        if ratios[1] < ratios[0]:
            raise InputError(
                f"depth_ratio falls from {ratios[0]:g} at depth {small} to {ratios[1]:g} at depth {large}: pass "
                "depth / base_depth, not its inverse."
            )


def _checked_loss(labels: jax.typing.ArrayLike | None, loss: Loss | None, outputs: jax.ShapeDtypeStruct) -> Loss:
    """``loss``, or the cross-entropy of ``labels``; raises `InputError`."""
    if loss is not None:
        if labels is not None:
            raise InputError("labels and loss are both given: give one of them.")
        shape = jax.eval_shape(loss, outputs) if callable(loss) else loss
        if getattr(shape, "shape", None) != ():
            what = f"returns shape {shape.shape}" if hasattr(shape, "shape") else f"is {loss!r}"
            raise InputError(f"loss {what}: pass a function of the outputs that returns one number, such as a mean.")
        return loss
    if labels is None:
        raise InputError("labels and loss are both missing: give integer labels, or a loss of the outputs.")
    targets = jnp.asarray(labels)
    if not jnp.issubdtype(targets.dtype, jnp.integer) or targets.shape != outputs.shape[:-1]:
        raise InputError(
            f"labels have shape {targets.shape} and type {targets.dtype}, but the outputs have shape {outputs.shape}: "
            f"give integers of shape {outputs.shape[:-1]}, or a loss."
        )
    low, high = int(targets.min()), int(targets.max())
    if low < 0 or high >= outputs.shape[-1]:
        raise InputError(
            f"labels run from {low} to {high}, but the network has {outputs.shape[-1]} outputs: use labels from 0, and "
            "one output per class."
        )
    return lambda outputs: optax.softmax_cross_entropy_with_integer_labels(outputs, targets).mean()
