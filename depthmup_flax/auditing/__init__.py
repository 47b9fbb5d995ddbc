"""The audit of any model: Linen, NNX, Equinox, or a function of parameters.

In the order in which `model_audit.audit` calls them:

1. trace: the room `trace` reads a forward pass, without any rule: uses of parameters, streams and
   their branches, and the constants that multiply each array. `trace.facts` has all of it for one
   model.
2. matching: `counterparts` pairs the parameters of a model and its base; `matching` holds both.
3. depth: `depth_ratios` counts branches; `branch_factors` divides what multiplies them by the same
   in the base model.
4. roles: `roles` reads them from uses; `overrides` has what the user says.
5. comparison: `comparison` puts numbers beside what the rule wants, with `score_factors` and
   `product_factors`; `findings` (`branch_findings`, `width_findings`) says what is wrong.
6. carriers: `carriers` lets parameters carry it, where `carrier_search` finds some by `degrees`.
7. verdict: `parameter_rows`, `not_judged` and `notes`; `audit_report` holds and prints the result.
8. outputs: `evaluated_network` compares those of the network, at random parameters, with those of
   the code with the base model's numbers and the rule's factors, so that no reader of factors is
   trusted alone.

`config_audit` audits what a config names, at sizes that show its factors; `rescaled_init` corrects
initial values.

`depthmup_flax.trace` says how to add a primitive, and how to mend a false verdict.
"""

from depthmup_flax.auditing.audit_report import Audit, Finding
from depthmup_flax.auditing.model_audit import audit
from depthmup_flax.auditing.rescaled_init import (
    Start,
    baked,
    init_factors,
    multiplied,
    rescale_init,
    rescaled_before,
)

__all__ = [
    "Audit",
    "Finding",
    "Start",
    "audit",
    "baked",
    "init_factors",
    "multiplied",
    "rescale_init",
    "rescaled_before",
]
