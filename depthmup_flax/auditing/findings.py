"""What the forward pass lacks, each with the code to write, and what could not be judged."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence

from depthmup_flax.auditing.audit_report import Finding, Row, number, summary
from depthmup_flax.auditing.given_model import Model
from depthmup_flax.auditing.relative_factors import BranchFactors, DepthRatios, ProductFactors, close, ratio_of
from depthmup_flax.rule.factor import ONE, Factor
from depthmup_flax.rule.parametrization import Parametrization, ParamInfo, Role
from depthmup_flax.trace.branches import Branch
from depthmup_flax.trace.facts import Traced
from depthmup_flax.trace.graph import Place
from depthmup_flax.trace.scores import Scores
from depthmup_flax.trace.unread import ROUNDING, Unread
from depthmup_flax.trace.uses import LOOKUP, PRODUCT
from depthmup_flax.util.groups import grouped, series


@dataclasses.dataclass(frozen=True)
class ScoreFactors:
    """A product of two activations, and its factor relative to the base model."""

    product: Scores
    base_size: int  # of the contracted dimension in the base model
    found: float  # NaN: unknown
    wanted: Factor
    expected: float  # under the rule of the code


@dataclasses.dataclass(eq=False)
class Comparison:
    """The factors of a model relative to its base model, and what the rule wants them to be.

    ``rule`` is the one whose factors the code may have: a place has what it wants, or lacks it under every rule.
    """

    model: Model
    facts: Traced
    base: Traced
    pairs: Mapping[str, str]
    infos: Mapping[str, ParamInfo]
    rule: Parametrization
    ratios: DepthRatios

    def __post_init__(self) -> None:
        self.r = self.ratios.together
        # With equal depths both models have the same multipliers, so those of the model are compared with the rule.
        self.absolute = self.facts.depth == self.base.depth and self.r != 1
        self.of_branches = BranchFactors(self.facts, self.base, self.wanted, absolute=self.absolute)
        self.branches = self.of_branches.found

    @functools.cached_property
    def products(self) -> ProductFactors:
        """The factors around products."""
        few = [path for path, leaf in self.infos.items() if leaf.width_out == 1 != leaf.width_in]
        apart = self.facts.readers(
            {
                one.product.node
                for one in self.scores
                if not one.product.in_softmax and one.product.size != one.base_size
            }
        )
        return ProductFactors(self.facts, self.base, self.pairs, few, apart)

    def wanted(self, node: int) -> float:
        """The multiplier that the code's rule wants of the branch that ends in a sum."""
        return float(self.wanted_factor(node).under(self.rule))

    def wanted_factor(self, node: int) -> Factor:
        """The multiplier that every rule wants of the branch that ends in a sum, without a."""
        of_readout = self._of_outputs.get(node, 1.0)
        return Factor(
            depth=self.ratios.of_branch.get(node, 1.0), uses=self.ratios.uses.get(node, 1.0), width=of_readout
        )

    @functools.cached_property
    def _of_outputs(self) -> dict[int, float]:
        """Node of a sum -> m of the readout that its branch ends in, as in a flow of many couplings."""
        ends = ((b.node, self.infos.get(path)) for b in self.facts.branches for path in b.factors)
        return {node: info.width_in for node, info in ends if info is not None and info.role is Role.OUTPUT}

    @functools.cached_property
    def coded_branches(self) -> list[Branch]:
        """The branches whose code has the factor that the rule wants, where that is not 1."""
        result = []
        for branch in self.facts.branches:
            wanted = self.wanted(branch.node)
            grows = self.ratios.of_branch.get(branch.node, 1.0) != 1
            if grows and not close(wanted, 1) and close(self.branches[branch.node], wanted):
                result.append(branch)
        return result

    @property
    def coded_widths(self) -> int:
        """At how many readouts and scores the code has the factors of the width that the rule wants."""
        count = 0
        for path in self.facts.readouts.keys() - {""}:
            found, wanted = self._readout(path)
            count += not wanted.is_one and close(found, wanted.under(self.rule))
        for scores in self.scores:
            is_plain = close(scores.found, scores.wanted.constant)
            count += scores.base_size != scores.product.size and not is_plain and close(scores.found, scores.expected)
        return count

    def uses(self) -> tuple[dict[int, float], dict[str, float]]:
        """See `DepthRatios`; a branch is used as often as the weights that multiply its products, if these agree."""
        repeated = {path: ratio for path, ratio in self._repetitions().items() if self.facts.inside.get(path)}
        of_branches = {}
        for b in self.facts.branches:  # what a layer's own weights multiply, such as positions, does not add up
            ratios = [repeated.get(path, 1.0) for path in self.of_branches.products(b.factors) or b.factors]
            if ratios and ratios[0] != 1 and all(close(ratios[0], ratio) for ratio in ratios):
                of_branches[b.node] = ratios[0]
        return of_branches, repeated

    def fixed_branches(self) -> set[frozenset[str]]:
        """Kinds of branches that do not count for the depth, and are not multiplied, so that they are of the stream."""
        counted = {b.node for b in self.facts.branches} & self.ratios.of_branch.keys()
        of_stream = lambda b: self.branches[b.node] is None or close(self.branches[b.node], 1)
        fixed = {b.kind for b in self.facts.branches if b.node not in counted and of_stream(b)}
        return fixed - {b.kind for b in self.facts.branches if b.node in counted}

    def row(self, path: str, why_not: str, findings: Sequence[Finding]) -> Row:
        """One line of the table."""
        found, wanted = self.factor(path)
        expected = None if wanted is None else float(wanted.under(self.rule))
        missing = tuple(dict.fromkeys(f.name for f in findings if path in f.paths))
        shape, times = self.model.shapes[path], self.facts.times.get(path, 0.0)
        info = self.infos.get(path)
        carried = ONE if info is None else info.carried
        return Row(path, shape, info, times, found, wanted, expected, missing, carried, why_not)

    def factor(self, path: str) -> tuple[float | None, Factor | None]:
        """The factor of a parameter, of its branch or up to the output, and what the rule wants."""
        info = self.infos.get(path)
        if path in self.facts.readouts and (info is None or info.role in (Role.OUTPUT, Role.INPUT)):
            return self._readout(path)
        nodes = [n for n in self.facts.branches_of.get(path, ()) if n in self.branches]
        if self.facts.inside.get(path) and nodes:
            found = {self.branches[node] for node in nodes}
            return (found.pop() if len(found) == 1 else None), self.wanted_factor(nodes[-1])
        if path not in self.products.paths:
            return None, None
        is_output = info is not None and info.role is Role.OUTPUT
        return self.products.around(path), Factor(width=info.width_in) if info and is_output else ONE

    def as_readouts(self) -> dict[str, ParamInfo]:
        """The weights from the width to a fixed number of features that are multiplied as readouts are, as outputs."""
        result = {}
        for path, leaf in self.infos.items():
            multiplier = float(Factor(width=leaf.width_in).under(self.rule)) if leaf.to_few_features else 1.0
            found, wanted = self.factor(path)  # at the end of a branch, both are the branch's
            expected = 0.0 if wanted is None else float(wanted.under(self.rule))
            is_readout = close(self.products.around(path), multiplier) or close(found, expected * multiplier)
            if multiplier != 1 and is_readout:
                result[path] = dataclasses.replace(leaf, role=Role.OUTPUT)
        return result

    def _readout(self, path: str) -> tuple[float | None, Factor]:
        info = self.infos.get(path)
        found = ratio_of(self.facts.readouts[path], self.base.readouts.get(self.pairs[path]))
        if info is None:
            return found, ONE
        m = info.width_in if info.role is Role.OUTPUT else info.width_out
        return found, Factor(width=m, output=info.model_width)

    @property
    def unread_sums(self) -> Unread | None:
        """Sums of a stream that were not read, if their number grows with depth; else ``None``."""
        return self.facts.unread_sums if self.facts.unread_sums.number > self.base.unread_sums.number else None

    def findings(self) -> list[Finding]:
        """All differences between the forward pass and the rule."""
        shortcuts = self._shortcuts()
        others = [] if shortcuts else self._embeddings()  # what multiplies shortcuts multiplies embeddings
        readouts, attention, repeated = self._readouts(), self._attention(), self._repeated()
        within = *self._within(), *self._bent()
        return [*self._missing_branches(), *shortcuts, *readouts, *others, *within, *attention, *repeated]

    def _shortcuts(self) -> list[Finding]:
        wrong: dict[tuple[float, bool], list[str]] = {}
        for branch in self.facts.branches:
            ratio = self.of_branches.projection(branch) if branch.projected else self.of_branches.shortcut[branch.node]
            if ratio is not None and not close(ratio, 1):
                projection = [path for path in branch.shortcut if path and branch.projected]
                wrong.setdefault((float(number(ratio)), bool(projection)), []).extend(
                    projection or sorted(branch.paths)
                )
        also = ", or k^(1/r) if each layer of the base model multiplies the stream by k" * self.of_branches.fades
        return [
            Finding(
                "shortcut_in_branch",
                tuple(dict.fromkeys(paths)),
                f"the shortcut at {summary(paths)} is multiplied by {number(ratio)} relative to the base model; the "
                f"rule wants 1{also}.",
                "h = shortcut(h) + rule.residual_multiplier(r) * y  # the multiplier on y alone",
                factor=ONE.over(ratio) if ratio else None,
                places=self._at_products(dict.fromkeys(paths), ratio) if is_projected else (),
            )
            for (ratio, is_projected), paths in wrong.items()
        ]

    def _missing_branches(self) -> list[Finding]:
        wrong: dict[tuple[str, float, float, float], list[Branch]] = {}
        for branch in self.facts.branches:
            found, wanted = self.branches[branch.node], self.wanted(branch.node)
            if found is None or close(found, wanted):
                continue
            cancels = not close(wanted, 1) and close(self.of_branches.inside(branch), wanted)
            name = "norm_cancels_multiplier" if cancels else "missing_branch_multiplier"
            node = branch.node
            key = name, float(number(found)), self.ratios.of_branch.get(node, 1.0), self.ratios.uses.get(node, 1.0)
            wrong.setdefault(key, []).append(branch)
        result = []
        for key, branches in wrong.items():
            alike = grouped(branches, lambda b: b.kind).values()
            whole, *parts = (self._of_branches(key, some, len(wrong) > 1) for some in (branches, *alike))
            result.append(dataclasses.replace(whole, parts=tuple(parts)))
        return result

    def _of_branches(self, key: tuple[str, float, float, float], branches: Sequence[Branch], numbered: bool) -> Finding:
        name, found, r, n = key
        paths = [path for b in branches for path in self.of_branches.ends(b)]
        where = f"the branches that end in {summary(paths, numbered)}" if paths else "the branches without parameters"
        wanted = self.wanted_factor(branches[-1].node)
        text = f"{where} are multiplied by {number(found)}; the rule wants {wanted}{self._as_if(found, r, n)}."
        if name == "norm_cancels_multiplier":
            text = f"{where} are normalized after their multiplier, which cancels it: multiply after the norm."
        code = f"h = h + rule.residual_multiplier(r) * y  # r = depth / base_depth, here {r:g}"
        code = code if n == 1 else f"h = h + rule.residual_multiplier({r:g}, uses={n:g}) * y  # of layers, of each"
        # Nothing carries one factor for terms that need several.
        exact = 0.0 if any(b.node in self.of_branches.mixed for b in branches) else self.branches[branches[-1].node]
        places = tuple((b.end, b.node) for b in branches)
        factor = wanted.over(exact) if exact else None
        return Finding(name, tuple(dict.fromkeys(paths)), text, code, factor=factor, places=places)

    def _at_products(self, paths: Iterable[str], found: float) -> tuple[Place, ...]:
        """The products of parameters with what is no token, and the biases that a factor multiplies with them."""
        uses = (use for path in paths for use in self.facts.uses[path])
        biases = () if close(found, 1) else self._biases(paths)
        return *((use.node, -1) for use in uses if use.kind == PRODUCT), *biases

    def _biases(self, paths: Iterable[str]) -> Iterable[Place]:
        """Where biases are added in front of the factor that the products of these parameters have."""
        for path in paths:
            theirs = {series(bias.path): bias.factor for bias in self.base.biases.get(self.pairs[path], ())}
            for bias in self.facts.biases.get(path, ()):
                info = self.infos.get(bias.path)  # tables of positions have findings of their own
                is_bias = info is not None and info.role in (Role.VECTOR, Role.FIXED)
                if is_bias and close(bias.factor, theirs.get(series(bias.path))):
                    yield bias.place

    def _as_if(self, found: float, r: float, n: float) -> str:
        """The depth ratio for which a factor is right: the user may count otherwise."""
        if close(found, 1) or found <= 0:
            return ""
        if n != 1:
            return f" for r = {r:g} and {n:g} uses"
        other = found ** (-1 / self.rule.alpha)
        return (
            f" for r = {r:g} (under alpha = {self.rule.alpha:g} it is right for r = {other:.3g}: if you count so, pass "
            f"depth_ratio={other:.3g})"
        )

    def _readouts(self) -> list[Finding]:
        result, unclear = self._output(), self.unread_sums.paths if self.unread_sums else frozenset[str]()
        for path in self.facts.readouts.keys() - {""} - unclear:
            found, lacking = self._readout(path)
            wanted = float(lacking.under(self.rule))
            info = self.infos.get(path)
            # What multiplies the last shortcut multiplies what the readout reads.
            if any(close(found, wanted * factor) for factor in self.of_branches.shortcut.values()):
                continue
            if found is None or close(found, wanted) or info is None or info.role not in (Role.OUTPUT, Role.INPUT):
                continue
            if info.role is Role.INPUT and not self._is_tied(path):
                continue
            m = info.width_in if info.role is Role.OUTPUT else info.width_out
            too_small = (found < wanted) == (m > 1)
            name = "readout_scaled_twice" if too_small else "readout_not_scaled"
            text = f"the product with {path} is multiplied by {number(found)}; the rule wants {lacking}"
            text += ": remove its other factors that depend on the width." if too_small else "."
            code = f"logits = logits * rule.readout_multiplier(m)  # m = width / base_width, here {m:g}"
            factor = lacking.over(found) if found else None
            result.append(Finding(name, (path,), text, code, factor=factor, places=self._at_products([path], found)))
        return result

    def _output(self) -> list[Finding]:
        """The factor of an output that is no product with a readout's weights, such as a mean over the width."""
        found = self.of_output
        if found is None or close(found, 1):
            return []
        text = f"the output, which no readout makes, is multiplied by {number(found)} relative to the base model; the "
        text += "rule wants 1: a mean over the width rather than a sum."
        factor = ONE.over(found) if found else None
        places = ((self.model.graph.output, -1),)
        code = "y = y.mean(-1)  # or y.sum(-1) / m, m = width / base_width"
        widens = max((leaf.width_in for leaf in self.infos.values()), default=1.0) > 1
        name = "readout_scaled_twice" if (found < 1) == widens else "readout_not_scaled"
        return [Finding(name, (), text, code, factor=factor, places=places)]

    @property
    def of_output(self) -> float | None:
        """The ratio of the factors of an output that no readout makes; 1 if one does, ``None`` if unknown."""
        roles = {self.infos[path].role for path in self.facts.readouts if path in self.infos}
        if "" not in self.facts.readouts or roles & {Role.OUTPUT, Role.INPUT}:
            return 1.0
        return ratio_of(self.facts.readouts[""], self.base.readouts.get(""))

    def _in_softmax(self) -> set[str]:
        return {path for s in self.facts.scores if s.in_softmax for path in s.paths | s.beside}

    def _is_tied(self, path: str) -> bool:
        return any(u.kind == LOOKUP or u.first for u in self.facts.uses[path])

    def _embeddings(self) -> list[Finding]:
        result, unclear = [], self._in_softmax() | (self.unread_sums.paths if self.unread_sums else frozenset())
        for path in self.products.paths:
            info = self.infos.get(path)
            if info is None or path in unclear or self.facts.inside.get(path):
                continue
            if path in self.facts.readouts and info.role is not Role.HIDDEN and not self._is_tied(path):
                continue
            found = self.products.around(path)
            if found is None or close(found, 1):
                continue
            # A row of a table that is taken by its number, as the embedding of a step or an action, is a vector.
            is_row = info.role is Role.VECTOR and all(use.picked for use in self.facts.uses[path])
            if info.role is Role.INPUT or is_row:
                text = f"{path} is multiplied by {number(found)} relative to the base model; the rule wants 1."
                code = "x = x * c  # c as in the base model"
                if close(found, info.width_out**0.5):
                    code = "x = x * base_width**0.5  # not width**0.5"
                starts = ((use.node, -1) for use in self.facts.uses[path] if use.kind == LOOKUP or use.first)
                name, factor = "embedding_scaled_with_width", ONE.over(found) if found else None
                places = *starts, *self._biases([path])
                result.append(Finding(name, (path,), text, code, factor=factor, places=places))
            elif info.role is Role.HIDDEN:
                result.append(self._scaled_hidden((path,), found))
        return result

    def _within(self) -> list[Finding]:
        """Factors of the width inside of branches, unless they are the branch's multiplier before its last layer."""
        wrong: dict[float, dict[str, float]] = {}
        ends = {path: self.products.in_front(path) for path in self._ends() & self.infos.keys()}
        for path, found in {**ends, **self.inside_branches()}.items():
            if found is None or close(found, 1) or self.infos[path].role is not Role.HIDDEN:
                continue
            before = self.facts.branches_of[path] & self.of_branches.multiplied_before
            if not any(close(found, self.wanted(node)) for node in before):
                wrong.setdefault(float(number(found)), {})[path] = found
        return [self._scaled_hidden(tuple(paths), min(paths.values())) for paths in wrong.values()]

    def _bent(self) -> list[Finding]:
        """Factors of the width in front of a nonlinearity or a gate, on what no parameter makes."""
        wrong: dict[float, list[str]] = {}
        for (path, op), factors in self.facts.bent.items():
            found = ratio_of(factors, self.base.bent.get((self.pairs[path], op)))
            if found is not None and not close(found, 1):
                wrong.setdefault(float(number(found)), []).append(path)
        return [
            dataclasses.replace(self._scaled_hidden(tuple(dict.fromkeys(paths)), found), factor=None)
            for found, paths in wrong.items()
        ]

    def _scaled_hidden(self, paths: tuple[str, ...], found: float) -> Finding:
        text = f"the product with {summary(paths)} is multiplied by {number(found)} relative to the base model; the "
        text += "rule wants 1, as the initial values and the learning rate of hidden weights depend on the width."
        name, code = "hidden_scaled_with_width", "y = x @ kernel  # no factor"
        factor = ONE.over(found) if found else None
        return Finding(name, paths, text, code, factor=factor, places=self._at_products(paths, found))

    @functools.cached_property
    def scores(self) -> list[ScoreFactors]:
        """Products of two activations, with the factors that the rule wants of scores."""
        result = []
        name = lambda s: (s.in_softmax, frozenset(map(series, s.paths)))
        alike, seen = grouped(self.base.scores, name), set()
        for scores in self.facts.scores:
            known = alike.get(name(scores), [])
            nth = scores.nth % (1 + max((s.nth for s in known), default=0))
            others = [s for s in known if s.nth == nth]
            # The first layer may read embeddings without a norm, so those behind it are compared with the last.
            is_last = (name(scores), nth) in seen and len({s.size for s in others}) == 1
            seen.add((name(scores), nth))
            other = (others[-1] if is_last else others[0]) if others else None
            size, factor = (other.size, other.factor or math.nan) if other is not None else (scores.size, math.nan)
            root = (scores.size / size) ** 0.5
            wanted = Factor(constant=1 / root, width=root)  # `Parametrization.attention_scale` over that of the base
            found = scores.factor / factor
            result.append(ScoreFactors(scores, size, found, wanted, float(wanted.under(self.rule))))
        return result

    def growing_products(self) -> list[ScoreFactors]:
        """Those of `scores` over a growing dimension and in no softmax whose scale is not that of attention, or NaN."""
        others = [one for one in self.scores if not one.product.in_softmax and one.product.size != one.base_size]
        return [one for one in others if not close(one.found, one.expected)]

    def _attention(self) -> list[Finding]:
        wrong: dict[tuple[float, Factor, int, int], list[Scores]] = {}
        for one in self.scores:
            if one.product.in_softmax and not math.isnan(one.found) and not close(one.found, one.expected):
                key = one.found, one.wanted, one.product.size, one.base_size
                wrong.setdefault(key, []).append(one.product)
        paths_of = lambda several: tuple(dict.fromkeys(path for s in several for path in sorted(s.paths)))
        names = lambda paths: f" of {summary(paths)}" if paths else ""
        return [
            Finding(
                "attention_scale",
                paths_of(several),
                f"the products of queries and keys{names(paths_of(several))} are multiplied by {number(found)} "
                f"relative to the base model; the rule wants {base_d / d:.4g}, as the head dimension is {d} and "
                f"{base_d} there.",
                f"scores = rule.attention_scale({d}, {base_d}) * q @ k.T  # head_dim, base_head_dim",
                factor=wanted.over(found) if found else None,
                places=tuple((s.node, -1) for s in several),
            )
            for (found, wanted, d, base_d), several in wrong.items()
        ]

    def _ends(self) -> set[str]:
        return {path for branch in self.facts.branches for path in branch.factors} - {""}

    def inside_branches(self) -> dict[str, float | None]:
        """The ratios of factors within branches: of products that a later product or nonlinearity there reads."""
        unclear = frozenset[str]().union(
            *(one.product.paths for one in self.growing_products()), *(u.paths for u in self.facts.unread)
        )
        ends = self._ends() | self._in_softmax() | unclear
        return {
            path: self.products.around(path)
            for path in self.products.paths
            if self.facts.inside.get(path) and path in self.infos and path not in ends
        }

    def _repetitions(self) -> dict[str, float]:
        """Path of a parameter that is used more or less often than in the base model -> the ratio."""
        ratios: dict[str, float] = {}
        for path, times in self.facts.times.items():
            before = self.base.times.get(self.pairs[path], math.nan)
            ratio = times if self.absolute and self.facts.inside.get(path, False) else times / (before or math.nan)
            if not math.isnan(ratio) and not close(ratio, 1):
                ratios[path] = ratio
        return ratios

    def _repeated(self) -> list[Finding]:
        handled = self.ratios.repeated.keys() & self.infos.keys()
        ratios = {path: ratio for path, ratio in self._repetitions().items() if path not in handled}
        alike = self.uses()[0].keys()
        wrong: dict[tuple[float, bool], list[str]] = {}
        for path, ratio in ratios.items():
            ends_alike = self.facts.inside.get(path) and self.facts.branches_of[path] & alike
            wrong.setdefault((ratio, bool(ends_alike)), []).append(path)
        result = []
        for (ratio, adds_up), paths in wrong.items():
            text = (
                f"{summary(paths)} {'are' if len(paths) > 1 else 'is'} used {ratio:g} times as often as in the base "
                "model. With SGD or momentum, whose gradient is the sum over all uses, the learning rate is too large "
                "by that number; with normalized updates, such as Adam's, it is not."
            )
            code = f"optax.scale_by_adam(), or with SGD multiply the gradients of these by 1 / {ratio:g}"
            if adds_up:
                text += " Branches with the same weights add up in one direction, so their sum grows with depth."
                code = "rule = dm.get_parametrization('depth_mup'), or weights of its own for each layer"
            result.append(Finding("repeated_weights", tuple(paths), text, code, certain=adds_up))
        return result


