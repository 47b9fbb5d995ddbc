"""The coordinate check of networks of several sizes."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import logging
import numbers
import time
from collections.abc import Callable, Collection, Sequence

import jax
import numpy as np
import optax

from depthmup_flax.check.causes import causes_in_rule, is_open, read_code
from depthmup_flax.check.judgment import judge
from depthmup_flax.check.layers import SizedNetwork, collect_layers, named_alike
from depthmup_flax.check.measure import Loss, Measurement
from depthmup_flax.check.networks import Network, traced
from depthmup_flax.check.records import OUTPUT, Record, Size, Table
from depthmup_flax.check.report import Report, notes
from depthmup_flax.rule.info_trees import param_count
from depthmup_flax.rule.parametrization import PRESETS, Parametrization, require_parametrization
from depthmup_flax.util.errors import InputError, require_number
from depthmup_flax.util.groups import grouped
from depthmup_flax.util.precision import products_in
from depthmup_flax.util.surroundings import own_surroundings

log = logging.getLogger(__name__)


@own_surroundings(mesh=False)
@products_in("float32")
def coord_check(
    build: Callable[[int, int], Network],
    labels: jax.typing.ArrayLike | None = None,
    *,
    rule: Parametrization = PRESETS["depth_mup"],
    width: int,
    depth: int,
    widths: Sequence[int] = (),
    depths: Sequence[int] = (),
    loss: Loss | None = None,
    steps: int = 2,
    seeds: int = 4,
    tolerance: float = 0.2,
    say: Callable[[str], None] = log.info,
) -> Report:
    """Trains networks of several widths and depths for a few steps, and fits exponents of their sizes.

    A right parametrization keeps initial values, gradients and updates at the sizes that the rule gives them (TP6
    Definition 6.1 and Table 2; B24 Table 1), which are compared at the first steps, as `depthmup_flax.compare_runs`
    does of two runs. All parameters train together, from a readout of the rule's scale.

    The forward pass is audited first. Where the audit does not judge the code, activations and their changes are
    measured, too, which must not grow (TP6 Claims 7.1 and 7.2).

    Small networks are not asymptotic. Where the code is right, a gradient whose exponent is no mistake's is a note.
    Without ``widths`` and ``depths`` the check takes the base's sizes and 4 times as much or, if the networks are
    cheap, more. Mistakes change exponents by 1/2 or more. Matrix products have full float32 precision, unless
    ``jax.default_matmul_precision`` is set.

    Cost: for each network one compilation, then ``seeds`` times ``steps`` steps.

    Args:
      build: ``(width, depth) -> Network`` on a fixed batch, the same for all; see `checked_network`.
      labels: integers of the shape of the outputs without the last axis, for the softmax cross-entropy. ``None`` if
        ``loss`` is given.
      rule: the parametrization of the networks, which gives the expected exponents; by default Depth-muP.
      width: width of the networks whose depth varies.
      depth: depth of the networks whose width varies.
      widths, depths: sizes to try, at least 2 of each, or of one axis, which alone is checked; by default, the check
        chooses both.
      loss: ``outputs -> scalar``, instead of ``labels``.
      steps: training steps.
      seeds: initial values per size.
      tolerance: largest exponent that counts as flat; above 0 and below 1/2.
      say: called with lines of progress, for example ``print``; the default logs them.

    Raises:
      InputError: before training, for too few sizes or seeds, networks that do not grow with their sizes, or labels
        that do not fit the outputs.
    """
    require_parametrization(rule)
    require_plan(widths, depths, width, depth, steps, seeds, tolerance)
    say("reading the code of the networks")
    of_size = functools.cache(lambda width, depth: traced(build(width, depth)))  # a network may be on both axes
    if not widths and not depths:
        base = of_size(width, depth)
        widths, depths = chosen_sizes(width, depth, base.flops, base.equations)
    sizes = [Size("width", w, w, depth) for w in widths] + [Size("depth", d, width, d) for d in depths]
    sized = named_alike([SizedNetwork(size, of_size(size.width, size.depth)) for size in sizes])
    of_axis = grouped(sized, lambda one: one.size.axis)
    for networks in of_axis.values():
        _require_growth(networks)
    loss = _checked_loss(labels, loss, sized[0].traced.shapes[OUTPUT])
    layers = collect_layers(sized)
    readings = {axis: read_code(axis, networks, rule) for axis, networks in of_axis.items()}
    open_ = {axis for axis, reading in readings.items() if is_open(axis, reading, layers, rule)}
    plan = functools.partial(Measurement, loss=loss, rule=rule, steps=steps, seeds=seeds, of_layers=bool(open_))
    measurements = [plan(one, effects=one.paths_of(layers.matrix_updates)) for one in sized]
    records = train_networks(measurements, say)
    table = Table(records)
    causes_of = {axis: [*causes_in_rule(axis, rule), *reading.certain] for axis, reading in readings.items()}
    right = {axis for axis, reading in readings.items() if reading.is_whole and not causes_of[axis]}
    quantities = judge(table, rule, tolerance, layers, right, open_)
    causes = list(itertools.chain.from_iterable(causes_of.values()))
    return Report(records, quantities, causes, rule, seeds, tolerance, notes(table, quantities, causes, readings))


def train_networks(measurements: Sequence[Measurement], say: Callable[[str], None]) -> list[Record]:
    """The records of all networks, one after another; one on both axes is run once."""
    first = measurements[0]
    distinct = {measurement.network.size[2:]: measurement for measurement in measurements}
    say(f"{len(distinct)} networks, (width, depth) {', '.join(map(str, distinct))}: {first.steps} steps each")
    start = time.monotonic()
    records: dict[tuple[int, int], list[Record]] = {}
    for done, (size, measurement) in enumerate(distinct.items(), start=1):
        records[size] = list(measurement.records())
        seconds = time.monotonic() - start
        say(f"network {done} of {len(distinct)}, width {size[0]}, depth {size[1]} ({seconds:.0f} s)")
    return [
        dataclasses.replace(record, axis=measurement.network.size.axis, size=measurement.network.size.size)
        for measurement in measurements
        for record in records[measurement.network.size[2:]]
    ]


def _require_growth(networks: Sequence[SizedNetwork]) -> None:
    """Raises `InputError` unless networks grow with their size: equal ones would pass."""
    of_size = {one.size.size: one for one in networks}
    for small, large in itertools.pairwise(of_size[size] for size in sorted(of_size)):
        axis, counts = small.size.axis, [param_count(one.info) for one in (small, large)]
        if counts[1] <= counts[0] and large.traced.flops <= small.traced.flops:
            raise InputError(
                f"build makes a network of {counts[0]} parameters at {axis} {small.size.size} and of {counts[1]} at "
                f"{axis} {large.size.size}: build the model with the argument {axis} of build(width, depth)."
            )


def _checked_loss(labels: jax.typing.ArrayLike | None, loss: Loss | None, outputs: jax.ShapeDtypeStruct) -> Loss:
    """``loss``, or the cross-entropy of ``labels``; raises `InputError`."""
    if (labels is None) == (loss is None):
        raise InputError("labels and loss: give one of them, integer labels or a loss of the outputs.")
    if loss is not None:
        if (shape := jax.eval_shape(loss, outputs).shape) != ():
            raise InputError(f"loss returns shape {shape}: pass a function of the outputs that returns one number.")
        return loss
    targets = np.asarray(labels)
    if not np.issubdtype(targets.dtype, np.integer) or targets.shape != outputs.shape[:-1]:
        raise InputError(f"labels are {targets.dtype}{targets.shape}: use integers {outputs.shape[:-1]}, or a loss.")
    low, high = int(targets.min()), int(targets.max())
    if low < 0 or high >= outputs.shape[-1]:
        raise InputError(f"labels run from {low} to {high}, but the network has {outputs.shape[-1]} outputs.")
    return lambda outputs: optax.softmax_cross_entropy_with_integer_labels(outputs, targets).mean()


# Times the base's sizes. Small networks are far from their limits: the largest that the budgets allow are taken.
_FACTORS = ((4, 16), (2, 8), (1, 4))
# Of the networks of an axis together. On two CPU cores, a check of this cost takes less than half a minute.
_FLOPS_OVER_WIDTH, _FLOPS_OVER_DEPTH = 8e9, 3e9  # of one forward pass each
_EQUATIONS = 1000  # that are compiled, if layers are not in a loop


def chosen_sizes(width: int, depth: int, flops: float, equations: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Widths and depths whose networks the budgets allow; the smallest ones if none are cheap enough.

    Args:
      width, depth: of the base.
      flops: of its forward pass; they grow as width^2 and as depth.
      equations: of its jaxpr; at most, they grow as depth.
    """
    cheap = lambda cost: next((factors for factors in _FACTORS if cost(factors) <= 1), _FACTORS[-1])
    wider = cheap(lambda factors: flops * sum(times**2 for times in factors) / _FLOPS_OVER_WIDTH)
    deeper = cheap(lambda factors: sum(factors) * max(flops / _FLOPS_OVER_DEPTH, equations / _EQUATIONS))
    return tuple(width * times for times in wider), tuple(depth * times for times in deeper)


def require_plan(
    widths: Sequence[int], depths: Sequence[int], width: int, depth: int, steps: int, seeds: int, tolerance: float
) -> None:
    """Raises `InputError` for arguments that `coord_check` cannot use."""
    is_size = lambda size: isinstance(size, numbers.Integral) and int(size) > 0
    for name, sizes in (("widths", widths), ("depths", depths)):
        whole = isinstance(sizes, Collection) and all(map(is_size, sizes))
        if not whole or len(set(sizes)) == 1:
            raise InputError(f"{name} is {sizes!r}: use at least two positive integers, such as (64, 256).")
    # A confidence interval needs two seeds.
    for name, value, least in (("width", width, 1), ("depth", depth, 1), ("steps", steps, 1), ("seeds", seeds, 2)):
        require_number(name, value, least=least, whole=True)
    require_number("tolerance", tolerance, above=0, below=0.5)  # mistakes have exponents of 1/2 or more
