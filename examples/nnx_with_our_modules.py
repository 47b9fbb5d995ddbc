"""Linen modules of this package in NNX code."""

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from sklearn.datasets import load_digits

import depthmup_flax as dm

RULE = dm.get_parametrization("depth_mup")


def build(width: int, depth: int, image: jax.Array) -> nnx.Module:
    """A residual MLP as an NNX module, with multipliers, roles and initial values."""
    mlp = dm.ResMLP(10, width=width, depth=depth, base_width=16, base_depth=2, rule=RULE)
    return nnx.bridge.ToNNX(mlp, rngs=nnx.Rngs(0)).lazy_init(image)


def main(width: int = 64, depth: int = 6, steps: int = 30) -> list[float]:
    """Trains on scikit-learn's digits; returns the losses."""
    digits = load_digits()
    images, labels = jnp.asarray(digits.images[..., None] / 16.0, jnp.float32), jnp.asarray(digits.target)
    model, base = build(width, depth, images[:1]), build(16, 2, images[:1])
    info = dm.audit(model, base, images[:2]).info
    tx = dm.depthmup(optax.scale_by_adam(), info, RULE, 3e-3)
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
    print(dm.param_table(info, RULE, eps=1e-8))

    @nnx.jit
    def step(model, optimizer, x, y):
        def loss_fn(model):
            return optax.softmax_cross_entropy_with_integer_labels(model(x), y).mean()

        loss, grads = nnx.value_and_grad(loss_fn)(model)
        optimizer.update(model, grads)
        return loss

    losses = []
    for i in range(steps):
        batch = jax.random.randint(jax.random.key(i), (64,), 0, len(labels))
        losses.append(float(step(model, optimizer, images[batch], labels[batch])))
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
    return losses


if __name__ == "__main__":
    main()
