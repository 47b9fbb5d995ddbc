"""Roles of networks of every library against those written by hand, and what their forward pass lacks."""

import functools

import jax
import pytest
from user_networks import (
    DEPTH,
    VECTORS,
    WIDTH,
    EqxNet,
    LinenNet,
    NnxNet,
    branch_factor,
    end,
    haiku_net,
    pair_net,
    readout_factor,
)

from depthmup_flax import PRESETS, Role, get_parametrization
from depthmup_flax.auditing import config_audit
from depthmup_flax.models.mlp import ResMLP
from depthmup_flax.networks.model_functions import model_functions
from depthmup_flax.rule.factor import Factor
from depthmup_flax.rule.info_trees import flatten_info, is_info
from depthmup_flax.util.errors import InputError, UserCodeError

KINDS = {"linen": LinenNet, "nnx": NnxNet, "equinox": EqxNet, "haiku": haiku_net, "pair": pair_net}
HIDDEN, INPUT, OUTPUT, VECTOR, FIXED = Role.HIDDEN, Role.INPUT, Role.OUTPUT, Role.VECTOR, Role.FIXED


def audited(build, *args):
    return config_audit.audited(lambda *sizes: model_functions(build(*sizes)), *args)


def of(net, edit=""):
    """(width, depth) -> what makes the network."""
    return lambda width, depth: functools.partial(net, width, depth, edit)


def by_hand(path, m, r):
    """(role, width_in, width_out, in_branch, depth_ratio, model_width) of the parameter of a residual network."""
    is_matrix = path.endswith(("kernel", "/w")) or (path.endswith("weight") and "norm" not in path)
    if path.startswith("stem"):
        return (INPUT if is_matrix else VECTOR, 1, m, False, 1, m)
    if path.startswith("head"):
        return (OUTPUT, m, 1, False, 1, m) if is_matrix else (FIXED, 1, 1, False, 1, m)
    return (HIDDEN if is_matrix else VECTOR, m if is_matrix else 1, m, True, r, m)


def read(info):
    return {
        path: (one.role, one.width_in, one.width_out, one.in_branch, one.depth_ratio, one.model_width)
        for path, one in flatten_info(info).items()
    }


SIZES = [(4 * WIDTH, 3 * DEPTH), (WIDTH, DEPTH), (WIDTH, 4 * DEPTH), (2 * WIDTH, DEPTH)]


# The sizes that are audited depend on none of the libraries: one has them all.
@pytest.mark.parametrize(
    ("kind", "sizes"), [(kind, SIZES[0]) for kind in KINDS] + [("pair", sizes) for sizes in SIZES[1:]]
)
def test_roles_are_those_by_hand_at_all_sizes_and_nothing_is_missing(kind, sizes):
    result = audited(build_of(kind), sizes, (WIDTH, DEPTH), VECTORS)
    m, r = sizes[0] / WIDTH, sizes[1] / DEPTH
    roles = read(result.info)
    assert roles == {path: by_hand(path, m, r) for path in roles}
    decayed = {path for path, one in flatten_info(result.info).items() if one.decay}
    assert decayed == {path for path in roles if roles[path][0] in (HIDDEN, INPUT, OUTPUT)}
    assert result.audit.findings == ()
    assert result.audit.corrections == ""
    params, _ = model_functions(build_of(kind)(*sizes)).shapes(VECTORS)
    assert jax.tree.structure(result.info, is_leaf=is_info) == jax.tree.structure(params)
    jax.tree.map(lambda one, leaf: one.shape == leaf.shape or pytest.fail(one), result.info, params, is_leaf=is_info)


def build_of(kind, edit=""):
    net = KINDS[kind]
    if kind in ("haiku", "pair"):
        return lambda width, depth: net(width, depth, edit)
    return of(net, edit)


@pytest.mark.parametrize(("kind", "sizes"), [("linen", SIZES[0])] + [("pair", sizes) for sizes in SIZES])
def test_a_missing_multiplier_is_carried_by_the_factor_of_the_networks_own_size(kind, sizes):
    m, r = sizes[0] / WIDTH, sizes[1] / DEPTH
    for edit, layer, factor in (("no_branch", "block", r**-0.5), ("no_readout", "head", 1 / m)):
        result = audited(build_of(kind, edit), sizes, (WIDTH, DEPTH), VECTORS)
        assert result.audit.corrections == ""
        rule = get_parametrization("depth_mup")
        carried = {path: one.factor(rule) for path, one in flatten_info(result.info).items()}
        # The readout is multiplied in front of its matrix, so its bias is not.
        carries = lambda path, layer=layer: path.startswith(layer) and by_hand(path, m, r)[0] is not FIXED
        assert carried == {path: pytest.approx(factor if carries(path) else 1) for path in carried}


def test_what_no_parameter_carries_is_found_at_the_bases_own_size_with_the_code_to_write():
    result = audited(build_of("pair", "bent"), (WIDTH, DEPTH), (WIDTH, DEPTH), VECTORS)
    (name,) = [finding.name for finding in result.audit.findings]
    assert name == "missing_branch_multiplier"
    assert name in result.audit.corrections
    assert "write:" in result.audit.corrections
    assert result.audit.corrections in str(result.audit)


def test_a_network_that_cannot_be_doubled_is_audited_at_another_multiple():
    def make(width, depth):
        if width == 2 * WIDTH:
            raise ValueError("width must be no such number")
        return LinenNet(width, depth)

    build = lambda width, depth: functools.partial(make, width, depth)
    result = audited(build, (WIDTH, DEPTH), (WIDTH, DEPTH), VECTORS)
    assert read(result.info)["block_1/kernel"] == (HIDDEN, 1, 1, True, 1, 1)
    assert str(4 * WIDTH) in result.audit.notes[0]


