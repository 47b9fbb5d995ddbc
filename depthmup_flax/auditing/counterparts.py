"""Which parameter of the base model corresponds to each of a model, and their width ratio."""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

from depthmup_flax.util.errors import InputError
from depthmup_flax.util.groups import grouped, series

Shape: TypeAlias = tuple[int, ...]
Shapes: TypeAlias = Mapping[str, Shape]  # by path
Layers: TypeAlias = Mapping[str, frozenset[int]]  # path -> the axes that count layers
# Path -> its place in the forward pass, equal for all layers.
Places: TypeAlias = Mapping[str, Hashable]
_Form = TypeVar("_Form", bound=Hashable)  # what a parameter is compared by


def nearest(
    paths: Collection[str],
    base: Mapping[str, _Form],
    misfit: Callable[[str, _Form], Any],
) -> dict[str, str]:
    """Path -> the path in the base model whose form has the least ``misfit``.

    Both have the same name without numbers. Of several, those count whose names differ in one
    number, that of the layer, and of these the nearest in order. Paths without any, or with misfits
    of ``None`` alone, are left out.
    """
    base_groups = grouped(base, series)
    result: dict[str, str] = {}
    for name, layers in grouped(paths, series).items():
        candidates = base_groups.get(name, [])
        forms = _by_form([base[candidate] for candidate in candidates])
        for n, path in enumerate(layers):
            place = n / max(len(layers) - 1, 1) * (len(candidates) - 1)
            numbers = sorted(_fitting(path, forms, misfit), key=lambda k: (abs(k - place), k))
            if numbers:
                result[path] = _of_one_layer(path, [candidates[k] for k in numbers])
    return {path: result[path] for path in paths if path in result}


def _by_form(forms: Sequence[_Form]) -> dict[_Form, list[int]]:
    """Form -> the numbers of the candidates that have it."""
    result: dict[_Form, list[int]] = {}
    for k, form in enumerate(forms):
        result.setdefault(form, []).append(k)
    return result


def _fitting(
    path: str,
    forms: Mapping[_Form, Sequence[int]],
    misfit: Callable[[str, _Form], Any],
) -> list[int]:
    """The numbers of the candidates whose forms have the least misfit."""
    misfits: dict[_Form, Any] = {}
    for form in forms:
        size = misfit(path, form)
        if size is not None:
            misfits[form] = size
    least = min(misfits.values(), default=None)
    result: list[int] = []
    for form, size in misfits.items():
        if size == least:
            result += forms[form]
    return result


def _of_one_layer(path: str, candidates: Sequence[str]) -> str:
    """The first that differs from a path in one number at most, or else the first."""
    for candidate in candidates:
        pairs = zip(_numbers(path), _numbers(candidate), strict=False)
        if sum(number != candidate_number for number, candidate_number in pairs) <= 1:
            return candidate
    return candidates[0]


@functools.lru_cache(maxsize=1 << 16)
def _numbers(path: str) -> list[str]:
    return re.findall(r"\d+", path)


def matched(
    model: Shapes,
    base: Shapes,
    layers: Layers,
    places: Places,
    base_places: Places,
) -> dict[str, str]:
    """Path in the model -> path in the base model.

    Equal trees match by path. Otherwise the numbers in paths count layers: a parameter matches one
    with the same name without numbers, the same place in the forward pass and the same shape up to
    the width ratio; of several, the nearest in order.

    Raises:
      InputError: a parameter has no counterpart, or may have several.
    """
    _require_counterparts(model, base)
    if model.keys() == base.keys():
        return {path: path for path in model}
    single = _single_pairs(model, base, places, base_places)
    m = width_ratio(model, base, single, layers)

    def misfit(path: str, form: tuple[Shape, Hashable]) -> tuple[bool, int, int] | None:
        shape, place = form
        if len(model[path]) != len(shape):
            return None
        is_elsewhere = places.get(path) != place
        return is_elsewhere, *_unlike_sides(model[path], shape, layers.get(path, frozenset()), m)

    forms = {path: (shape, base_places.get(path)) for path, shape in base.items()}
    pairs = nearest(model, forms, misfit)
    pairs |= {path: path for path in _of_as_many_layers(model, base)}
    _require_one_shape(model, forms, pairs, misfit)
    return pairs


