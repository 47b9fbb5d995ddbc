"""Mistakes that people make when they put the rule on a model, and the name that a tool should give each."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import optax

import depthmup_flax as dm
from depthmup_flax.rule.info_trees import flatten_info, matches
from depthmup_flax.util.types import InfoTree

from .edits import RULE, Edits

LEARNING_RATE = 3e-3
Optimizer = Callable[[InfoTree, dm.Parametrization, float, float], optax.GradientTransformation]  # of info, rule, m, r


@dataclasses.dataclass(frozen=True)
class Mistake:
    """One thing done wrong, in the forward pass, the initial values, ``infer_info`` or the optimizer."""

    text: str
    cause: str  # the name that the check should give
    axis: str  # that shows it: "width" or "depth"
    edit: Callable[[Edits], Mapping[str, Any]] = lambda e: {}  # fields of `Edits` that are wrong
    info: Callable[[float, float], Mapping[str, Any]] = lambda m, r: {}  # arguments of `infer_info` that are wrong
    optimizer: Optimizer | None = None
    rule: dm.Parametrization | None = None  # that the user takes, if wrong
    in_forward: bool = False
    in_info: bool = False
    widths: tuple[int, ...] = ()  # that show it, if those of the style are too small

    @property
    def in_audit(self) -> bool:
        """Whether the audit should name it: it reads the forward pass and ``info``, and no values or optimizers."""
        return self.in_forward or self.in_info


def forward(text: str, cause: str, axis: str, edit: Callable[[Edits], Mapping[str, Any]]) -> Mistake:
    """A mistake in the forward pass."""
    return Mistake(text, cause, axis, edit, in_forward=True)


A = RULE.branch_multiplier
FORWARD = {
    "no_multiplier": forward(
        "no branch is multiplied", "missing_branch_multiplier", "depth", lambda e: {"branch": A, "last_branch": A}
    ),
    "second_branch": forward(
        "attention is multiplied, the feed-forward is not",
        "missing_branch_multiplier",
        "depth",
        lambda e: {"last_branch": A},
    ),
    "no_readout": forward("no 1/m", "readout_not_scaled", "width", lambda e: {"readout": 1.0}),
    "root_readout": forward(
        "an own 1/sqrt(D) instead of 1/m", "readout_not_scaled", "width", lambda e: {"readout": e.m**-0.5}
    ),
    "double_readout": forward("1/m twice", "readout_scaled_twice", "width", lambda e: {"readout": e.m**-2.0}),
    "kept_readout": forward(
        "1/m, and an own 1/sqrt(D) kept", "readout_scaled_twice", "width", lambda e: {"readout": e.m**-1.5}
    ),
    "root_embedding": forward(
        "embeddings times sqrt(D)", "embedding_scaled_with_width", "width", lambda e: {"embedding": e.m**0.5}
    ),
    "root_heads": forward("attention scaled by 1/sqrt(d)", "attention_scale", "width", lambda e: {"head_power": -0.5}),
    "before_norm": forward(
        "multiplied before the norm that ends the branch",
        "norm_cancels_multiplier",
        "depth",
        lambda e: {"before_norm": True},
    ),
    "shortcut": forward(
        "the projection of the shortcut is multiplied, too",
        "shortcut_in_branch",
        "depth",
        lambda e: {"shortcut": e.branch},
    ),
    "root_rule": Mistake(
        "the rule of different blocks for one that repeats", "repeated_weights", "depth", rule=RULE, in_forward=True
    ),
}
INITIAL = {
    "depth_init": Mistake("GPT-2's 1/sqrt(2 L)", "double_counted_init", "depth", lambda e: {"last_std": e.r**-0.5}),
    "fixed_std": Mistake(
        "one std of hidden weights at every width", "fixed_std_init", "width", lambda e: {"hidden_std": e.m**0.5}
    ),
    "falling_input": Mistake(
        "embeddings that start with 1/sqrt(D)",
        "input_init_falls_with_width",
        "width",
        lambda e: {"input_std": e.m**-0.5},
    ),
    "random_narrow": Mistake(
        "a random start of what maps the width to a few features",
        "random_start_of_few_features",
        "width",
        lambda e: {"narrow_std": 1.0},
        widths=(256, 512, 1024, 2048),
    ),
}


def scaled(info: InfoTree, factor: Callable[[str, dm.ParamInfo], Any]) -> optax.GradientTransformation:
    """Multiplies every update by ``factor(path, info)``."""

    def update(updates: Any, params: Any) -> Any:
        del params
        leaves, structure = jax.tree.flatten(updates)
        factors = [factor(path, leaf) for path, leaf in flatten_info(info).items()]
        return jax.tree.unflatten(structure, [u * f for u, f in zip(leaves, factors, strict=True)])

    return optax.stateless(update)


def by_hand(direction: Callable[[], optax.GradientTransformation]) -> Optimizer:
    """The rule's scales around any direction, also one that ``dm.depthmup`` refuses."""
    return lambda info, rule, m, r: optax.chain(
        scaled(info, lambda _, leaf: rule.gradient_scale(leaf)),
        direction(),
        scaled(info, lambda _, leaf: rule.update_scale(leaf)),
        optax.scale(-LEARNING_RATE),
    )


