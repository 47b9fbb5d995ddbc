"""A small GPT on one text file, character by character, with Adam, a warm-up and a cosine (as in TP6 sec. 10.3).

    depthmup train --config=shakespeare_gpt --workdir=runs/gpt --config.data.name=text:path/to/file.txt

Any text file works; the numbers are of Tiny Shakespeare (1.1
million characters, 65 distinct). At the base for 400 steps, training loss of the last epoch: 2.416 at 1e-3, 2.217 +-
0.021 at 4e-3 (one and two seeds; 400 seconds on 2 shared CPU cores):

    depthmup train --config=shakespeare_gpt --workdir=runs/gpt_small --config.model.width=64
        --config.model.depth=4 --config.optimizer.warmup_steps=50 --config.train.steps=400
        --config.data.name=text:path/to/file.txt
"""

from ml_collections import ConfigDict

from depthmup_flax.config import default_config


def get_config() -> ConfigDict:
    """The configuration."""
    config = default_config("gpt")
    config.model.update(width=256, depth=8, base_width=64, base_depth=4, num_heads=4)
    config.data.update(name="text:tinyshakespeare.txt", context=128, augment="shift")
    # TP6's recipe, at a size that fits one file: 3900 steps, a warm-up over the first 500, a cosine to zero.
    config.optimizer.update(name="adam", learning_rate=4e-3, warmup_steps=500, schedule="cosine")
    config.train.update(batch_size=64, steps=3900)
    return config
