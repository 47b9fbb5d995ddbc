"""The audit of any model: Linen, NNX, Equinox, or a function of a pytree of parameters. Nothing is computed.

In the order in which `model_audit.audit` calls them:

1. trace: `graph` traces a forward pass, `uses` says how it uses each parameter, `streams` finds the streams
   and their branches, `factors` the constants that multiply each array, and `facts` puts them together for one model.
2. roles: `counterparts` pairs the parameters of a model and its base; `roles` gives each its role.
3. factors: `relative_factors` divides those of the model by those of its base.
4. verdict: `findings` compares them with the rule, and `audit_report` holds and prints the result.

`config_audit` audits what a config names, at sizes that show its factors; `rescaled_init` corrects initial values.

A new primitive is a row of `util.primitives`; arithmetic of its own goes to `factors`, ``_of_operation``, and a kernel
with a name to `graph.KNOWN`.
"""

from depthmup_flax.auditing.audit_report import Audit, Finding
from depthmup_flax.auditing.model_audit import audit
from depthmup_flax.auditing.rescaled_init import Start, baked, init_factors, multiplied, rescale_init, rescaled_before

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
