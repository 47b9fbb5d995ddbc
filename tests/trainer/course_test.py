"""A run's first third, beside that of another size: by what the rule keeps equal."""

import dataclasses
import json
import logging

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from small_runs import small_base, small_sweep

import depthmup_flax as dm
from depthmup_flax.data import train_batch
from depthmup_flax.rule import measures
from depthmup_flax.rule.factor import Factor
from depthmup_flax.rule.parametrization import Role
from depthmup_flax.rule.recorded import recorded_columns
from depthmup_flax.trainer.course import Watch, mean_columns, read_course
from depthmup_flax.trainer.engine.from_config import build
from depthmup_flax.trainer.engine.task import batch_key, step_key
from depthmup_flax.trainer.loop import train_and_evaluate

LINEAR, SIGN = {"degree": 1, "geometry": "linear"}, {"degree": 0, "geometry": "sign"}


def a_run(directory, width=8, depth=2, steps=6, **fields):
    """The directory of a run on digits, which records steps 1 and 2; the base has width 8 and depth 2."""
    run = small_base(width=width, depth=depth)
    run.data.update(name="digits", train_examples=0, test_examples=0)
    run.optimizer.learning_rate = 1e-3
    run.train.update(batch_size=64, steps=steps, writers=("jsonl",), record_course=True)
    with run.unlocked():
        run.update_from_flattened_dict(fields)
    train_and_evaluate(run, directory)
    return directory


@pytest.fixture(scope="module")
def proxy(tmp_path_factory):
    return a_run(tmp_path_factory.mktemp("proxy"))


@pytest.fixture
def warnings(caplog):
    caplog.set_level(logging.INFO, "depthmup_flax")
    return lambda: sum(record.levelno == logging.WARNING for record in caplog.records)


@pytest.mark.parametrize("carried", [1.0, ((0.5, 1.0),)])
@pytest.mark.parametrize("traits", [LINEAR, SIGN])
def test_measures_do_not_see_the_powers_of_width_and_depth_that_the_rule_gives(traits, carried, monkeypatch):
    """Gradients and updates of a network twice as wide and four times as deep, as TP6 Definition 6.1 has them."""
    rule, m, r = dm.get_parametrization("depth_mup"), 2.0, 4.0
    base = {"w": dm.ParamInfo(Role.HIDDEN, (8, 8), in_branch=True)}
    large = {
        "w": dm.ParamInfo(Role.HIDDEN, (16, 16), m, m, in_branch=True, depth_ratio=r, carried=Factor(constant=carried))
    }
    ones, many = {"w": jnp.ones((8, 8))}, {"w": jnp.ones((16, 16))}
    at_base = dm.measures(base, rule, ones, ones, ones, **traits)
    c = large["w"].factor(rule)
    factors = m**-1 * r**-0.5 / c, m**-1 * r**-0.5 * c, m**-0.5 * c
    scaled = [{"w": factor * many["w"]} for factor in factors]
    monkeypatch.setattr(measures, "SAMPLE", 64)
    infos, parts = zip(*(measures.sampled(large, tree, None) for tree in scaled), strict=True)
    for info, trees in ((large, scaled), (infos[0], parts)):
        found = dm.measures(info, rule, *trees, **traits)
        assert float(found["count/hidden+branch"]) == sum(x.size for x in jax.tree.leaves(trees[0]))
        for name, value in ((name, value) for name, value in found.items() if not name.startswith(("count", "rule"))):
            assert float(value) == pytest.approx(float(at_base[name]), rel=1e-6), name


def test_updates_that_change_no_parameter_of_low_precision_count_as_none():
    info = {"w": dm.ParamInfo(Role.INPUT, (4, 4))}
    params, updates = {"w": jnp.ones((4, 4), jnp.bfloat16)}, {"w": jnp.full((4, 4), 1e-3, jnp.bfloat16)}
    assert dm.measures(info, dm.get_parametrization(), updates, updates, params)["update/input"] == 0


def test_a_larger_run_is_on_course_and_one_at_half_the_rate_is_off_at_step_1(proxy, tmp_path, warnings):
    reference = {"train.reference": str(proxy)}
    assert dm.compare_runs(proxy, a_run(tmp_path / "right", 32, 8, **reference)).on_course
    assert warnings() == 0
    a_run(tmp_path / "wrong", 32, 8, **reference, **{"optimizer.learning_rate": 5e-4})
    assert warnings() == 1  # once for both steps
    comparison = dm.compare_runs(proxy, tmp_path / "wrong")
    assert {one.step for one in comparison.deviations} == {1, 2}
    assert comparison.factors["rate"] == pytest.approx([0.5] * 2)
    assert comparison.factors["update/hidden+branch"] == pytest.approx([0.5] * 2, rel=0.1)


