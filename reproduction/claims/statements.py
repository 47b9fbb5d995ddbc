"""The papers' claims as contrasts: a rule per claim. `reproduction.claims.judged_claims` judges them.

`CLAIMS` has them by figure, close to the papers' words. TP6 is arXiv:2310.02244, B24 arXiv:2309.16620. Where the paper
gives no number, the bound is 0 for a comparison, `depthmup_flax.report.verdict.TOLERANCE` of what the base learned
for "transfers" and "does not matter", and the middle between two exponents for a choice between them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from depthmup_flax.report.verdict import TOLERANCE
from reproduction.claims.measures import AT_LEAST, AT_MOST, BASE, BOTH, LARGEST, Term, Window

Terms = tuple[tuple[int, Term], ...]  # signs and numbers


@dataclasses.dataclass(frozen=True)
class Rule:
    """What a claim says: the sum of ``terms`` is at most or at least a bound.

    Attributes:
      sense: `AT_MOST` or `AT_LEAST`.
      bound: of the sum; if ``share`` is given, that share of what the base learned instead.
      every: whether it must hold at every size above the base's, or at the largest alone.
    """

    terms: Terms
    sense: str
    bound: float = 0.0
    share: float | None = None
    every: bool = False


@dataclasses.dataclass(frozen=True)
class Claim:
    """A statement of a paper; ``id`` as in reproduction/pages/reproduction.md, ``source`` is the figure."""

    id: str
    source: str
    text: str
    rule: Rule


def transfers(variant: str = "", axis: str = "depth") -> Rule:
    """Keeping the base's best x costs little at every larger size."""
    return dataclasses.replace(_small(Term("regret", variant, axis)), every=True)


def _small(term: Term) -> Rule:
    return Rule(((1, term),), AT_MOST, share=TOLERANCE)


def costs_more(control: str, rule: str, axis: str = "depth") -> Rule:
    """Keeping the base's best x costs the control more than the rule."""
    return Rule(((1, Term("regret", control, axis)), (-1, Term("regret", rule, axis))), AT_LEAST)


def moves_more(
    control: str, rule: str, axis: str = "depth", *, measure: str = "absolute exponent", when: Window | None = None
) -> Rule:
    """The best x of the control, or what else is measured, follows a steeper power of size than the rule's."""
    return Rule(tuple((sign, Term(measure, of, axis, when=when)) for sign, of in ((1, control), (-1, rule))), AT_LEAST)


def lower_loss(a: str, b: str) -> Rule:
    """The lowest loss of a is below b's at the largest size."""
    return Rule(((1, Term("lowest loss", a)), (-1, Term("lowest loss", b))), AT_MOST)


def falls(variant: str = "", when: Window | None = None) -> Rule:
    """The lowest loss at the largest size is below the base's, in a part of training."""
    return Rule(_growth(variant, when), AT_MOST)


def rises(variant: str = "", when: Window | None = None) -> Rule:
    """The lowest loss at the largest size is above the base's, in a part of training."""
    return Rule(_growth(variant, when), AT_LEAST)


def gains_more(a: str, b: str) -> Rule:
    """The lowest loss falls more from the base to the largest size in a than in b."""
    return Rule((*_growth(a), *((-sign, term) for sign, term in _growth(b))), AT_MOST)


def _growth(variant: str, when: Window | None = None) -> Terms:
    return (1, Term("lowest loss", variant, when=when)), (-1, Term("lowest loss", variant, at=BASE, when=when))


def exponent_at_least(bound: float, variant: str = "", when: Window | None = None) -> Rule:
    """The best x follows at least that power of depth."""
    return Rule(((1, Term("exponent", variant, when=when)),), AT_LEAST, bound)


def exponent_at_most(bound: float, variant: str = "", when: Window | None = None) -> Rule:
    """The best x follows at most that power of depth."""
    return Rule(((1, Term("exponent", variant, when=when)),), AT_MOST, bound)


Statement = tuple[str, Rule]  # a claim's text and rule


def _claims(claim_id: str, source: str, *statements: Statement) -> tuple[Claim, ...]:
    return tuple(Claim(claim_id, source, *statement) for statement in statements)


def _better(control: str, name: str, axis: str = "depth") -> Statement:
    rule = costs_more(control, "depth_mup", axis)
    return f"the best rate of Depth-muP transfers better over {axis} than that of {name}", rule


_OVER_DEPTH = "the best rate of Depth-muP transfers over depth", transfers("depth_mup")
_OVER_WIDTH = "the best rate of Depth-muP transfers over width", transfers("depth_mup", "width")
_DEEPER_IS_BETTER = "under Depth-muP the loss improves with depth", falls("depth_mup")
_BLOCKS_ALONE = ("scaling only the blocks, the best rate shifts more with depth", moves_more("block_only", "depth_mup"))
_DEEPER_IS_WORSE = "without depth scaling (SP) deeper is worse, each at its best rate", rises("sp")
_ODE = _claims(
    "ode-sde",
    "TP6 Fig. 11",
    ("at alpha = 1 the best rate rises with depth", exponent_at_least(0.0, "ode")),
    ("the best rate transfers better over depth under Depth-muP than at alpha = 1", costs_more("ode", "depth_mup")),
    ("Depth-muP has the lower loss", lower_loss("depth_mup", "ode")),
)


