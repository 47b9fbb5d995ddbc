"""Mistakes that only one group of parameters shows, each beside the right network; and tied readouts."""

import dataclasses

import jax
import jax.numpy as jnp
import optax
import pytest
from chains import BASE_DEPTH, BASE_WIDTH, DEPTHS, RULE, WIDTHS, Chain, X, Y, causes, check
from recorded_checks import recorded

import depthmup_flax as dm
from depthmup_flax.check import Network, coord_check
from depthmup_flax.rule.info_trees import is_info


def norm(h):
    return h * jax.lax.rsqrt(jnp.mean(h**2, -1, keepdims=True) + 1e-6)


@dataclasses.dataclass(frozen=True)
class TwoMatrices:
    """Blocks ``h + a * W2 relu(W1 norm(h))``, and a projection of the stream between the two halves."""

    width: int
    depth: int
    in_branch: tuple[str, ...] = ("blocks",)
    rule: dm.Parametrization = RULE

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
        multiplier = self.rule.residual_multiplier(self.depth / BASE_DEPTH)

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
        models = (self, dataclasses.replace(self, width=BASE_WIDTH))
        shapes = [jax.eval_shape(model.init, jax.random.key(0)) for model in models]
        branches = {"in_branch": self.in_branch, "depth_ratio": self.depth / BASE_DEPTH}
        info = dm.infer_info(*shapes, readout="head", stacked="blocks", **branches)
        return Network(self.init, self.apply, info, make_optimizer(info))


def adam(info):
    return dm.adamw(3e-3, info, RULE)


def down_updates_twice_divided(info):
    """An extra 1/m on the update of every block's second matrix."""

    def update(updates, state, params=None):
        down = updates["blocks"]["down"]
        return {**updates, "blocks": {**updates["blocks"], "down": down * BASE_WIDTH / down.shape[-1]}}, state

    return optax.chain(adam(info), optax.GradientTransformation(lambda params: optax.EmptyState(), update))


def check_blocks(axis, name, make_optimizer=adam, **fields):
    sizes = {"widths": WIDTHS} if axis == "width" else {"depths": DEPTHS}
    build = lambda width, depth: TwoMatrices(width, depth, **fields).network(make_optimizer)
    with recorded(name):
        return coord_check(build, Y, rule=RULE, width=32, depth=4, steps=2, seeds=3, **sizes)


@pytest.mark.parametrize("axis", ["width", "depth"])
def test_blocks_of_two_matrices_pass_and_their_updates_follow_the_rule(axis):
    report = check_blocks(axis, f"two_matrices_{axis}")
    assert report.ok, report.details()
    found = {q.name: q.fit.slope for q in report.quantities if q.kind == "update"}
    expected = {"blocks/up": -1, "blocks/down": -1, "proj/kernel": -1, "stem/kernel": 0, "head/kernel": 0}
    if axis == "depth":
        expected = {"blocks/up": -0.5, "blocks/down": -0.5, "proj/kernel": 0, "stem/kernel": 0, "head/kernel": 0}
    assert found == pytest.approx(expected, abs=0.05)


def test_a_matrix_of_a_block_whose_update_shrinks_twice_with_width_is_named():
    report = check_blocks("width", "one_matrix_twice_divided", down_updates_twice_divided)
    assert causes(report) == {"updates_too_small_in_width": ("blocks/down",)}, report.details()
    (update,) = [q for q in report.failures if q.kind == "update"]
    assert update.fit.slope == pytest.approx(-2, abs=0.1)
    together = [q for q in report.quantities if q.group == "branches"]
    assert all(q.passed for q in together)  # the first matrix hides it


