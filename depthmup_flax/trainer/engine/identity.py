"""What a run computes: digests of its traced programs, which it keeps and compares on resume.

The user's modules have digests of their own, which any edit changes. They decide what a trace does not show: code that
runs on the host in training. Otherwise programs that are equal are the same run, however the code was edited.
"""

from __future__ import annotations

import logging
import pathlib
from typing import Any

import jax
import jax.numpy as jnp

from depthmup_flax.config.fields import ANOTHER
from depthmup_flax.config.hyperparameters import RULE
from depthmup_flax.storage.files import read_json, write_atomically
from depthmup_flax.storage.provenance import versions
from depthmup_flax.storage.run_hash import changed_code, execution_of_model, json_text
from depthmup_flax.storage.sweep_records import SEED
from depthmup_flax.trainer.engine.device_batches import batch_shapes, host_test_batches
from depthmup_flax.trainer.engine.experiment import Experiment
from depthmup_flax.trainer.engine.task import Hyper, new_state
from depthmup_flax.util.errors import InputError
from depthmup_flax.util.program_digest import calls_host, digest
from depthmup_flax.util.surroundings import own_surroundings
from depthmup_flax.util.types import Json

log = logging.getLogger(__name__)

FILE = "programs.json"
_FORM = "3"  # of what is traced: digests of another form cannot be compared
_ON_HOST = " host"  # after the digest of a program that computes, or reads its data, with code that no trace shows


@own_surroundings()
def programs(experiment: Experiment, values: Hyper, which: str = "", *, of_rules: bool = False) -> Json:
    """The name of a program -> digest of its initial values, a training step and an evaluation.

    ``values`` replace hyperparameters of the experiment; ``which`` tells the programs of a sweep apart; ``of_rules``:
    its runs may differ in numbers of the rule, which are then arguments. Else code may look at them, as at
    ``rule.alpha > 0``. Programs of other versions of JAX, or for another platform, have other names: they cannot be
    compared.
    """
    config, dataset = experiment.config, experiment.dataset
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
    shown = dataset.is_known and not calls_host(traced)
    return {" ".join(named).strip(): digest(traced) + ("" if shown else _ON_HOST)}


def code_differences(directory: pathlib.Path, stored: Json, current: Json, now: Json) -> list[str]:
    """`changed_code` of two stored configs, unless the programs in a directory show that the change computes the same.

    ``now``: those of today. Then a line says it.
    """
    changed = changed_code(stored, current)
    before = _stored(directory)
    shared = before.keys() & now.keys()
    same = shared and all(before[name] == now[name] and not now[name].endswith(_ON_HOST) for name in shared)
    if changed and same:
        log.info("%s, but computes the same: going on", ", ".join(changed))
        return []
    return changed


def _stored(directory: pathlib.Path) -> Json:
    path = directory / FILE
    return read_json(path, "delete it") if path.exists() else {}


def require_same(directory: pathlib.Path, now: Json, holds: str, *, compare: bool) -> None:
    """Keeps programs in a directory; with ``compare``, an error that begins with ``holds`` if one differs."""
    stored = _stored(directory)
    changed = [name for name in stored.keys() & now.keys() if stored[name] != now[name]]
    if changed and compare:
        raise InputError(f"{holds}, and the network, loss or optimizer computes something else now: {ANOTHER}")
    if changed or now.keys() - stored.keys():
        write_atomically(directory / FILE, json_text(stored | now))
