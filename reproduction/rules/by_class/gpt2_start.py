"""The standard parametrization with GPT-2's start: the last matrix of a branch starts at its usual size times r^-1/2.

A network of one's own to the package: what it trains is `sp`, with one learning rate.
"""

from __future__ import annotations

import re
from typing import Any

import flax.linen as nn
import jax

from depthmup_flax.models import create_model
from depthmup_flax.rule.parametrization import PRESETS
from reproduction.rules.by_class.tasks import TASKS

_LAST = re.compile(r"attention/out/|mlp/down/|branch/conv/|branch/dense_(\d)/")


def network(width: int, depth: int, num_classes: int, task: str = "") -> tuple[Any, Any]:
    """The network of a task as ``init`` and ``apply``; its sizes' ratio r is to the proxy of the task."""
    known = TASKS[task]
    fields = {**known.config().model, "width": width, "depth": depth}
    model = create_model(num_classes=num_classes, rule=PRESETS["sp"], **fields)
    factor = (depth / known.depth) ** -0.5

    def init(key: jax.Array, inputs: jax.Array) -> Any:
        params = nn.meta.unbox(model.init(key, inputs))["params"]
        return jax.tree.map_with_path(lambda path, leaf: leaf * (factor if ends_branch(path, known) else 1.0), params)

    def apply(params: Any, inputs: jax.Array) -> Any:
        return model.apply({"params": params}, inputs)

    return init, apply


def ends_branch(path: Any, task: Any) -> bool:
    """Whether a parameter is the last matrix of a residual branch."""
    found = _LAST.search(jax.tree_util.keystr(path, simple=True, separator="/"))
    if found is None:
        return False
    return found[1] is None or int(found[1]) == task.config().model.block_depth - 1
