"""The networks compute what the papers write, the same scanned and unrolled."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from drawn import descend, drawn

import depthmup_flax as dm
from depthmup_flax.auditing.config_audit import audited_model
from depthmup_flax.models import create_model
from depthmup_flax.models.resnet import even_stages, segment_lengths
from depthmup_flax.nn.layers import NONLINEARITIES
from depthmup_flax.rule.info_trees import flatten_info, path_name

VECTORS = jax.random.normal(jax.random.key(1), (4, 20))
IMAGES = jax.random.normal(jax.random.key(1), (4, 8, 8, 3))
TOKENS = jax.random.randint(jax.random.key(1), (4, 12), 0, 5)
# One small network of each kind, with inputs.
EACH = [
    (dm.ResMLP(5, width=64, depth=8), VECTORS),
    (dm.SimpleResNet(5, width=64, depth=8), IMAGES),
    (dm.ResNet(5, width=8, depth=8), IMAGES),
    (dm.ViT(5, width=32, depth=2, patch_size=4), IMAGES),
    (dm.GPT(5, width=32, depth=2), TOKENS),
]
NAMES = [type(model).__name__ for model, _ in EACH]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(each, id=name, marks=[pytest.mark.slow] * (name == "ResNet"))
        for each, name in zip(EACH, NAMES, strict=True)
    ],
)
def network(request):
    """A model of each kind with biases, its inputs and its initial variables."""
    model, x = request.param
    model = model.clone(width=32, base_width=16, use_bias=True)
    return model, x, init(model, x)


def init(model, x, seed=0):
    return nn.unbox(jax.jit(model.init)(jax.random.key(seed), x))


def apply(model, variables, x, **kwargs):
    return jax.jit(lambda v: model.apply(v, x, **kwargs))(variables)


def loss_and_grads(model, variables, x):
    def loss(params):
        logits, _ = model.apply({**variables, "params": params}, x, train=True, mutable=["batch_stats"])
        return jnp.mean(jnp.square(logits - 1.0))

    return jax.jit(jax.value_and_grad(loss))(variables["params"])


def assert_trees_equal(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    jax.tree.map(np.testing.assert_array_equal, a, b)


def assert_trees_close(a, b, rtol):
    a, b = jax.device_get((a, b))
    scale = max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(b))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=rtol, atol=rtol * scale), a, b)


@pytest.mark.parametrize("pre_nonlin", [False, True])
def test_res_mlp_is_the_papers_recursion(pre_nonlin):
    """TP6 6.3 (post) and B24 Eq. 1 (pre), written out in NumPy, with every nonlinearity."""
    rule = dm.get_parametrization(alpha=0.7, gamma=0.3, branch_multiplier=1.3, gamma0=0.5)
    model = dm.ResMLP(
        7, width=32, depth=6, base_width=8, base_depth=2, rule=rule, pre_nonlin=pre_nonlin, block_depth=2,
        use_bias=True,
    )  # fmt: skip
    variables = {"params": drawn(model, VECTORS)}
    functions = {
        "relu": lambda z: np.maximum(z, 0), "abs": np.abs, "linear": lambda z: z, "tanh": np.tanh,
        "erf": np.vectorize(math.erf),
        "gelu": lambda z: 0.5 * z * (1 + np.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3))),
    }  # fmt: skip
    assert functions.keys() == NONLINEARITIES.keys()
    models = {name: model.clone(nonlinearity=name) for name in functions}
    outputs = jax.jit(lambda v: {name: model.apply(v, VECTORS) for name, model in models.items()})(variables)
    for name, phi in functions.items():
        expected = recursion(variables["params"], phi, pre_nonlin)
        np.testing.assert_allclose(outputs[name], expected, rtol=2e-4, atol=2e-5, err_msg=name)


def recursion(params, phi, pre_nonlin):
    p = jax.tree.map(lambda a: np.asarray(a, np.float64), params)
    h = np.asarray(VECTORS, np.float64) @ p["stem"]["kernel"] + p["stem"]["bias"]
    for i in range(6):
        z = h
        for name in ("dense_0", "dense_1"):
            layer = p["blocks"]["branch"][name]
            z = (
                phi(z) @ layer["kernel"][i] + layer["bias"][i]
                if pre_nonlin
                else phi(z @ layer["kernel"][i] + layer["bias"][i])
            )
        h = h + 1.3 * 3**-0.7 * (z - z.mean(-1, keepdims=True))
    return ((phi(h) if pre_nonlin else h) @ p["readout"]["kernel"] / 4 + p["readout"]["bias"]) / 0.5


def test_simple_resnet_is_the_papers_recursion():
    """B24 App. A.1, with JAX's own convolution and pooling, block after block."""
    model = dm.SimpleResNet(7, width=32, depth=6, base_width=16, base_depth=3)
    p = drawn(model, IMAGES)
    conv = lambda x, kernel: jax.lax.conv_general_dilated(
        x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )

    @jax.jit
    def expected(p):
        h = conv(IMAGES, p["stem"]["conv"]["kernel"])
        for i, blocks in enumerate((2, 1, 2, 1)):  # pooling after blocks 2, 3 and 5
            if i:
                b, height, width, c = h.shape
                h = h.reshape(b, height // 2, 2, width // 2, 2, c).mean((2, 4))
                h = conv(jax.nn.relu(h), p[f"widen_{i}"]["conv"]["kernel"])
            for j in range(blocks):
                h = h + (9 / 6) ** -0.5 * conv(jax.nn.relu(h), p[f"segment_{i}"]["branch"]["conv"]["kernel"][j])
        return jax.nn.relu(h).reshape(4, -1) @ p["readout"]["kernel"] / 2

    np.testing.assert_allclose(apply(model, {"params": p}, IMAGES), expected(p), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("depth", "expected"),
    [(3, [1, 1, 1, 0]), (4, [1, 1, 1, 1]), (6, [2, 1, 2, 1]), (12, [3, 3, 3, 3]), (30, [8, 7, 8, 7])],
)
def test_three_poolings_are_equally_spaced_over_depth(depth, expected):
    assert segment_lengths(depth) == expected
    assert sum(expected) == depth


@pytest.mark.parametrize(
    ("model", "x"),
    [
        (dm.ResMLP(5, width=16, depth=5, block_depth=2, norm="layer", use_bias=True, nonlinearity="abs"), VECTORS),
        pytest.param(
            dm.SimpleResNet(5, width=16, depth=5, norm="batch", use_bias=True), IMAGES, marks=pytest.mark.slow
        ),
        pytest.param(dm.ResNet(5, width=4, depth=5, stage_sizes=(2, 3), norm="batch"), IMAGES, marks=pytest.mark.slow),
        pytest.param(
            dm.GPT(5, width=16, depth=3, tied=True, head_dim=8, positions="rotary", norm="none"),
            TOKENS,
            marks=pytest.mark.slow,
        ),
    ],
)
def test_scanned_and_unrolled_are_one_network_with_one_checkpoint(model, x):
    looped, unrolled = model.clone(scan=True), model.clone(scan=False)
    variables = init(looped, x)
    assert_trees_equal(variables, init(unrolled, x))  # same tree, same initial values: same checkpoint
    value, grads = loss_and_grads(looped, variables, x)
    value_unrolled, grads_unrolled = loss_and_grads(unrolled, variables, x)
    np.testing.assert_allclose(value, value_unrolled, rtol=1e-6)
    assert_trees_close(grads, grads_unrolled, rtol=1e-6)


def test_norm_in_the_branch_does_not_cancel_the_multiplier():
    """The increment of a normalized branch is a r^-1/2 times something of unit size."""
    model = dm.SimpleResNet(5, width=64, depth=13, base_depth=1 + 3, norm="batch")

    @jax.jit
    def streams(key):
        _, recorded = model.apply(model.init(key, IMAGES), IMAGES, train=True, mutable=["intermediates", "batch_stats"])
        return recorded["intermediates"]["segment_0"]["stream"][0]

    first, second, *_ = np.asarray(streams(jax.random.key(0)))
    increment = float(np.sqrt(np.mean((second - first) ** 2)))
    assert increment == pytest.approx((16 / 7) ** -0.5, rel=0.05)


def test_batch_norm_uses_batch_statistics_in_training_and_running_ones_in_evaluation():
    images = jax.random.normal(jax.random.key(1), (4, 16, 16, 3))
    model = dm.SimpleResNet(5, width=16, depth=4, norm="batch")
    initial = jax.eval_shape(lambda: nn.unbox(model.init(jax.random.key(0), images)))["batch_stats"]
    assert jax.tree.leaves(initial)[0].shape[0] == 1  # stacked with the block
    variables = {"params": drawn(model, images), "batch_stats": jax.tree.map(lambda x: np.ones(x.shape), initial)}
    train = jax.jit(lambda v: model.apply(v, images, train=True, mutable=["batch_stats"]))
    evaluate = jax.jit(lambda v: model.apply(v, images, train=False))
    trained, updated = train(variables)
    assert float(jnp.abs(trained - evaluate(variables)).max()) > 1e-3
    # After many passes over one batch the running averages are that batch's.
    for _ in range(100):
        _, updated = train({**variables, **updated})
    np.testing.assert_allclose(evaluate({**variables, **updated}), trained, atol=0.02)


@pytest.mark.gpu
def test_bfloat16_computes_in_bfloat16_with_float32_parameters_and_stream(network):
    exact, x, variables = network
    rounded = exact.clone(dtype="bfloat16")
    shapes = jax.eval_shape(lambda: nn.unbox(rounded.init(jax.random.key(0), x)))
    assert jax.tree.map(lambda leaf: leaf.dtype, shapes) == jax.tree.map(lambda _: jnp.dtype("float32"), variables)
    forward = jax.jit(lambda v: (rounded.apply(v, x, mutable=["intermediates"]), exact.apply(v, x))).trace(variables)
    assert "bf16" in str(forward.jaxpr)
    (logits, recorded), expected = forward.lower().compile()(variables)
    assert logits.dtype == jnp.float32
    streams = [x for path, x in jax.tree_util.tree_flatten_with_path(recorded)[0] if "stream" in path_name(path)]
    assert {leaf.dtype for leaf in streams} == {jnp.dtype("float32")}
    error = float(jnp.abs(logits - expected).max())
    assert 0 < error < 0.05 * float(jnp.abs(logits).max()) + 0.01


@pytest.mark.parametrize(
    ("model", "x", "zero"),
    [
        (dm.ResMLP(5, width=16, depth=3, zero_init_branch=True, pre_nonlin=True, block_depth=2), VECTORS, "dense_1"),
        (dm.SimpleResNet(5, width=16, depth=4, zero_init_branch=True), IMAGES, "conv"),
    ],
)
def test_zero_init_branch_starts_as_the_identity_and_gets_gradients(model, x, zero):
    variables = init(model, x)
    _, grads = loss_and_grads(model, variables, x)
    _, recorded = apply(model, variables, x, mutable=["intermediates"])
    for streams in jax.tree.leaves(jax.device_get(recorded["intermediates"])):
        np.testing.assert_array_equal(streams, np.broadcast_to(streams[0], streams.shape))
    grads = jax.device_get(grads)
    leaves = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_flatten_with_path(grads)[0]}
    assert all(bool(np.any(leaf != 0)) for path, leaf in leaves.items() if zero in path)


