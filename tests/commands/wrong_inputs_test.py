"""Wrong inputs of every command: one sentence that names the field or flag, exit code 2, and no file written."""

import os
import shlex
import subprocess
import sys

import planted_sweeps
import pytest
from processes import ROOT, run_command, run_lines

from depthmup_flax.util.errors import BAD_INPUT

_HEAD = "import depthmup_flax as dm\nfrom depthmup_flax.config import default_config\n\n\ndef get_config():\n    "
_RUN = _HEAD + "config = default_config()\n    {}\n    return config\n"
_SWEEP = _HEAD + "return dm.sweep_config(default_config(), {}, figure='a', title='A', scale='cpu')\n"
FILES = {  # below {files}
    "syntax.py": "def get_config()\n    return 1\n",
    "undefined.py": _RUN.format("config.seed = foo"),
    "parent.py": "from depthmup_flax.config import from_file\n\n\ndef get_config():\n"
    "    return from_file(__file__.replace('parent', 'undefined'))\n",
    "exits.py": "import sys\n\nsys.exit('bye')\n",
    "without.py": "config = 3\n",
    "none.py": "def get_config():\n    pass\n",
    "needs_argument.py": "def get_config(size):\n    return size\n",
    "section.py": _RUN.format("config.optimzer.name = 'sgd'"),
    "field.py": _RUN.format("config.optimizer.learning_rat = 1.0"),
    "model.py": _HEAD + "return default_config('res_mpl')\n",
    "argument.py": _RUN.format("config.optimizer.kwargs.betta = 0.9"),
    "axis.py": _SWEEP.format("{'a': {'model.dpth': (4, 8)}}"),
    "no_grids.py": _SWEEP.format("{}"),
    "a_file": "of the user",
    "other/config.json": '{"lr": 0.1}',
    "empty/.keep": "",
    "run/workdir.json": '{"kind": "run"}',
    "run/config.json": "{}",
}
# Command -> lines and what their sentence names. {digits} is --config=digits, {files} a directory of `FILES`.
CASES = {
    "train": [
        ("--config={files}/without.py", "get_config()"),
        ("--config={files}/none.py", "returns None"),
        ("--config={files}/needs_argument.py", "missing a required argument"),
        ("--config={files}/field.py", "did you mean 'optimizer.learning_rate'?"),
        ("--config={files}/model.py", "did you mean 'res_mlp'?"),
        ("--config={files}/argument.py", "optimizer.kwargs"),
        ("--config={files}/nothing.py", "nothing.py"),
        ("--config={files}", "{files}"),
        (f"--config={'n' * 300}.py", "cannot be read"),
        ("{digits} --config.scale=cpu", "too many positional arguments"),
        ("--config=digist", "did you mean 'digits'?"),
        ("--config", "--config has no value"),
        ("--config=sweeps/digits", "depthmup sweep"),
        ("{digits} --wrokdir=x", "did you mean '--workdir'?"),
        ("{digits} --learning_rate=3", "--config.optimizer.learning_rate"),
        ("{digits} --workdir", "--workdir"),
        ("{digits} --overwrite=maybe", "--overwrite"),
        ("digits", "--config=digits"),
        ("{digits} --workdir={files}/a_file", "{files}/a_file"),
        ("{gpt} --config.data.name=digits", "model.name is 'gpt'"),
        ("{gpt} --config.data.name=text:gs://bucket/a.txt", "read from disks"),
        ("{digits} --config.data.name=folder:gs://bucket/images", "read from disks"),
        ("{gpt} --config.train.epochs=2", "train.epochs is 2"),
    ],
    "sweep": [
        ("{digits}", "depthmup train"),
        ("--config=sweeps/digits:huge", "config.scale is 'huge'"),
        ("--config={files}/axis.py", "model.dpth"),
        ("--config={files}/no_grids.py", "config.x"),
        ("{sweep} --shard=4/4", "--shard: 4/4 is no part: use 0/4 to 3/4"),
        ("{sweep} --shard=0/0", "--shard: 0/0 is no part: use 0/1 to 0/1"),
        ("{sweep} --config.base.mesh.model=2", "'base.mesh.model': mesh has data, fsdp."),
        ("{sweep} --lanes=many", "--lanes"),
        ("{sweep} --seeds=8", "--config.grids.depths.seed"),
        ("{sweep} --model.width=8", "--config.base.model.width"),
        ("{sweep} --config.seed=8", "grids.depths.seed"),
        ("{sweep} --config.grids.depths.seed='(-1,)'", "seed is -1"),
        ("{sweep} --config.x=model.dpth", "config.x"),
        ("{sweep} --config.base.optimizer.kwargs.b1=2.0", "optimizer.kwargs.b1"),
        ("{sweep} --workdir={files}/run", "{files}/run"),
    ],
    "tune": [
        ("{sweep}", "depthmup sweep"),
        ("{digits} --proxy.width=256", "proxy.width"),
        ("{digits} --proxy.depth=-1", "proxy.depth"),
        ("{digits} --proxy.steps=-3", "proxy.steps"),
        ("{digits} --target.steps=0", "target.steps"),
        ("{digits} --target.batch_size=99999", "target.batch_size"),
        ("{digits} --tune=gamma0=2:1", "gamma0 is 2:1"),
        ("{digits} --tune=gamma0 --trials=2", "trials"),
        ("{digits} --octaves=abc", "--octaves"),
        ("{digits} --objective=best", "--objective"),
        ("{digits} --compare=spp", "compare has 'spp'"),
        ("{digits} --seeds=0", "seeds is 0"),
        ("{digits} --config.parametrization.preset=sp_sqrt_depth", "parametrization.preset"),
    ],
    "forecast": [
        ("{sweep}", "depthmup sweep"),
        ("{digits} --budget=2", "budget is 2"),
        ("{digits} --widths=a,b", "--widths"),
        ("{digits} --config.parametrization.preset=sp", "parametrization.preset"),
        ("--check={files}/run", "--workdir"),
    ],
    "check": [
        ("", "--config"),
        ("{sweep}", "depthmup sweep"),
        ("{digits} --widths=abc", "--widths"),
        ("{digits} --widths=64", "widths"),
        ("{digits} --config.model.depth=24", "model.depth"),
        ("{digits} --seeds=1", "seeds is 1"),
        ("{digits} --batch_size=99999", "batch_size"),
        ("{digits} --workdir={files}/run", "{files}/run"),
    ],
    "plan": [
        ("", "--config is not set"),
        ("{digits} --topology=v99:2x2", "--topology is 'v99:2x2'"),
        ("{digits} --lanes=4", "--lanes"),
        ("{digits} --config.mesh.data=3", "whose product is the number of devices, 1"),
        ("{sweep} --lanes=few", "--lanes"),
    ],
    "ladder": [("runs.csv --width=2048", "did you mean '--target.width'?")],
    "report": [
        ("{files}/nothing", "{files}/nothing"),
        ("{files}/a_file", "{files}/a_file"),
        ("{files}/empty", "{files}/empty"),
        ("{files}/other", "{files}/other"),
        ("{files}/planted {files}/run", "{files}/planted"),
        ("{files}/planted --out={files}/a_file", "{files}/a_file"),
        ("{files}/planted --tolerance=2", "tolerance is 2"),
        ("{files}/planted --loss=foo", "--loss"),
    ],
    "config": [
        ("digts", "did you mean 'digits'?"),
        ("digits modl", "did you mean 'model'?"),
        ("digits model data", "'data'"),
    ],
}
FIELDS = [  # of train --config=digits
    ("seed=1.5", "seed is '1.5'"),
    ("model.depth=abc", "model.depth is 'abc'"),
    ("model.depth", "--config.model.depth"),
    ("model.depth=0", "model.depth is 0"),
    ("model.dpth=3", "did you mean 'model.depth'?"),
    ("model=3", "model is a section"),
    ("model.name=vitt", "model.name is 'vitt'"),
    ("model.dtype=int32", "model.dtype is 'int32'"),
    ("optimizer.name=SGD", "optimizer.name is 'SGD'"),
    ("optimizer.learning_rate=1,5", "optimizer.learning_rate is '1,5'"),
    ("optimizer.learning_rate=nan", "optimizer.learning_rate is nan"),
    ("optimizer.warmup_steps=99999", "optimizer.warmup_steps is 99999"),
    ("optimizer.frozen=stm", "optimizer.frozen has 'stm'"),
    ("optimizer.kwargs.b3=0.9", "optimizer.kwargs.b3"),
    ("parametrization.preset=depthmup", "parametrization.preset is 'depthmup'"),
    ("parametrization.gamma0=0", "parametrization.gamma0 is 0"),
    ("mesh.fsdp=7", "mesh is"),
    ("mesh.model=2", "'mesh.model': mesh has data, fsdp."),
    ("optimizer.xyz.b1=2", "did you mean 'optimizer.kwargs.b1'?"),
    ("xyz.qq=2", "'xyz.qq': config has data, hyper, "),
    ("train.batch_size=9999", "train.batch_size is 9999"),
    ("train.epochs=0", "train.epochs and train.steps"),
    ("train.keep_checkpoints=0", "train.keep_checkpoints is 0"),
    ("data.name=cifar10", "data.name is 'cifar10'"),
    ("data.name=folder:{files}/nothing", "{files}/nothing"),
    ("data.augment=cfar", "data.augment is 'cfar'"),
]
CASES["train"] += [(f"{{digits}} --config.{field}", name) for field, name in FIELDS]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    directory = tmp_path_factory.mktemp("files")
    for name, content in FILES.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    sweep = planted_sweeps.sweep_of(planted_sweeps.parabola, {planted_sweeps.X: [2**-9, 2**-8, 2**-7], "seed": [0, 1]})
    planted_sweeps.write(directory / "planted", sweep)
    return directory


