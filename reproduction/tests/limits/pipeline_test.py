"""The steps of a figure, with a figure that costs nothing: what is resumed, what is refused, the command line."""

import json
import pathlib

import jax
import pytest

from depthmup_flax.config import from_file
from depthmup_flax.util.errors import InputError
from reproduction.limits import __main__, limits_config, pipeline, run
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


def test_records_without_settings_are_of_other_work_and_kept(tmp_path, squares):
    (tmp_path / "records.jsonl").write_text("hours of work")
    for overwrite in (False, True):
        with pytest.raises(InputError, match="other work"):
            run(squares(), tmp_path, overwrite=overwrite)
    assert (tmp_path / "records.jsonl").read_text() == "hours of work"


def test_configs_of_no_figure_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"config.figure is 'ntks': did you mean 'ntk'\?"):
        run(limits_config("ntks", title="", scale="cpu"), tmp_path)
    with pytest.raises(InputError, match="not that of a theory figure"):
        run(from_file(ROOT / "configs" / "digits.py"), tmp_path)


@pytest.mark.parametrize("flag", ["scale=paper", "wdths=3", "widths=abc", "seeds=7"])
def test_a_wrong_command_line_has_exit_code_2(flag, tmp_path, capsys):
    config = f"--config={ROOT}/reproduction/configs/limits/ntk.py"
    assert __main__.main([config, f"--config.{flag}", f"--workdir={tmp_path}"]) == 2
    assert "error: config" in capsys.readouterr().err
