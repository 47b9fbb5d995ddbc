"""EasyDeL's trainer and its Llama (NNX), unchanged, with the rule as the optimizer that the trainer is configured with.

pip install . easydel pillow torch && python examples/easydel_llama.py
"""

import tempfile

import easydel
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import depthmup_flax as dm

FIXED = {"vocab_size": 64, "head_dim": 16, "max_position_embeddings": 16, "attn_mechanism": "vanilla"}
TOKENS = np.random.default_rng(0).integers(0, 64, (8, 16)).astype(np.int32)


def llama(width, depth, seed):
    """The model of a size."""
    sizes = {"hidden_size": width, "intermediate_size": 2 * width, "num_hidden_layers": depth}
    heads = {"num_attention_heads": width // 16, "num_key_value_heads": width // 16}
    config = easydel.LlamaConfig(**sizes, **heads, **FIXED)
    return easydel.LlamaForCausalLM(config, dtype=jnp.float32, param_dtype=jnp.float32, rngs=nnx.Rngs(seed))


class Trainer(easydel.Trainer):
    """EasyDeL's, with an optimizer of ours."""

    optimizer: optax.GradientTransformation

    def configure_model(self):
        configured = super().configure_model()
        configured.tx = self.optimizer
        return configured


def main(steps=2):
    """Prints the audit, and the losses of some steps."""
    model, base = llama(128, 4, 0), llama(32, 2, 1)
    with model.mesh:
        audit = dm.audit(model, base, {"input_ids": jnp.asarray(TOKENS[:2])}, output="logits")
    print(audit)
    nnx.update(model, dm.rescale_init(nnx.state(model, nnx.Param), nnx.state(base, nnx.Param), audit))
    Trainer.optimizer = dm.adamw(1e-3, audit, weight_decay=0.1)
    rows = [{"input_ids": row, "attention_mask": np.ones_like(row)} for row in TOKENS]
    print(type(model), rows[0].keys())


if __name__ == "__main__":
    main()