def extra(pattern: str, factor: Callable[[float, float], float]) -> Optimizer:
    """The rule's Adam; updates of some parameters have one factor too many."""
    return lambda info, rule, m, r: optax.chain(
        dm.adamw(LEARNING_RATE, info, rule),
        scaled(info, lambda path, _: factor(m, r) if matches(path, pattern) else 1.0),
    )


OPTIMIZER = {
    "plain_adam": Mistake(
        "a plain Adam", "missing_width_update_factor", "width",
        optimizer=lambda info, rule, m, r: optax.adam(LEARNING_RATE),
    ),
    "no_gamma": Mistake(
        "no r^-gamma", "missing_depth_update_factor", "depth",
        optimizer=lambda info, rule, m, r: dm.adamw(LEARNING_RATE, info, rule.replace(gamma=0.0)),
    ),
    "decay_inside": Mistake(
        "decay inside the multipliers", "decay_inside_multipliers", "width",
        optimizer=by_hand(lambda: optax.chain(optax.scale_by_adam(), optax.add_decayed_weights(0.1))),
    ),
    "novograd": Mistake("NovoGrad", "not_entrywise", "width", optimizer=by_hand(optax.scale_by_novograd)),
    "sgd_on_repeated": Mistake(
        "SGD, whose gradient of a repeated weight is a sum over its uses", "repeated_weights", "depth",
        optimizer=lambda info, rule, m, r: dm.sgd(0.05, info, rule),
    ),
    "lamb": Mistake(
        "LAMB", "not_entrywise", "width",
        optimizer=by_hand(lambda: optax.chain(optax.scale_by_adam(), optax.scale_by_trust_ratio())),
    ),
    "update_norm": Mistake(
        "updates normalized together", "not_entrywise", "width",
        optimizer=by_hand(lambda: optax.chain(optax.scale_by_adam(), optax.normalize_by_update_norm(30.0))),
    ),
}  # fmt: skip
GENERAL: Mapping[str, Mistake] = {**FORWARD, **INITIAL, **OPTIMIZER}


def extra_width(pattern: str) -> Mistake:
    """A factor 1/m too many on some updates."""
    return Mistake(
        f"updates of {pattern} times 1/m", "updates_too_small_in_width", "width",
        optimizer=extra(pattern, lambda m, r: 1 / m),
    )  # fmt: skip


def extra_depth(pattern: str) -> Mistake:
    """A factor r^-1/2 too many on some updates."""
    return Mistake(
        f"updates of {pattern} times r^-1/2", "updates_too_small_in_depth", "depth",
        optimizer=extra(pattern, lambda m, r: r**-0.5),
    )  # fmt: skip


def wrong_globs(cause: str, *in_branch: str) -> Mistake:
    """``in_branch`` that matches too much or too little."""
    return Mistake(f"in_branch={in_branch}", cause, "depth", in_info=True, info=lambda m, r: {"in_branch": in_branch})


def wrong_axes(pattern: str, *names: str | None) -> Mistake:
    """A parameter in the role of another."""
    ratio = lambda m: m if "width_out" not in names else None
    return Mistake(
        f"{pattern} is {names}", "wrong_role", "width", in_info=True,
        info=lambda m, r: {"overrides": {pattern: dm.Axes(names, width_ratio=ratio(m))}},
    )  # fmt: skip
