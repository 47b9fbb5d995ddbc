"""Parameters carry a factor that the code lacks: the network is then the one with the factor in its code."""

import functools
import itertools
import logging

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest

import depthmup_flax as dm
from depthmup_flax.rule import info_trees
from depthmup_flax.rule.factor import Factor
from depthmup_flax.rule.info_trees import is_info
from depthmup_flax.util.errors import InputError

A = 0.5
RULE = dm.get_parametrization("depth_mup", branch_multiplier=A)
BASE, SIZE = (8, 1), (32, 4)  # width, depth
TOKENS, WINDOW, STEPS = 11, 6, 50


def rms_normed(x):
    return x / jnp.sqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)


def attention(query, key, value, scale):
    """Causal, with one head that grows."""
    scores = jnp.where(jnp.tril(jnp.ones((WINDOW, WINDOW), bool)), jnp.einsum("bte,bse->bts", query, key) * scale, -1e9)
    return jax.nn.softmax(scores) @ value


def scanned(block, h, blocks):
    return jax.lax.scan(lambda h, q: (block(h, q), None), h, blocks)[0]


def factors(size, edited):
    """Of branches, of embeddings, of scores and of logits: in the code, or in none of it."""
    width, depth = size
    if not edited:
        return 1.0, width**0.5, width**-0.5, 1.0
    m = width / BASE[0]
    branch, logits = RULE.residual_multiplier(depth / BASE[1]), RULE.readout_multiplier(m)
    return branch, BASE[0] ** 0.5, RULE.attention_scale(width, BASE[0]), logits


def tied(size, edited):
    """A tied GPT. Carriers: a last matrix with its bias, LayerScale, a norm of Gemma, fused queries, the final norm."""
    multiplier, root, scale, logits = factors(size, edited)

    def block(h, q):
        y = rms_normed(h) * q["norm"]
        y = attention(*jnp.split(y @ q["qkv"] + q["qkv_bias"], 3, -1), scale)
        h = h + multiplier * (y @ q["out"] + q["out_bias"])
        h = h + multiplier * (jax.nn.gelu(rms_normed(h) @ q["up"]) @ q["down"]) * q["layer_scale"]
        y = jax.nn.gelu(rms_normed(h) @ q["up_2"]) @ q["down_2"]
        return h + multiplier * rms_normed(y) * (1 + q["gemma"])

    def apply(p, tokens):
        h = scanned(block, p["table"][tokens] * root, p["blocks"])
        return (rms_normed(h) * p["final"] + p["final_bias"]) @ p["table"].T * logits

    return apply


def untied(size, edited):
    """A GPT with a head. Carriers: convolutions, one of two stacked matrices, a norm with a bias, that of queries."""
    multiplier, root, scale, logits = factors(size, edited)
    conv = functools.partial(jax.lax.conv_general_dilated, window_strides=(1,), padding=[(2, 0)])
    conv = functools.partial(conv, dimension_numbers=("NWC", "WIO", "NWC"))

    def block(h, q):
        y = rms_normed(h)
        query, key = rms_normed(y @ q["query"]) * q["query_norm"], rms_normed(y @ q["key"]) * q["key_norm"]
        y = attention(query, key, y @ q["value"], scale) @ q["out"]
        h = h + multiplier * (rms_normed(y) * q["post"] + q["post_bias"])
        h = h + multiplier * conv(jax.nn.relu(conv(rms_normed(h), q["up"])), q["down"])
        h = h + multiplier * jnp.tanh(rms_normed(h) @ q["both"][0]) @ q["both"][1]
        return h + multiplier * jax.nn.relu(rms_normed(h) @ q["last"] + q["last_bias"])

    def apply(p, tokens):
        h = scanned(block, p["table"][tokens] * root, p["blocks"])
        return rms_normed(h) @ p["head"] * logits + p["head_bias"]

    return apply


