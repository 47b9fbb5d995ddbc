"""Programs on eight devices for the tests of plans, each for a process of its own."""

import json
import pathlib

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from depthmup_flax.plan.hlo import hlo_costs, parse


def write_collectives(path):
    """Writes kinds, times and bytes of the collectives of two programs."""
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    split, whole = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())

    def layers(w, x):
        product = lambda w, _: (jnp.tanh(jax.lax.with_sharding_constraint(x.T @ (x @ w), whole)), None)
        return jax.lax.scan(product, w, length=3)[0]

    w, x = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((32, 32), (64, 32)))
    programs = {
        "summed in three layers": jax.jit(layers, in_shardings=(whole, split)).lower(w, x),
        "gathered": jax.jit(lambda x: x + 1, in_shardings=split, out_shardings=whole).lower(
            jax.ShapeDtypeStruct((64, 16), jnp.float32)
        ),
    }
    found = {name: hlo_costs(parse(lowered.compile().as_text())).collectives for name, lowered in programs.items()}
    rows = {name: {kind: [one.times, one.bytes] for kind, one in kinds.items()} for name, kinds in found.items()}
    pathlib.Path(path).write_text(json.dumps(rows))
    return 0
