"""Records: files that are truncated, compressed, of several sweeps; columns; the hash of a run; provenance."""

import dataclasses
import functools
import gzip
import importlib.util
import json
import pathlib
import shutil
import subprocess
import sys

import pytest
from planted_sweeps import RATES, X, parabola, sweep_of, write
from processes import ROOT

from depthmup_flax.config import fields as configs
from depthmup_flax.report import make_report
from depthmup_flax.report.sweep_report import analysis_of
from depthmup_flax.report.tables import as_data, as_text
from depthmup_flax.storage import provenance
from depthmup_flax.storage.files import JsonLines
from depthmup_flax.storage.run_hash import EXECUTION, run_hash_at
from depthmup_flax.storage.sweep_records import Record, flat, info_to_json, read_info, read_sweep, short_names
from depthmup_flax.util.errors import InputError


def test_a_torn_last_line_is_ignored_with_a_warning(tmp_path):
    directory = write(tmp_path / "sweep", sweep_of(parabola, {X: RATES}))
    path = directory / "records.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    sweep = read_sweep([directory])
    analysis = analysis_of(sweep)
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
    compressed.unlink(), path.mkdir()
    with pytest.raises(InputError, match=r"records\.jsonl"):
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
    analysis = analysis_of(read)
    assert f"{len(RATES)} runs, 0 diverged" in as_text(as_data(read, analysis), analysis)
    path.write_text(json.dumps({k: v for k, v in lines[0].items() if k != "train_loss_avg"}) + "\n")
    with pytest.raises(InputError, match="train_loss_avg"):
        read_sweep([directory])


def test_sweeps_of_different_base_are_not_merged(tmp_path):
    first = write(tmp_path / "a", sweep_of(parabola, {X: RATES}))
    second = write(tmp_path / "b", sweep_of(parabola, {X: RATES}, model={"width": 8}))
    with pytest.raises(InputError, match="is of another sweep"):
        make_report([first, second], tmp_path / "out")


def test_shards_of_different_code_are_not_merged(tmp_path):
    directories = [write(tmp_path / name, sweep_of(parabola, {X: RATES})) for name in "ab"]
    for directory in directories:
        info = read_info(directory)
        code = {"their.net": directory.name, "plots": "1"}
        (directory / "sweep.json").write_text(
            info_to_json(dataclasses.replace(info, base={**info.base, "source": code}))
        )
    with pytest.raises(InputError, match=r"code of their\.net"):
        read_sweep(directories)


