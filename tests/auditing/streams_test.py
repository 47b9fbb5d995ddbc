"""Residual sums are those of streams, however these are built: weightless branches, several streams, skips, names."""

import collections
import functools

import jax
import jax.numpy as jnp
import pytest
from stream_models import (
    BATCH,
    MIXERS,
    as_list,
    audited,
    bent,
    bottleneck,
    leaky,
    long_skip,
    mixed,
    numbered,
    positions,
    recalled,
    scanned_velocity,
    translator,
)

from depthmup_flax import InputError, Role, audit
from depthmup_flax.auditing.audit_report import Row, _table, _told_apart
from depthmup_flax.rule.factor import Factor
from depthmup_flax.rule.info_trees import flatten_info

BRANCH, READOUT, ATTENTION = "missing_branch_multiplier", "readout_not_scaled", "attention_scale"
BOTH = {"x": (BATCH, BATCH)}


def found(result):
    return [finding.name for finding in result.findings if finding.certain]


def assert_right_and_mistakes(body, sites, options, others=()):
    """The right model is ok; without the multiplier of each site, of all, or of the readout, it is named."""
    result = audited(body, **options)
    assert result.ok, str(result)
    assert result.depth_ratio == 2
    for mistake, name in {**dict.fromkeys((*sites, "all"), BRANCH), "readout": READOUT, **dict(others)}.items():
        assert name in found(audited(body, mistake, **options)), mistake
    return result


@pytest.mark.parametrize("mixer", [m if m in ("gate",) else pytest.param(m, marks=pytest.mark.slow) for m in MIXERS])
def test_a_branch_without_weights_is_a_branch(mixer):
    result = assert_right_and_mistakes(mixed(mixer), ("mix", "mix1", "mlp"), {})
    assert flatten_info(result.info)["block1/mix_norm/scale"].in_branch


STRUCTURES = {  # that the zoo lacks
    "bent": (bent(of_sums=False), ("mlp", "mlp0", "mlp3"), {}),
    "long_skip": (long_skip, ("mlp", "mlp1"), {}),
    "positions": (positions, ("att", "att0"), {}),
    "by_count": (numbered(2), ("mlp", "mlp0"), {"depth_ratio": 2.0}),
}


@pytest.mark.parametrize("name", STRUCTURES)
def test_streams_are_read_however_they_are_built(name):
    body, sites, options = STRUCTURES[name]
    assert_right_and_mistakes(body, sites, options, {"attention": ATTENTION}.items() if name == "positions" else ())


@pytest.mark.parametrize("body", [recalled, scanned_velocity(0.5), scanned_velocity(1.0)])
def test_what_every_layer_adds_in_another_way_is_not_passed_in_silence(body):
    result = audited(body)
    assert not found(result)
    assert result.verdict == "not judged"
    (place,) = (one for one in result.not_judged if one.name == "sum")
    assert place.source.startswith("stream_models.py:")


def test_a_sum_that_is_multiplied_as_a_whole_in_front_of_a_nonlinearity_has_a_multiplied_shortcut():
    assert "shortcut_in_branch" in found(audited(bent(of_sums=True)))


def test_a_branch_that_contains_its_stream_is_named():
    assert "shortcut_in_branch" in found(audited(leaky))


def test_an_encoder_and_a_decoder_that_grow_differently_have_their_own_ratios():
    body = translator(2, 4)
    result = audited(body, **BOTH)
    ratios = {path: leaf.depth_ratio for path, leaf in flatten_info(result.info).items() if leaf.in_branch}
    assert not found(result)
    assert {path.split("/")[0]: r for path, r in ratios.items()} == {"encoder": 2, "decoder": 4}
    for site in ("encode", "cross"):
        assert found(audited(body, site, **BOTH)) == [BRANCH]
    assert "r = 4 in decoder and 2 in encoder;" in str(result)


