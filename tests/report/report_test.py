"""The report of a sweep: planted optima, slopes and valleys are found, and nothing is claimed that is not known."""

import itertools
import json
import math
import pathlib
from html.parser import HTMLParser

import numpy as np
import pytest
from processes import run_command

from depthmup_flax.errors import InputError
from depthmup_flax.records import Record, RecordWriter, Sweep, SweepInfo, info_to_json
from depthmup_flax.report import make_report
from depthmup_flax.report.analysis import analyze, power_laws
from depthmup_flax.report.figures import loss_limits
from depthmup_flax.report.loss_surfaces import profile, roles, surfaces
from depthmup_flax.report.optimum import EDGE_HIGH, EDGE_LOW, NEXT_TO_DIVERGENCE, find_optimum, valley_angle, vertices
from depthmup_flax.report.tables import as_data, as_text, sentences

ROOT = pathlib.Path(__file__).parents[2]
X = "optimizer.learning_rate"
MULTIPLIER = "parametrization.branch_multiplier"
RATES = tuple(2.0**k for k in range(-12, -3))


def record(number, point, loss, *, width=64, depth=4):
    """A run that ended with a loss, or diverged half-way with ``None``."""
    width, depth = point.get("model.width", width), point.get("model.depth", depth)
    slices = [1.0 if loss is None else loss + 1.0, loss]
    return Record(
        run=f"r{number}",
        status="diverged" if loss is None else "completed",
        point=point,
        width=width,
        depth=depth,
        parameters=width * width * depth,
        seed=point.get("seed", 0),
        steps=20,
        train_loss=loss,
        train_loss_avg=loss,
        slice_steps=10,
        train_loss_slices=slices,
        test_loss=loss,
        test_accuracy=None,
        diverged_at_step=15 if loss is None else None,
        wall_time_s=1.0,
        lanes=1,
        device="1 x test",
        versions={"python": "3"},
        commit="abc",
    )


def sweep_of(loss, axes, *, title="A sweep", model=None, x=X):
    """All points of a grid; ``loss(point)`` is the loss or ``None`` for a diverged run."""
    model = {"width": 64, "depth": 4, "base_width": 64, "base_depth": 4} if model is None else model
    info = SweepInfo("test", title, "smoke", x, {k: list(v) for k, v in axes.items()}, {"model": model})
    points = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    return Sweep(info, [record(i, point, loss(point)) for i, point in enumerate(points)], [])


def write(directory, sweep):
    directory.mkdir()
    (directory / "sweep.json").write_text(info_to_json(sweep.info))
    writer = RecordWriter(directory / "records.jsonl")
    writer.write_records(sweep.records)
    writer.close()
    return directory


def study_of(sweep):
    parts = roles(sweep.info)
    return analyze(sweep.info, surfaces(sweep.info, sweep.records, parts), parts.x, parts.second)


def data_of(sweep):
    return as_data(sweep, study_of(sweep))


def parabola(point, *, best=-8.0, noise=0.0, seed=0):
    """0.5 + 0.1 (log2 x - best)^2, with an optimum that moves between seeds."""
    shift = noise * np.random.default_rng((seed, point.get("seed", 0))).normal()
    return 0.5 + 0.1 * (math.log2(point[X]) - best - shift) ** 2


def test_a_planted_parabola_is_recovered_within_its_interval():
    sweep = sweep_of(lambda p: parabola(p, best=-7.7, noise=0.05), {X: RATES, "seed": range(4)})
    (row,) = data_of(sweep)["variants"][0]["rows"]
    low, high = row["interval"]
    assert low < 2**-7.7 < high
    assert high / low < 1.3
    assert row["optimum"] == pytest.approx(2**-7.7, rel=0.1)
    assert row["flags"] == []


def test_vertices_agree_with_a_polynomial_fit_on_uneven_grids():
    rng = np.random.default_rng(0)
    for _ in range(50):
        u = np.sort(rng.uniform(-3, 3, 3))
        curve = np.array([rng.uniform(0.5, 2), 0, 100])  # far above 0, as losses are
        curve[1] = -2 * curve[0] * rng.uniform((u[0] + u[1]) / 2, (u[1] + u[2]) / 2)  # u[1] stays the lowest
        losses = np.polyval(curve, u)
        fitted = np.polyfit(u, losses, 2)
        assert vertices(u, losses) == pytest.approx(-fitted[1] / (2 * fitted[0]), abs=1e-6)


