"""The rule on the state of an NNX model."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from depthmup_flax import InputError, adamw, audit, depthmup, freeze, get_parametrization, rescale_init
from depthmup_flax.rule.info_trees import flatten_info

RULE = get_parametrization("depth_mup")


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
    found = audit(model, base, jnp.ones((4, 3)), depth_ratio=4.0, carry=False)
    return model, found.accept(*(finding.name for finding in found.findings)).info


def nnx_loss(model):
    return jnp.mean(model(jnp.sin(jnp.arange(12.0) ** 1.3).reshape(4, 3)) ** 2)


@pytest.mark.slow
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


@pytest.mark.slow
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


class Adapted(nnx.Module):
    def __init__(self, rank, rngs):
        self.stem = nnx.LoRALinear(3, 8, lora_rank=rank, rngs=rngs)
        self.head = nnx.LoRALinear(8, 2, lora_rank=rank, rngs=rngs)

    def __call__(self, x):
        return self.head(jnp.tanh(self.stem(x)))


def test_matrices_of_lora_train_as_by_optax_with_the_rate_of_b_over_the_rank_and_all_else_stays():
    model, base = (Adapted(rank, nnx.Rngs(0)) for rank in (4, 2))
    info = audit(model, base, jnp.ones((4, 3))).info
    nnx.update(model, rescale_init(model, base, info, RULE))
    before = flat_nnx(nnx.state(model, nnx.Param))
    graph, adapters, rest = nnx.split(nnx.clone(model), nnx.LoRAParam, ...)
    optimizer = nnx.Optimizer(model, adamw(0.1, info, RULE), wrt=nnx.LoRAParam)
    hand = optax.partition(
        {"lora_a": optax.adam(0.1, eps=5e-9), "lora_b": optax.adam(0.1 / 2)},
        lambda tree: jax.tree_util.tree_map_with_path(lambda path, _: path[-2].key, tree),
    )

    @nnx.jit
    def step(model, optimizer):
        optimizer.update(model, nnx.grad(nnx_loss, argnums=nnx.DiffState(0, nnx.LoRAParam))(model))

    @jax.jit
    def by_hand(adapters, state):
        grads = jax.grad(lambda adapters: nnx_loss(nnx.merge(graph, adapters, rest)))(adapters)
        updates, state = hand.update(grads, state)
        return optax.apply_updates(adapters, updates), state

    state = hand.init(adapters)
    for _ in range(3):
        step(model, optimizer)
        adapters, state = by_hand(adapters, state)
    after, expected = flat_nnx(nnx.state(model, nnx.Param)), before | flat_nnx(adapters)
    assert {path for path in after if not np.array_equal(after[path], before[path])} == set(flat_nnx(adapters))
    for path, array in after.items():
        np.testing.assert_allclose(array, expected[path], rtol=1e-4, atol=1e-5, err_msg=path)


class Weight(nnx.Variable):
    """What a user's own code trains."""


class Bare(nnx.Module):
    def __init__(self, width, kind):
        self.stem = nnx.Linear(5, width, rngs=nnx.Rngs(0))
        self.norm = nnx.BatchNorm(width, rngs=nnx.Rngs(0))
        self.head = kind(jnp.ones((width, 3)))

    def __call__(self, x):
        return self.norm(self.stem(x)) @ self.head[...]


@pytest.mark.parametrize(("kind", "named"), [(Weight, ("head",)), (nnx.Param, None), (nnx.LoRAParam, None)])
def test_a_variable_of_a_type_that_nothing_trains_is_named(kind, named):
    result = audit(Bare(24, kind), Bare(8, kind), jnp.zeros((4, 5)), axes="width")
    assert [finding.paths for finding in result.not_judged] == ([named] if named else [])


class Conditioned(nnx.Module):
    """Each block makes its condition of a time and classes; numbers in names are of blocks and of layers."""

    def __init__(self, width, rngs):
        self.linear_1 = nnx.Linear(8, width, rngs=rngs)
        self.linear_2 = nnx.Linear(width, width, rngs=rngs)
        self.classes = nnx.Embed(5, width, rngs=rngs)
        self.modulation = nnx.Linear(width, 3 * width, rngs=rngs)
        self.norm = nnx.LayerNorm(width, use_scale=False, use_bias=False, rngs=rngs)
        self.up = nnx.Linear(width, 2 * width, rngs=rngs)
        self.down = nnx.Linear(2 * width, width, rngs=rngs)

    def condition(self, time, label):
        features = jnp.sin(time[:, None] * jnp.arange(8.0))
        return self.linear_2(nnx.silu(self.linear_1(features))) + self.classes(label)

    def __call__(self, h, c, multiplier):
        shift, scale, gate = jnp.split(self.modulation(nnx.silu(c))[:, None], 3, -1)
        y = self.norm(h) * (1 + scale) + shift
        return h + multiplier * gate * self.down(nnx.gelu(self.up(y)))


