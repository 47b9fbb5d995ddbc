"""Committed records: today's sweep and report recognize them, and train none of their runs again."""

import gzip
import json
import shutil

import pytest
from processes import ROOT

from depthmup_flax.config.fields import run_differences
from depthmup_flax.config.files import from_file
from depthmup_flax.data.sources.blank import PlannedData, Sizes
from depthmup_flax.report.make_report import analyses, other_analysis
from depthmup_flax.report.tables import as_data, as_text
from depthmup_flax.search.sweep.grid import expand, extension, sweep_info
from depthmup_flax.search.sweep.runner import sweep
from depthmup_flax.storage.records.run_hash import RunNames
from depthmup_flax.storage.records.table import read_info, read_runs, read_sweep
from depthmup_flax.storage.workdir.seal import unsealed
from reproduction.claims import judged_claims

SCALES = ("cpu", "long")
COMMITTED = sorted(path.parent for scale in SCALES for path in (ROOT / "docs").glob(f"*/*-{scale}/sweep.json"))
CONFIGS = {path.stem: path for path in (ROOT / "configs" / "sweeps").glob("*.py")}
# Two of the first version, in every run of the tests; one of today's.
QUICK = ("how_long-cpu", "imagenet-cpu", "which_exponent_vit-cpu")


@pytest.mark.parametrize("directory", COMMITTED, ids=lambda path: path.name)
def test_every_committed_record_is_named_by_its_point_and_gives_the_committed_report(directory):
    sweep = read_sweep([directory])
    lines = gzip.decompress((directory / "records.jsonl.gz").read_bytes()).splitlines()
    assert (len(sweep.records), sweep.notes) == (len(lines), [])
    report = directory / "report.txt"
    if report.exists():
        analysis, _ = analyses(sweep)
        data = as_data(sweep, analysis, claims=judged_claims.as_data, other=other_analysis(sweep, analysis))
        assert as_text(data, analysis) == report.read_text().rstrip("\n")


@pytest.mark.parametrize(
    "directory",
    [
        pytest.param(path, marks=[pytest.mark.slow] * (path.name not in QUICK))
        for path in COMMITTED
        if path.name.rpartition("-")[0] in CONFIGS
    ],
    ids=lambda path: path.name,
)
def test_no_run_of_a_committed_sweep_is_left_to_train(directory):
    info = read_info(directory)
    name, _, scale = directory.name.rpartition("-")
    config = from_file(CONFIGS[name], scale)
    config.base.data.name = info.base["data"]["name"]  # docs/reproduction.sh takes it from the environment
    assert run_differences(info.base, sweep_info(config).base) == []
    done, _ = read_runs([(directory, info)])
    runs = expand(config)
    for _ in range(config.extend):
        runs += [run for curve, _ in extension(config, runs, done) for run in curve]
    assert [run.point for run in runs if run.hash not in done] == []


FIRST = ROOT / "docs" / "reproduction" / "how_long-cpu"  # of the first version


@pytest.fixture
def first_version(tmp_path):
    """A copy of `FIRST`, whose records can be appended to."""
    directory = tmp_path / FIRST.name
    directory.mkdir()
    shutil.copy(FIRST / "sweep.json", directory)
    (directory / "records.jsonl").write_bytes(gzip.decompress((FIRST / "records.jsonl.gz").read_bytes()))
    return directory


def todays_sweep():
    """The config of `FIRST` today, with data that need not be here."""
    config = from_file(CONFIGS["how_long"], "cpu")
    config.base.data.name = read_info(FIRST).base["data"]["name"]
    return config


def test_a_committed_sweep_of_the_first_version_is_resumed_without_training(first_version):
    before = (first_version / "records.jsonl").read_bytes()
    assert len(sweep(todays_sweep(), first_version, load=PlannedData(Sizes()))) == len(before.splitlines())
    assert (first_version / "records.jsonl").read_bytes() == before


def test_directories_of_two_versions_are_parts_of_one_sweep(first_version, tmp_path):
    lines = (first_version / "records.jsonl").read_text().splitlines(keepends=True)
    (first_version / "records.jsonl").write_text("".join(lines[:4]))
    later = tmp_path / "later"
    later.mkdir()
    info = unsealed((first_version / "sweep.json").read_text())
    info["base"] = sweep_info(todays_sweep()).base
    (later / "sweep.json").write_text(json.dumps(info))
    names, records = RunNames(info["base"]), [unsealed(line) for line in lines[4:]]
    text = "".join(json.dumps({**record, "run": names.hash(record["point"])}) + "\n" for record in records)
    assert text != "".join(lines[4:])
    (later / "records.jsonl").write_text(text)
    both = read_sweep([first_version, later])
    assert (len(both.records), both.notes) == (len(lines), [])