@pytest.mark.parametrize("seeds", [3, 5])
def test_the_interval_covers_the_planted_optimum_in_most_noisy_sweeps(seeds):
    rng, u, covered = np.random.default_rng(1), np.arange(-12.0, -4.0), 0
    for _ in range(100):
        best = rng.uniform(-9, -7)
        moved = best + 0.15 * rng.normal(size=(seeds, 1))
        losses = 0.5 + 0.1 * (u - moved) ** 2 + 0.005 * rng.normal(size=(seeds, len(u)))
        low, high = find_optimum(u, losses, draws=100).at.interval
        covered += low <= best <= high
    assert covered >= 85, covered


def test_a_planted_slope_of_minus_a_half_is_recovered_and_transfer_is_not_denied():
    def loss(point):
        moved = {"mup": -0.5 * math.log2(point["model.depth"] / 4), "depth_mup": 0.0}[point["parametrization.preset"]]
        noise = 0.03 * np.random.default_rng((point["model.depth"], point["seed"])).normal()
        return parabola(point, best=-7.3 + moved + noise)

    presets = ("depth_mup", "mup")
    axes = {"parametrization.preset": presets, "model.depth": (4, 8, 16, 32), X: RATES, "seed": range(4)}
    slopes = {variant["name"]: variant["slopes"]["depth"] for variant in data_of(sweep_of(loss, axes))["variants"]}
    low, high = slopes["mup"]["interval"]
    assert low < -0.5 < high < -0.3
    low, high = slopes["depth_mup"]["interval"]
    assert low < 0 < high < 0.2


def test_regret_is_the_planted_closed_form():
    # The base's optimum is 2^-8; a net of depth 16 loses 0.1 * 2^2 there, one of depth 4 nothing.
    sweep = sweep_of(
        lambda p: parabola(p, best=-8.0 - math.log2(p["model.depth"] / 4)),
        {"model.depth": (4, 8, 16), X: RATES, "seed": range(3)},
    )
    rows = data_of(sweep)["variants"][0]["rows"]
    assert [row["regret"] for row in rows] == pytest.approx([0.0, 0.1, 0.4])
    assert [row["shift"] for row in rows[1:]] == pytest.approx([-1.0, -2.0])


def test_regret_is_diverged_where_the_base_optimum_diverges():
    def loss(point):
        limit = -9 if point["model.depth"] == 8 else 0
        return None if math.log2(point[X]) > limit else parabola(point)

    data = data_of(sweep_of(loss, {"model.depth": (4, 8), X: RATES, "seed": range(2)}))
    _, deep = data["variants"][0]["rows"]
    assert deep["regret"] is None
    assert deep["transferred"] == "diverged"


@pytest.mark.parametrize(("best", "flag", "bound"), [(-14.0, EDGE_LOW, "<="), (-3.0, EDGE_HIGH, ">=")])
def test_an_optimum_at_the_edge_is_flagged_and_bounds_the_shift_without_an_interval_or_slope(best, flag, bound):
    def loss(point):
        return parabola(point, best=best if point["model.depth"] == 32 else -8.0, noise=0.05)

    sweep = sweep_of(loss, {"model.depth": (4, 8, 16, 32), X: RATES, "seed": range(3)})
    (variant,) = data_of(sweep)["variants"]
    assert variant["rows"][-1]["flags"] == [flag]
    assert variant["rows"][-1]["interval"] is None
    assert variant["rows"][-1]["shift_bound"] == bound
    assert variant["slopes"]["depth"]["left_out"] == [32]
    assert any("extend the grid" in said and "depth 32" in said for said in sentences(sweep, study_of(sweep)))


def test_two_optima_at_the_same_edge_have_no_known_shift():
    rows = data_of(sweep_of(lambda p: parabola(p, best=0.0), {"model.depth": (4, 8), X: RATES}))["variants"][0]["rows"]
    assert rows[1]["shift"] is None


def test_two_sizes_inside_the_grid_give_no_slope():
    sweep = sweep_of(
        lambda p: parabola(p, best=-20.0 if p["model.depth"] == 16 else -8.0),
        {"model.depth": (4, 8, 16), X: RATES, "seed": range(3)},
    )
    slope = data_of(sweep)["variants"][0]["slopes"]["depth"]
    assert (slope["value"], slope["sizes"], slope["left_out"]) == (None, [4, 8], [16])


