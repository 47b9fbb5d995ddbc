"""A training run: the loop, its checkpoints, and the files in its work directory."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import pathlib
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax
from flax.traverse_util import flatten_dict
from ml_collections import ConfigDict

from depthmup_flax.config import fields as configs
from depthmup_flax.data import stored_dataset
from depthmup_flax.devices import distributed, sharding
from depthmup_flax.devices.preemption import Preemption
from depthmup_flax.storage import workdir as workdirs
from depthmup_flax.storage.files import as_path, create, read_json, reading, write_atomically, writing_to
from depthmup_flax.storage.provenance import settings, versions
from depthmup_flax.storage.sweep_records import DIVERGED
from depthmup_flax.trainer.course import Watch, write_course
from depthmup_flax.trainer.engine import identity
from depthmup_flax.trainer.engine.config_optimizer import learning_rate
from depthmup_flax.trainer.engine.device_batches import StepsCall, expect, put_train_data
from depthmup_flax.trainer.engine.experiment import Experiment
from depthmup_flax.trainer.engine.from_config import build
from depthmup_flax.trainer.engine.outcome import PREEMPTED, diverged_in, is_finite, outcome, read, summary
from depthmup_flax.trainer.engine.program import ShardedProgram
from depthmup_flax.trainer.engine.task import TrainState
from depthmup_flax.trainer.run_log import RunLog, Writer
from depthmup_flax.trainer.runs import directory as run_directory
from depthmup_flax.trainer.runs.directory import RunCheckpoints
from depthmup_flax.util.errors import InputError, Preempted, RunStopped, UserCodeError
from depthmup_flax.util.imports import require
from depthmup_flax.util.messages import RESULT
from depthmup_flax.util.surroundings import own_surroundings
from depthmup_flax.util.types import Json

log = logging.getLogger(__name__)


@own_surroundings(jit=False)
def train_and_evaluate(
    config: ConfigDict, workdir: str | pathlib.Path, *, overwrite: bool = False, writers: Sequence[Writer] = ()
) -> Json:
    """Trains what ``config`` describes, or resumes the run that ``workdir`` holds.

    Writes ``config.json``, ``data.json`` (what the network reads), ``params.txt`` (the parameter table),
    ``metrics.jsonl``, ``course.json`` (`depthmup_flax.compare_runs`), TensorBoard events, ``checkpoints/`` and, at the
    end, ``result.json``. A resumed run has the parameters of an uninterrupted one, bit for bit; on another number of
    devices, up to the order of sums. A loss that is not finite at a log, an evaluation or a checkpoint, or parameters
    that are not finite at a checkpoint, end the run with the status ``diverged``.

    On SIGTERM, or the first Ctrl-C, the run writes a checkpoint and returns with the status ``preempted``. With several
    processes (`devices.distributed`), each makes this call with a ``workdir`` that they share. Every
    process writes the arrays of its devices to checkpoints; process 0 writes the rest.

    Args:
      config: from a config file, or `depthmup_flax.config.fields.default_config`.
      workdir: created if absent.
      overwrite: delete an earlier run's files in ``workdir`` and start from step 0.
      writers: receive the metrics, besides those of ``train.writers``, in process 0, and are closed at the end; one
        that raises is left out from then on. A resumed run passes the steps after its checkpoint again.

    Returns:
      The content of ``result.json``: ``status`` (``completed``, ``diverged`` or, with no such file, ``preempted``),
      ``train_loss`` (last step), ``train_loss_avg`` (last epoch, or ``train.average_steps``), ``test_loss``,
      ``test_accuracy`` (with ``data.validation_fraction`` instead ``validation_loss``, ``validation_accuracy``),
      ``steps``, ``diverged_at_step``, ``wall_time_s``, ``config_hash``, ``seed``, ``parameters``, ``versions``. Numbers
      that are not finite are ``None``.

    Raises:
      InputError: the config or the work directory is wrong, or processes differ in config, code, libraries or data.
        Nothing was compiled or overwritten. Or the run is off course (``train.stop_off_course``), and was saved.
      RunStopped: the work directory cannot be written, the data do not arrive, or copies of the state on several
        devices differ at a checkpoint (``train.compare_replicas``).
    """
    experiment, mesh, data, programs = distributed.in_all(lambda: _built(config))
    directory = as_path(workdir)
    if jax.process_count() > 1:
        flags = {"--workdir": str(workdir), "--overwrite": overwrite}
        distributed.require_same(distributed.in_all(lambda: flags | facts(experiment, data, programs)))
    claim: workdirs.Claim | None = None  # of process 0
    with contextlib.ExitStack() as stack:

        def claim_it() -> Json | None:
            nonlocal claim
            claim = stack.enter_context(workdirs.claimed(workdir, workdirs.RUN))
            with writing_to(directory):
                run_directory.prepare(directory, config, data, programs, overwrite=overwrite)
                path = directory / "result.json"
                return read_json(path, run_directory.GARBLED) if path.exists() else None

        finished = distributed.on_first(claim_it)
        if finished is not None:
            if distributed.is_first():
                said = "%s holds this run already, %s. overwrite runs it again."
                with reading(directory / "result.json", run_directory.GARBLED):
                    log.info(said, directory, summary(finished), extra=RESULT)
            return finished
        with writing_to(directory):
            distributed.require_shared(directory)
            return _ended(_Run(experiment, data, mesh, directory, claim, writers))


def _train(run: _Run) -> Json:
    """Trains to the end, to divergence or to a preemption; returns the content of ``result.json``."""
    periods = run.program.periods
    test = run.evaluate_and_save() if run.lacks_evaluation else None
    with contextlib.closing(run.program.calls(run.step)) as calls:
        while run.step < periods.total:
            run.take(run.next_call(calls))
            evaluates, saves = periods.evaluates_at(run.step), periods.saves_at(run.step)
            if evaluates or saves or periods.logs_at(run.step):
                numbers = read(run.state)
                if periods.logs_at(run.step):
                    run.log(numbers)
                if numbers.nonfinite_step >= 0:
                    return run.result()
            run.record_course()
            if evaluates:
                test = run.evaluate_and_save()
                if not is_finite(test):
                    return run.result(test)
            elif saves:
                run.save()
            if run.diverged:
                return run.result(test)
            if run.preemption.reached() and run.step < periods.total:
                return run.save_and_leave()
    if test is None:  # resumed after the last step
        test = run.evaluate()
    result = run.result(test)
    run.save(evaluated=True, wait=True)
    return result


def _built(config: ConfigDict) -> tuple[Experiment, jax.sharding.Mesh, Json, Json]:
    """What is trained, the devices, and descriptions of the data and of the programs of the user's code."""
    experiment = build(config)
    if "wandb" in config.train.writers:
        require("wandb", "train.writers='wandb'")
    mesh = sharding.make_mesh(config.mesh)
    hint = " A run that exists keeps its batch size: resume it on fewer devices."
    sharding.require_divisible(config.train.batch_size, config.train.accumulate, mesh, hint)
    return experiment, mesh, stored_dataset.to_json(experiment.dataset), identity.programs(experiment, {})


