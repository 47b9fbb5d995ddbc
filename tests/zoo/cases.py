"""One kind of model, right and with mistakes, under the audit."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import depthmup_flax as dm
from depthmup_flax.auditing.audit_report import Audit
from depthmup_flax.auditing.given_model import Model, as_model

from .scales import BASE_DEPTH, BASE_WIDTH, RULE, Scales, fault, possible
from .scope import NAMINGS, as_pair

SIZE = 4 * BASE_WIDTH, 2 * BASE_DEPTH


@dataclasses.dataclass(frozen=True, eq=False)
class Kind:
    """A model of any size.

    Attributes:
      make: (`Scope`, batch, `Scales`) -> outputs; or, if ``naming`` is ``None``, `Scales` -> what `audit` takes.
      x: the batch.
      naming: how its parameters are kept (`scope.NAMINGS`).
      size: of the audited model.
      harmless: faults that this model cancels.
      only: the faults that are tried, if not all.
      rare: whether few people use it, or no trace shows what it computes, so that "not judged" is a good answer.
      arguments: of `audit`.
    """

    make: Callable[..., Any]
    x: Any
    naming: str | None = "nested"
    rule: dm.Parametrization = RULE
    size: tuple[int, int] = SIZE
    harmless: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    rare: bool = False
    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def model(self, e: Scales) -> Any:
        """What `audit` takes."""
        if self.naming is None:
            return self.make(e)
        return as_pair(lambda p, x: self.make(p, x, e), self.x, NAMINGS[self.naming])

    def scales(self, width: int, depth: int, mistake: str = "") -> Scales:
        """Multipliers of a size, with a fault, or with several: ``none+no_readout``."""
        return Scales(width, depth, tuple(map(fault, filter(None, mistake.split("+")))), self.rule)

    def audit(self, mistake: str = "", *, carry: bool = False) -> Audit:
        """The audit of the model with a mistake, which parameters may ``carry``."""
        model, base = (self.model(self.scales(*size, mistake)) for size in (self.size, (BASE_WIDTH, BASE_DEPTH)))
        rule = self.rule.replace(branch_multiplier=1.0)  # a is a number of these codes at all depths
        return dm.audit(model, base, self.x, carry=carry, **self.arguments).under(rule)

    def traced(self, e: Scales) -> Model:
        """The model of a size, as the audit reads it."""
        of_call = {name: value for name, value in self.arguments.items() if name not in ("output", "axes")}
        return as_model(self.model(e), self.x, "model", self.arguments.get("output"), of_call, {})

    def _shapes(self, e: Scales) -> Mapping[str, tuple[int, ...]]:
        return self.traced(e).shapes

    def mistakes(self) -> list[str]:
        """The faults that it can have."""
        e = self.scales(*self.size)
        self._shapes(e)
        tried = lambda name: name not in self.harmless and (not self.only or name in self.only)
        return [name for name in possible(e) if tried(name)]

    def wrong_widths(self, audit: Audit) -> list[str]:
        """Parameters whose width ratios are not those of the same model with the base width."""
        thin, wrong = self._shapes(self.scales(BASE_WIDTH, self.size[1])), []
        for row in (row for row in audit.rows if row.uses):  # the last layer of a stream may be without effect
            grown = [a // b for a, b in zip(row.shape, thin[row.path], strict=True) if a != b]
            info = row.info
            read = [] if info is None else [width for width in (info.width_in, info.width_out) if width != 1]
            if info is None or len(read) != min(len(grown), 2) or not set(read) <= set(grown):
                wrong.append(f"{row.path} {row.shape}: {read} for {grown}")
        return wrong
