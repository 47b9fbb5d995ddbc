"""Runs and commands in processes that start fast: they are forked from one that has imported the package."""

import contextlib
import dataclasses
import functools
import importlib.util
import inspect
import io
import multiprocessing
import os
import pathlib
import pickle
import runpy
import signal
import subprocess
import sys
import tempfile
import time
import traceback

from depthmup_flax.commands import console
from depthmup_flax.util import errors

# The fork server skips a module that it cannot import, silently: the assertion below does not.
_PRELOADED = (
    "depthmup_flax.search.coordinate_check",
    "depthmup_flax.report.sweep_report",
    "depthmup_flax.search.sweep.runner",
    "depthmup_flax.trainer.loop",
    "depthmup_flax.search.tune.tuning",
    "sklearn.datasets",
    "sklearn.model_selection",
)
assert all(importlib.util.find_spec(name) for name in _PRELOADED)
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["processes", *_PRELOADED])
ROOT = pathlib.Path(__file__).parents[2]


class Process:
    """``function(*args)`` in another process, whose output goes to ``log``."""

    def __init__(self, log: pathlib.Path, function, *args, **kwargs):
        self.log = log
        self._process = _CONTEXT.Process(target=_run, args=(str(log), functools.partial(function, *args, **kwargs)))
        self._process.start()
        self.pid = self._process.pid

    def send(self, signal_number):
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal_number)

    def wait(self, timeout_s=120.0):
        """The exit code, once it has ended."""
        self._process.join(timeout_s)
        if self._process.exitcode is None:
            self._process.kill()
            raise TimeoutError(f"still running after {timeout_s} s:\n{self.text()}")
        return self._process.exitcode

    def join(self, timeout_s):
        """Waits until it has ended, or for ``timeout_s``."""
        self._process.join(timeout_s)

    def running(self):
        return self._process.is_alive()

    def text(self):
        return self.log.read_text() if self.log.exists() else ""

    def wait_for(self, *texts, timeout_s=60.0):
        """Waits until it has printed one of ``texts`` or has ended."""
        until = time.monotonic() + timeout_s
        while self.running() and not any(text in self.text() for text in texts):
            if time.monotonic() > until:
                raise TimeoutError(f"none of {texts} was printed in {timeout_s} s:\n{self.text()}")
            time.sleep(0.01)


def run_command(*command, cwd=ROOT):
    """Runs ``python *command`` in ``cwd``, where command is ``-m module ...`` or ``script ...``."""
    with tempfile.TemporaryDirectory() as directory:
        out, error = (pathlib.Path(directory, name) for name in ("out", "error"))
        process = _CONTEXT.Process(target=_run_command, args=([str(word) for word in command], cwd, out, error))
        process.start()
        process.join()
        return subprocess.CompletedProcess(command, process.exitcode, out.read_text(), error.read_text())


@dataclasses.dataclass(frozen=True)
class Answer:
    """What a command line printed, its exit code, and whether a file of the watched directories changed."""

    code: int
    out: str
    error: str
    changed: bool

    @property
    def refuses(self):
        """Whether it is one sentence with the exit code of bad input, and no file changed."""
        one_sentence = self.error.startswith("error: ") and self.error.count("\n") == 1
        return one_sentence and self.code == errors.BAD_INPUT and not self.changed


def run_lines(lines, cwd=ROOT, watched=()):
    """Runs ``depthmup *line`` for lines of one subcommand, one after another in one process; returns their answers.

    Exit codes are those that the lines would have in processes of their own, but for `parallel.distributed.leave`.
    """
    with tempfile.TemporaryDirectory() as directory:
        out = pathlib.Path(directory, "answers")
        process = Process(pathlib.Path(directory, "log"), _answer, lines, cwd, [cwd, *watched], out)
        assert process.wait() == 0, process.text()
        return pickle.loads(out.read_bytes())


def _answer(lines, cwd, watched, out):
    from depthmup_flax.commands.app import main
    from depthmup_flax.devices import distributed

    os.environ["XLA_FLAGS"] += " --xla_force_host_platform_device_count=1"  # no line sets it once JAX has started
    distributed.leave = lambda code, why="": sys.exit(code)
    os.chdir(cwd)
    watched = [] if cwd == ROOT else watched
    answers = []
    for line in lines:
        before, code, printed, error = _contents(watched), 0, io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(error):
            try:
                main(line)
            except SystemExit as end:
                code = end.code or 0
            except BaseException:
                traceback.print_exc()
                code = 1
        answers.append(Answer(code, printed.getvalue(), error.getvalue(), _contents(watched) != before))
    out.write_bytes(pickle.dumps(answers))
    return 0


def _contents(directories):
    paths = [path for directory in directories for path in pathlib.Path(directory).rglob("*")]
    return {path: path.read_bytes() for path in paths if path.is_file() and "__pycache__" not in path.parts}


def command(*words, keep_every_s=None):
    """Runs ``python *words`` in the repository's root; returns its exit code.

    ``keep_every_s`` replaces the default of a sweep, which no flag sets.
    """
    from depthmup_flax.search.sweep import runner

    if keep_every_s is not None:
        inspect.unwrap(runner.sweep).__kwdefaults__["keep_every_s"] = keep_every_s
    os.chdir(ROOT)
    sys.path[0] = str(ROOT)
    try:
        _run_words(words)
    except SystemExit as error:
        return error.code or 0
    except KeyboardInterrupt:  # before the command handles it
        return 128 + signal.SIGINT
    return 0


def on_devices(count, function, *args, **kwargs):
    """``function(*args)`` on ``count`` devices of the host."""
    import jax

    jax.config.update("jax_num_cpu_devices", count)
    return function(*args, **kwargs)


def train(config, workdir):
    from depthmup_flax.trainer.loop import PREEMPTED, train_and_evaluate

    return errors.PREEMPTED if train_and_evaluate(config, workdir)["status"] == PREEMPTED else 0


def train_with_slow_evaluation(config, workdir):
    """Trains; prints "evaluating" at each evaluation, which takes a second per batch."""
    from depthmup_flax.trainer.engine import program

    batches = program.host_test_batches

    def slow(*args, **kwargs):
        print("evaluating")
        for batch in batches(*args, **kwargs):
            time.sleep(1.0)
            yield batch

    config.train.eval_batch_size = 4
    program.host_test_batches = slow
    return train(config, workdir)


def sweep(config, workdir, **kwargs):
    from depthmup_flax.search.sweep.runner import sweep

    sweep(config, workdir, **kwargs)
    return 0


def _run_command(command, cwd, out, error):
    for path, stream in ((out, 1), (error, 2)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), stream)
    os.chdir(cwd)
    sys.path[0] = str(cwd)
    _run_words(command)


def _run_words(words):
    if words[0] == "-m":
        sys.argv = list(words[1:])
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(words)
        runpy.run_path(words[0], run_name="__main__")


def _run(log, function):
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1), os.fdopen(2, "w", buffering=1)
    console.show()
    try:
        code = function()
    except errors.InputError as error:
        print(f"error: {error}")
        code = errors.BAD_INPUT
    except errors.RunStopped as error:
        print(f"error: {error}")
        code = errors.PREEMPTED if isinstance(error, errors.Preempted | errors.Busy) else errors.STOPPED
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
