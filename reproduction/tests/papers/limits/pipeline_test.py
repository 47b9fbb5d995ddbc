"""The steps of a figure, with a figure that costs nothing: what is resumed, what is refused, the command line."""

import json
import pathlib

import jax
import pytest
from processes import run_command

from depthmup_flax.config import from_file
from depthmup_flax.storage.workdir.files import retried
from depthmup_flax.util.errors import InputError
from reproduction.limits import limits_config, pipeline, run
from reproduction.limits.panels import page

ROOT = pathlib.Path(__file__).parents[3]


class Squares:
    """A figure of ``seed`` times the squares of ``sizes``."""

    def cases(self, config):
        return [{"size": size} for size in config.sizes]

    def measure(self, config, case):
        return {"square": config.seed * case["size"] ** 2}

    def table(self, rows):
        return "\n".join(f"{row['size']} {row['square']}" for row in rows)

    def figure(self, rows):
        drawing, panels = page(1, 1, "squares", width=1.0, height=1.0)
        panels[0, 0].plot([row["size"] for row in rows], [row["square"] for row in rows])
        return drawing


@pytest.fixture
def squares(monkeypatch):
    """Config of a figure that costs nothing."""
    monkeypatch.setattr(pipeline, "figure_module", lambda name: Squares())
    return lambda **fields: limits_config(
        "squares", **{"title": "Squares", "scale": "smoke", "seed": 1, "sizes": (1, 2, 3), "lanes": 16, **fields}
    )


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """Directories that cannot be used are refused at once, without the wait for a slow file server."""
    monkeypatch.setattr(retried, "__defaults__", (0.0,))


def test_a_finished_figure_measures_nothing_again_and_an_interrupted_one_only_what_is_missing(squares, tmp_path):
    config, said = squares(), []
    first, paths = run(config, tmp_path, say=said.append)
    assert first == "Squares\n\n1 1\n2 4\n3 9\n"
    assert {path.name for path in paths} == {"records.jsonl", "report.txt", "squares.png", "squares.svg"}
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


def test_cases_are_measured_in_float64_with_products_in_full(squares, tmp_path, monkeypatch):
    seen = []
    report = lambda self, config, case: (
        seen.append((jax.config.jax_enable_x64, jax.default_matmul_precision.value)) or {"square": 1}
    )
    monkeypatch.setattr(Squares, "measure", report)
    run(squares(), tmp_path)
    assert set(seen) == {(True, "highest")}


def test_records_of_other_settings_are_refused_and_kept_unless_told_to_overwrite(squares, tmp_path):
    run(squares(), tmp_path)
    before = (tmp_path / "records.jsonl").read_text()
    with pytest.raises(InputError, match=r"holds other settings \(seed: 1 there, 2 here\).*--overwrite"):
        run(squares(seed=2), tmp_path)
    assert (tmp_path / "records.jsonl").read_text() == before
    run(squares(title="Another", lanes=8), tmp_path, say=lambda said: pytest.fail("measured again"))
    run(squares(seed=2), tmp_path, overwrite=True)
    assert (tmp_path / "records.jsonl").read_text() != before


@pytest.mark.slow
@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("name", ["sweep.json", "config.json", "records.jsonl"])
def test_a_directory_of_something_else_is_refused_and_kept(name, overwrite, tmp_path, squares):
    (tmp_path / name).write_text("{}")
    (tmp_path / "records.jsonl").write_text("hours of work")
    with pytest.raises(InputError, match="choose another directory"):
        run(squares(), tmp_path, overwrite=overwrite)
    assert (tmp_path / "records.jsonl").read_text() == "hours of work"


@pytest.mark.slow
def test_a_directory_that_cannot_be_written_is_one_sentence(squares, tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    for path in (file, pathlib.Path("/proc")):
        with pytest.raises(InputError, match="cannot be written to"):
            run(squares(), path)


@pytest.mark.parametrize("text", ["{", "{}", "[]", '{"config": 1}'])
def test_settings_that_cannot_be_read_are_one_sentence(text, tmp_path, squares):
    (tmp_path / "limits.json").write_text(text)
    (tmp_path / "records.jsonl").write_text("")
    with pytest.raises(InputError, match="does not hold the settings of a figure"):
        run(squares(), tmp_path)


def test_a_line_that_is_no_record_is_named(squares, tmp_path):
    run(squares(), tmp_path)
    records = tmp_path / "records.jsonl"
    records.write_text("garbage\n" + records.read_text())
    with pytest.raises(InputError, match=r"records.jsonl, line 1: not a record. Delete the line"):
        run(squares(), tmp_path)


def test_an_unknown_figure_is_one_sentence(tmp_path):
    with pytest.raises(InputError, match=r"config.figure is 'ntks': did you mean 'ntk'\?"):
        run(limits_config("ntks", title="", scale="cpu"), tmp_path)
    with pytest.raises(InputError, match=r"run it with depthmup train"):
        run(from_file(ROOT / "configs" / "digits.py"), tmp_path)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--config=configs/limits/ntk.py", "--config.scale=paper", "--workdir=x"], "error: config.scale is 'paper'"),
        (["--config=configs/limits/ntk.py", "--config.width=3", "--workdir=x"], "error: config has no field 'width'"),
    ],
)
def test_a_wrong_command_line_is_one_sentence_and_exit_code_2(flags, sentence):
    done = run_command("-m", "depthmup_flax", "limits", *flags)
    assert done.returncode == 2
    assert done.stderr.strip().startswith(sentence), done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
