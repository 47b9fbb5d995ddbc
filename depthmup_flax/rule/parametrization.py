"""The rule, as data: which factor each kind of parameter gets when a network grows wider and deeper.

A parameter ``w`` with gradients ``g_0 .. g_t`` is updated by *any* entrywise optimizer ``Q`` as (TP6 Definition 6.1)

    w <- w - eta * n^-c * L^-gamma * Q_t(n^d L^delta g_0, ..., n^d L^delta g_t)

with the width ``n`` and depth ``L`` replaced by their ratios to a tuned base model, so that every factor is 1 there.
The exponents ``c`` and ``d`` depend only on the parameter's `Role` and, for optimizers that are not entrywise, on the
`Geometry` of their updates; ``gamma`` and ``delta = alpha`` apply to parameters inside a residual branch, whose output
is multiplied by ``a * r^-alpha``.

========================= ======================== ===============================================================
paper                     here                     meaning
========================= ======================== ===============================================================
n (TP6), N (B24)          ``width``                channels or model dimension
L                         ``depth``                number of residual branches
n / n_base                ``width_ratio``, ``m``   1 at the base model
L / L_base                ``depth_ratio``, ``r``   1 at the base model
alpha (TP6 Def. 6.2)      ``alpha``                branch multiplier exponent
gamma (TP6 Def. 6.1)      ``gamma``                exponent of the parameter update
a (TP6 10.2)              ``branch_multiplier``    tuned constant in front of every branch
gamma_0 (B24 Eq. 3)       ``gamma0``               feature-learning strength; not TP6's gamma
eta                       ``learning_rate``        the one rate that is tuned and transferred
========================= ======================== ===============================================================

Sources: TP6 is Yang, Yu, Zhu, Hayou, *Feature learning in infinite-depth neural networks* (arXiv:2310.02244); B24 is
Bordelon, Noci, Li, Hanin, Pehlevan, *Depthwise hyperparameter transfer in residual networks* (arXiv:2309.16620).
"""

from __future__ import annotations

import dataclasses
import enum
import math
import numbers
from collections.abc import Callable, Mapping
from typing import Any

from depthmup_flax.rule.factor import ONE, Factor
from depthmup_flax.util.errors import InputError, did_you_mean, require_number, shown
from depthmup_flax.util.types import Scalar


class Role(enum.StrEnum):
    """Which dimensions of a parameter grow with the model's width."""

    INPUT = "input"  # only the output dimension grows: stem, embeddings, class token
    HIDDEN = "hidden"  # both grow: block kernels, channel-doubling convs
    OUTPUT = "output"  # only the input dimension grows: classifier, LM head
    VECTOR = "vector"  # one dimension, and it grows: biases, norm scales
    FIXED = "fixed"  # nothing grows: the readout's bias


class Geometry(enum.StrEnum):
    """What a direction fixes about the size of an update: hence how it must be scaled as its matrix grows."""

    LINEAR = "linear"  # nothing; it follows the gradient: SGD, momentum
    SIGN = "sign"  # its entries, of order one: Adam, Lion
    ORTHOGONAL = "orthogonal"  # its singular values, of order one: Muon
    TWO_SIDED = "two_sided"  # its singular values, by roots of second moments of rows and columns: Shampoo
    ROTATED = "rotated"  # its entries, of order one, in the eigenbasis of those second moments: SOAP
    NORM_MATCHED = "norm_matched"  # its norm, that of the weights: LAMB, LARS, Adafactor's multiply_by_parameter_scale


@dataclasses.dataclass(frozen=True)
class Exponents:
    """Powers of the leaf's own width ratios ``m_in`` and ``m_out`` (TP6 Definition 6.1)."""

    gradient_in: int = 0  # gradient scale n^d = m_in^gradient_in * m_out^gradient_out
    gradient_out: int = 0
    update_in: float = 0.0  # update scale n^-c = m_in^update_in * m_out^update_out
    update_out: float = 0.0


