"""What a direction does, measured by two updates on small arrays: its sign, its degree, which sums keep their size.

Arrays of at most 8 entries an axis stand for the parameters, on a CPU. What is decided by a number that is being traced
is not judged. A larger network is imitated by *tiling*: the same gradients several times along each axis. The mean of
tiled numbers is that of the numbers, so an average changes no update; a sum or a norm does.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import optax

from depthmup_flax.rule.update_dependence import Dependence, Entries
from depthmup_flax.util.errors import InputError
from depthmup_flax.util.types import ArrayTree

_LONGEST = 8  # axis of an array that stands for a parameter; equal axes stay equal
_TIMES = (2, 4)  # the last two axes of a tiled array over the array's: others, so that shapes change as well
_TOLERANCE = 1e-2  # of updates, relative to the largest: epsilons are far below it, and faults above
# One of each power of ten, so that thresholds of clipping lie between the first and the second gradient of some trial:
# a normalization behind it hides a clipping of both by one factor.
_GRADIENT_SCALES = tuple(float(f"1e{power}") for power in range(-6, 13))
_FIRST = np.float32(0.03)  # the first gradient over the second
_PARAMETER_SCALE = np.float32(1e8)  # so that any decay shows
_DOWNHILL = -0.5  # cosine of updates and gradients
_FEWEST = 8  # entries of which a cosine tells anything

_Arrays = list[np.ndarray]


class NotJudged(Exception):
    """What decides is a number that is being traced."""


class Probe:
    """A direction with small arrays in place of parameters. Building it computes nothing."""

    def __init__(self, inner: optax.GradientTransformation, params: ArrayTree, paths: Sequence[str]) -> None:
        """``params`` are parameters or their shapes, with their ``paths``; what optax has masked stays masked."""
        leaves, self._structure = jax.tree.flatten(params)
        self._paths = paths
        self._inner = inner
        shapes = [tuple(min(size, _LONGEST) for size in leaf.shape) for leaf in leaves]
        dtypes = [_wide(leaf.dtype) for leaf in leaves]
        rng = np.random.default_rng(0)
        self._params = _drawn(rng, shapes, dtypes)
        self._first = [_FIRST * gradient for gradient in _drawn(rng, shapes, dtypes)]
        self._gradients = _drawn(rng, shapes, dtypes)
        self._kept = [rng.random(shape) < 0.5 for shape in shapes]
        self._compiled = jax.jit(jax.vmap(self._second_update, (0, None, None, None)))

    def _second_update(self, scale: jax.Array, *arrays: list[jax.Array]) -> list[jax.Array]:
        first, second, leaves = arrays
        update = optax.with_extra_args_support(self._inner).update
        params = jax.tree.unflatten(self._structure, leaves)
        state = self._inner.init(params)
        for gradients in (first, second):
            scaled = [scale * gradient for gradient in gradients]
            updates, state = update(jax.tree.unflatten(self._structure, scaled), state, params)
        return jax.tree.leaves(updates)

    def _updates(self, first: _Arrays, second: _Arrays, params: _Arrays) -> _Arrays:
        """The second updates ``[scale, ...]`` for gradients ``first`` and ``second`` times each of the scales.

        Raises:
          NotJudged: numbers of the direction are being traced.
          InputError: it fails on these arrays.
        """
        try:
            with _computed_now():
                scales = np.asarray(_GRADIENT_SCALES, np.float32)
                updates = self._compiled(*jax.device_put((scales, first, second, params)))
        except Exception as error:  # of another library
            raise InputError(
                f"inner cannot be measured on small arrays ({type(error).__name__}): pass geometry= for what it fixes "
                "about the size of updates, or dm.entrywise(inner) if it works entry by entry."
            ) from error
        if any(isinstance(update, jax.core.Tracer) for update in updates):
            raise NotJudged
        return [np.asarray(update) for update in updates]

    @functools.cached_property
    def _plain(self) -> _Arrays:
        return self._updates(self._first, self._gradients, self._params)

    @functools.cached_property
    def _of_tiled(self) -> _Arrays:
        return self._updates(_tiled(self._first), _tiled(self._gradients), _tiled(self._params))

    def downhill(self) -> str | None:
        """Path of a parameter whose updates point against its gradients, as those of a finished optimizer do.

        If all parameters are small, it is judged of all together. They are zero, so that a decay does not show.
        """
        zeros = [np.zeros_like(param) for param in self._params]
        of_scales = self._updates(self._first, self._gradients, zeros)
        updates = [update[_GRADIENT_SCALES.index(1.0)] for update in of_scales]
        for path, update, gradient in zip(self._paths, updates, self._gradients, strict=True):
            if update.size >= _FEWEST and _cosine(update, gradient) < _DOWNHILL:
                return path
        if all(update.size < _FEWEST for update in updates):
            together = _cosine(_joined(updates), _joined(self._gradients))
            return self._paths[0] if together < _DOWNHILL else None
        return None

    def degree(self) -> int | None:
        """The power, 0 or 1, with which the updates of all parameters follow gradients; ``None`` for any other.

        Of steep gradients, so that epsilons and initial accumulators do not show.
        """
        degrees = set[int]()
        steeper = _GRADIENT_SCALES[-1] / _GRADIENT_SCALES[-2]
        for updates in self._plain:
            before, last = _norm(updates[-2]), _norm(updates[-1])
            if before > 0 and last > 0:
                degrees.add(_power(last / before, steeper))
        return degrees.pop() if len(degrees) == 1 and degrees <= {0, 1} else None

    def of_other_entries(self, dependence: Mapping[str, Dependence]) -> str | None:
        """Path of a parameter whose updates depend on other entries by more than averages that keep their size."""
        kinds = [dependence[path].entries if path in dependence else None for path in self._paths]
        if Entries.MOVED in kinds and (path := self._moved(kinds)) is not None:
            return path
        for path, kind, updates, larger in zip(self._paths, kinds, self._plain, self._of_tiled, strict=True):
            for one, other in zip(_tiled(list(updates)), larger, strict=True):
                if kind is Entries.SUMMED and not _close(one, other):
                    return path
        return None

    def not_orthogonal(self, paths: Collection[str]) -> str | None:
        """One of ``paths`` of whose updates the entries, not the singular values, keep their size as matrices grow."""
        for path, updates, larger in zip(self._paths, self._plain, self._of_tiled, strict=True):
            if path in paths and _close(_tiled(list(updates))[-1], larger[-1]):
                return path
        return None

    def by_their_shape(self, dependence: Mapping[str, Dependence]) -> str | None:
        """Path of a parameter whose updates, entry by entry, are multiplied by a function of its shape."""
        for path, updates, larger in zip(self._paths, self._plain, self._of_tiled, strict=True):
            if path not in dependence or dependence[path].on_parameters:
                continue
            for one, other in zip(_tiled(list(updates)), larger, strict=True):
                if _is_another_multiple(one, other):
                    return path
        return None

    def _moved(self, kinds: Sequence[Entries | None]) -> str | None:
        """Path of a parameter of which an entry's update changes when only other entries' gradients do."""
        pairs = zip(self._kept, self._gradients, strict=True)
        changed = [np.where(kept, gradient, 2 * gradient) for kept, gradient in pairs]
        after = self._updates(self._first, changed, self._params)
        for path, kind, kept, one, other in zip(self._paths, kinds, self._kept, self._plain, after, strict=True):
            if kind is Entries.MOVED and not _close(one[:, kept], other[:, kept]):
                return path
        return None

    def not_of_the_parameters_norm(self, dependence: Mapping[str, Dependence]) -> tuple[str, int] | None:
        """Path of a parameter whose values its updates follow in another way than in size; the degree in gradients.

        Right are updates that follow the root mean square of the parameters with the power 1, and that of the gradients
        with the power 0: the geometry ``norm_matched``.
        """
        if not any(one.on_parameters for one in dependence.values()):
            return None
        large = [_PARAMETER_SCALE * param for param in self._params]
        of_large = self._updates(self._first, self._gradients, large)
        one, steep, steeper = (_GRADIENT_SCALES.index(scale) for scale in (1.0, 1e4, 1e8))  # far above epsilons
        arrays = zip(self._paths, self._plain, of_large, self._of_tiled, strict=True)
        for path, updates, with_large, with_tiled in arrays:
            if path not in dependence or not dependence[path].on_parameters:
                continue
            if not all(map(_close, _PARAMETER_SCALE * updates, with_large)):
                return path, 0
            if not _close(updates[steep], updates[steeper]):
                return path, 1
            if not _close(_tiled([updates[one]])[0], with_tiled[one]):
                return path, 0
        return None


@contextlib.contextmanager
def _computed_now() -> Iterator[None]:
    """Computes at once, also while a function is traced, on a CPU where there is one."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(jax.ensure_compile_time_eval())
        stack.enter_context(jax.transfer_guard("allow"))
        stack.enter_context(jax.debug_nans(False))
        with contextlib.suppress(RuntimeError):  # a process without that backend
            stack.enter_context(jax.default_device(jax.local_devices(backend="cpu")[0]))
        yield


