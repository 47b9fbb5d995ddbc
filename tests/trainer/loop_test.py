"""The training run: resuming, devices, divergence, the files it leaves, and what it refuses."""

import functools
import json
import pathlib
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import processes
import pytest
from interruption import interrupted_before
from small_runs import assert_same_run, last_state

from benchmarks.train_step import make_train_step
from depthmup_flax import InputError
from depthmup_flax.config.fields import config_hash, default_config, to_json, validate
from depthmup_flax.data import load as read_data
from depthmup_flax.rule.info_trees import info_from_json
from depthmup_flax.trainer.engine.device_batches import CallLength
from depthmup_flax.trainer.engine.from_config import build
from depthmup_flax.trainer.loop import train_and_evaluate
from depthmup_flax.trainer.runs.checkpoint import Checkpointer
from depthmup_flax.trainer.runs.trained import load_run


def tiny(architecture="res_mlp", /, **sections):
    """A run of 12 steps in three parts, with a schedule, weight decay and clipping."""
    config = default_config(architecture)
    config.model.update(width=16, depth=4)
    config.optimizer.update(schedule="cosine", warmup_steps=3, weight_decay=0.1, clip_rms=0.5)
    config.train.update(batch_size=16, steps=12, eval_every=4, log_every=3, average_steps=5)
    for section, fields in sections.items():
        config[section].update(fields)
    return config


