"""Tables as people have them give the numbers of the plain table, or one sentence."""

import csv
import gzip
import io
import itertools
import json
import math
import time

import pytest

from depthmup_flax.report.own_records import read_runs
from depthmup_flax.search.ladder.ladder import ladder
from depthmup_flax.util.errors import InputError

SIZES = ((64, 4), (64, 8), (128, 8))
RATES = [2.0**k for k in range(-11, -3)]
TARGET = (256, 16)


def loss_of(width, depth, rate, seed=0):
    """Lowest at 2^-7 for the smallest size, lower for larger ones; high rates diverge."""
    far = math.log2(width * depth / 256)
    off = math.log2(rate) + 7 + 0.1 * far
    noise = 0.01 * math.sin(37 * (seed + 1) * (off + far))
    return math.nan if rate > 0.05 else 3 - 0.2 * far + 0.08 * off**2 + noise


def plain(seeds=(0, 1)):
    """A row for each run."""
    return [
        {"width": w, "depth": d, "lr": rate, "seed": seed, "val_loss": round(loss_of(w, d, rate, seed), 5)}
        for w, d in SIZES
        for rate in RATES
        for seed in seeds
    ]


def with_column(rows, name, value):
    return [{**row, name: value(i, row)} for i, row in enumerate(rows)]


def of_log(rows):
    """Evaluations at three steps; the table's loss is the last one."""
    steps = {1: 2.0, 500: 0.3, 1000: 0.0}
    return [
        {**row, "iter": step, "val_loss": row["val_loss"] + above, "tokens": 64 * step}
        for row in rows
        for step, above in steps.items()
    ]


KINDS = {
    "plain": lambda rows: rows,
    "index of pandas": lambda rows: [{"": i, **row} for i, row in enumerate(rows)],
    "run id": lambda rows: with_column(rows, "run", lambda i, row: f"run-{i:x}"),
    "seconds": lambda rows: with_column(rows, "seconds", lambda i, row: 100 + 0.37 * i),
    "another loss": lambda rows: with_column(rows, "train_loss", lambda i, row: row["val_loss"] - 0.01 * (i % 29)),
    "words and numbers in a column": lambda rows: with_column(rows, "note", lambda i, row: i if i % 2 else "ok"),
    "parameters": lambda rows: with_column(rows, "n_params", lambda i, row: 12 * row["width"] ** 2 * row["depth"]),
    "lowest rate": lambda rows: with_column(rows, "min_lr", lambda i, row: row["lr"] / 10),
    "one row twice": lambda rows: [*rows, rows[3]],
    "all rows twice": lambda rows: [*rows, *rows],
    "a wrong row first": lambda rows: [{**rows[5], "val_loss": 1.0}, *rows],
    "rate zero": lambda rows: [*rows, {**rows[0], "lr": 0}],
    "no rate": lambda rows: [*rows, {**rows[0], "lr": ""}],
    "diverged in words": lambda rows: [{**r, "val_loss": "None" if r["lr"] > 0.05 else r["val_loss"]} for r in rows],
    "a huge cell": lambda rows: with_column(rows, "config", lambda i, row: "x" * (200_000 if i == 1 else 2)),
    "lines in a cell": lambda rows: with_column(rows, "config", lambda i, row: '{"a": 1,\n"b": "é"}'),
    "whole numbers as floats": lambda rows: [{**row, "width": float(row["width"])} for row in rows],
    "an accuracy of few values": lambda rows: with_column(rows, "acc", lambda i, row: 0.3 + 0.1 * (i % 7)),
    "own seed for each run": lambda rows: with_column(rows, "seed", lambda i, row: 7919 * (i + 1)),
    "log": of_log,
    "losses of a tracker": lambda rows: [
        {"train/loss": 1.0 + i % 3, **{name.replace("val_", "val/"): value for name, value in row.items()}}
        for i, row in enumerate(rows)
    ],
    "log of another name": lambda rows: [
        {"train/Global Step" if k == "iter" else k: v for k, v in r.items()} for r in of_log(rows)
    ],
    "log with rows of training": lambda rows: [
        other for row in of_log(rows) for other in (row, {**row, "iter": row["iter"] + 1, "val_loss": ""})
    ],
    "names of others": lambda rows: [
        {
            "hiddenSize": r["width"],
            "cfg.num-layers": r["depth"],
            "opt/LR": r["lr"],
            "seed": r["seed"],
            "val loss": r["val_loss"],
        }
        for r in rows
    ],
    "names of trainers": lambda rows: [
        {
            "n_embd": r["width"],
            "n_layer": r["depth"],
            "Learning Rate": r["lr"],
            "seed": r["seed"],
            "loss": r["val_loss"],
        }
        for r in rows
    ],
}