class Diffusion(nnx.Module):
    def __init__(self, width, depth, number):
        rngs = nnx.Rngs(0)
        self.stem, self.head = nnx.Linear(3, width, rngs=rngs), nnx.Linear(width, 2, rngs=rngs)
        self.blocks = nnx.List([Conditioned(width, rngs) for _ in range(depth)])
        self.final = nnx.Linear(width, width, rngs=rngs)
        self.multiplier = number

    def __call__(self, x, time, label):
        h = self.stem(x)
        for block in self.blocks:
            h = block(h, block.condition(time, label), self.multiplier)
        return self.head(h * (1 + self.final(self.blocks[0].condition(time, label))[:, None]))


@pytest.mark.parametrize(("number", "verdict"), [(2**-0.5, "ok"), (1.0, "missing")])
def test_a_condition_of_each_block_is_in_its_branches(number, verdict):
    x = jnp.ones((2, 4, 3)), jnp.array([0.3, 0.5]), jnp.array([1, 2])
    found = audit(Diffusion(32, 4, number), Diffusion(8, 2, 1.0), x, carry=False)
    names = {finding.name for finding in found.findings} - {"readout_not_scaled"}
    assert not found.not_judged
    assert names == (set() if verdict == "ok" else {"missing_branch_multiplier"})
    rows = {row.path: row.in_branch for row in found.rows}
    assert not rows["blocks/0/linear_2/kernel"]
    assert all(rows[f"blocks/{i}/linear_{k}/kernel"] for i in (1, 2, 3) for k in (1, 2))


class Dropped(nnx.Module):
    def __init__(self, width, depth, rate=0.1):
        rngs = nnx.Rngs(0)
        self.stem, self.head = nnx.Linear(3, width, rngs=rngs), nnx.Linear(width, 2, rngs=rngs)
        attention = lambda: nnx.MultiHeadAttention(width // 4, width, dropout_rate=rate, decode=False, rngs=rngs)
        self.blocks = nnx.List([attention() for _ in range(depth)])
        self.drop = nnx.Dropout(rate, rngs=rngs)
        self.norm = nnx.BatchNorm(width, rngs=rngs)

    def __call__(self, x):
        h = self.stem(x)
        for block in self.blocks:
            h = h + self.drop(block(h))
        return self.head(self.norm(h))


def dropped(method, *args):
    model = nnx.eval_shape(lambda: Dropped(*args))
    if method:
        getattr(model, method)()
    return model


WORDS = jax.ShapeDtypeStruct((4, 5, 3), jnp.float32)


def test_a_module_that_is_in_no_mode_is_answered_by_its_method():
    with pytest.raises(InputError, match=r"No `deterministic` argument was .* call model.train"):
        audit(dropped(None, 16, 4), dropped(None, 8, 2), WORDS)


@pytest.mark.parametrize(
    ("model", "base", "named"),
    [
        (("eval", 16, 4), ("train", 8, 2), "blocks/*/deterministic is True in model but False in base"),
        (("train", 16, 4), ("eval", 8, 2), "blocks/*/deterministic is False in model but True in base"),
        (("train", 16, 4), ("train", 8, 2, 0.0), "blocks/*/dropout_rate is 0.1 in model but 0.0 in base"),
    ],
)
def test_modules_of_which_one_drops_and_the_other_does_not_are_refused(model, base, named):
    with pytest.raises(InputError) as error:
        audit(dropped(*model), dropped(*base), WORDS)
    assert str(error.value).startswith(named)


def test_modules_are_audited_in_one_mode_whichever_it_is_and_at_rates_of_their_own():
    for method, rate in (("train", 0.2), ("eval", 0.1)):
        assert audit(dropped(method, 16, 4), dropped(method, 8, 2, rate), WORDS, evaluate=False).ok
