"""Figures of theory over networks: complete runs, networks that decide which theory is right, and bad fields."""

import json
import pathlib

import jax
import numpy as np
import pytest

from depthmup_flax.config import from_file
from depthmup_flax.util.errors import InputError
from reproduction.limits import limit_convergence, linear_kernel, linear_limit, ntk, run, training_curve
from reproduction.limits.finite_networks import ensemble_sizes
from reproduction.limits.fitted_rates import aligned, rate, rates_table

CONFIGS = pathlib.Path(__file__).parents[2] / "configs" / "limits"
MODULES = {"ntk": ntk, "linear_kernel": linear_kernel, "linear_limit": linear_limit, "training_curve": training_curve}


def smoke(name, **fields):
    config = from_file(CONFIGS / f"{name}.py", "smoke")
    config.update(fields)
    return config


def measured(module, config, selected=lambda case: True):
    """Rows of the selected cases."""
    with jax.enable_x64(True):
        return [{**case, **module.measure(config, case)} for case in module.cases(config) if selected(case)]


@pytest.mark.slow
@pytest.mark.parametrize("name", MODULES)
def test_a_figure_runs_to_its_files_and_its_table_is_made_from_records_alone(name, tmp_path):
    few = {"widths": (8, 16), "depths": (2, 4)} if name == "training_curve" else {}  # every size is compiled
    text, paths = run(smoke(name, **few), tmp_path)
    assert {path.name for path in paths} == {"records.jsonl", "report.txt", f"{name}.png", f"{name}.svg"}
    assert all(path.stat().st_size > 0 for path in paths)
    assert "fitted power" in text
    records = map(json.loads, (tmp_path / "records.jsonl").read_text().splitlines())
    assert MODULES[name].table([{**record["case"], **record["values"]} for record in records]) in text


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("scale", ["cpu", "gpu"])
def test_larger_scales_pass_their_checks(name, scale):
    cases = MODULES[name].cases(from_file(CONFIGS / f"{name}.py", scale))
    assert len({str(case) for case in cases}) == len(cases) > 10


@pytest.mark.parametrize(
    ("name", "fields", "sentence"),
    [
        ("ntk", {"nonlinearity": "swish"}, "activation is 'swish'"),
        ("ntk", {"widths": (16, 16)}, r"config.widths is \(16, 16\): give different whole numbers"),
        ("ntk", {"depths": (0, 2)}, "config.depths is .* of at least 1"),
        ("ntk", {"seeds": 12}, "config.seeds is 12: use a multiple of 8"),
        ("ntk", {"angles": 10}, "config.angles is 10: use a multiple of 8, plus 1"),
        ("ntk", {"branch_multiplier": 0.0}, "config.branch_multiplier is 0.0: use a positive number"),
        ("linear_kernel", {"learning_rate": -1.0}, "config.learning_rate is -1.0: use a positive number"),
        ("linear_kernel", {"width_depth": 0}, "config.width_depth is 0: use a whole number of at least 1"),
        ("linear_kernel", {"profile_seeds": 1}, "config.profile_seeds is 1: use a multiple of 8"),
        ("linear_limit", {"depth": 6}, "network_depths has 6: use multiples of 4"),
        (
            "linear_limit",
            {"theory_depths": (12,)},
            r"config.theory_depths is \(12,\): give depths of which each is twice",
        ),
        (
            "linear_limit",
            {"steps": (1, 2000)},
            r"config.steps is \(1, 2000\): use fewer, it takes 2001 images and digits has 1500",
        ),
        ("training_curve", {"images": 2000}, r"config.images is 2000: use fewer, .* digits has 1500"),
        ("training_curve", {"nonlinearity": "swish"}, "config.nonlinearity is 'swish': use one of linear, relu"),
        ("training_curve", {"limit_depth": 5}, "config.limit_depth is 5: use an even number"),
        ("training_curve", {"seeds": 12}, "config.seeds is 12: use a multiple of 8"),
        ("training_curve", {"populations": 1}, "config.populations is 1: use a whole number of at least 2"),
        ("linear_limit", {"data": {"name": "digit"}}, "data.name is 'digit': there is no such data set"),
    ],
)
def test_a_bad_field_is_one_sentence_before_anything_runs(name, fields, sentence, tmp_path):
    said = []
    with pytest.raises(InputError, match=sentence):
        run(smoke(name, **fields), tmp_path, say=said.append)
    assert not said


