"""Which preset for a transformer, both tuned: GPT with Adam, tuned at depth 4, trained at depth 32.

    depthmup sweep --config=reproduction/configs/sweeps/which_preset.py --workdir=runs/which_preset
        --config.base.data.name=text:path/to/tinyshakespeare.txt

``all`` has the rate, branch multiplier and rate factors of embeddings and readout that a search found at depth 4, where
both presets are the same network, and the rates an octave around; ``rate`` has the rate alone that a search found
there. The seeds are new. The searches: reproduction/pages/which_exponent.md.
"""

from ml_collections import ConfigDict

from depthmup_flax import at_scale, sweep_config
from depthmup_flax.config import from_file

OCTAVES = (-1, 0, 1)


def get_config(scale: str = "cpu") -> ConfigDict:
    """The sweep: two presets with what was tuned, at the target."""
    # Rate, branch multiplier, factors of the ends' rates; the rate of a search over rates alone.
    tuned = at_scale(
        scale,
        smoke=(0.004, 0.25, 2.0, 2.0, 0.004),
        cpu=(0.01657, 0.269, 7.702, 5.014, 0.01597),
        gpu10=(0.003034, 1.088, 6.907, 0.9322, 0.002514),
    )
    rate, *others, rate_alone = tuned
    fields = ("branch_multiplier", "input_lr_factor", "output_lr_factor")
    common = {
        "parametrization.preset": ("depth_mup", "completep"),
        "seed": at_scale(scale, smoke=(100,), other=tuple(range(100, 108))),
    }
    grids = {
        "all": {
            **common,
            "optimizer.learning_rate": tuple(rate * 2.0**octave for octave in OCTAVES),
            **{f"parametrization.{field}": (value,) for field, value in zip(fields, others, strict=True)},
        },
        "rate": {
            **common,
            "optimizer.learning_rate": (rate_alone,),
            **{f"parametrization.{field}": (1.0,) for field in fields},
        },
    }
    return sweep_config(
        from_file("shakespeare_gpt_deep", scale),
        grids,
        figure="which-preset",
        title="Depth-muP and CompleteP, both tuned at depth 4: GPT at depth 32",
        scale=scale,
    )
