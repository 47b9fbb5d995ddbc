"""Data and settings that change between two attempts of a run: the same result, or a sentence, and nothing is lost."""

import itertools
import shutil

import flax.linen as nn
import jax
import numpy as np
import pytest
from data_sets import write_flat_folder, write_image
from small_runs import a_sweep, small_sweep

from depthmup_flax import InputError, Study
from depthmup_flax.config import default_config
from depthmup_flax.config.fields import set_field
from depthmup_flax.search.sweep import runner
from depthmup_flax.search.sweep.runner import sweep
from depthmup_flax.trainer.loop import train_and_evaluate
from depthmup_flax.util.errors import Preempted


def run_of(name, steps=2, model="res_mlp", **data):
    run = default_config(model)
    run.model.update(width=8, depth=2)
    run.data.update(name=name, **data)
    run.train.update(batch_size=2, steps=steps, eval_every=2, eval_batch_size=2, writers=("jsonl",))
    return run


def files(directory):
    """The content of every file of a run, but for its lock."""
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file() and "lock" not in path.name}


def stopped(run, workdir):
    """A run that has saved and was stopped before its result."""
    train_and_evaluate(run, workdir)
    (workdir / "result.json").unlink()
    return workdir


def refusal(run, workdir):
    """The error of the next attempt, which touches nothing."""
    before = files(workdir)
    with pytest.raises(InputError) as error:
        train_and_evaluate(run, workdir)
    assert files(workdir) == before
    return str(error.value)


@pytest.fixture(scope="module", params=["device", "stream"])
def stopped_on_images(request, tmp_path_factory):
    """A stopped run, its work directory, and the folder of its images."""
    root = tmp_path_factory.mktemp("images")
    write_flat_folder(root)
    run = run_of(f"folder:{root}", placement=request.param)
    return run, stopped(run, tmp_path_factory.mktemp("runs") / "run"), root


def other_image(root):
    write_image(sorted((root / "train").rglob("*.png"))[0], np.full((6, 6, 3), 7, np.uint8))


def one_more(root):
    first = sorted((root / "train").rglob("*.png"))[0]
    shutil.copy(first, first.with_name("zzz.png"))


def swapped_labels(root):
    """Two images of different classes change places; names and sizes stay."""
    a, b = (sorted(folder.glob("*.png"))[0] for folder in sorted((root / "train").iterdir())[:2])
    first, second = a.read_bytes(), b.read_bytes()
    a.write_bytes(second), b.write_bytes(first)


@pytest.mark.parametrize("change", [other_image, one_more, swapped_labels])
def test_a_run_is_not_resumed_on_images_that_have_changed(tmp_path, change, stopped_on_images):
    run, workdir, root = stopped_on_images
    shutil.copytree(root, tmp_path / "kept")
    change(root)
    error = refusal(run, workdir)
    shutil.rmtree(root)
    shutil.move(tmp_path / "kept", root)
    assert error.startswith(f"data.name is 'folder:{root}'")
    assert "overwrite" in error


