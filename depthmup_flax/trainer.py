"""The training run: devices, data, the loop, checkpoints, and the files it leaves in its work directory."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import importlib.metadata
import json
import math
import pathlib
import platform
import shutil
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
from ml_collections import ConfigDict

from depthmup_flax import config as configs
from depthmup_flax import sharding
from depthmup_flax.checkpoint import Checkpointer
from depthmup_flax.data import Dataset, TextDataset, batch_indices, eval_batches, train_stream
from depthmup_flax.errors import InputError
from depthmup_flax.experiment import Experiment, build
from depthmup_flax.files import write_atomically
from depthmup_flax.metrics import MetricsWriter, Progress, finite_or_none
from depthmup_flax.params import info_to_json
from depthmup_flax.sampling import generate
from depthmup_flax.training import EvalMetrics, TrainState, init_state, make_eval_step, make_train_step

PACKAGES = ("depthmup-flax", "jax", "flax", "optax", "orbax-checkpoint", "numpy")

# What a language model writes at the end of its run. A temperature below 1 makes a small model's text more orderly.
SAMPLE_TOKENS = 300
SAMPLE_TEMPERATURE = 0.8


def train_and_evaluate(config: ConfigDict, workdir: str | pathlib.Path, *, overwrite: bool = False) -> dict[str, Any]:
    """Trains what ``config`` describes, or goes on where an earlier call with the same ``workdir`` ended.

    Writes ``config.json``, ``params.txt`` (the parameter table), ``metrics.jsonl``, TensorBoard events,
    ``checkpoints/`` and at the end ``result.json``; for a language model also ``sample.txt``, a text that it made. A
    resumed run has the same parameters, bit for bit, as one that was not interrupted. A loss that is not finite ends
    the run with the status ``diverged``.

    Args:
      config: from a config file (see `depthmup_flax.config.default_config`).
      workdir: created if absent.
      overwrite: delete an earlier run's files in ``workdir`` and start anew.

    Returns:
      The content of ``result.json``: ``status`` (``completed`` or ``diverged``), ``train_loss`` (last step),
      ``train_loss_avg`` (last epoch, or ``train.average_steps``), ``test_loss``, ``test_accuracy``, ``steps``,
      ``diverged_at_step``, ``wall_time_s``, ``config_hash``, ``seed``, ``parameters``, ``versions``. Numbers that are
      not finite are ``None``.

    Raises:
      InputError: bad configuration or work directory, in one sentence, before anything is compiled or overwritten.
    """
    experiment = build(config)
    mesh = sharding.make_mesh()
    sharding.require_divisible("train.batch_size", config.train.batch_size, mesh)
    directory = prepare_workdir(pathlib.Path(workdir), config, overwrite=overwrite)
    with only_run_in(directory):
        return _train_in(directory, experiment, mesh)


def _train_in(directory: pathlib.Path, experiment: Experiment, mesh: jax.sharding.Mesh) -> dict[str, Any]:
    config, finished = experiment.config, directory / "result.json"
    if finished.exists():
        result = _read_json(finished)
        if result.get("config_hash") != configs.config_hash(config):
            raise InputError(f"{finished} is of another config: choose another workdir, or pass --overwrite.")
        print(f"{directory} holds this run already, {summary(result)}. --overwrite runs it again.")
        return result
    run = _Run(experiment, mesh, directory)
    try:
        write_atomically(directory / "config.json", configs.to_json(config))
        write_atomically(directory / "params.txt", experiment.parameter_table() + "\n")
        result = run.train()
    finally:
        run.close()
    write_atomically(finished, json.dumps(result, indent=2) + "\n")
    print(f"{summary(result)}. Written to {finished}", flush=True)
    return result


def make_writable(directory: pathlib.Path) -> None:
    """Creates the directory; InputError if it cannot be, or cannot be written to."""
    probe = directory / ".write_test"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise InputError(
            f"workdir {str(directory)!r} cannot be written to ({error.strerror}): choose another."
        ) from error


def prepare_workdir(directory: pathlib.Path, config: ConfigDict, *, overwrite: bool) -> pathlib.Path:
    """Creates the directory and makes sure that it can be written and holds no other run.

    Raises:
      InputError: it cannot be written, or its ``config.json`` differs from ``config`` (says in what).
    """
    make_writable(directory)
    if overwrite:
        with only_run_in(directory):
            _delete_run(directory)
    stored = directory / "config.json"
    if stored.exists():
        ours = json.loads(configs.to_json(config))
        found = configs.differences(_read_json(stored), ours)
        if found:
            raise InputError(
                f"workdir {str(directory)!r} holds a run with another config ({configs.listed(found)}): "
                "choose another directory, or pass --overwrite to delete that run."
            )
    return directory


def evaluate(
    eval_step: Callable[[Any, Any, Any], Any],
    state: TrainState,
    dataset: Dataset,
    batch_size: int,
    mesh: jax.sharding.Mesh,
) -> dict[str, float]:
    """Mean ``test_loss`` and ``test_accuracy`` over the whole test split.

    ``batch_size`` is rounded up to a multiple of the devices; the last batch is padded and masked.
    """
    devices = mesh.shape[sharding.DATA_AXIS]
    size = devices * math.ceil(min(batch_size, len(dataset.test)) / devices)
    total = EvalMetrics.empty()
    for batch in eval_batches(dataset.test, size):
        batch = jax.device_put(batch, sharding.batch_sharding(mesh))
        total = total.merge(eval_step(state.params, state.batch_stats, batch))
    values = total.compute()
    return {"test_loss": float(values["loss"]), "test_accuracy": float(values["accuracy"])}


def train_batches(
    dataset: Dataset, seed: int, batch_size: int, first_step: int, mesh: jax.sharding.Mesh
) -> Iterator[dict[str, jax.Array]]:
    """Batches from ``first_step`` on, sharded over ``mesh``; the batch of a step is a pure function of (seed, step).

    A set that is placed on the device is gathered there, from indices that are computed on the host; another is read
    by Grain's threads. Both give the same batches.
    """
    batch_sharding = sharding.batch_sharding(mesh)
    if dataset.placement == "stream":
        for batch in train_stream(dataset.train, seed, batch_size, start_step=first_step):
            yield jax.device_put(batch, batch_sharding)
        return
    arrays = jax.device_put(dataset.train.arrays(), sharding.replicated(mesh))
    gather = jax.jit(lambda arrays, rows: jax.tree.map(lambda a: a[rows], arrays), out_shardings=batch_sharding)
    step = first_step
    while True:
        rows = batch_indices(seed, step, len(dataset.train), batch_size)
        yield gather(arrays, jax.device_put(rows, batch_sharding))
        step += 1


def summary(result: dict[str, Any]) -> str:
    """``completed: 700 steps, test accuracy 97.3%, ...`` for the terminal."""
    if result["status"] == "diverged":
        return f"diverged: the loss was not finite at step {result['diverged_at_step']}, {result['wall_time_s']:.0f} s"
    return (
        f"completed: {result['steps']} steps, train loss {result['train_loss_avg']:.4f}, "
        f"test loss {result['test_loss']:.4f}, test accuracy {result['test_accuracy']:.1%}, "
        f"{result['wall_time_s']:.0f} s"
    )


class _Run:
    """One process's part of a run: compiled functions, open files, and where training is."""

    def __init__(self, experiment: Experiment, mesh: jax.sharding.Mesh, directory: pathlib.Path) -> None:
        self._experiment, self._mesh, self._directory = experiment, mesh, directory
        config, dataset = experiment.config, experiment.dataset
        total = experiment.total_steps
        prepare = functools.partial(dataset.prepare, config.data.augment)
        average_steps = config.train.average_steps or experiment.epoch_steps
        train_step = make_train_step(
            experiment.model,
            experiment.optimizer,
            prepare=prepare,
            seed=config.seed,
            log_every=config.train.log_every,
            average_from=max(0, total - average_steps),
        )
        everywhere = sharding.replicated(mesh)
        self._train_step = jax.jit(train_step, donate_argnums=0, out_shardings=everywhere)
        self._eval_step = jax.jit(make_eval_step(experiment.model, prepare=prepare))
        self._eval_every = config.train.eval_every or experiment.epoch_steps
        self._checkpointer = None
        if config.train.checkpoint:
            self._checkpointer = Checkpointer(directory / "checkpoints", config.train.keep_checkpoints)
        self._state, self._elapsed_before = self._initial_state(everywhere)
        self._started = time.perf_counter()
        first = int(self._state.step)
        self._writer = MetricsWriter(directory, first)
        self._say_what_runs(first)
        self._progress = Progress(
            total,
            first,
            experiment.epoch_steps,
            units_per_step=config.train.batch_size * dataset.units_per_example,
            unit=dataset.unit,
        )

    def train(self) -> dict[str, Any]:
        """The loop; returns the content of ``result.json``."""
        experiment, config = self._experiment, self._experiment.config
        total, first = experiment.total_steps, int(self._state.step)
        batches = train_batches(experiment.dataset, config.seed, config.train.batch_size, first, self._mesh)
        test: dict[str, float] = {}
        for step in range(first + 1, total + 1):
            self._state = self._train_step(self._state, next(batches))
            if step == first + 1:  # compilation is not training speed
                jax.block_until_ready(self._state)
                self._progress.restart(step)
            logs = step % config.train.log_every == 0 or step == total
            evaluates = step % self._eval_every == 0 or step == total
            if logs:
                self._log(step)
            if (logs or evaluates) and int(self._state.nonfinite_step) >= 0:
                return self._result("diverged", {})
            if evaluates:
                test = self._evaluate_and_save(step)
                if not math.isfinite(test["test_loss"]):  # the last update was one too many
                    return self._result("diverged", {})
        if not test:  # resumed after the last step
            test = self._evaluate()
        result = self._result("completed", test)
        if isinstance(experiment.dataset, TextDataset):
            self._write_sample(experiment.dataset)
        return result

    def close(self) -> None:
        """Ends the bar, waits for the checkpoint that is being written, closes the files."""
        self._progress.close()
        self._writer.close()
        if self._checkpointer is not None:
            self._checkpointer.close()

    def _initial_state(self, everywhere: jax.sharding.NamedSharding) -> tuple[TrainState, float]:
        """The latest checkpoint or a fresh state, and the seconds spent before."""
        experiment = self._experiment

        def init() -> TrainState:
            return init_state(
                experiment.model, experiment.optimizer, experiment.config.seed, experiment.dataset.input_spec
            )

        if self._checkpointer is not None:
            shapes = jax.eval_shape(init)
            abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=everywhere), shapes)
            restored = self._checkpointer.restore(abstract)
            if restored is not None:
                state, meta = restored
                if configs.differences(meta["config"], json.loads(configs.to_json(experiment.config))):
                    raise InputError(
                        f"the checkpoints in {str(self._directory)!r} are of another config: choose another workdir, "
                        "or pass --overwrite to delete them."
                    )
                return state, meta["elapsed_s"]
        return jax.jit(init, out_shardings=everywhere)(), 0.0

    def _log(self, step: int) -> None:
        """Writes the averages since the last line."""
        loss, accuracy = self._state.recent.means()
        rate = self._progress.update(step, loss, accuracy)
        speed = {} if rate is None else {f"{self._experiment.dataset.unit}_per_s": rate}
        self._writer.write(step, {"train_loss": loss, "train_accuracy": accuracy, **speed})

    def _evaluate(self) -> dict[str, float]:
        config = self._experiment.config
        return evaluate(
            self._eval_step, self._state, self._experiment.dataset, config.train.eval_batch_size, self._mesh
        )

    def _evaluate_and_save(self, step: int) -> dict[str, float]:
        self._progress.pause()
        test = self._evaluate()
        self._writer.write(step, test)
        self._progress.say(f"step {step}  test loss {test['test_loss']:.4f}  test acc {test['test_accuracy']:.1%}")
        if self._checkpointer is not None and math.isfinite(test["test_loss"]):
            meta = {
                "config": self._experiment.config.to_dict(),
                "param_info": info_to_json(self._experiment.info),
                "data_position": step * self._experiment.config.train.batch_size,  # examples read since the start
                "elapsed_s": self._elapsed(),
            }
            self._checkpointer.save(step, self._state, meta, test)
        self._progress.go_on()
        return test

    def _write_sample(self, dataset: TextDataset) -> None:
        """``sample.txt``: what the model writes after a line's end; the same for the same parameters and seed."""
        tokens = generate(
            self._experiment.model,
            {"params": self._state.params, "batch_stats": self._state.batch_stats},
            [dataset.tokenizer.newline],
            SAMPLE_TOKENS,
            key=jax.random.key(self._experiment.config.seed),
            context=dataset.context,
            temperature=SAMPLE_TEMPERATURE,
        )
        text = dataset.tokenizer.decode(tokens)
        write_atomically(self._directory / "sample.txt", text + "\n")
        # Bytes of an untrained model may be commands to a terminal.
        shown = "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text.strip())
        self._progress.say("\n  ".join(["sample", *shown.split("\n")]))

    def _elapsed(self) -> float:
        return self._elapsed_before + time.perf_counter() - self._started

    def _result(self, status: str, test: dict[str, float]) -> dict[str, Any]:
        state, diverged = self._state, int(self._state.nonfinite_step)
        if status == "diverged" and diverged < 0:
            diverged = int(state.step)
        values = {
            "status": status,
            "train_loss": float(state.last_loss),
            "train_loss_avg": state.final.means()[0],
            "test_loss": test.get("test_loss"),
            "test_accuracy": test.get("test_accuracy"),
            "steps": int(state.step),
            "diverged_at_step": None if diverged < 0 else diverged,
            "wall_time_s": round(self._elapsed(), 2),
            "config_hash": configs.config_hash(self._experiment.config),
            "seed": self._experiment.config.seed,
            "parameters": sum(x.size for x in jax.tree.leaves(state.params)),
            "versions": versions(),
        }
        return {name: finite_or_none(value) for name, value in values.items()}

    def _say_what_runs(self, first_step: int) -> None:
        experiment, config, data = self._experiment, self._experiment.config, self._experiment.dataset
        rule, model = experiment.parametrization, config.model
        place = "streamed" if data.placement == "stream" else "on the device"
        device = jax.devices()[0]
        print(
            f"model  {model.name}, width {model.width} (base {model.base_width or model.width}), "
            f"depth {model.depth} (base {model.base_depth or model.depth}), {experiment.parameters:,} parameters\n"
            f"rule   {config.parametrization.preset}, alpha {rule.alpha:g}, gamma {rule.gamma:g}; "
            f"{config.optimizer.name}, learning rate {config.optimizer.learning_rate:g}\n"
            f"data   {data.name}, {len(data.train):,} train and {len(data.test):,} test "
            f"{data.describe()}, {place}\n"
            f"run    {experiment.total_steps} steps of {config.train.batch_size} on {jax.device_count()} "
            f"{device.device_kind} device(s), work directory {self._directory}",
            flush=True,
        )
        if first_step:
            print(f"resuming after step {first_step}", flush=True)


def versions() -> dict[str, str]:
    """Of Python and the packages that decide a run's numbers."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:  # imported from a checkout that is not installed
            found[package] = "not installed"
    return found


@contextlib.contextmanager
def only_run_in(directory: pathlib.Path, lock: str = ".lock") -> Iterator[None]:
    """Holds a lock that the system releases with the process, however it ends; InputError if another process has it."""
    with (directory / lock).open("a") as file:
        if jax.process_index() == 0:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise InputError(
                    f"workdir {str(directory)!r} is in use by another run: wait or choose another."
                ) from error
            except OSError:  # a file system without locks
                pass
        yield


def _read_json(path: pathlib.Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path} is not JSON ({error}): delete it, or pass --overwrite to start anew.") from error


def _delete_run(directory: pathlib.Path) -> None:
    """Deletes what a run writes, and nothing else."""
    # config.json guards the rest, so it goes last.
    if (directory / "checkpoints").exists():
        shutil.rmtree(directory / "checkpoints")
    for events in directory.glob("events.out.tfevents.*"):
        events.unlink()
    for name in ("result.json", "sample.txt", "metrics.jsonl", "params.txt", "config.json"):
        (directory / name).unlink(missing_ok=True)
