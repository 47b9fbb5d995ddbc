"""Roles and initial values of any model: Linen, NNX, or any pytree of parameters."""

from depthmup_flax.auditing.audit import Audit, audit
from depthmup_flax.auditing.audit_table import Finding, NotJudged
from depthmup_flax.auditing.initial_scale import init_factors, multiplied, rescale_init

__all__ = ["Audit", "Finding", "NotJudged", "audit", "init_factors", "multiplied", "rescale_init"]
