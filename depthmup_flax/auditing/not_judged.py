"""What an audit could not judge: operations, factors and roles that were not read, and sizes that do not differ."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from depthmup_flax.auditing.audit_table import NotJudged, Row, summary
from depthmup_flax.auditing.missing_factors import Comparison
from depthmup_flax.auditing.unread_places import ROUNDING
from depthmup_flax.rule.parametrization import Role
from depthmup_flax.util.errors import InputError

AXES = ("width", "depth")
_BY_EYE = "make the factors numbers of the code, not arrays; or check them by eye, and measure with dm.coord_check"
_AS_BRANCH = "write h = h + c * branch(h); or measure with dm.coord_check"


def scaled_axes(axes: str | Collection[str]) -> frozenset[str]:
    """The argument ``axes`` of `audit` as a set."""
    result = frozenset({axes} if isinstance(axes, str) else axes)
    if not result or not result <= set(AXES):
        raise InputError(
            f"axes is {axes!r}: it must name what you scale. Pass 'width', 'depth' or both, ('width', 'depth')."
        )
    return result


def not_judged(
    compared: Comparison,
    rows: Sequence[Row],
    on_stream: Sequence[Row],
    unread_roles: Mapping[str, str],
    axes: Collection[str],
    m: float,
    *,
    same_width: bool,
    same_layers: bool,
) -> list[NotJudged]:
    """Everything without which an audit cannot say that a forward pass follows the rule.

    ``on_stream`` are the parameters outside of branches whose number grows with the depth.
    """
    sizes = _equal_sizes(compared, axes, same_width=same_width, same_layers=same_layers)
    if min(m, compared.r) < 1 and max(m, compared.r) <= 1:
        text = "the model is smaller than the base model: were model and base swapped?"
        sizes = [NotJudged("sizes", (), text, "audit(model, base, x)")]
    unread = *_operations(compared), *_sums(compared), *_matrices(compared, on_stream), *_factors(compared, rows)
    return [*sizes, *unread, *_roles(unread_roles)]


def _equal_sizes(
    compared: Comparison, axes: Collection[str], *, same_width: bool, same_layers: bool
) -> list[NotJudged]:
    result, facts = [], compared.facts
    if same_width and "width" in axes:
        text = (
            "the model is as wide as the base model, so factors that depend on the width were not compared, and roles "
            "are by place (what reads the batch is an input, the last product an output)."
        )
        code = "audit a wider model; if you scale the depth alone, pass axes='depth'"
        result.append(NotJudged("width", (), text, code))
    if "depth" not in axes:
        return result
    if facts.depth and facts.depth == compared.base.depth and not compared.absolute:
        text = "the model is as deep as the base model, so multipliers of branches were not compared."
        code = "audit a deeper model; if you scale the width alone, pass axes='width'"
        result.append(NotJudged("depth", (), text, code))
    elif not facts.depth and not (same_layers and compared.r == 1):
        text = "the trace finds no residual sums, which the rule for the depth is about."
        result.append(NotJudged("depth", (), text, "give the layers residual branches; or pass axes='width'"))
    return result


def _operations(compared: Comparison) -> Iterable[NotJudged]:
    """The operations of both models that were not read."""
    for name, one in {one.name: one for one in (*compared.base.unread, *compared.facts.unread)}.items():
        paths = tuple(sorted(one.paths))
        reads = f", which reads what {summary(paths)} {'make' if len(paths) > 1 else 'makes'}," if paths else ""
        text = f"{name}{reads} is not understood, so factors in it were not read."
        function = "{'quantized': lambda x: x}, with the function that rounds under jax.jit and that name"
        if not name.startswith(ROUNDING):
            function = f"{{{name!r}: function}}, a function of the same arrays in jax.numpy, to be read in its place"
        yield NotJudged(name, paths, text, f"pass known={function}", one.source)


def _sums(compared: Comparison) -> Iterable[NotJudged]:
    sums = compared.unread_sums
    if sums is not None:
        paths = tuple(sorted(sums.paths))
        near = f", near {summary(paths)}," if paths else ""
        text = (
            f"every layer adds something to the stream{near} that is no residual branch: a gate, an entrywise function "
            "of the stream, its first value, another stream such as a velocity, or a sum over layers."
        )
        yield NotJudged("sum", paths, text, _AS_BRANCH, sums.source)
    if fading := compared.fading:
        text = (
            f"the sums of the stream and {summary(fading)} are multiplied by a number other than 1 in every layer, so "
            "what the first layers add fades or grows with depth."
        )
        yield NotJudged("stream", tuple(fading), text, _AS_BRANCH)


def _matrices(compared: Comparison, on_stream: Sequence[Row]) -> Iterable[NotJudged]:
    """Layers through which the stream passes, as the long skips of U-ViT that a matrix merges with it."""
    wide = [
        row.path for row in on_stream if (info := row.info) and info.role is Role.HIDDEN and not info.to_few_features
    ]
    paths = tuple(path for path in wide if path not in compared.facts.projections)
    if compared.facts.depth and paths and compared.unread_sums is None:
        text = f"the stream passes through {summary(paths)}, more often in deeper models: the rule is about sums."
        yield NotJudged("matrix", paths, text, "write h = h + c * (h @ kernel); or measure with dm.coord_check")


def _factors(compared: Comparison, rows: Sequence[Row]) -> Iterable[NotJudged]:
    groups = {
        "the factors of the branches with": _united(
            branch.paths for branch in compared.facts.branches if compared.branches[branch.node] is None
        ),
        "the factors of": [
            row.path for row in rows if row.found is None and row.wanted is not None and not row.in_branch
        ],
        "the factors inside the branches, of": compared.unclear_inside(),
        "the scale of products over a growing dimension, outside of softmax, of": _united(
            s.paths for s in compared.growing_products()
        ),
        "the readout, which is a product of what two networks return: the scale of": _no_readouts(compared),
        "the scale of the products of queries and keys of": _united(
            s.paths | s.beside for s in compared.unclear_scores()
        ),
    }
    for what, paths in groups.items():
        if paths:
            yield NotJudged("factor", tuple(paths), f"{what} {summary(paths)} could not be traced.", _BY_EYE)


def _no_readouts(compared: Comparison) -> list[str]:
    """Parameters of a product at the output that are no readouts, as their outputs grow in number with the width."""
    info = compared.infos.get
    return sorted(path for path in compared.facts.at_output if (leaf := info(path)) is None or leaf.width_out != 1)


def _roles(unread: Mapping[str, str]) -> Iterable[NotJudged]:
    for why in dict.fromkeys(unread.values()):
        paths = tuple(path for path, reason in unread.items() if reason == why)
        text = f"the role of {summary(paths)} was not read: {why}."
        yield NotJudged("role", paths, text, f"pass overrides={{{paths[0]!r}: Axes(...)}}")


def _united(several: Iterable[Collection[str]]) -> list[str]:
    return sorted(frozenset[str]().union(*several))
