"""The printed table: what every parameter is, and every factor that the rule gives it."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from depthmup_flax.rule import info_trees
from depthmup_flax.rule.factor import factor_text
from depthmup_flax.rule.optimizer import DecayMask, decay_factor
from depthmup_flax.rule.parametrization import PRESETS, Geometry, Parametrization, ParamInfo
from depthmup_flax.util.table import Table, notebook_html
from depthmup_flax.util.types import ArrayTree, InfoTree

_HAVE_EPSILON = (Geometry.LINEAR, Geometry.SIGN)


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
    rule: Parametrization = PRESETS["depth_mup"],
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

    The learning-rate multiplier is the effective one, and epsilon is relative to the raw gradient.
    With decay and ``learning_rate``, the last column is the time over which decay forgets: ``1 /
    (eta lambda)`` steps, at the peak of the schedule (arXiv:2405.13698). A standard deviation that
    no initializer declares is the rule's, relative to the base model's: ``base/2`` is half of that.
    `depthmup_flax.rescale_init` sets it. Under ``standard`` it is "?". ``carried`` is the factor
    that a parameter carries in place of the code (`ParamInfo`), if one does: ``a 4^-alpha``.

    Args:
      info: an audit, or its ``info``.
      rule: the parametrization.
      degree: of the direction (see `direction_traits.Traits`); ``None``, unknown, prints "?" for
        the multiplier.
      eps: the optimizer's epsilon, or ``None`` if it has none.
      weight_decay, decay_width_exponent, geometry, mask: as in `depthmup_flax.depthmup`.
      learning_rate: eta, or ``None`` if it is not known.
      epoch_steps: steps of an epoch, for times in epochs; ``None`` if it is not known.
      frozen: as in `depthmup_flax.freeze`.
    """
    info = info_trees.with_decay(info_trees.info_of(info), mask)
    leaves = info_trees.flatten_info(info)
    geometry = Geometry.SIGN if geometry is None else geometry
    training = _Training(
        rule=rule,
        degree=degree,
        eps=eps,
        weight_decay=weight_decay,
        decay_width_exponent=decay_width_exponent,
        learning_rate=learning_rate if weight_decay and learning_rate else None,
        epoch_steps=epoch_steps,
        frozen=info_trees.frozen_paths(info, frozen),
        geometries=info_trees.named_geometries(info, geometry),
        carries=any(leaf.carries for leaf in leaves.values()),
    )
    columns = ["parameter", "shape", "role", *training.columns]
    alignment = "<<<" + ">" * (len(columns) - 3)  # text left, numbers right
    table = Table(columns, _rows(leaves, training), alignment, ruled=True)
    total = _total(leaves)
    return ParamTable(f"{table}\n{total}", notebook_html(table, total))


@dataclasses.dataclass(frozen=True)
class _Training:
    """What the columns of numbers depend on, see `param_table`."""

    rule: Parametrization
    degree: float | None
    eps: float | None
    weight_decay: float
    decay_width_exponent: float
    learning_rate: float | None  # None: times of decay are not shown
    epoch_steps: float | None
    frozen: Collection[str]
    geometries: Mapping[str, Geometry]
    carries: bool  # whether a parameter carries a factor

    @property
    def columns(self) -> list[str]:
        """The names of the cells of `_cells`."""
        names = ["init std", "forward"]
        if self.carries:
            names.append("carried")
        names += ["lr mult", "eps", "decay"]
        if self.learning_rate is not None:
            names.append("decay time")
        return names


def _rows(leaves: Mapping[str, ParamInfo], training: _Training) -> list[tuple[str, ...]]:
    """A row for each parameter, or for equal layers."""
    equal: dict[tuple[str, int, str, tuple[str, ...]], list[str]] = {}
    for path, leaf in leaves.items():
        cells = tuple(_cells(path, leaf, training))
        key = (info_trees.template(path), len(leaf.shape), leaf.role_name, cells)
        equal.setdefault(key, []).append(path)
    rows = []
    for (_, _, role, cells), paths in equal.items():
        shapes = info_trees.sizes([leaves[path].shape for path in paths])
        rows.append((info_trees.collapsed(paths), shapes, role, *cells))
    return rows


def _cells(path: str, leaf: ParamInfo, training: _Training) -> list[str]:
    """The numbers of one parameter."""
    rule = training.rule
    cells = [_initial_scale(leaf, rule), f"{float(rule.forward_multiplier(leaf)):.4g}"]
    if training.carries:
        cells.append(str(leaf.carried))
    decay = 0.0
    if path not in training.frozen:
        decay = training.weight_decay * decay_factor(leaf, training.decay_width_exponent)
    cells += [_rate(path, leaf, training), _epsilon(path, leaf, training), f"{decay:g}"]
    if training.learning_rate is not None:
        cells.append(_time(training.learning_rate, decay, training.epoch_steps))
    return cells


def _rate(path: str, leaf: ParamInfo, training: _Training) -> str:
    """The learning rate's multiplier."""
    if path in training.frozen:
        return "frozen"
    if training.degree is None:
        return "?"
    geometry = training.geometries[path]
    return factor_text(training.rule.lr_multiplier(leaf, training.degree, geometry))


def _epsilon(path: str, leaf: ParamInfo, training: _Training) -> str:
    """Epsilon relative to the raw gradient, of optimizers that have one."""
    if training.eps is None or training.geometries[path] not in _HAVE_EPSILON:
        return "-"
    return f"{training.eps / float(training.rule.gradient_scale(leaf)):.3g}"


def _initial_scale(leaf: ParamInfo, rule: Parametrization) -> str:
    """The standard deviation that the rule wants: ``base/2`` is half the base model's."""
    ratio = rule.init_ratio(leaf)
    if ratio is None:
        return "?"
    divisor = factor_text(1 / (ratio * np.asarray(leaf.factor(rule))))
    return "base" if divisor == "1" else f"base/{divisor}"


def _time(learning_rate: float, decay: float, epoch_steps: float | None) -> str:
    """``1e+04 steps, 2.6 epochs``; ``never`` without decay."""
    if not decay:
        return "never"
    steps = 1 / (learning_rate * decay)
    text = f"{steps:.3g} steps"
    if epoch_steps:
        text += f", {steps / epoch_steps:.3g} epochs"
    return text


def _total(leaves: Mapping[str, ParamInfo]) -> str:
    """How many parameters there are, and how many of them in branches."""
    in_branches = {path: leaf for path, leaf in leaves.items() if leaf.in_branch}
    whole = info_trees.param_count(leaves)
    inside = info_trees.param_count(in_branches)
    numbers = f"{len(leaves)} arrays, {whole:,} parameters"
    return f"{numbers}, {inside:,} of them inside residual branches"
