"""Wrong inputs of every command: one sentence with the value and what to do, exit code 2, and no file written."""

import pathlib
import shlex
import sys

import planted_sweeps
import processes
import pytest
from processes import ROOT, run_command, run_lines

from depthmup_flax.util.errors import BAD_INPUT, closest

_IMPORTS = "from depthmup_flax.config import default_config\n\n\ndef get_config():\n    "
_SWEEP = "import depthmup_flax as s\n" + _IMPORTS
# Below {files}; the line of the error is that of the comment.
FILES = {
    "syntax.py": "def get_config()\n    return 1\n",
    "indent.py": "def get_config():\nreturn 1\n",
    "null.py": "x = 1\0\n",
    "import.py": "import math\nimport no_such_package\n",
    "raises_at_import.py": "x = 1 / 0\n",
    "undefined.py": _IMPORTS + "config = default_config()\n    config.seed = foo\n    return config\n",
    "several_lines.py": "def get_config():\n    raise RuntimeError('one\\ntwo')\n",
    "no_file.py": "def get_config():\n    return open('/no/such/file')\n",
    "deep.py": "def get_config():\n    return get_config()\n",
    "exits.py": "import sys\n\nsys.exit('bye')\n",
    "without.py": "config = 3\n",
    "none.py": "def get_config():\n    pass\n",
    "dict.py": "def get_config():\n    return {'seed': 1}\n",
    "needs_argument.py": "def get_config(size):\n    return size\n",
    "section.py": _IMPORTS + "config = default_config()\n    config.optimzer.name = 'sgd'\n    return config\n",
    "field.py": _IMPORTS + "config = default_config()\n    config.optimizer.learning_rat = 1.0\n    return config\n",
    "type.py": _IMPORTS + "config = default_config()\n    config.train.batch_size = 'many'\n    return config\n",
    "model.py": _IMPORTS + "return default_config('res_mpl')\n",
    "argument.py": _IMPORTS + "config = default_config()\n    config.optimizer.kwargs.betta = 0.9\n    return config\n",
    "parent.py": "from depthmup_flax.config import from_file\n\n\ndef get_config():\n"
    "    return from_file(__file__.replace('parent', 'undefined'))\n",
    "axis.py": _SWEEP + "grids = {'a': {'model.dpth': (4, 8)}}\n"
    "    return s.sweep_config(default_config(), grids, figure='a', title='A', scale='cpu')\n",
    "no_grids.py": _SWEEP + "return s.sweep_config(default_config(), {}, figure='a', title='A', scale='cpu')\n",
    "config.json": '{"seed": 1}',
    "latin.txt": "caf\xe9 ".encode("latin-1") * 99,
    "short.txt": "abc",
    "images/train/a/x.jpg": "no image",
    "images/train/b/x.jpg": "no image",
    "images/test/a/x.jpg": "no image",
    "images/test/b/x.jpg": "no image",
    "a_file": "of the user",
    "other/config.json": '{"lr": 0.1}',
    "table.csv": "1,2",
    "empty/.keep": "",
    "run/workdir.json": '{"kind": "run"}',
    "run/config.json": "{}",
}

