"""Every command with a network, data and a training step of the user's own, from a file in the current directory."""

import json
import signal

import pytest
from processes import Process, run_lines

from depthmup_flax.commands.app import user_traceback
from depthmup_flax.trainer.loop import train_and_evaluate

NETS = '''
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from depthmup_flax.trainer.engine.task import Task


class Net(nn.Module):
    """A residual network.

    Attributes:
      width: features of the stream.
    """

    width: int
    depth: int
    rule: object
    heads: int = 1  # of its attention
    num_classes: int = 10

    @nn.compact
    def __call__(self, x):
        h = nn.Dense(self.width, name="stem")(x.reshape(len(x), -1))
        for i in range(self.depth):
            y = nn.Dense(self.width, name=f"block_{i}")(nn.relu(h))
            h = h + self.rule.residual_multiplier(self.depth / 2) * y
        return nn.Dense(self.num_classes, name="head")(h * self.rule.readout_multiplier(self.width / 16))


class Broken(Net):
    @nn.compact
    def __call__(self, x):
        return self.mixed(x.reshape(len(x), -1))

    def mixed(self, x):
        return x @ jnp.zeros((3, 10))


def step(width, depth, rank=2):
    """A step.

    Args:
      rank: of nothing.
    """
    def update(state, batch, hyper):
        inputs, targets = batch
        loss = jnp.mean((inputs.reshape(len(inputs), -1) @ state).sum(-1)) ** 2
        return state - hyper["learning_rate"] * hyper["shrink"] * state, {"loss": loss}

    return Task(lambda key, hyper: jax.random.normal(key, (64, width)), update)


def load():
    x = np.random.default_rng(0).normal(size=(64, 6)).astype(np.float32)
    return (x[:48], np.sin(x[:48, :2])), (x[48:], np.sin(x[48:, :2]))


def regression(width, depth, rule):
    return Net(width, depth, rule, num_classes=2)
'''
SWEEP = '''
"""Two sizes of a field of their own."""
from depthmup_flax.config import default_config
from depthmup_flax import sweep_config


def get_config():
    run = default_config("nets:Net")
    run.model.update(width=16, depth=2, base_width=16, base_depth=2)
    run.train.update(steps=4, batch_size=16, log_every=2)
    axes = {"model.heads": (1, 2), "optimizer.learning_rate": (1e-3, 2e-3)}
    return sweep_config(run, {"heads": axes}, figure="lr", title="Heads", scale="cpu")
'''
SMALL = ["--config=digits", "--config.model.width=16", "--config.model.depth=2"]
SMALL += ["--config.model.base_width=16", "--config.model.base_depth=2", "--config.train.batch_size=16"]
SHORT = ["--config.train.steps=4", "--config.train.log_every=2"]
NET, STEP = ["--config.model.name=nets:Net"], ["--config.model.name=nets:step", "--config.hyper.shrink=0.5"]


@pytest.fixture
def there(tmp_path):
    """A directory with a module of the user and a sweep."""
    (tmp_path / "nets.py").write_text(NETS)
    (tmp_path / "sweep.py").write_text(SWEEP)
    return tmp_path


def lines(there, *of_command):
    return [(done.code, " ".join(done.out.split()), done.error) for done in run_lines(of_command, cwd=there)]


def edited(there):
    (there / "nets.py").write_text(NETS + "\nVERSION = 2\n")


def changed(there):
    (there / "nets.py").write_text(NETS.replace("nn.relu", "nn.tanh") + "\nVERSION = 2\n")


def test_an_error_in_their_code_is_one_line_and_their_own_frames(there):
    ((code, _, error),) = lines(there, ["train", *SMALL, "--config.model.name=nets:Broken"])
    first, blank, *rest = error.splitlines()
    assert code == 1
    assert first.startswith("error: nets:Broken: init(float32[1, 8, 8, 1]) failed: TypeError")
    assert blank == ""
    frames = [line for line in rest if line.startswith("  File")]
    assert [frame.rpartition(" ")[2] for frame in frames] == ["__call__", "mixed"]