def test_a_point_where_one_seed_diverged_is_missing_and_in_no_mean():
    def loss(point):
        exponent = round(math.log2(point[X]))
        if exponent == -8 and point["seed"] == 1:
            return None
        return 0.001 if exponent == -8 else parabola(point)  # the survivors would be by far the best

    sweep = sweep_of(loss, {X: RATES, "seed": range(3)})
    study = study_of(sweep)
    curve = profile(study.surfaces[0])
    at = curve.index(2.0**-8)
    assert math.isnan(curve.losses.mean(0)[at])
    (row,) = data_of(sweep)["variants"][0]["rows"]
    assert row["diverged"] == {"0.003906": "1/3"}
    assert row["best_loss"] == pytest.approx(0.6)
    assert row["flags"] == [NEXT_TO_DIVERGENCE]
    assert row["interval"] is not None  # half a grid step at least
    assert row["interval"][1] / row["interval"][0] >= 2 * 0.999


def test_runs_that_have_not_ended_are_no_divergence():
    sweep = sweep_of(parabola, {X: RATES, "seed": range(3)})
    sweep = Sweep(sweep.info, [r for r in sweep.records if (r.seed, r.point[X]) != (2, 2.0**-9)], [])
    (row,) = data_of(sweep)["variants"][0]["rows"]
    assert row["diverged"] == {}
    assert row["flags"] == ["incomplete"]
    assert row["optimum"] == pytest.approx(2**-8)  # from the parabola through 2^-10, 2^-8, 2^-7
    assert any(said.startswith("Some runs have not ended at every size") for said in sentences(sweep, study_of(sweep)))


def test_one_seed_has_no_interval_and_says_so():
    sweep = sweep_of(lambda p: parabola(p, best=-8.0 - 0.1 * p["model.depth"]), {"model.depth": (4, 8, 16), X: RATES})
    data = data_of(sweep)
    (variant,) = data["variants"]
    assert all(row["interval"] is row["shift_interval"] is row["regret_interval"] is None for row in variant["rows"])
    assert variant["slopes"]["depth"]["value"] is not None
    assert variant["slopes"]["depth"]["interval"] is None
    assert any(said.startswith("There is one seed only at every size") for said in data["notes"])


def test_a_base_that_was_not_run_is_replaced_by_the_smallest_and_named():
    model = {"width": 64, "depth": 2, "base_width": 0, "base_depth": 2}
    sweep = sweep_of(parabola, {"model.depth": (8, 16), X: RATES}, model=model)
    assert data_of(sweep)["variants"][0]["base"] == {"width": 64, "depth": 8, "is_smallest": True}
    assert any("stands in" in said for said in sentences(sweep, study_of(sweep)))


def test_grids_of_depths_and_of_widths_that_cross_at_the_base_give_a_slope_each():
    def loss(point):
        return parabola(point, best=-8 - math.log2(point["model.depth"] / 4) + math.log2(point["model.width"] / 64) / 2)

    sweep = sweep_of(loss, {"model.depth": (4, 8, 16), "model.width": (16, 32, 64), X: RATES})
    crossing = [r for r in sweep.records if r.width == 64 or r.depth == 4]
    slopes = data_of(Sweep(sweep.info, crossing, []))["variants"][0]["slopes"]
    assert {name: (slope["value"], slope["fixed"]) for name, slope in slopes.items()} == {
        "depth": (pytest.approx(-1), 64),
        "width": (pytest.approx(0.5), 4),
    }


def test_zero_among_the_values_makes_a_linear_axis():
    axis = "optimizer.kwargs.b1"
    sweep = sweep_of(lambda p: 1 + (p[axis] - 0.55) ** 2, {axis: (0.0, 0.3, 0.6, 0.9), "seed": range(3)}, x=axis)
    (row,) = data_of(sweep)["variants"][0]["rows"]
    assert row["optimum"] == pytest.approx(0.55)


def test_a_planted_valley_of_slope_minus_two_is_recovered():
    rng, u, v = np.random.default_rng(0), np.arange(-7.0, 8.0), np.arange(-9.0, 10.0)
    across, along = 2 * u[None] + v[:, None], u[None] - 2 * v[:, None]
    losses = 0.3 + 0.02 * across**2 + 0.0002 * along**2 + 0.001 * rng.normal(size=(3, len(v), len(u)))
    low, high = valley_angle(u, v, losses, draws=50).interval
    assert math.tan(low) < -2 < math.tan(high) < -1


def test_a_round_valley_has_no_slope():
    u = np.arange(-5.0, 6.0)
    assert valley_angle(u, u, (u[None] ** 2 + u[:, None] ** 2)[None]) is None


def test_a_second_continuous_axis_is_minimized_over_and_no_variant():
    def loss(point):
        return parabola(point) + (math.log2(point[MULTIPLIER]) - 1) ** 2

    study = study_of(sweep_of(loss, {MULTIPLIER: (1.0, 2.0, 4.0), X: RATES}))
    (row,) = study.variants[0].rows
    assert set(row.curve.best_y) == {2.0}
    assert row.curve.losses[0] == pytest.approx([parabola({X: x}) for x in RATES])


