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

import depthmup_flax as dm

ROOMS = ("rule", "infer", "nn", "models", "coord_check", "papers.theory", "records", "util")
FROM_EXTRAS = ("grain", "ml_collections", "sklearn", "PIL", "tensorboardX", "tqdm", "clu", "matplotlib")


def import_all():
    for room in ROOMS:
        package = importlib.import_module(f"depthmup_flax.{room}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)


def readme_example(root):
    text = (root / "README.md").read_text()
    example = re.search(r"<!-- example -->\n```python\n(.*?)```", text, re.DOTALL).group(1)
    names = {}
    exec(example, names)
    return names


def check_network():
    import jax
    import jax.numpy as jnp

    rule = dm.get_parametrization("depth_mup")

    def build(width, depth):
        return dm.ResMLP(num_classes=3, width=width, depth=depth, base_width=8, base_depth=2, parametrization=rule)

    x, labels = jax.random.normal(jax.random.key(0), (4, 5)), jnp.arange(4) % 3
    report = dm.coord_check.coord_check(build, labels, x, widths=(8, 16, 32), depths=(2, 4, 8), steps=2, seeds=2)
    assert "width" in str(report)


def commands_say_what_to_install():
    for words in (["train"], ["sweep", "--config=sweeps/digits"], ["report", "runs"]):
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
    readme_example(pathlib.Path(__file__).parents[1])
    check_network()
    commands_say_what_to_install()
    installed = (f"{name} {importlib.metadata.version(name)}" for name in ("jax", "flax", "optax", "numpy"))
    print(f"The core runs with {', '.join(installed)}.")


if __name__ == "__main__":
    main()
