"""Roles from shapes, or an error that says what to write; the same rule as by annotation."""

import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx, struct
from shapes import infer, shapes

from depthmup_flax import (
    Axes,
    InputError,
    ResidualBranch,
    ResMLP,
    Role,
    depthmup,
    get_parametrization,
    infer_info,
    param_info,
    param_table,
    rescale_init,
)
from depthmup_flax.rule.info_trees import flatten_info, info_to_json

RULE = get_parametrization("depth_mup")


def shapes_of(model, x):
    """The parameters of a Linen model, in their boxes."""
    return jax.eval_shape(model.init, jax.random.key(0), x)["params"]


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
        ({"w": ((16, 24), (8, 8))}, {}, "grows 2 and 3 times, and its layout is unknown because"),
        (
            {"blocks/layer_scale": ((4, 16), (4, 8)), "other": ((16,), (8,))},
            {"in_branch": "blocks"},
            "may be one vector per layer of a stack, a vector with more dimensions (heads and their size), or a "
            "weight whose input does not grow: for a stack, pass stacked='blocks/layer_scale'; for heads, "
            "overrides={'blocks/layer_scale': Axes((None, 'width_out'))}; for a weight, "
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
            "readout names 'stem' of shape (5, 16), an input weight, in addition to 'head/kernel': name the output",
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
            "'mlp/kernel' has size 24 along dimension 1, and 8 in the base model and in delta_params",
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
            "'block_1' is in the model but not in the base model: give both the same depth",
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
    with pytest.raises(InputError, match="params is a function: pass parameters, or their shapes"):
        infer_info(init, init, depth_ratio=1.0)
    with pytest.raises(InputError, match="params has a Dense at 'head': pass parameters"):
        infer_info({"head": nn.Dense(3)}, {"head": nn.Dense(3)}, depth_ratio=1.0)


@pytest.mark.parametrize("two", [jnp.float32(2), np.float32(2), np.array(2.0), 2])
def test_a_depth_ratio_is_a_number_or_an_array_of_one(two):
    assert infer({"w": ((16, 16), (8, 8))}, in_branch="w", depth_ratio=two)["w"].depth_ratio == 2


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


def test_keys_and_values_whose_heads_do_not_grow_are_sent_to_the_audit_or_named_as_hidden():
    leaves = {"block/key/kernel": ((16, 2, 4), (8, 2, 4)), "block/query/kernel": ((16, 4, 4), (8, 2, 4))}
    with pytest.raises(InputError) as error:
        infer(leaves, in_branch="block", depth_ratio=4.0)
    remedy = "overrides={'block/key/kernel': Axes(('width_in', None, 'width_out'))}"
    assert "its product is not multiplied" in str(error.value)
    assert "dm.audit(model, base, x).info" in str(error.value)
    assert remedy in str(error.value)
    overrides = {"block/key/kernel": Axes(("width_in", None, "width_out"))}
    leaf = infer(leaves, in_branch="block", depth_ratio=4.0, overrides=overrides)["block/key/kernel"]
    assert (leaf.role, leaf.width_in, leaf.width_out, leaf.in_branch) == (Role.HIDDEN, 2, 1, True)


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
        both = (nn.unbox(shapes_of(m, x)) for m in (model, model.base()))
        inferred = infer_info(*both, in_branch="blocks", depth_ratio=2, readout="readout", stacked="blocks")
        expected = {path: {**leaf, "init_std": None} for path, leaf in info_to_json(annotated).items()}
        assert info_to_json(inferred) == expected


def test_annotations_are_kept_in_a_foreign_model():
    model = ResMLP(10, width=32, depth=4, base_width=8, base_depth=2, use_bias=True)
    x = jnp.ones((1, 6))
    boxed = [shapes_of(m, x) for m in (model, model.base())]
    assert flatten_info(infer_info(*boxed)) == flatten_info(param_info(model, model.base(), x))
    mixed = [{"ours": box, "theirs": jax.ShapeDtypeStruct((n, n), x.dtype)} for box, n in zip(boxed, (32, 8))]  # noqa: B905
    info = infer_info(*mixed, in_branch="theirs", depth_ratio=3.0)
    assert (info["theirs"].depth_ratio, info["ours"]["blocks"]["branch"]["dense_0"]["kernel"].depth_ratio) == (3, 2)
    with pytest.raises(InputError, match="is in a ResidualBranch with depth_ratio 2, but depth_ratio here is 3"):
        infer_info(*mixed, in_branch=("theirs", "ours/blocks"), depth_ratio=3.0)
    wrapped = [
        nnx.eval_shape(lambda m=m: nnx.bridge.ToNNX(m, rngs=nnx.Rngs(0)).lazy_init(x)) for m in (model, model.base())
    ]
    assert flatten_info(infer_info(*wrapped)) == flatten_info(param_info(model, model.base(), x))


def test_other_boxes_are_opened():
    class Net(nn.Module):
        width: int

        @nn.compact
        def __call__(self, x):
            init = nn.with_partitioning(nn.initializers.lecun_normal(), (None, "model"))
            h = ResidualBranch(nn.Dense(self.width, kernel_init=init, name="block"), RULE, 1.0)(
                nn.Dense(self.width, name="stem")(x)
            )
            return nn.Dense(2, name="head")(h)

    random, x = np.random.default_rng(0), jax.ShapeDtypeStruct((1, 3), jnp.float32)
    boxed = [
        jax.tree.map(lambda leaf: random.normal(size=leaf.shape).astype("float32"), shapes_of(Net(n), x))
        for n in (8, 4)
    ]
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
        both = (shapes_of(Net(n, scan), jax.ShapeDtypeStruct((1, 3), jnp.float32)) for n in (16, 4))
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
        layer = Layer(np.ones((n, n)), np.ones(n))
        return {
            "stem": (np.ones((3, n)), np.ones(n)),
            "layers": [layer, layer],
            "head": nn.FrozenDict(k=np.ones((n, 2))),
        }

    params = tree(8)
    info = infer_info(params, tree(4), in_branch="layers", depth_ratio=4.0, readout="head")
    assert jax.tree.structure(info) == jax.tree.structure(params)
    assert list(flatten_info(info)) == [
        "head/k", "layers/0/w", "layers/0/b", "layers/1/w", "layers/1/b", "stem/0", "stem/1",
    ]  # fmt: skip
    optimizer = depthmup(optax.scale_by_adam(), info, RULE, 0.1, weight_decay=0.1)
    updates = jax.eval_shape(lambda p: optimizer.update(p, optimizer.init(p), p)[0], params)
    assert jax.tree.structure(updates) == jax.tree.structure(params)


def test_the_table_of_an_inferred_model_prints():
    info = infer({"block/kernel": ((16, 16), (8, 8))}, in_branch="block", depth_ratio=4.0)
    assert "hidden+branch" in param_table(info, RULE)