def text_of(rows, delimiter=",", decimal="."):
    file = io.StringIO()
    writer = csv.DictWriter(file, list(rows[0]), delimiter=delimiter)
    writer.writeheader()
    shown = lambda value: str(value).replace(".", decimal) if isinstance(value, float) else value
    writer.writerows([{name: shown(value) for name, value in row.items()} for row in rows])
    return file.getvalue()


SPELLINGS = {
    "commas": lambda rows: ("# my runs\n" + text_of(rows)).encode("utf-8-sig"),
    "semicolons, Latin-1": lambda rows: ("sep=;\n" + text_of(rows, ";", ",") + "\n\n").encode("latin-1"),
    "tabs, UTF-16": lambda rows: text_of(rows, "\t").encode("utf-16"),
    "gzip": lambda rows: gzip.compress(text_of(rows).encode()),
    "bars, UTF-32": lambda rows: text_of(rows, "|").encode("utf-32"),
    "a header in a comment": lambda rows: ("# my runs\n# " + text_of(rows)).encode(),
}


@pytest.fixture(scope="module")
def expected():
    return ladder(plain(), TARGET, rule="mup")


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_table_as_it_comes_has_the_best_rate_of_the_plain_one(kind, spelling, expected, tmp_path):
    path = tmp_path / "runs.csv"
    path.write_bytes(SPELLINGS[spelling](KINDS[kind](plain())))
    found = ladder(path, TARGET, rule="mup")
    assert found.rate == pytest.approx(expected.rate)
    assert found.interval == pytest.approx(expected.interval)
    assert [one.search.size.width for one in found.searched] == [64, 64, 128]


WRONG = {
    "a logarithm": (lambda rows: [{**row, "lr": math.log10(row["lr"])} for row in rows], "logarithms"),
    "no width": (lambda rows: [{**row, "width": 0} for row in rows], "width is 0"),
    "half a layer": (lambda rows: [{**row, "depth": 2.5} for row in rows], "depth is 2.5"),
    "a word as rate": (lambda rows: [{**row, "lr": "fast"} for row in rows], "lr is 'fast'"),
    "no loss": (lambda rows: [{**row, "val_loss": ""} for row in rows], "no run has a finite loss"),
    "no column of depth": (lambda rows: [{k: v for k, v in r.items() if k != "depth"} for r in rows], "'depth'"),
    "rates below the best": (lambda rows: [row for row in rows if row["lr"] < 0.002], "highest of the grid"),
    "rates of each step": (
        lambda rows: [{**row, "lr": row["lr"] * (1.001 - row["iter"] / 1000)} for row in of_log(rows)],
        "highest rates",
    ),
    "a decimal comma between commas": (
        lambda rows: [{**row, "val_loss": f"{row['val_loss']:.3f}".replace(".", ",")} for row in rows],
        "val_loss is '4,",
    ),
    "an enormous width": (lambda rows: [{**row, "width": 10**15} for row in rows], "width is 10"),
    "one rate": (lambda rows: [row for row in rows if row["lr"] == RATES[2]], "one value"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_table_that_cannot_answer_is_refused_with_its_reason(kind, tmp_path):
    change, named = WRONG[kind]
    (tmp_path / "runs.csv").write_text(text_of(change(plain())))
    with pytest.raises(InputError, match=named):
        ladder(tmp_path / "runs.csv", TARGET)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"", "no line"),
        (b"width,depth,lr,loss\n", "no line"),
        (b"PK\x03\x04rest", "save it as CSV"),
        (b'{"width": 64, "depth": 4, "lr": 0.1, "loss": 1}\n' * 2, "save it as CSV"),
        (bytes(range(256)), "save it as CSV"),
        (b"\x1f\x8bdamaged", "damaged gzip"),
        (b"width,depth,lr,lr,loss\n1,1,1,1,1\n", "two columns"),
        (b'width,depth,lr,loss\n64,4,0.1,"1\n64,4,0.1,1\n', "write a number"),
        (b'width,depth,lr,loss\n64,4,0.1,1\n64,4,"0.1,1\n64,4,0.2,1\n', "quote"),
        (b"width,depth,lr,loss\n64,4\n64,4,0.1,1\n", "line 2"),
    ],
)
def test_a_file_that_is_no_table_is_refused_with_its_reason(content, named, tmp_path):
    (tmp_path / "runs.csv").write_bytes(content)
    with pytest.raises(InputError, match=named):
        read_runs(tmp_path / "runs.csv")


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        read_runs(tmp_path / "nowhere.csv")


def test_columns_are_named_by_the_caller(expected, tmp_path):
    rows = [{"a": r["width"], "b": r["depth"], "c": r["lr"], "d": r["val_loss"], "e": r["seed"]} for r in plain()]
    names = {"width": "a", "depth": "b", "learning_rate": "c", "loss": "d", "seed": "e"}
    assert ladder(rows, TARGET, rule="mup", columns=names).rate == pytest.approx(expected.rate)
    with pytest.raises(InputError, match="no column 'x'"):
        ladder(rows, TARGET, columns={**names, "width": "x"})


