"""MaxText's Transformer, unchanged: the audit of a toy size on a CPU, with its layers in `scan`.

pip install maxtext && python examples/maxtext_audit.py
"""

import os

import jax
import jax.numpy as jnp
from flax import nnx
from maxtext.configs import pyconfig
from maxtext.models.models import Transformer
from maxtext.utils import maxtext_utils
from maxtext.utils.globals import MAXTEXT_CONFIGS_DIR

import depthmup_flax as dm


def config(width, layers):
    """MaxText's config of Llama 2 with more heads of one size."""
    return pyconfig.initialize_pydantic(
        [None, os.path.join(MAXTEXT_CONFIGS_DIR, "base.yml")],
        run_name="audit", decoder_block="llama2", dataset_type="synthetic", enable_checkpointing=False,
        base_emb_dim=width, base_mlp_dim=4 * width, base_num_decoder_layers=layers, vocab_size=96,
        head_dim=16, base_num_query_heads=width // 16, base_num_kv_heads=width // 16,
        max_target_length=16, per_device_batch_size=1, attention="dot_product", skip_jax_distributed_system=True,
        dtype="float32",
    )  # fmt: skip


def main(width: int = 64, layers: int = 4):
    """Audits the model against 2 layers of width 32.

    With real models instead of shapes, `nnx.update(model, dm.rescale_init(model, base, audit.info, rule))` and
    `nnx.Optimizer(model, dm.adamw(lr, audit.info, rule), wrt=nnx.Param)` follow.
    """
    small = config(32, 2)
    mesh = jax.sharding.Mesh(maxtext_utils.create_device_mesh(small), small.mesh_axes)

    def shapes(config):
        return nnx.eval_shape(lambda: Transformer(config, mesh, None, rngs=nnx.Rngs(params=0, dropout=1)))

    tokens, segments = jnp.zeros((2, 16), jnp.int32), jnp.ones((2, 16), jnp.int32)
    inputs = tokens, jnp.tile(jnp.arange(16), (2, 1)), segments
    model, base = shapes(config(width, layers)), shapes(small)
    with jax.set_mesh(mesh):
        audit = dm.audit(model, base, inputs, enable_dropout=False)
    print(audit)
    return audit


if __name__ == "__main__":
    main()
