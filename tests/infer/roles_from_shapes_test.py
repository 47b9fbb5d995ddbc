"""Roles from shapes, or an error that says what to write; the same rule as by annotation; NNX; initial values."""

import importlib.util
import math
import pathlib
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx, struct

from depthmup_flax import (
    Axes,
    InputError,
    ResidualBranch,
    ResMLP,
    Role,
    ViT,
    depthmup,
    freeze,
    get_parametrization,
    param_info,
    param_table,
)
from depthmup_flax.infer import infer_info, rescale_init
from depthmup_flax.rule.roles import flatten_info, info_to_json

pytestmark = pytest.mark.usefixtures("compiled_in_haste")

RULE = get_parametrization("depth_mup")
ROOT = pathlib.Path(__file__).parents[2]


def shapes(leaves: dict) -> dict:
    return {path: jax.ShapeDtypeStruct(shape, jnp.float32) for path, shape in leaves.items()}


def infer(leaves: dict, **kwargs) -> dict:
    """From ``path -> (shape, base shape)``, with a readout added."""
    both = {"head/kernel": ((16, 10), (8, 10)), **leaves}
    kwargs = {"depth_ratio": 1.0, "readout": "head", **kwargs}
    return infer_info(*(shapes({path: pair[i] for path, pair in both.items()}) for i in (0, 1)), **kwargs)


@pytest.mark.parametrize(
    ("path", "shape", "base", "expected"),
    [
        ("stem/kernel", (3, 16), (3, 8), (Role.INPUT, 1, 2, True)),
        ("stem/kernel", (3, 3, 3, 16), (3, 3, 3, 8), (Role.INPUT, 1, 2, True)),
        ("depthwise/kernel", (3, 3, 1, 16), (3, 3, 1, 8), (Role.INPUT, 1, 2, True)),
        ("mlp/kernel", (16, 64), (8, 32), (Role.HIDDEN, 2, 2, True)),
        ("mlp/kernel", (16, 96), (8, 32), (Role.HIDDEN, 2, 3, True)),
        ("conv/kernel", (3, 3, 16, 32), (3, 3, 8, 16), (Role.HIDDEN, 2, 2, True)),
        ("w", (16, 16), (8, 8), (Role.HIDDEN, 2, 2, True)),
        ("narrower/kernel", (4, 2), (8, 8), (Role.HIDDEN, 0.5, 0.25, True)),
        ("query/kernel", (16, 4, 4), (8, 2, 4), (Role.HIDDEN, 2, 2, True)),
        ("query/kernel", (16, 4, 4), (8, 4, 2), (Role.HIDDEN, 2, 2, True)),
        ("out/kernel", (4, 4, 16), (2, 4, 8), (Role.HIDDEN, 2, 2, True)),
        ("query/bias", (4, 4), (2, 4), (Role.VECTOR, 1, 2, False)),
        ("query/bias", (4, 4), (4, 2), (Role.VECTOR, 1, 2, False)),
        ("layer_scale", (16,), (8,), (Role.VECTOR, 1, 2, False)),
        ("norm/scale", (6, 16), (6, 8), (Role.VECTOR, 1, 2, False)),
        ("cls", (1, 1, 16), (1, 1, 8), (Role.INPUT, 1, 2, False)),
        ("pos_embedding", (1, 9, 16), (1, 9, 8), (Role.INPUT, 1, 2, False)),
        ("posemb", (9, 16), (9, 8), (Role.INPUT, 1, 2, False)),
        ("position/embedding", (9, 16), (9, 8), (Role.INPUT, 1, 2, False)),
        ("Embed_0/embedding", (50, 16), (50, 8), (Role.INPUT, 1, 2, True)),
        ("token_embedding", (50, 16), (50, 8), (Role.INPUT, 1, 2, True)),
        ("embedding/kernel", (4, 4, 3, 16), (4, 4, 3, 8), (Role.INPUT, 1, 2, True)),
        ("head/conv/kernel", (1, 1, 16, 5), (1, 1, 8, 5), (Role.OUTPUT, 2, 1, True)),
        ("head/bias", (10,), (10,), (Role.FIXED, 1, 1, False)),
        ("temperature", (), (), (Role.FIXED, 1, 1, False)),
        ("token_mixing/kernel", (9, 32), (9, 32), (Role.FIXED, 1, 1, True)),
        ("spatial/w", (9, 9), (9, 9), (Role.FIXED, 1, 1, True)),
        ("temperature", (4, 1, 1), (4, 1, 1), (Role.FIXED, 1, 1, False)),
        ("attn/relative_bias", (4, 9), (4, 9), (Role.FIXED, 1, 1, False)),
        ("attn/bias", (4, 8), (4, 8), (Role.FIXED, 1, 1, False)),
        ("pos_emb", (9, 8), (9, 8), (Role.FIXED, 1, 1, False)),
    ],
)
def test_what_shapes_tell_is_resolved(path, shape, base, expected):
    leaf = infer({path: (shape, base)})[path]
    assert (leaf.role, leaf.width_in, leaf.width_out, leaf.decay) == expected
    assert (leaf.shape, leaf.in_branch, leaf.model_width) == (shape, False, 2)


