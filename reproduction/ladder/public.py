"""The law on published runs, which it never saw: the dense transformers of Step Law.

    DEPTHMUP_PUBLIC=DIR python -m reproduction.ladder.public

From the smallest shape, and from all smaller ones, to larger shapes at the same batch size and as many tokens or more.
One seed each; AdamW with decay, so the rate is kept over examples; no rule for sizes, so the law is that of sp.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from depthmup_flax.search.ladder.law import Law, Prediction, Search, Size, known_laws
from depthmup_flax.util.errors import InputError
from reproduction.public import rates, sources
from reproduction.public.curves import Curve


def search_of(curve: Curve, law: Law) -> Search:
    """The best rate of one seed."""
    size = Size(curve.width, curve.depth, round(curve.tokens / curve.batch), round(curve.batch))
    return Search(size, curve.best, law.one_seed)


def predicted(law: Law, bases: Sequence[Curve], target: Curve) -> tuple[Prediction, float]:
    """The prediction, and its error in octaves."""
    truth = search_of(target, law)
    found = law.predict([search_of(base, law) for base in bases], truth.size, truth.error)
    return found, truth.rate - found.mean


def line(name: str, found: Sequence[tuple[Prediction, float]]) -> str:
    """What is printed."""
    half = [one.interval[1] - one.mean for one, _ in found]
    inside = np.mean([abs(error) <= width for (_, error), width in zip(found, half, strict=True)])
    rms = np.sqrt(np.mean([error**2 for _, error in found]))
    return f"{name}: {inside:.2f} of {len(found)} inside, half width {np.median(half):.2f} octaves, rms error {rms:.2f}"


def main() -> None:
    """Prints both lines."""
    directory = sources.data_directory()
    if directory is None:
        raise InputError(f"{sources.VARIABLE} is not set: name the directory of the published runs.")
    law = known_laws()["sp"]
    law = dataclasses.replace(law, slopes={**law.slopes, "examples": 0.0})
    curves = rates.step_law_curves(sources.step_law(directory))
    pairs = [pair for of_shape in rates.step_law_pairs(curves).values() for pair in of_shape]
    print(line("from the smallest", [predicted(law, [base], target) for base, target in pairs]))
    several = []
    for target in curves:
        same = [c for c in curves if c.batch == target.batch and c.tokens <= target.tokens and c.width < target.width]
        if len({(curve.width, curve.depth) for curve in same}) > 1:
            several.append(predicted(law, same, target))
    print(line("from several", several))


if __name__ == "__main__":
    main()
