"""Checks that ``in_branch`` matches the residual branches: all of them, and neither the stem nor the readout.

A parameter on the wrong side gets the wrong learning rate, and a coordinate check may miss it: inside branches, the
effect of single layers may vanish with depth. So likely mistakes are refused. Annotations of the model and overrides
(``Axes(names, in_branch=True)``, or ``False``) are not checked.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Mapping
from typing import TypeAlias

from depthmup_flax.errors import InputError
from depthmup_flax.rule.parametrization import ParamInfo, Role

Infos: TypeAlias = Mapping[str, ParamInfo]

_WEIGHTS, _BIASES = ("kernel", "weight", "w", "W"), ("bias", "b")
_REMEDY = (
    "name the blocks in the model (name='block_0', ...) and write in_branch='block_*', or pass a function of the path"
)


def require_branches(infos: Infos, explicit: Collection[str], tied: Collection[str]) -> None:
    """Raises `InputError` if ``in_branch`` seems to match too much or too little.

    Args:
      infos: path -> `ParamInfo` of every parameter.
      explicit: paths that an annotation or override places inside or outside branches.
      tied: embeddings that are readouts too.
    """
    if not any(leaf.in_branch for leaf in infos.values()):
        return
    taken = {path for path, leaf in infos.items() if leaf.in_branch and path not in explicit}
    _require_readout_outside(infos, taken, tied)
    _require_stem_outside(infos, taken)
    _require_final_norm_outside(taken)
    _require_whole_modules(infos, explicit)
    _require_all_blocks(infos, explicit)


def _require_readout_outside(infos: Infos, taken: set[str], tied: Collection[str]) -> None:
    outputs = [path for path, leaf in infos.items() if leaf.role is Role.OUTPUT]
    if not outputs or tied or not taken.issuperset(outputs):
        return
    raise InputError(
        f"in_branch matches {outputs[-1]!r} of shape {infos[outputs[-1]].shape}, which leaves no readout outside the "
        f"residual branches: {_REMEDY}."
    )


def _require_stem_outside(infos: Infos, taken: set[str]) -> None:
    """A stem is an input weight with no equal in other layers; every model has one unless an override denies it."""
    inputs = [path for path, leaf in infos.items() if leaf.role is Role.INPUT]
    like = Counter((_template(path), infos[path].shape) for path in inputs)
    alone = [path for path in inputs if path in taken and like[_template(path), infos[path].shape] == 1]
    none_outside = taken.issuperset(inputs)
    among_layers = {_template(path) for path in taken if infos[path].role is Role.HIDDEN and path.count("/") < 2}
    for path in alone:
        if none_outside or _template(path) in among_layers:
            shape = infos[path].shape
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
    for path, leaf in infos.items():
        parent, _, name = path.rpartition("/")
        if not parent or name not in _BIASES or path in explicit:
            continue
        for weight in (f"{parent}/{name}" for name in _WEIGHTS):
            if weight in infos and weight not in explicit and infos[weight].in_branch != leaf.in_branch:
                inside, outside = (path, weight) if leaf.in_branch else (weight, path)
                raise InputError(
                    f"in_branch matches {inside!r} but not {outside!r}, which belong to one layer: match both, such "
                    f"as in_branch={_template(parent)!r}, or neither."
                )


def _require_all_blocks(infos: Infos, explicit: Collection[str]) -> None:
    """Numbered modules with equal parameters, such as ``layers/0`` and ``layers/1``, are all inside or all outside."""
    groups: dict[tuple[str, frozenset[tuple[str, tuple[int, ...]]]], list[str]] = {}
    for module, below in _numbered(infos).items():
        has_weight = any(infos[module + rest].role is Role.HIDDEN for rest in below)
        unchecked = any(module + rest in explicit for rest in below)
        # Flax's own numbers, Dense_0 to Dense_9, do not count layers of the model.
        is_automatic = re.fullmatch(r"[A-Z]\w*_\d+", module.rpartition("/")[2]) and all(r.count("/") < 2 for r in below)
        if has_weight and not unchecked and not is_automatic:
            alike = frozenset((rest, infos[module + rest].shape) for rest in below)
            groups.setdefault((_last_template(module), alike), []).append(module)
    for (template, alike), modules in groups.items():
        # Weights first: the message should name a weight.
        for _, rest in sorted((infos[modules[0] + rest].role is not Role.HIDDEN, rest) for rest, _ in alike):
            inside = [module + rest for module in modules if infos[module + rest].in_branch]
            outside = [module + rest for module in modules if not infos[module + rest].in_branch]
            if inside and outside:
                raise InputError(
                    f"in_branch matches {inside[0]!r} but not {outside[0]!r} of an equal block: match all blocks, such "
                    f"as in_branch={template!r}, or, if that one is outside branches, pass "
                    f"overrides={{{outside[0]!r}: Axes(names, in_branch=False)}}."
                )


def _numbered(infos: Infos) -> dict[str, list[str]]:
    """Path of every module or parameter with a number in its own name -> the rest of the paths below it."""
    modules: dict[str, list[str]] = {}
    for path in infos:
        parts = path.split("/")
        for end, part in enumerate(parts, 1):
            if re.search(r"\d", part):
                module = "/".join(parts[:end])
                modules.setdefault(module, []).append(path[len(module) :])
    return modules


def _template(path: str) -> str:
    return re.sub(r"\d+", "*", path)


def _last_template(module: str) -> str:
    parent, slash, name = module.rpartition("/")
    return f"{parent}{slash}{_template(name)}"
