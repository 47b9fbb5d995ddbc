"""An audit that is ok has compared outputs: what no reader of factors sees is not ok."""

import jax
import jax.numpy as jnp
import pytest

import depthmup_flax as dm
from depthmup_flax.auditing import evaluated_network, model_audit
from depthmup_flax.models import create_model

RULE = dm.get_parametrization("depth_mup")
X = jax.ShapeDtypeStruct((2, 5), jnp.float32)


def pair(width, depth, factor=1.0, edited=True):
    """A residual MLP; ``factor`` on the first layer of each branch."""
    branch = RULE.residual_multiplier(depth / 2) if edited else 1.0
    shapes = {"stem": (5, width), "head": (width, 3)}
    for i in range(depth):
        shapes |= {f"up_{i}": (width, width), f"down_{i}": (width, width)}

    def apply(p, x):
        h = x @ p["stem"]
        for i in range(depth):
            y = jax.nn.gelu(factor * ((h - h.mean(-1, keepdims=True)) @ p[f"up_{i}"]))
            h = h + branch * (y @ p[f"down_{i}"])
        return h @ p["head"] * (8 / width if edited else 1.0)

    return apply, {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}


def audit(factor=1.0, edited=True, **options):
    return dm.audit(pair(24, 4, factor, edited), pair(8, 2, 1.0, edited), X, **options)


@pytest.mark.parametrize("carry", [True, False])
def test_a_factor_that_no_finding_names_is_not_judged_and_its_line_is_named(monkeypatch, carry):
    monkeypatch.setattr(model_audit, "all_findings", lambda compared: [])
    (finding,) = audit(3**-0.5, carry=carry).not_judged
    assert finding.name == "outputs"
    assert finding.source.startswith("evaluated_network_test.py:")
    assert "a factor of 0.5774 there, in the base model 1," in finding.text  # not those of the mean beside it
    assert audit(3**-0.5, carry=carry, evaluate=False).ok
    assert audit(carry=carry).ok


def test_a_factor_that_is_carried_twice_is_not_ok(monkeypatch):
    carried = model_audit._carried

    def twice(compared, findings):
        result = carried(compared, findings)
        for load in result.by_path.values():
            object.__setattr__(load, "factor", load.factor * load.factor)
        return result

    assert audit(edited=False).ok
    monkeypatch.setattr(model_audit, "_carried", twice)
    assert [finding.name for finding in audit(edited=False).not_judged] == ["outputs"]


def test_of_a_large_network_the_first_note_says_that_outputs_were_not_compared():
    large = dm.audit(pair(2**15, 2), pair(2**13, 2), jax.ShapeDtypeStruct((64, 5), jnp.float32))
    assert large.ok
    assert "outputs were not compared" in large.notes[0]
    assert "as deep as the base" in large.notes[1]
    assert "matrices in a row" in large.notes[-1]


def two_weights(width, factor):
    shapes = {"stem": (5, width), "one": (width, width), "other": (width, width), "head": (width, 3)}

    def apply(p, x):
        h = jax.nn.gelu(x @ p["stem"])
        return jax.nn.gelu(factor * (h @ (p["one"] + p["other"]))) @ p["head"]

    return apply, {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}


def test_two_weights_of_one_product_carry_its_factor_once():
    result = dm.audit(two_weights(24, 1 / 3), two_weights(8, 1.0), X, axes="width")
    assert result.ok
    carried = {row.path: str(row.carried) for row in result.rows}
    assert carried == {"stem": "1", "one": "3", "other": "3", "head": "1/3"}


OURS = {
    "res_mlp": {},
    "simple_resnet": {"norm": "layer"},
    "resnet": {},
    "vit": {"num_heads": 2, "patch_size": 4},
    "gpt": {"num_heads": 2, "qk_norm": True},
}


@pytest.mark.parametrize("name", OURS)
def test_models_of_the_package_are_ok_evaluated_too(name):
    inputs = jnp.zeros((2, 8), jnp.int32) if name == "gpt" else jnp.zeros((2, 16, 16, 3))
    rule = dm.get_parametrization("depth_mup")
    depths = {"resnet": (None, None), "simple_resnet": (6, 3)}.get(name, (4, 2))
    sizes = [{"width": width, "depth": depth} for width, depth in zip((32, 16), depths, strict=True)]
    base = {f"base_{field}": value for field, value in sizes[1].items()}
    given = [{k: v for k, v in {**OURS[name], **base, **size}.items() if v is not None} for size in sizes]
    model, reference = (create_model(name, num_classes=10, rule=rule, **fields) for fields in given)
    audit = dm.audit(model, reference, inputs)
    assert audit.verdict == "ok", str(audit)
    assert not any("outputs" in note for note in audit.notes)


BENDS = {
    "gelu": jax.nn.gelu,
    "exact gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "scaled tanh": lambda x: 1.7159 * jnp.tanh(2 / 3 * x),
    "small inside": lambda x: jnp.tanh(0.3 * x),
}


@pytest.mark.parametrize("bend", BENDS.values(), ids=BENDS)
@pytest.mark.parametrize("base_depth", [1, 2])
def test_a_number_inside_of_a_nonlinearity_is_no_factor_of_the_stream_that_it_reads(bend, base_depth):
    def pre_activation(width, depth, edited):
        branch = RULE.residual_multiplier(depth / base_depth) if edited else 1.0
        shapes = {"stem": (5, width), "head": (width, 3)} | {f"layer_{i}": (width, width) for i in range(depth)}

        def apply(p, x):
            h = x @ p["stem"]
            for i in range(depth):
                h = h + branch * (bend(h) @ p[f"layer_{i}"])
            return bend(h) @ p["head"] * (8 / width if edited else 1.0)

        return apply, {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}

    of = lambda edited, **options: dm.audit(
        pre_activation(24, 4, edited), pre_activation(8, base_depth, edited), X, **options
    )
    assert of(True).ok
    assert of(False).ok
    assert {finding.name for finding in of(False, carry=False).findings} == {
        "missing_branch_multiplier",
        "readout_not_scaled",
    }