def test_training_under_vmap_over_learning_rates_and_seeds_is_training_alone():
    model, x = dict(zip(NAMES, EACH, strict=True))["ResMLP"]  # lanes of other models: search/sweep/
    model = model.clone(width=8, depth=4)
    info = audited_model(model, x).info
    labels = jnp.arange(4)

    def train(learning_rate, seed):
        variables = nn.unbox(model.init(jax.random.key(seed), x))
        params, rest = variables["params"], {k: v for k, v in variables.items() if k != "params"}
        optimizer = dm.sgd(learning_rate, info, model.rule, momentum=0.9)

        def loss(params):
            logits, _ = model.apply({"params": params, **rest}, x, train=True, mutable=["batch_stats"])
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        return descend(loss, optimizer, params, 3)

    rates, seeds = jnp.array([0.003, 0.03]), jnp.array([0, 1])
    together = jax.jit(jax.vmap(train))(rates, seeds)
    train = jax.jit(train)
    alone = jnp.stack([train(*pair) for pair in zip(rates, seeds, strict=True)])
    np.testing.assert_allclose(together, alone, rtol=2e-3)
    assert bool((together[:, -1] < together[:, 0]).all())


def initial_std(path, leaf, model):
    """``1/sqrt(fan_in)``, of the base width for readout and positions; see the docstrings of the layers."""
    name, is_stacked = path.split("/"), leaf.shape[0] == model.depth and len(leaf.shape) > 2
    if name[-1] in ("bias", "scale") or "query" in name:
        return 0.0
    if name[-1] == "embedding":
        return 1.0
    if name[-1] in ("positions", "class_token"):
        return 1 / math.sqrt(model.base_width)
    fan_in = math.prod(leaf.shape[:-1]) / (leaf.shape[0] if is_stacked or "segment" in path or "stage" in path else 1)
    return 1 / math.sqrt(fan_in / (model.width_ratio if name[0] == "readout" else 1))


