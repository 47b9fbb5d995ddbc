"""Kernels of compiled programs for GPUs: their bytes, products and time against closed formulas."""

import pytest

from benchmarks.gpu.hlo import parse
from benchmarks.gpu.roofline import BANDWIDTH_REACHED, H200, IN_FLOAT32, IN_TF32, LAUNCH, PRODUCTS_REACHED, kernel_kinds

# Five layers, of which each multiplies by its slice of a stack of weights, as XLA writes it.
LOOP = """
%fused (param_0: bf16[5,256,256], param_1: s32[]) -> bf16[256,256] {
  %param_0 = bf16[5,256,256]{2,1,0} parameter(0)
  %param_1 = s32[] parameter(1)
  %zero = s32[] constant(0)
  %slice = bf16[1,256,256]{2,1,0} dynamic-slice(%param_0, %param_1, %zero, %zero), dynamic_slice_sizes={1,256,256}
  ROOT %bitcast = bf16[256,256]{1,0} bitcast(%slice)
}

%body (carry: (s32[], bf16[5,256,256], bf16[8,256])) -> (s32[], bf16[5,256,256], bf16[8,256]) {
  %carry = (s32[], bf16[5,256,256]{2,1,0}, bf16[8,256]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%carry), index=0
  %stack = bf16[5,256,256]{2,1,0} get-tuple-element(%carry), index=1
  %x = bf16[8,256]{1,0} get-tuple-element(%carry), index=2
  %loop_slice_fusion.7 = bf16[256,256]{1,0} fusion(%stack, %i), kind=kLoop, calls=%fused
  %gemm.3 = (bf16[8,256]{1,0}, s8[4194304]{0}) custom-call(%x, %loop_slice_fusion.7), CUBLAS
  %y = bf16[8,256]{1,0} get-tuple-element(%gemm.3), index=0
  ROOT %next = (s32[], bf16[5,256,256]{2,1,0}, bf16[8,256]{1,0}) tuple(%i, %stack, %y)
}

%cond (state: (s32[], bf16[5,256,256], bf16[8,256])) -> pred[] {
  %state = (s32[], bf16[5,256,256]{2,1,0}, bf16[8,256]{1,0}) parameter(0)
  ROOT %again = pred[] get-tuple-element(%state), index=0
}

ENTRY %main (start: (s32[], bf16[5,256,256], bf16[8,256])) -> bf16[8,256] {
  %start = (s32[], bf16[5,256,256]{2,1,0}, bf16[8,256]{1,0}) parameter(0)
  %while = (s32[], bf16[5,256,256]{2,1,0}, bf16[8,256]{1,0}) while(%start), condition=%cond, body=%body, TRIPS
  ROOT %end = bf16[8,256]{1,0} get-tuple-element(%while), index=2
}
""".replace("TRIPS", 'backend_config={"known_trip_count":{"n":"5"}}').replace(
    "CUBLAS", 'custom_call_target="__cublas$lt$matmul", backend_config={"lhs_contracting_dimensions":["1"]}'
)


def kinds_of(program):
    return {kind.name: kind for kind in kernel_kinds(parse(program), H200)}


def test_kernels_of_a_loop_count_once_an_iteration_and_read_slices_of_a_stack():
    kinds = kinds_of(LOOP)
    assert {name: kind.times for name, kind in kinds.items()} == {"loop_slice_fusion": 5, "cublas lt matmul": 5}
    layer, row = 2 * 256 * 256, 2 * 8 * 256
    assert kinds["loop_slice_fusion"].bytes == 5 * (2 * layer + 4)  # and an index
    assert kinds["cublas lt matmul"].bytes == 5 * (layer + 2 * row)  # without cuBLAS's workspace
    assert kinds["cublas lt matmul"].flops == 5 * 2 * 8 * 256 * 256
    assert kinds["loop_slice_fusion"].flops == 0


def test_kernels_around_a_loop_of_steps_do_not_count_as_they_run_once_for_many_steps():
    copied = LOOP.replace("  %while = ", "  %copy.1 = bf16[8,256]{1,0} copy(%start)\n  %while = ")
    assert kinds_of(copied)["copy"].times == 1
    known = 'backend_config={"known_trip_count":{"n":"5"}}'
    of_steps = copied.replace(known, 'metadata={op_name="jit(_take_steps)/while"}')
    kinds = kinds_of(of_steps)
    assert {name: kind.times for name, kind in kinds.items()} == {"loop_slice_fusion": 1, "cublas lt matmul": 1}


