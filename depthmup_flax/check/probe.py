"""Further measurements of one small network, for the diagnosis of a failed check."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from depthmup_flax.check.layer_names import Collapse
from depthmup_flax.check.networks import Network
from depthmup_flax.rule.info_trees import flatten_info


@dataclasses.dataclass(frozen=True)
class Probe:
    """A network, the loss of its outputs, and the names of its parameters in the report."""

    network: Network
    loss: Callable[[jax.Array], jax.Array]
    collapse: Collapse

    def before_norms(self, paths: Sequence[str]) -> list[str]:
        """The weights among ``paths`` that a norm follows: their gradients are orthogonal to them."""
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
        """Whether updates of the second half of each parameter ignore gradients of the first half.

        The first half's gradients are multiplied by 1, 100 and 0.
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
