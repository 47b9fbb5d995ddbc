"""A run on image files of which some cannot be decoded."""

import json

import numpy as np
import pytest
from data_sets import write_image
from joined import Joined

from depthmup_flax import InputError
from depthmup_flax.config.fields import config_hash, default_config
from depthmup_flax.trainer.loop import train_and_evaluate

BAD = {"train": (3, 17), "test": (1, 12)}


def write_noise(root, bad):
    """Two classes of 12 images in each split, noise about a brightness; the ``bad`` ones are cut off."""
    for split, seed in (("train", 0), ("test", 1)):
        rng = np.random.default_rng(seed)
        for i in range(24):
            path = root / split / "ab"[i >= 12] / f"{i:02}.png"
            write_image(path, rng.integers(0, 128 + 64 * (i >= 12), (4, 4, 3)).astype(np.uint8))
            if i in bad.get(split, ()):
                path.write_bytes(path.read_bytes()[:40])
    return root


def fields(root, placement="stream", on_bad_example="skip"):
    return {
        **{"model.width": 8, "model.depth": 2},
        **{"data.name": f"folder:{root}", "data.placement": placement, "data.on_bad_example": on_bad_example},
        **{"train.batch_size": 8, "train.steps": 12, "train.eval_batch_size": 5},
        **{"train.eval_every": 6, "train.log_every": 6},
    }


def run(root, **changed):
    config = default_config()
    config.update_from_flattened_dict(fields(root, **changed))
    return config


@pytest.mark.slow
def test_a_run_that_skips_counts_the_bad_examples_and_tests_on_the_good_ones(tmp_path):
    root = write_noise(tmp_path / "set", BAD)
    result = train_and_evaluate(run(root), tmp_path / "run")
    assert result["bad_examples"] == 4
    assert json.loads((tmp_path / "run/result.json").read_text())["bad_examples"] == 4
    for i in BAD["test"]:
        (root / "test" / "ab"[i >= 12] / f"{i:02}.png").unlink()
    without = train_and_evaluate(run(root, placement="device"), tmp_path / "without")
    assert without["bad_examples"] == 2
    for field in ("train_loss", "test_loss", "test_accuracy"):
        assert without[field] == pytest.approx(result[field], rel=1e-4)


@pytest.mark.slow
def test_a_run_that_met_a_bad_example_goes_on_with_skip_as_if_it_had_skipped_from_the_start(tmp_path, logged):
    root = write_noise(tmp_path / "set", {})
    half = run(root, on_bad_example="error")
    bad = root / "test/a/01.png"
    content = bad.read_bytes()
    bad.write_bytes(content[:40])
    with pytest.raises(InputError, match=f"its image {bad} cannot be read"):  # at the first evaluation
        train_and_evaluate(half, tmp_path / "resumed")
    assert config_hash(half) == config_hash(run(root))
    resumed = train_and_evaluate(run(root), tmp_path / "resumed")
    assert "resuming after step 6" in logged.text
    whole = train_and_evaluate(run(root), tmp_path / "whole")
    assert "bad examples skipped: 1" in logged.text
    times = {"wall_time_s": 0}
    assert {**resumed, **times} == {**whole, **times}


@pytest.mark.slow
def test_two_processes_count_the_bad_examples_of_both_and_train_as_one(tmp_path):
    root = write_noise(tmp_path / "set", BAD)
    expected = train_and_evaluate(run(root), tmp_path / "one")
    settings = tmp_path / "settings.py"
    settings.write_text(
        "from depthmup_flax.config import default_config\n\ndef get_config():\n"
        f"    config = default_config()\n    config.update_from_flattened_dict({fields(root)!r})\n    return config\n"
    )
    pair = Joined(tmp_path / "logs", 2, 1, f"--workdir={tmp_path / 'two'}", f"--config={settings}")
    assert pair.wait() == [0, 0], pair.text()
    assert "The next example replaces it" in pair.running[0].text()
    assert "others are skipped without a warning" not in pair.running[1].text()
    result = json.loads((tmp_path / "two/result.json").read_text())
    assert result["config_hash"] == expected["config_hash"]
    for field in ("train_loss", "test_loss", "test_accuracy", "bad_examples"):
        assert result[field] == pytest.approx(expected[field], rel=2e-4)
