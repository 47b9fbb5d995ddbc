"""What a search tunes: fields of the config, each with a range on a log scale."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core
from ml_collections import ConfigDict

from depthmup_flax.config.fields import get_field
from depthmup_flax.storage.records import CONTINUOUS, LEARNING_RATE
from depthmup_flax.trainer.engine.experiment import RULE, Experiment
from depthmup_flax.trainer.engine.from_config import abstract_batch
from depthmup_flax.util.errors import InputError, did_you_mean
from depthmup_flax.util.jaxprs import Interpreter

Range = tuple[float, float]  # lowest and highest value, both above 0
Ranges = Mapping[str, Range]  # dotted field -> its range

# Tuned with the learning rate by default: `benchmarks.what_to_tune` measures the gain at equal compute.
_DEFAULT = ("branch_multiplier", "input_lr_factor", "output_lr_factor")
# Octaves on each side of the present value that are searched, where no range is given; a rule's constant is 1 if unset.
_RULE = {path: 3.0 if path.endswith("_lr_factor") else 2.0 for path in CONTINUOUS if path.startswith(RULE)}
_OTHERS = 2.0
_MOST_OCTAVES = 20


def parse_range(word: str) -> tuple[str, Any]:
    """A word of ``--tune``, such as ``gamma0`` or ``gamma0=0.5:2``: the name and the range, ``None`` if not given."""
    name, equals, ends = word.partition("=")
    return name, ends.split(":") if equals else None


def default_names(config: ConfigDict) -> list[str]:
    """What is tuned besides the learning rate where nothing is named; a factor that is 0 stays so."""
    return [name for name in _DEFAULT if present_value(config, f"{RULE}.{name}") > 0]


def tuned_ranges(config: ConfigDict, named: Iterable[tuple[str, Any]], octaves: int) -> dict[str, Range]:
    """Dotted field -> its range; the learning rate is always among them.

    Args:
      config: of the proxy.
      named: last parts of fields, or fields, each with its lowest and highest value or ``None``: some octaves on each
        side of the config's value.
      octaves: of the learning rate.

    Raises:
      InputError: a name is unknown or given twice, or a range is none.
    """
    if not 1 <= octaves <= _MOST_OCTAVES:
        raise InputError(f"--octaves is {octaves}: use a whole number from 1 to {_MOST_OCTAVES}.")
    paths = (LEARNING_RATE, "optimizer.weight_decay", *_RULE, *(f"hyper.{name}" for name in config.hyper))
    known = {path.rpartition(".")[2]: path for path in paths}
    given: dict[str, Any] = {}
    for name, ends in named:
        path = name if name in paths else known.get(name)
        if path is None:
            raise InputError(f"--tune has {name!r}: {did_you_mean(name, known)}")
        if path in given:
            raise InputError(f"--tune has {name!r} twice: give each name once.")
        given[path] = ends
    return {path: _range(config, path, ends, octaves) for path, ends in {LEARNING_RATE: None, **given}.items()}


def _range(config: ConfigDict, path: str, ends: Any, octaves: int) -> Range:
    wrong = f"--tune: {path.rpartition('.')[2]} is"
    example = "a range, such as 0.25:4, in Python (0.25, 4)"
    if ends is None:
        present = present_value(config, path)
        if not 0 < present < math.inf:
            raise InputError(f"{wrong} {present}, from which no search can start. Give {example}.")
        wide = octaves if path == LEARNING_RATE else _RULE.get(path, _OTHERS)
        return present * 2.0**-wide, present * 2.0**wide
    try:
        low, high = map(float, ends)
    except (TypeError, ValueError):
        low = high = math.nan
    if not 0 < low < high < math.inf:
        shown = ":".join(map(str, ends)) if isinstance(ends, (list, tuple)) else repr(ends)
        raise InputError(f"{wrong} {shown}: use two numbers above 0, {example}.")
    if math.log2(high / low) > 2 * _MOST_OCTAVES:
        raise InputError(f"{wrong} {low:g} to {high:g}: use at most {2 * _MOST_OCTAVES} octaves.")
    return low, high


def present_value(config: ConfigDict, path: str) -> float:
    """The value of a field that may be tuned."""
    value = get_field(config, path)
    return 1.0 if value is None else value


def octave_grid(low: float, high: float) -> tuple[float, ...]:
    """Values from ``low`` to ``high``, whose ratio is about 2."""
    count = max(1, round(math.log2(high / low)))
    return tuple(low * (high / low) ** (k / count) for k in range(count + 1))


def unread(experiment: Experiment, paths: Collection[str]) -> list[str]:
    """The fields among ``paths`` on which initial values and a training step do not depend.

    These are factors of a role that no trained parameter has, and constants that a network of the user's does not take.
    Both are traced with the fields as arguments; nothing is computed.
    """
    arguments = experiment.state_shapes(), abstract_batch(experiment.config, experiment.dataset)
    values = dict.fromkeys(paths, jax.ShapeDtypeStruct((), jnp.float32))
    workload = experiment.workload
    train = lambda values, state, batch: (workload.init(values).carry, workload.step(values)(state, batch)[0].carry)
    jaxpr = jax.make_jaxpr(train)(values, *arguments)
    names = [frozenset([path]) for path in sorted(values)]  # a dictionary's leaves are in this order
    others = [frozenset[str]()] * (len(jaxpr.in_avals) - len(names))
    read = frozenset[str]().union(*_Dependence().run(jaxpr, [*names, *others]))
    return [path for path in paths if path not in read]


class _Dependence(Interpreter[frozenset[str]]):
    """For every array of a jaxpr, the arguments on which it depends."""

    def constant(self, array: Any) -> frozenset[str]:
        return frozenset()

    def operation(self, eqn: core.JaxprEqn, inputs: Sequence[frozenset[str]]) -> list[frozenset[str]]:
        return [self.join(frozenset(), *inputs)] * len(eqn.outvars)

    def join(self, one: frozenset[str], *others: frozenset[str]) -> frozenset[str]:
        return one.union(*others)