def test_every_parameter_has_the_initial_standard_deviation_of_the_papers(network):
    model, x, variables = network
    params = jax.device_get(variables["params"])
    leaves = flatten_info(audited_model(model, x).info)
    for path, value in ((path_name(path), x) for path, x in jax.tree_util.tree_leaves_with_path(params)):
        # 5 standard errors of a standard deviation.
        expected = initial_std(path, leaves[path], model)
        assert float(value.std()) == pytest.approx(expected, rel=5 / math.sqrt(2 * value.size)), path
        assert leaves[path].in_branch == any(part in path for part in ("blocks", "segment", "stage", "/conv_"))
    zero = init(model.clone(zero_init_readout=True), x)["params"]
    assert not jnp.any(zero["readout"]["kernel"])


def test_resnet_is_he_et_al_with_the_activation_first_and_a_scaled_branch():
    """Block after block, with JAX's own convolutions and batch statistics (B24 App. A.2)."""
    model = dm.ResNet(7, width=8, depth=5, base_width=4, base_depth=2, stage_sizes=(2, 3), norm="batch")
    variables = init(model, IMAGES)
    p = variables["params"]

    def conv_norm(x, layer, index=None, stride=1):
        kernel = layer["conv"]["kernel"] if index is None else layer["conv"]["kernel"][index]
        y = jax.lax.conv_general_dilated(
            x, kernel, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return (y - y.mean((0, 1, 2))) / jnp.sqrt(y.var((0, 1, 2)) + 1e-5)

    def branch(x, block, index=None, stride=1):
        y = conv_norm(jax.nn.relu(x), block["conv_1"], index, stride)
        return 2.5**-0.5 * conv_norm(jax.nn.relu(y), block["conv_2"], index)

    @jax.jit
    def expected(p):
        h = conv_norm(IMAGES, p["stem"])
        for i in range(2):
            h = h + branch(h, p["stage_0"], i)
        h = conv_norm(h, p["down_1"]["shortcut"], stride=2) + branch(h, p["down_1"], stride=2)
        for i in range(2):
            h = h + branch(h, p["stage_1"], i)
        return jax.nn.relu(h).mean((1, 2)) @ p["readout"]["kernel"] / 2

    logits, _ = apply(model, variables, IMAGES, train=True, mutable=["batch_stats"])
    np.testing.assert_allclose(logits, expected(p), rtol=1e-3, atol=1e-4)


def test_resnet_18_has_the_parameters_of_he_et_al():
    """11.17 million for CIFAR-10, 11.69 million for ImageNet, 21.8 million for ResNet-34 there, as commonly printed."""

    def count(model, side):
        shapes = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, side, side, 3)))
        return sum(leaf.size for leaf in jax.tree.leaves(shapes["params"]))

    readout_bias = 10
    assert count(dm.ResNet(10), 32) == 11_173_962 - readout_bias
    assert count(dm.ResNet(1000, stem="imagenet"), 224) == 11_689_512 - 1000
    assert count(dm.ResNet(1000, depth=16, stage_sizes=(3, 4, 6, 3), stem="imagenet"), 224) == 21_797_672 - 1000


