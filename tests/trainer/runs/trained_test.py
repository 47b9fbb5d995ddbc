"""`load_run`: what it reads is what the run saved, and its predictions are those of the evaluation."""

import json
import shutil

import jax
import numpy as np
import pytest
from small_runs import config, last_state

import depthmup_flax as dm
from depthmup_flax.config.fields import config_hash, default_config
from depthmup_flax.data import Tokenizer, load, stored_dataset
from depthmup_flax.data.dataset import ArraySplit
from depthmup_flax.data.text import TextDataset
from depthmup_flax.trainer.loop import train_and_evaluate
from depthmup_flax.trainer.run_log import read_metrics
from depthmup_flax.trainer.runs.checkpoint import read_checkpoint


@pytest.fixture
def copied(undisturbed, tmp_path):
    return shutil.copytree(undisturbed, tmp_path / "copy")


def mean_loss(logits, labels):
    """Cross-entropy, in double precision."""
    logits = logits.astype(np.float64)
    top = logits.max(-1, keepdims=True)
    logs = logits - top - np.log(np.exp(logits - top).sum(-1, keepdims=True))
    return -np.take_along_axis(logs, labels[..., None], -1).mean()


def assert_agrees_with_its_evaluation(run, images, labels):
    logits = run.predict(images)
    assert (logits.argmax(-1) == labels).mean() == pytest.approx(run.result["test_accuracy"], abs=1e-6)
    assert mean_loss(logits, labels) == pytest.approx(run.result["test_loss"], rel=1e-4)


def test_predictions_of_the_test_set_have_the_accuracy_and_the_loss_of_the_result(undisturbed):
    run = dm.load_run(undisturbed)
    test = load(run.config.data).test.arrays()
    assert_agrees_with_its_evaluation(run, test["image"], test["label"])
    np.testing.assert_allclose(run.predict(test["image"] / 255.0, batch_size=64), run.predict(test["image"]), atol=1e-4)


def test_a_run_has_the_numbers_the_config_and_the_roles_that_it_saved(undisturbed):
    run = dm.load_run(str(undisturbed))
    jax.tree.map(np.testing.assert_array_equal, run.params, last_state(undisturbed)["carry"]["params"])
    assert run.result == json.loads((undisturbed / "result.json").read_text())
    assert config_hash(run.config) == run.result["config_hash"]
    assert repr(run) == f"TrainedRun({str(undisturbed)!r}, step 240: res_mlp, width 16, depth 4, 2,208 parameters)"
    assert run.metrics["step"].tolist() == list(range(20, 241, 20))
    assert run.metrics["test_loss"][-1] == run.result["test_loss"]
    assert np.isnan(run.metrics["test_loss"][0])
    optimizer = dm.adamw(1e-3, run.info, run.rule)  # training goes on from here, in anybody's loop
    updates, _ = optimizer.update(run.params, optimizer.init(run.params), run.params)
    assert jax.tree.structure(updates) == jax.tree.structure(run.params)


def test_images_are_prepared_as_in_the_evaluation(undisturbed):
    run, dataset = dm.load_run(undisturbed), load(config().data)
    batch = dataset.test.arrays()
    expected, _ = dataset.prepare("none", None, batch)
    np.testing.assert_allclose(run.preprocess(batch["image"]), expected, rtol=1e-6, atol=1e-6)
    logits = run.model.apply(run.variables, run.preprocess(batch["image"][:5]), train=False)
    np.testing.assert_allclose(logits, run.predict(batch["image"][:5]), atol=1e-4)


def test_an_earlier_checkpoint_is_read_by_its_step(undisturbed):
    earlier = dm.load_run(undisturbed, which=180)
    assert earlier.step == 180
    state, _ = read_checkpoint(undisturbed / "checkpoints" / "180")
    jax.tree.map(np.testing.assert_array_equal, earlier.params, state["carry"]["params"])


