"""Where in the graph a finding's factor is lacking, for parameters that may carry it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from depthmup_flax.auditing.comparison import Comparison
from depthmup_flax.auditing.relative_factors import close
from depthmup_flax.rule.factor import Factor
from depthmup_flax.rule.parametrization import Role
from depthmup_flax.trace.graph import Place
from depthmup_flax.trace.uses import LOOKUP, PRODUCT
from depthmup_flax.util.groups import series


def lacking(wanted: Factor, factor: float | None) -> Factor | None:
    """The wanted factor over the one of the code; ``None`` if that is 0 or unknown."""
    return wanted.over(factor) if factor else None


def product_places(compared: Comparison, paths: Iterable[str], factor: float) -> tuple[Place, ...]:
    """The products of parameters, and the biases that a factor multiplies with them."""
    paths = tuple(paths)
    places: list[Place] = []
    for path in paths:
        places += [(use.node, -1) for use in compared.facts.uses[path] if use.kind == PRODUCT]
    if not close(factor, 1):
        places += bias_places(compared, paths)
    return tuple(places)


def start_places(compared: Comparison, path: str) -> tuple[Place, ...]:
    """Where a parameter starts a stream, and where the biases of its products are added."""
    uses = compared.facts.uses[path]
    starts = [(use.node, -1) for use in uses if use.kind == LOOKUP or use.first]
    return *starts, *bias_places(compared, [path])


def bias_places(compared: Comparison, paths: Iterable[str]) -> Iterator[Place]:
    """Where biases are added in front of the factor that the products of these parameters have."""
    for path in paths:
        base_factors: dict[str, float] = {}
        for bias in compared.base_facts.biases.get(compared.pairs[path], ()):
            base_factors[series(bias.path)] = bias.factor
        for bias in compared.facts.biases.get(path, ()):
            info = compared.infos.get(bias.path)  # tables of positions have findings of their own
            is_bias = info is not None and info.role in (Role.VECTOR, Role.FIXED)
            if is_bias and close(bias.factor, base_factors.get(series(bias.path))):
                yield bias.place
