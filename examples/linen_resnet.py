"""An ImageNet-style ResNet with BatchNorm in Linen, SGD, and the factors in its code: their lines are marked."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from sklearn.datasets import load_digits

import depthmup_flax as dm

STAGES = (2, 2)  # residual blocks at each resolution
BASE_WIDTH, BASE_STAGES = 8, (1, 1)  # of the tuned proxy
RULE = dm.get_parametrization("depth_mup")


class ResNetBlock(nn.Module):
    """Two convolutions with norms, added to the input or to its projection."""

    filters: int
    conv: type
    norm: type
    strides: tuple[int, int]
    multiplier: float  # depth-muP

    @nn.compact
    def __call__(self, x):
        """``[B, H, W, C] -> [B, H / stride, W / stride, filters]``."""
        y = nn.relu(self.norm()(self.conv(self.filters, (3, 3), self.strides)(x)))
        y = self.norm()(self.conv(self.filters, (3, 3))(y))
        if x.shape != y.shape:
            x = self.norm(name="norm_proj")(self.conv(self.filters, (1, 1), self.strides, name="conv_proj")(x))
        # After the branch's last norm, which would cancel the multiplier.
        return nn.relu(x + self.multiplier * y)  # depth-muP


class ResNet(nn.Module):
    """Stages of blocks; each stage halves the resolution and doubles the channels."""

    classes: int
    width: int = BASE_WIDTH
    stages: tuple[int, ...] = STAGES

    @nn.compact
    def __call__(self, x, train: bool):
        """``[B, H, W, 1] -> [B, classes]``."""
        conv = partial(nn.Conv, use_bias=False)
        norm = partial(nn.BatchNorm, use_running_average=not train, momentum=0.9)
        multiplier = RULE.residual_multiplier(sum(self.stages) / sum(BASE_STAGES))  # depth-muP
        x = nn.relu(norm(name="norm_init")(conv(self.width, (3, 3), name="conv_init")(x)))
        for i, blocks in enumerate(self.stages):
            for j in range(blocks):
                strides = (2, 2) if i > 0 and j == 0 else (1, 1)
                x = ResNetBlock(self.width * 2**i, conv, norm, strides, multiplier)(x)
        x = jnp.mean(x, axis=(1, 2))
        # The product is multiplied, the bias is not.
        x = x * RULE.readout_multiplier(self.width / BASE_WIDTH)  # depth-muP
        return nn.Dense(self.classes, name="head")(x)


def main(width: int = 16, stages: tuple[int, ...] = STAGES, steps: int = 30) -> list[float]:
    """Trains on scikit-learn's digits; returns the losses."""
    digits = load_digits()
    images, labels = jnp.asarray(digits.images[..., None] / 16.0, jnp.float32), jnp.asarray(digits.target)
    model, base = ResNet(10, width, stages), ResNet(10, BASE_WIDTH, BASE_STAGES)
    variables, base_variables = (
        jax.jit(partial(m.init, train=True))(jax.random.key(0), images[:1]) for m in (model, base)
    )
    info = dm.audit(model, base, images[:2], rule=RULE, train=True).info
    params = dm.rescale_init(variables["params"], base_variables["params"], info, RULE)
    print(dm.param_table(info, RULE, degree=1))
    schedule = optax.warmup_cosine_decay_schedule(0.0, 0.1, steps // 5, steps)
    optimizer = dm.depthmup(optax.chain(optax.clip(1.0), optax.trace(0.9, nesterov=True)), info, RULE, schedule)

    def loss_fn(params, stats, x, y):
        logits, new = model.apply({"params": params, "batch_stats": stats}, x, train=True, mutable=["batch_stats"])
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean(), new["batch_stats"]

    @jax.jit
    def step(params, stats, opt_state, x, y):
        (loss, stats), grads = jax.value_and_grad(loss_fn, has_aux=True)(params, stats, x, y)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), stats, opt_state, loss

    stats, opt_state, losses = variables["batch_stats"], optimizer.init(params), []
    for i in range(steps):
        batch = jax.random.randint(jax.random.key(i), (64,), 0, len(labels))
        params, stats, opt_state, loss = step(params, stats, opt_state, images[batch], labels[batch])
        losses.append(float(loss))
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
    return losses


if __name__ == "__main__":
    main()
