"""What the check reads in the code, and what initial values, repeated weights and NaN are called."""

import dataclasses

import html_text
import jax
import jax.numpy as jnp
import optax
import pytest
from chains import BASE_WIDTH, RULE, Chain, X, Y, causes, check
from recorded_checks import recorded

import depthmup_flax as dm
from depthmup_flax.check import Network, Source, coord_check


def readable(chain):
    """The chain as the audit takes it: a function of parameters and a batch."""
    return Source((lambda params, x: chain.apply(params, x)[0], jax.eval_shape(chain.init, jax.random.key(0))), X)


def unreadable(chain):
    """A model that cannot be traced."""
    del chain

    def broken(params, x):
        raise RuntimeError("not here")

    return Source((broken, {}), X)


@pytest.mark.parametrize("source", [readable, unreadable])
def test_a_missing_factor_has_its_weights_if_the_code_can_be_read_and_its_name_if_not(source):
    report = check("width", sizes="readout_not_scaled", readout_multiplier=False, source=source)
    assert next(iter(causes(report))) == "readout_not_scaled"
    read = "read from the code" in report.causes[0].text
    assert read == (source is readable)
    assert causes(report)["readout_not_scaled"] == (("head/kernel",) if read else ("head",))


def test_a_mistake_in_the_code_fails_even_if_sizes_do_not_show_it():
    """The audited model lacks what the measured one has: a stand-in for a mistake that small networks hide."""
    hidden = lambda chain: readable(dataclasses.replace(chain, readout_multiplier=False))
    report = check("width", sizes="right_width", source=hidden)
    assert not report.failures
    assert not report.ok
    assert list(causes(report)) == ["readout_not_scaled"]
    assert "FAIL, though these sizes do not show it (readout_not_scaled)" in str(report)
    assert html_text.printed(str(report)) <= {*html_text.words(report._repr_html_()), "at", "head/kernel"}
    assert check("width", sizes="right_width", source=readable).ok


@pytest.mark.slow
def test_the_first_updates_of_all_weights_at_once_are_those_of_each_group_alone():
    def first_updates(source):
        build = lambda width, depth: Chain(width, depth).network(source=source)
        report = coord_check(build, Y, rule=RULE, width=16, depth=4, widths=(16, 32, 64), steps=1, seeds=2)
        found = {
            (r.size, r.seed, r.quantity, r.name): r.value
            for r in report.records
            if r.quantity in ("gradient_update", "gradient") and r.group not in ("everything", "branches")
        }
        return {r.group for r in report.records}, found

    (at_once, together), (alone, apart) = first_updates(readable), first_updates(None)
    assert at_once == {"everything", "branches", "everything, from a random readout"}
    assert alone == {"everything", "branches", "blocks/dense", "head", "stem"}
    assert together == pytest.approx(apart, rel=1e-4)


def test_a_cause_that_the_code_excludes_is_not_named_and_nothing_passes_that_it_does_not_explain():
    """Sizes of a network without 1/m, of which the audit reads the right code: no trend explains them."""
    report = check("width", sizes="readout_not_scaled", source=readable)
    assert list(causes(report)) == ["unclear"]
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
        shapes = [jax.eval_shape(Shallow(n, self.depth).init, jax.random.key(0)) for n in (self.width, 16)]
        branches = {"in_branch": "blocks", "stacked": "blocks", "depth_ratio": self.depth}
        wide = jax.eval_shape(Shallow(32, self.depth).init, jax.random.key(0))
        info = dm.infer_info(*shapes, readout="head", delta_params=wide, **branches)
        return Network(self.init, self.apply, info, dm.adamw(1e-2, info, SHALLOW), readable(self))


SHALLOW = dm.get_parametrization("completep")


@pytest.mark.usefixtures("also_trained")
def test_exponents_of_a_right_network_that_is_too_shallow_are_a_note_with_the_depths_to_use():
    with recorded("shallow"):
        report = coord_check(
            lambda width, depth: Shallow(width, depth).network(),
            Y,
            rule=SHALLOW,
            width=16,
            depth=1,
            depths=(1, 2, 4),
            steps=1,
        )
    assert report.ok, report.details()
    assert "finite size" in {q.verdict for q in report.quantities}, report.details()
    assert "use depths=(" in report.notes[0]


def test_what_is_wrong_with_the_optimizer_is_not_hidden_by_a_forward_pass_without_mistakes():
    optimizer = lambda info: dm.adamw(3e-3, info, RULE.replace(gamma=0.0))
    report = check("depth", sizes="missing_depth_update_factor", make_optimizer=optimizer, source=readable)
    assert list(causes(report)) == ["missing_depth_update_factor"]


def test_weights_that_every_block_shares_fail_by_their_number_of_uses():
    """Under alpha = 1/2 activations grow as exp(2 sqrt(L)) times the multiplier, which shallow networks hide."""
    report = check("depth", sizes="repeated_weights", shared=True)
    assert [q.name for q in report.failures if q.kind == "uses"] == ["blocks/dense/kernel"]
    assert "uses of blocks/dense/kernel in a forward pass" in str(report)
    assert causes(report) == {"repeated_weights": ("blocks/dense/kernel",)}, report.details()


def test_one_standard_deviation_at_every_width_fails_by_the_initial_weights_alone():
    """Activations may hide it at small widths, where the stem decides them; initial weights hide nothing."""
    report = check("width", sizes="fixed_std_init", fixed_std=True)
    (start,) = [q for q in report.failures if q.kind == "start"]
    assert (start.name, start.verdict) == ("blocks/dense/kernel", "grows")
    assert start.fit.slope == pytest.approx(0.0, abs=0.02)
    assert start.expected == -0.5


def scaled_start(power, *names):
    """A builder of chains some of whose weights start with an extra power of the width."""

    def build(width, depth):
        network = Chain(width, depth).network()
        factor = lambda path: (width / BASE_WIDTH) ** power if any(name in str(path) for name in names) else 1.0
        times = lambda path, leaf: factor(path) * leaf
        return dataclasses.replace(network, init=lambda k: jax.tree_util.tree_map_with_path(times, network.init(k)))

    return build


@pytest.mark.usefixtures("also_trained")
@pytest.mark.parametrize(
    ("power", "name", "cause"),
    [(0.5, "head", "readout_init_grows_with_width"), (-0.5, "dense", "hidden_init_falls_with_width")],
)
def test_initial_values_with_a_wrong_power_of_the_width_have_a_name(power, name, cause):
    with recorded(cause):
        report = coord_check(
            scaled_start(power, name), Y, rule=RULE, width=64, depth=4, widths=(64, 128, 256), steps=1, seeds=2
        )
    assert next(iter(causes(report))) == cause


def broken(width, depth):
    chain = Chain(width, depth)
    return dataclasses.replace(chain.network(), apply=lambda params: chain.apply(params, jnp.nan * X))


def exploding(width, depth):
    return Chain(width, depth).network(lambda info: optax.sgd(1e30))


@pytest.mark.parametrize(
    ("build", "text"),
    [(exploding, "lower the learning rate"), (broken, "not finite before any step")],
)
def test_what_is_not_finite_is_called_that(build, text):
    with recorded(build.__name__):
        report = coord_check(build, Y, rule=RULE, width=16, depth=4, widths=(16, 32, 64), steps=2, seeds=2)
    assert list(causes(report)) == ["not_finite"]
    assert text in report.causes[0].text