@pytest.mark.parametrize(
    ("leaves", "kwargs", "message"),
    [
        ({"out/kernel": ((16, 5), (8, 5))}, {}, "multiply its product by rule.readout_multiplier(2) and name it, "),
        ({"out/kernel": ((16, 5), (8, 5))}, {}, "readout='out/kernel'"),
        ({"out/kernel": ((16, 5), (8, 5))}, {}, "overrides={'out/kernel': Axes(('width_out', 'fixed_in'))}"),
        ({"blocks/kernel": ((4, 16, 16), (2, 8, 8))}, {}, "has 3 growing dimensions: give the base model the same"),
        ({"q/kernel": ((16, 4, 8), (8, 2, 4))}, {}, "let heads or their size grow but not both"),
        (
            {"blocks/kernel": ((4, 16, 16), (2, 8, 8))},
            {},
            "overrides={'blocks/kernel': Axes(('width_in', 'width_out', 'width_out'))} if the first is the input",
        ),
        ({"blocks/bias": ((4, 16), (2, 8))}, {}, "a vector by its name but grows in 2 dimensions: if one counts"),
        ({"q/bias": ((4, 16), (2, 8))}, {}, "overrides={'q/bias': Axes(('width_out', 'width_out'))}"),
        ({"pos_emb": ((9, 16), (7, 8))}, {}, "looks like a table by its name but grows in 2 dimensions"),
        ({"w": ((16, 24), (8, 8))}, {}, "grows 2 and 3 times, and its layout is unknown, as it is no 'kernel': name its axes"),
        (
            {"blocks/layer_scale": ((4, 16), (4, 8)), "other": ((16,), (8,))},
            {"in_branch": "blocks"},
            "may be one vector per layer of a stack, a vector with more dimensions (heads and their size), or a "
            "weight whose input does not grow: if the first, pass stacked='blocks/layer_scale'; if the second, "
            "overrides={'blocks/layer_scale': Axes((None, 'width_out'))}; if the third, "
            "overrides={'blocks/layer_scale': Axes(('fixed_in', 'width_out'))}",
        ),
        ({"blocks/kernel": ((4, 16, 16), (2, 8, 8))}, {"stacked": "blocks"}, "give the base model the same depth"),
        ({"w": ((16, 16), (8, 8))}, {"readout": ("head", "w")}, "readout has 'w', but 'w' of shape (16, 16) is a "),
        ({"b": ((16,), (8,))}, {"readout": ("head", "b")}, "'b' of shape (16,) is a vector parameter: name the output"),
        ({}, {"readout": "haed"}, "readout has 'haed', which matches no parameter"),
        ({}, {"stacked": "blocks"}, "stacked has 'blocks', which matches no parameter"),
        ({}, {"overrides": {"x": Axes(("width_in",))}}, "overrides has 'x', which matches no parameter"),
        ({}, {"in_branch": "Blok_*"}, "in_branch has 'Blok_*', which matches no parameter: use a glob of paths, such"),
        ({}, {"in_branch": lambda path: False}, "in_branch is false for every path, such as 'head/kernel'"),
        ({}, {"in_branch": "*"}, "in_branch = '*' matches every parameter"),
        ({}, {"in_branch": 3.0}, "in_branch is 3.0: use globs of paths, such as 'head/kernel'"),
        ({"w": ((8, 8), (4, 4))}, {"in_branch": "w", "depth_ratio": None}, "in_branch is given but depth_ratio is not"),
        ({}, {"depth_ratio": 2.0}, "depth_ratio is 2 but in_branch is missing"),
        ({}, {"depth_ratio": None}, "nothing says which parameters are inside residual branches: pass in_branch='Blo"),
        ({}, {"depth_ratio": "2"}, "depth_ratio is '2': use depth / base_depth, a number above 0"),
        ({}, {"depth_ratio": True}, "depth_ratio is True: use depth / base_depth, a number above 0"),
        (
            {"stem": ((5, 16), (5, 8))},
            {"readout": ("head", "stem")},
            "readout names 'stem' of shape (5, 16), an input weight, besides 'head/kernel': name the output weight",
        ),
        ({"x": ((3,), (3, 1))}, {}, "'x' has shape (3,) in the model and (3, 1) in the base model"),
        (
            {"other/kernel": ((24, 10), (8, 10))},
            {"readout": ("head", "other")},
            "readouts have different width ratios [2.0, 3.0]",
        ),
        ({}, {"delta_params": shapes({"head/kernel": (8, 10)})}, "delta_params have the base model's shapes"),
        (
            {"mlp/kernel": ((16, 24), (8, 8))},
            {"delta_params": shapes({"head/kernel": (9, 10), "mlp/kernel": (9, 8)})},
            "'mlp/kernel' has size 24 along dimension 1 and 8 in the base model, as in delta_params",
        ),
    ],
)  # fmt: skip
def test_what_shapes_do_not_tell_is_refused_with_what_to_write(leaves, kwargs, message):
    with pytest.raises(InputError) as error:
        infer(leaves, **kwargs)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("params", "base", "message"),
    [
        ({"w": (8, 8)}, {"w": (8, 8)}, "nothing grows: params and base_params have the same shapes"),
        (
            {"block_0": (8, 8), "block_1": (8, 8)},
            {"block_0": (4, 4)},
            "'block_1' is in the model but not in the base model: build both at the same depth; only the width may differ",
        ),
        ({"block_0": (8, 8)}, {"block_0": (4, 4), "x": ()}, "'x' is in the base model but not in the model"),
        (
            {"embed": (50, 8), "w": (8, 8)},
            {"embed": (50, 4), "w": (4, 4)},
            "the model has no readout: if an embedding is the readout too (tied), multiply its logits by "
            "rule.readout_multiplier(m) and name it, such as readout='embed'",
        ),
        ({}, {}, "params has no parameters"),
        (
            {"stem": (3, 4), "head": (4, 2)},
            {"stem": (3, 8), "head": (8, 2)},
            "params are narrower than base_params, such as 'head' of shape (4, 2) and (8, 2): pass the model's first",
        ),
    ],
)
def test_trees_that_do_not_fit_are_named(params, base, message):
    with pytest.raises(InputError) as error:
        infer_info(shapes(params), shapes(base), depth_ratio=1.0)
    assert message in str(error.value)


