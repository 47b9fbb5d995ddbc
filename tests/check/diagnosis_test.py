"""The check names what is wrong, and where."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from chains import BASE_DEPTH, BASE_WIDTH, RULE, WIDTHS, X, Y, causes, check
from recorded_checks import recorded

import depthmup_flax as dm
from depthmup_flax.check import Network, checked_network, coord_check
from depthmup_flax.rule.info_trees import flatten_info

SEQUENCES = jax.random.normal(jax.random.key(0), (4, 3, 12))


@pytest.mark.parametrize("axis", ["width", "depth"])
def test_right_networks_have_no_causes(axis):
    report = check(axis, sizes=f"sgd_{axis}", make_optimizer=lambda info: dm.sgd(0.05, info, RULE), seeds=5)
    assert report.ok, str(report)
    assert not report.causes
    assert ": PASS, " in str(report)


def test_a_missing_branch_multiplier_is_named():
    report = check("depth", branch_multiplier=False)
    assert not report.ok
    assert next(iter(causes(report))) == "missing_branch_multiplier"
    assert any(layer.startswith("blocks") for layer in causes(report)["missing_branch_multiplier"])
    assert "rule.residual_multiplier(r)" in str(report)


def test_branches_that_end_in_a_relu_add_up_their_mean_with_depth():
    """Why TP6 6.3 subtracts it: the mean of L nonnegative increments of L^-1/2 is L^1/2."""
    report = check("depth", sizes="branch_outputs_have_a_mean", relu_last=True)
    assert list(causes(report)) == ["branch_outputs_have_a_mean"]
    assert causes(report)["branch_outputs_have_a_mean"] == ("blocks",)


def test_a_readout_that_is_not_scaled_is_named():
    report = check("width", sizes="readout_not_scaled", readout_multiplier=False)
    assert causes(report)["readout_not_scaled"] == ("head",)
    alone = [q for q in report.failures if q.group == "head" and q.name == "output"]
    assert alone[0].fit.slope == pytest.approx(1.0, abs=0.2)  # Adam; the features it reads are flat


def test_a_missing_depth_factor_of_the_update_is_named():
    """The network is right, the optimizer lacks r^-gamma: block_only (TP6 Fig. 10)."""
    optimizer = lambda info: dm.adamw(3e-3, info, RULE.replace(gamma=0.0))
    report = check("depth", sizes="missing_depth_update_factor", make_optimizer=optimizer)
    assert list(causes(report)) == ["missing_depth_update_factor"]
    assert causes(report)["missing_depth_update_factor"] == ("blocks/dense/kernel",)
    alone = [q for q in report.failures if q.group == "branches" and q.name == "features"]
    assert alone[0].fit.slope == pytest.approx(0.5, abs=0.2)


@pytest.mark.usefixtures("also_trained")
def test_a_plain_optimizer_lacks_the_width_factor_of_the_update():
    report = check("width", sizes="plain_optimizer", make_optimizer=lambda info: optax.adam(3e-3))
    assert "blocks/dense/kernel" in causes(report)["missing_width_update_factor"]
    assert "depthmup(direction, info, rule" in str(report)


def test_initial_values_that_count_depth_twice_are_named():
    report = check("depth", sizes="double_counted_init", depth_init=True)
    assert causes(report)["double_counted_init"] == ("blocks/dense/kernel",)
    assert any(q.kind == "activation" and q.verdict == "vanishes" for q in report.failures)


def test_initial_values_of_one_standard_deviation_at_every_width_are_named():
    report = check("width", sizes="fixed_std_init", fixed_std=True)
    assert causes(report)["fixed_std_init"] == ("blocks/dense/kernel",)
    assert "rescale_init" in str(report)


def test_a_network_that_does_not_train_fails():
    report = check("width", sizes="nothing_trains", make_optimizer=lambda info: dm.adamw(0.0, info, RULE))
    assert list(causes(report)) == ["nothing_trains"]


def test_updates_that_shrink_twice_with_depth_are_named():
    optimizer = lambda info: dm.adamw(3e-3, info, RULE.replace(gamma=1.0))
    report = check("depth", sizes="updates_too_small_in_depth", make_optimizer=optimizer)
    assert causes(report)["updates_too_small_in_depth"] == ("blocks/dense/kernel",)


def test_changes_below_float_precision_are_called_that():
    def vanishing(info):
        (m,) = {leaf.model_width for leaf in flatten_info(info).values()}
        return dm.adamw(3e-3 if m < 10 else 3e-12, info, RULE)

    report = check("width", sizes="below_precision", make_optimizer=vanishing)
    assert "below precision" in str(report)
    assert "nan" not in str(report)
    assert list(causes(report)) == ["below_precision"]


@pytest.mark.parametrize("readout_std", [0.0, None])
def test_a_readout_that_starts_at_zero_or_shrinks_with_width_is_no_failure(readout_std):
    report = check("width", sizes=f"readout_std_{readout_std}", readout_std=readout_std)
    assert report.ok, str(report)
    moved = {q.group for q in report.quantities if q.kind == "change" and q.name == "output"}
    assert moved >= {"everything", "stem", "blocks/dense", "head"}  # none is hidden behind the zeros


def chain_with(width, depth, inside):
    """A right network of which info knows only some layers, ``inside(i)``, as branches."""

    def init(key):
        z = jax.random.normal(key, (12 + depth * width, width))
        layers = [{"w": w * width**-0.5, "b": jnp.zeros(width)} for w in z[12:].reshape(depth, width, width)]
        return {"head": jnp.zeros((width, 10)), "layers": layers, "stem": z[:12] * 12**-0.5}

    def apply(params):
        h = X @ params["stem"]
        for layer in params["layers"]:
            h = h + RULE.residual_multiplier(depth / BASE_DEPTH) * (jnp.tanh(h) @ layer["w"] + layer["b"])
        return h @ params["head"] * RULE.readout_multiplier(width / BASE_WIDTH), {"stream": h}

    m, r = width / BASE_WIDTH, depth / BASE_DEPTH
    leaf = lambda role, *shape, **fields: dm.ParamInfo(dm.Role(role), shape, model_width=m, width_out=m, **fields)
    branch = lambda i: {"in_branch": True, "depth_ratio": r} if inside(i) else {}
    layers = [
        {"w": leaf("hidden", width, width, width_in=m, **branch(i)), "b": leaf("vector", width, **branch(i))}
        for i in range(depth)
    ]
    head = dm.ParamInfo(dm.Role.OUTPUT, (width, 10), width_in=m, model_width=m)
    info = {"head": head, "layers": layers, "stem": leaf("input", 12, width)}
    return Network(init, apply, info, dm.adamw(1e-3, info, RULE))


@pytest.mark.usefixtures("also_trained")
def test_branches_that_info_does_not_know_are_named():
    build = lambda width, depth: chain_with(width, depth, lambda i: i % 2 == 0)
    with recorded("in_branch_incomplete"):
        report = coord_check(build, Y, rule=RULE, width=64, depth=4, depths=(4, 8, 16), steps=2, seeds=3)
    assert causes(report) == {"in_branch_incomplete": ("layers/* (hidden)", "vectors outside")}, str(report)
    with pytest.raises(dm.InputError, match="residual branches at depth 4 and 272 at depth 8, but the network grows"):
        coord_check(lambda w, d: chain_with(w, d, lambda i: i == 0), Y, rule=RULE, width=16, depth=4, depths=(4, 8, 16))


def infer(model, base, x, **kwargs):
    """Roles in a Linen module of which depth is no matter."""
    shapes = [jax.eval_shape(m.init, jax.random.key(0), x)["params"] for m in (model, base)]
    return dm.infer_info(*shapes, depth_ratio=1.0, readout="head", **kwargs)


class AttentionNet(nn.Module):
    """One attention layer whose heads grow in size."""

    width: int
    usual_scale: bool = False

    @nn.compact
    def __call__(self, x):
        ours = dm.attention_fn(RULE, self.width // 2, BASE_WIDTH // 2)
        attention = nn.dot_product_attention if self.usual_scale else ours
        h = nn.Dense(self.width, use_bias=False, name="stem")(x)
        h = h + 0.5 * nn.MultiHeadDotProductAttention(2, attention_fn=attention, name="attention")(h, h)
        h = h.mean(1) * RULE.readout_multiplier(self.width / BASE_WIDTH)
        return nn.Dense(10, kernel_init=nn.initializers.normal(BASE_WIDTH**-0.5), name="head")(h)


@pytest.mark.usefixtures("also_trained")
@pytest.mark.parametrize("usual_scale", [False, True])
def test_attention_scaled_by_the_square_root_of_the_head_dimension_is_named(usual_scale):
    def build(width, depth):
        model = AttentionNet(width, usual_scale)
        info = infer(model, AttentionNet(BASE_WIDTH, usual_scale), SEQUENCES, in_branch="attention")
        return checked_network(model, SEQUENCES, info=info, optimizer=dm.adamw(3e-3, info, RULE))

    with recorded(f"attention_{usual_scale}"):
        report = coord_check(build, Y, rule=RULE, width=32, depth=1, widths=WIDTHS, steps=2, seeds=3)
    for scale in (q for q in report.quantities if q.kind == "attention scale"):  # measured where no code is read
        assert scale.fit.slope == pytest.approx(0.5 if usual_scale else 0.0, abs=0.1)
    if usual_scale:
        assert causes(report)["attention_scale"] == ("attention/key/kernel", "attention/query/kernel")
    else:
        assert report.ok, str(report)


class EmbedNet(nn.Module):
    """Flax's embeddings start smaller, the wider they are."""

    width: int

    @nn.compact
    def __call__(self, x):
        h = nn.Embed(12, self.width, name="tokens")(x)
        h = h + RULE.branch_multiplier * nn.Dense(self.width, name="block")(nn.relu(nn.LayerNorm(name="norm")(h)))
        return nn.Dense(12, name="head")(h * RULE.readout_multiplier(self.width / BASE_WIDTH))


