"""Copies of an array on several devices are compared: the device that holds other numbers is named."""

import json
import re

import processes
import pytest
from joined import Joined, train_py

from depthmup_flax.util import errors

SMALL = ("--config.model.width=8", "--config.model.depth=2", "--config.train.batch_size=16")


def corrupted(array, device, element=0):
    """``array`` with the lowest bit of one element flipped in the copy that ``device`` holds."""
    import jax
    import numpy as np

    def part(shard):
        if shard.device.id != device:
            return shard.data
        numbers = np.array(shard.data)
        numbers.reshape(-1).view(np.uint32)[element] ^= 1
        return jax.device_put(numbers, shard.device)

    return jax.make_array_from_single_device_arrays(array.shape, array.sharding, [*map(part, array.addressable_shards)])


def sentences(path):
    """What the comparison says of a state of which copies were corrupted on some of eight devices; by case."""
    import jax
    import numpy as np
    from jax.sharding import NamedSharding, PartitionSpec

    from depthmup_flax.devices import sharding
    from depthmup_flax.devices.equal_copies import require_equal_copies
    from depthmup_flax.util.errors import RunStopped

    mesh = sharding.make_mesh({"data": 4, "fsdp": 2})
    ids = np.vectorize(lambda device: device.id)(mesh.devices)

    def state():
        put = lambda spec: jax.device_put(np.arange(32, dtype=np.float32).reshape(4, 8), NamedSharding(mesh, spec))
        specs = {"whole": (), "rows": ("fsdp",), "parts": (None, ("data", "fsdp"))}
        return {name: put(PartitionSpec(*spec)) for name, spec in specs.items()}

    def said(**corruptions):
        tree = state()
        for name, devices in corruptions.items():
            for device in devices:
                tree[name] = corrupted(tree[name], device)
        try:
            return require_equal_copies(tree)
        except RunStopped as error:
            return str(error)

    cases = {
        "none": said(),
        "one of eight": said(whole=[5]),
        "one of four": said(rows=[int(ids[1, 0])]),
        "half": said(whole=range(4)),
        "a part that only one device holds": said(parts=[3]),
    }
    path.write_text(json.dumps(cases))
    return 0


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    path = tmp_path_factory.mktemp("said") / "cases.json"
    process = processes.Process(path.with_suffix(".log"), processes.on_devices, 8, sentences, path)
    assert process.wait() == 0, process.text()
    return json.loads(path.read_text())


def test_equal_copies_pass_and_so_does_a_part_without_a_copy(said):
    assert said["none"] is None
    assert said["a part that only one device holds"] is None


@pytest.mark.parametrize(
    ("case", "sentence"),
    [
        ("one of eight", "the copies of whole on device 5 of process 0 differ from the 7 equal copies"),
        ("one of four", "differ from the 3 equal copies on other devices"),
        ("half", "and device 7 of process 0 differ from each other"),
    ],
)
def test_a_flipped_bit_in_a_copy_names_array_device_and_process(said, case, sentence):
    assert sentence in said[case]


def train_with_a_corrupted_copy(arguments, devices):
    """``train.py``, where a bit of a kernel on the device of process 1 flips after step 5."""
    import jax

    from depthmup_flax.trainer.engine.program import ShardedProgram

    take = ShardedProgram.take

    def corrupting(self, state, call):
        state = take(self, state, call)
        if int(state.step) == 5:
            leaves, structure = jax.tree.flatten(state)
            kernel = next(i for i, leaf in enumerate(leaves) if leaf.ndim == 2)
            leaves[kernel] = corrupted(leaves[kernel], jax.devices()[1].id)
            state = jax.tree.unflatten(structure, leaves)
        return state

    ShardedProgram.take = corrupting
    return train_py(arguments, devices)


@pytest.mark.slow
def test_a_corrupted_copy_stops_all_processes_before_the_checkpoint_and_they_resume(tmp_path):
    arguments = (f"--workdir={tmp_path / 'run'}", "--config.train.steps=12", "--config.train.eval_every=4", *SMALL)
    pair = Joined(tmp_path / "first", 2, 1, *arguments, program=train_with_a_corrupted_copy)
    assert pair.wait() == [errors.STOPPED] * 2, pair.text()
    for process in pair.running:
        (sentence,) = [line for line in process.text().splitlines() if line.startswith("error: the copies of params/")]
        assert re.search(r"on device \d+ of process 0 and device \d+ of process 1 differ from each other", sentence)
    steps = {path.name for path in (tmp_path / "run" / "checkpoints").iterdir() if path.name.isdigit()}
    assert steps == {"4"}
    off = Joined(tmp_path / "off", 2, 1, *arguments, "--config.train.compare_replicas=False")
    assert off.wait() == [0, 0], off.text()
    assert "resuming after step 4" in off.running[0].text()