# TP6 Table 2 and Definition 6.1, with the readout written as (1/m) * (weights at the base model's scale).
_ENTRYWISE: Mapping[Role, Exponents] = {
    Role.INPUT: Exponents(gradient_out=1),
    Role.HIDDEN: Exponents(gradient_out=1, update_in=-1),
    Role.OUTPUT: Exponents(gradient_in=1),
    Role.VECTOR: Exponents(gradient_out=1),
    Role.FIXED: Exponents(),
}


def _updates(**powers: tuple[float, float]) -> Mapping[Role, Exponents]:
    """`_ENTRYWISE` with other powers ``(update_in, update_out)``; gradients are the optimizer's input in any case."""
    rules = dict(_ENTRYWISE)
    for role, (into, out) in powers.items():
        rules[Role(role)] = dataclasses.replace(rules[Role(role)], update_in=into, update_out=out)
    return rules


# A step should change every entry of a layer's output by O(1) at every width (TP6 Desiderata; the spectral condition of
# arXiv:2310.17813). Inputs x of a layer have entries of O(1), so |x| ~ m_in^1/2, and updates are aligned with them: a
# change of O(1) is |dW x| ~ m_out^1/2.
#
# * Entries of order one: (dW x)_i ~ m_in. Hidden weights need 1/m_in.
# * Singular values of order one: |dW x| ~ |x|. Hidden weights need (m_out / m_in)^1/2. An input weight's x does not
#   grow: m_out^1/2. A readout's product is multiplied by 1/m_in and does not grow in size: m_in^1/2.
# * Entries of order one in an eigenbasis: x lies along few of its directions, so (dW x)_i ~ |x|. Hidden weights need
#   m_in^-1/2, input weights nothing, a readout m_in^1/2. Gradients of fewer examples than features fill a corner of
#   the basis, in which the update's singular values do not grow with the width: there this factor is an upper bound.
# * The norm of the weights: |dW x| ~ |W|_F |x|, as updates have few large singular values. Entries of hidden weights
#   have standard deviation m_in^-1/2, so |W|_F ~ m_out^1/2: they need m_in^-1/2. The others start at the base model's
#   scale, and their entries should change by as much.
#
# Depth needs no second table: directions that fix a size have degree 0 in the gradient, and r^-(alpha + gamma) bounds
# the sum of r changes of the stream as for Adam. VECTOR and FIXED are not matrices, so Adam updates them
# (`depthmup_flax.muon`; SOAP does the same).
_SPECTRAL = _updates(input=(0, 0.5), hidden=(-0.5, 0.5), output=(0.5, 0))
WIDTH_RULES: Mapping[Geometry, Mapping[Role, Exponents]] = {
    Geometry.LINEAR: _ENTRYWISE,
    Geometry.SIGN: _ENTRYWISE,
    Geometry.ORTHOGONAL: _SPECTRAL,
    Geometry.TWO_SIDED: _SPECTRAL,
    Geometry.ROTATED: _updates(hidden=(-0.5, 0), output=(0.5, 0)),
    Geometry.NORM_MATCHED: _updates(hidden=(-0.5, 0)),
}


@dataclasses.dataclass(frozen=True, eq=False)
class AuditRecord:
    """What the infos of one audit have in common. Nothing changes it.

    The audit of a network whose code has factors of a rule tells which: optimizers refuse a rule with others.
    """

    problem: str = ""  # why optimizers refuse the infos
    alpha: float | None = None  # the code multiplies branches by r^-alpha; None: by nothing that depends on the depth
    width_power: float | None = None  # the power of width ratios that the code has; None: nothing depends on the width
    gamma0_width_exponent: float = 0.0  # the power of the model's width in the divisor of its output
    # Whether branches have the rule's a, in the code or carried. None: unknown, as both models are equally deep.
    has_multiplier: bool | None = True
    base: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)  # shapes of the base's parameters
    # Path -> root mean square of its counterpart's initial values in the base, which are drawn at the first call.
    # None: not known, or not to be compared, as an earlier run has trained the parameters.
    base_sizes: Callable[[], Mapping[str, float]] | None = None


