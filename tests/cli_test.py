"""What a user types and sees: the command line, the README, and what importing the package costs."""

import importlib.util
import re
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image
from processes import ROOT, run_command

from depthmup_flax.models import create_model
from depthmup_flax.training.config import make_parametrization, validate
from depthmup_flax.training.loop import train_and_evaluate


def run(*command):
    return subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=False)


def test_importing_the_package_imports_no_tensorflow_and_starts_no_device():
    code = """
import sys, depthmup_flax
assert "flax.nnx" not in sys.modules  # a tenth of a second that most do not need
import depthmup_flax.training.loop
from jax._src import xla_bridge
heavy = [m for m in ("tensorflow", "tensorflow_datasets", "grain", "sklearn", "PIL", "torch") if m in sys.modules]
assert not heavy, heavy
assert not xla_bridge._backends, xla_bridge._backends
"""
    done = run("-c", code)
    assert done.returncode == 0, done.stderr


def test_the_readme_example_runs_and_prints_the_table():
    text = (ROOT / "README.md").read_text()
    code = re.search(r"<!-- example -->\n```python\n(.*?)```", text, re.DOTALL).group(1)
    done = run("-c", code)
    assert done.returncode == 0, done.stderr
    # m = 4, r = 4: forward 1/sqrt(r), Adam rate 1/(m sqrt(r))
    assert re.search(r"Dense_1/kernel +256x256 +hidden\+branch +\? +0.5 +0.125", done.stdout), done.stdout
    assert re.search(r"Readout_0/kernel +256x10 +output +0.125 +0.25 +1 ", done.stdout), done.stdout


def test_every_file_in_the_readme_exists():
    block = (ROOT / "README.md").read_text().split("## Files")[1].split("```")[1]
    for name in re.findall(r"(?<![\w>])\w+\.py\b", block):
        assert list(ROOT.glob(name)) or list((ROOT / "depthmup_flax").glob(name)), name


def test_print_params_shows_the_table_and_trains_nothing(tmp_path):
    done = run_command("train.py", "--config=configs/digits.py", "--print_params", f"--workdir={tmp_path / 'run'}")
    assert done.returncode == 0, done.stderr
    assert "blocks/branch/dense_0/kernel" in done.stdout
    assert "parameters" in done.stdout.splitlines()[-1]
    assert not (tmp_path / "run").exists()


def test_help_quotes_the_classification():
    text = run("train.py", "--help").stdout
    assert re.search(r"depth_mup +alpha 0.5 +gamma 0.5 .*feature diversity 0.5", text)
    assert re.search(r"sp +alpha 0 .*unstable at initialization", text)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config.model.dpth=3"], "config has no field 'dpth'. Did you mean \"depth\""),
        (["--config.modl.depth=3"], "config has no field 'modl'"),
        (["--config.model.depth=many"], "flag --config.model.depth=many"),
        (["--config.model.depth=0"], "model.depth is 0: use a positive whole number"),
        (["--config=configs/nothing.py"], "--config=configs/nothing.py cannot be read"),
        (["--cofnig=x"], "Unknown command line flag 'cofnig'"),
        (["depth=3"], "unexpected argument 'depth=3'"),
        (["--config.optimizer.kwargs.momentum=0.9"], "optimizer.kwargs of 'adam'"),
        (["--config.train.batch_size=9999"], "batch_size"),
        (["--config.data.name=tfds:nothing_like_this"], "nothing_like_this"),
    ],
)
def test_bad_command_lines_end_with_one_sentence_and_code_2(arguments, message, tmp_path):
    done = run_command("train.py", *arguments, f"--workdir={tmp_path / 'run'}")
    assert done.returncode == 2, done.stdout + done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert not (tmp_path / "run").exists()


def test_a_missing_workdir_is_asked_for():
    done = run_command("train.py", "--config=configs/digits.py")
    assert done.returncode == 2
    assert "error: --workdir is not set" in done.stderr


def test_a_batch_that_does_not_divide_over_the_devices_is_refused(tmp_path):
    code = f"""
import os, sys
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"
sys.argv = ["train.py", "--workdir={tmp_path / "run"}", "--config.train.batch_size=20"]
import runpy
runpy.run_path("train.py", run_name="__main__")
"""
    done = run("-c", code)
    assert done.returncode == 2, done.stderr
    assert "train.batch_size is 20: it must be a multiple of 8 (8 devices). Use 16 or 24." in done.stderr


@pytest.mark.parametrize("name", sorted(path.stem for path in (ROOT / "configs").glob("*.py")))
def test_every_config_is_valid_documents_its_command_and_is_in_the_readme(name):
    module = config_module(name)
    config = module.get_config()
    validate(config)
    fields = {k: v for k, v in config.model.items() if k != "name"}
    create_model(config.model.name, num_classes=10, parametrization=make_parametrization(config), **fields)
    assert f"--config=configs/{name}.py" in module.__doc__
    assert f"configs/{name}.py" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("name", ["imagenet_resnet18", "imagenet_vit"])
def test_the_imagenet_configs_train_on_files_in_imagenets_own_layout(name, tmp_path):
    """Class folders of JPEGs of many sizes, one of them gray, and a flat val/ with Kaggle's list of its classes."""
    rng = np.random.default_rng(0)

    def write(path, mode="RGB"):
        path.parent.mkdir(parents=True, exist_ok=True)
        height, width = rng.integers(40, 90, 2)
        Image.fromarray(rng.integers(0, 255, (height, width, 3), np.uint8)).convert(mode).save(path, "JPEG")

    data, lines = tmp_path / "imagenet", ["ImageId,PredictionString"]
    for wnid in ("n01440764", "n02102040"):
        for i in range(6):
            write(data / f"train/{wnid}/{wnid}_{i}.JPEG", "L" if i == 0 else "RGB")
    for i in range(1, 5):
        write(data / f"val/ILSVRC2012_val_{i:08}.JPEG")
        lines.append(f"ILSVRC2012_val_{i:08},{('n01440764', 'n02102040')[i % 2]} 1 2 3 4 ")
    (data / "LOC_val_solution.csv").write_text("\n".join(lines))
    config = config_module(name).get_config()
    config.data.update(name=f"folder:{data}", image_size=32, placement="stream")
    config.model.update(width=8, depth=4, base_width=8)
    config.optimizer.warmup_steps = 0
    config.train.update(batch_size=4, steps=2, epochs=0.0)
    result = train_and_evaluate(config, tmp_path / "run")
    assert result["status"] == "completed"
    assert result["test_loss"] > 0


def config_module(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "configs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
