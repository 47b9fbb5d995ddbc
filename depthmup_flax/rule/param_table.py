"""The printed table: what every parameter is, and every factor that the rule gives it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from depthmup_flax.rule import info_trees
from depthmup_flax.rule.factor import factor_text
from depthmup_flax.rule.optimizer import DecayMask, decay_factor
from depthmup_flax.rule.parametrization import Geometry, Parametrization, ParamInfo
from depthmup_flax.util.table import Table, notebook_html
from depthmup_flax.util.types import ArrayTree, InfoTree


class ParamTable(str):
    """Text that a notebook shows as the table ``html``."""

    html: str

    def __new__(cls, text: str, html: str = "") -> ParamTable:
        """From both forms."""
        table = super().__new__(cls, text)
        table.html = html
        return table

    def _repr_html_(self) -> str | None:
        return self.html or None


def param_table(
    info: InfoTree,
    rule: Parametrization,
    *,
    degree: float | None = 0.0,
    eps: float | None = None,
    weight_decay: float = 0.0,
    decay_width_exponent: float = 0.0,
    learning_rate: float | None = None,
    epoch_steps: float | None = None,
    frozen: Sequence[str] = (),
    geometry: str | ArrayTree | None = None,
    mask: DecayMask = None,
) -> ParamTable:
    """One line per parameter, equal layers in one, with its role and factors, and a line of totals.

    The learning-rate multiplier is the effective one, and epsilon is relative to the raw gradient. With decay and
    ``learning_rate``, the last column is the time over which decay forgets: ``1 / (eta lambda)`` steps, at the peak of
    the schedule (arXiv:2405.13698). A standard deviation that no initializer declares is the rule's, relative to the
    base model's: ``base/2`` is half of that. `depthmup_flax.rescale_init` sets it. Under ``standard`` it is "?".
    ``carried`` is the factor that a parameter carries in place of the code (`ParamInfo`), if one does: ``a 4^-alpha``.

    Args:
      info: ``audit.info``.
      rule: the parametrization.
      degree: of the direction (see `direction_traits.Traits`); ``None``, unknown, prints "?" for the multiplier.
      eps: the optimizer's epsilon, or ``None`` if it has none.
      weight_decay, decay_width_exponent, geometry, mask: as in `depthmup_flax.depthmup`.
      learning_rate: eta, or ``None`` if it is not known.
      epoch_steps: steps of an epoch, for times in epochs; ``None`` if it is not known.
      frozen: as in `depthmup_flax.freeze`.
    """
    info = info_trees.with_decay(info, mask)
    carries = any(leaf.carries for leaf in info_trees.flatten_info(info).values())
    peak = learning_rate if weight_decay and learning_rate else None
    columns = ["parameter", "shape", "role", "init std", "forward", *(["carried"] if carries else [])]
    columns += ["lr mult", "eps", "decay", *(["decay time"] if peak else [])]
    equal: dict[tuple[str, int, tuple[str, ...]], list[str]] = {}
    leaves = info_trees.flatten_info(info)
    kinds = info_trees.named_geometries(info, Geometry.SIGN if geometry is None else geometry)
    frozen_names = info_trees.frozen_paths(info, frozen)
    for name, leaf in leaves.items():
        rate = "?" if degree is None else factor_text(rule.lr_multiplier(leaf, degree, kinds[name]))
        decay = 0.0 if name in frozen_names else weight_decay * decay_factor(leaf, decay_width_exponent)
        has_eps = eps is not None and kinds[name] in (Geometry.LINEAR, Geometry.SIGN)
        cells = (
            leaf.role_name,
            _initial_scale(leaf, rule),
            f"{float(rule.forward_multiplier(leaf)):.4g}",
            *([str(leaf.carried)] if carries else []),
            "frozen" if name in frozen_names else rate,
            f"{(eps or 0) / float(rule.gradient_scale(leaf)):.3g}" if has_eps else "-",
            f"{decay:g}",
            *([_time(peak, decay, epoch_steps)] if peak else []),
        )
        equal.setdefault((info_trees.template(name), len(leaf.shape), cells), []).append(name)
    rows = [
        (info_trees.collapsed(names), info_trees.sizes([leaves[name].shape for name in names]), *cells)
        for (_, _, cells), names in equal.items()
    ]
    align = "<<<" + ">" * (len(columns) - 3)  # text left, numbers right
    table = Table(columns, rows, align, ruled=True)
    inside = info_trees.param_count({name: leaf for name, leaf in leaves.items() if leaf.in_branch})
    whole = info_trees.param_count(leaves)
    total = f"{len(leaves)} arrays, {whole:,} parameters, {inside:,} of them inside residual branches"
    return ParamTable(f"{table}\n{total}", notebook_html(table, total))


def _initial_scale(leaf: ParamInfo, rule: Parametrization) -> str:
    """The standard deviation if it is declared, or what the rule wants: ``base/2``, half the base model's."""
    ratio = rule.init_ratio(leaf)
    if leaf.init_std is not None:
        return f"{leaf.init_std:.4g}"
    if ratio is None:
        return "?"
    divisor = factor_text(1 / (ratio * np.asarray(leaf.factor(rule))))
    return "base" if divisor == "1" else f"base/{divisor}"


def _time(learning_rate: float, decay: float, epoch_steps: float | None) -> str:
    """``1e+04 steps, 2.6 epochs``; ``never`` without decay."""
    if not decay:
        return "never"
    steps = 1 / (learning_rate * decay)
    return f"{steps:.3g} steps" + (f", {steps / epoch_steps:.3g} epochs" if epoch_steps else "")
