"""What the table of `--device=gpu` measures. Imports neither JAX nor PyTorch."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Case:
    """A network in training, with AdamW.

    Attributes:
      network: ``vit`` (patches of 16 pixels, class token), ``gpt`` (untied), ``resnet`` (He et al.'s stem, two
        convolutions in a branch, BatchNorm) or ``res_mlp``, whose stem and readout are frozen.
      width, depth, heads: as in ``config.model``; ``heads`` is 0 without attention.
      batch: images or sequences in a step.
      size: side of the images in pixels, or tokens of a sequence.
      classes: of the images, or the vocabulary.
      dtype: of the layers; parameters are float32.
    """

    network: str
    width: int
    depth: int
    heads: int
    batch: int
    size: int
    classes: int
    dtype: str = "bfloat16"

    @property
    def in_lanes(self) -> bool:
        """Whether ours trains the group of a sweep, many networks at a time."""
        return self.network == "res_mlp"


# The longest compilations last, as a time limit may end the measurement.
CASES = {
    "ViT-S/16, 256 images of 224 px": Case("vit", 384, 12, 6, 256, 224, 1000),
    "GPT, 163 M, 16 x 1024 tokens": Case("gpt", 768, 12, 12, 16, 1024, 50304),
    "ResNet-18, BatchNorm, 256 images of 224 px": Case("resnet", 64, 8, 0, 256, 224, 1000),
    "ViT-B/16, 128 images of 224 px": Case("vit", 768, 12, 12, 128, 224, 1000),
    "sweep of ResMLP 128x8, a run": Case("res_mlp", 128, 8, 0, 64, 32, 10, "float32"),
    "sweep of ResMLP 128x128, a run": Case("res_mlp", 128, 128, 0, 64, 32, 10, "float32"),
}

TINY = {
    "ViT 32x2": Case("vit", 32, 2, 2, 4, 32, 10),
    "GPT 32x2": Case("gpt", 32, 2, 2, 2, 16, 64),
    "ResNet 8x4": Case("resnet", 8, 4, 0, 4, 32, 10),
    "sweep of ResMLP 16x2, a run": Case("res_mlp", 16, 2, 0, 64, 32, 10, "float32"),
}
