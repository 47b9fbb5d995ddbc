"""benchmarks/: fair turns, equal networks, and tables that match the results."""

from __future__ import annotations

import dataclasses
import json
import textwrap

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest

from benchmarks import plain
from benchmarks.bundles import bundle_cycles, kernels
from benchmarks.contest import Contender, measure, ratio
from benchmarks.figures import FIGURES
from benchmarks.ours import train_step
from benchmarks.pages import PAGE, document, stored, summary, table, where
from benchmarks.row import Row
from benchmarks.run import run
from benchmarks.setting import Setting
from depthmup_flax.models import ResMLP, ResNet, SimpleResNet, ViT
from depthmup_flax.util.flops import count_flops


def test_flops_of_a_residual_mlp_are_six_per_weight_and_example_but_for_the_inputs_gradient():
    depth = 6
    facts = train_step({"name": "res_mlp", "width": 32, "depth": depth}, batch=4, side=8, seconds=0.0)()
    weights = {"stem": 3 * 8 * 8 * 32, "blocks": depth * 32 * 32, "readout": 32 * 10}
    assert facts["parameters"] == sum(weights.values())
    assert facts["flops"] == 4 * (4 * weights["stem"] + 6 * (weights["blocks"] + weights["readout"]))


VALUE = {"median": 1.05, "low": 0.9, "high": 1.2, "n": 5}
CONTENDERS = """
import os, time

def steady(name, log, seconds):
    def run():
        with open(log, "a") as file:
            print(name, os.getpid(), file=file)
        time.sleep(seconds)
        print("this is no answer")
        return {"seconds": seconds}
    return run
"""


@pytest.fixture
def contenders(tmp_path, monkeypatch):
    """A module of contenders that processes can import."""
    (tmp_path / "made_up.py").write_text(textwrap.dedent(CONTENDERS))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path / "log"


def test_contenders_take_turns_in_their_processes_after_a_warm_up(contenders):
    runners = [
        Contender(name, "made_up:steady", {"name": name, "log": str(contenders), "seconds": seconds}, process)
        for name, seconds, process in (("a", 0.01, "one"), ("b", 0.02, "one"), ("c", 0.04, ""))
    ]
    measurements = measure(runners, rounds=3)
    log = [line.split() for line in contenders.read_text().splitlines()]
    assert [name for name, _ in log] == [*"abc", *"abc", *"cba", *"abc"]
    process = dict(log)
    assert process["a"] == process["b"] != process["c"]
    assert ratio(measurements, "c", "a") == {"median": 4.0, "low": 4.0, "high": 4.0, "n": 3}


@pytest.mark.parametrize(
    ("ours", "name"),
    [
        (ResMLP(num_classes=10, width=16, depth=3), "res_mlp"),
        (SimpleResNet(num_classes=10, width=16, depth=6), "simple_resnet"),
        (ViT(num_classes=10, width=16, depth=3, patch_size=4), "vit"),
    ],
    ids=["ResMLP", "SimpleResNet", "ViT"],
)
def test_the_plain_networks_have_the_parameters_and_operations_of_ours(ours, name):
    fields = {k: getattr(ours, k) for k in plain.FIELDS if hasattr(ours, k)}
    x = jnp.ones((2, 16, 16, 3))

    def facts(model):
        variables = jax.eval_shape(lambda: nn.unbox(model.init(jax.random.key(0), x)))
        flops = count_flops(jax.make_jaxpr(lambda v: model.apply(v, x))(variables))
        return sum(a.size for a in jax.tree.leaves(variables)), flops

    theirs, mine = facts(plain.NETWORKS[name](**fields)), facts(ours)
    # Flax computes the patches by a convolution, which counts as the same product.
    assert theirs == mine


def test_the_plain_resnet_has_the_parameters_and_operations_of_ours():
    ours, theirs = ResNet(num_classes=10, width=8, depth=8, stem="imagenet"), plain.ResNet(8, 8, 10)
    x = jnp.ones((2, 64, 64, 3))

    def facts(model, **fields):
        variables = jax.eval_shape(lambda: nn.unbox(model.init(jax.random.key(0), x)))
        apply = lambda v: model.apply(v, x, mutable="batch_stats", **fields)
        sizes = sum(a.size for a in jax.tree.leaves(variables["params"]))
        return sizes, count_flops(jax.make_jaxpr(apply)(variables))

    assert facts(theirs) == facts(ours, train=True)


# A grid of 6 steps, with the two more that the compiler adds, each over 8 examples, two at a time.
LISTING = """
LB: loop body
     0   :  { %s1 = smov 0 }
   0x1 LB: > { %s2 = sadd.s32 1, %s3 }
   0x2   :  {}
   0x3   : > { %p4 = scmp.ge.s32.totalorder %s2, 8 /* loop exit test */ }
   0x4 LB: >> { %s5 = sadd.s32 2, %s6  ;;  %p7 = scmp.ge.s32.totalorder %s5, 8 /* loop exit test */ }
   0x5   : >> { %8 = sbr.rel (!%p7) target = $region1 }
   0x6   : > { %9 = sbr.rel (!%p4) target = $region2 }
   0x7   :  { %10 = vsyncpa [#allocation6], 1 }
"""


def test_a_kernels_cycles_are_its_bundles_times_the_trips_of_the_loops_around_them():
    outside, grid, inside = 2, 4, 2
    assert bundle_cycles(LISTING) == outside + 8 * grid + 6 * 4 * inside


def test_a_loop_whose_trips_are_not_listed_has_no_estimate():
    with pytest.raises(ValueError, match="trips"):
        bundle_cycles(LISTING.replace(", 8 /* loop exit test */ }\n   0x4", ", %s9 }\n   0x4"))


