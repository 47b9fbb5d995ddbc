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
    assert any("less than half" in note for note in runs.notes)


def test_a_rate_at_which_runs_diverge_stays_with_fewer_seeds():
    rows = [{name: value for name, value in row.items() if name != "seed"} for row in plain(seeds=(0, 1, 2))]
    runs = read_runs(rows).runs
    diverged = [run for run in runs if run.rate > 0.05]
    assert len(diverged) == len(SIZES)  # three rows without a seed that are alike
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


def half_trained(rows, name="State", words=("finished", "crashed")):
    """Seed 1 at each size's second rate has stopped with a loss below all others."""
    done, cut = words
    stopped = lambda row: row["seed"] == 1 and row["lr"] == RATES[1]
    return [
        {**row, name: cut if stopped(row) else done, "val_loss": 0.5 if stopped(row) else row["val_loss"]}
        for row in rows
    ]


@pytest.mark.parametrize("name", ["State", "state", "status", "run/Status"])
@pytest.mark.parametrize(
    "words",
    [
        ("finished", "crashed"),
        ("COMPLETED", "FAILED"),
        ("Done", "killed"),
        ("success", "running"),
        ("ok", "Out of memory"),
    ],
)
def test_a_run_that_its_state_does_not_call_finished_is_left_out(name, words, expected):
    found = ladder(half_trained(plain(), name, words), TARGET, rule="mup")
    assert math.log2(found.rate / expected.rate) == pytest.approx(0, abs=0.05)
    assert any(f"{words[1]} ({len(SIZES)})" in note for note in found.notes)
    assert {len(one.curve.losses) for one in found.searched} == {2}


@pytest.mark.parametrize(
    ("loss", "kept"), [("NaN", True), ("inf", True), ("diverged", True), ("", False), (None, False)]
)
def test_a_crash_is_a_divergence_only_if_its_loss_says_so_above_all_finished_rates(loss, kept):
    rows = [
        {**row, "state": "crashed", "val_loss": loss} if row["lr"] > 0.05 else {**row, "state": "finished"}
        for row in plain()
    ]
    own = read_runs(rows)
    failed = {**rows[9], "state": "crashed", "val_loss": loss}  # of the machine: higher rates have finished
    amid = [*rows[:9], failed, *rows[10:]]
    assert len(read_runs(amid).runs) == len(own.runs) - 1
    assert (max(run.rate for run in own.runs) > 0.05) is kept
    assert bool(own.unfinished) is not kept


def test_words_that_are_no_state_are_named_and_count_unless_others_say_finished():
    rows = with_column(plain(), "status", lambda i, row: "ab"[i % 2])
    assert len(read_runs(rows).runs) == len(rows)
    assert any("a (24), b (24)" in note for note in read_runs(rows).notes)
    rows[0]["status"] = "crashed"
    assert len(read_runs(rows).runs) == len(rows) - 1
    mixed = with_column(plain(), "status", lambda i, row: "finished" if i else "on hold")
    assert len(read_runs(mixed).runs) == len(mixed) - 1
    with pytest.raises(InputError, match="no run that has ended"):
        read_runs(with_column(plain(), "status", lambda i, row: "running"))


@pytest.mark.parametrize("others", [("loss", "test_loss", "train_loss"), ("train_loss", "test_loss", "loss")])
def test_other_losses_are_named_in_the_order_of_the_table(others):
    rows = [{**row, **{name: 5 - row["lr"] for name in others}} for row in plain()]
    (said,) = (note for note in ladder(rows, TARGET, rule="mup").notes if "Also there" in note)
    assert ", ".join(others) in said


@pytest.mark.parametrize(
    ("held_out", "other"),
    [
        ("val_loss", "loss"),
        ("Val Loss", "Loss"),
        ("eval/loss", "train/loss"),
        ("metrics/eval_loss", "loss"),
        ("metrics.test.loss", "train.loss"),
        ("loss/val", "loss/train"),
        ("test_loss", "training_loss"),
        ("loss", "train_loss"),
    ],
)
def test_a_held_out_loss_comes_before_that_of_training_and_both_are_named(held_out, other, expected):
    """Along the other one the rate is another."""
    rename = lambda row: {
        **{k: v for k, v in row.items() if k != "val_loss"},
        other: 5 - row["lr"],
        held_out: row["val_loss"],
    }
    found = ladder(list(map(rename, plain())), TARGET, rule="mup")
    assert found.rate == pytest.approx(expected.rate)
    (said,) = (note for note in found.notes if "Also there" in note)
    assert said.startswith(f"The loss is that of {held_out}.")
    assert f"--column.loss={other}" in said
    named = read_runs(list(map(rename, plain())), columns={"loss": other})
    assert all(run.loss == 5 - run.rate for run in named.runs)
    assert {run.settings for run in named.runs} == {()}