def test_a_model_that_is_meant_to_be_narrower_than_the_base_is_given_twice():
    narrow, base = shapes({"stem": (3, 4), "head": (4, 2)}), shapes({"stem": (3, 8), "head": (8, 2)})
    info = infer_info(narrow, base, depth_ratio=1.0, readout="head", delta_params=narrow)
    assert {leaf.model_width for leaf in info.values()} == {0.5}


def test_functions_and_modules_in_place_of_parameters_are_named():
    init = lambda key: {"w": jnp.ones((4, 4))}
    with pytest.raises(InputError, match="params is a function where an array belongs: pass the parameters, or their"):
        infer_info(init, init, depth_ratio=1.0)
    with pytest.raises(InputError, match="params has a Dense at 'head' where an array belongs"):
        infer_info({"head": nn.Dense(3)}, {"head": nn.Dense(3)}, depth_ratio=1.0)


@pytest.mark.parametrize("two", [jnp.float32(2), np.float32(2), np.array(2.0), 2])
def test_a_depth_ratio_is_a_number_or_an_array_of_one(two):
    assert infer({"w": ((16, 16), (8, 8))}, in_branch="w", depth_ratio=two)["w"].depth_ratio == 2


class Unnamed(nn.Module):
    """A residual network whose modules Flax numbers."""

    width: int
    tokens: bool = False

    @nn.compact
    def __call__(self, x):
        h = nn.Dense(self.width)(x)
        h = h + nn.Embed(5, self.width)(jnp.arange(1)) if self.tokens else h
        for _ in range(3):
            h = h + nn.Dense(self.width)(nn.LayerNorm()(h))
        return nn.Dense(10, name="head")(nn.LayerNorm()(h))


