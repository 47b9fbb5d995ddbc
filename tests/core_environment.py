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

import jax.numpy as jnp

import depthmup_flax as dm

ROOMS = ("rule", "networks", "auditing", "frameworks", "check", "nn", "models", "util")
FROM_EXTRAS = ("grain", "ml_collections", "sklearn", "PIL", "tensorboardX", "matplotlib", "torch", "torchax")


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


def coordinate_check():
    """The report on a small network."""
    x, rule = jnp.ones((4, 8)), dm.get_parametrization()

    def build(width, depth):
        model = dm.ResMLP(3, width=width, depth=depth, base_width=16, base_depth=2, rule=rule)
        info = dm.audit(model, model.base(), x).info
        return dm.checked_network(model, x, info=info, optimizer=dm.adamw(1e-3, info, rule))

    widths, labels = (16, 32, 64), jnp.arange(4) % 3
    return dm.coord_check(build, labels, rule=rule, width=16, depth=2, widths=widths, steps=1, seeds=2)


def courses():
    """Records of a loop of one's own."""
    columns = {"step": [1, 2], "loss": [1.0, 0.5], "parameter/hidden": [1.0, 1.0]}
    return dm.compare_runs(columns, columns)


def commands_say_what_to_install():
    for words in (["train"], ["sweep", "--config=sweeps/digits"], ["check", "--config=digits"]):
        done = subprocess.run(
            [sys.executable, "-m", "depthmup_flax", *words], capture_output=True, text=True, check=False
        )
        assert done.returncode == 2, done.stderr
        assert 'pip install ".[' in done.stderr, done.stderr
        assert done.stderr.count("\n") == 1, done.stderr
        print(done.stderr, end="")


def main():
    present = [name for name in FROM_EXTRAS if importlib.util.find_spec(name)]
    assert not present, f"not an environment with the core alone: it has {', '.join(present)}"
    import_all()
    front_page_example(pathlib.Path(__file__).parents[1])
    assert coordinate_check().quantities
    assert not courses().deviations
    commands_say_what_to_install()
    installed = (f"{name} {importlib.metadata.version(name)}" for name in ("jax", "flax", "optax", "numpy"))
    print(f"The core runs with {', '.join(installed)}.")


if __name__ == "__main__":
    main()
