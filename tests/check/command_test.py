"""depthmup check: its verdict and its files."""

import json

import pytest
from processes import run_command


def command(*arguments):
    return run_command("-m", "depthmup_flax", "check", *arguments)


@pytest.mark.slow
@pytest.mark.parametrize(("preset", "widths", "code"), [("depth_mup", "128,512", 0), ("sp", "64,256", 1)])
def test_the_command_exits_with_the_verdict_and_writes_records_report_and_figure(preset, widths, code, tmp_path):
    done = command(
        "--config=configs/digits.py",
        "--config.model.base_width=16",
        f"--config.parametrization.preset={preset}",
        f"--workdir={tmp_path}",
        f"--widths={widths}",
        "--depths=",
        "--steps=2",
        "--seeds=3",
        "--batch_size=4",
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert f"width {widths.replace(',', ', ')}: {'PASS' if code == 0 else 'FAIL'}" in done.stdout
    assert ("cause (rule_without_width)" in done.stdout) == (code == 1)
    assert (tmp_path / "report.txt").read_text().strip() in done.stdout
    records = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    assert {r["quantity"] for r in records} >= {"start", "gradient", "update", "decay"}
    assert len((tmp_path / "details.txt").read_text()) > len((tmp_path / "report.txt").read_text())
    assert {r["seed"] for r in records} == {0, 1, 2}
    assert (tmp_path / "coord_check.png").read_bytes()[1:4] == b"PNG"
