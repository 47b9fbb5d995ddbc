"""Edits of a user's files, data and settings between two attempts of a run, and what the second attempt makes of each.

``python tests/helpers/edits.py`` prints a table with its counts: of `CHANGES` those are right that refuse to go on,
of `HARMLESS` those that go on. ``python tests/helpers/edits.py stated`` counts the harmless ones where code on the host
takes part, which states its version.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import os
import pathlib
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from unittest import mock

import jax
import numpy as np

from depthmup_flax.config import default_config
from depthmup_flax.nn import layers
from depthmup_flax.trainer.loop import train_and_evaluate
from depthmup_flax.util.errors import InputError
from depthmup_flax.util.table import Table

FILES = {
    "helper.py": '''
"""Parts of a network."""
import pathlib
import numpy as np
SCALE = 1.5
TABLE = {"a": [2.0, 3.0]}
class Base:
    factor = 2.0
class Gain(Base):
    """A factor."""
    def __call__(self, x):
        return self.factor * x
def scaled(x, by=0.5):
    """x times a factor."""
    factor = by * TABLE["a"][1]
    return factor * x
def stated_on_host(x):
    return on_host(x)
stated_on_host.fingerprint = lambda: "version 1"
def on_host(x):
    return np.float32(2) * np.float32((pathlib.Path(__file__).parent / "host.txt").read_text()) * x
''',
    "plots.py": """
COLOR = "red"
def figure(x):
    return x, COLOR
""",
    "net.py": '''
"""A network, its loss and its optimizer."""
import os, pathlib
import flax.linen as nn, jax, jax.numpy as jnp, numpy as np, optax
from {package} import helper, plots
SHIFT = float((pathlib.Path(__file__).parent / "shift.txt").read_text())
@jax.custom_vjp
def clipped(x):
    return x
clipped.defvjp(lambda x: (x, None), lambda _, g: (1.0 * g,))
def scaled_in(x):
    return helper.scaled(x)
class Net(nn.Module):
    """Layers of the same width."""
    width: int
    depth: int
    @nn.compact
    def __call__(self, x):
        hidden = nn.Dense(self.width)(x) * helper.SCALE + SHIFT
        for i in range(self.depth):
            hidden = hidden + 0.5 * nn.Dense(self.width)(nn.relu(hidden))
        hidden = nn.LayerNorm(epsilon=1e-6)(clipped(helper.Gain()(scaled_in(hidden))))
        hidden = jax.lax.fori_loop(0, 2, lambda i, h: 1.1 * h, hidden)
        hidden = hidden * float(os.environ.get("THEIR_FACTOR", "1"))
        return nn.Dense(2)(hidden)
class HostNet(Net):
    @nn.compact
    def __call__(self, x):
        out = nn.Dense(2)(x)
        kept = jax.lax.stop_gradient(out)
        return out + jax.pure_callback(helper.on_host, kept, kept, vmap_method="sequential")
class StatedHostNet(Net):
    @nn.compact
    def __call__(self, x):
        out = nn.Dense(2)(x)
        kept = jax.lax.stop_gradient(out)
        return out + jax.pure_callback(helper.stated_on_host, kept, kept, vmap_method="sequential")
def loss(outputs, targets):
    return optax.squared_error(outputs, targets).mean() + 1e-3 * (outputs ** 2).mean()
def optimizer(info, rule, learning_rate):
    return optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(learning_rate, momentum=0.9))
''',
    "data.py": """
import pathlib
import numpy as np
FILE = pathlib.Path(__file__).parent / "values.npy"
class Records:
    def __init__(self, x):
        self.x = x
    def __len__(self):
        return len(self.x)
    def __getitem__(self, i):
        return self.x[i] * 1.0, self.x[i]
def batches(seed):
    x = np.load(FILE)
    for step in range(100):
        rows = 5 * min(step, 5) + np.arange(5)
        yield x[rows] * (1.0 + (step == 50)), x[rows]
class StatedRecords(Records):
    def fingerprint(self):
        return "version 1"
def stated_batches(seed):
    return batches(seed)
stated_batches.fingerprint = lambda: "version 1"
def prepare(key, batch):
    return batch[0] * 1.0, batch[1]
def arrays():
    x = np.load(FILE)
    return (x[:30], x[:30]), (x[30:], x[30:]), prepare
