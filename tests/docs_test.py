"""The documentation site: its pages, without building it, and its notebooks. ``sphinx -W`` checks the rest."""

import ast
import contextlib
import importlib
import io
import itertools
import json
import os
import pathlib
import re
import sys

import jax.numpy as jnp
import optax
import pytest
from flax import nnx

import depthmup_flax
import depthmup_flax as dm
from depthmup_flax.commands.app import COMMANDS
from depthmup_flax.config.files import path_of

ROOT = pathlib.Path(__file__).parents[1]
DOCS = ROOT / "docs"
sys.path.append(str(DOCS / "_extensions"))
field_sections = importlib.import_module("field_sections")
repository_links = importlib.import_module("repository_links")

PAGES = [*DOCS.glob("*.md"), *DOCS.glob("api/*.md")]
NOTEBOOKS = sorted(DOCS.glob("notebooks/*.ipynb"))
ROOMS = ("auditing", "check", "data", "models", "report")


def blocks(page):
    """Language and text of every fenced block."""
    return re.findall(r"^```([a-z]*)\n(.*?)^```$", (DOCS / page).read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("module", ["depthmup_flax", *(f"depthmup_flax.{room}" for room in ROOMS)])
def test_every_public_name_is_in_the_api_reference(module):
    text = "\n".join(page.read_text() for page in DOCS.glob("api/*.md"))
    documented = {
        name.rpartition(".")[2] for name in re.findall(r"^\.\. \S+:: depthmup_flax\.(\S+)", text, re.MULTILINE)
    }
    assert set(importlib.import_module(module).__all__) - {"__version__"} <= documented


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_links_of_pages_lead_to_files_that_exist(page):
    _, missing = repository_links.rewritten(page.read_text(), page, DOCS, "url", lambda path: False)
    assert not missing


def test_links_to_files_that_are_no_pages_lead_to_the_repository():
    page = DOCS / "input.md"
    code = "```\n[e](../configs)\n```"
    text = f"[a](../configs) [b](sweeps.md#x) [c](https://x.org) ![d](transfer.png)\n{code}\n[f](nothing.md)"
    is_page = lambda path: path.suffix == ".md"
    result, missing = repository_links.rewritten(text, page, DOCS, "https://forge/main", is_page)
    assert result == text.replace("(../configs) ", "(https://forge/main/configs) ")
    assert missing == ["nothing.md"]


@pytest.mark.parametrize(
    ("text", "power"),
    [
        ("h + r^-1/2 branch", "\N{MINUS SIGN}1/2"),
        ("r^(-0.34 ± 0.48).", "\N{MINUS SIGN}0.34 ± 0.48"),
        ("lr ~ FLOPs^1.17 x", "1.17"),
    ],
)
def test_powers_become_superscripts(text, power):
    typography = pytest.importorskip("typography", reason="Sphinx is not installed")
    assert not any(map(typography.with_powers, ("x ^ y", "^(+0.51)", "depth 4 to 64, 2 ^", "a^")))
    before, raised, after = typography.with_powers(text)
    assert (raised.tagname, raised.astext()) == ("superscript", power)
    assert text.startswith(before)
    assert text.endswith(after)


def test_comments_of_fields_are_shown():
    lines = ["What it is."]
    field_sections._on_docstring(None, "class", "Parametrization", depthmup_flax.Parametrization, None, lines)
    section = lines[lines.index("Fields:") :]
    assert any(line.startswith("  alpha: branches are multiplied by a * r^-alpha") for line in section)
    assert any(line.startswith("  gamma0: Divides the output") for line in section)  # a comment above the field


def test_commands_of_pages_exist():
    text = "\n".join(page.read_text() for page in [*PAGES, ROOT / "README.md"])
    for name, arguments in re.findall(r"^depthmup ([a-z-]+)(.*)$", text, re.MULTILINE):
        assert name in COMMANDS
        for config in re.findall(r"--config=([\w/]+)(?= |$)", arguments):
            assert path_of(config)


def sides_of_the_diff(page):
    """The program before and after the README's diff."""
    diff = re.search(r"<!-- diff -->\n```diff\n(.*?)```", page.read_text(), re.DOTALL)
    return ["".join(line[1:] or "\n" for line in diff[1].splitlines(keepends=True) if line[0] != out) for out in "+-"]


def test_readme_and_front_page_have_the_same_diff_of_three_lines_none_of_them_in_the_model():
    before, after = sides_of_the_diff(ROOT / "README.md")
    assert [before, after] == sides_of_the_diff(DOCS / "index.md")
    model = before.partition("\n\nmodel")[0]
    assert after.startswith(model)
    assert len(set(after.splitlines()) - set(before.splitlines())) == 3
    known = {"nnx": nnx, "dm": dm, "optax": optax, "x": jnp.ones((1, 784))}
    small = lambda program: program.replace("1024, 32", "48, 8").replace("64, 4", "16, 4")
    for program in map(small, (before, after)):
        exec(program, scope := dict(known))
    assert scope["audit"].ok


def shown_and_printed(page):
    """What the page shows below each program, and what the program prints."""
    for (language, program), (next_language, shown) in itertools.pairwise(blocks(page)):
        if language == "python":
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(program, page, "exec"), {"__name__": "page"})
            if not next_language:
                yield shown, printed.getvalue()


@pytest.mark.parametrize("page", ["parametrizations.md", "training.md", "sweeps.md"])
def test_programs_of_a_page_print_what_it_shows(page):
    for shown, printed in shown_and_printed(page):
        assert printed == shown


def test_the_sweep_of_the_page_is_a_sweep():
    (program,) = (text for language, text in blocks("sweeps.md") if language == "python")
    scope = {}
    exec(program, scope)
    from depthmup_flax.search.sweep.grid import expand

    assert len(expand(scope["get_config"]())) == 2 * 3 * 7 * 3


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_committed_as_executed(path):
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == [*range(1, len(cells) + 1)]
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert {output["output_type"] for output in outputs} <= {"stream", "display_data"}
    assert all(output.get("name") != "stderr" for output in outputs)
    assert "image/png" in str(outputs)
    assert path.stat().st_size < 300_000
    for cell in cells:
        ast.parse("".join(cell["source"]))


# Less training, and of smaller networks.
SHORTER = {
    "audit_your_model": {"depths=(4, 16)": "depths=(4, 6)"},
    "tune_small_train_large": {
        ": 300,": ": 40,",
        "powers_of_two(-11, -5)": "powers_of_two(-9, -7)",
        "width=128, depth=16": "width=48, depth=5",
        "depths=(16,)": "depths=(6,)",
        "seeds=4": "seeds=2",
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run(path, tmp_path, monkeypatch):
    """Also prints what is committed, numbers aside. Rounding changes what checks and forecasts say."""
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
    text = path.read_text()
    for long, short in SHORTER[path.stem].items():
        assert long in text
        text = text.replace(long, short)
    notebook = nbformat.reads(text, as_version=4)
    before = [printed(cell) for cell in notebook.cells]
    nbclient.NotebookClient(notebook, timeout=1200, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert [steady(printed(cell)) for cell in notebook.cells] == [steady(text) for text in before]


def printed(cell):
    """What a cell prints."""
    outputs = cell.get("outputs", [])
    return "".join(output["text"] for output in outputs if output["output_type"] == "stream")


def steady(text):
    """The words that do not hang on rounding."""
    return words(text)[:8] if text.startswith(("coordinate check", "width  depth", "Best on")) else words(text)


def words(text):
    """The words of a text without numbers, which differ a little between machines."""
    return re.sub(r"[-+\d.^%e ]+", " ", text).split()
