"""The GPT of shakespeare_gpt.py with the blocks of Llama and Qwen: rotary positions, RMSNorm, SwiGLU, QK-norm, GQA.

    depthmup train --config=shakespeare_llama --workdir=runs/llama --config.data.name=text:path/to/file.txt

Both at the base (width 64, depth 4), 400 steps of 16 sequences of 64 characters of Tiny Shakespeare, warm-up 50, rate
4e-3; n = 3 seeds, mean and standard deviation. Training loss of the last 50 steps: 1.944 +- 0.017 with 205,632
parameters; shakespeare_gpt.py: 2.304 +- 0.015 with 210,176, and 2.275 at 1.6e-2 (n = 2). Test loss: 2.028 +- 0.016 and
2.338 +- 0.013.

    depthmup train --config=shakespeare_llama --workdir=runs/llama_small --config.model.width=64
        --config.model.depth=4 --config.optimizer.warmup_steps=50 --config.train.steps=400 --config.train.batch_size=16
        --config.train.average_steps=50 --config.data.context=64 --config.data.name=text:path/to/file.txt
"""

from ml_collections import ConfigDict

from depthmup_flax.config import from_file


def get_config() -> ConfigDict:
    """The configuration."""
    config = from_file("shakespeare_gpt")
    config.model.update(positions="rotary", norm="rms", mlp="swiglu", qk_norm=True, num_kv_heads=2)
    # At the base width 64: with half as many heads of keys and values, a layer is as large as that of the plain GPT.
    config.model.mlp_features = 192
    return config
