"""A Study tunes, sweeps and trains a network of this process as its user's own loop would, and resumes."""

import logging
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax_loops
import pandas
import pytest
import user_networks as networks
import users_code
from user_networks import RuleNet as Net

import depthmup_flax as dm
from depthmup_flax.config.fields import config_hash
from depthmup_flax.storage.sweep_records import read_sweep
from depthmup_flax.util.errors import InputError
from depthmup_flax.util.messages import PACKAGE

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 5)).astype(np.float32)
TARGETS = np.sin(X @ RNG.normal(size=(5, 3))).astype(np.float32)
LABELS = TARGETS.argmax(1)
RATES, DECAYS, SEEDS, STEPS = (0.01, 0.02, 0.04), (0.0, 0.1), 2, 15


def split(targets):
    return (X[:40], targets[:40]), (X[40:], targets[40:])


def classification(objective="train", **arguments):
    return dm.Study(Net, split(LABELS), base=(8, 2), steps=STEPS, batch_size=10, objective=objective, **arguments)


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    """A tune that is interrupted and resumed by another study of equal code: it, the best, and new records of each."""
    workdir, first, rest = tmp_path_factory.mktemp("study"), [], []
    arguments = {"learning_rate": RATES, "weight_decay": DECAYS, "seeds": SEEDS, "extend": 0, "lanes": 4}

    def interrupt(record):
        first.append(record)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        classification(workdir=workdir).tune(**arguments, on_record=interrupt)
    study = classification(workdir=workdir)
    return study, study.tune(**arguments, on_record=rest.append), first, rest


@pytest.fixture(scope="module")
def tuned(interrupted):
    return interrupted[:2]


@pytest.mark.slow
def test_an_interrupted_tune_resumes_in_another_study_of_equal_code(interrupted):
    _, best, first, rest = interrupted
    assert (len(first), len(rest), len(best.records)) == (1, 8, len(RATES) * len(DECAYS) * SEEDS)


def loop(optimizer_of, numbers, model, seed, x=X[:40], labels=LABELS[:40], **options):
    return optax_loops.trained(optimizer_of, numbers, model, seed, x, labels, STEPS, **options)


def decayed_adam(rate, decay):
    kernels = lambda tree: jax.tree.map(lambda x: x.ndim > 1, tree)
    decayed = optax.add_decayed_weights(decay, mask=kernels)
    return optax.chain(optax.scale_by_adam(), decayed, optax.scale_by_learning_rate(rate))


def test_a_tune_in_lanes_has_the_losses_of_optax_loops_one_after_another(tuned):
    _, best = tuned
    model = Net(8, 2, dm.get_parametrization("depth_mup"))
    assert len(best.records) == len(RATES) * len(DECAYS) * SEEDS
    for record in best.records:
        numbers = record["learning_rate"], record["weight_decay"]
        expected, _ = loop(decayed_adam, numbers, model, record["seed"])
        np.testing.assert_allclose(record["train_loss_avg"], expected, rtol=2e-5)
    mean = pandas.DataFrame(best.records).groupby(["learning_rate", "weight_decay"])["train_loss_avg"].mean()
    assert best["weight_decay"] == mean.idxmin()[1]
    assert min(RATES) <= best["learning_rate"] <= max(RATES)


@pytest.mark.parametrize("optimizer", [users_code.chain, pytest.param(users_code.open_chain, marks=pytest.mark.slow)])
def test_an_optimizer_of_ones_own_is_tuned(optimizer):
    best = classification(optimizer=optimizer).tune(learning_rate=RATES, weight_decay=(0.1,), seeds=1, extend=0)
    own = lambda rate, decay: optax.chain(optax.clip(0.01), decayed_adam(rate, decay))
    model = Net(8, 2, dm.get_parametrization("depth_mup"))
    for record in best.records:
        expected, _ = loop(own, (record["learning_rate"], 0.1), model, record["seed"])
        np.testing.assert_allclose(record["train_loss_avg"], expected, rtol=2e-5)


@pytest.mark.slow
def test_a_ladder_to_a_target_trains_a_size_on_the_way_and_the_target_at_its_rate_is_on_course(logged):
    study = classification()
    near = study.tune(learning_rate=dm.powers_of_two(-10, -2), seeds=2, target=(32, 4))
    far = study.tune(learning_rate=dm.powers_of_two(-10, -2), seeds=2, target=(32, 4), ladder=1)
    assert near.ladder.statement[0] in repr(near)
    sizes = [(one.search.size.width, one.search.size.depth) for one in far.ladder.searched]
    assert (near.ladder.searched[0].search.size.width, *sizes[0]) == (8, 8, 2)
    assert all(8 <= width <= 32 and 2 <= depth <= 4 for width, depth in sizes)
    assert len(sizes) > 1
    assert far["learning_rate"] == pytest.approx(far.ladder.rate, rel=1e-3)
    alone = classification(workdir=study.workdir)
    assert dict(alone.tune(learning_rate=dm.powers_of_two(-10, -2), seeds=2, target=(32, 4), ladder=1)) == dict(far)
    study.train(32, 4, **far)
    assert "on course" in logged.text  # though another study has written the reference
    assert any("ladder" in path.name for path in far.report().paths)


