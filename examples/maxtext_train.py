"""MaxText's Transformer and its train step, unchanged, with the rule as the optimizer of its state; layers in `scan`.

uv pip install . maxtext jinja2 (Python 3.12); DECOUPLE_GCLOUD=TRUE python examples/maxtext_train.py
"""

import functools
import os

import jax
import jax.numpy as jnp
from flax import nnx
from maxtext.common.train_state_nnx import TrainStateNNX
from maxtext.configs import pyconfig
from maxtext.models.models import Transformer
from maxtext.trainers.pre_train.train import train_step
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
        max_target_length=16, per_device_batch_size=2, attention="dot_product", skip_jax_distributed_system=True,
        dtype="float32",
    )  # fmt: skip


def main(width: int = 64, layers: int = 4, steps: int = 2):
    """Audits the model against 2 layers of width 32, and prints the losses of some steps."""
    large, small = config(width, layers), config(32, 2)
    mesh = jax.sharding.Mesh(maxtext_utils.create_device_mesh(small), small.mesh_axes)
    rngs = functools.partial(nnx.Rngs, params=0, dropout=1)
    tokens = jax.random.randint(jax.random.key(2), (2, 17), 0, large.vocab_size)
    positions, segments = jnp.tile(jnp.arange(16), (2, 1)), jnp.ones((2, 16), jnp.int32)
    data = {"inputs": tokens[:, :-1], "targets": tokens[:, 1:]}
    for name in ("inputs", "targets"):
        data |= {f"{name}_position": positions, f"{name}_segmentation": segments}
    losses = []
    with jax.set_mesh(mesh):
        model, base = (Transformer(size, mesh, None, rngs=rngs()) for size in (large, small))
        audit = dm.audit(model, base, (data["inputs"], positions, segments), enable_dropout=False)
        print(audit)
        params, base_params = (nnx.state(network, nnx.Param) for network in (model, base))
        nnx.update(model, dm.rescale_init(params, base_params, audit))
        optimizer = nnx.Optimizer(model, dm.adamw(1e-3, audit, weight_decay=0.1), wrt=nnx.Param)
        graph, state = nnx.split(TrainStateNNX(model, optimizer))
        step = jax.jit(functools.partial(train_step, graph, large, None, None))
        for _ in range(steps):
            state, metrics = step(state, data)
            losses.append(float(metrics["scalar"]["learning/loss"]))
    print(losses)


if __name__ == "__main__":
    main()