def test_a_run_that_is_to_stop_off_course_ends_at_step_2_with_the_sentence_and_goes_on_without(proxy, tmp_path):
    fields = {"train.reference": str(proxy), "optimizer.learning_rate": 5e-4, "train.checkpoint": True}
    with pytest.raises(dm.InputError, match=r"off course at step 1: the learning rate is 0.5 times.*stop_off_course"):
        a_run(tmp_path, **fields, **{"train.stop_off_course": True})
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["2"]
    loss = lambda path: json.loads((path / "result.json").read_text())["train_loss"]
    assert loss(a_run(tmp_path, **fields)) == loss(a_run(tmp_path / "never_stopped", **fields))


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"optimizer.frozen": ("readout",)}, "update/output"),
        ({"parametrization.branch_multiplier": 16.0}, "gradient/hidden+branch"),
        ({"train.batch_size": 32}, "rate"),
        ({"optimizer.weight_decay": 0.1}, "number/optimizer.weight_decay"),
        ({"optimizer.schedule": "cosine"}, "number/optimizer.schedule"),
    ],
)
def test_what_differs_from_the_proxy_is_off_course_by_its_name(proxy, tmp_path, fields, name):
    comparison = dm.compare_runs(proxy, a_run(tmp_path, 16, 4, **fields))
    assert name in {one.name for one in comparison.deviations}


def test_a_longer_run_is_compared_with_the_rate_that_the_rule_gives_it(proxy, tmp_path):
    same_rate = dm.compare_runs(proxy, a_run(tmp_path / "same_rate", steps=24))
    assert {one.kind for one in same_rate.deviations} == {"rate", "update"}
    a_run(tmp_path / "rescaled", steps=24, **{"optimizer.learning_rate": 1e-3 * 4**-0.25})
    assert dm.compare_runs(proxy, tmp_path / "rescaled").on_course


def test_a_run_of_another_rule_is_trained_and_compared_with_nothing(proxy, tmp_path, warnings):
    a_run(tmp_path, **{"train.reference": str(proxy), "parametrization.preset": "sp"})
    assert warnings() == 1
    with pytest.raises(dm.InputError):
        dm.compare_runs(proxy, tmp_path)


def test_a_reference_that_is_gone_is_told_before_the_first_step_and_stops_a_run_only_if_asked(tmp_path, warnings):
    config = small_base()
    config.train.update(record_course=True, reference=str(tmp_path / "gone"))
    watch = Watch(config)
    assert warnings() == 1
    watch.see({"columns": {"step": [1, 2]}})
    assert warnings() == 1
    config.train.stop_off_course = True
    with pytest.raises(dm.InputError, match=r"train.reference: .* holds no course"):
        Watch(config)


@pytest.mark.parametrize("model", ["res_mlp", pytest.param("vit", marks=pytest.mark.slow)])
def test_a_run_records_what_measures_gives_of_its_steps_and_has_the_losses_of_one_that_does_not(model, tmp_path):
    run, losses = small_base(model), []
    for records in (False, True):
        run.train.update(steps=12, log_every=1, record_course=records, writers=("jsonl",))
        train_and_evaluate(run, tmp_path / str(records))
        rows = map(json.loads, (tmp_path / str(records) / "metrics.jsonl").read_text().splitlines())
        losses.append([row["train_loss"] for row in rows if "train_loss" in row])
    assert losses[0] == losses[1]
    experiment, recorded = build(run), read_course(tmp_path / "True")["columns"]
    state = jax.jit(lambda: experiment.init({}))()

    @jax.jit
    def measured(state, batch):
        key, values = step_key(0, state.step), experiment.hyperparameters
        after, metrics = experiment.task.step(state.carry, batch, values, key, sample=lambda x: x)
        updates = jax.tree.map(jnp.subtract, after.params, state.carry.params)
        return after, dm.measures(experiment.info, experiment.rule, metrics["gradients"], updates, state.carry.params)

    for step in range(1, 5):
        batch = experiment.prepare(batch_key(0, state.step), train_batch(experiment.dataset.train, 0, step - 1, 16))
        after, found = measured(state, batch)
        for name, value in found.items() if step in recorded["step"] else ():
            assert recorded[name][recorded["step"].index(step)] == pytest.approx(float(value), rel=1e-3), (name, step)
        state = dataclasses.replace(state, carry=after, step=state.step + 1)


