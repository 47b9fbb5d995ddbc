"""Roles and ratios from annotations, at no cost in memory; errors that say what to write; the printed table."""

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
    Dense,
    InputError,
    ParamInfo,
    Readout,
    ResidualBranch,
    ResMLP,
    ResNet,
    Role,
    SimpleResNet,
    ViT,
    annotated,
    param_info,
    param_table,
    residual_scope,
)
from depthmup_flax.rule.info_trees import flatten_info, info_from_json, info_to_json
from depthmup_flax.rule.roles import info_from_annotations

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
    leaves = flatten_info(param_info(model, model.base(), IMAGE))
    names = {
        path.removesuffix("/kernel").removesuffix("/conv").rpartition("/")[2]: leaf for path, leaf in leaves.items()
    }
    assert {name for name, leaf in names.items() if leaf.inner} == inner


def test_res_mlp_info_is_right_by_hand():
    model = ResMLP(10, width=256, depth=32, base_width=64, base_depth=8, use_bias=True, norm="layer")
    leaves = flatten_info(param_info(model, model.base(), IMAGE))
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
    leaves = flatten_info(param_info(model, model.base(), IMAGE))
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


def test_info_of_a_network_that_fits_no_machine_takes_no_memory_and_under_two_seconds():
    model = ResMLP(1000, width=1_000_000, depth=1024, base_width=100, base_depth=8)
    start = time.perf_counter()
    leaves = flatten_info(param_info(model, model.base(), IMAGE))
    assert time.perf_counter() - start < 2.0
    assert math.prod(leaves["blocks/branch/dense_0/kernel"].shape) > 10**15
    assert leaves["blocks/branch/dense_0/kernel"].width_in == 10_000


def test_info_survives_json_and_has_no_arrays():
    model = SimpleResNet(10, width=64, depth=6, base_width=32, base_depth=3, use_bias=True, norm="batch")
    info = param_info(model, model.base(), IMAGE)
    assert info_from_json(json.loads(json.dumps(info_to_json(info)))) == info
    assert not any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(info))


class Theirs(nn.Module):
    """Someone else's module: plain Flax layers, two of them annotated through their initializers."""

    width: int

    @nn.compact
    def __call__(self, x):
        stem_init = annotated(nn.initializers.lecun_normal(), ("fixed_in", "width_out"))
        h = nn.Dense(self.width, kernel_init=stem_init, use_bias=False, name="stem")(x)
        h = ResidualBranch(nn.Dense(self.width, use_bias=False, name="block"), RULE, 2.0)(h)
        return Readout(10, RULE, self.width / 8, name="head")(h)


def test_a_leaf_without_a_role_is_an_error_that_says_what_to_write():
    with pytest.raises(InputError) as error:
        param_info(Theirs(16), Theirs(8), jnp.zeros((1, 5)))
    message = str(error.value)
    assert "'block/kernel'" in message
    assert "(16, 16)" in message
    assert "depthmup_flax.annotated" in message
    assert "overrides={'block/kernel': Axes(names, in_branch=...)}" in message


def test_overrides_by_path_give_foreign_leaves_their_role():
    override = {"block/*": Axes(("width_in", "width_out"), in_branch=True, depth_ratio=2.0)}
    leaves = flatten_info(param_info(Theirs(16), Theirs(8), jnp.zeros((1, 5)), overrides=override))
    assert summary(leaves["block/kernel"]) == (Role.HIDDEN, 2, 2, True, 2, True)
    assert summary(leaves["stem/kernel"]) == (Role.INPUT, 1, 2, False, 1, True)


def test_parameters_created_inside_a_branch_are_known_to_be_there_whoever_owns_them():
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            shared = Dense(4, name="outside_but_first_used_inside")
            h = ResidualBranch(lambda z: Dense(4, name="made_inside")(shared(z)), RULE, 3.0)(x)
            return Dense(4, name="after")(h)

    leaves = flatten_info(param_info(Net(), Net(), jnp.zeros((1, 4))))
    assert {path: leaf.in_branch for path, leaf in leaves.items()} == {
        "outside_but_first_used_inside/kernel": True,
        "ResidualBranch_0/made_inside/kernel": True,
        "after/kernel": False,
    }


def test_a_shared_branch_parameter_that_was_recorded_outside_is_an_error_not_a_wrong_role():
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            shared = Dense(4, name="shared")
            return ResidualBranch(shared, RULE, 1.0)(shared(x))

    with pytest.raises(InputError, match=r"'shared/kernel' of a branch was created outside"):
        param_info(Net(), Net(), jnp.zeros((1, 4)))


def test_flax_jit_does_not_carry_roles_from_one_place_or_model_to_another():
    jitted = nn.jit(Dense)

    class Net(nn.Module):
        ratio: float

        @nn.compact
        def __call__(self, x):
            h = jitted(4, name="before")(x)
            h = ResidualBranch(jitted(4, name="inside"), RULE, self.ratio)(h)
            return jitted(4, name="after")(h)

    for ratio in (4.0, 9.0):
        leaves = flatten_info(param_info(Net(ratio), Net(ratio), jnp.zeros((1, 4))))
        assert {path: (leaf.in_branch, leaf.depth_ratio) for path, leaf in leaves.items()} == {
            "before/kernel": (False, 1.0),
            "inside/kernel": (True, ratio),
            "after/kernel": (False, 1.0),
        }


