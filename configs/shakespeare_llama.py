"""The GPT of shakespeare_gpt.py with the blocks of Llama and Qwen: rotary positions, RMSNorm, SwiGLU, QK-norm, GQA.

python train.py --config=configs/shakespeare_llama.py --workdir=runs/llama --config.data.name=text:path/to/file.txt
"""

import pathlib

from ml_collections import ConfigDict

from depthmup_flax.training.config import from_file


def get_config() -> ConfigDict:
    """The configuration."""
    config = from_file(pathlib.Path(__file__).with_name("shakespeare_gpt.py"))
    config.model.update(positions="rotary", norm="rms", mlp="swiglu", qk_norm=True, num_kv_heads=2)
    config.model.mlp_features = 192  # at the base width: 3 times 64; with two heads of keys, as large as the plain GPT
    return config