def test_a_damaged_checkpoint_is_one_sentence(copied):
    for path in (copied / "checkpoints/240/state").rglob("*"):
        if path.is_file() and "/d/" in str(path):
            path.write_bytes(bytes(len(path.read_bytes())))
    with pytest.raises(dm.InputError, match=r"checkpoints/240 cannot be read as a checkpoint .*: name another one\."):
        dm.load_run(copied)


def test_a_diverged_run_without_checkpoints_says_when_it_diverged(copied):
    shutil.rmtree(copied / "checkpoints")
    result = json.loads((copied / "result.json").read_text())
    (copied / "result.json").write_text(json.dumps({**result, "status": "diverged", "diverged_at_step": 17}))
    with pytest.raises(dm.InputError, match="diverged at step 17"):
        dm.load_run(copied)


def test_a_run_without_checkpoints_is_refused(copied):
    shutil.rmtree(copied / "checkpoints")
    with pytest.raises(dm.InputError, match="has saved no checkpoint yet"):
        dm.load_run(copied)
    (copied / "config.json").unlink()
    with pytest.raises(dm.InputError, match="has saved nothing yet"):
        dm.load_run(copied)


def test_another_directory_is_refused(tmp_path):
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "workdir.json").write_text('{"kind": "sweep"}')
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "sweep", tmp_path / "nothing", tmp_path / "file"):
        with pytest.raises(dm.InputError, match=str(path)):
            dm.load_run(path)


@pytest.mark.parametrize(
    "images",
    [np.zeros((2, 28, 28, 1)), np.full((1, 8, 8, 1), 16.0)],
)
def test_images_that_the_network_does_not_read_are_refused(undisturbed, images):
    with pytest.raises(dm.InputError, match="images"):
        dm.load_run(undisturbed).predict(images)


@pytest.mark.parametrize("which", ["last", 7])
def test_a_checkpoint_that_is_not_there_is_one_sentence(undisturbed, which):
    with pytest.raises(dm.InputError, match=f"which is {which!r}"):
        dm.load_run(undisturbed, which=which)


@pytest.mark.slow
def test_a_language_model_gives_the_logits_of_its_evaluation(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("the rain in spain stays mainly in the plain.\n" * 60)
    gpt = default_config("gpt")
    gpt.model.update(width=16, depth=1, num_heads=2)
    gpt.data.update(name=f"text:{text}", context=16)
    gpt.train.update(batch_size=16, steps=6, eval_every=6, log_every=6)
    gpt.optimizer.learning_rate = 1e-2
    train_and_evaluate(gpt, tmp_path / "run")
    windows = load(gpt.data).test.arrays()["tokens"]
    text.unlink()  # predictions need no data
    run = dm.load_run(tmp_path / "run")
    assert_agrees_with_its_evaluation(run, windows[:, :-1], windows[:, 1:])
    with pytest.raises(dm.InputError, match="no model of images"):
        run.preprocess(windows)


def test_the_table_of_metrics_leaves_out_torn_lines_and_has_a_row_for_each_step(tmp_path):
    lines = [
        '{"step": 10, "train_loss": 1.5}',
        '{"step": 10, "test_loss": 2}',
        '{"step": 5, "train_loss": null}',
        '{"step": 20, "train_l',
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    columns = read_metrics(tmp_path / "metrics.jsonl")
    assert columns["step"].tolist() == [5, 10]
    np.testing.assert_array_equal(columns["train_loss"], [np.nan, 1.5])
    np.testing.assert_array_equal(columns["test_loss"], [np.nan, 2])
    assert {name: len(column) for name, column in read_metrics(tmp_path / "none").items()} == {"step": 0}


def test_a_stored_description_has_the_tokenizer():
    tokenizer = Tokenizer("ab\u00e9")
    empty = ArraySplit({"tokens": np.zeros((0, 16), np.uint8)})
    text = TextDataset("text:x", empty, empty, tokenizer.vocab_size, "device", 8, tokenizer)
    read = stored_dataset.from_json(json.loads(json.dumps(stored_dataset.to_json(text))))
    assert isinstance(read, TextDataset)
    assert (read.tokenizer, read.context, read.input_spec) == (tokenizer, 8, text.input_spec)