@dataclasses.dataclass(frozen=True)
class ParamInfo:
    """Everything the rule needs to know about one parameter.

    A stacked parameter (with a leading axis of layers) has one: its layers share their ratios.

    A parameter may *carry* the factor ``c`` that its place in the forward pass lacks: with ``v = c w`` for ``w``, the
    network is the one that multiplies by ``c`` there. So ``v`` starts at ``c`` times the initial value of ``w``, and
    trains as ``w`` does if its gradient, which is ``1/c`` times that of ``w``, and its update are multiplied by ``c``.
    Slices of it, as the queries of a fused matrix, may have factors of their own (`Blocks`). What is lacking is the
    same under every rule; ``factor(rule)`` is its number.
    """

    role: Role
    shape: tuple[int, ...]  # as stored, a stack's leading layer axis included
    width_in: float = 1.0  # m_in: input dimension / the base model's
    width_out: float = 1.0  # m_out: output dimension (or the only one) / the base model's
    in_branch: bool = False  # inside a residual branch
    depth_ratio: float = 1.0  # r, of layers with weights of their own; 1 outside branches
    model_width: float = 1.0  # m of the whole model: the readout's input ratio
    decay: bool = True  # weight decay applies
    # Dimensions of ``shape`` that are a hidden matrix's input and output; others count matrices (layers, experts).
    # Empty: not hidden, or unknown.
    in_axes: tuple[int, ...] = ()
    out_axes: tuple[int, ...] = ()
    inner: bool = False  # a matrix of a branch whose product a later matrix of the branch reads
    carried: Factor = ONE  # c
    offset: float = 0.0  # what the forward pass adds to it: 1 for a norm that multiplies by 1 + scale
    uses: float = 1.0  # n: uses of the weights of its branch in one forward pass / the base model's
    summed: float = 1.0  # the same of its own, over which the gradient is a sum: 1, or n
    base_shape: tuple[int, ...] = ()  # of its counterpart in the base model, at this model's depth; empty: unknown
    audited: AuditRecord | None = dataclasses.field(default=None, compare=False, repr=False)  # None: of no audit

    @property
    def role_name(self) -> str:
        """``hidden``, or in a branch ``hidden+branch``."""
        return self.role + ("+branch" if self.in_branch else "")

    @property
    def is_matrix(self) -> bool:
        """Whether it is a hidden matrix, or a stack of them, whose input and output dimensions are known."""
        return bool(self.in_axes and self.out_axes)

    @property
    def fan_in(self) -> int:
        """Number of inputs of the matrix."""
        return math.prod(self.shape[axis] for axis in self.in_axes)

    @property
    def fan_out(self) -> int:
        """Number of outputs of the matrix."""
        return math.prod(self.shape[axis] for axis in self.out_axes)

    @property
    def carries(self) -> bool:
        """Whether c differs from 1 under some rule."""
        return not self.carried.is_one

    def factor(self, rule: Parametrization) -> Any:
        """``c`` under a rule: a number, or an array that broadcasts against the parameter."""
        return self.carried.under(rule, self.shape)

    def uncarried(self, array: Any, rule: Parametrization) -> Any:
        """``w`` for ``v``, the values of the parameter: those of the network with the factor in its code."""
        return (array + self.offset) / self.factor(rule) - self.offset if self.carries else array

    def carried_shift(self, rule: Parametrization) -> Any:
        """``v - c w``: what a carried factor adds to a parameter that has an ``offset``."""
        return self.offset * (self.factor(rule) - 1)

    @property
    def to_few_features(self) -> bool:
        """Whether it maps the width to a fixed number of features, as a router, a bottleneck or a few keys do.

        Its gradients and updates are those of a hidden weight. It should start at zero or with ``1/fan_in``, as a
        readout (arXiv:2203.03466 Table 3): from ``1/sqrt(fan_in)``, aligned updates change its product as ``sqrt(m)``.
        """
        return self.role is Role.HIDDEN and self.width_out == 1 != self.width_in


_WIDTH_POWERS = {"mup": 1, "standard": 0}


