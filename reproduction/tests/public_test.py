"""Published sweeps: readers take rows as the sources write them, and known exponents and laws are found again.

None of these tests needs the files but the last, which is skipped without them.
"""

import json
import math

import numpy as np
import pytest

import depthmup_flax as dm
from reproduction.public import depth, forecasts, page, rates, sources
from reproduction.public.curves import Curve, curve_of
from reproduction.public.sources import Run


def run(width=64, layers=4, tokens=1e9, loss=3.0, **given):
    fields = {"source": "step_law", "series": "dense", "parameters": 12.0 * width**2 * layers, **given}
    return Run(width=width, depth=layers, tokens=tokens, loss=loss, **fields)


def cell(best, width=64, layers=4, tokens=1e9, batch=1e5, series="dense", step=1.0):
    """A parabola around the base-2 logarithm ``best``."""
    x = [step * i for i in range(-12, -4)]
    return Curve(tuple(x), tuple(3 + 0.02 * (at - best) ** 2 for at in x), width, layers, tokens, batch, series)


def test_a_parabola_has_its_minimum_and_its_regret():
    curve = cell(-8.3)
    assert (curve.best, curve.least) == pytest.approx((-8.3, 3.0))
    assert curve.regret(-7.3) == pytest.approx(0.02)
    assert curve.regret(-99) == pytest.approx(0.02 * 3.7**2)  # the end of the grid
    assert not cell(-20).inner


def test_runs_of_one_rate_are_averaged():
    curve = curve_of([run(rate=rate, loss=loss) for rate, loss in ((0.25, 4.0), (0.25, 2.0), (0.5, 5.0))])
    assert (curve.x, curve.y) == ((-2.0, -1.0), (3.0, 5.0))


def test_exponents_that_made_the_best_rates_are_found():
    random = np.random.default_rng(0)
    sizes = [(2**a, 2**b, 2.0**c) for a in (6, 7, 8) for b in (2, 3, 4) for c in (30, 32)]
    law = lambda w, d, t: -8 - math.log2(w / 128) - 0.5 * math.log2(d / 8) - 0.25 * (math.log2(t) - 31)
    noisy = lambda *size: law(*size) + 0.01 * random.standard_normal()
    curves = [cell(noisy(*size), *size) for size in sizes]
    found = rates.exponents("", curves, {**rates.WIDTH, **rates.DEPTH, **rates.TOKENS}, lambda c: 0, lambda c: c.width)
    assert list(found.values.values()) == pytest.approx([-1, -0.5, -0.25], abs=0.03)
    assert found.correlation == pytest.approx(0, abs=1e-9)


def test_sizes_that_grow_together_are_refused_and_nearly_so_are_shown():
    together = [cell(-8, width=2**k, layers=2**k) for k in (5, 6, 7)]
    with pytest.raises(ValueError, match="do not tell"):
        rates.exponents("", together, {**rates.WIDTH, **rates.DEPTH}, lambda c: 0)
    nearly = [*together, cell(-8, width=2**7, layers=2**6)]
    assert rates.exponents("", nearly, {**rates.WIDTH, **rates.DEPTH}, lambda c: 0).correlation > 0.8


def test_the_factor_by_which_best_rates_move_has_no_regret_and_others_have_what_the_parabola_says():
    base, target = cell(-8), cell(-9.5, width=128, layers=8)
    rows = rates.regrets({"a": [(base, target)]}, {"rule": rates.power(-1, -0.5), "none": rates.NONE})
    assert [row.mean for row in rows] == pytest.approx([0, 0.02 * 1.5**2], abs=1e-9)


def test_the_distance_law_covers_what_it_says():
    random, pairs = np.random.default_rng(0), []
    for _ in range(400):
        spread = math.hypot(rates.OWN_SPREAD, rates.DISTANCE_SPREAD * 3)
        pairs.append((cell(-8), cell(-8.5 + spread * random.standard_normal(), width=256, layers=8)))
    inside, count, _ = rates.covered(pairs, lambda pair: rates.power(0, -0.5))
    assert inside / count == pytest.approx(0.95, abs=0.03)


def test_pairs_over_length_and_batch_size_differ_in_nothing_else():
    curves = [cell(-8, tokens=t, batch=b, series=s) for t in (1e9, 2e9) for b in (1e5, 4e5) for s in ("a", "b")]
    longer = [pair for group in rates.longer_pairs(curves).values() for pair in group]
    assert len(longer) == 4
    assert all(b.batch == t.batch and b.series == t.series and b.tokens < t.tokens for b, t in longer)
    other_batch = [pair for group in rates.batch_pairs(curves).values() for pair in group]
    assert len(other_batch) == 8
    assert all(b.tokens == t.tokens and b.batch != t.batch for b, t in other_batch)


