"""What else to know: initial values to set, and what the two sizes do not show."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import jax.numpy as jnp

from depthmup_flax.auditing import parameter_trees as trees
from depthmup_flax.auditing.audit_report import Row, summary
from depthmup_flax.auditing.carriers import Correction
from depthmup_flax.auditing.comparison import Comparison
from depthmup_flax.auditing.parameter_rows import ParameterRows
from depthmup_flax.auditing.relative_factors import close
from depthmup_flax.rule.parametrization import Role
from depthmup_flax.trace.facts import Traced
from depthmup_flax.trace.uses import LOOKUP

# Queries and keys carry the factor of scores whose head size grows, values do not.
KEEP_HEAD_SIZE = (
    "Keep the base's head size, with more heads (num_heads = width // head size); or write the factor in the code: "
    "dm.audit(..., carry=False) prints the line."
)


def notes(
    compared: Comparison,
    rows: ParameterRows,
    axes: Collection[str],
    m: float,
    corrections: Sequence[Correction],
) -> list[str]:
    """All notes, what limits the verdict first. A line of code after a sentence begins with ``write:``."""
    return [
        *_narrower(compared),
        *_no_branches(compared),
        *_equal_sizes(compared, axes, m),
        *_corrected(corrections),
        *_norms_on_stream(rows),
        *_few_features(rows),
        *_coarse(compared),
        *_in_parts(rows, compared),
        *_initial_scale(rows, compared),
        *_matrices_in_a_row(compared),
    ]


def _corrected(corrections: Sequence[Correction]) -> Iterator[str]:
    """Wrong factors of the code that parameters undo."""
    for correction in corrections:
        if correction.is_of_wrong_factor:
            finding = correction.finding
            yield (
                f"{finding.name}: {finding.text} It is undone: the rest is carried by "
                f"{summary(correction.paths)}, so the rule holds. Keep both, or\n"
                f"write: {finding.code}"
            )


def _equal_sizes(compared: Comparison, axes: Collection[str], m: float) -> Iterator[str]:
    """What both models have in common: there factors are 1, or those of width and depth equal."""
    equal = ""
    if m != 1 and close(m, compared.r):
        equal = f"width and depth ratio are both {m:g}"
    elif m != 1 and close(m * m, compared.r):
        equal = f"the width ratio, {m:g}, is the root of the depth ratio, {compared.r:g}"
    if equal:
        yield (
            f"{equal}, so a factor of the one in place of the other is not seen, such as residual_multiplier(m). "
            f"Audit once at another width, too: {4 if m == 2 else 2} times that of the base model."
        )
    if compared.match.has_one_width and "width" in axes:
        yield (
            "the model is as wide as the base model: factors of the width are 1 here, and were "
            "not compared. Roles are by place: what reads the batch is an input, the last "
            "product an output."
        )
    depth = compared.facts.depth
    is_equally_deep = depth and depth == compared.base_facts.depth and not compared.is_absolute
    if is_equally_deep and "depth" in axes:
        text = "factors of the depth are 1 here, and were not compared."
        yield f"the model is as deep as the base model: {text}"


def _no_branches(compared: Comparison) -> Iterator[str]:
    if not compared.facts.depth:
        yield "the trace finds no residual sums."


def _matrices_in_a_row(compared: Comparison) -> Iterator[str]:
    """Branches for which others advise another rule."""
    matrices = max((branch.matrices for branch in compared.facts.branches), default=0)
    if matrices > 1:
        yield (
            f"branches have {matrices} matrices in a row: keep the default, or compare alpha = 1, which CompleteP "
            "advises:\nwrite: rule = dm.get_parametrization('completep')"
        )


def _few_features(rows: ParameterRows) -> Iterator[str]:
    """Weights from the width to a fixed number of features."""
    paths = [row.path for row in rows.all if row.info is not None and row.info.to_few_features]
    if paths:
        yield (
            f"{summary(paths)} map the width to a fixed number of features: start at zero, or "
            "with a standard deviation of 1/fan_in. With 1/sqrt(fan_in), the product changes as "
            "sqrt(m) in wide networks."
        )


def _coarse(compared: Comparison) -> Iterator[str]:
    """Parameters of 16 bits."""
    paths = []
    for path, leaf in compared.match.model.leaves.items():
        dtype = trees.abstract(leaf).dtype
        if jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits <= 16:
            paths.append(path)
    if paths:
        yield (
            f"{summary(paths)} have 16 bits: the rule makes steps smaller as networks grow, and "
            "those below half a unit in the last place are lost. Keep parameters in float32 and "
            "compute in 16 bits."
        )


def _norms_on_stream(rows: ParameterRows) -> Iterator[str]:
    """Scales and biases of norms behind the sums."""
    vectors = [row for row in rows.on_stream if row.info and row.info.role is Role.VECTOR]
    paths = [row.path for row in vectors]
    if paths:
        yield (
            f"{summary(paths)} stand on the stream in every layer, as norms after the sum do: "
            "updates add up with depth, which no multiplier corrects. Use norms in front of "
            "branches, or without scale and bias."
        )


def _narrower(compared: Comparison) -> Iterator[str]:
    """The model is deeper and narrower."""
    narrower = [info for info in compared.infos.values() if min(info.width_in, info.width_out) < 1]
    if compared.r > 1 and narrower:
        yield "the model is narrower than the base model: were model and base swapped?"


def _initial_scale(rows: ParameterRows, compared: Comparison) -> Iterator[str]:
    """The initial scale of readouts and of tables that are looked up."""
    function, defaults = "rescale_init", ", such as Flax's defaults"
    call = "params = dm.rescale_init(params, base_params, audit)  # and the optimizer's rule, if you pass one"
    if compared.match.model.library == "torch":
        function, defaults = "rescale_init_", ""
        call = "dm.rescale_init_(model, base, audit)  # and the groups' rule, if you pass one"
    wrong: dict[float, list[str]] = {}
    for row in rows.all:
        m = _initial_ratio(row, compared.facts)
        if m != 1:
            wrong.setdefault(m, []).append(row.path)
    for m, paths in wrong.items():
        yield (
            f"initial values are not seen. Under muP {summary(paths)} should start with the base "
            f"model's standard deviation, m^1/2 = {m**0.5:.4g} times what initializers of "
            f"1/sqrt(width) give{defaults}. {function} sets all initial values, given those of base:\n"
            f"write: {call}"
        )


def _in_parts(rows: ParameterRows, compared: Comparison) -> Iterator[str]:
    """What groups of torch's optimizers refuse, and other optimizers take."""
    paths = [row.path for row in rows.all if row.carried.has_parts]
    if paths and compared.match.model.library == "torch":
        yield f"dm.param_groups refuses {summary(paths)}, whose parts carry factors of their own. {KEEP_HEAD_SIZE}"


def _initial_ratio(row: Row, facts: Traced) -> float:
    """The ratio by which initializers' variance falls, where the rule wants the base model's."""
    info = row.info
    if info is None or row.in_branch:
        return 1.0
    if info.role is Role.OUTPUT:
        return info.width_in
    is_looked_up = any(use.kind == LOOKUP for use in facts.uses.get(row.path, ()))
    return info.width_out if info.role is Role.INPUT and is_looked_up else 1.0