def records():
    x = np.load(FILE)
    return Records(x[:30]), Records(x[30:]), prepare
def stream():
    x = np.load(FILE)
    return batches, (x[30:], x[30:]), prepare
def stated_records():
    x = np.load(FILE)
    return StatedRecords(x[:30]), StatedRecords(x[30:]), prepare
def stated_stream():
    x = np.load(FILE)
    return stated_batches, (x[30:], x[30:]), prepare
""",
    "shift.txt": "0.25",
    "host.txt": "2",
}
EARLIER, LATER = 17, 22  # examples of a stream's fourth and fifth batch: a run stops in between
VALUES = np.random.default_rng(0).normal(size=(40, 2)).astype(np.float32)


@dataclasses.dataclass(frozen=True)
class Edit:
    """What is other at the second attempt."""

    file: str = ""
    old: str = ""
    new: str = ""
    kind: str = "arrays"  # of the data: arrays, records, stream; ours: our own network; host: with a callback; `STATED`
    values: tuple[int, ...] = ()  # examples that change
    setting: tuple[str, object] | None = None  # of JAX, or of the config
    environment: str = ""  # a variable that becomes 2
    patch: bool = False  # of this package's code


def net(old: str, new: str, kind: str = "arrays") -> Edit:
    """An edit of the file of the network."""
    return Edit("net.py", old, new, kind)


def helper(old: str, new: str, kind: str = "arrays") -> Edit:
    """An edit of a module that it imports."""
    return Edit("helper.py", old, new, kind)


def data(old: str, new: str, kind: str = "arrays") -> Edit:
    """An edit of the file that loads data."""
    return Edit("data.py", old, new, kind)


CHANGES = {
    "an activation": net("nn.relu", "nn.tanh"),
    "a factor of a branch": net("0.5 * nn", "0.6 * nn"),
    "an epsilon": net("1e-6", "1e-5"),
    "initial values": net("= nn.Dense(self.width)", "= nn.Dense(self.width, bias_init=nn.initializers.ones)"),
    "a precision": net("nn.Dense(2)(hidden)", "nn.Dense(2, precision='highest')(hidden)"),
    "a dtype": net("nn.Dense(2)(hidden)", "nn.Dense(2, dtype=jnp.bfloat16)(hidden)"),
    "no bias": net("nn.Dense(2)(hidden)", "nn.Dense(2, use_bias=False)(hidden)"),
    "a gradient of its own": net("(1.0 * g,)", "(0.5 * g,)"),
    "a stopped gradient": net("(clipped(", "(jax.lax.stop_gradient("),
    "rounds of a loop": net("fori_loop(0, 2,", "fori_loop(0, 3,"),
    "a condition on the width": net("0.5 * nn", "(0.5 if self.width < 8 else 0.6) * nn"),
    "a number of another module": helper("SCALE = 1.5", "SCALE = 1.6"),
    "a list in a dict": helper("3.0]", "3.5]"),
    "a base class": helper("factor = 2.0", "factor = 2.5"),
    "a default": helper("by=0.5", "by=0.6"),
    "a file that the code reads": Edit("shift.txt", "0.25", "0.5"),
    "a variable of the environment": Edit(environment="THEIR_FACTOR"),
    "a loss": net("squared_error", "huber_loss"),
    "a weight in a loss": net("1e-3", "2e-3"),
    "a momentum": net("momentum=0.9", "momentum=0.8"),
    "a clipping": net("norm(1.0)", "norm(2.0)"),
    "one example": Edit(values=(7,)),
    "one test example": Edit(values=(35,)),
    "the order of examples": data("x[:30], x[:30]", "x[:30][::-1], x[:30][::-1]"),
    "a prepare": data("batch[0] * 1.0", "batch[0] * 1.1"),
    "a prepare that draws": data("batch[0] * 1.0", "batch[0] * (1.0 if key is None else 1.1)"),
    "a record that is sampled": Edit(values=(0,), kind="records"),
    "a record that is not sampled": Edit(values=(2,), kind="records"),
    "the code of records": data("self.x[i] * 1.0", "self.x[i] * (1.0 + (i == 3))", "records"),
    "the first batch of a stream": data("(step == 50)", "(step == 0)", "stream"),
    "the code of later batches": data("(step == 50)", "(step == 51)", "stream"),
    "an earlier batch of a stream, by a file": Edit(values=(EARLIER,), kind="stream"),
    "a later batch of a stream, by a file": Edit(values=(LATER,), kind="stream"),
    "the code of a callback": helper("np.float32(2)", "np.float32(3)", "host"),
    "a file that a callback reads": Edit("host.txt", "2", "3", "host"),
    "another callback": net("pure_callback(helper.on_host", "pure_callback(lambda x: np.float32(3) * x", "host"),
    "a setting of JAX": Edit(setting=("jax_default_matmul_precision", "bfloat16"), kind="ours"),
    "this package's code": Edit(patch=True, kind="ours"),
    "a field of the config": Edit(setting=("optimizer.learning_rate", 0.5), kind="ours"),
    "flags of XLA": Edit(environment="XLA_FLAGS", kind="ours"),
}
HARMLESS = {
    "a comment": net("hidden = nn.Dense", "# the stem\n        hidden = nn.Dense"),
    "a docstring": net("Layers of the same width.", "A residual network."),
    "no docstring": helper('    """x times a factor."""\n', ""),
    "a docstring of a module": helper("Parts of a network.", "Pieces."),
    "an annotation of a function": helper("def on_host(x)", "def on_host(x: np.ndarray) -> np.ndarray"),
    "an annotation of a local": helper("factor = by", "factor: float = by"),
    "an annotation of a field": net("width: int", "width: 'int'"),
    "a renamed local": helper(
        'factor = by * TABLE["a"][1]\n    return factor * x', 'f = by * TABLE["a"][1]\n    return f * x'
    ),
    "a renamed function": net("scaled_in", "times"),
    "an unused function": helper("SCALE = 1.5", "SCALE = 1.5\ndef unused():\n    return 3"),
    "an unused import": net("import os, pathlib", "import os, pathlib, json"),
    "a print": net("hidden = nn.Dense(self.width)(x)", "print(x.shape)\n        hidden = nn.Dense(self.width)(x)"),
    "a print in the step": net(
        "return nn.Dense(2)(hidden)", "jax.debug.print('{}', hidden.mean())\n        return nn.Dense(2)(hidden)"
    ),
    "a color": Edit("plots.py", "red", "blue"),
    "a function of plots": Edit("plots.py", "return x, COLOR", "return 2 * x, COLOR"),
    "a number written otherwise": net("0.5 * nn", "(1 / 2) * nn"),
    "the order of definitions": helper(
        'SCALE = 1.5\nTABLE = {"a": [2.0, 3.0]}', 'TABLE = {"a": [2.0, 3.0]}\nSCALE = 1.5'
    ),
    "a callable instance": net(
        "def scaled_in(x):\n    return helper.scaled(x)",
        "class Scaled:\n    def __call__(self, x):\n        return helper.scaled(x)\nscaled_in = Scaled()",
    ),
    "a value that nothing reads": net(
        "return nn.Dense(2)(hidden)", "unread = hidden.sum()\n        return nn.Dense(2)(hidden)"
    ),
    "the code that loads equal data": data(
        "x = np.load(FILE)\n    return (x[:30]", "x = np.array(np.load(FILE))\n    return (x[:30]"
    ),
}
# Kinds of data and networks with code on the host that states its version.
STATED = ("stated_records", "stated_stream", "stated_host")
# Changes that go on without a word, which docs/training.md names.
SILENT = {"a record that is not sampled", "a later batch of a stream, by a file", "a file that a callback reads"}


_REFUSAL = "holds a run|data have changed|not those that were trained on"


class Project:
    """A user's package in a directory, with one stopped run of each kind."""

    def __init__(self, root: pathlib.Path) -> None:
        self._root, self._name = root, f"their_edits_{os.getpid()}"
        sys.path.insert(0, str(root))
        self._write()

    def _write(self, edit: Edit | None = None) -> None:
        folder = self._root / self._name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text("")
        for name, text in FILES.items():
            text = text.replace("{package}", self._name)
            if edit is not None and name == edit.file:
                if edit.old not in text:
                    raise AssertionError(f"{edit.old!r} is not in {name}")
                text = text.replace(edit.old, edit.new)
            (folder / name).write_text(text)
        values = VALUES.copy()
        for place in edit.values if edit is not None else ():
            values[place] += 1
        np.save(folder / "values.npy", values)
        importlib.invalidate_caches()
        for name in [name for name in sys.modules if name.startswith(self._name)]:
            del sys.modules[name]

    def _run(self, kind: str):
        if kind == "ours":
            run = default_config()
            run.data.update(name="synthetic", train_examples=30, test_examples=10)
        else:
            networks = {"host": "HostNet", "stated_host": "StatedHostNet"}
            run = default_config(f"{self._name}.net:{networks.get(kind, 'Net')}")
            run.data.name = f"python:{self._name}.data:{'arrays' if kind in networks else kind}"
            run.model.audit = False
            run.loss, run.optimizer.name = f"{self._name}.net:loss", f"{self._name}.net:optimizer"
        run.model.update(width=8, depth=2)
        run.train.update(batch_size=5, steps=8, checkpoint_every=4, eval_every=8, writers=("jsonl",))
        return run

    def stopped(self, kind: str) -> pathlib.Path:
        """A run that has stopped after half of its steps."""
        workdir = self._root / f"run-{kind}"
        if not workdir.exists():
            self._write()
            train_and_evaluate(self._run(kind), workdir)
            (workdir / "result.json").unlink()
            shutil.rmtree(workdir / "checkpoints" / "8")
        return workdir

    def goes_on(self, edit: Edit) -> bool:
        """Whether the run goes on after an edit; else it is refused."""
        workdir = self._root / "attempt"
        shutil.rmtree(workdir, ignore_errors=True)
        shutil.copytree(self.stopped(edit.kind), workdir)
        self._write(edit)
        run = self._run(edit.kind)
        with _changed(edit):
            if edit.setting is not None and "." in edit.setting[0]:
                section, _, name = edit.setting[0].partition(".")
                run[section][name] = edit.setting[1]
            try:
                return train_and_evaluate(run, workdir)["status"] == "completed"
            except InputError as error:
                if re.search(_REFUSAL, str(error)) is None:
                    raise AssertionError("refused for another reason") from error
                return False


