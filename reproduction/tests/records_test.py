"""Committed records: today's sweep and report recognize them; migration changes names and adds fields, nothing else."""

import gzip
import json
import pathlib

import pytest
from processes import ROOT

from depthmup_flax.config.files import from_file
from depthmup_flax.report.sweep_report import analysis_of, other_analysis
from depthmup_flax.report.tables import as_data, as_text
from depthmup_flax.search.sweep.grid import expand, extension, sweep_info
from depthmup_flax.storage.run_hash import run_differences
from depthmup_flax.storage.sweep_records import read_info, read_runs, read_sweep
from reproduction import migrate
from reproduction.claims import judged_claims

REPRODUCTION = ROOT / "reproduction"
COMMITTED = sorted(path.parent for path in REPRODUCTION.rglob("*/sweep.json"))
CONFIGS = {path.stem: path for place in (ROOT, REPRODUCTION) for path in (place / "configs" / "sweeps").glob("*.py")}
QUICK = ("how_long-cpu", "imagenet-cpu", "which_exponent_vit-cpu")


@pytest.mark.parametrize("directory", COMMITTED, ids=lambda path: path.name)
def test_every_committed_record_is_named_by_its_point_and_gives_the_committed_report(directory):
    sweep = read_sweep([directory])
    lines = gzip.decompress((directory / "records.jsonl.gz").read_bytes()).splitlines()
    lacks = len(sweep.records) < sweep.info.runs  # of a sweep that was stopped, which its report says
    assert (len(sweep.records), len(sweep.notes)) == (len(lines), int(lacks))
    report = directory / "report.txt"
    if report.exists():
        analysis = analysis_of(sweep)
        other = other_analysis(sweep, analysis)
        text = as_text(as_data(sweep, analysis, other=other), analysis)
        assert text + judged_claims.claims_text(sweep, analysis, other) == report.read_text().rstrip("\n")


@pytest.mark.parametrize(
    "directory",
    [
        pytest.param(path, marks=[pytest.mark.slow] * (path.name not in QUICK))
        for path in COMMITTED
        if path.name.rpartition("-")[0] in CONFIGS and path.name.rpartition("-")[2] in ("cpu", "long")
    ],
    ids=lambda path: path.name,
)
def test_no_run_of_a_committed_sweep_is_left_to_train(directory):
    info = read_info(directory)
    name, _, scale = directory.name.rpartition("-")
    config = from_file(CONFIGS[name], scale)
    config.base.data.name = info.base["data"]["name"]  # reproduction/run.sh takes it from the environment
    assert run_differences(info.base, sweep_info(config).base) == []
    done, _ = read_runs([(directory, info)])
    runs = expand(config)
    for _ in range(config.extend):
        runs += [run for curve, _ in extension(config, runs, done) for run in curve]
    assert [run.point for run in runs if run.hash not in done] == []


@pytest.fixture
def earlier(tmp_path):
    """A sweep without some of today's fields, with others that went, and with other names."""
    source = REPRODUCTION / "rules" / "records" / "chains_gpt_muon"
    info = json.loads((source / "sweep.json").read_text())
    base = json.dumps(info["base"]).replace("reproduction.rules.synthetic", "depthmup_flax.rule_benchmark.synthetic")
    info["base"] = json.loads(base)
    del info["base"]["train"]["accumulate"], info["base"]["model"]["qk_norm"]
    info["base"]["train"]["stall_timeout_s"] = 600.0
    (tmp_path / "sweep.json").write_text(json.dumps({"schema": 1, **info}))
    lines = gzip.decompress((source / "records.jsonl.gz").read_bytes()).decode().splitlines()
    records = [{**json.loads(line), "run": "earlier"} for line in lines]
    (tmp_path / "records.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return tmp_path


def test_migrated_records_have_their_names_and_everything_else_as_it_was(earlier):
    read = lambda: [json.loads(line) for line in (earlier / "records.jsonl").read_text().splitlines()]
    before = read()
    migrate.main(str(earlier))
    new = {"course": {}, "diverged_in": None}
    assert [{**record, "run": "earlier"} for record in read()] == [{**new, **record} for record in before]
    committed = read_sweep([REPRODUCTION / "rules" / "records" / "chains_gpt_muon"])
    migrated = read_sweep([earlier])
    assert (migrated.records, migrated.notes) == (committed.records, [])
    content = {path: path.read_bytes() for path in pathlib.Path(earlier).iterdir()}
    migrate.main(str(earlier))
    assert {path: path.read_bytes() for path in pathlib.Path(earlier).iterdir()} == content


def test_a_field_that_went_with_another_value_is_refused(earlier):
    text = (earlier / "sweep.json").read_text().replace('"stall_timeout_s": 600.0', '"stall_timeout_s": 5.0')
    (earlier / "sweep.json").write_text(text)
    with pytest.raises(ValueError, match=r"train.stall_timeout_s is 5.0"):
        migrate.main(str(earlier))