def named_blocks(width, depth, extra=lambda path, m, r: 1.0):
    """Blocks with names and biases of their own; Adam, with an extra factor on the updates of some parameters."""
    m, r = width / BASE_WIDTH, depth / BASE_DEPTH
    block = lambda n: {"down": (n, n), "up": (n, n), "bias": (n,)}
    sizes = lambda n: {"stem": (12, n), "head": (n, 10), **{f"block_{i}": block(n) for i in range(depth)}}
    is_shape = lambda leaf: isinstance(leaf, tuple)
    shapes = lambda n: jax.tree.map(lambda s: jax.ShapeDtypeStruct(s, jnp.float32), sizes(n), is_leaf=is_shape)

    def init(key):
        std = lambda shape: 0.0 if len(shape) == 1 else (shape[1] if shape[1] == 10 else shape[0]) ** -0.5
        leaves, structure = jax.tree.flatten(sizes(width), is_leaf=is_shape)
        keys = jax.random.split(key, len(leaves))
        return structure.unflatten(std(s) * jax.random.normal(k, s) for k, s in zip(keys, leaves, strict=True))

    def apply(params):
        h = X @ params["stem"]
        for i in range(depth):
            weights = params[f"block_{i}"]
            y = jax.nn.relu(norm(h) @ weights["up"] + weights["bias"]) @ weights["down"]
            h = h + RULE.residual_multiplier(r) * y
        return RULE.readout_multiplier(m) * h @ params["head"], {"stream": h}

    info = dm.infer_info(shapes(width), shapes(BASE_WIDTH), in_branch="block_*", depth_ratio=r, readout="head")
    factors = jax.tree_util.tree_map_with_path(
        lambda path, _: extra(jax.tree_util.keystr(path), m, r), info, is_leaf=is_info
    )
    times = optax.stateless(lambda updates, _: jax.tree.map(jnp.multiply, updates, factors))
    return Network(init, apply, info, optax.chain(dm.adamw(3e-3, info, RULE), times))