def _power(ratio: float, exponent: Scalar) -> Scalar:
    """``ratio^exponent``, without an operation at the base model."""
    return 1.0 if isinstance(ratio, numbers.Real) and ratio == 1 else ratio**exponent


@dataclasses.dataclass(frozen=True)
class Parametrization:
    """One point of the (alpha, gamma) family on top of a width rule. ``depth_mup`` is the default.

    Fields of type `Scalar` may be traced, so that the runs of a sweep share a program whatever their presets; the
    others are static. A field that is out of range raises `InputError`.
    """

    alpha: Scalar = 0.5  # branches are multiplied by a * r^-alpha (TP6 Def. 6.2); delta = alpha for their gradients
    gamma: Scalar = 0.5  # updates inside branches are multiplied by r^-gamma (TP6 Def. 6.1)
    # The width rule: mup (TP6 Table 2), or standard: no width factor at all. Traced, it is `width_power`.
    width: str | Scalar = "mup"
    # Divides the output: the feature-learning strength (B24 Eq. 3). It multiplies gradient and update scales of every
    # leaf, which gives SGD eta * gamma0^2 and Adam eta * gamma0 with a faithful epsilon (our extension).
    gamma0: Scalar = 1.0
    gamma0_width_exponent: Scalar = 0.0  # gamma0 is multiplied by m^this; -1/2: features stop moving (B24 C.1)
    branch_multiplier: Scalar = 1.0  # a, the tuned constant of every branch
    # Constants per `Role` at every width and depth: tuned on the base model and transferred like eta.

    input_lr_factor: Scalar = 1.0  # times the learning rate of input weights: stem, embeddings
    hidden_lr_factor: Scalar = 1.0  # times the learning rate of hidden weights
    output_lr_factor: Scalar = 1.0  # times the learning rate of the readout's weights
    vector_lr_factor: Scalar = 1.0  # times the learning rate of biases and norm scales
    fixed_lr_factor: Scalar = 1.0  # times the learning rate of the readout's bias
    normalized_updates_only: bool = False  # refuse optimizers that are linear in the gradient (SGD, momentum)
    # Replaces gamma for a branch's inner layers (`ParamInfo.inner`); None: gamma. With 0, depth_mup has the
    # learning-rate correction of arXiv:2512.21075v1 for two-layer blocks; deep networks are unstable with it (TP6 sec.
    # 9.3, measured in reproduction/pages/which_exponent.md).
    inner_gamma: Scalar | None = None

    def __post_init__(self) -> None:
        if not hasattr(self.width, "dtype") and self.width not in tuple(_WIDTH_POWERS):
            raise InputError(f"parametrization.width is {self.width!r}: use 'mup' or 'standard'.")
        not_negative = {"alpha", *(f"{role}_lr_factor" for role in Role)}
        for name, value in self.numbers().items():
            least, above = 0 if name in not_negative else -math.inf, 0 if name == "gamma0" else -math.inf
            require_number(f"parametrization.{name}", value, least=least, above=above)

    @property
    def width_power(self) -> Scalar:
        """The power to which all width ratios are raised: 1 under ``mup``, 0 under ``standard``."""
        return _WIDTH_POWERS[self.width] if isinstance(self.width, str) else self.width

    def numbers(self) -> dict[str, Scalar]:
        """The fields that may be traced, by name; ``width`` as a number, ``inner_gamma`` if it is set."""
        fields = {name: value for name, value in vars(self).items() if name != "normalized_updates_only"}
        return {name: value for name, value in (fields | {"width": self.width_power}).items() if value is not None}

    def residual_multiplier(self, depth_ratio: float, uses: float = 1.0) -> Scalar:
        """``a * r^-alpha / n``, the factor on a branch's output (TP6 10.2; B24 Table 1 with alpha = 1/2).

        ``uses``, n, is how often each layer is used over the base model's, as in a looped transformer, and r counts
        layers alone: branches with the same weights add up in one direction (arXiv:2606.18524), at alpha = 0 untreated.
        """
        require_number("depth_ratio", depth_ratio, above=0)
        return self.branch_multiplier * _power(depth_ratio, -self.alpha) / self._of_uses(uses)

    def _of_uses(self, uses: float) -> Scalar:
        return _power(uses, 1.0 * (self.alpha > 0))

    def readout_multiplier(self, width_ratio: float) -> Scalar:
        """``1/m``, the factor on the readout's matrix product, not on its bias."""
        return 1.0 / self._width(width_ratio)

    def init_ratio(self, info: ParamInfo) -> float | None:
        """Initial standard deviation over the base model's: ``m_in^-1/2`` of hidden weights, 1 of others (TP6 Table 2).

        ``None`` under ``standard``, which leaves initial values to the initializer. ``width`` must not be traced.
        """
        if self.width_power == 0:
            return None
        return info.width_in**-0.5 if info.role is Role.HIDDEN else 1.0

    def readout_fan_in(self, fan_in: int, width_ratio: float) -> Scalar:
        """The base model's fan-in, which sets the readout's initial std: ``sigma / sqrt(fan_in / m)``."""
        return fan_in / self._width(width_ratio)

    def output_divisor(self, model_width: float) -> Scalar:
        """``gamma0 * m^gamma0_width_exponent``, the divisor of the network's output (B24 Eq. 1 and C.1)."""
        return self.gamma0 * _power(model_width, self.gamma0_width_exponent)

    def attention_scale(self, head_dim: int, base_head_dim: int) -> Scalar:
        """``sqrt(d_base) / d``, the factor on products of queries and keys (arXiv:2203.03466 Def. 4.1; B24 A.3).

        It is ``1 / sqrt(d)`` if the head dimension does not grow, and under ``standard``.
        """
        require_number("head_dim", head_dim, least=1, whole=True)
        require_number("base_head_dim", base_head_dim, least=1, whole=True)
        return (head_dim * self._width(head_dim / base_head_dim)) ** -0.5

    def forward_multiplier(self, info: ParamInfo) -> Scalar:
        """The constant between this parameter and the sum it enters, for the printed table."""
        multiplier = self.readout_multiplier(info.width_in) if info.role is Role.OUTPUT else 1.0
        if info.in_branch:
            return multiplier * self.residual_multiplier(info.depth_ratio, info.uses)
        # Gamma0 divides the output bias, a fixed parameter, together with the output.
        return multiplier / self.output_divisor(info.model_width) if info.role in (Role.OUTPUT, Role.FIXED) else 1.0

    def gradient_scale(self, info: ParamInfo) -> Scalar:
        """``c * gamma0 * n^d * r^delta``, with a branch's uses: the optimizer's input has order one (TP6 Def. 6.1)."""
        rule = WIDTH_RULES[Geometry.LINEAR][info.role]
        width = self._width(info.width_in, rule.gradient_in) * self._width(info.width_out, rule.gradient_out)
        uses = self._of_uses(info.uses) / self._of_uses(info.summed)
        depth = _power(info.depth_ratio, self.alpha) * uses if info.in_branch else 1.0
        return width * depth * self.output_divisor(info.model_width) * info.factor(self)

    def update_scale(self, info: ParamInfo, geometry: Geometry = Geometry.SIGN) -> Scalar:
        """``c * lr_factor * gamma0 * n^-c * r^-gamma``: the learning rate's multiplier, by powers of `WIDTH_RULES`."""
        rule = WIDTH_RULES[geometry][info.role]
        width = self._width(info.width_in, rule.update_in) * self._width(info.width_out, rule.update_out)
        depth = _power(info.depth_ratio, -self.update_gamma(info)) if info.in_branch else 1.0
        return self.lr_factor(info.role) * width * depth * self.output_divisor(info.model_width) * info.factor(self)

    def lr_multiplier(self, info: ParamInfo, degree: float, geometry: Geometry = Geometry.SIGN) -> Scalar:
        """Effective learning-rate multiplier of a direction of this degree (see `direction_traits.Traits`)."""
        return self.update_scale(info, geometry) * self.gradient_scale(info) ** degree

    def update_gamma(self, info: ParamInfo) -> Scalar:
        """The gamma of a branch's parameter: ``inner_gamma`` for its inner layers, if set."""
        return self.inner_gamma if info.inner and self.inner_gamma is not None else self.gamma

    def lr_factor(self, role: Role) -> Scalar:
        """The role's width- and depth-free learning-rate constant."""
        return getattr(self, f"{role}_lr_factor")

    def replace(self, **changes: Any) -> Parametrization:
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)

    def _width(self, ratio: float, exponent: float = 1) -> Scalar:
        """A power of a width ratio."""
        require_number("width_ratio", ratio, above=0)
        return _power(ratio, exponent * self.width_power) if exponent else 1.0


