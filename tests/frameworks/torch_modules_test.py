"""Torch modules in the audit, and the groups of torch's optimizers against factors written by hand."""

import collections
import copy
import importlib.util
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip("torch")
if importlib.util.find_spec("torchax") is None:
    pytest.skip("could not import 'torchax'", allow_module_level=True)

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import depthmup_flax as dm  # noqa: E402
from depthmup_flax.networks.adapters import Call, adapter_of  # noqa: E402
from depthmup_flax.rule.info_trees import flatten_info  # noqa: E402

WIDTH, DEPTH, BASE_WIDTH, BASE_DEPTH = 32, 4, 8, 2
M, R = WIDTH / BASE_WIDTH, DEPTH / BASE_DEPTH


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width, bias=False), nn.Linear(2 * width, width, bias=False)
        self.multiplier = 1.0

    def forward(self, x):
        return x + self.multiplier * self.down(torch.tanh(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.stem = nn.Linear(6, width, bias=False)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, 5, bias=False)
        self.divisor = 1.0

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x) / self.divisor


@pytest.fixture(scope="module")
def sizes():
    torch.manual_seed(0)
    model, base = Net(WIDTH, DEPTH), Net(BASE_WIDTH, BASE_DEPTH)
    return model, base, dm.audit(model, base, torch.ones(3, 6))


def by_hand(model, rule):
    """The model with the rule's factors in its code, whose initial values have the rule's deviations."""
    net = copy.deepcopy(model)
    net.divisor = M
    for block in net.blocks:
        block.multiplier = R**-rule.alpha
    with torch.no_grad():
        net.head.weight.mul_(M**0.5)  # torch draws it with 1/sqrt(width)
    return net


def groups_by_hand(net, rule, optimizer, rate, decay):
    groups = []
    for name, parameter in net.named_parameters():
        in_branch = name.startswith("blocks")
        update = (R**-rule.gamma if in_branch else 1) / (M if in_branch and "norm" not in name else 1)
        gradient = M * (R**rule.alpha if in_branch else 1)
        factor = update if optimizer == "adam" else update * gradient
        group = {"params": [parameter], "lr": rate * factor}
        group["weight_decay"] = decay / factor if parameter.ndim > 1 else 0.0
        groups.append(group | ({"eps": 1e-8 / gradient} if optimizer == "adam" else {}))
    return groups


def losses(net, optimizer, steps):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(16, 6, generator=generator)
    labels = torch.randint(5, (16,), generator=generator)
    result = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = functional.cross_entropy(net(x), labels)
        loss.backward()
        optimizer.step()
        result.append(loss.item())
    return np.array(result)


