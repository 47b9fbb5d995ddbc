"""A ResNet with BatchNorm and projections in Linen, SGD, and the factors in its code: their lines are marked."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from sklearn.datasets import load_digits

import depthmup_flax as dm

BASE_WIDTH, BASE_DEPTH = 8, 1  # of the tuned proxy
RULE = dm.get_parametrization("depth_mup")


class ResNetBlock(nn.Module):
    """Two convolutions with norms, added to the input or, where channels double, to its projection."""

    filters: int
    train: bool
    multiplier: float  # depth-muP

    @nn.compact
    def __call__(self, x):
        """``[B, H, W, C] -> [B, H / stride, W / stride, filters]``."""
        stride = 1 if x.shape[-1] == self.filters else 2
        y = nn.BatchNorm(not self.train)(nn.Conv(self.filters, (3, 3), stride, use_bias=False)(x))
        y = nn.BatchNorm(not self.train)(nn.Conv(self.filters, (3, 3), use_bias=False)(nn.relu(y)))
        if stride == 2:
            x = nn.BatchNorm(not self.train)(nn.Conv(self.filters, (1, 1), stride, use_bias=False, name="conv_proj")(x))
        return nn.relu(x + self.multiplier * y)  # depth-muP: after the branch's last norm, which would cancel it


class ResNet(nn.Module):
    """Two stages of ``depth`` blocks; the second has twice the channels."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x, train: bool):
        """``[B, 8, 8, 1] -> [B, 10]``."""
        x = nn.Conv(self.width, (3, 3), name="conv_init")(x)
        for filters in [self.width] * self.depth + [2 * self.width] * self.depth:
            x = ResNetBlock(filters, train, RULE.residual_multiplier(self.depth / BASE_DEPTH))(x)  # depth-muP
        x = x.mean(axis=(1, 2)) * RULE.readout_multiplier(self.width / BASE_WIDTH)  # depth-muP: not of the bias
        return nn.Dense(10, name="head")(x)


def main(width: int = 16, depth: int = 3, steps: int = 30) -> list[float]:
    """Trains on scikit-learn's digits; returns the losses."""
    digits = load_digits()
    images, labels = jnp.asarray(digits.images[..., None] / 16.0, jnp.float32), jnp.asarray(digits.target)
    model, base = ResNet(width, depth), ResNet(BASE_WIDTH, BASE_DEPTH)
    start, base_start = (m.init(jax.random.key(0), images[:1], train=True) for m in (model, base))
    info = dm.audit(model, base, images[:2], train=True).info
    params, stats = dm.rescale_init(start["params"], base_start["params"], info, RULE), start["batch_stats"]
    print(dm.param_table(info, RULE, degree=1))
    optimizer = dm.sgd(optax.warmup_cosine_decay_schedule(0.0, 0.1, steps // 5, steps), info, RULE, momentum=0.9)

    def loss_fn(params, stats, x, y):
        logits, new = model.apply({"params": params, "batch_stats": stats}, x, train=True, mutable=["batch_stats"])
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean(), new["batch_stats"]

    @jax.jit
    def step(params, stats, opt_state, x, y):
        (loss, stats), grads = jax.value_and_grad(loss_fn, has_aux=True)(params, stats, x, y)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), stats, opt_state, loss

    opt_state, losses = optimizer.init(params), []
    for batch in jax.random.randint(jax.random.key(0), (steps, 64), 0, len(labels)):
        params, stats, opt_state, loss = step(params, stats, opt_state, images[batch], labels[batch])
        losses.append(float(loss))
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
    return losses


if __name__ == "__main__":
    main()