def _of_as_many_layers(model: Shapes, base: Shapes) -> set[str]:
    """The paths whose numbers do not count layers: both models have the same, with as many axes."""
    base_groups = grouped(base, series)
    result: set[str] = set()
    for name, paths in grouped(model, series).items():
        if set(paths) == set(base_groups[name]):
            result.update(path for path in paths if len(model[path]) == len(base[path]))
    return result


def _require_counterparts(model: Shapes, base: Shapes) -> None:
    """Raises `InputError` for a parameter that is not in the base model with as many dimensions."""
    base_groups = grouped(base, series)
    is_equal = model.keys() == base.keys()
    for path, shape in model.items():
        candidates = [path] if is_equal else base_groups.get(series(path), [])
        shapes = sorted({base[candidate] for candidate in candidates})
        if len(shape) in map(len, shapes):
            continue
        there = " and ".join(map(str, shapes)) or "nothing"
        raise InputError(
            f"parameter {path!r} of the model has no counterpart in the base model: its shape is "
            f"{shape}, there {there}. Build both from the same code; only width and depth may "
            "differ."
        )
    of_model = grouped(model, series)
    for path in base:
        if not is_equal and series(path) not in of_model:
            raise InputError(
                f"parameter {path!r} of the base model has no counterpart in the model. Build both from the same code, "
                "with the same weights tied; only width and depth may differ."
            )


def _single_pairs(
    model: Shapes,
    base: Shapes,
    places: Places,
    base_places: Places,
) -> dict[str, str]:
    """The pairs of parameters that are the only ones of their name and place in both models."""
    by_place = grouped(model, lambda path: (series(path), places.get(path)))
    base_by_place = grouped(base, lambda path: (series(path), base_places.get(path)))
    result: dict[str, str] = {}
    for key, paths in by_place.items():
        base_paths = base_by_place.get(key, [])
        if len(paths) == len(base_paths) == 1:
            result[paths[0]] = base_paths[0]
    return result


def _unlike_sides(shape: Shape, base: Shape, layers: frozenset[int], m: float) -> tuple[int, int]:
    """The numbers of sides that differ by another ratio than m, and of equal ones."""
    unlike = 0
    equal = 0
    for ratio in _ratios(shape, base, layers):
        if math.isclose(ratio, 1):
            equal += 1
        elif not math.isclose(ratio, m):
            unlike += 1
    return unlike, equal


def _require_one_shape(
    model: Shapes,
    forms: Mapping[str, tuple[Shape, Hashable]],
    pairs: Mapping[str, str],
    misfit: Callable[[str, tuple[Shape, Hashable]], Any],
) -> None:
    """Raises `InputError` for a nameless parameter whose counterpart may have several shapes."""
    base_groups = grouped(forms, series)
    for path, base_path in pairs.items():
        if re.search("[a-zA-Z]", path):
            continue
        least = misfit(path, forms[base_path])
        alike = [forms[other] for other in base_groups[series(path)]]
        shapes = {form[0] for form in alike if misfit(path, form) == least}
        if least is not None and len(shapes) > 1:
            raise InputError(
                f"parameter {path!r} of shape {model[path]} may correspond to several in the base "
                f"model, of shapes {' and '.join(map(str, sorted(shapes)))}: name the parameters, "
                f"such as {{'hidden_1': ...}}, or take another base width."
            )


def base_sizes(model: Shapes, base: Shapes, pairs: Mapping[str, str], layers: Layers) -> Shapes:
    """The base model's shapes by the paths of the model, at the model's depth and with its stages.

    A stage without layers in the base model gets the width of other parameters of the model with
    that size.
    """
    m = width_ratio(model, base, _pairs_of_single_layers(model, pairs) or pairs, layers)
    known = _known_widths(model, base, pairs, layers, m)
    is_equal = model.keys() == base.keys()
    result: dict[str, Shape] = {}
    for path, base_path in pairs.items():
        sizes = list(base[base_path])
        for axis, size in enumerate(model[path]):
            if axis in layers.get(path, ()):
                sizes[axis] = size
            elif not is_equal and sizes[axis] and not _is_scaled(size, sizes[axis], m):
                widths = known.get(size, set())
                if len(widths) == 1:
                    (sizes[axis],) = widths
        result[path] = tuple(sizes)
    return result


def _pairs_of_single_layers(model: Shapes, pairs: Mapping[str, str]) -> dict[str, str]:
    """The pairs whose parameters are in no other layer."""
    count = Counter(map(series, model))
    return {path: base_path for path, base_path in pairs.items() if count[series(path)] == 1}


