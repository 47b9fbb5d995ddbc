"""When two attempts are one run: a way of writing code, and what an edit of it does."""

import importlib
import itertools
import os
import shutil
import sys

import flax.linen as nn
import jax
import numpy as np
import pytest

from depthmup_flax import Study
from depthmup_flax.config import default_config
from depthmup_flax.networks.import_paths import project_code
from depthmup_flax.trainer.engine import identity
from depthmup_flax.trainer.engine.from_config import build
from depthmup_flax.trainer.loop import facts, train_and_evaluate
from depthmup_flax.util.errors import InputError

X = np.linspace(-1, 1, 40, dtype=np.float32).reshape(20, 2)
DATA = (X[:15], X[:15]), (X[15:], X[15:])
STEP = """
import functools, os, types
import flax.linen as nn, jax, jax.numpy as jnp, numpy as np
import depthmup_flax as dm
{before}
def step(w, batch, hyper):
    def loss(w):
        h = jnp.tanh(batch[0] @ w)
        return (({use})[:, :2] - batch[1] ** 2).mean()
    value, gradient = jax.value_and_grad(loss)(w)
    return w - hyper["learning_rate"] * gradient, {{"loss": value}}
build = lambda width, depth: dm.Task(lambda key, hyper: {init} * jax.random.normal(key, (2, 8)), step)
"""
NETWORK = """
import flax.linen as nn, optax
class Net(nn.Module):
    width: int
    depth: int
    @nn.compact
    def __call__(self, x):
        return nn.Dense(2)(nn.relu(nn.Dense(self.width)(x)) * (self.width / 4) ** {power})
build = lambda width, depth: Net(width, depth)
arguments = {{"loss": lambda outputs, targets: {loss}, "optimizer": {optimizer}}}
"""
OPTIONS = {"base": (4, 2), "steps": 2, "batch_size": 5, "settings": {"model.audit": False}, "quiet": True}


def cell(source):
    """A study of a notebook's cell: code without a file."""
    names = {"__name__": "__main__"}
    exec(source, names)
    return Study(names["build"], DATA, **names.get("arguments", {}), **OPTIONS)


def study(before="", use="h", init="1"):
    return cell(STEP.format(before=before, use=use, init=init))


def network(power="1.0", loss="((outputs - targets) ** 2).mean()", optimizer="'adam'"):
    return cell(NETWORK.format(power=power, loss=loss, optimizer=optimizer))


def programs(of):
    return identity.programs(build(of.config(8, 4)), {})


