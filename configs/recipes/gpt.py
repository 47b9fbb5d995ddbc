"""A GPT as people train one today: MuonH, warm-up, stable, decay, an average of the parameters, tokens of a file.

    depthmup tune --config=recipes/gpt --tune=learning_rate --workdir=runs/gpt_tune --config.data.name=tokens:DIR
    depthmup train --config=runs/gpt_tune/tuned.py --workdir=runs/gpt

DIR holds train.bin, val.bin and meta.json, as nanoGPT writes them; text:FILE is a text as it is.

Measured on Tiny Shakespeare in 512 tokens: tuned at 32 x 2 (width x depth; 18 runs with two seeds, 4 minutes of two
cores), trained at 128 x 6 at the rate found, 0.059, a run of 26 times the work. Test loss 3.024, 3.046 with the rule;
3.135, 3.143 with preset "sp" at the same rate (seeds 0, 1).
"""

from ml_collections import ConfigDict

from depthmup_flax.config import default_config


def get_config() -> ConfigDict:
    """The configuration."""
    config = default_config("gpt")
    config.model.update(width=128, depth=6, base_width=32, base_depth=2, num_heads=4)
    config.model.update(positions="rotary", norm="rms", mlp="swiglu", qk_norm=True)
    config.data.update(name="tokens:data", context=64, augment="shift")
    config.optimizer.update(name="muonh", learning_rate=0.02, schedule="wsd", warmup_steps=30)
    config.optimizer.update(decay_fraction=0.2, decay_shape="sqrt")
    config.train.update(batch_size=16, steps=600, average_steps=100, ema_decay=0.98)
    return config
