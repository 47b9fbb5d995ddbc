"""What each preset of the rule is for, and what TP6 claims of its exponents."""

from depthmup_flax.rule.parametrization import PRESETS

# What TP6 claims of exponents holds for networks whose features move at every width, as under muP.
_STABLE = "stable, nontrivial, faithful, feature diversity {} (TP6, one matrix)"
_USES: dict[str, tuple[str, ...]] = {
    "sp": ("a control: the framework's defaults, one rate at every width and depth",),
    "sp_sqrt_depth": ("a control over width: sp with the depth rule of depth_mup (B24 Fig. B.2)",),
    "mup": ("a control over depth: transfers over width only", "unstable at initialization as depth grows (TP6 7.1)"),
    "depth_mup": ("the default", _STABLE.format(0.5)),
    "block_only": ("a control: branches scaled, learning rates not", "unstable in training as depth grows (TP6 7.2)"),
    "ode": ("the infinite-depth ODE of TP6 Fig. 11 and B24 App. M", _STABLE.format(0)),
    "completep": (
        "CompleteP: keeps features inside branches of several matrices; the exponents of ode",
        _STABLE.format(0),
    ),
    "ntk": ("a control: features stop moving as width grows (B24 C.1)",),
}


def describe_presets() -> str:
    """The presets, their uses and exponents, and what TP6 claims of them."""
    lines = []
    for name, rule in PRESETS.items():
        use, *claims = _USES[name]
        exponents = f"alpha {rule.alpha:g}, gamma {rule.gamma:g}, width rule {rule.width}"
        lines += [f"  {name:<13} {use}", *(f"  {'':<13} {line}" for line in (exponents, *claims))]
    return "\n".join(lines)