# The command line, and parts of the sentence, with ... between.
# {digits} is --config=configs/digits.py, {files} a directory of `FILES`.
CONFIG_FILES = [
    ("train --config={files}/syntax.py", "syntax.py line 1: SyntaxError: expected ':'."),
    ("train --config={files}/indent.py", "indent.py line 2: IndentationError: "),
    ("train --config={files}/null.py", "Error: source code string cannot contain null bytes."),
    ("train --config={files}/import.py", "import.py line 2: ModuleNotFoundError: No module named 'no_such_package'. "),
    ("train --config={files}/raises_at_import.py", "raises_at_import.py line 1: ZeroDivisionError: division by zero. "),
    ("train --config={files}/undefined.py", "undefined.py line 6: NameError: name 'foo' is not defined. --traceback"),
    ("train --config={files}/several_lines.py", "several_lines.py line 2: RuntimeError: one two. "),
    ("train --config={files}/no_file.py", "no_file.py line 2: FileNotFoundError: [Errno 2] No such file"),
    ("train --config={files}/deep.py", "deep.py line 2: RecursionError: "),
    ("train --config={files}/exits.py", "exits.py line 3: SystemExit: bye. "),
    ("train --config={files}/without.py", "without.py has no function get_config()"),
    ("train --config={files}/config.json", "config.json is no Python file: name a shipped config"),
    ("train --config={files}/none.py", "none.py returns None (is its return missing?): return a config, such as"),
    ("train --config={files}/dict.py", "dict.py returns a value of type dict: return a config, such as"),
    ("train --config={files}/needs_argument.py", "get_config(size) of {files}/needs_argument.py needs an argument: "),
    ("train {digits}:cpu", "digits.py does not take 'cpu': this config has no scale; remove --config.scale, or the"),
    ("train {digits} --config.scale=cpu", "digits.py does not take 'cpu': this config has no scale; "),
    ("train --config={files}/section.py", "section.py line 6: config has no field 'optimzer'. Did you mean \"optimi"),
    ("train --config={files}/field.py", "config has no field 'optimizer.learning_rat' ... 'optimizer.learning_rate'"),
    ("train --config={files}/type.py", "type.py line 6: TypeError: Could not override field 'batch_size'"),
    ("train --config={files}/model.py", "model.py line 5: model.name is 'res_mpl': did you mean 'res_mlp'?"),
    ("train --config={files}/argument.py", "optimizer.kwargs of 'adam': scale_by_adam() got an unexpected keyword"),
    ("train --config={files}/parent.py", "undefined.py line 6: NameError: name 'foo' is not defined. "),
    ("train --config={files}/nothing.py", "--config={files}/nothing.py cannot be read: name a shipped config, such as"),
    ("train --config={files}", "--config={files} is neither a file nor a shipped config: "),
    ("train --config=configs/digits.py", "--config=configs/digits.py cannot be read: use --config=digits."),
    ("train --config.scale=cpu", "digits.py does not take 'cpu': this config has no scale; remove --config.scale"),
    ("train --config=digist", "--config=digist is neither a file nor a shipped config: did you mean 'digits'?"),
    ("train --config=", "--config= is neither a file nor a shipped config: depthmup config lists them."),
    ("train --config", "--config has no value"),
    (
        "train {digits} --config=other.py",
        "--config is given twice, as '{configs}/digits.py' and 'other.py'",
    ),
    ("train --config={configs}/sweeps/digits.py", "this config is a sweep's: run it with "),
    ("sweep {digits}", "this config is a run's: run it with depthmup train"),
    ("sweep --config={configs}/sweeps/digits.py:huge", "config.scale is 'huge'"),
    ("sweep --config={configs}/sweeps/digits.py --config.scale=huge", "config.scale is 'huge'"),
    ("sweep --config={configs}/sweeps/digits.py --config.scale huge", "config.scale is 'huge'"),
    ("sweep {digits} --config.scale=cpu", "this config has no scale"),
    ("sweep --config={configs}/sweeps/digits.py:cpu --config.scale=cpu", "has a scale already: remove --config.scale="),
    ("sweep --config={files}/axis.py", "config.grids.a.model.dpth is not a field of the base config"),
    ("sweep --config={files}/no_grids.py", "config.x is"),
    ("tune --config={configs}/sweeps/digits.py", "this config is a sweep's: run it with "),
    ("check --config={configs}/sweeps/digits.py", "this config is a sweep's: run it with "),
    ("check --config={files}/none.py", "none.py returns None (is its return missing?): return a config, such as"),
    ("plan --config={files}/syntax.py", "syntax.py line 1: SyntaxError: expected ':'."),
]
FIELDS = [
    ("seed=1.5", "--config.seed is '1.5'"),
    ("seed=-1", "seed is -1"),
    ("seed=99999999999", "seed is 99999999999"),
    ("model.depth=abc", "--config.model.depth is 'abc'"),
    ("model.depth=", "--config.model.depth is ''"),
    ("model.depth", "--config.model.depth has no value"),
    ("model.depth=0", "model.depth is 0"),
    ("model.dpth=3", "config has no field 'model.dpth' ... 'model.depth'"),
    ("modl.depth=3", "config has no field 'modl.depth' ... 'model.depth'"),
    ("depth=3", "config has no field 'depth' ... 'model.depth'"),
    ("model=3", "--config.model is a section"),
    ("model.depth.x=3", "config has no field 'model.depth.x'"),
    ("optimizer.lr=0.1", "config has no field 'optimizer.lr'"),
    ("model.name=gpt", "model.name is 'gpt', which reads text, but data.name is 'digits'"),
    ("model.name=模型", "model.name is '模型'"),
    ("model.scan=maybe", "model.scan is 'maybe'"),
    ("model.norm=layr", "model.norm is 'layr' ... 'layer'"),
    ("model.dtype=int32", "model.dtype is 'int32'"),
    ("model.sigma=nan", "model.sigma is nan"),
    ("model.sigma=-1", "model.sigma is -1.0"),
    ("model.base_width=-1", "model.base_width is -1"),
    ("optimizer.name=adm", "optimizer.name is 'adm' ... 'adam'"),
    ("optimizer.name=SGD", "optimizer.name is 'SGD' ... 'sgd'"),
    ("optimizer.name=", "optimizer.name is ''"),
    ("optimizer.name=lbfgs", "optimizer.name is 'lbfgs'"),
    (
        "optimizer.learning_rate=1,5",
        "learning_rate is '1,5'",
    ),
    ("optimizer.learning_rate=0", "optimizer.learning_rate is 0.0"),
    ("optimizer.learning_rate=-1", "optimizer.learning_rate is -1.0"),
    ("optimizer.learning_rate=nan", "optimizer.learning_rate is nan"),
    ("optimizer.learning_rate=1e999", "optimizer.learning_rate is inf"),
    ("optimizer.schedule=cosin", "optimizer.schedule is 'cosin'"),
    ("optimizer.warmup_steps=99999", "optimizer.warmup_steps is 99999"),
    ("optimizer.weight_decay=-0.1", "optimizer.weight_decay is -0.1"),
    ("optimizer.decay_width_exponent=nan", "decay_width_exponent is nan"),
    ("optimizer.clip_rms=-1", "optimizer.clip_rms is -1.0"),
    ("optimizer.frozen=3", "optimizer.frozen is (3,)"),
    ("optimizer.frozen=stm", "optimizer.frozen has 'stm', which matches no parameter ... 'stem'"),
    ("optimizer.frozen='*'", "freezes every parameter: leave something to train."),
    ("optimizer.kwargs.b1=2.0", "optimizer.kwargs.b1 is 2.0"),
    ("optimizer.kwargs.b2=nan", "optimizer.kwargs.b2 is nan"),
    ("optimizer.kwargs.eps=-1e-8", "optimizer.kwargs.eps is -1e-08"),
    ("optimizer.kwargs.momentum=0.9", "optimizer.kwargs of 'adam': scale_by_adam() got an unexpected keyword"),
    ("optimizer.kwargs.b3=0.9", "config has no field 'optimizer.kwargs.b3'"),
    ("parametrization.preset=depthmup", "parametrization.preset is 'depthmup' ... 'depth_mup'"),
    ("parametrization.alpha=-1", "parametrization.alpha is -1.0"),
    ("parametrization.gamma0=0", "parametrization.gamma0 is 0.0"),
    ("mesh.fsdp=7", "mesh is data=-1, fsdp=7, tensor=1"),
    ("mesh.data=0", "mesh.data is 0"),
    ("train.batch_size=1.5", "--config.train.batch_size is '1.5'"),
    ("train.batch_size=0", "train.batch_size is 0"),
    ("train.batch_size=9999", "train.batch_size is 9999: ... 1500"),
    ("train.accumulate=3", "train.batch_size is 32 ... multiple of "),
    ("train.epochs=nan", "train.epochs is nan"),
    ("train.epochs=0", "train.epochs and train.steps are both 0: set one of them."),
    ("train.steps=99999999999", "train.steps is 99999999999"),
    ("train.keep_checkpoints=0", "train.keep_checkpoints is 0"),
    ("data.name=cifar10", "data.name is 'cifar10': ... tfds:<set>"),
    ("data.name=tfds:nothing_like_this", "data.name is 'tfds:nothing_like_this': "),
    ("data.name=folder:{files}/nothing", "data.name is 'folder:{files}/nothing': ... train/"),
    ("data.name=folder:{files}/empty", "data.name is 'folder:{files}/empty': ... train/<class>/"),
    ("data.name=folder:{files}/images", "train/a/x.jpg' cannot be read ... Replace or remove"),
    ("data.name=text:{files}/latin.txt", "model.name is 'res_mlp', which reads images, but data.name is 'text:"),
    ("data.data_dir=/data", "data.data_dir is '/data': ... tfds:<set>"),
    ("data.tokenizer=bpe", "data.tokenizer is 'bpe': ... 'char'"),
    ("data.augment=cfar", "data.augment is 'cfar': ... 'cifar'"),
    ("data.train_examples=99999", "data.train_examples is 99999: ... 1500"),
    ("model.dtype=float64", "model.dtype is 'float64': ... 'float32'"),
]
FLAGS = [
    ("train {digits} --wrokdir=x", "unknown flag --wrokdir: did you mean '--workdir'?"),
    ("train {digits} -wrokdir=x", "unknown flag --wrokdir: did you mean '--workdir'?"),
    (
        "train {digits} --model.depth=3",
        "unknown flag --model.depth: fields of the config are set by --config.model.depth",
    ),
    ("train {digits} --learning_rate=3", "fields of the config are set by --config.optimizer.learning_rate."),
    ("train {digits} --workdir", "--workdir has no value"),
    ("train {digits} --workdir --overwrite", "--workdir has no value"),
    ("train {digits} --overwrite=maybe", "--overwrite is 'maybe'"),
    (
        "train {digits} --config.model.depth = 3",
        "unexpected argument '=': write a flag without spaces, --name=value.",
    ),
    ("train {digits} model.depth=3", "unexpected argument 'model.depth=3': flags are written --config.model.depth=24."),
    ("train digits", "unexpected argument 'digits': a config is written --config=digits."),
    ("sweep sweeps/digits", "a config is written --config=sweeps/digits."),
    ("check my/config.py", "unexpected argument 'my/config.py': a config is written --config=my/config.py."),
    ("train {digits} ''", "unexpected argument '': flags are written "),
    ("train {digits} --num_processes=two", "--num_processes is 'two'"),
    ("train {digits} --num_processes=2", "coordinator and process_id not set: set all of --coordinator=HOST:PORT"),
    (
        "train {digits} --workdir={files}/a_file",
        "workdir '{files}/a_file' cannot be written to (it is a file): choose ",
    ),
    ("train {digits} --workdir={files}/a_file/x", "cannot be written to (Not a directory): choose another."),
    ("train {digits} --workdir=ftp://x/y", "workdir 'ftp://x/y' is not supported: ... gs:// or s3://"),
    ("train {digits} --workdir=~nobody-here/run", "workdir '~nobody-here/run' cannot be found"),
    ("sweep {sweep} --shard=4/4", "--shard is 4/4"),
    ("sweep {sweep} --shard=a/b", "--shard is a/b"),
    ("sweep {sweep} --lanes=many", "--lanes is many"),
    ("sweep {sweep} --lanes=0", "--lanes is 0"),
    ("sweep {sweep} --seeds=8", "fields of the config are set by --config.grids.depths.seed."),
    ("sweep {sweep} --lr=1", "fields of the config are set by --config.grids.depths.optimizer.learning_rate."),
    ("sweep {sweep} --model.width=8", "fields of the config are set by --config.base.model.width."),
    ("sweep {sweep} --config.seed=8", "config has no field 'seed': did you mean 'grids.depths.seed'?"),
    ("sweep --config=nothing --seeds=8", "unknown flag --seeds: --help lists the flags."),
    ("sweep {sweep} --dryrun", "unknown flag --dryrun: did you mean '--dry_run'?"),
    ("sweep {sweep} --config.model.depth=3", "config has no field 'model.depth' ... 'grids.depths.model.depth'"),
    ("sweep {sweep} --config.model.width=3", "config has no field 'model.width' ... 'base.model.width'"),
    ("sweep {sweep} --config.grids.depths.model.depth=abc", "model.depth is 'abc'"),
    ("sweep {sweep} --config.grids.depths.seed='(-1,)'", "seed is -1"),
    ("sweep {sweep} --config.x=model.dpth", "config.x is 'model.dpth'"),
    ("sweep {sweep} --config.base.optimizer.kwargs.b1=2.0", "optimizer.kwargs.b1 is 2.0"),
    ("sweep {sweep} --workdir={files}/run", "workdir '{files}/run' holds a training run, not a sweep: choose another "),
    (
        "tune {digits} --proxy.width=256",
        "--proxy.width is 256",
    ),
    ("tune {digits} --proxy.depth=-1", "--proxy.depth is -1"),
    ("tune {digits} --target.steps=0", "--target.steps is 0"),
    ("tune {digits} --target.batch_size=0", "--target.batch_size is 0"),
    (
        "tune {digits} --target.batch_size=99999",
        "--target.batch_size is 99999",
    ),
    ("tune {digits} --tune=gama0", "--tune has 'gama0' ... 'gamma0'"),
    ("tune {digits} --tune=lr", "--tune has 'lr': did you mean 'learning_rate'?"),
    ("tune {digits} --tune=gamma0=2:1", "--tune: gamma0 is 2:1 ... such as 0.25:4"),
    ("tune {digits} --tune=gamma0,gamma0", "--tune has 'gamma0' twice"),
    ("tune {digits} --tune=gamma0 --trials=2", "--trials is 2: use a whole number of at least 3."),
    ("tune {digits} --octaves=0", "--octaves is 0: use a whole number from 1 to 20."),
    ("tune {digits} --octaves=abc", "--octaves is 'abc'"),
    ("tune {digits} --objective=best", "--objective is 'best' ... validation"),
    ("tune {digits} --compare=spp", "--compare has 'spp' ... sp"),
    ("tune {digits} --compare=depth_mup", "--compare has 'depth_mup'"),
    (
        "tune {digits} --config.train.batch_size=1400 --objective=validation",
        "objective is 'validation' ... at most 1350",
    ),
    ("tune {digits} --config.data.validation_fraction=2", "data.validation_fraction is 2"),
    ("report runs --loss=foo", "--loss is 'foo'"),
    ("tune {digits} --octaves=1000", "--octaves is 1000"),
    ("tune {digits} --rescale.batch_exponent=nan", "batch_exponent is nan"),
    (
        "tune {digits} --config.parametrization.preset=sp_sqrt_depth",
        "parametrization.preset is 'sp_sqrt_depth', whose hyperparameters do not",
    ),
    ("forecast {digits} --compute=0.5", "--compute is 0.5: use a number of at least 1"),
    ("forecast {digits} --compute=abc", "--compute is 'abc'"),
    ("forecast {digits} --compute=4 --target.depth=0", "--target.depth is 0"),
    ("forecast {digits} --compute=4 --ladder={files}/run", "'{files}/run' holds no forecast"),
    ("forecast {digits} --budget=abc", "--budget is 'abc'"),
    ("forecast {digits} --budget=-3%", "--budget is '-3%'"),
    ("forecast {digits} --axes=hight", "--axes has 'hight'"),
    ("forecast {digits} --axes=steps --config.train.steps=16", "the target's steps is 16"),
    ("forecast {digits} --target.width=0", "--target.width is 0"),
    ("forecast {digits} --target.wdth=64", "--target.wdth: did you mean '--target.width'?"),
    ("forecast {digits} --widths=a,b", "--widths is a,b"),
    (
        "forecast {digits} --config.parametrization.preset=sp",
        "parametrization.preset is 'sp', whose hyperparameters do not",
    ),
    ("forecast --check={files}/run", "--workdir is not set"),
    ("forecast --check={files}/run --workdir={files}/run", "'{files}/run' holds no forecast"),
    ("check {digits} --widths=abc", "--widths is abc"),
    (
        "check {digits} --widths=64,128",
        "widths is (64, 128)",
    ),
    ("check", "--config is not set"),
    ("check {digits} --config.model.depth=24", "depth=24 is not used by the check: set the depths to compare with"),
    ("check {digits} --config.model.base_depth=-1", "model.base_depth is -1: use a positive"),
    ("check {digits} --depth=-3 --widths=", "depth is -3: use a positive number"),
    ("check {digits} --config.model.dpth=3", "config has no field"),
    ("check {digits} --workdir={files}/run", "'{files}/run' holds a training run, not a coordinate check: choose"),
    ("check {digits} --seeds=1", "seeds is 1"),
    ("check {digits} --tolerance=0.7", "tolerance is 0.7"),
    ("check {digits} --batch_size=99999", "batch_size is 99999"),
    ("check {digits} --config.model.width=64", "--config.model.width=64 is not used by the check: set the widths"),
    ("check {digits} --config.optimizer.kwargs.b1=2.0", "optimizer.kwargs.b1 is 2.0"),
    ("plan {digits} --topology=v99:2x2", "--topology is 'v99:2x2'"),
    ("plan {digits} --slices=0", "--slices is 0"),
    ("plan {digits} --classes=0", "--classes is 0"),
    ("plan {digits} --lanes=4", "--lanes is 4, but --config is a run's"),
    ("report {files}/nothing", "'{files}/nothing' does not exist: name the --workdir of a sweep or"),
    ("report {files}/a_file", "'{files}/a_file' is a file: name the --workdir of a sweep or"),
    ("report {files}/empty", "'{files}/empty' holds no sweep: name the --workdir of a sweep or of training runs."),
    ("report {files}/run", "the run in '{files}/run' has logged no metrics yet"),
    (
        "report {files}/planted {files}/run",
        "'{files}/run' holds a training run, not a sweep: name the --workdir of a sweep or of training runs.",
    ),
    (
        "report {files}/planted --out={files}/a_file",
        "--out '{files}/a_file' cannot be written to (it is a file): choose ",
    ),
    ("report {files}/planted --out={files}/run", "holds a training run, not a report: choose another directory."),
    (
        "report {files}/planted --tolerance=2",
        "--tolerance is 2",
    ),
    ("report {files}/planted --ouut=x", "unknown flag --ouut: did you mean '--out'?"),
    ("trian", "depthmup has no command 'trian' ... 'train'"),
    ("report ''", "the work directory is '': name one"),
]
# What a user tries in the first hours.
FIRST_HOURS = [
    ("train {digits} --config.data.name=hf:mnist", "there is no such data set. ... a function of yours."),
    ("train {digits} --config.data.name=python:json", "use an import path, such as my_package.data:load."),
    ("train {digits} --config.data.name=text:{files}", "model.name is 'res_mlp', which reads images"),
    ("train {gpt} --config.data.name=digits", "model.name is 'gpt', which reads text, but data.name is 'digits'"),
    ("train {gpt} --config.data.name=text:{files}", "there is no file '{files}'. Give the path of a text file."),
    ("train {gpt} --config.train.epochs=2", "--config.train.epochs is 2, and is not used: train.steps is 3900"),
    ("train {digits} --config.model.width=1000000000", "model.width is 1000000000 ... GiB ... smaller network"),
    ("train {digits} --config.model.depth=1000000000", "model.depth is 1000000000: ... GiB"),
    ("train {digits} --config.data.image_size=1000000", "data.image_size is 1000000: ... Use a smaller one."),
    ("train {digits} --config.optimizer=sgd", "is a section: ... such as --config.optimizer.name=sgd."),
    ("train {digits} --config.parametrization=mup", "such as --config.parametrization.preset=mup."),
    ("train {digits} --config.model=vit", "such as --config.model.name=vit."),
    ("train {digits} --config.data=tfds:mnist", "such as --config.data.name=tfds:mnist."),
    ("train {digits} --lr=0.1", "fields of the config are set by --config.optimizer.learning_rate."),
    ("train {digits} --config.lr=0.1", "config has no field 'lr': did you mean 'optimizer.learning_rate'?"),
    ("train {digits} --config.model.activation=gelu", "did you mean 'model.nonlinearity'?"),
    ("train {digits} --config.loss=mse", "loss is 'mse': did you mean 'squared_error'?"),
    ("train {digits} --config.loss=squared_error", "the outputs are float32[32, 10] and the targets int32[32]."),
    (
        "train {digits} --config.loss=optax:softmax_cross_entropy_with_integer_labels",
        "it returns float32[32]. Return one floating-point number",
    ),
    ("train {digits} --config.model.name=net.py:Net", "names a module, not a file. Did you mean 'net:Net'?"),
    ("train --config={files}/other", "is neither a file nor a shipped config"),
    ("sweep {sweep} --config.base.model.width=1000000000", "model.width is 1000000000 ... GiB"),
    ("sweep {sweep} --config.base.train.epochs=2", "--config.base.train.epochs is 2, and is not used"),
    ("tune {digits} --proxy.steps=-3", "--proxy.steps is -3"),
    ("tune {digits} --rescale.decay=epochs", "--rescale.decay is 'epochs'"),
    ("check {digits} --config.model.name=gpt", "model.name is 'gpt', which reads text, but data.name is 'digits'"),
    ("plan {digits} --config.model.width=1000000000", "model.width is 1000000000 ... GiB"),
    ("plan {sweep} --config.base.model.width=1000000000", "model.width is 1000000000 ... GiB"),
    ("report {files}/other", "'{files}/other' holds no sweep, but 'config.json' of other work: name the --workdir"),
    ("predict {files}/other x.png", "holds no training run, but 'config.json' of other work: name the --workdir"),
    ("predict {files}/planted x.png", "holds a sweep, not a training run: ... depthmup report"),
    ("predict {files}/a_file x.png", "'{files}/a_file' is a file: name the --workdir of a training run"),
    ("digits", "a command comes first, such as depthmup train --config=digits."),
    ("--config=sweeps/digits", "a command comes first, such as depthmup train --config=sweeps/digits."),
]
CASES = (
    CONFIG_FILES
    + [(f"train {{digits}} --config.{field}", sentence) for field, sentence in FIELDS]
    + FLAGS
    + FIRST_HOURS
)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    directory = tmp_path_factory.mktemp("files")
    for name, content in FILES.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    sweep = planted_sweeps.sweep_of(planted_sweeps.parabola, {planted_sweeps.X: [2**-9, 2**-8, 2**-7], "seed": [0, 1]})
    planted_sweeps.write(directory / "planted", sweep)
    return directory


