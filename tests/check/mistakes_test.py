"""Right networks pass, and each mistake fails in the quantity that shows it, with theory's exponent."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from chains import BASE_DEPTH, BASE_WIDTH, DEPTHS, RULE, WIDTHS, Chain, X, Y, causes, check, failed, infos

import depthmup_flax as dm
from depthmup_flax.check import Network, checked_network, coord_check
from depthmup_flax.rule.info_trees import flatten_info, is_info

HIDDEN, INPUT, OUTPUT = dm.Role.HIDDEN, dm.Role.INPUT, dm.Role.OUTPUT


def adam(info, **changes):
    return dm.adamw(3e-3, info, RULE.replace(**changes))


def decayed_inside(info):
    """Decay that gets the update scale, as in a finished AdamW whose output is scaled."""

    def update(updates, state, params):
        decay = lambda leaf, w: -3e-4 * RULE.update_scale(leaf) * w
        return jax.tree.map(jnp.add, updates, jax.tree.map(decay, info, params, is_leaf=is_info)), state

    return optax.chain(adam(info), optax.GradientTransformation(lambda params: optax.EmptyState(), update))


def lamb(info):
    return optax.chain(
        dm.scale_by_depthmup(optax.scale_by_adam(), info, RULE), optax.scale_by_trust_ratio(), optax.scale(-0.01)
    )


DENSE = "blocks/dense/kernel"
WITHOUT_DEPTH = lambda info: adam(info, gamma=0.0)
TWICE_DIVIDED = lambda info: adam(info, gamma=1.0)
# Name, axis, mistake, and the kind, name and exponent, over the rule's, of a quantity that it makes fail.
MISTAKES = [
    ("readout_not_scaled", "width", {"readout_multiplier": False}, "change", "output", 1.0),
    ("branch_outputs_have_a_mean", "depth", {"relu_last": True}, "gradient", "head/kernel", 0.5),  # TP6 sec. 6.3
    ("missing_depth_update_factor", "depth", {"make_optimizer": WITHOUT_DEPTH}, "update", DENSE, 0.5),  # TP6 Fig. 10
    ("updates_too_small_in_depth", "depth", {"make_optimizer": TWICE_DIVIDED}, "update", DENSE, -0.5),
    ("double_counted_init", "depth", {"depth_init": True}, "start", DENSE, -0.5),
    ("fixed_std_init", "width", {"fixed_std": True}, "start", DENSE, 0.5),
    ("plain_optimizer", "width", {"make_optimizer": lambda info: optax.adam(3e-3)}, "update", DENSE, 1.0),
    ("decay_inside_multipliers", "width", {"make_optimizer": decayed_inside}, "decay", DENSE, -1.0),
    ("norm_cancels_multiplier", "depth", {"norm_last": True}, "activation", "blocks", 0.5),
]


@pytest.mark.parametrize(
    ("axis", "mistake", "kind", "name", "slope"), [row[1:] for row in MISTAKES], ids=[row[0] for row in MISTAKES]
)
def test_a_mistake_fails_with_the_exponent_of_theory(axis, mistake, kind, name, slope):
    report = check(axis, **mistake)
    assert failed(report, kind, name) == pytest.approx(slope, abs=0.15)
    assert ": FAIL, " in str(report)
    assert any("cause is not known" in note for note in report.notes)


def test_updates_of_the_weights_norm_grow_over_the_rules_with_width():
    """By their size, or by their effect where the optimizer is known not to be entrywise."""
    found = {q.kind: q.fit.slope for q in check("width", make_optimizer=lamb).failures if q.name == DENSE}
    assert found in ({"update": pytest.approx(0.5, abs=0.15)}, {"effect": pytest.approx(0.5, abs=0.15)})


def test_a_missing_branch_multiplier_grows_with_depth():
    report = check("depth", branch_multiplier=False)
    assert failed(report, "gradient", DENSE) > 0.5
    assert failed(report, "change", "blocks") > 0.5


@pytest.mark.parametrize("axis", ["width", "depth"])
def test_right_networks_pass(axis):
    report = check(axis, make_optimizer=lambda info: dm.sgd(0.05, info, RULE))
    assert report.ok, str(report)
    assert not report.causes
    assert ": PASS, " in str(report)


@pytest.mark.parametrize("readout_std", [0.0, None])
def test_a_readout_that_starts_at_zero_or_shrinks_with_width_is_no_failure(readout_std):
    report = check("width", readout_std=readout_std)
    assert report.ok, str(report)
    updates = {q.name for q in report.quantities if q.kind == "gradient"}
    assert updates == {DENSE, "head/kernel", "stem/kernel"}  # none is hidden behind the zeros


def test_decay_outside_the_multipliers_removes_the_same_share_at_every_width():
    report = check("width", make_optimizer=lambda info: dm.adamw(3e-3, info, RULE, weight_decay=0.5))
    shares = {q.name: q for q in report.quantities if q.kind == "decay"}
    assert set(shares) == {DENSE, "head/kernel", "stem/kernel"}
    assert all(abs(q.fit.slope) < 1e-3 and q.passed for q in shares.values())
    (update,) = [q for q in report.quantities if (q.kind, q.name) == ("update", DENSE)]
    assert update.fit.slope == pytest.approx(0, abs=0.04)  # of the gradient's part


def test_a_network_that_does_not_train_fails():
    report = check("width", make_optimizer=lambda info: dm.adamw(0.0, info, RULE))
    assert [(q.name, q.verdict) for q in report.failures] == [("all parameters", "zero")]


def test_changes_below_float_precision_are_called_that():
    def vanishing(info):
        (m,) = {leaf.model_width for leaf in flatten_info(info).values()}
        return dm.adamw(3e-3 if m < 10 else 3e-10, info, RULE)

    report = check("width", make_optimizer=vanishing)
    assert "below precision" in {q.verdict for q in report.failures}
    assert "nan" not in str(report)


def broken(width, depth):
    chain = Chain(width, depth)
    return dataclasses.replace(chain.network(), apply=lambda params: chain.apply(params, jnp.nan * X))


def exploding(width, depth):
    return Chain(width, depth).network(lambda info: optax.sgd(1e30))


@pytest.mark.parametrize("build", [exploding, broken])
def test_what_is_not_finite_explodes(build):
    report = coord_check(build, Y, rule=RULE, width=16, depth=4, widths=(16, 32, 64), seeds=2)
    assert {q.verdict for q in report.failures} == {"explodes"}


def test_weights_that_every_block_shares_fail():
    """Under alpha = 1/2 activations grow as exp(2 sqrt(L)) times the multiplier, which shallow networks hide."""
    report = check("depth", shared=True)
    assert failed(report, "activation", "blocks") > 0.25


def scaled_start(power, name):
    """A builder of chains, weights of which start with an extra power of the width."""

    def init(chain, key):
        factor = lambda path: (chain.width / BASE_WIDTH) ** power if name in str(path) else 1.0
        return jax.tree_util.tree_map_with_path(lambda path, leaf: factor(path) * leaf, chain.init(key))

    return lambda width, depth: dataclasses.replace(
        Chain(width, depth).network(), init=lambda key: init(Chain(width, depth), key)
    )


START_SIZES = {"rule": RULE, "width": 64, "depth": 4, "widths": WIDTHS, "steps": 1, "seeds": 2}


@pytest.mark.parametrize(
    ("power", "layer", "name"),
    [(0.5, "head", "head/kernel"), (-0.5, "stem", "stem/kernel"), (-0.5, "dense", DENSE)],
    ids=["readout_init_grows_with_width", "input_init_falls_with_width", "hidden_init_falls_with_width"],
)
def test_initial_values_with_a_wrong_power_of_the_width_fail_with_it_and_rescaling_repairs_them(power, layer, name):
    build = scaled_start(power, layer)
    report = coord_check(build, Y, **START_SIZES)
    assert failed(report, "start", name) == pytest.approx(power, abs=0.1)
    (network, base), key = (build(n, 4) for n in (64, BASE_WIDTH)), jax.random.key(0)
    params, base_params = network.init(key), base.init(key)
    result = jax.jit(network.rescaled(base.init, RULE).init)(key)
    expected = dm.rescale_init(params, base_params, network.info, RULE)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), result, expected)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), result, Chain(64, 4).init(key))


def norm(h):
    return h * jax.lax.rsqrt(jnp.mean(h**2, -1, keepdims=True) + 1e-6)


@dataclasses.dataclass(frozen=True)
class TwoMatrices:
    """Blocks ``h + a * W2 relu(W1 norm(h))``, and a projection of the stream between the two halves."""

    width: int
    depth: int
    in_branch: tuple[str, ...] = ("blocks",)

    def init(self, key):
        """All parameters from one draw of random numbers."""
        n, depth = self.width, self.depth
        z = jax.random.uniform(key, (12 + (2 * depth + 1) * n + 10, n), minval=-(3**0.5), maxval=3**0.5)
        up, down = n**-0.5 * z[12 : 12 + 2 * depth * n].reshape(2, depth, n, n)
        return {
            "blocks": {"down": down, "up": up},
            "head": {"kernel": BASE_WIDTH**-0.5 * z[-10:].T},
            "proj": {"kernel": n**-0.5 * z[-10 - n : -10]},
            "stem": {"kernel": 12**-0.5 * z[:12]},
        }

    def apply(self, params):
        multiplier = RULE.residual_multiplier(self.depth / BASE_DEPTH)

        def block(h, weights):
            h = h + multiplier * jax.nn.relu(norm(h) @ weights["up"]) @ weights["down"]
            return h, h

        def half(h, start):
            weights = jax.tree.map(lambda w: w[start : start + self.depth // 2], params["blocks"])
            return jax.lax.scan(block, h, weights)

        h, first = half(X @ params["stem"]["kernel"], 0)
        h, second = half(h @ params["proj"]["kernel"], self.depth // 2)
        factor = RULE.readout_multiplier(self.width / BASE_WIDTH)
        return factor * h @ params["head"]["kernel"], {"blocks": jnp.concatenate([first, second])}

    def network(self, make_optimizer):
        shapes = jax.tree.map(jnp.shape, jax.eval_shape(self.init, jax.random.key(0)))
        roles = {"blocks": HIDDEN, "proj": HIDDEN, "head": OUTPUT, "stem": INPUT}
        info = infos(shapes, roles, self.width / BASE_WIDTH, self.depth / BASE_DEPTH, self.in_branch)
        return Network(self.init, self.apply, info, make_optimizer(info))


def down_updates_twice_divided(info):
    """An extra 1/m on the update of every block's second matrix."""

    def update(updates, state, params=None):
        down = updates["blocks"]["down"]
        return {**updates, "blocks": {**updates["blocks"], "down": down * BASE_WIDTH / down.shape[-1]}}, state

    return optax.chain(adam(info), optax.GradientTransformation(lambda params: optax.EmptyState(), update))