VJP = "f = jax.custom_vjp(lambda h: h)\nf.defvjp(lambda h: (h, None), lambda r, g: (@ * g,))"
HOST = "h + jax.pure_callback(f, h, jax.lax.stop_gradient(h), vmap_method='sequential')"
# Where @ stands there is one value, then another: a way to write code -> the code, and its two values.
OTHER = {
    "a global number": ({"before": "F = @", "use": "F * h"}, "2", "3"),
    "a global tuple": ({"before": "F = (@,)", "use": "F[0] * h"}, "2", "3"),
    "a global list": ({"before": "F = [@]", "use": "F[0] * h"}, "2", "3"),
    "a global dict": ({"before": "F = {'a': @}", "use": "F['a'] * h"}, "2", "3"),
    "a global set": ({"before": "F = {@}", "use": "max(F) * h"}, "2", "3"),
    "a global array": ({"before": "F = np.full(8, @)", "use": "F[0] * h"}, "2.0", "3.0"),
    "an array of JAX": ({"before": "F = jnp.arange(8.0) + @", "use": "F[0] * h"}, "2.0", "3.0"),
    "a namespace": ({"before": "F = types.SimpleNamespace(a=@)", "use": "F.a * h"}, "2", "3"),
    "the environment": ({"before": "os.environ['F'] = '@'", "use": "float(os.environ['F']) * h"}, "2", "3"),
    "a partial": ({"before": "f = functools.partial(jnp.multiply, @)", "use": "f(h)"}, "2.0", "3.0"),
    "a layer of Flax": ({"use": "nn.gelu(h, approximate=@)"}, "True", "False"),
    "a library's function": ({"before": "f = nn.@", "use": "f(h)"}, "relu", "tanh"),
    "a default": ({"before": "f = lambda h, k=@: k * h", "use": "f(h)"}, "2", "3"),
    "a closure": ({"before": "f = (lambda k: lambda h: k * h)(@)", "use": "f(h)"}, "2", "3"),
    "a jitted closure": ({"before": "f = (lambda k: jax.jit(lambda h: k * h))(@)", "use": "f(h)"}, "2", "3"),
    "a base class": ({"before": "class B:\n  k = @\nclass C(B):\n  pass", "use": "C.k * h"}, "2", "3"),
    "a mixin": ({"before": "class M:\n  f = lambda _, h: @ * h\nclass C(M, dict): pass", "use": "C().f(h)"}, "2", "3"),
    "a property": ({"before": "class Q:\n  k = property(lambda self: @)", "use": "Q().k * h"}, "2", "3"),
    "a nested class": ({"before": "class Q:\n  class R:\n    k = @", "use": "Q.R.k * h"}, "2", "3"),
    "a dict of a class": ({"before": "class Q:\n  k = {'a': @}", "use": "Q.k['a'] * h"}, "2", "3"),
    "a monkey patch": ({"before": "class Q: pass\nQ.k = @", "use": "Q.k * h"}, "2", "3"),
    "initial values": ({"init": "@"}, "0.1", "0.2"),
    "a gradient of its own": ({"before": VJP, "use": "f(h)"}, "2", "3"),
    "a branch": ({"use": "jax.lax.cond(h.sum() > 0, lambda h: @ * h, lambda h: h, h)"}, "2", "3"),
    "a loop": ({"use": "jax.lax.scan(lambda c, _: (@ * c, None), h, length=2)[0]"}, "2", "3"),
    "a number of rounds": ({"use": "jax.lax.fori_loop(0, @, lambda i, h: 2 * h, h)"}, "2", "3"),
    "a precision": ({"use": "jnp.matmul(h, jnp.eye(8), precision='@')"}, "highest", "bfloat16"),
    "a dtype": ({"use": "h.astype(jnp.@).astype(jnp.float32)"}, "float16", "bfloat16"),
}
CALL = "  def __call__(self, x): return self.k * x"
CALLBACKS = {  # functions on the host
    "a lambda": "f = lambda x: x * np.float32(@)",
    "NumPy's function": "f = {2: np.sin, 3: np.cos}[@]",
    "a name": "f = [0, 0, lambda x: np.sin(x), lambda x: np.cos(x)][@]",
    "a closure": "f = (lambda k: lambda x: k * x)(np.float32(@))",
    "a default": "f = lambda x, k=np.float32(@): k * x",
    "a global": "K = np.full(8, @, np.float32)\nf = lambda x: K * x",
    "a partial": "f = functools.partial(np.multiply, np.float32(@))",
    "an instance": f"class F:\n  def __init__(self, k): self.k = k\n{CALL}\nf = F(np.float32(@))",
    "a method": "class F:\n  def __call__(self, x): return np.float32(@) * x\nf = F()",
    "a property": f"class F:\n  k = property(lambda self: np.float32(@))\n{CALL}\nf = F().__call__",
    "a cache": "g = functools.cache(lambda: np.float32(@))\nf = lambda x: g() * x",
    "a function inside": "g = lambda x: x * np.float32(@)\nf = lambda x: (lambda: g(x))()",
}
OTHER |= {f"a callback, {name}": ({"before": code, "use": HOST}, "2", "3") for name, code in CALLBACKS.items()}
OF_NETWORKS = {
    "what differs above the base alone": ({"power": "@"}, "0.5", "1.0"),
    "a loss": ({"loss": "@ * ((outputs - targets) ** 2).mean()"}, "2", "3"),
    "a library's loss": ({"loss": "optax.@(outputs, targets).mean()"}, "squared_error", "huber_loss"),
    "an optimizer": ({"optimizer": "lambda info, rule, learning_rate: optax.sgd(learning_rate, @)"}, "0.8", "0.9"),
}