AXES = ("width", "depth")
_BY_EYE = "make the factors numbers of the code, not arrays; or check them by eye, and measure with dm.coord_check"


def not_judged(
    compared: Comparison,
    rows: Sequence[Row],
    on_stream: Sequence[Row],
    unread_roles: Mapping[str, str],
    axes: Collection[str],
    m: float,
    *,
    same_layers: bool,
) -> list[Finding]:
    """Everything without which an audit cannot say that a forward pass follows the rule.

    ``on_stream`` are the parameters outside of branches whose number grows with the depth.
    """
    sizes = []
    if "depth" in axes and not compared.facts.depth and not (same_layers and compared.r == 1):
        text = "the trace finds no residual sums, which the rule for the depth is about."
        sizes.append(Finding("depth", (), text, "give the layers residual branches; or pass axes='width'"))
    if min(m, compared.r) < 1 and max(m, compared.r) <= 1:
        text = "the model is smaller than the base model: were model and base swapped?"
        sizes = [Finding("sizes", (), text, "audit(model, base, x)")]
    unread = *_operations(compared), *_sums(compared), *_matrices(compared, on_stream), *_factors(compared, rows)
    roles = [
        Finding("role", tuple(paths), f"{summary(paths)}: {why}.", f"pass overrides={{{paths[0]!r}: Axes(...)}}")
        for why, paths in grouped(unread_roles, unread_roles.__getitem__).items()
    ]
    return [*sizes, *unread, *roles]


