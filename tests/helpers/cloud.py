"""Fake cloud programs: they record their arguments, and fail as told."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

# Flags of a program that a shell, YAML or Kubernetes would change. None of their commands may be executed.
AWKWARD = (
    *("--a=$(touch hit)", "`touch hit`", "; touch hit", "| touch hit", "&", "$HOME", "${HOME}", "*", "[a-z]*", "{a,b}"),
    *(
        "~",
        "--b='x' \"y\"",
        "a  b\tc",
        "two\nlines\n",
        "\r",
        "\x01",
        "\x7f",
        "é",
        "",
        "-n",
        "-e",
        "--",
        "\\",
        "\\n",
        "!x",
    ),
    *("#x", "a: b", "%j", "@NAME@", "$(HOME)", "$$(HOME)", "$$$(HOME)", "$$", "$"),
)
LAUNCH = pathlib.Path(__file__).parents[2] / "launch"


class Cloud:
    """A directory with fake programs, their recorded calls and their instructions."""

    def __init__(self, directory: pathlib.Path, **programs: str) -> None:
        self.directory = directory
        # A small checkout, because it is copied to the workers.
        self.checkout = directory / "checkout"
        shutil.copytree(LAUNCH, self.checkout / "launch")
        subprocess.run(["git", "init", "--quiet", self.checkout], check=True)
        self.bin = directory / "bin"
        self.bin.mkdir()
        for name, code in programs.items():
            path = self.bin / name
            path.write_text(f"#!{sys.executable} -IS\n{code}")  # starts fast
            path.chmod(0o755)

    def tell(self, **files) -> None:
        """Writes instructions: a dictionary as JSON, a list as lines."""
        for name, content in files.items():
            text = json.dumps(content) if isinstance(content, dict) else "\n".join(content)
            (self.directory / name).write_text(text)

    def start(self, script: str, *arguments: str):
        path = f"{self.bin}{os.pathsep}{os.environ['PATH']}"
        return subprocess.Popen(
            [self.checkout / "launch" / script, *arguments],
            env=os.environ | {"FAKE": str(self.directory), "PATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, script: str, *arguments: str):
        process = self.start(script, *arguments)
        out, error = process.communicate(timeout=60)
        return subprocess.CompletedProcess(process.args, process.returncode, out, error)

    def calls(self, verb: str) -> list[list[str]]:
        path = self.directory / "calls"
        recorded = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [call for call in recorded if verb in call]

    def until(self, condition) -> None:
        end = time.monotonic() + 30
        while not condition():
            assert time.monotonic() < end
            time.sleep(0.02)