def shapes(make, size):
    width, depth = size
    w, square = (width,), (width, width)
    outer, block = dict(table=(TOKENS, width)), dict(out=square)
    if make is tied:
        block |= dict(qkv=(width, 3 * width), qkv_bias=(3 * width,))
        block |= dict(norm=w, out_bias=w, up=(width, 2 * width), down=(2 * width, width), layer_scale=w)
        block |= dict(up_2=(width, 2 * width), down_2=(2 * width, width), gemma=w)
        outer |= dict(final=w, final_bias=w)
    else:
        block |= dict(query=square, key=square, value=square, both=(2, *square))
        block |= dict(query_norm=w, key_norm=w, post=w, post_bias=w, up=(3, *square), down=(3, *square))
        block |= dict(last=square, last_bias=w)
        outer |= dict(head=(width, TOKENS), head_bias=(TOKENS,))
    return outer | {"blocks": {name: (depth, *shape) for name, shape in block.items()}}


ONES = ("norm", "final", "layer_scale", "query_norm", "key_norm", "post")


def initial(make, size, seed=0):
    rng = np.random.default_rng(seed)

    def draw(path, shape):
        name, own = path[-1].key, shape[1:] if path[0].key == "blocks" else shape
        std = 1.0 if name == "table" else np.prod(own[:-1]) ** -0.5 if len(own) > 1 else 0.1
        return jnp.asarray(rng.normal(float(name in ONES), std, shape), jnp.float32)

    return jax.tree_util.tree_map_with_path(draw, shapes(make, size), is_leaf=lambda x: isinstance(x, tuple))


BATCH = jnp.asarray(np.random.default_rng(1).integers(0, TOKENS, (4, WINDOW)))


def audited(make, edited, size=SIZE):
    pair = lambda size: (make(size, edited), initial(make, size))
    return dm.audit(pair(size), pair(BASE), BATCH)


def trained(make, edited, optimizer):
    """The losses, and the parameters as those of the network with the factors in its code."""
    audit = audited(make, edited)
    info = audit.info
    params = dm.rescale_init(initial(make, SIZE), initial(make, BASE), info, RULE)
    tx, apply = optax.with_extra_args_support(optimizer(info)), make(SIZE, edited)

    def loss(params):
        return optax.softmax_cross_entropy_with_integer_labels(apply(params, BATCH), jnp.roll(BATCH, -1, 1)).mean()

    def step(carry, _):
        params, state = carry
        value, grads = jax.value_and_grad(loss)(params)
        updates, state = tx.update(grads, state, params, value=value, grad=grads, value_fn=loss)
        return (optax.apply_updates(params, updates), state), value

    (params, _), losses = jax.jit(lambda p: jax.lax.scan(step, (p, tx.init(p)), None, STEPS))(params)
    return losses, jax.tree.map(lambda leaf, v: leaf.uncarried(v, RULE), info, params, is_leaf=is_info)


def on_matrices(turned_back, geometry):
    """An optimizer like another library's Shampoo or SOAP of stacks of hidden matrices, and Adam of the others."""

    def init(params):
        return jax.tree.map(lambda p: moments(jnp.zeros_like(p)), params)

    def update(grads, state, params=None):
        del params
        state = jax.tree.map(lambda g, sums: jax.tree.map(jnp.add, sums, moments(g)), grads, state)
        bases = eigenvectors(state)
        return jax.tree.map(lambda g, both: turned_back(g, *both), grads, bases), state

    def optimizer(info):
        is_square = lambda x: x.is_matrix and x.shape[1:] == (SIZE[0], SIZE[0])  # others take longer
        of_kind = lambda matrix, other: jax.tree.map(lambda x: matrix if is_square(x) else other, info, is_leaf=is_info)
        parts = {"matrix": optax.GradientTransformation(init, update), "other": ADAM}
        inner = optax.partition(parts, of_kind("matrix", "other"))
        return dm.depthmup(inner, info, RULE, SCHEDULE, geometry=of_kind(geometry, "sign"), **OPTIONS)

    return optimizer


def moments(g):
    """Of a stack of matrices."""
    return g @ g.mT, g.mT @ g


def eigenvectors(state):
    """One decomposition after another: at once they wait for each other for ever (jax 0.10.2, two cores)."""
    arrays, structure = jax.tree.flatten(state)
    found, before = [], 0.0
    for x in arrays:
        # The diagonal tells eigenvectors apart.
        found.append(jnp.linalg.eigh(x + jnp.diag(jnp.arange(1.0, 1 + len(x[0]))) + before))
        before = 0.0 * found[-1][0].max()
    return structure.unflatten(found)


