"""Layers in a scan of JAX, NNX or Linen, in front of and behind which terms are added once."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from depthmup_flax import InputError, adamw, audit

BATCH = jax.ShapeDtypeStruct((4, 8), jnp.float32)
BASE = (32, 4)
SIZES = {"width": (64, 4), "depth": (32, 8), "both": (64, 8)}


def right(h, kernel):
    return h + jax.nn.relu(h) @ kernel


def gated(h, kernel):
    gate = jax.nn.sigmoid(h @ kernel)
    return gate * h + (1 - gate) * jnp.tanh(h)


def normalized(h):
    return (h - h.mean(-1, keepdims=True)) / jnp.sqrt(h.var(-1, keepdims=True) + 1e-6)


BETWEEN = {"nothing": lambda h: h, "a scale": lambda h: 0.5 * h, "a norm": normalized}


def shapes(width, terms, after):
    sizes = {f"stem{k}": (8, width) for k in range(terms)} | {"head": (width, 3)}
    return sizes | {f"last{k}": (8, width) for k in range(after)}


def stem(p, x, terms, between):
    return BETWEEN[between](sum(x @ p[f"stem{k}"] for k in range(terms)))


def ends(p, h, x, after):
    return sum((x @ p[f"last{k}"] for k in range(after)), start=h) @ p["head"]


def of_jax(width, depth, layer, terms, between, after):
    def apply(p, x):
        h, _ = jax.lax.scan(lambda h, k: (layer(h, k), None), stem(p, x, terms, between), p["layers"])
        return ends(p, h, x, after)

    sizes = {**shapes(width, terms, after), "layers": (depth, width, width)}
    return apply, {name: jax.ShapeDtypeStruct(size, jnp.float32) for name, size in sizes.items()}


def of_nnx(width, depth, layer, terms, between, after):
    class Layer(nnx.Module):
        def __init__(self, rngs):
            self.kernel = nnx.Param(jax.random.normal(rngs.params(), (width, width)))

    class Network(nnx.Module):
        def __init__(self, rngs):
            self.ends = nnx.Dict({n: nnx.Param(jnp.ones(s)) for n, s in shapes(width, terms, after).items()})
            make = nnx.vmap(Layer, in_axes=0, out_axes=0)
            self.layers = nnx.split_rngs(splits=depth)(make)(rngs)

        def __call__(self, x):
            p = {name: param[...] for name, param in self.ends.items()}
            scanned = nnx.scan(lambda h, one: layer(h, one.kernel[...]), in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
            return ends(p, scanned(stem(p, x, terms, between), self.layers), x, after)

    return Network(nnx.Rngs(0))


def of_linen(width, depth, layer, terms, between, after):
    class Layer(nn.Module):
        @nn.compact
        def __call__(self, h, _):
            return layer(h, self.param("kernel", nn.initializers.normal(), (width, width))), None

    class Network(nn.Module):
        @nn.compact
        def __call__(self, x):
            sizes = shapes(width, terms, after).items()
            p = {name: self.param(name, nn.initializers.normal(), size) for name, size in sizes}
            scanned = nn.scan(Layer, variable_axes={"params": 0}, split_rngs={"params": True}, length=depth)
            h, _ = scanned(name="layers")(stem(p, x, terms, between), None)
            return ends(p, h, x, after)

    return Network()


STYLES = {"jax": of_jax, "nnx": of_nnx, "linen": of_linen}


def audited(style, grows, layer=right, terms=2, between="nothing", after=0, **options):
    model, base = (STYLES[style](*size, layer, terms, between, after) for size in (SIZES[grows], BASE))
    return audit(model, base, BATCH, **options)


@pytest.mark.parametrize("grows", SIZES)
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(
    ("terms", "between", "after"),
    [(1, "nothing", 0), (2, "nothing", 0), (3, "nothing", 0), (2, "nothing", 2), (2, "a scale", 0), (3, "a norm", 1)],
)
def test_terms_that_are_added_once_outside_of_a_scan_are_no_sums_of_its_layers(style, grows, terms, between, after):
    result = audited(style, grows, terms=terms, between=between, after=after)
    assert result.ok, str(result)
    assert result.depth_ratio == SIZES[grows][1] / BASE[1]


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("terms", [1, 2])
def test_a_branch_in_a_scan_without_its_multiplier_is_missing(style, terms):
    result = audited(style, "both", terms=terms, carry=False)
    assert "missing_branch_multiplier" in [finding.name for finding in result.findings]


@pytest.mark.parametrize("grows", ["depth", "both"])
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("terms", [1, 3])
def test_what_every_layer_of_a_scan_adds_in_another_way_is_not_judged(style, grows, terms):
    result = audited(style, grows, layer=gated, terms=terms)
    assert "sum" in [one.name for one in result.not_judged], str(result)


@pytest.mark.parametrize("grows", ["depth", "both"])
@pytest.mark.parametrize("carry", [True, False])
def test_what_is_accepted_is_said_and_does_not_count(grows, carry):
    result = audited("jax", grows, layer=gated, carry=carry)
    names = [finding.name for finding in (*result.findings, *result.not_judged)]
    assert "sum" in names
    assert ("readout_not_scaled" in names) == (grows == "both" and not carry)
    assert len(result.corrections) > len(result.accept("sum").corrections)
    for k in range(len(names)):
        partly = result.accept(*names[:k])
        assert not partly.ok
        with pytest.raises(InputError, match=names[k]):
            partly.require()
        with pytest.raises(InputError, match=names[k]):
            adamw(0.1, partly.info)
    accepted = result
    for name in names:
        accepted = accepted.accept(name)
    accepted.require()
    assert accepted.verdict == "ok"
    assert not accepted.corrections
    assert str(accepted).count("accepted") == 1 + len(names)
    assert "accepted" not in str(result)
    adamw(0.1, accepted.info)