def test_parameters_of_setup_are_recorded_by_the_scope_around_them():
    class Net(nn.Module):
        def setup(self):
            with residual_scope(4.0):
                self.kernel = self.param("kernel", annotated(nn.initializers.ones, ("width_in", "width_out")), (4, 4))
            self.residual = ResidualBranch(lambda h: h @ self.kernel, RULE, 4.0)

        def __call__(self, x):
            return self.residual(x)

    leaf = flatten_info(param_info(Net(), Net(), jnp.zeros((1, 4))))["kernel"]
    assert (leaf.in_branch, leaf.depth_ratio) == (True, 4.0)


def test_an_override_keeps_what_the_branch_recorded():
    model, base = ResMLP(10, width=16, base_width=8, base_depth=2), ResMLP(10, width=8, base_depth=2, base_width=8)
    override = {"blocks/*": Axes(("layers", "width_in", "width_out"), decay=False)}
    leaf = flatten_info(param_info(model, base, IMAGE, overrides=override))["blocks/branch/dense_0/kernel"]
    assert (leaf.in_branch, leaf.depth_ratio, leaf.decay) == (True, 4.0, False)


def test_flax_attention_can_be_annotated():
    """DenseGeneral calls its initializer with a flattened shape."""

    class Net(nn.Module):
        width: int

        @nn.compact
        def __call__(self, x):
            init = annotated(nn.initializers.lecun_normal(), ("width_in", None, "width_out"))
            return nn.DenseGeneral((2, self.width // 2), kernel_init=init, use_bias=False, name="qkv")(x)

    leaf = flatten_info(
        info_from_annotations(
            *(jax.eval_shape(Net(n).init, jax.random.key(0), jnp.ones((1, n)))["params"] for n in (16, 8))
        )
    )["qkv/kernel"]
    assert (leaf.role, leaf.shape, leaf.width_in, leaf.width_out) == (Role.HIDDEN, (16, 2, 8), 2, 2)


class BareReadout(nn.Module):
    width: int

    @nn.compact
    def __call__(self, x):
        return Dense(3, ("width_in", "fixed_out"))(Dense(self.width, ("fixed_in", "width_out"))(x))


def test_a_lone_growing_dimension_is_a_vector_whatever_its_direction_is_called():
    class Scale(nn.Module):
        width: int

        @nn.compact
        def __call__(self, x):
            return self.param("scale", annotated(nn.initializers.ones, ("width_in",)), (self.width,))

    leaf = flatten_info(param_info(Scale(16), Scale(8), jnp.zeros(1)))["scale"]
    assert summary(leaf) == (Role.VECTOR, 1, 2, False, 1, False)


class Misnamed(nn.Module):
    @nn.compact
    def __call__(self, x):
        return Dense(4, ("width_out",))(x)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: annotated(nn.initializers.zeros, ("width",)), "axis name 'width' is unknown"),
        (lambda: param_info(Misnamed(), Misnamed(), jnp.zeros((1, 4))), "parameter 'Dense_0/kernel'"),
        (
            lambda: param_info(
                ResMLP(10, width=16), ResMLP(10, width=16), IMAGE, overrides={"blok/*": Axes(("width_in",))}
            ),
            "'blok/*'",
        ),
        (lambda: param_info(ResMLP(10, width=16, depth=4), ResMLP(10, width=8, depth=2), IMAGE), "'layers'"),
        (
            lambda: param_info(
                Theirs(16), Theirs(8), jnp.zeros((1, 5)), overrides={"block/*": Axes(("width_in", None))}
            ),
            "'block/kernel'",
        ),
        (lambda: param_info(ResMLP(10, width=16), ResMLP(10, width=8), IMAGE), "width_ratio 1"),
        (lambda: param_info(BareReadout(16), BareReadout(8), jnp.zeros((1, 4))), "'Dense_0/kernel'"),
        (lambda: ResMLP(10, rule="depth_mup"), "model.rule is 'depth_mup'"),
        (lambda: param_info(ResMLP(10), ResMLP(10, use_bias=True), IMAGE), "is in the base model, not in the model"),
        (lambda: annotated(nn.initializers.zeros, "width_out"), "axes is 'width_out': use a tuple"),
        (lambda: Axes(("width_in", "layers"), in_branch=False), "a stack's axis comes first"),
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
    info = param_info(model, model.base(), IMAGE)
    adam = param_table(info, model.rule, degree=0, eps=1e-8, weight_decay=0.1)
    sgd = param_table(info, model.rule, degree=1)
    rows = {line.split()[0]: line.split()[1:] for line in adam.splitlines()[2:5]}
    # m = 4, r = 4: 1/sqrt(256) init; a r^-1/2 forward; 1/(m sqrt(r)) rate; eps over the gradient scale m sqrt(r)
    assert rows["blocks/branch/dense_0/kernel"] == [
        "32x256x256", "hidden+branch", "0.0625", "0.5", "0.125", "1.25e-09", "0.1",
    ]  # fmt: skip
    # 1/sqrt(64) init, 1/m forward
    assert rows["readout/kernel"] == ["256x10", "output", "0.125", "0.25", "1", "2.5e-09", "0.1"]
    # 1/sqrt(3072) init
    assert rows["stem/kernel"] == ["3072x256", "input", "0.01804", "1", "1", "2.5e-09", "0.1"]
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
