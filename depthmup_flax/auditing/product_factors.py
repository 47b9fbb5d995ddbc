"""What multiplies the product of each parameter, in front and behind, over the base model's."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping

from depthmup_flax.auditing.relative_factors import by_series, ratio_of
from depthmup_flax.trace.facts import Traced
from depthmup_flax.trace.reading import OfPaths
from depthmup_flax.util.groups import series


@dataclasses.dataclass(frozen=True)
class ProductFactors:
    """The factors of a model over those of its base model, by the paths of parameters.

    A parameter that has none in ``behind`` or ``in_front`` has the factor 1 there. ``None`` is an
    unknown one.
    """

    behind: Mapping[str, float | None]  # up to what reads the product
    in_front: Mapping[str, float | None]  # of what the product reads
    paths: Collection[str]  # the parameters with factors around them

    def around(self, path: str) -> float | None:
        """The ratio in front of a product times that behind it."""
        behind = self.behind.get(path, 1.0)
        in_front = self.in_front.get(path, 1.0)
        if behind is None or in_front is None:
            return None
        return behind * in_front


def product_factors(
    facts: Traced,
    base: Traced,
    pairs: Mapping[str, str],
    to_few: Collection[str],
    apart: Collection[str],
) -> ProductFactors:
    """The factors around all products; ``pairs`` are the base model's paths.

    ``to_few`` are weights from the width to a fixed number of features. What a readout reads has
    the readout's factor, unless it is such features. What those ``apart`` read has a factor that is
    judged by itself. What reads products has their factors, so there is none in front.
    """
    with_readouts = facts.own(())
    behind = {path: with_readouts[path] for path in to_few if path in with_readouts}
    behind |= facts.own(facts.readouts)
    base_behind = base.own(()) | base.own(base.readouts)
    in_front = {path: factors for path, factors in facts.inputs.items() if path not in apart}
    return ProductFactors(
        behind=_ratios(behind, base_behind, pairs),
        in_front=_ratios(in_front, base.inputs, pairs),
        paths=[path for path in pairs if path in behind or path in facts.inputs],
    )


def _ratios(factors: OfPaths, base: OfPaths, pairs: Mapping[str, str]) -> dict[str, float | None]:
    of_series = by_series(base)
    result: dict[str, float | None] = {}
    of_alike: dict[tuple[str, frozenset[float]], float] = {}
    for path, values in factors.items():
        if path not in pairs:  # "", of what no parameter makes
            continue
        ratio = ratio_of(values, base.get(pairs[path]))
        if ratio is None:  # the first layer may read something else than the others
            ratio = ratio_of(values, of_series.get(series(path)))
        if ratio is not None:
            of_alike.setdefault((series(path), values), ratio)
        result[path] = ratio
    for path, known in result.items():
        if known is None:  # its counterpart is special, as the base model's first layer may be
            result[path] = of_alike.get((series(path), factors[path]))
    return result