OPTIMIZERS = {
    "adam": torch.optim.AdamW,
    "sgd": lambda groups: torch.optim.SGD(groups, momentum=0.9),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("preset", ["depth_mup", "completep"])
def test_groups_train_as_the_network_with_factors_in_its_code(sizes, preset, optimizer):
    model, base, audit = sizes
    rule = dm.get_parametrization(preset)
    plain = copy.deepcopy(model)
    dm.rescale_init_(plain, base, audit, rule)
    groups = dm.param_groups(plain, audit, rule, learning_rate=3e-3, weight_decay=0.1, optimizer=optimizer)
    hand = by_hand(model, rule)
    own = groups_by_hand(hand, rule, optimizer, 3e-3, 0.1)
    ours = losses(plain, OPTIMIZERS[optimizer](groups), 50)
    theirs = losses(hand, OPTIMIZERS[optimizer](own), 50)
    unchanged = losses(copy.deepcopy(model), OPTIMIZERS[optimizer](model.parameters()), 50)
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
    assert np.abs(ours - unchanged).max() > 1e-2


def test_at_the_base_groups_are_the_plain_optimizer(sizes):
    _, base, _ = sizes
    audit = dm.audit(base, base, torch.ones(3, 6))
    net, plain = copy.deepcopy(base), copy.deepcopy(base)
    dm.rescale_init_(net, base, audit)
    ours = losses(net, torch.optim.AdamW(dm.param_groups(net, audit, learning_rate=3e-3)), 10)
    np.testing.assert_array_equal(ours, losses(plain, torch.optim.AdamW(plain.parameters(), 3e-3, weight_decay=0), 10))


def test_what_the_audit_reads_is_the_function_of_the_module(sizes):
    model, _, _ = sizes
    adapter = adapter_of(model)
    x = torch.randn(3, 6, generator=torch.Generator().manual_seed(0))
    params, state = adapter.init(None, None)
    outputs, _ = adapter.apply(jax.tree.map(jnp.asarray, params), state, jnp.asarray(x.numpy()), Call())
    np.testing.assert_allclose(outputs, model(x).detach().numpy(), atol=1e-5)


def test_parameters_have_the_names_of_torch_and_the_module_stays_as_it_was(sizes):
    model, _, audit = sizes
    assert flatten_info(audit).keys() == dict(model.named_parameters()).keys()
    assert audit.ok
    assert all(part.training for part in model.modules())


def test_the_audit_leaves_torch_as_it_was_so_that_compiled_modules_train(sizes):
    """torchax alone would become the process's accelerator, and torch.compile would fail."""
    model, base, audit = sizes
    assert torch.backends.mha.get_fastpath_enabled()
    plain = copy.deepcopy(model)
    dm.rescale_init_(plain, base, audit)
    same = copy.deepcopy(plain)
    groups = [dm.param_groups(net, audit, learning_rate=3e-3) for net in (plain, same)]
    compiled = torch.compile(same, backend="eager")
    ours = losses(compiled, torch.optim.AdamW(groups[1]), 5)
    np.testing.assert_allclose(ours, losses(plain, torch.optim.AdamW(groups[0]), 5), rtol=1e-5)
    with pytest.raises(dm.InputError, match=r"torch\.compile"):
        dm.param_groups(compiled, audit, learning_rate=3e-3)


def test_an_optimizer_of_optax_refuses_tensors_and_names_what_takes_them(sizes):
    model, _, audit = sizes
    with pytest.raises(dm.InputError, match="param_groups"):
        dm.adamw(1e-3, audit).init(dict(model.named_parameters()))


def test_a_checkpoint_resumes_with_groups_of_a_new_audit(sizes):
    model, base, audit = sizes
    net = copy.deepcopy(model)
    dm.rescale_init_(net, base, audit)
    optimizer = torch.optim.AdamW(dm.param_groups(net, audit, learning_rate=3e-3, weight_decay=0.1))
    losses(net, optimizer, 20)
    saved = copy.deepcopy((net.state_dict(), optimizer.state_dict()))
    resumed, again = Net(WIDTH, DEPTH), dm.audit(Net(WIDTH, DEPTH), base, torch.ones(3, 6))
    resumed.load_state_dict(saved[0])
    info = dm.rescaled_before(again.info)
    continued = torch.optim.AdamW(dm.param_groups(resumed, info, learning_rate=3e-3, weight_decay=0.1))
    continued.load_state_dict(saved[1])
    np.testing.assert_array_equal(losses(resumed, continued, 5), losses(net, optimizer, 5))


class Parts(nn.Module):
    """Tied weights, a buffer, dropout, a batch norm, arguments by name and two results."""

    def __init__(self, width, depth):
        super().__init__()
        self.embed = nn.Embedding(7, width)
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(depth))
        self.norm, self.dropout = nn.LayerNorm(width), nn.Dropout(0.1)
        self.head = nn.Linear(width, 7, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("angles", torch.linspace(0.1, 1.0, 4)[:, None])

    def forward(self, tokens, mask=None):
        x = self.embed(tokens) * torch.cos(self.angles)
        if mask is not None:
            x = x * mask[..., None]
        for block, norm in zip(self.blocks, self.norms, strict=True):
            x = x + self.dropout(block(torch.relu(norm(x.transpose(1, 2)).transpose(1, 2))))
        return {"logits": self.head(self.norm(x)), "cache": [x]}


def test_buffers_dropout_tied_weights_and_named_arguments_are_read():
    batch = collections.UserDict(tokens=torch.zeros(3, 4, dtype=torch.long), mask=torch.ones(3, 4))
    model, base = Parts(16, 4), Parts(8, 2)
    audit = dm.audit(model, base, batch, output="logits")
    infos = flatten_info(audit)
    assert audit.ok, audit.corrections
    assert infos.keys() == dict(model.named_parameters()).keys()
    assert "head.weight" not in infos
    assert infos["norm.weight"].carries  # for the tied readout
    assert model.norms[0].num_batches_tracked == 0


def test_a_module_of_shapes_alone_is_audited():
    with torch.device("meta"):
        model, base = Net(WIDTH, DEPTH), Net(BASE_WIDTH, BASE_DEPTH)
    audit = dm.audit(model, base, torch.ones(3, 6))
    assert audit.ok
    with pytest.raises(dm.InputError, match="has no values"):
        dm.rescale_init_(model, base, audit)


@torch.library.custom_op("depthmup_test::kernel", mutates_args=())
def kernel(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x)


class WithKernel(Net):
    def forward(self, x):
        return kernel(super().forward(x))


class WithConstants(Net):
    def forward(self, x):
        return super().forward(x * torch.ones(6) + torch.arange(6))


def test_tensors_without_a_device_are_read_and_unknown_operators_are_named():
    assert dm.audit(WithConstants(WIDTH, DEPTH), WithConstants(BASE_WIDTH, BASE_DEPTH), torch.ones(3, 6)).ok
    models = WithKernel(WIDTH, DEPTH), WithKernel(BASE_WIDTH, BASE_DEPTH)
    with pytest.raises(dm.InputError, match="operator"):
        dm.audit(*models, torch.ones(3, 6))


@pytest.mark.parametrize("base_depth", [BASE_DEPTH, DEPTH])
def test_a_model_and_its_base_that_are_swapped_are_named(base_depth):
    model, base = Net(WIDTH, DEPTH), Net(BASE_WIDTH, base_depth)
    audit = dm.audit(model, base, torch.ones(3, 6), evaluate=False)
    with pytest.raises(dm.InputError, match="were model and base swapped"):
        dm.rescale_init_(base, model, audit)


def test_wrong_modules_and_forgotten_steps_are_refused(sizes):
    model, base, audit = sizes
    with pytest.raises(dm.InputError, match="rescale_init"):
        dm.param_groups(model, audit, learning_rate=1e-3)
    with pytest.raises(dm.InputError, match="'blocks"):
        dm.param_groups(Net(WIDTH, DEPTH + 1), audit, learning_rate=1e-3)
    with pytest.raises(dm.InputError, match="shape"):
        dm.rescale_init_(base, base, dm.audit(Net(WIDTH, BASE_DEPTH), base, torch.ones(3, 6)))
    with pytest.raises(dm.InputError, match="optimizer"):
        dm.param_groups(model, audit, learning_rate=1e-3, optimizer="lbfgs")
    block_only = dm.get_parametrization("block_only")
    with pytest.raises(dm.InputError, match="block_only"):
        dm.param_groups(model, audit, block_only, learning_rate=1e-3, optimizer="sgd")


def test_data_parallel_runs_after_an_audit(sizes):
    """torchax's device would take the module's parameters."""
    model, _, _ = sizes
    x = torch.ones(4, 6)
    assert torch.equal(nn.DataParallel(copy.deepcopy(model))(x), model(x))


class Lazy(Net):
    def __init__(self, width, depth):
        super().__init__(width, depth)
        self.stem = nn.LazyLinear(width, bias=False)


def test_parameters_without_shapes_or_made_for_inference_are_refused_by_name(sizes):
    _, base, audit = sizes
    x = torch.ones(3, 6)
    with pytest.raises(dm.InputError, match=r"'stem\.weight' has no shape"):
        dm.audit(Lazy(WIDTH, DEPTH), Lazy(BASE_WIDTH, BASE_DEPTH), x)
    norm = nn.Sequential(nn.Linear(6, WIDTH), nn.LazyBatchNorm1d(affine=False))
    with pytest.raises(dm.InputError, match=r"'1\.running_mean' has no shape"):
        dm.audit(norm, norm, x)
    lazy, lazy_base = Lazy(WIDTH, DEPTH), Lazy(BASE_WIDTH, BASE_DEPTH)
    lazy(x), lazy_base(x)
    assert dm.audit(lazy, lazy_base, x).ok
    with torch.inference_mode():
        fixed = Net(WIDTH, DEPTH)
    with pytest.raises(dm.InputError, match="inference_mode"):
        dm.rescale_init_(fixed, base, audit)


class Recurrent(nn.Module):
    """A stack of layers over time, or residual layers, whose branches may end in a matrix."""

    def __init__(self, kind, width, depth, residual, ends=False):
        super().__init__()
        layers = range(depth if residual else 1)
        self.stem, self.head = nn.Linear(6, width), nn.Linear(width, 5)
        options = {"num_layers": 1 if residual else depth, "batch_first": True}
        self.layers = nn.ModuleList(kind(width, width, **options) for _ in layers)
        self.ends = nn.ModuleList(nn.Linear(width, width) if ends else nn.Identity() for _ in layers)
        self.residual = residual

    def forward(self, x):
        h = self.stem(x)
        for layer, end in zip(self.layers, self.ends, strict=True):
            y = end(layer(h)[0])
            h = h + y if self.residual else y
        return self.head(h)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_are_read_over_width_and_their_steps_are_no_depth(kind):
    def audit(depth, base_depth, **options):
        models = (Recurrent(kind, width, n, **options) for width, n in ((32, depth), (8, base_depth)))
        return dm.audit(*models, torch.ones(2, 3, 6))

    wide = audit(2, 2, residual=False)
    assert wide.ok
    assert wide.info["layers.0.weight_hh_l0"].role is dm.Role.HIDDEN
    assert audit(4, 2, residual=False).verdict == "not judged"
    assert audit(4, 2, residual=True, ends=True).ok
    # No weight can carry what is behind a gate or a tanh.
    assert {finding.name for finding in audit(4, 2, residual=True).findings} == {"missing_branch_multiplier"}


def test_biases_that_shrink_with_the_width_start_as_the_bases():
    torch.manual_seed(0)
    model, base = (
        nn.Sequential(nn.Linear(512, 512), nn.Linear(512, 3)),
        nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 3)),
    )
    stem, base_stem = nn.Linear(4, 512), nn.Linear(4, 32)
    model.insert(0, stem)
    base.insert(0, base_stem)
    before = model[1].bias.std().item()
    kept = stem.bias.detach().clone()
    dm.rescale_init_(model, base, dm.audit(model, base, torch.ones(2, 4)))
    assert model[1].bias.std().item() == pytest.approx(4 * before)
    assert torch.equal(stem.bias, kept)


