"""Wrappers around an optimizer of parameters that carry factors, against the factors in the network's code.

python -m reproduction.pages.carried_wrappers  # prints rows of reproduction/pages/optimizers.md

A network trains twice from the same function: once with the rule's factors in its code, and once with parameters that
carry them. What is between the gradients and `depthmup`, after it or in the loss sees other values in the second.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib

import depthmup_flax as dm

RULE = dm.get_parametrization("depth_mup")
BASE, SIZE = (16, 1), (64, 4)
STEPS, RATE = 20, 1e-2
X = jax.random.normal(jax.random.key(0), (64, 8))
Y = jax.random.randint(jax.random.key(1), (64,), 0, 5)


def shapes(width, depth):
    """A residual MLP's parameters."""
    block = {"a": (width, width), "b": (width, width), "bias": (width,)}
    blocks = {f"block_{layer}": block for layer in range(depth)}
    of = {"stem": (8, width), **blocks, "readout": (width, 5)}
    return jax.tree.map(lambda shape: jax.ShapeDtypeStruct(shape, jnp.float32), of, is_leaf=lambda x: type(x) is tuple)


def network(width, depth, in_code):
    """Parameters and inputs -> logits, with the rule's factors in the code or without any."""
    of_branch = RULE.residual_multiplier(depth / BASE[1]) if in_code else 1.0
    of_readout = RULE.readout_multiplier(width / BASE[0]) if in_code else 1.0

    def apply(params, x):
        stream = x @ params["stem"]
        for layer in range(depth):
            block = params[f"block_{layer}"]
            normed = stream / jnp.sqrt(jnp.mean(stream**2, -1, keepdims=True) + 1e-6)
            stream = stream + of_branch * (jnp.tanh(normed @ block["a"]) @ block["b"] + block["bias"])
        normed = stream / jnp.sqrt(jnp.mean(stream**2, -1, keepdims=True) + 1e-6)
        return of_readout * (normed @ params["readout"])

    return apply


def initial(width, depth):
    """Initial values with the standard deviation 1/sqrt(fan_in), and small random biases."""
    leaves, structure = jax.tree.flatten(shapes(width, depth))
    rng = np.random.default_rng(0)
    draw = lambda shape: rng.normal(size=shape) / (np.sqrt(shape[0]) if len(shape) > 1 else 10)
    return structure.unflatten([jnp.asarray(draw(leaf.shape), jnp.float32) for leaf in leaves])


def trained(in_code, optimizer_of, penalty):
    """Losses of `STEPS` steps, without the penalty."""
    apply = network(*SIZE, in_code)
    base = network(*BASE, in_code)
    audit = dm.audit((apply, shapes(*SIZE)), (base, shapes(*BASE)), X)
    assert audit.ok, audit
    params = dm.rescale_init(initial(*SIZE), initial(*BASE), audit.info, RULE)
    optimizer = optax.with_extra_args_support(optimizer_of(audit.info))

    def loss(params):
        return optax.softmax_cross_entropy_with_integer_labels(apply(params, X), Y).mean()

    def penalized(params):
        return loss(params) + penalty * sum(jnp.sum(p**2) for p in jax.tree.leaves(params))

    def step(carry, _):
        params, state = carry
        grads = jax.grad(penalized)(params)
        updates, state = optimizer.update(grads, state, params, grad_fn=lambda p, _: jax.grad(penalized)(p))
        return (optax.apply_updates(params, updates), state), loss(params)

    train = jax.jit(lambda params: jax.lax.scan(step, (params, optimizer.init(params)), None, STEPS)[1])
    return np.asarray(train(params))


def adam(info):
    """The optimizer that the wrappers are around."""
    return dm.adamw(RATE, info, RULE)


def sgd(info):
    """Another, whose updates follow the size of the gradients."""
    return dm.sgd(0.1, info, RULE)


def in_branches(params):
    """Labels of `partition`."""
    return jax.tree_util.tree_map_with_path(lambda path, _: "block" in str(path), params)


# As the table prints it -> (optimizer of info, factor of an l2 penalty).
ROWS = {
    "none: `dm.adamw`": (adam, 0.0),
    "`contrib.sam(dm.adamw(...), dm.sgd(rho, info, rule))`": (
        lambda info: optax.contrib.sam(adam(info), dm.sgd(0.05, info, RULE), opaque_mode=True), 0.0),
    "`contrib.sam(dm.adamw(...), optax.sgd(rho))`": (
        lambda info: optax.contrib.sam(adam(info), optax.sgd(0.05), opaque_mode=True), 0.0),
    "`chain(clip(c), dm.sgd(...))`": (lambda info: optax.chain(optax.clip(2e-3), sgd(info)), 0.0),
    "`chain(clip_by_block_rms(c), dm.sgd(...))`": (
        lambda info: optax.chain(optax.clip_by_block_rms(2e-3), sgd(info)), 0.0),
    "`chain(adaptive_grad_clip(c), dm.sgd(...))`": (
        lambda info: optax.chain(optax.adaptive_grad_clip(1e-2), sgd(info)), 0.0),
    "`chain(add_noise(...), dm.adamw(...))`": (
        lambda info: optax.chain(optax.add_noise(1e-4, 0.55, key=0), adam(info)), 0.0),
    "`chain(add_decayed_weights(d), dm.adamw(...))`": (
        lambda info: optax.chain(optax.add_decayed_weights(1e-2), adam(info)), 0.0),
    "`multi_transform` with `optax.adam` for the branches": (
        lambda info: optax.multi_transform({True: optax.adam(RATE), False: adam(info)}, in_branches), 0.0),
    "an l2 penalty in the loss": (adam, 1e-3),
}  # fmt: skip


def main():
    """Prints the rows."""
    for name, (optimizer, penalty) in ROWS.items():
        wanted, carried = trained(True, optimizer, penalty), trained(False, optimizer, penalty)
        print(f"| {name} | {np.max(np.abs(carried - wanted)):.1g} |", f"loss {wanted[0]:.3f} -> {wanted[-1]:.3f}")


if __name__ == "__main__":
    main()