def test_data_that_are_the_same_elsewhere_and_touched_are_the_same(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    write_flat_folder(tmp_path / "a" / "images")
    monkeypatch.chdir(tmp_path / "a")
    train_and_evaluate(run_of("folder:images"), tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    shutil.copytree(tmp_path / "a", tmp_path / "b")  # new times
    monkeypatch.chdir(tmp_path / "b")
    assert train_and_evaluate(run_of("folder:images"), tmp_path / "run")["status"] == "completed"


def test_a_sweep_is_not_continued_on_other_data(tmp_path):
    root = tmp_path / "images"
    write_flat_folder(root)
    small = a_sweep(rates=2, depths=(2,))
    small.base.data.update(name=f"folder:{root}", train_examples=0, test_examples=0)
    small.base.train.update(batch_size=2)
    sweep(small, tmp_path / "sweep", lanes=1)
    records = (tmp_path / "sweep" / "records.jsonl").read_bytes()
    one_more(root)
    with pytest.raises(InputError, match="number of training examples"):
        sweep(small, tmp_path / "sweep", lanes=1)
    assert (tmp_path / "sweep" / "records.jsonl").read_bytes() == records


def test_lanes_whose_random_numbers_would_depend_on_their_neighbors_are_refused(tmp_path):
    with jax.default_prng_impl("rbg"), pytest.raises(InputError, match="lanes=1"):
        sweep(a_sweep(rates=2, depths=(2,)), tmp_path, lanes=2)


SETTINGS = {"jax_default_prng_impl": "rbg", "jax_default_matmul_precision": "bfloat16", "jax_random_seed_offset": 1}


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_run_is_not_resumed_under_another_setting_of_jax(setting, stopped_on_images):
    run, workdir, _ = stopped_on_images
    usual, value = getattr(jax.config, setting), SETTINGS[setting]
    try:
        jax.config.update(setting, value)
        error = refusal(run, workdir)
    finally:
        jax.config.update(setting, usual)
    assert f"{setting}: '(not set)' there, {value!r} here" in error


def batches_of(**changes):
    """Batches by seed, some of which are others: step -> values."""

    def batches(seed):
        for step in itertools.count():
            x = np.random.default_rng((seed, step)).normal(size=(5, 2)).astype(np.float32)
            yield x * changes.get(f"step_{step}", 1), x

    return batches


TEST = np.ones((5, 2), np.float32)
LATER = {"the second batch": {"step_1": 2}, "the last batch that was read": {"step_3": 2}}


def streamed(tmp_path, seed=3, prepare=None, **changes):
    data = (batches_of(**changes), (TEST, TEST), *([prepare] * (prepare is not None)))
    study = Study(
        Net, data, base=(4, 2), loss="squared_error", workdir=tmp_path, batch_size=5, steps=8, seed=seed, quiet=True
    )
    run = study.config()
    run.train.update(checkpoint_every=4, eval_every=8, writers=("jsonl",), average_steps=1)
    run.model.audit = False
    return run


class Net(nn.Module):
    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        return nn.Dense(2)(nn.relu(nn.Dense(self.width)(x)))


def stopped_in_the_middle(run, workdir):
    result = train_and_evaluate(run, workdir)
    (workdir / "result.json").unlink()
    shutil.rmtree(workdir / "checkpoints" / "8")
    return result


@pytest.mark.parametrize("seed", [0, 3])
@pytest.mark.parametrize("change", LATER)
@pytest.mark.parametrize("prepare", [None, lambda key, batch: batch], ids=["", "prepare"])
def test_a_run_is_not_resumed_on_a_stream_whose_earlier_batches_have_changed(tmp_path, seed, change, prepare):
    run, changed = (streamed(tmp_path, seed, prepare=prepare, **of) for of in ({}, LATER[change]))
    whole = stopped_in_the_middle(run, tmp_path / "run")
    with pytest.raises(InputError, match="first 4 batches"):
        train_and_evaluate(changed, tmp_path / "run")
    assert train_and_evaluate(run, tmp_path / "run")["train_loss"] == whole["train_loss"]


def test_a_sweep_is_not_resumed_on_a_stream_whose_earlier_batches_have_changed(tmp_path, monkeypatch):
    grid = {"rates": {"optimizer.learning_rate": (1e-3, 4e-3), "seed": (0, 1)}}
    first, changed = (small_sweep(streamed(tmp_path, **of), grid) for of in ({}, LATER["the second batch"]))
    asked = itertools.count()
    with monkeypatch.context() as patch:
        patch.setattr(runner.Preemption, "reached", lambda self: next(asked) >= 3)
        with pytest.raises(Preempted):
            sweep(first, tmp_path / "sweep", lanes=4)
    with pytest.raises(InputError, match="first 4 batches"):
        sweep(changed, tmp_path / "sweep", lanes=4)
    assert len(sweep(first, tmp_path / "sweep", lanes=4)) == 4


def test_batches_that_were_read_ahead_and_not_trained_on_may_change(tmp_path):
    stopped_in_the_middle(streamed(tmp_path), tmp_path / "run")
    assert train_and_evaluate(streamed(tmp_path, step_4=2), tmp_path / "run")["status"] == "completed"


OTHER_EXECUTION = {"data.placement": "stream", "model.remat": "full", "train.eval_batch_size": 3}
OTHER_EXECUTION |= {f"train.{name}": 1 for name in ("log_every", "keep_checkpoints", "checkpoint_every")}


@pytest.mark.slow
def test_how_a_run_is_executed_and_files_beside_its_data_may_change_between_two_attempts(tmp_path):
    write_flat_folder(tmp_path / "images")
    run = run_of(f"folder:{tmp_path / 'images'}", steps=4)
    whole = train_and_evaluate(run, tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "4")
    (tmp_path / "images" / "README.txt").write_text("about these images")
    (tmp_path / "images" / "train" / ".hidden.png").write_text("")
    for path, value in OTHER_EXECUTION.items():
        set_field(run, path, value)
    assert train_and_evaluate(run, tmp_path / "run")["train_loss"] == pytest.approx(whole["train_loss"], rel=1e-5)