def check_blocks(axis, make_optimizer=adam, **fields):
    sizes = {"widths": WIDTHS} if axis == "width" else {"depths": DEPTHS}
    build = lambda width, depth: TwoMatrices(width, depth, **fields).network(make_optimizer)
    return coord_check(build, Y, rule=RULE, width=32, depth=4, **sizes)


@pytest.mark.parametrize("axis", ["width", "depth"])
def test_blocks_of_two_matrices_pass_and_their_updates_follow_the_rule(axis):
    report = check_blocks(axis)
    assert report.ok, report.details()
    found = {q.name: q.fit.slope for q in report.quantities if q.kind == "update"}
    names = ("blocks/up", "blocks/down", "proj/kernel", "stem/kernel", "head/kernel")
    assert found == pytest.approx(dict.fromkeys(names, 0), abs=0.05)


def test_a_matrix_of_a_block_whose_update_shrinks_twice_with_width_fails_alone():
    report = check_blocks("width", down_updates_twice_divided)
    assert [(q.kind, q.name) for q in report.failures] == [("update", "blocks/down")], report.details()
    assert failed(report, "update", "blocks/down") == pytest.approx(-1, abs=0.1)


def test_a_shortcut_projection_in_in_branch_fails_alone():
    report = check_blocks("depth", in_branch=("blocks", "proj"))
    assert {(q.kind, q.name) for q in report.failures} == {("gradient", "proj/kernel")}, report.details()
    assert failed(report, "gradient", "proj/kernel") == pytest.approx(0.5, abs=0.15)  # of r^alpha that it does not have


