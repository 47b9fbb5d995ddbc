"""The factors of a model relative to its base model, beside what the rule wants. Numbers alone."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence

from depthmup_flax.auditing.branch_factors import BranchFactor, BranchFactors, branch_factors
from depthmup_flax.auditing.depth_ratios import (
    DepthRatios,
    inside_branches,
    is_absolute,
    repetitions,
    uses_of_branches,
)
from depthmup_flax.auditing.matching import MatchedModels
from depthmup_flax.auditing.product_factors import ProductFactors
from depthmup_flax.auditing.relative_factors import close, ratio_of
from depthmup_flax.auditing.score_factors import ScoreFactors
from depthmup_flax.rule.factor import ONE, Factor
from depthmup_flax.rule.parametrization import Parametrization, ParamInfo, Role
from depthmup_flax.trace.branches import Branch
from depthmup_flax.trace.facts import Traced
from depthmup_flax.trace.unread import Unread
from depthmup_flax.trace.uses import LOOKUP


def branch_wants(
    branches: Iterable[Branch], ratios: DepthRatios, readout_ratios: Mapping[int, float]
) -> dict[int, Factor]:
    """Node of a sum -> the multiplier that every rule wants of its branch, without a.

    ``readout_ratios``: node of a sum -> m of the readout that its branch ends in.
    """
    result: dict[int, Factor] = {}
    for branch in branches:
        node = branch.node
        result[node] = Factor(
            depth=ratios.of_branch.get(node, 1.0),
            uses=ratios.uses.get(node, 1.0),
            width=readout_ratios.get(node, 1.0),
        )
    return result


def under(factors: Mapping[int, Factor], rule: Parametrization) -> dict[int, float]:
    """The numbers of factors under a rule."""
    return {node: float(factor.under(rule)) for node, factor in factors.items()}


def coded_branches(
    factors: BranchFactors,
    wanted: Mapping[int, float],
    ratios: DepthRatios,
) -> list[BranchFactor]:
    """The branches whose code has the factor that the rule wants, where that is not 1."""
    result = []
    for node, branch in factors.of_node.items():
        grows = ratios.of_branch.get(node, 1.0) != 1
        if grows and not close(wanted[node], 1) and close(branch.factor, wanted[node]):
            result.append(branch)
    return result


def fixed_kinds(factors: BranchFactors, ratios: DepthRatios) -> set[frozenset[str]]:
    """Kinds of branches that are of the stream: they do not count, and are not multiplied."""
    fixed: set[frozenset[str]] = set()
    counted: set[frozenset[str]] = set()
    for node, entry in factors.of_node.items():
        if node in ratios.of_branch:
            counted.add(entry.branch.kind)
        elif entry.factor is None or close(entry.factor, 1):
            fixed.add(entry.branch.kind)
    return fixed - counted


@dataclasses.dataclass(frozen=True, eq=False)
class Comparison:
    """The factors of a model relative to its base model, and what the rule wants them to be.

    ``rule`` is the one whose factors the code may have: a place has what it wants, or lacks it
    under every rule.
    """

    match: MatchedModels
    ratios: DepthRatios
    infos: Mapping[str, ParamInfo]
    rule: Parametrization
    scores: Sequence[ScoreFactors]
    products: ProductFactors

    @property
    def facts(self) -> Traced:
        """What the trace of the model tells."""
        return self.match.facts

    @property
    def base_facts(self) -> Traced:
        """What the trace of the base model tells."""
        return self.match.base_facts

    @property
    def pairs(self) -> Mapping[str, str]:
        """Path -> that in the base model."""
        return self.match.pairs

    @property
    def r(self) -> float:
        """The depth ratio of all streams together."""
        return self.ratios.together

    @property
    def is_absolute(self) -> bool:
        """Whether factors of the model itself are compared: both models are equally deep."""
        return is_absolute(self.ratios, self.facts, self.base_facts)

    # --- branches

    @functools.cached_property
    def branches_want(self) -> Mapping[int, Factor]:
        """Node of a sum -> the multiplier that every rule wants of its branch, without a."""
        return branch_wants(self.facts.branches, self.ratios, self._readouts_of_branches)

    @functools.cached_property
    def wanted(self) -> Mapping[int, float]:
        """Node of a sum -> the multiplier that the code's rule wants of its branch."""
        return under(self.branches_want, self.rule)

    @functools.cached_property
    def branches(self) -> BranchFactors:
        """What multiplies branches and shortcuts."""
        absolute = self.is_absolute
        return branch_factors(self.facts, self.base_facts, self.wanted, absolute=absolute)

    @functools.cached_property
    def inner_branches(self) -> BranchFactors:
        """What multiplies branches inside of others, whose number does not grow with depth."""
        facts = self.facts.of_inner_branches()
        wanted = {branch.node: 1.0 for branch in facts.branches}
        base = self.base_facts.of_inner_branches()
        return branch_factors(facts, base, wanted, absolute=False, are_layers=False)

    def branch_factor(self, node: int) -> float | None:
        """What multiplies the branch of a sum; ``None`` is unknown."""
        return self.branches.of_node[node].factor

    @property
    def _readouts_of_branches(self) -> dict[int, float]:
        """Node of a sum -> m of the readout that its branch ends in, as in a flow of couplings."""
        result: dict[int, float] = {}
        for branch in self.facts.branches:
            for path in branch.factors:
                info = self.infos.get(path)
                if info is not None and info.role is Role.OUTPUT:
                    result[branch.node] = info.width_in
        return result

    @functools.cached_property
    def repetitions(self) -> Mapping[str, float]:
        """Path of a parameter that is used more or less often than in the base -> the ratio."""
        return repetitions(self.ratios, self.facts, self.base_facts, self.pairs)

    @functools.cached_property
    def repeated_branches(self) -> frozenset[int]:
        """The nodes of branches whose weights are used more or less often than in the base."""
        repeated = inside_branches(self.repetitions, self.facts)
        return frozenset(uses_of_branches(repeated, self.facts))

    @property
    def last_weights(self) -> set[str]:
        """The parameters that branches end in."""
        return set().union(*(branch.factors for branch in self.facts.branches)) - {""}

    # --- parameters

    def factor(self, path: str) -> tuple[float | None, Factor | None]:
        """The factor of a parameter, of its branch or up to the output, and what the rule wants.

        Both are ``None`` of a parameter without factors of its own.
        """
        info = self.infos.get(path)
        if path in self.facts.readouts and (info is None or may_be_readout(info)):
            return self.readout(path)
        nodes = [node for node in self.facts.branches_of.get(path, ()) if node in self.wanted]
        if self.facts.inside.get(path) and nodes:
            factors = {self.branch_factor(node) for node in nodes}
            return factors.pop() if len(factors) == 1 else None, self.branches_want[nodes[-1]]
        if path not in self.products.paths:
            return None, None
        wanted = ONE
        if info is not None and info.role is Role.OUTPUT:
            wanted = Factor(width=info.width_in)
        return self.products.around(path), wanted

    def readout(self, path: str) -> tuple[float | None, Factor]:
        """The factor of the product with a readout, and what the rule wants."""
        info = self.infos.get(path)
        base = self.base_facts.readouts.get(self.pairs[path])
        factor = ratio_of(self.facts.readouts[path], base)
        if info is None:
            return factor, ONE
        return factor, Factor(width=readout_ratio(info), output=info.model_width)

    @property
    def of_output(self) -> float | None:
        """The factor of an output that no readout makes; 1 if one does, ``None`` if unknown.

        The last product may be with a hidden matrix, as in front of a mean over the width.
        """
        readouts = self.facts.readouts
        infos = [self.infos[path] for path in readouts if path in self.infos]
        if any(may_be_readout(info) for info in infos):
            return 1.0
        if "" in readouts:
            return ratio_of(readouts[""], self.base_facts.readouts.get(""))
        last = [path for path in readouts if path in self.infos and self.infos[path].width_out != 1]
        ratios = [self.readout(path)[0] for path in last if self.infos[path].role is Role.HIDDEN]
        wrong = [ratio for ratio in ratios if not close(ratio, 1)]
        return wrong[0] if wrong else 1.0

    @functools.cached_property
    def inside_branches(self) -> Mapping[str, float | None]:
        """The factors of products that a later product or nonlinearity of their branch reads."""
        elsewhere = self.last_weights | self.in_softmax
        for scores in self.growing_products:
            elsewhere |= scores.product.paths
        for unread in self.facts.unread:
            elsewhere |= unread.paths
        result: dict[str, float | None] = {}
        for path in self.products.paths:
            if self.facts.inside.get(path) and path in self.infos and path not in elsewhere:
                result[path] = self.products.around(path)
        return result

    def is_tied(self, path: str) -> bool:
        """Whether a parameter is an embedding, too."""
        return any(use.kind == LOOKUP or use.first for use in self.facts.uses[path])

    # --- scores and sums

    @functools.cached_property
    def in_softmax(self) -> frozenset[str]:
        """The parameters that make queries and keys, or are beside them."""
        result: set[str] = set()
        for scores in self.facts.scores:
            if scores.in_softmax:
                result |= scores.paths | scores.beside
        return frozenset(result)

    @functools.cached_property
    def growing_products(self) -> Sequence[ScoreFactors]:
        """Products over a growing dimension, in no softmax, without the scale of attention."""
        growing = [scores for scores in self.scores if scores.is_growing]
        return [scores for scores in growing if not scores.is_right(self.rule)]

    @property
    def unread_sums(self) -> Unread | None:
        """Sums of a stream that were not read, if their number grows with depth; else ``None``."""
        sums = self.facts.unread_sums
        return sums if sums.number > self.base_facts.unread_sums.number else None

    @property
    def near_unread_sums(self) -> frozenset[str]:
        """The parameters near such sums, of which little is known."""
        return self.unread_sums.paths if self.unread_sums is not None else frozenset()

    def coded_widths(self, rule: Parametrization) -> int:
        """At how many readouts and scores the code has a rule's factors of the width."""
        count = sum(scores.is_in_code(rule) for scores in self.scores)
        for path in self.facts.readouts.keys() - {""}:
            factor, wanted = self.readout(path)
            count += not wanted.is_one and close(factor, wanted.under(rule))
        return count