@pytest.mark.parametrize(
    ("axes", "names"),
    [
        ({"model.norm": ("none", "batch"), "parametrization.alpha": (0.5, 1.0)}, "norm=none, alpha=0.5"),
        ({"parametrization.preset": ("mup", "sp"), "model.use_bias": (True, False)}, "mup, use_bias=True"),
    ],
)
def test_variants_have_short_names(axes, names):
    study = study_of(sweep_of(parabola, {**axes, X: RATES}))
    assert study.variants[0].name == names
    assert len(study.variants) == 4


def test_a_planted_power_law_is_recovered():
    def loss(point):
        return 3.0 * (point["model.width"] ** 2 * point["model.depth"]) ** -0.2 + 0.1 * (math.log2(point[X]) + 8) ** 2

    axes = {"model.width": (32, 64, 128), "model.depth": (4, 8, 16), X: RATES, "seed": range(2)}
    laws = power_laws(study_of(sweep_of(loss, axes)).variants[0].rows)
    found = [law.value for name in ("depth", "width") for law in laws[name].values()]
    assert found == pytest.approx([0.2] * 6)


def test_a_network_that_never_trains_is_said_and_spoils_neither_slopes_nor_limits():
    """An optimum at a huge loss means nothing, and would flatten every other curve."""

    def loss(point):
        dead = point["model.depth"] == 32
        return parabola(point, best=-11 if dead else -8) + (1e15 if dead else 0.0)

    sweep = sweep_of(loss, {X: RATES, "model.depth": (4, 8, 16, 32), "seed": range(3)})
    (variant,) = data_of(sweep)["variants"]
    assert [row["flags"] for row in variant["rows"]] == [[], [], [], ["useless"]]
    slope = variant["slopes"]["depth"]
    assert (slope["sizes"], slope["left_out"]) == ([4, 8, 16], [32])
    assert slope["value"] == pytest.approx(0, abs=1e-6)
    assert any("width 64 depth 32: that network does not train" in said for said in sentences(sweep, study_of(sweep)))
    low, top, _ = loss_limits(study_of(sweep).variants[0].rows)
    assert low < 0.5 < top < 10


def test_an_exploded_neighbor_is_one_that_diverged():
    """A finite loss of 1e13 would put the vertex half-way to the other neighbor."""
    losses = {2.0**-9: 2.06, 2.0**-8: 1.87, 2.0**-7: 1.5e13}
    (row,) = data_of(sweep_of(lambda p: losses[p[X]], {X: tuple(losses), "seed": range(3)}))["variants"][0]["rows"]
    assert row["optimum"] == pytest.approx(2.0**-8)
    assert row["flags"] == ["next to divergence"]


def test_an_unfinished_sweep_is_called_that_and_no_end_of_the_grid(tmp_path):
    whole = sweep_of(lambda p: parabola(p, best=-8), {X: RATES, "seed": range(3)})
    begun = Sweep(whole.info, [record for record in whole.records if record.point[X] > 2.0**-7], [])
    report = make_report([write(tmp_path / "begun", begun)], tmp_path / "out")
    assert "Some runs have not ended" in report.text
    assert "extend the grid" not in report.text
    assert "extend the grid" in as_text(data_of(begun), study_of(begun))  # the same, if that was the whole grid


def test_shapes_of_one_depth_are_variants_and_stages_that_set_the_depth_are_sizes():
    def loss(point):
        return parabola(point) + (0.1 if point["model.stage_sizes"] == [1, 1, 1, 2] else 0.0)

    same = sweep_of(loss, {X: RATES, "model.stage_sizes": ([1, 1, 1, 2], [2, 1, 1, 1]), "seed": range(3)})
    assert len(data_of(same)["variants"]) == 2
    assert roles(same.info).variants == ("model.stage_sizes",)
    deeper = sweep_of(parabola, {X: RATES, "model.stage_sizes": ([1, 1, 1, 1], [2, 2, 2, 2]), "seed": range(3)})
    assert roles(deeper.info).variants == ()


def test_directories_without_a_complete_point_are_refused():
    whole = sweep_of(parabola, {X: (2.0**-9, 2.0**-8), "seed": range(2)})
    apart = [r for r in whole.records if (r.point[X] == 2.0**-9) == (r.seed == 0)]
    with pytest.raises(InputError, match="no point of the sweep has all of its seeds"):
        data_of(Sweep(whole.info, apart, []))