def equal_sizes(compared: Comparison, axes: Collection[str], m: float, *, same_width: bool) -> list[str]:
    """What the two models have in common, for a note: there, factors are 1, or those of width and depth are equal."""
    result, facts = [], compared.facts
    if m != 1 and close(m, compared.r):
        result.append(
            f"width and depth ratio are both {m:g}, so a factor of the one in place of the other is not seen, such as "
            f"residual_multiplier(m). Audit once at another width, too: {m * m:g} times that of the base model."
        )
    if same_width and "width" in axes:
        result.append(
            "the model is as wide as the base model: factors of the width are 1 here, and were not compared. Roles are "
            "by place: what reads the batch is an input, the last product an output."
        )
    if "depth" in axes and facts.depth and facts.depth == compared.base.depth and not compared.absolute:
        result.append("the model is as deep as the base model: factors of the depth are 1 here, and were not compared.")
    return result


def _operations(compared: Comparison) -> Iterable[Finding]:
    """The operations of both models that were not read."""
    for name, one in {one.name: one for one in (*compared.base.unread, *compared.facts.unread)}.items():
        paths = tuple(sorted(one.paths))
        reads = f", which reads what {summary(paths)} {'make' if len(paths) > 1 else 'makes'}," if paths else ""
        text = f"{name}{reads} is not understood, so factors in it were not read."
        function = "{'quantized': lambda x: x}, with the function that rounds under jax.jit and that name"
        if not name.startswith(ROUNDING):
            function = f"{{{name!r}: function}}, a function of the same arrays in jax.numpy, to be read in its place"
        yield Finding(name, paths, text, f"pass known={function}", source=one.source)


