"""Roles, branches and multipliers, read from traces of models in the styles of public code, right and broken."""

import functools
import importlib.util
import pathlib
from collections.abc import Callable

import flax.linen as nn
import html_text
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from audited_models import DEPTH, IMAGES, RULE, TOKENS, WIDTH, ConvNet, Looped, LoRA, MoE, PooledViT, ScannedNNX, gpt
from flax import nnx
from zoo.catalog import KINDS

import depthmup_flax as dm
from depthmup_flax import Axes, InputError, Role, depthmup, rescale_init
from depthmup_flax.auditing import model_audit
from depthmup_flax.rule.info_trees import flatten_info, info_to_json

VECTORS = jax.ShapeDtypeStruct((3, 6), jnp.float32)
audit = functools.partial(dm.audit, carry=False)  # carriers_test.py has what parameters carry


def both(model, *args, **kwargs):
    """A model and its base."""
    return model(2 * WIDTH, 2 * DEPTH, *args, **kwargs), model(WIDTH, DEPTH, *args, **kwargs)


@pytest.fixture(autouse=True, scope="module")
def traced_once():
    """Every Linen model is traced once for all tests of this module; an audit only reads the trace."""
    trace, traces = model_audit.as_model, {}

    def as_model(model, x, argument, output, kwargs, known):
        if not isinstance(model, nn.Module) or not isinstance(jax.tree.leaves(x)[0], jax.ShapeDtypeStruct):
            return trace(model, x, argument, output, kwargs, known)
        key = (model, x, output, *kwargs.items(), *known.items())
        if key not in traces:
            traces[key] = trace(model, x, argument, output, kwargs, known)
        return traces[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model_audit, "as_model", as_model)
        yield


@functools.cache
def audited(rule="depth_mup", **kwargs):
    """The audit of a decoder and its base."""
    return audit(*gpt(**kwargs), TOKENS).under(dm.get_parametrization(rule))


def names(result):
    return [finding.name for finding in result.findings]


def example(name):
    pytest.importorskip("sklearn", reason="the examples train on its digits")
    path = pathlib.Path(__file__).parents[2] / "examples" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def shapes_of(model, x, **kwargs):
    return jax.eval_shape(lambda x: model.init(jax.random.key(0), x, **kwargs), x)["params"]


# --- equal to roles by hand


def role_of(result, path):
    leaf = flatten_info(result.info)[path]
    return leaf.role, leaf.width_in, leaf.width_out, leaf.in_branch, leaf.depth_ratio


HIDDEN, INPUT, OUTPUT = (Role.HIDDEN, 2, 2, True, 2), (Role.INPUT, 1, 2, False, 1), (Role.OUTPUT, 2, 1, False, 1)
VECTOR, FIXED = (Role.VECTOR, 1, 2, True, 2), (Role.FIXED, 1, 1, False, 1)
SMALL_IMAGES = jax.ShapeDtypeStruct((2, 8, 8, 1), jnp.float32)


@pytest.mark.parametrize(
    ("name", "build", "x", "roles"),
    [
        (
            "linen_resnet",
            lambda resnet, r: resnet.ResNet(8 * r, r),
            SMALL_IMAGES,
            {
                "conv_init/kernel": INPUT, "ResNetBlock_0/Conv_1/kernel": HIDDEN, "ResNetBlock_3/Conv_0/kernel": HIDDEN,
                "ResNetBlock_2/conv_proj/kernel": (Role.HIDDEN, 2, 2, False, 1),
                "ResNetBlock_1/BatchNorm_1/scale": VECTOR, "head/kernel": OUTPUT, "head/bias": FIXED,
            },
        ),
        (
            "linen_scan_vit",
            lambda vit, r: vit.ViT(16 * r, 2 * r),
            SMALL_IMAGES,
            {
                "embedding/kernel": INPUT, "pos_embedding": INPUT, "blocks/Dense_0/kernel": HIDDEN,
                "blocks/MultiHeadDotProductAttention_0/query/bias": VECTOR, "head/kernel": OUTPUT,
            },
        ),
        (
            "nnx_transformer",
            lambda module, r: nnx.eval_shape(lambda: module.Transformer(16 * r, 2 * r, nnx.Rngs(0))),
            jax.ShapeDtypeStruct((2, 16), jnp.int32),
            {
                "embed/embedding": INPUT, "position/embedding": INPUT, "blocks/3/attention/out/kernel": HIDDEN,
                "blocks/0/up/bias": VECTOR, "norm/scale": (Role.VECTOR, 1, 2, False, 1),
            },
        ),
        (
            "plain_linen",
            lambda plain, r: plain.Net(16 * r, 2 * r),
            jax.ShapeDtypeStruct((2, 64), jnp.float32),
            {
                "stem/kernel": INPUT, "block_1/Dense_0/kernel": HIDDEN, "block_3/LayerNorm_0/bias": VECTOR,
                "head/kernel": OUTPUT,
            },
        ),
    ],
)  # fmt: skip
def test_an_example_is_read_as_by_hand(name, build, x, roles):
    module = example(name)
    options = {"linen_resnet": {"train": True}, "nnx_transformer": {"carry": True}}.get(name, {})
    result = audit(build(module, 2), build(module, 1), x, **options)
    assert result.ok
    assert {path: role_of(result, path) for path in roles} == roles


