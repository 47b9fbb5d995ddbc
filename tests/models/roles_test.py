"""What the audit says of our models, at no cost in memory; the errors of a branch; the printed table."""

import copy
import json
import math
import time

import flax.linen as nn
import html_text
import jax
import jax.numpy as jnp
import pytest

from depthmup_flax import (
    PRESETS,
    Axes,
    InputError,
    ParamInfo,
    ResidualBranch,
    ResMLP,
    ResNet,
    Role,
    SimpleResNet,
    ViT,
    param_table,
)
from depthmup_flax.auditing.config_audit import audited_model
from depthmup_flax.rule.info_trees import flatten_info, info_from_json, info_to_json

IMAGE = jax.ShapeDtypeStruct((1, 32, 32, 3), jnp.float32)
RULE = PRESETS["depth_mup"]


def summary(leaf: ParamInfo) -> tuple:
    return leaf.role, leaf.width_in, leaf.width_out, leaf.in_branch, leaf.depth_ratio, leaf.decay


@pytest.mark.parametrize(
    ("model", "inner"),
    [
        (ResMLP(10, width=8, depth=2), set()),
        (ResMLP(10, width=8, depth=2, block_depth=3), {"dense_0", "dense_1"}),
        (ResNet(10, depth=2, stage_sizes=(1, 1), width=8), {"conv_1"}),
        (ViT(10, width=8, depth=2), {"query", "key", "value", "up"}),
    ],
)
def test_layers_whose_output_stays_in_their_branch_are_inner(model, inner):
    leaves = flatten_info(audited_model(model, IMAGE).info)
    names = {
        path.removesuffix("/kernel").removesuffix("/conv").rpartition("/")[2]: leaf for path, leaf in leaves.items()
    }
    assert {name for name, leaf in names.items() if leaf.inner} == inner


def test_res_mlp_info_is_right_by_hand():
    model = ResMLP(10, width=256, depth=32, base_width=64, base_depth=8, use_bias=True, norm="layer")
    leaves = flatten_info(audited_model(model, IMAGE).info)
    assert {path: summary(leaf) for path, leaf in leaves.items()} == {
        "stem/kernel": (Role.INPUT, 1, 4, False, 1, True),
        "stem/bias": (Role.VECTOR, 1, 4, False, 1, False),
        "blocks/branch/norm/layer/scale": (Role.VECTOR, 1, 4, True, 4, False),
        "blocks/branch/norm/layer/bias": (Role.VECTOR, 1, 4, True, 4, False),
        "blocks/branch/dense_0/kernel": (Role.HIDDEN, 4, 4, True, 4, True),
        "blocks/branch/dense_0/bias": (Role.VECTOR, 1, 4, True, 4, False),
        "readout/kernel": (Role.OUTPUT, 4, 1, False, 1, True),
        "readout/bias": (Role.FIXED, 1, 1, False, 1, False),
    }
    assert leaves["blocks/branch/dense_0/kernel"].shape == (32, 256, 256)
    assert {leaf.model_width for leaf in leaves.values()} == {4.0}


def test_simple_resnet_info_is_right_by_hand():
    model = SimpleResNet(10, width=128, depth=12, base_width=64, base_depth=6)
    leaves = flatten_info(audited_model(model, IMAGE).info)
    r = (3 + 12) / (3 + 6)
    hidden_in_branch = (Role.HIDDEN, 2, 2, True, r, True)
    assert {path: summary(leaf) for path, leaf in leaves.items()} == {
        "stem/conv/kernel": (Role.INPUT, 1, 2, False, 1, True),
        **{f"segment_{i}/branch/conv/kernel": hidden_in_branch for i in range(4)},
        **{f"widen_{i}/conv/kernel": (Role.HIDDEN, 2, 2, False, 1, True) for i in (1, 2, 3)},
        "readout/kernel": (Role.OUTPUT, 2, 1, False, 1, True),
    }
    shapes = {path: leaf.shape for path, leaf in leaves.items()}
    assert shapes["stem/conv/kernel"] == (3, 3, 3, 16)
    assert shapes["segment_3/branch/conv/kernel"] == (3, 3, 3, 128, 128)
    assert shapes["widen_3/conv/kernel"] == (3, 3, 64, 128)
    assert shapes["readout/kernel"] == (4 * 4 * 128, 10)