def _two_layers(figure: str, nonlinearity: str, name: str) -> tuple[Claim, ...]:
    one, two = (f"block_depth={k}, {nonlinearity}" for k in (1, 2))
    worse = f"at their best rates and multipliers two layers in a branch are worse than one, {name}"
    shifts = f"at the best multipliers two layers in a branch shift the best rate more with depth, {name}"
    return (
        Claim("block-depth", f"TP6 Fig. {figure}", worse, lower_loss(one, two)),
        Claim("block-depth", "TP6 Fig. 6", shifts, moves_more(two, one)),
    )


_NO_NORM = "norm=none, constant"
_THIRD_OF_20_EPOCHS = (0.10, 0.15)
_EARLY, _MIDDLE = (0.0, 0.25), (0.375, 0.625)  # before and around the middle of training
_MIDDLE_OF_0_AND_MINUS_HALF = -0.25

# The figure of a sweep -> its claims.
CLAIMS: Mapping[str, tuple[Claim, ...]] = {
    "lr-width-depth (MLP)": (
        *_claims(
            "lr-width-depth",
            "TP6 Fig. 10",
            _OVER_DEPTH,
            _DEEPER_IS_BETTER,
            _BLOCKS_ALONE,
            _better("mup", "muP"),
            _better("sp", "SP"),
            _DEEPER_IS_WORSE,
        ),
        *_claims("lr-width-depth", "B24 Fig. 1, B.2", _OVER_WIDTH, _better("sp", "SP", "width")),
    ),
    "lr-width-depth (trained ends)": (
        *_claims(
            "lr-width-depth",
            "TP6 Fig. 10",
            _OVER_DEPTH,
            _OVER_WIDTH,
            ("the best rate of Depth-muP transfers over width and depth together", transfers("depth_mup", BOTH)),
            _DEEPER_IS_BETTER,
            _BLOCKS_ALONE,
            _better("block_only", "block scaling alone"),
            _better("mup", "muP"),
            _better("sp", "SP"),
            _DEEPER_IS_WORSE,
            _better("sp", "SP", "width"),
        ),
        *_ODE,
    ),
    "lr-width-depth (MLP, SGD)": _claims(
        "lr-width-depth",
        "TP6 Table 1",
        ("the best rate of SGD under Depth-muP transfers over depth", transfers("depth_mup")),
        ("the best rate of SGD under Depth-muP transfers over width", transfers("depth_mup", "width")),
        _DEEPER_IS_BETTER,
        _better("mup", "muP"),
        _better("sp", "SP", "width"),
    ),
    "lr-width-depth (conv)": _claims(
        "lr-width-depth",
        "B24 Fig. 1, B.2",
        _OVER_DEPTH,
        _OVER_WIDTH,
        _better("mup", "muP"),
        ("the best rate of muP shifts more with depth than that of Depth-muP", moves_more("mup", "depth_mup")),
        _better("sp", "SP"),
        _better("sp", "SP", "width"),
        _better("sp_sqrt_depth", "SP with 1/sqrt(L)", BOTH),
    ),
    "norm": tuple(
        Claim(
            "norm",
            f"B24 Fig. {figure}",
            f"with {norm.capitalize()}Norm the best rate transfers better over depth with the 1/sqrt(L) scaling",
            costs_more(f"{norm}, mup", f"{norm}, depth_mup"),
        )
        for norm, figure in (("batch", "2"), ("layer", "B.4"))
    ),
    "vit": (
        *_claims(
            "vit",
            "B24 Fig. 3",
            ("the best rate transfers without norm, with scaling", transfers(f"{_NO_NORM}, depth_mup")),
            (
                "the best rate transfers with a cosine, without norm, with scaling",
                transfers("norm=none, cosine, depth_mup"),
            ),
            ("the best rate transfers with LayerNorm and scaling", transfers("layer, depth_mup")),
            ("the best rate transfers with LayerNorm, without scaling", transfers("layer, mup")),
            ("with LayerNorm, depth helps more with the scaling", gains_more("layer, depth_mup", "layer, mup")),
        ),
        Claim(
            "vit",
            "B24 section 1",
            "without norm the best rate transfers better over depth with the scaling",
            costs_more(f"{_NO_NORM}, mup", f"{_NO_NORM}, depth_mup"),
        ),
    ),
    **{
        f"other-hparams ({name})": _claims(
            "other-hparams", f"B24 Fig. {figure}", (f"the best {name} transfers over depth", transfers())
        )
        for name, figure in (("momentum", "4"), ("gamma0", "4"), ("weight decay", "B.8"))
    },
    "trade-off": _claims(
        "trade-off",
        "B24 Fig. B.1",
        (
            "at the base's depth the loss falls with the number of parameters",
            Rule(((1, Term("power of the number of parameters", at=BASE)),), AT_MOST),
        ),
        *(
            (
                f"at equal numbers of parameters depth 12 is better than the {size} depth",
                Rule(((1, Term("loss at the depth next to 12")), (-1, Term(f"loss at the {size} depth"))), AT_MOST),
            )
            for size in ("smallest", "largest")
        ),
    ),
    **{
        figure: _claims(
            "how-long",
            f"B24 Fig. B.3 ({panels})",
            *(
                (
                    f"the best rate is determined after 3 of 20 epochs, in the {network}",
                    _small(Term("regret of the early choice", at=at, when=_THIRD_OF_20_EPOCHS)),
                )
                for network, at in (("base", BASE), ("deepest network", LARGEST))
            ),
        )
        for figure, panels in (("how-long", "a"), ("how-long (ViT)", "b, c"))
    },
    "lazy": _claims(
        "lazy",
        "B24 App. J",
        _OVER_WIDTH,
        ("the best rate of Depth-muP transfers better over width than lazily", costs_more("ntk", "depth_mup", "width")),
    ),
    "imagenet": _claims("imagenet", "B24 Fig. B.6", ("the best rate transfers over depth", transfers())),
    "ode-sde": _ODE,
    "zero-init": _claims(
        "zero-init",
        "B24 Fig. M.1",
        _OVER_DEPTH,
        ("the best rate of alpha = 1 transfers over depth", transfers("ode")),
        ("early in training deeper is better at alpha = 1", falls("ode", _EARLY)),
        ("early in training deeper is worse under Depth-muP", rises("depth_mup", _EARLY)),
    ),
    "pre-nonlin": _claims(
        "pre-nonlin",
        "TP6 Fig. 2",
        ("with the nonlinearity first the best rate transfers over depth", transfers("pre_nonlin=True")),
        (
            "with the nonlinearity first depth gives no gain",
            dataclasses.replace(rises("pre_nonlin=True"), share=-TOLERANCE),
        ),
        ("with the nonlinearity first the loss is higher", lower_loss("pre_nonlin=False", "pre_nonlin=True")),
    ),
    "abs": _claims(
        "abs",
        "TP6 Fig. 3",
        ("the absolute value has a lower loss than ReLU in deep networks", lower_loss("abs", "relu")),
    ),
    "block-depth": (
        Claim(
            "block-depth",
            "TP6 Fig. 4",
            "two layers in a branch are worse than one at equal numbers of layers",
            lower_loss("block_depth=1", "block_depth=2"),
        ),
        Claim(
            "block-depth",
            "TP6 Fig. 6",
            "with two layers in a branch the best rate shifts more with depth",
            moves_more("block_depth=2", "block_depth=1"),
        ),
    ),
    "block-depth (tuned)": (*_two_layers("4", "relu", "ReLU"), *_two_layers("5", "abs", "abs and LayerNorm")),
    "block-depth (heat maps)": _claims(
        "block-depth",
        "TP6 Fig. 7",
        (
            "over rate and multiplier the slope of the best region rises with depth",
            Rule(((1, Term("angle of the best region")), (-1, Term("angle of the best region", at=BASE))), AT_LEAST),
        ),
    ),
    "layernorm": _claims("layernorm", "TP6 Fig. 12", _OVER_DEPTH, _DEEPER_IS_BETTER, _BLOCKS_ALONE),
    "block-multiplier": _claims(
        "block-multiplier", "TP6 Fig. 13", ("the best multiplier transfers over depth", transfers())
    ),
    "megatron": (
        *_claims(
            "megatron",
            "TP6 Fig. 15",
            ("deeper is worse initially", rises("depth_mup", _EARLY)),
            ("deeper is better at the end", falls("depth_mup")),
        ),
        *_claims(
            "megatron",
            "TP6 Fig. 16",
            (
                "in the middle of training the best rate is invariant, rather than 1/sqrt(L)",
                exponent_at_least(_MIDDLE_OF_0_AND_MINUS_HALF, "mup", _MIDDLE),
            ),
            (
                "at the end of training the best rate scales as 1/sqrt(L), rather than being invariant",
                exponent_at_most(_MIDDLE_OF_0_AND_MINUS_HALF, "mup"),
            ),
        ),
        Claim(
            "megatron",
            "TP6 section 10.3",
            "with 1/sqrt(L) scaling the best rate transfers at the end",
            transfers("depth_mup"),
        ),
    ),
    "megatron (largest rate)": _claims(
        "megatron",
        "TP6 Fig. 16",
        *(
            (
                f"{when} of training the largest stable rate moves less over depth with the 1/sqrt(L) scaling",
                moves_more("mup", "depth_mup", measure="absolute exponent of the largest stable rate", when=window),
            )
            for when, window in (("in the middle", _MIDDLE), ("at the end", None))
        ),
        (
            "without the scaling the largest stable rate falls with depth",
            Rule(((1, Term("exponent of the largest stable rate", "mup")),), AT_MOST),
        ),
    ),
    "megatron (multiplier)": _claims(
        "megatron",
        "TP6 Fig. 14",
        ("transformers are insensitive to the branch multiplier (a factor of two)", _small(Term("cost of an octave"))),
    ),
}