@pytest.mark.parametrize(
    ("model", "x", "options"),
    [
        (dm.ResMLP, VECTORS, {"use_bias": True, "norm": "layer"}),
        (dm.ResMLP, VECTORS, {"block_depth": 2, "scan": False, "nonlinearity": "gelu"}),
        (dm.GPT, TOKENS, {"num_heads": 2, "tied": True, "dropout": 0.1}),
        (dm.ViT, IMAGES, {"num_heads": 2, "pool": "mean", "patch_size": 4, "remat": "full"}),
        (dm.SimpleResNet, IMAGES, {}),
    ],
)
def test_our_models_are_read_by_use_in_boxes_or_without(model, x, options):
    sizes = {"base_width": 16, "base_depth": 4, **options}
    deep, base = model(10, width=32, depth=8, **sizes), model(10, width=16, depth=4, **sizes)
    functions = [
        (lambda params, x, m=m: m.apply({"params": params}, x), nn.unbox(shapes_of(m, x))) for m in (deep, base)
    ]
    # SimpleResNet counts all its layers.
    results = [audit(*models, x, depth_ratio=deep.depth_ratio) for models in (functions, (deep, base))]
    unboxed, boxed = (info_to_json(result.info) for result in results)
    assert unboxed == boxed
    assert results[0].ok
    infos = flatten_info(results[0].info)
    roles = {path: (leaf.role, leaf.in_branch, leaf.depth_ratio) for path, leaf in infos.items()}
    assert roles == {path: by_name(path, deep.depth_ratio) for path in roles}


def by_name(path, r):
    """The role of a parameter of our models, whether it is in a branch, and the branch's depth ratio."""
    module, name = path.split("/")[0], path.split("/")[-1]
    place = (True, r) if "blocks" in path or "branch" in path else (False, 1)
    if module == "readout":
        return (Role.OUTPUT if name == "kernel" else Role.FIXED), *place
    if name in ("bias", "scale"):
        return Role.VECTOR, *place
    return (Role.INPUT if module in ("stem", "positions") else Role.HIDDEN), *place


# --- multipliers


@pytest.mark.parametrize("edit", ["", "soft_cap", "sqrt_scale"])
def test_a_right_decoder_passes(edit):
    result = audited(edit=edit)
    assert result.ok
    assert (result.width_ratio, result.depth_ratio) == (2, 2)
    assert all(
        row.found == pytest.approx(row.wanted.under(RULE), rel=1e-3) for row in result.rows if row.wanted is not None
    )


@pytest.mark.parametrize(
    ("edit", "options", "finding", "paths"),
    [
        ("sqrt_embedding", {}, "embedding_scaled_with_width", {"embedding"}),
        ("sqrt_embedding", {"tied": True}, "embedding_scaled_with_width", {"embedding"}),
        ("no_multiplier", {}, "missing_branch_multiplier", {f"{n}_{i}" for n in ("o", "down") for i in range(4)}),
        ("no_readout", {}, "readout_not_scaled", {"head"}),
        ("no_readout", {"tied": True}, "readout_not_scaled", {"embedding"}),
        ("readout_twice", {}, "readout_scaled_twice", {"head"}),
        ("readout_twice", {"tied": True}, "readout_scaled_twice", {"embedding"}),
        ("sqrt_scale", {"style": "dims"}, "attention_scale", {f"{n}_{i}" for n in "qk" for i in range(4)}),
    ],
)
def test_a_missing_multiplier_is_named_with_its_layers(edit, options, finding, paths):
    result = audited(edit=edit, **options)
    assert not result.ok
    assert names(result) == [finding]
    assert set(result.findings[0].paths) == paths


def test_a_norm_after_the_multiplier_cancels_it():
    assert names(audited(edit="norm_after")) == ["norm_cancels_multiplier"]


@pytest.mark.parametrize("edit", ["", "no_multiplier", "readout_twice"])
def test_a_notebook_shows_what_print_shows(edit):
    result = audited(edit=edit)
    shown = html_text.words(result._repr_html_())
    assert html_text.printed(str(result)) == set(shown)
    assert ("1." in shown) == bool(edit)


def test_the_code_of_a_finding_uses_the_rule():
    (finding,) = audited("ode", edit="no_multiplier").findings
    assert "multiplied by 1; the rule wants 2^-alpha" in finding.text
    assert "rule.residual_multiplier(r) * y" in finding.code


# --- roles


@pytest.mark.parametrize("style", ["gqa", "mqa"])
def test_keys_and_values_whose_heads_do_not_grow_are_hidden_and_not_readouts(style):
    result = audited(style=style)
    assert result.ok
    assert role_of(result, "k_0") == role_of(result, "v_3") == (Role.HIDDEN, 2, 1, True, 2)
    assert role_of(result, "q_0") == role_of(result, "o_0") == (Role.HIDDEN, 2, 2, True, 2)


