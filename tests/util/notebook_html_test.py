"""HTML for notebooks: escaped, without scripts, colors or addresses, so that it fits light and dark."""

import html_text

from depthmup_flax.util import notebook_html

HOSTILE = "<script>alert('&')</script>"


def test_all_text_is_escaped():
    functions = notebook_html.heading, notebook_html.code
    shown = "".join(function(HOSTILE) for function in functions)
    shown += notebook_html.paragraphs([HOSTILE]) + notebook_html.items([HOSTILE])
    shown += notebook_html.table([[HOSTILE], [HOSTILE]], "<") + notebook_html.image(b"", HOSTILE)
    assert html_text.words(shown) == [HOSTILE] * 6
    assert html_text.tags(shown) == {"p", "b", "pre", "ul", "li", "table", "thead", "tbody", "tr", "th", "td", "img"}


def test_a_table_has_the_notebooks_colors():
    shown = notebook_html.table([["name", "rate"], ["a", "0.1"]], "<>")
    assert "color" not in shown
    assert "background" not in shown
    assert shown.count("text-align: right") == shown.count("text-align: left") == 2


def test_no_texts_are_no_list():
    assert notebook_html.items([]) == notebook_html.paragraphs([]) == ""