def infer_unnamed(in_branch, tokens=False, readout="head", **kwargs):
    both = [jax.eval_shape(Unnamed(n, tokens).init, jax.random.key(0), jnp.ones((1, 6)))["params"] for n in (16, 8)]
    if readout == "Dense_4":  # the head without its name, too
        both = [{**{k: v for k, v in params.items() if k != "head"}, "Dense_4": params["head"]} for params in both]
    return infer_info(*both, in_branch=in_branch, depth_ratio=2.0, readout=readout, **kwargs)


@pytest.mark.parametrize(
    ("in_branch", "kwargs", "message"),
    [
        ("Dense_*", {"readout": "Dense_4"}, "matches 'Dense_4/kernel' of shape (16, 10), which leaves no readout outside the residual branches"),
        ("Dense_*", {}, "matches 'Dense_0/kernel' of shape (6, 16), which looks like the model's stem"),
        ("Dense_*", {"tokens": True}, "'Dense_0/kernel' of shape (6, 16), which looks like the model's stem"),
        (["Dense_[123]", "LayerNorm_*"], {}, "matches 4 modules LayerNorm_*, one more than 3 in 3 layers, so LayerNorm_3"),
        (lambda path: "Dense" in path, {}, "name the blocks in the model (name='block_0', ...) and write "),
    ],
)  # fmt: skip
def test_a_stem_a_readout_or_a_final_norm_in_branches_is_refused(in_branch, kwargs, message):
    with pytest.raises(InputError) as error:
        infer_unnamed(in_branch, **kwargs)
    assert message in str(error.value)


def test_numbered_layers_that_are_the_branches_alone_are_right():
    info = flatten_info(infer_unnamed(["Dense_[123]", "LayerNorm_[012]"]))
    assert {path.split("/")[0] for path, leaf in info.items() if leaf.in_branch} == {
        "Dense_1", "Dense_2", "Dense_3", "LayerNorm_0", "LayerNorm_1", "LayerNorm_2",
    }  # fmt: skip


def test_a_model_without_a_stem_says_so_of_what_looks_like_one():
    leaves = {"blocks/mix/kernel": ((3, 3, 1, 16), (3, 3, 1, 8)), "blocks/w": ((16, 16), (8, 8))}
    with pytest.raises(InputError, match=re.escape("Axes((None, None, 'fixed_in', 'width_out'), in_branch=True, ")):
        infer(leaves, in_branch="blocks", depth_ratio=2.0)
    axes = Axes((None, None, "fixed_in", "width_out"), in_branch=True, depth_ratio=2.0)
    leaf = infer(leaves, in_branch="blocks", depth_ratio=2.0, overrides={"blocks/mix/kernel": axes})
    assert leaf["blocks/mix/kernel"].in_branch
    # Layers that have one each are no stem, nor is one besides a stem.
    two = {f"blocks/{i}/{path[7:]}": shape for path, shape in leaves.items() for i in (0, 1)}
    assert infer(two, in_branch="blocks", depth_ratio=2.0)["blocks/1/mix/kernel"].in_branch
    stem = {"stem/kernel": ((3, 16), (3, 8))}
    assert infer({**leaves, **stem}, in_branch="blocks", depth_ratio=2.0)["blocks/mix/kernel"].in_branch


def test_low_rank_weights_inside_branches_are_right():
    leaves = {"emb": ((50, 16), (50, 8)), "blocks/w": ((16, 16), (8, 8)), "blocks/down": ((16, 2), (8, 2))}
    leaves["blocks/up/kernel"] = ((2, 16), (2, 8))
    info = infer(leaves, in_branch="blocks", depth_ratio=2.0, readout=("head", "blocks/down"))
    assert [info[path].role for path in ("blocks/down", "blocks/up/kernel")] == [Role.OUTPUT, Role.INPUT]