def test_info_of_a_network_that_fits_no_machine_takes_no_memory_and_under_ten_seconds():
    model = ResMLP(1000, width=1_000_000, depth=1024, base_width=100, base_depth=8)
    start = time.perf_counter()
    leaves = flatten_info(audited_model(model, IMAGE).info)
    assert time.perf_counter() - start < 10.0
    assert math.prod(leaves["blocks/branch/dense_0/kernel"].shape) > 10**15
    assert leaves["blocks/branch/dense_0/kernel"].width_in == 10_000


def test_info_survives_json_and_has_no_arrays():
    model = SimpleResNet(10, width=64, depth=6, base_width=32, base_depth=3, use_bias=True, norm="batch")
    info = audited_model(model, IMAGE).info
    assert info_from_json(json.loads(json.dumps(info_to_json(info)))) == info
    assert not any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(info))


@pytest.mark.parametrize(
    "options",
    [
        {"nonlinearity": "linear"},  # its branches look like the shortcuts beside them
        {"nonlinearity": "linear", "norm": "none"},
        {"stem": "imagenet"},
        {"depth": 5, "stage_sizes": (2, 1, 1, 1)},  # one stage alone is deeper than the base's
        {"depth": 9, "base_depth": 3, "stage_sizes": (2, 4, 3)},
        {"base_width": 32, "base_depth": 8},  # the base itself
        {"depth": 4, "base_depth": 8},
    ],
)
def test_the_branches_of_every_resnet_are_found(options):
    model = ResNet(10, **{"width": 32, "depth": 8, "base_width": 16, "base_depth": 4, **options})
    result = audited_model(model, IMAGE)
    assert result.audit.ok
    for path, leaf in flatten_info(result.info).items():
        in_branch = "conv_1" in path or "conv_2" in path
        assert (leaf.in_branch, leaf.depth_ratio) == (in_branch, model.depth_ratio if in_branch else 1), path
        assert not leaf.carries
        widths = {leaf.width_in, leaf.width_out} - {1}
        assert widths == ({model.width_ratio} - {1} if path != "readout/bias" else set()), path


def test_stages_keep_their_proportions_at_other_depths():
    model = ResNet(10, depth=16, stage_sizes=(3, 4, 6, 3), base_depth=4, base_width=64)
    sizes = {depth: model.resized(64, depth).stage_sizes for depth in (4, 5, 16, 32)}
    assert sizes == {4: (1, 1, 1, 1), 5: (1, 1, 2, 1), 16: (3, 4, 6, 3), 32: (6, 8, 12, 6)}
    assert model.base() == model.resized(64, 4)


def test_a_base_without_all_stages_is_refused():
    with pytest.raises(InputError, match=r"model\.base_depth is 2"):
        ResNet(10, depth=8, base_depth=2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ResMLP(10, rule="depth_mup"), "model.rule is 'depth_mup'"),
        (lambda: Axes(("width_in", "layers"), in_branch=False), "a stack's axis comes first"),
        (lambda: Axes("width_out", in_branch=False), "axes is 'width_out': use a tuple"),
        (lambda: ResidualBranch(nn.Dense(1), RULE, 1.0).init(jax.random.key(0), jnp.zeros((2, 4))), "(2, 4) to (2, 1)"),
        (lambda: ResidualBranch(nn.Dense(4), RULE, 0).init(jax.random.key(0), jnp.zeros((2, 4))), "depth_ratio is 0"),
        (lambda: ResidualBranch(nn.Dense(4), "ode", 1.0).init(jax.random.key(0), jnp.zeros((2, 4))), "rule is 'ode'"),
    ],
)
def test_what_cannot_be_resolved_is_named(call, message):
    with pytest.raises(InputError) as error:
        call()
    assert message in str(error.value)