@pytest.mark.parametrize(
    ("depth", "expected"), [(4, (1, 1, 1, 1)), (5, (1, 1, 2, 1)), (8, (2, 2, 2, 2)), (15, (3, 4, 4, 4))]
)
def test_stages_are_as_equal_as_the_depth_allows(depth, expected):
    assert even_stages(depth) == expected


WRONG_FIELDS = [
    ("ResMLP", "width", {"width": 0}),
    ("ResMLP", "width", {"width": 12.5}),
    ("ResMLP", "base_width", {"base_width": -1}),
    ("ResMLP", "nonlinearity", {"nonlinearity": "rleu"}),
    ("ResMLP", "norm", {"norm": "batch"}),
    ("ResMLP", "dtype", {"dtype": "bf17"}),
    ("ResMLP", "zero_init_branch", {"zero_init_branch": True}),
    ("SimpleResNet", "width", {"width": 20}),
    ("SimpleResNet", "base_width", {"base_width": 4}),
    ("SimpleResNet", "depth", {"depth": 2}),
    ("ResNet", "stem", {"stem": "imagnet"}),
    ("ResNet", "depth", {"depth": 3}),
    ("ResNet", "stage_sizes", {"stage_sizes": (3, 4, 6, 3)}),
    ("ViT", "width", {"width": 30}),
    ("ViT", "base_width", {"width": 64, "base_width": 30}),
    ("ViT", "width", {"width": 30, "head_dim": 8}),
    ("ViT", "pool", {"pool": "max"}),
    ("ViT", "dropout", {"dropout": 1.0}),
    ("ViT", "positions", {"width": 32, "base_width": 8, "num_heads": 4, "positions": "rotary"}),
    ("GPT", "positions", {"width": 36, "num_heads": 4, "positions": "rotary"}),
    ("GPT", "qk_norm", {"qk_norm": "no"}),
    ("GPT", "stream_dtype", {"stream_dtype": "int8"}),
    ("GPT", "num_kv_heads", {"width": 32, "num_heads": 4, "num_kv_heads": 3}),
    ("GPT", "num_kv_heads", {"width": 40, "base_width": 32, "head_dim": 8, "num_kv_heads": 2}),
    ("GPT", "mlp_features", {"width": 48, "base_width": 32, "mlp_features": 85}),
    ("GPT", "zero_init_readout", {"tied": True, "zero_init_readout": True}),
    ("ResMLP", "scan", {"scan": -1}),
    ("ResMLP", "scan", {"scan": "x"}),
]


