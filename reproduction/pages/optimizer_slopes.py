"""How far an optimizer moves a network's output as the network grows: an exponent, 0 where the rule is right.

The network is a stem, residual blocks and a readout, written out. The gradient of the loss by its output is given, not
computed from the output: sizes then differ by the optimizer alone, not by the random function that they start from.
Each group of parameters is judged alone, from one run in which all of them train: together, the largest hides the rest.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax

from depthmup_flax.rule.optimizer import _scale_by_info
from depthmup_flax.rule.parametrization import Geometry, ParamInfo, Role, get_parametrization

SAMPLES, INPUTS, OUTPUTS, STEPS, SEEDS = 8, 8, 4, 4, 8
WIDTH, DEPTH, GROWTH = 64, 4, 4  # of the base model; the others are 4 times as wide or as deep
BASE, WIDE, DEEP = (WIDTH, DEPTH), (GROWTH * WIDTH, DEPTH), (WIDTH, GROWTH * DEPTH)
RULE = get_parametrization("depth_mup", branch_multiplier=0.25)
ETA = 1e-3  # small: changes are proportional to it


def info_of(size):
    """The `ParamInfo` of each parameter at a size."""
    width, depth = size
    m, r = width / WIDTH, depth / DEPTH
    return {
        "stem": ParamInfo(Role.INPUT, (INPUTS, width), 1.0, m, model_width=m),
        "stem bias": ParamInfo(Role.VECTOR, (width,), 1.0, m, model_width=m),
        "blocks": ParamInfo(Role.HIDDEN, (depth, width, width), m, m, True, r, m),
        "block biases": ParamInfo(Role.VECTOR, (depth, width), 1.0, m, True, r, m),
        "readout": ParamInfo(Role.OUTPUT, (width, OUTPUTS), m, 1.0, model_width=m),
    }


@functools.cache
def initial(size):
    """Parameters of all seeds, stacked. The readout has a mean, so that the output is of order one at every width."""
    rng = np.random.default_rng(0)
    draw = lambda name, std: std * rng.normal(size=(SEEDS, *info_of(size)[name].shape))
    params = {
        "stem": draw("stem", INPUTS**-0.5),
        "stem bias": draw("stem bias", 0.5),
        "blocks": draw("blocks", size[0] ** -0.5),
        "block biases": draw("block biases", 0.5),
        "readout": draw("readout", WIDTH**-0.5) + WIDTH**-0.5,
    }
    return {name: jnp.asarray(array, jnp.float32) for name, array in params.items()}


def data():
    """``x [samples, inputs]``, and the loss's gradients by the output ``[steps, samples, outputs]``."""
    rng = np.random.default_rng(1)
    x, mean = rng.normal(size=(SAMPLES, INPUTS)), rng.normal(size=(SAMPLES, OUTPUTS))
    pulls = mean + 0.5 * rng.normal(size=(STEPS, SAMPLES, OUTPUTS))
    return jnp.asarray(x, jnp.float32), jnp.asarray(WIDTH / 64 * pulls, jnp.float32)


def forward(size, params, x):
    """The outputs of the measured network."""
    branch = RULE.residual_multiplier(size[1] / DEPTH)

    def block(h, weights):
        return h + branch * (jax.nn.relu(h) @ weights[0] + weights[1]), None

    h = jax.lax.scan(block, x @ params["stem"] + params["stem bias"], (params["blocks"], params["block biases"]))[0]
    return RULE.readout_multiplier(size[0] / WIDTH) * (jax.nn.relu(h) @ params["readout"])


def loss(size, params, x, pull):
    """The outputs along one direction."""
    return jnp.vdot(pull, forward(size, params, x))


outputs = jax.jit(jax.vmap(forward, in_axes=(None, 0, None)), static_argnums=0)
value_and_gradient = jax.jit(
    jax.vmap(jax.value_and_grad(loss, argnums=1), in_axes=(None, 0, None, None)), static_argnums=0
)


def changes(build, size):
    """Root mean square change of the output after `STEPS` steps, by each group of parameters alone, and by all."""
    optimizer = optax.with_extra_args_support(build(info_of(size)))
    x, pulls = data()
    before = params = initial(size)
    state = jax.vmap(optimizer.init)(params)

    def update(gradient, state, params, value, pull):
        value_fn = lambda p: loss(size, p, x, pull)
        return optimizer.update(gradient, state, params, value=value, grad=gradient, value_fn=value_fn)

    update = jax.jit(jax.vmap(update, in_axes=(0, 0, 0, 0, None)))
    for pull in pulls:
        value, gradient = value_and_gradient(size, params, x, pull)
        updates, state = update(gradient, state, params, value, pull)
        params = {name: params[name] + updates[name] for name in params}
    start = outputs(size, before, x)
    moved = {name: {**before, name: params[name]} for name in params} | {"all": params}
    return {name: float(jnp.sqrt(jnp.mean(jnp.mean(outputs(size, p, x) - start, 0) ** 2))) for name, p in moved.items()}


def around(inner, geometry=Geometry.SIGN):
    """The rule around any transformation, without asking whether the rule covers it."""
    scaled = lambda info: _scale_by_info(info, RULE, RULE.update_scale, dict.fromkeys(info, geometry))
    return lambda info: optax.chain(
        _scale_by_info(info, RULE, RULE.gradient_scale), inner, scaled(info), optax.scale(-ETA)
    )


def slopes(build):
    """``{"width": {group: exponent}, "depth": ...}`` of ``build(info)``, a finished optimizer; `None` for no change."""
    base = changes(build, BASE)
    log = lambda change, start: math.log(change / start) / math.log(GROWTH) if change and start else None
    fit = lambda size: {name: log(change, base[name]) for name, change in changes(build, size).items()}
    return {"width": fit(WIDE), "depth": fit(DEEP)}