def named_blocks(width, depth, extra=lambda path, m, r: 1.0):
    """Blocks with names and biases of their own; Adam, with an extra factor on the updates of some parameters."""
    m, r = width / BASE_WIDTH, depth / BASE_DEPTH
    block = {"down": (width, width), "up": (width, width), "bias": (width,)}
    shapes = {"stem": (12, width), "head": (width, 10), **{f"block_{i}": block for i in range(depth)}}

    def init(key):
        std = lambda shape: 0.0 if len(shape) == 1 else (shape[1] if shape[1] == 10 else shape[0]) ** -0.5
        leaves, structure = jax.tree.flatten(shapes, is_leaf=lambda leaf: isinstance(leaf, tuple))
        keys = jax.random.split(key, len(leaves))
        return structure.unflatten(std(s) * jax.random.normal(k, s) for k, s in zip(keys, leaves, strict=True))

    def apply(params):
        h = X @ params["stem"]
        for i in range(depth):
            weights = params[f"block_{i}"]
            y = jax.nn.relu(norm(h) @ weights["up"] + weights["bias"]) @ weights["down"]
            h = h + RULE.residual_multiplier(r) * y
        return RULE.readout_multiplier(m) * h @ params["head"], {"stream": h}

    info = infos(shapes, {"block": HIDDEN, "head": OUTPUT, "stem": INPUT}, m, r, ("block",))
    factors = jax.tree_util.tree_map_with_path(
        lambda path, _: extra(jax.tree_util.keystr(path), m, r), info, is_leaf=is_info
    )
    times = optax.stateless(lambda updates, _: jax.tree.map(jnp.multiply, updates, factors))
    return Network(init, apply, info, optax.chain(dm.adamw(3e-3, info, RULE), times))