def words_of(line, files):
    configs = ROOT / "configs"
    return shlex.split(
        line.format(
            files=files,
            configs=configs,
            digits=f"--config={configs}/digits.py",
            sweep=f"--config={configs}/sweeps/digits.py --config.scale=smoke",
            gpt=f"--config={configs}/shakespeare_gpt.py",
        )
    )


COMMANDS = sorted({line.split()[0] for line, _ in CASES})


@pytest.mark.parametrize("command", COMMANDS)
def test_a_wrong_input_is_answered_by_one_sentence(command, files, tmp_path):
    cases = [(line, sentence) for line, sentence in CASES if line.split()[0] == command]
    answers = run_lines([words_of(line, files) for line, _ in cases], cwd=tmp_path, watched=[files])
    wrong = {}
    for (line, sentence), answer in zip(cases, answers, strict=True):
        said = sentence.replace("{files}", str(files)).replace("{configs}", str(ROOT / "configs"))
        if not answer.refuses or not all(part in answer.error for part in said.split(" ... ")):
            wrong[line] = (said, answer)
    assert not wrong, "\n".join(f"{line}\n   {said}\n   {answer}" for line, (said, answer) in wrong.items())


def test_a_wrong_input_ends_a_process_of_its_own_with_code_2(files, tmp_path):
    done = run_command("-m", "depthmup_flax", *words_of("train {digits} --config.model.depth=0", files), cwd=tmp_path)
    assert done.returncode == BAD_INPUT, done.stdout + done.stderr
    assert done.stderr.startswith("error: model.depth is 0: ")
    assert not list(tmp_path.iterdir())


