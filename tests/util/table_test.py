"""HTML for notebooks: escaped, without scripts, colors or addresses, so that it fits light and dark."""

import html_text

from depthmup_flax.util.table import Table, notebook_html

HOSTILE = "<script>alert('&')</script>"


def test_all_text_is_escaped():
    shown = notebook_html(HOSTILE, Table([HOSTILE], [[HOSTILE]], "<", HOSTILE))
    assert html_text.words(shown) == [HOSTILE] * 4
    assert html_text.tags(shown) == {"p", "table", "caption", "thead", "tbody", "tr", "th", "td"}


def test_a_table_has_the_notebooks_colors():
    shown = Table(["name", "rate"], [["a", 0.1]], "<>").html()
    assert "color" not in shown
    assert "background" not in shown
    assert shown.count("text-align: right") == shown.count("text-align: left") == 2


def test_a_table_is_the_same_in_text_and_html_and_its_text_is_never_cut():
    table = Table(("name", "loss"), [("a" * 200, 1 / 3), ("b", None)], "<>", caption="Losses", ruled=True)
    caption, head, rule, first, second, _ = str(table).splitlines()
    assert (caption, second, set(rule)) == ("Losses", "b", {"-"})
    assert (head.split(), first.split()) == (["name", "loss"], ["a" * 200, "0.3333"])
    assert html_text.words(table.html()) == ["Losses", "name", "loss", "a" * 200, "0.3333", "b"]