@pytest.mark.parametrize("way", OTHER)
def test_code_that_computes_something_else_is_another_run_however_it_is_written(way):
    code, one, other = OTHER[way]
    first, same, changed = (
        programs(study(**{part: text.replace("@", value) for part, text in code.items()}))
        for value in (one, one, other)
    )
    assert first == same
    assert first.keys() == changed.keys()
    assert first != changed


COUNTER = "class Cache(dict):\n  pass\ncache, calls = Cache(), []"
SAME = {
    "an object with a cache": {"before": COUNTER, "use": "(cache.setdefault(len(cache), 1), h)[1]"},
    "a counter": {"before": COUNTER, "use": "(calls.append(1), h)[1]"},
    "another name": {"before": "def renamed(h): return h", "use": "renamed(h)"},
    "a comment": {"before": "# a comment"},
    "a function that is not used": {"before": "def unused(): return 3"},
    "a print": {"before": "import logging", "use": "(logging.debug('%s', h), h)[1]"},
    "a print in the step": {"use": "(jax.debug.print('{}', h.sum()), h)[1]"},
    "a print in a loop": {"use": "(jax.lax.map(lambda x: (jax.debug.print('{}', x), x)[1], h), h)[1]"},
    "a value that nothing reads": {"use": "(h @ h.T + np.arange(10)[:5], h)[1]"},
}


SAME_ON_HOST = {
    "a docstring": ("def f(x):\n  return 2 * x", "def f(x):\n  'Doubles.'\n  return 2 * x"),
    "an annotation": ("def f(x):\n  return 2 * x", "def f(x: np.ndarray) -> np.ndarray:\n  return 2 * x"),
    "a renamed local": ("def f(x):\n  y = 2 * x\n  return y", "def f(z):\n  w = 2 * z\n  return w"),
}


@pytest.mark.parametrize("way", SAME_ON_HOST)
def test_a_callback_that_computes_the_same_is_the_same_run(way):
    first, edited = (programs(study(before=code, use=HOST)) for code in SAME_ON_HOST[way])
    assert first == edited


@pytest.mark.parametrize("way", SAME)
def test_code_that_computes_the_same_is_the_same_run(way):
    assert programs(study(**SAME[way])) == programs(study())


def test_a_module_in_a_closure_does_not_change_by_being_used():
    shared = nn.Dense(4)
    first = Study(lambda width, depth: nn.Sequential([shared, nn.Dense(2)]), DATA, loss="squared_error", **OPTIONS)
    before = programs(first)
    shared.init(jax.random.key(0), X)
    assert programs(first) == before


def test_two_lambdas_on_a_line_are_two_networks():
    makes = (lambda width, depth: nn.Dense(2)), (lambda width, depth: nn.Dense(2, use_bias=False))
    studies = [Study(make, DATA, loss="squared_error", **OPTIONS) for make in makes]
    assert [build(study.config()).parameters for study in studies] == [6, 4]