@pytest.mark.parametrize(
    ("name", "axis", "extra", "expected"),
    [
        (
            "one_layer_over_width",
            "width",
            lambda path, m, r: 1 / m if "block_2" in path else 1.0,
            {"up": -2.0, "down": -2.0, "bias": -1.0},
        ),
        ("biases", "width", lambda path, m, r: 1 / m if "bias" in path else 1.0, {"bias": -1.0}),
        (
            "one_layer_over_depth",
            "depth",
            lambda path, m, r: r**0.5 if "block_0" in path else 1.0,
            {"up": 0.0, "down": 0.0, "bias": 0.0},
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_one_wrong_layer_among_right_ones_and_wrong_biases_are_found(name, axis, extra, expected):
    sizes = {"widths": (32, 64, 128)} if axis == "width" else {"depths": (4, 6, 10)}
    build = lambda width, depth: named_blocks(width, depth, extra)
    with recorded(name):
        report = coord_check(build, Y, rule=RULE, width=32, depth=3, **sizes, steps=1, seeds=2)
    wrong = {q.name: q.fit.slope for q in report.failures if q.kind == "update"}
    assert wrong == {f"block_*/{name}": pytest.approx(slope, abs=0.05) for name, slope in expected.items()}
    growth = "missing_depth_update_factor" if axis == "depth" else "updates_too_small_in_width"
    assert next(iter(causes(report))) == growth


def test_a_shortcut_projection_in_in_branch_is_named():
    report = check_blocks("depth", "shortcut_in_branch", in_branch=("blocks", "proj"))
    assert causes(report) == {"shortcut_in_branch": ("proj",)}, report.details()
    assert {q.group for q in report.failures} == {"proj"}
    assert {q.expected for q in report.failures} == {-1.0}  # of one layer among L, by alpha + gamma


@pytest.mark.parametrize(("preset", "falls"), [("depth_mup", True), ("ode", False)])
def test_blocks_of_two_matrices_become_linear_in_their_own_change_under_depth_mup_alone(preset, falls):
    """TP6 section 9: the product of two changes of L^-1/2 falls behind their sum as L^-1/2."""
    rule = dm.get_parametrization(preset, branch_multiplier=0.5)
    make_optimizer = lambda info: dm.adamw(3e-3, info, rule)
    build = lambda width, depth: TwoMatrices(width, depth, rule=rule).network(make_optimizer)
    with recorded(f"two_matrices_{preset}"):
        report = coord_check(build, Y, rule=rule, width=64, depth=4, depths=(8, 16, 32, 64), steps=2, seeds=6)
    (note,) = report.notes
    assert note in str(report)
    assert ("learn no features inside a block" in note) == falls
    assert ("keep learning features of their own" in note) == (not falls)
    assert report.ok, report.details()


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


@pytest.mark.usefixtures("also_trained")
@pytest.mark.parametrize(
    ("axis", "fields", "expected"),
    [
        ("width", {"make_optimizer": decayed_inside}, {"decay_inside_multipliers": ("blocks/dense/kernel",)}),
        ("width", {"make_optimizer": lamb}, {"not_entrywise": ("blocks/dense/kernel",)}),
        ("depth", {"norm_last": True}, {"norm_cancels_multiplier": ("blocks/dense/kernel",)}),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else value,
)
def test_mistakes_of_the_optimizer_and_of_branches_have_names(axis, fields, expected):
    report = check(axis, sizes=next(iter(expected)), **fields)
    assert causes(report) == expected, report.details()


def test_decay_outside_the_multipliers_removes_the_same_share_at_every_width():
    optimizer = lambda info: dm.adamw(3e-3, info, RULE, weight_decay=0.5)
    report = check("width", sizes="decay_outside_multipliers", make_optimizer=optimizer)
    shares = {q.name: q for q in report.quantities if q.kind == "decay"}
    assert set(shares) == {"blocks/dense/kernel", "head/kernel", "stem/kernel"}
    assert all(abs(q.fit.slope) < 1e-3 and q.passed for q in shares.values())
    (update,) = [q for q in report.quantities if (q.kind, q.name) == ("update", "blocks/dense/kernel")]
    assert update.fit.slope == pytest.approx(-1, abs=0.02)  # of the gradient's part


def test_a_weight_whose_role_contradicts_its_shape_is_named():
    def build(width, depth):
        network = Chain(width, depth).network()
        change = lambda leaf: dataclasses.replace(leaf, role=dm.Role.INPUT) if leaf.in_branch else leaf
        info = jax.tree.map(change, network.info, is_leaf=is_info)
        return dataclasses.replace(network, info=info, optimizer=adam(info))

    with recorded("wrong_role"):
        report = coord_check(build, Y, rule=RULE, width=32, depth=4, widths=WIDTHS, steps=2, seeds=3)
    assert causes(report) == {"wrong_role": ("blocks/dense/kernel",)}, report.details()


TOKENS = jax.random.randint(jax.random.key(2), (2, 6), 0, 96)


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
        stream = table[TOKENS] * self.width**self.stream_factor + params["pos_embed"]
        h = norm(jax.lax.scan(block, stream, params["blocks"]["kernel"])[0])
        factor = RULE.readout_multiplier(self.width / BASE_WIDTH) * (self.width / BASE_WIDTH) ** -self.output_factor
        return factor * h @ table.T, {"stream": stream, "final": h}

    def network(self):
        models = (self, dataclasses.replace(self, width=BASE_WIDTH))
        shapes = [jax.eval_shape(model.init, jax.random.key(0)) for model in models]
        info = dm.infer_info(*shapes, in_branch="blocks", depth_ratio=1.0, readout="tokens", stacked="blocks")
        return Network(self.init, self.apply, info, dm.adamw(1e-3, info, RULE))


def check_tied(name, **fields):
    build = lambda width, depth: Tied(width, **fields).network()
    labels = jnp.roll(TOKENS, -1, axis=1)
    with recorded(name):
        return coord_check(build, labels, rule=RULE, width=32, depth=2, widths=(32, 64, 128), steps=2, seeds=3)


def test_a_tied_readout_passes_at_widths_at_which_its_noise_still_falls():
    report = check_tied("tied")
    assert report.ok, report.details()
    noisy = {}
    for r in report.records:
        if (r.group, r.quantity, r.name, r.step) == ("pos_embed", "change", "output", 1):
            noisy.setdefault(r.size, []).append(r.value)
    assert sum(noisy[128]) < 0.75 * sum(noisy[32])  # the change of all outputs, of which most classes are noise
    (moved,) = [q for q in report.quantities if (q.group, q.name) == ("pos_embed", "output")]
    assert abs(moved.fit.slope) < 0.1  # the part along the loss's slope


@pytest.mark.parametrize(
    ("fields", "cause"),
    [
        ({"stream_factor": 0.5}, "embedding_scaled_with_width"),
        ({"output_factor": 0.5}, "readout_scaled_twice"),
    ],
)
def test_factors_of_the_width_at_a_tied_embedding_are_named(fields, cause):
    report = check_tied(cause, **fields)
    assert not report.ok
    assert causes(report) == {cause: ("tokens",)}, report.details()