def test_table_has_every_factor_right_by_hand():
    model = ResMLP(10, width=256, depth=32, base_width=64, base_depth=8, rule=PRESETS["depth_mup"])
    info = audited_model(model, IMAGE).info
    adam = param_table(info, model.rule, degree=0, eps=1e-8, weight_decay=0.1)
    sgd = param_table(info, model.rule, degree=1)
    rows = {line.split()[0]: line.split()[1:] for line in adam.splitlines()[2:5]}
    # m = 4, r = 4: half the base's init; a r^-1/2 forward; 1/(m sqrt(r)) rate; eps over the gradient scale m sqrt(r)
    assert rows["blocks/branch/dense_0/kernel"] == [
        "32x256x256", "hidden+branch", "base/2", "0.5", "0.125", "1.25e-09", "0.1",
    ]  # fmt: skip
    # The base's init, 1/m forward
    assert rows["readout/kernel"] == ["256x10", "output", "base", "0.25", "1", "2.5e-09", "0.1"]
    assert rows["stem/kernel"] == ["3072x256", "input", "base", "1", "1", "2.5e-09", "0.1"]
    assert html_text.printed(adam) == set(html_text.words(adam._repr_html_()))
    assert copy.deepcopy(adam)._repr_html_() == adam._repr_html_()
    count = 32 * 256**2 + 2560 + 3072 * 256
    assert adam.splitlines()[-1] == (
        f"3 arrays, {count:,} parameters, {32 * 256**2:,} of them inside residual branches"
    )
    frozen = param_table(info, model.rule, weight_decay=0.1, frozen=("stem",)).splitlines()
    assert [line.split()[-3::2] for line in frozen if line.startswith("stem")] == [["frozen", "0"]]
    rates = {line.split()[0]: line.split()[5] for line in sgd.splitlines()[2:5]}
    assert rates == {"blocks/branch/dense_0/kernel": "1", "readout/kernel": "4", "stem/kernel": "4"}


def test_where_the_initializer_is_unknown_the_table_has_what_the_rule_wants_relative_to_the_base_model():
    info = {role: ParamInfo(role, (8, 8), width_in=4.0, width_out=4.0) for role in Role}
    column = lambda rule: {line.split()[0]: line.split()[3] for line in param_table(info, rule).splitlines()[2:-2]}
    wanted = {"input": "base", "hidden": "base/2", "output": "base", "vector": "base", "fixed": "base"}
    assert column(PRESETS["mup"]) == wanted
    assert column(PRESETS["sp"]) == dict.fromkeys(wanted, "?")  # the initializer decides


def test_the_table_has_the_time_over_which_decay_forgets():
    info = {
        "hidden": ParamInfo(Role.HIDDEN, (8, 8), 4.0, 4.0),
        "readout": ParamInfo(Role.OUTPUT, (8, 2), 4.0, 1.0),
        "bias": ParamInfo(Role.VECTOR, (8,), 1.0, 4.0, decay=False),
    }
    decay = {"weight_decay": 0.1, "learning_rate": 1e-3, "decay_width_exponent": -1.0}
    table = param_table(info, PRESETS["depth_mup"], epoch_steps=500, **decay)
    times = {line.split()[0]: line.split("  ")[-1].strip() for line in table.splitlines()[2:5]}
    assert times == {"hidden": "4e+04 steps, 80 epochs", "readout": "1e+04 steps, 20 epochs", "bias": "never"}
    assert "1e+04 steps\n" in param_table(info, PRESETS["depth_mup"], **decay)
    assert "decay time" not in param_table(info, PRESETS["depth_mup"], weight_decay=0.1)