def test_a_network_of_one_size_is_refused_with_the_sizes_that_were_tried():
    def make(width, depth):
        if width != WIDTH:
            raise ValueError("no such width")
        return LinenNet(width, depth)

    build = lambda width, depth: functools.partial(make, width, depth)
    with pytest.raises(InputError, match=r"model\.width is 16.*32 x 4.*no such width"):
        audited(build, (WIDTH, DEPTH), (WIDTH, DEPTH), VECTORS)


def test_an_error_at_the_networks_own_size_is_the_users():
    build = lambda width, depth: functools.partial(LinenNet, width, depth)
    with pytest.raises(UserCodeError, match=r"LinenNet.*int32\[\]"):
        audited(build, (32, 4), (WIDTH, DEPTH), jax.ShapeDtypeStruct((), "int32"))


def one_more(width, depth, edit=""):
    """A network that calls one of its blocks no part of its depth."""

    def init(key, x):
        numbers = {f"{name}_{i}": width for name in ("inner", "block") for i in range(depth + 1)}
        sizes = {"stem": (x.shape[-1], width), "head": (width, 3), **{name: (n, n) for name, n in numbers.items()}}
        return {name: {"kernel": jax.random.normal(key, size)} for name, size in sizes.items()}

    def apply(params, x):
        dense = lambda name, x: x @ params[name]["kernel"]
        h = dense("stem", x)
        for i in range(depth + 1):
            y = dense(f"block_{i}", jax.nn.relu(dense(f"inner_{i}", h) / (width**0.5 if edit == "root" else 1)))
            h = h + branch_factor(depth, edit) * end(y, edit)
        return dense("head", h * readout_factor(width, edit))

    return init, apply


def test_branches_may_be_counted_as_the_user_counts():
    sizes, of = (WIDTH, DEPTH), lambda edit: lambda width, depth: one_more(width, depth, edit)
    for edit in ("", "root"):  # another factor, that the inner layers carry, is no reason to count otherwise
        result = audited(of(edit), sizes, (WIDTH, DEPTH), VECTORS)
        assert result.audit.findings == ()
        assert read(result.info)["block_0/kernel"][4] == sizes[1] / DEPTH
        assert flatten_info(result.info)["block_0/kernel"].carried.is_one
    assert audited(of("bent"), sizes, (WIDTH, DEPTH), VECTORS).audit.findings
    carrying = audited(of("no_branch"), sizes, (WIDTH, DEPTH), VECTORS)
    block = flatten_info(carrying.info)["block_0/kernel"]
    assert block.carried == Factor(depth=block.depth_ratio, multiplier=1.0)


def of_every_rule(width, depth, rule, lacks=""):
    """A network whose code has the factors of its rule, at all places or at some."""

    def init(key, x):
        normal = lambda *shape: jax.random.normal(key, shape) / shape[0] ** 0.5
        blocks = {f"block_{i}": normal(width, width) for i in range(depth)}
        return {"stem": normal(5, width), **blocks, "head": normal(width, 3)}

    def apply(params, x):
        m, r, h = width / WIDTH, depth / DEPTH, x @ params["stem"]
        multiplier = 1.0 if lacks == "branch" else rule.residual_multiplier(r)
        for i in range(depth):
            h = h + multiplier * (jax.nn.relu(h) @ params[f"block_{i}"])
        divisor = 1.0 if lacks == "divisor" else rule.output_divisor(m)
        return h @ params["head"] * rule.readout_multiplier(m) / divisor

    return init, apply


def audited_under(rule, sizes, lacks=""):
    return audited(lambda width, depth: of_every_rule(width, depth, rule, lacks), sizes, (WIDTH, DEPTH), VECTORS)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_what_is_said_of_code_that_takes_a_rule_holds_under_every_rule(sizes):
    found = audited_under(config_audit.PROBE, sizes)
    assert not any(leaf.carries for leaf in flatten_info(found.info).values())
    assert found.divides_output
    for rule in PRESETS.values():
        assert found.audit.under(rule).ok


def test_code_that_follows_a_rule_in_its_readout_alone_has_branches_that_carry():
    found = audited_under(config_audit.PROBE, (32, 6), "branch")
    carried = {path: leaf.carried for path, leaf in flatten_info(found.info).items() if leaf.carries}
    assert carried == {f"block_{i}": Factor(depth=3.0, multiplier=1.0) for i in range(6)}


def test_the_power_of_the_width_in_the_output_divisor_is_missed():
    found = audited_under(config_audit.PROBE, (32, 6), "divisor")
    assert not found.divides_output
    assert not any(leaf.carries for leaf in flatten_info(found.info).values())


def test_factors_of_one_rule_that_are_written_into_the_code_are_refused_under_others():
    audit = audited_under(PRESETS["completep"], (32, 6)).audit
    assert audit.under(PRESETS["completep"]).ok
    assert not audit.under(PRESETS["depth_mup"]).ok


def test_a_model_of_this_package_is_audited_once_whatever_its_rule(monkeypatch):
    images, count = jax.ShapeDtypeStruct((1, 4, 4, 1), "float32"), []
    original = config_audit.audit
    monkeypatch.setattr(config_audit, "audit", lambda *args, **options: count.append(1) or original(*args, **options))
    models = [ResMLP(3, width=48, depth=5, base_width=16, base_depth=4, rule=rule) for rule in PRESETS.values()]
    infos = [config_audit.audited_model(model, images).info for model in models]
    assert len(count) == 1
    assert all(info == infos[0] for info in infos)
    blocks = flatten_info(infos[0])["blocks/branch/dense_0/kernel"]
    assert (blocks.role, blocks.width_in, blocks.depth_ratio) == (HIDDEN, 3, 1.25)
