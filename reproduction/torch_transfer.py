"""A rate tuned on a small torch model, at 4 times its width and depth: ours, by hand, mup's package, plain AdamW.

The model is that of ``examples/nanogpt_torch.py``, on the characters of a text. The rate is chosen on the small model:
of a grid of factors of two, that with the least training loss (mean of the last tenth of the steps, over seeds). Each
arm then trains the large model at that rate. Lines marked ``# hand`` and ``# mup`` are those that the other two recipes
add or change; ours are marked in the example.

Run (6 minutes of one processor core; needs torch, torchax and mup):
    python -m reproduction.torch_transfer TEXT_FILE --output=reproduction/records/torch_transfer.json
    python -m reproduction.torch_transfer --show=reproduction/records/torch_transfer.json
"""

import argparse
import importlib.util
import json
import math
import pathlib
import statistics

ROOT = pathlib.Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "nanogpt_torch.py"
WIDTH, DEPTH, RATIO = 32, 2, 4
RATES = [2.0**-k for k in range(10, 3, -1)]
STEPS, DECAY, HEAD, CONTEXT, BATCH = 200, 0.1, 16, 32, 8
SEEDS = {"small": 3, "large": 3, "sweep": 1}
ARMS = ("ours", "hand", "mup", "plain")


def example():
    """The module of the example, at the sizes of this program."""
    spec = importlib.util.spec_from_file_location("nanogpt_torch", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.HEAD, module.CONTEXT, module.BATCH = HEAD, CONTEXT, BATCH
    return module


def draw(model, normal, seed):
    """nanoGPT's initial values, drawn again: two models with one seed have the same draws."""
    import torch

    torch.manual_seed(seed)
    depth = len(model.blocks)
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            normal(parameter, std=0.02 / math.sqrt(2 * depth) if name.endswith("c_proj.weight") else 0.02)
    return model


def by_decay(model, **settings):
    """nanoGPT's groups: matrices decay."""
    parameters = list(model.parameters())
    matrices = [p for p in parameters if p.ndim > 1]
    vectors = [p for p in parameters if p.ndim == 1]
    return [{"params": matrices, "weight_decay": DECAY} | settings, {"params": vectors, "weight_decay": 0.0} | settings]


def plain(gpt, letters, width, depth, rate, seed, text):
    """Model and optimizer of the script before any change."""
    import torch

    model = draw(gpt.GPT(letters, width, depth), torch.nn.init.normal_, seed)
    return model, torch.optim.AdamW(by_decay(model), lr=rate, betas=(0.9, 0.95))


def ours(gpt, letters, width, depth, rate, seed, text):
    """The five lines."""
    import torch

    import depthmup_flax as dm

    model = draw(gpt.GPT(letters, width, depth), torch.nn.init.normal_, seed)
    base = draw(gpt.GPT(letters, WIDTH, DEPTH), torch.nn.init.normal_, 0)
    audit = dm.audit(model, base, text[None, :CONTEXT])
    dm.rescale_init_(model, base, audit)
    groups = dm.param_groups(model, audit, learning_rate=rate, weight_decay=DECAY)
    return model, torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95))


def hand(gpt, letters, width, depth, rate, seed, text):
    """The same rule, written into the code."""
    import torch

    m, r = width / WIDTH, depth / DEPTH  # hand

    class Block(gpt.Block):
        def forward(self, x):
            x = x + r**-0.5 * self.attn(self.ln_1(x))  # hand
            return x + r**-0.5 * self.mlp(self.ln_2(x))  # hand

    class GPT(gpt.GPT):
        def forward(self, tokens):
            return super().forward(tokens) / m  # hand

    gpt_block, gpt.Block = gpt.Block, Block
    model = draw(GPT(letters, width, depth), torch.nn.init.normal_, seed)
    gpt.Block = gpt_block
    groups = []  # hand
    with torch.no_grad():  # hand
        for name, parameter in model.named_parameters():  # hand
            in_branch = name.startswith("blocks")  # hand
            is_matrix = parameter.ndim > 1  # hand
            if in_branch and is_matrix:  # hand
                parameter.mul_(m**-0.5)  # hand
                if name.endswith("c_proj.weight"):  # hand
                    parameter.mul_(r**0.5)  # hand: the base's deviation, not this depth's
            factor = (r**-0.5 if in_branch else 1.0) / (m if in_branch and is_matrix else 1.0)  # hand
            gradient = m * (r**0.5 if in_branch else 1.0)  # hand
            group = {"params": [parameter], "lr": rate * factor, "eps": 1e-8 / gradient}  # hand
            groups.append(group | {"weight_decay": DECAY / factor if is_matrix else 0.0})  # hand
    return model, torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95))


def mup_package(gpt, letters, width, depth, rate, seed, text):
    """microsoft/mup: the width alone."""
    import mup  # mup

    def build(width, depth):
        model = gpt.GPT(letters, width, depth)
        model.lm_head = mup.MuSharedReadout(model.wte.weight, bias=False)  # mup
        return model

    model = build(width, depth)
    mup.set_base_shapes(model, build(WIDTH, depth), delta=build(2 * WIDTH, depth))  # mup
    draw(model, mup.init.normal_, seed)  # mup
    groups = by_decay(model)
    return model, mup.MuAdamW(groups, lr=rate, betas=(0.9, 0.95))  # mup


