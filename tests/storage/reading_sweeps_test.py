"""Files of records: truncated, compressed, of several sweeps; and what reading them imports."""

import dataclasses
import gzip
import json
import subprocess
import sys

import pytest
from planted_sweeps import RATES, X, parabola, sweep_of, write
from processes import ROOT

from depthmup_flax.report import make_report
from depthmup_flax.report.sweep_report import analyses
from depthmup_flax.report.tables import as_data, as_text
from depthmup_flax.storage.files import JsonLines
from depthmup_flax.storage.records import Record, read_sweep
from depthmup_flax.util.errors import InputError


def test_a_torn_last_line_is_ignored_with_a_warning(tmp_path):
    directory = write(tmp_path / "sweep", sweep_of(parabola, {X: RATES}))
    path = directory / "records.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    sweep = read_sweep([directory])
    analysis, _ = analyses(sweep)
    data = as_data(sweep, analysis)
    assert data["runs"] == len(RATES) - 1
    assert "torn by a crash" in data["notes"][0]
    assert "torn by a crash" in as_text(data, analysis)


def test_compressed_records_read_as_plain_ones_and_are_not_appended_to(tmp_path):
    directory = write(tmp_path / "sweep", sweep_of(parabola, {X: RATES, "seed": range(2)}))
    path = directory / "records.jsonl"
    plain = read_sweep([directory])
    compressed = path.with_name("records.jsonl.gz")
    compressed.write_bytes(gzip.compress(path.read_bytes(), mtime=0))
    path.unlink()
    assert read_sweep([directory]) == plain
    with pytest.raises(InputError, match=r"records.jsonl.gz is compressed: to resume, run gunzip"):
        JsonLines(path)
    assert not path.exists()
    compressed.write_bytes(compressed.read_bytes()[:-20])
    with pytest.raises(InputError, match=r"records.jsonl.gz cannot be decompressed"):
        read_sweep([directory])


def test_records_that_lack_fields_with_defaults_are_read(tmp_path):
    directory = write(tmp_path / "sweep", sweep_of(parabola, {X: RATES}))
    path = directory / "records.jsonl"
    required = {f.name for f in dataclasses.fields(Record) if f.default is f.default_factory is dataclasses.MISSING}
    assert "test_loss" not in required
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps({k: v for k, v in x.items() if k in required}) + "\n" for x in lines))
    read = read_sweep([directory])
    assert (len(read.records), read.notes) == (len(RATES), [])
    analysis, _ = analyses(read)
    assert f"{len(RATES)} runs, 0 diverged" in as_text(as_data(read, analysis), analysis)
    path.write_text(json.dumps({k: v for k, v in lines[0].items() if k != "train_loss_avg"}) + "\n")
    with pytest.raises(InputError, match="train_loss_avg"):
        read_sweep([directory])


def test_sweeps_of_different_base_are_not_merged(tmp_path):
    first = write(tmp_path / "a", sweep_of(parabola, {X: RATES}))
    second = write(tmp_path / "b", sweep_of(parabola, {X: RATES}, model={"width": 8}))
    with pytest.raises(InputError, match="not parts of one sweep"):
        make_report([first, second], tmp_path / "out")


def test_reading_records_and_reports_imports_neither_jax_nor_flax():
    code = (
        "import sys, depthmup_flax.storage.records, depthmup_flax.util.types\n"
        "import depthmup_flax as dm; dm.make_report, dm.InputError, dir(dm)\n"
        "print({'jax', 'flax', 'optax', 'tensorflow'} & {name.partition('.')[0] for name in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert (done.stdout.strip(), done.stderr) == ("set()", "")
