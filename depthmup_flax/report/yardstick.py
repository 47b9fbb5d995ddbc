"""What counts as a small regret, and what a sweep can show about it: tolerance, octaves that would pass, power.

Letters in shapes: N simulated sweeps, S seeds, X grid points.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import scipy.special

from depthmup_flax.report import optimum as opt
from depthmup_flax.report.loss_surfaces import Curve, Scale
from depthmup_flax.report.transfer import Variant

# A regret up to this share of what the base learned is small: of the loss before learning minus its lowest loss.
TOLERANCE = 0.02
_MOST_PASSING = 0.5  # of the grid: if more would pass, passing is no evidence
_POINTS = 401  # at which a fitted curve is compared with the tolerance


@dataclasses.dataclass(frozen=True)
class Yardstick:
    """A tolerance, and what it means for one curve.

    Attributes:
      tolerance: the largest small regret, in units of the loss.
      passing: how much of the grid has at most this regret.
      grid: the length of the grid.
      unit: of both.
      power: the probability that these seeds show a small regret if there is none; ``None`` for one seed.
    """

    tolerance: float
    passing: float
    grid: float
    unit: str
    power: float | None

    @property
    def is_empty(self) -> bool:
        """Whether most of the grid would pass, so that passing says nothing; or the base learned nothing."""
        return not self.tolerance > 0 or self.passing > _MOST_PASSING * self.grid

    def __str__(self) -> str:
        """``1.3 of the grid's 8 octaves would pass, power 0.98``."""
        power = "" if self.power is None else f", power {self.power:.2f}"
        return f"{self.passing:.2g} of the grid's {self.grid:.2g} {self.unit} would pass{power}"


def tolerance_of(variant: Variant, share: float) -> float:
    """That share of what the variant's base learned; NaN if it is unknown."""
    best = variant.base.optimum
    return share * (variant.initial_loss - best.loss.value) if best else math.nan


def yardstick(scale: Scale, proxy: Curve, curve: Curve, tolerance: float) -> Yardstick:
    """The yardstick for the regret at ``curve`` of the x that is best at ``proxy``."""
    ends = scale.coordinate(curve.x[[0, -1]])
    u, losses = _finite(scale, curve)
    at = np.linspace(u[0], u[-1], _POINTS)
    passes = opt.excess(u, np.tile(losses.mean(0), (_POINTS, 1)), at) <= tolerance
    power = None
    if min(len(proxy.losses), len(losses)) > 1:
        simulated = simulate(*_finite(scale, proxy), u, losses)
        power = float((simulated.regrets + simulated.half_widths <= tolerance).mean())
    return Yardstick(tolerance, float(passes.mean() * (u[-1] - u[0])), float(ends[1] - ends[0]), scale.unit, power)


def _finite(scale: Scale, curve: Curve) -> tuple[np.ndarray, np.ndarray]:
    """Coordinates (X,) and losses (S, X) where no seed diverged."""
    finite = np.isfinite(curve.losses).all(0)
    return np.asarray(scale.coordinate(curve.x[finite])), curve.losses[:, finite]


@dataclasses.dataclass(frozen=True, eq=False)
class Simulated:
    """Sweeps with a planted regret: the estimates, (N,) each, of `depthmup_flax.report.optimum.regret`."""

    truth: float
    regrets: np.ndarray
    half_widths: np.ndarray


def simulate(
    proxy_u: np.ndarray,
    proxy: np.ndarray,
    u: np.ndarray,
    losses: np.ndarray,
    *,
    drift: float = 0.0,
    seeds: int = 0,
    trials: int = 200,
    draws: int = 100,
) -> Simulated:
    """Sweeps with the curves and the noise of a measured one, and a regret that is planted.

    The proxy's curve is moved so that its optimum is ``drift`` beside the other's. Each simulated seed adds Gaussian
    noise with the covariance of the measured seeds over the grid; with equal numbers of seeds the two curves share it,
    as runs of one seed do.

    Args:
      proxy_u, u: (X,), coordinates of the proxy's and the other's grid.
      proxy, losses: (S, X), finite, of at least two seeds.
      drift: in units of the coordinates.
      seeds: of a simulated sweep; 0: as many as measured.
      trials, draws: numbers of sweeps, and of resamplings in each.
    """
    rng, seeds = np.random.default_rng(0), seeds or min(len(proxy), len(losses))
    weights = [rng.normal(size=(seeds, trials, len(one))) for one in (proxy, losses)]
    theirs, ours = weights if len(proxy) != len(losses) else (weights[0], weights[0])
    best = float(opt.vertices(u, losses.mean(0)))
    moved = proxy_u + best + drift - float(opt.vertices(proxy_u, proxy.mean(0)))
    simulated, target = (one.mean(0) + w @ _noise(one) for one, w in ((proxy, theirs), (losses, ours)))

    def regret(chosen_on: np.ndarray, means: np.ndarray) -> np.ndarray:
        return opt.excess(u, means, np.clip(opt.vertices(moved, chosen_on), u[0], u[-1]))

    resampled = regret(opt.resampled_means(simulated, draws), opt.resampled_means(target, draws))
    quantile = float(scipy.special.stdtrit(seeds - 1, 0.975))
    half_widths = quantile * math.sqrt(seeds / (seeds - 1)) * resampled.std(0)
    truth = float(opt.excess(u, losses.mean(0), np.clip(np.array(best + drift), u[0], u[-1])))
    return Simulated(truth, regret(simulated.mean(0), target.mean(0)), half_widths)


def _noise(losses: np.ndarray) -> np.ndarray:
    """(S, X) -> (S, X): normal weights (S,) times it have the covariance of the seeds over the grid.

    Away from the minimum and its neighbors it is limited to the excess over the minimum: as wide as seeds that explode,
    Gaussian noise would undercut the minimum.
    """
    means, lowest = losses.mean(0), int(losses.mean(0).argmin())
    residuals = (losses - means) / math.sqrt(len(losses) - 1)
    deviations = np.sqrt((residuals**2).sum(0))
    limits = np.maximum(means - means[lowest], deviations[max(lowest - 1, 0) : lowest + 2].max())
    return residuals * np.minimum(1.0, limits / np.maximum(deviations, 1e-300))
