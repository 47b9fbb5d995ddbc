"""`load_run` for runs of a user's network, data and training step."""

import json
import shutil

import equinox as eqx
import jax
import numpy as np
import optax
import pytest
from flax import nnx

import depthmup_flax as dm
from depthmup_flax.config import default_config
from depthmup_flax.networks.import_paths import SOURCE_FORM, register
from depthmup_flax.trainer.engine.task import Task
from depthmup_flax.trainer.loop import train_and_evaluate
from depthmup_flax.util.errors import InputError

RNG = np.random.default_rng(0)
INPUTS = RNG.normal(size=(80, 6)).astype(np.float32)
TARGETS = np.sin(INPUTS[:, :2])
TEST = INPUTS[64:], TARGETS[64:]


def targets():
    return (INPUTS[:64], TARGETS[:64]), TEST


class Equinox(eqx.Module):
    stem: eqx.nn.Linear
    head: eqx.nn.Linear
    factor: float

    def __init__(self, width, depth, *, rule, key):
        keys = jax.random.split(key)
        self.stem, self.head = eqx.nn.Linear(6, width, key=keys[0]), eqx.nn.Linear(width, 2, key=keys[1])
        self.factor = rule.readout_multiplier(width / 16)

    def __call__(self, x):
        return self.head(jax.nn.relu(self.stem(x)) * self.factor)


class Nnx(nnx.Module):
    def __init__(self, width, depth, *, rule, num_classes, rngs):
        self.stem, self.norm = nnx.Linear(64, width, rngs=rngs), nnx.BatchNorm(width, rngs=rngs)
        self.head, self.factor = nnx.Linear(width, num_classes, rngs=rngs), rule.readout_multiplier(width / 16)

    def __call__(self, x):
        return self.head(jax.nn.relu(self.norm(self.stem(x.reshape(len(x), -1)))) * self.factor)


def pair(width, depth, rule):
    def init(key, x):
        normal = lambda *shape: jax.random.normal(key, shape) / shape[0] ** 0.5
        return [(normal(x.shape[-1], width), normal(width, 2))]  # neither a dictionary nor named

    def apply(params, x):
        ((first, last),) = params
        return (x @ first) @ last * rule.readout_multiplier(width / 16)

    return init, apply


def step_of_their_own(width, depth):
    def init(key, hyper):
        params = jax.random.normal(key, (6, 2))
        return {"params": params, "optimizer": optax.adam(1.0).init(params), "name": "linear"}

    def step(state, batch, hyper):
        x, y = batch
        loss, grads = jax.value_and_grad(lambda p: ((x @ p - y) ** 2).mean())(state["params"])
        updates, optimizer = optax.adam(1.0).update(grads, state["optimizer"])
        params = state["params"] + hyper["learning_rate"] * updates
        return {**state, "params": params, "optimizer": optimizer}, {"loss": loss}

    return Task(init, step)


def config(model, data=targets, loss="squared_error"):
    run = default_config(register(model, "model"))
    run.model.update(width=32, depth=1, base_width=16)
    run.loss = loss
    if data:
        run.data.name = f"python:{register(data, 'data')}"
    run.train.update(batch_size=16, steps=6, log_every=2, eval_every=3, average_steps=4)
    return run


@pytest.fixture(scope="module")
def equinox(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("equinox")
    train_and_evaluate(config(Equinox), workdir)
    return workdir


def test_outputs_of_a_run_on_the_users_data_have_the_loss_of_its_result(equinox):
    run = dm.load_run(equinox)
    outputs = run.predict(TEST[0], batch_size=5)
    assert ((outputs - TEST[1]) ** 2).mean() == pytest.approx(run.result["test_loss"], rel=1e-5)
    assert set(run.params) == {"stem", "head"}
    assert run.info["head"]["weight"].role is dm.Role.OUTPUT


def test_the_module_of_a_run_holds_the_trained_values(equinox):
    run = dm.load_run(equinox)
    np.testing.assert_allclose(jax.vmap(run.model)(TEST[0]), run.predict(TEST[0]), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_images_of_ours_have_the_accuracy_of_the_result_in_a_users_network_with_averages(tmp_path):
    train_and_evaluate(config(Nnx, data=None, loss="cross_entropy"), tmp_path)
    run = dm.load_run(tmp_path)
    test = dm.data.load(run.config.data).test.arrays()
    outputs = run.predict(test["image"])
    assert (outputs.argmax(-1) == test["label"]).mean() == pytest.approx(run.result["test_accuracy"], abs=1e-6)
    run.model.eval()
    np.testing.assert_allclose(run.model(run.preprocess(test["image"])), outputs, rtol=1e-4, atol=1e-5)


def test_parameters_of_a_pair_have_the_structure_of_its_init(tmp_path):
    train_and_evaluate(config(pair), tmp_path)
    run = dm.load_run(tmp_path)
    ((first, last),) = run.params
    assert (first.shape, last.shape) == ((6, 32), (32, 2))
    np.testing.assert_allclose(run.model[1](run.params, TEST[0]), run.predict(TEST[0]), rtol=1e-5, atol=1e-6)


def test_a_training_step_has_its_state_and_no_outputs(tmp_path):
    run = config(step_of_their_own, loss="cross_entropy")
    result = train_and_evaluate(run, tmp_path)
    loaded = dm.load_run(tmp_path)
    assert loaded.state["name"] == "linear"
    assert loaded.state["optimizer"][0].count == result["steps"]
    np.testing.assert_array_equal(loaded.state["params"], loaded.params["params"])
    with pytest.raises(InputError, match="training step"):
        loaded.predict(TEST[0])


def test_changed_code_is_a_warning_and_other_parameters_an_error(equinox, tmp_path, caplog):
    copy = shutil.copytree(equinox, tmp_path / "copy")
    stored = json.loads((copy / "config.json").read_text())
    name = next(iter(stored["source"]))
    stored["source"][name] = f"{SOURCE_FORM}{'0' * 16}"
    (copy / "config.json").write_text(json.dumps(stored))
    dm.load_run(copy)
    assert f"the code of {name} has changed" in caplog.text
    stored["model"]["width"] = 8
    (copy / "config.json").write_text(json.dumps(stored))
    with pytest.raises(InputError, match="head/weight of shape"):
        dm.load_run(copy)