# The scoreboard of rules has a file for each, in reproduction/rules/rules.
PRESETS: Mapping[str, Parametrization] = {
    # Framework defaults and one global learning rate.
    "sp": Parametrization(alpha=0.0, gamma=0.0, width="standard"),
    # SP with 1/sqrt(L) (B24 Fig. B.2, B.3): the branches of "depth_mup", the widths of "sp". With SGD, as in the paper,
    # r^(alpha-gamma) = 1 keeps the one learning rate, so that runs are those of "depth_mup" at the base's width and of
    # "sp" at the base's depth: compare where both grow. With Adam branches have the r^-1/2 of "depth_mup".
    "sp_sqrt_depth": Parametrization(alpha=0.5, gamma=0.5, width="standard"),
    # Transfers over width only.
    "mup": Parametrization(alpha=0.0, gamma=0.0),
    # TP6 Table 1 and Claim 7.5; B24 Table 1. With several matrices in a branch see TP6 sec. 9.
    "depth_mup": Parametrization(alpha=0.5, gamma=0.5),
    # TP6 Fig. 10, middle: branches scaled, learning rate not. With SGD the rule's r^(alpha-gamma) = r^(1/2) is
    # unstable, and "scale only the block" under SGD already *is* depth_mup, so only normalized updates make sense.
    "block_only": Parametrization(alpha=0.5, gamma=0.0, normalized_updates_only=True),
    # TP6 Fig. 11, B24 App. M: deep networks approach an ordinary differential equation.
    "ode": Parametrization(alpha=1.0, gamma=0.0),
    # CompleteP (arXiv:2505.01618 Table 1 and Eq. 40): with Adam, the numbers of "ode". It gives parameters of branches
    # the rate of muP (r^(alpha-1) = 1), multiplies the decay of hidden weights by m, and divides epsilon by m r in
    # branches, by m elsewhere. Here decay is outside the 1/m, and epsilon is compared with the gradient times m r, so
    # both follow from alpha and gamma. With SGD branches train at r^(alpha-gamma) = r times the rate (B24 App. M).
    "completep": Parametrization(alpha=1.0, gamma=0.0),
    # The lazy control: features stop moving as width grows (B24 C.1, J).
    "ntk": Parametrization(alpha=0.5, gamma=0.5, gamma0_width_exponent=-0.5),
}


def require_parametrization(rule: object) -> None:
    """Raises `InputError` for anything else, such as the name of a preset."""
    if not isinstance(rule, Parametrization):
        preset = rule if isinstance(rule, str) and rule in PRESETS else "depth_mup"
        raise InputError(f"rule is {shown(rule)}: pass a Parametrization, such as dm.get_parametrization({preset!r}).")


def get_parametrization(preset: str = "depth_mup", **overrides: Any) -> Parametrization:
    """A preset by name, with any field overridden: ``get_parametrization("depth_mup", gamma0=0.5)``."""
    if preset not in PRESETS:
        raise InputError(f"parametrization.preset is {shown(preset)}: {did_you_mean(str(preset), PRESETS)}")
    fields = [f.name for f in dataclasses.fields(Parametrization)]
    for name in overrides:
        if name not in fields:
            raise InputError(f"parametrization has no field {name!r}: {did_you_mean(name, fields)}")
    return PRESETS[preset].replace(**overrides)