@pytest.mark.parametrize("frozen", [(), ("readout",)])
def test_runs_in_lanes_record_what_a_single_run_does_and_updates_are_a_multiple_of_momentum(frozen, tmp_path):
    base = small_base()
    base.optimizer.update(name="momentum", frozen=frozen)
    base.train.update(steps=6, record_course=True)
    records = dm.sweep(small_sweep(base), tmp_path / "sweep", lanes=6)
    record = next(one for one in records if one.seed == 0 and one.point["optimizer.learning_rate"] == 4e-3)
    base.optimizer.learning_rate = 4e-3
    train_and_evaluate(base, tmp_path / "run")
    alone = read_course(tmp_path / "run")["columns"]
    assert record.course["step"] == alone["step"] == [1, 2]
    for name, column in record.course.items():
        np.testing.assert_allclose(column, alone[name], rtol=2e-3, err_msg=name)
    assert record.course["update_per_direction/input"] == pytest.approx([4e-3] * 2, rel=1e-3)
    assert record.course["update_per_direction/output"] == pytest.approx([0.0 if frozen else 4e-3] * 2, rel=1e-3)


@pytest.mark.parametrize(("rate", "on_course"), [(0.0, True), (0.1, False)])
def test_updates_at_a_rate_of_zero_which_are_roundings_are_not_compared(rate, on_course):
    columns = lambda first: {"step": [1, 2], "rate": [rate, 0.1], "update/hidden+branch": [first, 0.3]}
    assert dm.compare_runs(columns(5e-9), columns(2e-9)).on_course == on_course


@pytest.mark.slow
def test_a_search_leaves_the_course_of_its_best_runs_as_the_reference(tmp_path):
    study = dm.Study("res_mlp", "digits", base=(8, 2), steps=6, batch_size=16, workdir=tmp_path, quiet=True)
    best = study.tune(learning_rate=(1e-3, 2e-3), seeds=2, extend=0)
    run = study.train(16, 4, **best)
    stored = json.loads((best.directory / "course.json").read_text())["config"]
    assert stored["optimizer"]["learning_rate"] == best["learning_rate"]
    assert dm.compare_runs(best.directory, run["workdir"]).factors["rate"] == pytest.approx([1.0] * 2)


def test_a_loop_of_ones_own_is_compared_by_its_columns():
    reference = {"step": [1, 2, 4], "update/input": [1e-3, 8e-4, 7e-4]}
    run = {"step": [2, 3], "update/input": [4e-4, 4e-4]}
    deviation, of_all = dm.compare_runs(reference, run).deviations
    assert (deviation.step, deviation.name, deviation.factor) == (2, "update/input", pytest.approx(0.5))
    assert of_all.factor == pytest.approx(0.5)


def columns_of(**values):
    """One step of two hidden matrices: their mean, and the largest and smallest."""
    hidden = {"": 1.0, "/largest": 1.1, "/smallest": 0.9}
    kinds = ("update", "parameter", "gradient")
    sizes = {f"{kind}/hidden{which}": [size] for kind in kinds for which, size in hidden.items()}
    changed = {name.replace("__", "/"): [value] for name, value in values.items()}
    return {"step": [1], "rule/hidden": [1.0], "update/input": [1.0], "rule/input": [1.0], **sizes, **changed}


@pytest.mark.parametrize(
    ("values", "cause"),
    [
        ({"update__hidden": 1.1, "update__hidden__largest": 2.0}, "one tensor lacks the rule's factor"),
        ({"update__hidden": 0.9, "update__hidden__smallest": 0.0}, "one tensor does not train"),
        ({"parameter__hidden__largest": 1.8}, "the initial values of one tensor"),
        ({"update__hidden": 2.0, "update__input": 2.0}, "the learning rate"),
        ({"update__hidden": 4.0, "rule__hidden": 0.25}, "no rule, such as plain optax"),
        ({"update__hidden": 3.0, "rule__hidden": 0.25, "update__input": 0.3}, "base sizes"),
    ],
)
def test_one_wrong_tensor_is_seen_beside_its_role_and_the_sentence_says_what_was_done(values, cause):
    comparison = dm.compare_runs(columns_of(), columns_of(**values))
    assert not comparison.on_course
    assert cause in comparison.sentence
    assert dm.compare_runs(columns_of(), columns_of()).on_course


