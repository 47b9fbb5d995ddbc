"""Checks that ``in_branch`` matches the residual branches: all of them, and neither the stem nor the readout.

A parameter on the wrong side gets the wrong learning rate, which a coordinate check may miss. So likely mistakes are
refused. Annotations and overrides (``Axes(names, in_branch=...)``) are not checked.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Collection, Mapping
from typing import TypeAlias

from depthmup_flax.auditing.parameter_trees import template
from depthmup_flax.rule.parametrization import ParamInfo, Role
from depthmup_flax.util.errors import InputError

Infos: TypeAlias = Mapping[str, ParamInfo]

_WEIGHTS, _BIASES = ("kernel", "weight", "w", "W"), ("bias", "b")
_REMEDY = (
    "name the blocks in the model (name='block_0', ...) and write in_branch='block_*', or pass a function of the path"
)


def require_branches(infos: Infos, explicit: Collection[str], tied: Collection[str]) -> None:
    """Raises `InputError` if ``in_branch`` seems to match too much or too little.

    ``explicit`` are the paths that an annotation or override places; ``tied`` are embeddings that are readouts too.
    """
    if not any(leaf.in_branch for leaf in infos.values()):
        return
    taken = {path for path, leaf in infos.items() if leaf.in_branch and path not in explicit}
    outputs = [path for path, leaf in infos.items() if leaf.role is Role.OUTPUT]
    if outputs and not tied and taken.issuperset(outputs):
        raise InputError(
            f"in_branch matches {outputs[-1]!r} of shape {infos[outputs[-1]].shape}, which leaves no readout outside "
            f"the residual branches: {_REMEDY}."
        )
    _require_stem_outside(infos, taken)
    _require_final_norm_outside(taken)
    _require_whole_modules(infos, explicit)
    _require_all_blocks(infos, explicit)


def _require_stem_outside(infos: Infos, taken: set[str]) -> None:
    """A stem is an input weight without an equal in other layers."""
    inputs = {path: (template(path), leaf.shape) for path, leaf in infos.items() if leaf.role is Role.INPUT}
    count = Counter(inputs.values())
    among_layers = {template(path) for path in taken if infos[path].role is Role.HIDDEN and path.count("/") < 2}
    for path, (name, shape) in inputs.items():
        alone = path in taken and count[name, shape] == 1
        if alone and (name in among_layers or taken.issuperset(inputs)):
            names = (*[None] * (len(shape) - 2), "fixed_in", "width_out")
            raise InputError(
                f"in_branch matches {path!r} of shape {shape}, which looks like the model's stem: {_REMEDY}; if it is "
                f"inside a branch, pass overrides={{{path!r}: Axes({names!r}, in_branch=True, depth_ratio=...)}}."
            )


def _require_final_norm_outside(taken: set[str]) -> None:
    """Flax numbers unnamed modules, so a glob of the norms of all layers also matches the final norm."""
    modules = {path.split("/")[0] for path in taken if "/" in path}
    counts = Counter(module.rpartition("_")[0] for module in modules if re.fullmatch(r"[A-Z]\w*_\d+", module))
    layers = math.gcd(*(count for kind, count in counts.items() if not kind.endswith("Norm")))
    for kind, count in counts.items():
        if kind.endswith("Norm") and layers > 1 and count > layers and count % layers == 1:
            raise InputError(
                f"in_branch matches {count} modules {kind}_*, one more than {count - 1} in {layers} layers, so "
                f"{kind}_{count - 1} looks like the final norm: {_REMEDY}."
            )


def _require_whole_modules(infos: Infos, explicit: Collection[str]) -> None:
    unchecked = {path: leaf.in_branch for path, leaf in infos.items() if path not in explicit}
    for path, in_branch in unchecked.items():
        parent, _, name = path.rpartition("/")
        for weight in (f"{parent}/{weight}" for weight in _WEIGHTS if parent and name in _BIASES):
            if unchecked.get(weight, in_branch) != in_branch:
                inside, outside = (path, weight) if in_branch else (weight, path)
                raise InputError(
                    f"in_branch matches {inside!r} but not {outside!r} of the same layer: match both, such as "
                    f"in_branch={template(parent)!r}, or neither."
                )


def _require_all_blocks(infos: Infos, explicit: Collection[str]) -> None:
    """Numbered modules with equal parameters, such as ``layers/0`` and ``layers/1``, are all inside or all outside."""
    modules: dict[str, list[str]] = {}  # path with a number in its last part -> the rest of the paths below it
    for path in infos:
        for module in itertools.accumulate(path.split("/"), "{}/{}".format):
            if re.search(r"\d", module.rpartition("/")[2]):
                modules.setdefault(module, []).append(path[len(module) :])
    groups: dict[tuple[str, frozenset[tuple[str, tuple[int, ...]]]], list[str]] = {}
    for module, below in modules.items():
        parent, slash, name = module.rpartition("/")
        has_weight = any(infos[module + rest].role is Role.HIDDEN for rest in below)
        unchecked = any(module + rest in explicit for rest in below)
        # Flax's own numbers, Dense_0 to Dense_9, do not count layers of the model.
        is_automatic = re.fullmatch(r"[A-Z]\w*_\d+", name) and all(rest.count("/") < 2 for rest in below)
        if has_weight and not unchecked and not is_automatic:
            alike = frozenset((rest, infos[module + rest].shape) for rest in below)
            groups.setdefault((f"{parent}{slash}{template(name)}", alike), []).append(module)
    for (glob, alike), group in groups.items():
        # Weights first: the message should name a weight.
        for _, rest in sorted((infos[group[0] + rest].role is not Role.HIDDEN, rest) for rest, _ in alike):
            inside = [module + rest for module in group if infos[module + rest].in_branch]
            outside = [module + rest for module in group if not infos[module + rest].in_branch]
            if inside and outside:
                raise InputError(
                    f"in_branch matches {inside[0]!r} but not {outside[0]!r} of an equal block: match all blocks, such "
                    f"as in_branch={glob!r}, or pass overrides={{{outside[0]!r}: Axes(names, in_branch=False)}}."
                )