def shampoo(g, left, right):
    root = lambda values, vectors: (vectors * values[..., None, :] ** -0.25) @ vectors.mT
    return root(*left) @ g @ root(*right)


def soap(g, left, right):
    """Adam in the eigenbasis, without averages."""
    turned = left[1].mT @ g @ right[1]
    return left[1] @ (turned / (jnp.abs(turned) + 1e-3)) @ right[1].mT


# All with decay, clipping and a schedule.
SCHEDULE = optax.cosine_decay_schedule(1e-3, STEPS)
OPTIONS = dict(weight_decay=0.1, clip_rms=0.01)
ADAM = optax.scale_by_adam(eps=1e-3)
FACTORED = optax.scale_by_factored_rms(min_dim_size_to_factor=4)
CLIPPED = optax.chain(FACTORED, optax.clip_by_block_rms(1.0))
of = lambda inner: lambda info: dm.depthmup(inner, info, RULE, SCHEDULE, **OPTIONS)
OPTIMIZERS = {
    "adam": lambda info: dm.adamw(SCHEDULE, info, RULE, eps=1e-3, decay_width_exponent=-1, **OPTIONS),
    "momentum": lambda info: dm.sgd(lambda t: 30 * SCHEDULE(t), info, RULE, momentum=0.9, **OPTIONS),
    "lion": of(optax.scale_by_lion()),
    "muon": lambda info: dm.muon(SCHEDULE, info, RULE, **OPTIONS),
    "shampoo": on_matrices(shampoo, "two_sided"),
    "soap": on_matrices(soap, "rotated"),
    "lamb": of(optax.chain(ADAM, optax.scale_by_trust_ratio())),
    "lars": of(optax.chain(optax.scale_by_trust_ratio(), optax.trace(0.9))),
    "factored": of(FACTORED),
    "adafactor": of(optax.chain(CLIPPED, optax.scale_by_param_block_rms())),
    "wrapped": lambda info: optax.apply_if_finite(
        optax.MultiSteps(dm.freeze(OPTIMIZERS["adam"](info), info, ["table"]), 2).gradient_transformation(), 3
    ),
    "schedule_free": lambda info: optax.contrib.schedule_free(of(ADAM)(info), SCHEDULE),
    "line search": lambda info: optax.chain(of(ADAM)(info), optax.scale_by_backtracking_linesearch(10)),
}
FAST = (untied, "adam")
SLOW = [case for case in zip(itertools.cycle((tied, untied)), OPTIMIZERS) if case != FAST]


@pytest.mark.parametrize(("make", "name"), [FAST, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)])
def test_a_network_that_carries_its_factors_trains_as_the_one_with_the_factors_in_its_code(make, name):
    losses, params = trained(make, False, OPTIMIZERS[name])
    wanted, wanted_params = trained(make, True, OPTIMIZERS[name])
    assert wanted[-1] < wanted[0] - 0.05
    np.testing.assert_allclose(losses, wanted, rtol=1e-5)
    for tree in (params, wanted_params):
        if "qkv_bias" in tree["blocks"]:  # softmax ignores the keys' bias: its gradient is rounding, of either sign
            tree["blocks"]["qkv_bias"] = np.delete(tree["blocks"]["qkv_bias"], np.s_[SIZE[0] : 2 * SIZE[0]], axis=-1)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=2e-3, atol=2e-4), params, wanted_params)


def test_each_factor_is_carried_by_the_nearest_parameters_that_are_used_nowhere_else():
    audit = audited(tied, False)
    m, r = SIZE[0] / BASE[0], SIZE[1] / BASE[1]
    carried = {row.path: row.carried for row in audit.rows if not row.carried.is_one}
    blocks = {f"blocks/{name}" for name in ("out", "out_bias", "layer_scale", "gemma")}
    queries = {"blocks/qkv": (((m**0.5, 1.0, 1.0),),), "blocks/qkv_bias": ((m**0.5, 1.0, 1.0),)}
    assert audit.ok
    assert carried.keys() == blocks | queries.keys() | {"table", "final", "final_bias"}
    assert {carried[path] for path in blocks} == {Factor(depth=r, multiplier=1.0)}
    assert {path: carried[path] for path in queries} == {path: Factor(width=width) for path, width in queries.items()}
    # Embeddings are multiplied by sqrt(width): the table has m^-1/2 of it, so that what it multiplies has the rest.
    assert carried["table"] == Factor(constant=pytest.approx(m**-0.5))
    assert carried["final"] == carried["final_bias"] == Factor(constant=pytest.approx(m**0.5), width=m, output=m)
    assert {row.info.offset for row in audit.rows if row.path.endswith("gemma")} == {1.0}


