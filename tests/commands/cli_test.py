"""What a user types and sees: the command line, the first pages, and what importing the package costs."""

import importlib.util
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image
from processes import ROOT, run_command

from depthmup_flax.config.fields import make_parametrization, validate
from depthmup_flax.models import create_model
from depthmup_flax.trainer.engine.from_config import build
from depthmup_flax.trainer.loop import train_and_evaluate


def run(*command, env=None):
    return subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=False, env=env)


def test_importing_the_package_imports_no_tensorflow_and_starts_no_device():
    code = """
import sys, depthmup_flax
assert "flax.nnx" not in sys.modules  # a tenth of a second that most do not need
import depthmup_flax.trainer.loop
from jax._src import xla_bridge
heavy = [m for m in ("tensorflow", "tensorflow_datasets", "grain", "sklearn", "PIL", "torch") if m in sys.modules]
assert not heavy, heavy
assert not xla_bridge._backends, xla_bridge._backends
"""
    done = run("-c", code)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_importing_and_calling_the_library_changes_no_logger_and_no_setting_of_jax(tmp_path):
    """Loggers that exist with the dependencies alone stay as they are, and new ones of ours are plain."""
    code = f"""
import importlib, logging, os, pkgutil
import absl.flags, flax.linen, grain, jax, ml_collections, optax, orbax.checkpoint, sklearn.datasets
import tensorboardX
from orbax.checkpoint import checkpoint_managers

def state():
    loggers = {{name: x for name, x in logging.root.manager.loggerDict.items() if isinstance(x, logging.Logger)}}
    described = {{
        name: (x.level, list(x.filters), list(x.handlers), x.propagate, x.disabled)
        for name, x in {{**loggers, "": logging.root}}.items()
    }}
    return described, dict(jax.config.values)

def require_unchanged(what):
    loggers, settings = state()
    plain = (logging.NOTSET, [], [], True, False)
    changed = [n for n, x in loggers.items() if x != before[0].get(n, plain if n.startswith("depthmup") else x)]
    changed += [name for name, value in before[1].items() if value != settings[name]]  # new ones come with submodules
    assert not changed, (what, changed)

before = state()
import depthmup_flax
modules = [module.name for module in pkgutil.walk_packages(depthmup_flax.__path__, "depthmup_flax.")]
for name in modules:
    if not name.endswith("__main__"):
        importlib.import_module(name)
require_unchanged("import")
from depthmup_flax.config import default_config
from depthmup_flax.trainer.loop import train_and_evaluate
config = default_config()
config.model.update(width=8, depth=2)
config.train.update(batch_size=8, steps=3, checkpoint_every=1)
assert train_and_evaluate(config, {str(tmp_path)!r})["status"] == "completed"
require_unchanged("train_and_evaluate")
"""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    done = run("-c", code, env=environment | {"JAX_PLATFORMS": "cpu", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"})
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_example_of_the_front_page_runs_and_prints_the_audit(tmp_path):
    text = (ROOT / "docs" / "index.md").read_text()
    example = tmp_path / "example.py"
    example.write_text(re.search(r"<!-- example -->\n```python\n(.*?)```", text, re.DOTALL).group(1))
    done = run_command(example)
    assert done.returncode == 0, done.stderr
    # m = 4, r = 3
    row = r"layers/\*/kernel +256x256 +hidden\+branch +1 +1 +3\^-alpha +a 3\^-alpha"
    assert re.search(row, done.stdout), done.stdout
    assert re.search(r"head/kernel +256x10 +output +1 +1 +1/4 +1/4", done.stdout), done.stdout


def test_contributors_read_of_every_room_and_every_file_beside_them():
    block = (ROOT / "CONTRIBUTING.md").read_text().split("## Files")[1].split("```")[1]
    listed = set()
    for line in block.strip("\n").splitlines():
        indent, names = re.match(r"( *)(\S+(?: \S+)*)(?:  |$)", line).groups()
        listed |= {f"depthmup_flax/{name}" if indent else name for name in names.split()}
    for name in listed:
        assert (ROOT / name).is_dir() if name.endswith("/") else (ROOT / name).is_file(), name
    package = ROOT / "depthmup_flax"
    rooms = {f"depthmup_flax/{path.parent.name}/" for path in package.glob("*/__init__.py")}
    files = {f"depthmup_flax/{path.name}" for path in package.glob("*.py") if path.name != "__init__.py"}
    assert listed >= rooms | files | {"train.py", "tests/", "configs/", "docs/", "examples/", "launch/", "benchmarks/"}


def test_print_params_shows_the_table_of_the_default_config_and_trains_nothing(tmp_path):
    done = run_command(ROOT / "train.py", "--print_params", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("--config=digits (the default; depthmup config lists the others)\n")
    assert "blocks/branch/dense_0/kernel" in done.stdout
    assert "parameters" in done.stdout.splitlines()[-1]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", sorted(path.stem for path in (ROOT / "configs").glob("*.py")))
def test_every_config_is_valid_and_documents_its_command(name):
    module = config_module(name)
    config = module.get_config()
    validate(config)
    fields = {k: v for k, v in config.model.items() if k != "name"}
    create_model(config.model.name, num_classes=10, rule=make_parametrization(config), **fields)
    assert f"depthmup train --config={name} " in module.__doc__


@pytest.mark.slow
@pytest.mark.parametrize("name", ["imagenet_resnet18", "imagenet_vit"])
def test_the_imagenet_configs_train_on_files_in_imagenets_own_layout(name, tmp_path):
    """Class folders of JPEGs of many sizes, one of them gray."""
    rng = np.random.default_rng(0)

    def write(path, mode="RGB"):
        path.parent.mkdir(parents=True, exist_ok=True)
        height, width = rng.integers(40, 90, 2)
        Image.fromarray(rng.integers(0, 255, (height, width, 3), np.uint8)).convert(mode).save(path, "JPEG")

    data = tmp_path / "imagenet"
    for wnid in ("n01440764", "n02102040"):
        for i in range(6):
            write(data / f"train/{wnid}/{wnid}_{i}.JPEG", "L" if i == 0 else "RGB")
        for i in range(2):
            write(data / f"val/{wnid}/ILSVRC2012_val_{i:08}.JPEG")
    config = config_module(name).get_config()
    config.data.update(name=f"folder:{data}", image_size=32, placement="stream")
    config.model.update(width=8, depth=4, base_width=8)
    config.optimizer.warmup_steps = 0
    config.train.update(batch_size=4, steps=2, epochs=0.0)
    dataset = build(config).dataset
    assert (dataset.num_classes, len(dataset.train), len(dataset.test)) == (2, 12, 4)
    result = train_and_evaluate(config, tmp_path / "run")
    assert (result["status"], result["steps"]) == ("completed", 2)
    assert 4 * result["test_accuracy"] in range(5)  # all images of val/, each once


def config_module(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "configs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("words", [[], ["--version"], ["ladder", "--help"], ["config"]])
def test_a_command_whose_reader_has_gone_ends_quietly(words):
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "depthmup_flax", *words]
    done = subprocess.run(command, cwd=ROOT, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert done.stderr == ""
    assert done.returncode == 141 or "--help" in words  # argparse writes on
