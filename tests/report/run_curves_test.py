"""The history of training runs: what ``depthmup report`` shows of their metrics, finished or not, whoever's network."""

import json
import math
import re

import numpy as np
import pytest
from planted_sweeps import RATES, X, parabola, sweep_of, write

from depthmup_flax.commands.app import module_and_parser
from depthmup_flax.report import run_report
from depthmup_flax.report.run_report import metrics_of, read_runs, report_runs
from depthmup_flax.storage import workdir as workdirs
from depthmup_flax.util.errors import InputError

ROWS = [
    {"step": 10, "train_loss": 2.0, "train_accuracy": 0.5, "images_per_s": 100.0},
    {"step": 20, "train_loss": None, "train_accuracy": 0.6},
    {"step": 20, "test_loss": 1.5, "test_accuracy": 0.4},
    {"step": 30, "train_loss": 1.0, "train_accuracy": 0.7},
    {"step": 40, "test_loss": 1.75, "test_accuracy": 0.45},
]


def run(path, rows=ROWS, result=None, end="", **config):
    """A run's directory with these rows and the last line that a crash has left."""
    with workdirs.claimed(path, workdirs.RUN):
        config = {"model": {"name": "net", "width": 8}, "seed": 0, **config}
        (path / "config.json").write_text(json.dumps(config))
        (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + end)
        if result:
            (path / "result.json").write_text(json.dumps(result))
    return path


def lines(runs):
    """Metric -> the points of each line of its panel."""
    panels = {axes.get_ylabel(): axes.get_lines() for axes in run_report.draw(runs).axes if axes.get_visible()}
    return {name: [line.get_xydata().tolist() for line in drawn] for name, drawn in panels.items()}


def test_lines_go_through_the_finite_values_of_training_and_of_evaluations(tmp_path):
    drawn = lines(read_runs([run(tmp_path / "a", end='{"step": 50, "train_lo')]))
    assert drawn == {
        "loss": [[[10, 2.0], [30, 1.0]], [[20, 1.5], [40, 1.75]]],
        "accuracy": [[[10, 0.5], [20, 0.6], [30, 0.7]], [[20, 0.4], [40, 0.45]]],
    }


def test_metrics_of_users_have_panels_after_loss_and_accuracy(tmp_path):
    rows = [{"step": 1, "validation_perplexity": 3.0, "train_loss": 1.0, "learning_rate": 0.1, "update_norm/all": 1.0}]
    runs = read_runs([run(tmp_path / "mine", rows), run(tmp_path / "other")])
    assert metrics_of(runs) == ["loss", "accuracy", "perplexity"]
    assert [len(drawn) for drawn in lines(runs).values()] == [3, 2, 1]


@pytest.mark.parametrize(
    ("result", "status"),
    [
        (None, "step 40, not finished"),
        ({"status": "completed", "steps": 40}, "completed, 40 steps"),
        ({"status": "diverged", "diverged_at_step": 17}, "diverged at step 17"),
    ],
)
def test_a_line_says_how_far_a_run_is_and_its_last_values(tmp_path, result, status):
    (found,) = read_runs([run(tmp_path / "a", result=result)])
    assert str(found).startswith(f"a: {status}")
    assert "train loss 1, test loss 1.75 (lowest 1.5 at step 20), train accuracy 0.7" in str(found)


def test_a_run_that_a_process_trains_is_called_that(tmp_path):
    path = run(tmp_path / "a")
    with workdirs.claimed(path, workdirs.RUN):
        assert "step 40, training;" in str(read_runs([path])[0])


def test_many_rows_are_averaged_in_groups_of_neighbors():
    steps, values = np.arange(4000.0), np.random.default_rng(0).normal(size=4000)
    few, means = run_report.thinned(steps, values)
    assert len(few) == len(means) == run_report.MOST_POINTS
    assert means[3] == pytest.approx(math.fsum(values[30:40]) / 10)
    assert few[3] == 34.5


def test_the_page_escapes_names_and_lists_settings_in_which_runs_differ(tmp_path):
    train = lambda steps: {"steps": steps, "batch_size": 8}
    paths = [run(tmp_path / name, train=train(k), data={"name": "<i>"}) for name, k in (("a<b>$", 5), ("c", 6))]
    report = report_runs(paths, tmp_path / "out")
    text = report.paths[0].read_text()
    assert [path.name for path in report.paths] == ["report.html", "history.png", "history.svg"]
    assert {"<b>", "<i>"}.isdisjoint(re.findall("<.>", text))
    assert text.index("steps=5, batch_size=8") < text.index("steps=6, batch_size=8")
    assert "default-src 'none'" in text
    assert "a&lt;b&gt;$" in report._repr_html_()


def test_the_command_reports_runs_and_refuses_flags_and_directories_of_sweeps(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ended = run(tmp_path / "runs" / "one", result={"status": "completed", "steps": 40})
    sweep = write(tmp_path / "sweep", sweep_of(parabola, {X: RATES[4:6]}))

    def command(*words):
        module, parser = module_and_parser("report")
        return module.main(parser.parsed(list(map(str, words))))

    assert command() == 0
    printed = capsys.readouterr().out
    assert "the newest training run: runs/one" in printed
    assert "one: completed, 40 steps" in printed
    assert (ended / "report" / "history.png").exists()
    for words in ((ended, "--loss=test"), (ended, "--tolerance=0.1"), (ended, sweep)):
        with pytest.raises(InputError):
            command(*words)