def _known_widths(
    model: Shapes, base: Shapes, pairs: Mapping[str, str], layers: Layers, m: float
) -> dict[int, set[int]]:
    """Size in the model -> those in the base model, where they differ by the width ratio."""
    result: dict[int, set[int]] = {}
    for path, base_path in pairs.items():
        for size, base_size in _sides(model[path], base[base_path], layers.get(path, frozenset())):
            if size != base_size and _is_scaled(size, base_size, m):
                result.setdefault(size, set()).add(base_size)
    return result


def _is_scaled(size: int, base_size: int, m: float) -> bool:
    """Whether a size is the base model's, or m times as large."""
    return math.isclose(size / base_size, 1) or math.isclose(size / base_size, m)


def contradictions(
    model: Shapes, base: Shapes, pairs: Mapping[str, str], layers: Layers, base_shapes: Shapes
) -> set[str]:
    """Paths whose match may be a layer of another width: a size grows elsewhere, and not there.

    Their counterparts in the base model have several shapes; ``base_shapes`` are the `base_sizes`.
    """
    if model.keys() == base.keys():
        return set()
    base_groups = grouped(base, series)
    names = _names_of_layers(model, base)
    shapes: dict[Hashable, set[Shape]] = {}
    for path, shape in base.items():
        shapes.setdefault(names[path], set()).add(shape)
    sure = _of_as_many_layers(model, base)
    doubtful: set[str] = set()
    for path in pairs.keys() - sure:
        own = shapes.get(names[path]) or {base[other] for other in base_groups[series(path)]}
        if len(own) > 1 and not layers.get(path):
            doubtful.add(path)
    growing: set[int] = set()
    for path in model.keys() - doubtful:
        growing.update(_sizes(model[path], base_shapes[path], grow=True))
    result: set[str] = set()
    for path in doubtful:
        if not growing.isdisjoint(_sizes(model[path], base_shapes[path], grow=False)):
            result.add(path)
    return result


def _names_of_layers(model: Shapes, base: Shapes) -> dict[str, Hashable]:
    """Path of either model -> its name without the number of its layer.

    A number in a name counts layers if the two models have other values of it, as in the first of
    ``blocks.3.linear_1`` and ``blocks.3.linear_2``.
    """
    result: dict[str, Hashable] = {}
    base_groups = grouped(base, series)
    for name, paths in grouped(model, series).items():
        base_paths = base_groups.get(name, [])
        columns = _columns(paths)
        base_columns = _columns(base_paths)
        fixed: list[int] = []
        for k, (numbers, base_numbers) in enumerate(zip(columns, base_columns, strict=False)):
            if numbers == base_numbers:
                fixed.append(k)
        for path in (*paths, *base_paths):
            numbers_of_path = _numbers(path)
            result[path] = (name, *(numbers_of_path[k] for k in fixed))
    return result


def _columns(paths: Sequence[str]) -> list[set[str]]:
    """The values of each number in the paths; nothing if some paths have more numbers."""
    rows = [_numbers(path) for path in paths]
    if len(set(map(len, rows))) != 1:
        return []
    return [set(column) for column in zip(*rows, strict=True)]


def _sizes(shape: Shape, base: Shape, *, grow: bool) -> list[int]:
    """The sizes of a shape that grow, or those that do not."""
    sizes = zip(shape, base, strict=True)
    return [size for size, base_size in sizes if (size != base_size) == grow]


def width_ratio(model: Shapes, base: Shapes, pairs: Mapping[str, str], layers: Layers) -> float:
    """The most common ratio of sizes that differ; 1 if none does."""
    count: Counter[float] = Counter()
    for path, base_path in pairs.items():
        if len(model[path]) != len(base[base_path]):
            continue
        for ratio in _ratios(model[path], base[base_path], layers.get(path, frozenset())):
            if not math.isclose(ratio, 1):
                count[round(ratio, 6)] += 1
    return count.most_common(1)[0][0] if count else 1.0


def _ratios(shape: Shape, base: Shape, layers: frozenset[int]) -> list[float]:
    """The ratios of the sides of two shapes, without those that count layers."""
    return [size / base_size for size, base_size in _sides(shape, base, layers)]


def _sides(shape: Shape, base: Shape, layers: frozenset[int]) -> Iterator[tuple[int, int]]:
    for axis, (size, base_size) in enumerate(zip(shape, base, strict=True)):
        if axis not in layers and base_size:
            yield size, base_size
