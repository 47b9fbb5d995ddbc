"""The training run: devices, data, the loop, checkpoints, and the files it leaves in its work directory."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
from ml_collections import ConfigDict

from depthmup_flax.data import Dataset, TextDataset
from depthmup_flax.errors import InputError, Preempted, RunStopped
from depthmup_flax.files import write_atomically
from depthmup_flax.parallel import distributed, sharding
from depthmup_flax.parallel.preemption import Preemption
from depthmup_flax.provenance import versions
from depthmup_flax.rule.info_trees import info_to_json
from depthmup_flax.training import config as configs
from depthmup_flax.training.checkpoint import Checkpointer
from depthmup_flax.training.device_batches import held_out_batches, train_batches
from depthmup_flax.training.experiment import Experiment, build
from depthmup_flax.training.metrics import MetricsWriter, NoMetrics, Progress, finite_or_none
from depthmup_flax.training.sampling import generate
from depthmup_flax.training.step import EvalMetrics, TrainState, make_eval_step, make_train_step
from depthmup_flax.training.workdir import only_run_in, prepare_workdir, read_json, writing_to

PREEMPTED = "preempted"

# What a language model writes at the end of its run. A temperature below 1 makes a small model's text more orderly.
SAMPLE_TOKENS = 300
SAMPLE_TEMPERATURE = 0.8


def train_and_evaluate(config: ConfigDict, workdir: str | pathlib.Path, *, overwrite: bool = False) -> dict[str, Any]:
    """Trains what ``config`` describes, or goes on where an earlier call with the same ``workdir`` ended.

    Writes ``config.json``, ``params.txt`` (the parameter table), ``metrics.jsonl``, TensorBoard events,
    ``checkpoints/`` and at the end ``result.json``; for a language model also ``sample.txt``, a text that it made. A
    resumed run has the same parameters, bit for bit, as one that was not interrupted; on another number of devices,
    the same up to the order of sums. A loss that is not finite ends the run with the status ``diverged``.

    SIGTERM, or the first Ctrl-C, ends a call early: the state is saved, and the status is ``preempted``. With several
    processes (`depthmup_flax.parallel.distributed`), each of which makes this call, the first one writes all but the
    checkpoints, to which every process writes what its devices hold; ``workdir`` is a directory that all share.

    Args:
      config: from a config file (see `depthmup_flax.training.config.default_config`).
      workdir: created if absent.
      overwrite: delete an earlier run's files in ``workdir`` and start anew.

    Returns:
      The content of ``result.json``: ``status`` (``completed``, ``diverged`` or, with no such file, ``preempted``),
      ``train_loss`` (last step), ``train_loss_avg`` (last epoch, or ``train.average_steps``), ``test_loss``,
      ``test_accuracy``, ``steps``, ``diverged_at_step``, ``wall_time_s``, ``config_hash``, ``seed``, ``parameters``,
      ``versions``. Numbers that are not finite are ``None``.

    Raises:
      InputError: bad configuration or work directory, in one sentence, before anything is compiled or overwritten.
      RunStopped: the work directory cannot be written any more, or the data do not come.
    """
    experiment, mesh = distributed.in_all(lambda: _built(config))
    directory = pathlib.Path(workdir)
    with contextlib.ExitStack() as held:

        def claim() -> dict[str, Any] | None:
            with writing_to(directory):
                prepare_workdir(directory, config, overwrite=overwrite)
                held.enter_context(only_run_in(directory))
                return _finished_result(directory, config)

        finished = distributed.on_first(claim)
        if finished is not None:
            if distributed.is_first():
                print(f"{directory} holds this run already, {summary(finished)}. --overwrite runs it again.")
            return finished
        with writing_to(directory):
            return _train_in(directory, experiment, mesh)


def _built(config: ConfigDict) -> tuple[Experiment, jax.sharding.Mesh]:
    experiment = build(config)
    mesh = sharding.make_mesh(config.mesh)
    sharding.require_divisible(config.train.batch_size, config.train.accumulate, mesh)
    return experiment, mesh


def _finished_result(directory: pathlib.Path, config: ConfigDict) -> dict[str, Any] | None:
    path = directory / "result.json"
    if not path.exists():
        return None
    result = read_json(path)
    if result.get("config_hash") != configs.config_hash(config):
        raise InputError(f"{path} is of another config: choose another workdir, or pass --overwrite.")
    return result


def _train_in(directory: pathlib.Path, experiment: Experiment, mesh: jax.sharding.Mesh) -> dict[str, Any]:
    run = _Run(experiment, mesh, directory)
    try:
        if distributed.is_first():
            write_atomically(directory / "config.json", configs.to_json(experiment.config))
            write_atomically(directory / "params.txt", experiment.parameter_table() + "\n")
        result = run.train()
    except BaseException:
        if jax.process_count() == 1:  # else closing may wait for a process that is gone
            run.close()
        raise
    run.close()
    if distributed.is_first():
        where = directory / "result.json"
        if result["status"] != PREEMPTED:
            write_atomically(where, json.dumps(result, indent=2) + "\n")
        said = "The same command goes on" if result["status"] == PREEMPTED else f"Written to {where}"
        print(f"{summary(result)}. {said}", flush=True)
    return result


def evaluate(
    eval_step: Callable[[Any, Any, Any], Any],
    state: TrainState,
    dataset: Dataset,
    batch_size: int,
    mesh: jax.sharding.Mesh,
    **feed: Any,
) -> dict[str, float]:
    """Mean ``test_loss`` and ``test_accuracy`` over the whole test split; ``feed`` goes to `held_out_batches`."""
    total = EvalMetrics.empty()
    for batch in held_out_batches(dataset, batch_size, mesh, **feed):
        total = total.merge(eval_step(state.params, state.batch_stats, batch))
    values = total.compute()
    return {"test_loss": float(values["loss"]), "test_accuracy": float(values["accuracy"])}


def summary(result: dict[str, Any]) -> str:
    """``completed: 700 steps, test accuracy 97.3%, ...`` for the terminal."""
    if result["status"] == PREEMPTED:
        return f"asked to leave after step {result['steps']}, {result['wall_time_s']:.0f} s"
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
        self._shapes = experiment.state_shapes()
        self._shardings = sharding.state_shardings(self._shapes, experiment.axes, mesh)
        average_steps = config.train.average_steps or experiment.epoch_steps
        train_step = make_train_step(
            experiment.model,
            experiment.optimizer,
            prepare=prepare,
            seed=config.seed,
            log_every=config.train.log_every,
            average_from=max(0, total - average_steps),
            accumulate=config.train.accumulate,
        )
        eval_step = make_eval_step(experiment.model, prepare=prepare)
        self._train_step = jax.jit(_on(mesh, train_step), donate_argnums=0, out_shardings=self._shardings)
        self._eval_step = jax.jit(_on(mesh, eval_step), out_shardings=sharding.replicated(mesh))
        self._eval_every = config.train.eval_every or experiment.epoch_steps
        self._preemption = Preemption()
        self._feed = {"stall_timeout_s": config.train.stall_timeout_s, "asked": lambda: self._preemption.asked}
        self._checkpointer = None
        # A run that has checkpoints goes on from them also if it is to write no more.
        if config.train.checkpoint or (directory / "checkpoints").exists():
            self._checkpointer = Checkpointer(directory / "checkpoints", config.train.keep_checkpoints)
        self._evaluated = False
        self._state, self._elapsed_before = self._initial_state()
        self._started = time.perf_counter()
        first, speaks = int(self._state.step), distributed.is_first()
        self._writer = MetricsWriter(directory, first, evaluated=self._evaluated) if speaks else NoMetrics()
        if speaks:
            self._say_what_runs(first)
        self._progress = Progress(
            total,
            first,
            experiment.epoch_steps,
            units_per_step=config.train.batch_size * dataset.units_per_example,
            unit=dataset.unit,
            silent=not speaks,
        )

    def train(self) -> dict[str, Any]:
        """Trains to the end, or until it is asked to leave; returns the content of ``result.json``."""
        with self._preemption:
            try:
                return self._train()
            except Preempted:  # while data were read
                return self._leave()

    def _train(self) -> dict[str, Any]:
        experiment, config = self._experiment, self._experiment.config
        total, first = experiment.total_steps, int(self._state.step)
        test: dict[str, float] = {}
        if first and (first % self._eval_every == 0 or first == total) and not self._evaluated:
            test = self._evaluate_and_save(first)  # what the attempt before could not do
        batches = train_batches(
            experiment.dataset, config.seed, config.train.batch_size, first, self._mesh, **self._feed
        )
        with batches as upcoming:
            for step in range(first + 1, total + 1):
                self._state = self._train_step(self._state, self._next(upcoming))
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
                elif config.train.checkpoint_every and step % config.train.checkpoint_every == 0:
                    self._save()
                if self._preemption.reached(step) and step < total:
                    return self._leave()
        if not test:  # resumed after the last step
            test = self._evaluate()
        result = self._result("completed", test)
        if isinstance(experiment.dataset, TextDataset):
            self._write_sample(experiment.dataset)
        self._save_now(test)
        return result

    def close(self) -> None:
        """Ends the bar, closes the files."""
        self._progress.close()
        self._writer.close()
        if self._checkpointer is not None:
            self._checkpointer.close()

    def _initial_state(self) -> tuple[TrainState, float]:
        """The latest checkpoint or a fresh state, and the seconds spent before."""
        experiment = self._experiment
        if self._checkpointer is not None:
            abstract = jax.tree.map(
                lambda x, place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place),
                self._shapes,
                self._shardings,
            )
            restored = self._checkpointer.restore(abstract)
            if restored is not None:
                state, meta = restored
                if configs.run_differences(meta["config"], json.loads(configs.to_json(experiment.config))):
                    raise InputError(
                        f"the checkpoints in {str(self._directory)!r} are of another config: choose another workdir, "
                        "or pass --overwrite to delete them."
                    )
                self._evaluated = meta.get("evaluated", True)
                return state, meta["elapsed_s"]
        return jax.jit(experiment.init_state, out_shardings=self._shardings)(), 0.0

    def _next(self, batches: Iterator[Any]) -> Any:
        with self._saving_if_data_fail():
            return next(batches)

    @contextlib.contextmanager
    def _saving_if_data_fail(self) -> Iterator[None]:
        """What was computed is not to be lost because the data are."""
        try:
            yield
        except (InputError, RunStopped):
            # Several processes would have to save together, and the others may have got their batch.
            if jax.process_count() == 1:
                self._save_now()
            raise

    def _leave(self) -> dict[str, Any]:
        if not self._experiment.config.train.checkpoint:
            raise RunStopped("asked to leave, and train.checkpoint is False: nothing is saved.")
        self._save_now()
        return self._result(PREEMPTED, {})

    def _log(self, step: int) -> None:
        """Writes the averages since the last line."""
        loss, accuracy = self._state.recent.means()
        rate = self._progress.update(step, loss, accuracy)
        speed = {} if rate is None else {f"{self._experiment.dataset.unit}_per_s": rate}
        self._writer.write(step, {"train_loss": loss, "train_accuracy": accuracy, **speed})

    def _evaluate(self) -> dict[str, float]:
        train = self._experiment.config.train
        with self._saving_if_data_fail():
            return evaluate(
                self._eval_step,
                self._state,
                self._experiment.dataset,
                train.eval_batch_size,
                self._mesh,
                **self._feed,
            )

    def _evaluate_and_save(self, step: int) -> dict[str, float]:
        self._progress.pause()
        test = self._evaluate()
        self._writer.write(step, test)
        self._progress.say(f"step {step}  test loss {test['test_loss']:.4f}  test acc {test['test_accuracy']:.1%}")
        if math.isfinite(test["test_loss"]):
            self._save(test)
        self._progress.go_on()
        return test

    def _save_now(self, metrics: dict[str, float] | None = None) -> None:
        """`_save`, and waits until it is on the disk."""
        if self._checkpointer is None or not self._experiment.config.train.checkpoint:
            return
        self._save(metrics)
        self._checkpointer.wait()

    def _save(self, metrics: dict[str, float] | None = None) -> None:
        """A checkpoint of the current step, unless there is one or nothing is to be kept."""
        step = int(self._state.step)
        wanted = self._experiment.config.train.checkpoint
        if self._checkpointer is None or not wanted or step <= self._checkpointer.latest_step:
            return
        meta = {
            "config": self._experiment.config.to_dict(),
            "param_info": info_to_json(self._experiment.info),
            "data_position": step * self._experiment.config.train.batch_size,  # examples read since the start
            "elapsed_s": self._elapsed(),
            "evaluated": metrics is not None,
        }
        self._checkpointer.save(step, self._state, meta, metrics)

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
        if not distributed.is_first():
            return
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
            f"{device.device_kind} device(s){self._layout()}, work directory {self._directory}",
            flush=True,
        )
        if first_step:
            print(f"resuming after step {first_step}", flush=True)

    def _layout(self) -> str:
        """`` (data 2, fsdp 4) of 2 processes``, as far as there is something to say."""
        sizes = [f"{axis} {size}" for axis, size in self._mesh.shape.items() if size > 1]
        layout = f" ({', '.join(sizes)})" if sizes and self._mesh.shape["data"] != self._mesh.size else ""
        return layout + (f" of {jax.process_count()} processes" if jax.process_count() > 1 else "")


def _on(mesh: jax.sharding.Mesh, function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, traced for ``mesh``."""

    @functools.wraps(function)
    def traced(*args: Any) -> Any:
        with sharding.activations_on(mesh):
            return function(*args)

    return traced