@pytest.mark.parametrize(
    ("in_branch", "message"),
    [
        ("layers/1", "matches 'layers/1/kernel' but not 'layers/0/kernel' of an equal block: match all blocks, such "),
        (lambda path: path[:8] in ("layers/0", "layers/2"), "matches 'layers/0/kernel' but not 'layers/1/kernel' of "),
        ("layers/*/kernel", "in_branch matches 'layers/0/kernel' but not 'layers/0/bias', which belong to one layer: "),
    ],
)  # fmt: skip
def test_branches_that_are_named_in_part_are_refused(in_branch, message):
    layers = {
        f"layers/{i}/{name}": shape
        for i in range(4)
        for name, shape in {"kernel": ((16, 16), (8, 8)), "bias": ((16,), (8,))}.items()
    }
    with pytest.raises(InputError) as error:
        infer(layers, in_branch=in_branch, depth_ratio=2.0)
    assert message in str(error.value)
    axes = {"layers/3/kernel": (None, "width_in", "width_out"), "layers/3/bias": (None, "width_out")}
    outside = {path: Axes(names[1:], in_branch=False) for path, names in axes.items()}
    info = infer(layers, in_branch="layers/[012]", depth_ratio=2.0, overrides=outside)
    assert not info["layers/3/kernel"].in_branch


def test_all_variables_of_linen_or_nnx_are_refused():
    tree = {"params": shapes({"w": (8, 8)}), "batch_stats": {}}
    with pytest.raises(InputError, match=r"pass variables\['params'\]"):
        infer_info(tree, tree, depth_ratio=1.0)
    state = nnx.state(nnx.BatchNorm(4, rngs=nnx.Rngs(0)))
    with pytest.raises(InputError, match=r"pass nnx.state\(model, nnx.Param\)"):
        infer_info(state, state, depth_ratio=1.0)


def test_a_tied_embedding_is_an_input_by_name_and_gives_the_model_its_width():
    both = shapes({"embed": (50, 8), "mlp": (8, 64)}), shapes({"embed": (50, 4), "mlp": (4, 16)})
    info = infer_info(*both, depth_ratio=1.0, readout="embed", overrides={"mlp": Axes(("width_in", "width_out"))})
    assert (info["embed"].role, info["embed"].decay, info["mlp"].width_out) == (Role.INPUT, True, 4)
    assert {leaf.model_width for leaf in info.values()} == {2}


def test_a_model_may_say_that_it_has_no_readout():
    assert infer_info(shapes({"w": (8, 8)}), shapes({"w": (4, 4)}), depth_ratio=1.0, readout=())["w"].width_in == 2


def test_overrides_win_and_keep_the_branch():
    leaves = {"block/w": ((24, 16), (8, 8))}
    axes = Axes(("width_out", "width_in"), decay=False)
    leaf = infer(leaves, in_branch="block", depth_ratio=4.0, overrides={"block": axes})["block/w"]
    assert (leaf.role, leaf.width_in, leaf.width_out, leaf.in_branch, leaf.depth_ratio, leaf.decay) == (
        Role.HIDDEN, 2, 3, True, 4, False,
    )  # fmt: skip
    leaf = infer(leaves, overrides={"block/w": Axes((None, "width_out"), in_branch=False)} | {
        "block/*": Axes(("width_out", "width_in"), in_branch=True, depth_ratio=9.0)
    })["block/w"]  # fmt: skip
    assert (leaf.in_branch, leaf.depth_ratio) == (True, 9)


def test_overrides_that_errors_suggest_for_heads_of_growing_size_and_number_are_right():
    leaves = {"q/kernel": ((16, 4, 8), (8, 2, 4)), "q/bias": ((4, 8), (2, 4))}
    overrides = {"q/kernel": Axes(("width_in", "width_out", "width_out")), "q/bias": Axes(("width_out", "width_out"))}
    info = infer(leaves, overrides=overrides)
    assert (info["q/kernel"].role, info["q/kernel"].width_in, info["q/kernel"].width_out) == (Role.HIDDEN, 2, 4)
    assert (info["q/bias"].role, info["q/bias"].width_out) == (Role.VECTOR, 4)


def test_an_overridden_output_weight_must_be_named_too():
    leaves = {"v/kernel": ((5, 16), (5, 8))}
    overrides = {"v/kernel": Axes(("fixed_out", "width_in"))}
    with pytest.raises(InputError, match="name it, readout='v/kernel'"):
        infer(leaves, overrides=overrides)
    leaf = infer(leaves, overrides=overrides, readout=("head", "v"))["v/kernel"]
    assert (leaf.role, leaf.width_in) == (Role.OUTPUT, 2)


