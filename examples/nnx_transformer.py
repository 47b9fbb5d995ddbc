"""A causal transformer in NNX with tied embeddings, unchanged; lines of its training that Depth-muP adds are marked."""

import jax
import jax.numpy as jnp
import optax
from flax import nnx

import depthmup_flax as dm

BASE_WIDTH, BASE_DEPTH = 16, 2  # of the tuned proxy
HEAD_SIZE, VOCABULARY, LENGTH = 8, 32, 16  # the number of heads grows, their dimension does not


class Block(nnx.Module):
    """Pre-LN attention and feed-forward, two residual branches."""

    def __init__(self, width: int, rngs: nnx.Rngs):
        self.norm_1, self.norm_2 = nnx.LayerNorm(width, rngs=rngs), nnx.LayerNorm(width, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(width // HEAD_SIZE, width, decode=False, rngs=rngs)
        self.up, self.down = nnx.Linear(width, 4 * width, rngs=rngs), nnx.Linear(4 * width, width, rngs=rngs)

    def __call__(self, x, mask):
        """``[batch, length, width] -> [batch, length, width]``."""
        x = x + self.attention(self.norm_1(x), mask=mask)
        return x + self.down(nnx.gelu(self.up(self.norm_2(x))))


class Transformer(nnx.Module):
    """Embedding, blocks, and the logits of the next token."""

    def __init__(self, width: int, depth: int, rngs: nnx.Rngs):
        self.embed = nnx.Embed(VOCABULARY, width, rngs=rngs)
        self.position = nnx.Embed(LENGTH, width, rngs=rngs)
        self.blocks = nnx.List([Block(width, rngs) for _ in range(depth)])  # Flax refuses a plain list of modules
        self.norm = nnx.LayerNorm(width, rngs=rngs)

    def __call__(self, tokens):
        """``[batch, length] -> [batch, length, VOCABULARY]``."""
        x = self.embed(tokens) + self.position(jnp.arange(tokens.shape[1]))
        mask = nnx.make_causal_mask(tokens)
        for block in self.blocks:
            x = block(x, mask)
        return self.embed.attend(self.norm(x))


def main(width: int = 32, depth: int = 6, steps: int = 30) -> list[float]:
    """Trains on sequences that count upwards; returns the losses."""
    model = Transformer(width, depth, nnx.Rngs(0))
    base = Transformer(BASE_WIDTH, BASE_DEPTH, nnx.Rngs(0))  # depth-muP
    audit = dm.audit(model, base, jax.ShapeDtypeStruct((2, LENGTH), jnp.int32))  # depth-muP
    nnx.update(model, dm.rescale_init(model, base, audit))  # depth-muP
    tx = dm.adamw(3e-3, audit, weight_decay=0.01)  # depth-muP, in place of optax.adamw
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
    print(audit)

    @nnx.jit
    def step(model, optimizer, tokens):
        def loss_fn(model):
            logits = model(tokens[:, :-1])
            return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

        loss, grads = nnx.value_and_grad(loss_fn)(model)
        optimizer.update(model, grads)
        return loss

    losses = []
    for i in range(steps):
        start = jax.random.randint(jax.random.key(i), (16, 1), 0, VOCABULARY)
        losses.append(float(step(model, optimizer, (start + jnp.arange(LENGTH)) % VOCABULARY)))
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
    return losses


if __name__ == "__main__":
    main()