@pytest.mark.parametrize("kind", ["parameters", "a generator of them", "groups of another"])
def test_clipping_without_the_groups_is_refused(sizes, kind):
    given = {
        "parameters": list(sizes[0].parameters()),
        "a generator of them": sizes[0].parameters(),
        "groups of another": torch.optim.SGD(sizes[0].parameters(), 0.1),
    }
    with pytest.raises(dm.InputError, match="param_groups"):
        dm.clip_grad_rms_(given[kind], 1.0)


SCHEDULERS = {
    "cosine": lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8),
    "linear": lambda optimizer: torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=8),
    "lambda": lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step)),
    "one cycle": lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=[group["lr"] for group in optimizer.param_groups], total_steps=8
    ),
    "one cycle of one rate": lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=8),
    "cosine with a floor": lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8, eta_min=1e-4),
}

ABSOLUTE = ("one cycle of one rate", "cosine with a floor")


@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers_that_multiply_keep_the_rates_in_proportion_and_absolute_rates_do_not(sizes, name):
    model, base, audit = copy.deepcopy(sizes[0]), sizes[1], sizes[2]
    dm.rescale_init_(model, base, audit)
    optimizer = torch.optim.AdamW(dm.param_groups(model, audit, learning_rate=1e-3))
    scheduler = SCHEDULERS[name](optimizer)
    for _ in range(5):
        optimizer.step()
        scheduler.step()
    rates = [group["lr"] / group["lr_factor"] for group in optimizer.param_groups]
    assert (max(rates) == pytest.approx(min(rates))) == (name not in ABSOLUTE)