def test_delta_params_tell_what_grows_when_the_base_itself_is_trained():
    base, wider = (
        shapes({"stem": (3, 8), "w": (8, 8), "head": (8, 2)}),
        shapes({"stem": (3, 9), "w": (9, 9), "head": (9, 2)}),
    )
    info = infer_info(base, base, in_branch="w", depth_ratio=4, readout="head", delta_params=wider)
    assert {path: (leaf.role, leaf.width_in, leaf.width_out) for path, leaf in info.items()} == {
        "stem": (Role.INPUT, 1, 1),
        "w": (Role.HIDDEN, 1, 1),
        "head": (Role.OUTPUT, 1, 1),
    }


def test_inferred_and_annotated_info_of_a_model_agree_in_every_field():
    for options in ({}, {"use_bias": True, "norm": "layer"}):
        model = ResMLP(10, width=32, depth=4, base_width=8, base_depth=2, **options)
        x = jax.ShapeDtypeStruct((1, 6), jnp.float32)
        annotated = param_info(model, model.base(), x)
        both = (nn.unbox(jax.eval_shape(m.init, jax.random.key(0), x))["params"] for m in (model, model.base()))
        inferred = infer_info(*both, in_branch="blocks", depth_ratio=2, readout="readout", stacked="blocks")
        expected = {path: {**leaf, "init_std": None} for path, leaf in info_to_json(annotated).items()}
        assert info_to_json(inferred) == expected


def test_annotations_are_kept_in_a_foreign_model():
    model = ResMLP(10, width=32, depth=4, base_width=8, base_depth=2, use_bias=True)
    x = jnp.ones((1, 6))
    boxed = [jax.eval_shape(m.init, jax.random.key(0), x)["params"] for m in (model, model.base())]
    assert flatten_info(infer_info(*boxed)) == flatten_info(param_info(model, model.base(), x))
    mixed = [{"ours": box, "theirs": jax.ShapeDtypeStruct((n, n), x.dtype)} for box, n in zip(boxed, (32, 8))]  # noqa: B905
    info = infer_info(*mixed, in_branch="theirs", depth_ratio=3.0)
    assert (info["theirs"].depth_ratio, info["ours"]["blocks"]["branch"]["dense_0"]["kernel"].depth_ratio) == (3, 2)
    with pytest.raises(InputError, match="is in a ResidualBranch with depth_ratio 2, but depth_ratio here is 3"):
        infer_info(*mixed, in_branch=("theirs", "ours/blocks"), depth_ratio=3.0)
    wrapped = [nnx.bridge.ToNNX(m, rngs=nnx.Rngs(0)).lazy_init(x) for m in (model, model.base())]
    assert flatten_info(infer_info(*wrapped)) == flatten_info(param_info(model, model.base(), x))


def test_other_boxes_are_opened():
    class Net(nn.Module):
        width: int

        @nn.compact
        def __call__(self, x):
            init = nn.with_partitioning(nn.initializers.lecun_normal(), (None, "model"))
            h = ResidualBranch(nn.Dense(self.width, kernel_init=init, name="block"))(
                nn.Dense(self.width, name="stem")(x)
            )
            return nn.Dense(2, name="head")(h)

    boxed = [Net(n).init(jax.random.key(0), jnp.ones((1, 3)))["params"] for n in (8, 4)]
    info = infer_info(*boxed, in_branch="block", depth_ratio=2.0, readout="head")
    assert jax.tree.structure(info) == jax.tree.structure(nn.unbox(boxed[0]))
    assert isinstance(rescale_init(*boxed, info, RULE)["block"]["kernel"], nn.Partitioned)


class Block(nn.Module):
    width: int

    @nn.compact
    def __call__(self, h, _=None):
        return h + nn.Dense(self.width, name="dense")(nn.LayerNorm(name="norm")(h)), None


class Net(nn.Module):
    width: int
    scan: bool

    @nn.compact
    def __call__(self, x):
        h = nn.Dense(self.width, name="stem")(x)
        if self.scan:
            h, _ = nn.scan(Block, variable_axes={"params": 0}, split_rngs={"params": True}, length=3)(
                self.width, name="blocks"
            )(h, None)
        else:
            for i in range(3):
                h, _ = Block(self.width, name=f"block_{i}")(h)
        return nn.Dense(2, name="head")(h)


