"""The figures of TP6's phases: networks in the claimed class, diversity set by alpha, complete runs, bad fields."""

import dataclasses
import json
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict

from depthmup_flax.auditing.config_audit import audited_model
from depthmup_flax.config import from_file
from depthmup_flax.models import ResMLP
from depthmup_flax.rule.directions import direction
from depthmup_flax.rule.optimizer import depthmup, freeze
from depthmup_flax.rule.parametrization import PRESETS, get_parametrization
from depthmup_flax.util.errors import InputError
from depthmup_flax.util.power_fits import fit_power
from reproduction.limits import diversity, phase_networks, phase_plane, run
from reproduction.limits import feature_distances as paths
from reproduction.limits import finite_networks as networks
from reproduction.limits.phase_claims import classify
from reproduction.limits.preset_claims import describe_presets
from reproduction.theory import get_activation

CONFIGS = pathlib.Path(__file__).parents[2] / "configs" / "limits"
FIGURES = ("phase_diagram", "diversity")


def config_of(figure: str, **fields) -> ConfigDict:
    config = from_file(CONFIGS / f"{figure}.py", "smoke")
    with config.ignore_type():
        config.update(fields)
    return config


@pytest.fixture(scope="module")
def plane():
    """Rows of a small phase diagram, with points of every class."""
    config = config_of(
        "phase_diagram",
        seeds=4,
        width=32,
        depths=(32, 64, 128),
        alphas=(0.25, 0.5, 1.0, 1.25),
        gammas=(-0.25, 0.0, 0.5, 0.75),
        path_depths=(32, 128),
        path_alphas=(0.5, 1.0),
        path_steps=60,
    )
    with jax.enable_x64(True):
        return [{**case, **phase_plane.measure(config, case)} for case in phase_plane.cases(config)]


def power_of(name, rows, alpha, gamma):
    return fit_power({r["depth"]: np.array(r[name])[:, -1] for r in rows if (r["alpha"], r["gamma"]) == (alpha, gamma)})


@pytest.mark.slow
def test_steps_change_features_by_the_power_of_depth_that_tp6_claims_over_the_plane(plane):
    """Where features are stable at the start."""
    growth = [row for row in plane if row["what"] == "growth" and row["alpha"] >= 0.5]
    for alpha, gamma in {(row["alpha"], row["gamma"]) for row in growth}:
        assert power_of("change", growth, alpha, gamma).slope == pytest.approx(1 - alpha - gamma, abs=0.12)


@pytest.mark.slow
def test_networks_are_in_the_class_that_tp6_claims(plane):
    assert "The measured class is TP6's at 16 of 16 points." in phase_plane.table(plane)


@pytest.mark.slow
def test_networks_of_another_gamma_are_not_in_the_claimed_class(plane):
    shifted = [{**row, "gamma": row["gamma"] + 0.25} if row["what"] == "growth" else row for row in plane]
    text = phase_plane.table(shifted)
    assert "The measured class is TP6's at 16 of 16 points." not in text
    assert text.count("differs") >= 4


@pytest.mark.slow
def test_the_sum_of_squared_increments_stays_over_depth_at_one_half_and_falls_at_one(plane):
    def power(alpha):
        of_depth = {r["depth"]: r["layer"] for r in plane if (r["what"], r["alpha"]) == ("path", alpha)}
        squares = [np.mean(np.square(of_seeds)) * depth for depth, of_seeds in of_depth.items()]
        return np.polyfit(np.log(list(of_depth)), np.log(squares), 1)[0]

    assert power(0.5) == pytest.approx(0.0, abs=0.15)
    assert power(1.0) == pytest.approx(-1.0, abs=0.15)


@pytest.mark.slow
def test_blocks_are_linear_in_what_training_adds_below_alpha_one_alone(plane):
    """TP6 Def. 7.7 and Claim 7.6; what is left out is the square of a change of L^-gamma."""
    growth = [row for row in plane if row["what"] == "growth"]
    for alpha in (0.5, 1.0, 1.25):
        assert power_of("nonlinear", growth, alpha, 1 - alpha).slope == pytest.approx(alpha - 1, abs=0.15)
        assert classify(alpha, 1 - alpha).layerwise_linear == (alpha < 1)


def test_a_block_is_linear_in_its_weights_where_no_neuron_switches():
    """Of ReLU a switch leaves out the preactivation behind the kink, of a square the square of the change."""
    relu, before = get_activation("relu"), jnp.array([[1.0, -1.0, 0.1, -0.1]])
    change = jnp.array([[0.5, -0.5, -0.3, 0.3]])
    left_out = phase_networks.nonlinear_part(relu, before, before + change)
    np.testing.assert_allclose(left_out, [[-0.1, -0.1, 0.1, 0.1]], atol=1e-7)  # 0, 0, 0.2, 0.2 minus their mean
    assert float(jnp.abs(phase_networks.nonlinear_part(get_activation("linear"), before, before + change)).max()) < 1e-7