@pytest.mark.parametrize(("model", "field", "fields"), WRONG_FIELDS)
def test_a_wrong_field_is_named_before_anything_is_traced(model, field, fields):
    with pytest.raises(dm.InputError, match=rf"^model\.{field} is "):
        getattr(dm, model)(10, **fields)


@pytest.mark.parametrize(
    ("model", "x", "named"),
    [
        (dm.ResNet(10), jnp.zeros((1, 4, 4, 3)), "at least 8 x 8 pixels"),
        (dm.SimpleResNet(10), jnp.zeros((1, 4, 4, 3)), "at least 8 x 8 pixels"),
        (dm.ViT(10, patch_size=7), jnp.zeros((1, 32, 32, 3)), "model.patch_size is 7"),
    ],
)
def test_an_input_of_a_wrong_shape_is_named(model, x, named):
    with pytest.raises(dm.InputError, match=named):
        jax.eval_shape(model.init, jax.random.key(0), x)


def test_a_wrong_name_of_a_model_or_a_field_is_told_what_was_meant():
    with pytest.raises(dm.InputError, match="'resmlp': did you mean 'res_mlp'"):
        create_model("resmlp", num_classes=2, rule=None)
    with pytest.raises(dm.InputError, match="'dpeth' for 'res_mlp': did you mean 'depth'"):
        create_model("res_mlp", num_classes=2, rule=dm.get_parametrization(), dpeth=3)