def _wide(dtype: Any) -> Any:
    """The dtype of an array that stands for one of ``dtype``: rounding to 16 bits would hide what is measured."""
    return np.complex64 if np.issubdtype(np.dtype(dtype), np.complexfloating) else np.float32


def _drawn(rng: np.random.Generator, shapes: Sequence[tuple[int, ...]], dtypes: Sequence[Any]) -> _Arrays:
    """Normal numbers with a root mean square of 1 in each array, so that an average over several arrays is 1, too."""
    arrays = []
    for shape, dtype in zip(shapes, dtypes, strict=True):
        values = rng.normal(size=shape)
        if dtype == np.complex64:
            values = values + 1j * rng.normal(size=shape)
        arrays.append(np.asarray(values / np.sqrt(np.mean(np.abs(values) ** 2)), dtype))
    return arrays


def _tiled(arrays: _Arrays) -> _Arrays:
    """The same entries several times along the last two axes, if they are longer than 1."""
    results = []
    for array in arrays:
        last_two = array.shape[-2:]
        times = [count if size > 1 else 1 for count, size in zip(_TIMES[2 - len(last_two) :], last_two, strict=True)]
        results.append(np.tile(array, times))
    return results


def _joined(arrays: _Arrays) -> np.ndarray:
    return np.concatenate([array.reshape(-1) for array in arrays]) if arrays else np.zeros(0)