TOKENS = jnp.arange(12).reshape(2, 6)


def embed_network(width):
    """The network, and the function of a key that gives the base model's parameters."""
    model, base = EmbedNet(width), EmbedNet(BASE_WIDTH)
    info = infer(model, base, TOKENS, in_branch=("block", "norm"))
    network = checked_network(model, TOKENS, info=info, optimizer=dm.adamw(1e-3, info, RULE))
    return network, lambda key: base.init(key, TOKENS)["params"]


@pytest.mark.slow
@pytest.mark.parametrize("rescaled", [False, True])
def test_an_embedding_that_starts_smaller_with_width_is_named_and_rescaling_repairs_it(rescaled):
    def build(width, depth):
        network, base_init = embed_network(width)
        return network.rescaled(base_init, RULE) if rescaled else network

    with recorded(f"embedding_{rescaled}"):
        report = coord_check(build, TOKENS, rule=RULE, width=64, depth=1, widths=WIDTHS, steps=2, seeds=3)
    if rescaled:
        assert report.ok, str(report)
    else:
        assert causes(report) == {"input_init_falls_with_width": ("tokens/embedding",)}, str(report)


def test_a_rescaled_network_starts_from_what_rescale_init_gives():
    network, base_init = embed_network(16)
    params, base_params = (jax.jit(init)(jax.random.key(0)) for init in (network.init, base_init))
    expected = dm.rescale_init(params, base_params, network.info, RULE)
    result = jax.jit(network.rescaled(base_init, RULE).init)(jax.random.key(0))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), result, expected)
    assert not np.allclose(result["tokens"]["embedding"], params["tokens"]["embedding"])