def test_a_model_with_its_factors_in_the_code_carries_none():
    for make in (tied, untied):
        assert all(row.carried.is_one for row in audited(make, True).rows)


def branch_net(end):
    """A residual network whose branch is ``end(parameters of the block, normed stream)``; it has two matrices."""

    def make(width, depth):
        block = {"a": jax.ShapeDtypeStruct((width, width), jnp.float32)}
        block["b"] = block["a"]
        outer = {"stem": jax.ShapeDtypeStruct((5, width), jnp.float32)}
        params = outer | {f"block_{layer}": block for layer in range(depth)}

        def apply(p, x):
            h = x @ p["stem"]
            for layer in range(depth):
                h = h + end(p[f"block_{layer}"], rms_normed(h))
            return rms_normed(h)[:, 0]

        return apply, params

    return make


def normed_as_haiku_does(x, scale, offset):
    """A norm that multiplies the scale by the inverse deviation first."""
    return (x - x.mean(0)) * (jax.lax.rsqrt(x.var(0) + 1e-5) * scale) + offset


def rounded(w):
    """To 8 bits, straight through."""
    scale = jnp.max(jnp.abs(w)) / 127
    return w + jax.lax.stop_gradient(jnp.round(w / scale) * scale - w)


def decayed(x):
    """A sum over places, which a loop starts from zeros."""
    step = lambda state, now: (0.9 * state + now, 0.9 * state + now)
    return jax.lax.scan(step, jnp.zeros_like(x[0]), x)[1]


@pytest.mark.parametrize(
    ("end", "carriers"),
    [
        (lambda q, h: jax.nn.gelu(h @ q["a"]) @ q["b"], {"b"}),
        (lambda q, h: jnp.maximum(h @ q["a"], 0) + h @ q["b"], {"a", "b"}),
        (lambda q, h: jax.nn.sigmoid(h @ q["a"]) * (h @ q["b"]), {"b"}),
        (lambda q, h: jnp.concatenate([h @ q["a"], h @ q["b"]], 1)[:, ::2], {"a", "b"}),
        (lambda q, h: jax.checkpoint(lambda y: y @ q["b"])(jnp.tanh(h @ q["a"])), {"b"}),
        (lambda q, h: jnp.tanh(h @ q["a"]) @ rounded(q["b"]), {"b"}),
        (lambda q, h: decayed(jnp.tanh(h @ q["a"]) * q["b"][0]), {"b"}),
        (lambda q, h: normed_as_haiku_does(h @ q["a"], *q["b"][:2]), {"b"}),
        (lambda q, h: jnp.tanh(h @ q["a"] @ q["b"]), None),  # a nonlinearity at the end
        (lambda q, h: (h @ q["a"]) * (h @ q["a"]) + h @ q["b"], None),  # a square
        (lambda q, h: rms_normed(jnp.tanh(h @ q["a"]) @ q["b"]), None),  # a norm without a scale
        (lambda q, h: jnp.tanh(jnp.tanh(h @ q["a"]) @ q["b"]) @ q["b"], None),  # its weights act twice
    ],
)
def test_a_branch_is_carried_by_what_it_is_homogeneous_in_or_by_nothing(end, carriers):
    make = branch_net(end)
    audit = dm.audit(make(16, 4), make(8, 1), jnp.ones((3, 5)))
    found = {row.path.partition("/")[2] for row in audit.rows if not row.carried.is_one}
    assert found == (carriers or set())
    assert (carriers is None) == ("missing_branch_multiplier" in [f.name for f in audit.findings])


PLAIN = RULE.replace(branch_multiplier=1.0)


