"""The report's page in a browser: widths, themes, pointer and keyboard."""

import shutil

import pytest

from depthmup_flax.report.inline_svg import CONTRAST, contrast

sync_api = pytest.importorskip("playwright.sync_api")
PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no Chromium is installed")
PANEL = "svg[data-values]"


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=PROGRAM, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture
def opened(browser, full_report):
    """Opens the page at a width in a theme; what it asks for and complains of is checked at the end."""
    contexts, heard = [], []
    address = full_report.paths[0].as_uri()

    def open_page(width, theme, **options):
        contexts.append(browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme, **options))
        page = contexts[-1].new_page()
        page.on("console", lambda message: heard.append(message.text))
        page.on("pageerror", lambda error: heard.append(str(error)))
        # Of data addresses, which hold the pictures of the heat map, none leaves the page.
        page.on("request", lambda request: request.url.startswith("data:") or heard.append(request.url))
        page.goto(address)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert set(heard) <= {address}


def hex_color(rgb):
    """``rgb(1, 2, 3)`` -> ``#010203``."""
    return "#" + "".join(f"{int(channel):02x}" for channel in rgb.removeprefix("rgb(").removesuffix(")").split(","))


def on_screen(panel, x, y):
    """A point in the panel's units, in the browser's."""
    script = "(svg, at) => { const p = new DOMPoint(...at).matrixTransform(svg.getScreenCTM()); return [p.x, p.y] }"
    return panel.evaluate(script, [x, y])


@pytest.mark.parametrize(("width", "theme"), [(390, "light"), (768, "dark"), (1400, "light")])
def test_the_page_fits_every_width_and_its_text_contrasts_in_both_themes(width, theme, opened):
    page = opened(width, theme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    boxes = page.eval_on_selector_all("svg, h1, p", "all => all.map(e => e.getBoundingClientRect().right)")
    assert max(boxes) <= width
    style = "e => [getComputedStyle(e).color, getComputedStyle(document.body).backgroundColor]"
    for selector in ("h1", ".lead", ".faint", "figcaption", "td", "a", ".notes li", "svg text"):
        text, ground = map(hex_color, page.eval_on_selector(selector, style))
        assert contrast(text, ground) >= 4.5, selector
    assert (contrast(ground, "#ffffff") < 1.5) == (theme == "light")


def test_a_phone_shows_every_cell_of_a_table_with_the_name_of_its_column(opened):
    page = opened(390, "light")
    named = "all => all.map(e => getComputedStyle(e, '::before').content)"
    names = page.eval_on_selector_all(".results:first-of-type tr:nth-child(2) > td", named)
    assert {'"width"', '"regret"', '"shift"', '"best loss"'} <= set(names)
    assert all(box.evaluate("e => e.scrollWidth <= e.clientWidth") for box in page.locator(".scroll").all())
    boxes = "all => all.map(e => e.getBoundingClientRect()).filter(b => b.width).map(b => [b.left, b.top, b.right])"
    cells = page.eval_on_selector_all(".results td", boxes)
    assert all(0 <= left < right <= 390 for left, _, right in cells)
    assert len({top for _, top, _ in cells}) == len(cells)


def test_panels_fill_a_wide_page(opened):
    page = opened(1400, "light")
    right = page.eval_on_selector_all("figure svg", "all => Math.max(...all.map(e => e.getBoundingClientRect().right))")
    assert right > 1300


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_lines_of_panels_contrast_with_the_page(theme, opened):
    page = opened(768, theme)
    ground = hex_color(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    strokes = page.eval_on_selector_all(
        "svg path[clip-path]",  # neither ticks nor frames
        "all => all.map(getComputedStyle).filter(s => s.strokeOpacity == 1 && s.fill == 'none').map(s => s.stroke)",
    )
    lines = {hex_color(stroke) for stroke in strokes if stroke.startswith("rgb(")}
    assert len(lines) > 3
    assert [line for line in lines if contrast(line, ground) < CONTRAST] == []


def test_the_pointer_shows_the_nearest_value_and_hides_it_when_it_leaves(opened):
    page = opened(1400, "light")
    panel, tip = page.locator(PANEL).first, page.locator("#tip")
    assert not tip.is_visible()
    x, y, text = panel.evaluate("svg => JSON.parse(svg.dataset.values)[2]")
    at = on_screen(panel, x, y)
    page.mouse.move(at[0] + 2, at[1] + 1)
    assert tip.text_content() == text
    box = tip.bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 1400
    page.mouse.move(1, 1)
    assert not tip.is_visible()


def test_arrow_keys_go_through_the_values_of_a_focused_panel_and_escape_hides_them(opened):
    page = opened(768, "dark")
    panel, tip = page.locator(PANEL).first, page.locator("#tip")
    texts = [text for _, _, text in panel.evaluate("svg => JSON.parse(svg.dataset.values)")]
    panel.focus()
    for key, text in (
        ("ArrowRight", texts[0]),
        ("ArrowRight", texts[1]),
        ("ArrowLeft", texts[0]),
        ("ArrowLeft", texts[-1]),
    ):
        page.keyboard.press(key)
        assert tip.text_content() == text
    page.keyboard.press("Escape")
    assert not tip.is_visible()


def test_a_touch_shows_a_value_on_a_phone(opened):
    page = opened(390, "light", has_touch=True)
    panel = page.locator(PANEL).first
    panel.scroll_into_view_if_needed()
    x, y, text = panel.evaluate("svg => JSON.parse(svg.dataset.values)[0]")
    page.touchscreen.tap(*on_screen(panel, x, y))
    assert page.locator("#tip").text_content() == text


def test_the_page_is_whole_without_scripts(opened):
    page = opened(768, "light", java_script_enabled=False)
    assert page.locator("h1").is_visible()
    assert page.locator("svg").first.is_visible()