def test_reading_records_and_reports_imports_neither_jax_nor_flax():
    code = (
        "import sys, depthmup_flax.storage.sweep_records, depthmup_flax.util.types\n"
        "import depthmup_flax as dm; dm.make_report, dm.InputError, dir(dm)\n"
        "print({'jax', 'flax', 'optax', 'tensorflow'} & {name.partition('.')[0] for name in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert (done.stdout.strip(), done.stderr) == ("set()", "")


WRONG_VALUES = (None, "x", True, [], {}, -1.5, [None], {"a": [1]})


def refusal(directory):
    """The sentence with which a sweep is refused, or ""; another error is one of the test."""
    try:
        read_sweep([directory])
    except InputError as error:
        return str(error)
    return ""


def test_a_damaged_field_of_a_record_is_one_sentence_that_names_it(tmp_path):
    """For every field and every wrong value: refused with the line and the field, or harmless; never another error."""
    directory = write(tmp_path / "sweep", sweep_of(parabola, {"model.depth": (4, 8), X: RATES, "seed": (0,)}))
    path = directory / "records.jsonl"
    first, *others = path.read_text().splitlines()
    sentences = {}
    for name in json.loads(first):
        for value in WRONG_VALUES:
            path.write_text("\n".join([json.dumps({**json.loads(first), name: value}), *others]) + "\n")
            sentences[name, str(value)] = refusal(directory)
    refused = {case: sentence for case, sentence in sentences.items() if sentence}
    assert len(refused) > 100
    assert [case for case, sentence in refused.items() if "line 1" not in sentence or case[0] not in sentence] == []


def test_a_damaged_field_of_a_sweep_is_one_sentence_that_names_it(tmp_path):
    directory = write(tmp_path / "sweep", sweep_of(parabola, {"model.depth": (4, 8), X: RATES, "seed": (0,)}))
    path = directory / "sweep.json"
    whole = json.loads(path.read_text())
    sentences = {}
    for value in ("x", 3, [], None):
        damaged = {name: {**whole, name: value} for name in whole}
        damaged |= {name: {**whole, "base": {**whole["base"], name: value}} for name in ("model", "train", "optimizer")}
        for name, content in damaged.items():
            path.write_text(json.dumps(content))
            sentences[name, str(value)] = refusal(directory)
    refused = {case: sentence for case, sentence in sentences.items() if sentence}
    assert len(refused) > 20
    assert [(case, sentence) for case, sentence in refused.items() if case[0] not in sentence] == []


def test_a_short_name_belongs_to_one_axis_and_to_no_field_of_a_record():
    paths = ["optimizer.learning_rate", "model.eps", "optimizer.kwargs.eps", "hyper.steps"]
    assert list(short_names(paths).values()) == ["learning_rate", "model.eps", "optimizer.kwargs.eps", "hyper.steps"]


def test_a_flat_record_has_every_number_once():
    point = {"seed": 3, "model.width": 8, "model.depth": 2, "optimizer.learning_rate": 0.1}
    record = Record("a" * 12, "completed", point, 8, 2, 100, 3, 5, 0.5, 0.6, 50, [0.7], test_metrics={"test_norm": 2.0})
    row = flat(record)
    assert (row["learning_rate"], row["test_norm"]) == (0.1, 2.0)
    assert not {"point", "test_metrics", "versions", "model.width"} & set(row)
    assert all(not isinstance(value, dict) for value in row.values())


BASE = json.loads(configs.to_json(configs.default_config("gpt")))
POINTS = [
    {},
    {"seed": 3, "optimizer.learning_rate": 1e-5, "model.depth": 8},
    {"parametrization.preset": "mup", "parametrization.alpha": 0.5, "optimizer.frozen": ["stem", "readout"]},
    {"model.mlp": "gelu", "seed": 1},
    {"model.mlp": "swiglu", "seed": 1},
    {"data.name": 'text:a"b\\c\u00e9.txt', "model.qk_norm": True},
]


@pytest.mark.parametrize("point", POINTS, ids=lambda point: "-".join(point) or "base")
def test_a_point_has_the_hash_of_its_config(point):
    config = configs.default_config("gpt")
    for path, value in point.items():
        configs.set_field(config, path, tuple(value) if isinstance(value, list) else value)
    assert run_hash_at(BASE, json.loads(json.dumps(point))) == configs.config_hash(config)


def test_a_hash_is_that_of_its_point_and_of_what_is_trained():
    of = functools.partial(run_hash_at, BASE)
    assert of({"seed": 3}) != of({"seed": 4})
    execution = {path: "other" for path in EXECUTION if path in ("mesh", "train.log_every", "data.data_dir")}
    assert of({"seed": 3, **execution}) == of({"seed": 3})


@pytest.mark.parametrize("field", ["attention", "scan", "remat"])
def test_a_field_of_our_models_is_a_hyperparameter_in_a_network_of_the_users(field):
    for name, same in (("vit", True), ("my_net:Net", False), ("session:Net#1234", False)):
        base = {"model": {"name": name, field: "relu"}}
        equal = run_hash_at(base, {}) == run_hash_at(base, {f"model.{field}": "tanh"})
        assert equal == same, name


def test_the_commit_is_that_of_the_checkout_and_says_whether_files_differ(tmp_path):
    def git(*arguments):
        command = ["git", "-C", str(tmp_path), "-c", "user.name=Test", "-c", "user.email=test@example.org", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    (tmp_path / "storage").mkdir()
    path = pathlib.Path(shutil.copy(provenance.__file__, tmp_path / "storage"))
    spec = importlib.util.spec_from_file_location("copied_provenance", path)
    copied = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copied)
    assert copied.commit() is None  # no repository
    git("init", "--quiet")
    assert copied.commit() is None  # a repository of something else
    git("add", "storage/provenance.py")
    git("commit", "--quiet", "--message=Add it")
    assert copied.commit() == git("rev-parse", "--short=12", "HEAD")
    (tmp_path / "notes.txt").write_text("not tracked")
    assert copied.commit() == git("rev-parse", "--short=12", "HEAD")
    path.write_text(path.read_text() + "\n")
    assert copied.commit() == git("rev-parse", "--short=12", "HEAD") + "-dirty"
