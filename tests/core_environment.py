"""Checks an environment that has the core alone: ``python tests/core_environment.py``, which .ci/run runs in one.

Everything that needs no extra is imported and used; a command says which extra to install.
"""

import importlib
import importlib.metadata
import pathlib
import pkgutil
import re
import subprocess
import sys
import textwrap

from depthmup_flax import check

ROOMS = ("rule", "networks", "auditing", "check", "nn", "models", "util")
FROM_EXTRAS = ("grain", "ml_collections", "sklearn", "PIL", "tensorboardX", "matplotlib")


def import_all():
    for room in ROOMS:
        package = importlib.import_module(f"depthmup_flax.{room}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)


def front_page_example(root):
    text = (root / "docs" / "index.md").read_text()
    example = re.search(r"<!-- example -->\n```python\n(.*?)```", text, re.DOTALL).group(1)
    names = {}
    exec(example, names)
    return names


def docstring_example(module):
    code = textwrap.dedent(module.__doc__.split("::\n", 1)[1])
    names = {}
    exec(code, names)
    return names


def commands_say_what_to_install():
    for words in (["train"], ["sweep", "--config=sweeps/digits"], ["check", "--config=digits"]):
        done = subprocess.run(
            [sys.executable, "-m", "depthmup_flax", *words], capture_output=True, text=True, check=False
        )
        assert done.returncode == 2, done.stderr
        assert 'pip install "depthmup-flax[' in done.stderr, done.stderr
        assert done.stderr.count("\n") == 1, done.stderr
        print(done.stderr, end="")


def main():
    present = [name for name in FROM_EXTRAS if importlib.util.find_spec(name)]
    assert not present, f"not an environment with the core alone: it has {', '.join(present)}"
    import_all()
    front_page_example(pathlib.Path(__file__).parents[1])
    report = docstring_example(check)["report"]
    assert report.ok is not None
    commands_say_what_to_install()
    installed = (f"{name} {importlib.metadata.version(name)}" for name in ("jax", "flax", "optax", "numpy"))
    print(f"The core runs with {', '.join(installed)}.")


if __name__ == "__main__":
    main()