def _sums(compared: Comparison) -> Iterable[Finding]:
    sums = compared.unread_sums
    if sums is not None:
        paths = tuple(sorted(sums.paths))
        near = f", near {summary(paths)}," if paths else ""
        text = (
            f"every layer adds something to the stream{near} that is no residual branch: a gate, an entrywise function "
            "of the stream, its first value, another stream such as a velocity, or a sum over layers."
        )
        yield Finding("sum", paths, text, "write h = h + c * y; or measure with dm.coord_check", source=sums.source)


def _matrices(compared: Comparison, on_stream: Sequence[Row]) -> Iterable[Finding]:
    """Layers through which the stream passes, as the long skips of U-ViT that a matrix merges with it."""
    wide = [
        row.path for row in on_stream if (info := row.info) and info.role is Role.HIDDEN and not info.to_few_features
    ]
    paths = tuple(path for path in wide if path not in compared.facts.projections)
    if compared.facts.depth and paths and compared.unread_sums is None:
        text = f"the stream passes through {summary(paths)}, more often in deeper models: the rule is about sums."
        yield Finding("matrix", paths, text, "write h = h + c * (h @ kernel); or measure with dm.coord_check")


def _factors(compared: Comparison, rows: Sequence[Row]) -> Iterable[Finding]:
    groups = {
        "the factors of the branches with": _united(
            branch.paths for branch in compared.facts.branches if compared.branches[branch.node] is None
        ),
        "the factors of": [
            row.path for row in rows if row.found is None and row.wanted is not None and not row.in_branch
        ],
        "the factors inside the branches, of": [
            path
            for path, ratio in compared.inside_branches().items()
            if ratio is None and compared.infos[path].role is Role.HIDDEN
        ],
        "the scale of the products of queries and keys of": _united(
            one.product.paths | one.product.beside
            for one in compared.scores
            if one.product.in_softmax and math.isnan(one.found)
        ),
    }
    shown = lambda found: "an unknown factor" if math.isnan(found) else number(found)
    sizes = lambda one: (one.product.size, one.base_size, shown(one.found))
    for (d, base_d, found), several in grouped(compared.growing_products(), sizes).items():
        paths = _united(one.product.paths for one in several)
        what = f"products over a growing dimension, outside of softmax, of {summary(paths)} are multiplied by "
        text = f"{what}{found} relative to the base model."
        code = f"write y = rule.attention_scale({d}, {base_d}) * q @ k.T  # d, base d; or measure with dm.coord_check"
        yield Finding("factor", tuple(paths), text, code)
    if compared.of_output is None:
        yield Finding("factor", (), "the factors of the output, which no readout makes, could not be traced.", _BY_EYE)
    for what, paths in groups.items():
        if paths:
            yield Finding("factor", tuple(paths), f"{what} {summary(paths)} could not be traced.", _BY_EYE)


def _united(several: Iterable[Collection[str]]) -> list[str]:
    return sorted(frozenset[str]().union(*several))