def test_scanned_and_unrolled_layers_get_the_same_multipliers():
    def infos(scan, **kwargs):
        both = (Net(n, scan).init(jax.random.key(0), jnp.ones((1, 3)))["params"] for n in (16, 4))
        return flatten_info(infer_info(*both, in_branch="block*", depth_ratio=9.0, readout="head", **kwargs))

    numbers = lambda leaf: (leaf.role, leaf.decay, RULE.gradient_scale(leaf), RULE.update_scale(leaf))
    unrolled = {re.sub(r"block_\d", "blocks", path): numbers(leaf) for path, leaf in infos(False).items()}
    for kwargs in ({}, {"stacked": "blocks"}):
        assert {path: numbers(leaf) for path, leaf in infos(True, **kwargs).items()} == unrolled
    assert unrolled["blocks/dense/kernel"][2:] == (4 * 3, 1 / (4 * 3))


@struct.dataclass
class Layer:
    w: jax.Array
    b: jax.Array


def test_info_has_the_containers_of_the_parameters():
    def tree(n):
        layer = Layer(jnp.ones((n, n)), jnp.ones(n))
        return {
            "stem": (jnp.ones((3, n)), jnp.ones(n)),
            "layers": [layer, layer],
            "head": nn.FrozenDict(k=jnp.ones((n, 2))),
        }

    params = tree(8)
    info = infer_info(params, tree(4), in_branch="layers", depth_ratio=4.0, readout="head")
    assert jax.tree.structure(info) == jax.tree.structure(params)
    assert list(flatten_info(info)) == [
        "head/k", "layers/0/w", "layers/0/b", "layers/1/w", "layers/1/b", "stem/0", "stem/1",
    ]  # fmt: skip
    optimizer = depthmup(optax.scale_by_adam(), info, RULE, 0.1, weight_decay=0.1)
    updates, _ = optimizer.update(params, optimizer.init(params), params)
    assert jax.tree.structure(updates) == jax.tree.structure(params)


class TheirNNX(nnx.Module):
    def __init__(self, width, rngs):
        self.stem = nnx.Linear(3, width, rngs=rngs)
        self.blocks = nnx.List([nnx.Linear(width, width, rngs=rngs) for _ in range(2)])
        self.head = nnx.Linear(width, 2, rngs=rngs)
        self.norm = nnx.BatchNorm(width, rngs=rngs)

    def __call__(self, x):
        h = self.norm(self.stem(x))
        for block in self.blocks:
            h = h + RULE.residual_multiplier(4.0) * jnp.tanh(block(h))
        return self.head(h)


def nnx_models():
    model, base = (TheirNNX(n, nnx.Rngs(0)) for n in (8, 4))
    states = [nnx.state(m, nnx.Param) for m in (model, base)]
    return model, infer_info(*states, in_branch="blocks", depth_ratio=4.0, readout="head")


def nnx_loss(model):
    return jnp.mean(model(jnp.sin(jnp.arange(12.0) ** 1.3).reshape(4, 3)) ** 2)


def test_an_update_of_nnx_optimizer_is_that_of_learning_rates_by_hand():
    model, info = nnx_models()
    # m = 2, r = 4; Adam's first update is the gradient's sign.
    rate = {
        "blocks/0/bias": 1 / 2, "blocks/0/kernel": 1 / 4, "blocks/1/bias": 1 / 2, "blocks/1/kernel": 1 / 4,
        "head/bias": 1, "head/kernel": 1, "norm/bias": 1, "norm/scale": 1, "stem/bias": 1, "stem/kernel": 1,
    }  # fmt: skip
    assert list(flatten_info(info)) == list(rate)
    before = flat_nnx(nnx.state(model, nnx.Param))
    grads = flat_nnx(nnx.grad(nnx_loss)(model))
    tx = depthmup(optax.scale_by_adam(), info, RULE, 0.1, weight_decay=0.5)
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer):
        _, grads = nnx.value_and_grad(nnx_loss)(model)
        optimizer.update(model, grads)

    step(model, optimizer)
    for path, after in flat_nnx(nnx.state(model, nnx.Param)).items():
        # The batch norm takes the stem's bias out again: its gradient is rounding, without a sure sign.
        if path != "stem/bias":
            decay = 0.5 * before[path] if "kernel" in path else 0.0
            expected = before[path] - 0.1 * (rate[path] * np.sign(grads[path]) + decay)
            np.testing.assert_allclose(after, expected, atol=1e-4, err_msg=path)


