"""Which parameter of the base model corresponds to each of a model, and the width ratio that their shapes show."""

from __future__ import annotations

import functools
import math
import operator
import re
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping
from typing import Any, TypeVar

from depthmup_flax.util.errors import InputError
from depthmup_flax.util.groups import grouped, series

Shapes = Mapping[str, tuple[int, ...]]
# Path -> what tells its place in the forward pass, equal for corresponding parameters of all layers.
Places = Mapping[str, Hashable]
_Form = TypeVar("_Form", bound=Hashable)  # what a parameter is compared by


def nearest(paths: Collection[str], base: Mapping[str, _Form], misfit: Callable[[str, _Form], Any]) -> dict[str, str]:
    """Path -> the path of the base model with the same name without numbers whose form has the least ``misfit``.

    Of several, those count whose names differ in one number, that of the layer, and of these the nearest in order.
    Paths without any, or with misfits of ``None`` alone, are left out.
    """
    groups, result = grouped(base, series), dict[str, str]()
    for name, own in grouped(paths, series).items():
        candidates = groups.get(name, [])
        forms: dict[_Form, list[int]] = {}
        for k, other in enumerate(candidates):
            forms.setdefault(base[other], []).append(k)
        for n, path in enumerate(own):
            misfits = {form: found for form in forms if (found := misfit(path, form)) is not None}
            least = min(misfits.values(), default=None)
            fitting = [k for form, found in misfits.items() if found == least for k in forms[form]]
            place = n / max(len(own) - 1, 1) * (len(candidates) - 1)
            in_order = [candidates[k] for _, k in sorted((abs(k - place), k) for k in fitting)]
            if in_order:
                same = (other for other in in_order if sum(map(operator.ne, _numbers(path), _numbers(other))) <= 1)
                result[path] = next(same, in_order[0])
    return {path: result[path] for path in paths if path in result}


_numbers = functools.lru_cache(maxsize=1 << 16)(re.compile(r"\d+").findall)


def matched(
    model: Shapes, base: Shapes, layers: Mapping[str, frozenset[int]], places: Places, base_places: Places
) -> dict[str, str]:
    """Path in the model -> path in the base model.

    Equal trees match by path. Otherwise the numbers in paths count layers: a parameter matches one with the same name
    without numbers, the same place in the forward pass and the same shape up to the width ratio; of several, the
    nearest in order. ``layers`` are the axes that count layers, here and below.
    """
    groups, is_equal = grouped(base, series), model.keys() == base.keys()
    for path, shape in model.items():
        shapes = sorted({base[other] for other in ([path] if is_equal else groups.get(series(path), ()))})
        if len(shape) not in map(len, shapes):
            raise InputError(
                f"parameter {path!r} of the model has no counterpart in the base model: its shape is {shape}, there "
                f"{' and '.join(map(str, shapes)) or 'nothing'}. Build both from the same code; only width and depth "
                "may differ."
            )
    by_place = grouped(model, lambda path: (series(path), places.get(path)))
    others = grouped(base, lambda path: (series(path), base_places.get(path)))
    single = {own[0]: others[key][0] for key, own in by_place.items() if len(own) == 1 == len(others.get(key, ()))}
    m = width_ratio(model, base, single, layers)

    def misfit(path: str, form: tuple[tuple[int, ...], Hashable]) -> tuple[bool, int, int] | None:
        shape, place = form
        if len(model[path]) != len(shape):
            return None
        ratios = _ratios(model[path], shape, layers.get(path, frozenset()))
        same = [math.isclose(r, 1) for r in ratios]
        unlike = sum(not (is_same or math.isclose(r, m)) for r, is_same in zip(ratios, same, strict=True))
        return places.get(path) != place, unlike, sum(same)

    forms = {path: (shape, base_places.get(path)) for path, shape in base.items()}
    pairs = {path: path for path in model} if is_equal else nearest(model, forms, misfit)
    for path in model if not is_equal else ():
        fits = misfit(path, forms[pairs[path]]) if path in pairs and not re.search("[a-zA-Z]", path) else None
        alike = (forms[other] for other in groups[series(path)] if fits is not None)
        of_alike = {form[0] for form in alike if misfit(path, form) == fits}
        if len(of_alike) > 1:
            raise InputError(
                f"parameter {path!r} of shape {model[path]} may correspond to several in the base model, of shapes "
                f"{' and '.join(map(str, sorted(of_alike)))}: name the parameters, such as {{'hidden_1': ...}}, or "
                "take another base width."
            )
    return pairs


def base_sizes(model: Shapes, base: Shapes, pairs: Mapping[str, str], layers: Mapping[str, frozenset[int]]) -> Shapes:
    """The base model's shapes by the paths of the model, at the model's depth and with its stages.

    A stage without layers in the base model gets the width of other parameters of the model with that size.
    """
    single = Counter(map(series, model))
    m = width_ratio(model, base, {p: q for p, q in pairs.items() if single[series(p)] == 1} or pairs, layers)
    fits = lambda n, base_n: math.isclose(n / base_n, 1) or math.isclose(n / base_n, m)
    known: dict[int, set[int]] = {}
    for path, other in pairs.items():
        for k, (n, base_n) in enumerate(zip(model[path], base[other], strict=True)):
            if k not in layers.get(path, ()) and base_n and fits(n, base_n) and n != base_n:
                known.setdefault(n, set()).add(base_n)
    result = {}
    for path, other in pairs.items():
        sizes = list(base[other])
        for k, n in enumerate(model[path]):
            if k in layers.get(path, ()):
                sizes[k] = n
            elif model.keys() != base.keys() and sizes[k] and not fits(n, sizes[k]) and len(known.get(n, ())) == 1:
                (sizes[k],) = known[n]
        result[path] = tuple(sizes)
    return result


def contradictions(
    model: Shapes, base: Shapes, pairs: Mapping[str, str], layers: Mapping[str, frozenset[int]], sizes: Shapes
) -> set[str]:
    """Paths with a size that does not grow there but grows in others: the match may be a layer of another width.

    Their counterparts in the base model have several shapes; ``sizes`` are the `base_sizes`.
    """
    if model.keys() == base.keys():
        return set()
    shapes = {name: {base[path] for path in paths} for name, paths in grouped(base, series).items()}
    doubtful = {path for path in pairs if len(shapes[series(path)]) > 1 and not layers.get(path)}
    sides = lambda path: zip(model[path], sizes[path], strict=True)
    grows = {n for path in model.keys() - doubtful for n, base_n in sides(path) if n != base_n}
    return {path for path in doubtful if any(n == base_n and n in grows for n, base_n in sides(path))}


def width_ratio(model: Shapes, base: Shapes, pairs: Mapping[str, str], layers: Mapping[str, frozenset[int]]) -> float:
    """The most common ratio of sizes that differ; 1 if none does."""
    ratios = Counter(
        round(r, 6)
        for path, other in pairs.items()
        if len(model[path]) == len(base[other])
        for r in _ratios(model[path], base[other], layers.get(path, frozenset()))
        if not math.isclose(r, 1)
    )
    return ratios.most_common(1)[0][0] if ratios else 1.0


def _ratios(shape: tuple[int, ...], base: tuple[int, ...], layers: frozenset[int]) -> list[float]:
    sizes = zip(shape, base, strict=True)
    return [n / base_n for k, (n, base_n) in enumerate(sizes) if k not in layers and base_n]
