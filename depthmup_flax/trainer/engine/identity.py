"""What a user's code of any kind computes: a digest of the traced program, which a run keeps and compares on resume."""

from __future__ import annotations

import pathlib
from typing import Any

import jax
import jax.numpy as jnp

from depthmup_flax.config.fields import ANOTHER, names_users_code
from depthmup_flax.config.hyperparameters import RULE
from depthmup_flax.storage.files import read_json, write_atomically
from depthmup_flax.storage.provenance import versions
from depthmup_flax.storage.run_hash import execution_of_model, json_text
from depthmup_flax.storage.sweep_records import SEED
from depthmup_flax.trainer.engine.device_batches import batch_shapes, host_test_batches
from depthmup_flax.trainer.engine.experiment import Experiment
from depthmup_flax.trainer.engine.task import Hyper, new_state
from depthmup_flax.util.errors import InputError
from depthmup_flax.util.program_digest import digest
from depthmup_flax.util.surroundings import own_surroundings
from depthmup_flax.util.types import Json

FILE = "programs.json"
_FORM = "2"  # of what is traced: digests of another form cannot be compared


@own_surroundings()
def programs(experiment: Experiment, values: Hyper, which: str = "", *, of_rules: bool = False) -> Json:
    """The name of a program -> digest of its initial values, a training step and an evaluation; empty for our code.

    ``values`` replace hyperparameters of the experiment; ``which`` tells the programs of a sweep apart; ``of_rules``:
    its runs may differ in numbers of the rule, which are then arguments. Else code may look at them, as at
    ``rule.alpha > 0``. Programs of other versions of JAX, or for another platform, have other names: they cannot be
    compared.
    """
    config, dataset = experiment.config, experiment.dataset
    if not names_users_code(config):
        return {}
    tests = host_test_batches(dataset, 1, slice(None), masked=experiment.task.masked) if experiment.evaluates else ()
    test = next(iter(tests), None)
    # Arrays, as in training: of a rule, the width is a number there and a word otherwise.
    given = {**experiment.hyperparameters, **values}
    if not of_rules:
        given = {path: value for path, value in given.items() if not path.startswith(f"{RULE}.")}
    hyper = jax.tree.map(jnp.asarray, given)

    def program(key: jax.Array, batch: Any, test: Any) -> Any:
        carry = experiment.task.init(jax.random.key(hyper[SEED]), hyper)
        carry, metrics = experiment.task.step(carry, experiment.prepare(key, batch), hyper, key)
        state = new_state(carry, experiment.averaged)
        return carry, metrics, None if test is None else experiment.evaluate(hyper)(state, test)

    key = jax.eval_shape(lambda: jax.random.key(0))
    traced = jax.make_jaxpr(program)(key, batch_shapes(dataset, config.train.batch_size), test)
    execution = [str(config.model.get(path.removeprefix("model."))) for path in execution_of_model(config)]
    # Execution changes the program alone; so may a later version of this package.
    known = versions()
    named = (known["depthmup-flax"], known["jax"], jax.default_backend(), *execution, which, _FORM)
    return {" ".join(named).strip(): digest(traced)}


def require_same(directory: pathlib.Path, now: Json, holds: str, *, compare: bool) -> None:
    """Keeps programs in a directory; with ``compare``, an error that begins with ``holds`` if one differs."""
    path = directory / FILE
    stored = read_json(path, "delete it") if path.exists() else {}
    changed = [name for name in stored.keys() & now.keys() if stored[name] != now[name]]
    if changed and compare:
        raise InputError(f"{holds}, and the network, loss or optimizer computes something else now: {ANOTHER}")
    if changed or now.keys() - stored.keys():
        write_atomically(path, json_text(stored | now))
