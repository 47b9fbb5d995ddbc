"""Laws of the loss over width, depth and steps, fitted to a ladder of networks, and the loss they forecast.

A law is an irreducible part and power laws, such as ``E + A width^-a + B depth^-b + C steps^-c``. At given exponents it
is linear in ``E, A, ...``, whose posterior has a closed form; exponents are summed over a grid. What is not known, the
exponents, the coefficients, the form and how far the losses lie from any such law, widens the forecast's interval.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence

import numpy as np

from depthmup_flax.util.errors import InputError

WIDTH, DEPTH, STEPS, PARAMETERS = "width", "depth", "steps", "parameters"
AXES = (WIDTH, DEPTH, STEPS)


@dataclasses.dataclass(frozen=True)
class Rung:
    """A size of network, and the losses of its seeds."""

    width: int
    depth: int
    steps: int
    parameters: int
    losses: tuple[float, ...] = ()  # one for each seed; none for the target

    @property
    def cost(self) -> float:
        """Parameters times steps: proportional to the operations of a run in a family of networks."""
        return float(self.parameters) * self.steps


@dataclasses.dataclass(frozen=True)
class Form:
    """Terms of a law besides its irreducible part. A term is a coefficient times powers of its axes."""

    name: str
    terms: tuple[tuple[str, ...], ...]

    @property
    def axes(self) -> tuple[str, ...]:
        """All axes; each has an exponent."""
        return tuple(axis for term in self.terms for axis in term)

    def among(self, axes: Sequence[str]) -> Form:
        """The form without the axes along which the ladder does not vary."""
        terms = (tuple(axis for axis in term if axis in axes) for term in self.terms)
        return Form(self.name, tuple(term for term in terms if term))


# sum: networks approach a limit of infinite width and depth at fixed steps. product: each axis shrinks all that is not
# irreducible, as in arXiv:2001.08361. parameters: arXiv:2203.15556, eq. 2, with examples = steps times the batch size.
FORMS = (
    Form("sum", ((WIDTH,), (DEPTH,), (STEPS,))),
    Form("product", ((WIDTH, DEPTH, STEPS),)),
    Form("parameters", ((PARAMETERS,), (STEPS,))),
)
_EXPONENTS = 2.0 ** np.arange(-3, 1.1, 0.25)  # uniform prior over these, from nearly a logarithm to a square
_MISFITS = 0.0005 * 2.0 ** np.arange(9)  # relative distances between the losses of a ladder and a law
_DRAWS, _FEWEST = 20_000, 0.01  # the share of draws that are laws
_LEVEL = 0.95


@dataclasses.dataclass(frozen=True)
class Forecast:
    """The forecast loss of one run of the target.

    Attributes:
      loss: the median.
      interval: 95 %, of one run with another seed.
      form: name of the form that the held-out rungs favor.
      weights: form -> its weight in the forecast.
      law: the best law of that form, as a formula.
      held_out_error: root mean square of the relative errors with which the smaller rungs forecast the larger ones.
      inflation: factor by which these errors widened the interval; 1 if they were as small as expected.
      seed_spread: relative standard deviation over seeds; 0 for one seed.
    """

    loss: float
    interval: tuple[float, float]
    form: str
    weights: dict[str, float]
    law: str
    held_out_error: float
    inflation: float
    seed_spread: float


class Posterior:
    """A form given the losses of rungs, over a grid of exponents and misfits.

    Coefficients are divided by the first rung's loss, and sizes by its sizes; they have standard normal priors.

    References:
      Bishop, Pattern Recognition and Machine Learning (2006), sec. 3.3 and 3.5: linear models with a normal prior.
    """

    def __init__(self, form: Form, rungs: Sequence[Rung], noise: float) -> None:
        self.form, self._first, self.noise = form, rungs[0], noise
        self.scale = float(np.mean(rungs[0].losses))
        self._exponents = np.array(list(itertools.product(_EXPONENTS, repeat=len(form.axes))))  # [G, axes]
        losses = np.array([np.mean(rung.losses) for rung in rungs])
        rows_GxNxP = self._design(rungs) * (self.scale / losses)[:, None]  # relative errors
        variance = _MISFITS**2 + noise**2 / len(rungs[0].losses)  # [M]
        gram, moment = np.swapaxes(rows_GxNxP, 1, 2) @ rows_GxNxP, rows_GxNxP.sum(1)
        precision_MxGxPxP = np.eye(rows_GxNxP.shape[-1]) + gram / variance[:, None, None, None]
        self._covariance = np.linalg.inv(precision_MxGxPxP)
        self._mean = np.einsum("mgpq,gq->mgp", self._covariance, moment) / variance[:, None, None]
        fit = (len(rungs) - np.einsum("mgp,gp->mg", self._mean, moment)) / variance[:, None]
        logs = len(rungs) * np.log(variance)[:, None] + np.linalg.slogdet(precision_MxGxPxP)[1]
        self._log = -(fit + logs) / 2
        top = self._log.max()
        self._share = np.exp(self._log - top)
        self.log_evidence = float(top + np.log(self._share.mean()))  # up to a constant, equal for all forms
        self._share /= self._share.sum()

    def _design(self, rungs: Sequence[Rung]) -> np.ndarray:
        """``[G, N, P]``: 1, and each term of the law, at all exponents."""
        ratios = lambda axis: np.array([getattr(rung, axis) / getattr(self._first, axis) for rung in rungs])
        exponents = zip(self.form.axes, self._exponents.T, strict=True)
        powers = {axis: ratios(axis) ** -exponent[:, None] for axis, exponent in exponents}
        terms = [np.prod([powers[axis] for axis in term], axis=0) for term in self.form.terms]
        return np.stack([np.ones((len(self._exponents), len(rungs))), *terms], axis=-1)

    def draw(self, rungs: Sequence[Rung], count: int, seeds: int, random: np.random.Generator) -> np.ndarray:
        """``[count', N]``: mean losses over seeds of each rung, without draws that are no law, such as of ``E < 0``."""
        flat = random.choice(self._share.size, count, p=self._share.ravel())
        misfit, at = np.unravel_index(flat, self._share.shape)
        root = np.linalg.cholesky(self._covariance[misfit, at])
        normal = random.standard_normal((count, root.shape[-1]))
        coefficients = self._mean[misfit, at] + np.einsum("cpq,cq->cp", root, normal)
        losses = np.einsum("cnp,cp->cn", self._design(rungs)[at], coefficients)
        spread = np.sqrt(_MISFITS[misfit] ** 2 + self.noise**2 / seeds)[:, None]
        allowed = (coefficients[:, 0] >= 0) & (losses > 0).all(1)
        for place, term in enumerate(self.form.terms, 1):
            if STEPS in term:  # more training does not raise the loss
                allowed &= coefficients[:, place] >= 0
        losses *= self.scale * (1 + spread * random.standard_normal(losses.shape))
        return losses[allowed & (losses > 0).all(1)]

    def formula(self) -> str:
        """The law at the likeliest exponents with ``E >= 0``, such as ``1.7 + 0.42 (width / 16)^-0.5``."""
        misfit, at = np.unravel_index(int(((self._mean[..., 0] >= 0) + self._share).argmax()), self._share.shape)
        irreducible, *others = self.scale * self._mean[misfit, at]
        exponent = dict(zip(self.form.axes, self._exponents[at], strict=True))
        power = lambda axis: f"({axis} / {getattr(self._first, axis):,})^-{exponent[axis]:.2g}"
        parts = [f"{irreducible:.4g}"]
        for coefficient, term in zip(others, self.form.terms, strict=True):
            parts += ["-" if coefficient < 0 else "+", f"{abs(coefficient):.3g}", *map(power, term)]
        return " ".join(parts)


def forecast_loss(rungs: Sequence[Rung], target: Rung) -> Forecast:
    """The loss of one run of ``target``, from a ladder with equally many seeds for each rung.

    Raises:
      InputError: no law fits.
    """
    before, whole, weights = _posteriors(rungs)
    large, forms = _held_out(rungs)[1], [one.form for one in whole]
    tested = _drawn(before, _softmax([one.log_evidence for one in before]), large, len(rungs[0].losses))
    error, inflation = _errors(tested, [float(np.mean(rung.losses)) for rung in large])
    low, loss, high = _quantiles(_drawn(whole, weights, [target], 1)[:, 0])
    best = int(np.argmax(weights))
    return Forecast(
        loss=loss,
        interval=(loss * (low / loss) ** inflation, loss * (high / loss) ** inflation),
        form=forms[best].name,
        weights={form.name: float(weight) for form, weight in zip(forms, weights, strict=True)},
        law=whole[best].formula(),
        held_out_error=error,
        inflation=inflation,
        seed_spread=_seed_spread(rungs),
    )


def _posteriors(rungs: Sequence[Rung]) -> tuple[list[Posterior], list[Posterior], np.ndarray]:
    """The posteriors of all forms, given the smaller rungs and given all, and the weights of the forms."""
    rungs = sorted(rungs, key=lambda rung: rung.cost)
    forms, spread = forms_of(rungs), _seed_spread(rungs)
    before, whole = ([Posterior(form, part, spread) for form in forms] for part in (_held_out(rungs)[0], rungs))
    # By the density with which each form foretells the larger rungs from the smaller ones.
    densities = [one.log_evidence - part.log_evidence for one, part in zip(whole, before, strict=True)]
    return before, whole, _softmax(densities)


def varied_axes(rungs: Sequence[Rung]) -> tuple[str, ...]:
    """The axes of `AXES` along which rungs differ."""
    return tuple(axis for axis in AXES if len({getattr(rung, axis) for rung in rungs}) > 1)


def forms_of(rungs: Sequence[Rung]) -> list[Form]:
    """The different forms that a ladder can distinguish."""
    axes = varied_axes(rungs)
    sizes = (PARAMETERS,) if {WIDTH, DEPTH} <= set(axes) else ()
    forms = {form.terms: form for form in reversed([form.among((*axes, *sizes)) for form in FORMS])}
    return [form for form in reversed(forms.values()) if len(form.axes) >= len(axes) - len(sizes)]


def _seed_spread(rungs: Sequence[Rung]) -> float:
    """Relative standard deviation of the loss over seeds, pooled over rungs; 0 for one seed."""
    logs = np.log([rung.losses for rung in rungs])
    return float(np.sqrt(logs.var(1, ddof=1).mean())) if logs.shape[1] > 1 else 0.0


def _held_out(rungs: Sequence[Rung]) -> tuple[list[Rung], list[Rung]]:
    """``(smaller, larger)``: the larger third by cost is held out."""
    rungs = sorted(rungs, key=lambda rung: rung.cost)
    count = len(rungs) - max(1, len(rungs) // 3)
    return rungs[:count], rungs[count:]


def _drawn(posteriors: Sequence[Posterior], weights: np.ndarray, rungs: Sequence[Rung], seeds: int) -> np.ndarray:
    """``[draws, N]``: mean losses over ``seeds`` runs of each rung, from all forms in proportion to their weights."""
    random = np.random.default_rng(0)
    counts = np.round(_DRAWS * weights).astype(int)
    drawn = np.concatenate([one.draw(rungs, n, seeds, random) for one, n in zip(posteriors, counts, strict=True) if n])
    if len(drawn) < _FEWEST * _DRAWS:
        raise InputError(
            "the losses of the ladder follow no law in which more training lowers a positive loss: forecast the "
            "training loss with objective=train, or use rungs of the target's steps."
        )
    return drawn


def _softmax(logs: Sequence[float]) -> np.ndarray:
    shares = np.exp(np.array(logs) - max(logs))
    return shares / shares.sum()


def _quantiles(losses: np.ndarray, level: float = _LEVEL) -> tuple[float, float, float]:
    """The ends and the middle of the central part that holds a share ``level`` of ``losses``."""
    low, middle, high = np.quantile(losses, ((1 - level) / 2, 0.5, (1 + level) / 2))
    return float(low), float(middle), float(high)


def _errors(forecast: np.ndarray, losses: Sequence[float]) -> tuple[float, float]:
    """Root mean square of the relative errors of forecasts, and of those in standard deviations, if above 1."""
    errors, surprises = [], []
    for draws, loss in zip(forecast.T, losses, strict=True):
        low, middle, high = _quantiles(draws, 0.6827)
        errors.append(math.log(loss / middle))
        surprises.append(errors[-1] / (math.log(high / low) / 2))
    rms = lambda values: float(np.sqrt(np.mean(np.square(values))))
    return rms(errors), max(1.0, rms(surprises))