def rows(workdir):
    return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The work directory of a completed run of `tiny`; to be copied before it is changed."""
    workdir = tmp_path_factory.mktemp("finished") / "run"
    jax.config.update("jax_disable_most_optimizations", True)  # as in the tests, which compare with it
    train_and_evaluate(tiny(), workdir)
    return workdir


@pytest.fixture
def copied(finished, tmp_path):
    return pathlib.Path(shutil.copytree(finished, tmp_path / "run"))


def conv_run():
    return tiny(
        "simple_resnet",
        model={"width": 8, "norm": "batch"},
        optimizer={"name": "momentum", "frozen": ("stem",)},
        data={"augment": "cifar", "placement": "stream", "train_examples": 200},
    )


def test_a_run_leaves_every_file_and_a_result_with_every_key(finished):
    config, result = tiny(), json.loads((finished / "result.json").read_text())
    assert result["status"] == "completed"
    assert result["steps"] == 12
    assert result["seed"] == 0
    assert result["config_hash"] == config_hash(config)
    for key in ("train_loss", "train_loss_avg", "test_loss", "test_accuracy", "wall_time_s"):
        assert isinstance(result[key], float)
    assert {"python", "jax", "flax", "optax"} <= result["versions"].keys()
    assert "stem/kernel" in (finished / "params.txt").read_text()
    assert json.loads((finished / "config.json").read_text()) == json.loads(to_json(config))
    assert list(finished.glob("events.out.tfevents.*"))
    assert [row["step"] for row in rows(finished)] == [3, 4, 6, 8, 9, 12, 12]
    # Roles travel with every checkpoint.
    meta = ocp.CheckpointManager(finished.absolute() / "checkpoints", item_names=("state", "meta")).restore(
        12, args=ocp.args.Composite(meta=ocp.args.JsonRestore())
    )["meta"]
    assert info_from_json(meta["param_info"]) == build(config).info
    assert meta["config"]["train"]["steps"] == 12
    assert meta["data_position"] == 12 * 16


@pytest.mark.gpu
def test_losses_in_the_result_are_those_of_a_loop_written_by_hand(finished):
    config, result = tiny(), json.loads((finished / "result.json").read_text())
    experiment = build(config)
    data = experiment.dataset
    prepare = functools.partial(data.prepare, "none")
    init, step = make_train_step(experiment.network.model, experiment.network.optimizer, prepare=prepare, seed=0)
    step = jax.jit(step)
    from depthmup_flax.data import batch_indices

    state, each = init(data.input_spec), []
    for t in range(12):
        state, _ = step(state, data.train.read(batch_indices(0, t, len(data.train), 16)))
        each.append(float(state.last_loss))
    assert result["train_loss"] == pytest.approx(each[-1], rel=1e-4)
    assert result["train_loss_avg"] == pytest.approx(np.mean(each[-5:]), rel=1e-4)
    assert rows(finished)[0]["train_loss"] == pytest.approx(np.mean(each[:3]), rel=1e-4)
    images = data.test.arrays()["image"].astype(np.float32) / 255
    logits = jax.jit(experiment.network.model.apply)({"params": state.carry.params}, (images - data.mean) / data.std)
    accuracy = float((logits.argmax(-1) == data.test.arrays()["label"]).mean())
    assert result["test_accuracy"] == pytest.approx(accuracy, abs=0.005)


@pytest.mark.gpu
def test_a_resumed_run_is_bit_identical_to_an_uninterrupted_one(finished, tmp_path):
    assert_resumes_bit_for_bit(tiny, (4, 11), finished, tmp_path / "parts")


@pytest.mark.slow
def test_a_resumed_run_with_batch_norm_streams_and_augments_as_an_uninterrupted_one(tmp_path):
    train_and_evaluate(conv_run(), tmp_path / "whole")
    assert_resumes_bit_for_bit(conv_run, (5,), tmp_path / "whole", tmp_path / "parts")


def assert_resumes_bit_for_bit(config, stops, whole, parts):
    for stop in stops:
        with interrupted_before(stop):
            train_and_evaluate(config(), parts)
        with (parts / "metrics.jsonl").open("a") as torn:
            torn.write('{"step": 99, "tra')
    train_and_evaluate(config(), parts)
    assert_same_run(whole, parts)


def test_running_a_finished_run_again_computes_nothing_and_returns_its_result(copied, logged):
    before = {p: p.stat().st_mtime_ns for p in copied.rglob("*") if p.is_file() and p.name != ".lock"}
    assert train_and_evaluate(tiny(), copied) == json.loads((copied / "result.json").read_text())
    assert {p: p.stat().st_mtime_ns for p in copied.rglob("*") if p.is_file() and p.name != ".lock"} == before
    assert "holds this run already" in logged.text


@pytest.mark.gpu
@pytest.mark.parametrize("placement", ["device", "stream"])
def test_single_steps_and_streamed_data_are_several_steps_in_a_call_bit_for_bit(
    placement, finished, tmp_path, monkeypatch
):
    monkeypatch.setattr(CallLength, "adapt", lambda *args: None)
    train_and_evaluate(tiny(data={"placement": placement}), tmp_path)
    assert_same_run(finished, tmp_path)


@pytest.mark.slow
def test_eight_devices_train_like_one(tmp_path):
    """Float sums in another order: the tolerance is rounding, not luck."""
    config = tiny(data={"augment": "cifar"}, train={"batch_size": 64, "steps": 20, "eval_every": 10})
    process = processes.Process(tmp_path / "8.log", processes.on_devices, 8, processes.train, config, tmp_path / "8")
    train_and_evaluate(config, tmp_path / "1")
    assert process.wait() == 0, process.text()
    assert "on 8 cpu device(s)" in process.text()
    one, eight = (last_state(tmp_path / devices)["carry"]["params"] for devices in ("1", "8"))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5), one, eight)
    first, last = (json.loads((tmp_path / n / "result.json").read_text()) for n in ("1", "8"))
    assert first["train_loss"] == pytest.approx(last["train_loss"], rel=1e-4)
    read = load_run(tmp_path / "8")  # on this process's one device
    jax.tree.map(np.testing.assert_array_equal, read.params, eight)
    test = read_data(config.data).test.arrays()
    accuracy = (read.predict(test["image"]).argmax(-1) == test["label"]).mean()
    assert accuracy == pytest.approx(last["test_accuracy"], abs=1e-6)


def test_a_checkpoint_describes_the_step_of_its_save_though_the_description_grows_later(tmp_path):
    checkpointer, meta = Checkpointer(tmp_path, keep=1), {"slices": {"run": [0.5]}}
    for step in range(5):  # the files are written in the background, at a time that varies
        checkpointer.save(step, {"w": jnp.ones(2)}, meta)
        meta["slices"]["run"].append(0.5)
        checkpointer.wait()
        assert checkpointer.latest_meta() == {"slices": {"run": [0.5] * (step + 1)}}
    checkpointer.close()


@pytest.mark.parametrize("gone", [("config.json",), ("config.json", "result.json"), ("data.json",)])
def test_checkpoints_or_a_result_without_their_description_are_not_taken_for_a_new_run(copied, gone):
    for name in gone:
        (copied / name).unlink()
    with pytest.raises(InputError, match=rf"without its {gone[0]}"):
        train_and_evaluate(tiny(optimizer={"learning_rate": 0.5}), copied)
    assert not (copied / gone[0]).exists()


@pytest.mark.slow
def test_a_last_update_that_blows_up_is_divergence_too(tmp_path):
    config = tiny(optimizer={"learning_rate": 1e36, "warmup_steps": 0, "clip_rms": 0.0}, train={"steps": 1})
    result = train_and_evaluate(config, tmp_path)
    assert (result["status"], result["diverged_at_step"], result["test_loss"]) == ("diverged", 1, None)


def test_a_work_directory_with_another_config_is_refused_and_untouched(copied):
    before = {p: p.read_bytes() for p in copied.rglob("*") if p.is_file() and p.name != ".lock"}
    with pytest.raises(InputError, match=r"optimizer\.learning_rate: 0\.001 there, 0\.5 here"):
        train_and_evaluate(tiny(optimizer={"learning_rate": 0.5}), copied)
    assert {p: p.read_bytes() for p in copied.rglob("*") if p.is_file() and p.name != ".lock"} == before
    other = copied / "notes.txt"
    other.write_text("mine")
    result = train_and_evaluate(tiny(optimizer={"learning_rate": 0.5}), copied, overwrite=True)
    assert result["steps"] == 12
    assert rows(copied)[0]["step"] == 3
    assert other.read_text() == "mine"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"train": {"batch_size": 0}}, "train.batch_size is 0"),
        ({"optimizer": {"warmup_steps": 12}}, "12 training steps"),
        ({"optimizer": {"name": "sdg"}}, "optimizer.name is 'sdg'"),
        ({"optimizer": {"name": "muon", "kwargs": {"momentum": 0.9}}}, "'momentum'"),
        ({"optimizer": {"frozen": ("head",)}}, "'head'"),
        ({"parametrization": {"preset": "block_only"}, "optimizer": {"name": "sgd"}}, "parametrization.preset"),
    ],
)
def test_a_bad_config_is_refused_before_anything_is_written(changes, field, tmp_path):
    with pytest.raises(InputError) as error:
        train_and_evaluate(tiny(**changes), tmp_path / "run")
    assert field in str(error.value)
    assert not (tmp_path / "run").exists()


def test_an_unknown_field_is_named_with_the_closest_known_one():
    config = tiny()
    with config.unlocked():
        config.train.batchsize = 3
    with pytest.raises(InputError, match=r"'train\.batchsize'.*'train\.batch_size'"):
        validate(config)


def test_an_unknown_field_that_is_like_no_other_is_answered_with_those_of_its_section():
    config = tiny()
    with config.unlocked():
        config.mesh.model = 2
    with pytest.raises(InputError, match=r"'mesh\.model': mesh has data, fsdp\.$"):
        validate(config)


def test_a_batch_that_more_devices_do_not_divide_tells_how_to_resume(tmp_path):
    with pytest.raises(InputError, match="resume it on fewer devices"):
        train_and_evaluate(tiny(train={"accumulate": 3}), tmp_path / "run")
