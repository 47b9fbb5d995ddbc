"""Factors of the code that no rule wants: parameters undo them, which is said; without carrying they are findings."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from depthmup_flax import InputError, adamw, audit, get_parametrization

TOKENS = jax.ShapeDtypeStruct((2, 6), jnp.int32)
BASE = (32, 2)
SIZES = {"width": (64, 2), "both": (64, 4), "apart": (128, 4)}
DEFAULT, NTK = get_parametrization("depth_mup"), get_parametrization("ntk")


def network(width, depth, wrong="", *, bias=False, vocab=11, tied=False, context=6, readout=True):
    """A decoder with heads of 8 features; ``wrong`` names what is multiplied by a power of the width."""
    sizes = {"tok": (vocab, width), "pos": (context, width), "scale": (width,), "head": (width, vocab)}
    if tied or not readout:
        del sizes["head"]
    if bias:
        sizes["bias"] = (vocab,)
    for k in range(depth):
        sizes |= {f"{name}{k}": (width, width) for name in ("q", "k", "v", "o", "in", "out")}
    power = lambda name, exponent: float(width) ** exponent if wrong == name else 1.0

    def apply(p, tokens):
        h = p["tok"][tokens] * power("embedding", 0.5) + p["pos"][: tokens.shape[1]]
        for k in range(depth):
            x = normed(h)
            q, key, v = ((x @ p[f"{name}{k}"]).reshape(*x.shape[:2], -1, 8) for name in "qkv")
            scores = jnp.einsum("bqhd,bkhd->bhqk", q, key) * power("scores", -1)
            mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v).reshape(x.shape)
            h = h + mixed @ p[f"o{k}"]
            h = h + jnp.tanh(normed(h) @ p[f"in{k}"] * power("inner", -1)) @ p[f"out{k}"] * power("branch", -1)
        h = normed(h) * p["scale"]
        if not readout:
            return h
        logits = h @ (p["tok"].T if tied else p["head"]) + (p["bias"] if bias else 0)
        return logits * power("readout", -0.5)

    return apply, {name: jax.ShapeDtypeStruct(size, jnp.float32) for name, size in sizes.items()}


def normed(h):
    return h / jnp.sqrt(jnp.mean(h**2, -1, keepdims=True) + 1e-6)


def audited(grows, wrong, carry=True, in_code=(), **options):
    model, base = (network(*size, wrong, **options) for size in (SIZES[grows], BASE))
    return audit(model, base, TOKENS, carry=carry, in_code=in_code)


# What is wrong -> the finding, and a parameter whose row shows it.
WRONG = {
    "embedding": ("embedding_scaled_with_width", "tok"),
    "scores": ("attention_scale", "q0"),
    "inner": ("hidden_scaled_with_width", "in0"),
    "branch": ("missing_branch_multiplier", "out0"),
    "readout": ("readout_not_scaled", "head"),
}


@pytest.mark.parametrize("grows", ["width", "apart"])
@pytest.mark.parametrize("wrong", WRONG)
def test_a_factor_that_parameters_undo_is_in_a_note_and_in_its_row(grows, wrong):
    name, path = WRONG[wrong]
    result = audited(grows, wrong)
    assert result.ok, str(result)
    (note,) = (note for note in result.notes if note.startswith(name))
    assert "write:" in note
    carriers = [row for row in result.rows if row.path[:-1] in (path, path[:-1], "k") and not row.carried.is_one]
    for row in carriers:
        found, wanted = row.of_carried or (row.found, row.wanted)
        assert found != 1
        np.testing.assert_allclose(found * row.carried.under(DEFAULT), wanted.under(DEFAULT), rtol=1e-3)
    assert carriers
    plain = audited(grows, "")
    assert not [note for note in plain.notes if note.startswith(tuple(name for name, _ in WRONG.values()))]


@pytest.mark.parametrize("grows", SIZES)
@pytest.mark.parametrize("wrong", WRONG)
def test_without_carrying_it_is_a_finding(grows, wrong):
    if grows == "both" and wrong == "branch":  # 1/m is the factor of alpha = 1 there, which the verdict says
        assert "width" in str(audited(grows, wrong)).partition("parameter ")[0]
        return
    assert WRONG[wrong][0] in [finding.name for finding in audited(grows, wrong, carry=False).findings]


@pytest.mark.parametrize("grows", SIZES)
@pytest.mark.parametrize("options", [{}, {"bias": True}, {"tied": True}], ids=str)
def test_one_over_the_root_of_the_width_is_a_readout_of_ntk_alone(grows, options):
    """The total factor of the logits is the rule's under both rules, and in the code only if ntk is named."""
    carried = audited(grows, "readout", **options)
    assert carried.ok, str(carried)
    assert carried.under(NTK).ok
    for rule in (DEFAULT, NTK):
        adamw(0.1, carried, rule)
    in_code = audited(grows, "readout", carry=False, **options)
    assert "readout_not_scaled" in [finding.name for finding in in_code.findings]
    assert "readout_not_scaled" not in [finding.name for finding in in_code.under(NTK).findings]
    named = audited(grows, "readout", in_code=[NTK], **options)
    assert named.ok
    adamw(0.1, named, NTK)
    with pytest.raises(InputError, match="gamma0_width_exponent"):
        adamw(0.1, named, DEFAULT)
    assert "readout_not_scaled" in [finding.name for finding in named.under(DEFAULT).findings]


