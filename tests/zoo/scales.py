"""The multipliers that stand in a model of one size, right or with mistakes, by the places that they stand in."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping

import depthmup_flax as dm

BASE_WIDTH, BASE_DEPTH = 16, 2
RULE = dm.get_parametrization("depth_mup", branch_multiplier=0.5)
# For one block that is used at every depth: the branches add up coherently, so each is divided by their number.
LOOPED_RULE = dm.get_parametrization("ode", branch_multiplier=0.5)
A = RULE.branch_multiplier
HEADS = 2
Wrong = Callable[["Scales"], float]


@dataclasses.dataclass(frozen=True)
class Fault:
    """One mistake: what stands at the places of one name.

    A place is ``branch``, ``stream`` (what the branch is added to), ``fading`` (its power there), ``readout``,
    ``embedding``, ``heads`` (scores), ``inner`` (a product in front of a nonlinearity in a branch), ``input`` (what
    such a product reads), ``outer`` (a hidden product outside of branches), ``before`` (a branch in front of the norm
    that ends it), ``bent`` (between a nonlinearity and a hidden product), ``batch`` (in front of an input weight),
    ``once`` (a sum that all depths have once), ``total`` (an output that no parameter makes), ``copies`` and ``rounds``
    (how often one array is added, inside of a branch and to the stream).
    """

    place: str
    cause: str
    value: Wrong
    branch: str = ""  # a name; all branches if empty
    layer: int | None = None  # all layers if ``None``; -1: the last


@dataclasses.dataclass(frozen=True)
class Scales:
    """The multipliers of a model of a size."""

    width: int
    depth: int
    faults: tuple[Fault, ...] = ()
    rule: dm.Parametrization = RULE
    # What a model of this size asked for: place, branch, whether it is a layer's own -> the right value.
    asked: dict[tuple[str, str, bool], float] = dataclasses.field(default_factory=dict, compare=False, repr=False)

    @property
    def m(self) -> float:
        """Width over base width."""
        return self.width / BASE_WIDTH

    @property
    def r(self) -> float:
        """Depth over base depth."""
        return self.depth / BASE_DEPTH

    @property
    def right(self) -> float:
        """The multiplier of a branch."""
        return float(self.rule.residual_multiplier(self.r))

    def _at(self, place: str, right: float, branch: str = "", layer: int | None = None) -> float:
        self.asked[place, branch, layer is not None] = right
        for fault in self.faults:
            in_layer = fault.layer is None or layer == fault.layer % self.depth
            if fault.place == place and fault.branch in ("", branch) and in_layer:
                return fault.value(self)
        return right

    def branch(self, name: str, layer: int | None = None, right: float | None = None) -> float:
        """On the output of a branch."""
        usual = self.right if right is None else right
        found = self._at("branch", usual, name, layer)
        return A if any(fault.place == "before" for fault in self.faults) else found

    # Nothing if right.
    before = functools.partialmethod(_at, "before", 1.0)
    inner = functools.partialmethod(_at, "inner", 1.0)
    input = functools.partialmethod(_at, "input", 1.0)
    outer = functools.partialmethod(_at, "outer", 1.0)
    bent = functools.partialmethod(_at, "bent", 1.0)
    batch = functools.partialmethod(_at, "batch", 1.0)
    once = functools.partialmethod(_at, "once", 1.0)
    total = functools.partialmethod(_at, "total", 1.0)
    stream = functools.partialmethod(_at, "stream", 1.0)
    embedding = functools.partialmethod(_at, "embedding", 1.0)
    copies = functools.partialmethod(_at, "copies", 2.0)
    rounds = functools.partialmethod(_at, "rounds", 2.0)

    def fading(self) -> float:
        """On a stream that every layer multiplies by one number, 0.9 in the base model."""
        return 0.9 ** self._at("fading", 1 / self.r) * self.stream()

    def readout(self) -> float:
        """On the readout's product."""
        return self._at("readout", float(self.rule.readout_multiplier(self.m)))

    def heads(self, size: int, base_size: int = BASE_WIDTH // HEADS) -> float:
        """On products of queries and keys of this size: ``sqrt(base size) / size`` if right."""
        power = self._at("heads", -1.0)
        return base_size**-0.5 * (size / base_size) ** power


MISSING, READOUT, SCALED = "missing_branch_multiplier", "readout_not_scaled", "attention_scale"
FAULTS: Mapping[str, Fault] = {
    "none": Fault("branch", MISSING, lambda e: A),
    "first_layer": Fault("branch", MISSING, lambda e: A, layer=0),
    "last_layer": Fault("branch", MISSING, lambda e: A, layer=-1),
    "squared": Fault("branch", MISSING, lambda e: e.right**2 / A),
    "half_power": Fault("branch", MISSING, lambda e: (e.right * A) ** 0.5),
    "inverse": Fault("branch", MISSING, lambda e: A**2 / e.right),
    "by_width": Fault("branch", MISSING, lambda e: e.right * e.m**-0.5),
    "stream": Fault("stream", "shortcut_in_branch", lambda e: e.r**-0.5),
    "fading": Fault("fading", "shortcut_in_branch", lambda e: 1.0),
    "no_readout": Fault("readout", READOUT, lambda e: 1.0),
    "root_readout": Fault("readout", READOUT, lambda e: e.m**-0.5),
    "double_readout": Fault("readout", "readout_scaled_twice", lambda e: e.m**-2.0),
    "kept_readout": Fault("readout", "readout_scaled_twice", lambda e: e.m**-1.5),
    "root_heads": Fault("heads", SCALED, lambda e: -0.5),
    "plain_heads": Fault("heads", SCALED, lambda e: 0.0),
    "root_embedding": Fault("embedding", "embedding_scaled_with_width", lambda e: e.m**0.5),
    "inner": Fault("inner", "hidden_scaled_with_width", lambda e: e.m**-0.5),
    "input": Fault("input", "hidden_scaled_with_width", lambda e: e.m**-0.5),
    "outer": Fault("outer", "hidden_scaled_with_width", lambda e: e.m**-0.5),
    "bent": Fault("bent", "hidden_scaled_with_width", lambda e: e.m**-0.5),
    "batch": Fault("batch", "embedding_scaled_with_width", lambda e: e.m**0.5),
    "once": Fault("once", MISSING, lambda e: e.r**-0.5),
    "total": Fault("total", READOUT, lambda e: e.m),
    "copies": Fault("copies", "hidden_scaled_with_width", lambda e: 2 * e.m),
    "rounds": Fault("rounds", MISSING, lambda e: 2 * e.r),
    "before_norm": Fault("before", "norm_cancels_multiplier", lambda e: e.right / A),
}


def fault(name: str) -> Fault:
    """A fault by its name; ``only_<branch>``: the branches of that name are not multiplied."""
    if name.startswith("only_"):
        return Fault("branch", MISSING, lambda e: A, branch=name.removeprefix("only_"))
    return FAULTS[name]


def possible(e: Scales) -> list[str]:
    """The faults that change a model which asked for ``e.asked``."""
    branches = dict.fromkeys(branch for place, branch, _ in e.asked if place == "branch")
    names = [*FAULTS, *(f"only_{branch}" for branch in branches if len(branches) > 1)]
    return [name for name in names if _changes(fault(name), e)]


def _changes(wrong: Fault, e: Scales) -> bool:
    if wrong.place == "heads" and e.m == 1:
        return False
    return any(
        wrong.place == place
        and wrong.branch in ("", branch)
        and (of_layer or wrong.layer is None)
        and not math.isclose(wrong.value(e), right)
        for (place, branch, of_layer), right in e.asked.items()
    )
