"""The audit of any model: Linen, NNX, Equinox, or a function of parameters. It computes nothing.

In the order in which `model_audit.audit` calls them:

1. trace: the room `trace` reads a forward pass, without any rule: uses of parameters, streams and
their branches, and
   the constants that multiply each array. `trace.facts` has all of it for one model.
2. roles: `counterparts` pairs the parameters of a model and its base; `roles` gives each its role.
3. factors: `relative_factors` divides those of the model by those of its base.
4. verdict: `findings` compares them with the rule, and `audit_report` holds and prints the result.

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