def words_of(line, files):
    sweep = "--config=sweeps/digits --config.scale=smoke"
    return shlex.split(line.format(files=files, digits="--config=digits", sweep=sweep, gpt="--config=shakespeare_gpt"))


@pytest.mark.parametrize("command", CASES)
def test_a_wrong_input_is_answered_by_one_sentence_that_names_it(command, files, tmp_path):
    lines = [[command, *words_of(line, files)] for line, _ in CASES[command]]
    answers = run_lines(lines, cwd=tmp_path, watched=[files])
    wrong = {
        line: answer
        for (line, name), answer in zip(CASES[command], answers, strict=True)
        if not answer.refuses or name.replace("{files}", str(files)) not in answer.error
    }
    assert not wrong, "\n".join(f"{line}\n   {answer}" for line, answer in wrong.items())


def test_a_wrong_input_ends_a_process_of_its_own_with_code_2(files, tmp_path):
    done = run_command("-m", "depthmup_flax", *words_of("train {digits} --config.model.depth=0", files), cwd=tmp_path)
    assert done.returncode == BAD_INPUT, done.stdout + done.stderr
    assert done.stderr.startswith("error: model.depth is 0: ")
    assert not list(tmp_path.iterdir())


def test_a_platform_without_devices_is_refused(tmp_path):
    command = [sys.executable, "-m", "depthmup_flax", "train", "--config=digits", "--config.train.steps=1"]
    environment = {**os.environ, "JAX_PLATFORMS": "rocm", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == BAD_INPUT, done.stdout + done.stderr
    assert done.stderr.splitlines()[-1].startswith("error: JAX_PLATFORMS is 'rocm'")


@pytest.mark.parametrize(("word", "meant"), [("trian", "'train'"), ("digits", "--config=digits"), ("--x", "depthmup")])
def test_a_word_that_is_no_command_is_refused(word, meant):
    (answer,) = run_lines([[word]])
    assert answer.refuses
    assert meant in answer.error


def test_a_config_file_that_fails_shows_its_own_lines_of_the_traceback(files, tmp_path):
    named = {
        "syntax": 'syntax.py", line 1',
        "parent": 'undefined.py", line 7',
        "exits": 'exits.py", line 3',
        "section": "optimzer",
    }
    lines = [["train", f"--config={files}/{name}.py"] for name in named]
    for (name, text), answer in zip(named.items(), run_lines(lines, cwd=tmp_path, watched=[files]), strict=True):
        assert answer.code == 1
        assert answer.error.startswith(f"error: config {files}/{name}.py fails.\n")
        assert text in answer.error
        assert "ml_collections/" not in answer.error
