"""What each preset of the rule is for, and which to take for blocks of several matrices."""

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

WHICH_EXPONENT = """\
One matrix in a branch: depth_mup. With two or more (transformers, ResNets with two convolutions in a branch, res_mlp
with block_depth above 1) compare depth_mup and completep: features inside a branch freeze as r^-1/2 under the first
(TP6 sec. 9), layers become alike under the second, and neither decides the loss. Measured in
reproduction/pages/which_exponent.md: test loss of gpt tuned at depth 4 and trained at 32, depth_mup minus completep,
-0.33 +- 0.09 at width 256 (n = 6) and +0.048 +- 0.012 at width 32 (n = 8); at the best of three rates each, -0.035 +-
0.009 and +0.005 +- 0.009."""


def describe_presets() -> str:
    """The presets, their uses and exponents, and what TP6 claims of them."""
    lines = []
    for name, rule in PRESETS.items():
        use, *claims = _USES[name]
        exponents = f"alpha {rule.alpha:g}, gamma {rule.gamma:g}, width rule {rule.width}"
        lines += [f"  {name:<13} {use}", *(f"  {'':<13} {line}" for line in (exponents, *claims))]
    return "\n".join(lines)