@pytest.mark.parametrize(("own", "on_course"), [((3.0, 1.4), True), ((2.0, 1.2), True), ((3.0, 2.8), False)])
def test_a_loss_that_falls_much_less_than_the_references_is_off_course(own, on_course):
    columns = lambda *losses: {"step": [1, 16], "update/input": [1.0, 1.0], "loss": list(losses)}
    assert dm.compare_runs(columns(3.0, 1.5), columns(*own)).on_course == on_course
    assert dm.compare_runs(columns(3.0, 2.5), columns(*own)).on_course  # too early to say


def test_a_loss_that_is_no_longer_finite_is_off_course():
    columns = lambda *losses: {"step": [1, 16], "update/input": [1.0, 1.0], "loss": list(losses)}
    assert not dm.compare_runs(columns(3.0, 2.9), columns(3.0, None)).on_course


def test_a_number_that_one_run_alone_has_is_refused():
    columns = {"step": [1], "update/input": [1.0]}
    both, one = ({**columns, "numbers": numbers} for numbers in ({"bits": 32.0, "decay": 0.1}, {"bits": 32.0}))
    for pair in ((both, one), (one, both)):
        with pytest.raises(dm.InputError, match="decay"):
            dm.compare_runs(*pair)
    assert dm.compare_runs(both, both).on_course
    assert dm.compare_runs(both, columns).on_course  # values of dm.measures alone


def test_a_number_that_is_not_finite_is_off_course():
    overflown = columns_of(update__hidden=None, gradient__hidden=None)
    comparison = dm.compare_runs(columns_of(), overflown)
    assert not comparison.on_course
    assert "not finite" in comparison.sentence
    assert "not finite" not in dm.compare_runs(overflown, overflown).sentence


def test_the_sentence_names_what_both_runs_have():
    only = {"step": [1], "gradient/hidden": [1.0]}
    sentence = dm.compare_runs(only, columns_of()).sentence
    assert "gradients" in sentence
    assert "updates" not in sentence
    assert "rate" not in sentence
    with pytest.raises(dm.InputError, match="no step"):
        dm.compare_runs(columns_of(), {"step": [], "gradient/hidden": []})


@pytest.mark.parametrize("numbers", [{"batch_size": "64"}, {"schedule": lambda step: 1.0}])
def test_an_optimizer_and_numbers_of_a_course_are_what_they_must_be(numbers):
    info = {"w": dm.ParamInfo(Role.INPUT, (4, 4))}
    with pytest.raises(dm.InputError, match=next(iter(numbers))):
        dm.record_course(optax.adam(1e-3), info, **numbers)
    with pytest.raises(dm.InputError, match="optimizer"):
        dm.record_course("adam", info)


def plain_run(width, depth, optimizer_of, steps=3, base_size=(8, 2), **numbers):
    """The optimizer of a loop of plain NNX after some steps."""
    build = lambda width, depth: NetOfStacks(width, depth, nnx.Rngs(0))
    model, base, x = build(width, depth), build(*base_size), jnp.ones((4, 6))
    info = dm.audit(model, base, x).info
    nnx.update(model, dm.rescale_init(model, base, info))
    optimizer = nnx.Optimizer(model, dm.record_course(optimizer_of(info), info, **numbers), wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer, x):
        loss, grads = nnx.value_and_grad(lambda model: jnp.square(model(x) - 1).mean())(model)
        optimizer.update(model, grads, value=loss)

    for key in jax.random.split(jax.random.key(1), steps):
        step(model, optimizer, jax.random.normal(key, (4, 6)))
    return optimizer


class NetOfStacks(nnx.Module):
    """A residual network."""

    def __init__(self, width, depth, rngs):
        self.stem, self.head = nnx.Linear(6, width, rngs=rngs), nnx.Linear(width, 3, rngs=rngs)
        self.blocks = nnx.List([nnx.Linear(width, width, rngs=rngs) for _ in range(depth)])

    def __call__(self, x):
        h = self.stem(x)
        for block in self.blocks:
            h = h + block(nnx.relu(h))
        return self.head(h)


