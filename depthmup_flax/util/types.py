"""Types that the whole package uses. Does not import JAX at run time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    import jax

# A hyperparameter: a Python number, or an array that a sweep maps over.
Scalar: TypeAlias = "float | jax.Array"
# What a model's `dtype` may be: "bfloat16", jnp.float32, ...
Dtype: TypeAlias = "jax.typing.DTypeLike"
# A pytree of arrays: parameters, gradients, optimizer state. Linen gives nested dictionaries, NNX a `State`.
ArrayTree: TypeAlias = Any
# A pytree of `ParamInfo` with the structure of the parameters.
InfoTree: TypeAlias = Any
# Named arrays whose first axis is the example: on the host, and on devices.
HostBatch: TypeAlias = Mapping[str, np.ndarray]
Batch: TypeAlias = "Mapping[str, jax.Array]"
# What `json.loads` returns for an object.
Json: TypeAlias = dict[str, Any]