@pytest.mark.slow
def test_runs_are_compared_on_a_tenth_of_the_training_examples_that_they_do_not_train_on():
    study = classification(objective="auto")
    best = study.tune(learning_rate=RATES, seeds=1, extend=0)
    order, model = np.random.default_rng(0).permutation(40), Net(8, 2, dm.get_parametrization("depth_mup"))
    held_out, rest = order[:4], order[4:]
    for record in best.records:
        numbers = (record["learning_rate"],)
        expected, loss = loop(optax.adam, numbers, model, record["seed"], x=X[rest], labels=LABELS[rest])
        np.testing.assert_allclose(record["train_loss_avg"], expected, rtol=2e-5)
        np.testing.assert_allclose(record["validation_loss"], loss(X[held_out], LABELS[held_out]), rtol=2e-5)
        assert record["test_loss"] is None
    lowest = min(best.records, key=lambda record: record["validation_loss"])
    assert abs(np.log2(best["learning_rate"] / lowest["learning_rate"])) <= 0.5
    # Its report compares the same loss; a large run trains on all examples and is evaluated on the test set.
    assert read_sweep([best.directory]).info.objective == "validation"
    assert study.config(16, 4, **best).data.validation_fraction == 0


@pytest.mark.slow
def test_a_large_run_has_the_losses_of_the_users_loop_with_the_rules_optimizer(tuned):
    study, best = tuned
    result = study.train(16, 4, **best)
    rule = dm.get_parametrization("depth_mup")
    model, base = Net(16, 4, rule), Net(8, 2, rule)
    info, base_params = dm.audit(model, base, X[:1]).info, base.init(jax.random.key(0), X[:1])["params"]
    rescale = lambda params: dm.rescale_init(params, base_params, info, rule)
    optimizer = dm.adamw(best["learning_rate"], info, rule, weight_decay=best["weight_decay"])
    expected, _ = loop(lambda: optimizer, (), model, 0, rescale_init=rescale)
    np.testing.assert_allclose(result["train_loss_avg"], expected, rtol=2e-5)
    assert result == study.train(16, 4, **best)  # it is there already
    assert result["config_hash"] == config_hash(study.config(16, 4, **best))


@pytest.mark.slow
def test_the_same_call_trains_nothing_and_further_values_add_to_the_records_though_a_hook_fails(tuned, logged):
    study, best = tuned
    new = []

    def fail(record):
        new.append(record["learning_rate"])
        raise OSError("no network")

    again = study.tune(weight_decay=DECAYS, learning_rate=RATES, seeds=SEEDS, extend=0, on_record=fail)
    assert (new, dict(again)) == ([], dict(best))
    more = study.tune(learning_rate=(0.02, 0.08), weight_decay=0.0, seeds=SEEDS, extend=0, on_record=fail)
    assert new == [0.08]  # a hook that fails is called once
    assert [record.levelname for record in logged.records if "on_record" in record.message] == ["WARNING"]
    assert len(more.records) == 2 * SEEDS
    frame = pandas.DataFrame(dm.read_records(study.workdir))
    assert len(frame) == len(best.records) + SEEDS
    assert {"run", "status", "width", "depth", "seed", "learning_rate", "weight_decay", "train_loss_avg"} <= set(frame)


@pytest.mark.slow
def test_calls_after_a_search_resume_where_no_search_came_before():
    study = classification()
    alone = classification(workdir=study.workdir)
    study.tune(learning_rate=RATES[:1], seeds=1, extend=0)
    swept = study.sweep(learning_rate=RATES[:1], seeds=1)
    assert len(alone.sweep(learning_rate=RATES[:1], seeds=1).records) == len(swept.records)
    assert study.config().train.record_course
    assert not alone.config().train.record_course


def test_shards_of_a_sweep_are_read_as_one(tmp_path):
    parts = [
        classification(workdir=tmp_path).sweep(depths=(3,), learning_rate=RATES, seeds=1, shard=(i, 2))
        for i in range(2)
    ]
    columns = dm.read_records(tmp_path)
    assert set(columns["run"]) == {record["run"] for part in parts for record in part.records}
    assert sorted(zip(columns["depth"], columns["learning_rate"], strict=True)) == [
        (d, r) for d in (2, 3) for r in RATES
    ]
    assert columns["directory"] == [parts[0].directory.name] * 6
    assert dm.read_records(parts[0].directory)["directory"] == ["."] * 6


def test_a_study_shows_progress_unless_logging_is_configured_or_it_is_quiet(monkeypatch):
    monkeypatch.setattr(logging.root, "handlers", [])
    monkeypatch.setattr(PACKAGE, "handlers", [])
    classification(quiet=True)
    assert PACKAGE.handlers == []
    for _ in range(2):
        classification()
        (handler,) = PACKAGE.handlers
    assert handler.stream is sys.stdout


