"""What a parameter has of its own in an optimizer that takes groups: rate, decay and epsilon.

The contract of `depthmup_flax.rule.optimizer`, with the gradient scale G and the update scale U of a parameter, is

    v <- v - eta * (U * Q(G * g) + weight_decay * v)

Adam's direction has degree 0, so ``Q(G g)`` with epsilon is ``Q(g)`` with epsilon / G. SGD's has degree 1. So the same
steps are those of plain optimizers, which multiply decay by the group's rate, with

========= ============= ========== ==================
optimizer rate          epsilon    decay
========= ============= ========== ==================
adam      eta * U       eps / G    weight_decay / U
sgd       eta * U * G   none       weight_decay / U G
========= ============= ========== ==================

U and G include the factor that a parameter carries: for Adam it is a matter of rate, epsilon and decay alone.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import optax

from depthmup_flax.auditing.notes import KEEP_HEAD_SIZE
from depthmup_flax.rule import info_trees
from depthmup_flax.rule.direction_traits import check_direction, described
from depthmup_flax.rule.optimizer import decay_factor, sgd_direction
from depthmup_flax.rule.parametrization import Geometry, Parametrization, ParamInfo, require_parametrization
from depthmup_flax.util.errors import InputError, did_you_mean
from depthmup_flax.util.types import InfoTree


@dataclasses.dataclass(frozen=True)
class GroupFactors:
    """Multipliers of an optimizer's settings for one parameter; all are 1 at the base model."""

    rate: float  # of the learning rate
    decay: float  # of the weight decay, which the group's rate multiplies; 0: none
    epsilon: float  # of Adam's epsilon; 1 for sgd, which has none
    gradient: float  # G: scaled by it, gradients have one size at every width and depth


def _adam() -> optax.GradientTransformation:
    return described(optax.scale_by_adam(), 0, Geometry.SIGN)


# Each stands for the optimizers with its degree and geometry.
_DIRECTIONS = {"adam": _adam, "sgd": sgd_direction}


def group_factors(info: InfoTree, rule: Parametrization, optimizer: str) -> dict[str, GroupFactors]:
    """Path -> `GroupFactors` of ``"adam"`` or ``"sgd"``; ``info`` may be an audit.

    Raises:
      InputError: optimizers refuse the info under this rule; or parts of a parameter have different factors.
    """
    require_parametrization(rule)
    if optimizer not in _DIRECTIONS:
        raise InputError(f"optimizer is {optimizer!r}: {did_you_mean(str(optimizer), _DIRECTIONS)}")
    info = info_trees.info_of(info)
    _, kinds = check_direction(_DIRECTIONS[optimizer](), info, rule, None)
    info_trees.require_followed(info, rule)
    info_trees.require_inner_layers(info, rule)
    leaves = info_trees.flatten_info(info)
    return {path: _factors(path, leaf, rule, kinds[path], optimizer) for path, leaf in leaves.items()}


def _factors(path: str, info: ParamInfo, rule: Parametrization, kind: Geometry, optimizer: str) -> GroupFactors:
    gradient = _number(path, rule.gradient_scale(info))
    rate = _number(path, rule.update_scale(info, kind))
    epsilon = 1 / gradient
    if optimizer == "sgd":
        rate *= gradient
        epsilon = 1.0
    return GroupFactors(rate, decay_factor(info, 0.0) / rate, epsilon, gradient)


def _number(path: str, factor: Any) -> float:
    """One number for a whole parameter, which is all that a group has."""
    values = np.unique(np.asarray(factor, float))
    if len(values) > 1:
        raise InputError(
            f"parts of {path!r}, such as the queries of a fused matrix, carry factors of their own, and a group of an "
            f"optimizer has one for a tensor. {KEEP_HEAD_SIZE}"
        )
    return float(values[0])
