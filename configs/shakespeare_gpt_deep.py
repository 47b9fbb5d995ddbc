"""Which preset for a transformer: a GPT tuned at depth 4, trained at 32 (reproduction/pages/which_exponent.md).

    depthmup tune --config=shakespeare_gpt_deep --compare=completep
        --config.data.name=text:path/to/tinyshakespeare.txt

    depthmup train --config=shakespeare_gpt_deep --workdir=runs/gpt_deep
        --config.data.name=text:path/to/tinyshakespeare.txt

The search is over the rate, the branch multiplier and the rate factors of embeddings and readout. At the proxy's depth,
the base, both presets are one network, so one search tunes both. The argument is the size:
--config=shakespeare_gpt_deep:gpu10 fits ten minutes of a large GPU; cpu is the default.
"""

from ml_collections import ConfigDict

from depthmup_flax import at_scale
from depthmup_flax.config import from_file


def get_config(scale: str = "cpu") -> ConfigDict:
    """The configuration."""
    config = from_file("shakespeare_gpt")
    width, base_depth, depth = at_scale(scale, smoke=(16, 2, 4), cpu=(32, 4, 32), gpu10=(256, 4, 32))
    config.model.update(width=width, depth=depth, base_width=width, base_depth=base_depth)
    context, batch_size, steps = at_scale(scale, smoke=(16, 8, 20), cpu=(32, 8, 400), gpu10=(256, 16, 1000))
    config.data.context = context
    config.train.update(steps=steps, average_steps=steps // 8, log_every=max(1, steps // 20), batch_size=batch_size)
    config.optimizer.warmup_steps = steps // 8
    if scale == "gpu10":
        config.model.dtype = "bfloat16"
    return config