@pytest.mark.parametrize("size", [(64, 2), (32, 4), (128, 4)])
@pytest.mark.parametrize("carry", [True, False])
@pytest.mark.parametrize("tied", [True, False])
def test_a_base_with_another_vocabulary_is_refused(size, carry, tied):
    for vocab, base_vocab in ((65, 32), (32, 65), (64, 32)):
        model, base = (network(*s, vocab=v, tied=tied) for s, v in ((size, vocab), (BASE, base_vocab)))
        with pytest.raises(InputError, match=f"{base_vocab} -> {vocab}"):
            audit(model, base, TOKENS, carry=carry)


@pytest.mark.parametrize("size", [(64, 2), (32, 4), (128, 4)])
@pytest.mark.parametrize("options", [{"readout": False}, {"context": 9}], ids=str)
def test_features_as_outputs_and_another_context_are_no_other_vocabulary(size, options):
    base = network(*BASE, **{**options, "context": 6})
    assert audit(network(*size, **options), base, TOKENS).ok


@pytest.mark.parametrize("size", [(64, 2), (32, 4), (128, 4)])
def test_another_number_of_classes_is_refused(size):
    def classifier(width, depth, classes):
        def apply(p, x):
            h = x @ p["stem"]
            for k in range(depth):
                h = h + jax.nn.relu(normed(h)) @ p[f"block{k}"]
            return h @ p["head"]

        sizes = {"stem": (5, width), "head": (width, classes)} | {f"block{k}": (width, width) for k in range(depth)}
        return apply, {name: jax.ShapeDtypeStruct(size, jnp.float32) for name, size in sizes.items()}

    batch = jax.ShapeDtypeStruct((2, 5), jnp.float32)
    with pytest.raises(InputError, match=r"head.* 3 -> 10"):
        audit(classifier(*size, 10), classifier(*BASE, 3), batch)
    assert audit(classifier(*size, 10), classifier(*BASE, 10), batch).ok


@pytest.mark.parametrize(
    ("number", "dtype", "said", "unsaid"), [(1, float, "integers", "tuple"), (2, int, "tuple", "tokens")]
)
def test_the_hint_is_about_the_call_that_failed(number, dtype, said, unsaid):
    x = jnp.zeros((2, 6), dtype)
    x = (x, x) if number == 2 else x
    with pytest.raises(InputError, match=said) as raised:
        audit(network(64, 2), network(*BASE), x)
    assert unsaid not in str(raised.value)
