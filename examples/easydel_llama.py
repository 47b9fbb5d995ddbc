"""EasyDeL's train step and its Llama (NNX), unchanged, with the rule as the optimizer of its state.

pip install . easydel pillow torch && python examples/easydel_llama.py
"""

import easydel
import jax
import jax.numpy as jnp
from easydel.trainers.trainer._fn import training_step
from flax import nnx

import depthmup_flax as dm

FIXED = {"vocab_size": 64, "head_dim": 16, "max_position_embeddings": 16, "attn_mechanism": "vanilla"}


def llama(width, depth, seed):
    """The model of a size."""
    sizes = {"hidden_size": width, "intermediate_size": 2 * width, "num_hidden_layers": depth}
    heads = {"num_attention_heads": width // 16, "num_key_value_heads": width // 16}
    config = easydel.LlamaConfig(**sizes, **heads, **FIXED)
    return easydel.LlamaForCausalLM(config, dtype=jnp.float32, param_dtype=jnp.float32, rngs=nnx.Rngs(seed))


def main(steps=2):
    """Prints the audit, and the losses of some steps."""
    model, base = llama(128, 4, 0), llama(32, 2, 1)
    tokens = jax.random.randint(jax.random.key(2), (4, 16), 0, FIXED["vocab_size"])
    with model.mesh:
        audit = dm.audit(model, base, tokens, output="logits")
        print(audit)
        params, base_params = (nnx.state(network, nnx.Param) for network in (model, base))
        nnx.update(model, dm.rescale_init(params, base_params, audit))
        state = model.to_state().init_tx(dm.adamw(1e-3, audit, weight_decay=0.1))
        losses = []
        for _ in range(steps):
            batch = {"input_ids": tokens, "attention_mask": jnp.ones_like(tokens)}
            state, metrics = training_step(state, batch)
            losses.append(float(metrics.loss))
    print(losses)


if __name__ == "__main__":
    main()
