"""What the forward pass lacks, each with the code to write."""

from __future__ import annotations

from depthmup_flax.auditing.audit_report import Finding
from depthmup_flax.auditing.branch_findings import missing_branches, repeated_weights, shortcuts
from depthmup_flax.auditing.comparison import Comparison
from depthmup_flax.auditing.width_findings import (
    attention,
    embeddings,
    in_nonlinearities,
    inner_sums,
    readouts,
    within_branches,
)


def all_findings(compared: Comparison) -> list[Finding]:
    """All differences between the forward pass and the rule."""
    of_shortcuts = shortcuts(compared)
    # What multiplies shortcuts multiplies embeddings.
    of_embeddings = [] if of_shortcuts else embeddings(compared)
    return [
        *missing_branches(compared),
        *of_shortcuts,
        *readouts(compared),
        *of_embeddings,
        *within_branches(compared),
        *inner_sums(compared),
        *in_nonlinearities(compared),
        *attention(compared),
        *repeated_weights(compared),
    ]