def test_all_diverged_is_one_sentence_with_a_remedy(tmp_path):
    sweep = write(tmp_path / "sweep", sweep_of(lambda p: None, {X: RATES}))
    with pytest.raises(InputError, match=r"all 9 runs diverged .* sweep lower values of optimizer.learning_rate"):
        make_report([sweep], tmp_path / "out")


def test_a_record_without_an_axis_is_refused_by_name():
    sweep = sweep_of(parabola, {X: RATES, "seed": (0, 1)})
    del sweep.records[3].point["seed"]
    with pytest.raises(InputError, match="run r3 has no value of the sweep's axis seed"):
        study_of(sweep)


def test_a_torn_last_line_is_left_out_and_said(tmp_path):
    sweep = write(tmp_path / "sweep", sweep_of(parabola, {X: RATES}))
    path = sweep / "records.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    report = make_report([sweep], tmp_path / "out")
    assert report.data["runs"] == len(RATES) - 1
    assert "torn by a crash" in report.data["notes"][0]
    assert "torn by a crash" in report.text


def test_sweeps_of_different_base_are_not_merged(tmp_path):
    first = write(tmp_path / "a", sweep_of(parabola, {X: RATES}))
    second = write(tmp_path / "b", sweep_of(parabola, {X: RATES}, model={"width": 8}))
    with pytest.raises(InputError, match="not parts of one sweep"):
        make_report([first, second], tmp_path / "out")


def test_shards_give_the_same_report_as_the_whole(tmp_path):
    sweep = sweep_of(lambda p: parabola(p, noise=0.1), {"model.depth": (4, 8), X: RATES, "seed": range(2)})
    whole, count = write(tmp_path / "whole", sweep), len(sweep.records) // 2
    halves = (sweep.records[count:], sweep.records[:count])
    shards = [write(tmp_path / f"{k}", Sweep(sweep.info, half, [])) for k, half in enumerate(halves)]
    make_report([whole], tmp_path / "out")
    make_report(shards, tmp_path / "merged")
    for name in ("report.json", "report.html"):
        assert (tmp_path / "out" / name).read_text() == (tmp_path / "merged" / name).read_text()


class Tags(HTMLParser):
    """Collects open tags, what they refer to, and the text."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.references, self.said = [], [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.references += [value for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.said += data


@pytest.fixture(scope="module")
def full_report(tmp_path_factory):
    """Of a sweep that has every figure, with a title that is no good HTML."""

    def loss(point):
        rate, multiplier = math.log2(point[X]), math.log2(point[MULTIPLIER])
        return None if rate > -5 else parabola(point, noise=0.1) + 0.05 * (multiplier + rate + 8) ** 2

    path = tmp_path_factory.mktemp("full")
    axes = {"model.depth": (4, 8, 16), MULTIPLIER: (0.5, 1.0, 2.0), X: RATES, "seed": range(2)}
    sweep = write(path / "sweep", sweep_of(loss, axes, title="<script>alert('&')</script>"))
    return make_report([sweep], path / "out")


def test_the_page_is_one_file_that_loads_nothing_and_holds_every_figure(full_report):
    text = full_report.paths[0].read_text()
    page = Tags(text)
    assert page.open == []
    assert "http://" not in text
    assert "https://" not in text
    pictures = [path for path in full_report.paths if path.suffix == ".png"]
    names = {path.stem for path in pictures}
    found = {"transfer", "transfer_branch_multiplier", "optima", "curves", "over_time", "heatmap", "parameters"}
    assert names == found
    assert len(page.references) == len(found)
    assert all(reference.startswith("data:image/png;base64,") for reference in page.references)
    assert all(path.exists() and path.stat().st_size for path in full_report.paths)
    assert not list(full_report.paths[0].parent.glob(".*"))  # no temporary files


def test_the_page_escapes_a_title(full_report):
    page = Tags(full_report.paths[0].read_text())
    assert "script" not in page.tags
    assert "<script>alert('&')</script>" in page.said


def test_report_json_is_the_data_and_strict_json(full_report):
    def refuse(name):
        raise ValueError(name)

    text = full_report.paths[1].read_text()
    assert json.loads(text, parse_constant=refuse) == full_report.data


def test_the_command_prints_tables_and_paths_and_refuses_a_directory_without_a_sweep(tmp_path):
    sweep = write(tmp_path / "sweep", sweep_of(parabola, {"model.depth": (4, 8), X: RATES}))
    done = run_command("-m", "depthmup_flax.report", sweep, f"--out={tmp_path / 'out'}")
    assert done.returncode == 0, done.stderr
    assert "best learning rate" in done.stdout
    assert str(tmp_path / "out" / "report.html") in done.stdout
    done = run_command("-m", "depthmup_flax.report", tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.strip().splitlines()) == 1
