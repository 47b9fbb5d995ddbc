"""benchmarks/gpu: equal networks on all sides, products as counted by hand, a table that says what is missing."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
from processes import ROOT

from benchmarks import pages
from benchmarks.gpu import ours, page, plain_flax
from benchmarks.gpu.cases import TINY, Case
from depthmup_flax.trainer.engine.from_config import build

SMALL = {case.network: case for case in TINY.values()}


def parameters(case: Case) -> int:
    return build(ours.run_config(case), load=lambda fields: ours.random_data(fields, case)).parameters


@pytest.mark.parametrize("network", ["vit", "gpt"])
def test_the_plain_networks_have_the_parameters_of_ours(network):
    case = SMALL[network]
    shape = (1, case.size) if network == "gpt" else (1, case.size, case.size, 3)
    x = jnp.zeros(shape, jnp.int32 if network == "gpt" else jnp.float32)
    shapes = jax.eval_shape(lambda: plain_flax.network(case).init(jax.random.key(0), x))
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == parameters(case)


@pytest.mark.parametrize("network", ["vit", "gpt", "resnet"])
def test_the_networks_in_pytorch_have_the_parameters_of_ours(network):
    pytest.importorskip("torch")
    from benchmarks.gpu import plain_torch

    case = SMALL[network]
    assert sum(p.numel() for p in plain_torch.network(case).parameters()) == parameters(case)


def test_products_of_a_step_are_six_per_weight_and_token_and_those_of_attention():
    case = SMALL["gpt"]
    n, tokens = case.width, case.batch * case.size
    weights = case.depth * (4 + 2 * 4) * n**2 + n * case.classes
    attention = case.depth * 3 * 2 * 2 * tokens * case.size * n  # two products forward, four backward
    assert ours.products(case) == 6 * tokens * weights + attention


RESULT = {
    "hardware": "H",
    "day": "2026-01-01",
    "quick": False,
    "rounds": 3,
    "versions": {"jax": "9"},
    "peak": {"bfloat16": {"median": 5e14}},
    "rows": [
        {
            "title": "network",
            "case": dataclasses.asdict(SMALL["vit"]),
            "sides": {
                "ours": {"seconds": {"median": 0.02, "low": 0.01, "high": 0.03, "n": 3}, "bytes": 2**31, "flops": 5e12},
                "plain Flax": {"seconds": {"median": 0.04, "low": 0.04, "high": 0.04, "n": 3}},
            },
            "absent": {"PyTorch": "ModuleNotFoundError: No module named 'torch'"},
        }
    ],
}


def test_a_row_has_milliseconds_memory_and_the_share_of_the_peak_and_a_side_that_is_missing_a_dash_and_a_reason():
    *_, row, _, reason = page.table(RESULT).splitlines()
    assert row == "| network | **20** (10-30, 3), 2, 50 % | - | **40** (40-40, 3), 25 % | 10 |"
    assert reason.startswith("PyTorch")
    assert reason.endswith("No module named 'torch'")


def test_results_of_a_gpu_and_their_figure_go_to_the_page(tmp_path, monkeypatch):
    shutil.copytree(pages.RESULTS, tmp_path / "results")
    (tmp_path / "results" / "gpu-h.json").write_text(json.dumps({"device": "gpu", **RESULT}))
    monkeypatch.setattr(pages, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(pages, "PAGE", pathlib.Path(shutil.copy(pages.PAGE, tmp_path)))
    pages.document()
    assert page.table(RESULT) in pages.PAGE.read_text()
    assert "(gpu-h.png)" in pages.PAGE.read_text()
    assert (tmp_path / "gpu-h.png").stat().st_size > 1000


@pytest.mark.slow
def test_a_table_is_measured_at_tiny_sizes(tmp_path):
    out = tmp_path / "steps.json"
    command = [sys.executable, "-m", "benchmarks.run", "--device=gpu", "--quick", "--rounds=1", f"--out={out}"]
    command += ["--only=ViT,sweep"]  # a network with all sides, and lanes
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    result = json.loads(out.read_text())
    assert [row["title"] for row in result["rows"]] == ["ViT 32x2", "sweep of ResMLP 16x2, a run"]
    for row in result["rows"]:
        sides, absent = row["sides"], row["absent"]
        assert sides.keys() | absent.keys() == {"ours", "PyTorch"} | ({"plain Flax"} if row["case"]["heads"] else set())
        assert absent.keys() <= {"PyTorch"}, absent
        assert len({side["parameters"] for side in sides.values()}) == 1
        assert page.seconds_at_peak(row, result["peak"]) > 0
    assert page.table(result) in done.stdout
    assert pathlib.Path(out.with_suffix(".png")).stat().st_size > 1000