@pytest.mark.parametrize("delimiter", [",", "\t"])
def test_thousands_of_whole_numbers_are_read(delimiter, tmp_path):
    rows = [{**row, "width": f"{1000 * row['width']:,}"} for row in plain()]
    (tmp_path / "runs.csv").write_text(text_of(rows, delimiter))
    assert {run.width for run in read_runs(tmp_path / "runs.csv").runs} == {64_000, 128_000}


@pytest.mark.parametrize(
    ("given", "named"),
    [({"columns": {"size": "width"}}, "columns has 'size'"), ({"ignored": ["nothing"]}, "no column 'nothing'")],
)
def test_a_role_or_column_that_is_not_there_is_refused(given, named):
    with pytest.raises(InputError, match=named):
        read_runs(plain(), **given)


def test_a_data_frame_and_columns_are_tables(expected):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(plain())
    assert ladder(frame, TARGET, rule="mup").rate == pytest.approx(expected.rate)
    assert ladder({name: list(frame[name]) for name in frame}, TARGET, rule="mup").rate == pytest.approx(expected.rate)


def test_rows_of_other_losses_are_seeds_where_no_column_is():
    rows = [{name: value for name, value in row.items() if name != "seed"} for row in plain()]
    runs = read_runs(rows)
    assert {run.seed for run in runs.runs} == {0, 1}
    assert any("count as seeds" in note for note in runs.notes)


def test_a_setting_is_no_other_column():
    """Two weight decays are two series; a column that follows from the size is none."""
    rows = [{**row, "decay": decay, "heads": row["width"] // 32, "epoch": 3} for decay in (0.0, 0.1) for row in plain()]
    assert {run.settings for run in read_runs(rows).runs} == {(("decay", 0.0),), (("decay", 0.1),)}


def test_unequal_seeds_drop_the_fewest_runs():
    rows = [row for row in plain(seeds=(0, 1, 2)) if row["seed"] < 2 or row["lr"] == RATES[0]]
    runs = read_runs(rows)
    assert len(runs.runs) == len(rows) - len(SIZES)
    assert any("unequal numbers" in note for note in runs.notes)


def test_a_rate_at_which_runs_diverge_stays_with_fewer_seeds():
    rows = [{name: value for name, value in row.items() if name != "seed"} for row in plain(seeds=(0, 1, 2))]
    runs = read_runs(rows).runs
    diverged = [run for run in runs if run.rate > 0.05]
    assert len(diverged) == 3 * len(SIZES)
    assert all(math.isnan(run.loss) for run in diverged)


def test_columns_of_trackers_are_no_settings():
    rows = [
        {**row, "State": "ab"[i % 2], "host": "cd"[i % 3 % 2], "kind": "ef"[i % 2]} for i, row in enumerate(plain())
    ]
    assert {name for run in read_runs(rows).runs for name, _ in run.settings} == {"kind"}
    assert {run.settings for run in read_runs(rows, ignored=["kind"]).runs} == {()}


def test_a_rate_that_does_not_matter_has_no_best_value():
    with pytest.raises(InputError, match="equal losses"):
        ladder([{**row, "val_loss": 2.0} for row in plain()], TARGET)


def test_an_initial_loss_below_all_others_is_left_out():
    found = ladder(plain(), TARGET, rule="mup", initial_loss=0.5)
    assert found.rate == ladder(plain(), TARGET, rule="mup").rate
    assert any("initial loss" in note for note in found.notes)


def test_runs_of_a_log_that_have_not_ended_are_left_out():
    rows = of_log(plain())
    cut = [row for row in rows if not (row["iter"] == 1000 and row["lr"] == RATES[0])]
    runs = read_runs(cut)
    assert RATES[0] not in {run.rate for run in runs.runs}
    assert all(run.initial_loss == pytest.approx(run.loss + 2) for run in runs.runs if math.isfinite(run.loss))
    assert any("end before" in note for note in runs.notes)


def test_twenty_thousand_rows_take_seconds():
    sizes = [(16 * 2**w, 2**d) for w in range(5) for d in range(5)]
    points = itertools.product(sizes, range(40), range(20))
    rows = [{"width": w, "depth": d, "lr": 2.0 ** (-14 + r / 4), "seed": s} for (w, d), r, s in points]
    rows = [{**row, "id": f"run-{i}", "loss": loss_of(*list(row.values())[:4])} for i, row in enumerate(rows)]
    assert len(rows) == 20_000
    start = time.process_time()
    assert json.dumps(ladder(rows, (512, 64)).as_json())
    assert time.process_time() - start < 10