@pytest.mark.parametrize("size", [BASE, (SIZE[0], BASE[1]), (BASE[0], SIZE[1])])
def test_the_same_lines_work_at_the_base_and_on_one_axis_alone(size):
    audit = audited(tied, False, size)
    params = dm.rescale_init(initial(tied, size), initial(tied, BASE), audit.info, PLAIN)
    dm.adamw(1e-3, audit.info, PLAIN).init(params)
    carries = {row.path.rpartition("/")[2] for row in audit.rows if np.any(row.carried.under(PLAIN, row.shape) != 1)}
    of_width, of_depth = (
        {"qkv", "qkv_bias", "table", "final", "final_bias"},
        {"out", "out_bias", "layer_scale", "gemma"},
    )
    assert carries == (of_width if size[0] != BASE[0] else set()) | (of_depth if size[1] != BASE[1] else set())


def test_what_is_carried_is_the_same_for_all_rules_and_their_numbers_may_be_traced():
    info = audited(untied, False).info
    rules = [PLAIN.replace(alpha=alpha, branch_multiplier=a) for alpha, a in ((0.0, 1.0), (0.75, 2.0), (1.0, 0.5))]
    leaf = info["blocks"]["last"]
    traced = jax.jit(lambda alpha, a: leaf.factor(RULE.replace(alpha=alpha, branch_multiplier=a)))
    r = SIZE[1] / BASE[1]
    for rule in rules:
        wanted = rule.branch_multiplier * r**-rule.alpha
        assert leaf.factor(rule) == pytest.approx(wanted)
        assert float(traced(rule.alpha, rule.branch_multiplier)) == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize("preset", ["sp", "mup", "completep"])
def test_optimizers_refuse_a_rule_whose_factors_are_not_those_of_the_code(preset):
    coded, plain = audited(untied, True), audited(untied, False)
    rule = dm.get_parametrization(preset)
    assert coded.record.alpha == 0.5
    assert plain.record.alpha is None
    dm.adamw(1e-3, coded.info, RULE)
    with pytest.raises(InputError, match=r"parametrization.alpha is .*written for alpha = 0\.5"):
        dm.adamw(1e-3, coded.info, rule)
    dm.adamw(1e-3, plain.info, rule)


def test_a_multiplier_is_refused_where_the_audit_cannot_tell_whether_the_code_has_it():
    info = audited(untied, False, (SIZE[0], BASE[1])).info
    dm.adamw(1e-3, info, PLAIN)
    with pytest.raises(InputError, match=r"branch_multiplier is 0\.5, but model and base are equally deep"):
        dm.adamw(1e-3, info, RULE)


def test_optimizers_refuse_the_info_of_an_audit_that_is_not_ok_unless_what_remains_is_named():
    make = branch_net(lambda q, h: jnp.tanh(h @ q["a"] @ q["b"]))
    audit = dm.audit(make(16, 4), make(8, 1), jnp.ones((3, 5)))
    with pytest.raises(InputError, match="missing_branch_multiplier"):
        dm.adamw(1e-3, audit.info, RULE)
    with pytest.raises(InputError, match="accept has 'readout'"):
        audit.accept("readout")
    dm.adamw(1e-3, audit.accept("missing_branch_multiplier").info, PLAIN)


def test_the_values_of_parameters_decide_whether_the_optimizers_init_takes_them():
    """Those of another seed, those that a jitted `rescale_init` returned, and those under another rule."""
    base = initial(untied, BASE)
    info = audited(untied, False).info
    optimizer = dm.adamw(1e-3, info, RULE)
    first, second = (initial(untied, SIZE, seed) for seed in (0, 1))
    dm.rescale_init(first, base, info, RULE)
    dm.baked(first, info, RULE)
    for params in (first, second, dm.rescale_init(second, base, info, RULE.replace(alpha=1.0))):
        with pytest.raises(InputError, match=r"Call params = dm\.rescale_init"):
            optimizer.init(params)
    under_jit = jax.jit(lambda *trees: dm.rescale_init(*trees, info, RULE))
    for params in (dm.rescale_init(second, base, info, RULE), under_jit(second, base)):
        optimizer.init(params)
    dm.adamw(1e-3, dm.rescaled_before(info), RULE).init(second)  # trained ones may have any size
    with pytest.raises(InputError, match="Call params"):
        optimizer.init(second)


