"""The coordinate check of networks of several sizes."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import itertools
import logging
import time
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax

from depthmup_flax.check.audited import groups_alone, read_code
from depthmup_flax.check.diagnosis import Evidence, diagnose
from depthmup_flax.check.judgment import judge
from depthmup_flax.check.layer_names import SizedNetwork, collapsers, collect_layers, sample_blocks
from depthmup_flax.check.measure import Loss, Measurement
from depthmup_flax.check.networks import Network, Traced, traced
from depthmup_flax.check.notes import notes
from depthmup_flax.check.probe import Probe
from depthmup_flax.check.recorded_sizes import EVERYTHING, OUTPUT, Record, Size, Table
from depthmup_flax.check.report import Report
from depthmup_flax.check.sizes import chosen_sizes, require_plan
from depthmup_flax.devices.process.cores import cpu_cores
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
    steps: int = 4,
    seeds: int = 4,
    tolerance: float = 0.2,
    spectral: bool = False,
    say: Callable[[str], None] = log.info,
) -> Report:
    """Trains networks of several widths and depths for a few steps, and fits exponents of their sizes.

    Under a right parametrization activations, outputs and their changes keep their size (TP6 Table 1, Claims 7.1 and
    7.2; B24 Table 1). All parameters train together, from a readout at zero (after a random one, outputs change
    slightly less at larger widths for a while).

    The forward pass is audited first. Where the code decides, the check measures what an audit does not see: initial
    values, and the updates of the optimizer. Elsewhere each group of parameters also trains alone, as the stem hides a
    wrong exponent of the blocks when all train together. A cause that the code excludes is not named.

    Small networks are not asymptotic. An exponent that approaches the expected one as networks grow is a note with the
    sizes to use if code, initial values and updates are right, and otherwise unclear. Without ``widths`` and ``depths``
    the check takes sizes that cost less than a minute on two CPU cores, at least 1, 2 and 4 times ``width`` and
    ``depth``. Mistakes change exponents by 1/2 or more. Matrix products have full float32 precision, unless
    ``jax.default_matmul_precision`` is set.

    Cost: one compilation per network, then ``seeds`` times ``steps`` steps for all parameters, and 2 steps for each
    group alone, or for all groups at once.

    Args:
      build: ``(width, depth) -> Network`` on a fixed batch, the same for all; see `checked_network`.
      labels: integers of the shape of the outputs without the last axis, for the softmax cross-entropy. ``None`` if
        ``loss`` is given.
      rule: the parametrization of the networks, which gives the expected exponents.
      width: width of the networks whose depth varies.
      depth: depth of the networks whose width varies.
      widths, depths: sizes to try, at least 3 of each, or of one axis, which alone is checked; by default, the check
        chooses both.
      loss: ``outputs -> scalar``, instead of ``labels``.
      steps: training steps.
      seeds: initial values per size.
      tolerance: largest exponent that counts as flat; above 0 and below 1/2.
      spectral: also record the spectral norm of every weight's update.
      say: called with lines of progress and of what the time is made of, for example ``print``; the default logs them.

    Raises:
      InputError: before training, for too few sizes or seeds, networks that do not grow with their sizes, or labels
        that do not fit the outputs.
    """
    start = time.monotonic()
    require_parametrization(rule)
    require_plan(widths, depths, width, depth, steps, seeds, tolerance)
    say("reading the code of the networks")
    network_of: dict[tuple[int, int], Traced] = {}
    if not widths and not depths:
        network_of[width, depth] = base = traced(_built(build, width, depth))
        widths, depths = chosen_sizes(width, depth, base.flops, base.equations)
    sizes = [Size("width", w, w, depth) for w in widths] + [Size("depth", d, width, d) for d in depths]
    distinct = dict.fromkeys(size[2:] for size in sizes)  # a network may be on both axes
    network_of |= {key: traced(_built(build, *key)) for key in distinct if key not in network_of}
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
    layers = collect_layers(sized)
    readings = {axis: read_code(axis, sized, rule) for axis in dict.fromkeys(size.axis for size in sizes)}
    alone = groups_alone(layers, readings.values())
    measurements = [
        Measurement(one, masks, loss, rule, steps, seeds, spectral, alone)
        for one, masks in zip(sized, blocks, strict=True)
    ]
    seconds = {"reading the code": time.monotonic() - start}
    records = train_networks(measurements, say, seconds)
    table = Table(records, layers.readout_activations)
    probe = Probe(networks[0].network, loss, collapses[0])
    evidence = Evidence(table, judge(table, rule, tolerance, layers), rule, layers, tolerance, probe, readings)
    quantities, causes = diagnose(evidence)
    say("took " + ", ".join(f"{value:.0f} s {what}" for what, value in seconds.items()))
    low = sorted({network.precision for network in networks if network.precision})
    unread = [axis for axis, reading in readings.items() if reading is None and networks[0].network.source]
    unjudged = sorted({path for reading in readings.values() if reading for path in reading.unjudged})
    remarks = tuple(notes(table, quantities, rule, layers, low, unread, unjudged, tolerance))
    return Report(records, quantities, causes, rule, seeds, tolerance, remarks)


def train_networks(
    measurements: Sequence[Measurement], say: Callable[[str], None], seconds: dict[str, float]
) -> list[Record]:
    """The records of all networks, which are compiled in parallel and run one after another.

    A network on both axes is measured once, for the depth, which records more. ``seconds`` gets what compiling and
    training took; networks that compile while another trains take no time.
    """
    first = measurements[0]
    distinct = {measurement.size[2:]: measurement for measurement in measurements}
    say(
        f"{len(distinct)} networks, (width, depth) {', '.join(map(str, distinct))}: {first.seeds} seeds each train "
        f"{first.steps} steps together, and {sum(first.lengths[1:])} in {len(first.groups) - 1} further runs"
    )
    start, training = time.monotonic(), 0.0
    records: dict[tuple[int, int], list[Record]] = {}
    with concurrent.futures.ThreadPoolExecutor(min(_COMPILERS, cpu_cores())) as pool:
        # Tracing needs this thread's settings, such as the precision of products.
        compiled = [pool.submit(measurement.lowered().compile) for measurement in distinct.values()]
        for done, (measurement, pending) in enumerate(zip(distinct.values(), compiled, strict=True), start=1):
            size, program, began = measurement.size, pending.result(), time.monotonic()
            records[size[2:]] = new = measurement.records(program)
            training += time.monotonic() - began
            last = Table(new).values(size.axis, EVERYTHING, "change", OUTPUT, measurement.steps)
            say(
                f"network {done} of {len(distinct)}, width {size.width}, depth {size.depth}: outputs changed by "
                f"{np.mean(last[size.size]):.3g} in {measurement.steps} steps ({time.monotonic() - start:.0f} s)"
            )
    seconds |= {"compiling": time.monotonic() - start - training, "training": training}
    return [
        dataclasses.replace(record, axis=measurement.size.axis, size=measurement.size.size)
        for measurement in measurements
        for record in records[measurement.size[2:]]
        if measurement.blocks is not None or record.quantity != "nonlinear"
    ]


def _built(build: Callable[[int, int], Network], width: int, depth: int) -> Network:
    """The network of a size; raises `InputError` for something else."""
    network = build(width, depth)
    if not isinstance(network, Network):
        raise InputError(
            f"build({width}, {depth}) returned {type(network).__name__}: return a Network, from "
            "checked_network or Network(init, apply, info, optimizer)."
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