@pytest.mark.usefixtures("unoptimized")
@pytest.mark.parametrize("name", ["adam", pytest.param("sgd", marks=pytest.mark.slow)])
def test_the_rules_powers_as_numbers_train_the_rules_network(name):
    """One compiled program serves the plane; the same steps come from the parametrization itself."""
    config = config_of("phase_diagram", optimizer=name, seeds=2)
    case = {"what": "growth", "depth": 8, "alpha": 0.75, "gamma": 0.5}
    found = phase_plane.measure(config, case)["change"]

    rule = get_parametrization(alpha=0.75, gamma=0.5)
    model = networks.network("relu", config.width, 8, rule=rule, pre_nonlin=False, mean_subtraction=True)
    x_BxD, y_B = phase_networks.examples(config)
    info = audited_model(model, x_BxD).info
    direct = depthmup(direction(name), info, rule, config.learning_rate)
    direct = freeze(direct, info, ("stem", "readout"))
    keys = jax.random.split(jax.random.key(config.seed), 2)
    repeat = lambda of_step: jnp.broadcast_to(of_step, (config.steps + 1, *of_step.shape))
    last = lambda params: networks.forward(model, params, x_BxD)[1][-1]
    x_SxTxBxN = networks.trajectories(model, direct, repeat(x_BxD), repeat(y_B), last, keys, lanes=2)
    moved = jnp.sqrt(jnp.mean((x_SxTxBxN[:, 1:] - x_SxTxBxN[:, :1]) ** 2, (2, 3)))
    np.testing.assert_allclose(found, moved, rtol=2e-3)


@pytest.mark.slow
def test_features_that_overflow_are_missing_points(plane):
    over = [
        {**row, "initial": [None] * 4, "change": [[None] * 5] * 4} if row["alpha"] == 0.25 else row for row in plane
    ]
    text = phase_plane.table(over)
    assert "explodes" in text
    assert "16 of 16" in text
    phase_plane.figure(over)
    config = config_of("phase_diagram", depths=(256, 512, 1024), alphas=(0.0,), gammas=(0.0,))
    assert phase_plane.measure(config, phase_plane.cases(config)[2])["initial"] == [None, None]


def test_a_random_walk_has_slope_one_half_and_a_straight_path_slope_one():
    fractions = (1 / 64, 1 / 32, 1 / 16, 1 / 8)
    steps = jax.random.normal(jax.random.key(0), (256, 4, 64))
    walk, line = jnp.cumsum(steps, 0), jnp.arange(256.0)[:, None, None] * steps[0]
    found = [paths.slopes(fractions, np.asarray(paths.distances(path, fractions))[None])[0] for path in (walk, line)]
    assert found == pytest.approx([0.5, 1.0], abs=0.03)


@pytest.mark.slow
def test_trained_features_stay_rough_under_depth_mup_and_turn_smooth_with_depth_at_alpha_one():
    config = config_of("diversity", width=32, depths=(32, 128), fractions=(1 / 32, 1 / 16, 1 / 8, 1 / 4), times=(0, 20))

    def slope(case):
        with jax.enable_x64(True):
            row = diversity.measure(config, case)
        return paths.slopes(row["fractions"], np.array(row["distances"])[:, -1]).mean()

    found = {(case["rule"], case["depth"]): slope(case) for case in diversity.cases(config)}
    assert found["depth_mup", 32] == pytest.approx(0.5, abs=0.07)
    assert found["depth_mup", 128] == pytest.approx(0.5, abs=0.07)
    assert 0.54 < found["ode", 32] < found["ode", 128] - 0.06


@pytest.mark.parametrize(
    ("nonlinearity", "cosine"),
    [("relu", 0.5), *(pytest.param(*case, marks=pytest.mark.slow) for case in (("linear", 1.0), ("abs", 0.0)))],
)
def test_gradients_of_neighboring_blocks_are_as_alike_as_independent_slopes(nonlinearity, cosine):
    """TP6 8.1 and 8.3, at the start and apart from orders N^-1/2 and L^-1."""
    assert diversity.overlap(nonlinearity) == pytest.approx(cosine, abs=1e-6)
    model = ResMLP(10, width=128, depth=32, base_width=128, base_depth=1, nonlinearity=nonlinearity)
    x_BxD = jax.random.normal(jax.random.key(1), (2, 16))
    params = networks.init(model, jax.random.key(0), x_BxD)
    found = diversity.gradient_likeness(model, params, x_BxD, jnp.array([0, 1]))
    assert float(found) == pytest.approx(cosine, abs=0.06)


