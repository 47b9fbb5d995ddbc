"""Levanter's trainer and its Llama (Haliax, stacked layers), unchanged, with the rule as an optimizer of its config.

uv pip install . marin-levanter gitpython --prerelease=allow && python examples/levanter_llama.py
"""

import dataclasses

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
from levanter.models.llama import LlamaConfig
from levanter.models.lm_model import LmExample
from levanter.optim import OptimizerConfig
from levanter.tracker import NoopConfig
from levanter.trainer import Trainer, TrainerConfig

import depthmup_flax as dm

SIZES = {"max_seq_len": 16, "gradient_checkpointing": False}
BASE = LlamaConfig(hidden_dim=32, intermediate_dim=64, num_layers=2, num_heads=2, num_kv_heads=2, **SIZES)
LARGE = LlamaConfig(hidden_dim=64, intermediate_dim=128, num_layers=4, num_heads=4, num_kv_heads=4, **SIZES)
VOCABULARY = hax.Axis("vocab", 64)


def parts(config):
    """A function of parameters and tokens, and parameters."""
    params, static = eqx.partition(config.build(VOCABULARY, key=jax.random.key(0)), eqx.is_inexact_array)

    def logits(params, tokens):
        named = hax.named(tokens, ("batch", config.max_Pos.resize(tokens.shape[1])))
        mask = hax.nn.attention.causal_mask(named.resolve_axis("position"), config.KeyPos)
        return eqx.combine(params, static)(named, attn_mask=mask).array

    return logits, params


def audited(model, base):
    """The audit of two sizes."""
    return dm.audit(parts(model), parts(base), jnp.zeros((1, 16), jnp.int32))


@OptimizerConfig.register_subclass("depth_mup")
@dataclasses.dataclass(frozen=True)
class DepthMuP(OptimizerConfig):
    """AdamW with Depth-muP, from the sizes of a model and its base."""

    model: LlamaConfig = LARGE
    base: LlamaConfig = BASE

    def build(self, num_train_steps):
        """The optimizer, for Levanter."""
        info = dm.rescaled_before(audited(self.model, self.base).info)
        return dm.adamw(self.lr_scheduler(num_train_steps), info, weight_decay=self.weight_decay)


def main(steps=2):
    """Prints the audit, and the losses of some steps."""
    options = {"tracker": NoopConfig(), "log_jaxprs": False, "log_xla_hlo": False}
    trainer = TrainerConfig(id="example", train_batch_size=4, num_train_steps=steps, **options)
    optimizer = DepthMuP(learning_rate=1e-3, weight_decay=0.1).build(steps)
    loss = lambda model, batch, key=None: model.compute_next_token_loss(batch, key=key)
    audit = audited(LARGE, BASE)
    print(audit)
    started = dm.rescale_init(parts(LARGE)[1], parts(BASE)[1], audit)
    model = eqx.combine(started, LARGE.build(VOCABULARY, key=jax.random.key(0)))
    tokens = hax.random.randint(jax.random.key(2), (hax.Axis("batch", 4), LARGE.max_Pos), 0, VOCABULARY.size)
    batch, losses = hax.vmap(LmExample.causal, "batch")(tokens), []
    with Trainer(trainer, optimizer, loss) as run:
        state = run.initial_state(jax.random.key(1), model=model)
        for _ in range(steps):
            info = run.train_step(state, batch)
            state = info.state
            losses.append(float(info.loss))
    print(losses)


if __name__ == "__main__":
    main()
