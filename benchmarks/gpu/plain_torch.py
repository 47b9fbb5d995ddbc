"""Steps of programs in PyTorch: torch.compile, its fused attention and AdamW, channels last for convolutions.

Parameters are float32; products are bfloat16 by autocast, or float32 in full. Imports neither JAX nor this package.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

from benchmarks.gpu.cases import Case
from benchmarks.timing import RATE, repeated


def step(seconds, device, **fields):
    """A contender: the training step of a `Case` on ``device``, cpu or cuda."""
    case = Case(**fields)
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.benchmark = True
    model, (x, y) = network(case).to(device), _batch(case, device)
    if case.network == "resnet":
        model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=RATE, fused=True)
    compiled = torch.compile(lambda: F.cross_entropy(model(x).flatten(0, -2), y.flatten()), **_options(case, device))

    def run(count):
        for _ in range(count):
            torch.compiler.cudagraph_mark_step_begin()
            with torch.autocast(device, torch.bfloat16, enabled=case.dtype == "bfloat16"):
                loss = compiled()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if device == "cuda":
            torch.cuda.synchronize()

    timed = repeated(run, seconds)
    facts = {"parameters": sum(p.numel() for p in model.parameters())}

    def measure():
        if device == "cuda":  # compilation needs more
            torch.cuda.reset_peak_memory_stats()
        measured = {**timed(), **facts}
        return {**measured, "bytes": torch.cuda.max_memory_allocated()} if device == "cuda" else measured

    return measure


def _options(case, device):
    if device == "cpu":  # a trial of the program: compiling C++ would take a minute
        return {"backend": "aot_eager"}
    # CUDA graphs, where launches of small kernels are the limit.
    return {"mode": "reduce-overhead"} if case.network == "res_mlp" else {}


def network(case):
    """The network of ``case``."""
    sizes = case.width, case.depth, case.classes
    if case.network == "res_mlp":
        return ResMLP(*sizes, inputs=3 * case.size**2)
    if case.network == "resnet":
        return ResNet(*sizes)
    if case.network == "gpt":
        return GPT(*sizes, case.heads, case.size)
    return ViT(*sizes, case.heads, (case.size // 16) ** 2)


def _batch(case, device):
    if case.network == "gpt":
        tokens = torch.randint(0, case.classes, (case.batch, case.size + 1), device=device)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    images = torch.randn(case.batch, 3, case.size, case.size, device=device)
    return images, torch.randint(0, case.classes, (case.batch,), device=device)


class ViT(nn.Module):
    """Patches of 16 pixels, class token, learned positions."""

    def __init__(self, width, depth, classes, heads, patches):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 16, 16, bias=False)
        self.token = nn.Parameter(0.02 * torch.randn(1, 1, width))
        self.positions = nn.Parameter(0.02 * torch.randn(patches, width))
        self.blocks = nn.Sequential(*(_Layer(width, heads, causal=False) for _ in range(depth)))
        self.norm, self.readout = _norm(width), _dense(width, classes)

    def forward(self, x):
        """``[B, C, H, W] -> [B, classes]``."""
        h = self.stem(x).flatten(2).transpose(1, 2) + self.positions
        h = torch.cat([self.token.expand(len(h), -1, -1), h], 1)
        return self.readout(self.norm(self.blocks(h))[:, 0])


class GPT(nn.Module):
    """Token embedding, learned positions, an untied readout."""

    def __init__(self, width, depth, classes, heads, context):
        super().__init__()
        self.stem = nn.Embedding(classes, width)
        self.positions = nn.Parameter(0.02 * torch.randn(context, width))
        self.blocks = nn.Sequential(*(_Layer(width, heads, causal=True) for _ in range(depth)))
        self.norm, self.readout = _norm(width), _dense(width, classes)

    def forward(self, tokens):
        """``[B, T] -> [B, T, classes]``."""
        return self.readout(self.norm(self.blocks(self.stem(tokens) + self.positions)))


class _Layer(nn.Module):
    def __init__(self, width, heads, causal):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm_1, self.norm_2 = _norm(width), _norm(width)
        self.qkv, self.out = _dense(width, 3 * width), _dense(width, width)
        self.up, self.down = _dense(width, 4 * width), _dense(4 * width, width)

    def forward(self, h):
        b, t, n = h.shape
        q, k, v = self.qkv(self.norm_1(h)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        h = h + self.out(mixed.transpose(1, 2).reshape(b, t, n))
        return h + self.down(F.gelu(self.up(self.norm_2(h)), approximate="tanh"))


class ResNet(nn.Module):
    """He et al.'s stem and stages, the activation first in a branch: ResNet-18 at width 64 and depth 8."""

    def __init__(self, width, depth, classes):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width))
        blocks, channels = [], width
        for place in range(depth):
            down = place > 0 and place % (depth // 4) == 0
            blocks.append(_TwoConvs(channels, channels * (1 + down), 1 + down))
            channels *= 1 + down
        self.blocks, self.readout = nn.Sequential(*blocks), _dense(channels, classes)

    def forward(self, x):
        """``[B, C, H, W] -> [B, classes]``."""
        h = self.blocks(F.max_pool2d(self.stem(x), 3, 2, 1))
        return self.readout(F.relu(h).mean((2, 3)))


class _TwoConvs(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        conv = lambda *shape, **fields: nn.Conv2d(*shape, bias=False, **fields)
        normed = lambda *shape, **fields: nn.Sequential(conv(*shape, **fields), nn.BatchNorm2d(outputs))
        self.conv_1, self.conv_2 = normed(inputs, outputs, 3, stride, padding=1), normed(outputs, outputs, 3, padding=1)
        self.shortcut = normed(inputs, outputs, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, h):
        return self.shortcut(h) + self.conv_2(F.relu(self.conv_1(F.relu(h))))


class ResMLP(nn.Module):
    """A residual MLP whose stem and readout are not trained."""

    def __init__(self, width, depth, classes, inputs):
        super().__init__()
        self.stem, self.readout = _dense(inputs, width), _dense(width, classes)
        self.blocks = nn.ModuleList(_dense(width, width) for _ in range(depth))
        for frozen in (self.stem, self.readout):
            frozen.requires_grad_(False)

    def forward(self, x):
        """``[B, C, H, W] -> [B, classes]``."""
        h = self.stem(x.flatten(1))
        for block in self.blocks:
            z = F.relu(block(h))
            h = h + len(self.blocks) ** -0.5 * (z - z.mean(-1, keepdim=True))
        return self.readout(h)


def _dense(inputs, outputs):
    return nn.Linear(inputs, outputs, bias=False)


def _norm(width):
    return nn.LayerNorm(width, eps=1e-6)
