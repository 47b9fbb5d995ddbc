"""Layouts of devices: the same training on each, memory that falls, and what is refused."""

import dataclasses
import json
import math

import jax
import numpy as np
import on_devices
import processes
import pytest
from jax.sharding import PartitionSpec as P

from depthmup_flax import InputError
from depthmup_flax.config import default_config
from depthmup_flax.devices import sharding
from depthmup_flax.rule.info_trees import path_name
from depthmup_flax.trainer.engine.from_config import build
from depthmup_flax.trainer.loop import train_and_evaluate


@pytest.fixture
def on_eight_devices(tmp_path):
    """The result of a program of `on_devices`, in a process with eight devices."""

    def run(program, *arguments):
        path = tmp_path / "result.json"
        process = processes.Process(
            tmp_path / "log", processes.on_devices, 8, on_devices.write, str(path), program, *arguments
        )
        assert process.wait(600) == 0, process.text()
        return json.loads(path.read_text())

    return run


EVERY_AXIS = "data 2, fsdp 4"
slow = pytest.mark.slow


@pytest.mark.parametrize(
    ("model", "layouts"),
    [
        ("res_mlp", [EVERY_AXIS]),
        pytest.param("gpt", [EVERY_AXIS, "data 8"], marks=slow),
        pytest.param("llama", [EVERY_AXIS], marks=slow),
        pytest.param("simple_resnet", [EVERY_AXIS], marks=slow),  # with batch norm
    ],
)
def test_a_model_trains_on_eight_devices_as_on_one(model, layouts, on_eight_devices):
    """In double precision: losses are stored in single, projections of parameters to its rounding of Adam's epsilon."""
    results = on_eight_devices("compared", model, ["one", *layouts])
    one = results["one"]
    assert len(set(one["losses"])) > 2  # it does train
    assert one["split"] == []
    for layout in layouts:
        result = results[layout]
        np.testing.assert_allclose(result["losses"], one["losses"], rtol=3e-7)
        np.testing.assert_allclose(result["marks"], one["marks"], rtol=3e-6, atol=3e-6)
        assert bool(result["split"]) == (layout != "data 8")


@pytest.mark.slow
def test_muon_has_whole_matrices_on_each_device_and_gathers_no_stack(on_eight_devices):
    for layout, found in on_eight_devices("muon_updates").items():
        assert found["error"] < 1e-4, layout
        assert bool(found["all-to-all"]) == ("fsdp" in layout), layout
        # Of a stack of seven layers, at most what a device holds with the padding of the stack.
        stacks = [math.prod(int(n) for n in shape.split(",")) for shape in found["all-gather"]]
        assert all(size <= 7 * 32 * 128 / 2 for size in stacks) or layout == "data 8", layout


def test_a_convolutions_gradient_is_summed_over_devices_however_its_images_are_split(on_eight_devices):
    gradients = on_eight_devices("conv_gradients")
    assert len(gradients) == 4
    for layout, gradient in gradients.items():
        np.testing.assert_allclose(gradient, gradients["one"], rtol=1e-12, err_msg=layout)


def test_all_derivatives_through_a_gathered_kernel_are_those_of_one_device(on_eight_devices):
    found = on_eight_devices("derivatives")
    for kind, value in found["one"].items():
        np.testing.assert_allclose(found["eight"][kind], value, rtol=1e-12, atol=1e-12, err_msg=kind)


def test_a_split_table_is_never_whole_on_a_device(on_eight_devices):
    """Neither for a look-up nor for its gradient: a vocabulary is larger than what a batch looks up."""
    sizes = [np.prod([int(n) for n in shape.split(",")]) for shape in on_eight_devices("lookup_collectives") if shape]
    assert sizes
    assert max(sizes) < 48 * 16


def test_the_layout_of_a_stream_on_gpus_is_set_on_each_devices_part(on_eight_devices):
    """GSPMD gathers what it would constrain as a whole."""
    for found in on_eight_devices("stream_of_a_gpu").values():
        assert found["exchanged"] == []
        assert set(found["layouts"]) == {"2,1,0"}


def test_the_attention_kernel_runs_on_each_devices_examples(on_eight_devices):
    results = on_eight_devices("fused_attention_parts")
    assert results[EVERY_AXIS]["parts"] == [[1, 5, 256]] * 4
    for layout, result in results.items():
        np.testing.assert_array_equal(result["values"], results["one"]["values"], err_msg=layout)


@pytest.mark.slow
def test_parts_of_a_batch_and_recomputed_activations_train_like_the_whole(on_eight_devices):
    losses = on_eight_devices("in_parts", "vit")
    for other in ("parts", "dots", "full"):
        np.testing.assert_allclose(losses[other], losses["whole"], rtol=3e-7)


@pytest.mark.slow
def test_memory_for_the_state_falls_as_one_over_fsdp(on_eight_devices):
    """Also that no copy of all parameters is made whole: temporaries stay below a quarter of them."""
    results = {int(fsdp): value for fsdp, value in on_eight_devices("memory").items()}
    whole = results[1]["whole_state"]
    for fsdp, of_one_device in results.items():
        assert of_one_device["arguments"] == pytest.approx(whole / fsdp, rel=0.02)
        parameters = whole / 3  # Adam keeps two numbers beside each
        assert of_one_device["temporaries"] < parameters / 4


