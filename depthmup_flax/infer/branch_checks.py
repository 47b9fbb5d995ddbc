"""Whether ``in_branch`` names the residual branches: all of them, and neither the stem nor the readout.

A parameter taken for what it is not gets the wrong rates, and a coordinate check need not see that: inside branches,
the effect of single layers may vanish with depth. So what looks like a mistake is refused. What the model's own
annotations or an override say (``Axes(names, in_branch=True)``, or ``False``) is believed.
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


def require_branches(found: Infos, said: Collection[str], tied: Collection[str]) -> None:
    """Raises `InputError` if ``in_branch`` seems to take too much or too little.

    Args:
      found: what every parameter is.
      said: paths of which something else than ``in_branch`` says where they are.
      tied: embeddings that are the readout too.
    """
    if not any(leaf.in_branch for leaf in found.values()):
        return
    taken = {path for path, leaf in found.items() if leaf.in_branch and path not in said}
    _require_readout_outside(found, taken, tied)
    _require_stem_outside(found, taken)
    _require_final_norm_outside(taken)
    _require_whole_modules(found, said)
    _require_all_blocks(found, said)


def _require_readout_outside(found: Infos, taken: set[str], tied: Collection[str]) -> None:
    outputs = [path for path, leaf in found.items() if leaf.role is Role.OUTPUT]
    if not outputs or tied or not taken.issuperset(outputs):
        return
    raise InputError(
        f"in_branch takes {outputs[-1]!r} of shape {found[outputs[-1]].shape} into the residual branches, which leaves "
        f"no readout outside: {_REMEDY}."
    )


def _require_stem_outside(found: Infos, taken: set[str]) -> None:
    """A stem is an input weight without an equal in other layers; a model has one unless it says otherwise."""
    inputs = [path for path, leaf in found.items() if leaf.role is Role.INPUT]
    like = Counter((_template(path), found[path].shape) for path in inputs)
    alone = [path for path in inputs if path in taken and like[_template(path), found[path].shape] == 1]
    none_outside = taken.issuperset(inputs)
    among_layers = {_template(path) for path in taken if found[path].role is Role.HIDDEN and path.count("/") < 2}
    for path in alone:
        if none_outside or _template(path) in among_layers:
            shape = found[path].shape
            names = (*[None] * (len(shape) - 2), "fixed_in", "width_out")
            raise InputError(
                f"in_branch takes {path!r} of shape {shape} into the residual branches, which looks like the model's "
                f"stem: {_REMEDY}; if it is inside a branch, say overrides={{{path!r}: Axes({names!r}, in_branch=True, "
                "depth_ratio=...)}."
            )


def _require_final_norm_outside(taken: set[str]) -> None:
    """Flax numbers the modules of a model without names; of one norm per layer and one at the end, a glob takes all."""
    modules = {path.split("/")[0] for path in taken if "/" in path}
    counts = Counter(module.rpartition("_")[0] for module in modules if re.fullmatch(r"[A-Z]\w*_\d+", module))
    layers = math.gcd(*(count for kind, count in counts.items() if not kind.endswith("Norm")))
    for kind, count in counts.items():
        if kind.endswith("Norm") and layers > 1 and count > layers and count % layers == 1:
            raise InputError(
                f"in_branch takes {count} modules {kind}_*, one more than {count - 1} in {layers} layers, so it looks "
                f"as if {kind}_{count - 1} is the final norm: {_REMEDY}."
            )


def _require_whole_modules(found: Infos, said: Collection[str]) -> None:
    for path, leaf in found.items():
        parent, _, name = path.rpartition("/")
        if not parent or name not in _BIASES or path in said:
            continue
        for weight in (f"{parent}/{name}" for name in _WEIGHTS):
            if weight in found and weight not in said and found[weight].in_branch != leaf.in_branch:
                inside, outside = (path, weight) if leaf.in_branch else (weight, path)
                raise InputError(
                    f"in_branch takes {inside!r} but not {outside!r}, which are of one layer: take both, such as "
                    f"in_branch={_template(parent)!r}, or none."
                )


def _require_all_blocks(found: Infos, said: Collection[str]) -> None:
    """Numbered modules with the same parameters, such as ``layers/0`` and ``layers/1``, are inside branches alike."""
    groups: dict[tuple[str, frozenset[tuple[str, tuple[int, ...]]]], list[str]] = {}
    for module, below in _numbered(found).items():
        has_weight = any(found[module + rest].role is Role.HIDDEN for rest in below)
        unsaid = not any(module + rest in said for rest in below)
        # Flax's own numbers of its layers, Dense_0 to Dense_9, are no sign of anything.
        is_automatic = re.fullmatch(r"[A-Z]\w*_\d+", module.rpartition("/")[2]) and all(r.count("/") < 2 for r in below)
        if has_weight and unsaid and not is_automatic:
            alike = frozenset((rest, found[module + rest].shape) for rest in below)
            groups.setdefault((_last_template(module), alike), []).append(module)
    for (template, alike), modules in groups.items():
        # Weights first: they are what the message should name.
        for _, rest in sorted((found[modules[0] + rest].role is not Role.HIDDEN, rest) for rest, _ in alike):
            inside = [module + rest for module in modules if found[module + rest].in_branch]
            outside = [module + rest for module in modules if not found[module + rest].in_branch]
            if inside and outside:
                raise InputError(
                    f"in_branch takes {inside[0]!r} but not {outside[0]!r}, which is alike: name all blocks, such as "
                    f"in_branch={template!r}, or, if that one is outside of branches, say "
                    f"overrides={{{outside[0]!r}: Axes(names, in_branch=False)}}."
                )


def _numbered(found: Infos) -> dict[str, list[str]]:
    """Every module or parameter with a number in its own name -> the rest of the paths below it."""
    modules: dict[str, list[str]] = {}
    for path in found:
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