NET = """
import flax.linen as nn
from {package}.helper import FACTOR
class Net(nn.Module):
    width: int
    depth: int
    @nn.compact
    def __call__(self, x):
        import {package}.late
        h = nn.Dense(self.width)(x) * FACTOR * {package}.late.FACTOR
        return nn.Dense(2)(h)
def loss(outputs, targets):
    import {package}.of_loss
    return {package}.of_loss.FACTOR * ((outputs - targets) ** 2).mean()
"""
LOAD = """
import importlib, numpy as np
class Records:
    def __init__(self, x):
        self.x = x
    def __len__(self):
        return len(self.x)
    def __getitem__(self, i):
        return self.x[i], self.x[i]
def stream(x):
    def batches(seed):
        while True:
            yield x[:5], x[:5]
    return batches
def load():
    x = np.linspace(-1, 1, 40, dtype=np.float32).reshape(20, 2)
    importlib.import_module("{package}.of_data")
    train = {{"arrays": (x[:15], x[:15]), "records": Records(x[:15]), "stream": stream(x)}}
    return train["{kind}"], (x[15:], x[15:])
"""
HELPERS = ("helper", "late", "of_loss", "of_data")
_packages = itertools.count()


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A run of a user's package, and a function that edits one of its modules and loads it anew."""
    package = f"their_{next(_packages)}_{os.getpid()}"
    root = tmp_path / package
    root.mkdir()
    (root / "__init__.py").write_text("")
    (root / "net.py").write_text(NET.format(package=package))
    (root / "data.py").write_text(LOAD.format(package=package, kind="arrays"))
    for name in HELPERS:
        (root / f"{name}.py").write_text("FACTOR = 1.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    loaded = lambda: [name for name in sys.modules if name.startswith(package)]

    def edit(module, text):
        (root / f"{module}.py").write_text(text)
        shutil.rmtree(root / "__pycache__", ignore_errors=True)  # which Python keeps for files of one second and size
        importlib.invalidate_caches()
        for name in loaded():
            del sys.modules[name]

    run = default_config(f"{package}.net:Net")
    run.model.update(width=4, depth=1, audit=False)
    run.loss, run.data.name = f"{package}.net:loss", f"python:{package}.data:load"
    run.train.update(batch_size=5, steps=2, writers=("jsonl",))
    yield run, edit, package
    for name in loaded():
        del sys.modules[name]


def resumed(run, workdir):
    """The status of another attempt of a run that has saved."""
    (workdir / "result.json").unlink()
    return train_and_evaluate(run, workdir)["status"]


@pytest.mark.parametrize("module", ["helper", "late", "of_loss"])
def test_a_run_is_not_resumed_with_a_module_that_computes_something_else_unless_the_user_says_so(
    project, module, tmp_path
):
    run, edit, package = project
    train_and_evaluate(run, tmp_path / "run")
    edit(module, "FACTOR = 2.0\n")
    with pytest.raises(InputError, match=f"{package}.{module}"):
        resumed(run, tmp_path / "run")
    (tmp_path / "run" / "result.json").touch()
    run.train.same_code = True
    assert resumed(run, tmp_path / "run") == "completed"


FOR_PEOPLE = '"""Factors."""\n# a comment\nFACTOR = (1.0)\ndef f(x: int) -> int:\n    """F."""\n'


@pytest.mark.parametrize("module", HELPERS)
@pytest.mark.parametrize("kind", ["arrays", "records", "stream"])
def test_an_edit_that_computes_the_same_goes_on_unless_data_are_read_by_code(project, module, kind, tmp_path, caplog):
    run, edit, package = project
    edit("data", LOAD.format(package=package, kind=kind))
    edit(module, "FACTOR = 1.0\ndef f(x): pass\n")
    train_and_evaluate(run, tmp_path / "run")
    edit(module, FOR_PEOPLE)  # another docstring
    assert resumed(run, tmp_path / "run") == "completed"
    edit(module, f"UNUSED = 2\n{FOR_PEOPLE}")
    if kind == "arrays":
        with caplog.at_level("INFO"):
            assert resumed(run, tmp_path / "run") == "completed"
        assert f"{package}.{module}" in caplog.text
    else:
        with pytest.raises(InputError, match=f"{package}.{module}"):
            resumed(run, tmp_path / "run")


def test_the_project_is_what_is_neither_installed_nor_of_python(project):
    run, _, package = project
    experiment = build(run)
    known = project_code()
    assert {f"{package}.net", f"{package}.helper", f"{package}.of_data"} <= known.keys()
    assert not {"json", "numpy", "pytest", "depthmup_flax", "__main__"} & known.keys()
    compared = facts(experiment, {}, identity.programs(experiment, {}))  # by the processes of a run
    assert {f"the code of {package}.{name}" for name in HELPERS} <= compared.keys()
    assert any(name.startswith("the traced program") for name in compared)
