"""Tunix's trainer and its Qwen 3 (NNX), unchanged, with the rule as the optimizer that the trainer takes.

uv pip install . google-tunix && python examples/tunix_qwen3.py
"""

import jax
import jax.numpy as jnp
from flax import nnx
from tunix.models.qwen3.model import ModelConfig, Qwen3
from tunix.sft.peft_trainer import PeftTrainer, TrainingConfig, TrainingInput

import depthmup_flax as dm

FIXED = {"vocab_size": 64, "head_dim": 16, "rope_theta": 10_000, "norm_eps": 1e-6, "use_tied_embedding": True}
BASE = ModelConfig(num_layers=2, embed_dim=32, hidden_dim=64, num_heads=2, num_kv_heads=2, **FIXED)
LARGE = ModelConfig(num_layers=4, embed_dim=128, hidden_dim=256, num_heads=8, num_kv_heads=8, **FIXED)


def batch_of(tokens):
    """What the model takes, by name."""
    mask = jnp.ones_like(tokens, bool)
    causal = jnp.tril(jnp.ones((tokens.shape[0], tokens.shape[1], tokens.shape[1]), bool))
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    return {"input_tokens": tokens, "input_mask": mask, "positions": positions, "attention_mask": causal}


class Recorded(PeftTrainer):
    """The trainer, which keeps the losses."""

    losses = ()

    def _buffer_metrics(self, buffer, loss, step, *others, **named):
        self.losses = (*self.losses, loss)
        return super()._buffer_metrics(buffer, loss, step, *others, **named)


def main(steps=2):
    """Prints the audit, and the losses of some steps."""
    model, base = Qwen3(LARGE, rngs=nnx.Rngs(0)), Qwen3(BASE, rngs=nnx.Rngs(1))
    tokens = jax.random.randint(jax.random.key(2), (4, 16), 0, FIXED["vocab_size"])
    batch = batch_of(tokens)
    inputs = (batch["input_tokens"], batch["positions"], None, batch["attention_mask"])
    audit = dm.audit(model, base, inputs)
    print(audit)
    nnx.update(model, dm.rescale_init(nnx.state(model, nnx.Param), nnx.state(base, nnx.Param), audit))
    optimizer = dm.adamw(1e-3, audit, weight_decay=0.1)
    trainer = Recorded(model, optimizer, TrainingConfig(eval_every_n_steps=steps + 1, max_steps=steps))
    trainer.with_gen_model_input_fn(lambda batch: batch_of(batch.input_tokens))
    trainer.train([TrainingInput(tokens, jnp.ones_like(tokens))] * steps)
    print([float(loss) for loss in trainer.losses])


if __name__ == "__main__":
    main()
