"""What surrounds a call, a mesh or strict settings of JAX, an interpreter without docstrings, changes no result."""

import io
import os
import subprocess
import sys

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh
from small_runs import RATE, small_base

from depthmup_flax import InputError
from depthmup_flax.commands import app
from depthmup_flax.config.fields import default_config, get_field
from depthmup_flax.search.tune.searches import Search
from depthmup_flax.search.tune.tuning import tune
from depthmup_flax.trainer.loop import train_and_evaluate

mesh_of = lambda kind: jax.set_mesh(jax.make_mesh((1,), ("x",), axis_types=(kind,), devices=jax.devices()[:1]))
SURROUNDINGS = {
    "a mesh": lambda: mesh_of(AxisType.Auto),
    "an explicit mesh": lambda: mesh_of(AxisType.Explicit),
    "no promotion of ranks": lambda: jax.numpy_rank_promotion("raise"),
    "no promotion of types": lambda: jax.numpy_dtype_promotion("strict"),
    "no transfers": lambda: jax.transfer_guard("disallow_explicit"),
    "an older mesh": lambda: Mesh(np.array(jax.devices()[:1]), ("data",)),
    "no transfers to the host": lambda: jax.transfer_guard_device_to_host("disallow_explicit"),
    "errors at NaN": lambda: jax.debug_nans(True),
    "no compilation": jax.disable_jit,
}


@pytest.fixture(scope="module")
def losses(tmp_path_factory):
    """``name -> (loss of a streamed run that saves, losses of a search)``."""

    def of(name):
        run, directory = small_base(), tmp_path_factory.mktemp("run")
        run.train.update(checkpoint=True, steps=3)
        run.data.placement = "stream"
        best = tune(small_base(), Search({RATE: (1e-3, 4e-3)}, (0,), extend=0), directory / "tune", lanes=1)
        return train_and_evaluate(run, directory / "train")["train_loss"], [one["train_loss"] for one in best.records]

    usual = of("usual")
    return of, usual


SLOW = {"no compilation": pytest.mark.slow}


@pytest.mark.parametrize("name", [pytest.param(name, marks=SLOW.get(name, ())) for name in SURROUNDINGS])
def test_a_run_and_a_search_give_their_usual_numbers(name, losses):
    of, (train_loss, of_search) = losses
    with SURROUNDINGS[name]():
        found = of(name)
    assert found == (pytest.approx(train_loss, rel=1e-5), of_search)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [["config", "digits"], ["config", "sweeps/digits"], ["train", "--help"]], ids=" ".join
)
def test_commands_explain_themselves_in_an_interpreter_that_drops_docstrings(words):
    says = lambda level: (
        subprocess.run(
            [sys.executable, "-m", "depthmup_flax", *words],
            env={**os.environ, "PYTHONOPTIMIZE": level},
            capture_output=True,
            check=True,
        ).stdout
    )
    assert says("2") == says("0") != b""


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1251"])
def test_signs_that_the_output_cannot_show_end_no_command(encoding, monkeypatch):
    content = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(content, encoding=encoding))
    app.main(["--version"])
    print("0.1 ± 0.2 \N{GREEK SMALL LETTER ETA}", flush=True)
    assert content.getvalue().endswith(b"?\n")


NUMBERS = [
    ("train.steps", 1e3, 1000),
    ("train.steps", np.int64(7), 7),
    ("model.width", np.float32(16), 16),
    ("optimizer.learning_rate", np.float32(0.5), 0.5),
    ("optimizer.kwargs.b1", np.float64(0.5), 0.5),
    ("optimizer.frozen", np.array(["stem"]), ("stem",)),
    ("train.checkpoint", np.False_, False),
    ("train.steps", 1.5, None),
    ("train.steps", np.float64("inf"), None),
    ("model.norm", np.int32(3), None),
]


@pytest.mark.parametrize(("path", "given", "expected"), NUMBERS, ids=str)
def test_a_config_takes_numbers_of_other_types_where_they_are_exact(path, given, expected):
    run, (*sections, name) = default_config(), path.split(".")
    section = get_field(run, ".".join(sections))
    if expected is None:
        with pytest.raises(InputError, match=f"{name} is .*: use a"):
            section[name] = given
    else:
        section[name] = given
        found = get_field(run.copy_and_resolve_references(), path)
        assert (found, type(found)) == (expected, type(expected))
