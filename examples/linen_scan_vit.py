"""A vision transformer in Linen, with blocks under nn.scan and the factors in its code: their lines are marked."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from sklearn.datasets import load_digits

import depthmup_flax as dm

BASE_WIDTH, BASE_DEPTH = 16, 2  # of the tuned proxy
HEADS = 4  # fixed, so the head dimension grows with width
RULE = dm.get_parametrization("depth_mup")


class Block(nn.Module):
    """Pre-LN attention and feed-forward, two residual branches."""

    width: int
    multiplier: float  # depth-muP

    @nn.compact
    def __call__(self, x, _):
        """``[batch, length, width] -> ([batch, length, width], None)``, the signature that nn.scan needs."""
        attend = dm.attention_fn(RULE, self.width // HEADS, BASE_WIDTH // HEADS)  # depth-muP
        y = nn.MultiHeadDotProductAttention(HEADS, attention_fn=attend)(nn.LayerNorm()(x))  # depth-muP
        x = x + self.multiplier * y  # depth-muP
        y = nn.Dense(4 * self.width)(nn.LayerNorm()(x))
        y = nn.Dense(self.width)(nn.gelu(y))
        return x + self.multiplier * y, None  # depth-muP


class ViT(nn.Module):
    """Patches of 2x2, learned positions, mean pooling."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, image):
        """``[batch, 8, 8, 1] -> [batch, 10]``."""
        x = nn.Conv(self.width, (2, 2), strides=(2, 2), name="embedding")(image).reshape(len(image), -1, self.width)
        x = x + self.param("pos_embedding", nn.initializers.normal(0.02), (1, *x.shape[1:]))
        scan = nn.scan(Block, variable_axes={"params": 0}, split_rngs={"params": True}, length=self.depth)
        x, _ = scan(self.width, RULE.residual_multiplier(self.depth / BASE_DEPTH), name="blocks")(x, None)  # depth-muP
        x = nn.LayerNorm(name="norm")(x).mean(axis=1) * RULE.readout_multiplier(self.width / BASE_WIDTH)  # depth-muP
        return nn.Dense(10, name="head")(x)


def main(width: int = 32, depth: int = 6, steps: int = 30) -> list[float]:
    """Trains on scikit-learn's digits; returns the losses."""
    digits = load_digits()
    images, labels = jnp.asarray(digits.images[..., None] / 16.0, jnp.float32), jnp.asarray(digits.target)
    model, base = ViT(width, depth), ViT(BASE_WIDTH, BASE_DEPTH)
    params, base_params = (jax.jit(m.init)(jax.random.key(0), images[:1])["params"] for m in (model, base))
    info = dm.audit(model, base, images[:2]).info
    params = dm.rescale_init(params, base_params, info, RULE)
    optimizer = dm.depthmup(optax.scale_by_adam(), info, RULE, 3e-3, weight_decay=0.01)
    print(dm.param_table(info, RULE, eps=1e-8, weight_decay=0.01))

    def loss_fn(params, x, y):
        return optax.softmax_cross_entropy_with_integer_labels(model.apply({"params": params}, x), y).mean()

    @jax.jit
    def step(params, opt_state, x, y):
        loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    opt_state, losses = optimizer.init(params), []
    for batch in jax.random.randint(jax.random.key(0), (steps, 64), 0, len(labels)):
        params, opt_state, loss = step(params, opt_state, images[batch], labels[batch])
        losses.append(float(loss))
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
    return losses


if __name__ == "__main__":
    main()
