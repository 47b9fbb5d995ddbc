"""The printed table: what every parameter is, and every factor that the rule gives it."""

from collections.abc import Sequence

from depthmup_flax.rule.geometry import named_geometries
from depthmup_flax.rule.info_trees import flatten_info, frozen_paths, param_count
from depthmup_flax.rule.parametrization import Geometry, Parametrization
from depthmup_flax.types import ArrayTree, InfoTree


def param_table(
    info: InfoTree,
    parametrization: Parametrization,
    *,
    degree: float | None = 0.0,
    eps: float | None = None,
    weight_decay: float = 0.0,
    frozen: Sequence[str] = (),
    geometry: str | ArrayTree | None = None,
) -> str:
    """One line per parameter, with its role and factors, and a line of totals.

    The learning-rate multiplier is the effective one, and epsilon is relative to the raw gradient.

    Args:
      info: from `param_info`.
      parametrization: the rule.
      degree: of the direction (see `directions.Traits`); ``None``, unknown, prints "?" for the multiplier.
      eps: the optimizer's epsilon, or ``None`` if it has none.
      weight_decay: lambda; decayed leaves lose ``learning_rate * lambda`` of themselves a step.
      frozen: as in `depthmup_flax.freeze`; these show "frozen" for a rate.
      geometry: of updates, as in `depthmup_flax.depthmup`. Those of matrices with a size of their own have no epsilon.
    """
    rows = [("parameter", "shape", "role", "init std", "forward", "lr mult", "eps", "decay")]
    leaves = flatten_info(info)
    kinds = named_geometries(info, Geometry.SIGN if geometry is None else geometry)
    frozen_names = frozen_paths(info, frozen)
    for name, leaf in leaves.items():
        rate = "?" if degree is None else f"{float(parametrization.lr_multiplier(leaf, degree, kinds[name])):.4g}"
        row = (
            name,
            "x".join(map(str, leaf.shape)) or "scalar",
            leaf.role + ("+branch" if leaf.in_branch else ""),
            "?" if leaf.init_std is None else f"{leaf.init_std:.4g}",
            f"{float(parametrization.forward_multiplier(leaf)):.4g}",
            "frozen" if name in frozen_names else rate,
            "-"
            if eps is None or kinds[name] not in (Geometry.LINEAR, Geometry.SIGN)
            else f"{eps / float(parametrization.gradient_scale(leaf)):.3g}",
            f"{weight_decay:g}" if leaf.decay and name not in frozen_names else "0",
        )
        rows.append(row)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    aligns = "<<<>>>>>"  # text left, numbers right
    lines = ["  ".join(f"{cell:{a}{w}}" for cell, a, w in zip(row, aligns, widths, strict=True)) for row in rows]
    rule = "-" * len(lines[0])
    inside = param_count({name: leaf for name, leaf in leaves.items() if leaf.in_branch})
    total = f"{len(leaves)} arrays, {param_count(leaves):,} parameters, {inside:,} of them inside residual branches"
    return "\n".join(line.rstrip() for line in [lines[0], rule, *lines[1:], rule, total])