def test_parameters_are_split_as_their_axes_say():
    mesh = jax.sharding.AbstractMesh((2, 4), sharding.MESH_AXES)
    spec = lambda names, shape: sharding.param_spec(names, shape, mesh)
    assert spec(("layers", "width_in", "inner_out"), (3, 8, 16)) == P(None, "fsdp", None)
    assert spec(("layers", "inner_in", "width_out"), (3, 16, 8)) == P(None, None, "fsdp")
    assert spec((None, None, "width_in", "width_out"), (3, 3, 8, 8)) == P(None, None, "fsdp", None)
    assert spec(("width_in", "fixed_out"), (8, 10)) == P("fsdp", None)  # classes stay together
    assert spec(("fixed_in", "width_out"), (8, 6)) == P("fsdp", None)  # 6 does not divide by 4
    assert spec(("fixed_in", "width_out"), (7, 6)) == P(None, None)
    assert spec(("vocab_in", "width_out"), (12, 8)) == P(None, "fsdp")
    assert spec(("layers", "width_out"), (4, 8)) == P(None, None)  # vectors are everywhere


def test_the_optimizers_state_lies_as_the_parameters_do():
    config = default_config("gpt")
    config.data.update(name=f"text:{__file__}", context=8)
    config.optimizer.frozen = ("stem",)
    experiment = build(config)
    mesh = jax.sharding.AbstractMesh((2, 2), sharding.MESH_AXES)
    state = experiment.state_shapes()
    placed = sharding.state_shardings(state, experiment.network.axes, mesh)
    specs = {path_name(path): s.spec for path, s in jax.tree_util.tree_flatten_with_path(placed)[0]}
    kernel = "transformer/blocks/mlp/up/kernel"
    lying = [spec for path, spec in specs.items() if path.endswith(kernel)]
    assert lying == [P(None, "fsdp", None)] * 3  # the parameter and Adam's two moments
    assert specs["step"] == P()
    assert all(spec == P() for path, spec in specs.items() if path.endswith("count"))


@pytest.mark.parametrize(
    ("axes", "devices", "shape"),
    [
        ({"data": -1, "fsdp": 1}, 8, (8, 1)),
        ({"data": 2, "fsdp": -1}, 8, (2, 4)),
        ({"data": 1, "fsdp": 1}, 1, (1, 1)),
    ],
)
def test_minus_one_is_all_devices_that_are_left(axes, devices, shape):
    assert sharding.mesh_shape(axes, devices) == shape


@pytest.mark.parametrize(
    "fields", [{"mesh.fsdp": 3}, {"mesh.data": 2}, {"mesh.fsdp": -1}, {"mesh.fsdp": 0}, {"train.accumulate": 3}]
)
def test_a_mesh_or_a_batch_that_does_not_fit_is_refused_before_anything_is_written(fields, tmp_path):
    config = default_config()
    config.update_from_flattened_dict(fields)
    with pytest.raises(InputError, match=r"mesh is|batch_size is 64"):
        train_and_evaluate(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@dataclasses.dataclass(frozen=True)
class AbsentDevice:
    """What a mesh is arranged by, of a machine that is not here."""

    id: int
    platform: str
    device_kind: str
    slice_index: int
    coords: tuple[int, int, int]
    core_on_chip: int = 0


def absent_devices(platform, kind, slices):
    return [
        AbsentDevice(4 * part + 2 * y + x, platform, kind, part, (x, y, 0))
        for part in range(slices) for y in range(2) for x in range(2)
    ]  # fmt: skip


def test_data_is_the_axis_between_tpu_slices():
    devices = absent_devices("tpu", "TPU v5 lite", 2)
    mesh = sharding.make_mesh({"data": -1, "fsdp": 2}, devices)
    assert [[d.slice_index for d in row] for row in mesh.devices] == [[0, 0], [0, 0], [1, 1], [1, 1]]
    with pytest.raises(InputError, match=r"^mesh.data is 1: .* number of TPU slices, 2"):
        sharding.make_mesh({"data": -1, "fsdp": 8}, devices)


def test_any_axis_may_span_hosts_of_gpus():
    """Each is a slice to JAX; parameters of a model may be split over several."""
    devices = absent_devices("gpu", "NVIDIA H100", 2)
    mesh = sharding.make_mesh({"data": 1, "fsdp": -1}, devices[::-1])
    assert [d.id for d in mesh.devices.flat] == list(range(8))  # host by host


def test_tpu_chips_with_a_hole_are_refused():
    with pytest.raises(InputError, match=r"^the 3 devices of kind TPU v5 lite form no mesh: .* Use a whole slice.$"):
        sharding.make_mesh(devices=absent_devices("tpu", "TPU v5 lite", 1)[:3])


@pytest.mark.parametrize(
    ("batch_size", "accumulate", "devices", "multiple"), [(20, 1, 8, 8), (64, 3, 1, 3), (4, 2, 4, 8)]
)
def test_a_batch_that_does_not_divide_is_refused(batch_size, accumulate, devices, multiple):
    mesh = jax.sharding.AbstractMesh((devices, 1), sharding.MESH_AXES)
    says = f"^train.batch_size is {batch_size}: it must be a multiple of {multiple}, .* train.accumulate={accumulate}.$"
    with pytest.raises(InputError, match=says):
        sharding.require_divisible(batch_size, accumulate, mesh)


def test_a_batch_is_put_together_from_the_rows_that_a_process_has():
    mesh = sharding.make_mesh()
    rows = sharding.local_rows(mesh, 6)
    np.testing.assert_array_equal(rows, np.arange(6))  # one process has all
    batch = {"image": np.arange(12.0).reshape(6, 2)}
    np.testing.assert_array_equal(sharding.put_batch(batch, rows, 6, mesh)["image"], batch["image"])