def test_streams_in_one_module_are_told_apart():
    def inside(shapes):
        return {f"net/{name}": shape for name, shape in shapes.items()}, lambda tree: {
            name.removeprefix("net/"): value for name, value in tree.items()
        }

    result = audited(translator(2, 4), names=inside, **BOTH)
    assert "r = 4 in net/decoder and 2 in net/encoder;" in str(result)
    of_numbers = {2.0: ["gc/w_0", "gc/w_2"], 3.0: ["gc/w_1", "gc/w_3"]}
    assert _told_apart(of_numbers) == {2.0: "gc/w_{0,2}", 3.0: "gc/w_{1,3}"}


def test_rows_of_one_name_have_its_numbers():
    row = functools.partial(Row, shape=(2,), info=None, uses=1.0, wanted=Factor())
    lines = str(_table([row(f"block{i}/w", found=0.5 if i < 4 else 1.0) for i in range(6)])).splitlines()
    assert [line.split()[0] for line in lines if "block" in line] == ["block{0,1,2,...}/w", "block{4,5}/w"]


def test_a_named_tuple_is_one_argument():
    graph = collections.namedtuple("Graph", ["nodes"])(BATCH)
    weights = {"w": jax.ShapeDtypeStruct((5, 3), jnp.float32)}
    net = lambda weights, graph: graph.nodes @ weights["w"]
    assert len(audit((net, weights), (net, weights), graph).rows) == 1


@pytest.mark.parametrize(("ratio", "width"), [(1, 32), (4, 16), (4, 64)])
def test_parameters_in_a_list_are_paired_by_their_place(ratio, width):
    named, listed = (audited(numbered(ratio), names=names, width=width) for names in (lambda s: (s, dict), as_list))
    by_name, by_place = (list(flatten_info(result.info).values()) for result in (named, listed))
    assert listed.width_ratio == width / 8
    assert {leaf.role for leaf in by_place} == {Role.INPUT, Role.VECTOR, Role.HIDDEN, Role.OUTPUT}
    assert sorted(map(repr, by_place)) == sorted(map(repr, by_name))
    for mistake, name in (("mlp0", BRANCH), ("all", BRANCH), ("readout", READOUT)):
        assert found(audited(numbered(ratio), mistake, names=as_list, width=width)) == [name]


def test_a_list_that_can_be_paired_in_two_ways_is_refused():
    def plain(net, x):
        h = net.dense("stem", x)
        for i in range(net.depth):
            h = jax.nn.relu(net.dense(f"up{i}", jax.nn.relu(net.dense(f"down{i}", h, 32))))
        return net.head(h)

    with pytest.raises(InputError, match="may correspond to several"):
        audited(plain, names=as_list, width=32)


def test_the_width_to_few_features_is_noted_outside_of_branches_too():
    result = audited(bottleneck)
    assert not found(result)
    assert any("few/w map the width" in note for note in result.notes)


def test_a_table_that_layers_multiply_by_their_own_weights_does_not_add_up():
    result = audited(positions)
    assert not found(result)
    infos = flatten_info(result.info)
    assert {info.uses for info in infos.values()} == {1}
    assert {path for path, info in infos.items() if info.summed != 1} == {"positions"}  # SGD's gradient is a sum


def test_what_a_loop_makes_for_its_next_round_alone_is_needed():
    def body(net, x):
        h = net.dense("stem", x)
        layers = [net.param(f"blocks/{name}", net.depth, net.width, net.width) for name in ("now", "later")]

        def step(carry, layer):
            h, y = carry
            return (h + net.multiplier("mlp", 0) * y @ layer[0], jnp.tanh(h @ layer[1])), None

        (h, _), _ = jax.lax.scan(step, (h, jnp.zeros_like(h)), layers)
        return net.head(h)

    info = flatten_info(audited(body).info)
    assert {path: leaf.role for path, leaf in info.items() if "blocks" in path} == {
        "blocks/now": Role.HIDDEN,
        "blocks/later": Role.HIDDEN,
    }