def test_the_clipping_threshold_does_not_depend_on_carried_factors(sizes):
    model, base, audit = sizes
    plain = copy.deepcopy(model)
    dm.rescale_init_(plain, base, audit)
    optimizer = torch.optim.AdamW(dm.param_groups(plain, audit, learning_rate=1e-3))
    x = torch.randn(16, 6, generator=torch.Generator().manual_seed(2))
    plain(x).square().mean().backward()
    rms = dm.clip_grad_rms_(optimizer, 1e-3)
    assert rms > 1e-3
    assert dm.clip_grad_rms_(optimizer, 1e3).item() == pytest.approx(1e-3, rel=1e-4)
    hand = by_hand(model, dm.get_parametrization())
    hand(x).square().mean().backward()
    scales = {name: M * (R**0.5 if name.startswith("blocks") else 1) for name, _ in hand.named_parameters()}
    total = sum(float((scales[name] * p.grad).square().sum()) for name, p in hand.named_parameters())
    count = sum(p.numel() for p in hand.parameters())
    assert rms.item() == pytest.approx((total / count) ** 0.5, rel=1e-4)


def test_layer_norms_are_ok_where_a_factor_of_the_width_is_one_of_the_depth():
    """At twice the width and 4 times the depth, as 1/m is r^-1/2; torchax's norms subtract a mean."""
    audit = dm.audit(Net(16, 8), Net(8, 2), torch.ones(3, 6))
    assert audit.ok, str(audit)