def test_a_kernel_takes_its_bytes_or_its_products_and_a_launch():
    copies = kinds_of(LOOP)["loop_slice_fusion"]
    assert copies.seconds == pytest.approx(copies.bytes / (BANDWIDTH_REACHED * 4.8e12) + 5 * LAUNCH)
    large = kinds_of(one(PRODUCT.format(kind="bf16", precision="DEFAULT")))["cublas gemm"]
    assert large.flops == 2 * 4096 * 8192 * 2048
    assert large.seconds == pytest.approx(large.flops / (PRODUCTS_REACHED * 989e12) + LAUNCH)


def one(line, *parameters):
    """A program of one kernel."""
    head = "\n".join(f"  %{name} = {shape} parameter({i})" for i, (name, shape) in enumerate(parameters or OPERANDS))
    return f"ENTRY %main (a: f32[]) -> f32[] {{\n{head}\n  ROOT {line}\n}}\n"


OPERANDS = (("a", "bf16[4096,2048]{1,0}"), ("b", "bf16[2048,8192]{1,0}"))
PRODUCT = (
    '%g = {kind}[4096,8192]{{1,0}} custom-call(%a, %b), custom_call_target="__cublas$gemm", backend_config={{'
    '"dot_dimension_numbers":{{"lhs_contracting_dimensions":["1"]}},"operand_precision":["{precision}","{precision}"]}}'
)


@pytest.mark.parametrize(("precision", "share"), [("HIGHEST", IN_FLOAT32), ("HIGH", IN_TF32), ("DEFAULT", IN_TF32)])
def test_float32_products_have_the_speed_of_their_precision(precision, share):
    operands = [(name, shape.replace("bf16", "f32")) for name, shape in OPERANDS]
    (kind,) = kinds_of(one(PRODUCT.format(kind="f32", precision=precision), *operands)).values()
    assert kind.seconds == pytest.approx(2 * 4096 * 8192 * 2048 / (share * 989e12) + LAUNCH)


IMAGES, OUTPUTS, WINDOWS = "bf16[32,28,28,64]{3,2,1,0}", "bf16[32,14,14,128]{3,2,1,0}", "bf16[128,3,3,64]{3,2,1,0}"


@pytest.mark.parametrize(
    ("target", "first", "second", "result"),
    [
        ("convForward", IMAGES, WINDOWS, OUTPUTS),
        ("convBackwardInput", OUTPUTS, WINDOWS, IMAGES),
        ("convBackwardFilter", IMAGES, OUTPUTS, WINDOWS),
    ],
)
def test_a_convolution_and_its_gradients_have_the_same_products(target, first, second, result):
    line = (
        f"%c = ({result}, u8[0]{{0}}) custom-call(%a, %b), window={{size=3x3 stride=2x2}}, "
        f'dim_labels=b01f_o01i->b01f, custom_call_target="__cudnn${target}"'
    )
    (kind,) = kinds_of(one(line, ("a", first), ("b", second))).values()
    assert kind.name == f"cudnn {target}"
    assert kind.flops == 2 * (32 * 14 * 14 * 128) * (3 * 3 * 64)
    assert kind.bytes == 2 * (32 * 28 * 28 * 64 + 32 * 14 * 14 * 128 + 128 * 3 * 3 * 64)


@pytest.mark.parametrize(("target", "products"), [("fmhaSoftmax", 2), ("fmhaSoftmaxBackward", 5)])
@pytest.mark.parametrize(("mask", "share"), [("NO_MASK", 1), ("PADDING_CAUSAL", 0.5)])
def test_attention_has_two_products_backward_five_and_half_of_them_if_causal(target, products, mask, share):
    heads = "bf16[16,1024,12,64]{3,2,1,0}"
    line = (
        f'%d = ({heads}, u8[0]{{0}}) custom-call(%q, %k, %v), custom_call_target="__cudnn${target}", backend_config={{'
        '"cudnn_fmha_backend_config": {"intermediate_tensor_shape": {"element_type": "BF16", "dimensions": '
        f'["16", "12", "1024", "1024"]}}, "mask_type": "{mask}"}}}}'
    )
    (kind,) = kinds_of(one(line, ("q", heads), ("k", heads), ("v", heads))).values()
    assert kind.flops == share * products * 2 * 16 * 12 * 1024 * 1024 * 64
    assert kind.bytes == 4 * 2 * 16 * 1024 * 12 * 64
