"""The rule in a training script of nanoGPT's kind, in PyTorch: five lines change, those with "# depthmup".

The model is nanoGPT's: learned positions, fused queries, keys and values, tied embeddings, initial values that shrink
with the depth. The rate was tuned at the base, width 64 and depth 2.

Run:
    python examples/nanogpt_torch.py TEXT_FILE --width=256 --depth=8 --steps=500
"""

import argparse
import math
import pathlib

import torch
from torch import nn
from torch.nn import functional

import depthmup_flax as dm  # depthmup

BASE = {"width": 64, "depth": 2}
CONTEXT, BATCH, HEAD = 64, 16, 32


class Attention(nn.Module):
    """Causal; more heads as the width grows."""

    def __init__(self, width):
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)

    def forward(self, x):
        """The forward pass."""
        batch, length, width = x.shape
        q, k, v = (y.view(batch, length, -1, HEAD).transpose(1, 2) for y in self.c_attn(x).split(width, dim=2))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).contiguous().view(batch, length, width))


class MLP(nn.Module):
    """Two matrices."""

    def __init__(self, width):
        super().__init__()
        self.c_fc, self.c_proj = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        """The forward pass."""
        return self.c_proj(functional.gelu(self.c_fc(x)))


class Block(nn.Module):
    """Two residual branches."""

    def __init__(self, width):
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(width), Attention(width)
        self.ln_2, self.mlp = nn.LayerNorm(width), MLP(width)

    def forward(self, x):
        """The forward pass."""
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """Logits of the next token."""

    def __init__(self, vocabulary, width, depth):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.ln_f = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        self.lm_head.weight = self.wte.weight
        for name, parameter in self.named_parameters():
            if parameter.ndim > 1:
                std = 0.02 / math.sqrt(2 * depth) if name.endswith("c_proj.weight") else 0.02
                nn.init.normal_(parameter, std=std)

    def forward(self, tokens):
        """The forward pass."""
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.lm_head(self.ln_f(x))


def train(text, width, depth, steps, rate, seed=0):
    """The losses of all steps."""
    torch.manual_seed(seed)
    letters = sorted(set(text))
    data = torch.tensor([letters.index(letter) for letter in text])
    model = GPT(len(letters), width, depth)
    base = GPT(len(letters), **BASE)  # depthmup
    audit = dm.audit(model, base, data[None, :CONTEXT])  # depthmup
    dm.rescale_init_(model, base, audit)  # depthmup
    optimizer = torch.optim.AdamW(
        dm.param_groups(model, audit, learning_rate=rate, weight_decay=0.1),  # depthmup: was model.parameters()
        lr=rate,  # as weight_decay: what a group has replaces it
        betas=(0.9, 0.95),
        weight_decay=0.1,
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    losses = []
    for _ in range(steps):
        starts = torch.randint(len(data) - CONTEXT, (BATCH,))
        tokens = data[starts[:, None] + torch.arange(CONTEXT + 1)]
        logits = model(tokens[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=pathlib.Path)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--depth", type=int, default=8)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--rate", type=float, default=3e-3)
    args = parser.parse_args()
    losses = train(args.file.read_text(), args.width, args.depth, args.steps, args.rate)
    last = losses[-len(losses) // 10 :]
    print(f"loss {losses[0]:.3f} -> {sum(last) / len(last):.3f}, the mean of the last tenth of {args.steps} steps")
