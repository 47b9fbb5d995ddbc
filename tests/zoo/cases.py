"""The cases: every model right, and with each of its mistakes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
from flax import nnx

import depthmup_flax as dm
from depthmup_flax.auditing.audit import Audit
from depthmup_flax.check import Network, Source, coord_check, linen_network, nnx_network
from depthmup_flax.check.report import Report
from depthmup_flax.util.types import ArrayTree, InfoTree

from .edits import BASE_DEPTH, BASE_WIDTH, Edits
from .mistakes import GENERAL, LEARNING_RATE, Mistake
from .styles import STYLES, Style

STEPS = 3


@dataclasses.dataclass(frozen=True)
class Case:
    """A model, right (``mistake`` is ``None``) or with one mistake."""

    name: str
    style: Style
    mistake: Mistake | None

    @property
    def rule(self) -> dm.Parametrization:
        """The rule that the user takes."""
        return (self.mistake and self.mistake.rule) or self.style.rule

    def edits(self, width: int, depth: int) -> Edits:
        """What stands in the model of this size."""
        right = Edits.right(width, depth, self.rule)
        return dataclasses.replace(right, **self.mistake.edit(right)) if self.mistake else right

    def model(self, width: int, depth: int) -> Any:
        """A Linen module, ``rngs -> NNX module``, or (function, init)."""
        return self.style.make(width, depth, self.edits(width, depth))

    def shapes(self, width: int, depth: int) -> ArrayTree:
        """The parameters of a size, without values."""
        model, style, key = self.model(width, depth), self.style, jax.random.key(0)
        if style.kind == "linen":
            return jax.eval_shape(model.init, key, style.batch.x)["params"]
        if style.kind == "nnx":
            return nnx.state(nnx.eval_shape(lambda: model(nnx.Rngs(0))), nnx.Param)
        return jax.eval_shape(model[1], key)

    def info(self, width: int, depth: int, *, right: bool = False) -> InfoTree:
        """The roles that the user gives; ``right``: as they are."""
        style, m, r = self.style, width / BASE_WIDTH, depth / BASE_DEPTH
        arguments: dict[str, Any] = {
            "in_branch": style.in_branch,
            "readout": style.readout,
            "stacked": style.stacked,
            "overrides": style.overrides,
            "depth_ratio": r if style.in_branch else 1.0,
        }
        if self.mistake and not right:
            arguments |= self.mistake.info(m, r)
        at_base = {"delta_params": self.shapes(2 * BASE_WIDTH, depth)} if width == BASE_WIDTH else {}
        return dm.infer_info(self.shapes(width, depth), self.shapes(BASE_WIDTH, depth), **arguments, **at_base)

    def network(self, width: int, depth: int) -> Network:
        """What the check trains."""
        model, style, info = self.model(width, depth), self.style, self.info(width, depth)
        make = self.mistake and self.mistake.optimizer
        optimizer = (
            make(info, self.rule, width / BASE_WIDTH, depth / BASE_DEPTH)
            if make
            else dm.adamw(LEARNING_RATE, info, self.rule)
        )
        arguments: Mapping[str, Any] = {"info": info, "optimizer": optimizer}
        if style.kind == "nnx":
            return nnx_network(model, style.batch.x, **arguments)
        if style.kind == "function":
            source = Source((model[0], self.shapes(width, depth)), style.batch.x)
            return Network(model[1], lambda params: (model[0](params, style.batch.x), {}), info, optimizer, source)
        return linen_network(model, style.batch.x, output=style.output, **arguments)

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes that decide: all for a right model, that of the mistake otherwise."""
        if self.mistake:
            return (self.mistake.axis,)
        return ("width", "depth") if self.style.grows_with_depth else ("width",)

    def check(self, **arguments: Any) -> Report:
        """The coordinate check's report."""
        style = self.style
        own = {"widths": self.mistake.widths} if self.mistake and self.mistake.widths else {}
        sizes = {f"{axis}s": getattr(style, f"{axis}s") for axis in self.axes} | own
        arguments = {"steps": STEPS, "seeds": style.seeds, **sizes, **arguments}
        return coord_check(
            self.network, style.batch.labels, rule=self.rule, width=style.width, depth=style.depth, **arguments
        )

    def audit(self, width: int = 4 * BASE_WIDTH, depth: int = 2 * BASE_DEPTH) -> Audit:
        """The audit of a model of this size and of what the user says about it."""
        style = self.style
        model, base = (self.traceable(*size) for size in ((width, depth), (BASE_WIDTH, BASE_DEPTH)))
        info = self.info(width, depth) if not self.mistake or self.mistake.in_info else None
        return dm.audit(model, base, style.batch.x, rule=self.rule, info=info, output=style.output)

    def traceable(self, width: int, depth: int) -> Any:
        """A module, or (function, parameters), without values."""
        model = self.model(width, depth)
        if self.style.kind == "nnx":
            return nnx.eval_shape(lambda: model(nnx.Rngs(0)))
        return model if self.style.kind == "linen" else (model[0], self.shapes(width, depth))


def _cases() -> dict[str, Case]:
    cases = {}
    for name, style in STYLES.items():
        mistakes = {mistake: GENERAL[mistake] for mistake in style.mistakes} | dict(style.own_mistakes)
        cases[name] = Case(name, style, None)
        cases |= {f"{name}-{key}": Case(f"{name}-{key}", style, mistake) for key, mistake in mistakes.items()}
    return cases


CASES: Mapping[str, Case] = _cases()
