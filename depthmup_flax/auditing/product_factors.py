"""What multiplies the product with each parameter: behind it, up to what reads it, and in front of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from depthmup_flax.auditing.branch_factors import by_series, ratio_of
from depthmup_flax.auditing.parameter_trees import series
from depthmup_flax.auditing.traced_facts import OfPaths, Traced


class ProductFactors:
    """The factors of a model over those of its base model; ``pairs`` are the base model's paths.

    ``few`` are weights from the width to a fixed number of features. What a readout reads has the readout's factor,
    unless it is such features.

    Attributes:
      paths: the parameters with factors behind them.
    """

    def __init__(self, facts: Traced, base: Traced, pairs: Mapping[str, str], few: Collection[str]):
        self._pairs, self._facts, self._base = pairs, facts, base
        in_front = {path: facts.before_readouts[path] for path in few if path in facts.before_readouts}
        self._behind = {**in_front, **facts.factors}
        self._base_behind = {**base.before_readouts, **base.factors}
        self.paths = self._behind.keys()

    def behind(self, path: str) -> float | None:
        """The ratio of the factors of a parameter up to what reads it."""
        return self._ratio(path, self._behind, self._base_behind)

    def in_front(self, path: str) -> float:
        """The ratio of the factors of the norm or the stream that a product reads; 1 if it is of products, or unknown.

        Products have factors of their own.
        """
        ratio = self._ratio(path, self._facts.inputs, self._base.inputs)
        return 1.0 if ratio is None else ratio

    def around(self, path: str) -> float | None:
        """The ratio in front of a product times that behind it."""
        behind = self.behind(path)
        return None if behind is None else behind * self.in_front(path)

    def _ratio(self, path: str, factors: OfPaths, base: OfPaths) -> float | None:
        return ratio_of(factors.get(path), base.get(self._pairs[path]) or by_series(base).get(series(path)))
