"""Costs read from compiled programs: a short one written by hand, and those of XLA with loops of known length."""

import json
import pathlib

import jax
import jax.numpy as jnp
import plan_programs
import processes
import pytest

from depthmup_flax.plan.hlo import Kernels, hlo_costs, memory_bytes, parse, place_of, shape_bytes

# Written by hand in the style of libtpu 0.0.42: a loop of twelve layers that gathers a weight while it multiplies; a
# sum of which devices keep parts; a sum between two slices.
TPU_PROGRAM = pathlib.Path(__file__).with_name("tpu_program.hlo").read_text()


@pytest.fixture(scope="module")
def tpu_costs():
    return hlo_costs(parse(TPU_PROGRAM))


def test_cycles_of_a_loop_count_once_per_iteration_and_unknown_ones_not_at_all(tpu_costs):
    assert tpu_costs.cycles == 12 * 1000 + 70
    longest = tpu_costs.places[0]
    assert (longest.place, longest.cycles, longest.times) == ("backward blocks/mlp/up/dot_general", 12_000, 12)


def test_a_kernel_without_cycles_has_the_costs_that_its_author_gave(tpu_costs):
    assert tpu_costs.kernels == Kernels(times=1, flops=500, bytes=90)


def test_a_communication_that_overlaps_counts_once_and_a_scattered_sum_as_such(tpu_costs):
    gathered, scattered = tpu_costs.collectives["all-gather"], tpu_costs.collectives["reduce-scatter"]
    assert (gathered.times, gathered.bytes) == (12, 12 * 2 * 128 * 128)
    assert (scattered.times, scattered.bytes) == (1, 4 * 256)
    assert tpu_costs.link_bytes == gathered.bytes + scattered.bytes


def test_a_sum_between_slices_is_told_from_those_within(tpu_costs):
    assert tpu_costs.collectives["all-reduce between slices"].bytes == tpu_costs.network_bytes == 4 * 256
    assert len(tpu_costs.collectives) == 3


def test_bytes_are_those_of_the_types_and_leave_out_what_stays_in_the_core():
    assert shape_bytes("(f32[2,3]{1,0:T(8,128)}, bf16[4]{0}, pred[], s4[6], f8e4m3fn[5])") == 24 + 8 + 1 + 3 + 5
    assert shape_bytes("(s32[], u8[0]{0}, token[])") == 4
    assert memory_bytes("(f32[2,3]{1,0:T(8,128)S(1)}, /*index=1*/bf16[4]{0:T(128)})") == 8


def test_a_place_is_the_path_of_scopes_without_transformations():
    line = '  %x.1 = f32[] add(%a, %b), metadata={op_name="%s"}'
    name = lambda path: place_of(
        parse("%c (a: f32[]) -> f32[] {\n" + line.replace("%s", path)).computations["c"]["x.1"]
    )
    assert name("jit(step)/jvp(ViT)/ViT.transform/while/body/blocks/attention/vmap()/exp") == "blocks/attention/exp"
    assert (
        name("jit(step)/transpose(jvp(N))/checkpoint/rematted_computation/mlp/jit(gelu)/mul")
        == "recomputed mlp/gelu/mul"
    )
    assert name("") == "x, added by the compiler"


@pytest.fixture(scope="module")
def looped():
    """Costs of a scan over five layers, whose products read one layer of the stack at a time."""

    def network(stack, x):
        return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, stack)[0]

    stack, x = jax.ShapeDtypeStruct((5, 64, 64), jnp.float32), jax.ShapeDtypeStruct((256, 64), jnp.float32)
    return parse(jax.jit(network).lower(stack, x).compile().as_text())


def test_products_in_a_loop_of_xla_run_once_per_iteration(looped):
    times = [n for one, _, n in looped.executed() if one.opcode == "dot" or "dot_general" in one.source]
    assert times
    assert set(times) == {5}


def test_a_loop_reads_a_stack_of_weights_once_not_once_per_layer(looped):
    activations, layer = 4 * 256 * 64, 4 * 64 * 64
    moved = hlo_costs(looped).bytes
    assert 5 * (layer + 2 * activations) <= moved < 5 * 5 * layer + 5 * 4 * activations


def test_collectives_of_eight_devices_are_counted_with_their_bytes(tmp_path):
    path = tmp_path / "costs.json"
    process = processes.Process(tmp_path / "log", processes.on_devices, 8, plan_programs.write_collectives, str(path))
    assert process.wait() == 0, process.text()
    found = json.loads(path.read_text())
    assert found["summed in three layers"] == {"all-reduce": [3, 3 * 4 * 32 * 32]}
    assert found["gathered"] == {"all-gather": [1, 4 * 64 * 16]}
