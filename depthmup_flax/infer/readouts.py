"""Which parameters are readouts: output weights, or an embedding that is tied to the output."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence

from depthmup_flax.errors import InputError
from depthmup_flax.infer.trees import Globs, globs
from depthmup_flax.rule.annotations import Axes
from depthmup_flax.rule.info_trees import matches
from depthmup_flax.rule.parametrization import ParamInfo, Role

_EMBEDDING = re.compile(r"emb|tok|vocab|^wte$")


def tied_embeddings(infos: Mapping[str, ParamInfo], readout: Globs | None, overrides: Mapping[str, Axes]) -> list[str]:
    """The embeddings that ``readout`` names; raises `InputError` if it names anything else, or there is no readout."""
    paths, tied, outputs = list(infos), [], []
    for pattern in globs("readout", () if readout is None else readout, paths):
        named = [path for path in paths if matches(path, pattern)]
        hidden = [path for path in named if infos[path].role is Role.HIDDEN]
        named_outputs = [path for path in named if infos[path].role is Role.OUTPUT]
        tables = [path for path in named if _is_table(infos[path])]
        if hidden or not (tables or named_outputs):
            path = (hidden or named)[0]
            raise InputError(
                f"readout has {pattern!r}, but {path!r} of shape {infos[path].shape} is a {infos[path].role} "
                "parameter: name the output weight alone (its input grows, its output does not), or a tied "
                "embedding (vocabulary x width)."
            )
        outputs += named_outputs
        tied += tables
    for path in tied:
        if outputs and not _EMBEDDING.search(path.lower()) and not any(matches(path, glob) for glob in overrides):
            raise InputError(
                f"readout names {path!r} of shape {infos[path].shape}, an input weight, besides {outputs[0]!r}: name "
                f"the output weight alone or, if the first is an embedding tied to the output, pass "
                f"overrides={{{path!r}: Axes(('fixed_in', 'width_out'))}}."
            )
    if readout is None and not any(leaf.role is Role.OUTPUT for leaf in infos.values()):
        tables = [path for path in paths if _is_table(infos[path])]
        likely = [path for path in tables if "embed" in path.lower()] or tables or paths[:1]
        raise InputError(
            "the model has no readout: if an embedding is the readout too (tied), multiply its logits by "
            f"rule.readout_multiplier(m) and name it, such as readout={likely[0]!r}; if it has none, pass readout=()."
        )
    return tied


def with_tied_width(infos: Mapping[str, ParamInfo], tied: Sequence[str]) -> dict[str, ParamInfo]:
    """``infos`` with the width ratio of tied embeddings as the model's; raises `InputError` if readouts' ratios differ."""
    outputs = {leaf.width_in for leaf in infos.values() if leaf.role is Role.OUTPUT and not leaf.in_branch}
    ratios = outputs | {infos[path].width_out for path in tied}
    if len(ratios) > 1:
        raise InputError(f"readouts have different width ratios {sorted(ratios)}: they must grow together.")
    fields = {"model_width": ratios.pop()} if tied else {}
    return {path: dataclasses.replace(leaf, **fields) for path, leaf in infos.items()}


def _is_table(info: ParamInfo) -> bool:
    """Vocabulary x width; the width grows."""
    return info.role is Role.INPUT and len(info.shape) == 2 and not info.in_branch