def test_a_loop_of_plain_nnx_is_compared_by_its_optimizers_states_and_files(tmp_path):
    right = lambda info: dm.adamw(1e-3, info)
    base, large = plain_run(8, 2, right, batch_size=4), plain_run(32, 4, right, batch_size=4)
    assert dm.compare_runs(base.opt_state, large.opt_state).on_course
    for name, optimizer in (("base", base), ("large", large)):
        dm.save_course(tmp_path / name, optimizer.opt_state)
    assert dm.compare_runs(tmp_path / "base", tmp_path / "large").on_course
    forgotten = dm.compare_runs(base.opt_state, plain_run(32, 4, lambda info: optax.adam(1e-3), batch_size=4).opt_state)
    assert "plain optax" in forgotten.sentence
    smaller = dm.compare_runs(base.opt_state, plain_run(32, 4, right, batch_size=2).opt_state)
    assert [one.name for one in smaller.deviations] == ["number/batch_size"]
    for size in ((4, 2), (8, 4), (16, 2)):
        other = dm.compare_runs(base.opt_state, plain_run(32, 4, right, base_size=size, batch_size=4).opt_state)
        assert other.deviations[0].name == "number/base_parameters"
        assert "base" in other.sentence.partition("Cause")[2]
    with pytest.raises(dm.InputError, match="record_course"):
        dm.save_course(tmp_path, optax.adam(1e-3).init({}))
    with pytest.raises(dm.InputError, match="opt_state"):  # swapped
        dm.save_course(optax.adam(1e-3).init({}), tmp_path)


def test_recording_changes_no_update_and_the_loss_is_the_mean_since_the_last_recorded_step():
    info, params = {"w": dm.ParamInfo(Role.INPUT, (4, 4))}, {"w": jnp.ones((4, 4))}
    plain = optax.adam(1e-3)
    recorded = dm.record_course(plain, info)
    states = plain.init(params), recorded.init(params)
    for loss in (3.0, 2.0, 1.0, 4.0):
        gradients = {"w": loss * params["w"]}
        (expected, first), (found, second) = (
            plain.update(gradients, states[0], params),
            recorded.update(gradients, states[1], params, value=loss),
        )
        states = first, second
        assert jnp.array_equal(expected["w"], found["w"])
    assert recorded_columns(states[1])["step"] == [1, 2, 4]
    assert recorded_columns(states[1])["loss"] == [3.0, 2.0, 2.5]


@pytest.mark.parametrize("axes", [((1,), (2,)), ((), ())])
def test_layers_of_a_stack_are_tensors_of_their_own(axes):
    info = {"w": dm.ParamInfo(Role.HIDDEN, (3, 4, 4), in_axes=axes[0], out_axes=axes[1])}
    params = {"w": jnp.ones((3, 4, 4))}
    updates = {"w": params["w"].at[1].set(4.0)}
    found = dm.measures(info, dm.get_parametrization(), params, updates, params)
    assert float(found["update/hidden"]) == pytest.approx(6**0.5)
    assert ("update/hidden/largest" in found) == bool(axes[0])
    if axes[0]:
        sizes = [float(found[f"update/hidden/{one}"]) for one in ("largest", "smallest")]
        assert sizes == pytest.approx([4 / 6**0.5, 1 / 6**0.5])
        assert float(found["count/hidden/largest"]) == 16


def test_a_small_tensor_is_no_deviation_where_those_at_its_place_in_other_layers_are_as_small():
    info = {f"{i}": {name: dm.ParamInfo(Role.HIDDEN, (4, 4)) for name in ("query", "value")} for i in range(3)}
    ones = jax.tree.map(lambda one: jnp.ones(one.shape), info, is_leaf=lambda x: isinstance(x, dm.ParamInfo))
    small = {i: {"query": 0.01 * layer["query"], "value": layer["value"]} for i, layer in ones.items()}
    found = dm.measures(info, dm.get_parametrization(), small, ones, ones)
    assert float(found["gradient/hidden/smallest"]) == pytest.approx(1.0)
    one = {**small, "1": {"query": 0.01 * small["1"]["query"], "value": small["1"]["value"]}}
    found = dm.measures(info, dm.get_parametrization(), one, ones, ones)
    assert float(found["gradient/hidden/smallest"]) == pytest.approx(0.01 * (3 / (2 + 1e-4)) ** 0.5)


@pytest.mark.parametrize(("factor", "count", "on_course"), [(1.8, 36, True), (1.8, 3600, False), (3, 36, False)])
def test_a_role_of_few_numbers_has_wider_limits(factor, count, on_course):
    columns = lambda value: {"step": [1], "parameter/input": [value], "count/input": [count]}
    assert dm.compare_runs(columns(1.0), columns(factor)).on_course == on_course


def test_seeds_are_averaged_and_a_column_of_zeros_is_unknown():
    courses = [{"step": [1, 2], "update/input": [0.0, value], "count/input": [9.0, 9.0]} for value in (1.0, 4.0)]
    assert mean_columns(courses, 2) == {
        "step": [1, 2],
        "update/input": [None, pytest.approx(4.0)],
        "count/input": [pytest.approx(18.0)] * 2,
    }