@pytest.mark.parametrize("empty", ["", "NaN", "None"])
@pytest.mark.parametrize("name", ["validation_loss", "eval/loss", "test_loss"])
def test_a_loss_that_no_run_has_measured_is_none(empty, name, expected):
    rows = [
        {**{k: v for k, v in row.items() if k != "val_loss"}, name: empty, "loss": row["val_loss"]} for row in plain()
    ]
    assert ladder(rows, TARGET, rule="mup").rate == pytest.approx(expected.rate)


@pytest.mark.parametrize("how", ["no row", "crashed", "an earlier end"])
@pytest.mark.parametrize("seeds", [(0, 1), (0, 1, 2, 3)])
def test_a_lost_seed_leaves_its_rate_to_the_others(how, seeds):
    whole = ladder(plain(seeds), TARGET, rule="mup")
    lost = lambda row: row["seed"] == 1 and row["lr"] == 2.0**-7
    change = {
        "no row": lambda row: None,
        "crashed": lambda row: {**row, "state": "crashed", "val_loss": 9.0},
        "an earlier end": lambda row: {**row, "step": 700, "val_loss": 9.0},
    }[how]
    rows = [change(row) if lost(row) else {**row, "state": "finished", "step": 1000} for row in plain(seeds)]
    found = ladder([row for row in rows if row], TARGET, rule="mup")
    assert math.log2(found.rate / whole.rate) == pytest.approx(0, abs=0.1)
    for one, before in zip(found.searched, whole.searched, strict=True):
        assert list(one.curve.rates) == list(before.curve.rates)
        assert len(one.curve.losses) == len(seeds)
    assert any(f"64 x 4 at 0.00781 ({len(seeds) - 1} of {len(seeds)})" in note for note in found.notes)


def test_a_rate_without_a_run_that_has_ended_is_named_and_its_neighbor_no_edge_of_the_grid():
    crashed = {"state": "crashed", "val_loss": ""}
    is_lost = lambda row: row["lr"] > 2.0**-7.5 and row["width"] == 128
    rows = [{**row, **crashed} if is_lost(row) else {**row, "state": "done"} for row in plain()]
    found = ladder(rows, TARGET, rule="mup")
    (said,) = (note for note in found.notes if "not inside" in note)
    assert "128 x 8 (best beside 0.00781" in said
    assert "highest of the grid" not in said
    assert any("128 x 8 at 0.00781" in note for note in found.notes)


