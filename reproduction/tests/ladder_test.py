"""The searches of the law are those of reports, and its page has what the command prints."""

import numpy as np

from depthmup_flax.report.sweep_report import analysis_of
from depthmup_flax.search.ladder.ladder import ladder
from depthmup_flax.search.ladder.law import known_laws
from depthmup_flax.storage.sweep_records import read_sweep
from reproduction.ladder import fit, searches

ROOT = searches.HERE.parent


def test_best_rates_are_those_of_the_report():
    directory = searches.HERE / "records" / "digits-cpu"
    reported = {
        (variant.name, *row.size): row.optimum.at.value
        for variant in analysis_of(read_sweep([directory])).variants
        for row in variant.rows
        if row.bracketed
    }
    found = {
        (line.rule, one.search.size.width, one.search.size.depth): one.search.rate
        for line in searches._lines_of(directory)
        for one in line.sizes
        if line.rule in ("depth_mup", "mup")
    }
    assert found.keys() <= reported.keys()
    assert len(found) >= 4
    for key, rate in found.items():
        assert np.isclose(rate, reported[key])


def test_the_fit_finds_the_spread_of_planted_lines():
    draw, lines = np.random.default_rng(0), []
    template = next(searches._lines_of(searches.HERE / "records" / "digits-cpu"))
    for i in range(60):
        slope, level = draw.normal(0.1, 0.3), draw.normal(-7, 2)
        own = [fit.dataclasses.replace(one.search, error=0.0) for one in template.sizes]
        place = [one.size.place[1] for one in own]
        own = [
            fit.dataclasses.replace(one, rate=level + slope * (at - place[0]) + draw.normal(0, 0.1))
            for one, at in zip(own, place, strict=True)
        ]
        sizes = [fit.dataclasses.replace(one, search=new) for one, new in zip(template.sizes, own, strict=True)]
        lines.append(fit.dataclasses.replace(template, family=str(i), sizes=tuple(sizes)))
    form = fit.Form("means", 1e6, means=True)
    law = form.law(fit.fitted(form, lines, form.start))
    assert np.isclose(law.slopes["depth"], 0.1, atol=0.12)
    assert np.isclose(law.spreads["depth"], 0.3, rtol=0.3)
    assert np.isclose(law.noise, 0.1, rtol=0.3)


def test_the_page_shows_what_the_command_prints():
    found = ladder(searches.HERE / "ladder" / "runs.csv", (128, 64), rule="depth_mup", initial_loss=2.303)
    assert "\n".join(found.statement) in (ROOT / "docs" / "ladder.md").read_text()


def numbers_of(section, name):
    """n, inside and log likelihood of the two lines of a form."""
    lines = [line for line in section.splitlines() if name in line]
    cells = [line.replace(", several sizes", "").partition("  ")[2].split() for line in lines]
    return np.array([[float(row[0]), float(row[3]), float(row[4])] for row in cells])


def test_committed_coverage_is_as_it_should_be():
    """Of the taken form of each rule: .90 to .98 of the intervals hold, and it is likelier than two numbers."""
    for rule in known_laws():
        section = fit.PAGE.read_text().partition(f"## {rule}:")[2].partition("## ")[0]
        taken, two = numbers_of(section, "(taken)"), numbers_of(section, "two numbers")
        assert 0.895 <= taken[:, 1] @ taken[:, 0] / taken[:, 0].sum() <= 0.985
        assert taken[:, 2].sum() > two[:, 2].sum()
