"""What the check reads in the code."""

import dataclasses

import html_text
import jax
import jax.numpy as jnp
import pytest
from chains import RULE, Chain, X, Y, causes, check, failed, infos

import depthmup_flax as dm
from depthmup_flax.check import Network, Source, coord_check
from depthmup_flax.check import causes as causes_module
from depthmup_flax.rule.info_trees import is_info


def readable(chain):
    """The chain as the audit takes it: a function of parameters and a batch."""
    return Source((lambda params, x: chain.apply(params, x)[0], jax.eval_shape(chain.init, jax.random.key(0))), X)


def unreadable(chain):
    """A model that cannot be traced."""

    def broken(params, x):
        raise RuntimeError("not here")

    return Source((broken, jax.eval_shape(chain.init, jax.random.key(0))), X)


@pytest.mark.parametrize("source", [readable, unreadable])
def test_a_missing_factor_has_a_cause_if_the_code_can_be_read(source):
    report = check("width", readout_multiplier=False, source=source)
    assert not report.ok
    assert causes(report) == ({"readout_not_scaled": ("head/kernel",)} if source is readable else {})
    unknown = [note for note in report.notes if "cause is not known" in note]
    assert bool(unknown) == (source is unreadable)
    assert any("not here" in note for note in report.notes) == (source is unreadable)


def test_what_the_audit_raises_is_shown_with_the_result_of_the_measurements(monkeypatch):
    def with_a_bug(*args, **kwargs):
        raise KeyError("a bug of the audit")

    monkeypatch.setattr(causes_module, "audit", with_a_bug)
    report = check("width", source=readable)
    assert report.ok, report.details()
    (note,) = report.notes
    assert "KeyError: 'a bug of the audit'" in note
    assert f"note: {note}" in str(report)
    assert report.records  # the measurements count


def test_a_mistake_in_the_code_fails_even_if_sizes_do_not_show_it():
    """The audited model lacks what the measured one has: a stand-in for a mistake that small networks hide."""
    hidden = lambda chain: readable(dataclasses.replace(chain, readout_multiplier=False))
    report = check("width", source=hidden)
    assert not report.failures
    assert not report.ok
    assert list(causes(report)) == ["readout_not_scaled"]
    assert "FAIL, though these sizes do not show it (readout_not_scaled)" in str(report)
    assert html_text.printed(str(report)) <= {*html_text.words(report._repr_html_()), "at", "head/kernel"}
    assert check("width", source=readable).ok


def test_nothing_passes_that_right_code_does_not_explain():
    """A network without 1/m, of which the audit reads the right code: its size does not explain that."""
    right = lambda chain: readable(dataclasses.replace(chain, readout_multiplier=True))
    report = check("width", readout_multiplier=False, source=right)
    assert {q.verdict for q in report.failures} == {"unclear"}
    assert not report.causes
    assert not report.ok
    assert ": UNCLEAR, " in str(report)


@dataclasses.dataclass(frozen=True)
class Shallow:
    """Right under alpha = 1: blocks ``h + W2 relu(W1 norm(h)) / L``, of which one is the base."""

    width: int
    depth: int

    def init(self, key):
        n, depth = self.width, self.depth
        z = jax.random.normal(key, (12 + 2 * depth * n + 10, n))
        down, up = n**-0.5 * z[12:-10].reshape(2, depth, n, n)
        return {"blocks": {"down": down, "up": up}, "head": 16**-0.5 * z[-10:].T, "stem": 12**-0.5 * z[:12]}

    def apply(self, params, x=X):
        def block(h, weights):
            z = h * jax.lax.rsqrt(jnp.mean(h**2, -1, keepdims=True))
            h = h + SHALLOW.residual_multiplier(self.depth) * jax.nn.relu(z @ weights["up"]) @ weights["down"]
            return h, h

        h, stream = jax.lax.scan(block, x @ params["stem"], params["blocks"])
        return SHALLOW.readout_multiplier(self.width / 16) * h @ params["head"], {"blocks": stream}

    def network(self):
        shapes = jax.tree.map(jnp.shape, jax.eval_shape(self.init, jax.random.key(0)))
        roles = {"blocks": dm.Role.HIDDEN, "head": dm.Role.OUTPUT, "stem": dm.Role.INPUT}
        info = infos(shapes, roles, self.width / 16, self.depth)
        return Network(self.init, self.apply, info, dm.adamw(1e-2, info, SHALLOW), readable(self))


SHALLOW = dm.get_parametrization("completep")


def test_exponents_of_a_right_network_that_is_too_shallow_are_a_note_with_the_depths_to_use():
    build = lambda width, depth: Shallow(width, depth).network()
    report = coord_check(build, Y, rule=SHALLOW, width=16, depth=1, depths=(1, 4))
    assert report.ok, report.details()
    assert "finite size" in {q.verdict for q in report.quantities}, report.details()
    assert "use depths=(" in report.notes[0]


def test_what_is_wrong_with_the_optimizer_is_not_hidden_by_a_forward_pass_without_mistakes():
    optimizer = lambda info: dm.adamw(3e-3, info, RULE.replace(gamma=0.0))
    report = check("depth", make_optimizer=optimizer, source=readable)
    assert failed(report, "update", "blocks/dense/kernel") == pytest.approx(0.5, abs=0.1)


def test_a_role_that_the_trace_contradicts_is_a_cause():
    def build(width, depth):
        network = Chain(width, depth).network(source=readable)
        change = lambda leaf: dataclasses.replace(leaf, role=dm.Role.INPUT) if leaf.in_branch else leaf
        info = jax.tree.map(change, network.info, is_leaf=is_info)
        return dataclasses.replace(network, info=info, optimizer=dm.adamw(3e-3, info, RULE))

    report = coord_check(build, Y, rule=RULE, width=32, depth=4, widths=(64, 256))
    assert causes(report) == {"wrong_info": ("blocks/dense/kernel",)}, report.details()