@pytest.mark.parametrize("name", ["step", "global_step", "train_steps", "max_iters"])
def test_steps_that_jitter_by_a_hundredth_are_of_one_length(name, expected):
    rows = with_column(plain(), name, lambda i, row: 20_000 - 39 * (i % 5))
    found = ladder(rows, TARGET, rule="mup")
    assert found.rate == pytest.approx(expected.rate)
    assert {one.search.size.steps for one in found.searched} == {20_000}
    halved = with_column(plain(), name, lambda i, row: 20_000 // (1 + (row["lr"] == RATES[0])))
    lengths = {run.steps for run in read_runs(halved).runs}
    assert lengths == ({20_000} if "step" in name and "steps" not in name else {10_000, 20_000})


def accuracies(rows, best=0.9):
    """Highest where the loss is lowest."""
    return [best - 0.1 * row["val_loss"] if math.isfinite(row["val_loss"]) else 0.1 for row in rows]


@pytest.mark.parametrize("name", ["val/acc", "Top1", "valid_accuracy", "eval.F1", "loss", "metric"])
def test_accuracies_are_no_losses(name):
    """By their names, or by their shape, which losses at too high rates may have, too."""
    rows = [{**row, name: x} for row, x in zip(plain(), accuracies(plain()), strict=True)]
    said = "is lowest at an end.*If it is a loss, add rates" if name in ("loss", "metric") else "looks like an accuracy"
    with pytest.raises(InputError, match=f"{name} {said}") as refused:
        ladder(rows, TARGET, columns={"loss": name})
    assert f"100 - {name}" in str(refused.value)


@pytest.mark.parametrize("name", ["val/error", "1 - acc", "100-accuracy", "acc_err", "account"])
def test_errors_are_losses(name, expected):
    rows = [{**row, name: 1 - x} for row, x in zip(plain(), accuracies(plain()), strict=True)]
    assert ladder(rows, TARGET, rule="mup", columns={"loss": name}).rate == pytest.approx(expected.rate, rel=1e-3)


def test_what_counts_as_a_diverged_loss_is_said_with_its_place():
    words = {3: "diverged", 7: "n/a", 12: "diverged", 15: ""}  # the first rate that diverges is at 14 and 15
    rows = [{**row, "val_loss": words.get(i, row["val_loss"])} for i, row in enumerate(plain())]
    notes = " ".join(read_runs(rows).notes)
    assert "by their val_loss or state: nan (5, first in line 15), diverged (2, first in line 4), n/a (1, " in notes
    assert "empty (1, first in line 16)" in notes
    assert "Runs that count as diverged" not in " ".join(read_runs(plain()[:10]).notes)


@pytest.mark.parametrize("times", [1, 2])
def test_a_row_for_each_run_is_no_log_and_a_diverged_run_twice_is_lost_to_none(times):
    """Its steps are those at which it diverged, and at which no other run was evaluated."""
    last = lambda row: 100 + row["seed"] if math.isnan(row["val_loss"]) else 1000
    rows = [{**row, "_step": last(row)} for row in plain()]
    rows.append({**rows[0], "seed": 7, "_step": 20})  # it has not ended
    found = read_runs(rows * times)
    notes = " ".join(found.notes)
    assert "is a log" not in notes
    assert "Rates without a run" not in notes
    assert {run.rate for run in found.runs} == set(RATES)


def test_two_seeds_that_agree_by_chance_have_the_error_of_their_noise():
    """Beside a difference at all rates, which tells nothing of the best one."""
    of_first = lambda row: loss_of(row["width"], row["depth"], row["lr"]) + 0.02 * row["seed"]
    agreeing = [{**row, "val_loss": of_first(row)} for row in plain()]
    noise = {2.0**-9: 0.02, 2.0**-5: -0.02}  # two rates from the best ones
    rows = [{**row, "val_loss": row["val_loss"] + noise.get(row["lr"], 0) * row["seed"]} for row in agreeing]
    errors = lambda rows: [one.search.error for one in ladder(rows, TARGET, rule="mup").searched]
    assert max(errors(agreeing)) < 0.01
    assert min(errors(rows)) > 0.02


def test_what_is_assumed_of_the_target_is_said_where_the_table_varies():
    rows = [{**row, "batch_size": 64 * row["width"] // 64, "steps": 100 * row["depth"]} for row in plain()]
    notes = " ".join(ladder(rows, TARGET, rule="mup").notes)
    assert "--target.batch_size=N" in notes
    assert "--target.steps=N" in notes
    given = " ".join(ladder(rows, TARGET, rule="mup", steps=800, batch_size=128).notes)
    assert "--target" not in given


def test_the_weight_decay_of_a_column_counts_for_other_steps_and_is_said():
    """With decay the rate stays, see `rescaled_hyperparameters`; of two decays the better runs' counts."""
    rows = [{**row, "steps": 1000} for row in plain()]
    decayed = lambda decay, worse=0.0: [
        {**row, "opt/weight_decay": decay, "val_loss": row["val_loss"] + worse} for row in rows
    ]
    rate_of = lambda rows, **given: ladder(rows, TARGET, rule="mup", steps=4000, **given).rate
    moved, kept = rate_of(rows), rate_of(rows, weight_decay=0.1)
    assert kept == pytest.approx(2**0.5 * moved)
    assert rate_of(decayed(0.1)) == pytest.approx(kept)
    assert rate_of(decayed(0.0)) == rate_of(decayed(0.1), weight_decay=0.0) == pytest.approx(moved)
    assert rate_of(decayed("none")) == pytest.approx(moved)
    assert rate_of([*decayed(0.1), *decayed(0.0, worse=1.0)]) == pytest.approx(kept)
    said = lambda rows, **given: any("decay is 0.1" in note for note in ladder(rows, TARGET, rule="mup", **given).notes)
    assert said(decayed(0.1), steps=4000)
    assert not said(decayed(0.1))
    assert not said(decayed(0.1), steps=4000, weight_decay=0.0)