def test_values_of_grouped_heads_keep_their_size_over_widths():
    sizes, random = [], np.random.default_rng(0)
    for width in (32, 256):
        result = audit(*gpt(style="gqa", width=width, depth=DEPTH), TOKENS)
        leaf = flatten_info(result.info)["v_0"]
        # An initializer that knows no rule: the standard deviation does not depend on the width.
        values, base_values = (random.normal(0, 0.1, (n, *leaf.shape[1:])).astype("float32") for n in (width, WIDTH))
        scaled = rescale_init({"v_0": values}, {"v_0": base_values}, {"v_0": leaf}, RULE)["v_0"]
        sizes.append(np.std(np.einsum("bd,dhk->bhk", random.normal(size=(200, width)), np.asarray(scaled))))
    assert np.max(sizes) / np.min(sizes) < 1.2


def test_a_growing_number_of_experts_is_no_fan_in():
    result = audit(*both(MoE), VECTORS)
    assert result.ok
    assert role_of(result, "router_0/kernel")[:2] == (Role.HIDDEN, 2)
    assert role_of(result, "wi_0")[:3] == (Role.HIDDEN, 2, 2)
    assert role_of(result, "wo_0")[:3] == (Role.INPUT, 1, 2 * 2)  # by shape it is hidden
    alone = audit(*(MoE(WIDTH, DEPTH, experts) for experts in (4, 2)), VECTORS)
    assert role_of(alone, "wi_0")[:3] == role_of(alone, "wo_0")[:3] == (Role.INPUT, 1, 2)


@pytest.mark.parametrize(
    ("kind", "inside", "outside"),
    [
        ("branches/experts", {"router": (Role.HIDDEN, 4, 1), "wi": (Role.HIDDEN, 4, 4), "wo": (Role.HIDDEN, 4, 4)}, {}),
        ("branches/ragged_experts", {"router": (Role.HIDDEN, 4, 1), "wo": (Role.HIDDEN, 4, 4)}, {}),
        ("branches/lstm", {"u": (Role.HIDDEN, 4, 4), "w": (Role.HIDDEN, 4, 4), "bias": (Role.VECTOR, 1, 4)}, {}),
        ("streams/conditioned", {"modulation": (Role.HIDDEN, 4, 4)}, {"time_1": (Role.INPUT, 1, 4)}),
        ("ends/perceiver", {"cross/key": (Role.INPUT, 1, 4)}, {"latents": (Role.INPUT, 1, 4)}),
        ("streams/t5", {"cross/key": (Role.HIDDEN, 4, 4)}, {"encoder_norm": (Role.VECTOR, 1, 4)}),
    ],
)
def test_roles_are_by_use_and_branches_are_those_of_the_blocks(kind, inside, outside):
    result = KINDS[kind].audit()
    infos = flatten_info(result.info)
    for path, leaf in infos.items():
        is_block = path.startswith(("block_", "encoder_", "decoder_")) and "/" in path
        assert (leaf.in_branch, leaf.depth_ratio) == (is_block, 2 if is_block else 1), path
        for name, role in {**inside, **outside}.items():
            if path == name or path.endswith(f"/{name}"):
                assert (leaf.role, leaf.width_in, leaf.width_out) == role, path
    assert all(any(path.endswith(name) for path in infos) for name in (*inside, *outside))
    assert result.ok


@pytest.mark.parametrize("merged", [False, True])
def test_low_rank_additions_are_hidden_then_input(merged):
    result = audit(*both(LoRA, merged), VECTORS)
    assert result.ok
    assert role_of(result, "a_1")[:4] == (Role.HIDDEN, 2, 1, True)
    assert role_of(result, "b_1")[:4] == (Role.INPUT, 1, 2, True)
    assert role_of(result, "w_1")[:4] == (Role.HIDDEN, 2, 2, True)


@pytest.mark.parametrize("axis_name", [None, "batch"])
def test_convolutions_with_projected_shortcuts_and_squeeze_excite_are_read(axis_name):
    nets = ConvNet(2 * WIDTH, (2, 2), axis_name=axis_name), ConvNet(WIDTH, (1, 1), axis_name=axis_name)
    result = audit(*nets, IMAGES)
    assert result.ok
    assert result.depth_ratio == 2
    assert role_of(result, "stage1_block0_conv_proj/kernel") == (Role.HIDDEN, 2, 2, False, 1)
    assert role_of(result, "stage1_block0_conv1/kernel") == (Role.HIDDEN, 2, 2, True, 2)
    assert role_of(result, "stage1_block1_depthwise/kernel") == (Role.INPUT, 1, 2, True, 2)
    assert role_of(result, "stage0_block1_squeeze/kernel") == (Role.HIDDEN, 2, 1, True, 2)
    assert role_of(result, "stage0_block1_excite/kernel") == (Role.INPUT, 1, 2, True, 2)


