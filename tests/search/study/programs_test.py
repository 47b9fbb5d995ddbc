"""The programs in examples/ that tune a small network, report and train a large one run as they are written."""

import importlib.util
import math
import pathlib

import pytest

EXAMPLES = pathlib.Path(__file__).parents[3] / "examples"
SIZES = {
    "equinox_regression": {"width": 48, "depth": 6},
    "nnx_text": {"width": 48, "depth": 3, "text": __file__},
    "linen_unet": {"width": 12, "depth": 3},
    "contrastive_two_towers": {"width": 48, "depth": 4},
}


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.parametrize("name", SIZES)
def test_a_program_tunes_reports_and_trains(name, tmp_path, capsys):
    if name.startswith("equinox"):
        pytest.importorskip("equinox")
    result = load(name).main(workdir=tmp_path, steps=2, seeds=2, **SIZES[name])
    assert result["status"] == "completed"
    assert math.isfinite(result["test_loss"])
    printed = capsys.readouterr().out
    for words in ("Best on the proxy", f"width {SIZES[name]['width']}"):
        assert words in printed
    if name != "contrastive_two_towers":
        assert "ok: every factor is in the code" in printed
    if name in ("equinox_regression", "nnx_text"):
        assert "transfer" in printed
        assert list(tmp_path.rglob("report.html"))


@pytest.mark.slow
def test_optuna_proposes_and_the_best_values_train_a_larger_network(tmp_path, monkeypatch, capsys):
    pytest.importorskip("optuna")
    monkeypatch.chdir(tmp_path)
    program = load("optuna_search")
    program.TRIALS = 2
    program.main()
    *trials, _best, accuracy = capsys.readouterr().out.splitlines()
    assert len([line for line in trials if "learning_rate" in line]) == 2
    assert 0.5 < float(accuracy) <= 1
