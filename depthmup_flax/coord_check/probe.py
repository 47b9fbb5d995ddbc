"""Questions to the networks that only a failed check asks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from depthmup_flax.coord_check.layer_names import Collapse
from depthmup_flax.coord_check.networks import Network
from depthmup_flax.infer.audit import audit
from depthmup_flax.infer.audit_table import Finding, summary
from depthmup_flax.infer.missing_factors import same_role
from depthmup_flax.rule.info_trees import flatten_info
from depthmup_flax.rule.parametrization import Parametrization, ParamInfo, Role


@dataclasses.dataclass(frozen=True)
class Probe:
    """The smallest network, the loss of its outputs, the names of its parameters in the report, and what to audit.

    ``audited`` is axis -> (the largest network, the smallest, the names of the largest one's parameters).
    """

    network: Network
    loss: Callable[[jax.Array], jax.Array]
    collapse: Collapse
    audited: Mapping[str, tuple[Network, Network, Collapse]] = dataclasses.field(default_factory=dict)

    def findings(self, axis: str, rule: Parametrization) -> list[Finding] | None:
        """What `audit` finds in the largest network, compared with the smallest; ``None`` if it cannot read them.

        Paths are those of the report.
        """
        if axis not in self.audited:
            return None
        network, base, collapse = self.audited[axis]
        if network.source is None or base.source is None:
            return None
        info = flatten_info(network.info)
        inside = {path for path, leaf in info.items() if leaf.in_branch}
        source = network.source
        try:
            result = audit(
                source.model,
                base.source.model,
                source.x,
                rule=rule,
                # At one depth, a branch that is there once at every depth cannot be told from the others.
                in_branch=inside.__contains__ if inside and axis == "depth" else None,
                depth_ratio=_depth_ratio(info, flatten_info(base.info)) if axis == "depth" else None,
                output=source.output,
                **source.kwargs,
            )
        except Exception:  # a model that cannot be read must not lose the measurements
            return None
        found = [finding for finding in result.findings if finding.certain]
        if axis == "width":  # at one width, the trace reads roles by place
            wrong: dict[tuple[Role, Role], list[str]] = {}
            for row in result.rows:
                if row.info and row.path in info and not same_role(row.info, info[row.path]):
                    wrong.setdefault((info[row.path].role, row.info.role), []).append(row.path)
            for (given, read), paths in wrong.items():
                text = f"info has {summary(paths)} as {given}; the trace reads {read}."
                found.append(Finding("wrong_role", tuple(paths), text, "info = audit.info"))
        renamed = lambda paths: tuple(dict.fromkeys(collapse(path) for path in paths))
        return [dataclasses.replace(f, paths=renamed(f.paths)) for f in found]

    def before_norms(self, paths: Sequence[str]) -> list[str]:
        """The weights among ``paths`` whose size does not matter to the loss: a norm follows.

        The gradient is then orthogonal to the weight.
        """
        params = self.network.init(jax.random.key(0))
        gradient = jax.jit(jax.grad(lambda p: self.loss(self.network.apply(p)[0])))(params)
        found: dict[str, list[float]] = {}
        for path, w, g in zip(flatten_info(self.network.info), *map(jax.tree.leaves, (params, gradient)), strict=True):
            w, g = np.asarray(w, np.float64).ravel(), np.asarray(g, np.float64).ravel()
            size = float(np.linalg.norm(w) * np.linalg.norm(g))
            if self.collapse(path) in paths and size > 0:
                found.setdefault(self.collapse(path), []).append(abs(float(w @ g)) / size)
        return sorted(name for name, cosines in found.items() if max(cosines) < 1e-4)

    def is_entrywise(self) -> bool:
        """Whether the updates of the second half of each parameter do not depend on gradients of the first half.

        Those are made 100 times larger, and zero.
        """
        params = self.network.init(jax.random.key(0))
        leaves, structure = jax.tree.flatten(params)
        rng = np.random.default_rng(0)
        gradients = [rng.standard_normal(leaf.shape).astype(np.float32) for leaf in leaves]
        halves = [np.arange(g.size).reshape(g.shape) < g.size // 2 for g in gradients]
        updates = []
        for factor in (1.0, 100.0, 0.0):
            new = [jnp.where(half, factor * g, g) for half, g in zip(halves, gradients, strict=True)]
            state = self.network.optimizer.init(params)
            updates.append(self.network.optimizer.update(jax.tree.unflatten(structure, new), state, params)[0])
        first, *others = [jax.tree.leaves(update) for update in updates]
        return all(
            np.allclose(np.asarray(a)[~half], np.asarray(b)[~half], rtol=1e-3, atol=1e-12)
            for other in others
            for half, a, b in zip(halves, first, other, strict=True)
        )


def _depth_ratio(info: Mapping[str, ParamInfo], base: Mapping[str, ParamInfo]) -> float | None:
    """The ratio of the depths of two networks, as their user counts them."""
    ratio, base_ratio = ({leaf.depth_ratio for leaf in of.values() if leaf.in_branch} for of in (info, base))
    return ratio.pop() / base_ratio.pop() if len(ratio) == len(base_ratio) == 1 else None