@pytest.mark.parametrize(
    ("axis", "extra", "expected"),
    [
        (
            "width",
            lambda path, m, r: 1 / m if "block_2" in path else 1.0,
            {"up": -1.0, "down": -1.0, "bias": -1.0},
        ),
        ("width", lambda path, m, r: 1 / m if "bias" in path else 1.0, {"bias": -1.0}),
        (
            "depth",
            lambda path, m, r: r**0.5 if "block_0" in path else 1.0,
            {"up": 0.5, "down": 0.5, "bias": 0.5},
        ),
    ],
    ids=["one_layer_over_width", "biases", "one_layer_over_depth"],
)
def test_one_wrong_layer_among_right_ones_and_wrong_biases_are_found(axis, extra, expected):
    sizes = {"widths": (32, 128)} if axis == "width" else {"depths": (4, 10)}
    build = lambda width, depth: named_blocks(width, depth, extra)
    report = coord_check(build, Y, rule=RULE, width=32, depth=3, **sizes, steps=1, seeds=2)
    wrong = {q.name: q.fit.slope for q in report.failures if q.kind == "update"}
    assert wrong == {f"block_*/{name}": pytest.approx(slope, abs=0.05) for name, slope in expected.items()}


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

    shapes = {"head": (width, 10), "layers": [{"w": (width, width), "b": (width,)}] * depth, "stem": (12, width)}
    roles, branches = (
        {"head": OUTPUT, "layers": HIDDEN, "stem": INPUT},
        [f"layers/{i}/" for i in range(depth) if inside(i)],
    )
    info = infos(shapes, roles, width / BASE_WIDTH, depth / BASE_DEPTH, branches)
    return Network(init, apply, info, dm.adamw(1e-3, info, RULE))


