"""The harness of random kills: a process ends at the change of files that it should, and differences are found."""

import json
import signal

import kills
import processes


def makes_files(directory, **killed):
    processes.killed_at_a_write(str(directory), **killed)
    for i in range(10):
        (directory / str(i)).write_text("text")
    return 0


def test_a_process_is_killed_at_the_chosen_change_of_files(tmp_path):
    files = tmp_path / "files"
    files.mkdir()
    process = processes.Process(tmp_path / "log", makes_files, files, number=3)
    assert process.wait() == -signal.SIGKILL, process.text()
    assert sorted(path.name for path in files.iterdir()) == ["0", "1", "2"]


def test_what_differs_from_an_undisturbed_run_is_named(tmp_path):
    command = kills.command("train")
    parts = {name: read for name, read in command.parts.items() if name != "parameters"}
    for name, loss in (("whole", 1.0), ("same", 1.0), ("other", 1.5)):
        run = tmp_path / name
        run.mkdir()
        (run / "result.json").write_text(json.dumps({"train_loss": loss, "wall_time_s": loss}))
        (run / "metrics.jsonl").write_text(json.dumps({"step": 1, "images_per_s": len(name)}) + "\n")
    (tmp_path / "other" / "config.json.tmp").touch()
    differing = {name: kills.differing(parts, tmp_path / name, tmp_path / "whole") for name in ("same", "other")}
    assert differing == {"same": [], "other": ["files", "result.json"]}
