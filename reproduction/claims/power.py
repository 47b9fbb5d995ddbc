"""The power of a sweep: whether its seeds would show transfer if there were no regret, from simulated sweeps.

Letters in shapes: N simulated sweeps, S seeds, X grid points.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import scipy.special

from depthmup_flax.report import optimum as opt
from depthmup_flax.report.curves import Curve, Scale
from depthmup_flax.report.verdict import finite

_LEAST_POWER = 0.3


def power(scale: Scale, proxy: Curve, curve: Curve, tolerance: float, most: float = math.inf) -> float | None:
    """The probability that these seeds show a regret below ``tolerance`` if there is none; ``None`` for one seed.

    Too high where it is small, see `rounded_power`; ``most``: see `depthmup_flax.report.transfer.Variant`.
    """
    if min(len(proxy.losses), len(curve.losses)) < 2:
        return None
    simulated = simulate(*finite(scale, proxy), *finite(scale, curve), most=most)
    return float((simulated.regrets + simulated.half_widths <= tolerance).mean())


def rounded_power(power: float) -> str:
    """With two digits, or ``below 0.3``: there, simulated with the noise of a few seeds, it is twice too high."""
    return f"{power:.2f}" if power >= _LEAST_POWER else f"below {_LEAST_POWER}"


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
    most: float = math.inf,
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
      most: of a mean loss in a fit, see `belonging`.
    """
    rng, seeds = np.random.default_rng(0), seeds or min(len(proxy), len(losses))
    weights = [rng.normal(size=(seeds, trials, len(one))) for one in (proxy, losses)]
    theirs, ours = weights if len(proxy) != len(losses) else (weights[0], weights[0])
    of_proxy, belongs = opt.belonging(proxy_u, proxy, most), opt.belonging(u, losses, most)
    best = float(opt.vertices(u, losses.mean(0), belongs))
    moved = proxy_u + best + drift - float(opt.vertices(proxy_u, proxy.mean(0), of_proxy))
    simulated, target = (one.mean(0) + w @ _noise(one) for one, w in ((proxy, theirs), (losses, ours)))

    def regret(chosen_on: np.ndarray, means: np.ndarray) -> np.ndarray:
        return opt.excess(u, means, np.clip(opt.vertices(moved, chosen_on, of_proxy), u[0], u[-1]), belongs)

    resampled = regret(opt.resampled_means(simulated, draws), opt.resampled_means(target, draws))
    quantile = float(scipy.special.stdtrit(seeds - 1, 0.975))
    half_widths = quantile * math.sqrt(seeds / (seeds - 1)) * resampled.std(0)
    truth = float(opt.excess(u, losses.mean(0), np.clip(np.array(best + drift), u[0], u[-1]), belongs))
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