def test_the_list_is_long_and_names_every_command_that_takes_a_config():
    assert len({line for line, _ in CASES}) == len(CASES)
    assert {line.split()[0] for line, _ in CASES} > {"train", "sweep", "tune", "check", "plan", "report"}


def test_traceback_shows_the_calls_inside_a_config_file(files, tmp_path):
    words = ("-m", "depthmup_flax", "train", f"--config={files}/parent.py", "--traceback")
    error = run_command(*words, cwd=tmp_path).stderr.splitlines()
    assert error[0] == "Traceback (most recent call last):"
    calls = [text.split('"')[1] for text in error if text.startswith("  File ")]
    assert [name for name in calls if name.startswith(str(files))] == [f"{files}/parent.py", f"{files}/undefined.py"]
    assert error[-1].startswith(f"error: {files}/undefined.py line 6: NameError: name 'foo' is not defined.")


def without_matplotlib(*words):
    sys.modules["matplotlib"] = None
    return processes.command(*words)


def test_report_without_matplotlib_gives_verdict_and_tables_and_says_how_to_get_figures(files, tmp_path):
    words = ("-m", "depthmup_flax", "report", str(files / "planted"), f"--out={tmp_path / 'out'}")
    process = processes.Process(pathlib.Path(tmp_path, "log"), without_matplotlib, *words)
    assert process.wait() == 0, process.text()
    assert all(said in process.text() for said in ("best learning rate", "pip install"))
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {"report.json", "tables.csv", "points.csv"}
    assert not list((tmp_path / "out").glob("*.html"))


@pytest.mark.parametrize(
    ("wrong", "known", "meant"),
    [
        ("nadma", ("adamax", "nadam", "adam"), "nadam"),
        ("sdg", ("sgd", "sgdm"), "sgd"),
        ("ADAM", ("adam", "adamax"), "adam"),
        ("dpth", ("depth", "width"), "depth"),
        ("lr", ("learning_rate", "name"), "learning_rate"),
        ("model.activation", ("model.nonlinearity", "model.width"), "model.nonlinearity"),
        ("size", ("depth", "width"), None),
        ("", ("adam",), None),
    ],
)
def test_the_closest_name_is_suggested(wrong, known, meant):
    assert closest(wrong, known) == meant
