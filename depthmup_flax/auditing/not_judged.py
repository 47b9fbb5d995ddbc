"""What an audit could not judge, each with what to do."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping

from depthmup_flax.auditing.audit_report import Finding, number, summary
from depthmup_flax.auditing.comparison import Comparison
from depthmup_flax.auditing.parameter_rows import ParameterRows
from depthmup_flax.auditing.score_factors import ScoreFactors
from depthmup_flax.rule.parametrization import Role
from depthmup_flax.trace.unread import ROUNDING, Unread
from depthmup_flax.util.groups import grouped

_MEASURE = "measure with dm.coord_check"
_BY_EYE = f"make the factors numbers of the code, not arrays; or check them by eye, and {_MEASURE}"


def not_judged(
    compared: Comparison,
    rows: ParameterRows,
    unread_roles: Mapping[str, str],
    axes: Collection[str],
    m: float,
) -> list[Finding]:
    """Everything without which an audit cannot say that a forward pass follows the rule."""
    return [
        *_sizes(compared, rows, axes, m),
        *_variables(compared),
        *_operations(compared),
        *_sums(compared),
        *_matrices(compared, rows),
        *_factors(compared, rows),
        *_roles(unread_roles),
    ]


def _sizes(
    compared: Comparison,
    rows: ParameterRows,
    axes: Collection[str],
    m: float,
) -> Iterator[Finding]:
    """The two models do not differ as they should."""
    if min(m, compared.r) < 1 and max(m, compared.r) <= 1:
        text = "the model is smaller than the base model: were model and base swapped?"
        yield Finding("sizes", (), text, "audit(model, base, x)")
        return
    is_equal = rows.same_layers and compared.r == 1
    if "depth" in axes and not compared.facts.depth and not is_equal:
        text = "the trace finds no residual sums, which the rule for the depth is about."
        yield Finding("depth", (), text, "give the layers residual branches; or pass axes='width'")


def _variables(compared: Comparison) -> Iterator[Finding]:
    """The NNX variables that may be trained, and that are no parameters."""
    for kind, paths in _by_type(compared.match.model.other_variables).items():
        text = f"{summary(paths)} is not read: its type is {kind}, which is no nnx.Param."
        code = f"class {kind}(nnx.Param), or nnx.BatchStat for what is not trained"
        yield Finding("variable", tuple(paths), text, code)


def _by_type(types: Mapping[str, str]) -> dict[str, list[str]]:
    return grouped(types, types.__getitem__)


def _operations(compared: Comparison) -> Iterator[Finding]:
    """The operations of both models that were not read."""
    by_name: dict[str, Unread] = {}
    for unread in (*compared.base_facts.unread, *compared.facts.unread):
        by_name[unread.name] = unread
    for name, unread in by_name.items():
        paths = tuple(sorted(unread.paths))
        reads = ""
        if paths:
            reads = f", which reads what {summary(paths)} {'make' if len(paths) > 1 else 'makes'},"
        text = f"{name}{reads} is not understood, so factors in it were not read."
        function = f"{{{name!r}: function}}, a function of the same arrays in jax.numpy"
        function += ", to be read in its place"
        if name.startswith(ROUNDING):
            function = "{'quantized': lambda x: x}, with the function that rounds under jax.jit"
            function += " and that name"
        yield Finding(name, paths, text, f"pass known={function}", source=unread.source)


def _sums(compared: Comparison) -> Iterator[Finding]:
    """The sums of a stream that are no residual sums."""
    sums = compared.unread_sums
    if sums is None:
        return
    paths = tuple(sorted(sums.paths))
    near = f", near {summary(paths)}," if paths else ""
    text = (
        f"every layer adds something to the stream{near} that is no residual branch: a gate, an "
        "entrywise function of the stream, its first value, another stream such as a velocity, "
        "or a sum over layers."
    )
    code = f"write h = h + c * y; or {_MEASURE}"
    yield Finding("sum", paths, text, code, source=sums.source)


def _matrices(compared: Comparison, rows: ParameterRows) -> Iterator[Finding]:
    """Layers through which the stream passes, as those that merge long skips in U-ViT."""
    paths = []
    for row in rows.on_stream:
        info = row.info
        is_hidden = info is not None and info.role is Role.HIDDEN and not info.to_few_features
        if is_hidden and row.path not in compared.facts.projections:
            paths.append(row.path)
    if compared.facts.depth and paths and compared.unread_sums is None:
        text = f"the stream passes through {summary(paths)}, more often in deeper models"
        text += ": the rule is about sums."
        code = f"write h = h + c * (h @ kernel); or {_MEASURE}"
        yield Finding("matrix", tuple(paths), text, code)


def _factors(compared: Comparison, rows: ParameterRows) -> Iterator[Finding]:
    """Factors that could not be traced, or whose scale is not that of attention."""
    yield from _growing_products(compared)
    if compared.of_output is None:
        text = "the factors of the output, which no readout makes, could not be traced."
        yield Finding("factor", (), text, _BY_EYE)
    untraced = {
        "the factors of the branches with": _in_untraced_branches(compared),
        "the factors of": _untraced_outside(rows),
        "the factors inside the branches, of": _untraced_inside(compared),
        "the scale of the products of queries and keys of": _untraced_scores(compared),
    }
    for what, paths in untraced.items():
        if paths:
            text = f"{what} {summary(paths)} could not be traced."
            yield Finding("factor", tuple(paths), text, _BY_EYE)


def _growing_products(compared: Comparison) -> Iterator[Finding]:
    """Products over a growing dimension, such as those of linear attention."""
    alike = grouped(compared.growing_products, _sizes_and_factor)
    for (d, base_d, factor), several in alike.items():
        paths = _united(scores.product.paths for scores in several)
        what = f"products over a growing dimension, outside of softmax, of {summary(paths)}"
        text = f"{what} are multiplied by {factor} relative to the base model."
        code = f"write y = rule.attention_scale({d}, {base_d}) * q @ k.T  # d, base d"
        code += f"; or {_MEASURE}"
        yield Finding("factor", tuple(paths), text, code)


def _sizes_and_factor(scores: ScoreFactors) -> tuple[int, int, str]:
    shown = "an unknown factor" if math.isnan(scores.factor) else number(scores.factor)
    return scores.product.size, scores.base_size, shown


def _in_untraced_branches(compared: Comparison) -> list[str]:
    branches = compared.branches.of_node.values()
    return _united(entry.branch.paths for entry in branches if entry.factor is None)


def _untraced_outside(rows: ParameterRows) -> list[str]:
    result = []
    for row in rows.all:
        if row.found is None and row.wanted is not None and not row.in_branch:
            result.append(row.path)
    return result


def _untraced_inside(compared: Comparison) -> list[str]:
    result = []
    for path, factor in compared.inside_branches.items():
        if factor is None and compared.infos[path].role is Role.HIDDEN:
            result.append(path)
    return result


def _untraced_scores(compared: Comparison) -> list[str]:
    products = [scores.product for scores in compared.scores if math.isnan(scores.factor)]
    return _united(product.paths | product.beside for product in products if product.in_softmax)


def _roles(unread_roles: Mapping[str, str]) -> Iterator[Finding]:
    """The parameters whose role the trace does not tell; path -> the reason."""
    for why, paths in grouped(unread_roles, unread_roles.__getitem__).items():
        code = f"pass overrides={{{paths[0]!r}: Axes(...)}}"
        yield Finding("role", tuple(paths), f"{summary(paths)}: {why}.", code)


def _united(several: Iterable[Collection[str]]) -> list[str]:
    return sorted(frozenset[str]().union(*several))