PROGRAM = """
ENTRY %main (x: f32[8]) -> f32[8] {
  %x = f32[8]{0} parameter(0)
  %near = f32[8]{0:S(1)} copy(%x)
  %sums.1 = f32[8]{0} custom-call(%x), custom_call_target="tpu_custom_call"
  %sums.2 = f32[8]{0} custom-call(%near), custom_call_target="tpu_custom_call"
  %sums.3 = f32[8]{0} custom-call(%sums.2), custom_call_target="tpu_custom_call"
  ROOT %other = f32[8]{0} custom-call(%sums.3), custom_call_target="Sharding"
}
"""


def test_equal_kernels_are_listed_once_by_the_compiler_and_count_each_time(tmp_path):
    (tmp_path / "17-sums.1-01-final_bundles.txt").write_text("   0   :  { %s1 = smov 0 }\n" * 5)
    (tmp_path / "17-sums.1-00-schedule-analysis_final_bundles.txt").write_text("another listing")
    (tmp_path / "18-sums.2-01-final_bundles.txt").write_text("   0   :  { %s1 = smov 0 }\n" * 7)
    assert kernels(PROGRAM, tmp_path) == {"sums.1": [2, 5], "sums.2": [1, 7]}


def test_estimates_for_tpus_compare_one_network_and_say_what_kernels_take():
    (result,) = stored()["tpu"]
    facts = dict[str, set[tuple[int, float]]]()
    for name, cell in result["cells"].items():
        inside = sum(times * cycles for times, cycles in cell["kernels"].values())
        assert cell["kernels_seconds"] == pytest.approx(inside / 1.5e9)
        assert cell["products_seconds"] < cell["seconds"] - cell["kernels_seconds"]
        title, _, form = name.rpartition(": ")
        assert form in ("ours", "plain Flax")
        facts.setdefault(title, set()).add((cell["parameters"], cell["products_seconds"]))
    assert all(len(of_forms) == 1 for of_forms in facts.values())


def test_a_bound_is_judged_by_both_quartiles_and_from_the_right_side():
    judgment = lambda *bar, **kwargs: Row("f", "c", "a", VALUE, *bar, **kwargs).judgment
    assert judgment(1.3) == judgment(0.8, at_most=False) == "met"
    assert judgment(0.8) == judgment(1.3, at_most=False) == "missed"
    assert judgment(1.1) == judgment(1.1, at_most=False) == "within noise"
    assert judgment() == ""


@pytest.mark.slow
def test_a_measured_figure_is_written_and_shown_and_other_figures_and_stacks_stay(tmp_path):
    out = tmp_path / "results.json"
    (stack,) = Setting().stacks
    elsewhere = {**dataclasses.asdict(Row("import", "c", "a", VALUE)), "stack": "Python 3.99, jax 9"}
    again = {**elsewhere, "stack": stack.name, "case": "measured again"}
    other, facts = {"rows": [], "measured": {}}, {"day": "2026-01-01", "versions": {"jax": "9"}}
    earlier = {"rows": [elsewhere, again], "measured": {"Python 3.99, jax 9": facts}}
    out.write_text(json.dumps({"figures": {"curve_vit": other, "importing": earlier}}))
    result = run(Setting(rounds=1, quick=True), ["importing"], out)
    assert result == json.loads(out.read_text())
    assert result["figures"]["curve_vit"] == other
    kept, row, everything = result["figures"]["importing"]["rows"]
    assert kept == elsewhere
    assert result["figures"]["importing"]["measured"].keys() == {"Python 3.99, jax 9", stack.name}
    assert result["figures"]["importing"]["measured"][stack.name]["versions"]["jax"] == jax.__version__
    # Importing the package imports jax, flax and optax. One round, with other tests on the machine: wide bounds.
    assert row["value"]["n"] == 1
    assert row["stack"] == stack.name
    assert 0.5 < row["value"]["median"] < 2.5
    assert row["seconds"] == everything["seconds"]
    header, _, *lines = table([result]).splitlines()
    assert len(lines) == 3  # other cases: lines of their own
    assert all(line.count("|") == header.count("|") == 8 for line in lines)
    assert f"* {stack.name}: {result['hardware']}; python " in where([result])


def test_a_table_has_a_column_for_each_stack_and_a_row_for_each_processor(tmp_path):
    def result(processor: str, **medians: float) -> dict:
        rows = [
            {**dataclasses.asdict(Row("f", "c", "a", {**VALUE, "median": value}, 1.1)), "stack": stack}
            for stack, value in medians.items()
        ]
        return {"hardware": processor, "figures": {"parametrization": {"rows": rows, "measured": {}}}}

    lines = table([result("fast", old=1.5, new=1.25), result("slow", new=1.75)]).splitlines()
    assert lines == [
        "| figure | case | against | new | old | bound | processor |",
        "|---|---|---|---|---|---|---|",
        "| f | c | a | **1.25 x** (0.9-1.2, 5); within noise | **1.5 x** (0.9-1.2, 5); within noise | <= 1.1 | fast |",
        "| f | c | a | **1.75 x** (0.9-1.2, 5); within noise |  | <= 1.1 | slow |",
    ]


def test_the_page_shows_the_results_in_the_repository(tmp_path, monkeypatch):
    results = stored()["cpu"]
    assert {name for result in results for name in result["figures"]} <= FIGURES.keys()
    copy = tmp_path / PAGE.name
    copy.write_text(PAGE.read_text())
    monkeypatch.setattr("benchmarks.pages.PAGE", copy)
    document()
    assert summary(results) in copy.read_text()
    assert copy.read_text() == PAGE.read_text(), "python -m benchmarks.run --document"