def may_be_readout(info: ParamInfo) -> bool:
    """Whether a parameter at the end is a readout, or a table that is one, too."""
    return info.role in (Role.OUTPUT, Role.INPUT)


def readout_ratio(info: ParamInfo) -> float:
    """The ratio m of the width that a readout, or a table that is one, contracts."""
    return info.width_in if info.role is Role.OUTPUT else info.width_out


def as_readouts(compared: Comparison) -> dict[str, ParamInfo]:
    """Weights to a fixed number of features that are multiplied as readouts are, as outputs."""
    result: dict[str, ParamInfo] = {}
    for path, info in compared.infos.items():
        if not info.to_few_features or _is_in_wider_weight(compared, path):
            continue
        multiplier = float(Factor(width=info.width_in).under(compared.rule))
        factor, wanted = compared.factor(path)
        is_last = path in compared.last_weights | compared.facts.readouts.keys()
        expected = 0.0
        if wanted is not None and is_last:  # both are the branch's, or up to the output
            expected = float(wanted.under(compared.rule)) * multiplier
        around = compared.products.around(path)
        if multiplier != 1 and (close(around, multiplier) or close(factor, expected)):
            result[path] = dataclasses.replace(info, role=Role.OUTPUT)
    return result


def _is_in_wider_weight(compared: Comparison, path: str) -> bool:
    """Whether a weight is a factor of one to more features, as the first matrix of a low rank is."""
    for use in compared.facts.uses.get(path, ()):  # none of what the output does not need
        for other in compared.facts.reading.uses_at(use.node):
            if other.path in compared.infos and compared.infos[other.path].width_out != 1:
                return True
    return False