def test_targets_have_rungs_of_a_tenth_of_their_cost_and_no_larger_ones():
    runs = [run(width=2**k, tokens=2.0 ** (2 * k), series="x", source="open_lm") for k in range(4, 13)]
    found = forecasts.targets(runs)
    assert {target.half for target in found} == {"closed"}
    assert all(rung.cost <= 0.1 * t.run.cost and rung.width < t.run.width for t in found for rung in t.rungs)
    assert min(len(target.rungs) for target in found) == 6


def test_a_forecast_of_a_known_law_is_right():
    law = lambda r: 1.7 + 3 * (r.parameters / 1e4) ** -0.4
    sizes = [(2**k, layers) for k in range(5, 10) for layers in (2, 4)]
    sized = lambda w, layers: run(w, layers, series="x", source="gemstones", tokens=2e10)
    make = lambda w, layers: Run(**{**vars(sized(w, layers)), "loss": law(sized(w, layers))})
    rungs = tuple(make(*size) for size in sizes)
    one = forecasts.outcome(forecasts.Target(make(4096, 16), "open", rungs))
    assert one.error == pytest.approx(0, abs=0.005)
    assert one.inside
    assert one.others["E + A parameters^-a"] == pytest.approx(0, abs=0.005)


def test_a_table_of_outcomes_is_read_as_it_was_written(tmp_path):
    others = {"E + A parameters^-a": 0.25, "E + A cost^-a": -0.5}
    one = forecasts.Outcome("a", "b", "open", 8, 2, 1e9, 6, 12.5, 3.0, 2.5, 0.125, 0.25, True, 0.5, others)
    (path := tmp_path / "table.csv").write_text(forecasts.written([one]))
    assert forecasts.read(path) == [one]


def test_depth_pays_by_what_deeper_networks_of_equal_size_gain():
    runs = [run(2**k, 2 ** (12 - 2 * k), loss=3 + 0.1 * k, parameters=1e6) for k in range(2, 6)]
    found = depth.gain(depth.pairs(runs), 0, math.inf)
    assert found.mean == pytest.approx(-0.1 * 10 / 6)  # of pairs one, two and three sizes apart
    assert found.bounds[1] < 0


STEP_LAW = "h,numl,N,D,smooth loss,lr,bs,ti,moeh,topk,nume\n960,7,2e8,4e9,2.5,0.002,128,15000,352,1,89\n"


@pytest.mark.parametrize(
    ("name", "files", "expected"),
    [
        ("step_law", {"steplaw/step_law_dense.csv": STEP_LAW}, (960, 7, 2e8, 4e9, 2.5, 0.002)),
        ("step_law_moe", {"steplaw/moe_lr_bs_loss.csv": STEP_LAW}, (960, 7, 2e8, 4e9, 2.5, 0.002)),
        (
            "gemstones",
            {
                "gemstones/gemstones_hot.jsonl": json.dumps(
                    {"width": 256, "depth": 23, "params_active_precise": 5e7, "tokens": 2e9, "step": 9, "final_loss": 4}
                )
            },
            (256, 23, 5e7, 2e9, 4, 0),
        ),
        (
            "open_lm",
            {"open_lm/grid.json": '{"d=96_l=4_h=4-8-0.003-0.033-8-200-100-3e-05": 5.5}'},
            (96, 4, 10, 200, 5.5, 0.003),
        ),
        (
            "open_clip",
            {
                "open_clip/arch_info.csv": "model,mparams\nViT-L-14,427.6\n",
                "open_clip/zeroshot_results.csv": "arch,samples_seen,upstream_dataset,downstream_dataset,acc1\n"
                "ViT-L-14,1e9,LAION-2B,imagenet1k,0.75\nViT-L-14,1e9,CLIP-WIT,imagenet1k,0.9\n",
            },
            (1024, 24, 427.6e6, 1e9, 0.25, 0),
        ),
    ],
)
def test_a_reader_takes_a_row_as_its_source_writes_it(tmp_path, name, files, expected):
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    (one,) = sources.READERS[name](tmp_path)
    assert (one.width, one.depth, one.parameters, one.tokens, one.loss, one.rate) == pytest.approx(expected)
    assert one.source == name