def heun(f, h, dt):
    first = f(h)
    return h + dt / 2 * (first + f(h + dt * first))


def midpoint(f, h, dt):
    return h + dt * f(h + dt / 2 * f(h))


def runge_kutta(f, h, dt):
    """The classical method of four stages."""
    a = f(h)
    b = f(h + 0.5 * dt * a)
    c = f(h + 0.5 * dt * b)
    return h + dt / 6 * (a + 2 * b + 2 * c + f(h + dt * c))


@pytest.mark.parametrize("scan", [True, False])
@pytest.mark.parametrize("method", [heun, midpoint, runge_kutta])
def test_the_steps_inside_of_a_step_have_its_factor(method, scan):
    rule = dm.get_parametrization("ode")

    def of(width, depth, step):
        dt = 0.5 * (rule.residual_multiplier(depth / 2) if step else 1.0)

        def apply(p, x):
            field = lambda h: jnp.tanh(h @ p["up"]) @ p["down"]
            h = x @ p["stem"]
            if scan:
                h, _ = jax.lax.scan(lambda h, _: (method(field, h, dt), None), h, length=depth)
            else:
                for _ in range(depth):
                    h = method(field, h, dt)
            return h @ p["head"] * (8 / width)

        sizes = {"stem": (5, width), "up": (width, width), "down": (width, width), "head": (width, 3)}
        return apply, {name: jax.ShapeDtypeStruct(size, jnp.float32) for name, size in sizes.items()}

    audit = lambda step: dm.audit(of(24, 6, step), of(8, 2, step), X, carry=False).under(rule)
    assert audit(True).ok, str(audit(True))
    assert "missing_branch_multiplier" in {finding.name for finding in audit(False).findings}


def normed(width, factor, place):
    """A factor in front of a norm of small arrays, or on a small term behind it."""
    shapes = {"stem": (5, width), "inner": (width, width), "head": (width, 3)}

    def apply(p, x):
        y = jax.nn.gelu(x @ p["stem"]) @ p["inner"]
        y = (factor if place == "in front" else 1.0) * 0.01 * y
        y = y * jax.lax.rsqrt(jnp.mean(y**2, -1, keepdims=True) + 1e-5)
        return (y + (factor if place == "behind" else 1.0) * 0.001 * jnp.cumsum(y, 0)) @ p["head"] * (8 / width)

    return apply, {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}


@pytest.mark.parametrize(("place", "is_ok"), [("in front", True), ("behind", False)])
def test_a_small_change_of_outputs_is_told_from_that_of_an_epsilon(monkeypatch, place, is_ok):
    monkeypatch.setattr(model_audit, "all_findings", lambda compared: [])
    result = dm.audit(normed(16, 0.5, place), normed(8, 1.0, place), X, axes="width", carry=False)
    assert result.ok == is_ok, str(result)


def averaged(width, depth, factor=1.0):
    """`pair` with an average over the batch before its readout, of rows that are nearly equal."""
    plain, shapes = pair(width, depth, factor, edited=False)

    def apply(p, x):
        h = plain(p | {"head": jnp.eye(width)}, 1 + 3e-3 * x)
        variance = jnp.mean(h * h, 0) - jnp.mean(h, 0) ** 2
        return (h - jnp.mean(h, 0)) * jax.lax.rsqrt(jnp.maximum(variance, 0.0) + 1e-5) @ p["head"]

    return apply, shapes


def test_rounding_that_a_batch_average_magnifies_is_no_missing_factor(monkeypatch):
    right = dm.audit(averaged(24, 4), averaged(8, 2), X)
    assert right.ok
    assert any("rounding" in note for note in right.notes)
    monkeypatch.setattr(evaluated_network, "_OF_ROUNDING", 0)
    assert [finding.name for finding in dm.audit(averaged(24, 4), averaged(8, 2), X).not_judged] == ["outputs"]


def test_the_mean_of_a_norm_is_no_step_of_a_branch_where_a_width_and_the_depth_have_one_factor():
    """With m = 2 and r = 4 the mean's 1/m is r^-1/2, which once halved the mean in the network that the rule wants."""

    def normed(width, depth):
        shapes = {"stem": (5, width), "head": (width, 3)} | {f"layer_{i}": (width, width) for i in range(depth)}

        def apply(p, x):
            h = x @ p["stem"]
            for i in range(depth):
                y = h - jnp.mean(h, -1, keepdims=True)
                h = h + jax.nn.gelu(y / jnp.sqrt(jnp.mean(y**2, -1, keepdims=True))) @ p[f"layer_{i}"]
            return h @ p["head"]

        return apply, {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}

    result = dm.audit(normed(16, 8), normed(8, 2), X)
    assert result.ok, str(result)
    assert not any("outputs" in note for note in result.notes)


@pytest.mark.parametrize(("m", "r", "advised"), [(2, 2, 4), (4, 4, 2), (2, 4, 4), (4, 2, None), (3, 2, None)])
def test_where_factors_of_width_and_depth_are_equal_a_small_other_width_is_advised(m, r, advised):
    (note,) = [n for n in dm.audit(pair(8 * m, 2 * r), pair(8, 2), X).notes if "in place of" in n] or [""]
    assert (f"Audit once at another width, too: {advised} times" in note) == (advised is not None)