def _ended(run: _Run) -> Json:
    """Trains, and writes the files that describe the run and its result."""
    try:
        run.describe()
        with run.preemption:
            try:
                result = _train(run)
            except Preempted:  # during an evaluation
                result = run.save_and_leave()
    except BaseException:
        if jax.process_count() == 1:  # else closing may wait for a process that is gone
            with contextlib.suppress(Exception):  # of a save in the background; the first error says what happened
                run.close()
        raise
    run.close()
    if distributed.is_first():
        run.write_result(result)
    return result


class _Run:
    """One process's part of a run; the caller enters ``preemption``."""

    def __init__(
        self,
        experiment: Experiment,
        data: Json,
        mesh: jax.sharding.Mesh,
        directory: pathlib.Path,
        claim: workdirs.Claim | None,
        writers: Sequence[Writer],
    ) -> None:
        self._experiment, self._data, self._directory, self._claim = experiment, data, directory, claim
        self._started, self._elapsed_before_s = time.perf_counter(), 0.0
        self.program = ShardedProgram(experiment, mesh, put_train_data(experiment.dataset, mesh))
        self.preemption = Preemption()
        self._checkpoints = RunCheckpoints(experiment, directory / "checkpoints")
        restored, self._evaluated = self._checkpoints.restore(self.program.abstract_state), False
        if restored is None:
            self.state = self.program.initial_state()
        else:
            self.state, meta = restored
            self._elapsed_before_s, self._evaluated = meta["elapsed_s"], meta["evaluated"]
            if distributed.is_first() and not experiment.config.train.same_code:
                expect(experiment.dataset, meta.get("batches", {}), int(self.state.step))
        self.step = self._first_step = self._recorded = int(self.state.step)
        self._rate = jax.jit(learning_rate(experiment.config, experiment.total_steps))
        self._watch = Watch(experiment.config)
        self._log = RunLog(experiment, writers, directory, self.step, self._evaluated)

    def describe(self) -> None:
        """Writes and shows what is trained."""
        if distributed.is_first():
            log.info("%s, work directory %s", self._experiment.description(self.program.mesh), self._directory)
            if self.step:
                log.info("resuming after step %d", self.step)
            write_atomically(self._directory / "config.json", configs.to_json(self._experiment.config))
            create(self._directory / run_directory.DATA, json.dumps(self._data) + "\n")  # it stays as it was
            write_atomically(self._directory / "params.txt", self._experiment.parameter_table() + "\n")

    @property
    def lacks_evaluation(self) -> bool:
        """Whether the last attempt ended before or during the evaluation of its last step."""
        return bool(self.step) and self.program.periods.evaluates_at(self.step) and not self._evaluated

    @property
    def diverged(self) -> bool:
        """Whether the state or a loss was not finite when the state was last to be saved."""
        return not self._checkpoints.finite

    def next_call(self, calls: Iterator[StepsCall]) -> StepsCall:
        with self._saving_on_error():
            return next(calls)

    def take(self, call: StepsCall) -> None:
        if self._claim is not None:
            self._claim.check()
        self._checkpoints.check()
        first = self.step == self._first_step
        if first:
            self.program.compile()
        self.state = self.program.take(self.state, call)
        self.step += int(call.count)
        if first:  # compilation does not count as training time
            jax.block_until_ready(self.state)
            self._log.restart(self.step)

    def log(self, numbers: TrainState) -> None:
        """Shows and writes what happened since the last log; ``numbers``: `read` of the state."""
        rate = float(self._rate(self.step - 1))
        steps_per_s = self._log.train(self.step, {**numbers.recent.means("train_"), "learning_rate": rate})
        if steps_per_s is not None:
            self.program.call_length.adapt(steps_per_s)

    def record_course(self) -> None:
        """Writes ``course.json`` and compares it with ``train.reference``, if the last call took a step of `Course`."""
        course, experiment = self._experiment.course, self._experiment
        columns = lambda: course.columns(jax.device_get(self.state.course), self.step)
        written = lambda: write_course(self._directory, experiment.config, experiment.total_steps, columns())
        if any(self._recorded < step <= self.step for step in course.steps):
            self._recorded = self.step
            with self._saving_on_error():
                distributed.on_first(lambda: self._watch.see(written()))

    def evaluate(self) -> dict[str, float]:
        """``test_loss`` and other metrics of the current state over the test split; none without an evaluation.

        With ``data.validation_fraction``, ``validation_loss`` and so on over the examples that it holds out.
        """
        if not self._experiment.evaluates:
            return {}
        with self._saving_on_error():
            metrics = self.program.evaluate(self.state, lambda: self.preemption.asked)
        dataset, means = self._experiment.dataset, metrics.means()
        return {f"{dataset.evaluated}_{name}": x for name, x in (means | dataset.further(means)).items()}

    def evaluate_and_save(self) -> dict[str, float]:
        """Evaluates, writes a row of metrics, and, unless the loss is not finite, a checkpoint."""
        with self._log.paused():
            test = self.evaluate()
            if test:
                self._log.test(self.step, test)
            if is_finite(test):
                self.save(evaluated=True)
        return test

    def save(self, *, evaluated: bool = False, wait: bool = False) -> None:
        """Writes a checkpoint of the current step, unless it exists, or the state is not finite, or they are off."""
        self._checkpoints.save_finite(self.state, self._elapsed_s(), evaluated=evaluated, first=self._log.upload)
        if wait:
            self._checkpoints.wait()

    def save_and_leave(self) -> Json:
        """Saves the current step; returns a result with the status ``preempted``."""
        if not self._experiment.config.train.checkpoint:
            raise RunStopped("preempted, but train.checkpoint is False: progress since the start is lost.")
        self.save(wait=True)
        return self.result() if self.diverged else {**self.result(), "status": PREEMPTED}

    def result(self, test: dict[str, float] | None = None) -> Json:
        ended = outcome(read(self.state), test, finite=self._checkpoints.finite)
        if ended["status"] == DIVERGED:
            ended["diverged_in"] = diverged_in(self.state, test)
        return {
            **ended,
            "wall_time_s": round(self._elapsed_s(), 2),
            "config_hash": configs.config_hash(self._experiment.config),
            "seed": self._experiment.config.seed,
            "parameters": self._experiment.parameters,
            "versions": versions() | configs.code_version(self._experiment.config),
            "audit": self._experiment.audit(),
        }

    def write_result(self, result: Json) -> None:
        """Writes ``result.json``, unless the run was preempted, and says where it is and how to go on."""
        path, ending = self._directory / "result.json", "Rerun the same command to resume"
        if result["status"] != PREEMPTED:
            write_atomically(path, json.dumps(result, indent=2) + "\n")
            ending = f"Written to {path}"
        if result["status"] == DIVERGED and self._experiment.config.train.checkpoint:
            checkpoint = self._checkpoints.latest()
            ending = f"{f'The last finite state is in {checkpoint}' if checkpoint else 'No state was saved'}. {ending}"
        log.info("%s. %s", summary(result), ending, extra=RESULT)

    def close(self) -> None:
        self._log.close()
        self._checkpoints.close()

    @contextlib.contextmanager
    def _saving_on_error(self) -> Iterator[None]:
        """Saves the computed steps before an error of the data, or being off course, ends the run."""
        try:
            yield
        except (InputError, RunStopped, UserCodeError):
            # Several processes would have to save together, and the others may have got their batch.
            if jax.process_count() == 1:
                self.save(wait=True)
            raise

    def _elapsed_s(self) -> float:
        return self._elapsed_before_s + time.perf_counter() - self._started


def facts(experiment: Experiment, data: Json, programs: Json) -> dict[str, Any]:
    """Named values that differ if the processes would not train the same network on the same ``data``.

    ``data`` is from `depthmup_flax.data.stored_dataset.to_json`, ``programs`` from `identity.programs`.
    """
    fields = flatten_dict(experiment.config.to_dict(), sep=".")
    fields.pop("data.data_dir")  # a host may have its own copy of the data
    code = {} if experiment.config.train.same_code else configs.code_of(experiment.config)
    return {
        **{f"config.{name}": value for name, value in fields.items()},
        **{f"the code of {module}": digest for module, digest in code.items()},
        **{f"the traced program ({name})": digest for name, digest in programs.items()},
        "the hash of the code": _source_digest(),
        **{f"the version of {name}": version for name, version in versions().items()},
        **settings(),
        **{f"the {name}": value for name, value in stored_dataset.facts(data).items()},
    }


def _source_digest() -> str:
    """Of all files of the package; a commit does not show later edits, and a copy may have no commit."""
    root, digest = pathlib.Path(__file__).parents[1], hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + path.read_bytes())
    return digest.hexdigest()[:12]
