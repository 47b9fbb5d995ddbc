"""The audit passes right models of every kind and no wrong one."""

import pathlib

import pytest
from zoo.kinds import outcomes, packages
from zoo.kinds.catalog import GROUPS, KINDS
from zoo.kinds.fresh import FRESH
from zoo.kinds.outcomes import FALSE_FAIL, FALSE_PASS, OPEN, WRONG_CAUSE, Outcome, row, table

DOCS = pathlib.Path(__file__).parents[2] / "docs" / "your_model.md"
GROUP_ROWS = tuple(f"| {group} |" for group in (*GROUPS, "fresh", "packages", "all"))

# A dozen that stand for the rest; the slow test has all.
SAMPLE = {
    "branches/mamba": "none",
    "weightless/fft_mlp": "only_fft",
    "norms/post_layer": "first_layer",
    "names/haiku": "none",
    "names/list": "no_readout",
    "ends/tied": "kept_readout",
    "streams/graph_sequential": "only_edges",
    "streams/t5": "only_encoder",
    "kernels/splash": "root_heads",
    "kernels/product_kernel": "none",
    "libraries/haiku_unnamed": "squared",
    "random/scanned_drop_path": "none",
    "sums/summed": "none",
}


def wrong(found):
    """What is not as it should be: "not judged" is a good answer for rare models alone."""
    return [str(o) for o in found if o.kind in (FALSE_PASS, FALSE_FAIL) or (o.kind == OPEN and not o.rare)]


@pytest.mark.parametrize("name", SAMPLE)
def test_the_audit_passes_a_right_model_and_names_its_mistake(name):
    found = [outcomes.outcome(name, KINDS[name], mistake) for mistake in ("", SAMPLE[name])]
    assert not wrong(found), "\n".join(wrong(found))


def test_there_are_enough_kinds_and_twenty_fresh_ones():
    compact = [name for name in KINDS if not name.startswith(("fresh/", "packages/"))]
    assert len(compact) >= 150
    assert len(FRESH) == 20


@pytest.mark.slow
@pytest.mark.parametrize("group", dict.fromkeys(name.partition("/")[0] for name in KINDS))
def test_the_audit_passes_right_models_and_names_mistakes_as_often_as_docs_say(group):
    if group == "packages":
        pytest.importorskip("transformers")
    found = [o for name in KINDS if name.startswith(f"{group}/") for o in outcomes.outcomes(name)]
    assert not wrong(found), "\n".join(wrong(found))
    assert row(group, found) in DOCS.read_text()


def test_the_rows_of_the_table_in_docs_add_up():
    rows = [line.split("|")[1:-1] for line in DOCS.read_text().splitlines() if line.startswith(GROUP_ROWS)]
    numbers = {name.strip(): list(map(int, cells)) for name, *cells in rows}
    assert len(numbers) == len(GROUP_ROWS)
    total = numbers.pop("all")
    assert total == [sum(column) for column in zip(*numbers.values(), strict=True)]
    assert total[0] >= 150
    assert total[1] >= 450


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in KINDS if name.startswith("packages/")])
def test_published_models_lack_both_multipliers(name):
    found = {finding.name for finding in packages.unmodified(name).audit().findings}
    assert found >= {"missing_branch_multiplier", "readout_not_scaled"}


def test_the_table_counts_what_the_audit_got_wrong():
    missed = Outcome("kernels/a", "none", "ok", (), "missing_branch_multiplier", 1.0, False)
    found = [
        missed,
        Outcome("kernels/a", "", "missing", ("attention_scale",), None, 1.0, False),
        Outcome("kernels/a", "none", "missing", ("attention_scale",), "missing_branch_multiplier", 1.0, False),
        Outcome("kernels/b", "", "not judged", (), None, 1.0, False),
        Outcome("kernels/b", "", "ok", ("w (4, 4): [4.0] for [4, 4]",), None, 1.0, False),
    ]
    assert [o.kind for o in found] == [FALSE_PASS, FALSE_FAIL, WRONG_CAUSE, OPEN, FALSE_PASS]
    assert table(found).splitlines()[-1] == "| all | 3 | 2 | 2 | 1 | 1 | 1 |"