def test_traced_initial_values_are_not_judged_which_is_said_once(caplog):
    caplog.set_level(logging.INFO, "depthmup_flax")
    info_trees._log_once.cache_clear()  # other tests said it
    optimizer = dm.adamw(1e-3, audited(untied, False).info, RULE)
    for _ in range(2):
        jax.eval_shape(optimizer.init, initial(untied, SIZE))
    assert sum("traced" in record.message for record in caplog.records) == 1


def test_parameters_of_another_base_are_refused():
    params, info = initial(untied, SIZE), audited(untied, False).info
    for base in (params, initial(untied, (SIZE[0], BASE[1])), initial(untied, (2 * BASE[0], BASE[1]))):
        with pytest.raises(InputError, match="of the base has shape"):
            dm.rescale_init(params, base, info, RULE)
    dm.rescale_init(params, initial(untied, BASE), info, RULE)


def test_parameters_of_the_edited_model_are_baked_into_those_of_the_plain_one():
    params, info = initial(tied, SIZE), audited(tied, False).info
    wanted, found = tied(SIZE, True)(params, BATCH), tied(SIZE, False)(dm.baked(params, info, RULE), BATCH)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_the_audit_counts_the_matrices_in_a_row_and_says_where_theory_advises_another_exponent():
    ends = (lambda q, h: h @ q["a"] + h @ q["b"]), (lambda q, h: jax.nn.gelu(h @ q["a"]) @ q["b"])
    notes = [" ".join(dm.audit(make(16, 4), make(8, 1), jnp.ones((3, 5))).notes) for make in map(branch_net, ends)]
    assert ["2 matrices in a row" in text for text in notes] == [False, True]


def test_without_carrying_the_same_audit_wants_code():
    pair = lambda size: (untied(size, False), initial(untied, size))
    audit = dm.audit(pair(SIZE), pair(BASE), BATCH, carry=False)
    lacking = {"missing_branch_multiplier", "readout_not_scaled", "embedding_scaled_with_width", "attention_scale"}
    assert {finding.name for finding in audit.findings} == lacking


LOOPS = {
    "index": lambda step, h, k: functools.reduce(step, [k[i] for i in range(len(k))], h),
    "iteration": lambda step, h, k: functools.reduce(step, list(k), h),
    "unstack": lambda step, h, k: functools.reduce(step, jnp.unstack(k), h),
    "split": lambda step, h, k: functools.reduce(step, [one[0] for one in jnp.split(k, len(k))], h),
    "fori_loop": lambda step, h, k: jax.lax.fori_loop(0, len(k), lambda i, h: step(h, k[i]), h),
    "scan": lambda step, h, k: jax.lax.scan(lambda h, one: (step(h, one), None), h, k)[0],
    "dynamic_index": lambda step, h, k: functools.reduce(
        step, [jax.lax.dynamic_index_in_dim(k, i, keepdims=False) for i in range(len(k))], h
    ),
    "scan over pairs": lambda step, h, k: jax.lax.scan(
        lambda h, two: (step(step(h, two[0]), two[1]), None), h, k.reshape(-1, 2, *k.shape[1:])
    )[0],
    "first alone": lambda step, h, k: jax.lax.scan(lambda h, one: (step(h, one), None), step(h, k[0]), k[1:])[0],
}


@pytest.mark.parametrize("loop", LOOPS)
def test_stacked_layers_and_experts_are_read_however_a_loop_takes_them(loop):
    def make(width, depth):
        def step(h, k):
            experts = [jnp.tanh(h @ k[0, e]) @ k[1, e] for e in range(2)]
            return h + experts[0] + experts[1]

        params = {"stem": (5, width), "layers": (depth, 2, 2, width, width), "head": (width, 3)}
        params = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in params.items()}
        return lambda p, x: LOOPS[loop](step, x @ p["stem"], p["layers"]) @ p["head"], params

    audit = dm.audit(make(16, 4), make(8, 2), jnp.ones((3, 5)), carry=False)
    assert [finding.name for finding in audit.findings] == ["missing_branch_multiplier", "readout_not_scaled"]
    role = {row.path: (row.info.role, row.info.width_in, row.info.width_out, row.uses) for row in audit.rows}
    assert role["layers"] == (dm.Role.HIDDEN, 2.0, 2.0, 1.0)