def test_branches_that_info_does_not_know_grow_with_depth():
    build = lambda width, depth: chain_with(width, depth, lambda i: i % 2 == 0)
    report = coord_check(build, Y, rule=RULE, width=64, depth=4, depths=(4, 16))
    assert failed(report, "gradient", "layers/* (hidden)/w") == pytest.approx(-0.5, abs=0.1)
    assert {q.name for q in report.failures} == {"layers/* (hidden)/w"}, report.details()


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


SEQUENCES = jax.random.normal(jax.random.key(0), (4, 3, 12))


@pytest.mark.parametrize("usual_scale", [False, True])
def test_attention_scaled_by_the_square_root_of_the_head_dimension_grows(usual_scale):
    def build(width, depth):
        model = AttentionNet(width, usual_scale)
        base = AttentionNet(BASE_WIDTH, usual_scale)
        audit = dm.audit(model, base, SEQUENCES, axes="width", carry=False)
        info = audit.accept(*(finding.name for finding in audit.findings)).info
        return checked_network(model, SEQUENCES, info=info, optimizer=dm.adamw(3e-3, info, RULE))

    report = coord_check(build, Y, rule=RULE, width=32, depth=1, widths=WIDTHS)
    if usual_scale:
        assert causes(report)["attention_scale"] == ("attention/key/kernel", "attention/query/kernel")
    else:
        assert report.ok, str(report)


TEXT = jax.random.randint(jax.random.key(2), (2, 6), 0, 96)


@dataclasses.dataclass(frozen=True)
class Tied:
    """A language model whose table of tokens is its readout, too; wrong if a field is set."""

    width: int
    depth: int = 2
    stream_factor: float = 0.0  # the table is multiplied by width to this power where it embeds
    output_factor: float = 0.0  # and here where it reads out, besides 1/m

    def init(self, key):
        n, depth = self.width, self.depth
        z = jax.random.normal(key, (96 + 6 + depth * n, n))
        layers = n**-0.5 * z[102:].reshape(depth, n, n)
        return {"blocks": {"kernel": layers}, "pos_embed": z[96:102], "tokens": {"embedding": z[:96]}}

    def apply(self, params):
        multiplier = RULE.residual_multiplier(self.depth / 2)
        block = lambda h, kernel: (h + multiplier * jax.nn.relu(norm(h)) @ kernel, None)
        table = params["tokens"]["embedding"]
        stream = table[TEXT] * self.width**self.stream_factor + params["pos_embed"]
        h = norm(jax.lax.scan(block, stream, params["blocks"]["kernel"])[0])
        factor = RULE.readout_multiplier(self.width / BASE_WIDTH) * (self.width / BASE_WIDTH) ** -self.output_factor
        return factor * h @ table.T, {"stream": stream, "final": h}

    def network(self):
        shapes = jax.tree.map(jnp.shape, jax.eval_shape(self.init, jax.random.key(0)))
        info = infos(shapes, {"blocks": HIDDEN, "pos_embed": INPUT, "tokens": INPUT}, self.width / BASE_WIDTH, 1.0)
        return Network(self.init, self.apply, info, dm.adamw(1e-3, info, RULE))


def check_tied(**fields):
    build = lambda width, depth: Tied(width, **fields).network()
    labels = jnp.roll(TEXT, -1, axis=1)
    return coord_check(build, labels, rule=RULE, width=32, depth=2, widths=(32, 128))


def test_a_tied_readout_passes_at_widths_at_which_its_noise_still_falls():
    report = check_tied()
    assert report.ok, report.details()


@pytest.mark.parametrize(
    ("fields", "kind", "name", "slope"),
    [
        ({"stream_factor": 0.5}, "activation", "stream", 0.5),
        ({"output_factor": 0.5}, "gradient", "tokens/embedding", -0.5),
    ],
    ids=["embedding_scaled_with_width", "readout_scaled_twice"],
)
def test_factors_of_the_width_at_a_tied_embedding_fail(fields, kind, name, slope):
    assert failed(check_tied(**fields), kind, name) == pytest.approx(slope, abs=0.1)