@contextlib.contextmanager
def _changed(edit: Edit) -> Iterator[None]:
    """The settings, environment and code of an edit."""
    with contextlib.ExitStack() as stack:
        if edit.setting is not None and "." not in edit.setting[0]:
            name, value = edit.setting
            stack.callback(jax.config.update, name, getattr(jax.config, name))
            jax.config.update(name, value)
        if edit.environment:
            value = "--xla_cpu_enable_fast_math=true" if edit.environment == "XLA_FLAGS" else "2"
            stack.enter_context(mock.patch.dict(os.environ, {edit.environment: value}))
        if edit.patch:
            usual = layers.Dense.__call__
            patched = lambda self, x: 1.5 * usual(self, x)
            stack.enter_context(mock.patch.object(layers.Dense, "__call__", patched))
        yield


def outcomes(root: pathlib.Path) -> dict[str, bool]:
    """Edit -> whether the run goes on."""
    project = Project(root)
    return {name: project.goes_on(edit) for name, edit in (CHANGES | HARMLESS).items()}


def harmless_but_refused(root: pathlib.Path, kind: str) -> list[str]:
    """The harmless edits with which a run of a kind does not go on."""
    project = Project(root)
    return [name for name, edit in HARMLESS.items() if not project.goes_on(dataclasses.replace(edit, kind=kind))]


def main() -> None:
    if sys.argv[1:] == ["stated"]:
        for kind in STATED:
            with tempfile.TemporaryDirectory() as root:
                names = harmless_but_refused(pathlib.Path(root), kind)
            print(f"{kind}: {len(names)} of {len(HARMLESS)} harmless edits are refused {names}", flush=True)
        return
    with tempfile.TemporaryDirectory() as root:
        found = outcomes(pathlib.Path(root))
    said = {True: "goes on", False: "refused"}
    rows = [(name, (CHANGES | HARMLESS)[name].kind, said[on], said[name in HARMLESS]) for name, on in found.items()]
    print("\n".join(Table(("edit", "data", "outcome", "right"), rows, "<<<<").lines))
    silent = [name for name in CHANGES if found[name]]
    refused = [name for name in HARMLESS if not found[name]]
    print(f"\nchanges that go on silently: {len(silent)} of {len(CHANGES)} {silent}")
    print(f"harmless edits that are refused: {len(refused)} of {len(HARMLESS)} {refused}")


if __name__ == "__main__":
    main()
