"""``depthmup predict``: classes of image files and continuations of texts, from a trained run."""

import csv
import io
import json
import pathlib
import re

import numpy as np
import pytest
from PIL import Image
from processes import run_command, run_lines
from small_runs import config

import depthmup_flax as dm
from depthmup_flax.commands.predict import as_csv, as_json, classified
from depthmup_flax.config import default_config
from depthmup_flax.data import DataConfig, image_files, load
from depthmup_flax.trainer.loop import train_and_evaluate


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Ten images of the test set as files."""
    directory = tmp_path_factory.mktemp("images")
    for number, image in enumerate(load(config().data).test.arrays()["image"][:10]):
        Image.fromarray(image[..., 0]).save(directory / f"{number}.png")
    return directory


def test_files_get_the_classes_of_the_arrays_that_they_hold(undisturbed, images):
    run = dm.load_run(undisturbed)
    run.config.train.eval_batch_size = 4  # three parts
    files = image_files.image_files([str(images)])
    rows = list(classified(run, files, top=3))
    logits = run.predict(load(run.config.data).test.arrays()["image"][:10])
    assert [file.name for file, _ in rows] == [f"{number}.png" for number in range(10)]
    assert [best[0][0] for _, best in rows] == [str(label) for label in logits.argmax(-1)]
    probabilities = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    for (_, best), row in zip(rows, probabilities, strict=True):
        assert [probability for _, probability in best] == pytest.approx(sorted(row.tolist())[:-4:-1], rel=1e-4)


def test_tables_can_be_read_by_others():
    rows = [(pathlib.Path("a, b.png"), [("cat", 0.75), ("dog", 0.25)]), (pathlib.Path("c.png"), [("dog", 1.0)])]
    first, _ = csv.DictReader(io.StringIO(as_csv(iter(rows))))
    assert first == {
        "file": "a, b.png", "class_1": "cat", "probability_1": "0.75", "class_2": "dog", "probability_2": "0.25"
    }  # fmt: skip
    assert json.loads(as_json(iter(rows)))[0]["classes"][1] == {"name": "dog", "probability": 0.25}


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@SUM(A1)", "\x1b[31mred"])
def test_a_name_in_a_table_is_no_command_for_a_spreadsheet_or_a_terminal(name):
    text = as_csv(iter([(pathlib.Path("c.png"), [(name, 1.0)])]))
    cell = next(csv.DictReader(io.StringIO(text)))["class_1"]
    assert cell[0] not in "=+-@"
    assert "\x1b" not in text


def test_the_command_prints_classes_and_writes_files(undisturbed, images, tmp_path):
    words = ["predict", str(undisturbed), str(images)]
    out = f"--out={tmp_path / 'classes.json'}"
    done, written = run_lines([[*words, "--top=2"], [*words, out, "--which=240"]])
    assert done.code == 0, done.error
    lines = done.out.splitlines()
    assert len(lines) == 10
    assert [word.rstrip("%") == word for word in lines[0].split()] == [True, True, False, True, False]
    assert written.out == f"written: {tmp_path / 'classes.json'}\n"
    best = [row["classes"][0]["name"] for row in json.loads((tmp_path / "classes.json").read_text())]
    assert best == [line.split()[1] for line in lines]


WRONG = [  # words, and what the sentence names
    (["RUN"], "image files"),
    (["RUN", "--prompt=a"], "image files"),
    (["RUN", "nothing.png"], "nothing.png"),
    (["RUN", "RUN"], "no image files"),
    (["RUN", "RUN/config.json"], "config.json"),
    (["RUN", "IMAGES", "--out=classes.txt"], "--out"),
    (["RUN", "IMAGES", "--which=7"], "which is 7"),
    (["nowhere", "IMAGES"], "nowhere"),
]


def test_wrong_arguments_are_one_sentence_and_code_2(undisturbed, images, tmp_path):
    names = {"RUN": str(undisturbed), "IMAGES": str(images)}
    lines = [[re.sub("RUN|IMAGES", lambda name: names[name[0]], word) for word in words] for words, _ in WRONG]
    answers = run_lines([["predict", *words] for words in lines], cwd=tmp_path, watched=[undisturbed, images])
    for (words, named), answer in zip(WRONG, answers, strict=True):
        assert answer.refuses, (words, answer)
        assert named in answer.error, (words, answer.error)


@pytest.mark.slow
def test_a_language_model_continues_the_prompt(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("the rain in spain stays mainly in the plain.\n" * 60)
    gpt = default_config("gpt")
    gpt.model.update(width=16, depth=1, num_heads=2)
    gpt.data.update(name=f"text:{text}", context=16)
    gpt.train.update(batch_size=16, steps=2, eval_every=2)
    train_and_evaluate(gpt, tmp_path / "run")
    command = ("-m", "depthmup_flax", "predict", tmp_path / "run")
    done = run_command(*command, "--prompt=the rain", "--tokens=20", "--seed=3")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "the rain" + dm.load_run(tmp_path / "run").generate("the rain", 20, seed=3) + "\n"
    wrong = {"--prompt": [], "language model": ["a.png"], "'X'": ["--prompt=X"], "tokens": ["--prompt=a", "--tokens=0"]}
    answers = run_lines([["predict", str(tmp_path / "run"), *words] for words in wrong.values()])
    for named, answer in zip(wrong, answers, strict=True):
        assert answer.refuses, answer
        assert named in answer.error


# Files of other sizes


@pytest.fixture
def wide(tmp_path):
    path = tmp_path / "wide.png"
    Image.fromarray(np.tile(np.arange(90, dtype=np.uint8), (60, 1))).convert("RGB").save(path)
    return path


@pytest.mark.parametrize("shape", [(32, 32, 3), (32, 32, 1), (60, 90, 3)])
def test_files_are_brought_to_the_size_and_the_channels_of_the_network(wide, shape):
    (image,) = image_files.read_images([wide], shape, DataConfig())
    assert image.shape == shape
    row = np.arange(90) if shape[1] == 90 else (np.arange(32) + 0.5) * 60 / 32 + 15 - 0.5  # the middle 60 columns
    np.testing.assert_allclose(image[5, ..., 0], row, atol=1.5)


def test_files_are_cropped_as_the_evaluation_of_resized_crops_does(wide):
    fields = DataConfig(name="folder:x", image_size=32, augment="resized_crop")
    (image,) = image_files.read_images([wide], (32, 32, 3), fields)
    side = 60 * 32 / 37  # the center of the image resized to 256/224 of 32
    np.testing.assert_allclose(
        image[5, 1:-1, 0], ((np.arange(32) + 0.5) * side / 32 + 45 - side / 2 - 0.5)[1:-1], atol=1
    )


def test_a_size_that_cannot_be_reached_and_a_missing_file_are_one_sentence(wide, tmp_path):
    with pytest.raises(dm.InputError, match=r"wide\.png' is 60x90x3: the network reads 60x80x3. Resize it"):
        image_files.read_images([wide], (60, 80, 3), DataConfig())
    with pytest.raises(dm.InputError, match=r"none\.png' cannot be read"):
        image_files.read_images([tmp_path / "none.png"], (8, 8, 3), DataConfig())


def test_class_names_are_those_of_the_folders(tmp_path):
    for split in ("train", "test"):
        for name in ("cat", "ant"):
            (tmp_path / split / name).mkdir(parents=True)
            Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(tmp_path / split / name / "0.png")
    for placement in ("device", "stream"):
        assert load(DataConfig(name=f"folder:{tmp_path}", placement=placement)).class_names == ("ant", "cat")