def test_networks_that_diverge_are_named_and_drawn_without():
    row = {"data": "d", "width": 4, "batch_size": 4, "learning_rate": 1.0, "times": [0, 5], "fractions": [0.125, 0.25]}
    fine = {"rule": "depth_mup", "nonlinearity": "relu", "depth": 8, "distances": [[[1.0, 1.4]] * 2, [[1.0, 1.5]] * 2]}
    fine["likeness"] = [[0.5, 0.5], [0.5, 0.6]]
    torn = {**fine, "depth": 16, "distances": [[[1.0, 1.4]] * 2, [[1.0, 1.5], [None, None]]]}
    rows = [{**row, **of, "losses": [[None, 2.0]] * 2} for of in (fine, torn)]
    assert diversity.table(rows).count("diverged") == 1
    diversity.figure(rows)


@pytest.mark.slow
@pytest.mark.parametrize("name", FIGURES)
def test_the_smoke_scale_runs_to_its_files(name, tmp_path):
    text, paths = run(config_of(name), tmp_path)
    assert {path.name for path in paths} == {"records.jsonl", "report.txt", f"{name}.png", f"{name}.svg"}
    assert all(path.stat().st_size for path in paths)
    assert text == (tmp_path / "report.txt").read_text(encoding="utf-8")
    for line in (tmp_path / "records.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


@pytest.mark.parametrize(
    ("name", "fields", "sentence"),
    [
        ("phase_diagram", {"alphas": (-0.5,)}, "parametrization.alpha is -0.5"),
        ("phase_diagram", {"alphas": ("a",)}, "config.alphas"),
        ("phase_diagram", {"path_alphas": (1.5,)}, "config.path_alphas"),
        ("phase_diagram", {"depths": (8, 16)}, "config.depths"),
        ("phase_diagram", {"fractions": (0.1, 0.2)}, "config.fractions"),
        ("phase_diagram", {"optimizer": "adm"}, "optimizer.name"),
        ("phase_diagram", {"nonlinearity": "rellu"}, "rellu"),
        ("phase_diagram", {"seeds": 1}, "config.seeds"),
        ("diversity", {"kinds": (("depth_mup",),)}, "config.kinds"),
        ("diversity", {"kinds": (("depth_up", "relu"),)}, "depth_up"),
        ("diversity", {"times": (0,)}, "config.times"),
        ("diversity", {"times": (10, 0)}, "config.times"),
        ("diversity", {"fractions": (0.25, 0.125)}, "config.fractions"),
        ("diversity", {"learning_rate": 0.0}, "config.learning_rate"),
    ],
)
def test_a_bad_field_is_one_sentence_before_anything_runs(name, fields, sentence, tmp_path):
    with pytest.raises(InputError, match=sentence) as error:
        run(config_of(name, **fields), tmp_path / "never")
    assert str(error.value).count(". ") == 0
    assert not (tmp_path / "never").exists()


@pytest.mark.parametrize(
    ("alpha", "gamma", "expected"),
    [
        # stable at init, stable in training, nontrivial, faithful at init, in training, redundant, kappa, feature
        # learning, layerwise linear
        (0.5, 0.5, (True, True, True, True, True, False, 0.5, True, True)),  # Claim 7.5: Depth-muP
        (1.0, 0.0, (True, True, True, True, True, True, 0.0, True, False)),  # the ODE limit
        (0.75, 0.25, (True, True, True, True, True, True, 0.0, True, True)),
        (1.5, -0.5, (True, True, True, True, False, None, None, False, False)),  # not faithful during training
        (0.5, 0.0, (True, False, True, None, None, None, None, False, None)),  # block_only: unstable during training
        (0.5, 1.0, (True, True, False, None, None, None, None, False, None)),  # trivial
        (0.0, 0.0, (False, None, None, None, None, None, None, None, None)),  # sp, mup: unstable at initialization
        (0.9, 0.1, (True, True, True, True, True, True, 0.0, True, True)),  # on the line in spite of rounding
    ],
)
def test_classification_follows_definitions_and_claims_7_1_to_7_6(alpha, gamma, expected):
    assert dataclasses.astuple(classify(alpha, gamma))[2:] == expected


def test_presets_are_described_by_the_claims_where_their_premises_hold():
    """TP6's claims are about muP networks whose features move: not about sp, sp_sqrt_depth and ntk."""
    entries = {entry.split()[0]: entry for entry in re.split(r"\n(?=  \w)", describe_presets())}
    assert entries.keys() == PRESETS.keys()
    for name, entry in entries.items():
        rule, claims = PRESETS[name], entry.split("width rule")[1]
        phase = classify(float(rule.alpha), float(rule.gamma))
        assert ("TP6" in claims) == (name not in ("sp", "sp_sqrt_depth", "ntk"))
        if "TP6" in claims:
            assert ("unstable at initialization" in claims) == (not phase.stable_at_init)
            assert ("unstable in training" in claims) == bool(phase.stable_at_init and not phase.stable_in_training)
            diversity = phase.feature_diversity_exponent
            assert ("feature diversity" in claims) == (diversity is not None)
            assert diversity is None or f"feature diversity {diversity:g}" in claims