MAKERS = {"ours": ours, "hand": hand, "mup": mup_package, "plain": plain}


def losses(gpt, text, arm, width, depth, rate, seed, steps=STEPS, eps=None):
    """The losses of all steps; the batches depend on the seed alone. With ``eps`` all groups have one epsilon."""
    import torch
    from torch.nn import functional

    letters = sorted(set(text))
    data = torch.tensor([letters.index(letter) for letter in text])
    model, optimizer = MAKERS[arm](gpt, len(letters), width, depth, rate, seed, data)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for group in optimizer.param_groups:
        group["eps"] = group["eps"] if eps is None else eps
    torch.manual_seed(seed + 1000)
    result = []
    for _ in range(steps):
        starts = torch.randint(len(data) - CONTEXT, (gpt.BATCH,))
        tokens = data[starts[:, None] + torch.arange(CONTEXT + 1)]
        loss = functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        result.append(loss.item())
    return result


def last(of_steps):
    """The mean of the last tenth."""
    return statistics.mean(of_steps[-len(of_steps) // 10 :])


def measured(text):
    """All runs, as a record."""
    import torch

    torch.set_num_threads(1)
    gpt = example()
    small = {}
    for rate in RATES:
        small[rate] = [last(losses(gpt, text, "plain", WIDTH, DEPTH, rate, seed)) for seed in range(SEEDS["small"])]
        print(f"small, {rate:.2e}: {small[rate]}", flush=True)
    tuned = min(RATES, key=lambda rate: statistics.mean(small[rate]))
    record = {"small": {str(rate): small[rate] for rate in RATES}, "tuned": tuned, "large": {}, "sweep": {}}
    width, depth = RATIO * WIDTH, RATIO * DEPTH
    runs = {}
    for arm in ARMS:
        runs[arm] = [losses(gpt, text, arm, width, depth, tuned, seed) for seed in range(SEEDS["large"])]
        record["large"][arm] = [last(run) for run in runs[arm]]
        print(f"large, {arm} at {tuned:.2e}: {record['large'][arm]}", flush=True)
    record["ours minus hand"] = _difference(runs["ours"][0], runs["hand"][0])
    record |= minus_mup(gpt, text, tuned)
    for arm in ("ours", "plain"):
        of_rates = {}
        for rate in RATES:
            if abs(math.log2(rate / tuned)) <= 2:
                seeds = range(SEEDS["sweep"])
                of_rates[str(rate)] = [last(losses(gpt, text, arm, width, depth, rate, seed)) for seed in seeds]
                print(f"large, {arm}, {rate:.2e}: {of_rates[str(rate)]}", flush=True)
        record["sweep"][arm] = of_rates
    return record


def minus_mup(gpt, text, rate):
    """Over the width alone; mup does not scale Adam's epsilon, so also where it plays no role."""
    result = {}
    for eps in (None, 1e-15):
        ours, theirs = (losses(gpt, text, arm, RATIO * WIDTH, DEPTH, rate, 0, 50, eps) for arm in ("ours", "mup"))
        result[f"ours minus mup, width alone, 50 steps, epsilon {eps or 1e-8:g}"] = _difference(ours, theirs)
    return result


def _difference(a, b):
    return max(abs(x - y) for x, y in zip(a, b, strict=True))


def lines(arm):
    """The lines that a recipe changes or adds."""
    if arm == "ours":
        return sum("# depthmup" in line for line in EXAMPLE.read_text().splitlines()[10:])
    return sum(f"  # {arm}" in line for line in pathlib.Path(__file__).read_text().splitlines())


def table(record):
    """Markdown."""
    names = {
        "ours": "`dm.param_groups`",
        "hand": "the rule by hand",
        "mup": "mup 1.0.0 (width)",
        "plain": "plain AdamW",
    }
    rows = [
        "| 4 x width, 4 x depth, at the small model's rate | lines | loss | best rate / small model's |",
        "|---|---|---|---|",
    ]
    for arm in ARMS:
        values = record["large"][arm]
        best = ""
        if arm in record["sweep"]:
            means = {float(rate): statistics.mean(runs) for rate, runs in record["sweep"][arm].items()}
            rate = min(means, key=means.__getitem__)
            edge = " or less" if rate == min(means) else " or more" if rate == max(means) else ""
            best = f"{rate / record['tuned']:g}{edge}"
        loss = f"{statistics.mean(values):.3f} ± {statistics.stdev(values):.3f}"
        rows.append(f"| {names[arm]} | {lines(arm) if arm != 'plain' else 0} | {loss} | {best} |")
    return "\n".join(rows)


def main():
    """Trains, or shows a record."""
    parser = argparse.ArgumentParser()
    parser.add_argument("file", nargs="?", type=pathlib.Path)
    parser.add_argument("--output", type=pathlib.Path)
    parser.add_argument("--show", type=pathlib.Path)
    arguments = parser.parse_args()
    if arguments.show:
        record = json.loads(arguments.show.read_text())
    else:
        record = measured(arguments.file.read_text())
        if arguments.output:
            arguments.output.write_text(json.dumps(record, indent=1) + "\n")
    print(table(record))
    for name, value in record.items():
        if "minus" in name:
            print(f"{name}: at most {value:.1e}")


if __name__ == "__main__":
    main()
