"""The same networks in PyTorch, with the multipliers and learning rates of microsoft/mup and 1/sqrt(depth) branches.

Does not import JAX: the interpreter needs only PyTorch and mup.
"""

import itertools
import math

import mup
import torch
import torch.nn as nn
import torch.nn.functional as F

from benchmarks.timing import RATE, repeated, timed


class ResMLP(nn.Module):
    """The default `depthmup_flax.models.ResMLP`."""

    def __init__(self, width, depth, branch, inputs, classes=10):
        super().__init__()
        self.stem = nn.Linear(inputs, width, bias=False)
        self.blocks = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(depth))
        self.readout = mup.MuReadout(width, classes, bias=False)
        self.branch = branch

    def forward(self, x):  # noqa: D102
        h = self.stem(x.flatten(1))
        for block in self.blocks:
            z = F.relu(block(h))
            h = h + self.branch * (z - z.mean(-1, keepdim=True))
        return self.readout(h)


class SimpleResNet(nn.Module):
    """The default `depthmup_flax.models.SimpleResNet`; ``width`` is the number of channels at the end."""

    def __init__(self, width, depth, branch, side, classes=10):
        super().__init__()
        cuts = [0, *(-(-depth * k // 4) for k in range(1, 4)), depth]
        lengths = [after - before for before, after in itertools.pairwise(cuts)]
        channels = [width // 8, width // 4, width // 2, width]
        self.stem = _conv3x3(3, channels[0])
        self.widen = nn.ModuleList(_conv3x3(c, 2 * c) for c in channels[:3])
        self.segments = nn.ModuleList(
            nn.ModuleList(_conv3x3(c, c) for _ in range(n)) for c, n in zip(channels, lengths, strict=True)
        )
        self.readout = mup.MuReadout(width * (side // 8) ** 2, classes, bias=False)
        self.branch = branch

    def forward(self, x):  # noqa: D102
        h = self.stem(x)
        for i, segment in enumerate(self.segments):
            if i:
                h = self.widen[i - 1](F.relu(F.avg_pool2d(h, 2)))
            for conv in segment:
                h = h + self.branch * conv(F.relu(h))
        return self.readout(F.relu(h).flatten(1))


class ResNet(nn.Module):
    """The default `depthmup_flax.models.ResNet`, with BatchNorm and the CIFAR stem: ResNet-18 at depth 8."""

    def __init__(self, width, depth, branch, side, classes=10):
        super().__init__()
        self.stem = nn.Sequential(_conv3x3(3, width), nn.BatchNorm2d(width))
        self.blocks = nn.ModuleList()
        channels = width
        for stage in range(4):
            for place in range(depth // 4):
                down = stage > 0 and place == 0
                self.blocks.append(_TwoConvs(channels, channels * (1 + down), 1 + down, branch))
                channels *= 1 + down
        self.readout = mup.MuReadout(channels, classes, bias=False)

    def forward(self, x):  # noqa: D102
        h = self.stem(x)
        for block in self.blocks:
            h = block(h)
        return self.readout(F.relu(h).mean((2, 3)))


class _TwoConvs(nn.Module):
    def __init__(self, inputs, outputs, stride, branch):
        super().__init__()
        self.conv_1, self.norm_1 = _conv3x3(inputs, outputs, stride), nn.BatchNorm2d(outputs)
        self.conv_2, self.norm_2 = _conv3x3(outputs, outputs), nn.BatchNorm2d(outputs)
        self.shortcut = nn.Identity()
        if stride > 1:
            projection = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.shortcut = nn.Sequential(projection, nn.BatchNorm2d(outputs))
        self.branch = branch

    def forward(self, h):
        z = self.norm_2(self.conv_2(F.relu(self.norm_1(self.conv_1(F.relu(h))))))
        return self.shortcut(h) + self.branch * z


class ViT(nn.Module):
    """The default `depthmup_flax.models.ViT`: pre-LN, class token, learned positions, 4 heads."""

    def __init__(self, width, depth, branch, side, patch_size, base_width, classes=10):
        super().__init__()
        self.patch_size = patch_size
        self.stem = nn.Linear(3 * patch_size**2, width, bias=False)
        self.positions = nn.Parameter(torch.randn((side // patch_size) ** 2, width) / math.sqrt(base_width))
        self.token = nn.Parameter(torch.randn(1, 1, width) / math.sqrt(base_width))
        self.blocks = nn.ModuleList(_Layer(width, base_width, branch) for _ in range(depth))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.readout = mup.MuReadout(width, classes, bias=False)

    def forward(self, x):  # noqa: D102
        size = self.patch_size
        patches = F.unfold(x, size, stride=size).transpose(1, 2)
        h = self.stem(patches) + self.positions
        h = torch.cat([self.token.expand(len(h), -1, -1), h], 1)
        for block in self.blocks:
            h = block(h)
        return self.readout(self.norm(h)[:, 0])


class _Layer(nn.Module):
    def __init__(self, width, base_width, branch, heads=4):
        super().__init__()
        self.heads, self.branch = heads, branch
        self.scale = math.sqrt(base_width / heads) / (width / heads)
        self.norm_1, self.norm_2 = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(width, eps=1e-6)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, h):
        b, t, n = h.shape
        q, k, v = self.qkv(self.norm_1(h)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, scale=self.scale)
        h = h + self.branch * self.out(mixed.transpose(1, 2).reshape(b, t, n))
        return h + self.branch * self.down(F.gelu(self.up(self.norm_2(h)), approximate="tanh"))


def _conv3x3(inputs, outputs, stride=1):
    return nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)


def depth_ratio(name, depth, base_depth):
    """Number of branches relative to the base; SimpleResNet counts its three other convolutions, too."""
    return (3 + depth) / (3 + base_depth) if name == "simple_resnet" else depth / base_depth


def make_network(name, width, depth, base_width, base_depth, side, **fields):
    """The network with mup's base shapes, which mup's optimizers read."""
    fields = {"depth": depth, "branch": 1 / math.sqrt(depth_ratio(name, depth, base_depth)), **fields}
    make = {"res_mlp": ResMLP, "simple_resnet": SimpleResNet, "resnet": ResNet, "vit": ViT}[name]
    fields |= {"inputs": 3 * side**2} if name == "res_mlp" else {"side": side}
    if name == "vit":
        fields["base_width"] = base_width
    network, base, delta = (make(n, **fields) for n in (width, base_width, 2 * base_width))
    mup.set_base_shapes(network, base, delta=delta)
    for module in network.modules():
        if isinstance(module, (nn.Linear, nn.Conv2d)) and not isinstance(module, mup.MuReadout):
            nn.init.normal_(module.weight, std=1 / math.sqrt(module.weight[0].numel()))
    return network


def make_optimizer(network, ratio, rate, fused):
    """MuAdam; in branches the learning rate is also divided by the square root of the depth ratio."""
    hidden = [p for name, p in network.named_parameters() if name.startswith(("blocks", "segments"))]
    inside = {id(p) for p in hidden}
    others = [p for p in network.parameters() if id(p) not in inside]
    groups = [{"params": hidden, "lr": rate / math.sqrt(ratio)}, {"params": others, "lr": rate}]
    return mup.MuAdam(groups, lr=rate, **({"fused": True} if fused else {}))


def train_step(model, batch, side=32, mode="eager", seconds=0.4):
    """A training step on a batch that is in memory.

    Modes: eager; fused, with the fused Adam; channels_last, with fused; compile, with channels_last, which was faster
    for convolutions.
    """
    torch.manual_seed(0)
    network = make_network(side=side, **model)
    optimizer = make_optimizer(network, _ratio(model), RATE, fused=mode != "eager")
    x = torch.randn(batch, 3, side, side)
    y = torch.randint(0, 10, (batch,))
    if mode in ("channels_last", "compile"):
        network, x = network.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    forward = torch.compile(network) if mode == "compile" else network

    def run(count):
        for _ in range(count):
            optimizer.zero_grad(set_to_none=True)
            F.cross_entropy(forward(x), y).backward()
            optimizer.step()

    parameters = sum(p.numel() for p in network.parameters())
    return _with(repeated(run, seconds), parameters=parameters)


def curve(model, rates, seeds, steps, batch, side, examples, tests, measured):
    """The runs of a curve one after another: make a network, train on batches, evaluate.

    Runs ``measured`` of them and scales the time to all, because runs one after another take the same time each.
    """
    data = _data(model, examples, side)
    runs = [(rate, seed) for rate in rates for seed in range(seeds)]

    def run_some():
        for rate, seed in runs[:: len(runs) // measured]:
            _run(model, rate, seed, steps, batch, *data, tests)

    parameters = _size(model, side)
    return lambda: {"seconds": timed(run_some) * len(runs) / measured, "parameters": parameters}


def search(model, rate, octaves, seeds, steps, batch, side, examples):
    """A script that tries learning rates, as users of PyTorch and mup write it: the best, and the network's size."""
    data = _data(model, examples, side)
    losses = {
        tried: [_run(model, tried, seed, steps, batch, *data, tests=500)[0] for seed in range(seeds)]
        for tried in (rate * 2.0**k for k in range(-octaves, octaves + 1))
    }
    best = min(losses, key=lambda tried: sum(losses[tried]) if all(map(math.isfinite, losses[tried])) else math.inf)
    return {"learning_rate": best, "parameters": _size(model, side)}


def _size(model, side):
    return sum(p.numel() for p in make_network(side=side, **model).parameters())


def _data(model, examples, side):
    images = torch.randn(examples, 3, side, side)
    return images.to(memory_format=_memory_format(model)), torch.randint(0, 10, (examples,))


def _run(model, rate, seed, steps, batch, images, labels, tests):
    """Trains one network; returns its average training loss and its loss on ``tests`` images."""
    torch.manual_seed(seed)
    network = make_network(side=images.shape[-1], **model).to(memory_format=_memory_format(model))
    optimizer = make_optimizer(network, _ratio(model), rate, fused=True)
    total = torch.zeros(())
    for _ in range(steps):
        rows = torch.randint(0, len(images), (batch,))
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(network(images[rows]), labels[rows])
        loss.backward()
        optimizer.step()
        total += loss.detach()
    with torch.no_grad():
        logits = network(images[:tests])
        return (total / steps).item(), F.cross_entropy(logits, labels[:tests]).item()


def _memory_format(model):
    """The one in which the network was faster."""
    return torch.channels_last if model["name"] in ("simple_resnet", "resnet") else torch.contiguous_format


def _ratio(model):
    return depth_ratio(model["name"], model["depth"], model["base_depth"])


def _with(measure, **facts):
    return lambda: {**measure(), **facts}
