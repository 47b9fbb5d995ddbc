"""The runner of the limits' figures: what it keeps, what it refuses; and the figure of finite-size errors."""

import json
import pathlib

import numpy as np
import pytest
from processes import run_command

from depthmup_flax.errors import InputError
from depthmup_flax.limits import limit_convergence, limits_config
from depthmup_flax.limits.pipeline import run
from depthmup_flax.training.config import from_file

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).parents[2]


def smoke(name, **fields):
    config = from_file(ROOT / "configs" / "limits" / f"{name}.py", "smoke")
    config.update(fields)
    return config


def test_a_finished_figure_measures_nothing_again_and_an_interrupted_one_only_what_is_missing(tmp_path):
    config, said = smoke("ntk"), []
    first, _ = run(config, tmp_path, say=said.append)
    cases = len(said)
    again = []
    assert run(config, tmp_path, say=again.append)[0] == first
    assert not again
    records = tmp_path / "records.jsonl"
    *kept, last = records.read_text().splitlines(keepends=True)
    records.write_text("".join(kept) + last[: len(last) // 2])  # torn by a crash
    assert run(config, tmp_path, say=again.append)[0] == first
    assert len(again) == 1 < cases
    assert len(records.read_text().splitlines()) == cases
    about = json.loads(last)
    assert about["versions"]["jax"]
    assert {"case", "values", "seconds", "device", "commit"} < about.keys()


def test_records_of_other_settings_are_refused_and_kept_unless_told_to_overwrite(tmp_path):
    run(smoke("ntk"), tmp_path)
    before = (tmp_path / "records.jsonl").read_text()
    with pytest.raises(InputError, match=r"holds other settings \(seed: 0 there, 1 here\).*--overwrite"):
        run(smoke("ntk", seed=1), tmp_path)
    assert (tmp_path / "records.jsonl").read_text() == before
    run(smoke("ntk", title="Another", lanes=8), tmp_path, say=lambda said: pytest.fail("measured again"))
    run(smoke("ntk", seed=1), tmp_path, overwrite=True)
    assert (tmp_path / "records.jsonl").read_text() != before


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("name", ["sweep.json", "config.json", "records.jsonl"])
def test_a_directory_of_something_else_is_refused_and_kept(name, overwrite, tmp_path):
    (tmp_path / name).write_text("{}")
    (tmp_path / "records.jsonl").write_text("hours of work")
    with pytest.raises(InputError, match="holds something else: choose another directory"):
        run(smoke("ntk"), tmp_path, overwrite=overwrite)
    assert (tmp_path / "records.jsonl").read_text() == "hours of work"


def test_a_directory_that_cannot_be_written_is_one_sentence(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    for path in (file, pathlib.Path("/proc")):
        with pytest.raises(InputError, match="cannot be written to"):
            run(smoke("ntk"), path)


@pytest.mark.parametrize("text", ["{", "{}", "[]", '{"config": 1}'])
def test_settings_that_cannot_be_read_are_one_sentence(text, tmp_path):
    (tmp_path / "limits.json").write_text(text)
    (tmp_path / "records.jsonl").write_text("")
    with pytest.raises(InputError, match="does not hold the settings of a figure"):
        run(smoke("ntk"), tmp_path)


def test_a_line_that_is_no_record_is_named(tmp_path):
    run(smoke("ntk"), tmp_path)
    records = tmp_path / "records.jsonl"
    records.write_text("garbage\n" + records.read_text())
    with pytest.raises(InputError, match=r"records.jsonl, line 1: not a record. Delete the line"):
        run(smoke("ntk"), tmp_path)


def test_an_unknown_figure_is_one_sentence(tmp_path):
    with pytest.raises(InputError, match=r"config.figure is 'ntks': did you mean 'ntk'\?"):
        run(limits_config("ntks", title="", scale="cpu"), tmp_path)
    with pytest.raises(InputError, match=r"config.figure is None"):
        run(from_file(ROOT / "configs" / "digits.py"), tmp_path)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--config=configs/limits/ntk.py"], "error: --workdir is not set"),
        (["--config=configs/limits/ntk.py", "--config.scale=paper", "--workdir=x"], "error: config.scale is 'paper'"),
        (["--config=configs/limits/ntk.py", "--config.width=3", "--workdir=x"], "error: config has no field 'width'"),
    ],
)
def test_a_wrong_command_line_is_one_sentence_and_exit_code_2(flags, sentence):
    done = run_command("-m", "depthmup_flax.limits", *flags)
    assert done.returncode == 2
    assert done.stderr.strip().startswith(sentence), done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_limit_convergence_runs_to_its_files_and_networks_are_near_their_theory(tmp_path):
    _, paths = run(smoke("limit_convergence"), tmp_path)
    assert {path.name for path in paths} == {
        "records.jsonl", "report.txt", "limit_convergence.png", "limit_convergence.svg",
    }  # fmt: skip
    records = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    rows = [{**record["case"], **record["values"]} for record in records]
    (study,) = limit_convergence.studies(rows)
    assert study.widths == [8, 16]
    assert study.depths == [2, 4]
    for error in study.errors.values():
        # A network of width 8 varies by a third of what it learns; the mean of hundreds is nearer to theory.
        assert 0.01 < error.variance.value < 0.2
        assert error.mean.value < 0.2 * error.variance.value
        assert error.total.value > error.variance.value
    losses = np.array(study.limit["losses"])
    assert (np.diff(losses) < 0).all()


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"nonlinearities": ("relu", "erf")}, "config.learning_rates is .*give one for each"),
        ({"nonlinearities": ("swish",)}, "config.nonlinearities has 'swish'"),
        ({"widths": (8, 8)}, "config.widths is"),
        ({"limit_depth": 5}, "config.limit_depth is 5: use an even number"),
        ({"seeds_times_width": 32}, "config.seeds_times_width is 32: use at least 64"),
        ({"steps": 0}, "config.steps is 0"),
        ({"seed": -1}, "config.seed is -1"),
        ({"nonlinearities": ()}, "config.nonlinearities is"),
        ({"nonlinearities": ("relu", "relu"), "learning_rates": (0.1, 0.1)}, "config.nonlinearities is .*different"),
        ({"learning_rates": ("a",)}, "config.learning_rates is .*positive numbers"),
        ({"learning_rates": (-1.0,)}, "config.learning_rates is .*positive numbers"),
    ],
)
def test_a_bad_field_of_limit_convergence_is_one_sentence(fields, sentence):
    with pytest.raises(InputError, match=sentence):
        limit_convergence.cases(smoke("limit_convergence", **fields))