def test_isoflops_have_a_series_for_each_data_set_and_no_runs_without_a_loss(tmp_path):
    header = '"Name","parameter_count","throughput/total_tokens","eval/paloma/macro_loss","trainer.num_train_steps",'
    header += '"learning_rate","model.hidden_dim","model.num_layers"\n'
    (tmp_path / "marin_isoflops").mkdir()
    for number, data in enumerate(("comma", "dclm", "nemotron")):
        rows = f"a,1e9,2e10,{3 + number},1e4,0.01,1024,11\nb,1e9,2e10,,1e4,0.01,1024,11\n"
        (tmp_path / f"marin_isoflops/isoflop-{data}.csv").write_text(header + rows)
    runs = sources.marin_isoflops(tmp_path)
    assert [(r.series, r.loss) for r in runs] == [("comma", 3), ("dclm", 4), ("nemotron", 5)]
    assert (runs[0].width, runs[0].depth, runs[0].batch, runs[0].rate) == (1024, 11, 2e6, 0.01)


def test_marins_cells_are_the_best_configuration_and_its_other_rates(tmp_path):
    (folder := tmp_path / "marin_optimizers/lion/300m/2").mkdir(parents=True)
    ablations = [
        {"param": "learning_rate", "value": 0.002, "loss": 3.5},
        {"param": "learning_rate", "value": 0.004, "loss": "NaN"},
        {"param": "beta1", "value": 0.9, "loss": 3.3},
    ]
    best = {"learning_rate": 0.001, "train_batch_size": 128, "weight_decay": 0.7}
    result = {"best_config": best, "baseline": {"loss": 3.25}, "ablations": ablations, "min_loss": 3.25}
    (folder / "result.json").write_text(json.dumps(result))
    runs = sources.marin_optimizers(tmp_path)
    assert [(r.rate, r.loss) for r in runs] == [(0.001, 3.25), (0.002, 3.5)]
    assert {(r.series, r.width, r.depth, r.decay) for r in runs} == {("lion", 768, 32, 0.7)}
    assert runs[0].tokens == pytest.approx(40 * runs[0].parameters)


def test_the_committed_forecasts_are_of_the_sources_and_halves_that_were_registered():
    for path in (forecasts.REGISTERED, forecasts.FINAL):
        outcomes = forecasts.read(path)
        closed = [one for one in outcomes if one.half == "closed"]
        assert len(closed) == 133
        assert all(one.cost_ratio >= 9.7 for one in outcomes)


def test_the_pages_forecast_tables_are_what_the_committed_forecasts_give():
    text = page.PAGE.read_text()
    registered = ("registered forecasts", forecasts.REGISTERED, ("", *forecasts.OTHERS))
    for name, path, laws in (registered, ("forecasts", forecasts.FINAL, page.SHOWN)):
        rows = page.table(page.forecast_rows(forecasts.read(path), laws))
        assert page.part(text, name, rows) == text


@pytest.mark.skipif(sources.data_directory() is None, reason=f"{sources.VARIABLE} names no directory of the files")
def test_the_pages_regrets_are_what_the_files_give():
    step = rates.step_law_curves(sources.step_law(sources.data_directory()))
    found = rates.regrets(rates.step_law_pairs(step), {"depth_mup: 1/(m sqrt r)": rates.power(-1, -0.5)})
    (row,) = page.regret_rows(found)[1:]
    assert f"| {' | '.join(row)} |" in page.PAGE.read_text()


def costs(name):
    """A table of the page: the name of a row -> its columns."""
    start, end = f"<!-- {name}: python -m reproduction.public.page -->", f"<!-- end of {name} -->"
    text = page.PAGE.read_text()
    header, _, *rows = [
        line.strip("| ").split(" | ") for line in text.partition(start)[2].partition(end)[0].split("\n")[2:-2]
    ]
    return {row[0]: dict(zip(header[1:], row[1:], strict=True)) for row in rows}


def rescaled_rate(weight_decay=0.0, **target):
    tuned = dm.Hyperparameters(learning_rate=1.0, batch_size=16, steps=100, weight_decay=weight_decay)
    return dm.rescaled_hyperparameters(
        tuned, **{"batch_size": 16, "steps": 100, "optimizer": "adamw", **target}
    ).learning_rate


def test_rescaled_hyperparameters_cost_no_more_than_no_change_over_examples_in_any_source_and_family():
    columns = {0.0: "none", -0.25: "d^-1/4"}
    decayed = columns[round(math.log2(rescaled_rate(0.1, steps=200)), 6)]
    assert all(row[decayed] <= row["none"] for row in costs("durations").values())
    for name, row in costs("own durations").items():
        chosen = columns[round(math.log2(rescaled_rate(0.1 * ("decay" in name), steps=200)), 6)]
        assert row[chosen] <= row["none"]


def test_rescaled_hyperparameters_cost_less_than_no_change_over_batches_of_up_to_512_sequences():
    power = round(math.log2(rescaled_rate(0.1, batch_size=32, steps=50)), 6)
    rows = {name: row for name, row in costs("batches").items() if "512" in name}
    assert len(rows) == 4
    assert all(row[f"k^{power:g}"] < row["k^0"] for row in rows.values())