def flat_nnx(state):
    leaves = jax.tree_util.tree_flatten_with_path(nnx.as_pure(state))[0]
    return {jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(leaf) for path, leaf in leaves}


def test_freezing_and_functional_updates_work_on_an_nnx_state():
    model, info = nnx_models()
    tx = freeze(depthmup(optax.scale_by_adam(), info, RULE, 0.1, weight_decay=0.5), info, ("stem", "head"))
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
    before = flat_nnx(nnx.state(model, nnx.Param))
    params, grads = nnx.state(model, nnx.Param), nnx.grad(nnx_loss)(model)
    updates, _ = tx.update(grads, tx.init(params), params)
    optimizer.update(model, grads)
    after = flat_nnx(nnx.state(model, nnx.Param))
    moved = {path for path in before if not np.array_equal(before[path], after[path])}
    assert moved == {path for path in before if path.startswith(("blocks", "norm"))}
    for path, update in flat_nnx(updates).items():
        np.testing.assert_allclose(before[path] + update, after[path], atol=1e-6)


def test_an_optimizer_of_another_nnx_model_is_refused():
    _, info = nnx_models()
    optimizer = depthmup(optax.scale_by_adam(), info, RULE, 0.1)
    with pytest.raises(InputError, match=r"parameter 'blocks/0/bias' has shape \(16,\), but info was made for \(8,\)"):
        nnx.Optimizer(TheirNNX(16, nnx.Rngs(0)), optimizer, wrt=nnx.Param)


def load(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("name", "kwargs"),
    [
        ("linen_resnet", {"stages": (1, 2), "steps": 20}),
        ("linen_resnet", {"width": 8, "stages": (1, 1), "steps": 2}),
        ("linen_scan_vit", {"steps": 20}),
        ("nnx_transformer", {"depth": 2, "steps": 20}),
        ("nnx_with_our_modules", {"depth": 4, "steps": 20}),
        ("plain_linen", {"depth": 4, "steps": 20}),
    ],
)
def test_examples_run_and_learn(name, kwargs, capsys):
    losses = load(name).main(**kwargs)
    assert all(map(math.isfinite, losses))
    assert kwargs["steps"] < 10 or losses[-1] < 0.9 * losses[0]
    assert "+branch" in capsys.readouterr().out


def test_the_page_on_your_model_runs_and_shows_the_table_it_prints(capsys):
    page = (ROOT / "docs" / "your_model.md").read_text()
    scope: dict = {"__name__": "page"}
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(compile(block, "your_model.md", "exec"), scope)
    printed = [line.split() for line in capsys.readouterr().out.splitlines()]
    (table,) = re.findall(r"```\n(parameter.*?)```", page, re.DOTALL)
    for line in table.splitlines():
        assert line == "..." or line.startswith("---") or line.split() in printed


def test_the_vit_example_passes_masks_through_its_attention():
    attention = load("linen_scan_vit").attention_fn(32)
    module = nn.MultiHeadDotProductAttention(4, attention_fn=attention)
    x = jax.random.normal(jax.random.key(0), (1, 5, 32))
    mask = nn.make_causal_mask(jnp.ones((1, 5)))
    masked, free = (module.init_with_output(jax.random.key(1), x, mask=m)[0] for m in (mask, None))
    assert not np.allclose(masked[:, 0], free[:, 0])
    assert np.allclose(masked[:, -1], free[:, -1], atol=1e-5)


def test_an_image_without_a_batch_dimension_is_named():
    with pytest.raises(InputError, match=r"x has shape \(32, 32, 3\), but images are \[batch, height,"):
        ViT(10, width=16, patch_size=4).init(jax.random.key(0), jnp.ones((32, 32, 3)))


def test_the_table_of_an_inferred_model_prints():
    info = infer({"block/kernel": ((16, 16), (8, 8))}, in_branch="block", depth_ratio=4.0)
    assert "hidden+branch" in param_table(info, RULE)
