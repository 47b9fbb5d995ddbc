"""What a residual stream in bfloat16 costs: GPT with Adam, whose layers compute in bfloat16.

    depthmup sweep --config=reproduction/configs/sweeps/stream_dtype.py --workdir=runs/stream_dtype
        --config.base.data.name=text:path/to/tinyshakespeare.txt

The streams are float32, the default, and bfloat16, which rounds to 8 bits after every branch. Measured at scale
``cpu`` on two CPU cores: 32 runs. The last training loss, 2.40 to 2.45, differs by at most 0.0002 (n = 4).
"""

import pathlib

from ml_collections import ConfigDict

from depthmup_flax import at_scale, powers_of_two, sweep_config
from depthmup_flax.config import from_file


def get_config(scale: str = "cpu") -> ConfigDict:
    """The sweep: rates over depth with either stream."""
    base = from_file(pathlib.Path(__file__).with_name("which_exponent_gpt.py"), scale).base
    base.model.update(depth=4, base_depth=4, dtype="bfloat16")
    grid = {
        "model.stream_dtype": ("", "bfloat16"),
        "model.depth": at_scale(scale, smoke=(4,), cpu=(4, 16), other=(4, 64)),
        "optimizer.learning_rate": tuple(4e-3 * factor for factor in powers_of_two(0, 1)),
        "seed": at_scale(scale, smoke=(0,), other=(0, 1, 2, 3)),
    }
    return sweep_config(
        base,
        {"streams": grid},
        figure="stream-dtype",
        title="Learning rate over depth with either stream: GPT on text with Adam",
        scale=scale,
    )