class Regression(eqx.Module):
    layers: list
    rule: dm.Parametrization = eqx.field(static=True)
    ratios: tuple = eqx.field(static=True)

    def __init__(self, width, depth, *, rule, key):
        sizes = [5, *[width] * (depth + 1), 3]
        pairs = zip(sizes, sizes[1:], jax.random.split(key, depth + 2), strict=False)
        self.layers = [eqx.nn.Linear(n, m, key=k) for n, m, k in pairs]
        self.rule, self.ratios = rule, (width / 8, depth / 2)

    def __call__(self, x):
        h = self.layers[0](x)
        for layer in self.layers[1:-1]:
            h = h + self.rule.residual_multiplier(self.ratios[1]) * layer(jax.nn.relu(h))
        return self.layers[-1](h) * self.rule.readout_multiplier(self.ratios[0])


def huber(outputs, targets):
    return optax.huber_loss(outputs, targets).mean()


@pytest.mark.slow
def test_a_sweep_of_an_equinox_network_with_its_own_loss_becomes_a_report():
    settings = {"loss": huber, "rule": "completep", "steps": 10, "batch_size": 20, "objective": "train"}
    study = dm.Study(Regression, split(TARGETS), base=(8, 2), **settings)
    assert study.audit(32, 8).ok
    swept = study.sweep(depths=(4,), widths=(16,), learning_rate=RATES, seeds=2)
    assert {(record["width"], record["depth"]) for record in swept.records} == {(8, 2), (8, 4), (16, 2)}
    report = swept.report()
    assert str(report) == report.text
    assert report.data["headline"].split(":")[0] in report._repr_html_()
    assert "image/png" in report._repr_html_()
    of_base = [record for record in swept.records if (record["width"], record["depth"]) == (8, 2)]
    for record in of_base[:2]:
        np.testing.assert_allclose(record["train_loss"], huber_after(record), rtol=2e-5)


def huber_after(record):
    """The loss of the tenth step, by optax alone."""
    model = Regression(8, 2, rule=dm.get_parametrization("completep"), key=jax.random.key(record["seed"]))
    optimizer = optax.adam(record["learning_rate"])
    gradient = eqx.filter_jit(eqx.filter_value_and_grad(lambda model, x, y: huber(jax.vmap(model)(x), y)))
    state = optimizer.init(eqx.filter(model, eqx.is_inexact_array))
    for step in range(10):
        epoch, position = divmod(step, 2)
        rows = np.random.default_rng((record["seed"], epoch)).permutation(40)[20 * position :][:20]
        loss, grads = gradient(model, X[rows], TARGETS[rows])
        updates, state = optimizer.update(grads, state)
        model = eqx.apply_updates(model, updates)
    return loss


def shrinking(width, depth, num_classes):
    """Multinomial regression by gradient descent, which also shrinks the weights."""
    loss = lambda w, x, y: optax.softmax_cross_entropy_with_integer_labels(x @ w, y).mean()

    def step(w, batch, hyper):
        value, gradient = jax.value_and_grad(loss)(w, *batch)
        return (1 - hyper["shrink"]) * (w - hyper["learning_rate"] * gradient), {"loss": value}

    evaluate = lambda w, batch, hyper: {"loss": loss(w, *batch), "norm": jnp.linalg.norm(w)}
    return dm.Task(lambda key, hyper: 0.1 * jax.random.normal(key, (5, 3)), step, evaluate)


@pytest.mark.slow
def test_a_training_step_of_ones_own_is_tuned_over_its_own_numbers():
    study = dm.Study(shrinking, split(LABELS), base=(8, 2), steps=12, batch_size=40, hyper={"shrink": 0.0})
    best = study.tune(learning_rate=(0.5, 1.0, 2.0), shrink=(0.0, 0.3), seeds=2, extend=0)
    assert set(best) == {"learning_rate", "shrink"}
    assert best["shrink"] == 0.0
    loss = lambda w: optax.softmax_cross_entropy_with_integer_labels(X[:40] @ w, LABELS[:40]).mean()
    gradient = jax.jit(jax.value_and_grad(loss))
    for record in best.records:
        w = 0.1 * jax.random.normal(jax.random.key(record["seed"]), (5, 3))
        for _ in range(12):
            last, slope = gradient(w)
            w = (1 - record["shrink"]) * (w - record["learning_rate"] * slope)
        np.testing.assert_allclose(record["train_loss"], last, rtol=2e-5)
        np.testing.assert_allclose(record["test_norm"], jnp.linalg.norm(w), rtol=2e-5)
    assert study.train(16, 4, **best)["status"] == "completed"


def test_an_optimizer_that_is_not_named_is_refused():
    with pytest.raises(InputError, match=r"optimizer\.name"):
        dm.Study(networks.NnxNet, split(TARGETS), base=(16, 2), optimizer=optax.adam(1e-3))