def _norm(array: np.ndarray) -> float:
    return float(np.linalg.norm(array.astype(np.complex128)))


def _cosine(one: np.ndarray, other: np.ndarray) -> float:
    """Of the angle between two arrays; 0 if either is 0 or not finite."""
    norms = _norm(one) * _norm(other)
    if not 0 < norms < np.inf:
        return 0.0
    return float(np.vdot(one, other).real) / norms


def _close(one: np.ndarray, other: np.ndarray) -> bool:
    largest = max(np.max(np.abs(one), initial=0.0), np.max(np.abs(other), initial=0.0))
    return bool(np.all(np.abs(one - other) <= _TOLERANCE * largest))


def _is_another_multiple(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether ``other`` is ``one`` times a number that is not 1, as with factors that follow the shapes."""
    size = np.vdot(one, one).real
    if size == 0:
        return False
    factor = np.vdot(one, other).real / size
    return abs(factor - 1) > _TOLERANCE and _close(factor * one, other)


def _power(ratio: float, base: float) -> int:
    """The whole power of ``base`` within 0.1 of ``ratio``'s; -1 for none."""
    power = float(np.log(ratio) / np.log(base))
    if not np.isfinite(power):
        return -1
    nearest = round(power)
    return nearest if abs(power - nearest) < 0.1 else -1
