"""Models with a mistake that parameters carry: each is the right model, at numbers drawn at random."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from depthmup_flax.auditing.audit_report import Audit
from depthmup_flax.rule.parametrization import ParamInfo, Role
from depthmup_flax.util.errors import InputError

from .cases import Kind
from .scales import possible

CARRIED, NAMED, UNREAD, WRONG = "carried", "missing", "not judged", "wrong"
# Kinds whose branches no parameter carries: they end in a nonlinearity, in weights of a fixed norm, in a kernel that is
# not read, or in a gate by what it multiplies; or they have no weight; or one weight has two needs; or others read what
# is added, too, as the nodes of a graph do.
UNCARRIED = (
    "branches/lstm", "branches/squeeze", "weightless/self_similar_*", "weightless/tanh_*", "weightless/*_bare",
    "norms/end_unscaled", "streams/graph_attention", "streams/highway", "kernels/product_kernel",
    "kernels/product_callback", "kernels/unit_columns", "kernels/spectral", "libraries/linen_spectral_norm",
    "fresh/fourier_operator", "fresh/egnn", "outsider/style_gan", "outsider/heun",
    *(f"residual/interaction_{name}" for name in ("updates", "bare", "edges", "change", "skipped")),
)  # fmt: skip


def edits(kind: Kind) -> list[str]:
    """What the rule wants of the code of a kind, as the mistakes of a model without it."""
    e = kind.scales(*kind.size)
    kind.model(e)
    kind._shapes(e)
    return [name for name in ("none", "no_readout", "root_heads") if name in possible(e) and name not in kind.harmless]


def plain(kind: Kind) -> str:
    """The verdict on a kind without its edits, which parameters may carry."""
    try:
        return kind.audit("+".join(edits(kind)), carry=True).verdict
    except InputError:
        return "refused"


def outcome(kind: Kind, mistake: str, tolerance: float = 2e-3) -> tuple[str, float]:
    """What becomes of a mistake if parameters may carry it, and how far the outputs are from the right model's."""
    audit = kind.audit(mistake, carry=True)
    if not audit.ok:
        return (NAMED if audit.findings else UNREAD), 0.0
    error = distance(kind, mistake, audit)
    return (CARRIED if error < tolerance else WRONG), error


def distance(kind: Kind, mistake: str, audit: Audit) -> float:
    """How far the outputs of a model with a mistake, which its parameters carry, are from those of the right model.

    The rule is the kind's, and the audit is that of any rule.
    """
    (right, shapes), (wrong, _) = (kind.model(kind.scales(*kind.size, name)) for name in ("", mistake))
    of = lambda function, *of_call: np.asarray(_call(function, *of_call, kind.arguments.get("output")))
    rule = kind.rule.replace(branch_multiplier=1.0)
    carries = lambda info, w: info.factor(rule) * w + info.carried_shift(rule)
    # Some of the right models multiply the readout's bias, too, which the rule leaves open.
    without_bias = lambda info, w: 0 * w if w.ndim and info.role is Role.FIXED and not info.in_branch else w
    over_leaves = functools.partial(jax.tree.map, is_leaf=lambda x: isinstance(x, ParamInfo))
    wanted = np.array(np.nan)
    for std in (0.5, 0.05):  # streams without a norm overflow
        if not np.isfinite(wanted).all():
            rng = np.random.default_rng(0)
            params, inputs = (jax.tree.map(functools.partial(_drawn, rng, std), x) for x in (shapes, kind.x))
            params = over_leaves(without_bias, audit.info, params)
            wanted = of(right, params, inputs)
    found = of(wrong, over_leaves(carries, audit.info, params), inputs)
    return float(np.max(np.abs(wanted - found)) / np.max(np.abs(wanted)))


def _drawn(rng: np.random.Generator, std: float, x: Any) -> np.ndarray:
    if jnp.issubdtype(x.dtype, jnp.floating):
        return rng.normal(0, std, x.shape).astype(x.dtype)
    return rng.integers(0, 2, x.shape).astype(x.dtype)


def _call(function: Any, params: Any, inputs: Any, output: Any) -> jax.Array:
    arguments = inputs if isinstance(inputs, tuple) else (inputs,)
    result = jax.jit(function)(params, *arguments)
    return result if output is None else output(result) if callable(output) else result[output]