class Heads(nn.Module):
    """Attention with positions."""

    def __init__(self, width, num_heads):
        super().__init__()
        self.stem, self.positions = nn.Linear(6, width), nn.Parameter(0.02 * torch.randn(4, width))
        self.attention = nn.MultiheadAttention(width, num_heads, batch_first=True)
        self.head = nn.Linear(width, 5)

    def forward(self, x):
        h = self.stem(x) + self.positions
        return self.head(h + self.attention(h, h, h, need_weights=False)[0])


def test_an_audit_says_which_parameters_groups_refuse_and_why():
    x = torch.ones(2, 4, 6)
    right, wrong = (dm.audit(Heads(16, heads), Heads(8, 2), x, axes="width") for heads in (4, 2))
    assert right.ok
    assert wrong.ok
    assert "param_groups" not in str(right)
    assert "param_groups refuses attention.in_proj_bias, attention.in_proj_weight" in str(wrong)
    with pytest.raises(dm.InputError, match=r"in_proj_bias.*num_heads = width // head size"):
        dm.param_groups(Heads(16, 2), wrong, learning_rate=1e-3)


def test_notes_and_errors_about_torch_name_torchs_functions_alone():
    model, base = Parts(128, 4), Parts(32, 2)
    audit = dm.audit(model, base, torch.zeros(3, 4, dtype=torch.long), output="logits")
    dm.rescale_init_(model, base, audit)
    dm.rescale_init_(model, base, audit)
    with pytest.raises(dm.InputError) as twice:
        dm.param_groups(model, audit, learning_rate=1e-3)
    tokens = nn.Sequential(nn.Embedding(7, 8), nn.Linear(8, 7))
    with pytest.raises(dm.InputError) as floats:
        dm.audit(tokens, tokens, torch.ones(1, 4))
    texts = [str(audit), *map(str, (twice.value, floats.value))]
    for text, own in zip(texts, ["dm.rescale_init_(model, base, audit)", "second call", "torch.zeros"], strict=True):
        assert own in text
        for word in ("rescale_init(", "Flax", "nnx", "jnp"):
            assert word not in text


def test_swapped_modules_are_said_to_be_swapped(sizes):
    model, base, audit = sizes
    with pytest.raises(dm.InputError, match="swapped"):
        dm.rescale_init_(base, model, audit)


def test_a_call_that_fails_in_torch_too_has_torchs_message():
    with pytest.raises(dm.InputError, match=r"RuntimeError: .*\b5\b"):
        dm.audit(Heads(16, 4), Heads(8, 2), torch.ones(2, 5, 6))


def test_the_example_learns():
    path = pathlib.Path(__file__).parents[2] / "examples" / "nanogpt_torch.py"
    spec = importlib.util.spec_from_file_location("nanogpt_torch", path)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    found = example.train("ROMEO:\nShe speaks. O speak again.\n" * 100, width=128, depth=2, steps=8, rate=3e-3)
    assert found[-1] < 0.9 * found[0]
    assert sum("# depthmup" in line for line in path.read_text().splitlines()[10:]) == 5
