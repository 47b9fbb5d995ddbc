"""The examples and the blocks of docs/your_model.md run as they are written; these print what the page shows."""

import importlib.util
import itertools
import math
import pathlib
import re
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]


def load(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        pytest.param("linen_resnet", {"depth": 2}, marks=pytest.mark.slow),
        pytest.param("linen_scan_vit", {"depth": 2}, marks=pytest.mark.slow),
        pytest.param("nnx_transformer", {"depth": 1}, marks=pytest.mark.slow),
        pytest.param("nnx_with_our_modules", {"depth": 4}, marks=pytest.mark.slow),
        pytest.param("keras_functional", {"depth": 2}, marks=pytest.mark.slow),
        ("plain_linen", {"depth": 2}),
    ],
)
def test_examples_run_and_learn(name, sizes, capsys):
    if name == "keras_functional" and importlib.util.find_spec("keras") is None:  # importing Keras chooses its backend
        pytest.skip("Keras is not installed")
    losses = load(name).main(steps=20, **sizes)
    assert all(map(math.isfinite, losses))
    assert losses[-1] < 0.9 * losses[0]
    assert "+branch" in capsys.readouterr().out


PAGE = (ROOT / "docs" / "your_model.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
PROGRAMS = [text for language, text in BLOCKS if language == "python" and not text.startswith("# ")]
SHOWN = {program: text for (_, program), (language, text) in itertools.pairwise(BLOCKS) if not language}


@pytest.fixture
def files(tmp_path, monkeypatch):
    """The blocks that begin with the name of a file, as modules that can be imported."""
    for _, text in BLOCKS:
        if text.startswith("# "):
            (tmp_path / text.splitlines()[0].removeprefix("# ")).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for path in tmp_path.glob("*.py"):
        sys.modules.pop(path.stem, None)


def run(program):
    scope: dict = {"__name__": "page"}
    exec(compile(program, "your_model.md", "exec"), scope)
    return scope


def lines_shown(program, printed):
    """The lines that the page shows below a program and the program does not print."""
    words = [line.split() for line in printed.splitlines()]
    return [line for line in SHOWN[program].splitlines() if line.strip(" .-") and line.split() not in words]


def marked(program):
    return pytest.param(program, marks=[pytest.mark.slow] * ("coord_check(" in program))


@pytest.mark.parametrize("program", [marked(p) for p in PROGRAMS], ids=lambda p: p.splitlines()[-1])
def test_every_block_runs_alone_and_prints_what_the_page_shows(program, files, capsys):
    # A check has the page's widths, and fewer layers.
    run(program.replace("depths=(4, 16), say=print", "widths=(128, 512), depths=(4, 6), say=print"))
    if program in SHOWN:
        assert not lines_shown(program, capsys.readouterr().out)
