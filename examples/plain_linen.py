"""A plain Linen model that takes the multipliers from two modules of this package, ResidualBranch and Readout."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from sklearn.datasets import load_digits

import depthmup_flax as dm

BASE_WIDTH, BASE_DEPTH = 16, 2  # of the tuned proxy
RULE = dm.get_parametrization("depth_mup")


class Branch(nn.Module):
    """A block of a model without Depth-muP."""

    width: int

    @nn.compact
    def __call__(self, h):
        """``[..., width] -> [..., width]``."""
        return nn.relu(nn.Dense(self.width)(nn.LayerNorm()(h)))


class Net(nn.Module):
    """ResidualBranch multiplies the blocks, Readout the output."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        """``[..., features] -> [..., 10]``."""
        h = nn.Dense(self.width, name="stem")(x)
        for i in range(self.depth):
            h = dm.ResidualBranch(Branch(self.width, name=f"block_{i}"), RULE, depth_ratio=self.depth / BASE_DEPTH)(h)
        return dm.Readout(10, RULE, width_ratio=self.width / BASE_WIDTH, name="head")(h)


def main(width: int = 64, depth: int = 6, steps: int = 30) -> list[float]:
    """Trains on scikit-learn's digits; returns the losses."""
    digits = load_digits()
    images, labels = jnp.asarray(digits.data / 16.0, jnp.float32), jnp.asarray(digits.target)
    model, base = Net(width, depth), Net(BASE_WIDTH, BASE_DEPTH)
    params, base_params = (jax.jit(m.init)(jax.random.key(0), images[:1])["params"] for m in (model, base))
    info = dm.audit(model, base, images[:2]).info
    params = nn.unbox(dm.rescale_init(params, base_params, info, RULE))
    optimizer = dm.depthmup(optax.scale_by_adam(), info, RULE, 3e-3)
    print(dm.param_table(info, RULE, eps=1e-8))

    def loss_fn(params, x, y):
        return optax.softmax_cross_entropy_with_integer_labels(model.apply({"params": params}, x), y).mean()

    @jax.jit
    def step(params, opt_state, x, y):
        loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    opt_state, losses = optimizer.init(params), []
    for i in range(steps):
        batch = jax.random.randint(jax.random.key(i), (64,), 0, len(labels))
        params, opt_state, loss = step(params, opt_state, images[batch], labels[batch])
        losses.append(float(loss))
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
    return losses


if __name__ == "__main__":
    main()
