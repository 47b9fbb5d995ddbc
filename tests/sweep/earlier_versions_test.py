"""Records of earlier versions: today's sweep, tuner and report recognize them, and train none of their runs again."""

import gzip
import json
import shutil

import pytest
from processes import ROOT

from depthmup_flax.config.fields import default_config, run_differences
from depthmup_flax.config.files import from_file
from depthmup_flax.papers import claims
from depthmup_flax.records.run_hash import RunNames
from depthmup_flax.records.table import read_info, read_runs, read_sweep
from depthmup_flax.report import make_report
from depthmup_flax.report.make_report import studies
from depthmup_flax.report.tables import as_data, as_text
from depthmup_flax.sweep.grid import expand, sweep_config, sweep_info
from depthmup_flax.sweep.grid_extension import extension
from depthmup_flax.sweep.runner import sweep
from depthmup_flax.tune.proxy import proxy_config, tuning_sweep
from depthmup_flax.tune.rescaled_target import Rescaling
from depthmup_flax.tune.search import tune
from depthmup_flax.util.errors import InputError

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
        study, _ = studies(sweep)
        assert as_text(as_data(sweep, study, claims=claims.as_data), study) == report.read_text().rstrip("\n")


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


def first_sweep():
    """The sweep of ``first_version``, which the version before `EXECUTION` trained."""
    base = default_config()
    base.model.update(width=8, depth=2)
    base.data.update(name="synthetic", train_examples=64, test_examples=16)
    base.train.update(batch_size=8, steps=6, log_every=2)
    grid = {"optimizer.learning_rate": (2**-6, 2**-4, 0.25), "seed": (0, 1)}
    return sweep_config(base, {"rates": grid}, figure="faults", title="Faults.", scale="smoke", extend=1)


@pytest.fixture
def first_version(tmp_path):
    """A copy of the directory that the first version wrote; it had extended the grid."""
    return shutil.copytree(ROOT / "tests" / "sweep" / "first_version", tmp_path / "sweep")


def test_a_sweep_of_the_first_version_is_resumed_without_training_and_reported(first_version, tmp_path):
    before = (first_version / "records.jsonl").read_bytes()
    assert len(sweep(first_sweep(), first_version)) == 8
    assert (first_version / "records.jsonl").read_bytes() == before
    assert make_report([first_version], tmp_path / "out").data["runs"] == 8


def test_a_search_of_the_first_version_is_resumed_without_training(tmp_path, logged):
    directory = shutil.copytree(ROOT / "tests" / "tune" / "first_version", tmp_path / "tune")
    before = (directory / "records.jsonl").read_bytes()
    target = default_config()
    target.model.update(width=16, depth=2)
    target.data.update(name="synthetic", train_examples=64, test_examples=16)
    target.train.update(batch_size=8, steps=10, log_every=5)
    (tmp_path / "target.py").write_text(
        "from depthmup_flax.config import default_config\n\nget_config = default_config\n"
    )
    proxy, large = proxy_config(target, 8, 2)
    file = str(tmp_path / "target.py")
    tune(proxy, large, tuning_sweep(proxy, [], 1, 2), file, str(directory), None, False, Rescaling())
    assert "Best on the proxy (width 8, depth 2): optimizer.learning_rate 0.032; n = 2 seeds." in logged.text
    assert (directory / "records.jsonl").read_bytes() == before
    assert "'optimizer.learning_rate': 0.032" in (directory / "tuned.py").read_text()


def test_a_record_whose_name_is_not_its_points_is_trained_again_and_said(first_version, logged):
    path = first_version / "records.jsonl"
    lines = path.read_text().splitlines()
    moved = json.loads(lines[0])
    moved["point"]["seed"] = 7  # also a run that no grid has
    path.write_text("\n".join([json.dumps(moved), *lines[1:]]) + "\n")
    records = sweep(first_sweep(), first_version, lanes=1)
    assert "1 of 8 records left out" in logged.text
    assert sorted(record.point["seed"] for record in records) == [0, 0, 0, 0, 1, 1, 1, 1]
    assert len(path.read_text().splitlines()) == 9
    again = read_sweep([first_version])
    assert len(again.records) == 8
    assert again.notes[0].startswith("1 of 9 records left out")


def test_files_of_a_later_version_are_read_with_a_warning_and_a_later_schema_is_refused(first_version):
    path, info = first_version / "records.jsonl", first_version / "sweep.json"
    lines = [{**json.loads(line), "joules": 3.5, "host": "a"} for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    info.write_text(json.dumps({**json.loads(info.read_text()), "owner": "b"}))
    before = path.read_bytes()
    read = read_sweep([first_version])
    assert len(read.records) == 8
    assert [note.split(": ", 1)[1] for note in read.notes] == [
        'fields of a later version are ignored: "owner".',
        'fields of a later version are ignored: "host", "joules".',
    ]
    assert len(sweep(first_sweep(), first_version)) == 8
    assert path.read_bytes() == before
    info.write_text(json.dumps({**json.loads(info.read_text()), "schema": 2}))
    with pytest.raises(InputError, match="written by a later version of this package: update the package"):
        read_sweep([first_version])


def test_records_that_lack_fields_with_defaults_are_read(first_version):
    path = first_version / "records.jsonl"
    optional = (
        "test_loss",
        "test_accuracy",
        "diverged_at_step",
        "wall_time_s",
        "lanes",
        "device",
        "versions",
        "commit",
    )
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps({k: v for k, v in x.items() if k not in optional}) + "\n" for x in lines))
    read = read_sweep([first_version])
    assert (len(read.records), read.notes) == (8, [])
    study, _ = studies(read)
    assert "8 runs, 0 diverged" in as_text(as_data(read, study), study)
    path.write_text(json.dumps({k: v for k, v in lines[0].items() if k != "train_loss_avg"}) + "\n")
    with pytest.raises(InputError, match=r"line 1: the record has no train_loss_avg\. Delete the line"):
        read_sweep([first_version])


def test_directories_of_two_versions_are_parts_of_one_sweep(first_version, tmp_path):
    lines = (first_version / "records.jsonl").read_text().splitlines(keepends=True)
    (first_version / "records.jsonl").write_text("".join(lines[:4]))
    later = tmp_path / "later"
    later.mkdir()
    info = json.loads((first_version / "sweep.json").read_text())
    info["base"] = sweep_info(first_sweep()).base
    (later / "sweep.json").write_text(json.dumps(info))
    names, records = RunNames(info["base"]), [json.loads(line) for line in lines[4:]]
    text = "".join(json.dumps({**record, "run": names.hash(record["point"])}) + "\n" for record in records)
    (later / "records.jsonl").write_text(text)
    both = read_sweep([first_version, later])
    assert (len(both.records), both.notes) == (8, [])