def bottlenecks(width, blocks):
    """Numbered blocks of two stages, of which only the first of a stage has the stage's input width."""
    features = [width * 2 ** (i // blocks) for i in range(2 * blocks)]
    inputs, shapes = [width, *(4 * n for n in features)], {"stem": (6, width), "head": (8 * width, 5)}
    for i, n in enumerate(features):
        shapes |= {f"in_{i}": (inputs[i], n), f"out_{i}": (n, 4 * n)}
        shapes |= {f"proj_{n // width}": (inputs[i], 4 * n)} if inputs[i] != 4 * n else {}

    def apply(p, x):
        h, c = x @ p["stem"], RULE.residual_multiplier(blocks)
        for i, n in enumerate(features):
            y = jax.nn.relu(h @ p[f"in_{i}"]) @ p[f"out_{i}"]
            h = jax.nn.relu((h if y.shape == h.shape else h @ p[f"proj_{n // width}"]) + c * y)
        return h @ p["head"] * RULE.readout_multiplier(width / WIDTH)

    return apply, {path: jax.ShapeDtypeStruct(shape, jnp.float32) for path, shape in shapes.items()}


def test_a_block_whose_width_the_base_model_lacks_needs_a_base_of_this_depth():
    with pytest.raises(InputError, match="the base model has no layer of its width: give the base model this depth"):
        _ = audit(bottlenecks(2 * WIDTH, 3), bottlenecks(WIDTH, 1), VECTORS).info


KEPT = jax.random.bernoulli
MASKS = {
    "over its rate": lambda key, shape: KEPT(key, 0.9, shape) / 0.9,
    "of two": lambda key, shape: KEPT(key, 0.5, shape) * KEPT(key, 0.5, shape) / 0.25,
    "of what is dropped": lambda key, shape: (1 - KEPT(key, 0.1, shape)) / 0.9,
    "of signs": lambda key, shape: jax.random.rademacher(key, shape, jnp.float32),
}


@pytest.mark.parametrize(("mask_of", "shortcut"), [*((name, False) for name in MASKS), ("over its rate", True)])
def test_a_random_mask_is_no_factor_and_a_shortcut_has_none(mask_of, shortcut):
    def function(params, x, depth):
        h, c = x @ params["stem"], RULE.residual_multiplier(depth / DEPTH)
        for i in range(depth):
            mask = c * MASKS[mask_of](jax.random.key(i), (h.shape[0], 1))
            h = (c * h if shortcut else h) + mask * jax.nn.relu(h @ params["w"][i])
        return h @ params["head"] * RULE.readout_multiplier(params["head"].shape[0] / WIDTH)

    def pair(n, depth):
        shapes = {"stem": (6, n), "w": (depth, n, n), "head": (n, 5)}
        params = {path: jax.ShapeDtypeStruct(shape, jnp.float32) for path, shape in shapes.items()}
        return functools.partial(function, depth=depth), params

    result = audit(pair(2 * WIDTH, 2 * DEPTH), pair(WIDTH, DEPTH), VECTORS)
    assert names(result) == ["shortcut_in_branch"] * shortcut
    assert {row.path: row.uses for row in result.rows}["w"] == 1  # of each layer


@pytest.mark.parametrize("scan", [False, True])
def test_branches_with_the_weights_of_a_loop_are_divided_by_its_rounds(scan):
    result = audit(*both(Looped, scan), VECTORS)
    assert names(result) == ["missing_branch_multiplier"]  # the code has that of layers with weights of their own
    assert "rule.residual_multiplier(1, uses=2) * y" in result.findings[0].code
    assert result.findings[0].paths == ("w",)
    assert {row.path: row.uses for row in result.rows}["w"] == 2 * DEPTH
    assert result.depth_ratio == 2
    info = result.info["w"]
    assert (info.depth_ratio, info.uses, info.summed) == (1, 2, 2)
    assert [RULE.gradient_scale(info), RULE.update_scale(info)] == [2, 0.5]  # those of the width: a round adds its own
    carried = dm.audit(*both(Looped, scan), VECTORS)
    assert carried.ok
    assert carried.info["w"].factor(RULE) == pytest.approx(2**-0.5)


def test_weights_of_a_loop_are_right_where_the_code_divides_by_their_number():
    ode = dm.get_parametrization("ode")
    result = audit(*both(Looped, False, ode), VECTORS)
    assert result.ok
    assert not result.findings


def test_a_rule_without_depth_has_none_for_uses():
    rule = dm.get_parametrization("mup")
    result = audit(*both(Looped, False, rule), VECTORS)
    assert names(result) == ["missing_branch_multiplier"]
    assert result.under(rule).ok
    assert dm.audit(*both(Looped, False, rule), VECTORS).info["w"].factor(rule) == 1


def test_a_tied_embedding_is_used_twice_and_is_no_finding():
    result = audited(tied=True)
    assert result.ok
    assert {row.path: row.uses for row in result.rows}["embedding"] == 2
    assert role_of(result, "embedding")[:3] == (Role.INPUT, 1, 2)


@pytest.mark.parametrize("post_norm", [False, True])
def test_a_pooling_head_is_outside_of_branches(post_norm):
    result = audit(*both(PooledViT, post_norm=post_norm), IMAGES)
    assert result.ok
    assert result.depth_ratio == 2  # the head's own residual sum does not become more
    assert role_of(result, "pool_mlp/kernel") == (Role.HIDDEN, 2, 2, False, 1)
    assert role_of(result, "pool/query/kernel") == (Role.HIDDEN, 2, 2, False, 1)
    assert role_of(result, "probe")[:4] == (Role.INPUT, 1, 2, False)
    assert role_of(result, "blocks/norm_1/scale") == (Role.VECTOR, 1, 2, not post_norm, 1 if post_norm else 2)


def test_a_key_of_the_results_may_be_called_as_a_method_of_dictionaries():
    as_dictionary = lambda model: (
        lambda params, x: {"values": model.apply({"params": params}, x)},
        jax.eval_shape(model.init, jax.random.key(0), VECTORS)["params"],
    )
    assert audit(*map(as_dictionary, both(LoRA)), VECTORS, output="values").ok
    with pytest.raises(InputError, match=r"output is 'logits', but the model returns the keys \['values'\]"):
        audit(*map(as_dictionary, both(LoRA)), VECTORS, output="logits")


def test_what_no_multiplier_corrects_is_noted():
    notes = " ".join(audit(*both(PooledViT, post_norm=True), IMAGES).notes)
    assert "blocks/norm_*/scale" in notes
    assert "stand on the stream in every layer" in notes
    assert "stand on the stream" not in " ".join(audit(*both(PooledViT, post_norm=False), IMAGES).notes)
    assert "were model and base swapped?" in " ".join(audit(LoRA(WIDTH, 4), LoRA(2 * WIDTH, 2), VECTORS).notes)


class AutoNamed(nn.Module):
    """Layers that Flax numbers, so that the stem has the name of those in branches."""

    width: int
    depth: int
    layer: Callable = nn.Dense
    readout: str = "by hand"
    post_norm: bool = False

    @nn.compact
    def __call__(self, x):
        h, m = self.layer(self.width)(x), self.width / WIDTH
        for _ in range(self.depth):
            h = h + RULE.residual_multiplier(self.depth / DEPTH) * self.layer(self.width)(nn.relu(h))
            h = nn.LayerNorm(use_scale=False)(h) if self.post_norm else h
        if self.readout == "ours":
            return dm.Readout(5, RULE, m, name="head")(h)
        return nn.Dense(5, use_bias=False, name="head")(h) * RULE.readout_multiplier(m)


@pytest.mark.parametrize(
    ("layer", "x"), [(nn.Dense, VECTORS), (functools.partial(nn.Conv, kernel_size=(3, 3)), IMAGES)]
)
def test_a_stem_that_flax_numbers_with_the_branches_is_no_norm_on_the_stream(layer, x):
    result = audit(*both(AutoNamed, layer), x)
    assert result.ok
    assert "on the stream" not in str(result)


def test_norms_on_the_stream_are_noted_beside_a_stem_that_flax_numbers():
    notes = " ".join(audit(*both(AutoNamed, post_norm=True), VECTORS).notes)
    assert "LayerNorm_*/bias stand on the stream in every layer" in notes
    assert "Dense_" not in notes


def test_what_a_readout_of_ones_own_should_start_with_is_noted_with_the_call():
    by_hand = audit(*both(AutoNamed), VECTORS)
    equal, note = by_hand.notes
    assert "both 2" in equal
    assert "4 times that of the base model" in equal
    assert len(audit(AutoNamed(4 * WIDTH, 2 * DEPTH), AutoNamed(WIDTH, DEPTH), VECTORS).notes) == 1
    assert "head/kernel should start with the base model's standard deviation, m^1/2 = 1.414 times" in note
    assert "\n   write: params = dm.rescale_init(params, base_params, audit)" in str(by_hand)
    assert "embedding should start" in " ".join(audited(tied=True).notes)


def not_judged(result):
    return [place.name for place in result.not_judged]


def test_swapped_models_are_not_judged():
    model, base = both(AutoNamed)
    assert not_judged(audit(base, model, VECTORS)) == ["sizes"]
    assert not audit(base, model, VECTORS).ok


def equal_in(result):
    """The axes of equal size that the notes name."""
    is_noted = lambda how: any(f"the model is as {how} as the base model" in note for note in result.notes)
    return [axis for axis, how in (("width", "wide"), ("depth", "deep")) if is_noted(how)]


@pytest.mark.parametrize(
    ("axis", "edit", "carriers"), [("width", "no_readout", {"o", "down"}), ("depth", "no_multiplier", {"head"})]
)
def test_on_an_axis_of_equal_size_every_carried_factor_is_1_and_a_note_says_so(axis, edit, carriers):
    size, other = {"width": WIDTH, "depth": DEPTH}[axis], {"width": "no_multiplier", "depth": "no_readout"}[axis]
    for wrong, carried in ((edit, set()), (other, carriers)):
        models = gpt(edit=wrong, **{axis: size})
        result = dm.audit(*models, TOKENS)
        assert result.ok
        assert {
            row.path.partition("_")[0] for row in result.rows if not row.carried.is_one and row.carried.under(RULE) != 1
        } == carried
        assert equal_in(result) == [axis]
        assert not equal_in(dm.audit(*models, TOKENS, axes={"width", "depth"} - {axis}))
    assert equal_in(dm.audit(models[1], models[1], TOKENS)) == ["width", "depth"]


def test_the_verdict_has_three_values_and_is_the_first_line():
    right, wrong = audited(), audited(edit="no_readout")
    swapped = audit(*reversed(gpt()), TOKENS)
    results = {"ok": right, "missing": wrong, "not judged": swapped}
    assert {verdict: result.verdict for verdict, result in results.items()} == {v: v for v in results}
    assert [bool(result) for result in results.values()] == [result.ok for result in results.values()]
    assert all(str(result).startswith(f"{verdict}: ") for verdict, result in results.items())
    assert right.require() is right
    with pytest.raises(InputError, match="missing: readout_not_scaled"):
        wrong.require()
    with pytest.raises(InputError, match="not judged: sizes"):
        swapped.require()


def test_layers_without_residual_sums_are_not_judged_for_the_depth():
    def forward(params, x):
        for kernel in params["layers"]:
            x = jnp.tanh(x @ kernel)
        return x @ params["head"] * RULE.readout_multiplier(params["head"].shape[0] / WIDTH)

    def shapes(n, depth):
        layers = [jnp.ones((6, n)), *[jnp.ones((n, n))] * (depth - 1)]
        return forward, {"layers": layers, "head": jnp.ones((n, 5))}

    assert not_judged(audit(shapes(2 * WIDTH, 4), shapes(WIDTH, 2), VECTORS)) == ["depth"]
    assert audit(shapes(2 * WIDTH, 2), shapes(WIDTH, 2), VECTORS).ok  # no depth that the rule is about


def test_a_product_over_a_growing_dimension_outside_of_softmax_is_not_judged_without_attentions_scale():
    def towers(scale):  # a product that is the output itself is a readout, and not judged in any case
        net = lambda p, x: jnp.tanh(scale(p["a"].shape[1]) * (x @ p["a"]) @ (x @ p["b"]).T)
        return [(net, {"a": jnp.ones((6, n)), "b": jnp.ones((6, n))}) for n in (2 * WIDTH, WIDTH)]

    audits = (audit(*towers(scale), VECTORS) for scale in (lambda n: 1.0, lambda n: RULE.attention_scale(n, WIDTH)))
    paths = [{path for place in result.not_judged for path in place.paths} for result in audits]
    assert paths == [{"a", "b"}, set()]


class Training(nn.Module):
    """A call with an argument that has no default, and a batch of one size."""

    width: int

    @nn.compact
    def __call__(self, x, train):
        return nn.Dense(self.width)(x.reshape(3, self.width // 8, -1)) * train


def test_a_call_that_fails_is_named_with_the_error_of_flax():
    with pytest.raises(InputError) as error:
        audit(Training(16), Training(8), VECTORS)
    assert "the call model(x) with x = float32[3, 6] failed, TypeError: Training.__call__() miss" in str(error.value)
    with pytest.raises(InputError, match=r"the call base\(x\) with x = float32\[3, 6\] failed, .*reshape"):
        audit(Training(16), Training(40), VECTORS, train=True)


def test_the_audits_base_gives_the_base_initial_values_too():
    x = jnp.ones((3, 6))
    model, base = AutoNamed(16 * WIDTH, 2 * DEPTH), AutoNamed(4 * WIDTH, DEPTH)
    deep_base, info = base.clone(depth=2 * DEPTH), audit(model, base, x).info
    params, shallow, deep = (jax.jit(net.init)(jax.random.key(0), x)["params"] for net in (model, base, deep_base))
    new = rescale_init(params, shallow, info, RULE)
    jax.tree.map(np.testing.assert_array_equal, new, rescale_init(params, deep, info, RULE))
    assert float(new["head"]["kernel"].std()) == pytest.approx(float(shallow["head"]["kernel"].std()), rel=0.1)
    np.testing.assert_array_equal(new["Dense_2"]["kernel"], params["Dense_2"]["kernel"])  # 1/sqrt(fan_in) is right


def test_an_initial_value_without_an_equal_layer_in_the_base_model_is_refused():
    model, base = ConvNet(2 * WIDTH, (2, 2)), ConvNet(WIDTH, (1, 1))
    params, base_params = (
        jax.tree.map(lambda leaf: np.ones(leaf.shape, leaf.dtype), shapes_of(net, IMAGES)) for net in (model, base)
    )
    with pytest.raises(InputError, match=r"corresponds to 'stage1_block1_conv1/kernel' of shape .*: pass a base model"):
        rescale_init(params, base_params, audit(model, base, IMAGES).info, RULE)


def test_a_scale_in_an_einsum_is_a_vector_as_in_a_product():
    """MaxText's RMSNorm: ``einsum("...k,k->...k")`` is a product that contracts nothing."""

    def network(width, depth, scaled):
        def apply(params, x):
            h = x @ params["stem"]
            for block in params["blocks"]:
                y = scaled(h, block["scale"]) @ block["kernel"]
                h = h + RULE.residual_multiplier(depth / DEPTH) * y
            return scaled(h, params["last"]) @ params["head"] * RULE.readout_multiplier(width / WIDTH)

        shape = lambda *sizes: jax.ShapeDtypeStruct(sizes, jnp.float32)
        blocks = [{"scale": shape(width), "kernel": shape(width, width)} for _ in range(depth)]
        params = {"stem": shape(6, width), "blocks": blocks, "last": shape(width), "head": shape(width, 3)}
        return apply, params

    by_einsum = audit(*both(network, lambda h, scale: jnp.einsum("...k,k->...k", h, scale)), VECTORS)
    by_product = audit(*both(network, lambda h, scale: h * scale), VECTORS)
    assert by_einsum.ok
    assert str(by_einsum) == str(by_product)
    assert flatten_info(by_einsum.info)["last"].role is Role.VECTOR


def test_a_scan_of_nnx_is_read_as_stacked():
    sizes = ((2 * WIDTH, 2 * DEPTH), (WIDTH, DEPTH))
    models = [nnx.eval_shape(lambda n=n, d=d: ScannedNNX(n, d, nnx.Rngs(0))) for n, d in sizes]
    result = audit(*models, VECTORS)
    assert result.ok
    assert role_of(result, "layers/kernel") == (Role.HIDDEN, 2, 2, True, 2)
    assert role_of(result, "layers/bias") == (Role.VECTOR, 1, 2, True, 2)


# --- what a user says, compared with the trace


def test_overrides_win():
    axes = Axes(("width_in", "width_out"), in_branch=False)
    result = audit(*both(LoRA), VECTORS, overrides={"w_0": axes})
    assert role_of(result, "w_0") == (Role.HIDDEN, 2, 2, False, 1)
    result = audit(*both(LoRA), VECTORS, overrides={"head/kernel": Axes(("width_in", "vocab_out"))})
    assert role_of(result, "head/kernel") == (Role.OUTPUT, 2, 1, False, 1)


@pytest.mark.parametrize("axes", [Axes(decay=True), Axes(("width_in", "width_out"), decay=True), Axes(in_branch=False)])
def test_an_override_keeps_what_it_does_not_name(axes):
    usual, given = (flatten_info(audit(*both(LoRA), VECTORS, overrides=o).info)["w_0"] for o in ({}, {"w_0": axes}))
    expected = {name: value for name, value in vars(axes).items() if value is not None and name != "names"}
    ratio = 1.0 if expected.get("in_branch") is False else usual.depth_ratio
    same = ("role", "width_in", "width_out", "in_branch", "decay")
    assert {name: getattr(given, name) for name in same} == {name: getattr(usual, name) for name in same} | expected
    assert given.depth_ratio == ratio


def test_a_parameter_that_the_output_does_not_need_must_be_named():
    nets = gpt(edit="tuple", depth=DEPTH)
    result = audit(*nets, TOKENS, output=lambda result: result[1]["aux"])
    with pytest.raises(InputError, match=r"'head' of shape \(32, 40\) was not read \(the output does not depend on it"):
        _ = result.info
    named = audit(
        *nets,
        TOKENS,
        output=lambda result: result[1]["aux"],
        overrides={"head": Axes(("width_in", "width_out"), False)},
    )
    assert role_of(named, "head")[:3] == (Role.HIDDEN, 2, 1)


# --- what cannot be known


def test_of_equal_depth_the_depth_ratio_makes_multipliers_comparable():
    right, broken = (
        [
            model.clone(width=width, depth=2 * DEPTH)
            for model, width in zip(gpt(edit=e), (2 * WIDTH, WIDTH), strict=True)
        ]
        for e in ("", "no_multiplier")
    )
    assert equal_in(audit(*broken, TOKENS)) == ["depth"]
    assert not equal_in(audit(*right, TOKENS, depth_ratio=2.0))
    assert audit(*right, TOKENS, depth_ratio=2.0).ok
    assert names(audit(*broken, TOKENS, depth_ratio=2.0)) == ["missing_branch_multiplier"]


def test_of_equal_width_branches_are_checked_and_roles_are_by_place():
    result = audit(*gpt(edit="no_multiplier", width=WIDTH), TOKENS)
    assert names(result) == ["missing_branch_multiplier"]
    assert equal_in(result) == ["width"]
    assert role_of(result, "embedding")[0] is Role.INPUT
    assert role_of(result, "head")[0] is Role.OUTPUT
    assert role_of(result, "q_0")[0] is Role.HIDDEN


def tied(width, *names):
    """A network whose last matrix is its first, unless it has one of its own."""
    apply = lambda params, x: (x @ params["e"]) @ params.get("head", params["e"]).T
    size = VECTORS.shape[-1]
    return apply, {name: jnp.ones((size, width)) for name in names}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: audit(*gpt(edit="tuple"), TOKENS), "the model returns 2 arrays"),
        (lambda: audit(3, 4, TOKENS), "model is 3: pass a Linen, NNX or Equinox module"),
        (lambda: audit(*gpt(), TOKENS, overrides={"x": Axes(("width_in",))}), "overrides has 'x', which matches no"),
        (lambda: audit(*gpt(), TOKENS, rule=RULE), "audit takes no rule: what it finds serves every rule"),
        (lambda: audit(*gpt(), TOKENS, in_code=["ode"]), "rule is 'ode': pass a Parametrization, such as"),
        (lambda: audit(*gpt(), TOKENS, depth_ratio=0), "depth_ratio is 0: use depth / base_depth"),
        (lambda: audit(*gpt(), TOKENS, axes="heads"), "axes is 'heads'"),
        (lambda: audit(both(LoRA)[0], both(Looped)[1], VECTORS), "'a_0' of the model has no counterpart in the base"),
        (lambda: audit(tied(8, "e"), tied(4, "e", "head"), VECTORS), "'head' of the base model has no counterpart"),
        (lambda: audit(tied(8, "e", "head"), tied(4, "e"), VECTORS), "'head' of the model has no counterpart"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(InputError) as error:
        call()
    assert message in str(error.value)


def test_one_output_of_several_is_chosen():
    assert audit(*gpt(edit="tuple"), TOKENS, output=0).ok
    assert audit(*gpt(edit="tuple"), TOKENS, output=lambda result: result[0]).ok


def test_each_of_several_outputs_is_a_readout():
    def nets(value):
        def of(width, depth):
            def apply(params, x):
                h = x @ params["stem"]
                logits = h @ params["policy"] * (8 / width)
                return {"policy": logits, "value": (h @ params["value"])[:, 0] * value(width / 8)}

            sizes = {"stem": (6, width), "policy": (width, 5), "value": (width, 1)}
            return apply, {name: jnp.zeros(shape) for name, shape in sizes.items()}

        return of(16, 1), of(8, 1)

    both_read = ("policy", "value")
    assert audit(*nets(lambda m: 1 / m), VECTORS, output=both_read).ok
    forgotten = audit(*nets(lambda m: 1.0), VECTORS, output=both_read, carry=False)
    assert [(finding.name, finding.paths) for finding in forgotten.findings] == [("readout_not_scaled", ("value",))]


# --- use


def test_the_info_of_an_audit_builds_an_optimizer():
    info = audited(style="gqa").info
    params = {path: np.ones(leaf.shape, "float32") for path, leaf in info.items() if path in ("k_0", "head")}
    info = {path: info[path] for path in params}
    optimizer = depthmup(optax.scale_by_sign(), info, RULE, 1.0)
    updates, _ = optimizer.update(params, optimizer.init(params), params)
    assert np.ravel(updates["k_0"])[0] == pytest.approx(-(2**-0.5) / 2)
    assert np.ravel(updates["head"])[0] == -1


@pytest.mark.parametrize("preset", ["sp", "mup", "ode", "ntk"])
def test_the_info_of_an_audit_is_for_its_own_forward_exponents(preset):
    with pytest.raises(InputError, match=r"parametrization\.\w+ is .*but the code"):
        dm.adamw(1e-3, audited().info, dm.get_parametrization(preset))
    dm.adamw(1e-3, audited().info, RULE.replace(gamma=0.0, gamma0=2.0, branch_multiplier=3.0))


def test_the_table_has_one_line_for_equal_layers_and_the_code_to_write():
    text = str(audited(edit="no_readout"))
    lines = text.splitlines()
    assert lines[0] == "missing: readout_not_scaled (head)."
    assert lines[2].split() == ["parameter", "shape", "role", "uses", "in", "code", "wanted", "missing"]
    assert [line.split() for line in lines if line.startswith(("down", "head"))] == [
        ["down_*", "64x32", "hidden+branch", "1", "0.7071", "2^-alpha"],
        ["head", "32x40", "output", "1", "1", "1/2", "readout_not_scaled"],
    ]
    assert "write: logits = logits * rule.readout_multiplier(m)" in text
    assert len(lines) < 36


@pytest.mark.parametrize(("dtype", "noted"), [(jnp.bfloat16, True), (jnp.float16, True), (jnp.float32, False)])
def test_parameters_of_16_bits_are_noted(dtype, noted):
    def forward(params, x):
        return jax.nn.relu(x @ params["stem"]) @ params["head"] * RULE.readout_multiplier(len(params["head"]) / WIDTH)

    shapes = lambda n: {"stem": jnp.ones((6, n), dtype), "head": jnp.ones((n, 5), dtype)}
    result = audit((forward, shapes(2 * WIDTH)), (forward, shapes(WIDTH)), VECTORS, axes="width")
    assert any("16 bits" in note for note in result.notes) == noted


def test_a_factor_of_another_preset_is_right_under_that_and_under_no_other():
    completep = dm.get_parametrization("completep")
    wide, narrow = (
        dm.ResMLP(10, width=n, depth=L, base_width=8, base_depth=2, rule=completep) for n, L in ((16, 8), (8, 2))
    )
    result = audit(wide, narrow, VECTORS)
    assert result.ok
    assert result.record.alpha == 1
    assert result.under(completep).ok
    assert names(result.under(RULE)) == ["missing_branch_multiplier"]