def test_text_is_refused_where_images_are_needed(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("abcdefgh " * 400)
    with pytest.raises(InputError, match="it holds no images"):
        linear_limit.cases(smoke("linear_limit", data={"name": f"text:{path}"}))


@pytest.mark.slow
def test_tangent_kernels_of_networks_are_those_of_their_depth_and_approach_it_as_one_over_width():
    config = smoke("ntk", widths=(32, 128), seeds=256)
    config.theory_depths = (2,)
    rows = measured(ntk, config)
    limit, finite = (np.array(row["kernel"])[::4] for row in rows[:2])
    narrow, wide = (row for row in rows if row["what"] == "networks")
    noise = np.array(wide["spread"]) / np.sqrt(wide["seeds"])
    assert np.all(np.abs(wide["kernel"] - finite) < 5 * noise + 0.02 * finite)
    assert np.abs(wide["kernel"] - limit)[0] > 10 * noise[0]  # which is why the depth matters
    assert 2.5 < np.mean(narrow["square_errors"]) / np.mean(wide["square_errors"]) < 7


@pytest.mark.slow
def test_networks_decide_for_the_corrected_kernel_against_the_printed_one():
    config = smoke("linear_kernel", profile_width=256, depths=(64,), theory_depths=(64,), profile_seeds=32)
    rows = measured(linear_kernel, config, lambda case: case.get("panel") != "width" and case["depth"] in (0, 64))
    limit, finite, networks = rows
    noise = networks["spread_change"][-1] / np.sqrt(32)
    assert abs(networks["change"][-1] - finite["change"][-1]) < 4 * noise
    assert abs(limit["change"][-1] - 12.315) < 1e-3
    assert abs(limit["printed"][-1] - 17.31) < 0.01
    assert networks["change"][-1] + 4 * noise < limit["printed"][-1]


@pytest.mark.slow
def test_trained_linear_networks_approach_theory_as_one_over_width():
    config = smoke("linear_limit", widths=(32, 128), network_depths=(8,), network_width=32, seeds=64)
    rows = measured(linear_limit, config, lambda case: case["depth"] == 8)
    theory, narrow, wide = rows
    for name in ("square_errors", "square_errors_outputs"):
        assert 2.2 < np.mean(narrow[name]) / np.mean(wide[name]) < 8
    noise = np.array(wide["spread"]) / 8
    assert np.all(np.abs(np.subtract(wide["rms"], theory["rms"])) < 5 * noise + 0.03)
    # Training moves features: by much more than networks differ from theory.
    assert np.abs(np.array(theory["rms"]) - theory["start"]).max() > 0.06


@pytest.mark.slow
def test_the_training_curve_of_the_limit_predicts_networks_better_the_wider_they_are():
    config = smoke("training_curve", widths=(16, 64), depths=(8,), seeds=64, populations=16)
    study = training_curve.Study(measured(training_curve, config))
    narrow, wide = (study.square_errors((width, 8)).mean() for width in study.widths)
    assert 2.5 < narrow / wide < 8  # 4 as 1 / width
    # Against the same images with their labels exchanged it is no prediction.
    study.limit_TxP = -study.limit_TxP
    assert study.square_errors((64, 8)).mean() > 20 * wide


def test_errors_of_a_training_curve_are_those_of_single_networks():
    outputs_SxTxP = np.random.default_rng(0).normal(size=(32, 3, 2))
    limit_TxP, targets_P = np.ones((3, 2)) / 2, np.array([1.0, -1.0])
    groups = outputs_SxTxP.reshape(8, 4, 3, 2)
    values = {"seeds": 32, "outputs": groups.mean(1).tolist(), "spread": groups.std(1).tolist()}
    limit = {"outputs": limit_TxP.tolist(), "targets": targets_P.tolist(), "error": np.full((3, 2), 0.1).tolist()}
    study = training_curve.Study([{"what": "limit", **limit}, {"what": "networks", "width": 4, "depth": 2, **values}])
    expected = np.mean((outputs_SxTxP - limit_TxP)[:, 1:] ** 2)
    assert study.error((4, 2)) == pytest.approx(expected**0.5, rel=1e-12)
    losses_T = np.mean((outputs_SxTxP - targets_P) ** 2 / 2, (0, 2))
    np.testing.assert_allclose(study.losses_GxT((4, 2)).mean(0), losses_T, rtol=1e-12)
    assert study.limit_error == pytest.approx(0.1)


@pytest.mark.slow
def test_limit_convergence_runs_to_its_files_and_networks_are_near_their_theory(tmp_path):
    _, paths = run(smoke("limit_convergence"), tmp_path)
    assert {path.name for path in paths} == {
        "records.jsonl", "report.txt", "limit_convergence.png", "limit_convergence.svg",
    }  # fmt: skip
    records = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    rows = [{**record["case"], **record["values"]} for record in records]
    (study,) = limit_convergence.studies(rows)
    assert study.widths == [8, 16]
    assert study.depths == [2, 4]
    for error in study.errors.values():
        # A network of width 8 varies by a third of what it learns; the mean of hundreds is nearer to theory.
        assert 0.01 < error.variance.value < 0.2
        assert error.mean.value < 0.2 * error.variance.value
        assert error.total.value > error.variance.value
    losses = np.array(study.limit["losses"])
    assert (np.diff(losses) < 0).all()


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"nonlinearities": ("relu", "erf")}, "config.learning_rates is .*give one for each"),
        ({"nonlinearities": ("swish",)}, "config.nonlinearities has 'swish'"),
        ({"widths": (8, 8)}, "config.widths is"),
        ({"limit_depth": 5}, "config.limit_depth is 5: use an even number"),
        ({"seeds_times_width": 32}, "config.seeds_times_width is 32: use at least 64"),
        ({"steps": 0}, "config.steps is 0"),
        ({"seed": -1}, "config.seed is -1"),
        ({"nonlinearities": ()}, "config.nonlinearities is"),
        ({"nonlinearities": ("relu", "relu"), "learning_rates": (0.1, 0.1)}, "config.nonlinearities is .*different"),
        ({"learning_rates": ("a",)}, "config.learning_rates is .*positive numbers"),
        ({"learning_rates": (-1.0,)}, "config.learning_rates is .*positive numbers"),
    ],
)
def test_a_bad_field_of_limit_convergence_is_one_sentence(fields, sentence):
    with pytest.raises(InputError, match=sentence):
        limit_convergence.cases(smoke("limit_convergence", **fields))


def test_rates_are_fitted_and_printed_beside_the_expected_ones():
    text = rates_table([rate("error", {size: [size**-2.0] for size in (2, 4, 8)}, -2, "exact")])
    assert text.splitlines()[1].split() == ["error", "2,", "4,", "8", "-2.00", "+-", "0.00", "-2", "exact"]
    assert "needs 3 sizes" in rates_table([rate("error", {2: [1.0], 4: [1.0]}, None, "exact")])
    assert len({len(line) for line in aligned([["a", "b"], ["ab", "abc"]]).splitlines()}) == 1


def test_narrower_networks_are_more_at_no_more_cost():
    assert ensemble_sizes((64, 16), 8) == {16: 32, 64: 8}
