"""Every Python block of README.md and docs/ runs alone; so does every `depthmup` of README.md and of two pages, but for
what needs data or devices that are not here.

A block runs in a new namespace, in a directory with the runs and files of `_provide`. A block that begins with
``# name.py`` is also that file, for the page's other blocks. A line above a block changes this:
``<!-- slow -->`` runs it with the slow tests, ``<!-- not run: REASON -->`` does not run it, and
``<!-- needs: PACKAGE ... -->`` runs it where these are installed; ``<!-- slow, needs: PACKAGE ... -->`` both.

docs/your_model.md has a test of its own, which also compares what its blocks print.
"""

import dataclasses
import importlib.util
import itertools
import pathlib
import re
import shlex
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image
from processes import ROOT, run_command

import depthmup_flax as dm
from depthmup_flax.config import default_config
from depthmup_flax.config.files import from_file, path_of
from depthmup_flax.trainer.loop import train_and_evaluate

README = ROOT / "README.md"
DOCS = sorted(p for p in (ROOT / "docs").rglob("*.md") if not any(part[0] == "_" for part in p.parts))
PAGES = [README, *(page for page in DOCS if page.name != "your_model.md")]


@dataclasses.dataclass(frozen=True)
class Block:
    page: pathlib.Path
    line: int
    note: str  # of the comment above
    code: str

    @property
    def file(self):
        """The name of the file that the block is, if it is one."""
        named = re.match(r"# (\w+\.py)\n", self.code)
        return named and named[1]

    def __str__(self):
        return f"{self.page.relative_to(ROOT) if self.page in PAGES else self.page.name}:{self.line}"


def blocks_of(page, language):
    text = page.read_text(encoding="utf-8")
    found = re.finditer(rf"(?:^<!-- ([^\n]*) -->\n)?^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [Block(page, text.count("\n", 0, m.start(2)), m[1] or "", m[2]) for m in found]


def marks(block):
    if block.note.startswith("not run: "):
        return pytest.mark.skip(reason=block.note)
    return pytest.mark.slow if block.note.startswith("slow") else ()


def as_parameters(blocks):
    return [pytest.param(block, id=str(block), marks=marks(block)) for block in blocks]


BLOCKS = [block for page in PAGES for block in blocks_of(page, "python")]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("pages")


def _provide(text, place):
    """The runs and image files that ``text`` names, in the directory ``place``."""
    if "runs/digits" in text and not (place / "runs/digits").exists():
        config = from_file(ROOT / "configs" / "digits.py")
        config.train.update(steps=10, eval_every=5)
        train_and_evaluate(config, place / "runs/digits")
    if "runs/gpt" in text and not (place / "runs/gpt").exists():
        (place / "shakespeare.txt").write_text("ROMEO:\nShe speaks.\n" * 60)
        config = default_config("gpt")
        config.model.update(width=16, depth=1, num_heads=2)
        config.data.update(name=f"text:{place / 'shakespeare.txt'}", context=16)
        config.train.update(batch_size=16, steps=2, eval_every=2)
        train_and_evaluate(config, place / "runs/gpt")
    for name in re.findall(r"[\w/]+\.png", text):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.zeros((8, 8), np.uint8)).save(place / name)


@pytest.mark.parametrize("block", as_parameters(BLOCKS))
def test_a_python_block_runs_alone(block, place, monkeypatch):
    for package in block.note.partition("needs: ")[2].split():
        if importlib.util.find_spec(package) is None:  # importing Keras chooses its backend
            pytest.skip(f"{package} is not installed")
    monkeypatch.setenv("MPLBACKEND", "Agg")
    _provide(block.code, place)
    files = {other.file: other.code for other in blocks_of(block.page, "python") if other.file}
    for name, code in files.items():
        (place / name).write_text(code)
    monkeypatch.chdir(place)
    monkeypatch.syspath_prepend(place)
    try:
        exec(compile(block.code, str(block), "exec"), {"__name__": "block"})
    finally:
        for name in files:
            sys.modules.pop(pathlib.Path(name).stem, None)
            (place / name).unlink()


def test_plain_orbax_reads_a_run_without_this_package(place):
    """examples/orbax_only.py, where importing the package fails, gives the predictions of `load_run`."""
    _provide("runs/digits", place)
    banned = 'import runpy, sys\nsys.modules["depthmup_flax"] = None  # importing it fails\n'
    program = f"{banned}runpy.run_path({str(ROOT / 'examples' / 'orbax_only.py')!r}, run_name='__main__')"
    command = [sys.executable, "-c", program, "runs/digits"]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    from sklearn.datasets import load_digits

    images = np.round(load_digits().images * 255 / 16).astype(np.uint8)[..., None]
    expected = dm.load_run(place / "runs/digits").predict(images)
    np.testing.assert_allclose(np.load(place / "runs/digits/logits.npy"), expected, rtol=1e-3, atol=1e-4)


# Commands

# Flags that make a command end in seconds.
SHORT = {
    "train": ["--config.train.steps=4", "--config.train.eval_every=4", "--config.train.log_every=2"],
    "sweep": ["--config.scale=smoke"],
    "tune": ["--config.model.depth=6", "--proxy.steps=4", "--octaves=1", "--seeds=2", "--trials=3", "--lanes=all"],
    "forecast": ["--config.train.steps=8", "--seeds=1", "--lanes=all"],
    "check": ["--widths=", "--depths=2,4", "--steps=1", "--seeds=2"],
}
ENDS_WITH = {"check": (0, 1)}  # so short a check may fail
# What is not here, by a part of a command.
ABSENT = ("gs://", "s3://", "--topology=", "cifar10", "imagenet", "shakespeare", "tfds:", "folder:")


def commands_of(page):
    for block in blocks_of(page, "bash"):
        lines = block.code.replace("\\\n", " ").splitlines()
        for part in itertools.chain.from_iterable(line.split(" #")[0].split("&&") for line in lines):
            if part.strip():
                yield block, part.strip()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_configs_that_commands_name_exist(page):
    for block, command in commands_of(page):
        for named in re.findall(r"--config=([^\s$]+)(?=\s|$)", command):  # not those with variables of the shell
            own = named.startswith("runs/") or any(other.file == named for other in blocks_of(page, "python"))
            path = pathlib.Path(ROOT, path_of(named.rstrip("\"';")).partition(":")[0])
            assert own or path.is_file(), f"{block}: {command}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "names"),
    [
        (README, {"tune"}),
        (ROOT / "docs" / "getting_started.md", {"train", "sweep", "report"}),
        (ROOT / "docs" / "your_network.md", {"train", "tune"}),
    ],
    ids=lambda value: value.name if isinstance(value, pathlib.Path) else "",
)
def test_the_commands_of_a_page_run(page, names, place):
    """In order, in one directory that has the page's files, shortened by flags."""
    for other in blocks_of(page, "python"):
        if other.file:
            (place / other.file).write_text(other.code)
    ran = []
    for block, command in commands_of(page):
        program, *arguments = shlex.split(command)
        if program != "depthmup" or any(word in command for word in ABSENT):
            continue
        _provide(command, place)
        name = arguments[0]
        done = run_command("-m", "depthmup_flax", *arguments, *SHORT.get(name, []), cwd=place)
        assert done.returncode in ENDS_WITH.get(name, (0,)), f"{block}: {command}\n{done.stdout}{done.stderr}"
        ran.append(name)
    assert names <= set(ran)