def test_a_traceback_without_frames_of_theirs_is_whole():
    with pytest.raises(ValueError, match="Expecting") as caught:
        json.loads("{")
    error = caught.value.with_traceback(caught.value.__traceback__.tb_next)
    assert "decode" in user_traceback(error)


@pytest.mark.slow
def test_a_run_and_a_sweep_of_changed_code_name_the_module(there):
    run, sweep = ["train", *SMALL, *SHORT, *NET, "--workdir=run"], ["sweep", "--config=sweep.py", "--workdir=sweep"]
    assert [lines(there, line)[0][0] for line in (run, sweep)] == [0, 0]
    records = (there / "sweep/records.jsonl").read_text()
    assert len(records.splitlines()) == 4
    edited(there)
    assert [lines(there, line)[0][0] for line in (run, sweep)] == [0, 0]
    changed(there)
    for line in (run, sweep):
        ((code, _, error),) = lines(there, line)
        assert code == 2
        assert "the code of nets has changed" in error
        assert "overwrite" in error
        assert error.count("\n") == 1
    assert (there / "sweep/records.jsonl").read_text() == records


def preempted_run(directory):
    import os

    from depthmup_flax.config import default_config

    os.chdir(directory)
    run = default_config("nets:Net")
    run.model.update(width=16, depth=2)
    run.train.update(steps=100_000, batch_size=16, log_every=10, eval_every=50, checkpoint_every=10)
    train_and_evaluate(run, "run")
    return 0


@pytest.mark.slow
def test_a_preempted_run_of_their_network_resumes(there, tmp_path):
    for attempt, text in enumerate(["preempted after step", "resuming after step"]):
        process = Process(tmp_path / str(attempt), preempted_run, there)
        process.wait_for("images/s")  # it trains, so a signal is answered by a checkpoint
        process.send(signal.SIGTERM)
        assert process.wait() == 0, process.text()
        assert text in process.text()


def test_fields_of_their_network_are_explained(there):
    net, step = lines(there, ["config", *SMALL, *NET, "model"], ["config", *SMALL, *STEP, "model"])
    assert "features of the stream" in net[1]
    assert "model.heads=1 of its attention" in net[1]
    assert "model.audit=True refuse to train" in net[1]
    assert "rank=2 of nothing" in step[1]


@pytest.mark.slow
def test_plans_and_dry_runs_take_networks_and_steps(there):
    planned = lines(there, ["plan", *SMALL, *NET], ["plan", *SMALL, *STEP])
    assert [code for code, _, _ in planned] == [0, 0], planned
    assert "parameters 0.00, optimizer 0.00" in planned[1][1]
    table, step = lines(there, ["train", *SMALL, *NET, "--print_params"], ["train", *SMALL, *STEP, "--print_params"])
    assert "block_*/kernel 16x16 hidden+branch" in table[1]
    assert step[1] == "state float32[64, 16]"
    ((_, dry, _),) = lines(there, ["sweep", "--config=sweep.py", "--dry_run", "--shard=1/2"])
    assert "2 runs in 1 compiled groups in shard 1/2:" in dry
    assert " 2 4 1,754 " in dry


@pytest.mark.slow
@pytest.mark.parametrize("of", [NET, STEP], ids=["network", "step"])
def test_a_tuned_file_has_the_model_that_the_command_line_named(there, of):
    tune = [
        "tune",
        *SMALL,
        *of,
        "--config.model.width=32",
        "--proxy.width=16",
        "--octaves=1",
        "--seeds=1",
        "--trials=3",
    ]
    ((code, _, error),) = lines(there, [*tune, "--proxy.depth=2", "--proxy.steps=4", "--workdir=tune"])
    assert code == 0, error
    ((code, _, error),) = lines(there, ["train", "--config=tune/tuned.py", *SHORT, "--workdir=large"])
    assert code == 0, error
    stored = json.loads((there / "large/config.json").read_text())
    assert (stored["model"]["width"], stored["model"]["base_width"]) == (32, 16)
    assert stored["hyper"] == ({} if of is NET else {"shrink": 0.5})
